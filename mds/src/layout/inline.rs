//! Files that are kept in the metadata (docs/adr/0020): when they get data files after all, and copies from
//! one to another. Reading and writing them is a transaction each (`ops/read.rs`, `ops/write.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use sluice_kv::{Room, Transaction};
use sluice_namespace::{
    DirectoryUpdate, FileId, FsError, Inline, Inode, InodeKey, Layout, LayoutPolicy, MAX_INLINE, Namespace,
    Request, StoreId,
};
use sluice_xdr::nfs4::nfsstat4;
use tokio::sync::oneshot;

use super::{Placed, garbage};
use crate::compound::OpError;
use crate::copies::Made;
use crate::copies::step::Commit;
use crate::dsctl;
use crate::error::fs_status;
use crate::quota::room;
use crate::server::Mds;

/// How often a file may change while it is promoted, before the client is told to come again.
const TRIES: u32 = 5;
/// Bytes that a client may write to one inline file, all in all, before it asks for a layout: a file that is
/// written over and over is better off at a data server.
const WRITTEN: u64 = 1 << 20;

/// Between two looks at the store's device.
const LOOK: Duration = Duration::from_secs(2);
/// Of the store's device, one part in so many is for names and attributes alone, but no more than this.
const FOR_NAMES: u64 = 10;
const MOST_FOR_NAMES: u64 = 64 << 30;

/// Of the device one part in so many, within these bounds, is for what has to go on: removing, giving back, and what this
/// server writes for itself. An engine that merges needs room before it gives any back: for its journals, for what it has in
/// memory, and for the tables that it makes of others before those go. Of a small device a third.
const FOR_REMOVALS: u64 = 20;
const BOUNDS_FOR_REMOVALS: (u64, u64) = (640 << 20, 1 << 30);
const MOST_FOR_REMOVALS: u64 = 3;

/// Runs for the life of the server: a store whose device is full answers nothing any more, and data servers have room of
/// their own.
pub(crate) async fn watch_room(mds: Arc<Mds>) {
    loop {
        let device = mds.db.room();
        if device.is_some_and(is_at_its_end) && mds.reading.end_all() {
            tracing::warn!(
                "the metadata's device fills up: a backup or check that was under way is ended, as it kept what changed since it began"
            );
        }
        let names = device.is_none_or(has_room_for_names);
        if mds.room_for_names.swap(names, Ordering::Relaxed) != names {
            if names {
                tracing::info!("there is room for new names on the metadata's device again");
            } else {
                tracing::error!(
                    "the metadata's device is all but full: nothing new is made there, and what is there can be removed"
                );
            }
        }
        let room = device.is_none_or(has_room);
        if mds.room_for_data.swap(room, Ordering::Relaxed) != room {
            if room {
                tracing::info!("there is room on the metadata's device again: small files are kept there");
            } else {
                tracing::warn!(
                    "the metadata's device is nearly full: what small files take more goes to data servers"
                );
            }
        }
        mds.env.clock.sleep(LOOK).await;
    }
}

fn has_room(device: Room) -> bool {
    device.free >= for_names(device)
}

/// Of what is for names three quarters are gone: whoever reads an older version of the store keeps all that was replaced since.
fn is_at_its_end(device: Room) -> bool {
    let removals = for_removals(device);
    device.free < removals + (for_names(device) - removals) / 4
}

/// With what is for removals, which is half of it at most.
fn for_names(device: Room) -> u64 {
    (device.total / FOR_NAMES).min(MOST_FOR_NAMES).max(2 * for_removals(device))
}

fn for_removals(device: Room) -> u64 {
    let (least, most) = BOUNDS_FOR_REMOVALS;
    (device.total / FOR_REMOVALS).clamp(least, most).min(device.total / MOST_FOR_REMOVALS)
}

fn has_room_for_names(device: Room) -> bool {
    device.free >= for_removals(device)
}

/// Before something new is made, or something gets a longer attribute.
///
/// # Errors
/// NOSPC.
pub(crate) fn room_for_names(mds: &Mds) -> Result<(), nfsstat4> {
    if mds.room_for_names.load(Ordering::Relaxed) { Ok(()) } else { Err(nfsstat4::NFS4ERR_NOSPC) }
}

