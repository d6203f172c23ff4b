//! Stateids: allocation, special values, seqid comparison, and the index from `other` to the file.
//! RFC 8881 §8.2.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::effect::RevokeReason;
use crate::file::{Error, FileId};
use crate::ids::{BootEpoch, ClientId, StateId, StateKind, household};

/// Allocates `other` values of one incarnation. Shared by all files; deterministic under one thread.
#[derive(Debug)]
pub struct StateIds {
    epoch: BootEpoch,
    next: AtomicU64,
}

impl StateIds {
    /// The allocator of incarnation `epoch`.
    #[must_use]
    pub const fn new(epoch: BootEpoch) -> Self {
        Self { epoch, next: AtomicU64::new(1) }
    }

    /// The incarnation.
    #[must_use]
    pub const fn epoch(&self) -> BootEpoch {
        self.epoch
    }

    /// A fresh stateid with seqid 1.
    pub fn next(&self, kind: StateKind) -> StateId {
        StateId::new(self.epoch, kind, self.next.fetch_add(1, Ordering::Relaxed), 1)
    }
}

/// The part of a stateid that names the state.
pub type Other = [u8; 12];

/// The special stateids of RFC 8881 §8.2.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// All zero: anonymous I/O, subject to share reservations.
    Anonymous,
    /// All ones: READ bypass; as anonymous for anything but READ.
    ReadBypass,
    /// `other` zero, seqid 1: the compound's current stateid.
    Current,
    /// `other` zero, seqid 2^32-1: never valid.
    Invalid,
}

const ZEROS: Other = [0; 12];
const ONES: Other = [0xff; 12];

/// Which special stateid this is; `Ok(None)` for an ordinary one.
///
/// # Errors
/// [`Error::BadStateid`] when `other` is reserved (all zero or all one) and the seqid is none of the
/// defined ones (§8.2.3).
pub fn special(stateid: &StateId) -> Result<Option<Special>, Error> {
    match (stateid.other, stateid.seqid) {
        (ZEROS, 0) => Ok(Some(Special::Anonymous)),
        (ZEROS, 1) => Ok(Some(Special::Current)),
        (ZEROS, u32::MAX) => Ok(Some(Special::Invalid)),
        (ONES, u32::MAX) => Ok(Some(Special::ReadBypass)),
        (ZEROS | ONES, _) => Err(Error::BadStateid),
        _ => Ok(None),
    }
}

/// The seqid after `seqid`: 0 is skipped on wrap, since it means "the most recent" (§8.2.2).
#[must_use]
pub const fn next_seqid(seqid: u32) -> u32 {
    match seqid.wrapping_add(1) {
        0 => 1,
        n => n,
    }
}

/// True when `a` was issued before `b`, by serial-number comparison (half the range is "before").
#[must_use]
pub const fn seqid_before(a: u32, b: u32) -> bool {
    a != b && b.wrapping_sub(a) < 1 << 31
}

/// Compares a client's seqid with the current one. 0 is always current (§8.2.2).
///
/// # Errors
/// [`Error::OldStateid`] when it is older, [`Error::BadStateid`] when it was never issued.
pub fn check_seqid(given: u32, current: u32) -> Result<(), Error> {
    if given == 0 || given == current {
        Ok(())
    } else if seqid_before(given, current) {
        Err(Error::OldStateid)
    } else {
        Err(Error::BadStateid)
    }
}

/// Where a live stateid lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// The file whose machine holds it.
    pub file: FileId,
    /// What it is.
    pub kind: StateKind,
    /// Who owns it.
    pub client: ClientId,
}

/// How much state a client holds, over all files. Read before `prepare` and passed in
/// [`Ctx`](crate::file::Ctx), which enforces the caps of [`Policy`](crate::file::Policy).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Open stateids.
    pub opens: u32,
    /// Lock stateids.
    pub locks: u32,
    /// Lock ranges.
    pub ranges: u32,
    /// Denied locks that wait.
    pub waiting: u32,
    /// Layout stateids.
    pub layouts: u32,
    /// Delegation stateids.
    pub delegations: u32,
    /// Clients that hold anything.
    pub clients: u32,
    /// Open stateids of all clients.
    pub opens_of_all: u32,
    /// Lock stateids of all clients.
    pub locks_of_all: u32,
    /// Lock ranges of all clients.
    pub ranges_of_all: u32,
    /// Denied locks that wait, of all clients.
    pub waiting_of_all: u32,
    /// Delegation stateids of all clients.
    pub delegations_of_all: u32,
    /// Layout stateids of all clients.
    pub layouts_of_all: u32,
    /// Open stateids of all clients at its host; as all of these 0 where that is not known.
    pub opens_of_host: u32,
    /// Lock stateids of theirs.
    pub locks_of_host: u32,
    /// Lock ranges of theirs.
    pub ranges_of_host: u32,
    /// Denied locks of theirs that wait.
    pub waiting_of_host: u32,
    /// It has not freed all that was revoked.
    pub has_revoked: bool,
}

