//! OFFLOAD_CANCEL. RFC 7862 §15.8: a copy to the current file is not wanted any more.

use std::time::Duration;

use sluice_xdr::nfs4::{OFFLOAD_CANCEL4args, OFFLOAD_CANCEL4res, nfsstat4};

use crate::compound::{Context, OpResult};

/// How long the step under way is waited for before the client is told to come again.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) async fn offload_cancel(
    cx: &mut Context,
    args: OFFLOAD_CANCEL4args,
) -> OpResult<OFFLOAD_CANCEL4res> {
    let stateid = cx.stateid(&args.oca_stateid)?;
    let job = cx.server.copies.find(cx.client()?, &cx.current()?, &stateid)?;
    if !job.cancel() {
        return Err(nfsstat4::NFS4ERR_COMPLETE_ALREADY.into());
    }
    // Once it is answered nothing is written any more.
    if cx.server.env.clock.timeout(PATIENCE, job.end()).await.is_err() {
        return Err(nfsstat4::NFS4ERR_DELAY.into());
    }
    cx.server.copies.remove(&job.stateid);
    Ok(OFFLOAD_CANCEL4res { ocr_status: nfsstat4::NFS4_OK })
}
