//! Messages on their way out of one connection, in order, written with as few system calls as the peer
//! allows. A payload is referenced from the reply to the kernel, never copied.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use parking_lot::Mutex;
use sluice_xdr::Frame;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use crate::budget::Ticket;
use crate::payload::{Parting, Payload};
use crate::transport::Outgoing;

/// Buffers handed to one vectored write.
const SLICES: usize = 64;

/// Most writes are of a reply or two: listing more buffers for the kernel than those have would cost each of them.
const FEW: usize = 8;

/// Headers are cut from blocks of this many bytes.
const SCRATCH: usize = 4096;

/// Room for a mark and a header.
const HEAD: usize = 256;

/// A body of at most this many bytes is copied behind its head: that costs less than a buffer more for the kernel.
const SHORT: usize = 1024;

/// What a queued message keeps occupied until its last byte is with the kernel.
#[derive(Debug)]
pub(crate) enum Hold {
    /// A reply's share of the budget.
    Reply { _ticket: Ticket },
    /// An outgoing call's share of the bytes that may be queued.
    Call { _permit: OwnedSemaphorePermit },
}

/// What a message says behind its head.
#[derive(Debug, Default)]
pub(crate) struct Body {
    pub(crate) frame: Frame,
    pub(crate) data: Option<Arc<dyn Payload>>,
}

impl Body {
    pub(crate) fn len(&self) -> usize {
        self.frame.len() + self.data.as_ref().map_or(0, |data| data.length())
    }
}

impl From<Frame> for Body {
    fn from(frame: Frame) -> Self {
        Self { frame, data: None }
    }
}

#[derive(Debug)]
enum Piece {
    Bytes(Bytes),
    Payload(Parting),
}

#[derive(Debug)]
struct Chunk {
    piece: Piece,
    _hold: Option<Hold>,
}

impl From<Bytes> for Chunk {
    fn from(bytes: Bytes) -> Self {
        Self { piece: Piece::Bytes(bytes), _hold: None }
    }
}

#[derive(Debug, Default)]
struct Queue {
    chunks: VecDeque<Chunk>,
    scratch: BytesMut,
    closed: bool,
}

/// The queue between handlers and the writer.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    wake: Notify,
    /// Bytes ever handed to the kernel: the watchdog looks whether it moves.
    written: AtomicU64,
    /// Bytes queued and not yet handed to the kernel.
    queued: AtomicUsize,
    /// Something is queued or half written.
    busy: AtomicBool,
    /// The peer took no more when it was last tried, and has not taken all since.
    stuck: AtomicBool,
    /// What is half written stays so.
    aborted: AtomicBool,
    /// The connection's own task is at work and will flush before it rests.
    in_turn: AtomicBool,
    /// Signalled each time everything queued has been written.
    pub(crate) drained: Notify,
}

impl Outbox {
    /// Queues a message: `head` appends mark and header to the buffer it is given and says whether it
    /// could; `body` follows. Silently dropped once the connection is closed.
    pub(crate) fn push(&self, head: impl FnOnce(&mut BytesMut) -> bool, body: Body, hold: Option<Hold>) {
        let mut queue = self.queue.lock();
        if queue.closed {
            drop(queue);
            return;
        }
        let length = body.len();
        let copied = if body.data.is_none() && length <= SHORT { length } else { 0 };
        if queue.scratch.capacity() < HEAD + copied {
            queue.scratch = BytesMut::with_capacity(SCRATCH);
        }
        if !head(&mut queue.scratch) {
            drop(queue);
            return;
        }
        let mut segments = body.frame.into_segments();
        if copied > 0 {
            segments.drain(..).for_each(|segment| queue.scratch.extend_from_slice(&segment));
        }
        let head = queue.scratch.split().freeze();
        self.queued.fetch_add(head.len() + length - copied, Ordering::Relaxed);
        queue.chunks.push_back(head.into());
        queue.chunks.extend(segments.into_iter().map(Chunk::from));
        if let Some(data) = body.data {
            queue.chunks.push_back(Chunk { piece: Piece::Payload(Parting::new(data)), _hold: None });
        }
        if let Some(last) = queue.chunks.back_mut() {
            last._hold = hold;
        }
        self.busy.store(true, Ordering::SeqCst);
        drop(queue);
        self.wake_writer();
    }

    /// Queues replies that are whole, heads and all.
    pub(crate) fn push_replies(&self, replies: Bytes, ticket: Ticket) {
        let mut queue = self.queue.lock();
        if queue.closed {
            drop(queue);
            return;
        }
        self.queued.fetch_add(replies.len(), Ordering::Relaxed);
        let hold = Some(Hold::Reply { _ticket: ticket });
        queue.chunks.push_back(Chunk { piece: Piece::Bytes(replies), _hold: hold });
        self.busy.store(true, Ordering::SeqCst);
        drop(queue);
        self.wake_writer();
    }

