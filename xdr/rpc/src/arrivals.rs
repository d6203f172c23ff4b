//! Memory for large records while they arrive, and until their calls are let in. A record mark is a promise: a thousand
//! peers may begin a large WRITE at once, so only some are let in at a time, in the order in which they came. The others
//! wait in the kernel's buffers, which pushes back through TCP.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::limits::Share;

#[derive(Debug)]
struct State {
    connections: usize,
    used: usize,
    /// Of it, what is used by those who had it beside the others.
    beyond: usize,
    waiting: VecDeque<(usize, oneshot::Sender<Arriving>)>,
}

#[derive(Debug)]
pub(crate) struct Arrivals {
    share: Share,
    state: Mutex<State>,
}

/// Room for one record; given back on drop, when the record has room in the budget or is gone.
#[derive(Debug)]
pub(crate) struct Arriving {
    arrivals: Arc<Arrivals>,
    bytes: usize,
    beyond: bool,
}

impl Arrivals {
    pub(crate) fn new(share: Share) -> Arc<Self> {
        let state = State { connections: 0, used: 0, beyond: 0, waiting: VecDeque::new() };
        Arc::new(Self { share, state: Mutex::new(state) })
    }

    pub(crate) fn connections(self: &Arc<Self>, now: usize) {
        self.state.lock().connections = now;
        self.let_in();
    }

    /// Somebody waits for room.
    pub(crate) fn is_full(&self) -> bool {
        !self.state.lock().waiting.is_empty()
    }

    /// Room for `bytes`; more than all there is waits until it is alone.
    pub(crate) async fn room(self: &Arc<Self>, bytes: usize) -> Arriving {
        let (sender, granted) = oneshot::channel();
        self.state.lock().waiting.push_back((bytes, sender));
        self.let_in();
        match granted.await {
            Ok(arriving) => arriving,
            // The sender is in the queue until it has sent.
            Err(_) => std::future::pending().await,
        }
    }

    /// Room for `bytes` at once, beside all that others have or wait for: as much again as there is for those. `None`: that
    /// is used up, too.
    pub(crate) fn beyond(self: &Arc<Self>, bytes: usize) -> Option<Arriving> {
        let mut state = self.state.lock();
        let all = state.beyond.saturating_add(bytes);
        if state.beyond > 0 && all > self.share.with(state.connections) {
            return None;
        }
        state.beyond = all;
        state.used = state.used.saturating_add(bytes);
        Some(Arriving { arrivals: Arc::clone(self), bytes, beyond: true })
    }

    fn let_in(self: &Arc<Self>) {
        loop {
            let (sender, bytes) = {
                let mut state = self.state.lock();
                let limit = self.share.with(state.connections);
                // Who went away is passed by here: given room, each would give it back by a call of this from within.
                while state.waiting.front().is_some_and(|(_, sender)| sender.is_closed()) {
                    state.waiting.pop_front();
                }
                let Some((bytes, _)) = state.waiting.front() else { return };
                let bytes = *bytes;
                if state.used > 0 && state.used.saturating_add(bytes) > limit {
                    return;
                }
                state.used = state.used.saturating_add(bytes);
                let Some((_, sender)) = state.waiting.pop_front() else { return };
                (sender, bytes)
            };
            // Who went away this moment gives it back at once; outside the lock.
            drop(sender.send(Arriving { arrivals: Arc::clone(self), bytes, beyond: false }));
        }
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.arrivals.state.lock();
            state.used = state.used.saturating_sub(self.bytes);
            if self.beyond {
                state.beyond = state.beyond.saturating_sub(self.bytes);
            }
            !state.waiting.is_empty()
        };
        if waiting {
            self.arrivals.let_in();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    async fn poll_once<F: Future + Unpin>(future: &mut F) -> bool {
        std::future::poll_fn(|cx| {
            std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(cx).is_ready())
        })
        .await
    }

    #[tokio::test]
    async fn room_is_given_in_order_and_grows_with_the_connections() {
        let arrivals = Arrivals::new(Share { base: 100, per_connection: 50 });
        let first = arrivals.room(100).await;
        let (mut second, mut third) = (Box::pin(arrivals.room(80)), Box::pin(arrivals.room(1)));
        assert!(!poll_once(&mut second).await && !poll_once(&mut third).await);
        assert!(arrivals.is_full());
        arrivals.connections(1);
        assert!(!poll_once(&mut third).await, "not past the one before");
        drop(first);
        let (second, third) = (second.await, third.await);
        assert!(!arrivals.is_full());
        drop((second, third));
        assert_eq!(arrivals.state.lock().used, 0);
    }

    #[tokio::test]
    async fn more_than_everything_is_let_in_alone_and_who_goes_away_keeps_nothing() {
        let arrivals = Arrivals::new(Share::fixed(10));
        let big = arrivals.room(1000).await;
        {
            let mut gone = pin!(arrivals.room(5));
            assert!(!poll_once(&mut gone).await);
        }
        let mut next = Box::pin(arrivals.room(10));
        assert!(!poll_once(&mut next).await);
        drop(big);
        drop(next.await);
        assert_eq!(arrivals.state.lock().used, 0);
    }

    #[tokio::test]
    async fn peers_that_owe_replies_have_as_much_again_and_no_more() {
        let arrivals = Arrivals::new(Share::fixed(100));
        let full = arrivals.room(100).await;
        let mut beyond: Vec<_> = (0..10).map(|_| arrivals.beyond(10).unwrap()).collect();
        assert!(arrivals.beyond(10).is_none());
        beyond.pop();
        assert!(arrivals.beyond(10).is_some());
        drop(beyond);
        assert!(arrivals.beyond(1000).is_some(), "alone");
        drop(full);
        assert_eq!(arrivals.state.lock().used, 0);
    }

    /// A server that stops, or a peer with many connections: all of them at once.
    #[tokio::test]
    async fn a_crowd_that_goes_away_takes_no_stack() {
        let arrivals = Arrivals::new(Share::fixed(10));
        let big = arrivals.room(10).await;
        let mut crowd: Vec<_> = (0..200_000).map(|_| Box::pin(arrivals.room(10))).collect();
        for waiting in &mut crowd {
            assert!(!poll_once(waiting).await);
        }
        drop(crowd);
        drop(big);
        assert!(!arrivals.is_full());
        assert_eq!(arrivals.state.lock().used, 0);
    }
}
