//! What happens without being asked: leases that run out, grace that ends.

use std::sync::Arc;
use std::time::Duration;

use crate::server::Mds;

/// Looks at least this often: leases are renewed without telling anybody.
const LONGEST: Duration = Duration::from_secs(1);
const SHORTEST: Duration = Duration::from_millis(20);

/// Runs for the life of the server.
pub(crate) async fn run(mds: Arc<Mds>) {
    loop {
        mds.time_goes_on().await;
        mds.housekeep().await;
        let now = mds.now();
        let due = mds.clients.lock().next_deadline(now);
        let pause = Duration::from_nanos(due.since(now)).clamp(SHORTEST, LONGEST);
        // Woken or not, there is a round.
        let _ = mds.env.clock.timeout(pause, mds.housekeeping.notified()).await;
    }
}
