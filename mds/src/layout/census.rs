//! How much of which file is where. Files do not know each other's data servers, and making a file pays for no
//! counter: whoever wants to know has all of them looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sluice_kv::KvError;
use sluice_namespace::{Component, DataFile, DataFileId, FsError, Inode, InodeKey, StoreId};
use sluice_state::Time;

use super::garbage::passes;
use crate::dsctl::{StoreHandle, isolated};
use crate::server::Mds;

/// Files looked at at once, and the pause that leaves the store to others.
const PAGE: usize = 256;
const PAUSE: Duration = Duration::from_millis(1);
/// Before the store is asked again.
const RETRY: Duration = Duration::from_secs(5);
/// A count this old is as good as a new one to those who decide by it.
const FRESH: u64 = 60_000_000_000;
/// Files named of those that would be lost with a data server.
const EXAMPLES: usize = 10;

/// Data files and the bytes in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) data_files: u64,
    pub(crate) bytes: u64,
}

impl Amount {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { data_files: self.data_files + other.data_files, bytes: self.bytes.saturating_add(other.bytes) }
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self {
            data_files: self.data_files.saturating_sub(other.data_files),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

/// Bytes in data files, by the number of bits that the size of a data file takes.
#[derive(Clone, Debug)]
pub(crate) struct Sizes([u64; 65]);

impl Default for Sizes {
    fn default() -> Self {
        Self([0; 65])
    }
}

impl Sizes {
    fn add(&mut self, bytes: u64) {
        let bits = usize::try_from(u64::BITS - bytes.leading_zeros()).unwrap_or(0);
        if let Some(sum) = self.0.get_mut(bits) {
            *sum = sum.saturating_add(bytes);
        }
    }

    /// The greatest size, of a few, such that data files of it and greater ones have so many bytes together; 0: they do
    /// not have that.
    pub(crate) fn least_of(&self, bytes: u64) -> u64 {
        let mut sum = 0_u64;
        let found = (1..self.0.len()).rev().find(|bits| {
            sum = sum.saturating_add(self.0.get(*bits).copied().unwrap_or(0));
            sum >= bytes
        });
        found.map_or(0, |bits| 1 << (bits - 1))
    }
}

/// What one data server has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Count {
    pub(crate) amount: Amount,
    /// Files that have something there.
    pub(crate) files: u64,
    /// Files that have data nowhere else.
    pub(crate) alone: u64,
    /// Some of them.
    pub(crate) examples: Vec<Alone>,
    /// Bytes in data files that there is another copy of, at a data server that is not lost.
    pub(crate) copied: u64,
    /// The most mirrors that a column of these has; 0: there are none.
    pub(crate) copied_mirrors: u16,
    /// The most mirrors that a file with a data file there has.
    pub(crate) mirrors: u16,
    pub(crate) sizes: Sizes,
}

/// A file that would be lost with a data server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Alone {
    pub(crate) key: InodeKey,
    /// Others that have a copy, and are gone, too.
    pub(crate) with: BTreeSet<StoreId>,
}

/// Data servers whose copies do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Absent {
    /// They may come back, and until then nothing is copied from them.
    lost: BTreeSet<StoreId>,
    /// Of these, the ones that an administrator has given up.
    gone: BTreeSet<StoreId>,
}

impl Absent {
    fn now(mds: &Mds) -> Self {
        let mut all = mds.data_servers.known();
        all.retain(|store| is_lost(mds, store));
        let gone = all.iter().filter(|store| !store.is_active()).map(|store| store.id).collect();
        Self { lost: all.iter().map(|store| store.id).collect(), gone }
    }
}

/// It is out, or was not heard of for so long that it serves nobody.
pub(crate) fn is_lost(mds: &Mds, store: &StoreHandle) -> bool {
    store.is_removed() || (store.view().lost && isolated(mds, store))
}

