//! A recall under way, of a layout or a delegation: RFC 8881 §10.2.1, §12.5.5.
//!
//! ```text
//! asked ──OK──▶ promised ──return──▶ gone
//!   ▲ │            ▲ └──┐ asked again, of layouts to write with
//!   │ │            └────┘
//!   │ └──DELAY, unreachable──▶ pausing ─┐
//!   └───────────────retry───────────────┘     any of them ──deadline──▶ revoked
//! ```
//!
//! Linux that lets its writes end (clora_changed is false) returns a layout once it has committed them, and commits them when it is
//! asked for the layout: what has ended after it said OK is committed when it is asked again.

use crate::ids::Time;

/// A recall that waits for its answer or for the return.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct PendingRecall {
    /// clora_changed.
    pub(crate) changed: bool,
    /// Revoked then.
    pub(crate) deadline: Time,
    /// When to ask again; `None` while a callback is out, or the client has promised a return and nothing comes of asking.
    pub(crate) retry_at: Option<Time>,
    /// It said OK once.
    pub(crate) promised: bool,
    /// The client said last that it knows of none, though the reply that gave it has reached it. Of layouts: since it promised to
    /// return it.
    pub(crate) unknown: bool,
}

impl PendingRecall {
    pub(crate) const fn new(changed: bool, now: Time, timeout: u64) -> Self {
        Self { changed, deadline: now.plus_nanos(timeout), retry_at: None, promised: false, unknown: false }
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
