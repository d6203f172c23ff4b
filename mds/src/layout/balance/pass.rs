//! One walk over all files: some of what is at data servers that give goes to those that take.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::{DataFile, DataFileId, FsError, Inode, InodeKey, StoreId};
use tokio::task::JoinSet;

use super::choose::{Levels, Role};
use super::mover::{self, Done, Move};
use super::progress::Progress;
use super::{comes_first, store_moved};
use crate::files::file_id;
use crate::layout::census::{self, Amount};
use crate::layout::placement::Candidate;
use crate::layout::{candidates, classes};
use crate::server::Mds;

/// Files moved at once.
const WIDTH: usize = 8;
/// Between two pages, for others.
const PAUSE: Duration = Duration::from_millis(1);
/// Who was not read or written for so many seconds is not missed by anybody while it moves.
const COLD: i64 = 3600;
/// Of what the largest data files hold, the part that goes at most: one in so many.
const CHOICE: u64 = 2;

/// What may go: few large data files are sooner moved than many small ones, and nobody waits for those that are not used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    LargeAndCold,
    Large,
    All,
}

impl Stage {
    pub(super) fn next(self) -> Option<Self> {
        match self {
            Self::LargeAndCold => Some(Self::Large),
            Self::Large => Some(Self::All),
            Self::All => None,
        }
    }
}

/// A walk, and how far it is.
#[derive(Debug, Default)]
pub(super) struct Walk {
    pub(super) stage: Stage,
    after: Option<DataFileId>,
    /// Data files moved in it.
    pub(super) moved: u64,
    /// The least size that is large, for each data server that gives.
    large: BTreeMap<StoreId, u64>,
}

impl Walk {
    /// From the first file on.
    pub(super) fn begin(&mut self, stage: Stage) {
        (self.stage, self.after, self.moved) = (stage, None, 0);
    }

    fn least(&self, store: StoreId) -> u64 {
        if self.stage == Stage::All { 0 } else { self.large.get(&store).copied().unwrap_or(0) }
    }
}

/// Goes on until enough is moved, or all files were looked at, which is true.
///
/// # Errors
/// What the metadata store says.
pub(super) async fn run(
    mds: &Arc<Mds>,
    progress: &Arc<Progress>,
    levels: Levels,
    walk: &mut Walk,
) -> Result<bool, FsError> {
    if walk.after.is_none() {
        progress.seen(None);
        progress.forget_held();
    }
    if walk.stage == Stage::LargeAndCold && walk.after.is_none() {
        walk.large = large(mds, &levels).await?;
    }
    let (mds, progress) = (Arc::clone(mds), Arc::clone(progress));
    let mut crew = Crew { mds, progress, levels, tasks: JoinSet::new(), moved: 0 };
    let whole = crew.walk(walk).await;
    // What is under way is not given up for what the store says.
    while !crew.tasks.is_empty() {
        crew.reap().await;
    }
    walk.moved += crew.moved;
    whole
}

/// How large the largest data files are that hold some times as much as is to be given.
async fn large(mds: &Arc<Mds>, levels: &Levels) -> Result<BTreeMap<StoreId, u64>, FsError> {
    let census = match mds.counting.last() {
        Some(census) => census,
        None => census::take(mds).await?,
    };
    let givers = levels.devices().iter().filter(|device| device.role == Role::Gives);
    let givers = givers.flat_map(|device| &device.stores);
    let of = |store: &StoreId| {
        let bytes = levels.gives(*store).saturating_mul(CHOICE);
        (*store, census.of(*store).sizes.least_of(bytes))
    };
    Ok(givers.map(of).collect())
}

/// Those that are being moved.
struct Crew {
    mds: Arc<Mds>,
    progress: Arc<Progress>,
    levels: Levels,
    tasks: JoinSet<Done>,
    moved: u64,
}

impl Crew {
    async fn walk(&mut self, walk: &mut Walk) -> Result<bool, FsError> {
        let givers = self.progress.row().givers;
        loop {
            let mds = Arc::clone(&self.mds);
            let Some((last, files)) = census::page(&mds, walk.after).await? else { return Ok(true) };
            self.progress.seen(Some(files.len()));
            if self.progress.tell(mds.now()) {
                store_moved(&mds, &self.progress).await?;
            }
            for inode in files {
                if inode.layout().is_some_and(|layout| layout.is_degraded()) {
                    mover::free(&mds, &inode, &givers).await?;
                    continue;
                }
                if walk.stage == Stage::LargeAndCold && !is_cold(&mds, &inode) {
                    continue;
                }
                if !self.concerns(&inode, walk) {
                    continue;
                }
                while self.tasks.len() >= WIDTH {
                    self.reap().await;
                }
                if self.is_over() {
                    return Ok(false);
                }
                let moves = self.choose(&inode, &candidates(&mds).list, walk);
                if !moves.is_empty() {
                    self.take(inode.key, moves);
                }
                if self.is_enough().await {
                    // What is left of this page is looked at again.
                    return Ok(false);
                }
            }
            walk.after = Some(last);
            if self.is_over() {
                return Ok(false);
            }
            mds.env.clock.sleep(PAUSE).await;
        }
    }

