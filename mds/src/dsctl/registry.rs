//! Every store ever registered, and what is known of it now.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use sluice_env::Env;
use sluice_kv::{Database, RunLimits};
use sluice_namespace::stable_storage::{
    CapabilityEpochs, CapabilityKey, Protection, Store, StoreState, capability_epochs, older,
    put_capability_epochs, stores,
};
use sluice_namespace::{Class, DataFileId, FsError, Sequence, StoreId, next_number};
use sluice_rpc::Connection;
use sluice_state::{BootEpoch, ClientId, Time};
use sluice_xdr::capability::{Capability, Rights};
use sluice_xdr::control::{ctl_caller, ctl_capacity, ctl_counters, ctl_health};
use tokio::sync::Notify;

use super::capacity::Looks;
use super::damage::Damage;
use super::epochs::Turns;
use super::history::Histories;
use super::tide::OlderStore;
use crate::config::Config;

/// The holder tag of this server's own reads and writes. Tags of clients begin at 2^20.
pub(crate) const MDS_HOLDER: u32 = 1;

/// Between two looks whether files that were being made are.
const PLACED: Duration = Duration::from_millis(10);
/// Data servers remembered that were refused; beyond it all are forgotten.
const MOST_REFUSED: usize = 256;

/// Known data servers, and what capabilities are made with.
#[derive(Debug)]
pub(crate) struct Registry {
    // Constant.
    mds_epoch: u64,
    isolation_nanos: u64,
    first_epoch: u32,
    // Guarded by its own lock.
    stores: RwLock<BTreeMap<StoreId, Arc<StoreHandle>>>,
    epochs: RwLock<CapabilityEpochs>,
    pub(crate) turns: Turns,
    next_request: AtomicU64,
    /// Data servers that were not let in lately, by where they are and which store they have.
    pub(crate) refused: Mutex<BTreeMap<(IpAddr, [u8; 16]), Refused>>,
    pub(super) histories: Histories,
    pub(super) looks: Looks,
    /// Where the next file begins; spreads files evenly.
    pub(crate) cursor: AtomicU64,
    /// A data server has told of its damage.
    pub(super) told: Notify,
    /// Held by choices of data servers that are not committed yet.
    placing: Mutex<Placing>,
    /// When it was last said that a file found no place.
    pub(crate) unplaced: Mutex<Option<Time>>,
}

/// A choice of data servers is on its way into the store: kept until the transaction that takes it is over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placing(Arc<()>);

/// Why a data server was not let in.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) reason: String,
    pub(crate) last: Time,
}

/// One store.
#[derive(Debug)]
pub(crate) struct StoreHandle {
    pub(crate) id: StoreId,
    pub(crate) uuid: [u8; 16],
    state: Mutex<StoreView>,
    /// This server's own NFSv3 connection to it.
    pub(crate) nfs: tokio::sync::Mutex<Option<Arc<Connection>>>,
    /// How often it was asked something.
    pub(super) orders: AtomicU64,
}

