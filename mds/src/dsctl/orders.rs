//! SLUICE_DATA_SERVER: what data servers are asked, each over the connection it made.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::stable_storage::{Fence, PendingFence, Protection};
use sluice_namespace::{DataFile, DataFileId, Inode, Layout, StoreId};
use sluice_rpc::{CallError, Connection, Credential};
use sluice_xdr::control::*;
use sluice_xdr::nfs4::nfsstat4;
use sluice_xdr::{Decode, Encode, Reader, Writer};

use super::StoreHandle;
use super::control::{wire_fence, wire_keys};
use super::io;
use crate::exports::protection;
use crate::metrics;
use crate::server::Mds;

pub(super) const PATIENCE: Duration = Duration::from_secs(10);
const PING: Duration = Duration::from_secs(2);

/// It is of a release that does not know the procedure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unknown;

/// Calls one procedure that the release before may not know; `None` when the data server is away or does not answer in time.
pub(super) async fn call_newer<A: Encode, R: Decode>(
    store: &StoreHandle,
    procedure: u32,
    args: &A,
    patience: Duration,
) -> Result<Option<R>, Unknown> {
    let Some(connection) = store.connection() else { return Ok(None) };
    metrics::add(&store.orders, 1);
    match call_over(&connection, procedure, args, patience).await {
        Ok(answer) => Ok(Some(answer)),
        Err(CallError::ProcUnavail) => Err(Unknown),
        Err(error) => {
            tracing::debug!(data_server = store.id.0, procedure, %error, "an order failed");
            Ok(None)
        }
    }
}

/// Calls one procedure; `None` when the data server is away or does not answer in time.
pub(super) async fn call<A: Encode, R: Decode>(
    store: &StoreHandle,
    procedure: u32,
    args: &A,
    patience: Duration,
) -> Option<R> {
    call_newer(store, procedure, args, patience).await.ok().flatten()
}

/// The same over a connection, with the reason.
pub(super) async fn call_over<A: Encode, R: Decode>(
    connection: &Connection,
    procedure: u32,
    args: &A,
    patience: Duration,
) -> Result<R, CallError> {
    let mut writer = Writer::default();
    args.encode(&mut writer);
    let frame = writer.finish()?;
    let reply = connection
        .call(SLUICE_DATA_SERVER, SLUICE_DATA_SERVER_V1, procedure, &Credential::None, frame, patience)
        .await?;
    Ok(R::decode(&mut Reader::new(reply))?)
}

/// Does it answer?
pub(super) async fn ping(store: &StoreHandle) -> bool {
    call::<_, ()>(store, DS_NULL, &(), PING).await.is_some()
}

/// Its process and clock.
pub(crate) async fn machine(store: &StoreHandle) -> Option<ctl_machine> {
    call(store, DS_MACHINE, &(), PING).await
}

/// The most that it can want of clients' connections. Nothing where it is of a release that does not know the question; `None`: it
/// has not answered.
pub(super) async fn protection(connection: &Connection) -> Option<Protection> {
    match call_over::<_, ctl_protection>(connection, DS_PROTECTION, &(), PING).await {
        // One of a later release may have more, which goes beyond these.
        Ok(told) => Some(protection::from_wire(told).unwrap_or(Protection::Mutual)),
        Err(error @ (CallError::Closed | CallError::Timeout(_))) => {
            tracing::debug!(%error, "a data server does not say what its clients can have");
            None
        }
        Err(_) => Some(Protection::None),
    }
}

/// Data files that it has, behind `after`; or in words why it does not say.
pub(crate) async fn inventory(
    store: &StoreHandle,
    after: ctl_data_file,
    limit: u32,
) -> Result<DS_INVENTORY_resok, String> {
    let id = store.id.0;
    let away = || format!("data server {id} does not answer");
    let connection = store.connection().filter(|_| !store.view().lost).ok_or_else(away)?;
    metrics::add(&store.orders, 1);
    let args = DS_INVENTORY_args { after, limit };
    match call_over(&connection, DS_INVENTORY, &args, PATIENCE).await {
        Ok(DS_INVENTORY_res::CTL_OK(found)) => Ok(found),
        Ok(DS_INVENTORY_res::Default(status)) => {
            Err(format!("data server {id} cannot list its data files ({status:?})"))
        }
        Err(CallError::ProcUnavail) => Err(format!(
            "data server {id} is of a release that does not know how to list its data files: upgrade it"
        )),
        Err(_) => Err(away()),
    }
}

