//! Whether the device takes writes at memory speed just now. While it does, small writes are done on
//! the calling thread, for a tenth of the cost of handing them to another; as soon as one is slow (the
//! kernel throttles dirty pages, or the device is stuck), nothing may wait on the caller's thread.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use sluice_env::{Env, Monotonic};

/// A write that took longer than this was not to memory.
const SLOW: Duration = Duration::from_millis(3);

/// The caller's thread is spared for so many times the time a slow write took: it stalls for a tenth of
/// the time at most.
const WARY: u32 = 10;

#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Nanoseconds on the monotonic clock until which writes count as slow.
    wary_until: AtomicU64,
    /// Writes yet to be watched closely, because one took long.
    watched: AtomicU32,
}

/// Writes watched after one that took long: asking the kernel twice what a thread waited for costs more than a small
/// write.
const WATCHED: u32 = 256;

impl Pace {
    pub(crate) fn is_fast(&self, now: Monotonic) -> bool {
        now.0 >= self.wary_until.load(Ordering::Relaxed)
    }

    /// Runs a write that began at `begun` and remembers whether it was slow. A first one only raises suspicion.
    pub(crate) fn timed<T>(&self, env: &Env, begun: Monotonic, write: impl FnOnce() -> T) -> T {
        let left = self.watched.load(Ordering::Relaxed);
        let watch = (left > 0).then(|| Watch::begin(env));
        let result = write();
        let now = env.clock.now();
        let took = now.since(begun);
        match watch {
            None if took > SLOW => self.watched.store(WATCHED, Ordering::Relaxed),
            Some(watch) if took > SLOW && watch.slept(env, took) => {
                self.watched.store(WATCHED, Ordering::Relaxed);
                self.wary_until.fetch_max((now + took * WARY).0, Ordering::Relaxed);
            }
            // Lost updates of concurrent writers only make it watch longer.
            Some(_) => self.watched.store(left - 1, Ordering::Relaxed),
            None => {}
        }
        result
    }
}

/// What this thread had waited for when a write began.
#[derive(Debug)]
struct Watch {
    sleeps: i64,
    kept_waiting: Duration,
}

impl Watch {
    fn begin(env: &Env) -> Self {
        Self { sleeps: sleeps(), kept_waiting: kept_waiting(env) }
    }

    /// Whether a write that took so long slept for it. Time alone does not tell: on a busy machine a write to memory is
    /// interrupted and takes long as well; nor that it slept, because it may have done so for a moment, for a lock,
    /// and then waited long for its turn.
    fn slept(&self, env: &Env, took: Duration) -> bool {
        let kept_waiting = kept_waiting(env).saturating_sub(self.kept_waiting);
        took.saturating_sub(kept_waiting) > SLOW && sleeps() != self.sleeps
    }
}

/// How long this thread was ready to run and did not.
fn kept_waiting(env: &Env) -> Duration {
    env.process.kept_waiting().map_or(Duration::ZERO, |(_, waited)| waited)
}

/// How often this thread has gone to sleep of its own accord.
fn sleeps() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.voluntary_context_switches())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread::ThreadId;

    use sluice_env::{Clock, Descriptors, Process};

    use super::*;

    /// Whenever a thread is not running it waits for its turn.
    #[derive(Debug)]
    struct Crowded(Arc<dyn Clock>);

    impl Process for Crowded {
        fn descriptors(&self) -> Descriptors {
            Descriptors::default()
        }
        fn processors(&self) -> usize {
            1
        }
        fn kept_waiting(&self) -> Option<(ThreadId, Duration)> {
            Some((std::thread::current().id(), Duration::from_nanos(self.0.now().0)))
        }
    }

    #[allow(clippy::disallowed_methods, reason = "a thread that sleeps is what is tested")]
    fn sleep() {
        std::thread::sleep(2 * SLOW);
    }

    #[tokio::test]
    async fn waiting_for_a_turn_is_not_slow() {
        let mut env = Env::system();
        env.process = Arc::new(Crowded(Arc::clone(&env.clock)));
        let pace = Pace::default();
        for _ in 0..4 {
            pace.timed(&env, env.clock.now(), sleep);
        }
        assert!(pace.is_fast(env.clock.now()));
    }

    #[tokio::test]
    async fn slow_writes_spare_the_caller_for_a_while() {
        let (env, pace) = (Env::system(), Pace::default());
        let timed = |work: &dyn Fn()| pace.timed(&env, env.clock.now(), work);
        timed(&|| ());
        assert!(pace.is_fast(env.clock.now()));
        let begun = env.clock.now();
        timed(&|| while env.clock.now().since(begun) <= 2 * SLOW {});
        timed(&|| while env.clock.now().since(begun) <= 4 * SLOW {});
        assert!(pace.is_fast(env.clock.now()), "busy is not stuck");
        for _ in 0..WATCHED {
            timed(&|| ());
        }
        timed(&sleep);
        assert!(pace.is_fast(env.clock.now()), "once is a suspicion");
        timed(&sleep);
        timed(&sleep);
        assert!(!pace.is_fast(env.clock.now()));
        assert!(pace.is_fast(env.clock.now() + 400 * SLOW));
    }
}