impl Usage {
    /// As if nobody else were at its host: for what it had before a restart, which was within the bounds of then.
    #[must_use]
    pub const fn had_before(self) -> Self {
        Self { opens_of_host: 0, locks_of_host: 0, ranges_of_host: 0, waiting_of_host: 0, ..self }
    }
}

/// Most revoked stateids remembered per client; beyond it the oldest is forgotten and answers
/// NFS4ERR_BAD_STATEID.
pub const MAX_REVOKED_PER_CLIENT: usize = 4096;

/// From `other` to the file that holds it, and the memory of revoked stateids (until FREE_STATEID). Kept
/// by the caller apart from the files, from [`Effect`](crate::effect::Effect)s.
#[derive(Debug, Default)]
pub struct StateIndex {
    entries: BTreeMap<Other, Entry>,
    clients: BTreeMap<ClientId, PerClient>,
    /// Live state of all clients.
    all: Usage,
    /// At which host each client is, as far as that was told.
    places: BTreeMap<ClientId, IpAddr>,
    /// Live state of all clients at each of those.
    hosts: BTreeMap<IpAddr, Usage>,
}

#[derive(Debug)]
struct Entry {
    at: Located,
    revoked: Option<Revoked>,
    /// Of a live lock stateid.
    ranges: u32,
}

#[derive(Clone, Copy, Debug)]
struct Revoked {
    reason: RevokeReason,
    /// Its place among what was revoked of the client.
    number: u64,
}

#[derive(Debug, Default)]
struct PerClient {
    usage: Usage,
    /// Where all that it holds is counted, too.
    host: Option<IpAddr>,
    /// Every live `other` of the client with its file.
    others: BTreeMap<Other, FileId>,
    /// Revoked ones by their numbers, oldest first.
    revoked: BTreeMap<u64, Other>,
    /// How many of those are delegations.
    revoked_delegations: usize,
}

impl StateIndex {
    /// An empty index.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Finds the file of an ordinary stateid (special ones are resolved by the caller first). The file
    /// then compares the seqid.
    ///
    /// # Errors
    /// StaleStateid for another incarnation's, Expired, AdminRevoked or DelegRevoked for a revoked one,
    /// BadStateid for one never issued, freed, or of another client.
    pub fn locate(&self, epoch: BootEpoch, client: ClientId, stateid: &StateId) -> Result<Located, Error> {
        let Some(entry) = self.entries.get(&stateid.other) else {
            // RFC 8881 §8.2.4: an earlier incarnation's stateid is stale, not bad; the client then
            // looks for a restart. Only a plausible layout of ours counts, so that noise stays "bad".
            let old = stateid.kind().is_some() && stateid.epoch() < epoch && stateid.epoch().0 != 0;
            return Err(if old { Error::StaleStateid } else { Error::BadStateid });
        };
        // Another client's stateid: nothing about it is told (§8.2.5 leaves BAD_STATEID).
        if entry.at.client != client {
            return Err(Error::BadStateid);
        }
        match entry.revoked {
            None => Ok(entry.at),
            Some(revoked) => Err(Error::taken(revoked.reason)),
        }
    }

    /// What a client holds.
    #[must_use]
    pub fn usage(&self, client: ClientId) -> Usage {
        let held = self.clients.get(&client);
        let host = held.map_or_else(|| self.places.get(&client).copied(), |held| held.host);
        let near = host.and_then(|host| self.hosts.get(&host)).copied().unwrap_or_default();
        Usage {
            opens_of_host: near.opens,
            locks_of_host: near.locks,
            ranges_of_host: near.ranges,
            waiting_of_host: near.waiting,
            clients: u32::try_from(self.clients.len()).unwrap_or(u32::MAX),
            opens_of_all: self.all.opens,
            locks_of_all: self.all.locks,
            ranges_of_all: self.all.ranges,
            waiting_of_all: self.all.waiting,
            delegations_of_all: self.all.delegations,
            layouts_of_all: self.all.layouts,
            has_revoked: held.is_some_and(|held| !held.revoked.is_empty()),
            ..held.map(|held| held.usage).unwrap_or_default()
        }
    }

