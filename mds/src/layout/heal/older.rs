//! A data server whose store is an older copy of itself (`dsctl/tide.rs`) is to go on with that. What it holds of files that have
//! another mirror counts as having missed writes, before it is let in, and is healed from that one; whom it refused since the
//! copy, it does not know: no handle of before is taken there.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use sluice_env::BoxFuture;
use sluice_namespace::stable_storage::{Tide, put_tide, tide};
use sluice_namespace::{DataFile, DataFileId, FsError, Inode, InodeKey, Layout, StoreId};
use tokio::task::JoinSet;

use super::leave::leave_others;
use super::rebuild::in_use;
use crate::dsctl::{StoreHandle, epochs};
use crate::layout::census;
use crate::layout::drain::change::Refusal;
use crate::server::Mds;

/// Files at once.
const WIDTH: usize = 8;
/// How long somebody who asks waits for a word.
const STRETCH: Duration = Duration::from_secs(2);

/// How far all files have been looked at for one data server. Lost with the server: whoever asks again begins anew.
#[derive(Debug)]
pub(crate) struct Accepting {
    store: StoreId,
    after: Option<DataFileId>,
    /// The end was reached.
    walked: bool,
    seen: u64,
    /// Files that are healed from another mirror.
    files: u64,
    /// To be looked at again.
    again: Vec<InodeKey>,
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
    let mut place = mds.heals.accepting.lock().await;
    let handle = mds.data_servers.get(id).filter(|store| !store.is_removed());
    let none = || Refusal::No(format!("there is no data server {}: sluice ds list shows them", id.0));
    let handle = handle.ok_or_else(none)?;
    let Some(older) = mds.data_servers.older_stores.get(&handle.uuid) else {
        return Err(Refusal::No(format!(
            "data server {} was not refused as an older copy of its store since the metadata server began: start it, and look at `sluice status`",
            id.0
        )));
    };
    // Until then it may serve, and others may be sent there.
    if !census::is_lost(mds, &handle) {
        return Err(Refusal::NotYet("waiting until nobody counts on it any more".to_owned()));
    }
    let fresh = || Accepting { store: id, after: None, walked: false, seen: 0, files: 0, again: Vec::new() };
    let mut walk = place.take().filter(|walk| walk.store == id).unwrap_or_else(fresh);
    let done = walk.go_on(mds).await;
    let files = walk.files;
    *place = Some(walk);
    done?;
    let Some(from_epoch) = epochs::begin_for_older(mds).await? else {
        return Err(Refusal::NotYet("waiting for layouts of before to come back".to_owned()));
    };
    settle(mds, &handle, older.mark, from_epoch).await?;
    *place = None;
    tracing::warn!(
        data_server = id.0,
        mark = older.mark,
        files,
        "a data server goes on with an older copy of its store"
    );
    Ok(Accepted { mark: older.mark, files })
}

/// It is let in the next time that it asks.
async fn settle(mds: &Arc<Mds>, handle: &StoreHandle, mark: u64, from_epoch: u32) -> Result<(), FsError> {
    let id = handle.id;
    let accepted = mds.write_again(|mut txn| {
        Box::pin(async move {
            // Without a row it is let in already.
            if let Some(row) = tide(&txn, id).await? {
                put_tide(&mut txn, &Tide { accepted: Some(mark), from_epoch, ..row });
            }
            Ok(())
        })
    });
    accepted.await.map(drop)
}

impl Accepting {
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
                            .is_some_and(|layout| !older_mirrors(mds, layout, self.store).is_empty())
                    });
                    let keys: Vec<InodeKey> = mirrored.map(|inode| inode.key).collect();
                    self.leave(mds, keys).await;
                    self.after = Some(last);
                    self.seen += u64::try_from(files.len()).unwrap_or(0);
                }
            }
            if mds.env.clock.now() >= until && !self.walked {
                return Err(Refusal::NotYet(format!("looking at what it holds: {} files so far", self.seen)));
            }
        }
        let again = std::mem::take(&mut self.again);
        self.leave(mds, again).await;
        match self.again.len() {
            0 => Ok(()),
            held => Err(Refusal::NotYet(format!("{held} files are in use, and looked at again"))),
        }
    }

    async fn leave(&mut self, mds: &Arc<Mds>, keys: Vec<InodeKey>) {
        let mut keys = keys.into_iter();
        let mut tasks = JoinSet::new();
        loop {
            while let Some(key) = (tasks.len() < WIDTH).then(|| keys.next()).flatten() {
                tasks.spawn(leave_one(Arc::clone(mds), key, self.store));
            }
            match tasks.join_next().await {
                None => return,
                Some(Ok(Ok(left))) => self.files += u64::from(left),
                Some(Ok(Err(key))) => self.again.push(key),
                // What became of that one is not known: all are looked at again.
                Some(Err(_)) => (self.after, self.walked) = (None, false),
            }
        }
    }
}

/// Whether something of it was left behind; the file, if it is to be looked at again.
async fn leave_one(mds: Arc<Mds>, key: InodeKey, store: StoreId) -> Result<bool, InodeKey> {
    let inner = Arc::clone(&mds);
    let others = move |inode: Inode| -> BoxFuture<'static, Result<Vec<DataFile>, Infallible>> {
        let mds = Arc::clone(&inner);
        Box::pin(async move {
            Ok(inode.layout().map(|layout| older_mirrors(&mds, layout, store)).unwrap_or_default())
        })
    };
    match leave_others(&mds, key, others).await {
        Ok(Ok(left)) => Ok(left > 0),
        Err(FsError::Stale) => Ok(false),
        Err(error) => {
            tracing::debug!(%error, file = key.fileid.0, "an older mirror is not left behind yet");
            Err(key)
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
