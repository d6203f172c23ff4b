//! LOCK and what it shares with LOCKT and LOCKU. RFC 8881 §18.10.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;

use sluice_namespace::{Inode, Kind};
use sluice_state::file::Error;
use sluice_state::grace::Claim;
use sluice_state::lock::{LockConflict, LockKind, LockRequest, Locker};
use sluice_state::owner::{LockOwner, MAX_OWNER_BYTES};
use sluice_state::range_set::Range;
use sluice_state::{ClientId, StateId};
use sluice_xdr::nfs4::{
    LOCK4args, LOCK4denied, LOCK4res, LOCK4resok, locker4, nfs_lock_type4, nfs_resop4, nfsstat4, state_owner4,
};

use crate::compound::context::to_wire;
use crate::compound::{Context, OpError, OpResult};
use crate::files::FileEntry;

pub(crate) async fn lock(cx: &mut Context, args: LOCK4args) -> OpResult<LOCK4res> {
    let (kind, blocking) = kind(args.locktype)?;
    let range = range(args.offset, args.length)?;
    must_be_file(cx).await?;
    let client = cx.client()?;
    let session = cx.session.clone().ok_or(nfsstat4::NFS4ERR_OP_NOT_IN_SESSION)?;
    let (locker, stateid) = match &args.locker {
        locker4::TRUE(new) => {
            let open = cx.stateid(&new.open_stateid)?;
            (Locker::New { open, owner: owner(client, &new.lock_owner)? }, open)
        }
        locker4::FALSE(old) => {
            let lock = cx.stateid(&old.lock_stateid)?;
            (Locker::Existing { lock }, lock)
        }
    };
    let claim = match args.reclaim {
        true => Claim::Reclaim,
        false if delegated(cx, &stateid, client, kind) => Claim::UnderDelegation,
        false => Claim::New,
    };
    cx.server.admit(&session, claim)?;
    let entry = cx.state_entry(&stateid)?;
    let request = LockRequest { locker, kind, blocking, reclaim: args.reclaim, range };
    let mut expelled = BTreeSet::new();
    loop {
        let outcome = cx.server.step(&entry, Some(client), |file, ctx| file.lock(ctx, client, &request));
        match outcome {
            Ok(stateid) => {
                if args.reclaim {
                    cx.server.note_reclaim();
                }
                cx.current_stateid = Some(stateid);
                return Ok(LOCK4res::NFS4_OK(LOCK4resok { lock_stateid: to_wire(&stateid) }));
            }
            // A holder whose lease is over gives way (§8.3: courteous, but not in the way).
            // There may be several, each asked once.
            Err(Error::Denied(conflict))
                if expelled.insert(conflict.owner.client)
                    && cx.server.expel_if_courtesy(conflict.owner.client).await => {}
            Err(Error::Denied(conflict)) => {
                let arm = nfs_resop4::OP_LOCK(LOCK4res::NFS4ERR_DENIED(denied(&conflict)));
                return Err(OpError::Arm(nfsstat4::NFS4ERR_DENIED, Box::new(arm)));
            }
            // Nor are those of a client whose lease is over in anybody's way where there are too many in all.
            Err(Error::Resource)
                if cx.server.files.locks_of_all_are_full()
                    && cx.server.expel_longest_silent(|held| held.locks > 0).await => {}
            Err(Error::Resource) => {
                let holders = cx.server.files.in_the_way_of_lock(&entry, client);
                if !cx.server.expel_longest_silent_of(&holders).await {
                    return Err(Error::Resource.into());
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether a lock is one that the client may hold by itself already. Asked in grace only: after it that makes no difference.
fn delegated(cx: &Context, stateid: &StateId, client: ClientId, kind: LockKind) -> bool {
    let of_file = |entry: Arc<FileEntry>| entry.peek(|file| file.is_delegated_for(client, kind));
    cx.server.in_grace() && cx.state_entry(stateid).is_ok_and(of_file)
}

/// Shared or exclusive, and whether the client would wait.
///
/// # Errors
/// INVAL for an unknown type.
pub(super) fn kind(wire: nfs_lock_type4) -> Result<(LockKind, bool), nfsstat4> {
    match wire {
        nfs_lock_type4::READ_LT => Ok((LockKind::Read, false)),
        nfs_lock_type4::READW_LT => Ok((LockKind::Read, true)),
        nfs_lock_type4::WRITE_LT => Ok((LockKind::Write, false)),
        nfs_lock_type4::WRITEW_LT => Ok((LockKind::Write, true)),
        _ => Err(nfsstat4::NFS4ERR_INVAL),
    }
}

/// # Errors
/// INVAL for no bytes and for bytes beyond the last (§18.10.3).
pub(super) fn range(offset: u64, length: u64) -> Result<Range, nfsstat4> {
    Range::from_offset_length(offset, length).ok_or(nfsstat4::NFS4ERR_INVAL)
}

/// # Errors
/// INVAL for a name that is too long.
pub(super) fn owner(client: ClientId, wire: &state_owner4) -> Result<LockOwner, nfsstat4> {
    if wire.owner.len() > MAX_OWNER_BYTES {
        return Err(nfsstat4::NFS4ERR_INVAL);
    }
    // §8.4.2.3 and §18.16.3: the client ID inside the owner is ignored; the session says who asks.
    Ok(LockOwner::new(client, &wire.owner))
}

/// The lock in the way, as LOCK and LOCKT tell it.
pub(super) fn denied(conflict: &LockConflict) -> LOCK4denied {
    let (offset, length) = (conflict.range.start(), conflict.range.length());
    LOCK4denied {
        offset,
        length,
        locktype: match conflict.kind {
            LockKind::Read => nfs_lock_type4::READ_LT,
            LockKind::Write => nfs_lock_type4::WRITE_LT,
        },
        owner: state_owner4 {
            clientid: conflict.owner.client.0,
            owner: bytes::Bytes::copy_from_slice(&conflict.owner.opaque),
        },
    }
}

/// Locks are for regular files.
///
/// # Errors
/// ISDIR, SYMLINK, WRONG_TYPE (§18.22.3).
pub(super) async fn must_be_file(cx: &mut Context) -> Result<(), OpError> {
    match pin!(cx.look(Inode::kind)).await? {
        Kind::File => Ok(()),
        Kind::Directory => Err(nfsstat4::NFS4ERR_ISDIR.into()),
        Kind::Symlink => Err(nfsstat4::NFS4ERR_SYMLINK.into()),
        _ => Err(nfsstat4::NFS4ERR_WRONG_TYPE.into()),
    }
}
