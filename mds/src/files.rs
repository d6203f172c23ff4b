//! The table of file state machines, and the ticket discipline around them (docs/ARCHITECTURE.md,
//! "State and transactions"): prepare, transaction, finish. No lock is held across an await.
//!
//! Lock order: a shard, then a machine, then the stateid index. Effects on the index are applied under
//! the machine's lock, so that two steps of one file reach it in the order they happened; all other
//! effects follow after the lock is released (crate::effects).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use sluice_namespace::{FileHandle, InodeKey};
use sluice_state::effect::{Effect, WaitToken};
use sluice_state::file::{
    Ctx, Error, File, FileId, FileSeed, Intent, Outcome, Policy, Prepared, Reply, Ticket,
};
use sluice_state::stateid::{Located, StateIds, StateIndex};
use sluice_state::{BootEpoch, ClientId, StateId, StateKind, Time};
use tokio::sync::{Mutex as AsyncMutex, MutexGuard, Notify, oneshot};

use crate::layout::habits::Birth;
use crate::layout::settle;
use crate::layout::times::Noted;
use crate::server::Mds;

const SHARDS: usize = 64;
/// Between two shards that are searched for machines without state: a round of all takes half a minute.
const SWEEP: Duration = Duration::from_millis(500);

/// All file state of this metadata server.
#[derive(Debug)]
pub(crate) struct Files {
    shards: Vec<Mutex<Shard>>,
    /// Guarded by its own lock; taken last.
    index: Mutex<StateIndex>,
    ids: StateIds,
    policy: Policy,
    timers: Timers,
    moments: AtomicU64,
    /// When some file that was being written to last became still.
    stilled: AtomicU64,
}

#[derive(Debug, Default)]
struct Shard {
    entries: BTreeMap<FileId, Arc<FileEntry>>,
    /// Files whose machines are not retired, and how many ask for that.
    pinned: BTreeMap<FileId, u32>,
}

/// One file with state on it.
#[derive(Debug)]
pub(crate) struct FileEntry {
    pub(crate) key: InodeKey,
    machine: Mutex<File>,
    waiters: Mutex<BTreeMap<WaitToken, Waiter>>,
    /// What was written when a client last chose the times, while LAYOUTCOMMITs of it may follow.
    times_set: Mutex<Option<Noted>>,
    /// When the newest look at the data servers began whose size is in the inode.
    looked: AtomicU64,
    /// Where a look found another number of bytes stored than the inode says: the change attribute that it had then, and that number.
    stored: Mutex<Option<(u64, u64)>>,
    /// Of what the holder of a write delegation has told, once others asked.
    shown: OnceLock<Box<AsyncMutex<Shown>>>,
    /// Who has changed the data since the file is in use: 0 nobody, [`SEVERAL`], or that client.
    changer: AtomicU64,
    /// Truncations that have begun, and those that have ended.
    cuts: [AtomicU64; 2],
    /// When the last of them began.
    cut_at: AtomicU64,
    /// Through which export a client knows the file, where that is not the root's: callbacks name it so.
    exports: Mutex<BTreeMap<ClientId, u32>>,
    /// Of a new file, until something is written to it.
    birth: Mutex<Option<Birth>>,
}

/// A size that only the holder of a write delegation knew, and the change attribute that it was shown with: under one of those there is
/// one size (RFC 8881 §10.4.3), though several ask at the same moment and the holder writes on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shown {
    change: u64,
    size: u64,
}

impl Shown {
    /// The size that was shown with this change attribute; 0: none was.
    pub(crate) fn with(&self, change: u64) -> u64 {
        if self.change == change { self.size } else { 0 }
    }

    pub(crate) fn show(&mut self, change: u64, size: u64) {
        *self = Self { change, size: self.with(change).max(size) };
    }
}

/// A point in the order of events on this server, which no clock is fine enough to tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

#[derive(Debug)]
enum Waiter {
    Asleep(oneshot::Sender<()>),
    /// Woken before it lay down.
    Woken,
}

/// When which file's machine wants [`File::tick`].
#[derive(Debug, Default)]
struct Timers {
    due: Mutex<BTreeSet<(Time, FileId)>>,
    changed: Notify,
}

/// The state machine's name for an inode.
pub(crate) fn file_id(key: &InodeKey) -> FileId {
    FileId(key.fileid.0)
}

