//! LAYOUTSTATS. RFC 7862 §15.7. Counted: clients send it every minute of I/O, also on mounts of minor version 1.

use sluice_xdr::nfs4::{LAYOUTSTATS4args, LAYOUTSTATS4res, nfsstat4};

use super::layoutreturn::regular;
use crate::compound::{Context, OpResult};
use crate::metrics;

pub(crate) async fn layoutstats(cx: &mut Context, args: LAYOUTSTATS4args) -> OpResult<LAYOUTSTATS4res> {
    regular(cx).await?;
    let stateid = cx.stateid(&args.lsa_stateid)?;
    cx.state_entry(&stateid)?;
    metrics::add(&cx.server.metrics.layout_stats, 1);
    Ok(LAYOUTSTATS4res { lsr_status: nfsstat4::NFS4_OK })
}
