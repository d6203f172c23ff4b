//! Read buffers, kept initialised between uses: a 1 MiB read neither zeroes nor faults in memory. Those that nobody has needed for
//! a while are given back.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

/// Smallest class, 4 KiB, as a power of two.
const SMALLEST: u32 = 12;
/// Classes: 4 KiB to 1 MiB.
const CLASSES: usize = 9;

/// The most bytes kept idle.
const IDLE_BYTES: usize = 16 << 20;

#[derive(Debug, Default)]
struct Idle {
    classes: [Shelf; CLASSES],
    bytes: usize,
}

#[derive(Debug, Default)]
struct Shelf {
    /// The last one used is the last.
    buffers: Vec<Vec<u8>>,
    /// The fewest that there have been since the last [`Pool::give_back`]: so many were not needed.
    fewest: usize,
}

impl Shelf {
    fn take(&mut self) -> Option<Vec<u8>> {
        let found = self.buffers.pop();
        self.fewest = self.fewest.min(self.buffers.len());
        found
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Pool(Arc<Mutex<Idle>>);

fn class_of(len: usize) -> usize {
    (len.max(1).next_power_of_two().trailing_zeros().max(SMALLEST) - SMALLEST) as usize
}

impl Pool {
    /// A buffer of at least `len` bytes, shown as exactly `len`; its content is arbitrary.
    pub(crate) fn take(&self, len: usize) -> Buffer {
        let class = class_of(len);
        let size = 1usize << (class as u32 + SMALLEST);
        let mut idle = self.0.lock();
        let found = idle.classes.get_mut(class).and_then(Shelf::take);
        let bytes = match found {
            Some(bytes) => {
                idle.bytes -= size;
                bytes
            }
            None => {
                drop(idle);
                vec![0; size]
            }
        };
        Buffer { bytes, len, pool: self.clone() }
    }

    /// Frees what has lain idle since the last call.
    pub(crate) fn give_back(&self) {
        // Freed when nobody waits for the lock.
        let mut freed: Vec<Vec<u8>> = Vec::new();
        let mut guard = self.0.lock();
        let idle = &mut *guard;
        for shelf in &mut idle.classes {
            freed.extend(shelf.buffers.drain(..shelf.fewest));
            shelf.fewest = shelf.buffers.len();
        }
        idle.bytes -= freed.iter().map(Vec::len).sum::<usize>();
    }
}

/// Memory on loan; it returns to the pool when the last reference is dropped.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    len: usize,
    pool: Pool,
}

impl Buffer {
    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }

    /// The first `len` bytes as shared, immutable memory. A small part of a large buffer is copied
    /// out, so that short answers do not pin memory.
    pub(crate) fn freeze(mut self, len: usize) -> Bytes {
        self.len = len.min(self.len);
        if self.len == 0 {
            return Bytes::new();
        }
        if self.len < self.bytes.len() / 8 {
            return Bytes::copy_from_slice(&self.bytes[..self.len]);
        }
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let class = class_of(bytes.len());
        let mut guard = self.pool.0.lock();
        let idle = &mut *guard;
        if idle.bytes + bytes.len() <= IDLE_BYTES
            && let Some(shelf) = idle.classes.get_mut(class)
        {
            idle.bytes += bytes.len();
            shelf.buffers.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_the_idle_are_bounded() {
        let pool = Pool::default();
        let mut one = pool.take(1 << 20);
        one.as_mut()[0] = 7;
        let bytes = one.freeze(1 << 20);
        assert_eq!((bytes.len(), bytes[0]), (1 << 20, 7));
        assert_eq!(pool.0.lock().bytes, 0);
        drop(bytes);
        assert_eq!(pool.0.lock().bytes, 1 << 20);
        assert_eq!(pool.take(900_000).as_ref()[0], 7, "the same memory");
        let many: Vec<_> = (0..40).map(|_| pool.take(1 << 20)).collect();
        drop(many);
        assert!(pool.0.lock().bytes <= IDLE_BYTES);
        assert_eq!(pool.take(10).freeze(10).len(), 10);
        assert!(pool.take(5).freeze(0).is_empty());
    }

    #[test]
    fn what_is_not_needed_is_given_back_and_what_is_stays() {
        let pool = Pool::default();
        let idle = || pool.0.lock().bytes;
        let large: Vec<_> = (0..8).map(|_| pool.take(1 << 20)).collect();
        drop((large, pool.take(4096)));
        pool.give_back();
        assert_eq!(idle(), (8 << 20) + 4096, "it was needed just now");
        // Two at once is the most that is needed from here on.
        for _ in 0..5 {
            drop((pool.take(1 << 20), pool.take(1 << 20)));
        }
        pool.give_back();
        assert_eq!(idle(), 2 << 20, "the small one was not, either");
        // A large one that is idle does not go in the place of small ones.
        let small: Vec<_> = (0..1000).map(|_| pool.take(4096)).collect();
        drop(small);
        pool.give_back();
        drop((pool.take(1 << 20), pool.take(1 << 20)));
        pool.give_back();
        assert_eq!((idle(), pool.0.lock().classes[CLASSES - 1].buffers.len()), (2 << 20, 2));
        let lent = pool.take(1 << 20);
        pool.give_back();
        pool.give_back();
        assert_eq!(idle(), 0);
        drop(lent);
        assert_eq!(idle(), 1 << 20, "what was lent comes back as ever");
    }
}
