//! DESTROY_SESSION. RFC 8881 §18.37.

use sluice_state::{ConnectionId, SessionId};
use sluice_xdr::nfs4::{DESTROY_SESSION4args, DESTROY_SESSION4res, nfs_opnum4, nfsstat4};

use crate::compound::{Context, OpResult};

pub(crate) async fn destroy_session(
    cx: &mut Context,
    args: DESTROY_SESSION4args,
) -> OpResult<DESTROY_SESSION4res> {
    let id = SessionId(args.dsa_sessionid.0);
    let mds = &cx.server;
    let entry = mds.clients.session(id).ok_or(nfsstat4::NFS4ERR_BADSESSION)?;
    cx.must_be_let_in(nfs_opnum4::OP_DESTROY_SESSION, &entry)?;
    let connection = ConnectionId(cx.connection.id());
    let own = cx.session.as_ref().filter(|session| session.id == id);
    // §18.37.3: in a COMPOUND of the same session it must come last.
    if own.is_some() && cx.index + 1 != cx.count {
        return Err(nfsstat4::NFS4ERR_NOT_ONLY_OP.into());
    }
    let own_slot = own.map(|session| session.slot);
    entry.lock().destroy(connection, own_slot)?;
    let effects = mds.clients.lock().destroy_session(id)?;
    mds.apply_client(effects).await?;
    Ok(DESTROY_SESSION4res { dsr_status: nfsstat4::NFS4_OK })
}