/// All data servers, as found between two moments.
#[derive(Clone, Debug)]
pub(crate) struct Census {
    began: Time,
    pub(crate) ended: Time,
    took: u64,
    absent: Absent,
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
    such(mds, |_| true)
}

/// The same of one that was begun after this moment, when the same data servers were gone as now.
pub(crate) fn since(mds: &Arc<Mds>, moment: Time) -> Result<Arc<Census>, u64> {
    such(mds, |last| holds(mds, last, moment))
}

fn such(mds: &Arc<Mds>, wanted: impl Fn(&Census) -> bool) -> Result<Arc<Census>, u64> {
    let counting = &mds.counting;
    let serves = |last: &Arc<Census>| wanted(last) && mds.now().since(last.ended) < FRESH;
    match counting.last().filter(serves) {
        Some(last) => Ok(last),
        None => {
            begin(mds);
            Err(counting.running().unwrap_or(0))
        }
    }
}

/// Whether what would be lost with a data server that is gone is part of this count still, however old it is: it was begun
/// after that moment, from when on nothing comes there, and the same were gone then as now.
pub(crate) fn holds(mds: &Mds, census: &Census, moment: Time) -> bool {
    census.began >= moment && census.absent.gone == Absent::now(mds).gone
}

/// Counts again when the last time is so long ago that it is worth it.
pub(crate) fn refresh(mds: &Arc<Mds>) {
    let worth = |last: &Census| mds.now().since(last.ended) >= FRESH.max(last.took.saturating_mul(20));
    if mds.counting.last().is_none_or(|last| worth(&last)) {
        begin(mds);
    }
}

fn begin(mds: &Arc<Mds>) {
    {
        let mut running = mds.counting.running.lock();
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
        *mds.counting.running.lock() = None;
    });
}

/// Looks at all files.
///
/// # Errors
/// What the metadata store says.
pub(crate) async fn take(mds: &Arc<Mds>) -> Result<Arc<Census>, FsError> {
    let (began, absent) = (mds.now(), Absent::now(mds));
    let (mut counts, mut seen, mut after) = (BTreeMap::new(), 0, None);
    while let Some((last, files)) = at_last(mds, || false, || page(mds, after)).await? {
        after = Some(last);
        files.iter().for_each(|inode| add(&mut counts, inode, &absent));
        seen += u64::try_from(files.len()).unwrap_or(0);
        if let Some(running) = &mut *mds.counting.running.lock() {
            *running = seen;
        }
        mds.env.clock.sleep(PAUSE).await;
    }
    let census = Arc::new(Census { began, ended: mds.now(), took: mds.now().since(began), absent, counts });
    *mds.counting.last.lock() = Some(Arc::clone(&census));
    Ok(census)
}

