//! OPEN_DOWNGRADE. RFC 8881 §18.18.

use sluice_state::file::{Intent, Reply};
use sluice_state::open::{Access, Deny};
use sluice_xdr::nfs4::{OPEN_DOWNGRADE4args, OPEN_DOWNGRADE4res, OPEN_DOWNGRADE4resok, nfsstat4};

use super::open::WANTS;
use crate::compound::context::to_wire;
use crate::compound::{Context, OpResult};

pub(crate) async fn open_downgrade(
    cx: &mut Context,
    args: OPEN_DOWNGRADE4args,
) -> OpResult<OPEN_DOWNGRADE4res> {
    // Wants of delegations, which are OPEN's, are no access here either.
    let access = Access::from_bits(args.share_access & !WANTS).ok_or(nfsstat4::NFS4ERR_INVAL)?;
    let deny = Deny::from_bits(args.share_deny).ok_or(nfsstat4::NFS4ERR_INVAL)?;
    let stateid = cx.exact_stateid(&args.open_stateid)?;
    let client = cx.client()?;
    let entry = cx.state_entry(&stateid)?;
    let held = cx.server.prepare(&entry, &Intent::Downgrade { client, stateid, access, deny }).await?;
    let Reply::Downgraded { stateid } = held.commit()? else {
        return Err(nfsstat4::NFS4ERR_SERVERFAULT.into());
    };
    cx.current_stateid = Some(stateid);
    Ok(OPEN_DOWNGRADE4res::NFS4_OK(OPEN_DOWNGRADE4resok { open_stateid: to_wire(&stateid) }))
}
