//! Those who write to data servers directly. What they write is known here when they say so (LAYOUTCOMMIT) or when
//! the data servers are asked; so files that they write to and whose owner has a limit are looked at every now and
//! then. Whose limit is reached loses its read-write layouts: what follows comes through this server, and is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sluice_namespace::{
    Charged, Credential, FileId, FsError, Inode, InodeKey, Pending, SizeCommitted, Subject,
};
use sluice_state::StateKind;
use sluice_state::effect::Effect;
use sluice_state::file::{File, LayoutFilter};
use tokio::task::JoinSet;

use super::Amount;
use crate::files::{FileEntry, file_id};
use crate::layout::settle;
use crate::server::Mds;

/// Between two looks.
pub(crate) const PERIOD: Duration = Duration::from_secs(2);
/// Files looked at each time; where more are written to, they take turns.
const BATCH: usize = 256;
/// Files read at once, to know whose layouts are taken.
const WIDTH: usize = 16;

/// Who is watched.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    /// Files that somebody has a read-write layout of, and whose owner, group or tree has a limit of bytes.
    files: Mutex<BTreeMap<FileId, Watched>>,
    /// Those whose layouts were recalled because they have reached a limit, and who were not found to have room since.
    full: Mutex<BTreeSet<Subject>>,
}

#[derive(Clone, Copy, Debug)]
struct Watched {
    key: InodeKey,
    /// Who was charged for it when it was last read; `None`: that is not known.
    charged: Option<Charged>,
}

impl Watched {
    fn of(inode: &Inode) -> Self {
        Self { key: inode.key, charged: Some(Charged::of(&inode.record)) }
    }

    /// Whoever it is given to has it read again, if he has a limit.
    fn may_be_of(&self, subject: Subject) -> bool {
        self.charged.is_none_or(|charged| charged.subjects().any(|other| other == subject))
    }
}

impl Writers {
    /// Some of those that are written to, behind `after`. Those that nobody writes to any more cost no look.
    fn next(&self, mds: &Mds, after: Option<FileId>) -> Vec<InodeKey> {
        let from = after.map_or(FileId(0), |last| FileId(last.0.saturating_add(1)));
        let (mut some, mut over) = (Vec::new(), Vec::new());
        let mut files = self.files.lock();
        for (id, Watched { key, .. }) in files.range(from..) {
            match mds.files.get(file_id(key)) {
                Some(entry) if is_written(&entry) => some.push(*key),
                Some(entry) if may_be_written(&entry) => {}
                _ => over.push(*id),
            }
            if some.len() == BATCH {
                break;
            }
        }
        for id in over {
            files.remove(&id);
        }
        some
    }

    fn forget(&self, id: FileId) {
        self.files.lock().remove(&id);
    }

    /// There is room for a byte: layouts may go out again, all of which are recalled when there is none any more.
    pub(super) fn has_room(&self, subject: Subject) {
        self.full.lock().remove(&subject);
    }

    /// Limits have changed: layouts may have gone out that nothing was looked at for.
    pub(super) fn limits_changed(&self) {
        self.full.lock().clear();
    }
}

/// Runs for the life of the server.
pub(crate) async fn run(mds: Arc<Mds>) {
    let mut after = None;
    loop {
        mds.env.clock.sleep(PERIOD).await;
        after = look(&mds, after).await;
    }
}

/// Looks at some files; where to go on.
async fn look(mds: &Arc<Mds>, after: Option<FileId>) -> Option<FileId> {
    let writers = &mds.quotas.writers;
    let some = writers.next(mds, after);
    for key in &some {
        // Data servers that are away have nobody write to them: they are asked again.
        if let Err(FsError::Stale) = settle::observe(mds, key).await {
            writers.forget(key.fileid);
        }
    }
    if some.len() == BATCH { some.last().map(|key| key.fileid) } else { None }
}

fn is_written(entry: &FileEntry) -> bool {
    entry.peek(File::is_written)
}

/// The same, or somebody is getting such a layout, for which the file was perhaps read before it came under a limit.
fn may_be_written(entry: &FileEntry) -> bool {
    entry.peek(File::rw_live)
}

impl Mds {
    /// A read-write layout of a file goes out, or is there and the file has come under a limit.
    pub(crate) fn watch_writers(&self, inode: &Inode) {
        if self.quotas.any() && self.limits_bytes(&Charged::of(&inode.record)) {
            self.quotas.writers.files.lock().insert(inode.key.fileid, Watched::of(inode));
        }
    }

    /// Whether anybody writes to the file is another matter after a step with these effects: the last layout to do so may have
    /// gone, whichever way it went.
    pub(crate) fn watch_no_writer(&self, entry: &FileEntry, effects: &[Effect]) {
        let ends = |effect: &Effect| match effect {
            Effect::Release { kind, .. } | Effect::Revoked { kind, .. } => *kind == StateKind::Layout,
            Effect::RwIdle | Effect::NeedsSettle | Effect::CloseOrphan => true,
            _ => false,
        };
        if !self.quotas.any() || !effects.iter().any(ends) {
            return;
        }
        let mut files = self.quotas.writers.files.lock();
        // Seen under the lock: who is given a layout from now on is put in after this.
        if !may_be_written(entry) {
            files.remove(&entry.key.fileid);
        }
    }