impl Files {
    pub(crate) fn new(epoch: BootEpoch, policy: Policy) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            index: Mutex::new(StateIndex::new()),
            ids: StateIds::new(epoch),
            policy,
            timers: Timers::default(),
            moments: AtomicU64::new(0),
            stilled: AtomicU64::new(0),
        }
    }

    /// A stateid of something that is kept beside the files.
    pub(crate) fn new_stateid(&self, kind: StateKind) -> StateId {
        self.ids.next(kind)
    }

    pub(crate) fn index(&self) -> parking_lot::MutexGuard<'_, StateIndex> {
        self.index.lock()
    }

    /// Where an ordinary stateid lives.
    pub(crate) fn locate(&self, client: ClientId, stateid: &StateId) -> Result<Located, Error> {
        self.index.lock().locate(self.ids.epoch(), client, stateid)
    }

    /// The client may have no more files open.
    pub(crate) fn opens_are_full(&self, client: ClientId) -> bool {
        self.policy.opens_are_full(&self.index.lock().usage(client))
    }

    /// All clients together may have no more files open, whoever asks.
    pub(crate) fn opens_of_all_are_full(&self) -> bool {
        self.policy.opens_are_shared_out(&self.index.lock().in_all())
    }

    /// Whose opens of a file are why the client may not open it.
    pub(crate) fn in_the_way_of_open(&self, entry: &FileEntry, client: ClientId) -> BTreeSet<ClientId> {
        entry.peek(|file| file.in_the_way_of_open(&self.policy, client))
    }

    /// Whose locks in a file are why the client has none.
    pub(crate) fn in_the_way_of_lock(&self, entry: &FileEntry, client: ClientId) -> BTreeSet<ClientId> {
        entry.peek(|file| file.in_the_way_of_lock(&self.policy, client))
    }

    /// All clients together may have no more locks.
    pub(crate) fn locks_of_all_are_full(&self) -> bool {
        self.policy.locks_are_shared_out(&self.index.lock().in_all())
    }

    /// Files that were being written to are about to be found still.
    pub(crate) fn stilled(&self, now: Moment) {
        self.stilled.fetch_max(now.0, Ordering::AcqRel);
    }

    /// Has some file become still since `then`?
    pub(crate) fn stilled_since(&self, then: Moment) -> bool {
        self.stilled.load(Ordering::Acquire) > then.0
    }

    /// The entry of a file that has state now.
    pub(crate) fn get(&self, id: FileId) -> Option<Arc<FileEntry>> {
        self.shard(id).lock().entries.get(&id).map(Arc::clone)
    }

    /// Every file with state, ascending within a shard.
    pub(crate) fn all(&self) -> Vec<Arc<FileEntry>> {
        self.shards
            .iter()
            .flat_map(|shard| shard.lock().entries.values().map(Arc::clone).collect::<Vec<_>>())
            .collect()
    }

    /// Files with state from `from` on, in an order that does not change; so many at most.
    pub(crate) fn starting_at(&self, from: FileId, most: usize) -> Vec<Arc<FileEntry>> {
        let mut found = Vec::new();
        let mut from = from;
        for shard in self.shards.iter().skip(Self::shard_of(from)) {
            let left = most - found.len();
            let shard = shard.lock();
            found.extend(shard.entries.range(from..).take(left).map(|(_, entry)| Arc::clone(entry)));
            if found.len() == most {
                break;
            }
            // Those behind are begun at their beginning.
            from = FileId(0);
        }
        found
    }

    fn get_or_insert(&self, key: &InodeKey, machine: impl FnOnce(FileId) -> File) -> Arc<FileEntry> {
        let id = file_id(key);
        let mut shard = self.shard(id).lock();
        let entry = shard.entries.entry(id).or_insert_with(|| {
            Arc::new(FileEntry {
                key: *key,
                machine: Mutex::new(machine(id)),
                waiters: Mutex::default(),
                times_set: Mutex::default(),
                looked: AtomicU64::new(0),
                stored: Mutex::default(),
                shown: OnceLock::new(),
                changer: AtomicU64::new(0),
                cuts: Default::default(),
                cut_at: AtomicU64::new(0),
                exports: Mutex::default(),
                birth: Mutex::default(),
            })
        });
        Arc::clone(entry)
    }

    fn shard(&self, id: FileId) -> &Mutex<Shard> {
        &self.shards[Self::shard_of(id)]
    }

    fn shard_of(id: FileId) -> usize {
        // Fileids are handed out in sequence: the low bits spread them evenly.
        usize::try_from(id.0).unwrap_or(0) % SHARDS
    }

    /// Drops the machine of a file without state. The caller's own reference is the second one.
    fn retire(&self, entry: &Arc<FileEntry>) {
        let id = file_id(&entry.key);
        let mut shard = self.shard(id).lock();
        let wanted = shard.pinned.contains_key(&id) || Arc::strong_count(entry) > 2;
        if !wanted && entry.machine.lock().is_idle() {
            shard.entries.remove(&id);
        }
    }

    /// How many files have state, or had until a moment ago.
    pub(crate) fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().entries.len()).sum()
    }

    /// Drops the machines of one shard that have no state and that nobody uses: whoever used one last may have been a
    /// task that does not retire machines, or one of two that did at the same time.
    fn sweep(&self, shard: usize) {
        let Some(shard) = self.shards.get(shard) else { return };
        let mut shard = shard.lock();
        let Shard { entries, pinned } = &mut *shard;
        entries.retain(|id, entry| {
            pinned.contains_key(id) || Arc::strong_count(entry) > 1 || !entry.machine.lock().is_idle()
        });
    }
}

