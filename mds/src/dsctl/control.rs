//! SLUICE_CONTROL: what data servers call. xdr/spec/control.x.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use sluice_env::BoxFuture;
use sluice_namespace::stable_storage::{
    CapabilityEpochs, CapabilityKey, Fence, PendingFence, StoreAddress, StoreState, clear_fence, fences,
    put_store, store_by_uuid,
};
use sluice_namespace::{DataFileId, FsError, StoreId};
use sluice_rpc::{Call, Connection, Frame, Program, Reply};
use sluice_xdr::control::*;
use sluice_xdr::{Decode, Encode, Reader, Writer};

use super::StoreHandle;
use super::orders::Fenced;
use crate::layout::drain;
use crate::layout::settle::{self, End};
use crate::metrics;
use crate::server::Mds;

/// New data files recorded in one transaction.
const MATERIALISED_BATCH: usize = 64;

/// Nanoseconds after which one that is refused for the same reason again is worth a line again.
const REFUSED_AGAIN: u64 = 600 * 1_000_000_000;

/// Versions of the control protocol that this server speaks.
const SPOKEN: ctl_versions = ctl_versions { oldest: CTL_PROTOCOL_OLDEST, newest: CTL_PROTOCOL };

/// What a data server is told of a metadata store that does not answer.
const STORE_AWAY: &[u8] = b"the metadata store is away";

/// What one is told that has more fences to keep than it can.
const NO_ROOM: &str =
    "it has no room for more fences: layouts are recalled and older fences given up, then it is let in";

/// The same of one that has not taken them.
const UNFENCED: &str = "it has not made durable which clients it is to refuse: does its device take writes?";

/// What one is told that is out for good.
const REMOVED: &str =
    "its store was removed from this installation: make it anew, in an empty directory, with `sluice ds add`";

/// What becomes of a data server that wants to register.
enum Admission {
    Known(Arc<StoreHandle>, Vec<PendingFence>),
    /// It is out for good, as its row says.
    Removed,
    /// Another live data server has its store.
    Duplicate,
    /// It cannot tell our handles from those that are over.
    FarAhead,
    /// It does not say what connections of its clients can be protected by.
    Unasked,
    /// It has not made all fences durable that it must know before it serves. Why, for itself and for people.
    Unfenced(&'static str),
}

/// The fences of a store that wants to register.
enum Pending {
    /// Those that the registration carries; it has the others.
    Rest(Vec<PendingFence>),
    /// Why it does not have them.
    Untold(&'static str),
}

/// The control program as data servers reach it.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) mds: Arc<Mds>,
}

impl Program for Control {
    fn number(&self) -> u32 {
        SLUICE_CONTROL
    }

    fn versions(&self) -> RangeInclusive<u32> {
        SLUICE_CONTROL_V1..=SLUICE_CONTROL_V1
    }

    fn call<'a>(&'a self, call: Call) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            if !matches!(call.procedure, CONTROL_NULL | CONTROL_HEARTBEAT) {
                metrics::add(&self.mds.metrics.reports, 1);
            }
            let db = &self.mds.db;
            if db.is_ours() {
                let reply = self.dispatch(&call).await;
                // A server that was stopped for a while may have been replaced meanwhile.
                if db.is_ours() {
                    return reply;
                }
            }
            // There may be another server that has the store by now: the data server is to look for it.
            tracing::debug!(data_server = %call.connection.peer(), "sent away: another server may have the store");
            call.connection.close();
            Reply::Drop
        })
    }

    fn reply_bound(&self, _version: u32, procedure: u32, _args: &Bytes) -> usize {
        match procedure {
            CONTROL_REGISTER => 256 << 10,
            CONTROL_HISTORY | CONTROL_TIDE => 2 << 10,
            _ => 256,
        }
    }
}

