//! OPENATTR. RFC 8881 §18.17: named attributes are not supported; extended attributes are (RFC 8276).

use sluice_xdr::nfs4::{OPENATTR4args, OPENATTR4res, nfsstat4};

use crate::compound::{Context, OpResult};

pub(crate) fn openattr(_cx: &mut Context, _args: OPENATTR4args) -> OpResult<OPENATTR4res> {
    Err(nfsstat4::NFS4ERR_NOTSUPP.into())
}