/// What is there of data files, in their order.
pub(crate) async fn stats(store: &StoreHandle, files: &[ctl_data_file]) -> Option<Vec<ctl_stat>> {
    if store.view().lost {
        return None;
    }
    match call(store, DS_STAT, &DS_STAT_args { files: files.to_vec() }, PATIENCE).await? {
        DS_STAT_res::CTL_OK(stats) if stats.len() == files.len() => Some(stats),
        _ => None,
    }
}

/// Its checksums, after what is to be done about them; `None` when it does not know, or say.
pub(crate) async fn scrub(store: &StoreHandle, action: ctl_scrub_action) -> Option<ctl_scrub> {
    call(store, DS_SCRUB, &DS_SCRUB_args { action }, PATIENCE).await
}

/// What has become of fences at a data server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fenced {
    Durably,
    /// Until its process ends: it cannot write them down. Whoever counts on them keeps their rows, which it is told when
    /// it registers, before it serves anybody again.
    InMemory,
    /// No: it takes no more of them until older epochs are retired, which is asked for.
    Full,
    /// Not known to be in force.
    No,
}

impl Fenced {
    pub(super) fn in_force(self) -> bool {
        matches!(self, Self::Durably | Self::InMemory)
    }
}

/// Fences holders there.
pub(super) async fn fence(mds: &Mds, store: &StoreHandle, rows: &[PendingFence]) -> Fenced {
    match store.connection() {
        Some(connection) => {
            metrics::add(&store.orders, 1);
            fence_over(mds, store.id, &connection, rows).await
        }
        None => Fenced::No,
    }
}

/// Nobody has this tag, and no fence is of it: see [`super::registry::MDS_HOLDER`].
const NOBODY: u32 = 0;

/// Tells which epochs are over; true when it is durable there, or in force in memory. It is told again before it serves
/// anybody after a restart, and with every heartbeat.
pub(super) async fn retire(mds: &Mds, store: &StoreHandle) -> bool {
    let args = epochs_now(mds);
    match call(store, DS_EPOCH, &args, PATIENCE).await {
        Some(ctl_status::CTL_OK) => true,
        // Its device takes nothing. Keys it had to take before.
        Some(ctl_status::CTL_ERR_IO | ctl_status::CTL_ERR_NOSPC) => {
            refuses_before(mds, store, args.oldest_epoch).await
        }
        _ => false,
    }
}

fn epochs_now(mds: &Mds) -> DS_EPOCH_args {
    let epochs = mds.data_servers.epochs();
    DS_EPOCH_args {
        caller: mds.data_servers.caller(),
        capability_epoch: epochs.current,
        oldest_epoch: epochs.oldest,
        keys: wire_keys(&epochs),
    }
}

/// The same over a connection whose data server is about to be registered: what it keeps of epochs that are over makes room.
/// Nobody counts on it: one that does not do it may have room all the same, and the registration says which epochs are over.
pub(super) async fn make_room(mds: &Mds, connection: &Connection) {
    let told = call_over::<_, ctl_status>(connection, DS_EPOCH, &epochs_now(mds), PATIENCE).await;
    if !matches!(told, Ok(ctl_status::CTL_OK)) {
        tracing::debug!(data_server = %connection.peer(), ?told, "older fences may be in the way of newer ones");
    }
}

/// Whether handles of epochs before `oldest` are refused there, if only from memory. To ask needs no procedure of its own:
/// a fence of an epoch that is over is in force, whoever it is of.
async fn refuses_before(mds: &Mds, store: &StoreHandle, oldest: u32) -> bool {
    let fence = Fence::Holder { holder: NOBODY };
    let over = PendingFence { store: store.id, id: 0, fence, epoch: oldest.wrapping_sub(1) };
    let args = DS_FENCE_args { caller: mds.data_servers.caller(), fences: vec![wire_fence(&over)] };
    matches!(call(store, DS_FENCED, &args, PATIENCE).await, Some(ctl_status::CTL_OK))
}

/// The same over a connection, whose data server may be about to be registered.
pub(super) async fn fence_over(
    mds: &Mds,
    store: StoreId,
    connection: &Connection,
    rows: &[PendingFence],
) -> Fenced {
    let fences = rows.iter().map(wire_fence).collect();
    let args = DS_FENCE_args { caller: mds.data_servers.caller(), fences };
    match call_over(connection, DS_FENCE, &args, PATIENCE).await {
        Ok(ctl_status::CTL_OK) => {
            // Counted when they stay: until then they are told again and again, and are as many as they were.
            mds.data_servers.turns.kept(store, rows.len());
            Fenced::Durably
        }
        Ok(ctl_status::CTL_ERR_AGAIN) => {
            mds.data_servers.turns.full();
            Fenced::Full
        }
        // Its device takes nothing. The release before does not know the question.
        Ok(ctl_status::CTL_ERR_IO | ctl_status::CTL_ERR_NOSPC) => {
            match call_over(connection, DS_FENCED, &args, PATIENCE).await {
                Ok(ctl_status::CTL_OK) => Fenced::InMemory,
                _ => Fenced::No,
            }
        }
        _ => Fenced::No,
    }
}

