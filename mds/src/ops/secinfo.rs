//! SECINFO. RFC 8881 §18.29.

use bytes::Bytes;
use sluice_xdr::nfs4::{
    AUTH_NONE, AUTH_SYS, SECINFO4args, SECINFO4res, nfsstat4, rpc_gss_svc_t, rpcsec_gss_info, secinfo4,
};

use super::remove::find;
use crate::compound::{Context, OpResult};
use crate::exports::Place;

pub(crate) async fn secinfo(cx: &mut Context, args: SECINFO4args) -> OpResult<SECINFO4res> {
    let name = cx.name(&args.name)?;
    let directory = cx.current()?;
    let export = if cx.pseudo().is_some() {
        match cx.exports.lookup(&directory.inode, name.bytes(), &cx.from)? {
            Place::Export(export) => export,
            Place::Pseudo(_) => directory.export,
        }
    } else {
        let found = find(cx, &directory.inode, &name).await?.ok_or(nfsstat4::NFS4ERR_NOENT)?;
        cx.exports.crossing(&found.key, &cx.from).unwrap_or(directory.export)
    };
    let flavours = flavours(cx, export);
    // §2.6.3.1.1.8: SECINFO and SECINFO_NO_NAME use the current filehandle up.
    cx.clear_current();
    Ok(SECINFO4res::NFS4_OK(flavours))
}

/// The Kerberos mechanism, 1.2.840.113554.1.2.2 (RFC 4121 §1), without tag and length: as clients have it, and Linux's server says it.
const KERBEROS: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02];

/// What an export accepts. Linux takes the first that it can (§2.6.3.1): AUTH_SYS where that is good, so that clients without tickets
/// need not say so, and then what has files read and written directly.
pub(super) fn flavours(cx: &Context, export: u32) -> Vec<secinfo4> {
    let mut good = cx.exports.flavours(export, &cx.from);
    if !cx.server.config.kerberos {
        good = good.without_tickets();
    }
    let plain = |good: bool, flavour| good.then_some(secinfo4::Default(flavour));
    let ticket = |good: bool, service| {
        let oid = Bytes::from_static(KERBEROS);
        good.then_some(secinfo4::RPCSEC_GSS(rpcsec_gss_info { oid, qop: 0, service }))
    };
    let all = [
        plain(good.sys, AUTH_SYS),
        ticket(good.krb5, rpc_gss_svc_t::RPC_GSS_SVC_NONE),
        ticket(good.krb5i, rpc_gss_svc_t::RPC_GSS_SVC_INTEGRITY),
        ticket(good.krb5p, rpc_gss_svc_t::RPC_GSS_SVC_PRIVACY),
        plain(good.none, AUTH_NONE),
    ];
    all.into_iter().flatten().collect()
}
