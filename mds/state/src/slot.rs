//! Slot table of a fore channel and its reply cache: RFC 8881 §2.10.6, §18.46.
//!
//! ```text
//!  state     request seqid          -> answer                        next
//!  Fresh     1                      -> New                           Busy
//!  Busy      = last                 -> Delay (retry in progress)     Busy
//!  Done      = last, same request   -> the cached reply              Done
//!  Done      = last, other request  -> SeqFalseRetry                 Done
//!  Done      = last + 1             -> New                           Busy
//!  Restored  = last, same request   -> Resume                        Busy
//!  Restored  = last, other request  -> SeqFalseRetry                 Restored
//!  Restored  > last                 -> New                           Busy
//!  Blank     any                    -> New                           Busy
//!  Reused    1 or last + 1          -> New                           Busy
//!  any       anything else          -> SeqMisordered                 unchanged
//! ```
//!
//! *Restored* and *Blank* exist only after a restart. Only modifying requests write a stable row, so the
//! row may lag behind the client's seqid; everything after the row was harmless to repeat, hence the
//! first request is let in at any later seqid. A modifying request that did commit has a row, and its
//! retry meets it: *Resume* is the request run again, the results of the row first.

use bytes::Bytes;

use crate::client::Error;
use crate::ids::Time;

/// Replies up to this many bytes are kept even when the client did not ask for it (RFC 8881
/// §2.10.6.1.3 permits it), because an answered retry is worth more than the memory.
pub const SMALL_REPLY: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Fresh,
    Busy,
    Done,
    Restored,
    Blank,
    Reused,
}

/// What a retry of the last request is answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cached {
    /// Nothing was kept.
    Uncached,
    /// The encoded reply.
    Reply(Bytes),
}

/// One slot: the last seqid and what is known of its reply.
#[derive(Clone, Debug)]
pub struct Slot {
    seqid: u32,
    state: State,
    /// Hash of the last request; compared on a retry.
    fingerprint: u64,
    /// When the last request began.
    began: Time,
    cached: Cached,
}

impl Slot {
    const FRESH: Self =
        Self { seqid: 0, state: State::Fresh, fingerprint: 0, began: Time::ZERO, cached: Cached::Uncached };

    /// A slot after a restart whose last stable row is of the request `seqid` with this fingerprint.
    #[must_use]
    pub fn restore(seqid: u32, fingerprint: u64) -> Self {
        Self { seqid, state: State::Restored, fingerprint, ..Self::FRESH }
    }

    /// A slot after a restart that never ran a modifying request: whatever comes first is new.
    #[must_use]
    pub fn restore_blank() -> Self {
        Self { state: State::Blank, ..Self::FRESH }
    }

    /// Sequence number of the last request.
    #[must_use]
    pub fn seqid(&self) -> u32 {
        self.seqid
    }

    /// A request is being served.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.state == State::Busy
    }

    /// When the request began that it is busy with, or was last.
    pub(crate) fn began(&self) -> Time {
        self.began
    }

    fn check(&self, seqid: u32, fingerprint: u64) -> Result<Begin, Error> {
        // §2.10.6.1: seqids wrap from 0xffffffff to 0.
        let ahead = seqid.wrapping_sub(self.seqid);
        match (self.state, ahead) {
            (State::Blank, _) | (State::Fresh | State::Done | State::Restored, 1) => Ok(Begin::New),
            // §2.10.6.2: the original is still being served.
            (State::Busy, 0) => Err(Error::Delay),
            (State::Done, 0) => self.replay(fingerprint),
            (State::Restored, 0) => self.same(fingerprint).map(|()| Begin::Resume),
            (State::Restored, 2..=0x7fff_ffff) => Ok(Begin::New),
            // A slot given back after a shrink: the client may have forgotten it or not.
            (State::Reused, 1) => Ok(Begin::New),
            (State::Reused, _) if seqid == 1 => Ok(Begin::New),
            _ => Err(Error::SeqMisordered),
        }
    }

    fn replay(&self, fingerprint: u64) -> Result<Begin, Error> {
        self.same(fingerprint)?;
        Ok(match &self.cached {
            Cached::Uncached => Begin::ReplayUncached,
            Cached::Reply(b) => Begin::Replay(b.clone()),
        })
    }

    /// §2.10.6.1.3.1: a different request (or principal) under an old seqid must not be given the reply
    /// of somebody else's.
    fn same(&self, fingerprint: u64) -> Result<(), Error> {
        if fingerprint == self.fingerprint { Ok(()) } else { Err(Error::SeqFalseRetry) }
    }
}

/// Answer of the slot table to a SEQUENCE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begin {
    /// Run the request.
    New,
    /// Send these bytes again.
    Replay(Bytes),
    /// Run the request from where stable storage says it got to before the restart.
    Resume,
    /// Answer SEQUENCE itself, then RETRY_UNCACHED_REP for the second operation; a SEQUENCE alone is
    /// simply answered again (§2.10.6.1.3).
    ReplayUncached,
}

/// The slots of one session.
#[derive(Debug)]
pub struct SlotTable {
    slots: Vec<Slot>,
    /// Highest slot a request may use.
    highest: u32,
    /// Highest slot the client is asked to use (`sr_target_highest_slotid`).
    target: u32,
    /// Growth ends here.
    max_slots: u32,
    busy: u32,
    cached_bytes: usize,
}

