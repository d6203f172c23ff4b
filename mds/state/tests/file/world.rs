//! One file, its index, and a small model of what must be true outside: which client can still write at the
//! data servers, whether the rw_layout row is on the store, what a client was told.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use sluice_state::delegation::Grant;
use sluice_state::effect::{
    Effect, FenceId, IoMode, Recall, RecallAnswer, RecallKind, RevokeReason, WaitToken,
};
use sluice_state::file::{
    Ctx, Error, File, FileId, FileSeed, Grace, Intent, LayoutFilter, Outcome, Policy, Prepared, Reply, Ticket,
};
use sluice_state::layout::ReturnMode;
use sluice_state::lock::{LockKind, LockRequest, Locker};
use sluice_state::open::{Access, Claim, Deny, History, OpenRequest, Want};
use sluice_state::owner::{LockOwner, OpenOwner};
use sluice_state::range_set::Range;
use sluice_state::stateid::{StateIds, StateIndex, Usage};
use sluice_state::{BootEpoch, ClientId, StateId, Time};

pub(crate) const A: ClientId = ClientId(1);
pub(crate) const B: ClientId = ClientId(2);
pub(crate) const C: ClientId = ClientId(3);
pub(crate) const FILE: FileId = FileId(7);

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) file: File,
    pub(crate) index: StateIndex,
    pub(crate) ids: StateIds,
    pub(crate) policy: Policy,
    pub(crate) now: Time,
    pub(crate) grace: Grace,
    /// Callbacks not yet answered or satisfied.
    pub(crate) recalls: Vec<Recall>,
    pub(crate) fences: Vec<(FenceId, ClientId)>,
    pub(crate) woken: BTreeSet<WaitToken>,
    pub(crate) notified: Vec<LockOwner>,
    pub(crate) log: Vec<Effect>,
    /// The steps taken now were checked before.
    pub(crate) replaying: bool,
    /// The durable rw_layout row.
    pub(crate) row: bool,
    /// The inode is among the orphans.
    pub(crate) orphan: bool,
    /// Clients that can write at a data server.
    pub(crate) writers: BTreeSet<ClientId>,
    /// Clients that can reach a data server at all.
    pub(crate) holders: BTreeSet<ClientId>,
    /// An unclean end happened that no settle has seen.
    pub(crate) unclean: u32,
    pub(crate) collected: u32,
    pub(crate) idle_notices: u32,
    /// Tickets out: the intent, and the unclean ends before it.
    pub(crate) out: BTreeMap<u64, (Intent, u32)>,
    /// Those of them whose client expired meanwhile.
    pub(crate) void: BTreeSet<u64>,
    /// The latest stateids each client was told.
    pub(crate) opens: BTreeMap<OpenOwner, StateId>,
    pub(crate) layouts: BTreeMap<ClientId, StateId>,
    pub(crate) locks: BTreeMap<LockOwner, StateId>,
    pub(crate) delegations: BTreeMap<ClientId, Grant>,
}

pub(crate) fn owner(client: ClientId) -> OpenOwner {
    OpenOwner::new(client, b"open")
}

pub(crate) fn locker(client: ClientId) -> LockOwner {
    LockOwner::new(client, b"lock")
}

pub(crate) fn range(start: u64, last: u64) -> Range {
    Range::new(start, last).unwrap()
}

pub(crate) fn open_request(client: ClientId, access: Access, deny: Deny) -> OpenRequest {
    let (claim, want, history) = (Claim::New, Want::Any, History::default());
    OpenRequest {
        owner: owner(client),
        access,
        deny,
        claim,
        truncates: false,
        again: false,
        want,
        either: false,
        times: None,
        history,
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new(FileSeed::default())
    }
}

impl World {
    pub(crate) fn new(seed: FileSeed) -> Self {
        Self {
            file: File::new(FILE, seed),
            index: StateIndex::new(),
            ids: StateIds::new(BootEpoch(5)),
            policy: Policy::default(),
            now: Time::from_secs(1000),
            grace: Grace::Over,
            recalls: Vec::new(),
            fences: Vec::new(),
            woken: BTreeSet::new(),
            notified: Vec::new(),
            log: Vec::new(),
            replaying: false,
            row: seed.rw_layout,
            orphan: seed.orphan,
            writers: BTreeSet::new(),
            holders: BTreeSet::new(),
            unclean: u32::from(seed.rw_layout),
            collected: 0,
            idle_notices: 0,
            out: BTreeMap::new(),
            void: BTreeSet::new(),
            opens: BTreeMap::new(),
            layouts: BTreeMap::new(),
            locks: BTreeMap::new(),
            delegations: BTreeMap::new(),
        }
    }