/// Data files by store.
fn by_store<'a>(files: impl Iterator<Item = &'a DataFile>) -> BTreeMap<StoreId, Vec<DataFile>> {
    let mut map: BTreeMap<StoreId, Vec<DataFile>> = BTreeMap::new();
    for file in files {
        map.entry(file.store).or_default().push(*file);
    }
    map
}

pub(super) fn wire(id: DataFileId, file: &DataFile) -> ctl_data_file {
    ctl_data_file { file: id.0, slot: file.slot.into(), generation: file.generation.into() }
}

/// What the data servers see of a file.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// The greatest offset written.
    pub(crate) size: u64,
    /// Bytes stored, mirrors once.
    pub(crate) space: u64,
    /// Bytes of each data file.
    stored: BTreeMap<u16, u64>,
    /// Per data server: the newest write of any of the file's data files there, and of all.
    pub(crate) writes: BTreeMap<StoreId, (u64, u64)>,
    /// Every data server answered.
    pub(crate) complete: bool,
    /// One says that a data file which it once had is not there.
    pub(crate) lost: bool,
}

/// A data server that may know more did not say.
#[derive(Debug)]
pub(crate) enum Unseen {
    /// It may come back any moment.
    Away,
    /// It was given up, as a READ gives it up: what the others say.
    GivenUp(Observed),
}

impl Observed {
    fn add(&mut self, file: &DataFile, stat: &ctl_stat) {
        let store = file.store;
        self.lost |= file.materialised && !stat.exists;
        if stat.exists {
            self.size = self.size.max(stat.size);
            *self.stored.entry(file.slot).or_default() += stat.allocated_bytes;
        }
        let writes = self.writes.entry(store).or_insert((0, u64::MAX));
        // The earliest look at the store's count is the one that all of the file's later writes are above.
        *writes = (writes.0.max(stat.last_write), writes.1.min(stat.writes));
    }
}

/// Where the data ends as the data servers see it, what is stored, and which writes they have seen. Only those
/// are asked that may have data: of a small file, one.
///
/// # Errors
/// A data server that may know more is away.
pub(crate) async fn observe(mds: &Arc<Mds>, inode: &Inode) -> Result<Observed, Unseen> {
    observe_in(mds, inode, 0..u64::MAX).await
}

/// The same, of those alone that may have some of these bytes.
///
/// # Errors
/// As there.
pub(crate) async fn observe_in(mds: &Arc<Mds>, inode: &Inode, bytes: Range<u64>) -> Result<Observed, Unseen> {
    let Some(layout) = inode.layout() else { return Ok(Observed { complete: true, ..Observed::default() }) };
    let asked_of = || layout.in_use(inode.size()).flat_map(|component| component.columns_of(&bytes));
    let asked = by_store(asked_of().flatten());
    let alone = asked.len() == 1;
    let mut tasks = tokio::task::JoinSet::new();
    let mut answers = Vec::new();
    for (id, mut files) in asked {
        // What missed writes, or a truncation, says nothing of the file.
        files.retain(|file| !file.stale);
        // What was removed with its data nobody can ask any more.
        if files.is_empty() || mds.data_servers.is_removed(id) {
            continue;
        }
        let args = DS_STAT_args { files: files.iter().map(|file| wire(layout.id, file)).collect() };
        let Some(store) = mds.data_servers.get(id) else {
            answers.push((files, None));
            continue;
        };
        // One data server, the usual case, costs no task.
        if alone {
            answers.push((files, call(&store, DS_STAT, &args, PATIENCE).await));
        } else {
            tasks.spawn(async move { (files, call(&store, DS_STAT, &args, PATIENCE).await) });
        }
    }
    while let Some(done) = tasks.join_next().await {
        answers.push(done.map_err(|_| Unseen::Away)?);
    }
    let mut observed = Observed::default();
    let mut silent = Vec::new();
    for (files, answer) in answers {
        match answer {
            Some(DS_STAT_res::CTL_OK(stats)) if stats.len() == files.len() => {
                files.iter().zip(&stats).for_each(|(file, stat)| observed.add(file, stat));
            }
            _ => silent.extend(files),
        }
    }
    observed.complete = silent.is_empty();
    let stored = |file: &DataFile| observed.stored.get(&file.slot).copied().unwrap_or(0);
    let columns = layout.columns().map(|column| column.iter().map(stored).max().unwrap_or(0));
    observed.space = columns.fold(0, u64::saturating_add);
    if covered(asked_of(), |file| !silent.contains(file)) {
        return Ok(observed);
    }
    let told_or_hopeless = |file: &DataFile| !silent.contains(file) || io::hopeless(mds, file.store);
    Err(match covered(asked_of(), told_or_hopeless) {
        true => Unseen::GivenUp(observed),
        false => Unseen::Away,
    })
}

