//! Mirrors that missed writes, or may differ, are made equal again; those whose data server is lost for good are
//! made anew elsewhere. docs/DESIGN §8, docs/SEMANTICS.md "Mirrors".
//!
//! | module | what |
//! | --- | --- |
//! | `gate` | between a file that is healed and those who write to it |
//! | `leave` | going on without a mirror that is away |
//! | `older` | a data server goes on with an older copy of its store |
//! | `plan` | what is made equal to what (pure) |
//! | `job` | heals one file |
//! | `rebuild` | what a lost data server held gets another place |
//! | `room` | what does not fit where it was to go goes elsewhere, or waits |
//! | `anew` | what is filled begins anew under another name |
//! | `lost` | what went with a data server that was removed, and is nowhere else |
//!
//! The queue is a table: one row per file, from the transaction that marks a mirror to the one that clears it.

mod anew;
mod gate;
mod job;
pub(crate) mod leave;
pub(crate) mod lost;
pub(crate) mod older;
mod plan;
mod rebuild;
mod room;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::{FileId, FsError, Inode, InodeKey, Layout, StoreId};
use sluice_state::file::LayoutFilter;
use tokio::task::JoinSet;

pub(crate) use gate::{Filling, Heals, beside};
pub(crate) use job::{Outcome, heal};
pub(crate) use rebuild::{Place, needs_place, places, run as run_rebuild};
pub(crate) use room::columns;

use crate::files::{FileEntry, file_id};
use crate::server::Mds;
use gate::Waits;

/// Files healed at once.
const WIDTH: usize = 4;
/// Rows read at once.
const PAGE: usize = 256;
/// Between two looks for data servers that came back.
const LOOK: Duration = Duration::from_secs(1);
/// Until the whole queue is looked at again although nothing has changed.
const REVIEW: u64 = 60_000_000_000;
/// Until a file is tried again that something came in between of.
const RETRY: Duration = Duration::from_secs(1);
/// In a row; then the next look at the whole queue tries again.
const TRIES: u32 = 5;

/// A data server, whether it refuses the handles of earlier incarnations, and how often it has come back.
type Ready = BTreeSet<(StoreId, bool, u64)>;

/// Works through the queue for the life of the server, after what earlier incarnations left.
pub(crate) async fn run(mds: Arc<Mds>) {
    let mut reviewed = None;
    let mut crew = Crew {
        mds: Arc::clone(&mds),
        tasks: JoinSet::new(),
        busy: BTreeSet::new(),
        once_more: BTreeSet::new(),
    };
    loop {
        let queued = mds.heals.queued.notified();
        crew.reap();
        for key in mds.heals.take_fresh() {
            crew.take(key).await;
        }
        let ready = ready(&mds);
        let due = reviewed
            .as_ref()
            .is_none_or(|(before, at): &(Ready, _)| *before != ready || mds.now().since(*at) > REVIEW);
        if due {
            match review(&mds, &mut crew).await {
                Ok(()) => reviewed = Some((ready, mds.now())),
                Err(error) => tracing::warn!(%error, "cannot look for files to heal; trying again"),
            }
        }
        let _ = mds.env.clock.timeout(LOOK, queued).await;
    }
}

/// A write may have reached some mirrors of a file and not others, and whoever sent it may never send it again:
/// they are compared. Durable when it returns.
///
/// # Errors
/// What the metadata store says.
pub(crate) async fn suspect(mds: &Arc<Mds>, inode: &Inode) -> Result<(), FsError> {
    if !inode.layout().is_some_and(Layout::has_copies) {
        return Ok(());
    }
    let (namespace, key) = (&mds.namespace, &inode.key);
    // A heal that is under way may have compared before this. It is told first: if it ends before the transaction, that says it
    // anew; if it ends at the same time the one that comes later sees the other.
    mds.heals.gate(key.fileid).disturb();
    let marked = mds
        .write(|mut txn| {
            Box::pin(async move {
                let before = namespace.getattr(&txn, key).await?;
                namespace.set_mirrors_dirty(&mut txn, key, true).await?;
                Ok(before.layout().is_some_and(|layout| !layout.mirrors_dirty))
            })
        })
        .await
        .map(|(new, _)| new);
    // Where nobody knows it may be so: whoever tries again finds them marked, and calls nobody back.
    let new = match &marked {
        Ok(new) => *new,
        Err(error) => error.maybe_committed(),
    };
    if new {
        mds.heals.queue(*key);
        if let Some(entry) = mds.files.get(file_id(key)) {
            mds.read_in_one_way(&entry);
        }
    }
    marked.map(drop)
}

