//! Read buffers, kept initialised between uses: a 1 MiB read neither zeroes nor faults in memory. Those that nobody has needed for
//! a while are given back.
//!
//! They come several in one piece. Pieces of 1 MiB and more are in pages of 2 MiB where the system has them (`xdr/env/src/bulk.rs`), and
//! an allocator gives each thread places of its own: one by one, the threads that wait for a device took 2 MiB for each buffer of 1 MiB.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;

/// Smallest class, 4 KiB, as a power of two.
const SMALLEST: u32 = 12;
/// Classes: 4 KiB to 1 MiB.
const CLASSES: usize = 9;

/// The most bytes kept idle. A new piece takes the place of idle ones where both would be more.
const KEPT: usize = 16 << 20;

/// The most bytes of a piece.
const PIECE: usize = 2 << 20;

/// The most buffers that are cut from a piece: one that is in use keeps the others.
const CUT: usize = 8;

#[derive(Debug, Default)]
struct State {
    classes: [Shelf; CLASSES],
    /// Bytes of all pieces.
    all: usize,
    /// Bytes of buffers that are not on loan.
    idle: usize,
}

/// Buffers of one size.
#[derive(Debug, Default)]
struct Shelf {
    /// The oldest is the first.
    pieces: Vec<Piece>,
    next: u64,
}

#[derive(Debug)]
struct Piece {
    number: u64,
    /// Those of its buffers that are not on loan.
    home: Vec<BytesMut>,
    cut: usize,
    /// Some were on loan since the last [`Pool::give_back`].
    needed: bool,
}

impl Piece {
    fn is_idle(&self) -> bool {
        self.home.len() == self.cut
    }

    /// Of its buffers that are home: all of an idle one.
    fn bytes(&self) -> usize {
        self.home.iter().map(BytesMut::len).sum()
    }

    fn lend(&mut self) -> Option<(BytesMut, u64)> {
        self.needed = true;
        Some((self.home.pop()?, self.number))
    }
}

impl Shelf {
    /// From the oldest piece that has any, so that the newest ones rest when fewer are needed.
    fn take(&mut self) -> Option<(BytesMut, u64)> {
        self.pieces.iter_mut().find(|piece| !piece.home.is_empty())?.lend()
    }

    fn add(&mut self, home: Vec<BytesMut>) -> Option<(BytesMut, u64)> {
        let piece = Piece { number: self.next, cut: home.len(), home, needed: false };
        self.next += 1;
        self.pieces.push(piece);
        self.pieces.last_mut()?.lend()
    }

    fn bring_home(&mut self, number: u64, bytes: BytesMut) {
        if let Ok(index) = self.pieces.binary_search_by_key(&number, |piece| piece.number)
            && let Some(piece) = self.pieces.get_mut(index)
        {
            piece.home.push(bytes);
        }
    }
}

