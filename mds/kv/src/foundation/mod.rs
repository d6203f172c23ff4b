//! The FoundationDB backend: one file system is one prefix of a cluster's keys.
//!
//! Reads are FoundationDB's snapshot reads at the transaction's read version, and what they conflict with is told at
//! commit: which reads conflict, and how far a range was looked at, is decided in one place for all backends
//! ([`crate::Transaction`]). So is what a transaction reads of its own writes.

mod client;
mod cluster_file;
mod failure;
mod recent;
mod room;
mod space;
mod tenure;
mod tls;
mod wait;
mod way;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use foundationdb::options::{
    ConflictRangeType, DatabaseOption, MutationType, StreamingMode, TransactionOption,
};
use foundationdb::{KeySelector, RangeOption, Transaction};
use parking_lot::Mutex;
use sluice_env::Env;
use tokio::sync::{Notify, Semaphore};

use crate::faults::{self, CommitFault, Faults};
use crate::key::successor;
use crate::store::{Request, Store};
use crate::writes::{Pending, Step};
use crate::{AtomicOp, Committed, KeyValue, KvError, MAX_AGE, Room, Versionstamp};
use recent::Recent;
use space::Space;
use tenure::{Lease, Tenure};
use way::Way;

pub use client::end_client;
pub use tls::Tls;

/// Which cluster, which part of it, and by which library.
#[derive(Clone, Debug)]
pub struct FoundationOptions {
    /// `None`: the client library's default, `FDB_CLUSTER_FILE` or /etc/foundationdb/fdb.cluster.
    pub cluster_file: Option<PathBuf>,
    /// The client library. `None`: libfdb_c.so on the loader's search path.
    pub library: Option<PathBuf>,
    /// Names the file system among those of the cluster; its keys begin with it. 1 to 32 letters, digits, `.`, `_`, `-`.
    pub name: String,
    /// How the cluster and this client prove who they are.
    pub tls: Tls,
    /// A file that says who this server is, made as needed and locked while the store is open: then only one server
    /// at a time has the store. `None`: nothing keeps two from opening it.
    pub identity: Option<PathBuf>,
    /// With an identity, and another server has the store: wait, for however long it lives. Told once it does: all else that
    /// might be in the way has been looked at by then.
    pub standby: Option<Arc<Notify>>,
    /// For tests in virtual time: every wait for the cluster blocks its thread, so that time stands still meanwhile,
    /// and [`crate::Database::set_faults`] has an effect.
    pub still: bool,
}

impl Default for FoundationOptions {
    fn default() -> Self {
        Self {
            cluster_file: None,
            library: None,
            name: "sluice".to_owned(),
            tls: Tls::default(),
            identity: None,
            standby: None,
            still: false,
        }
    }
}

impl FoundationOptions {
    /// Whether what they name for TLS can be used, as far as that can be told without the cluster.
    ///
    /// # Errors
    /// [`KvError::NoClient`]: what is wrong, with which file, and what to do.
    pub fn check(&self, env: &Env) -> Result<(), KvError> {
        Way::of(self).check(env)
    }
}

/// A read that is not answered for so long will not be: the transaction has outlived [`MAX_AGE`].
const READ_TIMEOUT: Duration = MAX_AGE.saturating_add(Duration::from_secs(1));

/// More commits than there can be in flight.
const COMMITS: u32 = 1 << 29;
/// How long it may take to close a store.
const CLOSING: Duration = Duration::from_secs(5);

/// The offset at the end of a versionstamped value's operand.
type StampOffset = u32;

pub(crate) struct Foundation {
    env: Env,
    database: Arc<foundationdb::Database>,
    space: Space,
    still: bool,
    tenure: Option<Tenure>,
    /// Of the tenure, if there is one.
    lease: Lease,
    recent: Recent,
    /// Why nothing is answered any more.
    ended: OnceLock<KvError>,
    /// Told when another server has taken over.
    lost: Notify,
    /// Each commit in flight has a permit.
    commits: Semaphore,
    /// As the cluster said last.
    room: Mutex<Option<Room>>,
    faults: Mutex<Faults>,
}

// The library's handle has nothing to show.
impl std::fmt::Debug for Foundation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Foundation").field("space", &self.space).finish_non_exhaustive()
    }
}

/// A transaction of the cluster, at its read version.
pub(crate) struct View {
    pub(crate) version: u64,
    transaction: Transaction,
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("version", &self.version).finish_non_exhaustive()
    }
}

