//! CREATE_SESSION. RFC 8881 §18.36.

use std::sync::Arc;

use bytes::Bytes;
use sluice_state::ClientId;
use sluice_state::ConnectionId;
use sluice_state::client::{CreateSession, CreateSessionReply, CreateStep, Error};
use sluice_state::session::{CbSecurity, ChannelAttrs};
use sluice_xdr::nfs4::{
    CREATE_SESSION4args, CREATE_SESSION4res, CREATE_SESSION4resok, callback_sec_parms4, channel_attrs4,
    nfs_opnum4, sessionid4,
};

use crate::callback;
use crate::compound::{Context, OpResult};

pub(crate) async fn create_session(
    cx: &mut Context,
    args: CREATE_SESSION4args,
) -> OpResult<CREATE_SESSION4res> {
    let request = CreateSession {
        client: ClientId(args.csa_clientid),
        seqid: args.csa_sequence,
        flags: args.csa_flags,
        fore: attrs(&args.csa_fore_chan_attrs),
        back: attrs(&args.csa_back_chan_attrs),
        program: args.csa_cb_program,
        security: args.csa_sec_parms.iter().map(security).collect(),
        principal: cx.principal(),
    };
    // Nor does he hear what CREATE_SESSION was answered last.
    cx.must_be_let_to(nfs_opnum4::OP_CREATE_SESSION, request.client)?;
    let mds = &cx.server;
    let connection = ConnectionId(cx.connection.id());
    let random = u32::from_be_bytes(mds.env.random.array());
    let pending = loop {
        let (step, full) = {
            let mut table = mds.clients.lock();
            (table.create_session(mds.now(), connection, &request, random), table.is_full())
        };
        match step {
            Ok(CreateStep::Pending(pending)) => break pending,
            Ok(CreateStep::Replay(reply)) => return Ok(CREATE_SESSION4res::NFS4_OK(resok(&reply))),
            Ok(CreateStep::MakeWay(effects)) => mds.apply_client(effects).await?,
            // Those whose lease is over are courteous, and not in the way (§8.3).
            Err(Error::Nospc) if full && mds.expel_longest_silent(|_| true).await => {}
            Err(error) => return Err(error.into()),
        }
    };
    let persisted = mds.persist_client(&pending.effects).await;
    let created = mds.clients.lock().finish_create_session(mds.now(), *pending, persisted.is_ok());
    persisted?;
    let created = created?;
    let client = created.session.client().id();
    let info = mds.clients.lock().info(mds.now(), client);
    if let Some(info) = &info {
        let kernel = info.implementation.as_ref().map(|id| String::from_utf8_lossy(&id.name).into_owned());
        tracing::info!(
            client = ?info.id,
            // Quoted: a line break in it would begin a line of its own.
            name = ?String::from_utf8_lossy(&info.owner),
            address = %cx.connection.peer(),
            kernel = kernel.as_deref().unwrap_or("not told"),
            minor_version = info.minor_version,
            stripes = info.supports_stripes(),
            machine_credential = info.protection.is_some(),
            "a client began a session"
        );
    }
    // Before anybody finds the session, and holds something by it.
    mds.is_made_at(client, cx.from.address);
    let entry = mds.clients.insert(created.session, Some(cx.from.address), info.as_ref());
    mds.watch_connection(&cx.connection, &entry);
    mds.spawn(callback::probe(Arc::clone(mds), entry));
    mds.apply_volatile(created.effects);
    Ok(CREATE_SESSION4res::NFS4_OK(resok(&created.reply)))
}

fn attrs(wire: &channel_attrs4) -> ChannelAttrs {
    ChannelAttrs {
        max_request: wire.ca_maxrequestsize,
        max_response: wire.ca_maxresponsesize,
        max_response_cached: wire.ca_maxresponsesize_cached,
        max_ops: wire.ca_maxoperations,
        max_requests: wire.ca_maxrequests,
    }
}

fn wire_attrs(attrs: &ChannelAttrs) -> channel_attrs4 {
    channel_attrs4 {
        ca_headerpadsize: 0,
        ca_maxrequestsize: attrs.max_request,
        ca_maxresponsesize: attrs.max_response,
        ca_maxresponsesize_cached: attrs.max_response_cached,
        ca_maxoperations: attrs.max_ops,
        ca_maxrequests: attrs.max_requests,
        ca_rdma_ird: Vec::new(),
    }
}

/// What the client offers for callbacks, in memory of its own.
pub(super) fn security(offer: &callback_sec_parms4) -> CbSecurity {
    match offer {
        callback_sec_parms4::AUTH_NONE => CbSecurity::None,
        callback_sec_parms4::AUTH_SYS(sys) => CbSecurity::Sys {
            stamp: sys.stamp,
            machine: Bytes::copy_from_slice(&sys.machinename),
            uid: sys.uid,
            gid: sys.gid,
            gids: sys.gids.clone(),
        },
        callback_sec_parms4::RPCSEC_GSS(_) => CbSecurity::Gss,
    }
}

fn resok(reply: &CreateSessionReply) -> CREATE_SESSION4resok {
    CREATE_SESSION4resok {
        csr_sessionid: sessionid4(reply.session.0),
        csr_sequence: reply.seqid,
        csr_flags: reply.flags,
        csr_fore_chan_attrs: wire_attrs(&reply.fore),
        csr_back_chan_attrs: wire_attrs(&reply.back),
    }
}
