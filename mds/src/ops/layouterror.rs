//! LAYOUTERROR. RFC 7862 §15.6, RFC 8435 §9.

use sluice_xdr::nfs4::{LAYOUTERROR4args, LAYOUTERROR4res, nfsstat4};

use super::layoutreturn::regular;
use crate::compound::{Context, OpResult};
use crate::layout::reports;

pub(crate) async fn layouterror(cx: &mut Context, args: LAYOUTERROR4args) -> OpResult<LAYOUTERROR4res> {
    regular(cx).await?;
    let stateid = cx.stateid(&args.lea_stateid)?;
    let entry = cx.state_entry(&stateid)?;
    reports::take(&cx.server, &entry, cx.client()?, &args.lea_errors);
    Ok(LAYOUTERROR4res { ler_status: nfsstat4::NFS4_OK })
}
