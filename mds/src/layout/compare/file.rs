//! One file. Ranges are digested by the data servers as they are, whoever writes; what seems to differ is looked at twice
//! more, so that only what nobody can have been writing is said to differ.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::{Component, DataFile, FsError, Inode, InodeKey, Layout};
use sluice_state::ClientId;
use sluice_state::file::{Error, File, Intent};
use sluice_xdr::control::{DS_DIGEST_resok, ctl_stat};
use tokio::task::JoinSet;

use super::Progress;
use super::found::Finding;
use super::judge::{Differences, Hash, judge, stretch};
use crate::dsctl::digest::{Undigested, digest};
use crate::dsctl::{epochs, resync};
use crate::files::{FileEntry, Held};
use crate::layout::maintenance::{Outcome, Tried};
use crate::layout::settle;
use crate::server::Mds;

/// Bytes of a data file in one order, and the unit of the first look.
const PIECE: u64 = 16 << 20;
const COARSE: u32 = 64 << 10;
/// The unit of a closer look: a page of a client.
const FINE: u32 = 4096;
/// Bytes looked at closely in one go: writers wait for that.
const CLOSE: u64 = 1 << 20;
/// Of them that are looked at together: between two looks at them passes time.
const BATCH: usize = 64;
/// Between those. What was sent before a layout came back has arrived by then.
const SETTLE: Duration = Duration::from_secs(2);
/// For the right to keep writers out.
const TURN: Duration = Duration::from_secs(10);
/// The server itself.
const NOBODY: ClientId = ClientId(0);

/// What was seen of a file.
#[derive(Debug)]
pub(super) enum Done {
    /// It is not there any more, or has no copies.
    Nothing,
    /// So many bytes, each counted once.
    Equal(u64),
    Differs(Box<Finding>, u64),
}

/// Why a look ended early.
enum Trouble {
    Ends(Outcome<Done>),
    Store(FsError),
}

impl From<FsError> for Trouble {
    fn from(error: FsError) -> Self {
        match error {
            FsError::Stale => Self::Ends(Outcome::Done(Done::Nothing)),
            other => Self::Store(other),
        }
    }
}

fn later<T>(why: impl Into<String>) -> Result<T, Trouble> {
    Err(Trouble::Ends(Outcome::Later(why.into())))
}

const IN_USE: &str = "in use: clients write to it, or may";

/// Some data file of it has another one that holds the same.
pub(super) fn has_copies(inode: &Inode) -> bool {
    inode.layout().is_some_and(|layout| layout.in_use(inode.size()).any(|component| component.mirrors > 1))
}

/// Compares the copies of a file. `again`: it was looked at before, in vain.
///
/// # Errors
/// What the metadata store says.
pub(super) async fn compare(mds: &Arc<Mds>, key: InodeKey, progress: &Progress, again: bool) -> Tried<Done> {
    match Work::begin(mds, key, progress, again).await {
        Ok(mut work) => match work.run().await {
            Ok(done) => Ok(Outcome::Done(done)),
            Err(Trouble::Ends(outcome)) => Ok(outcome),
            Err(Trouble::Store(error)) => Err(error),
        },
        Err(Trouble::Ends(outcome)) => Ok(outcome),
        Err(Trouble::Store(error)) => Err(error),
    }
}

/// What a data server said of a range.
type Told = Vec<DS_DIGEST_resok>;

/// A range of a column that seems to differ.
#[derive(Clone, Debug)]
struct Suspect {
    /// The copies.
    column: Vec<DataFile>,
    range: Range<u64>,
}

struct Work<'a> {
    mds: &'a Arc<Mds>,
    key: InodeKey,
    progress: &'a Progress,
    /// As it was when this began.
    inode: Inode,
    suspects: Vec<Suspect>,
    /// Data files that are not there, and should be.
    gone: Vec<DataFile>,
    found: Differences,
    bytes: u64,
}

impl<'a> Work<'a> {
    async fn begin(
        mds: &'a Arc<Mds>,
        key: InodeKey,
        progress: &'a Progress,
        again: bool,
    ) -> Result<Self, Trouble> {
        match settle::settle_size(mds, &key).await {
            Ok(_) => {}
            Err(FsError::Busy | FsError::EndUnknown) => return later("its length is not known yet"),
            Err(error) => return Err(error.into()),
        }
        // Nothing of a file that is written to all the time would come of reading it once more.
        if again && mds.file(&key).await?.peek(File::is_written) {
            return later(IN_USE);
        }
        let inode = settle::inode(mds, key).await?;
        if !has_copies(&inode) {
            return Err(Trouble::Ends(Outcome::Done(Done::Nothing)));
        }
        let (suspects, gone, found) = (Vec::new(), Vec::new(), Differences::default());
        Ok(Self { mds, key, progress, inode, suspects, gone, found, bytes: 0 })
    }

