//! Buffers that connections share: one is held only while there is something in it, so a thousand silent peers
//! cost none.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::BytesMut;
use parking_lot::Mutex;

use crate::tail::Pipes;

/// Buffers kept idle, and as many whose calls are still being answered.
const KEPT: usize = 32;

/// So many of the latter are looked at before another is allocated.
const LOOKS: usize = 4;

/// Bytes of a buffer: the calls of a deep queue of small ones arrive, and are answered, in one or two.
pub(crate) const BUFFER: usize = 64 << 10;

/// Most bytes of a buffer that is kept: what grew for a large record is given back.
const LARGEST: usize = 2 * BUFFER;

/// Buffers of large records that are kept, whether idle or in use.
const LARGE_KEPT: usize = 16;

/// A large WRITE, and the beginning of the next. Allocated for each record, they would take a third more memory: the
/// system gives it in pieces of 2 MiB.
const LARGE_BUFFER: usize = (1 << 20) + (128 << 10);

#[derive(Debug, Default)]
pub(crate) struct Recycler {
    usual: Mutex<Vec<BytesMut>>,
    /// Parts of them are in use by calls that wait for something: for a disk, as a rule, and not for long.
    lent: Mutex<VecDeque<BytesMut>>,
    /// The last one used is the last.
    large: Mutex<VecDeque<Large>>,
    pub(crate) pipes: Arc<Pipes>,
}

#[derive(Debug)]
struct Large {
    /// What is left of it; the records cut from it may be in use.
    buffer: BytesMut,
    /// It was not used since the last [`Recycler::give_back`].
    rested: bool,
}

impl Recycler {
    pub(crate) fn take(&self) -> BytesMut {
        let kept = self.usual.lock().pop();
        kept.or_else(|| self.returned()).unwrap_or_else(|| BytesMut::with_capacity(BUFFER))
    }

    /// A lent buffer that nobody uses any more.
    fn returned(&self) -> Option<BytesMut> {
        let mut lent = self.lent.lock();
        for _ in 0..lent.len().min(LOOKS) {
            let mut buffer = lent.pop_front()?;
            if buffer.try_reclaim(BUFFER) {
                // It may turn out to be the end of one that grew for a large record.
                if buffer.capacity() <= LARGEST {
                    return Some(buffer);
                }
                continue;
            }
            lent.push_back(buffer);
        }
        None
    }

    /// Takes a buffer back; parts of it may be in use elsewhere.
    pub(crate) fn give(&self, mut buffer: BytesMut) {
        buffer.clear();
        if buffer.capacity() > LARGEST {
            return;
        }
        if !(buffer.capacity() >= BUFFER || buffer.try_reclaim(BUFFER)) {
            let mut lent = self.lent.lock();
            let oldest = if lent.len() < KEPT { None } else { lent.pop_front() };
            lent.push_back(buffer);
            drop(lent);
            drop(oldest);
            return;
        }
        let mut kept = self.usual.lock();
        if kept.len() < KEPT {
            kept.push(buffer);
        }
    }

    /// A buffer for a record of so many bytes.
    pub(crate) fn take_large(&self, bytes: usize) -> BytesMut {
        let wanted = bytes.max(LARGE_BUFFER);
        let mut large = self.large.lock();
        // The last one first, so that only as many are used as are needed.
        let idle = large.iter_mut().rposition(|kept| kept.buffer.try_reclaim(wanted));
        let found = idle.and_then(|index| large.remove(index));
        drop(large);
        found.map_or_else(|| BytesMut::with_capacity(wanted), |kept| kept.buffer)
    }

    /// Takes back what is left of one, to be used again once nobody uses the rest.
    pub(crate) fn give_large(&self, mut buffer: BytesMut) {
        buffer.clear();
        let mut large = self.large.lock();
        let oldest = if large.len() < LARGE_KEPT { None } else { large.pop_front() };
        large.push_back(Large { buffer, rested: false });
        drop(large);
        drop(oldest);
    }