impl Foundation {
    /// Loads the library, starts its network thread, and makes or checks the file system's part of the cluster.
    pub(crate) async fn open(env: Env, options: &FoundationOptions) -> Result<Arc<Self>, KvError> {
        let tenure = options.identity.as_deref().map(|file| Tenure::of(file, &env)).transpose()?;
        let space = Space::new(&options.name)?;
        let way = Way::of(options);
        // The library falls over some of what is found here.
        way.check(&env)?;
        let database = client::connect(options)?;
        let timeout = i32::try_from(READ_TIMEOUT.as_millis()).unwrap_or(i32::MAX);
        database.set_option(DatabaseOption::TransactionTimeout(timeout)).map_err(failure::of_call)?;
        let database = Arc::new(database);
        let mut this = Self::over(env, database, space, options.still, Faults::NONE);
        let opening = async {
            space::prepare(&this).await?;
            match &tenure {
                Some(tenure) => tenure::take(&this, tenure, options.standby.as_deref()).await,
                None => Ok(()),
            }
        };
        // In virtual time nobody goes and looks.
        if this.still { opening.await } else { way.explained(&this.env, opening).await }?;
        this.tenure = tenure;
        foundationdb_sys::stop_at_exit();
        let this = Arc::new(this);
        if this.tenure.is_some() {
            let keeping = tenure::keep(Arc::downgrade(&this), this.env.clone());
            this.env.spawn.spawn(Box::pin(keeping));
        }
        if !this.still {
            let watching = room::watch(Arc::downgrade(&this), this.env.clone());
            this.env.spawn.spawn(Box::pin(watching));
            this.env.spawn.spawn(Box::pin(way.watch(Arc::downgrade(&this), this.env.clone())));
        }
        Ok(this)
    }

    fn over(
        env: Env,
        database: Arc<foundationdb::Database>,
        space: Space,
        still: bool,
        faults: Faults,
    ) -> Self {
        let commits = Semaphore::new(COMMITS as usize);
        let (ended, lost, faults) = (OnceLock::new(), Notify::new(), Mutex::new(faults));
        let (lease, recent, room) = (Lease::default(), Recent::default(), Mutex::default());
        Self { env, database, space, still, tenure: None, lease, recent, ended, lost, commits, room, faults }
    }

    /// Ends this incarnation and returns the next, in a test.
    pub(crate) fn crash(&self) -> Option<Self> {
        if !self.still {
            return None;
        }
        self.end(KvError::Closed);
        let (env, database, space) = (self.env.clone(), Arc::clone(&self.database), self.space.clone());
        Some(Self::over(env, database, space, self.still, *self.faults.lock()))
    }

    pub(crate) fn set_faults(&self, faults: Faults) {
        if self.still {
            *self.faults.lock() = faults;
        }
    }

    /// Of the process that has the least; unknown until the cluster has said.
    pub(crate) fn room(&self) -> Option<Room> {
        if self.still { Some(self.faults().room()) } else { *self.room.lock() }
    }

    fn faults(&self) -> Faults {
        // Never set but in a test.
        if self.still { *self.faults.lock() } else { Faults::NONE }
    }

    /// That it answers, for now.
    fn check(&self) -> Result<(), KvError> {
        self.goes_on()?;
        if self.is_ours() {
            Ok(())
        } else {
            Err(KvError::Unavailable {
                what: "the cluster has not answered for a while; another server may have taken over".into(),
            })
        }
    }