/// What is known of a store now.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreView {
    /// The data server's own connection: orders go over it.
    pub(crate) connection: Option<Arc<Connection>>,
    pub(crate) addresses: Vec<SocketAddr>,
    /// Which process it was that registered last.
    pub(crate) process: Option<[u8; 16]>,
    /// Raised with every change of addresses, and when it comes back after it was lost.
    pub(crate) device_generation: u16,
    pub(crate) capacity: ctl_capacity,
    pub(crate) counters: ctl_counters,
    pub(crate) health: Option<ctl_health>,
    pub(crate) detail: String,
    pub(crate) version: Bytes,
    pub(crate) intent: StoreState,
    /// As its row says.
    pub(crate) class: Option<Class>,
    /// The most that it can want of clients' connections for a handle.
    pub(crate) protection: Protection,
    pub(crate) last_heard: Time,
    /// It did not say in time how full it is, and was not heard of since.
    pub(crate) mute: bool,
    /// Its silence has been told, and its layouts recalled.
    pub(crate) lost: bool,
    /// The fences found at its registration have been told and their rows dropped.
    pub(crate) fences_told: bool,
    /// How often that was so: one that dies and is back within a moment was away all the same.
    pub(crate) returns: u64,
    /// Refuses handles of epochs before this one, until it registers again at least, which tells it.
    pub(crate) retired: u32,
    /// The older copy of its store that it was refused with, and how often it was let in after that.
    pub(super) older: Option<OlderStore>,
    pub(super) let_in: u64,
    /// It is to refuse handles of epochs before this one, whatever others take.
    pub(crate) from_epoch: u32,
    /// What earlier incarnations had on its way there is done or refused.
    pub(crate) predecessors_over: bool,
    /// What it holds and nobody is to see.
    pub(crate) damage: Arc<Damage>,
    /// The part of it that was told so far.
    pub(crate) damage_coming: Damage,
    /// Raised when it says anew what of it is whole.
    pub(crate) news: u64,
    /// Data files that it once had, and was found not to have any more.
    pub(crate) missing: BTreeSet<(DataFileId, u16)>,
    /// Data files that it could not write to, and until when others are written without them.
    pub(crate) refusing: BTreeMap<(DataFileId, u16), Time>,
    /// Data files some of which its device could not read, and when that is tried again; whether it could not either when that had
    /// been written anew.
    pub(crate) unreadable: BTreeMap<(DataFileId, u16), (Time, bool)>,
}

impl StoreView {
    /// The host that it runs on, as its first address tells.
    pub(crate) fn host(&self) -> Option<IpAddr> {
        self.addresses.first().map(SocketAddr::ip)
    }

    /// See [`StoreHandle::serves`].
    pub(crate) fn serves(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| !connection.is_closed())
            && !self.lost
            && !self.addresses.is_empty()
            && self.intent != StoreState::Removed
            && !matches!(self.health, None | Some(ctl_health::HEALTH_FAILING))
    }

    /// See [`StoreHandle::takes_new`].
    pub(crate) fn takes_new(&self) -> bool {
        self.intent == StoreState::Active && self.health == Some(ctl_health::HEALTH_OK)
    }
}

