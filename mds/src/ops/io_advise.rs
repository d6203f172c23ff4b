//! IO_ADVISE. RFC 7862 §15.5: accepted; no hint is acted upon, and the reply says so.

use sluice_state::stateid::special;
use sluice_xdr::nfs4::{IO_ADVISE4args, IO_ADVISE4res, IO_ADVISE4resok, bitmap4};

use crate::compound::{Context, OpResult};

pub(crate) async fn io_advise(cx: &mut Context, args: IO_ADVISE4args) -> OpResult<IO_ADVISE4res> {
    let key = cx.current()?.inode;
    let stateid = cx.stateid(&args.iaa_stateid)?;
    let client = cx.client()?;
    let entry = match special(&stateid).ok().flatten() {
        Some(_) => cx.server.file(&key).await?,
        // Tells revoked, stale and foreign stateids apart; the machine knows only its own.
        None => cx.state_entry(&stateid)?,
    };
    cx.server
        .step(&entry, Some(client), |file, ctx| (file.check_io(ctx, client, &stateid, false), Vec::new()))?;
    Ok(IO_ADVISE4res::NFS4_OK(IO_ADVISE4resok { ior_hints: bitmap4::EMPTY }))
}
