//! MACHINE: this process and its clock, for `sluice doctor`.

use std::sync::Arc;

use sluice_xdr::control::ctl_machine;

use crate::shared::Shared;

pub(super) async fn run(shared: &Arc<Shared>) -> ctl_machine {
    let (wall, descriptors) = (shared.env.clock.wall(), shared.env.process.descriptors());
    ctl_machine {
        seconds: wall.seconds,
        nanos: wall.nanos,
        descriptors: descriptors.open,
        descriptors_most: descriptors.most,
    }
}
