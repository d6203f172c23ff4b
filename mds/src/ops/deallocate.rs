//! DEALLOCATE. RFC 7862 §15.4: the range reads as zeros, the size stays.

use sluice_xdr::nfs4::{DEALLOCATE4args, DEALLOCATE4res, nfs_resop4, nfsstat4};

use super::allocate::{Change, reshape};
use super::lock::must_be_file;
use super::read::{bounded, permit_io};
use crate::compound::{Context, OpResult};

pub(crate) async fn deallocate(cx: &mut Context, args: DEALLOCATE4args) -> OpResult<DEALLOCATE4res> {
    bounded(args.da_offset, args.da_length)?;
    must_be_file(cx).await?;
    let stateid = cx.stateid(&args.da_stateid)?;
    permit_io(cx, &stateid, true).await?;
    let answer = DEALLOCATE4res { dr_status: nfsstat4::NFS4_OK };
    if args.da_length > 0 {
        let change = Change { offset: args.da_offset, length: args.da_length, end: None };
        reshape(cx, change, &nfs_resop4::OP_DEALLOCATE(answer)).await?;
    }
    Ok(answer)
}