    /// Nothing more is begun with now.
    fn is_over(&self) -> bool {
        let first = comes_first(&self.mds);
        let waits = first.is_some();
        first.into_iter().for_each(|first| self.progress.waits(first));
        waits || self.progress.is_stopped()
    }

    /// Something of it is where something is to be given, and of the right size.
    fn concerns(&self, inode: &Inode, walk: &Walk) -> bool {
        self.gives(inode, walk).next().is_some()
    }

    /// What may go: with the data files of its column, and its size.
    fn gives<'a>(
        &'a self,
        inode: &'a Inode,
        walk: &'a Walk,
    ) -> impl Iterator<Item = (&'a DataFile, &'a [DataFile], u64)> {
        let all = census::data_files(inode).filter(|(_, _, file)| file.materialised && !file.stale);
        let here = all.filter(|(_, _, file)| self.levels.gives(file.store) > 0);
        here.filter_map(move |(component, index, file)| {
            let bytes = census::bytes_of(inode, component, index);
            let mut columns = component.slots.chunks(usize::from(component.mirrors.max(1)));
            let column = columns.nth(index).unwrap_or_default();
            (bytes >= walk.least(file.store)).then_some((file, column, bytes))
        })
    }

    /// So much has moved, and not only been begun with.
    async fn is_enough(&mut self) -> bool {
        while self.levels.to_give() == 0 && !self.tasks.is_empty() {
            self.reap().await;
        }
        self.levels.to_give() == 0
    }

    /// What of a file goes where.
    fn choose(&self, inode: &Inode, takers: &[Candidate], walk: &Walk) -> Vec<Move> {
        let (mds, mut levels) = (&self.mds, self.levels.clone());
        let mut moves = Vec::new();
        for (file, column, bytes) in self.gives(inode, walk) {
            if !mds.data_servers.get(file.store).is_some_and(|store| store.gives()) {
                continue;
            }
            let others = others(column, file, &moves);
            let wanted = classes::like(mds, file.store);
            let takes = |to| wanted.among(takers).any(|taker| taker.store == to);
            let may = |to| takes(to) && fits(mds, &others, file.store, to);
            if let Some(to) = levels.choose(file.store, bytes, may) {
                levels.moves(file.store, to, bytes);
                moves.push(Move { slot: file.slot, from: file.store, to, bytes });
            }
        }
        moves
    }

    fn take(&mut self, key: InodeKey, moves: Vec<Move>) {
        moves.iter().for_each(|one| self.levels.moves(one.from, one.to, one.bytes));
        let (mds, progress) = (Arc::clone(&self.mds), Arc::clone(&self.progress));
        self.tasks.spawn(async move { mover::go(&mds, key, moves, &progress).await });
    }

    async fn reap(&mut self) {
        // What became of one that did not end is seen when the data servers are asked next.
        let Some(Ok(Done { key, moved, stayed, why })) = self.tasks.join_next().await else { return };
        let amount = moved
            .iter()
            .fold(Amount::default(), |sum, one| sum.plus(Amount { data_files: 1, bytes: one.bytes }));
        if amount.data_files > 0 {
            self.moved += amount.data_files;
            self.progress.moved(self.mds.now(), &key, amount);
        }
        stayed.iter().for_each(|one| self.levels.stays(one.from, one.to, one.bytes));
        if let Some(why) = why {
            tracing::debug!(file = key.fileid.0, %why, "a file cannot be moved now");
            self.progress.held(key, why);
        }
    }
}

/// Where the other mirrors are, or will be.
fn others(column: &[DataFile], goes: &DataFile, moves: &[Move]) -> Vec<StoreId> {
    let others = column.iter().filter(|file| file.slot != goes.slot);
    let place = |file: &DataFile| {
        let to = moves.iter().find(|one| one.slot == file.slot).map(|one| one.to);
        // Until it is there it is where it was.
        [Some(file.store), to]
    };
    others.flat_map(place).flatten().collect()
}

/// It holds no other mirror, and mirrors on different hosts stay on different hosts.
fn fits(mds: &Mds, others: &[StoreId], from: StoreId, to: StoreId) -> bool {
    let host = |store| mds.data_servers.get(store).and_then(|store| store.update(|view| view.host()));
    let beside = |store| {
        let here = host(store);
        here.is_some() && others.iter().any(|other| host(*other) == here)
    };
    !others.contains(&to) && (!beside(to) || beside(from))
}

/// Nobody has it open, and nobody used it lately.
fn is_cold(mds: &Mds, inode: &Inode) -> bool {
    let record = &inode.record;
    let used = [record.atime, record.mtime, record.ctime].map(|time| time.seconds).into_iter().max();
    let now = mds.env.clock.wall().seconds;
    mds.files.get(file_id(&inode.key)).is_none() && used.is_none_or(|used| now.saturating_sub(used) > COLD)
}
