//! LAYOUTERROR. RFC 7862 §15.6, RFC 8435 §9.

use sluice_xdr::nfs4::{LAYOUTERROR4args, LAYOUTERROR4res, nfsstat4};

use super::layoutreturn::{cut_off, may_be_on_its_way, may_have_written, regular};
use crate::compound::{Context, OpResult};
use crate::layout::{heal, reports};

pub(crate) async fn layouterror(cx: &mut Context, args: LAYOUTERROR4args) -> OpResult<LAYOUTERROR4res> {
    regular(cx).await?;
    let stateid = cx.stateid(&args.lea_stateid)?;
    let entry = cx.state_entry(&stateid)?;
    let client = cx.client()?;
    reports::take(&cx.server, &entry, client, &args.lea_errors);
    if args.lea_errors.iter().any(may_have_written) && entry.peek(|file| file.is_written_by(client)) {
        // Linux does not say it again when it returns the layout, and may never send again what only some mirrors took.
        let inode = cx.inode().await?;
        heal::suspect(&cx.server, &inode).await?;
        // Linux may send the write through this server before it returns the layout.
        if args.lea_errors.iter().any(may_be_on_its_way) {
            cut_off(&cx.server, &entry, client);
        }
    }
    Ok(LAYOUTERROR4res { ler_status: nfsstat4::NFS4_OK })
}
