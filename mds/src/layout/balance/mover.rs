//! One file: some of its data files get another data server, and are filled there first.

use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::{FsError, Inode, InodeKey, StoreId};

use super::progress::Progress;
use crate::layout::drain::mover::{carry_out, look};
use crate::layout::{candidates, garbage};
use crate::server::Mds;

/// Attempts in a row; then it stays, until all files are looked at again.
const TRIES: u32 = 5;
const RETRY: Duration = Duration::from_secs(1);

/// A data file that is to be elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) slot: u16,
    pub(super) from: StoreId,
    pub(super) to: StoreId,
    pub(super) bytes: u64,
}

/// What became of a file's.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) key: InodeKey,
    pub(super) moved: Vec<Move>,
    pub(super) stayed: Vec<Move>,
    /// Why some stayed, in words; without it, the file has changed.
    pub(super) why: Option<String>,
}

/// Moves some data files of a file.
pub(super) async fn go(mds: &Arc<Mds>, key: InodeKey, moves: Vec<Move>, progress: &Progress) -> Done {
    match plan(mds, &key, &moves).await {
        Ok(true) => {}
        Ok(false) => return Done { key, moved: Vec::new(), stayed: moves, why: None },
        Err(why) => return Done { key, moved: Vec::new(), stayed: moves, why: Some(why) },
    }
    let mut why = None;
    for attempt in 0..TRIES {
        if attempt > 0 {
            mds.env.clock.sleep(RETRY).await;
        }
        // Whoever heals files has found it.
        while mds.heals.is_busy(key.fileid) {
            mds.env.clock.sleep(RETRY).await;
        }
        why = match fill(mds, key, &moves).await {
            Ok(None) => break,
            Ok(why) => why,
            Err(error) => Some(format!("the metadata store says: {error}")),
        };
        if progress.is_stopped() {
            break;
        }
    }
    let (moved, stayed) = match settle(mds, &key, &moves).await {
        Ok(settled) => settled,
        Err(FsError::Stale | FsError::Invalid) => (Vec::new(), moves),
        Err(error) => {
            why = Some(format!("the metadata store says: {error}"));
            (Vec::new(), moves)
        }
    };
    if !stayed.is_empty() {
        garbage::poke(mds);
    }
    let why = why.filter(|_| !stayed.is_empty());
    Done { key, moved, stayed, why }
}

/// Durably, that they go. False: the file is not as it was.
async fn plan(mds: &Arc<Mds>, key: &InodeKey, moves: &[Move]) -> Result<bool, String> {
    // Kept until it is in the store: a data server that is drained from now on waits for it.
    let chosen = candidates(mds);
    let takes = |store| chosen.list.iter().any(|candidate| candidate.store == store);
    if let Some(no) = moves.iter().find(|one| !takes(one.to)) {
        return Err(format!("data server {} takes nothing new any more", no.to.0));
    }
    let namespace = &mds.namespace;
    let planned = mds.write(|mut txn| {
        Box::pin(async move {
            let inode = namespace.getattr(&txn, key).await?;
            if !moves.iter().all(|one| is_there(&inode, one)) {
                return Ok(false);
            }
            for one in moves {
                namespace.plan_replacement(&mut txn, key, one.slot, one.to).await?;
            }
            Ok(true)
        })
    });
    match planned.await {
        Ok((planned, _)) => Ok(planned),
        Err(FsError::Invalid | FsError::Stale | FsError::WrongType) => Ok(false),
        Err(error) => Err(format!("the metadata store says: {error}")),
    }
}

/// It is where it was, and nothing is the matter with the file.
fn is_there(inode: &Inode, one: &Move) -> bool {
    let here = |file: &sluice_namespace::DataFile| {
        file.slot == one.slot && file.store == one.from && file.materialised
    };
    inode.layout().is_some_and(|layout| !layout.is_degraded() && layout.data_files().any(here))
}

/// One attempt; why not, in words.
async fn fill(mds: &Arc<Mds>, key: InodeKey, moves: &[Move]) -> Result<Option<String>, FsError> {
    let inode = match look(mds, key).await {
        Ok((inode, Some(_))) => inode,
        Ok((_, None)) | Err(FsError::Stale) => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some(layout) = inode.layout() else { return Ok(None) };
    match carry_out(mds, key, layout, |store| moves.iter().any(|one| one.from == store)).await {
        Err(FsError::Stale) => Ok(None),
        filled => filled,
    }
}

/// Those that went; the others stay where they are from now on.
async fn settle(mds: &Arc<Mds>, key: &InodeKey, moves: &[Move]) -> Result<(Vec<Move>, Vec<Move>), FsError> {
    let namespace = &mds.namespace;
    let settled = mds.write_again(|mut txn| {
        Box::pin(async move {
            for one in moves {
                // It may have been sent elsewhere for want of room.
                let row = namespace.heal(&txn, key.fileid).await?;
                if let Some(new) = row.and_then(|row| row.replacement(one.slot)) {
                    namespace.withdraw_replacement(&mut txn, key, one.slot, new.store).await?;
                }
            }
            let inode = namespace.getattr(&txn, key).await?;
            let there = |one: &Move| {
                inode.layout().is_some_and(|layout| layout.data_files().any(|file| file.slot == one.slot))
            };
            Ok(moves.iter().copied().partition(|one| !there(one)))
        })
    });
    settled.await.map(|(settled, _)| settled)
}

/// A move that an earlier incarnation began, to a data server that is given up: it stays, and may go elsewhere.
///
/// # Errors
/// What the metadata store says.
pub(super) async fn free(mds: &Arc<Mds>, inode: &Inode, givers: &[StoreId]) -> Result<(), FsError> {
    let (key, row) = (inode.key, look(mds, inode.key).await?.1);
    let files = inode.layout().into_iter().flat_map(|layout| layout.data_files());
    let gone = |store| mds.data_servers.get(store).is_none_or(|store| store.given_up());
    let serves = |store| mds.data_servers.get(store).is_some_and(|store| store.gives() && store.is_active());
    let mut stuck = Vec::new();
    for file in files.filter(|file| file.moving && !file.stale && givers.contains(&file.store)) {
        let new = row.as_ref().and_then(|row| row.replacement(file.slot));
        if let Some(new) = new.filter(|new| gone(new.store) && serves(file.store)) {
            stuck.push(Move { slot: file.slot, from: file.store, to: new.store, bytes: 0 });
        }
    }
    if !stuck.is_empty() && !mds.heals.is_busy(key.fileid) {
        settle(mds, &key, &stuck).await?;
        garbage::poke(mds);
    }
    Ok(())
}
