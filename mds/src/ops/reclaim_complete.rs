//! RECLAIM_COMPLETE. RFC 8881 §18.51.

use sluice_xdr::nfs4::{RECLAIM_COMPLETE4args, RECLAIM_COMPLETE4res, nfsstat4};

use crate::compound::{Context, OpResult};

pub(crate) async fn reclaim_complete(
    cx: &mut Context,
    args: RECLAIM_COMPLETE4args,
) -> OpResult<RECLAIM_COMPLETE4res> {
    // §18.51.3: with rca_one_fs the current filehandle names the file system.
    if args.rca_one_fs {
        cx.current()?;
    }
    let client = cx.client()?;
    let mds = &cx.server;
    let effects = mds.clients.lock().reclaim_complete(client, args.rca_one_fs)?;
    if !effects.is_empty() {
        mds.persist_client(&effects).await?;
        let mut clients = mds.clients.lock();
        clients.finish_reclaim_complete(client);
        // Others wait for the last one.
        if clients.grace().in_grace() && clients.grace().pending() == 0 {
            mds.housekeeping.notify_one();
        }
    }
    Ok(RECLAIM_COMPLETE4res { rcr_status: nfsstat4::NFS4_OK })
}
