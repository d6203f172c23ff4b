//! PUTFH. RFC 8881 §18.19.

use sluice_xdr::nfs4::{PUTFH4args, PUTFH4res, nfsstat4};

use crate::compound::{Context, OpResult};
use crate::error::fs_status;

pub(crate) fn putfh(cx: &mut Context, args: PUTFH4args) -> OpResult<PUTFH4res> {
    let handles = cx.server.namespace.handles();
    let handle = handles.from_wire(&args.object.0).map_err(|error| fs_status(&error))?;
    cx.set_current(handle);
    Ok(PUTFH4res { status: nfsstat4::NFS4_OK })
}
