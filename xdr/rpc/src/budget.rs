//! What calls may cost: bytes of requests in flight and of replies not yet sent, and the number of
//! handlers running. The reader takes a [`Ticket`] before it lets a call run and stops reading while there
//! is none, which pushes back on the peer through TCP.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::arrivals::Arrivals;
use crate::courtesy::Courtesy;
use crate::limits::{Limits, Share};

/// Bookkeeping for one queued message beyond its bytes: buffers and queue entries.
const OVERHEAD: usize = 256;

/// The bytes all connections of a server may hold together.
#[derive(Debug)]
pub(crate) struct ServerBudget {
    share: Share,
    connections: AtomicUsize,
    used: AtomicUsize,
    waiting: AtomicUsize,
    freed: Notify,
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
            arrivals: Arrivals::new(limits.arriving),
            courtesy: Courtesy::default(),
        })
    }

    /// So many connections share it now.
    pub(crate) fn connections(&self, now: usize) {
        self.connections.store(now, Ordering::Relaxed);
        self.arrivals.connections(now);
    }

    fn limit(&self) -> usize {
        self.share.with(self.connections.load(Ordering::Relaxed))
    }

    /// Somebody waits for what others hold.
    pub(crate) fn is_short(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0 || self.arrivals.is_full()
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes `bytes` for a connection that holds `mine` of what is used. It gets no more than it leaves to all others, so that
    /// those who take their replies slowly cannot take everything. One that exceeds the limit alone is let through when
    /// nothing else is held.
    fn take(&self, mine: usize, bytes: usize) -> bool {
        let limit = self.limit();
        self.used
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |used| {
                fits(used, mine, limit, bytes).then_some(used.saturating_add(bytes))
            })
            .is_ok()
    }

    fn release(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.freed.notify_waiters();
        }
    }
}

fn fits(used: usize, mine: usize, limit: usize, bytes: usize) -> bool {
    used == 0 || mine.saturating_add(bytes) <= limit.saturating_sub(used)
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
    fn in_memory(&self) -> usize {
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
        if !self.server.take(mine, bytes) {
            self.used.fetch_sub(bytes, Ordering::SeqCst);
            return None;
        }
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        Some(Ticket { budget: Arc::clone(self), bytes, apart: 0, running: true })
    }

    /// Whether [`Budget::admit`] would find room.
    fn fits(&self, bytes: usize) -> bool {
        let used = self.used();
        self.in_flight() < self.max_in_flight
            && (used == 0 || used.saturating_add(bytes) <= self.limit)
            && fits(self.server.used(), self.in_memory(), self.server.limit(), bytes)
    }

    /// Completes when a refused [`Budget::admit`] is worth repeating. May complete early.
    pub(crate) async fn changed(&self, request: usize, reply: usize) {
        let _waiting = Waiting::new(&self.server);
        let freed = self.server.freed.notified();
        tokio::pin!(freed);
        freed.as_mut().enable();
        // Looked at again after enlisting: what was freed in between raised no signal.
        if self.fits(request.saturating_add(reply).saturating_add(OVERHEAD)) {
            return;
        }
        tokio::select! {
            biased;
            () = self.recheck.notified() => {}
            () = freed => {}
        }
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
