//! FREE_STATEID. RFC 8881 §18.38.

use sluice_xdr::nfs4::{FREE_STATEID4args, FREE_STATEID4res, nfsstat4};

use crate::compound::{Context, OpResult};

pub(crate) fn free_stateid(cx: &mut Context, args: FREE_STATEID4args) -> OpResult<FREE_STATEID4res> {
    let stateid = cx.stateid(&args.fsa_stateid)?;
    let client = cx.client()?;
    let files = &cx.server.files;
    let freed = files.index().free_revoked(client, &stateid);
    if freed {
        // The last one gone, SEQUENCE need not tell of it any more (§18.46.3).
        cx.server.quiet_revoked(client);
        return Ok(FREE_STATEID4res { fsr_status: nfsstat4::NFS4_OK });
    }
    let at = cx.locate(&stateid)?;
    let entry = files.get(at.file).ok_or(nfsstat4::NFS4ERR_BAD_STATEID)?;
    cx.server.step(&entry, Some(client), |file, ctx| match file.free_stateid(ctx, client, &stateid) {
        Ok(effects) => (Ok(()), effects),
        Err(error) => (Err(error), Vec::new()),
    })?;
    Ok(FREE_STATEID4res { fsr_status: nfsstat4::NFS4_OK })
}