    async fn run(&mut self) -> Result<Done, Trouble> {
        let inode = self.inode.clone();
        let Some(layout) = inode.layout() else { return Ok(Done::Nothing) };
        self.judge_marks(layout, inode.size())?;
        for component in layout.in_use(inode.size()).filter(|component| component.mirrors > 1) {
            let columns = component.slots.chunks(usize::from(component.mirrors));
            for (index, column) in columns.enumerate() {
                self.column(component, index, column).await?;
            }
        }
        self.look_closely().await?;
        let lost = self.judge_gone().await?;
        if self.found.is_empty() && lost.is_empty() {
            return Ok(Done::Equal(self.bytes));
        }
        let differences = std::mem::take(&mut self.found);
        let (key, id, size) = (self.key, layout.id, inode.size());
        Ok(Done::Differs(Box::new(Finding { key, id, size, differences, lost }), self.bytes))
    }

    /// What is known of copies that differ, or are not to be had, is nothing to be found.
    fn judge_marks(&self, layout: &Layout, size: u64) -> Result<(), Trouble> {
        if let Some(why) = marks(layout) {
            return later(why);
        }
        let used = layout.in_use(size).filter(|component| component.mirrors > 1);
        for file in used.flat_map(|component| &component.slots) {
            let store = file.store.0;
            match self.mds.data_servers.get(file.store) {
                Some(there) if there.is_damaged(layout.id, file.slot) => {
                    return later(format!(
                        "what data server {store} has of it is known to be damaged or lost"
                    ));
                }
                Some(there) if there.serves() => {}
                _ => return later(away(store)),
            }
        }
        Ok(())
    }

    /// Digests a column; what seems to differ is remembered, or looked at closely when that is enough.
    async fn column(
        &mut self,
        component: &Component,
        index: usize,
        column: &[DataFile],
    ) -> Result<(), Trouble> {
        let end = component.end.min(self.inode.size());
        let mut at = component.start;
        while let Some(range) = stretch(component, index, at, end, PIECE) {
            if self.progress.is_stopped() {
                return Err(Trouble::Ends(Outcome::Stopped));
            }
            let told = self.digest(column, &range, COARSE).await?;
            let absent =
                |(file, told): &(&DataFile, &DS_DIGEST_resok)| file.materialised && !told.stat.exists;
            let gone: Vec<DataFile> =
                column.iter().zip(&told).filter(absent).map(|(file, _)| *file).collect();
            if !gone.is_empty() {
                self.gone.extend(gone);
                return Ok(());
            }
            self.bytes += told.iter().map(|told| told.read).max().unwrap_or(0);
            for unit in unequal(&told, &range, COARSE) {
                self.suspect(column, unit).await?;
            }
            let next = told.iter().map(|told| told.next).min().unwrap_or(u64::MAX);
            at = range.end.max(next);
        }
        Ok(())
    }

    async fn suspect(&mut self, column: &[DataFile], unit: Range<u64>) -> Result<(), Trouble> {
        let joins = |last: &&mut Suspect| {
            last.column == column && last.range.end == unit.start && unit.end - last.range.start <= CLOSE
        };
        if let Some(last) = self.suspects.last_mut().filter(joins) {
            last.range.end = unit.end;
            return Ok(());
        }
        if self.suspects.len() >= BATCH {
            self.look_closely().await?;
        }
        self.suspects.push(Suspect { column: column.to_vec(), range: unit });
        Ok(())
    }

    /// What all copies have of a range; the limit is kept.
    async fn digest(&self, column: &[DataFile], range: &Range<u64>, unit: u32) -> Result<Told, Trouble> {
        let told = self.ask(column, range, unit).await?;
        let read = told.iter().map(|told| told.read).sum();
        let pause = self.progress.moved(self.mds.now(), read);
        if !pause.is_zero() {
            self.mds.env.clock.sleep(pause).await;
        }
        Ok(told)
    }