/// Each of these columns has a mirror of which that is true.
fn covered<'a>(mut columns: impl Iterator<Item = &'a [DataFile]>, of: impl Fn(&DataFile) -> bool) -> bool {
    columns.all(|column| column.iter().any(|file| !file.stale && of(file)))
}

/// Some of it is at no data server that may be back soon: what must change all of it fails, and does not wait.
pub(crate) fn has_hopeless(mds: &Mds, layout: &Layout) -> bool {
    // What was removed with its data is not waited for by anybody.
    let answers = |file: &DataFile| mds.data_servers.is_removed(file.store) || !io::hopeless(mds, file.store);
    !covered(layout.columns(), answers)
}

/// A data server for want of which some of it cannot be cut, nor soon: it may not be back soon, or it is here and takes no writes.
pub(crate) fn uncuttable(mds: &Mds, layout: &Layout) -> Option<StoreId> {
    // One that has only just gone, or just come, may take them in a moment.
    let may = |file: &DataFile| {
        let store = mds.data_servers.get(file.store);
        let refuses = store.is_some_and(|store| store.connection().is_some() && store.given_up());
        mds.data_servers.is_removed(file.store) || !refuses && !io::hopeless(mds, file.store)
    };
    let mut columns = layout.columns().filter(|column| !column.iter().any(|file| !file.stale && may(file)));
    columns.find_map(|column| column.iter().min_by_key(|file| file.stale).map(|file| file.store))
}

/// Of all of it some mirror is at a data server that is here and may change it: it can be cut, and without those that are not.
pub(crate) fn can_cut(mds: &Mds, layout: &Layout) -> bool {
    let here = |file: &DataFile| mds.data_servers.get(file.store).is_some_and(|store| store.takes_writes());
    covered(layout.columns(), |file| mds.data_servers.is_removed(file.store) || here(file))
}

/// An order to one store that must be carried out.
pub(super) async fn order<A: Encode>(
    mds: &Arc<Mds>,
    store: StoreId,
    procedure: u32,
    args: &A,
) -> Result<(), nfsstat4> {
    let store = to_store(mds, store)?;
    carried_out(mds, store.id, call(&store, procedure, args, PATIENCE).await)
}

/// Who an order is to.
///
/// # Errors
/// DELAY; IO where it was removed.
pub(super) fn to_store(mds: &Mds, store: StoreId) -> Result<Arc<StoreHandle>, nfsstat4> {
    let store = mds.data_servers.get(store).ok_or(nfsstat4::NFS4ERR_DELAY)?;
    if store.is_removed() { Err(nfsstat4::NFS4ERR_IO) } else { Ok(store) }
}

/// What came of an order.
pub(super) fn carried_out(mds: &Mds, store: StoreId, answer: Option<ctl_status>) -> Result<(), nfsstat4> {
    match answer {
        Some(ctl_status::CTL_OK) => {
            mds.data_servers.looks.freed();
            Ok(())
        }
        Some(ctl_status::CTL_ERR_NOSPC) => Err(nfsstat4::NFS4ERR_NOSPC),
        Some(ctl_status::CTL_ERR_NOTSUPP) => Err(nfsstat4::NFS4ERR_NOTSUPP),
        Some(ctl_status::CTL_ERR_IO) => Err(nfsstat4::NFS4ERR_IO),
        // No device of it has files that long.
        Some(ctl_status::CTL_ERR_INVAL) => Err(nfsstat4::NFS4ERR_FBIG),
        _ => Err(no_answer(mds, store)),
    }
}

/// The client comes again, unless that is of no use.
pub(super) fn no_answer(mds: &Mds, store: StoreId) -> nfsstat4 {
    if io::hopeless(mds, store) { nfsstat4::NFS4ERR_IO } else { nfsstat4::NFS4ERR_DELAY }
}