impl State {
    /// Idle pieces of at least so many bytes leave, as far as there are any: those of large buffers first, and the newest of a class.
    fn free(&mut self, bytes: usize) -> Vec<Piece> {
        let (mut out, mut freed) = (Vec::new(), 0);
        for shelf in self.classes.iter_mut().rev() {
            while freed < bytes
                && let Some(index) = shelf.pieces.iter().rposition(Piece::is_idle)
            {
                let piece = shelf.pieces.remove(index);
                freed += piece.bytes();
                out.push(piece);
            }
        }
        self.all -= freed;
        self.idle -= freed;
        out
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Pool(Arc<Mutex<State>>);

fn class_of(len: usize) -> usize {
    (len.max(1).next_power_of_two().trailing_zeros().max(SMALLEST) - SMALLEST) as usize
}

/// Buffers of `size` bytes, one behind the other.
fn cut(size: usize) -> Vec<BytesMut> {
    let count = (PIECE / size).clamp(1, CUT);
    let mut rest = BytesMut::zeroed(count * size);
    (0..count).map(|_| rest.split_to(size)).collect()
}

impl Pool {
    /// A buffer of at least `len` bytes, shown as exactly `len`; its content is arbitrary.
    pub(crate) fn take(&self, len: usize) -> Buffer {
        let class = class_of(len);
        let size = 1usize << (class as u32 + SMALLEST);
        let found = self.find(class, size).or_else(|| self.add(class, size));
        // A longer one than there are classes for is nobody's.
        let (bytes, piece) = match found {
            Some((bytes, number)) => (bytes, Some(number)),
            None => (BytesMut::zeroed(size), None),
        };
        Buffer { bytes, len, piece, pool: self.clone() }
    }

    fn find(&self, class: usize, size: usize) -> Option<(BytesMut, u64)> {
        let mut state = self.0.lock();
        let found = state.classes.get_mut(class)?.take()?;
        state.idle -= size;
        Some(found)
    }

    fn add(&self, class: usize, size: usize) -> Option<(BytesMut, u64)> {
        if class >= CLASSES {
            return None;
        }
        let home = cut(size);
        let bytes = home.len() * size;
        let mut state = self.0.lock();
        // As much as it takes itself, and no more.
        let excess = (state.all + bytes).saturating_sub(KEPT).min(bytes);
        let freed = state.free(excess);
        state.all += bytes;
        state.idle += bytes - size;
        let found = state.classes.get_mut(class)?.add(home);
        drop(state);
        // Freed when nobody waits for the lock.
        drop(freed);
        found
    }

    fn bring_home(&self, number: u64, bytes: BytesMut) {
        let (class, size) = (class_of(bytes.len()), bytes.len());
        let mut state = self.0.lock();
        let Some(shelf) = state.classes.get_mut(class) else { return };
        shelf.bring_home(number, bytes);
        state.idle += size;
        let excess = state.idle.saturating_sub(KEPT);
        let freed = state.free(excess);
        drop(state);
        drop(freed);
    }

    /// Frees what has lain idle since the last call.
    pub(crate) fn give_back(&self) {
        let mut freed: Vec<Piece> = Vec::new();
        let mut state = self.0.lock();
        for shelf in &mut state.classes {
            freed.extend(shelf.pieces.extract_if(.., |piece| piece.is_idle() && !piece.needed));
            for piece in &mut shelf.pieces {
                piece.needed = !piece.is_idle();
            }
        }
        let bytes = freed.iter().map(Piece::bytes).sum::<usize>();
        state.all -= bytes;
        state.idle -= bytes;
        drop(state);
        drop(freed);
    }
}

/// Memory on loan; it returns to the pool when the last reference is dropped.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: BytesMut,
    len: usize,
    piece: Option<u64>,
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
        if let Some(piece) = self.piece {
            self.pool.bring_home(piece, std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn held(pool: &Pool) -> (usize, usize) {
        let state = pool.0.lock();
        let home = state.classes.iter().flat_map(|shelf| &shelf.pieces).map(Piece::bytes).sum::<usize>();
        assert_eq!(home, state.idle);
        (state.all, state.idle)
    }

    fn borrow(pool: &Pool, count: usize, len: usize) -> Vec<Buffer> {
        (0..count).map(|_| pool.take(len)).collect()
    }

    #[test]
    fn buffers_come_back_and_the_idle_are_bounded() {
        let pool = Pool::default();
        let mut one = pool.take(MIB);
        one.as_mut()[0] = 7;
        let bytes = one.freeze(MIB);
        assert_eq!((bytes.len(), bytes[0]), (MIB, 7));
        assert_eq!(held(&pool), (2 * MIB, MIB), "two in a piece");
        drop(bytes);
        assert_eq!(held(&pool), (2 * MIB, 2 * MIB));
        assert_eq!(pool.take(900_000).as_ref()[0], 7, "the same memory");
        drop(borrow(&pool, 40, MIB));
        let (all, idle) = held(&pool);
        assert!(all == idle && all > KEPT - 4 * MIB && all <= KEPT, "{all} {idle}");
        assert_eq!(pool.take(10).freeze(10).len(), 10);
        assert!(pool.take(5).freeze(0).is_empty());
        let longer = pool.take(3 * MIB);
        assert_eq!(longer.as_ref().len(), 3 * MIB);
        drop(longer);
        assert!(held(&pool).0 <= KEPT, "it was nobody's");
    }

    #[test]
    fn what_is_idle_makes_room_for_another_size() {
        let pool = Pool::default();
        drop(borrow(&pool, 16, MIB));
        assert_eq!(held(&pool), (KEPT, KEPT));
        let first = pool.take(128 << 10);
        assert_eq!(held(&pool).0, KEPT - MIB);
        let many = borrow(&pool, 200, 128 << 10);
        let (all, idle) = held(&pool);
        assert!(idle < 3 * MIB && all <= (201 << 17) + 3 * MIB, "{all} {idle}");
        drop((first, many));
        let (all, idle) = held(&pool);
        assert_eq!(all, idle);
        assert!(idle <= KEPT);
    }

    #[test]
    fn what_is_not_needed_is_given_back_and_what_is_stays() {
        let pool = Pool::default();
        drop((borrow(&pool, 8, MIB), pool.take(4096)));
        pool.give_back();
        assert_eq!(held(&pool).1, 8 * MIB + 8 * 4096, "it was needed just now");
        // Two at once is the most that is needed from here on.
        for _ in 0..5 {
            drop(borrow(&pool, 2, MIB));
        }
        pool.give_back();
        assert_eq!(held(&pool), (2 * MIB, 2 * MIB), "the small ones were not, either");
        let lent = pool.take(MIB);
        pool.give_back();
        pool.give_back();
        assert_eq!(held(&pool), (2 * MIB, MIB), "one is in use, and has the other with it");
        drop(lent);
        pool.give_back();
        assert_eq!(held(&pool).1, 2 * MIB, "it was in use since the last time");
        pool.give_back();
        assert_eq!(held(&pool), (0, 0));
    }
}
