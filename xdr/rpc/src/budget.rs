//! What calls may cost: bytes of requests in flight and of replies not yet sent, and the number of
//! handlers running. The reader takes a [`Ticket`] before it lets a call run and stops reading while there
//! is none, which pushes back on the peer through TCP.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use sluice_env::{Clock, Monotonic};
use tokio::sync::Notify;

use crate::arrivals::Arrivals;
use crate::courtesy::Courtesy;
use crate::limits::{Limits, Share};
use crate::line::{Line, PATIENCE};

/// Bookkeeping for one queued message beyond its bytes: buffers and queue entries.
const OVERHEAD: usize = 256;

/// One part in so many of what is asked for is little to hold already.
const LITTLE: usize = 8;

/// The bytes all connections of a server may hold together.
#[derive(Debug)]
pub(crate) struct ServerBudget {
    share: Share,
    connections: AtomicUsize,
    used: AtomicUsize,
    waiting: AtomicUsize,
    freed: Notify,
    line: Line,
    pub(crate) arrivals: Arc<Arrivals>,
    pub(crate) courtesy: Courtesy,
}

impl ServerBudget {
    pub(crate) fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            share: limits.server_budget,
            connections: 0.into(),
            used: 0.into(),
            waiting: 0.into(),
            freed: Notify::new(),
            line: Line::default(),
            arrivals: Arrivals::new(limits.arriving),
            courtesy: Courtesy::default(),
        })
    }

    /// So many connections share it now.
    pub(crate) fn connections(&self, now: usize) {
        self.connections.store(now, Ordering::Relaxed);
        self.arrivals.connections(now);
        self.tell();
    }

    fn limit(&self) -> usize {
        self.share.with(self.connections.load(Ordering::Relaxed))
    }

    /// Somebody waits for what others hold.
    pub(crate) fn is_short(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0 || self.line.kept() > 0 || self.arrivals.is_full()
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// What holds for a connection with `place` in the line, if it has one.
    fn rule(&self, place: u64) -> Rule {
        let limit = self.limit();
        let turn = match self.line.kept() {
            0 => Turn::Anybodys,
            _ if place != 0 && self.line.is_first(place) => Turn::Its,
            kept => {
                let connections = self.connections.load(Ordering::Relaxed).max(1);
                Turn::Anothers { kept, share: limit.saturating_sub(kept) / connections }
            }
        };
        Rule { limit, turn }
    }

    /// Takes `bytes` for a connection that holds `mine` of what is used.
    fn take(&self, mine: usize, bytes: usize, place: u64) -> bool {
        let rule = self.rule(place);
        self.used
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |used| {
                rule.fits(used, mine, bytes).then_some(used.saturating_add(bytes))
            })
            .is_ok()
    }

    fn release(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::SeqCst);
        self.tell();
    }

    fn tell(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.freed.notify_waiters();
        }
    }
}

/// Whose turn it is to take of what is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Nobody has waited long.
    Anybodys,
    Its,
    /// Each may hold `share`, so that `kept` fits beside all of them.
    Anothers {
        kept: usize,
        share: usize,
    },
}

/// Who gets of what is free.
#[derive(Clone, Copy, Debug)]
struct Rule {
    limit: usize,
    turn: Turn,
}

impl Rule {
    /// Whether a connection that holds `mine` may have `bytes` more. It gets no more than it leaves to all others, so that
    /// those who take their replies slowly cannot take everything. One that exceeds the limit alone is let through when
    /// nothing else is held.
    ///
    /// While somebody has waited long others leave him room; those who hold little beside him need not, so that all goes on
    /// where he waits for one who takes nothing.
    fn fits(self, used: usize, mine: usize, bytes: usize) -> bool {
        let (free, all) = (self.limit.saturating_sub(used), mine.saturating_add(bytes));
        match self.turn {
            Turn::Anybodys => used == 0 || all <= free,
            Turn::Its => used == 0 || bytes <= free,
            Turn::Anothers { kept, share } => {
                all <= free && (bytes.saturating_add(kept) <= free || all <= share)
            }
        }
    }
}

/// Takes `bytes` of `limit`. One that exceeds the limit alone is let through when nothing else is held:
/// otherwise it would wait for ever.
fn take(used: &AtomicUsize, limit: usize, bytes: usize) -> bool {
    used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |used| {
        (used == 0 || used.saturating_add(bytes) <= limit).then_some(used.saturating_add(bytes))
    })
    .is_ok()
}

/// The budget of one connection.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: usize,
    used: AtomicUsize,
    /// Those of them that are not in memory, and no part of what the server counts.
    apart: AtomicUsize,
    /// Its place in the server's line, or 0.
    place: AtomicU64,
    max_in_flight: usize,
    in_flight: AtomicUsize,
    pub(crate) server: Arc<ServerBudget>,
    /// Signalled when a ticket frees something, and by anybody who wants the reader to look again.
    pub(crate) recheck: Notify,
}

