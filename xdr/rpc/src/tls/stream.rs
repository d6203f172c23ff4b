//! The halves of a stream under TLS. Both know the stream below: whether its peer has gone shows there first, and an abort is
//! made there.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsStream;

use crate::transport::{Incoming, Outgoing, Stream};

/// Most plain bytes of a record, RFC 8446 §5.1.
const RECORD: usize = 1 << 14;

/// Never waited for: one task has both halves.
type Both = Arc<Mutex<TlsStream<Stream>>>;

/// The stream, and how many records were sent on it.
pub(super) fn halves(stream: TlsStream<Stream>) -> (Stream, Arc<AtomicU64>) {
    let (peer, local) = (stream.get_ref().0.peer, stream.get_ref().0.local);
    let records = Arc::new(AtomicU64::new(0));
    let both: Both = Arc::new(Mutex::new(stream));
    let reader = Box::new(Reading(Arc::clone(&both)));
    let writer = Box::new(Writing { both, records: Arc::clone(&records) });
    (Stream { reader, writer, peer, local }, records)
}

struct Reading(Both);

struct Writing {
    both: Both,
    records: Arc<AtomicU64>,
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reading(TLS)")
    }
}

impl fmt::Debug for Writing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Writing(TLS, {} records)", self.records.load(Ordering::Relaxed))
    }
}

impl AsyncRead for Reading {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_read(cx, buf)
    }
}

impl Incoming for Reading {
    fn is_at_end(&self) -> bool {
        self.0.lock().get_ref().0.reader.is_at_end()
    }

    fn look_for_end(&mut self) {
        self.0.lock().get_mut().0.reader.look_for_end();
    }
}

impl Writing {
    /// Counts the records of a write.
    fn wrote(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(n)) = &written {
            self.records.fetch_add(n.div_ceil(RECORD) as u64, Ordering::Relaxed);
        }
        written
    }
}

impl AsyncWrite for Writing {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.both.lock()).poll_write(cx, buf);
        self.wrote(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.both.lock()).poll_write_vectored(cx, bufs);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.both.lock().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.both.lock()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.both.lock()).poll_shutdown(cx)
    }
}

impl Outgoing for Writing {
    fn abort(&mut self) {
        self.both.lock().get_mut().0.writer.abort();
    }
}
