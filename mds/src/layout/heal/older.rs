//! A data server whose store is an older copy of itself (`dsctl/tide.rs`) is to go on with that. What it holds of files that have
//! another mirror counts as having missed writes, before it is let in, and is healed from that one; whom it refused since the
//! copy, it does not know: no handle of before is taken there.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use sluice_env::{BoxFuture, Elapsed, Monotonic};
use sluice_namespace::stable_storage::{Tide, put_tide, tide};
use sluice_namespace::{DataFile, DataFileId, FsError, Inode, InodeKey, Layout, StoreId};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::leave::leave_others;
use super::rebuild::in_use;
use crate::dsctl::{OlderStore, StoreHandle, epochs};
use crate::layout::census;
use crate::layout::drain::change::Refusal;
use crate::server::Mds;

/// Files at once.
const WIDTH: usize = 8;
/// How long somebody who asks waits for a word.
const STRETCH: Duration = Duration::from_secs(2);
/// How much longer files are waited for that were begun with by then.
const GRACE: Duration = Duration::from_secs(1);

/// How far all files have been looked at for one copy that a data server was refused with. Lost with the server: whoever asks again
/// begins anew.
#[derive(Debug)]
pub(crate) struct Accepting {
    copy: Copied,
    after: Option<DataFileId>,
    /// The end was reached.
    walked: bool,
    seen: u64,
    /// Files that are healed from another mirror.
    files: u64,
    /// To be looked at again.
    again: Vec<InodeKey>,
    /// For what becomes of files that were begun with; that goes on without them.
    waiting: JoinSet<(InodeKey, Option<bool>)>,
}

/// Which one it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Copied {
    store: StoreId,
    older: OlderStore,
}

impl Copied {
    fn of(handle: &StoreHandle) -> Option<Self> {
        Some(Self { store: handle.id, older: handle.older()? })
    }

    /// The data server was not let in meanwhile: what it was then written and healed would not have been looked at.
    fn is_refused(self, mds: &Mds) -> bool {
        mds.data_servers.get(self.store).and_then(|handle| handle.older()) == Some(self.older)
    }
}

/// What was accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accepted {
    pub(crate) mark: u64,
    pub(crate) files: u64,
}

/// Has a data server go on with the older copy that it was refused with.
///
/// # Errors
/// Why not, or not yet: whoever asks again has it go on.
pub(crate) async fn accept(mds: &Arc<Mds>, id: StoreId) -> Result<Accepted, Refusal> {
    let handle = mds.data_servers.get(id).filter(|store| !store.is_removed());
    let none = || Refusal::No(format!("there is no data server {}: sluice ds list shows them", id.0));
    let handle = handle.ok_or_else(none)?;
    let Some(copy) = Copied::of(&handle) else {
        return Err(Refusal::No(format!(
            "data server {} was not refused as an older copy of its store since the metadata server began: start it, and look at `sluice status`",
            id.0
        )));
    };
    // Until then it may serve, and others may be sent there.
    if !census::is_lost(mds, &handle) {
        return Err(Refusal::NotYet("waiting until nobody counts on it any more".to_owned()));
    }
    let Ok(mut place) = mds.heals.accepting.try_lock() else {
        return Err(Refusal::NotYet("another command is at it".to_owned()));
    };
    let mut walk = Accepting::resume(place.take(), copy);
    let done = walk.go_on(mds).await;
    let files = walk.files;
    *place = Some(walk);
    done?;
    let Some(before) = epochs::set_apart(mds).await? else {
        return Err(Refusal::NotYet("waiting for layouts of before to come back".to_owned()));
    };
    // What was looked at may be good again since, and have missed writes again.
    if !copy.is_refused(mds) {
        return Err(Refusal::NotYet("the data server was started on another copy meanwhile".to_owned()));
    }
    settle(mds, copy, before + 1).await?;
    *place = None;
    tracing::warn!(
        data_server = id.0,
        mark = copy.older.mark,
        files,
        "a data server goes on with an older copy of its store"
    );
    Ok(Accepted { mark: copy.older.mark, files })
}

/// It is let in the next time that it asks.
async fn settle(mds: &Arc<Mds>, copy: Copied, from_epoch: u32) -> Result<(), FsError> {
    let Copied { store, older: OlderStore { mark, newest, .. } } = copy;
    let accepted = mds.write_again(|mut txn| {
        Box::pin(async move {
            // Without a row, or with a newer one, it is let in already.
            if let Some(row) = tide(&txn, store).await?.filter(|row| row.mark == newest) {
                put_tide(&mut txn, &Tide { accepted: Some(mark), from_epoch, ..row });
            }
            Ok(())
        })
    });
    accepted.await.map(drop)
}

impl Accepting {
    /// Goes on with what there is for the same copy, or begins.
    fn resume(place: Option<Self>, copy: Copied) -> Self {
        let fresh = || Self {
            copy,
            after: None,
            walked: false,
            seen: 0,
            files: 0,
            again: Vec::new(),
            waiting: JoinSet::new(),
        };
        place.filter(|walk| walk.copy == copy).unwrap_or_else(fresh)
    }

