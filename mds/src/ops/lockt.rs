//! LOCKT. RFC 8881 §18.11.

use std::collections::BTreeSet;

use sluice_state::file::Error;
use sluice_xdr::nfs4::{LOCKT4args, LOCKT4res, nfs_resop4, nfsstat4};

use super::lock::{denied, kind, must_be_file, owner, range};
use crate::compound::{Context, OpError, OpResult};
use crate::files::file_id;

pub(crate) async fn lockt(cx: &mut Context, args: LOCKT4args) -> OpResult<LOCKT4res> {
    let (kind, _) = kind(args.locktype)?;
    let range = range(args.offset, args.length)?;
    must_be_file(cx).await?;
    let client = cx.client()?;
    let owner = owner(client, &args.owner)?;
    let key = cx.current()?.inode;
    // What has not been reclaimed yet is not seen (§8.4.2).
    if cx.server.in_grace() {
        return Err(nfsstat4::NFS4ERR_GRACE.into());
    }
    // A file without state has no locks.
    let Some(entry) = cx.server.files.get(file_id(&key)) else { return Ok(LOCKT4res::NFS4_OK) };
    let test = || {
        cx.server
            .step(&entry, Some(client), |file, ctx| (file.test_lock(ctx, &owner, kind, range), Vec::new()))
    };
    let mut outcome = test();
    let mut expelled = BTreeSet::new();
    while let Err(Error::Denied(conflict)) = &outcome
        && expelled.insert(conflict.owner.client)
        && cx.server.expel_if_courtesy(conflict.owner.client).await
    {
        outcome = test();
    }
    match outcome {
        Ok(()) => Ok(LOCKT4res::NFS4_OK),
        Err(Error::Denied(conflict)) => {
            let arm = nfs_resop4::OP_LOCKT(LOCKT4res::NFS4ERR_DENIED(denied(&conflict)));
            Err(OpError::Arm(nfsstat4::NFS4ERR_DENIED, Box::new(arm)))
        }
        Err(error) => Err(error.into()),
    }
}
