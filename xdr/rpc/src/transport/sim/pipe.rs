//! One direction of a simulated connection.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use sluice_env::{BoxFuture, Monotonic};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Net;
use crate::transport::{Incoming, Outgoing, Spliced};

#[derive(Debug)]
pub(super) struct Pipe {
    net: Arc<Net>,
    from: SocketAddr,
    to: SocketAddr,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes under way, and when they arrive. An empty chunk is the end of the stream.
    chunks: VecDeque<(Monotonic, Bytes)>,
    bytes: usize,
    last: Monotonic,
    /// Nothing arrives for now.
    held: bool,
    reset: bool,
    /// The reading end is gone.
    deaf: bool,
    ended: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl State {
    fn wake(&mut self) -> [Option<Waker>; 2] {
        [self.reader.take(), self.writer.take()]
    }
}

fn wake(wakers: [Option<Waker>; 2]) {
    wakers.into_iter().flatten().for_each(Waker::wake);
}

impl Pipe {
    pub(super) fn new(net: &Arc<Net>, from: SocketAddr, to: SocketAddr) -> Arc<Self> {
        Arc::new(Self { net: Arc::clone(net), from, to, state: Mutex::default() })
    }

    pub(super) fn hold(&self, held: bool) {
        let mut state = self.state.lock();
        state.held = held;
        let wakers = state.wake();
        drop(state);
        wake(wakers);
    }

    pub(super) fn reset(&self) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.reset, true) {
            self.trace("reset", &[]);
        }
        let wakers = state.wake();
        drop(state);
        wake(wakers);
    }

    fn trace(&self, kind: &str, data: &[u8]) {
        self.net.trace.lock().add(&self.net.env, kind, self.from, self.to, data);
    }

    fn send(&self, state: &mut State, kind: &str, data: Bytes) {
        self.trace(kind, &data);
        // Bytes of one connection do not overtake each other.
        let arrival = state.last.max(self.net.env.clock.now() + self.net.latency());
        state.last = arrival;
        state.bytes += data.len();
        state.chunks.push_back((arrival, data));
    }
}

/// The reading end.
pub(super) struct PipeReader {
    pipe: Arc<Pipe>,
    /// Waiting for the arrival of the first chunk.
    arrival: Option<(Monotonic, BoxFuture<'static, ()>)>,
}

/// The writing end.
pub(super) struct PipeWriter {
    pipe: Arc<Pipe>,
}

impl PipeReader {
    pub(super) fn new(pipe: Arc<Pipe>) -> Self {
        Self { pipe, arrival: None }
    }
}

impl PipeWriter {
    pub(super) fn new(pipe: Arc<Pipe>) -> Self {
        Self { pipe }
    }
}

impl PipeReader {
    /// Hands bytes that have arrived to `take`, which says how many it took; none at the end of the stream.
    fn poll_take<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut take: impl FnMut(&[u8]) -> io::Result<(usize, T)>,
    ) -> Poll<io::Result<T>> {
        let pipe = Arc::clone(&self.pipe);
        loop {
            let mut state = pipe.state.lock();
            if state.reset {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            let now = pipe.net.env.clock.now();
            if state.held || state.chunks.is_empty() {
                state.reader = Some(cx.waker().clone());
                return Poll::Pending;
            }
            let Some((at, data)) = state.chunks.front_mut() else { return Poll::Pending };
            if *at <= now {
                let (n, taken) = take(data)?;
                if n == 0 {
                    return Poll::Ready(Ok(taken));
                }
                data.advance(n);
                if data.is_empty() {
                    state.chunks.pop_front();
                }
                state.bytes -= n;
                let writer = state.writer.take();
                drop(state);
                wake([None, writer]);
                return Poll::Ready(Ok(taken));
            }
            let at = *at;
            state.reader = Some(cx.waker().clone());
            drop(state);
            if self.arrival.as_ref().is_none_or(|(when, _)| *when != at) {
                self.arrival = Some((at, pipe.net.env.clock.sleep_until(at)));
            }
            if let Some((_, sleep)) = &mut self.arrival {
                std::task::ready!(sleep.as_mut().poll(cx));
            }
            self.arrival = None;
        }
    }
}

impl AsyncRead for PipeReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_take(cx, |data| {
            let n = data.len().min(buf.remaining());
            buf.put_slice(data.get(..n).unwrap_or_default());
            Ok((n, ()))
        })
    }
}

impl Incoming for PipeReader {
    fn splices(&self) -> bool {
        true
    }

    fn poll_splice(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        most: usize,
    ) -> Poll<io::Result<Spliced>> {
        self.poll_take(cx, |data| {
            if data.is_empty() {
                return Ok((0, Spliced::Bytes(0)));
            }
            match rustix::io::write(pipe, data.get(..most).unwrap_or(data)) {
                Ok(n) => Ok((n, Spliced::Bytes(n))),
                Err(rustix::io::Errno::AGAIN) => Ok((0, Spliced::Full)),
                Err(error) => Err(error.into()),
            }
        })
    }

    /// As soon as it has arrived.
    fn is_at_end(&self) -> bool {
        let state = self.pipe.state.lock();
        let now = self.pipe.net.env.clock.now();
        let here = state.chunks.back().is_none_or(|(at, _)| *at <= now);
        state.reset || (state.ended && here && !state.held)
    }
}

impl Drop for PipeReader {
    fn drop(&mut self) {
        let mut state = self.pipe.state.lock();
        state.deaf = true;
        let wakers = state.wake();
        drop(state);
        wake(wakers);
    }
}

impl Outgoing for PipeWriter {
    fn abort(&mut self) {
        self.pipe.reset();
    }
}

impl AsyncWrite for PipeWriter {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let pipe = &self.pipe;
        let config = &pipe.net.config;
        let mut state = pipe.state.lock();
        if state.reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if state.deaf || state.ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = config.buffer.saturating_sub(state.bytes);
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if room == 0 {
            state.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let mut n = buf.len().min(room);
        if config.short_writes && n > 1 && pipe.net.env.random.u64().is_multiple_of(4) {
            n = 1 + (pipe.net.env.random.u64() % (n as u64)) as usize % n;
        }
        pipe.send(&mut state, "data", Bytes::copy_from_slice(buf.get(..n).unwrap_or_default()));
        let reader = state.reader.take();
        drop(state);
        wake([reader, None]);
        Poll::Ready(Ok(n))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pipe.end();
        Poll::Ready(Ok(()))
    }
}

impl Pipe {
    /// The writing end will write no more.
    fn end(&self) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.ended, true) || state.reset {
            return;
        }
        self.send(&mut state, "end", Bytes::new());
        let reader = state.reader.take();
        drop(state);
        wake([reader, None]);
    }
}

impl Drop for PipeWriter {
    fn drop(&mut self) {
        self.pipe.end();
    }
}