/// Whether a file that is inline may stay so with this size.
pub(crate) fn stays(mds: &Mds, inode: &Inode, size: u64) -> bool {
    let holds = inode.inline().is_some_and(|inline| inline.holds(size));
    holds && (size <= inode.size() || mds.room_for_data.load(Ordering::Relaxed))
}

/// What a new file of this size begins as under the policy, if it begins inline.
pub(crate) fn begins(mds: &Mds, policy: &LayoutPolicy, size: u64) -> Option<Inline> {
    let inline = policy.inline_file().filter(|inline| inline.holds(size));
    inline.filter(|_| mds.room_for_data.load(Ordering::Relaxed))
}

/// For `mdsthreshold`: up to which size a client leaves the data to this server, and how much it writes so.
pub(crate) fn thresholds(inline: Inline) -> (u64, u64) {
    (u64::from(inline.limit) + 1, WRITTEN)
}

/// Sees to it that the file is not inline any more. A file that others write to meanwhile is read again: what
/// is promoted is the file as of the transaction. A crash leaves data files that are in the garbage queue, or
/// a file that is promoted.
///
/// # Errors
/// NOSPC or DELAY when there is no place for its data; what the data servers and the store say.
pub(crate) async fn promote(mds: &Arc<Mds>, key: InodeKey) -> Result<(), nfsstat4> {
    let (done, outcome) = oneshot::channel();
    let own = Arc::clone(mds);
    // Whoever asked may go away; data files on their way into a file must not.
    mds.spawn(async move {
        let _nobody_waits = done.send(carry_out(&own, key).await);
    });
    outcome.await.unwrap_or(Err(nfsstat4::NFS4ERR_DELAY))
}

/// Files that are being promoted: who finds one here waits for its turn, and finds it done. Many writers outgrow a limit at
/// once, and each would make data files of its own, of which one's are taken.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<BTreeMap<FileId, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    fn of(&self, file: FileId) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(self.0.lock().entry(file).or_default())
    }

    /// After a turn: whoever waits has the lock, too.
    fn over(&self, file: FileId, turn: Arc<tokio::sync::Mutex<()>>) {
        let mut all = self.0.lock();
        drop(turn);
        if all.get(&file).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            all.remove(&file);
        }
    }
}

async fn carry_out(mds: &Arc<Mds>, key: InodeKey) -> Result<(), nfsstat4> {
    let turn = mds.promoting.of(key.fileid);
    let mine = turn.lock().await;
    let outcome = in_turn(mds, key).await;
    drop(mine);
    mds.promoting.over(key.fileid, turn);
    outcome
}

async fn in_turn(mds: &Arc<Mds>, key: InodeKey) -> Result<(), nfsstat4> {
    let (mut changes, mut refusals) = (0, Refusals::new());
    while changes < TRIES {
        let namespace = &mds.namespace;
        let found = mds
            .read(|txn| {
                Box::pin(async move { namespace.read_inline(&txn, &key, 0, MAX_INLINE.into()).await })
            })
            .await
            .map_err(|error| fs_status(&error))?;
        let (Some(inline), Some(data)) = (found.inode.inline(), found.data) else { return Ok(()) };
        let policy = super::classes::of_file(mds, inline.policy());
        let refused = |store| refusals.contains_key(&store);
        let placed = super::place_beside(mds, &policy, true, refused).await;
        let Placed { mut layout, placing } = placed.map_err(|status| without_place(status, &refusals))?;
        let making = match data.is_empty() {
            true => None,
            false => match made(mds, key, &mut layout, data).await {
                Ok(making) => Some(making),
                Err(Unmade::Refused(store, status)) => {
                    // Full, or failing, and no heartbeat has said so yet: others may take it.
                    tracing::debug!(data_server = store.0, %status, "does not take what a small file has");
                    refusals.insert(store, status);
                    continue;
                }
                Err(Unmade::Otherwise(status)) => return Err(status),
            },
        };
        let taken = take(mds, &found.inode, &layout).await;
        drop(placing);
        match taken {
            Ok(_) => return Ok(()),
            // It has changed since it was read.
            Err(FsError::Busy) => changes += 1,
            Err(error) => {
                if let Some(making) = making.filter(|_| error.maybe_committed()) {
                    making.keep();
                }
                return Err(fs_status(&error));
            }
        }
        drop(making);
        garbage::poke_rows(mds);
    }
    Err(nfsstat4::NFS4ERR_DELAY)
}

