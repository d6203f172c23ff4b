//! EXCHANGE_ID. RFC 8881 §18.35.

use bytes::Bytes;
use sluice_state::Verifier;
use sluice_state::client::{ExchangeId, ImplementationId, StateProtect};
use sluice_xdr::nfs4::{
    EXCHANGE_ID4args, EXCHANGE_ID4res, EXCHANGE_ID4resok, nfs_impl_id4, nfstime4, server_owner4,
    state_protect4_a, verifier4,
};

use crate::clients::{guards, strangers};
use crate::compound::{Context, OpResult};

pub(crate) async fn exchange_id(cx: &mut Context, args: EXCHANGE_ID4args) -> OpResult<EXCHANGE_ID4res> {
    let verifier4(verifier) = args.eia_clientowner.co_verifier;
    let mut request = ExchangeId {
        owner: Bytes::new(),
        verifier: Verifier(verifier),
        caller: cx.caller(),
        flags: args.eia_flags,
        protect: match args.eia_state_protect {
            state_protect4_a::SP4_NONE => StateProtect::None,
            state_protect4_a::SP4_MACH_CRED(ops) => StateProtect::MachCred(guards::asked(&ops)),
            state_protect4_a::SP4_SSV(_) => StateProtect::Ssv,
        },
        implementation: args.eia_client_impl_id.first().map(|id| {
            ImplementationId::new(&id.nii_domain, &id.nii_name, (id.nii_date.seconds, id.nii_date.nseconds))
        }),
        minor_version: cx.minor,
        host: Some(cx.from.address.to_canonical()),
    };
    let mds = &cx.server;
    let (reply, effects) = {
        let mut table = mds.clients.lock();
        request.owner = strangers::owner(cx, &table, &args.eia_clientowner.co_ownerid);
        let index = mds.files.index();
        let has_state = |client| index.has_state(client);
        table.exchange_id(mds.now(), request, &has_state)?
    };
    mds.apply_client(effects).await?;
    Ok(EXCHANGE_ID4res::NFS4_OK(EXCHANGE_ID4resok {
        eir_clientid: reply.client.0,
        eir_sequenceid: reply.seqid,
        eir_flags: reply.flags,
        eir_state_protect: guards::told(reply.protection),
        // §2.10.4: equal owners and scopes tell clients that addresses lead to one server.
        eir_server_owner: server_owner4 { so_minor_id: 0, so_major_id: identity(cx) },
        eir_server_scope: identity(cx),
        eir_server_impl_id: vec![nfs_impl_id4 {
            nii_domain: Bytes::from_static(b"sluice"),
            nii_name: Bytes::from_static(concat!("Sluice ", env!("CARGO_PKG_VERSION")).as_bytes()),
            nii_date: nfstime4::default(),
        }],
    }))
}

/// The same for every address of this file system's metadata server, and for no other.
fn identity(cx: &Context) -> Bytes {
    let uuid: String =
        cx.server.namespace.superblock().uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{uuid}", cx.server.config.name).into()
}
