//! A recall under way, of a layout or a delegation: RFC 8881 §10.2.1, §12.5.5.
//!
//! ```text
//! asked ──OK──▶ promised ──return──▶ gone
//!   ▲ └──DELAY, unreachable──▶ pausing ─┐
//!   └───────────────retry───────────────┘     any of them ──deadline──▶ revoked
//! ```

use crate::ids::Time;

/// A recall that waits for its answer or for the return.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct PendingRecall {
    /// clora_changed.
    pub(crate) changed: bool,
    /// Revoked then.
    pub(crate) deadline: Time,
    /// When to ask again; `None` while a callback is out or the client has promised a return.
    pub(crate) retry_at: Option<Time>,
    /// Of delegations: the client said last that it knows of none, though the OPEN's reply has reached it.
    pub(crate) unknown: bool,
}

impl PendingRecall {
    pub(crate) const fn new(changed: bool, now: Time, timeout: u64) -> Self {
        Self { changed, deadline: now.plus_nanos(timeout), retry_at: None, unknown: false }
    }

    /// The next moment at which something is to be done.
    pub(crate) fn next_deadline(&self) -> Time {
        self.retry_at.map_or(self.deadline, |retry| retry.min(self.deadline))
    }

    /// Is it time to ask again? Then the callback counts as sent.
    pub(crate) fn take_retry(&mut self, now: Time) -> bool {
        let due = self.retry_at.is_some_and(|at| at <= now);
        if due {
            self.retry_at = None;
        }
        due
    }
}
