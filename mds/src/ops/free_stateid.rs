//! FREE_STATEID. RFC 8881 §18.38.

use sluice_state::lease::seq4_status;
use sluice_xdr::nfs4::{FREE_STATEID4args, FREE_STATEID4res, nfsstat4};

use crate::compound::{Context, OpResult};

pub(crate) async fn free_stateid(cx: &mut Context, args: FREE_STATEID4args) -> OpResult<FREE_STATEID4res> {
    let stateid = cx.stateid(&args.fsa_stateid)?;
    let client = cx.client()?;
    let files = &cx.server.files;
    let freed = files.index().free_revoked(client, &stateid);
    if freed {
        // The last revoked stateid is gone: SEQUENCE need not tell of it any more (§18.46.3).
        if !files.index().has_revoked(client)
            && let Some(session) = &cx.session
        {
            session.entry.shared.clear_status(
                seq4_status::EXPIRED_ALL_STATE_REVOKED
                    | seq4_status::EXPIRED_SOME_STATE_REVOKED
                    | seq4_status::ADMIN_STATE_REVOKED
                    | seq4_status::RECALLABLE_STATE_REVOKED,
            );
        }
        return Ok(FREE_STATEID4res { fsr_status: nfsstat4::NFS4_OK });
    }
    let at = files.locate(client, &stateid)?;
    let entry = files.get(at.file).ok_or(nfsstat4::NFS4ERR_BAD_STATEID)?;
    cx.server.step(&entry, Some(client), |file, _| match file.free_stateid(client, &stateid) {
        Ok(effects) => (Ok(()), effects),
        Err(error) => (Err(error), Vec::new()),
    })?;
    Ok(FREE_STATEID4res { fsr_status: nfsstat4::NFS4_OK })
}
