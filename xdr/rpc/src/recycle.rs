//! Buffers that connections share: one is held only while there is something in it, so a thousand silent peers
//! cost none.

use bytes::BytesMut;
use parking_lot::Mutex;

/// Buffers kept idle.
const KEPT: usize = 32;

/// Bytes of a buffer: the calls of a deep queue of small ones arrive, and are answered, in one or two.
pub(crate) const BUFFER: usize = 64 << 10;

/// Most bytes of a buffer that is kept: what grew for a large record is given back.
const LARGEST: usize = 2 * BUFFER;

#[derive(Debug, Default)]
pub(crate) struct Recycler(Mutex<Vec<BytesMut>>);

impl Recycler {
    pub(crate) fn take(&self) -> BytesMut {
        let kept = self.0.lock().pop();
        kept.unwrap_or_else(|| BytesMut::with_capacity(BUFFER))
    }

    /// Takes a buffer back, unless parts of it are in use elsewhere.
    pub(crate) fn give(&self, mut buffer: BytesMut) {
        buffer.clear();
        if buffer.capacity() > LARGEST || !(buffer.capacity() >= BUFFER || buffer.try_reclaim(BUFFER)) {
            return;
        }
        let mut kept = self.0.lock();
        if kept.len() < KEPT {
            kept.push(buffer);
        }
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
        assert!(recycler.0.lock().is_empty(), "a part of it is in use");
        drop(part);
        recycler.give(recycler.take());
        assert_eq!(recycler.0.lock().len(), 1);
        recycler.give(BytesMut::with_capacity(1 << 20));
        assert_eq!(recycler.0.lock().len(), 1);
        assert!(recycler.take().is_empty());
    }
}
