//! Messages on their way out of one connection, in order, written with as few system calls as the peer
//! allows. A payload is referenced from the reply to the kernel, never copied.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;

use bytes::{Buf, Bytes, BytesMut};
use parking_lot::Mutex;
use sluice_xdr::Frame;
use tokio::io::AsyncWrite;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use crate::budget::Ticket;

/// Buffers handed to one vectored write.
const SLICES: usize = 64;

/// Headers are cut from blocks of this many bytes.
const SCRATCH: usize = 4096;

/// What a queued message keeps occupied until its last byte is with the kernel.
#[derive(Debug)]
pub(crate) enum Hold {
    /// A reply's share of the budget.
    Reply { _ticket: Ticket },
    /// An outgoing call's share of the bytes that may be queued.
    Call { _permit: OwnedSemaphorePermit },
}

#[derive(Debug)]
struct Chunk {
    bytes: Bytes,
    _hold: Option<Hold>,
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
    /// Something is queued or half written.
    busy: AtomicBool,
    /// Signalled each time everything queued has been written.
    pub(crate) drained: Notify,
}

impl Outbox {
    /// Queues a message: `head` appends mark and header to the buffer it is given and says whether it
    /// could; `body` follows. Silently dropped once the connection is closed.
    pub(crate) fn push(&self, head: impl FnOnce(&mut BytesMut) -> bool, body: Frame, hold: Option<Hold>) {
        let mut queue = self.queue.lock();
        if queue.closed {
            drop(queue);
            return;
        }
        if queue.scratch.capacity() < 256 {
            queue.scratch = BytesMut::with_capacity(SCRATCH);
        }
        if !head(&mut queue.scratch) {
            drop(queue);
            return;
        }
        let head = queue.scratch.split().freeze();
        queue.chunks.push_back(Chunk { bytes: head, _hold: None });
        for bytes in body.into_segments() {
            queue.chunks.push_back(Chunk { bytes, _hold: None });
        }
        if let Some(last) = queue.chunks.back_mut() {
            last._hold = hold;
        }
        self.busy.store(true, Ordering::SeqCst);
        drop(queue);
        self.wake.notify_one();
    }

    /// Nothing queued and nothing half written.
    pub(crate) fn is_idle(&self) -> bool {
        !self.busy.load(Ordering::SeqCst)
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

    /// Writes whatever is queued, for as long as the peer takes it.
    pub(crate) async fn run<W: AsyncWrite + Unpin>(&self, writer: &mut W) -> io::Result<()> {
        let mut batch = VecDeque::new();
        loop {
            {
                let mut queue = self.queue.lock();
                std::mem::swap(&mut queue.chunks, &mut batch);
                if batch.is_empty() {
                    self.busy.store(false, Ordering::SeqCst);
                }
            }
            if batch.is_empty() {
                self.drained.notify_one();
                self.wake.notified().await;
                continue;
            }
            while !batch.is_empty() {
                let n = write_some(writer, &batch).await?;
                if n == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                self.written.fetch_add(n as u64, Ordering::Relaxed);
                advance(&mut batch, n);
            }
            poll_fn(|cx| Pin::new(&mut *writer).poll_flush(cx)).await?;
        }
    }
}

/// One vectored write of the front of `batch`.
async fn write_some<W: AsyncWrite + Unpin>(writer: &mut W, batch: &VecDeque<Chunk>) -> io::Result<usize> {
    poll_fn(|cx| {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let mut used = 0;
        for (slice, chunk) in slices.iter_mut().zip(batch) {
            *slice = IoSlice::new(&chunk.bytes);
            used += 1;
        }
        match slices.get(..used) {
            Some(slices) => Pin::new(&mut *writer).poll_write_vectored(cx, slices),
            None => Poll::Ready(Ok(0)),
        }
    })
    .await
}

/// Forgets the first `n` bytes of `batch`.
fn advance(batch: &mut VecDeque<Chunk>, mut n: usize) {
    while let Some(front) = batch.front_mut() {
        if front.bytes.len() > n {
            front.bytes.advance(n);
            return;
        }
        n -= front.bytes.len();
        batch.pop_front();
    }
}
