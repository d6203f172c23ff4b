//! The seam between RPC and the network: TCP in production, [`sim`] in simulations.

pub mod sim;
pub mod tcp;

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use sluice_env::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::payload::{Payload, Sent};

/// Where byte streams come from.
pub trait Transport: fmt::Debug + Send + Sync {
    /// Opens a stream to `addr`. Bounded only by the transport's own patience: put a timeout around it.
    fn connect(&self, addr: SocketAddr) -> BoxFuture<'_, io::Result<Stream>>;

    /// Starts accepting at `addr`; port 0 picks one.
    fn listen(&self, addr: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>>;
}

/// What became of [`Incoming::poll_splice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spliced {
    /// So many bytes are in the pipe; 0 is the end of the stream.
    Bytes(usize),
    /// The pipe takes no more, however few bytes it holds.
    Full,
}

/// The receiving half of a stream.
pub trait Incoming: AsyncRead {
    /// Whether [`Self::poll_splice`] is there.
    fn splices(&self) -> bool {
        false
    }

    /// Moves up to `most` bytes of the stream to a pipe that does not block, without copying them.
    fn poll_splice(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        most: usize,
    ) -> Poll<io::Result<Spliced>> {
        let _ = (cx, pipe, most);
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Whether it is known that nothing follows what has arrived, read or not. Costs nothing.
    fn is_at_end(&self) -> bool {
        false
    }

    /// Asks for what [`Self::is_at_end`] tells: the peer may have gone while it was we who did not read.
    fn look_for_end(&mut self) {}
}

impl<T: AsyncRead> Incoming for tokio::io::ReadHalf<T> {}

impl<T: Incoming + Unpin + ?Sized> Incoming for Box<T> {
    fn splices(&self) -> bool {
        (**self).splices()
    }

    fn poll_splice(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        most: usize,
    ) -> Poll<io::Result<Spliced>> {
        Pin::new(&mut **self).poll_splice(cx, pipe, most)
    }

    fn is_at_end(&self) -> bool {
        (**self).is_at_end()
    }

    fn look_for_end(&mut self) {
        (**self).look_for_end();
    }
}

/// The sending half of a stream.
pub trait Outgoing: AsyncWrite {
    /// Like [`AsyncWrite::poll_write_vectored`], with the promise that more follows at once.
    fn poll_write_more(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, slices)
    }

    /// Sends bytes of a payload, from the one at `from` on, without copying them. A stream that is no plain socket
    /// says [`Sent::Absent`]: it wants them in memory.
    fn poll_send(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        payload: &dyn Payload,
        from: usize,
    ) -> Poll<io::Result<Sent>> {
        let _ = (cx, payload, from);
        Poll::Ready(Ok(Sent::Absent))
    }

    /// When this stream is dropped, which must be next, what was written and has not left never does, and the peer learns
    /// at once that nothing follows, before it has read what it was sent.
    fn abort(&mut self);
}

impl<T: Outgoing + Unpin + ?Sized> Outgoing for Box<T> {
    fn poll_write_more(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut **self).poll_write_more(cx, slices)
    }

    fn poll_send(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        payload: &dyn Payload,
        from: usize,
    ) -> Poll<io::Result<Sent>> {
        Pin::new(&mut **self).poll_send(cx, payload, from)
    }

    fn abort(&mut self) {
        (**self).abort();
    }
}

/// A listening address.
pub trait Listener: fmt::Debug + Send {
    /// The next stream. Cancel-safe. An error is of this end: trying again at once may meet it again.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Stream>>;

    /// Where it listens, with the port that was picked.
    fn local_addr(&self) -> SocketAddr;
}

/// A two-way byte stream, in halves that one task may use independently.
pub struct Stream {
    pub reader: Box<dyn Incoming + Send + Unpin>,
    pub writer: Box<dyn Outgoing + Send + Unpin>,
    /// The other end.
    pub peer: SocketAddr,
    /// This end.
    pub local: SocketAddr,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({} -> {})", self.local, self.peer)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.writer.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(cx)
    }
}