impl SlotTable {
    /// A table of `slots` fresh slots (at least 1) that can grow to `max_slots`.
    #[must_use]
    pub fn new(slots: u32, max_slots: u32) -> Self {
        let n = slots.max(1);
        Self {
            slots: vec![Slot::FRESH; n as usize],
            highest: n - 1,
            target: n - 1,
            max_slots: max_slots.max(n),
            busy: 0,
            cached_bytes: 0,
        }
    }

    /// After a restart: every slot blank; [`Self::restore_slot`] then fills in the rows.
    #[must_use]
    pub fn restore(slots: u32, max_slots: u32) -> Self {
        let mut table = Self::new(slots, max_slots);
        table.slots.fill(Slot::restore_blank());
        table
    }

    /// Puts a restored slot in place; a row beyond the table is ignored.
    pub fn restore_slot(&mut self, index: u32, slot: Slot) {
        if let Some(place) = self.slots.get_mut(index as usize) {
            *place = slot;
        }
    }

    /// Highest slot a request may use (`sr_highest_slotid`).
    #[must_use]
    pub fn highest(&self) -> u32 {
        self.highest
    }

    /// Highest slot the client is asked to use.
    #[must_use]
    pub fn target(&self) -> u32 {
        self.target
    }

    /// Requests being served.
    #[must_use]
    pub fn busy(&self) -> u32 {
        self.busy
    }

    /// Bytes of cached replies.
    #[must_use]
    pub fn cached_bytes(&self) -> usize {
        self.cached_bytes
    }

    /// The slot, for inspection.
    #[must_use]
    pub fn slot(&self, index: u32) -> Option<&Slot> {
        self.slots.get(index as usize)
    }

    /// Judges a SEQUENCE without changing anything.
    ///
    /// `fingerprint` is a hash of the operations *and* of the principal. Errors: BadSlot, BadHighSlot,
    /// SeqMisordered, SeqFalseRetry, Delay.
    pub fn check(
        &self,
        slot: u32,
        seqid: u32,
        client_highest: u32,
        fingerprint: u64,
    ) -> Result<Begin, Error> {
        if slot > self.highest {
            return Err(Error::BadSlot);
        }
        // §18.46.3: sa_highest_slotid is the highest slot in use at the client.
        if client_highest > self.highest {
            return Err(Error::BadHighSlot);
        }
        let slot = self.slots.get(slot as usize).ok_or(Error::BadSlot)?;
        slot.check(seqid, fingerprint)
    }

    /// Occupies the slot for a request that [`Self::check`] called new or to be resumed.
    pub fn start(&mut self, now: Time, slot: u32, seqid: u32, client_highest: u32, fingerprint: u64) {
        if let Some(s) = self.slots.get_mut(slot as usize)
            && s.state != State::Busy
        {
            // The client has seen the previous reply, or it would not have moved on.
            if let Cached::Reply(b) = std::mem::replace(&mut s.cached, Cached::Uncached) {
                self.cached_bytes -= b.len();
            }
            s.seqid = seqid;
            s.state = State::Busy;
            s.fingerprint = fingerprint;
            s.began = now;
            self.busy += 1;
        }
        // Not before the client itself says that it keeps to the target (§2.10.6.1).
        if client_highest <= self.target && slot <= self.target {
            self.shrink();
        }
    }

    /// Ends the request of a busy slot; anything else is ignored.
    ///
    /// `reply` is kept when `keep` is set (sa_cachethis) or when it is small.
    pub fn complete(&mut self, slot: u32, reply: Option<Bytes>, keep: bool) {
        let Some(s) = self.slots.get_mut(slot as usize) else { return };
        if s.state != State::Busy {
            return;
        }
        s.state = State::Done;
        self.busy -= 1;
        s.cached = match reply {
            Some(b) if keep || b.len() <= SMALL_REPLY => {
                self.cached_bytes += b.len();
                Cached::Reply(b)
            }
            _ => Cached::Uncached,
        };
    }

    /// A resumed request cannot be run now: its slot is as the restart left it. Anything else is ignored.
    pub fn put_back(&mut self, slot: u32) {
        if let Some(s) = self.slots.get_mut(slot as usize)
            && s.state == State::Busy
        {
            s.state = State::Restored;
            self.busy -= 1;
        }
    }

    /// Asks the client for a table of `slots` slots (1..=max_slots). Growth is immediate; a shrink takes
    /// effect once the client keeps to it.
    pub fn set_target(&mut self, slots: u32) {
        self.target = slots.clamp(1, self.max_slots) - 1;
        if self.target <= self.highest {
            return;
        }
        for s in self.slots.iter_mut().skip(self.highest as usize + 1) {
            // Retired before: the seqid stays known.
            if s.state == State::Done || s.state == State::Restored {
                s.state = State::Reused;
            }
        }
        let wanted = self.target as usize + 1;
        if self.slots.len() < wanted {
            self.slots.resize(wanted, Slot::FRESH);
        }
        self.highest = self.target;
    }

    fn shrink(&mut self) {
        if self.target >= self.highest {
            return;
        }
        let above = self.target as usize + 1;
        if self.slots.iter().skip(above).any(Slot::is_busy) {
            return;
        }
        for s in self.slots.iter_mut().take(self.highest as usize + 1).skip(above) {
            if let Cached::Reply(b) = std::mem::replace(&mut s.cached, Cached::Uncached) {
                self.cached_bytes -= b.len();
            }
        }
        self.highest = self.target;
    }
}

#[cfg(test)]
mod tests;
