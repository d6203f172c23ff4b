//! Two clocks: measure with the monotonic one, persist with the wall one.

use std::fmt::Debug;
use std::future::Future;
use std::ops::{Add, Sub};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::BoxFuture;

/// Nanoseconds since this process (or this simulated world) began. Never persisted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic(pub u64);

impl Monotonic {
    /// The time from `earlier` to `self`, zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Monotonic {
    type Output = Self;
    fn add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Monotonic {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

/// Time of day: seconds and nanoseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wall {
    pub seconds: i64,
    pub nanos: u32,
}

/// Year, month and day of a day since 1970, in UTC.
pub fn date(days: i64) -> (i64, i64, i64) {
    // Years begin with March here, so that the day that some have more is their last one.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, day_of_month)
}

/// A deadline passed before the work was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

/// Where a server reads time.
pub trait Clock: Debug + Send + Sync {
    fn now(&self) -> Monotonic;
    fn wall(&self) -> Wall;
    /// Completes at or after `at`.
    fn sleep_until(&self, at: Monotonic) -> BoxFuture<'static, ()>;
}

impl dyn Clock {
    /// Completes after `d`.
    pub fn sleep(&self, d: Duration) -> BoxFuture<'static, ()> {
        self.sleep_until(self.now() + d)
    }

    /// Runs `work` for at most `d`.
    pub async fn timeout<F: Future>(&self, d: Duration, work: F) -> Result<F::Output, Elapsed> {
        let sleep = self.sleep(d);
        tokio::select! {
            biased;
            out = work => Ok(out),
            () = sleep => Err(Elapsed),
        }
    }
}

/// Not by way of the runtime's clock, which first looks whether it is paused: a call reads it many times. Nor the clock that stands
/// still while the machine is suspended: who was, and is sure to have been heard of lately, would serve on while others have
/// given it up.
#[derive(Debug)]
pub(crate) struct System {
    /// Nanoseconds since the machine began.
    origin: u64,
}

impl System {
    pub(crate) fn new() -> Self {
        Self { origin: since_boot() }
    }
}

fn since_boot() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

impl Clock for System {
    fn now(&self) -> Monotonic {
        Monotonic(since_boot() - self.origin)
    }

    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    fn wall(&self) -> Wall {
        match std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
            Ok(d) => {
                Wall { seconds: i64::try_from(d.as_secs()).unwrap_or(i64::MAX), nanos: d.subsec_nanos() }
            }
            Err(_) => Wall::default(),
        }
    }

    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    fn sleep_until(&self, at: Monotonic) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(at - self.now()))
    }
}

/// Virtual time: the paused clock of the current runtime, and a day that always begins alike.
#[derive(Debug)]
pub(crate) struct Simulated {
    origin: tokio::time::Instant,
}

impl Simulated {
    const DAWN: i64 = 1_700_000_000;

    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    pub(crate) fn new() -> Self {
        Self { origin: tokio::time::Instant::now() }
    }
}

impl Clock for Simulated {
    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    fn now(&self) -> Monotonic {
        Monotonic(u64::try_from((tokio::time::Instant::now() - self.origin).as_nanos()).unwrap_or(u64::MAX))
    }

    fn wall(&self) -> Wall {
        let t = self.now().0;
        Wall {
            seconds: Self::DAWN + i64::try_from(t / 1_000_000_000).unwrap_or(0),
            nanos: u32::try_from(t % 1_000_000_000).unwrap_or(0),
        }
    }

    fn sleep_until(&self, at: Monotonic) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep_until(self.origin + Duration::from_nanos(at.0)))
    }
}
