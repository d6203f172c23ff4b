//! BACKCHANNEL_CTL. RFC 8881 §18.33.

use sluice_state::recovery::Effect;
use sluice_xdr::nfs4::{BACKCHANNEL_CTL4args, BACKCHANNEL_CTL4res, nfsstat4};

use super::create_session::security;
use crate::compound::{Context, OpResult};

pub(crate) async fn backchannel_ctl(
    cx: &mut Context,
    args: BACKCHANNEL_CTL4args,
) -> OpResult<BACKCHANNEL_CTL4res> {
    let session = cx.session.clone().ok_or(nfsstat4::NFS4ERR_OP_NOT_IN_SESSION)?;
    let offers: Vec<_> = args.bca_sec_parms.iter().map(security).collect();
    let row = session.entry.lock().backchannel_ctl(args.bca_cb_program, &offers)?;
    if let Some(row) = row {
        cx.server.persist_client(&[Effect::PersistSession(Box::new(row))]).await?;
    }
    Ok(BACKCHANNEL_CTL4res { bcr_status: nfsstat4::NFS4_OK })
}
