//! Buffers that connections share: one is held only while there is something in it, so a thousand silent peers
//! cost none.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::Mutex;
use sluice_env::Env;

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

/// A large WRITE, and the beginning of the next. Allocated for each record, they would take a third more memory: it is in
/// pages of 2 MiB.
const LARGE_BUFFER: usize = (1 << 20) + (128 << 10);

/// Large buffers that nobody needed for so long, and at most twice that, are freed.
const REST: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Recycler {
    env: Env,
    usual: Mutex<Vec<BytesMut>>,
    /// Parts of them are in use by calls that wait for something: for a disk, as a rule, and not for long.
    lent: Mutex<VecDeque<BytesMut>>,
    large: Mutex<Large>,
    pub(crate) pipes: Arc<Pipes>,
}

#[derive(Debug, Default)]
struct Large {
    /// The last one used is the last.
    kept: VecDeque<Kept>,
    /// A task frees those that rest, until none is left.
    swept: bool,
}

#[derive(Debug)]
struct Kept {
    /// What is left of it; the records cut from it may be in use.
    buffer: BytesMut,
    /// It was not used since the sweep before.
    rested: bool,
}

impl Recycler {
    pub(crate) fn new(env: Env) -> Arc<Self> {
        let (usual, lent, large, pipes) = Default::default();
        Arc::new(Self { env, usual, lent, large, pipes })
    }

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
        // Where much of it would lie idle it is as long as the record, which is what callers count.
        let wanted = if bytes > LARGE_BUFFER / 2 { bytes.max(LARGE_BUFFER) } else { bytes };
        let mut large = self.large.lock();
        // The last one first, so that only as many are used as are needed.
        let idle = large.kept.iter_mut().rposition(|kept| kept.buffer.try_reclaim(wanted));
        let found = idle.and_then(|index| large.kept.remove(index));
        drop(large);
        found.map_or_else(|| BytesMut::with_capacity(wanted), |kept| kept.buffer)
    }

    /// Takes back what is left of one, to be used again once nobody uses the rest.
    pub(crate) fn give_large(self: &Arc<Self>, mut buffer: BytesMut) {
        buffer.clear();
        let mut large = self.large.lock();
        let oldest = if large.kept.len() < LARGE_KEPT { None } else { large.kept.pop_front() };
        large.kept.push_back(Kept { buffer, rested: false });
        let swept = std::mem::replace(&mut large.swept, true);
        drop(large);
        drop(oldest);
        if !swept {
            self.env.spawn.spawn(Box::pin(sweep(Arc::downgrade(self), self.env.clone())));
        }
    }

    /// Frees the large ones that were not used since the last call. False: none is left.
    fn free_rested(&self) -> bool {
        let mut large = self.large.lock();
        let count = large.kept.iter().take_while(|kept| kept.rested).count();
        let rested: Vec<_> = large.kept.drain(..count).collect();
        large.kept.iter_mut().for_each(|kept| kept.rested = true);
        large.swept = !large.kept.is_empty();
        let swept = large.swept;
        drop(large);
        // Freed when nobody waits for the lock.
        drop(rested);
        swept
    }
}

async fn sweep(recycler: Weak<Recycler>, env: Env) {
    loop {
        env.clock.sleep(REST).await;
        if !recycler.upgrade().is_some_and(|recycler| recycler.free_rested()) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recycler() -> Arc<Recycler> {
        Recycler::new(Env::simulated(1))
    }

    #[tokio::test]
    async fn only_whole_buffers_of_the_usual_size_come_back() {
        let recycler = recycler();
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

    #[tokio::test]
    async fn a_lent_one_comes_back_when_its_call_is_answered() {
        let recycler = recycler();
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

    #[tokio::test]
    async fn a_lent_one_that_had_grown_does_not() {
        let recycler = recycler();
        let mut grown = BytesMut::with_capacity(16 * BUFFER);
        grown.extend_from_slice(&[1; 15 * BUFFER + 1]);
        let part = grown.split_to(15 * BUFFER + 1).freeze();
        recycler.give(grown);
        assert_eq!(recycler.lent.lock().len(), 1, "what is left of it is less than a buffer");
        drop(part);
        assert_eq!(recycler.take().capacity(), BUFFER);
        assert!(recycler.lent.lock().is_empty());
    }

    #[tokio::test]
    async fn large_ones_come_back_when_nobody_uses_them() {
        let recycler = recycler();
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
        assert_eq!(recycler.large.lock().kept.len(), LARGE_KEPT);
    }

    #[tokio::test]
    async fn a_medium_one_takes_what_it_needs() {
        let recycler = recycler();
        assert_eq!(recycler.take_large(132 << 10).capacity(), 132 << 10);
        assert_eq!(recycler.take_large(700 << 10).capacity(), LARGE_BUFFER);
    }

    #[tokio::test(start_paused = true)]
    async fn large_ones_that_are_not_needed_are_given_back() {
        let recycler = recycler();
        let kept = || recycler.large.lock().kept.len();
        let use_at_once = |count: usize| {
            let all: Vec<_> = (0..count).map(|_| recycler.take_large(1 << 20)).collect();
            all.into_iter().for_each(|buffer| recycler.give_large(buffer));
        };
        // Looked at after the sweep of that time.
        let rest = REST + Duration::from_millis(1);
        for round in 0..3 {
            use_at_once(8);
            recycler.env.clock.sleep(rest).await;
            assert_eq!(kept(), 8, "they were used just now, in round {round}");
            (0..20).for_each(|_| use_at_once(2));
            recycler.env.clock.sleep(rest).await;
            assert_eq!(kept(), 2, "in round {round}");
            recycler.env.clock.sleep(2 * rest).await;
            assert_eq!(kept(), 0, "in round {round}");
            assert!(!recycler.large.lock().swept, "there is nothing to sweep");
        }
    }
}