impl Registry {
    /// The data servers and keys that earlier incarnations knew.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) async fn load(
        env: &Env,
        db: &Database,
        config: &Config,
        epoch: BootEpoch,
    ) -> Result<Self, FsError> {
        let mut known = BTreeMap::new();
        let mut after = None;
        loop {
            let page = db
                .run_read(RunLimits::default(), |txn| {
                    Box::pin(async move { stores(&txn, after, 1000).await })
                })
                .await?;
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            known.extend(page.into_iter().map(|row| (row.id, Arc::new(StoreHandle::of(&row)))));
        }
        let alone = known.values().all(|store| store.is_removed());
        let epochs = next_epoch(env, db).await?;
        let histories = db
            .run_read::<_, FsError, _>(RunLimits::default(), |txn| {
                Box::pin(async move {
                    let first = DataFileId(next_number(&txn, Sequence::DataFile).await?);
                    Ok(Histories::new(first, older(&txn).await?, alone))
                })
            })
            .await?;
        Ok(Self {
            histories,
            first_epoch: epochs.current,
            turns: Turns::default(),
            mds_epoch: u64::from(epoch.0),
            isolation_nanos: u64::try_from((config.isolation + config.isolation_margin).as_nanos())
                .unwrap_or(u64::MAX),
            stores: RwLock::new(known),
            epochs: RwLock::new(epochs),
            next_request: AtomicU64::new(1),
            refused: Mutex::default(),
            unplaced: Mutex::default(),
            looks: Looks::default(),
            cursor: AtomicU64::new(env.random.u64()),
            told: Notify::new(),
            placing: Mutex::default(),
        })
    }

    pub(crate) fn get(&self, id: StoreId) -> Option<Arc<StoreHandle>> {
        self.stores.read().get(&id).map(Arc::clone)
    }

    /// It is out for good.
    pub(crate) fn is_removed(&self, id: StoreId) -> bool {
        self.get(id).is_some_and(|store| store.is_removed())
    }

    /// How often data servers were asked something.
    pub(crate) fn orders(&self) -> u64 {
        self.stores.read().values().map(|store| store.orders.load(Ordering::Relaxed)).sum()
    }

    /// The data server with this store, at this address, was not let in.
    pub(crate) fn refuse(&self, from: (IpAddr, [u8; 16]), reason: &str, now: Time) {
        let mut refused = self.refused.lock();
        if refused.len() >= MOST_REFUSED {
            refused.clear();
        }
        refused.insert(from, Refused { reason: reason.to_owned(), last: now });
    }

    /// Those that were not removed.
    pub(crate) fn all(&self) -> Vec<Arc<StoreHandle>> {
        let mut all = self.known();
        all.retain(|store| !store.is_removed());
        all
    }

    /// Some that is in use has no class: mostly the first.
    pub(crate) fn has_any_without_class(&self) -> bool {
        self.stores.read().values().any(|store| store.is_active() && store.class().is_none())
    }

    /// Every one that ever was.
    pub(crate) fn known(&self) -> Vec<Arc<StoreHandle>> {
        self.stores.read().values().map(Arc::clone).collect()
    }

    /// Before it is looked at which data servers take new files.
    pub(crate) fn placing(&self) -> Placing {
        self.placing.lock().clone()
    }

    /// Returns when all that was chosen before is in the store, or never will be.
    pub(crate) async fn placed(&self, env: &Env) {
        let before = std::mem::take(&mut *self.placing.lock());
        while Arc::strong_count(&before.0) > 1 {
            env.clock.sleep(PLACED).await;
        }
    }

    /// The handle of a store, made if this is the first time it is heard of.
    pub(crate) fn enter(&self, row: &Store) -> Arc<StoreHandle> {
        let mut all = self.stores.write();
        Arc::clone(all.entry(row.id).or_insert_with(|| Arc::new(StoreHandle::of(row))))
    }

    /// Whose name orders carry.
    pub(crate) fn caller(&self) -> ctl_caller {
        let request = self.next_request.fetch_add(1, Ordering::Relaxed);
        ctl_caller { mds_epoch: self.mds_epoch, request }
    }

    pub(crate) fn mds_epoch(&self) -> u64 {
        self.mds_epoch
    }

    pub(crate) fn epochs(&self) -> CapabilityEpochs {
        self.epochs.read().clone()
    }

    /// The one that handles are made in.
    pub(crate) fn epoch(&self) -> u32 {
        self.epochs.read().current
    }

    /// They are durable.
    pub(super) fn set_epochs(&self, epochs: CapabilityEpochs) {
        *self.epochs.write() = epochs;
    }

    /// The capability epoch in which this incarnation began: handles of older ones are not ours.
    pub(crate) fn first_epoch(&self) -> u32 {
        self.first_epoch
    }

    /// A data server heard of so recently that it may still serve clients (docs/DESIGN §8).
    pub(crate) fn isolation_nanos(&self) -> u64 {
        self.isolation_nanos
    }

    /// A sealed handle of a data file.
    pub(crate) fn seal(&self, capability: Capability) -> Option<Bytes> {
        let epochs = self.epochs.read();
        let key = epochs.sealing()?;
        // Only the low bits travel: epochs are compared as serial numbers at the data servers.
        let epoch = u16::try_from(epochs.current & 0xffff).ok()?;
        let sealed = Capability { key_id: key.id, epoch, ..capability }.seal(&key.key);
        Some(Bytes::copy_from_slice(&sealed))
    }

    /// Of all data servers that take new files, together, as last heard: [`capacity::look`](super::capacity::look) asks
    /// them.
    pub(crate) fn capacity(&self) -> ctl_capacity {
        of_views(self.all().into_iter().map(|store| store.view()).collect())
    }
}