    async fn ask(&self, column: &[DataFile], range: &Range<u64>, unit: u32) -> Result<Told, Trouble> {
        let Some(id) = self.inode.layout().map(|layout| layout.id) else { return later(IN_USE) };
        let what = (range.start, range.end - range.start);
        let mut tasks = JoinSet::new();
        for (at, file) in column.iter().copied().enumerate() {
            let mds = Arc::clone(self.mds);
            tasks.spawn(async move { (at, file, digest(&mds, id, &file, what, unit).await) });
        }
        let mut told: Vec<Option<DS_DIGEST_resok>> = vec![None; column.len()];
        while let Some(done) = tasks.join_next().await {
            let Ok((at, file, digest)) = done else { return later(IN_USE) };
            let store = file.store.0;
            match (digest, told.get_mut(at)) {
                (Ok(digest), Some(place)) => *place = Some(digest),
                (Ok(_), None) => {}
                (Err(Undigested::Away), _) => return later(away(store)),
                (Err(Undigested::Unreadable), _) => {
                    return later(format!("data server {store} cannot read what it has of it"));
                }
                (Err(Undigested::Unknown), _) => {
                    return Err(Trouble::Ends(Outcome::Never(format!(
                        "data server {store} is of a release that cannot compare: upgrade it"
                    ))));
                }
            }
        }
        Ok(told.into_iter().flatten().collect())
    }

    /// Whether what seemed to differ does: twice in the same way, with some time between, in which no data server has
    /// counted a write to any of the copies, and each time with everybody who may write kept out.
    async fn look_closely(&mut self) -> Result<(), Trouble> {
        let mut seen = Vec::new();
        for suspect in std::mem::take(&mut self.suspects) {
            let (range, told) = self.alone(&suspect).await?;
            if unequal(&told, &range, FINE).next().is_some() {
                seen.push((Suspect { range, ..suspect }, told));
            }
        }
        if seen.is_empty() {
            return Ok(());
        }
        self.mds.env.clock.sleep(SETTLE).await;
        for (suspect, before) in seen {
            let (range, now) = self.alone(&suspect).await?;
            let pairs = || before.iter().zip(&now);
            let same = range == suspect.range
                && pairs()
                    .all(|(before, now)| untouched(&before.stat, &now.stat) && before.units == now.units);
            if !same {
                return later(IN_USE);
            }
            for (n, unit) in units(&range, FINE).enumerate() {
                let hashes: Vec<Hash> =
                    now.iter().filter_map(|told| told.units.get(n)).map(|unit| unit.hash).collect();
                if let Some(judgement) = judge(&hashes) {
                    self.found.add(&suspect.column, (unit.start, unit.end - unit.start), judgement);
                }
            }
        }
        Ok(())
    }

    /// Looks at a range, as much of it as is still in the file, while nobody can write: no client holds a read-write layout
    /// or gets one, none of those of before can be used any more, and nothing is written, copied or cut through this server.
    async fn alone(&self, suspect: &Suspect) -> Result<(Range<u64>, Told), Trouble> {
        if self.progress.is_stopped() {
            return Err(Trouble::Ends(Outcome::Stopped));
        }
        let entry = self.mds.file(&self.key).await?;
        let held = self.exclude(&entry).await?;
        let inode = self.unchanged(&entry, suspect).await?;
        let end = suspect.range.end.min(inode.size());
        let range = suspect.range.start.min(end)..end;
        // Not paced: somebody may wait to write.
        let told = self.ask(&suspect.column, &range, FINE).await?;
        let read = told.iter().map(|told| told.read).sum();
        drop(held.commit());
        let pause = self.progress.moved(self.mds.now(), read);
        if !pause.is_zero() {
            self.mds.env.clock.sleep(pause).await;
        }
        Ok((range, told))
    }

    /// A ticket that keeps writers out. Nobody's layout is asked back for it.
    async fn exclude(&self, entry: &Arc<FileEntry>) -> Result<Held, Trouble> {
        if entry.peek(File::is_written) {
            return later(IN_USE);
        }
        let intent = Intent::ProxyIo { client: NOBODY, write: false, exclusive: true };
        match self.mds.env.clock.timeout(TURN, self.mds.prepare(entry, &intent)).await {
            Ok(Ok(held)) => Ok(held),
            Ok(Err(Error::Stale)) => Err(Trouble::Ends(Outcome::Done(Done::Nothing))),
            Ok(Err(_)) | Err(_) => later(IN_USE),
        }
    }

