//! FENCE: refused from now on, durably before the reply. FENCED: whether it is so, for as long as this process lives.

use std::sync::Arc;

use sluice_store::Fence;
use sluice_xdr::control::{DS_FENCE_args, ctl_status};

use super::register;
use crate::error::ctl_of;
use crate::shared::Shared;

pub(super) async fn run(shared: &Arc<Shared>, args: DS_FENCE_args) -> ctl_status {
    let fences: Option<Vec<Fence>> = args.fences.iter().map(register::fence).collect();
    let Some(fences) = fences else { return ctl_status::CTL_ERR_INVAL };
    let fenced = async {
        shared.store.hear_caller(args.caller.mds_epoch).await?;
        shared.store.fence(&fences).await
    };
    ctl_of(fenced.await)
}

/// Asked where fences could not be made durable. The metadata server keeps them then until they are, and tells them again
/// with the next registration.
pub(super) async fn in_force(shared: &Arc<Shared>, args: DS_FENCE_args) -> ctl_status {
    let fences: Option<Vec<Fence>> = args.fences.iter().map(register::fence).collect();
    let Some(fences) = fences else { return ctl_status::CTL_ERR_INVAL };
    if shared.store.in_force(&fences).await { ctl_status::CTL_OK } else { ctl_status::CTL_ERR_NOENT }
}
