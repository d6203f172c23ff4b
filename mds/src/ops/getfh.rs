//! GETFH. RFC 8881 §18.8.

use sluice_xdr::nfs4::{GETFH4res, GETFH4resok, nfs_fh4};

use crate::compound::{Context, OpResult};

pub(crate) fn getfh(cx: &mut Context) -> OpResult<GETFH4res> {
    let object = nfs_fh4(cx.server.namespace.handles().to_wire(&cx.current()?));
    Ok(GETFH4res::NFS4_OK(GETFH4resok { object }))
}