fn of_views(mut views: Vec<StoreView>) -> ctl_capacity {
    views.retain(|view| view.health.is_some());
    // Of a device that one that takes new files shares with one that takes none, the free space is there for new files.
    views.sort_by_key(|view| view.intent != StoreState::Active);
    together(views.into_iter().map(|view| match view.intent {
        StoreState::Active => view.capacity,
        // What is free there is nobody's.
        _ => ctl_capacity {
            total_bytes: view.capacity.used_bytes,
            free_bytes: 0,
            free_inodes: 0,
            ..view.capacity
        },
    }))
}

/// The sum, in which a device that several data servers have in common counts once.
pub(crate) fn together(capacities: impl Iterator<Item = ctl_capacity>) -> ctl_capacity {
    let mut sum = ctl_capacity::default();
    let mut counted = BTreeSet::new();
    for capacity in capacities {
        let device = capacity.device.0;
        if device == [0; 16] || counted.insert(device) {
            sum.total_bytes = sum.total_bytes.saturating_add(capacity.total_bytes);
            sum.free_bytes = sum.free_bytes.saturating_add(capacity.free_bytes);
            sum.used_bytes = sum.used_bytes.saturating_add(capacity.used_bytes);
            sum.files = sum.files.saturating_add(capacity.files);
            sum.free_inodes = sum.free_inodes.saturating_add(capacity.free_inodes);
        }
    }
    sum
}

impl StoreHandle {
    fn of(row: &Store) -> Self {
        let addresses = row
            .addresses
            .iter()
            .filter_map(|address| {
                let host = std::str::from_utf8(&address.host).ok()?.parse().ok()?;
                Some(SocketAddr::new(host, address.port))
            })
            .collect();
        let capacity = ctl_capacity {
            total_bytes: row.total_bytes,
            free_bytes: row.free_bytes,
            ..ctl_capacity::default()
        };
        Self {
            id: row.id,
            uuid: row.uuid,
            state: Mutex::new(StoreView {
                addresses,
                capacity,
                intent: row.state,
                class: row.class,
                ..StoreView::default()
            }),
            nfs: tokio::sync::Mutex::new(None),
            orders: AtomicU64::new(0),
        }
    }

    pub(crate) fn view(&self) -> StoreView {
        self.state.lock().clone()
    }

    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut StoreView) -> T) -> T {
        change(&mut self.state.lock())
    }

    /// Its connection, if the data server is there.
    pub(crate) fn connection(&self) -> Option<Arc<Connection>> {
        self.state.lock().connection.as_ref().filter(|connection| !connection.is_closed()).map(Arc::clone)
    }

    /// An administrator wants new files on it.
    pub(crate) fn is_active(&self) -> bool {
        self.state.lock().intent == StoreState::Active
    }

    /// It is out for good.
    pub(crate) fn is_removed(&self) -> bool {
        self.state.lock().intent == StoreState::Removed
    }

    /// Clients may be sent to it.
    pub(crate) fn serves(&self) -> bool {
        self.state.lock().serves()
    }

    /// Data that is there may be changed; whether there is room for more shows when it is written.
    pub(crate) fn takes_writes(&self) -> bool {
        self.serves() && self.state.lock().health != Some(ctl_health::HEALTH_READ_ONLY)
    }

    /// It is away, or failing, and not just restarting: others go on without it.
    pub(crate) fn given_up(&self) -> bool {
        let view = self.state.lock();
        view.lost
            || view.intent == StoreState::Removed
            || matches!(view.health, Some(ctl_health::HEALTH_FAILING | ctl_health::HEALTH_READ_ONLY))
    }

    /// Mirrors may be made equal there: whatever was fenced while it was away is durable at it.
    pub(crate) fn takes_heals(&self) -> bool {
        self.takes_writes() && self.state.lock().fences_told
    }

    /// Others may be made from what is there, which changes no more: likewise, or nobody writes there at all.
    pub(crate) fn gives(&self) -> bool {
        let frozen = self.state.lock().health == Some(ctl_health::HEALTH_READ_ONLY);
        self.takes_heals() || (frozen && self.serves())
    }

    /// New data files may be placed on it.
    pub(crate) fn takes_new(&self) -> bool {
        self.state.lock().takes_new()
    }

    pub(crate) fn class(&self) -> Option<Class> {
        self.state.lock().class
    }
}

