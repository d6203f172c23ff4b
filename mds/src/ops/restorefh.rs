//! RESTOREFH. RFC 8881 §18.27: the saved stateid comes back with the filehandle (§16.2.3.1.2).

use sluice_xdr::nfs4::{RESTOREFH4res, nfsstat4};

use crate::compound::{Context, OpResult};

pub(crate) fn restorefh(cx: &mut Context) -> OpResult<RESTOREFH4res> {
    let saved = cx.saved()?;
    let stateid = cx.saved_stateid;
    cx.set_current(saved);
    cx.current_stateid = stateid;
    Ok(RESTOREFH4res { status: nfsstat4::NFS4_OK })
}