/// Whether data files can be removed from that store now, or are gone with it.
pub(crate) fn can_remove(mds: &Mds, store: StoreId) -> bool {
    mds.data_servers.get(store).is_some_and(|store| store.is_removed() || store.takes_writes())
}

/// Removes data files of deleted files; true when all of them are durably gone from that store.
pub(crate) async fn remove(mds: &Arc<Mds>, store: StoreId, files: Vec<ctl_data_file>) -> bool {
    let Some(handle) = mds.data_servers.get(store) else { return false };
    if handle.is_removed() {
        return true;
    }
    // Nothing could come of it.
    if !handle.takes_writes() {
        return false;
    }
    let args =
        DS_REMOVE_args { caller: mds.data_servers.caller(), epoch: mds.data_servers.epochs().current, files };
    let expected = args.files.len();
    match call::<_, DS_REMOVE_res>(&handle, DS_REMOVE, &args, PATIENCE).await {
        Some(done) => {
            let done_there = done.results.iter().filter(|status| **status == ctl_status::CTL_OK).count();
            // What was refused is asked again, as often as it takes, and kept once.
            mds.data_servers.turns.kept(store, done_there);
            mds.data_servers.looks.freed();
            if done.results.contains(&ctl_status::CTL_ERR_AGAIN) {
                mds.data_servers.turns.full();
            }
            done.results.len() == expected && done_there == expected
        }
        None => false,
    }
}

/// The stripe-unit pieces of `[offset, offset + length)`, each with the data files that hold it.
/// One after the other: of a file of exabytes there are more than memory holds.
pub(super) fn pieces(
    layout: &Layout,
    offset: u64,
    length: u64,
) -> impl Iterator<Item = (u64, u64, Vec<DataFile>)> {
    let end = offset.saturating_add(length);
    let mut at = offset;
    std::iter::from_fn(move || {
        let component = layout.component(at).filter(|_| at < end)?;
        let unit = component.stripe_unit.max(1);
        let boundary = (at / unit).saturating_add(1).saturating_mul(unit);
        let stop = if component.width > 1 { boundary.min(component.end) } else { component.end };
        let (from, next) = (at, stop.min(end));
        at = next;
        Some((from, next - from, component.column(from).map(<[_]>::to_vec).unwrap_or_default()))
    })
}

/// Before an order that would make a data file anew: one that was there once is lost, and what is made in its place
/// would be zeros but for what the order is about. `mirrors`: how many hold the same.
///
/// # Errors
/// IO; DELAY when another mirror may have it.
pub(super) async fn must_be_there(
    mds: &Mds,
    id: DataFileId,
    file: &DataFile,
    mirrors: usize,
) -> Result<(), nfsstat4> {
    match file.materialised {
        true => as_it_is(mds, id, file, mirrors).await.map(drop),
        false => Ok(()),
    }
}

/// The same, of one that need not ever have been there, too, and what is there of it.
///
/// # Errors
/// As there.
pub(super) async fn as_it_is(
    mds: &Mds,
    id: DataFileId,
    file: &DataFile,
    mirrors: usize,
) -> Result<ctl_stat, nfsstat4> {
    let found = match look(mds, id, file).await {
        Err(_) if !file.materialised => return Err(no_answer(mds, file.store)),
        found => found?,
    };
    match found {
        Some(found) if found.exists || !file.materialised => Ok(found),
        _ if mirrors > 1 => Err(nfsstat4::NFS4ERR_DELAY),
        _ => Err(nfsstat4::NFS4ERR_IO),
    }
}

/// Whether a data file that was there once is not there any more; that is remembered.
///
/// # Errors
/// DELAY when its data server does not say.
pub(crate) async fn is_lost(mds: &Mds, id: DataFileId, file: &DataFile) -> Result<bool, nfsstat4> {
    Ok(look(mds, id, file).await?.is_none_or(|found| !found.exists))
}

/// What is there of a data file; `None` where its data server was removed.
async fn look(mds: &Mds, id: DataFileId, file: &DataFile) -> Result<Option<ctl_stat>, nfsstat4> {
    if mds.data_servers.is_removed(file.store) {
        return Ok(None);
    }
    let found = super::resync::stat(mds, id, file).await.ok_or(nfsstat4::NFS4ERR_DELAY)?;
    if file.materialised
        && !found.exists
        && let Some(store) = mds.data_servers.get(file.store)
    {
        store.lacks(id, file.slot);
    }
    Ok(Some(found))
}