/// Decodes, runs, encodes.
async fn answer<A: Decode, R: Encode, F: Future<Output = R>>(call: &Call, run: impl FnOnce(A) -> F) -> Reply {
    let mut reader = Reader::new(call.args.clone());
    let Ok(args) = A::decode(&mut reader) else { return Reply::GarbageArgs };
    if reader.finish().is_err() {
        return Reply::GarbageArgs;
    }
    let mut writer = Writer::default();
    run(args).await.encode(&mut writer);
    writer.finish().map_or(Reply::SystemErr, Reply::Success)
}

impl Control {
    async fn dispatch(&self, call: &Call) -> Reply {
        match call.procedure {
            CONTROL_NULL => Reply::Success(Frame::default()),
            CONTROL_HISTORY => answer(call, |args| self.history(args, &call.connection)).await,
            CONTROL_TIDE => answer(call, |args| self.tide(args, &call.connection)).await,
            CONTROL_REGISTER => answer(call, |args| self.register(args, &call.connection)).await,
            CONTROL_HEARTBEAT => answer(call, |args| self.heartbeat(args, &call.connection)).await,
            CONTROL_MATERIALISED => answer(call, |args| self.materialised(args, &call.connection)).await,
            CONTROL_LOGICAL_SIZE => answer(call, |args| self.logical_size(args)).await,
            CONTROL_DAMAGED => answer(call, async |args| self.damaged(&args, &call.connection)).await,
            CONTROL_VERSIONS => answer(call, async |_: ctl_versions| SPOKEN).await,
            _ => Reply::ProcUnavail,
        }
    }

    /// Tells people that a data server is not let in; the words for itself.
    fn refuse(&self, store: &ctl_uuid, connection: &Connection, why: &str) -> Bytes {
        let (servers, peer, now) = (&self.mds.data_servers, connection.peer(), self.mds.now());
        let from = (peer.ip(), store.0);
        let before = servers.refused.lock().get(&from).cloned();
        // It goes on asking, every few seconds.
        if before.is_none_or(|before| before.reason != why || now.since(before.last) > REFUSED_AGAIN) {
            tracing::warn!(data_server = %peer, %why, "a data server was refused");
        }
        servers.refuse(from, why, now);
        Bytes::copy_from_slice(why.as_bytes())
    }

    async fn history(&self, args: HISTORY_args, connection: &Arc<Connection>) -> HISTORY_res {
        match super::history::judge(&self.mds, &args).await {
            Ok(None) => HISTORY_res::CTL_OK,
            Ok(Some(why)) => {
                HISTORY_res::Default(ctl_status::CTL_ERR_INVAL, self.refuse(&args.store, connection, &why))
            }
            Err(error) => {
                tracing::error!(%error, "cannot compare the metadata with what a data server remembers");
                HISTORY_res::Default(ctl_status::CTL_ERR_AGAIN, Bytes::from_static(STORE_AWAY))
            }
        }
    }

    async fn tide(&self, args: TIDE_args, connection: &Arc<Connection>) -> TIDE_res {
        match super::tide::judge(&self.mds, &args, connection).await {
            Ok(Ok(newest)) => TIDE_res::CTL_OK(newest),
            Ok(Err(why)) => {
                TIDE_res::Default(ctl_status::CTL_ERR_INVAL, self.refuse(&args.store, connection, &why))
            }
            Err(error) => {
                tracing::error!(%error, "cannot tell whether a data server has an older copy of its store");
                TIDE_res::Default(ctl_status::CTL_ERR_AGAIN, Bytes::from_static(STORE_AWAY))
            }
        }
    }

