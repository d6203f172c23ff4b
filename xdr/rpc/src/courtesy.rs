//! Small calls before large ones, when all processors are busy. A large WRITE takes a processor for as long as a hundred
//! small READs, and the kernel shares processors by time: beside a stream of large writes, small reads would keep a third
//! of their rate and wait many times as long.
//!
//! Threads that answer small calls look how long the kernel keeps them waiting for a processor. While that is much, large
//! records are let in one after the other with pauses in between; their data waits at the peer. With idle processors, or
//! without small calls, there are no pauses; where small calls are much of what there is to do, they are the longer.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;
use std::time::Duration;

use parking_lot::Mutex;
use sluice_env::{Env, Monotonic};

/// Between looks.
const LOOK: Duration = Duration::from_millis(4);

/// So long after the last look there are no small calls to give way to.
const STALE: Duration = Duration::from_millis(50);

/// A thread that waits for less than one part in so many of its time is not kept waiting.
const MUCH: u32 = 10;

/// The longest pause after a MiB, shared among the processors: large records are never held to less than about a
/// twentieth of the time of all processors (a MiB takes 0.4 ms), whoever else keeps them busy.
const MOST: Duration = Duration::from_millis(8);

/// Small calls are much of what a thread does when one part in so many of its time goes into answering them, and as the rest of
/// what they cost, reading and sending, several times that.
const MANY: u32 = 32;

/// They are what people wait for then: the same as [`MUCH`] and [`MOST`]. Large records keep a fiftieth. Of two processors that
/// clients share, small reads so keep four fifths of their rate.
const MUCH_OF_MANY: u32 = 64;
const MOST_FOR_MANY: Duration = Duration::from_millis(20);

const MIB: u64 = 1 << 20;

#[derive(Debug, Default)]
struct State {
    /// What each thread had waited when it looked last.
    looks: HashMap<ThreadId, (Monotonic, Duration)>,
    /// After each MiB.
    pause: Duration,
    /// The last look was so late.
    looked: Monotonic,
    /// Those let in before are paid for then.
    paid: Monotonic,
}

