//! SAVEFH. RFC 8881 §18.28: the current stateid is saved with the filehandle (§16.2.3.1.2).

use sluice_xdr::nfs4::{SAVEFH4res, nfsstat4};

use crate::compound::{Context, OpResult};

pub(crate) fn savefh(cx: &mut Context) -> OpResult<SAVEFH4res> {
    cx.saved = Some(cx.current()?);
    cx.saved_stateid = cx.current_stateid;
    Ok(SAVEFH4res { status: nfsstat4::NFS4_OK })
}
