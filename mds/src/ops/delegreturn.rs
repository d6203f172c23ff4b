//! DELEGRETURN. RFC 8881 §18.6.

use sluice_xdr::nfs4::{DELEGRETURN4args, DELEGRETURN4res, nfsstat4};

use crate::compound::{Context, OpResult};

pub(crate) fn delegreturn(cx: &mut Context, args: DELEGRETURN4args) -> OpResult<DELEGRETURN4res> {
    let stateid = cx.stateid(&args.deleg_stateid)?;
    let client = cx.client()?;
    let entry = cx.state_entry(&stateid)?;
    cx.server.step(&entry, Some(client), |file, ctx| {
        match file.delegation_return(ctx, client, &stateid) {
            Ok(effects) => (Ok(()), effects),
            Err(error) => (Err(error), Vec::new()),
        }
    })?;
    Ok(DELEGRETURN4res { status: nfsstat4::NFS4_OK })
}