    async fn register(&self, args: REGISTER_args, connection: &Arc<Connection>) -> REGISTER_res {
        let refuse = |status: ctl_status, why: &str| {
            REGISTER_res::Default(status, self.refuse(&args.store, connection, why))
        };
        if !(SPOKEN.oldest..=SPOKEN.newest).contains(&args.protocol) {
            let why = format!(
                "it speaks version {} of the control protocol, the metadata server {} to {}: upgrade the older one",
                args.protocol, SPOKEN.oldest, SPOKEN.newest
            );
            return refuse(ctl_status::CTL_ERR_VERSION, &why);
        }
        let cluster = self.mds.namespace.superblock().uuid;
        if args.cluster.0 != [0; 16] && args.cluster.0 != cluster {
            return refuse(ctl_status::CTL_ERR_FOREIGN_STORE, "its store belongs to another cluster");
        }
        if self.mds.data_servers.known().iter().any(|store| store.uuid == args.store.0 && store.is_removed())
        {
            return refuse(ctl_status::CTL_ERR_FOREIGN_STORE, REMOVED);
        }
        let barred = || self.mds.data_servers.refuses(&args.store.0);
        if let Some(why) = barred() {
            return refuse(ctl_status::CTL_ERR_INVAL, &why);
        }
        let addresses = addresses(&args, connection);
        if addresses.is_empty() {
            return refuse(ctl_status::CTL_ERR_INVAL, "it gives no usable address for clients");
        }
        // One that is new has nothing to tell.
        let was_known = self.mds.data_servers.known().iter().any(|store| store.uuid == args.store.0);
        match self.admit(&args, addresses, connection).await {
            Ok(Admission::Known(store, pending)) => {
                // Another one may have shown meanwhile that nobody is to be let in.
                if let Some(why) = barred() {
                    connection.close();
                    return refuse(ctl_status::CTL_ERR_INVAL, &why);
                }
                // One of a release that does not tell HISTORY.
                if was_known {
                    self.mds.data_servers.histories.bear_out();
                }
                self.welcome(&store, &args);
                self.grant(&store, &pending)
            }
            Ok(Admission::Removed) => refuse(ctl_status::CTL_ERR_FOREIGN_STORE, REMOVED),
            Ok(Admission::Duplicate) => refuse(
                ctl_status::CTL_ERR_DUPLICATE,
                "its store is registered from another live data server: are there two on one directory, or on a copy of it?",
            ),
            Ok(Admission::FarAhead) => refuse(
                ctl_status::CTL_ERR_INVAL,
                "it knows of far newer metadata than these: were they loaded from a very old dump?",
            ),
            Ok(Admission::Unasked) => {
                refuse(ctl_status::CTL_ERR_AGAIN, "it does not say how its clients can be protected")
            }
            Ok(Admission::Unfenced(why)) => refuse(ctl_status::CTL_ERR_AGAIN, why),
            Err(error) => {
                tracing::error!(%error, "cannot register a data server");
                REGISTER_res::Default(ctl_status::CTL_ERR_AGAIN, Bytes::from_static(STORE_AWAY))
            }
        }
    }