/// The tag that a client's capabilities carry and that fences name: it tells incarnations of clients apart
/// for as long as a capability may live.
pub(crate) fn holder(client: ClientId) -> u32 {
    // Twelve bits of the boot epoch above twenty of the counter; epoch 0 is never issued, so that tags of
    // clients do not meet this server's own.
    let epoch = (client.epoch().0 % 0xfff) + 1;
    (epoch << 20) | (client.counter() & 0xf_ffff)
}

/// What a reader or writer of one data file may do.
pub(crate) fn rights(write: bool, must_exist: bool, sparse: bool) -> Rights {
    let mut rights = Rights::READ;
    if write {
        rights = rights.or(Rights::WRITE);
    }
    // Of a writer, too: what it makes anew would be zeros but for what it writes.
    if must_exist {
        rights = rights.or(Rights::MUST_EXIST);
    }
    if sparse {
        rights = rights.or(Rights::SPARSE);
    }
    rights
}

/// What a handle wants of the connection that it comes over.
pub(crate) fn wanted(protection: Protection) -> Rights {
    match protection {
        Protection::None => Rights::NONE,
        Protection::Tls => Rights::UNDER_TLS,
        Protection::Mutual => Rights::UNDER_TLS.or(Rights::CERTIFIED),
    }
}

/// The capability keys, made at the very first start, and an epoch for this one.
async fn next_epoch(env: &Env, db: &Database) -> Result<CapabilityEpochs, FsError> {
    let key = env.random.array();
    let (epochs, _) = db
        .run::<_, FsError, _>(RunLimits::default().idempotent(), |mut txn| {
            Box::pin(async move {
                let epochs = match capability_epochs(&txn).await? {
                    Some(found) => CapabilityEpochs { current: found.current + 1, ..found },
                    None => {
                        let keys = vec![CapabilityKey { id: 0, epoch: 1, key }];
                        CapabilityEpochs { current: 1, oldest: 1, keys }
                    }
                };
                put_capability_epochs(&mut txn, &epochs);
                Ok(epochs)
            })
        })
        .await?;
    Ok(epochs)
}

#[cfg(test)]
mod tests {
    use sluice_xdr::control::ctl_uuid;

    use super::*;

    fn of(device: u8) -> ctl_capacity {
        ctl_capacity {
            total_bytes: 100,
            free_bytes: 60,
            used_bytes: 40,
            files: 3,
            free_inodes: 7,
            device: ctl_uuid([device; 16]),
        }
    }

    #[test]
    fn a_device_that_data_servers_share_counts_once() {
        let sum = together([of(1), of(2), of(1)].into_iter());
        assert_eq!((sum.total_bytes, sum.free_bytes, sum.used_bytes), (200, 120, 80));
        assert_eq!((sum.files, sum.free_inodes), (6, 14));
        // Data servers that do not know their device are taken to have one each.
        assert_eq!(together([of(0), of(0)].into_iter()).total_bytes, 200);
    }

    #[test]
    fn a_device_that_a_drained_data_server_shares_has_the_free_space_that_it_has() {
        let view = |intent, device| StoreView {
            intent,
            capacity: of(device),
            health: Some(ctl_health::HEALTH_OK),
            ..StoreView::default()
        };
        let sum = |views: &[(StoreState, u8)]| {
            let sum = of_views(views.iter().map(|(intent, device)| view(*intent, *device)).collect());
            (sum.total_bytes, sum.free_bytes, sum.free_inodes)
        };
        let (active, draining) = (StoreState::Active, StoreState::Draining);
        assert_eq!(sum(&[(draining, 1), (active, 1), (active, 1)]), (100, 60, 7));
        assert_eq!(sum(&[(active, 1), (draining, 1)]), (100, 60, 7));
        assert_eq!(sum(&[(draining, 1), (draining, 1), (active, 2)]), (140, 60, 7));
        assert_eq!(sum(&[(draining, 0), (active, 0)]), (140, 60, 7));
    }
}