impl Budget {
    pub(crate) fn new(limit: usize, max_in_flight: usize, server: Arc<ServerBudget>) -> Arc<Self> {
        Arc::new(Self {
            limit,
            used: 0.into(),
            apart: 0.into(),
            place: 0.into(),
            max_in_flight: max_in_flight.max(1),
            in_flight: 0.into(),
            server,
            recheck: Notify::new(),
        })
    }

    /// Calls admitted whose handlers have not finished.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// Bytes held.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::SeqCst)
    }

    /// Those of them that are in memory, or may come to be.
    pub(crate) fn in_memory(&self) -> usize {
        self.used().saturating_sub(self.apart.load(Ordering::SeqCst))
    }

    /// Room for a request of `request` bytes and a reply of at most `reply`, if there is any. Only the
    /// connection's reader calls this.
    pub(crate) fn admit(self: &Arc<Self>, request: usize, reply: usize) -> Option<Ticket> {
        if self.in_flight() >= self.max_in_flight {
            return None;
        }
        let bytes = request.saturating_add(reply).saturating_add(OVERHEAD);
        let mine = self.in_memory();
        if !take(&self.used, self.limit, bytes) {
            return None;
        }
        if !self.server.take(mine, bytes, self.place.load(Ordering::Relaxed)) {
            self.used.fetch_sub(bytes, Ordering::SeqCst);
            return None;
        }
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        Some(Ticket { budget: Arc::clone(self), bytes, apart: 0, running: true })
    }

    /// Whether its own bounds leave room.
    fn has_room(&self, bytes: usize) -> bool {
        let used = self.used();
        self.in_flight() < self.max_in_flight && (used == 0 || used.saturating_add(bytes) <= self.limit)
    }

    /// Whether [`Budget::admit`] would find room.
    fn fits(&self, bytes: usize) -> bool {
        let rule = self.server.rule(self.place.load(Ordering::Relaxed));
        self.has_room(bytes) && rule.fits(self.server.used(), self.in_memory(), bytes)
    }

    /// Gets in line, unless it holds much: who takes his replies soon does not, and who does not would be the first for ever.
    /// What can never fit keeps nobody waiting.
    fn get_in_line(&self, bytes: usize) {
        let may = self.in_memory() <= bytes / LITTLE && bytes <= self.server.limit();
        if may && self.place.load(Ordering::Relaxed) == 0 {
            self.place.store(self.server.line.enter(bytes), Ordering::Relaxed);
        }
    }

    fn leave_line(&self) {
        let place = self.place.swap(0, Ordering::Relaxed);
        if place != 0 && self.server.line.leave(place) {
            self.server.tell();
        }
    }

    /// Completes when a refused [`Budget::admit`] is worth repeating. May complete early. `patient` is until when it waits
    /// without a place in line.
    pub(crate) async fn changed(&self, clock: &dyn Clock, patient: Monotonic, request: usize, reply: usize) {
        let bytes = request.saturating_add(reply).saturating_add(OVERHEAD);
        if !self.has_room(bytes) {
            // Only what it has itself can change that: it waits for nobody else.
            return self.recheck.notified().await;
        }
        let _waiting = Waiting::new(&self.server);
        let freed = self.server.freed.notified();
        tokio::pin!(freed);
        freed.as_mut().enable();
        let is_patient = clock.now() < patient;
        if !is_patient {
            self.get_in_line(bytes);
        }
        // Looked at again after enlisting: what was freed in between raised no signal.
        if self.fits(bytes) {
            return;
        }
        tokio::select! {
            biased;
            () = self.recheck.notified() => {}
            () = freed => {}
            () = clock.sleep_until(patient), if is_patient => {}
        }
    }
}

/// How long a connection's reader has waited for room for a call. Its place in line goes with it.
#[derive(Debug)]
pub(crate) struct Wait {
    budget: Arc<Budget>,
    /// Until when it does without a place.
    pub(crate) patient: Monotonic,
}

impl Wait {
    pub(crate) fn new(budget: &Arc<Budget>, clock: &dyn Clock) -> Self {
        Self { budget: Arc::clone(budget), patient: clock.now() + PATIENCE }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.budget.leave_line();
    }
}

struct Waiting<'a>(&'a ServerBudget);

