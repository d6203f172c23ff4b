//! CAPACITY: how full the device is now. Heartbeats and registrations tell it, too.

use std::sync::Arc;

use sluice_store::Capacity;
use sluice_xdr::control::{ctl_capacity, ctl_uuid};

use crate::shared::Shared;

pub(super) async fn run(shared: &Arc<Shared>) -> ctl_capacity {
    match shared.store.capacity().await {
        Ok(capacity) => wire(&capacity),
        Err(error) => {
            tracing::error!(store = %shared.store.place(), %error, "the device does not tell its capacity");
            ctl_capacity::default()
        }
    }
}

pub(super) fn wire(c: &Capacity) -> ctl_capacity {
    ctl_capacity {
        total_bytes: c.total,
        free_bytes: c.free,
        used_bytes: c.used,
        files: c.inodes.saturating_sub(c.inodes_free),
        free_inodes: c.inodes_free,
        device: ctl_uuid(c.device),
    }
}
