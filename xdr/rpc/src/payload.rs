//! Data of a reply that stays where it is until the connection takes it: a large READ goes from the page cache to the
//! socket without being copied through our memory.

use std::fmt::{self, Debug};
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use sluice_env::BoxFuture;

use crate::transport::Outgoing;

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

    /// All of them from `from` on, wherever they are.
    fn load(self: Arc<Self>, from: usize) -> BoxFuture<'static, io::Result<Bytes>>;
}

/// A payload on its way.
pub(crate) struct Parting {
    payload: Arc<dyn Payload>,
    gone: usize,
    loading: Option<BoxFuture<'static, io::Result<Bytes>>>,
}

impl Debug for Parting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parting({} of {} bytes gone)", self.gone, self.payload.length())
    }
}

/// What [`Parting::poll`] came to.
pub(crate) enum Step {
    /// So many bytes are gone.
    Gone(usize),
    /// What is left is in memory now.
    Loaded(Bytes),
}

impl Parting {
    pub(crate) fn new(payload: Arc<dyn Payload>) -> Self {
        Self { payload, gone: 0, loading: None }
    }

    /// Bytes that have not left.
    pub(crate) fn left(&self) -> usize {
        self.payload.length() - self.gone
    }

    /// Goes on as far as the peer takes it.
    pub(crate) fn poll<W: Outgoing + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        writer: &mut W,
    ) -> Poll<io::Result<Step>> {
        if self.loading.is_none() {
            match ready!(Pin::new(writer).poll_send(cx, &*self.payload, self.gone))? {
                Sent::Bytes(n) => {
                    self.gone += n;
                    return Poll::Ready(Ok(Step::Gone(n)));
                }
                Sent::Absent => self.loading = Some(Arc::clone(&self.payload).load(self.gone)),
            }
        }
        let Some(loading) = &mut self.loading else { return Poll::Ready(Err(io::ErrorKind::Other.into())) };
        let bytes = ready!(loading.as_mut().poll(cx))?;
        if bytes.len() == self.left() {
            Poll::Ready(Ok(Step::Loaded(bytes)))
        } else {
            Poll::Ready(Err(io::Error::other("a payload is not as long as was promised")))
        }
    }
}