    /// The file as it is now, under the ticket, if what is compared is still the same.
    async fn unchanged(&self, entry: &FileEntry, suspect: &Suspect) -> Result<Inode, Trouble> {
        // Of a layout that ended uncleanly, or was out when an earlier incarnation ended: who had it may write.
        if entry.peek(File::needs_settle) || self.mds.is_uncut(self.key.fileid) {
            return later(IN_USE);
        }
        let (namespace, key) = (&self.mds.namespace, self.key);
        let (inode, cut) = self
            .mds
            .read(|txn| {
                Box::pin(async move {
                    let cut = namespace.truncate_intent(&txn, key.fileid).await?.is_some();
                    Ok((namespace.getattr(&txn, &key).await?, cut))
                })
            })
            .await?;
        let before = self.inode.layout().map(|layout| layout.id);
        let Some(layout) = inode.layout().filter(|layout| Some(layout.id) == before && !cut) else {
            return later(IN_USE);
        };
        if let Some(why) = marks(layout) {
            return later(why);
        }
        let place = |file: &DataFile| (file.store, file.slot, file.generation);
        let now =
            layout.columns().find(|column| column.iter().map(place).eq(suspect.column.iter().map(place)));
        if now.is_none() || epochs::old_handles_live(self.mds, layout) {
            return later(IN_USE);
        }
        Ok(inode)
    }

    /// The data servers that do not have what they had, if they say so again and the file still names them.
    async fn judge_gone(&self) -> Result<Vec<sluice_namespace::StoreId>, Trouble> {
        let mut lost = Vec::new();
        if self.gone.is_empty() {
            return Ok(lost);
        }
        self.mds.env.clock.sleep(SETTLE).await;
        for file in &self.gone {
            let Some(id) = self.inode.layout().map(|layout| layout.id) else { continue };
            match resync::stat(self.mds, id, file).await {
                None => return later(away(file.store.0)),
                Some(stat) if stat.exists => return later(IN_USE),
                Some(_) => lost.push(file.store),
            }
        }
        // Who was removed in between was removed before it was asked, or is not what was asked for.
        let inode = settle::inode(self.mds, self.key).await?;
        let now =
            inode.layout().filter(|layout| Some(layout.id) == self.inode.layout().map(|layout| layout.id));
        let Some(now) = now else { return later(IN_USE) };
        if let Some(why) = marks(now) {
            return later(why);
        }
        let still = |gone: &DataFile| now.data_files().any(|file| file == gone);
        if self.gone.iter().all(still) { Ok(lost) } else { later(IN_USE) }
    }
}

fn away(store: u16) -> String {
    format!("data server {store} is away")
}

/// What is known of a file whose copies are not, or may not be, what they should be.
fn marks(layout: &Layout) -> Option<&'static str> {
    if layout.mirrors_dirty {
        Some("its mirrors may differ, which is known: they wait to be made equal")
    } else if layout.data_files().any(|file| file.stale) {
        Some("a mirror of it misses writes, which is known: it waits to be made equal")
    } else if layout.data_files().any(|file| file.moving) {
        Some("a part of it is on its way to another data server")
    } else {
        None
    }
}

/// A range, unit by unit.
fn units(range: &Range<u64>, unit: u32) -> impl Iterator<Item = Range<u64>> + use<> {
    let (range, unit) = (range.clone(), u64::from(unit.max(1)));
    let count = (range.end - range.start).div_ceil(unit);
    (0..count).map(move |n| {
        let start = range.start + n * unit;
        start..(start + unit).min(range.end)
    })
}

/// The units that are not the same in all copies.
fn unequal<'a>(told: &'a Told, range: &Range<u64>, unit: u32) -> impl Iterator<Item = Range<u64>> + use<'a> {
    let differs = |n: usize| {
        let mut all = told.iter().map(|told| told.units.get(n));
        let first = all.next();
        all.any(|other| Some(other) != first)
    };
    units(range, unit).enumerate().filter(move |(n, _)| differs(*n)).map(|(_, range)| range)
}

/// Nobody wrote to it since the earlier look.
fn untouched(before: &ctl_stat, now: &ctl_stat) -> bool {
    (before.exists, before.size) == (now.exists, now.size) && now.last_write <= before.writes
}