    fn wake_writer(&self) {
        // Read after the message is in the queue: a turn that ends later flushes later.
        if !self.in_turn.load(Ordering::SeqCst) {
            self.wake.notify_one();
        }
    }

    /// Nothing queued and nothing half written.
    pub(crate) fn is_idle(&self) -> bool {
        !self.busy.load(Ordering::SeqCst)
    }

    /// Whether what is queued now waits until the peer takes more.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed)
    }

    /// Bytes that wait for the peer.
    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Drops what is queued and refuses more.
    pub(crate) fn close(&self) {
        let dropped = {
            let mut queue = self.queue.lock();
            queue.closed = true;
            std::mem::take(&mut queue.chunks)
        };
        // Outside the lock: tickets wake the reader when they go.
        drop(dropped);
    }

    /// Drops what is queued, and writes nothing more.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::SeqCst);
        self.close();
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::SeqCst)
    }

    /// From now until [`Self::end_turn`] whoever queues need not wake the writer: it is awake.
    pub(crate) fn begin_turn(&self) {
        self.in_turn.store(true, Ordering::SeqCst);
    }

    /// What was queued during the turn is seen by the [`Self::poll_flush`] that must follow.
    pub(crate) fn end_turn(&self) {
        self.in_turn.store(false, Ordering::SeqCst);
    }

    /// Writes what is queued. Ready when everything is with the kernel; pending when the peer takes no more.
    pub(crate) fn poll_flush<W: Outgoing + Unpin>(
        &self,
        cx: &mut Context<'_>,
        writing: &mut Writing<W>,
    ) -> Poll<io::Result<()>> {
        if self.is_idle() {
            return Poll::Ready(Ok(()));
        }
        let flushed = self.poll_write(cx, writing);
        if self.is_stuck() != flushed.is_pending() {
            self.stuck.store(flushed.is_pending(), Ordering::Relaxed);
        }
        flushed
    }

    fn poll_write<W: Outgoing + Unpin>(
        &self,
        cx: &mut Context<'_>,
        writing: &mut Writing<W>,
    ) -> Poll<io::Result<()>> {
        let Writing { writer, batch } = writing;
        loop {
            if self.is_aborted() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            if batch.is_empty() {
                // A writer that seals what it is given has the end of it in its own hands, until the peer takes that too.
                ready!(Pin::new(&mut *writer).poll_flush(cx))?;
                let mut queue = self.queue.lock();
                std::mem::swap(&mut queue.chunks, batch);
                if batch.is_empty() {
                    self.busy.store(false, Ordering::SeqCst);
                    drop(queue);
                    self.drained.notify_one();
                    return Poll::Ready(Ok(()));
                }
            }
            while !batch.is_empty() {
                let n = ready!(poll_write_some(writer, cx, batch))?;
                if n == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.written.fetch_add(n as u64, Ordering::Relaxed);
                self.queued.fetch_sub(n, Ordering::Relaxed);
                advance(batch, n);
            }
        }
    }

    /// Writes whatever is queued, for as long as the peer takes it.
    pub(crate) async fn run<W: Outgoing + Unpin>(&self, writing: &Mutex<Writing<W>>) -> io::Result<()> {
        let wake = self.wake.notified();
        tokio::pin!(wake);
        poll_fn(|cx| {
            loop {
                if let Poll::Ready(Err(error)) = self.poll_flush(cx, &mut writing.lock()) {
                    return Poll::Ready(Err(error));
                }
                ready!(wake.as_mut().poll(cx));
                wake.set(self.wake.notified());
            }
        })
        .await
    }
}

/// The writing end of a connection, and what is half written to it. Used by the connection's task alone.
#[derive(Debug)]
pub(crate) struct Writing<W> {
    pub(crate) writer: W,
    batch: VecDeque<Chunk>,
}

impl<W> Writing<W> {
    pub(crate) fn new(writer: W) -> Self {
        Self { writer, batch: VecDeque::new() }
    }
}

/// One write of the front of `batch`: of its payload, or of all before the next one.
fn poll_write_some<W: Outgoing + Unpin>(
    writer: &mut W,
    cx: &mut Context<'_>,
    batch: &mut VecDeque<Chunk>,
) -> Poll<io::Result<usize>> {
    if let Some(Chunk { piece, .. }) = batch.front_mut()
        && let Piece::Payload(parting) = piece
    {
        return parting.poll(cx, writer);
    }
    match batch.len() {
        ..=FEW => poll_write_bytes::<W, FEW>(writer, cx, batch),
        _ => poll_write_bytes::<W, SLICES>(writer, cx, batch),
    }
}

