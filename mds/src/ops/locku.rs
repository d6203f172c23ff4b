//! LOCKU. RFC 8881 §18.12.

use sluice_xdr::nfs4::{LOCKU4args, LOCKU4res};

use super::lock::{kind, range};
use crate::compound::context::to_wire;
use crate::compound::{Context, OpResult};

pub(crate) fn locku(cx: &mut Context, args: LOCKU4args) -> OpResult<LOCKU4res> {
    kind(args.locktype)?;
    let range = range(args.offset, args.length)?;
    let stateid = cx.stateid(&args.lock_stateid)?;
    let client = cx.client()?;
    let entry = cx.state_entry(&stateid)?;
    let stateid = cx.server.step(&entry, Some(client), |file, ctx| {
        match file.unlock(ctx, client, &stateid, range) {
            Ok((stateid, effects)) => (Ok(stateid), effects),
            Err(error) => (Err(error), Vec::new()),
        }
    })?;
    cx.current_stateid = Some(stateid);
    Ok(LOCKU4res::NFS4_OK(to_wire(&stateid)))
}