impl Timers {
    fn arm(&self, at: Time, file: FileId) {
        let mut due = self.due.lock();
        let earlier = due.first().is_none_or(|(first, _)| at < *first);
        due.insert((at, file));
        drop(due);
        if earlier {
            self.changed.notify_one();
        }
    }

    fn next(&self) -> Option<Time> {
        self.due.lock().first().map(|(at, _)| *at)
    }

    fn expired(&self, now: Time) -> Vec<FileId> {
        let mut due = self.due.lock();
        let mut files = Vec::new();
        while let Some(&(at, file)) = due.first()
            && at <= now
        {
            due.pop_first();
            files.push(file);
        }
        files
    }
}

/// No client has this number.
const SEVERAL: u64 = u64::MAX;

impl FileEntry {
    /// The client is about to make known what it has written.
    pub(crate) fn changes(&self, client: ClientId) {
        let after = |before| match before {
            0 => Some(client.0),
            before if before == client.0 || before == SEVERAL => None,
            _ => Some(SEVERAL),
        };
        let _ = self.changer.fetch_update(Ordering::AcqRel, Ordering::Acquire, after);
    }

    /// What it has made known has nothing in it that another client has written since the file is in use.
    pub(crate) fn changes_alone(&self, client: ClientId) -> bool {
        self.changer.load(Ordering::Acquire) == client.0
    }

    /// A look at the machine that changes nothing.
    pub(crate) fn peek<T>(&self, look: impl FnOnce(&File) -> T) -> T {
        look(&self.machine.lock())
    }