    /// Files that somebody has a layout to write with of, and that are looked at for a limit.
    pub fn watched_for_limits(&self) -> usize {
        self.quotas.writers.files.lock().len()
    }

    fn limits_bytes(&self, charged: &Charged) -> bool {
        let limited =
            |subject| self.quotas.limits(subject).is_some_and(|l| (l.bytes.hard, l.bytes.soft) != (0, 0));
        charged.subjects().any(limited)
    }

    /// Limits have changed, or a directory is in a tree now: files that are being written to may have a limit.
    pub(crate) async fn watch_present_writers(&self) -> Result<(), FsError> {
        for entry in self.files.all() {
            if may_be_written(&entry) {
                self.watch_present(&entry.key).await?;
            }
        }
        Ok(())
    }

    async fn watch_present(&self, key: &InodeKey) -> Result<(), FsError> {
        let namespace = &self.namespace;
        match self.read(|txn| Box::pin(async move { namespace.getattr(&txn, key).await })).await {
            Ok(inode) => self.watch_writers(&inode),
            Err(FsError::Stale) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// A file was given to somebody else, or has moved into another tree: whoever writes to it may have a limit now.
    pub(crate) async fn watch_moved(&self, key: &InodeKey) {
        if !self.quotas.any() || !self.files.get(file_id(key)).is_some_and(|entry| may_be_written(&entry)) {
            return;
        }
        // Not everybody's future shall have room for it.
        if Box::pin(self.watch_present(key)).await.is_err() {
            // It is done, and who has limits is not known: to look at one file too many does no harm.
            self.quotas.writers.files.lock().insert(key.fileid, Watched { key: *key, charged: None });
        }
    }

    /// The end of a transaction that may have found that a file has grown by what was written to data servers.
    ///
    /// # Errors
    /// Those of the transaction.
    pub(crate) fn found_size(
        self: &Arc<Self>,
        done: Result<(Pending<SizeCommitted>, u64), FsError>,
    ) -> Result<SizeCommitted, FsError> {
        if done.as_ref().is_err_and(FsError::maybe_committed) {
            // Some of it may be charged.
            self.quotas.forget();
        }
        let (pending, version) = done?;
        let done = pending.resolve(version);
        self.has_grown(&done.inode, done.added);
        Ok(done)
    }

    fn has_grown(self: &Arc<Self>, inode: &Inode, bytes: u64) {
        let charged = Charged::of(&inode.record);
        if bytes == 0 || !self.quotas.any() || !self.limits_bytes(&charged) {
            return;
        }
        let now = self.seconds();
        let mut doubtful = false;
        {
            let mut book = self.quotas.book.lock();
            for subject in charged.subjects() {
                book.note(subject, Amount::new(0, bytes));
                let Some(limits) = self.quotas.limits(subject) else { continue };
                doubtful |= !book.has_room(subject, &limits, now);
            }
        }
        if doubtful {
            self.spawn(enforce(Arc::clone(self), inode.key, charged));
        }
    }
}

/// Takes back the layouts of whoever has reached a limit: all of them once, and after that those that grow still.
async fn enforce(mds: Arc<Mds>, key: InodeKey, charged: Charged) {
    for subject in charged.subjects() {
        // As somebody whom every limit binds: that this file's writer may be root is not known here.
        let nobody = Credential { uid: u32::MAX, gid: u32::MAX, gids: Vec::new() };
        let room = mds.find_room(&nobody, [subject].into_iter(), Amount::new(0, 1)).await;
        let writers = &mds.quotas.writers;
        match room {
            Ok(Ok(_)) => writers.has_room(subject),
            Ok(Err(_)) => {
                recall(&mds, &key);
                let first = writers.full.lock().insert(subject);
                if first {
                    recall_all(&mds, subject).await;
                }
            }
            Err(error) => tracing::debug!(%error, "cannot look at what is used; trying again"),
        }
    }
}

async fn recall_all(mds: &Arc<Mds>, subject: Subject) {
    let (kind, id) = subject.code();
    tracing::info!(kind, id, "a quota is used up: layouts for writing are recalled");
    let files: Vec<InodeKey> = {
        let files = mds.quotas.writers.files.lock();
        files.values().filter(|file| file.may_be_of(subject)).map(|file| file.key).collect()
    };
    let mut under_way = JoinSet::new();
    for key in files {
        while under_way.len() >= WIDTH {
            under_way.join_next().await;
        }
        let mds = Arc::clone(mds);
        under_way.spawn(async move { recall_of(&mds, key, subject).await });
    }
    under_way.join_all().await;
}

/// If it is charged to the subject still.
async fn recall_of(mds: &Arc<Mds>, key: InodeKey, subject: Subject) {
    let namespace = &mds.namespace;
    let inode = mds.read(|txn| Box::pin(async move { namespace.getattr(&txn, &key).await })).await;
    if inode.is_ok_and(|inode| Watched::of(&inode).may_be_of(subject)) {
        recall(mds, &key);
    }
}

fn recall(mds: &Arc<Mds>, key: &InodeKey) {
    if let Some(entry) = mds.files.get(file_id(key)) {
        mds.step(&entry, None, |file, ctx| ((), file.recall_layouts(ctx, LayoutFilter::ReadWrite, false)));
    }
}
