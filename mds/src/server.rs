//! Builds the metadata server and owns its parts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use sluice_env::Env;
use sluice_kv::Database;
use sluice_namespace::stable_storage::{MdsEpoch, epoch_guard, take_epoch};
use sluice_namespace::{FileId, FormatOptions, FsError, IdAllocator, LayoutPolicy, Namespace};
use sluice_rpc::{Program, Transport};
use sluice_state::file::Policy;
use sluice_state::{BootEpoch, Time};
use sluice_xdr::nfs4::nfsstat4;
use tokio::sync::Notify;

use crate::admin::{Admin, Looking};
use crate::clients::ClientTable;
use crate::clients::notices::Notices;
use crate::config::{Config, Delegations};
use crate::copies::Copies;
use crate::dsctl::{Control, Registry};
use crate::exports::Exports;
use crate::exports::callers::{self, Callers};
use crate::exports::hosts::Hosts;
use crate::exports::lookups::Lookups;
use crate::files::{FileEntry, Files};
use crate::groups::Groups;
use crate::layout::balance::Balances;
use crate::layout::census::Counting;
use crate::layout::commits::Commits;
use crate::layout::compare::Comparisons;
use crate::layout::drain::Drains;
use crate::layout::garbage::Uncut;
use crate::layout::habits::Habits;
use crate::layout::heal::Heals;
use crate::layout::mirrors::Changes;
use crate::layout::reason::Proxied;
use crate::layout::reports::Reports;
use crate::metrics::Metrics;
use crate::owners::Names;
use crate::program::Nfs4;
use crate::pulse::Pulse;
use crate::quota::Quotas;

/// A running metadata server.
pub struct Mds {
    pub(crate) env: Env,
    /// How the data servers are reached for proxied I/O.
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) config: Config,
    pub(crate) db: Database,
    pub(crate) namespace: Namespace,
    pub(crate) fileids: IdAllocator,
    pub(crate) data_files: IdAllocator,
    pub(crate) fences: IdAllocator,
    /// Whether small files may be kept in the store, as of the last look at its device.
    pub(crate) room_for_data: AtomicBool,
    /// Whether there may be more names and attributes, likewise.
    pub(crate) room_for_names: AtomicBool,
    /// Grace may end: nobody waits for the next round.
    pub(crate) housekeeping: Notify,
    pub(crate) promoting: crate::layout::inline::Turns,
    /// What new files become, by directory.
    pub(crate) habits: Habits,
    /// Held by who leases more numbers: if all that want one did, they would conflict.
    pub(crate) leasing: tokio::sync::Mutex<()>,
    pub(crate) epoch: BootEpoch,
    /// What every write transaction compares with the store: a successor's start ends this server.
    pub(crate) mds_epoch: MdsEpoch,
    pub(crate) epoch_guard: (Bytes, Bytes),
    pub(crate) clients: ClientTable,
    pub(crate) files: Files,
    pub(crate) data_servers: Registry,
    pub(crate) exports: Exports,
    /// What is known of hosts by name, for those.
    pub(crate) lookups: Lookups,
    pub(crate) callers: Callers,
    pub(crate) hosts: Hosts,
    pub(crate) groups: Groups,
    /// Of owners.
    pub(crate) names: Names,
    /// What clients say about data servers.
    pub(crate) reports: Reports,
    /// What went through this server, and why.
    pub(crate) proxied: Proxied,
    /// Files being healed.
    pub(crate) heals: Heals,
    /// Data servers being emptied.
    pub(crate) drains: Drains,
    pub(crate) balances: Balances,
    pub(crate) comparisons: Comparisons,
    pub(crate) mirror_changes: Changes,
    pub(crate) counting: Counting,
    /// LAYOUTCOMMITs under way.
    pub(crate) commits: Commits,
    /// Copies under way.
    pub(crate) copies: Copies,
    pub(crate) quotas: Quotas,
    pub(crate) notices: Notices,
    pub(crate) metrics: Metrics,
    /// Files that an earlier incarnation left with a read-write layout out, and nobody asked for since.
    pub(crate) unsettled: Mutex<BTreeSet<FileId>>,
    /// Truncations that an earlier incarnation committed and may not have carried out at the data servers, and those of this one that
    /// data servers refused: until they are, nobody writes to these files, has a layout of them or sets another size. Reads here
    /// end where the file does.
    pub(crate) uncut: Mutex<BTreeMap<FileId, Arc<Uncut>>>,
    /// Files whose last read-write layout came back cleanly, to be recorded together.
    pub(crate) rw_idle: Mutex<Vec<Arc<FileEntry>>>,
    pub(crate) garbage: crate::layout::garbage::Queue,
    /// What backups and checks are reading.
    pub(crate) reading: crate::admin::rows::Moments,
    pub(crate) recalls: crate::callback::Recalls,
    /// State that was taken from clients, for the log.
    pub(crate) revoked: sluice_rpc::Sparing,
    /// Callbacks that clients do not take, likewise.
    pub(crate) unheard: sluice_rpc::Sparing,
    pub(crate) dumped: crate::admin::dumped::Newest,
    pub(crate) pulse: Pulse,
    /// When this incarnation began.
    pub(crate) started: Time,
}