/// What data servers said that did not take what a file has.
type Refusals = BTreeMap<StoreId, nfsstat4>;

/// What whoever asked is told where there is no place beside those that refused: that there is no room, if that was why they
/// all did.
fn without_place(status: nfsstat4, refusals: &Refusals) -> nfsstat4 {
    let failure = refusals.values().find(|refusal| **refusal != nfsstat4::NFS4ERR_NOSPC);
    match failure {
        Some(failure) if status == nfsstat4::NFS4ERR_NOSPC => *failure,
        _ => status,
    }
}

/// Why there are no data files.
enum Unmade {
    /// This data server does not take them; another one may.
    Refused(StoreId, nfsstat4),
    Otherwise(nfsstat4),
}

/// Data files with these bytes, durable; garbage until a file takes them, which is written down before they are
/// made.
async fn made(mds: &Arc<Mds>, key: InodeKey, layout: &mut Layout, data: Bytes) -> Result<Made, Unmade> {
    let (making, namespace, fresh) = (mds.copies.make(layout.id), &mds.namespace, &*layout);
    mds.write(|mut txn| {
        Box::pin(async move {
            namespace.promise_garbage(&mut txn, &key, fresh);
            Ok(())
        })
    })
    .await
    .map_err(|error| Unmade::Otherwise(fs_status(&error)))?;
    let size = u64::try_from(data.len()).unwrap_or(u64::MAX);
    let written = dsctl::write_new(mds, fresh, &data).await;
    if let Err((store, status)) = written {
        drop(making);
        garbage::poke_rows(mds);
        return Err(match status {
            nfsstat4::NFS4ERR_IO | nfsstat4::NFS4ERR_NOSPC | nfsstat4::NFS4ERR_ROFS => {
                Unmade::Refused(store, status)
            }
            _ => Unmade::Otherwise(status),
        });
    }
    written_to(layout, size);
    Ok(making)
}

/// The data files that have the bytes below `size`.
fn written_to(layout: &mut Layout, size: u64) {
    for component in layout.components.iter_mut().filter(|component| component.start < size) {
        component.handed_out = true;
        let (begin, end) = (component.start, component.end.min(size));
        let units = (end - begin).div_ceil(component.stripe_unit.max(1));
        let columns = usize::try_from(units.min(component.width.into())).unwrap_or(0);
        let files = columns * usize::from(component.mirrors);
        component.slots.iter_mut().take(files).for_each(|file| file.materialised = true);
    }
}

async fn take(mds: &Arc<Mds>, seen: &Inode, layout: &Layout) -> Result<Inode, FsError> {
    let namespace = &mds.namespace;
    // Data files of which nobody knows whose they are would have to stay until the next start.
    let taken = mds
        .write_known(Namespace::witness_of_taking(layout), |mut txn| {
            Box::pin(async move { namespace.promote(&mut txn, &seen.key, seen, layout).await })
        })
        .await;
    taken.map(|(inode, _)| inode)
}

/// A range of one file to another, or within one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) source: InodeKey,
    pub(crate) source_offset: u64,
    pub(crate) target: InodeKey,
    pub(crate) offset: u64,
    /// Bytes wanted; beyond the end of the source there are none.
    pub(crate) length: u64,
}

/// Copies in one transaction if both files are inline and the target stays so: how many bytes. `None`: the two
/// are to be promoted. The caller holds what a READ of the one and a WRITE of the other hold.
///
/// # Errors
/// What the quota and the store say.
pub(crate) async fn copy(mds: &Arc<Mds>, range: &Range, commit: &Commit<'_>) -> Result<Option<u64>, OpError> {
    let namespace = &mds.namespace;
    let Some(target) = fitting(mds, range).await? else { return Ok(None) };
    let end = range.offset.saturating_add(range.length);
    let _room = room::to_grow(mds, commit.who(), &target, end).await.map_err(|error| fs_status(&error))?;
    let (copied, _) = match commit {
        Commit::Operation(cx, answer) => {
            let cx = *cx;
            cx.write(|mut txn| {
                Box::pin(async move {
                    let request = cx.request(DirectoryUpdate::Exact);
                    let copied = transfer(namespace, &mut txn, range, &request).await?;
                    if let Some(copied) = copied {
                        cx.record(&mut txn, &answer(copied));
                    }
                    Ok(copied)
                })
            })
            .await?
        }
        Commit::Server(who) => {
            let request = &Request { who, now: mds.env.clock.wall(), directory: DirectoryUpdate::Exact };
            mds.write(|mut txn| Box::pin(async move { transfer(namespace, &mut txn, range, request).await }))
                .await?
        }
    };
    if let Some(bytes) = copied {
        mds.metrics.add_inline(bytes, bytes);
    }
    Ok(copied)
}

