//! DESTROY_CLIENTID. RFC 8881 §18.50.

use sluice_state::ClientId;
use sluice_xdr::nfs4::{DESTROY_CLIENTID4args, DESTROY_CLIENTID4res, nfs_opnum4, nfsstat4};

use crate::compound::{Context, OpResult};

pub(crate) async fn destroy_clientid(
    cx: &mut Context,
    args: DESTROY_CLIENTID4args,
) -> OpResult<DESTROY_CLIENTID4res> {
    let client = ClientId(args.dca_clientid);
    cx.must_be_let_to(nfs_opnum4::OP_DESTROY_CLIENTID, client)?;
    let mds = &cx.server;
    let has_state = mds.files.index().has_state(client);
    let effects = mds.clients.lock().destroy_clientid(client, has_state)?;
    mds.apply_client(effects).await?;
    Ok(DESTROY_CLIENTID4res { dcr_status: nfsstat4::NFS4_OK })
}
