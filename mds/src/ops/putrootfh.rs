//! PUTROOTFH and PUTPUBFH. RFC 8881 §18.21, §18.20: the public filehandle is the root.

use sluice_xdr::nfs4::{PUTPUBFH4res, PUTROOTFH4res, nfsstat4};

use crate::compound::{Context, OpResult};

pub(crate) fn putrootfh(cx: &mut Context) -> OpResult<PUTROOTFH4res> {
    cx.set_current(cx.exports.root(&cx.from));
    Ok(PUTROOTFH4res { status: nfsstat4::NFS4_OK })
}

pub(crate) fn putpubfh(cx: &mut Context) -> OpResult<PUTPUBFH4res> {
    cx.set_current(cx.exports.root(&cx.from));
    Ok(PUTPUBFH4res { status: nfsstat4::NFS4_OK })
}