    /// A file just made, with its row.
    pub(crate) fn made() -> Self {
        Self { file: File::made(FILE), row: true, ..Self::default() }
    }

    pub(crate) fn in_grace(mut self, may_reclaim: bool) -> Self {
        self.grace = Grace::Active { may_reclaim };
        self
    }

    /// The context of `client`, beside the file.
    fn split(&mut self, client: Option<ClientId>) -> (Ctx<'_>, &mut File) {
        let usage = client.map(|c| self.index.usage(c)).unwrap_or_default();
        let ctx = Ctx { now: self.now, ids: &self.ids, policy: &self.policy, usage, grace: self.grace };
        (ctx, &mut self.file)
    }

    fn apply(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            self.index.apply(FILE, &effect);
            match &effect {
                Effect::Callback(recall) => {
                    self.recalls.retain(|r| r.client != recall.client || !same_kind(r.kind, recall.kind));
                    self.recalls.push(recall.clone());
                }
                Effect::Fence { fence, client, own } => {
                    if self.writers.contains(client) && !own {
                        self.unclean += 1;
                    }
                    self.fences.push((*fence, *client));
                }
                // The row takes no time here.
                Effect::Overdue { client, stateid } => {
                    let (ctx, file) = self.split(Some(*client));
                    let effects = file.revoke_overdue(&ctx, *client, stateid);
                    self.apply(effects);
                }
                Effect::Wake(token) => {
                    assert!(self.woken.insert(*token), "woken twice: {token:?}");
                }
                Effect::CloseOrphan => self.collected += 1,
                Effect::RwIdle => self.idle_notices += 1,
                Effect::NotifyLock { owner } => self.notified.push(owner.clone()),
                Effect::Release { stateid, .. } | Effect::Revoked { stateid, .. } => {
                    self.recalls.retain(|r| r.stateid.other != stateid.other);
                }
                Effect::Waits { .. } | Effect::WaitsNoMore { .. } => {}
                Effect::Register { .. } | Effect::Ranges { .. } | Effect::NeedsSettle => {}
            }
            self.log.push(effect);
        }
        self.check();
    }

    /// All that decides what can happen next.
    pub(crate) fn fingerprint(&self, hasher: &mut impl Hasher) {
        self.file.hash(hasher);
        (&self.opens, &self.layouts, &self.locks, &self.delegations).hash(hasher);
        (self.row, &self.writers, &self.holders, self.unclean, self.collected, &self.out).hash(hasher);
        (&self.recalls, &self.fences, &self.woken, self.now).hash(hasher);
    }

    /// Everything that must hold after a step.
    pub(crate) fn check(&self) {
        if self.replaying {
            return;
        }
        if let Err(broken) = self.file.check_invariants() {
            panic!("{broken}\n{self:#?}");
        }
        if let Err(broken) = self.index.check_invariants() {
            panic!("{broken}\n{self:#?}");
        }
        for stateid in self.file.live_stateids() {
            let client =
                [A, B, C].into_iter().find(|c| self.index.locate(BootEpoch(5), *c, &stateid).is_ok());
            assert!(client.is_some(), "{stateid:?} is not in the index\n{self:#?}");
        }
        let live = self.file.live_stateids().len();
        let indexed: u32 = [A, B, C]
            .into_iter()
            .map(|c| self.index.usage(c))
            .map(|u| u.opens + u.locks + u.layouts + u.delegations)
            .sum();
        assert_eq!(live, indexed as usize, "the index holds other stateids\n{self:#?}");
        let counted = self.file.counted();
        for client in [A, B, C] {
            let (held, is) = (self.index.usage(client), counted.get(&client).copied().unwrap_or_default());
            let (held, is) = ((held.ranges, held.waiting), (is.ranges, is.waiting));
            assert_eq!(held, is, "ranges and waiting locks that the index counts of {client:?}\n{self:#?}");
        }
        let (all, sum) = (self.index.in_all(), |of: fn(&Usage) -> u32| counted.values().map(of).sum::<u32>());
        assert_eq!(all.ranges_of_all, sum(|is| is.ranges), "the index counts other ranges\n{self:#?}");
        assert_eq!(all.waiting_of_all, sum(|is| is.waiting), "the index counts other waiters\n{self:#?}");
        let dead = self.file.is_collectable();
        assert!(dead || self.writers.is_empty() || self.row, "a writer without a durable row\n{self:#?}");
        assert!(dead || self.unclean == 0 || self.file.needs_settle(), "unclean and unnoticed\n{self:#?}");
        for (intent, _) in self.out.values() {
            self.check_exclusion(intent, dead);
        }
    }

    fn check_exclusion(&self, intent: &Intent, dead: bool) {
        let fenced_later = |c: &ClientId| self.fences.iter().any(|(_, fenced)| fenced == c);
        match intent {
            Intent::SetSize { client, replace: false, .. } => {
                let strangers = self.writers.iter().filter(|c| *c != client).count();
                assert!(dead || strangers == 0, "truncated under a writer\n{self:#?}");
            }
            // Its own layout may be revoked while the transaction runs.
            Intent::SetSize { replace: true, .. } | Intent::Relayout => {
                let left = self.holders.iter().filter(|c| !fenced_later(c)).count();
                assert!(dead || left == 0, "data files replaced under a holder\n{self:#?}");
            }
            Intent::ClearRw => assert!(self.writers.is_empty(), "row cleared under a writer\n{self:#?}"),
            _ => {}
        }
    }

    pub(crate) fn prepare(&mut self, intent: &Intent, token: Option<WaitToken>) -> Prepared {
        if let Some(token) = token {
            self.woken.remove(&token);
        }
        let (ctx, file) = self.split(intent.client());
        let (prepared, effects) = file.prepare(&ctx, intent, token);
        if let Prepared::Ticket(ticket) = &prepared {
            self.out.insert(ticket.id().0, (intent.clone(), self.unclean));
        }
        self.apply(effects);
        prepared
    }

    pub(crate) fn finish(&mut self, ticket: Ticket, outcome: Outcome) -> Reply {
        let planned = ticket.stateid();
        if outcome == Outcome::Committed {
            // The store is changed before the state hears of it.
            self.store(&ticket);
        }
        let (intent, _) = self.out.remove(&ticket.id().0).unwrap();
        let void = self.void.remove(&ticket.id().0);
        let (ctx, file) = self.split(intent.client());
        let (reply, effects) = file.finish(&ctx, ticket, outcome);
        let granted = matches!(reply, Reply::Opened { .. } | Reply::LayoutGranted { .. });
        assert!(!void || !granted, "state for a client that is gone: {reply:?}\n{self:#?}");
        self.hear(&intent, planned, &reply);
        self.apply(effects);
        reply
    }

    /// What a transaction does to the store.
    pub(crate) fn store(&mut self, ticket: &Ticket) {
        let (intent, unclean) = self.out.get(&ticket.id().0).unwrap();
        let (unclean, settles) = (*unclean, matches!(intent, Intent::Settle));
        let unlinks = matches!(intent, Intent::Unlink { last_link: true, .. });
        self.row = (self.row || ticket.must_persist_rw()) && !ticket.clears_rw();
        if settles {
            self.unclean -= unclean;
        }
        if unlinks {
            self.orphan = ticket.orphan();
            if !ticket.orphan() {
                self.collected += 1;
                self.row = false;
            }
        }
    }

    /// A new incarnation on the same store, in grace. Orphans are swept when grace has ended.
    pub(crate) fn restart(&mut self) {
        assert!(self.row || self.writers.is_empty() || self.file.is_collectable() || self.collected > 0);
        let wrote = !self.writers.is_empty() && self.collected == 0;
        let seed = FileSeed { rw_layout: self.row, orphan: self.orphan && self.collected == 0 };
        let (collected, policy, now) = (self.collected, self.policy, self.now);
        *self = Self { policy, now, collected, ..Self::new(seed) };
        self.grace = Grace::Active { may_reclaim: true };
        assert!(!wrote || self.file.needs_settle(), "a writer was forgotten by the restart");
        if seed.orphan {
            self.orphan = true;
            self.collected += 1;
        }
    }

    /// What the client learns.
    fn hear(&mut self, intent: &Intent, planned: Option<StateId>, reply: &Reply) {
        match (intent, reply) {
            (Intent::Open(open), Reply::Opened { stateid, delegation }) => {
                if let Some(stateid) = stateid {
                    assert_eq!(planned, Some(*stateid), "the reply record would lie");
                    self.opens.insert(open.owner.clone(), *stateid);
                } else {
                    assert!(open.either && delegation.is_some(), "nothing was given");
                }
                if let Some(grant) = delegation {
                    self.delegations.insert(open.owner.client, *grant);
                }
            }
            (Intent::Close { client, .. }, Reply::Closed { .. }) => {
                self.opens.remove(&owner(*client));
            }
            (Intent::Downgrade { client, .. }, Reply::Downgraded { stateid }) => {
                assert_eq!(planned, Some(*stateid), "the reply record would lie");
                self.opens.insert(owner(*client), *stateid);
            }
            (Intent::LayoutGet { client, iomode, .. }, Reply::LayoutGranted { stateid, .. }) => {
                self.layouts.insert(*client, *stateid);
                self.holders.insert(*client);
                if *iomode == IoMode::ReadWrite {
                    self.writers.insert(*client);
                }
            }
            _ => {}
        }
    }

    /// Prepares and commits; must not wait.
    pub(crate) fn run(&mut self, intent: &Intent) -> Result<Reply, Error> {
        match self.prepare(intent, None) {
            Prepared::Ticket(ticket) => Ok(self.finish(ticket, Outcome::Committed)),
            Prepared::Deny(error) => Err(error),
            Prepared::Wait(token) => panic!("waits as {token:?}: {intent:?}\n{self:#?}"),
        }
    }

    pub(crate) fn ticket(&mut self, intent: &Intent) -> Ticket {
        match self.prepare(intent, None) {
            Prepared::Ticket(ticket) => ticket,
            other => panic!("{other:?} for {intent:?}\n{self:#?}"),
        }
    }

    pub(crate) fn wait(&mut self, intent: &Intent) -> WaitToken {
        match self.prepare(intent, None) {
            Prepared::Wait(token) => token,
            other => panic!("{other:?} for {intent:?}\n{self:#?}"),
        }
    }

    pub(crate) fn open(&mut self, client: ClientId, access: Access, deny: Deny) -> Result<StateId, Error> {
        match self.run(&Intent::Open(open_request(client, access, deny)))? {
            Reply::Opened { stateid, .. } => Ok(stateid.unwrap()),
            Reply::Refused(error) => Err(error),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn close(&mut self, client: ClientId) -> Result<Reply, Error> {
        let stateid = self.opens.get(&owner(client)).copied().unwrap_or_default();
        self.run(&Intent::Close { client, stateid })
    }

    /// The intent of a LAYOUTGET: under the layout stateid if there is one, else the open's.
    pub(crate) fn layout_get(&self, client: ClientId, iomode: IoMode) -> Intent {
        let open = self.opens.get(&owner(client));
        let stateid = self.layouts.get(&client).or(open).copied().unwrap_or_default();
        Intent::LayoutGet { client, stateid, iomode, call: None }
    }

    pub(crate) fn layout(&mut self, client: ClientId, iomode: IoMode) -> Result<StateId, Error> {
        match self.run(&self.layout_get(client, iomode))? {
            Reply::LayoutGranted { stateid, .. } => Ok(stateid),
            Reply::Refused(error) => Err(error),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn layout_commit(&self, client: ClientId) -> Intent {
        let stateid = self.layouts.get(&client).copied().unwrap_or_default();
        Intent::LayoutCommit { client, stateid }
    }

    pub(crate) fn layout_return(
        &mut self,
        client: ClientId,
        mode: ReturnMode,
    ) -> Result<Option<StateId>, Error> {
        self.give_back(client, mode, true)
    }

    /// Not `seen`: nobody could be asked what was written.
    pub(crate) fn give_back(
        &mut self,
        client: ClientId,
        mode: ReturnMode,
        seen: bool,
    ) -> Result<Option<StateId>, Error> {
        let stateid = self.layouts.get(&client).copied().unwrap_or_default();
        // After a recall the client knows the recall's seqid.
        let asked = self.recalls.iter().find(|r| r.stateid.other == stateid.other).map(|r| r.stateid);
        let stateid = asked.unwrap_or(stateid);
        let (left, effects) = self.file.layout_return(self.now, client, &stateid, mode, seen)?;
        if mode != ReturnMode::Read || left.is_none() {
            self.writers.remove(&client);
        }
        match left {
            Some(left) => {
                self.layouts.insert(client, left);
            }
            None => {
                self.layouts.remove(&client);
                self.holders.remove(&client);
                self.writers.remove(&client);
            }
        }
        self.apply(effects);
        Ok(left)
    }

    pub(crate) fn lock(
        &mut self,
        client: ClientId,
        kind: LockKind,
        range: Range,
        blocking: bool,
    ) -> Result<StateId, Error> {
        self.lock_as(locker(client), kind, range, blocking)
    }

    pub(crate) fn lock_as(
        &mut self,
        owner_: LockOwner,
        kind: LockKind,
        range: Range,
        blocking: bool,
    ) -> Result<StateId, Error> {
        let client = owner_.client;
        let by = match self.locks.get(&owner_) {
            Some(lock) => Locker::Existing { lock: *lock },
            None => Locker::New {
                open: self.opens.get(&owner(client)).copied().unwrap_or_default(),
                owner: owner_.clone(),
            },
        };
        let request = LockRequest { locker: by, kind, blocking, reclaim: false, range };
        let (ctx, file) = self.split(Some(client));
        let (result, effects) = file.lock(&ctx, client, &request);
        self.apply(effects);
        let stateid = result?;
        self.locks.insert(owner_, stateid);
        Ok(stateid)
    }

    pub(crate) fn unlock(&mut self, client: ClientId, range: Range) -> Result<StateId, Error> {
        self.unlock_as(locker(client), range)
    }

    pub(crate) fn unlock_as(&mut self, owner: LockOwner, range: Range) -> Result<StateId, Error> {
        let client = owner.client;
        let stateid = self.locks.get(&owner).copied().unwrap_or_default();
        let (ctx, file) = self.split(Some(client));
        let (stateid, effects) = file.unlock(&ctx, client, &stateid, range)?;
        self.locks.insert(owner, stateid);
        self.apply(effects);
        Ok(stateid)
    }

    /// Under a stateid that the client goes on with.
    pub(crate) fn unlock_of(&mut self, client: ClientId, stateid: StateId) -> Result<StateId, Error> {
        self.index.locate(BootEpoch(5), client, &stateid)?;
        self.locks.insert(locker(client), stateid);
        self.unlock(client, Range::ALL)
    }

    pub(crate) fn test_lock(&mut self, client: ClientId, kind: LockKind, range: Range) -> Result<(), Error> {
        let (ctx, file) = self.split(Some(client));
        file.test_lock(&ctx, &locker(client), kind, range)
    }

    pub(crate) fn check_io(&mut self, client: ClientId, stateid: &StateId, write: bool) -> Result<(), Error> {
        let (ctx, file) = self.split(Some(client));
        file.check_io(&ctx, client, stateid, write)
    }

    pub(crate) fn answer(&mut self, client: ClientId, answer: RecallAnswer) {
        let at = self.recalls.iter().position(|r| r.client == client).expect("no such recall");
        self.answer_at(at, answer);
    }

    pub(crate) fn answer_at(&mut self, at: usize, answer: RecallAnswer) {
        let recall = self.recalls[at].clone();
        let client = recall.client;
        let layout = matches!(recall.kind, RecallKind::Layout { .. });
        if layout && matches!(answer, RecallAnswer::NoMatching | RecallAnswer::BadStateid) {
            // It has had the reply to its LAYOUTGET, and forgotten what was in it.
            self.now = self.now.plus_nanos(self.policy.reply_travels);
            self.layouts.remove(&client);
            if !self.writers.contains(&client) {
                self.holders.remove(&client);
            }
        }
        let (ctx, file) = self.split(None);
        let effects = file.recall_answer(&ctx, recall.kind, client, &recall.stateid, answer);
        self.apply(effects);
    }

    /// The reply that gives it the layout is still on its way.
    pub(crate) fn answer_of_the_unaware(&mut self, client: ClientId, answer: RecallAnswer) {
        let recall = self.recalls.iter().find(|r| r.client == client).expect("no such recall").clone();
        let (ctx, file) = self.split(None);
        let effects = file.recall_answer(&ctx, recall.kind, client, &recall.stateid, answer);
        self.apply(effects);
    }

    pub(crate) fn recall_layouts(&mut self, filter: LayoutFilter, changed: bool) {
        let (ctx, file) = self.split(None);
        let effects = file.recall_layouts(&ctx, filter, changed);
        self.apply(effects);
    }

    pub(crate) fn free_stateid(&mut self, client: ClientId, stateid: &StateId) -> Result<(), Error> {
        let (ctx, file) = self.split(Some(client));
        let effects = file.free_stateid(&ctx, client, stateid)?;
        self.locks.retain(|_, held| held.other != stateid.other);
        self.apply(effects);
        Ok(())
    }

    pub(crate) fn delegation_return(&mut self, client: ClientId) -> Result<(), Error> {
        let stateid = self.delegations.get(&client).map(|g| g.stateid).unwrap_or_default();
        let (ctx, file) = self.split(Some(client));
        let effects = file.delegation_return(&ctx, client, &stateid)?;
        self.delegations.remove(&client);
        self.apply(effects);
        Ok(())
    }

    pub(crate) fn recall_delegation(&mut self, client: ClientId) {
        let (ctx, file) = self.split(None);
        let effects = file.recall_delegation(&ctx, client);
        self.apply(effects);
    }

    pub(crate) fn expire(&mut self, client: ClientId, reason: RevokeReason) {
        let (ctx, file) = self.split(Some(client));
        let effects = file.client_expired(&ctx, client, reason);
        let theirs = self.out.iter().filter(|(_, (intent, _))| intent.client() == Some(client));
        self.void.extend(theirs.map(|(id, _)| *id));
        self.apply(effects);
        self.opens.retain(|o, _| o.client != client);
        self.locks.retain(|o, _| o.client != client);
        self.layouts.remove(&client);
        self.delegations.remove(&client);
    }

    /// An administrator breaks what the client holds; it goes on.
    pub(crate) fn break_state(&mut self, client: ClientId) {
        let (ctx, file) = self.split(Some(client));
        let effects = file.break_state(&ctx, client);
        self.apply(effects);
        self.opens.retain(|o, _| o.client != client);
        self.locks.retain(|o, _| o.client != client);
        self.layouts.remove(&client);
        self.delegations.remove(&client);
    }

    /// The client says that a write under its layout got no answer.
    pub(crate) fn layout_failed(&mut self, client: ClientId) {
        let effects = self.file.layout_failed(client);
        self.apply(effects);
    }

    pub(crate) fn fence_done(&mut self, at: usize) {
        let (fence, client) = self.fences.remove(at);
        if !self.fences.iter().any(|(_, c)| *c == client) {
            self.writers.remove(&client);
            self.holders.remove(&client);
        }
        let (ctx, file) = self.split(Some(client));
        let effects = file.fence_done(&ctx, fence);
        self.apply(effects);
    }

    /// Whether the inode may go.
    pub(crate) fn collect(&mut self) -> bool {
        let (ctx, file) = self.split(None);
        let (ends, effects) = file.collect(&ctx);
        self.apply(effects);
        ends
    }

    pub(crate) fn tick_to(&mut self, now: Time) {
        self.now = self.now.max(now);
        let (ctx, file) = self.split(None);
        let effects = file.tick(&ctx);
        self.apply(effects);
    }

    pub(crate) fn cancel(&mut self, token: WaitToken) {
        self.woken.remove(&token);
        let effects = self.file.cancel_wait(self.now, token);
        self.apply(effects);
    }
}

fn same_kind(a: RecallKind, b: RecallKind) -> bool {
    matches!(a, RecallKind::Layout { .. }) == matches!(b, RecallKind::Layout { .. })
}
