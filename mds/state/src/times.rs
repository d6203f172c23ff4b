//! Times that the holder of a write delegation answers for: RFC 9754 §5.
//!
//! What it says is believed if it is later than the time that the file had when the delegation was given, and not
//! earlier than what others were shown since: for them time never goes back. What lies in the future is taken for the
//! present: waiting for it (DELAY) could take as long as the clocks are apart.

/// Seconds since 1970 and nanoseconds.
pub type Stamp = (i64, u32);

/// Times of a file; `None`: not spoken of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Times {
    /// Of access.
    pub access: Option<Stamp>,
    /// Of modification.
    pub modify: Option<Stamp>,
}

/// What is known of the times of a file whose holder answers for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kept {
    access: Time,
    modify: Time,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Time {
    /// As it was when the delegation was given: "the original time".
    floor: Stamp,
    /// The latest that the holder was believed, or that others were shown.
    latest: Stamp,
}

impl Kept {
    pub(crate) fn new(floor: Times) -> Option<Self> {
        Some(Self { access: Time::new(floor.access?), modify: Time::new(floor.modify?) })
    }

    /// What of it counts. Both are judged by the same `now`.
    pub(crate) fn believe(&mut self, said: Times, now: Stamp) -> Times {
        Times { access: self.access.believe(said.access, now), modify: self.modify.believe(said.modify, now) }
    }

    /// Others were shown this time of modification.
    pub(crate) fn shown(&mut self, modify: Stamp) {
        self.modify.latest = self.modify.latest.max(modify);
    }
}

impl Time {
    const fn new(floor: Stamp) -> Self {
        Self { floor, latest: floor }
    }

    /// The latest said before counts when it is said again: whoever heard it may not have made it durable.
    fn believe(&mut self, said: Option<Stamp>, now: Stamp) -> Option<Stamp> {
        let at = said?.min(now);
        let counts = at > self.floor && at >= self.latest;
        if counts {
            self.latest = at;
        }
        counts.then_some(at)
    }
}
