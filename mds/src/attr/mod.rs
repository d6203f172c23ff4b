//! fattr4 to and from inodes. RFC 8881 §5.

pub(crate) mod acl;
pub(crate) mod current;
pub(crate) mod delegated;
pub(crate) mod get;
pub(crate) mod set;
pub(crate) mod straight;

use sluice_namespace::{DirectoryChange, Name};
use sluice_xdr::nfs4::{change_info4, nfsstat4};

use crate::config::Names;
use crate::error::fs_status;

/// A component as a name in a directory.
///
/// # Errors
/// INVAL when empty, or when it has to be UTF-8 and is not (RFC 8881 §14.5); NAMETOOLONG, BADNAME.
pub(crate) fn name(names: Names, component: &[u8]) -> Result<Name<'_>, nfsstat4> {
    let refused = names == Names::Utf8 && std::str::from_utf8(component).is_err();
    if component.is_empty() || refused {
        return Err(nfsstat4::NFS4ERR_INVAL);
    }
    Name::new(component).map_err(|error| fs_status(&error))
}

/// How a directory changed, on the wire.
pub(crate) fn change_info(change: DirectoryChange) -> change_info4 {
    change_info4 { atomic: change.atomic, before: change.before, after: change.after }
}