impl Mds {
    /// Mirrors may differ from now on. Whoever has a layout of before reads the one or the other until he gives it back; the
    /// next one names the mirror that the others are made equal to.
    pub(crate) fn read_in_one_way(self: &Arc<Self>, entry: &Arc<FileEntry>) {
        self.step(entry, None, |file, ctx| ((), file.recall_layouts(ctx, LayoutFilter::All, false)));
    }
}

/// The data servers that mirrors can be made equal at. One that died and was back before anybody looked is another one: what
/// was tried in between waits for it.
fn ready(mds: &Mds) -> Ready {
    let ours = mds.data_servers.first_epoch();
    let ready = mds.data_servers.all().into_iter().filter(|store| store.takes_heals());
    let seen = ready.map(|store| (store.id, store.view()));
    seen.map(|(id, view)| (id, view.retired >= ours, view.returns)).collect()
}

/// The whole queue.
async fn review(mds: &Arc<Mds>, crew: &mut Crew) -> Result<(), FsError> {
    mds.heals.forget_waits();
    let mut after: Option<FileId> = None;
    loop {
        let namespace = &mds.namespace;
        let page = mds.read(|txn| Box::pin(async move { namespace.heals(&txn, after, PAGE).await })).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = Some(last.inode.fileid);
        for row in page {
            crew.take(row.inode).await;
        }
    }
}

/// The files that are being healed.
struct Crew {
    mds: Arc<Mds>,
    tasks: JoinSet<(InodeKey, Vec<Waits>)>,
    busy: BTreeSet<InodeKey>,
    /// Those that came into the queue again meanwhile: what is under way may have looked before that.
    once_more: BTreeSet<InodeKey>,
}

impl Crew {
    /// Begins with a file when there is a hand free.
    async fn take(&mut self, key: InodeKey) {
        while self.tasks.len() >= WIDTH {
            if let Some(Ok(done)) = self.tasks.join_next().await {
                self.done(done);
            }
        }
        if self.busy.insert(key) {
            let mds = Arc::clone(&self.mds);
            self.tasks.spawn(async move { (key, patiently(mds, key).await) });
        } else {
            self.once_more.insert(key);
        }
    }

    fn reap(&mut self) {
        while let Some(done) = self.tasks.try_join_next() {
            if let Ok(done) = done {
                self.done(done);
            }
        }
    }

    fn done(&mut self, (key, missed): (InodeKey, Vec<Waits>)) {
        self.busy.remove(&key);
        if self.once_more.remove(&key) {
            self.mds.heals.queue(key);
        }
        self.mds.heals.waits(key.fileid, &missed);
    }
}

/// Heals one file; what it waits for then.
async fn patiently(mds: Arc<Mds>, key: InodeKey) -> Vec<Waits> {
    for _ in 0..TRIES {
        match heal(&mds, key).await {
            Ok(Outcome::Done) | Err(FsError::Stale) => return Vec::new(),
            Ok(Outcome::WaitsFor(stores)) => {
                let waits = |store| match mds.data_servers.is_removed(store) {
                    true => Waits::ForNothing(store),
                    false => Waits::For(store),
                };
                return stores.into_iter().map(waits).collect();
            }
            Ok(Outcome::Unreadable(store)) => return vec![Waits::Unreadable(store)],
            Ok(Outcome::NoRoom(_)) => return vec![Waits::ForRoom],
            Ok(Outcome::Again) => {}
            Err(error) => tracing::warn!(%error, file = key.fileid.0, "cannot heal a file; trying again"),
        }
        mds.env.clock.sleep(RETRY).await;
    }
    Vec::new()
}