    /// Frees the large ones that were not used since the last call.
    pub(crate) fn give_back(&self) {
        let mut large = self.large.lock();
        let (rested, mut used): (VecDeque<_>, VecDeque<_>) = large.drain(..).partition(|kept| kept.rested);
        used.iter_mut().for_each(|kept| kept.rested = true);
        *large = used;
        drop(large);
        // Freed when nobody waits for the lock.
        drop(rested);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_buffers_of_the_usual_size_come_back() {
        let recycler = Recycler::default();
        let mut used = recycler.take();
        used.extend_from_slice(&[1; 100]);
        let part = used.split_to(50).freeze();
        recycler.give(used);
        assert!(recycler.usual.lock().is_empty(), "a part of it is in use");
        drop(part);
        recycler.give(recycler.take());
        assert_eq!(recycler.usual.lock().len(), 1);
        recycler.give(BytesMut::with_capacity(1 << 20));
        assert_eq!(recycler.usual.lock().len(), 1);
        assert!(recycler.take().is_empty());
    }

    #[test]
    fn a_lent_one_comes_back_when_its_call_is_answered() {
        let recycler = Recycler::default();
        let lend = || {
            let mut buffer = recycler.take();
            buffer.extend_from_slice(&[1; 100]);
            let place = buffer.as_ptr();
            let part = buffer.split_to(50).freeze();
            recycler.give(buffer);
            (place, part)
        };
        let (place, part) = lend();
        let (other, waits) = lend();
        assert_ne!(place, other, "in use");
        drop(part);
        let again = recycler.take();
        assert!(again.as_ptr() == place && again.is_empty() && again.capacity() >= BUFFER);
        assert_eq!(&waits[..], [1; 50]);
        let _all: Vec<_> = (0..100).map(|_| lend()).collect();
        assert_eq!(recycler.lent.lock().len(), KEPT);
    }

    #[test]
    fn a_lent_one_that_had_grown_does_not() {
        let recycler = Recycler::default();
        let mut grown = BytesMut::with_capacity(16 * BUFFER);
        grown.extend_from_slice(&[1; 15 * BUFFER + 1]);
        let part = grown.split_to(15 * BUFFER + 1).freeze();
        recycler.give(grown);
        assert_eq!(recycler.lent.lock().len(), 1, "what is left of it is less than a buffer");
        drop(part);
        assert_eq!(recycler.take().capacity(), BUFFER);
        assert!(recycler.lent.lock().is_empty());
    }

    #[test]
    fn large_ones_come_back_when_nobody_uses_them() {
        let recycler = Recycler::default();
        let mut buffer = recycler.take_large(1 << 20);
        let place = buffer.as_ptr();
        buffer.extend_from_slice(&[1; 1 << 20]);
        let record = buffer.split_to(1 << 20).freeze();
        recycler.give_large(buffer);
        assert_ne!(recycler.take_large(1 << 20).as_ptr(), place, "in use");
        drop(record);
        let again = recycler.take_large(1 << 20);
        assert!(again.as_ptr() == place && again.is_empty() && again.capacity() >= 1 << 20);
        for _ in 0..100 {
            recycler.give_large(BytesMut::with_capacity(10));
        }
        assert_eq!(recycler.large.lock().len(), LARGE_KEPT);
    }

    #[test]
    fn large_ones_that_are_not_needed_are_given_back() {
        let recycler = Recycler::default();
        let kept = || recycler.large.lock().len();
        let many: Vec<_> = (0..8).map(|_| recycler.take_large(1 << 20)).collect();
        many.into_iter().for_each(|buffer| recycler.give_large(buffer));
        recycler.give_back();
        assert_eq!(kept(), 8, "they were used just now");
        for _ in 0..20 {
            let two = [recycler.take_large(1 << 20), recycler.take_large(1 << 20)];
            two.into_iter().for_each(|buffer| recycler.give_large(buffer));
        }
        recycler.give_back();
        assert_eq!(kept(), 2);
        recycler.give_back();
        assert_eq!(kept(), 0);
    }
}