    /// Makes the store known, durably first.
    async fn admit(
        &self,
        args: &REGISTER_args,
        addresses: Vec<SocketAddr>,
        connection: &Arc<Connection>,
    ) -> Result<Admission, FsError> {
        // Of an epoch the low 16 bits count, as in the filehandle.
        if !super::epochs::overtake(&self.mds, args.newest_epoch as u16).await? {
            return Ok(Admission::FarAhead);
        }
        let listed: Vec<StoreAddress> = addresses
            .iter()
            .map(|address| StoreAddress { host: address.ip().to_string().into(), port: address.port() })
            .collect();
        let (listed, uuid, capacity) = (&listed, &args.store.0, &args.capacity);
        let (row, _) = self
            .mds
            .write(|mut txn| {
                Box::pin(async move {
                    let mut row = store_by_uuid(&mut txn, uuid).await?;
                    if row.state == StoreState::Removed {
                        return Ok(row);
                    }
                    row.addresses.clone_from(listed);
                    (row.total_bytes, row.free_bytes) = (capacity.total_bytes, capacity.free_bytes);
                    put_store(&mut txn, &row);
                    Ok(row)
                })
            })
            .await?;
        let store = self.mds.data_servers.enter(&row);
        // By a transaction whose end nobody was told: its fences went with it.
        if row.state == StoreState::Removed {
            drain::change::forget(&self.mds, &store).await;
            return Ok(Admission::Removed);
        }
        if store.connection().is_some_and(|other| other.id() != connection.id()) {
            // The same process may have lost its connection without our noticing: only one that answers is live.
            if super::orders::ping(&store).await {
                return Ok(Admission::Duplicate);
            }
        }
        let process = args.incarnation.0;
        if store.view().process.is_some_and(|before| before != process) {
            super::epochs::restarted(&self.mds).await?;
        }
        let Some(protection) = super::orders::protection(connection).await else {
            return Ok(Admission::Unasked);
        };
        let now = self.mds.now();
        store.update(|view| {
            view.protection = protection;
            // Linux does without a device for two minutes after it could not connect; to one of another name it goes.
            let another = view.process.replace(process) != Some(process);
            if view.addresses != addresses || another || view.lost {
                view.device_generation = view.device_generation.wrapping_add(1);
            }
            view.addresses = addresses;
            view.capacity = args.capacity;
            view.version = Bytes::copy_from_slice(&args.version);
            view.health = Some(ctl_health::HEALTH_OK);
            view.last_heard = now;
            view.mute = false;
            // Somebody may have brought them back.
            view.missing.clear();
            view.refusing.clear();
            view.unreadable.clear();
            view.news += 1;
        });
        *store.nfs.lock().await = None;
        self.mds.reports.forget(row.id);
        let pending = match self.pending(row.id, connection).await? {
            Pending::Rest(pending) => pending,
            Pending::Untold(why) => return Ok(Admission::Unfenced(why)),
        };
        // Orders flow only after the fences are on their way: the reply carries them.
        let is_removed = store.update(|view| {
            let is_removed = view.intent == StoreState::Removed;
            if !is_removed {
                view.connection = Some(Arc::clone(connection));
                view.lost = false;
                view.fences_told = false;
            }
            is_removed
        });
        Ok(if is_removed { Admission::Removed } else { Admission::Known(store, pending) })
    }

    /// The fences that the registration carries. When there are more than it can, the data server makes the
    /// others durable first: it must not serve before it has heard of all. What is against handles of epochs that are over
    /// only, it need not hear of: the registration says which these are, and it refuses them from then on.
    async fn pending(&self, id: StoreId, connection: &Connection) -> Result<Pending, FsError> {
        let most = CTL_FENCES_MAX as usize;
        let (mut after, mut has_room) = (None, false);
        loop {
            let page =
                self.mds.read(|txn| Box::pin(async move { fences(&txn, id, after, most).await })).await?;
            let is_last = page.len() < most;
            after = page.last().map(|fence| fence.id);
            let oldest = self.mds.data_servers.epochs().oldest;
            let (rows, over): (Vec<_>, Vec<_>) = page.into_iter().partition(|fence| fence.epoch >= oldest);
            if !over.is_empty() {
                forget_fences(&self.mds, &over).await?;
            }
            if is_last {
                return Ok(Pending::Rest(rows));
            }
            if rows.is_empty() {
                continue;
            }
            if !has_room {
                super::orders::make_room(&self.mds, connection).await;
                has_room = true;
            }
            match super::orders::fence_over(&self.mds, id, connection, &rows).await {
                Fenced::Durably => forget_fences(&self.mds, &rows).await?,
                Fenced::InMemory => {}
                Fenced::Full => return Ok(Pending::Untold(NO_ROOM)),
                Fenced::No => return Ok(Pending::Untold(UNFENCED)),
            }
        }
    }

    fn welcome(&self, store: &StoreHandle, args: &REGISTER_args) {
        let view = store.view();
        let where_: Vec<String> = view.addresses.iter().map(ToString::to_string).collect();
        tracing::info!(
            data_server = store.id.0,
            address = where_.join(","),
            version = %String::from_utf8_lossy(&args.version),
            protocol = args.protocol,
            capacity_gib = args.capacity.total_bytes >> 30,
            "data server registered"
        );
        self.warn_of_twins(store.id, &view.addresses);
        crate::layout::garbage::poke(&self.mds);
    }

