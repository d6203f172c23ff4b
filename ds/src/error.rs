//! Store errors on the wire, each translated in one place.

use std::io;
use std::net::SocketAddr;

use sluice_store::{Refusal, StoreError};
use sluice_xdr::control::ctl_status;
use sluice_xdr::nfs3::nfsstat3;

/// Why a data server does not start. One line each.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, io::Error),
    #[error("{0}: {1}")]
    Directory(String, io::Error),
    #[error("listening on {0}, clients need to be told where: give an address to advertise")]
    NoAddress(SocketAddr),
}

/// What a client hears. Never PERM: Linux reconnects for ever and keeps the layout.
pub(crate) fn nfs_status(error: &StoreError) -> nfsstat3 {
    match error {
        StoreError::Refused(refusal) => refused(*refusal),
        StoreError::NoSpace => nfsstat3::NFS3ERR_NOSPC,
        StoreError::TooBig => nfsstat3::NFS3ERR_FBIG,
        StoreError::ReadOnly => nfsstat3::NFS3ERR_ROFS,
        StoreError::Closing | StoreError::NoDescriptors => nfsstat3::NFS3ERR_JUKEBOX,
        StoreError::Missing
        | StoreError::NoReflink
        | StoreError::Quarantined
        | StoreError::Io(_)
        | StoreError::Foreign(_)
        | StoreError::Absent(_)
        | StoreError::NewerFormat(..)
        | StoreError::NewerRecord(..)
        | StoreError::Locked(_)
        | StoreError::ForeignCluster(..)
        | StoreError::Corrupt(..)
        | StoreError::Directory(..)
        | StoreError::FencesFull
        | StoreError::OldCaller => nfsstat3::NFS3ERR_IO,
    }
}

/// ACCES makes a client return its layout and ask for another; STALE says that the data file itself, or its handle,
/// is over.
pub(crate) fn refused(refusal: Refusal) -> nfsstat3 {
    match refusal {
        Refusal::Expired | Refusal::Fenced => nfsstat3::NFS3ERR_ACCES,
        Refusal::Generation | Refusal::Removed | Refusal::Earlier => nfsstat3::NFS3ERR_STALE,
    }
}

/// What the metadata server hears.
pub(crate) fn ctl(error: &StoreError) -> ctl_status {
    match error {
        StoreError::Missing => ctl_status::CTL_ERR_NOENT,
        StoreError::Refused(_) => ctl_status::CTL_ERR_STALE,
        StoreError::NoSpace => ctl_status::CTL_ERR_NOSPC,
        StoreError::TooBig => ctl_status::CTL_ERR_INVAL,
        StoreError::NoReflink => ctl_status::CTL_ERR_NOTSUPP,
        StoreError::OldCaller => ctl_status::CTL_ERR_EPOCH,
        StoreError::ForeignCluster(..) => ctl_status::CTL_ERR_FOREIGN_STORE,
        // It must retire an epoch first.
        StoreError::FencesFull => ctl_status::CTL_ERR_AGAIN,
        // No epoch has to be retired for that.
        StoreError::Closing | StoreError::NoDescriptors => ctl_status::CTL_ERR_BUSY,
        StoreError::ReadOnly
        | StoreError::Quarantined
        | StoreError::Io(_)
        | StoreError::Foreign(_)
        | StoreError::Absent(_)
        | StoreError::NewerFormat(..)
        | StoreError::NewerRecord(..)
        | StoreError::Locked(_)
        | StoreError::Corrupt(..)
        | StoreError::Directory(..) => ctl_status::CTL_ERR_IO,
    }
}

/// The status of a procedure that returns nothing else.
pub(crate) fn ctl_of(result: Result<(), StoreError>) -> ctl_status {
    match result {
        Ok(()) => ctl_status::CTL_OK,
        Err(error) => ctl(&error),
    }
}