    /// What others were shown of what its holder told; one at a time has it.
    pub(crate) async fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.get_or_init(Box::default).lock().await
    }

    /// The client is about to be given something that may be called back, through `export`. `false`: it holds
    /// something already through another. There the file is another one to it, and one call back cannot mean both.
    pub(crate) fn through(&self, client: ClientId, export: u32) -> bool {
        let mut exports = self.exports.lock();
        if exports.get(&client).copied().unwrap_or(FileHandle::ROOT_EXPORT) == export {
            return true;
        }
        let holds = |file: &File| file.layout_of(client).is_some() || file.delegation_of(client).is_some();
        if self.peek(holds) {
            return false;
        }
        if export == FileHandle::ROOT_EXPORT {
            exports.remove(&client);
        } else {
            exports.insert(client, export);
        }
        true
    }

    /// The export through which a client knows the file.
    pub(crate) fn export_of(&self, client: ClientId) -> u32 {
        self.exports.lock().get(&client).copied().unwrap_or(FileHandle::ROOT_EXPORT)
    }

    /// Which truncation was the last; `None` while one is under way: what the data servers hold then is not all
    /// part of the file any more.
    pub(crate) fn last_cut(&self) -> Option<u64> {
        let [begun, ended] = &self.cuts;
        let (ended, begun) = (ended.load(Ordering::SeqCst), begun.load(Ordering::SeqCst));
        (begun == ended).then_some(begun)
    }

    /// When the last truncation began: what somebody who had the file open then says of its end may be of before.
    pub(crate) fn cut_at(&self) -> Option<Time> {
        let cut = self.cuts[0].load(Ordering::SeqCst) > 0;
        cut.then(|| Time(self.cut_at.load(Ordering::SeqCst)))
    }

    /// Something was written: once.
    pub(crate) fn take_birth(&self) -> Option<Birth> {
        self.birth.lock().take()
    }

    /// Under a ticket that LAYOUTCOMMIT and SETATTR exclude each other with.
    pub(crate) fn times_set(&self) -> Option<Noted> {
        self.times_set.lock().clone()
    }

    pub(crate) fn set_times(&self, noted: Option<Noted>) {
        *self.times_set.lock() = noted;
    }

    /// The size in the inode takes in all that the data servers had at `began`.
    pub(crate) fn look_done(&self, began: Moment) {
        self.looked.fetch_max(began.0, Ordering::AcqRel);
    }

    /// Whether the size in the inode takes in all that was written before `then`.
    pub(crate) fn looked_since(&self, then: Moment) -> bool {
        self.looked.load(Ordering::Acquire) > then.0
    }

    /// What [`FileEntry::take_stored`] then gives, once.
    pub(crate) fn note_stored(&self, otherwise: Option<(u64, u64)>) {
        *self.stored.lock() = otherwise;
    }

    pub(crate) fn take_stored(&self) -> Option<(u64, u64)> {
        self.stored.lock().take()
    }

    fn lie_down(&self, token: WaitToken) -> Option<oneshot::Receiver<()>> {
        let mut waiters = self.waiters.lock();
        if let Some(Waiter::Woken) = waiters.remove(&token) {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        waiters.insert(token, Waiter::Asleep(sender));
        Some(receiver)
    }

    /// Runs the queued request `token` again.
    pub(crate) fn wake(&self, token: WaitToken) {
        let mut waiters = self.waiters.lock();
        match waiters.remove(&token) {
            Some(Waiter::Asleep(sender)) => drop(sender.send(())),
            Some(Waiter::Woken) | None => drop(waiters.insert(token, Waiter::Woken)),
        }
    }
}

/// A ticket on one file: the right to run one transaction. Finishing it applies its effects; dropping
/// it unfinished (the transaction failed, the task was cancelled) aborts.
#[derive(Debug)]
pub(crate) struct Held {
    mds: Arc<Mds>,
    entry: Arc<FileEntry>,
    client: Option<ClientId>,
    ticket: Option<Ticket>,
    cuts: bool,
    /// Something that the ticket asked for may be durable.
    wrote: bool,
    waited: bool,
}

impl Held {
    fn new(
        (mds, entry): (&Arc<Mds>, &Arc<FileEntry>),
        client: Option<ClientId>,
        ticket: Ticket,
        waited: bool,
    ) -> Self {
        let (mds, entry) = (Arc::clone(mds), Arc::clone(entry));
        Self { mds, entry, client, ticket: Some(ticket), cuts: false, wrote: false, waited }
    }

    /// A truncation begins, and ends with the ticket. Before its transaction.
    pub(crate) fn cut(&mut self) {
        self.entry.cut_at.store(self.mds.now().0, Ordering::SeqCst);
        self.hide();
    }

    /// What data servers hold behind the end is no part of the file for as long as the ticket lasts.
    pub(crate) fn hide(&mut self) {
        if !std::mem::replace(&mut self.cuts, true) {
            self.entry.cuts[0].fetch_add(1, Ordering::SeqCst);
        }
    }

    /// What is left of a truncation waits for layouts to come back: LAYOUTCOMMITs are let in ([`FileEntry::last_cut`] says that
    /// there is something to be cut off).
    pub(crate) fn let_commits_in(&self) {
        if let Some(ticket) = &self.ticket {
            self.mds.step(&self.entry, None, |file, ctx| ((), file.let_commits_in(ctx.now, ticket)));
        }
    }

    /// What the ticket asks for is about to be written: unless it ends otherwise, nobody knows whether that is there.
    pub(crate) fn writes(&mut self) {
        self.wrote = true;
    }

    /// What the ticket allows. `None` only after [`Held::finish`].
    pub(crate) fn ticket(&self) -> Option<&Ticket> {
        self.ticket.as_ref()
    }

