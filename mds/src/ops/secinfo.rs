//! SECINFO. RFC 8881 §18.29.

use sluice_namespace::stable_storage::Flavours;
use sluice_xdr::nfs4::{AUTH_NONE, AUTH_SYS, SECINFO4args, SECINFO4res, nfsstat4, secinfo4};

use super::remove::find;
use crate::compound::{Context, OpResult};
use crate::exports::Place;

pub(crate) async fn secinfo(cx: &mut Context, args: SECINFO4args) -> OpResult<SECINFO4res> {
    let name = cx.name(&args.name)?;
    let directory = cx.current()?;
    let export = if cx.pseudo().is_some() {
        match cx.exports.lookup(&directory.inode, name.bytes(), cx.from)? {
            Place::Export(export) => export,
            Place::Pseudo(_) => directory.export,
        }
    } else {
        let found = find(cx, &directory.inode, &name).await?.ok_or(nfsstat4::NFS4ERR_NOENT)?;
        cx.exports.crossing(&found.key, cx.from).unwrap_or(directory.export)
    };
    let flavours = flavours(cx.exports.flavours(export, cx.from));
    // §2.6.3.1.1.8: SECINFO and SECINFO_NO_NAME use the current filehandle up.
    cx.clear_current();
    Ok(SECINFO4res::NFS4_OK(flavours))
}

/// What is accepted, the preferred one first.
pub(super) fn flavours(good: Flavours) -> Vec<secinfo4> {
    let both = [(good.sys, AUTH_SYS), (good.none, AUTH_NONE)];
    both.into_iter().filter(|(good, _)| *good).map(|(_, flavour)| secinfo4::Default(flavour)).collect()
}
