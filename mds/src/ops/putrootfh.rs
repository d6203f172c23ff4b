//! PUTROOTFH and PUTPUBFH. RFC 8881 §18.21, §18.20: the public filehandle is the root.

use sluice_namespace::{FileHandle, InodeKey};
use sluice_xdr::nfs4::{PUTPUBFH4res, PUTROOTFH4res, nfsstat4};

use crate::compound::{Context, OpResult};

const ROOT: FileHandle = FileHandle { export: 0, inode: InodeKey::ROOT };

pub(crate) async fn putrootfh(cx: &mut Context) -> OpResult<PUTROOTFH4res> {
    cx.set_current(ROOT);
    Ok(PUTROOTFH4res { status: nfsstat4::NFS4_OK })
}

pub(crate) async fn putpubfh(cx: &mut Context) -> OpResult<PUTPUBFH4res> {
    cx.set_current(ROOT);
    Ok(PUTPUBFH4res { status: nfsstat4::NFS4_OK })
}
