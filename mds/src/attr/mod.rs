//! fattr4 to and from inodes. RFC 8881 §5.

pub(crate) mod get;

use sluice_namespace::Name;
use sluice_xdr::nfs4::nfsstat4;

use crate::error::fs_status;

/// A component as a name in a directory.
///
/// # Errors
/// INVAL when empty (RFC 8881 §14.5), NAMETOOLONG, BADNAME.
pub(crate) fn name(component: &[u8]) -> Result<Name<'_>, nfsstat4> {
    if component.is_empty() {
        return Err(nfsstat4::NFS4ERR_INVAL);
    }
    Name::new(component).map_err(|error| fs_status(&error))
}
