//! Waiting for writes that passed their check before a fence was set. A fence that is acknowledged
//! while such a write is still on its way to the device would not be one. Likewise for orders of a metadata
//! server that was replaced.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use tokio::sync::{Mutex, Notify};

/// Two phases: newcomers count in the current one, a drain flips it and waits for the other.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    phase: AtomicBool,
    inside: [AtomicUsize; 2],
    left: Notify,
    /// Drains begun so far.
    begun: AtomicU64,
    /// One drain at a time. The number of the newest that came to its end.
    draining: Mutex<u64>,
}

/// Held by a write from before its check until its bytes are with the device.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    gate: &'a Gate,
    phase: usize,
}

impl Gate {
    pub(crate) fn enter(&self) -> Pass<'_> {
        loop {
            let phase = usize::from(self.phase.load(Ordering::SeqCst));
            self.inside[phase].fetch_add(1, Ordering::SeqCst);
            if usize::from(self.phase.load(Ordering::SeqCst)) == phase {
                return Pass { gate: self, phase };
            }
            // A drain began in between and may not have counted us: go in behind it.
            drop(Pass { gate: self, phase });
        }
    }

    /// Whether anybody is inside, at this moment.
    pub(crate) fn is_occupied(&self) -> bool {
        self.inside.iter().any(|inside| inside.load(Ordering::Relaxed) > 0)
    }

    /// Returns when everyone who was inside has left. Those who enter meanwhile are not waited
    /// for: they see whatever was set before this call. Calls that come while one waits share the next one.
    pub(crate) async fn drain(&self) {
        let begun = self.begun.load(Ordering::SeqCst);
        let mut ended = self.draining.lock().await;
        // It began after this call, and waited for all who were inside then.
        if *ended > begun {
            return;
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        // Those for whom a drain waited that was given up.
        self.empty(usize::from(!self.phase.load(Ordering::SeqCst))).await;
        let old = usize::from(self.phase.fetch_xor(true, Ordering::SeqCst));
        self.empty(old).await;
        *ended = number;
    }

    /// Returns when nobody is in a phase that nobody enters.
    async fn empty(&self, phase: usize) {
        loop {
            let left = self.left.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            if self.inside[phase].load(Ordering::SeqCst) == 0 {
                return;
            }
            left.await;
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.gate.inside[self.phase].fetch_sub(1, Ordering::SeqCst) == 1 {
            self.gate.left.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn a_drain_waits_for_those_inside_and_for_nobody_else() {
        let gate = Arc::new(Gate::default());
        gate.drain().await;
        let pass = gate.enter();
        let mut drain = Box::pin(gate.drain());
        assert!(
            std::future::poll_fn(|cx| std::task::Poll::Ready(drain.as_mut().poll(cx))).await.is_pending()
        );
        let late = gate.enter();
        drop(pass);
        drain.await;
        drop(late);
        gate.drain().await;
    }

    async fn waits(drain: &mut std::pin::Pin<Box<impl Future<Output = ()>>>) -> bool {
        std::future::poll_fn(|cx| std::task::Poll::Ready(drain.as_mut().poll(cx))).await.is_pending()
    }

    /// Each would wait for another crowd, one after the other.
    #[tokio::test]
    async fn who_asked_before_a_drain_began_shares_it() {
        let gate = Arc::new(Gate::default());
        let inside = gate.enter();
        let mut first = Box::pin(gate.drain());
        assert!(waits(&mut first).await);
        let later = gate.enter();
        let mut many: Vec<_> = (0..9).map(|_| Box::pin(gate.drain())).collect();
        for drain in &mut many {
            assert!(waits(drain).await, "for one who came before it was asked for");
        }
        drop(inside);
        first.await;
        assert!(waits(&mut many[0]).await, "the first one began before");
        let last = gate.enter();
        drop(later);
        for drain in &mut many {
            assert!(!waits(drain).await);
        }
        drop(last);
    }

    /// As a retirement is, where the device is slow.
    #[tokio::test]
    async fn a_drain_that_is_given_up_does_not_spare_the_next_one_anything() {
        let gate = Arc::new(Gate::default());
        let inside = gate.enter();
        for _ in 0..3 {
            let mut drain = Box::pin(gate.drain());
            assert!(waits(&mut drain).await);
        }
        let later = gate.enter();
        let mut drain = Box::pin(gate.drain());
        assert!(waits(&mut drain).await);
        drop(inside);
        assert!(waits(&mut drain).await);
        drop(later);
        drain.await;
    }
}
