//! CLOSE. RFC 8881 §18.2.

use std::pin::pin;

use sluice_state::file::{Intent, Reply};
use sluice_xdr::nfs4::{CLOSE4args, CLOSE4res, nfsstat4};

use crate::compound::context::to_wire;
use crate::compound::{Context, OpResult};

pub(crate) async fn close(cx: &mut Context, args: CLOSE4args) -> OpResult<CLOSE4res> {
    let stateid = cx.exact_stateid(&args.open_stateid)?;
    let client = cx.client()?;
    let entry = cx.state_entry(&stateid)?;
    let held = pin!(cx.server.prepare(&entry, &Intent::Close { client, stateid })).await?;
    // An open lives in memory (reclaimed after a restart): no transaction goes with it.
    let Reply::Closed { stateid } = held.commit()? else {
        return Err(nfsstat4::NFS4ERR_SERVERFAULT.into());
    };
    cx.current_stateid = None;
    Ok(CLOSE4res::NFS4_OK(to_wire(&stateid)))
}
