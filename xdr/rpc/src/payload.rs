//! Data of a reply that stays where it is until the connection takes it: a large READ goes from the page cache to the
//! socket without being copied through our memory.

use std::fmt::{self, Debug};
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use sluice_env::BoxFuture;

use crate::transport::Outgoing;

/// Bytes of a payload that are in memory at once, where it cannot be sent otherwise. More would belong to a peer that may
/// take them as slowly as it likes.
pub const PIECE: usize = 128 << 10;

/// What became of [`Payload::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// So many bytes are with the socket, at least one.
    Bytes(usize),
    /// They are not at hand: [`Payload::load`] them.
    Absent,
}

/// Bytes with which a reply ends. Their number is promised before they are looked at: an implementation that cannot keep
/// the promise fails, which ends the connection, and the peer asks again.
pub trait Payload: Debug + Send + Sync {
    /// How many there are.
    fn length(&self) -> usize;

    /// Moves bytes, from the one at `from` on, to a socket that does not block. `WouldBlock` when it takes none now. Must
    /// not wait for anything else.
    fn send(&self, from: usize, socket: BorrowedFd<'_>) -> io::Result<Sent>;

    /// The next `most` of them from `from` on, wherever they are; fewer only if fewer are left.
    fn load(self: Arc<Self>, from: usize, most: usize) -> BoxFuture<'static, io::Result<Bytes>>;
}

/// A payload on its way.
pub(crate) struct Parting {
    payload: Arc<dyn Payload>,
    gone: usize,
    loading: Option<BoxFuture<'static, io::Result<Bytes>>>,
    /// The next bytes, if they are in memory.
    loaded: Bytes,
}

impl Debug for Parting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parting({} of {} bytes gone)", self.gone, self.payload.length())
    }
}

impl Parting {
    pub(crate) fn new(payload: Arc<dyn Payload>) -> Self {
        Self { payload, gone: 0, loading: None, loaded: Bytes::new() }
    }

    /// Bytes that have not left.
    pub(crate) fn left(&self) -> usize {
        self.payload.length() - self.gone
    }

    /// Goes on as far as the peer takes it; says how many bytes that were.
    pub(crate) fn poll<W: Outgoing + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        writer: &mut W,
    ) -> Poll<io::Result<usize>> {
        if self.loaded.is_empty() {
            let loading = match &mut self.loading {
                Some(loading) => loading,
                none => match ready!(Pin::new(&mut *writer).poll_send(cx, &*self.payload, self.gone))? {
                    Sent::Bytes(n) => {
                        self.gone += n;
                        return Poll::Ready(Ok(n));
                    }
                    Sent::Absent => none.insert(Arc::clone(&self.payload).load(self.gone, PIECE)),
                },
            };
            let loaded = ready!(loading.as_mut().poll(cx))?;
            self.loading = None;
            if loaded.is_empty() || loaded.len() != self.left().min(PIECE) {
                return Poll::Ready(Err(io::Error::other("a payload is not as long as was promised")));
            }
            self.loaded = loaded;
        }
        let n = ready!(Pin::new(writer).poll_write(cx, &self.loaded))?;
        self.gone += n;
        self.loaded.advance(n);
        if self.loaded.is_empty() {
            // Its memory is for others.
            self.loaded = Bytes::new();
        }
        Poll::Ready(Ok(n))
    }
}
