//! Revoked delegations that their client does not free. Each reply tells of them (RFC 8881 §18.46.3), and each time Linux drops all
//! layouts and looks through its stateids: a client that goes on without an end does not have them, as when it took a
//! DELEGRETURN without a reply for done.

use std::sync::Arc;

use sluice_state::Time;
use sluice_state::lease::ClientShared;

use crate::server::Mds;

/// In so many leases it was told of them, each time in vain.
const TOLD_IN_VAIN: u32 = 3;

impl Mds {
    /// One for a client, for as long as it has something to free.
    pub(crate) async fn forget_unfreed_delegations(self: Arc<Self>, shared: Arc<ClientShared>) {
        let (mut since, mut told, mut in_vain) = (Time::ZERO, Time::ZERO, 0);
        loop {
            self.env.clock.sleep(self.config.lease).await;
            if self.notices.let_be(&shared) {
                return;
            }
            let Some(last) = shared.delegation_revoked() else { continue };
            if last != since {
                (since, told, in_vain) = (last, last, 0);
            }
            // One that is silent is told of nothing.
            let told_now = shared.told();
            if told_now > told {
                (told, in_vain) = (told_now, in_vain + 1);
            }
            if in_vain >= TOLD_IN_VAIN {
                tracing::info!(client = ?shared.id(), "revoked delegations that their client does not free are forgotten");
                self.files.index().forget_unreturned_delegations(shared.id());
                self.quiet_revoked(shared.id());
                in_vain = 0;
            }
        }
    }
}
