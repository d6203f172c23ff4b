//! Back channel: slots of outgoing CB_SEQUENCE, RFC 8881 §2.10.6, §20.9.
//!
//! ```text
//!  Idle ──acquire──► Busy ──Replied──► Idle (seqid advanced)
//!                    Busy ──NotSent──► Idle (seqid as before)
//!                    Busy ──Unknown──► Poisoned (the client may or may not have seen it)
//! ```

use crate::session::channel::{BackChannelParams, ChannelAttrs};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Busy,
    Poisoned,
}

#[derive(Clone, Copy, Debug)]
struct CbSlot {
    seqid: u32,
    state: State,
}

/// A callback slot in use: the arguments of its CB_SEQUENCE.
///
/// A callback that got no reply is sent again with the same ticket, over another connection if need be.
#[derive(Debug, PartialEq, Eq)]
pub struct CbTicket {
    /// `csa_slotid`
    pub slot: u32,
    /// `csa_sequenceid`
    pub seqid: u32,
    /// `csa_highest_slotid`
    pub highest_slot: u32,
}

/// How a callback ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CbOutcome {
    /// The client processed CB_SEQUENCE: it answered OK, or RETRY_UNCACHED_REP to a repetition.
    Replied,
    /// It certainly did not: never sent, or CB_SEQUENCE itself failed (§20.9.3).
    NotSent,
    /// Given up without a reply, or the client finds the slot or seqid wrong.
    Unknown,
}

/// The back channel of one session.
#[derive(Debug)]
pub struct BackChannel {
    /// Negotiated attributes.
    pub attrs: ChannelAttrs,
    /// Program and security of callbacks.
    pub params: BackChannelParams,
    slots: Vec<CbSlot>,
    fault: bool,
}

impl BackChannel {
    /// A back channel with fresh slots.
    #[must_use]
    pub fn new(attrs: ChannelAttrs, params: BackChannelParams) -> Self {
        let slots = vec![CbSlot { seqid: 0, state: State::Idle }; attrs.max_requests as usize];
        Self { attrs, params, slots, fault: false }
    }

    /// The state of the slots is lost (a restart): §18.46.3 names this very case for
    /// BACKCHANNEL_FAULT, on which the client replaces the session.
    pub fn set_fault(&mut self) {
        self.fault = true;
    }

    /// No callback can ever be sent again on this session.
    #[must_use]
    pub fn is_fault(&self) -> bool {
        self.fault
    }

    /// Takes the lowest idle slot; `None` when all are in use or the channel is at fault.
    pub fn acquire(&mut self) -> Option<CbTicket> {
        if self.fault || self.params.security.is_none() {
            return None;
        }
        let slot = self.slots.iter().position(|s| s.state == State::Idle)?;
        let highest = self.slots.iter().rposition(|s| s.state == State::Busy).unwrap_or(0).max(slot);
        let s = self.slots.get_mut(slot)?;
        s.state = State::Busy;
        Some(CbTicket {
            slot: u32::try_from(slot).ok()?,
            seqid: s.seqid.wrapping_add(1),
            highest_slot: u32::try_from(highest).ok()?,
        })
    }

    /// Gives the slot back.
    pub fn release(&mut self, ticket: CbTicket, outcome: CbOutcome) {
        let Some(s) = self.slots.get_mut(ticket.slot as usize) else { return };
        if s.state != State::Busy {
            return;
        }
        match outcome {
            CbOutcome::Replied => *s = CbSlot { seqid: ticket.seqid, state: State::Idle },
            CbOutcome::NotSent => s.state = State::Idle,
            // Whether to go on at seqid or seqid + 1 is not known: the slot is never used again.
            CbOutcome::Unknown => s.state = State::Poisoned,
        }
        if self.slots.iter().all(|s| s.state == State::Poisoned) {
            self.fault = true;
        }
    }

    /// Callbacks that have no reply yet.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.slots.iter().filter(|s| s.state == State::Busy).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::channel::CbSecurity;

    fn channel(slots: u32) -> BackChannel {
        let attrs = ChannelAttrs { max_requests: slots, ..ChannelAttrs::default() };
        BackChannel::new(attrs, BackChannelParams { program: 1, security: Some(CbSecurity::None) })
    }

    #[test]
    fn seqid_advances_only_when_the_client_saw_it() {
        let mut b = channel(1);
        let t = b.acquire().unwrap();
        assert_eq!((t.slot, t.seqid, t.highest_slot), (0, 1, 0));
        assert!(b.acquire().is_none());
        b.release(t, CbOutcome::NotSent);
        let t = b.acquire().unwrap();
        assert_eq!(t.seqid, 1);
        b.release(t, CbOutcome::Replied);
        assert_eq!(b.acquire().unwrap().seqid, 2);
    }

    #[test]
    fn highest_slot_covers_those_in_use() {
        let mut b = channel(3);
        let t0 = b.acquire().unwrap();
        let t1 = b.acquire().unwrap();
        assert_eq!((t1.slot, t1.highest_slot), (1, 1));
        b.release(t0, CbOutcome::Replied);
        let t = b.acquire().unwrap();
        assert_eq!((t.slot, t.seqid, t.highest_slot), (0, 2, 1));
    }

    #[test]
    fn all_slots_poisoned_is_a_fault() {
        let mut b = channel(2);
        let (t0, t1) = (b.acquire().unwrap(), b.acquire().unwrap());
        b.release(t0, CbOutcome::Unknown);
        assert!(!b.is_fault());
        b.release(t1, CbOutcome::Unknown);
        assert!(b.is_fault());
        assert!(b.acquire().is_none());
    }

    #[test]
    fn without_security_no_callback() {
        let mut b = channel(1);
        b.params.security = None;
        assert!(b.acquire().is_none());
    }
}
