//! Data of a call that stays in the kernel until its program says where it belongs: a large WRITE goes from the socket to
//! the page cache without being copied through our memory. In between it lies in a pipe, as the pages in which the network
//! delivered it.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use rustix::io::ioctl_fionread;
use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};

use crate::transport::{Incoming, Spliced};

/// Bytes that a pipe holds if all its pages are full; what Linux lets everybody ask for. The network's pages hold less, or
/// more, so this is no promise.
const SIZE: usize = 1 << 20;

/// Pipes that are kept while nothing is in them. Each takes 10 KiB of the kernel's memory.
const KEPT: usize = 16;

#[derive(Debug)]
struct Ends {
    read: OwnedFd,
    write: OwnedFd,
}

/// Pipes for large calls.
#[derive(Debug, Default)]
pub(crate) struct Pipes {
    idle: Mutex<Vec<Arc<Ends>>>,
}

impl Pipes {
    /// An empty one; `None` where the system gives none, or only small ones. The usual way needs none.
    fn take(&self) -> Option<Arc<Ends>> {
        if let Some(ends) = self.idle.lock().pop() {
            return Some(ends);
        }
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        fcntl_setpipe_size(&write, SIZE).ok()?;
        (fcntl_getpipe_size(&write).ok()? >= SIZE).then(|| Arc::new(Ends { read, write }))
    }

    fn give(&self, ends: Arc<Ends>) {
        let mut idle = self.idle.lock();
        if idle.len() < KEPT {
            idle.push(ends);
        }
    }
}

/// A pipe with the last bytes of a call. Whoever reads them all gives the pipe back; otherwise it ends with this.
pub struct Tail {
    ends: Arc<Ends>,
    length: usize,
    pipes: Arc<Pipes>,
}

impl fmt::Debug for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tail({} bytes)", self.length)
    }
}

impl Tail {
    /// How many bytes there are; all of them have arrived.
    pub fn length(&self) -> usize {
        self.length
    }
}

/// The end of the pipe to read from. It does not block.
impl AsFd for Tail {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ends.read.as_fd()
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        if ioctl_fionread(&self.ends.read).is_ok_and(|left| left == 0) {
            self.pipes.give(Arc::clone(&self.ends));
        }
    }
}

/// A tail that is arriving.
pub(crate) struct Filling {
    tail: Tail,
    /// Bytes that come into memory before it.
    before: usize,
    here: usize,
}

/// What [`Filling::poll`] came to.
pub(crate) enum Filled {
    /// So many bytes arrived; 0 is the end of the stream.
    Bytes(usize),
    /// The network's pages hold too little to be worth all this: the pipe is full, and the record is not whole.
    Full,
}

impl Filling {
    /// Room for a tail of `length` bytes, before which so many come into memory.
    pub(crate) fn new(pipes: &Arc<Pipes>, before: usize, length: usize) -> Option<Self> {
        let ends = pipes.take()?;
        Some(Self { tail: Tail { ends, length, pipes: Arc::clone(pipes) }, before, here: 0 })
    }

    /// Bytes that are wanted in memory before anything goes into the pipe.
    pub(crate) fn before(&self) -> usize {
        self.before
    }

    /// So many of them have come.
    pub(crate) fn came(&mut self, bytes: usize) {
        self.before = self.before.saturating_sub(bytes);
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.here == self.tail.length
    }

    pub(crate) fn into_tail(self) -> Tail {
        self.tail
    }

    /// Goes on until all of it is here, or the stream ends.
    pub(crate) fn poll<R: Incoming + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
    ) -> Poll<io::Result<Filled>> {
        loop {
            let left = self.tail.length - self.here;
            match ready!(Pin::new(&mut *reader).poll_splice(cx, self.tail.ends.write.as_fd(), left))? {
                Spliced::Bytes(n) => {
                    self.here += n;
                    if n == 0 || self.is_whole() {
                        return Poll::Ready(Ok(Filled::Bytes(n)));
                    }
                }
                Spliced::Full => return Poll::Ready(Ok(Filled::Full)),
            }
        }
    }

    /// Brings what has arrived into memory; `buffer` has room for it.
    pub(crate) fn recall(&self, buffer: &mut bytes::BytesMut) -> io::Result<()> {
        let mut left = self.here;
        while left > 0 {
            let from = buffer.len();
            buffer.resize(from + left, 0);
            let read = rustix::io::retry_on_intr(|| rustix::io::read(&self.tail, &mut buffer[from..]));
            let n = read.inspect_err(|_| buffer.truncate(from))?;
            buffer.truncate(from + n);
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            left -= n;
        }
        Ok(())
    }
}