    /// Looks at files for a while.
    async fn go_on(&mut self, mds: &Arc<Mds>) -> Result<(), Refusal> {
        let until = mds.env.clock.now() + STRETCH;
        while !self.walked {
            match census::page(mds, self.after).await? {
                None => self.walked = true,
                Some((last, files)) => {
                    let mirrored = files.iter().filter(|inode| {
                        inode
                            .layout()
                            .is_some_and(|layout| !older_mirrors(mds, layout, self.copy.store).is_empty())
                    });
                    let keys: Vec<InodeKey> = mirrored.map(|inode| inode.key).collect();
                    self.after = Some(last);
                    self.leave(mds, keys, until).await;
                    self.seen += u64::try_from(files.len()).unwrap_or(0);
                }
            }
            if mds.env.clock.now() >= until && !self.walked {
                return Err(Refusal::NotYet(format!("looking at what it holds: {} files so far", self.seen)));
            }
        }
        let again = std::mem::take(&mut self.again);
        self.leave(mds, again, until).await;
        match self.again.len() + self.waiting.len() {
            0 => Ok(()),
            held => Err(Refusal::NotYet(format!("{held} files are in use, and looked at again"))),
        }
    }

    /// No file is begun with after `until`; those that were by then are waited for a little longer, and by whoever asks again.
    async fn leave(&mut self, mds: &Arc<Mds>, keys: Vec<InodeKey>, until: Monotonic) {
        let mut keys = keys.into_iter();
        loop {
            let now = mds.env.clock.now();
            if now >= until {
                self.again.extend(keys.by_ref());
            }
            while let Some(key) = (self.waiting.len() < WIDTH).then(|| keys.next()).flatten() {
                self.begin(mds, key);
            }
            let wait = (until + GRACE).since(now);
            match mds.env.clock.timeout(wait, self.waiting.join_next()).await {
                Ok(None) => return,
                Ok(Some(Ok((_, Some(left))))) => self.files += u64::from(left),
                Ok(Some(Ok((key, None)))) => self.again.push(key),
                // What became of that one is not known: all are looked at again.
                Ok(Some(Err(_))) => (self.after, self.walked) = (None, false),
                Err(Elapsed) => {
                    self.again.extend(keys);
                    return;
                }
            }
        }
    }

    /// It is not ended halfway where nobody waits for it any more.
    fn begin(&mut self, mds: &Arc<Mds>, key: InodeKey) {
        let (done, outcome) = oneshot::channel();
        let (inner, copy) = (Arc::clone(mds), self.copy);
        mds.spawn(async move {
            // Whoever asked may be gone.
            let _ = done.send(leave_one(inner, key, copy).await);
        });
        self.waiting.spawn(async move { (key, outcome.await.ok().flatten()) });
    }
}

/// Whether something of it was left behind; `None`: it is to be looked at again.
async fn leave_one(mds: Arc<Mds>, key: InodeKey, copy: Copied) -> Option<bool> {
    let inner = Arc::clone(&mds);
    let others = move |inode: Inode| -> BoxFuture<'static, Result<Vec<DataFile>, Infallible>> {
        let mds = Arc::clone(&inner);
        Box::pin(async move {
            // One that is let in has what it had.
            let layout = inode.layout().filter(|_| copy.is_refused(&mds));
            Ok(layout.map(|layout| older_mirrors(&mds, layout, copy.store)).unwrap_or_default())
        })
    };
    match leave_others(&mds, key, others).await {
        Ok(Ok(left)) => Some(left > 0),
        Err(FsError::Stale) => Some(false),
        Err(error) => {
            tracing::debug!(%error, file = key.fileid.0, "an older mirror is not left behind yet");
            None
        }
    }
}

/// What the data server holds of a file and another one holds as well, here or away: that one is the truth.
fn older_mirrors(mds: &Mds, layout: &Layout, store: StoreId) -> Vec<DataFile> {
    let other =
        |file: &&DataFile| file.store != store && !file.stale && !mds.data_servers.is_removed(file.store);
    in_use(layout)
        .flat_map(|component| component.slots.chunks(component.mirrors.max(1).into()))
        .filter(|column| column.iter().any(|file| other(&file)))
        .flat_map(|column| column.iter().filter(|file| file.store == store && !file.stale))
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_is_gone_on_with_for_the_same_copy_only() {
        let older = OlderStore { mark: 3, newest: 5, told: 0, let_in: 0 };
        let copy = Copied { store: StoreId(1), older };
        let resumed = |next| {
            let walk = Accepting { walked: true, files: 7, ..Accepting::resume(None, copy) };
            let walk = Accepting::resume(Some(walk), next);
            assert_eq!(walk.copy, next);
            (walk.walked, walk.files)
        };
        assert_eq!(resumed(copy), (true, 7));
        for other in [
            Copied { store: StoreId(2), ..copy },
            Copied { older: OlderStore { mark: 2, ..older }, ..copy },
            Copied { older: OlderStore { newest: 6, ..older }, ..copy },
            Copied { older: OlderStore { let_in: 1, ..older }, ..copy },
        ] {
            assert_eq!(resumed(other), (false, 0));
        }
    }
}
