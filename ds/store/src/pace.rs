//! Whether the device takes writes at memory speed just now. While it does, small writes are done on
//! the calling thread, for a tenth of the cost of handing them to another; as soon as one is slow (the
//! kernel throttles dirty pages, or the device is stuck), nothing may wait on the caller's thread.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use sluice_env::{Clock, Monotonic};

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

/// Writes watched after one that took long: asking the kernel twice whether a thread slept costs a tenth of a
/// small write.
const WATCHED: u32 = 256;

impl Pace {
    pub(crate) fn is_fast(&self, now: Monotonic) -> bool {
        now.0 >= self.wary_until.load(Ordering::Relaxed)
    }

    /// Runs a write that began at `begun` and remembers whether it was slow. A first one only raises suspicion.
    pub(crate) fn timed<T>(&self, clock: &dyn Clock, begun: Monotonic, write: impl FnOnce() -> T) -> T {
        let left = self.watched.load(Ordering::Relaxed);
        let sleeps = (left > 0).then(sleeps);
        let result = write();
        let now = clock.now();
        let took = now.since(begun);
        match sleeps {
            None if took > SLOW => self.watched.store(WATCHED, Ordering::Relaxed),
            Some(sleeps) if is_slow(took, sleeps) => {
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

/// Time alone does not tell: on a busy machine a write to memory is interrupted and takes long as well.
/// One that waited has put its thread to sleep.
fn is_slow(took: Duration, sleeps_before: i64) -> bool {
    took > SLOW && sleeps() != sleeps_before
}

/// How often this thread has gone to sleep of its own accord.
fn sleeps() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.voluntary_context_switches())
}

#[cfg(test)]
mod tests {
    use sluice_env::Env;

    use super::*;

    #[tokio::test]
    async fn slow_writes_spare_the_caller_for_a_while() {
        let (env, pace) = (Env::system(), Pace::default());
        let timed = |work: &dyn Fn()| pace.timed(&*env.clock, env.clock.now(), work);
        timed(&|| ());
        assert!(pace.is_fast(env.clock.now()));
        let begun = env.clock.now();
        timed(&|| while env.clock.now().since(begun) <= 2 * SLOW {});
        timed(&|| while env.clock.now().since(begun) <= 4 * SLOW {});
        assert!(pace.is_fast(env.clock.now()), "busy is not stuck");
        for _ in 0..WATCHED {
            timed(&|| ());
        }
        #[allow(clippy::disallowed_methods, reason = "a thread that sleeps is what is tested")]
        timed(&|| std::thread::sleep(2 * SLOW));
        assert!(pace.is_fast(env.clock.now()), "once is a suspicion");
        #[allow(clippy::disallowed_methods, reason = "a thread that sleeps is what is tested")]
        timed(&|| std::thread::sleep(2 * SLOW));
        #[allow(clippy::disallowed_methods, reason = "a thread that sleeps is what is tested")]
        timed(&|| std::thread::sleep(2 * SLOW));
        assert!(!pace.is_fast(env.clock.now()));
        assert!(pace.is_fast(env.clock.now() + 400 * SLOW));
    }
}