thread_local! {
    /// Went into small calls on this thread since it looked last.
    static SPENT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

#[derive(Debug, Default)]
pub(crate) struct Courtesy {
    next_look: AtomicU64,
    state: Mutex<State>,
}

impl Courtesy {
    /// Small calls were answered on this thread, which took so long.
    pub(crate) fn answered(&self, env: &Env, took: Duration) {
        SPENT.set(SPENT.get() + took);
        let now = env.clock.now();
        if now.0 < self.next_look.load(Ordering::Relaxed) {
            return;
        }
        self.next_look.store((now + LOOK).0, Ordering::Relaxed);
        let Some((thread, waited)) = env.process.kept_waiting() else { return };
        let spent = SPENT.take();
        let mut state = self.state.lock();
        state.looked = now;
        let Some((then, before)) = state.looks.insert(thread, (now, waited)) else { return };
        let passed = now.since(then);
        let (much, most) = if spent * MANY > passed { (MUCH_OF_MANY, MOST_FOR_MANY) } else { (MUCH, MOST) };
        let most = most / u32::try_from(env.process.processors()).unwrap_or(u32::MAX).max(1);
        state.pause = if waited.saturating_sub(before) * much > passed {
            (state.pause * 2).clamp(most / 8, most)
        } else if state.pause > most / 64 {
            state.pause * 3 / 4
        } else {
            Duration::ZERO
        };
    }

    /// Waits until a record of so many bytes may come in.
    pub(crate) async fn give_way(&self, env: &Env, bytes: usize) {
        let Some(turn) = self.turn(env.clock.now(), bytes) else { return };
        loop {
            let now = env.clock.now();
            if now >= turn || !self.state.lock().is_pausing(now) {
                return;
            }
            env.clock.sleep(turn.since(now).min(STALE)).await;
        }
    }

    fn turn(&self, now: Monotonic, bytes: usize) -> Option<Monotonic> {
        let mut state = self.state.lock();
        if !state.is_pausing(now) {
            return None;
        }
        let nanos = state.pause.as_nanos() as u64 * (bytes as u64).min(64 * MIB) / MIB;
        // Timers are coarse: a little that was missed is made up for.
        let earliest = Monotonic(now.0.saturating_sub(LOOK.as_nanos() as u64));
        state.paid = state.paid.max(earliest) + Duration::from_nanos(nanos);
        Some(state.paid)
    }
}

impl State {
    fn is_pausing(&self, now: Monotonic) -> bool {
        !self.pause.is_zero() && now.since(self.looked) <= STALE
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use sluice_env::{Descriptors, Process};

    use super::*;

    /// Threads wait for so many percent of their time, on so many processors.
    #[derive(Debug)]
    struct Machine {
        percent: AtomicU32,
        waited: Mutex<(Monotonic, Duration)>,
        clock: Arc<dyn sluice_env::Clock>,
        processors: usize,
    }

    impl Process for Machine {
        fn descriptors(&self) -> Descriptors {
            Descriptors::default()
        }
        fn processors(&self) -> usize {
            self.processors
        }
        fn kept_waiting(&self) -> Option<(ThreadId, Duration)> {
            let (now, mut waited) = (self.clock.now(), self.waited.lock());
            let more = now.since(waited.0) * self.percent.load(Ordering::Relaxed) / 100;
            *waited = (now, waited.1 + more);
            Some((std::thread::current().id(), waited.1))
        }
    }

    /// MiB let in within a second, one stream of small calls and two of large ones. Each ms so much goes into the small ones.
    async fn rate(percent: u32, processors: usize, small: Option<Duration>) -> u64 {
        let mut env = Env::simulated(1);
        let waited = Mutex::new((env.clock.now(), Duration::ZERO));
        let clock = Arc::clone(&env.clock);
        env.process = Arc::new(Machine { percent: percent.into(), waited, clock, processors });
        let (courtesy, count) = (Courtesy::default(), AtomicU64::new(0));
        let large = || async {
            loop {
                courtesy.give_way(&env, 1 << 20).await;
                count.fetch_add(1, Ordering::Relaxed);
                env.clock.sleep(Duration::from_millis(1)).await;
            }
        };
        let answers = async {
            loop {
                env.clock.sleep(Duration::from_millis(1)).await;
                if let Some(took) = small {
                    courtesy.answered(&env, took);
                }
            }
        };
        let end = env.clock.sleep(Duration::from_secs(1));
        tokio::select! {
            _ = large() => {}
            _ = large() => {}
            _ = answers => {}
            () = end => {}
        }
        count.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn large_records_give_way_where_small_calls_are_kept_waiting() {
        let few = Some(Duration::from_micros(10));
        let free = rate(0, 2, few).await;
        assert!(free > 1900, "{free}");
        assert!(rate(90, 2, None).await > 1900, "nobody to give way to");
        assert!(rate(5, 2, few).await > 1900, "hardly waiting");
        let held = rate(50, 2, few).await;
        assert!((225..350).contains(&held), "{held}: a pause of 4 ms each");
        let held = rate(50, 4, few).await;
        assert!((450..650).contains(&held), "{held}: more processors, more room");
        assert!(rate(50, 64, few).await > 1900);
    }

    #[tokio::test(start_paused = true)]
    async fn the_more_so_where_small_calls_are_much_of_what_there_is_to_do() {
        let many = Some(Duration::from_micros(100));
        assert!(rate(0, 2, many).await > 1900);
        for percent in [5, 50] {
            let held = rate(percent, 2, many).await;
            assert!((90..160).contains(&held), "{held}: a pause of 10 ms each");
        }
        assert!(rate(1, 2, many).await > 1900, "hardly waiting");
        assert!(rate(50, 64, many).await > 1900);
    }

    #[tokio::test(start_paused = true)]
    async fn the_pauses_end_when_small_calls_wait_no_more() {
        let mut env = Env::simulated(1);
        let waited = Mutex::new((env.clock.now(), Duration::ZERO));
        let clock = Arc::clone(&env.clock);
        let machine = Arc::new(Machine { percent: 90.into(), waited, clock, processors: 1 });
        env.process = Arc::clone(&machine) as _;
        let courtesy = Courtesy::default();
        for round in 0..40 {
            machine.percent.store(if round < 20 { 90 } else { 0 }, Ordering::Relaxed);
            courtesy.answered(&env, Duration::ZERO);
            env.clock.sleep(LOOK).await;
            assert_eq!(
                courtesy.turn(env.clock.now(), 1 << 20).is_some(),
                (1..35).contains(&round),
                "{round}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_those_who_left() {
        let mut env = Env::simulated(1);
        let waited = Mutex::new((env.clock.now(), Duration::ZERO));
        let clock = Arc::clone(&env.clock);
        env.process = Arc::new(Machine { percent: 90.into(), waited, clock, processors: 1 });
        let courtesy = Courtesy::default();
        for _ in 0..20 {
            courtesy.answered(&env, Duration::ZERO);
            env.clock.sleep(LOOK).await;
        }
        let begun = env.clock.now();
        // A queue of more than a second.
        for _ in 0..300 {
            courtesy.turn(begun, 1 << 20);
        }
        courtesy.give_way(&env, 1 << 20).await;
        assert!(env.clock.now().since(begun) <= STALE * 2, "{:?}", env.clock.now().since(begun));
    }
}
