//! Data servers that a clone needs and that are not here. One that may only be restarting is waited for; a mirror that is
//! given up is left behind, and the client copies: it would send a CLONE that is answered DELAY again for ever.

use std::sync::Arc;

use sluice_namespace::{DataFile, Inode, Layout};
use sluice_xdr::nfs4::nfsstat4;

use super::plan::{Apart, Plan};
use crate::layout::heal::leave;
use crate::server::Mds;

/// Whether all are here that new data files are made at, and one for each part that is copied. `base` is the target, if
/// something of it stays.
///
/// # Errors
/// DELAY where it helps to come again, XDEV where it does not.
pub(super) fn none(
    mds: &Arc<Mds>,
    plan: &Plan,
    source: &Inode,
    base: Option<&Inode>,
) -> Result<(), nfsstat4> {
    let made = plan.pieces.iter().all(|piece| serves(mds, &piece.target.1));
    let has = |part: &Apart| source.layout().is_some_and(|layout| is_readable(mds, layout, part));
    if made && plan.apart.iter().all(has) {
        return Ok(());
    }
    let mut passes = may_pass(mds, source);
    if let Some(base) = base {
        passes |= may_pass(mds, base);
    }
    Err(if passes { nfsstat4::NFS4ERR_DELAY } else { nfsstat4::NFS4ERR_XDEV })
}

fn serves(mds: &Mds, file: &DataFile) -> bool {
    mds.data_servers.get(file.store).is_some_and(|store| store.serves())
}

fn is_readable(mds: &Mds, layout: &Layout, part: &Apart) -> bool {
    let end = part.source_offset + part.length;
    let mut used = layout.components.iter().filter(|c| c.start < end && part.source_offset < c.end);
    used.all(|component| {
        let mut columns = component.slots.chunks(usize::from(component.mirrors.max(1)));
        columns.all(|column| column.iter().any(|file| serves(mds, file)))
    })
}

/// Has mirrors of a file that are given up left behind. False: there are none, and nobody who may be back in a moment.
fn may_pass(mds: &Arc<Mds>, inode: &Inode) -> bool {
    let Some(layout) = inode.layout() else { return false };
    // Noted before it is looked at: it may be given up at this very moment.
    mds.heals.want(inode.key);
    if !leave::away(mds, layout).is_empty() {
        leave::begin(mds, inode.key);
        return true;
    }
    let restarts = |file: &DataFile| {
        mds.data_servers.get(file.store).is_some_and(|store| !store.serves() && !store.given_up())
    };
    layout.data_files().any(restarts)
}
