//! An OPEN that made or cut off its file before a restart, and whose open the restart lost. RFC 8881
//! §2.10.6.5, §8.4.2.1.
//!
//! Its client never heard of it. It asks again and must not meet its own file (EXIST to a GUARDED create), so
//! it cannot be told to wait and ask anew, as GRACE would. Nor is the stateid of old of any use to it. The
//! open is given now, as the reclaim that the client is entitled to; if it reclaims what it thus got, it gets
//! the same again.

use std::time::Duration;

use sluice_namespace::DirectoryChange;
use sluice_state::grace::Claim as Admission;
use sluice_state::open::{Claim, OpenRequest, Want};
use sluice_xdr::nfs4::{OPEN4args, OPEN4res, OPEN4resok, nfs_resop4, nfsstat4};

use super::super::open::{Subject, admit, finish};
use crate::compound::{Context, OpError, OpResult};

/// Between two looks at whether grace is over.
const PAUSE: Duration = Duration::from_millis(500);

/// Opens the current file, which `done` says was made or cut off.
///
/// # Errors
/// The file is gone, or somebody's share reservation is in the way.
pub(in crate::ops) async fn resume(
    cx: &mut Context,
    args: &OPEN4args,
    mut request: OpenRequest,
    done: nfs_resop4,
) -> OpResult<OPEN4res> {
    let nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(OPEN4resok { cinfo, attrset, .. })) = done else {
        return Err(nfsstat4::NFS4ERR_SERVERFAULT.into());
    };
    let change = DirectoryChange { before: cinfo.before, after: cinfo.after, atomic: cinfo.atomic };
    request.again = true;
    // What a delegation would begin with is looked up with the file; here it comes from the reply of old.
    request.want = Want::None;
    loop {
        request.claim = claim(cx).await?;
        let inode = cx.inode().await?;
        // Permissions were judged when it was made.
        let subject =
            Subject { inode, change, created: true, found: false, attrset, truncate: false, making: None };
        let granted = match admit(cx, &request, &subject).await {
            Ok(held) => held.commit().map_err(OpError::from),
            Err(error) => Err(error),
        };
        match granted {
            // Grace began to end in between.
            Err(OpError::Status(nfsstat4::NFS4ERR_NO_GRACE | nfsstat4::NFS4ERR_GRACE)) => {}
            Err(error) => return Err(error),
            Ok(reply) => return finish(cx, args, subject, &reply),
        }
        cx.server.env.clock.sleep(PAUSE).await;
    }
}

/// A reclaim while that is allowed; afterwards an open like any other. Whether the client has completed its
/// reclaim is not asked then: it may be waiting for this very reply before it does.
async fn claim(cx: &Context) -> Result<Claim, nfsstat4> {
    let session = cx.session.as_ref().ok_or(nfsstat4::NFS4ERR_OP_NOT_IN_SESSION)?;
    loop {
        if cx.server.admit(session, Admission::Reclaim).is_ok() {
            return Ok(Claim::Previous { delegation: Want::None });
        }
        if !cx.server.in_grace() {
            return Ok(Claim::New);
        }
        // A client without a right to reclaim: others' opens come first, for two leases at most.
        cx.server.env.clock.sleep(PAUSE).await;
    }
}
