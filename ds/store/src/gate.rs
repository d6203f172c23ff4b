//! Waiting for writes that passed their check before a fence was set. A fence that is acknowledged
//! while such a write is still on its way to the device would not be one.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::{Mutex, Notify};

/// Two phases: newcomers count in the current one, a drain flips it and waits for the other.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    phase: AtomicBool,
    inside: [AtomicUsize; 2],
    left: Notify,
    /// One drain at a time: the other phase is empty whenever one begins.
    draining: Mutex<()>,
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

    /// Returns when everyone who was inside has left. Those who enter meanwhile are not waited
    /// for: they see whatever was set before this call.
    pub(crate) async fn drain(&self) {
        let _alone = self.draining.lock().await;
        let old = usize::from(self.phase.fetch_xor(true, Ordering::SeqCst));
        loop {
            let left = self.left.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            if self.inside[old].load(Ordering::SeqCst) == 0 {
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
}