/// The target, if the range fits there as far as can be seen now.
async fn fitting(mds: &Arc<Mds>, range: &Range) -> Result<Option<Inode>, OpError> {
    let namespace = &mds.namespace;
    let (source, target) = mds
        .read(|txn| {
            Box::pin(async move {
                let source = namespace.getattr(&txn, &range.source).await?;
                Ok((source, namespace.getattr(&txn, &range.target).await?))
            })
        })
        .await?;
    let length = range.length.min(source.size().saturating_sub(range.source_offset));
    let end = range.offset.saturating_add(length);
    let fits = source.inline().is_some() && stays(mds, &target, end);
    Ok(fits.then_some(target))
}

async fn transfer(
    namespace: &Namespace,
    txn: &mut Transaction,
    range: &Range,
    request: &Request<'_>,
) -> Result<Option<u64>, FsError> {
    let found = namespace.read_inline(txn, &range.source, range.source_offset, range.length).await?;
    let Some(data) = found.data else { return Ok(None) };
    let copied = u64::try_from(data.len()).unwrap_or(0);
    if copied == 0 {
        return Ok(Some(0));
    }
    let written = namespace.write_inline(txn, &range.target, (range.offset, &data), request).await?;
    Ok(written.map(|_| copied))
}

#[cfg(test)]
mod tests {
    use sluice_namespace::{DataFile, DataFileId, Shape, StoreId};

    use super::*;
    use crate::layout::placement::{Candidate, place};

    #[test]
    fn a_tenth_of_the_device_is_for_names_but_no_more_than_is_of_use() {
        let has = |total: u64, free: u64| has_room(Room { total: total << 30, free: free << 30 });
        assert!(has(20, 2) && !has(20, 1) && has(30, 3) && !has(30, 2));
        assert!(has(10_000, 64) && !has(10_000, 63));
    }

    #[test]
    fn names_end_where_what_is_left_is_for_removals() {
        let mib = |of: fn(Room) -> u64, total: u64| of(Room { total: total << 20, free: 0 }) >> 20;
        let of = |total| (mib(for_removals, total), mib(for_names, total));
        assert_eq!([1 << 10, 3 << 10, 10 << 10].map(of), [(341, 682), (640, 1280), (640, 1280)]);
        assert_eq!([16 << 10, 20 << 10, 1 << 20].map(of), [(819, 1638), (1024, 2048), (1024, 64 << 10)]);
        // Readers of older versions go before that, and small files before them.
        let at = |free: u64| Room { total: 20 << 30, free: free << 20 };
        assert!(!is_at_its_end(at(1280)) && is_at_its_end(at(1279)));
        assert!(has_room_for_names(at(1024)) && !has_room_for_names(at(1023)));
    }

    #[test]
    fn only_data_files_with_bytes_are_said_to_be_there() {
        let stores: Vec<_> = (1..=4)
            .map(|n| Candidate { store: StoreId(n), free_bytes: 1 << 40, host: None, class: None })
            .collect();
        let placed = |shape, mirrors| {
            let policy = LayoutPolicy { shape, mirrors, inline: 0, class: None };
            let mut layout = place(DataFileId(1), policy, &stores, 0, 64 << 20).unwrap();
            written_to(&mut layout, 1);
            layout
        };
        let there = |files: &[DataFile]| files.iter().all(|file| file.materialised);
        let layout = placed(Shape::Default, 1);
        let [first, second] = &layout.components[..] else { panic!("{layout:?}") };
        assert!(there(&first.slots) && first.handed_out);
        assert!(!second.handed_out && second.slots.iter().all(|file| !file.materialised));
        let layout = placed(Shape::Wide, 2);
        let columns: Vec<_> = layout.columns().collect();
        assert_eq!(columns.iter().map(|column| column.len()).collect::<Vec<_>>(), [2; 4]);
        assert!(
            there(columns[0])
                && columns[1..].iter().all(|column| column.iter().all(|file| !file.materialised))
        );
    }
}