    /// That it has not ended for good.
    fn goes_on(&self) -> Result<(), KvError> {
        match self.ended.get() {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// Whether no other server can have it by now.
    pub(crate) fn is_ours(&self) -> bool {
        let holds = self.tenure.is_none() || self.lease.holds(self.env.clock.now());
        self.goes_on().is_ok() && holds && !self.faults().away
    }

    /// Completes when no other server can have it; an error: one has.
    pub(crate) async fn until_ours(&self) -> Result<(), KvError> {
        loop {
            let renewed = self.lease.renewed();
            self.goes_on()?;
            if self.is_ours() {
                return Ok(());
            }
            if self.faults().away {
                self.env.clock.sleep(faults::LOOK).await;
            } else {
                renewed.await;
            }
        }
    }

    fn end(&self, error: KvError) {
        self.ended.get_or_init(|| error);
    }

    fn lose(&self) {
        tracing::error!("another server has taken over this store");
        self.end(KvError::Superseded);
        self.lease.ended();
        self.lost.notify_one();
    }

    /// A transaction found another server's epoch.
    pub(crate) fn superseded(&self) {
        // Without a tenure it is a test's, which begins one after the other.
        if self.tenure.is_some() && self.goes_on().is_ok() {
            self.lose();
        }
    }

    /// Completes when another server has taken over; for one who waits.
    pub(crate) async fn taken_over(&self) {
        self.lost.notified().await;
    }

    fn begin(&self) -> Result<Transaction, KvError> {
        let transaction = self.database.create_trx().map_err(failure::of_call)?;
        // What is read of own writes is merged above; without this every read would be looked up among them again.
        transaction.set_option(TransactionOption::ReadYourWritesDisable).map_err(failure::of_call)?;
        Ok(transaction)
    }

    async fn wait<F: Future + Unpin>(&self, answer: F) -> F::Output {
        if self.still { wait::here(answer) } else { answer.await }
    }

    /// Lets `transaction` read at a version that has everything acknowledged in it.
    async fn newest(&self, transaction: &Transaction) -> Result<u64, KvError> {
        let now = self.env.clock.now();
        // Only while nobody else can write there.
        if self.tenure.is_some()
            && let Some(version) = self.recent.version(now)
        {
            transaction.set_read_version(i64::try_from(version).unwrap_or(i64::MAX));
            return Ok(version);
        }
        let doubts = self.recent.doubts();
        let version = self.wait(transaction.get_read_version()).await.map_err(failure::of_read)?;
        self.recent.answered(number(version), now, doubts);
        Ok(number(version))
    }

    async fn commit_unfaulted(&self, request: Request<View>) -> Result<Committed, KvError> {
        let bytes = request.bytes;
        let transaction = self.filled(request)?;
        let stamp = transaction.get_versionstamp();
        let (began, in_flight) = (self.env.clock.now(), self.recent.commit());
        let committed = match self.wait(transaction.commit()).await {
            Ok(committed) => committed,
            Err(error) => {
                let error = failure::of_commit(*error, bytes);
                if error != KvError::CommitUnknown {
                    in_flight.settled();
                }
                return Err(error);
            }
        };
        // It is applied: whatever is not known about it, it is not a failure.
        let stamp = self.wait(stamp).await.ok().and_then(|raw| Some(Versionstamp(raw[..].try_into().ok()?)));
        let version = committed.committed_version().map(number).ok();
        if let Some(version) = stamp.map(|stamp| stamp.version()).or(version) {
            self.recent.committed(version, began);
            in_flight.settled();
        }
        match (stamp, version) {
            (Some(stamp), _) => {
                Ok(Committed { version: stamp.version(), versionstamp: Some(stamp), exact: true })
            }
            (None, Some(version)) => Ok(Committed { version, versionstamp: None, exact: false }),
            (None, None) => Err(KvError::CommitUnknown),
        }
    }

    /// The cluster's transaction with everything that `request` says.
    fn filled(&self, request: Request<View>) -> Result<Transaction, KvError> {
        let Request { view, reads, writes, write_conflicts, .. } = request;
        let transaction = match view {
            Some(view) => view.transaction,
            None => self.begin()?,
        };
        // A commit is waited for however long it takes: one that is given up may still be applied later, and
        // nothing could tell. The client library ends it when its fate is known, or no longer in its hands (1021).
        transaction.set_option(TransactionOption::Timeout(0)).map_err(failure::of_call)?;
        let conflict = |begin: &[u8], end: &[u8], kind| {
            let (begin, end) = (self.space.key(begin), self.space.key(end));
            transaction.add_conflict_range(&begin, &end, kind).map_err(failure::of_call)
        };
        let keys: BTreeSet<&[u8]> = reads.keys.iter().collect();
        for key in keys {
            conflict(key, &successor(key), ConflictRangeType::Read)?;
        }
        for range in reads.ranges.iter().filter(|r| r.begin < r.end) {
            conflict(&range.begin, &range.end, ConflictRangeType::Read)?;
        }
        for range in write_conflicts.iter().filter(|r| r.begin < r.end) {
            conflict(&range.begin, &range.end, ConflictRangeType::Write)?;
        }
        for (begin, end) in &writes.cleared {
            transaction.clear_range(&self.space.key(begin), &self.space.key(end));
        }
        for (key, pending) in writes.entries.iter() {
            let key = self.space.key(key);
            match pending {
                Pending::Value(Some(value)) => transaction.set(&key, value),
                Pending::Value(None) => transaction.clear(&key),
                Pending::Chain(chain) => chain.steps().for_each(|step| apply(&transaction, &key, step)),
            }
        }
        Ok(transaction)
    }
}

/// Versions are never negative.
fn number(version: i64) -> u64 {
    u64::try_from(version).unwrap_or_default()
}

fn apply(transaction: &Transaction, key: &[u8], step: &Step) {
    match step {
        Step::Atomic(op, operand) => transaction.atomic_op(key, operand, mutation(*op)),
        Step::Stamped(template, offset) => {
            let mut operand = template.to_vec();
            // The offset fits: the value is at most 100 kB and the stamp lies within it.
            let offset = StampOffset::try_from(*offset).unwrap_or_default();
            operand.extend_from_slice(&offset.to_le_bytes());
            transaction.atomic_op(key, &operand, MutationType::SetVersionstampedValue);
        }
    }
}

fn mutation(op: AtomicOp) -> MutationType {
    match op {
        AtomicOp::Add => MutationType::Add,
        AtomicOp::Max => MutationType::Max,
        AtomicOp::Min => MutationType::Min,
        AtomicOp::ByteMax => MutationType::ByteMax,
    }
}

impl Store for Foundation {
    type View = View;

    async fn view(&self) -> Result<View, KvError> {
        let faults = self.faults();
        faults.delay(&self.env).await;
        faults.view(&self.env)?;
        self.check()?;
        let transaction = self.begin()?;
        let version = self.newest(&transaction).await?;
        self.check()?;
        Ok(View { version, transaction })
    }

    async fn get(&self, view: &View, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        let faults = self.faults();
        faults.delay(&self.env).await;
        faults.read(&self.env)?;
        self.check()?;
        // As a snapshot: the conflict is added at commit.
        let value = self.wait(view.transaction.get(&self.space.key(key), true)).await;
        Ok(value.map_err(failure::of_read)?.map(|value| Bytes::copy_from_slice(&value)))
    }

    async fn range(
        &self,
        view: &View,
        begin: &[u8],
        end: &[u8],
        limit: usize,
        reverse: bool,
    ) -> Result<Vec<KeyValue>, KvError> {
        let faults = self.faults();
        faults.delay(&self.env).await;
        faults.read(&self.env)?;
        self.check()?;
        let (begin, end) = (self.space.key(begin), self.space.key(end));
        let mut rest = RangeOption {
            begin: KeySelector::first_greater_or_equal(begin),
            end: KeySelector::first_greater_or_equal(end),
            limit: Some(limit),
            mode: StreamingMode::WantAll,
            reverse,
            ..RangeOption::default()
        };
        let mut pairs = Vec::new();
        for iteration in 1.. {
            let answer = self.wait(view.transaction.get_range(&rest, iteration, true)).await;
            let answer = answer.map_err(failure::of_read)?;
            for pair in &answer {
                let key = self.space.without(pair.key())?;
                pairs.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(pair.value())));
            }
            match rest.next_range(&answer) {
                Some(next) => rest = next,
                None => break,
            }
        }
        Ok(pairs)
    }

