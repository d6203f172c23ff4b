//! OFFLOAD_STATUS. RFC 7862 §15.9: how far a copy to the current file has come.

use sluice_xdr::nfs4::{OFFLOAD_STATUS4args, OFFLOAD_STATUS4res, OFFLOAD_STATUS4resok};

use crate::compound::{Context, OpResult};

pub(crate) fn offload_status(cx: &mut Context, args: OFFLOAD_STATUS4args) -> OpResult<OFFLOAD_STATUS4res> {
    let stateid = cx.stateid(&args.osa_stateid)?;
    let job = cx.server.copies.find(cx.client()?, &cx.current()?, &stateid)?;
    // In this order: what is told as the end counts all of it.
    let ended = job.ended();
    Ok(OFFLOAD_STATUS4res::NFS4_OK(OFFLOAD_STATUS4resok {
        osr_count: job.copied(),
        osr_complete: ended.into_iter().collect(),
    }))
}
