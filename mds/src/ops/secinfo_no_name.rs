//! SECINFO_NO_NAME. RFC 8881 §18.45.

use sluice_xdr::nfs4::{SECINFO_NO_NAME4args, SECINFO_NO_NAME4res, nfsstat4, secinfo_style4};

use super::lookupp::up;
use super::secinfo::flavours;
use crate::compound::{Context, OpResult};

pub(crate) async fn secinfo_no_name(
    cx: &mut Context,
    args: SECINFO_NO_NAME4args,
) -> OpResult<SECINFO_NO_NAME4res> {
    match args {
        secinfo_style4::SECINFO_STYLE4_CURRENT_FH => {
            cx.inode().await?;
        }
        // The parent must exist, as for LOOKUPP: of the root there is none. What LOOKUPP says WRONGSEC of is what is asked for
        // here (§2.6.3.1.1.4).
        secinfo_style4::SECINFO_STYLE4_PARENT => up(cx).await?,
        _ => return Err(nfsstat4::NFS4ERR_INVAL.into()),
    }
    let flavours = flavours(cx, cx.current()?.export);
    // §2.6.3.1.1.8: SECINFO and SECINFO_NO_NAME use the current filehandle up.
    cx.clear_current();
    Ok(SECINFO_NO_NAME4res::NFS4_OK(flavours))
}
