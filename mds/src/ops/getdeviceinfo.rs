//! GETDEVICEINFO. RFC 8881 §18.40.

use bytes::Bytes;
use sluice_xdr::nfs4::{
    GETDEVICEINFO4args, GETDEVICEINFO4res, GETDEVICEINFO4resok, bitmap4, device_addr4, layouttype4,
    nfs_resop4, nfsstat4,
};

use crate::compound::{Context, OpError, OpResult};
use crate::layout::device;

/// NOTIFY_DEVICEID4_CHANGE and NOTIFY_DEVICEID4_DELETE. Stock clients forget a device with its last layout
/// unless both are granted. Device IDs are immutable, so that there is nothing to notify.
const NOTIFICATIONS: [u32; 2] = [1, 2];
/// Of device_addr4 around its body.
const AROUND: usize = 8;

pub(crate) fn getdeviceinfo(cx: &mut Context, args: GETDEVICEINFO4args) -> OpResult<GETDEVICEINFO4res> {
    if args.gdia_layout_type != layouttype4::LAYOUT4_FLEX_FILES {
        return Err(nfsstat4::NFS4ERR_UNKNOWN_LAYOUTTYPE.into());
    }
    let mut address = device::address(&cx.server, &args.gdia_device_id).ok_or(nfsstat4::NFS4ERR_NOENT)?;
    let most = usize::try_from(args.gdia_maxcount).unwrap_or(usize::MAX);
    if most == 0 {
        // §18.40.3: only the notifications are wanted.
        address = device_addr4 { da_addr_body: Bytes::new(), ..address };
    } else if size(&address) > most {
        let wanted = u32::try_from(size(&address)).unwrap_or(u32::MAX);
        let arm = nfs_resop4::OP_GETDEVICEINFO(GETDEVICEINFO4res::NFS4ERR_TOOSMALL(wanted));
        return Err(OpError::Arm(nfsstat4::NFS4ERR_TOOSMALL, Box::new(arm)));
    }
    let granted: Vec<u32> =
        NOTIFICATIONS.into_iter().filter(|bit| args.gdia_notify_types.contains(*bit)).collect();
    Ok(GETDEVICEINFO4res::NFS4_OK(GETDEVICEINFO4resok {
        gdir_device_addr: address,
        gdir_notification: bitmap4::of(&granted),
    }))
}

fn size(address: &device_addr4) -> usize {
    AROUND + address.da_addr_body.len().next_multiple_of(4)
}