/// The next files with data files; where to go on. `None`: that was all.
pub(crate) async fn page(
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

/// What `ask` says, however long the store is away, unless nobody wants it any more: to look at all files may have taken hours by now.
pub(crate) async fn at_last<T, F>(
    mds: &Mds,
    is_over: impl Fn() -> bool,
    ask: impl Fn() -> F,
) -> Result<T, FsError>
where
    F: Future<Output = Result<T, FsError>>,
{
    loop {
        match ask().await {
            Err(error) if comes_back(&error) && !is_over() => {
                tracing::debug!(%error, "cannot look at files now; trying again");
                mds.env.clock.sleep(RETRY).await;
            }
            done => return done,
        }
    }
}

/// It is the store, which may answer later, and neither the end of this server nor a file that cannot be read.
fn comes_back(error: &FsError) -> bool {
    passes(error) && !matches!(error, FsError::Kv(KvError::Closed))
}

/// What data files of a file at one store amount to: those that exist, or may by now.
pub(crate) fn amount(inode: &Inode, store: StoreId) -> Amount {
    let mut sum = Amount::default();
    for bytes in sizes(inode, store) {
        sum = sum.plus(Amount { data_files: 1, bytes });
    }
    sum
}

fn sizes(inode: &Inode, store: StoreId) -> impl Iterator<Item = u64> {
    let there = data_files(inode).filter(move |(_, _, file)| file.store == store && file.materialised);
    there.map(|(component, index, _)| bytes_of(inode, component, index))
}

/// What a data file of a column holds. Holes are in the length, and never more is copied than there is.
pub(crate) fn bytes_of(inode: &Inode, component: &Component, column: usize) -> u64 {
    let space = inode.file().map_or(0, |file| file.space_used);
    component.bytes_of_column(column, inode.size()).min(space)
}

/// The data files of components in use, with their columns.
pub(crate) fn data_files(inode: &Inode) -> impl Iterator<Item = (&Component, usize, &DataFile)> {
    let components = inode.layout().into_iter().flat_map(|layout| layout.in_use(inode.size()));
    components.flat_map(|component| {
        let mirrors = usize::from(component.mirrors.max(1));
        component.slots.iter().enumerate().map(move |(at, file)| (component, at / mirrors, file))
    })
}

fn add(counts: &mut BTreeMap<StoreId, Count>, inode: &Inode, absent: &Absent) {
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
        count.files += 1;
        count.amount = count.amount.plus(amount(inode, store));
        sizes(inode, store).for_each(|bytes| count.sizes.add(bytes));
        if let Some(with) = alone(inode, store, &absent.gone) {
            count.alone += 1;
            if count.examples.len() < EXAMPLES {
                count.examples.push(Alone { key: inode.key, with });
            }
        }
    }
    for (component, index, column) in columns(inode) {
        for file in column {
            let copy = |other: &DataFile| {
                other.store != file.store && !other.stale && !absent.lost.contains(&other.store)
            };
            if column.iter().any(copy) {
                let count = counts.entry(file.store).or_default();
                count.copied_mirrors = count.copied_mirrors.max(component.mirrors);
                let bytes = if file.materialised { bytes_of(inode, component, index) } else { 0 };
                count.copied = count.copied.saturating_add(bytes);
            }
        }
    }
}

/// The columns in use of a file's components.
fn columns(inode: &Inode) -> impl Iterator<Item = (&Component, usize, &[DataFile])> {
    let used = inode.layout().into_iter().flat_map(|layout| layout.in_use(inode.size()));
    used.flat_map(|component| {
        let columns = component.slots.chunks(usize::from(component.mirrors.max(1)));
        columns.enumerate().map(move |(index, column)| (component, index, column))
    })
}

/// Some of its bytes are there and nowhere else, or may be: the data server may not have told of its last writes. The other
/// data servers that have them and are gone, as it is.
fn alone(inode: &Inode, store: StoreId, gone: &BTreeSet<StoreId>) -> Option<BTreeSet<StoreId>> {
    let is_gone = gone.contains(&store);
    let nowhere = |column: &[DataFile]| {
        let mut good = column.iter().filter(|file| !file.stale);
        let has = column.iter().any(|file| file.store == store);
        (has || !is_gone) && good.all(|file| file.store == store || (is_gone && gone.contains(&file.store)))
    };
    let mut found = columns(inode).filter(|(_, _, column)| nowhere(column)).peekable();
    found.peek()?;
    let others = found.flat_map(|(_, _, column)| column).filter(|file| !file.stale);
    Some(others.map(|file| file.store).filter(|other| *other != store).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_that_are_enough() {
        let mut sizes = Sizes::default();
        [0, 1, 5, 5, 1 << 20, (1 << 20) + 7].into_iter().for_each(|bytes| sizes.add(bytes));
        assert_eq!(sizes.least_of(1), 1 << 20);
        assert_eq!(sizes.least_of(2 << 20), 1 << 20);
        assert_eq!(sizes.least_of((2 << 20) + 8), 4, "between 4 and 7 bytes");
        assert_eq!(sizes.least_of((2 << 20) + 18), 1);
        assert_eq!(sizes.least_of(3 << 20), 0);
    }
}