    /// Two at one address: clients reach one of them with the handles of both.
    fn warn_of_twins(&self, id: StoreId, addresses: &[SocketAddr]) {
        for other in self.mds.data_servers.all() {
            let view = other.view();
            let shared = view.addresses.iter().find(|address| addresses.contains(address));
            if let Some(address) = shared.filter(|_| other.id != id && other.connection().is_some()) {
                tracing::warn!(
                    %address,
                    data_server = id.0,
                    other = other.id.0,
                    "two data servers tell clients the same address, and one of them is not reached: give each its own (listen, advertise)"
                );
            }
        }
    }

    fn grant(&self, store: &StoreHandle, pending: &[PendingFence]) -> REGISTER_res {
        let config = &self.mds.config;
        let epochs = self.mds.data_servers.epochs();
        let millis = |d: std::time::Duration| u32::try_from(d.as_millis()).unwrap_or(u32::MAX);
        REGISTER_res::CTL_OK(REGISTER_resok {
            cluster: ctl_uuid(self.mds.namespace.superblock().uuid),
            mds_epoch: self.mds.data_servers.mds_epoch(),
            store_id: store.id.0.into(),
            capability_epoch: epochs.current,
            oldest_epoch: epochs.oldest.max(store.view().from_epoch),
            keys: wire_keys(&epochs),
            fences: pending
                .iter()
                .chain(&super::fence::of_predecessors(&self.mds, store.id))
                .map(wire_fence)
                .collect(),
            heartbeat_ms: millis(config.heartbeat),
            isolation_ms: millis(config.isolation),
        })
    }

    async fn heartbeat(&self, args: HEARTBEAT_args, connection: &Arc<Connection>) -> HEARTBEAT_res {
        if args.mds_epoch != self.mds.data_servers.mds_epoch() {
            return HEARTBEAT_res::Default(ctl_status::CTL_ERR_EPOCH);
        }
        let Some(store) = self.store_on(connection) else {
            return HEARTBEAT_res::Default(ctl_status::CTL_ERR_NOT_REGISTERED);
        };
        // It was given up and its files' layouts recalled: it must hear of the fences made meanwhile first.
        if store.view().lost {
            return HEARTBEAT_res::Default(ctl_status::CTL_ERR_NOT_REGISTERED);
        }
        let now = self.mds.now();
        let (before, after) = store.update(|view| {
            let before = view.health.replace(args.health);
            view.capacity = args.capacity;
            view.counters = args.counters;
            view.detail = String::from_utf8_lossy(&args.detail).into_owned();
            view.last_heard = now;
            view.mute = false;
            (before, args.health)
        });
        if before != Some(after) {
            tracing::warn!(data_server = store.id.0, health = ?after, detail = %store.view().detail, "data server health changed");
        }
        self.acknowledge_fences(&store).await;
        let epochs = self.mds.data_servers.epochs();
        HEARTBEAT_res::CTL_OK(HEARTBEAT_resok {
            capability_epoch: epochs.current,
            oldest_epoch: epochs.oldest,
        })
    }

    /// A heartbeat under our epoch means that the fences of the registration are durable at the data server:
    /// it makes them so before anything else. Their rows may go.
    async fn acknowledge_fences(&self, store: &StoreHandle) {
        super::fence::registered(&self.mds, store).await;
    }

    /// The store that was registered over this connection.
    fn store_on(&self, connection: &Connection) -> Option<Arc<StoreHandle>> {
        let mut all = self.mds.data_servers.all().into_iter();
        all.find(|store| store.connection().is_some_and(|known| known.id() == connection.id()))
    }

    fn damaged(&self, args: &DAMAGED_args, connection: &Connection) -> ctl_status {
        match self.store_on(connection) {
            Some(store) => super::damage::told(&self.mds, &store, args),
            None => ctl_status::CTL_ERR_NOT_REGISTERED,
        }
    }