    /// The client calls from this address. What it holds already stays counted where it is.
    pub fn is_at(&mut self, client: ClientId, address: IpAddr) {
        self.places.insert(client, household(address));
    }

    /// The client has gone: it will hold nothing more.
    pub fn is_nowhere(&mut self, client: ClientId) {
        self.places.remove(&client);
    }

    /// What all clients hold together, and nothing of any one.
    #[must_use]
    pub fn in_all(&self) -> Usage {
        self.usage(ClientId(0))
    }

    /// What each client holds that holds anything.
    #[must_use]
    pub fn usages(&self) -> Vec<(ClientId, Usage)> {
        self.clients.iter().map(|(client, held)| (*client, held.usage)).collect()
    }

    /// True when the client holds anything.
    #[must_use]
    pub fn has_state(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|c| c.usage != Usage::default())
    }

    /// True when the client has revoked state it has not freed: SEQ4_STATUS_*_REVOKED.
    #[must_use]
    pub fn has_revoked(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|c| !c.revoked.is_empty())
    }

    /// True when some of it is a delegation.
    #[must_use]
    pub fn has_revoked_delegation(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|c| c.revoked_delegations > 0)
    }

    /// The files on which a client has live state, ascending and without repetition: where to call
    /// [`File::client_expired`](crate::file::File::client_expired).
    #[must_use]
    pub fn files_of(&self, client: ClientId) -> Vec<FileId> {
        let Some(c) = self.clients.get(&client) else { return Vec::new() };
        let mut files: Vec<FileId> = c.others.values().copied().collect();
        files.sort_unstable();
        files.dedup();
        files
    }

    /// Applies [`Register`](crate::effect::Effect::Register), [`Release`](crate::effect::Effect::Release),
    /// [`Revoked`](crate::effect::Effect::Revoked), [`Ranges`](crate::effect::Effect::Ranges),
    /// [`Waits`](crate::effect::Effect::Waits) or [`WaitsNoMore`](crate::effect::Effect::WaitsNoMore) of `file`; ignores
    /// other effects.
    pub fn apply(&mut self, file: FileId, effect: &crate::effect::Effect) {
        use crate::effect::Effect;
        match effect {
            Effect::Register { stateid, kind, client } => self.insert(file, *stateid, *kind, *client),
            Effect::Release { stateid, .. } => self.remove(stateid),
            Effect::Revoked { stateid, reason, .. } => self.revoke(stateid, *reason),
            Effect::Ranges { stateid, count } => self.set_ranges(stateid, *count),
            Effect::Waits { client } => self.wait(*client),
            Effect::WaitsNoMore { client } => self.wait_no_more(*client),
            _ => {}
        }
    }

    fn insert(&mut self, file: FileId, stateid: StateId, kind: StateKind, client: ClientId) {
        let at = Located { file, kind, client };
        if self.entries.insert(stateid.other, Entry { at, revoked: None, ranges: 0 }).is_none() {
            let places = &self.places;
            let begin = || PerClient { host: places.get(&client).copied(), ..PerClient::default() };
            let per_client = self.clients.entry(client).or_insert_with(begin);
            per_client.others.insert(stateid.other, file);
            per_client.usage.add(kind);
            let host = per_client.host;
            self.count(host, |usage| usage.add(kind));
        }
    }

    fn set_ranges(&mut self, stateid: &StateId, count: u32) {
        let live = self.entries.get_mut(&stateid.other).filter(|entry| entry.revoked.is_none());
        let Some(entry) = live else { return };
        let before = std::mem::replace(&mut entry.ranges, count);
        let client = entry.at.client;
        self.count_ranges(client, before, count);
    }

    /// A stateid of the client has so many ranges, and had so many `before`.
    fn count_ranges(&mut self, client: ClientId, before: u32, count: u32) {
        let count = |usage: &mut Usage| {
            usage.ranges = usage.ranges.saturating_sub(before).saturating_add(count);
        };
        let held = self.clients.get_mut(&client);
        let host = held.and_then(|held| {
            count(&mut held.usage);
            held.host
        });
        self.count(host, count);
    }

    /// Counts what a client at this host holds more, or less, with what all hold, and all there.
    fn count(&mut self, host: Option<IpAddr>, count: impl Fn(&mut Usage)) {
        count(&mut self.all);
        if let Some(host) = host {
            count(self.hosts.entry(host).or_default());
        }
    }

    fn wait(&mut self, client: ClientId) {
        // Under an open: who has none is gone, and is forgotten by its files, too.
        let Some(held) = self.clients.get_mut(&client) else { return };
        held.usage.waiting += 1;
        let host = held.host;
        self.count(host, |usage| usage.waiting += 1);
    }

    fn wait_no_more(&mut self, client: ClientId) {
        let Some(held) = self.clients.get_mut(&client).filter(|held| held.usage.waiting > 0) else { return };
        held.usage.waiting -= 1;
        let host = held.host;
        self.count(host, |usage| usage.waiting -= 1);
    }

    fn remove(&mut self, stateid: &StateId) {
        let Some(entry) = self.entries.remove(&stateid.other) else { return };
        self.count_ranges(entry.at.client, entry.ranges, 0);
        let Some(per_client) = self.clients.get_mut(&entry.at.client) else { return };
        per_client.others.remove(&stateid.other);
        match entry.revoked {
            None => per_client.usage.sub(entry.at.kind),
            Some(revoked) => per_client.forget_revoked(revoked.number, entry.at.kind),
        }
        let (host, waiting) = (per_client.host, per_client.usage.waiting);
        if per_client.others.is_empty() && per_client.revoked.is_empty() {
            self.clients.remove(&entry.at.client);
            self.count(host, |usage| usage.waiting -= waiting);
        }
        if entry.revoked.is_none() {
            self.count(host, |usage| usage.sub(entry.at.kind));
        }
    }

    fn revoke(&mut self, stateid: &StateId, reason: RevokeReason) {
        let live = self.entries.get_mut(&stateid.other).filter(|entry| entry.revoked.is_none());
        let Some(entry) = live else { return };
        let (at, ranges) = (entry.at, std::mem::take(&mut entry.ranges));
        self.count_ranges(at.client, ranges, 0);
        let Some(per_client) = self.clients.get_mut(&at.client) else { return };
        per_client.usage.sub(at.kind);
        per_client.others.remove(&stateid.other);
        let host = per_client.host;
        let number = per_client.remember_revoked(stateid.other, at.kind);
        if let Some(entry) = self.entries.get_mut(&stateid.other) {
            entry.revoked = Some(Revoked { reason, number });
        }
        if per_client.revoked.len() > MAX_REVOKED_PER_CLIENT
            && let Some((number, oldest)) = per_client.revoked.pop_first()
            && let Some(entry) = self.entries.remove(&oldest)
        {
            per_client.forget_revoked(number, entry.at.kind);
        }
        self.count(host, |usage| usage.sub(at.kind));
    }

    /// FREE_STATEID of a revoked stateid. False when it is not a revoked stateid of this client: then
    /// the file decides.
    pub fn free_revoked(&mut self, client: ClientId, stateid: &StateId) -> bool {
        let revoked = self
            .entries
            .get(&stateid.other)
            .is_some_and(|entry| entry.at.client == client && entry.revoked.is_some());
        if revoked && let Some(entry) = self.entries.get(&stateid.other) {
            let at = entry.at;
            self.remove(stateid);
            self.free_locks_of_freed(at);
        }
        revoked
    }

    /// Of a client that does not free them, the delegations that it did not return in time.
    pub fn forget_unreturned_delegations(&mut self, client: ClientId) {
        let Some(per_client) = self.clients.get(&client) else { return };
        let unreturned = |other: &&Other| {
            self.entries.get(*other).is_some_and(|entry| {
                entry.at.kind == StateKind::Delegation
                    && entry.revoked.as_ref().is_some_and(|r| r.reason == RevokeReason::NotReturned)
            })
        };
        let all: Vec<Other> = per_client.revoked.values().filter(unreturned).copied().collect();
        for other in all {
            self.remove(&StateId { seqid: 0, other });
        }
    }

    /// The locks of an open that was revoked and freed. Linux frees the open and none of them, and as long as it is told that it
    /// has not freed all (RFC 8881 §18.46.3) it looks through its state with each reply. They are of no use without it.
    fn free_locks_of_freed(&mut self, freed: Located) {
        let Some(per_client) = self.clients.get(&freed.client).filter(|_| freed.kind == StateKind::Open)
        else {
            return;
        };
        let is = |other: &&Other, kind: StateKind| {
            self.entries.get(*other).is_some_and(|entry| entry.at == Located { kind, ..freed })
        };
        if per_client.revoked.values().any(|other| is(&other, StateKind::Open)) {
            return;
        }
        let locks: Vec<Other> =
            per_client.revoked.values().filter(|other| is(other, StateKind::Lock)).copied().collect();
        for other in locks {
            self.remove(&StateId { seqid: 0, other });
        }
    }

    /// Checks what is counted of revoked stateids against the stateids themselves. For tests.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check_invariants(&self) -> Result<(), String> {
        let mut remembered = 0;
        for (client, held) in &self.clients {
            let mut delegations = 0;
            for (number, other) in &held.revoked {
                let entry = self.entries.get(other).filter(|entry| entry.at.client == *client);
                let revoked = entry.and_then(|entry| entry.revoked);
                if revoked.is_none_or(|revoked| revoked.number != *number) {
                    return Err(format!("{client:?} is told of {other:?}: {entry:?}"));
                }
                delegations += usize::from(entry.is_some_and(|entry| entry.at.kind == StateKind::Delegation));
            }
            if delegations != held.revoked_delegations {
                return Err(format!("{client:?} has {delegations} revoked delegations: {held:?}"));
            }
            remembered += held.revoked.len();
        }
        for (host, counted) in &self.hosts {
            let mut usage = Usage::default();
            for held in self.clients.values().filter(|held| held.host == Some(*host)) {
                usage.opens += held.usage.opens;
                usage.locks += held.usage.locks;
                usage.ranges += held.usage.ranges;
                usage.waiting += held.usage.waiting;
                usage.layouts += held.usage.layouts;
                usage.delegations += held.usage.delegations;
            }
            if usage != *counted {
                return Err(format!("{host} has {counted:?}, and its clients {usage:?}"));
            }
        }
        let revoked = self.entries.values().filter(|entry| entry.revoked.is_some()).count();
        if revoked == remembered {
            Ok(())
        } else {
            Err(format!("{revoked} revoked, {remembered} remembered"))
        }
    }

    /// Forgets a client that is gone for good (its record was deleted), revoked stateids included. Its
    /// files have been told before.
    pub fn forget_client(&mut self, client: ClientId) {
        let place = self.places.remove(&client);
        let PerClient { usage, host, others, revoked, .. } = self.clients.remove(&client).unwrap_or_default();
        for other in others.keys().chain(revoked.values()) {
            self.entries.remove(other);
        }
        self.count(host, |all| {
            all.opens -= usage.opens;
            all.locks -= usage.locks;
            all.ranges -= usage.ranges;
            all.waiting -= usage.waiting;
            all.layouts -= usage.layouts;
            all.delegations -= usage.delegations;
        });
        if let Some(host) = host.or(place).filter(|host| self.hosts.get(host) == Some(&Usage::default())) {
            self.hosts.remove(&host);
        }
    }
}

impl PerClient {
    /// The number that it gets.
    fn remember_revoked(&mut self, other: Other, kind: StateKind) -> u64 {
        let number = self.revoked.last_key_value().map_or(0, |(last, _)| last + 1);
        self.revoked.insert(number, other);
        self.revoked_delegations += usize::from(kind == StateKind::Delegation);
        number
    }

    fn forget_revoked(&mut self, number: u64, kind: StateKind) {
        self.revoked.remove(&number);
        self.revoked_delegations -= usize::from(kind == StateKind::Delegation);
    }
}

impl Usage {
    fn slot(&mut self, kind: StateKind) -> Option<&mut u32> {
        match kind {
            StateKind::Open => Some(&mut self.opens),
            StateKind::Lock => Some(&mut self.locks),
            StateKind::Layout => Some(&mut self.layouts),
            StateKind::Delegation => Some(&mut self.delegations),
            StateKind::Copy => None,
        }
    }

    fn add(&mut self, kind: StateKind) {
        if let Some(n) = self.slot(kind) {
            *n = n.saturating_add(1);
        }
    }

    fn sub(&mut self, kind: StateKind) {
        if let Some(n) = self.slot(kind) {
            *n = n.saturating_sub(1);
        }
    }
}
