//! Whether this server may serve: only while the metadata server can count on its fences.
//!
//! The metadata server takes a data server that it cannot reach for fenced once the isolation time
//! has passed. So this side stops first: its time runs from the moment the last acknowledged
//! heartbeat was *sent*, and once it has run out only a registration, with the pending fences
//! applied, lets it serve again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluice_env::Monotonic;

#[derive(Debug, Default)]
pub(crate) struct Contact {
    /// Nanoseconds on the monotonic clock until which we may serve; 0 before the first registration.
    until: AtomicU64,
}

impl Contact {
    pub(crate) fn may_serve(&self, now: Monotonic) -> bool {
        now.0 < self.until.load(Ordering::Acquire)
    }

    /// Registered by a call that was sent at `sent`, and its fences are durable.
    pub(crate) fn registered(&self, sent: Monotonic, isolation: Duration) {
        self.until.store((sent + isolation).0, Ordering::Release);
    }

    /// A heartbeat sent at `sent` was answered; false if the time had run out before: register again.
    pub(crate) fn renewed(&self, now: Monotonic, sent: Monotonic, isolation: Duration) -> bool {
        let extend = |until: u64| (now.0 < until).then(|| until.max((sent + isolation).0));
        self.until.fetch_update(Ordering::AcqRel, Ordering::Acquire, extend).is_ok()
    }

    /// The metadata server disowned us.
    pub(crate) fn revoked(&self) {
        self.until.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn time_runs_from_the_last_heartbeat_sent_and_does_not_come_back() {
        let contact = Contact::default();
        let isolation = Duration::from_secs(30);
        let at = |seconds| Monotonic(seconds * SECOND);
        assert!(!contact.may_serve(at(1)));
        assert!(!contact.renewed(at(1), at(1), isolation), "never registered");
        contact.registered(at(10), isolation);
        assert!(contact.may_serve(at(39)));
        assert!(!contact.may_serve(at(40)));
        assert!(contact.renewed(at(39), at(35), isolation));
        assert!(contact.may_serve(at(64)));
        assert!(!contact.may_serve(at(65)));
        assert!(!contact.renewed(at(65), at(64), isolation), "too late: fences may be pending");
        assert!(!contact.may_serve(at(65)));
        contact.registered(at(70), isolation);
        contact.revoked();
        assert!(!contact.may_serve(at(71)));
    }
}