impl<'a> Waiting<'a> {
    fn new(server: &'a ServerBudget) -> Self {
        server.waiting.fetch_add(1, Ordering::SeqCst);
        Self(server)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The right of one call to run, and of its reply to be queued. Everything is given back on drop.
#[derive(Debug)]
pub(crate) struct Ticket {
    budget: Arc<Budget>,
    bytes: usize,
    /// See [`Budget::apart`].
    apart: usize,
    running: bool,
}

impl Ticket {
    /// The handler is done: from here on only the reply, of `reply` bytes, is held, and `apart` of them are not in memory.
    pub(crate) fn answered(&mut self, reply: usize, apart: usize) {
        let bytes = reply.saturating_add(OVERHEAD);
        let (budget, held) = (&self.budget, bytes.saturating_sub(apart));
        if apart > 0 {
            budget.apart.fetch_add(apart, Ordering::SeqCst);
        }
        // Where a handler exceeded its own bound more is counted than was admitted, so that nothing new is.
        if bytes < self.bytes {
            budget.used.fetch_sub(self.bytes - bytes, Ordering::SeqCst);
        } else {
            budget.used.fetch_add(bytes - self.bytes, Ordering::SeqCst);
        }
        if held < self.bytes {
            budget.server.release(self.bytes - held);
        } else {
            budget.server.used.fetch_add(held - self.bytes, Ordering::SeqCst);
        }
        (self.bytes, self.apart) = (bytes, apart);
        self.finish();
    }

    fn finish(&mut self) {
        if std::mem::take(&mut self.running) {
            self.budget.in_flight.fetch_sub(1, Ordering::SeqCst);
        }
        self.budget.recheck.notify_one();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::SeqCst);
        if self.apart > 0 {
            self.budget.apart.fetch_sub(self.apart, Ordering::SeqCst);
        }
        self.budget.server.release(self.bytes.saturating_sub(self.apart));
        self.finish();
    }
}

#[cfg(test)]
mod tests {
    use sluice_env::Env;

    use super::*;

    fn shared(bytes: usize) -> Arc<ServerBudget> {
        ServerBudget::new(&Limits { server_budget: Share::fixed(bytes), ..Limits::default() })
    }

    fn budget(connection: usize, server: usize, calls: usize) -> Arc<Budget> {
        Budget::new(connection, calls, shared(server))
    }

    #[test]
    fn a_budget_is_kept_and_given_back() {
        let b = budget(10_000, usize::MAX, 100);
        let first = b.admit(1000, 3000).unwrap();
        let mut second = b.admit(1000, 3000).unwrap();
        assert!(b.admit(1000, 3000).is_none());
        second.answered(100, 0);
        assert_eq!(b.used(), 4000 + OVERHEAD + 100 + OVERHEAD);
        let third = b.admit(1000, 3000).unwrap();
        drop((first, second, third));
        assert_eq!((b.used(), b.in_flight(), b.server.used()), (0, 0, 0));
    }

    #[test]
    fn more_than_everything_is_let_through_alone() {
        let b = budget(1000, 1000, 100);
        let big = b.admit(1 << 20, 1 << 20).unwrap();
        assert!(b.admit(1, 1).is_none());
        drop(big);
        assert!(b.admit(1, 1).is_some());
    }

    #[test]
    fn the_server_and_the_number_of_calls_bound_too() {
        let server = shared(5000);
        let (a, b) = (Budget::new(9000, 9, server.clone()), Budget::new(9000, 1, server));
        let first = a.admit(0, 4000).unwrap();
        assert!(b.admit(0, 4000).is_none(), "the server is full");
        assert_eq!(b.used(), 0, "a refusal holds nothing");
        drop(first);
        let only = b.admit(0, 0).unwrap();
        assert!(b.admit(0, 0).is_none(), "one call at a time");
        drop(only);
        assert!(b.admit(0, 0).is_some());
    }

    #[test]
    fn each_leaves_as_much_as_it_has_and_what_is_not_in_memory_is_nobodys() {
        let server = shared(12_000);
        let of = |server: &Arc<ServerBudget>| Budget::new(100_000, 99, Arc::clone(server));
        let (a, b, c) = (of(&server), of(&server), of(&server));
        let take = |budget: &Arc<Budget>| {
            std::iter::from_fn(|| budget.admit(0, 1000 - OVERHEAD)).collect::<Vec<_>>()
        };
        let mut first = take(&a);
        assert_eq!((first.len(), take(&b).len()), (6, 3), "half of all, and half of what is left");
        assert!(!a.fits(1000) && b.fits(1000));
        // It stays where it is until it leaves.
        first[0].answered(900 - OVERHEAD, 500);
        assert_eq!((a.used(), a.in_memory(), server.used()), (5900, 5400, 5400));
        drop((first, take(&c)));
        assert_eq!((a.used(), a.in_memory(), server.used()), (0, 0, 0));
    }

