//! SCRUB: begins or ends a scrub, and says how far it is.

use std::sync::Arc;

use sluice_xdr::control::{DS_SCRUB_args, ctl_scrub, ctl_scrub_action};

use crate::shared::Shared;

/// Folders that a scrub goes through.
const FOLDERS: u32 = 4096;

pub(super) async fn run(shared: &Arc<Shared>, args: DS_SCRUB_args) -> ctl_scrub {
    match args.action {
        ctl_scrub_action::SCRUB_START => {
            shared.store.scrub();
        }
        ctl_scrub_action::SCRUB_STOP => shared.store.stop_scrub(),
        _ => {}
    }
    let now = shared.store.scrubbed();
    ctl_scrub {
        on: now.on,
        running: now.running,
        begun: now.begun,
        finished: now.finished,
        thousandths: u32::from(now.folders) * 1000 / FOLDERS,
        compared: now.compared,
        verified: now.verified,
        sealed: now.sealed,
        unsealed: now.unsealed,
        bad: now.bad,
        lost: now.lost,
        quarantined: now.quarantined,
    }
}
