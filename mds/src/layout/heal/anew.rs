//! What is filled begins anew under another name: where it goes elsewhere, where what was filled is in the way, and where its data
//! server takes none of its name, because one was removed there.

use std::sync::Arc;

use sluice_namespace::{DataFile, DataFileId, FsError, InodeKey, StoreId};

use super::plan::Pair;
use crate::layout::garbage;
use crate::server::Mds;

/// What was filled before is removed soon; where the plan has changed meanwhile nothing was done.
pub(super) fn changed<T>(mds: &Arc<Mds>, done: Result<T, FsError>) -> Result<(), FsError> {
    match done {
        Ok(_) => garbage::poke(mds),
        Err(FsError::Invalid) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// It is filled anew, at this data server, unless it has been planned anew before. What was filled in its place is removed.
///
/// # Errors
/// What the metadata store says.
pub(super) async fn plan(mds: &Arc<Mds>, key: &InodeKey, pair: &Pair, store: StoreId) -> Result<(), FsError> {
    let (namespace, old) = (&mds.namespace, pair.old.slot);
    let planned = mds.write(|mut txn| {
        Box::pin(async move {
            let row = namespace.heal(&txn, key.fileid).await?;
            let now = row.and_then(|row| row.replacement(old)).map(|new| (new.store, new.slot));
            if now == pair.replaces().then_some((pair.target.store, pair.target.slot)) {
                namespace.plan_replacement(&mut txn, key, old, store).await?;
            }
            Ok(())
        })
    });
    changed(mds, planned.await)
}

/// Its data server takes no data file that is named like one that was removed there. Numbers are not given again, but releases
/// until November 2026 did, and an older copy of the metadata does not know which were.
///
/// # Errors
/// What the metadata store says.
pub(super) async fn rename(
    mds: &Arc<Mds>,
    key: &InodeKey,
    id: DataFileId,
    pair: &Pair,
) -> Result<(), FsError> {
    let store = pair.target.store;
    tracing::info!(
        file = key.fileid.0,
        data_server = store.0,
        slot = pair.target.slot,
        "a data server refuses the name of what is to be filled: it gets another one"
    );
    if pair.replaces() {
        return plan(mds, key, pair, store).await;
    }
    let namespace = &mds.namespace;
    let raised = mds.write(|mut txn| {
        Box::pin(async move {
            let inode = namespace.getattr(&txn, key).await?;
            let layout = inode.layout().filter(|layout| layout.id == id);
            // A mirror that missed all writes: nobody has a handle of it.
            if layout.is_some_and(|layout| layout.data_files().any(|file| is_it(file, &pair.old))) {
                namespace.raise_generation(&mut txn, key, &[pair.old.slot]).await?;
            }
            Ok(())
        })
    });
    changed(mds, raised.await)
}

fn is_it(file: &DataFile, old: &DataFile) -> bool {
    let name = |file: &DataFile| (file.store, file.slot, file.generation);
    file.stale && name(file) == name(old)
}