impl fmt::Debug for Mds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mds").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

/// Why a metadata server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the metadata store: {0}")]
    Store(#[from] FsError),
    #[error("the metadata store has seen {0} starts, more than can be numbered")]
    TooManyStarts(u64),
}

impl Mds {
    /// Starts a metadata server on `db`, formatting it if it is empty, and its background tasks.
    ///
    /// # Errors
    /// What the store says.
    pub async fn start(
        env: Env,
        transport: Arc<dyn Transport>,
        db: Database,
        config: Config,
    ) -> Result<Arc<Self>, StartError> {
        // How many mirrors there are where nobody says is for each start to say.
        let policy = LayoutPolicy { mirrors: 0, ..config.policy };
        let options = FormatOptions { policy, ..FormatOptions::new(&env) };
        let limits = sluice_kv::RunLimits::default;
        let (namespace, _) = db
            .run::<_, FsError, _>(limits().idempotent(), |mut txn| {
                let options = options.clone();
                Box::pin(async move { Namespace::load_or_format(&mut txn, &options).await })
            })
            .await?;
        let incarnation = env.random.array();
        let (mds_epoch, _) = db
            .run::<_, FsError, _>(limits().idempotent(), |mut txn| {
                Box::pin(async move { take_epoch(&mut txn, incarnation).await })
            })
            .await?;
        let epoch = mds_epoch.epoch;
        let epoch = BootEpoch(u32::try_from(epoch).map_err(|_| StartError::TooManyStarts(epoch))?);
        let policy = file_policy(&config);
        let guard = epoch_guard(&mds_epoch);
        let mds = Arc::new(Self {
            clients: ClientTable::load(&env, &db, &config, epoch, &guard).await?,
            data_servers: Registry::load(&env, &db, &config, epoch).await?,
            exports: Exports::load(&env, &db, &config).await?,
            lookups: Lookups::new(config.resolver.clone()),
            callers: Callers::default(),
            hosts: Hosts::default(),
            files: Files::new(epoch, policy),
            fileids: IdAllocator::default(),
            data_files: IdAllocator::default(),
            fences: IdAllocator::default(),
            room_for_data: AtomicBool::new(true),
            housekeeping: Notify::new(),
            room_for_names: AtomicBool::new(true),
            promoting: crate::layout::inline::Turns::default(),
            habits: Habits::default(),
            leasing: tokio::sync::Mutex::default(),
            reports: Reports::default(),
            proxied: Proxied::default(),
            heals: Heals::default(),
            drains: Drains::default(),
            balances: Balances::default(),
            comparisons: Comparisons::default(),
            mirror_changes: Changes::default(),
            counting: Counting::default(),
            commits: Commits::default(),
            copies: Copies::default(),
            groups: Groups::new(config.accounts.clone()),
            names: Names::new(config.owners.clone()),
            quotas: Quotas::load(&db, &namespace).await?,
            notices: Notices::default(),
            metrics: Metrics::default(),
            unsettled: Mutex::new(crate::layout::settle::unsettled(&db, &namespace).await?),
            uncut: Mutex::new(crate::layout::garbage::uncut(&db, &namespace).await?),
            rw_idle: Mutex::default(),
            garbage: crate::layout::garbage::Queue::default(),
            reading: crate::admin::rows::Moments::default(),
            recalls: crate::callback::Recalls::default(),
            revoked: sluice_rpc::Sparing::default(),
            unheard: sluice_rpc::Sparing::default(),
            dumped: crate::admin::dumped::Newest::load(&db).await?,
            pulse: Pulse::beginning(env.clock.now()),
            started: Time(env.clock.now().0),
            epoch,
            epoch_guard: guard,
            mds_epoch,
            namespace,
            env,
            transport,
            db,
            config,
        });
        if let Some(why) = mds.data_servers.older() {
            tracing::error!(%why, "all data servers are refused");
        }
        mds.place_clients();
        mds.spawn(Arc::clone(&mds).run_file_timers());
        mds.spawn(Arc::clone(&mds).run_file_sweep());
        mds.spawn(crate::reaper::run(Arc::clone(&mds)));
        mds.spawn(crate::pressure::run(Arc::clone(&mds)));
        mds.spawn(crate::dsctl::run(Arc::clone(&mds)));
        mds.spawn(crate::dsctl::epochs::run(Arc::clone(&mds)));
        mds.spawn(crate::dsctl::run_damage(Arc::clone(&mds)));
        mds.spawn(crate::quota::work::run(Arc::clone(&mds)));
        mds.spawn(crate::quota::writers::run(Arc::clone(&mds)));
        mds.spawn(crate::layout::garbage::run(Arc::clone(&mds)));
        mds.spawn(crate::layout::inline::watch_room(Arc::clone(&mds)));
        mds.spawn(crate::layout::heal::run(Arc::clone(&mds)));
        mds.spawn(crate::layout::heal::run_rebuild(Arc::clone(&mds)));
        mds.spawn(crate::layout::drain::run(Arc::clone(&mds)));
        mds.spawn(crate::layout::balance::run(Arc::clone(&mds)));
        if mds.lookups.can() {
            mds.spawn(callers::run(Arc::clone(&mds)));
        }
        Ok(mds)
    }

