//! BIND_CONN_TO_SESSION. RFC 8881 §18.34.

use sluice_state::session::{BindDirection, BoundDirection};
use sluice_state::{ConnectionId, SessionId};
use sluice_xdr::nfs4::{
    BIND_CONN_TO_SESSION4args, BIND_CONN_TO_SESSION4res, BIND_CONN_TO_SESSION4resok,
    channel_dir_from_client4, channel_dir_from_server4, nfs_opnum4, nfsstat4,
};

use crate::compound::{Context, OpResult};

pub(crate) fn bind_conn_to_session(
    cx: &mut Context,
    args: BIND_CONN_TO_SESSION4args,
) -> OpResult<BIND_CONN_TO_SESSION4res> {
    let entry =
        cx.server.clients.session(SessionId(args.bctsa_sessid.0)).ok_or(nfsstat4::NFS4ERR_BADSESSION)?;
    cx.must_be_let_in(nfs_opnum4::OP_BIND_CONN_TO_SESSION, &entry)?;
    let connection = ConnectionId(cx.connection.id());
    let direction = match args.bctsa_dir {
        channel_dir_from_client4::CDFC4_FORE => BindDirection::Fore,
        channel_dir_from_client4::CDFC4_BACK => BindDirection::Back,
        channel_dir_from_client4::CDFC4_FORE_OR_BOTH => BindDirection::ForeOrBoth,
        channel_dir_from_client4::CDFC4_BACK_OR_BOTH => BindDirection::BackOrBoth,
        _ => return Err(nfsstat4::NFS4ERR_INVAL.into()),
    };
    let (known, bound) = {
        let mut session = entry.lock();
        (session.is_bound(connection), session.bind(connection, direction)?)
    };
    if !known {
        cx.server.watch_connection(&cx.connection, &entry);
    }
    Ok(BIND_CONN_TO_SESSION4res::NFS4_OK(BIND_CONN_TO_SESSION4resok {
        bctsr_sessid: args.bctsa_sessid,
        bctsr_dir: match bound {
            BoundDirection::Fore => channel_dir_from_server4::CDFS4_FORE,
            BoundDirection::Back => channel_dir_from_server4::CDFS4_BACK,
            BoundDirection::Both => channel_dir_from_server4::CDFS4_BOTH,
        },
        bctsr_use_conn_in_rdma_mode: false,
    }))
}
