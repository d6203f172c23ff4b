//! ACCESS. RFC 8881 §18.1; the bits for extended attributes are RFC 8276 §8.4.1.

use sluice_namespace::{AccessMask, Kind};
use sluice_xdr::nfs4::{ACCESS4args, ACCESS4res, ACCESS4resok};

use crate::compound::{Context, OpResult};

pub(crate) async fn access(cx: &mut Context, args: ACCESS4args) -> OpResult<ACCESS4res> {
    let inode = cx.inode().await?;
    // `supported` names the bits that mean something for this kind of object in this minor version.
    let mut known = AccessMask::READ | AccessMask::MODIFY | AccessMask::EXTEND;
    known |= match inode.kind() {
        Kind::Directory => AccessMask::LOOKUP | AccessMask::DELETE,
        _ => AccessMask::EXECUTE,
    };
    if cx.minor >= 2 {
        known |= AccessMask::XAREAD | AccessMask::XAWRITE | AccessMask::XALIST;
    }
    let supported = args.access & known.0;
    let mut granted = inode.record.owned().access(&cx.who).0 & supported;
    if cx.is_read_only() {
        let mut changes = AccessMask::DELETE | AccessMask::XAWRITE;
        // What goes through a FIFO, a socket or a device does not come here.
        if !inode.kind().is_special() {
            changes |= AccessMask::MODIFY | AccessMask::EXTEND;
        }
        granted &= !changes.0;
    }
    Ok(ACCESS4res::NFS4_OK(ACCESS4resok { supported, access: granted }))
}
