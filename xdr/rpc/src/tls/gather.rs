//! Bytes on their way to the library, which asks for 4 KiB at a time and would have a system call for each.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use crate::transport::{Incoming, Stream};

/// Bytes taken at once: about two records.
const TAKE: usize = 32 << 10;

/// The receiving half below TLS.
struct Gathering {
    below: Box<dyn Incoming + Send + Unpin>,
    /// What was not asked for yet; without memory where that is nothing.
    kept: BytesMut,
}

/// More is taken from the socket of `stream` at once than whoever reads it asks for.
pub(super) fn gathering(stream: Stream) -> Stream {
    let reader = Box::new(Gathering { below: stream.reader, kept: BytesMut::new() });
    Stream { reader, ..stream }
}

impl AsyncRead for Gathering {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { below, kept } = &mut *self;
        if kept.is_empty() {
            kept.reserve(TAKE);
            let read = pin!(below.read_buf(kept)).poll(cx);
            if kept.is_empty() {
                // A connection that rests has none.
                *kept = BytesMut::new();
                return read.map_ok(drop);
            }
        }
        let n = kept.len().min(buf.remaining());
        buf.put_slice(kept.get(..n).unwrap_or_default());
        kept.advance(n);
        Poll::Ready(Ok(()))
    }
}

/// Whether the peer has gone shows at the socket, whatever lies here.
impl Incoming for Gathering {
    fn is_at_end(&self) -> bool {
        self.below.is_at_end()
    }

    fn look_for_end(&mut self) {
        self.below.look_for_end();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Has so many bytes, each of which says how many were left, and then has none for now.
    struct Socket(usize, Arc<AtomicUsize>);

    impl AsyncRead for Socket {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.1.fetch_add(1, Ordering::Relaxed);
            let n = self.0.min(buf.remaining());
            let left = self.0;
            (0..n).for_each(|i| buf.put_slice(&[(left - i) as u8]));
            self.0 -= n;
            if n == 0 { Poll::Pending } else { Poll::Ready(Ok(())) }
        }
    }

    impl Incoming for Socket {}

    #[tokio::test]
    async fn much_is_taken_at_once_and_nothing_kept_at_rest() {
        let (all, calls) = (3 * TAKE + 5, Arc::new(AtomicUsize::new(0)));
        let below = Box::new(Socket(all, Arc::clone(&calls)));
        let mut reader = Gathering { below, kept: BytesMut::new() };
        let mut arrived = Vec::new();
        while arrived.len() < all {
            let mut place = [0; 4096];
            let n = reader.read(&mut place).await.unwrap();
            arrived.extend_from_slice(&place[..n]);
        }
        assert!(arrived.iter().zip((1..=all).rev()).all(|(byte, left)| *byte == left as u8));
        assert_eq!(calls.load(Ordering::Relaxed), 4);
        let nothing = poll_fn(|cx| {
            let mut place = [0; 4096];
            Poll::Ready(Pin::new(&mut reader).poll_read(cx, &mut ReadBuf::new(&mut place)).is_pending())
        });
        assert!(nothing.await && reader.kept.capacity() == 0);
    }
}