    /// The budgets of `count` connections of a server.
    fn budgets(server: &Arc<ServerBudget>, count: usize) -> Vec<Arc<Budget>> {
        server.connections(count);
        (0..count).map(|_| Budget::new(100_000, 99, Arc::clone(server))).collect()
    }

    /// Waits for room for a reply until the test says otherwise.
    async fn waits(budget: &Budget, wait: &Wait, clock: &(dyn Clock + 'static), reply: usize) -> bool {
        let changed = budget.changed(clock, wait.patient, 0, reply - OVERHEAD);
        clock.timeout(PATIENCE * 3, changed).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_freed_is_kept_for_the_first_in_line() {
        let (env, server) = (Env::simulated(1), shared(10_000));
        let clock = &*env.clock;
        let all = budgets(&server, 4);
        let [greedy, other, first, second] = &all[..] else { panic!() };
        let admit = |budget: &Arc<Budget>, bytes: usize| budget.admit(0, bytes - OVERHEAD);
        let mut held: Vec<_> = std::iter::from_fn(|| admit(greedy, 500)).collect();
        held.extend(std::iter::from_fn(|| admit(other, 500)));
        assert_eq!(server.used(), 7500);
        assert!(admit(first, 4000).is_none());

        let wait = Wait::new(first, clock);
        assert!(!waits(first, &wait, clock, 4000).await, "the patience ends");
        assert_eq!(server.line.kept(), 0);
        assert!(waits(first, &wait, clock, 4000).await);
        let next = Wait::new(second, clock);
        clock.sleep(PATIENCE).await;
        assert!(waits(second, &next, clock, 3000).await);
        assert_eq!(server.line.kept(), 4000);

        // Room that was freed is not for those who hold their share; others go on.
        held.drain(..2);
        assert!(admit(greedy, 500).is_none() && admit(second, 3000).is_none());
        assert!(admit(second, 1500).is_some(), "as much as all may hold");
        held.drain(..1);
        let granted = admit(first, 4000).expect("it is its turn");
        drop(wait);
        assert_eq!(server.line.kept(), 3000, "then it is the next one's");
        drop(granted);
        drop(admit(second, 3000).expect("it is its turn"));
        assert!(admit(greedy, 1000).is_none());
        // As when its connection ends.
        drop(next);
        assert_eq!(server.line.kept(), 0);
        assert!(admit(greedy, 500).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_holds_much_or_asks_for_too_much_keeps_nobody_waiting() {
        let (env, server) = (Env::simulated(1), shared(10_000));
        let clock = &*env.clock;
        let all = budgets(&server, 2);
        let [a, b] = &all[..] else { panic!() };
        let _held = a.admit(0, 4000).unwrap();
        for (budget, reply) in [(a, 9000), (b, 10_001)] {
            let wait = Wait::new(budget, clock);
            clock.sleep(PATIENCE).await;
            assert!(waits(budget, &wait, clock, reply).await);
            assert_eq!(server.line.kept(), 0);
        }
        assert!(b.admit(0, 4000).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_goes_wakes_those_who_may_now() {
        let (env, server) = (Env::simulated(1), shared(10_000));
        let clock = &*env.clock;
        let all = budgets(&server, 3);
        let [a, b, c] = &all[..] else { panic!() };
        let _held = a.admit(0, 4000).unwrap();
        let first = Wait::new(b, clock);
        clock.sleep(PATIENCE).await;
        assert!(waits(b, &first, clock, 9000).await);
        assert!(c.admit(0, 3000).is_none());
        let wait = Wait::new(c, clock);
        clock.sleep(PATIENCE).await;
        let go = async {
            clock.sleep(PATIENCE).await;
            drop(first);
        };
        let (waited, ()) = tokio::join!(waits(c, &wait, clock, 3000 + OVERHEAD), go);
        assert!(!waited && c.admit(0, 3000).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_his_own_calls_waits_for_nobody_else() {
        let (env, server) = (Env::simulated(1), shared(10_000));
        let b = Budget::new(9000, 1, Arc::clone(&server));
        let only = b.admit(0, 1000).unwrap();
        let wait = Wait::new(&b, &*env.clock);
        let look = async {
            env.clock.sleep(PATIENCE / 2).await;
            assert!(!server.is_short());
            drop(only);
        };
        let (waited, ()) = tokio::join!(waits(&b, &wait, &*env.clock, 1000), look);
        assert!(!waited && b.admit(0, 1000).is_some());
    }

    #[test]
    fn a_reply_above_its_bound_is_counted() {
        let b = budget(10_000, usize::MAX, 100);
        let mut t = b.admit(0, 0).unwrap();
        t.answered(20_000, 0);
        assert!(b.used() > 20_000);
        assert!(b.admit(0, 0).is_none());
        drop(t);
        assert_eq!((b.used(), b.server.used()), (0, 0));
    }
}