/// One write of at most `N` buffers at the front of `batch`.
fn poll_write_bytes<W: Outgoing + Unpin, const N: usize>(
    writer: &mut W,
    cx: &mut Context<'_>,
    batch: &VecDeque<Chunk>,
) -> Poll<io::Result<usize>> {
    let mut slices = [IoSlice::new(&[]); N];
    let mut used = 0;
    let mut more = false;
    for (slice, chunk) in slices.iter_mut().zip(batch) {
        let Piece::Bytes(bytes) = &chunk.piece else {
            more = true;
            break;
        };
        *slice = IoSlice::new(bytes);
        used += 1;
    }
    match slices.get(..used) {
        Some(slices) if more => Pin::new(writer).poll_write_more(cx, slices),
        Some([only]) => Pin::new(writer).poll_write(cx, only),
        Some(slices) => Pin::new(writer).poll_write_vectored(cx, slices),
        None => Poll::Ready(Ok(0)),
    }
}

/// Forgets the first `n` bytes of `batch`.
fn advance(batch: &mut VecDeque<Chunk>, mut n: usize) {
    while let Some(front) = batch.front_mut() {
        match &mut front.piece {
            // It counts for itself.
            Piece::Payload(parting) if parting.left() > 0 => return,
            Piece::Payload(_) => n = 0,
            Piece::Bytes(bytes) if bytes.len() > n => {
                bytes.advance(n);
                return;
            }
            Piece::Bytes(bytes) => n -= bytes.len(),
        }
        batch.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use sluice_xdr::Writer;
    use tokio::io::{AsyncReadExt, DuplexStream, WriteHalf, duplex, split};

    use super::*;

    impl Outgoing for WriteHalf<DuplexStream> {
        fn abort(&mut self) {}
    }

    /// Of one buffer up to the length from which on the XDR writer refers to what it is given, then of three.
    fn body(length: usize) -> Frame {
        let mut writer = Writer::default();
        writer.opaque(&vec![3; length].into(), u32::MAX);
        writer.u32(8);
        writer.finish().unwrap()
    }

    fn push(outbox: &Outbox, body: Frame) {
        let head = |out: &mut BytesMut| {
            out.extend_from_slice(b"head");
            true
        };
        outbox.push(head, body.into(), None);
    }

    #[tokio::test]
    async fn every_message_goes_out_whole_and_is_counted() {
        let outbox = Outbox::default();
        let mut sent = Vec::new();
        // Headers fill their block more than once on the way.
        for length in [0, 4, 100, SHORT - 8, SHORT - 4, 3000, 5000, 20, 900, 900, 900, 900, 900] {
            let body = body(length);
            sent.extend_from_slice(b"head");
            sent.extend_from_slice(&body.to_bytes());
            push(&outbox, body);
        }
        push(&outbox, Frame::empty());
        sent.extend_from_slice(b"head");
        assert_eq!(outbox.queued(), sent.len());

        let (near, mut far) = duplex(1 << 20);
        let mut writing = Writing::new(split(near).1);
        poll_fn(|cx| outbox.poll_flush(cx, &mut writing)).await.unwrap();
        assert_eq!((outbox.queued(), outbox.written()), (0, sent.len() as u64));
        let mut got = vec![0; sent.len()];
        far.read_exact(&mut got).await.unwrap();
        assert_eq!(got, sent);
    }

    #[tokio::test]
    async fn what_is_half_written_when_it_is_aborted_stays_so() {
        let outbox = Outbox::default();
        push(&outbox, body(5000));
        let (near, mut far) = duplex(1000);
        let mut writing = Writing::new(split(near).1);
        let mut flush = async || {
            poll_fn(|cx| Poll::Ready(outbox.poll_flush(cx, &mut writing).map_err(|error| error.kind()))).await
        };
        assert!(flush().await.is_pending());
        far.read_exact(&mut [0; 1000]).await.unwrap();
        let before = outbox.written();
        outbox.abort();
        assert_eq!(flush().await, Poll::Ready(Err(io::ErrorKind::ConnectionAborted)));
        assert_eq!(outbox.written(), before);
    }

    #[test]
    fn a_short_message_is_one_buffer() {
        for (length, buffers) in [(0, 1), (SHORT - 8, 1), (SHORT - 4, 2), (5000, 4)] {
            let outbox = Outbox::default();
            push(&outbox, body(length));
            assert_eq!(outbox.queue.lock().chunks.len(), buffers, "{length}");
        }
    }
}
