//! How much of which file is where. Files do not know each other's data servers, and making a file pays for no
//! counter: whoever wants to know has all of them looked at.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sluice_namespace::{Component, DataFile, DataFileId, FsError, Inode, InodeKey, StoreId};
use sluice_state::Time;

use super::progress::Amount;
use crate::server::Mds;

/// Files looked at at once, and the pause that leaves the store to others.
const PAGE: usize = 256;
const PAUSE: Duration = Duration::from_millis(1);
/// A count this old is as good as a new one to those who decide by it.
const FRESH: u64 = 60_000_000_000;
/// Files named of those that would be lost with a data server.
const EXAMPLES: usize = 10;

/// What one data server has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Count {
    pub(crate) amount: Amount,
    /// Files that have something there.
    pub(crate) files: u64,
    /// Files that have data nowhere else.
    pub(crate) alone: u64,
    /// Some of them.
    pub(crate) examples: Vec<InodeKey>,
    /// The most mirrors that a file with a data file there has.
    pub(crate) mirrors: u16,
}

/// All data servers, as found between two moments.
#[derive(Clone, Debug)]
pub(crate) struct Census {
    began: Time,
    pub(crate) ended: Time,
    took: u64,
    counts: BTreeMap<StoreId, Count>,
}

impl Census {
    pub(crate) fn of(&self, store: StoreId) -> Count {
        self.counts.get(&store).cloned().unwrap_or_default()
    }
}

/// The last count, and the one under way.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    last: Mutex<Option<Arc<Census>>>,
    /// Files looked at by the one that runs.
    running: Mutex<Option<u64>>,
}

impl Counting {
    pub(crate) fn last(&self) -> Option<Arc<Census>> {
        self.last.lock().clone()
    }

    /// Files that the count under way has looked at.
    pub(crate) fn running(&self) -> Option<u64> {
        *self.running.lock()
    }
}

/// A count not older than a minute; else one is begun, and how many files it has looked at.
pub(crate) fn fresh(mds: &Arc<Mds>) -> Result<Arc<Census>, u64> {
    since(mds, Time::ZERO)
}

/// The same of one that was begun after this moment.
pub(crate) fn since(mds: &Arc<Mds>, moment: Time) -> Result<Arc<Census>, u64> {
    let counting = &mds.drains.counting;
    let serves = |last: &Arc<Census>| last.began >= moment && mds.now().since(last.ended) < FRESH;
    match counting.last().filter(serves) {
        Some(last) => Ok(last),
        None => {
            begin(mds);
            Err(counting.running().unwrap_or(0))
        }
    }
}

/// Counts again when the last time is so long ago that it is worth it.
pub(crate) fn refresh(mds: &Arc<Mds>) {
    let worth = |last: &Census| mds.now().since(last.ended) >= FRESH.max(last.took.saturating_mul(20));
    if mds.drains.counting.last().is_none_or(|last| worth(&last)) {
        begin(mds);
    }
}

fn begin(mds: &Arc<Mds>) {
    {
        let mut running = mds.drains.counting.running.lock();
        if running.is_some() {
            return;
        }
        *running = Some(0);
    }
    let mds = Arc::clone(mds);
    Arc::clone(&mds).spawn(async move {
        if let Err(error) = take(&mds).await {
            tracing::warn!(%error, "cannot count what is on data servers");
        }
        *mds.drains.counting.running.lock() = None;
    });
}

/// Looks at all files.
///
/// # Errors
/// What the metadata store says.
pub(super) async fn take(mds: &Arc<Mds>) -> Result<Arc<Census>, FsError> {
    let began = mds.now();
    let (mut counts, mut seen, mut after) = (BTreeMap::new(), 0, None);
    while let Some((last, files)) = page(mds, after).await? {
        after = Some(last);
        files.iter().for_each(|inode| add(&mut counts, inode));
        seen += u64::try_from(files.len()).unwrap_or(0);
        if let Some(running) = &mut *mds.drains.counting.running.lock() {
            *running = seen;
        }
        mds.env.clock.sleep(PAUSE).await;
    }
    let census = Arc::new(Census { began, ended: mds.now(), took: mds.now().since(began), counts });
    *mds.drains.counting.last.lock() = Some(Arc::clone(&census));
    Ok(census)
}

/// The next files with data files; where to go on. `None`: that was all.
pub(super) async fn page(
    mds: &Arc<Mds>,
    after: Option<DataFileId>,
) -> Result<Option<(DataFileId, Vec<Inode>)>, FsError> {
    let namespace = &mds.namespace;
    mds.read(|txn| {
        Box::pin(async move {
            let owners = namespace.data_file_owners(&txn, after, PAGE).await?;
            let Some((last, _)) = owners.last() else { return Ok(None) };
            let mut files = Vec::with_capacity(owners.len());
            for (_, key) in &owners {
                match namespace.getattr(&txn, key).await {
                    Ok(inode) => files.push(inode),
                    Err(FsError::Stale) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(Some((*last, files)))
        })
    })
    .await
}

/// What data files of a file at one store amount to: those that exist, or may by now.
pub(super) fn amount(inode: &Inode, store: StoreId) -> Amount {
    let mut sum = Amount::default();
    let space = inode.file().map_or(0, |file| file.space_used);
    for (component, index, file) in data_files(inode).filter(|(_, _, file)| file.store == store) {
        if file.materialised {
            sum.data_files += 1;
            // Holes are in the length, and never more is copied than there is.
            sum.bytes += component.bytes_of_column(index, inode.size()).min(space);
        }
    }
    sum
}

/// The data files of components in use, with their columns.
pub(super) fn data_files(inode: &Inode) -> impl Iterator<Item = (&Component, usize, &DataFile)> {
    let components = inode.layout().into_iter().flat_map(|layout| layout.in_use(inode.size()));
    components.flat_map(|component| {
        let mirrors = usize::from(component.mirrors.max(1));
        component.slots.iter().enumerate().map(move |(at, file)| (component, at / mirrors, file))
    })
}

fn add(counts: &mut BTreeMap<StoreId, Count>, inode: &Inode) {
    let mut stores: Vec<(StoreId, u16)> =
        data_files(inode).map(|(component, _, file)| (file.store, component.mirrors)).collect();
    stores.sort_unstable();
    for (store, mirrors) in stores.iter().copied() {
        let count = counts.entry(store).or_default();
        count.mirrors = count.mirrors.max(mirrors);
    }
    stores.dedup_by_key(|(store, _)| *store);
    for (store, _) in stores {
        let count = counts.entry(store).or_default();
        let here = amount(inode, store);
        count.files += 1;
        count.amount.data_files += here.data_files;
        count.amount.bytes = count.amount.bytes.saturating_add(here.bytes);
        if is_alone(inode, store) {
            count.alone += 1;
            if count.examples.len() < EXAMPLES {
                count.examples.push(inode.key);
            }
        }
    }
}

/// Some of its bytes are there and nowhere else, or may be: the data server may not have told of its last writes.
fn is_alone(inode: &Inode, store: StoreId) -> bool {
    let used = inode.layout().into_iter().flat_map(|layout| layout.in_use(inode.size()));
    let mut columns =
        used.flat_map(|component| component.slots.chunks(usize::from(component.mirrors.max(1))));
    columns.any(|column| column.iter().filter(|file| !file.stale).all(|file| file.store == store))
}