    /// Others came first: what was read of the file before it was asked for may be of before them.
    pub(crate) fn waited(&self) -> bool {
        self.waited
    }

    /// The file.
    pub(crate) fn key(&self) -> InodeKey {
        self.entry.key
    }

    /// The file's state.
    pub(crate) fn entry(&self) -> Arc<FileEntry> {
        Arc::clone(&self.entry)
    }

    /// The transaction committed: the machine's reply, its effects applied.
    ///
    /// # Errors
    /// A recall, revocation or expiry came meanwhile.
    pub(crate) fn commit(mut self) -> Result<Reply, Error> {
        match self.end(Outcome::Committed) {
            Some(Reply::Refused(error)) => Err(error),
            Some(reply) => Ok(reply),
            None => Ok(Reply::Aborted),
        }
    }

    /// Nobody knows whether the transaction committed.
    pub(crate) fn doubt(mut self) {
        drop(self.end(Outcome::Unknown));
    }

    fn end(&mut self, outcome: Outcome) -> Option<Reply> {
        let ticket = self.ticket.take()?;
        if self.cuts {
            self.entry.cuts[1].fetch_add(1, Ordering::SeqCst);
        }
        Some(self.mds.step(&self.entry, self.client, |file, ctx| file.finish(ctx, ticket, outcome)))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.end(if self.wrote { Outcome::Unknown } else { Outcome::Aborted }));
        self.mds.files.retire(&self.entry);
    }
}

/// While this lives no machine of the file is retired. What was read of its rows meanwhile holds if there still
/// is none: nobody has changed them.
#[derive(Debug)]
struct Pin {
    mds: Arc<Mds>,
    id: FileId,
}

impl Pin {
    fn new(mds: &Arc<Mds>, id: FileId) -> Self {
        *mds.files.shard(id).lock().pinned.entry(id).or_default() += 1;
        Self { mds: Arc::clone(mds), id }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let files = &self.mds.files;
        {
            let mut shard = files.shard(self.id).lock();
            if let Some(count) = shard.pinned.get_mut(&self.id) {
                *count -= 1;
                if *count == 0 {
                    shard.pinned.remove(&self.id);
                }
            }
        }
        if let Some(entry) = files.get(self.id) {
            files.retire(&entry);
        }
    }
}

/// A file that is being made, from before the transaction until it is open. Who removes it meanwhile does so under a
/// ticket of its machine, and that stays: what the file was made with is what its machine begins with, unread.
#[derive(Debug)]
pub(crate) struct Making {
    pin: Pin,
    /// Together with its rw_layout row.
    lays_out: bool,
}

impl Making {
    /// The transaction is durable, and the row with it.
    pub(crate) fn made(&self, key: &InodeKey, birth: Option<Birth>) {
        let machine = |id| if self.lays_out { File::made(id) } else { File::new(id, FileSeed::default()) };
        let entry = self.pin.mds.files.get_or_insert(key, machine);
        *entry.birth.lock() = birth;
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        let Pin { mds, id } = &self.pin;
        if self.lays_out
            && let Some(entry) = mds.files.get(*id)
        {
            // If the file was not opened after all, the row waits for nobody.
            mds.step(&entry, None, |file, ctx| ((), file.tick(ctx)));
        }
    }
}

/// A queued request that leaves the queue when its caller goes away.
struct Queued<'a> {
    mds: &'a Arc<Mds>,
    entry: &'a Arc<FileEntry>,
    token: Option<WaitToken>,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        if let Some(token) = self.token {
            self.entry.waiters.lock().remove(&token);
            let now = self.mds.now();
            self.mds.step(self.entry, None, |file, _| ((), file.cancel_wait(now, token)));
        }
    }
}

