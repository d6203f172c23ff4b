//! DS_TRUNCATE: no data file is longer than its file.

use std::collections::BTreeSet;
use std::sync::Arc;

use sluice_namespace::{DataFile, DataFileId, Layout, StoreId};
use sluice_xdr::control::{DS_TRUNCATE, DS_TRUNCATE_args};
use sluice_xdr::nfs4::nfsstat4;

use super::io;
use super::orders::{order, wire};
use crate::server::Mds;

/// The data files that a truncation has cut: what is written there since then belongs to the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cut {
    done: BTreeSet<(DataFileId, StoreId, u16, u16)>,
    /// A data server that is here, and has failed to cut what is left of a part that only it has.
    pub(crate) refused: Option<StoreId>,
}

impl Cut {
    fn name(id: DataFileId, file: &DataFile) -> (DataFileId, StoreId, u16, u16) {
        (id, file.store, file.slot, file.generation)
    }
}

/// Truncates every data file of `layout` that is not `cut` yet, so that no byte at or above `size` stays: all that can be, whatever
/// becomes of others, for the sooner it is done the less is written meanwhile.
///
/// # Errors
/// DELAY when a data server cannot be reached; which are cut is noted.
pub(crate) async fn truncate(
    mds: &Arc<Mds>,
    layout: &Layout,
    size: u64,
    cut: &mut Cut,
) -> Result<(), nfsstat4> {
    let mut done = Ok(());
    let mut silent = BTreeSet::new();
    cut.refused = None;
    for column in layout.columns() {
        let good = column.iter().filter(|file| !file.stale).count();
        // One that is stale is cut when it is healed; what was removed is gone.
        for file in column.iter().filter(|file| !file.stale && !mds.data_servers.is_removed(file.store)) {
            let name = Cut::name(layout.id, file);
            // One that does not answer is not waited for twice.
            if cut.done.contains(&name) || silent.contains(&file.store) {
                continue;
            }
            let Err(status) = truncate_one(mds, layout.id, file, size).await else {
                cut.done.insert(name);
                continue;
            };
            done = done.and(Err(status));
            if status == nfsstat4::NFS4ERR_DELAY {
                silent.insert(file.store);
            } else if status == nfsstat4::NFS4ERR_IO && !io::hopeless(mds, file.store) {
                match mds.data_servers.get(file.store).filter(|_| good > 1) {
                    // As a WRITE through this server: others are cut without it, in a moment.
                    Some(store) => store.refused(layout.id, file.slot, mds.now()),
                    None => cut.refused = Some(file.store),
                }
            }
        }
    }
    done
}

async fn truncate_one(mds: &Arc<Mds>, id: DataFileId, file: &DataFile, size: u64) -> Result<(), nfsstat4> {
    let (caller, target) = (mds.data_servers.caller(), wire(id, file));
    let args = DS_TRUNCATE_args { caller, target, size, logical_size: size };
    order(mds, file.store, DS_TRUNCATE, &args).await
}