    async fn materialised(&self, args: MATERIALISED_args, connection: &Connection) -> ctl_status {
        let Some(store) = self.store_on(connection) else { return ctl_status::CTL_ERR_NOT_REGISTERED };
        let mut files = Vec::with_capacity(args.files.len());
        for file in &args.files {
            let (Ok(slot), Ok(generation)) = (u16::try_from(file.slot), u16::try_from(file.generation))
            else {
                return ctl_status::CTL_ERR_INVAL;
            };
            files.push((DataFileId(file.file), (slot, generation)));
        }
        for batch in files.chunks(MATERIALISED_BATCH) {
            if let Err(error) = self.mark_materialised(store.id, batch).await {
                tracing::error!(%error, "cannot record that data files exist");
                return ctl_status::CTL_ERR_AGAIN;
            }
        }
        ctl_status::CTL_OK
    }

    async fn mark_materialised(
        &self,
        store: StoreId,
        batch: &[(DataFileId, (u16, u16))],
    ) -> Result<(), FsError> {
        let namespace = &self.mds.namespace;
        self.mds
            .write(|mut txn| {
                Box::pin(async move {
                    for (id, slot) in batch {
                        match namespace.materialised(&mut txn, (store, *id), &[*slot]).await {
                            // Its file went meanwhile.
                            Ok(()) | Err(FsError::Stale) => {}
                            Err(error) => return Err(error),
                        }
                    }
                    Ok(())
                })
            })
            .await?;
        Ok(())
    }

    async fn logical_size(&self, args: LOGICAL_SIZE_args) -> LOGICAL_SIZE_res {
        match settle::logical_size(&self.mds, DataFileId(args.file)).await {
            Ok(Some(End::At(size))) => LOGICAL_SIZE_res::CTL_OK(size),
            Ok(Some(End::Behind(known))) => LOGICAL_SIZE_res::CTL_ERR_END(known),
            Ok(None) => LOGICAL_SIZE_res::Default(ctl_status::CTL_ERR_NOENT),
            Err(error) => {
                tracing::debug!(%error, "a logical size is not to be had now");
                LOGICAL_SIZE_res::Default(ctl_status::CTL_ERR_AGAIN)
            }
        }
    }
}

/// Where clients reach it: what it says, or, for an unspecified address, where it came from.
fn addresses(args: &REGISTER_args, connection: &Connection) -> Vec<SocketAddr> {
    args.addresses
        .iter()
        .filter_map(|address| {
            let host: std::net::IpAddr = std::str::from_utf8(&address.host).ok()?.parse().ok()?;
            let host = if host.is_unspecified() { connection.peer().ip() } else { host };
            let port = u16::try_from(address.port).ok().filter(|port| *port != 0)?;
            Some(SocketAddr::new(host, port))
        })
        .collect()
}

/// The keys as a data server is told.
pub(super) fn wire_keys(epochs: &CapabilityEpochs) -> Vec<ctl_capability_key> {
    let wire = |key: &CapabilityKey| ctl_capability_key { id: key.id.into(), epoch: key.epoch, key: key.key };
    epochs.keys.iter().map(wire).collect()
}

/// A fence as a data server is told.
pub(super) fn wire_fence(pending: &PendingFence) -> ctl_fence {
    let file = |file: DataFileId, slot: u16, generation: u16| ctl_data_file {
        file: file.0,
        slot: slot.into(),
        generation: generation.into(),
    };
    let (kind, holder, target) = match pending.fence {
        Fence::Holder { holder } => (ctl_fence_kind::FENCE_HOLDER, holder, file(DataFileId(0), 0, 0)),
        Fence::HolderFile { holder, file: id } => (ctl_fence_kind::FENCE_HOLDER_FILE, holder, file(id, 0, 0)),
        Fence::Generation { file: id, slot, generation } => {
            (ctl_fence_kind::FENCE_GENERATION, 0, file(id, slot, generation))
        }
    };
    ctl_fence { kind, holder, target, epoch: pending.epoch }
}

/// Drops the rows of fences that a store has made durable.
///
/// # Errors
/// What the metadata store says.
pub(super) async fn forget_fences(mds: &Mds, done: &[PendingFence]) -> Result<(), FsError> {
    mds.write(|mut txn| {
        Box::pin(async move {
            done.iter().for_each(|fence| clear_fence(&mut txn, fence.store, fence.id));
            Ok(())
        })
    })
    .await?;
    Ok(())
}