impl Mds {
    /// The state machine of a file, made from what its inode says if it has no state yet.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) async fn file(
        self: &Arc<Self>,
        key: &InodeKey,
    ) -> Result<Arc<FileEntry>, sluice_namespace::FsError> {
        if let Some(entry) = self.files.get(file_id(key)) {
            return Ok(entry);
        }
        let _pin = Pin::new(self, file_id(key));
        let seed = settle::seed(self, key).await?;
        Ok(self.files.get_or_insert(key, |id| File::new(id, seed)))
    }

    /// A file with this number is about to be made, perhaps together with its rw_layout row.
    pub(crate) fn making(self: &Arc<Self>, file: sluice_namespace::FileId, lays_out: bool) -> Making {
        Making { pin: Pin::new(self, FileId(file.0)), lays_out }
    }

    /// Now: later than all moments before, earlier than all to come.
    pub(crate) fn moment(&self) -> Moment {
        Moment(self.files.moments.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// Runs one step of a file's machine and applies its effects.
    pub(crate) fn step<T>(
        self: &Arc<Self>,
        entry: &Arc<FileEntry>,
        client: Option<ClientId>,
        step: impl FnOnce(&mut File, &Ctx<'_>) -> (T, Vec<Effect>),
    ) -> T {
        let usage = client.map(|client| self.files.index.lock().usage(client)).unwrap_or_default();
        let ctx = Ctx {
            now: self.now(),
            ids: &self.files.ids,
            policy: &self.files.policy,
            usage,
            grace: self.grace(client),
        };
        let id = file_id(&entry.key);
        let (out, effects, deadline) = {
            let mut machine = entry.machine.lock();
            let (out, effects) = step(&mut machine, &ctx);
            if !effects.is_empty() {
                let mut index = self.files.index.lock();
                effects.iter().for_each(|effect| index.apply(id, effect));
            }
            (out, effects, machine.next_deadline())
        };
        if let Some(at) = deadline {
            self.files.timers.arm(at, id);
        }
        self.apply(entry, effects);
        out
    }

    /// First half of an operation on a file's state: waits its turn, and for recalls and fences that it
    /// needs.
    ///
    /// # Errors
    /// Why the state forbids the operation.
    pub(crate) async fn prepare(
        self: &Arc<Self>,
        entry: &Arc<FileEntry>,
        intent: &Intent,
    ) -> Result<Held, Error> {
        let client = intent.client();
        let mut queued = Queued { mds: self, entry, token: None };
        let mut waited = false;
        loop {
            match self.step(entry, client, |file, ctx| file.prepare(ctx, intent, queued.token)) {
                Prepared::Ticket(ticket) => {
                    queued.token = None;
                    return Ok(Held::new((self, entry), client, ticket, waited));
                }
                Prepared::Deny(error) => {
                    queued.token = None;
                    return Err(error);
                }
                Prepared::Wait(token) => {
                    queued.token = Some(token);
                    waited = true;
                    if let Some(woken) = entry.lie_down(token) {
                        // The sender lives in the entry, which we hold: an error cannot happen.
                        drop(woken.await);
                    }
                }
            }
        }
    }

    /// The same, of what can do without: nobody is waited for.
    pub(crate) fn prepare_now(self: &Arc<Self>, entry: &Arc<FileEntry>, intent: &Intent) -> Option<Held> {
        let client = intent.client();
        match self.step(entry, client, |file, ctx| file.prepare(ctx, intent, None)) {
            Prepared::Ticket(ticket) => Some(Held::new((self, entry), client, ticket, false)),
            Prepared::Deny(_) => None,
            Prepared::Wait(token) => {
                drop(Queued { mds: self, entry, token: Some(token) });
                None
            }
        }
    }

    /// Goes through the table, again and again, so that it holds what has state and nothing else.
    pub(crate) async fn run_file_sweep(self: Arc<Self>) {
        for shard in (0..SHARDS).cycle() {
            self.env.clock.sleep(SWEEP).await;
            self.files.sweep(shard);
        }
    }

    /// Ticks machines when they ask for it: recalls to repeat or to give up, waits that ran out.
    pub(crate) async fn run_file_timers(self: Arc<Self>) {
        loop {
            let changed = self.files.timers.changed.notified();
            match self.files.timers.next() {
                None => changed.await,
                Some(at) => {
                    let sleep = self.env.clock.sleep_until(self.pulse.real(at));
                    tokio::select! {
                        biased;
                        () = changed => continue,
                        () = sleep => {}
                    }
                }
            }
            self.time_goes_on().await;
            for id in self.files.timers.expired(self.now()) {
                if let Some(entry) = self.files.get(id) {
                    self.step(&entry, None, |file, ctx| ((), file.tick(ctx)));
                    self.files.retire(&entry);
                }
            }
        }
    }
}