    /// What NFS clients reach.
    pub fn plain_programs(self: &Arc<Self>) -> Vec<Arc<dyn Program>> {
        vec![Arc::new(Nfs4 { mds: Arc::clone(self) })]
    }

    /// What holders of the cluster key reach.
    pub fn secure_programs(self: &Arc<Self>) -> Vec<Arc<dyn Program>> {
        vec![Arc::new(Control { mds: Arc::clone(self) }), Arc::new(Admin { mds: Arc::clone(self) })]
    }

    /// The programs of holders of a monitoring key: nothing in them changes anything.
    pub fn monitor_programs(self: &Arc<Self>) -> Vec<Arc<dyn Program>> {
        vec![Arc::new(Looking(Admin { mds: Arc::clone(self) }))]
    }

    /// How often data servers were asked something since the start.
    pub fn orders(&self) -> u64 {
        self.data_servers.orders()
    }

    /// How many files have opens, locks, layouts or delegations, or had until a moment ago.
    pub fn files_with_state(&self) -> usize {
        self.files.count()
    }

    /// Whether a truncation that was committed is still to be carried out, and nobody holds a ticket for it.
    pub(crate) fn is_uncut(&self, file: FileId) -> bool {
        self.uncut.lock().contains_key(&file)
    }

    /// What whoever would change the data of a file is told before such a truncation of it is carried out: that it takes a moment, or
    /// that nobody knows how long, where its data server takes other writes.
    pub(crate) fn uncut_status(&self, file: FileId) -> Option<nfsstat4> {
        let refused = self.uncut.lock().get(&file)?.refused();
        let store = refused.and_then(|store| self.data_servers.get(store));
        Some(match store.is_some_and(|store| store.takes_writes()) {
            true => nfsstat4::NFS4ERR_IO,
            false => nfsstat4::NFS4ERR_DELAY,
        })
    }
}

fn file_policy(config: &Config) -> Policy {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let usual = Policy::default();
    Policy {
        recall_timeout: nanos(config.recall_timeout),
        // A client may have nothing to renew its lease with while its calls wait (RFC 8881 §8.3).
        wait: usual.wait.min(nanos(config.lease / 3)),
        max_opens_per_client: config.limits.opens.per_client,
        max_opens: config.limits.opens.in_all,
        max_opens_per_file: config.limits.opens_of_file,
        max_lock_owners_per_file: config.limits.lock_owners_of_file,
        max_layouts_per_client: config.limits.layouts.per_client,
        max_layouts: config.limits.layouts.in_all,
        max_delegations_per_client: config.limits.delegations.per_client,
        max_delegations: config.limits.delegations.in_all,
        read_delegations: config.delegations != Delegations::Off,
        write_delegations: matches!(config.delegations, Delegations::ReadWrite | Delegations::Times),
        delegated_times: config.delegations == Delegations::Times,
        close_releases_locks: true,
        ..usual
    }
}
