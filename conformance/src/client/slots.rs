//! The slots of a session: one request each at a time. RFC 8881 §2.10.6.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[derive(Debug)]
pub(super) struct Slots {
    free: Arc<Semaphore>,
    /// Free slots, the lowest last: it is taken first (§2.10.6.1 wants low slots used).
    stack: Mutex<Vec<Slot>>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    id: u32,
    /// Of the last request that the server has seen.
    seqid: u32,
}

/// A slot in use. Dropped before [`Taken::done`] it is lost: nobody knows which sequence id the server
/// expects.
#[derive(Debug)]
pub(super) struct Taken {
    slots: Arc<Slots>,
    slot: Slot,
    permit: Option<OwnedSemaphorePermit>,
}

impl Slots {
    pub(super) fn new(count: u32) -> Arc<Self> {
        let stack = (0..count).rev().map(|id| Slot { id, seqid: 0 }).collect();
        Arc::new(Self {
            free: Arc::new(Semaphore::new(usize::try_from(count).unwrap_or(1))),
            stack: Mutex::new(stack),
        })
    }

    /// Slots that are free now.
    pub(super) fn free(&self) -> usize {
        self.free.available_permits()
    }

    /// Waits for a free slot. `None` when the session is over.
    pub(super) async fn take(self: &Arc<Self>) -> Option<Taken> {
        let permit = Arc::clone(&self.free).acquire_owned().await.ok()?;
        let slot = self.stack.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(Taken { slots: Arc::clone(self), slot, permit: Some(permit) })
    }
}

impl Taken {
    pub(super) fn id(&self) -> u32 {
        self.slot.id
    }

    /// Sequence id of the request to send.
    pub(super) fn seqid(&self) -> u32 {
        self.slot.seqid.wrapping_add(1)
    }

    /// Frees the slot; `seen` when SEQUENCE succeeded.
    pub(super) fn done(mut self, seen: bool) {
        if seen {
            self.slot.seqid = self.seqid();
        }
        let mut stack = self.slots.stack.lock().unwrap_or_else(PoisonError::into_inner);
        let at = stack.iter().position(|other| other.id < self.slot.id).unwrap_or(stack.len());
        stack.insert(at, self.slot);
        drop(stack);
        self.permit.take();
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            permit.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_lowest_slot_goes_first_and_an_abandoned_one_never_again() {
        let slots = Slots::new(3);
        let (a, b) = (slots.take().await.unwrap(), slots.take().await.unwrap());
        assert_eq!((a.id(), a.seqid(), b.id()), (0, 1, 1));
        a.done(true);
        let a = slots.take().await.unwrap();
        assert_eq!((a.id(), a.seqid()), (0, 2));
        a.done(false);
        drop(b);
        let a = slots.take().await.unwrap();
        let c = slots.take().await.unwrap();
        assert_eq!((a.id(), a.seqid(), c.id()), (0, 2, 2));
        assert_eq!(slots.free.available_permits(), 0);
    }
}
