//! LOGICAL_SIZE: the metadata server moved the end of a file.

use std::sync::Arc;

use sluice_xdr::control::{DS_LOGICAL_SIZE_args, ctl_status};

use crate::shared::Shared;

pub(super) async fn run(shared: &Arc<Shared>, args: DS_LOGICAL_SIZE_args) -> ctl_status {
    shared.sizes.push(args.file, args.size);
    ctl_status::CTL_OK
}
