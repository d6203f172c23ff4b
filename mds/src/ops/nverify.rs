//! NVERIFY. RFC 8881 §18.15.

use sluice_xdr::nfs4::{NVERIFY4args, NVERIFY4res, nfsstat4};

use super::verify::same;
use crate::compound::{Context, OpResult};

pub(crate) async fn nverify(cx: &mut Context, args: NVERIFY4args) -> OpResult<NVERIFY4res> {
    if same(cx, &args.obj_attributes).await? {
        Err(nfsstat4::NFS4ERR_SAME.into())
    } else {
        Ok(NVERIFY4res { status: nfsstat4::NFS4_OK })
    }
}
