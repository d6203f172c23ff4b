//! EPOCH: new capability keys, and the oldest epoch whose handles still count.

use std::sync::Arc;

use sluice_store::Epoch;
use sluice_xdr::control::{DS_EPOCH_args, ctl_status};

use crate::access::AsOf;
use crate::error::ctl_of;
use crate::shared::Shared;

pub(super) async fn run(shared: &Arc<Shared>, args: DS_EPOCH_args) -> ctl_status {
    let turned = async {
        shared.store.hear_caller(args.caller.mds_epoch).await?;
        // Keys first: handles under a new key may already be on their way.
        if !args.keys.is_empty() {
            let (mds_epoch, current) = (args.caller.mds_epoch, args.capability_epoch);
            shared.seals.set_keys(AsOf { mds_epoch, current, oldest: args.oldest_epoch }, &args.keys);
        }
        shared.store.retire(Epoch(args.oldest_epoch as u16)).await
    };
    ctl_of(turned.await)
}
