//! CLONE. RFC 7862 §15.13: a range of the current file comes to share what the saved one holds.

use sluice_xdr::nfs4::{CLONE4args, CLONE4res, nfs_resop4, nfsstat4};

use super::copy::ends;
use super::read::bounded;
use crate::compound::{Context, OpResult};
use crate::copies::clone::{Clone, carry_out};

pub(crate) async fn clone(cx: &mut Context, args: CLONE4args) -> OpResult<CLONE4res> {
    bounded(args.cl_src_offset, args.cl_count)?;
    bounded(args.cl_dst_offset, args.cl_count)?;
    let from = (&args.cl_src_stateid, args.cl_src_offset);
    let (caller, source, target) = ends(cx, from, (&args.cl_dst_stateid, args.cl_dst_offset)).await?;
    let want = Clone {
        client: caller.client,
        source: source.handle.inode,
        source_offset: source.offset,
        target: target.handle.inode,
        offset: target.offset,
        count: args.cl_count,
    };
    let answer = CLONE4res { cl_status: nfsstat4::NFS4_OK };
    carry_out(cx, &want, &nfs_resop4::OP_CLONE(answer)).await?;
    Ok(answer)
}