    async fn commit(&self, request: Request<View>) -> Result<Committed, KvError> {
        let faults = self.faults();
        faults.delay(&self.env).await;
        let fault = faults.commit(&self.env)?;
        // It is never closed, and there are more permits than commits.
        let _in_flight = self.commits.acquire().await.map_err(|_| KvError::Closed)?;
        self.check()?;
        let committed = self.commit_unfaulted(request).await?;
        match fault {
            CommitFault::None => Ok(committed),
            CommitFault::UnknownApplied => Err(KvError::CommitUnknown),
        }
    }

    async fn flush(&self) -> Result<(), KvError> {
        self.check()
    }

    async fn close(&self) -> Result<(), KvError> {
        self.end(KvError::Closed);
        // While the cluster is away a commit may take for ever, and so does clearing the row. Neither must be waited for: the
        // next server finds the row silent, and its epoch keeps out what is still on its way.
        let ends = async {
            self.commits.acquire_many(COMMITS).await.map(drop).map_err(|_| KvError::Closed)?;
            tenure::release(self).await
        };
        match self.env.clock.timeout(CLOSING, ends).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "the next metadata server has to wait until this one is silent")
            }
            Err(_) => {
                tracing::warn!("the FoundationDB cluster does not answer: ended without waiting for it")
            }
        }
        Ok(())
    }
}
