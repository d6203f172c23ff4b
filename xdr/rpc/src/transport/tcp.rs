//! TCP over IPv4 and IPv6.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use nix::sys::socket::{setsockopt, sockopt};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use sluice_env::BoxFuture;
use tokio::io::{AsyncWrite, Interest};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::{Listener, Outgoing, Stream, Transport};
use crate::payload::{Payload, Sent};

/// Connections the kernel holds for us until we accept them.
const BACKLOG: u32 = 1024;

/// Seconds of silence before the kernel asks whether the peer is still there, between questions, and
/// their number: a vanished peer is noticed after about 90 s.
const KEEPALIVE: (u32, u32, u32) = (60, 10, 3);

/// Milliseconds that sent bytes may stay unacknowledged.
const USER_TIMEOUT_MS: u32 = 90_000;

/// The network of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Transport for Tcp {
    fn connect(&self, addr: SocketAddr) -> BoxFuture<'_, io::Result<Stream>> {
        Box::pin(async move { into_stream(TcpStream::connect(addr).await?) })
    }

    /// `[::]` accepts IPv4 peers too, as is usual on Linux.
    fn listen(&self, addr: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let socket = if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            // A restarted server must have its port back while old connections are in TIME_WAIT.
            socket.set_reuseaddr(true)?;
            socket.bind(addr)?;
            let listener = socket.listen(BACKLOG)?;
            let local = listener.local_addr()?;
            Ok(Box::new(Listening { listener, local }) as Box<dyn Listener>)
        })
    }
}

#[derive(Debug)]
struct Listening {
    listener: TcpListener,
    local: SocketAddr,
}

impl Listener for Listening {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Stream>> {
        Box::pin(async move {
            let (stream, _) = self.listener.accept().await?;
            into_stream(stream)
        })
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

/// The sending half of a socket.
#[derive(Debug)]
struct Half(OwnedWriteHalf);

impl Half {
    fn poll_try<T>(
        &self,
        cx: &mut Context<'_>,
        mut attempt: impl FnMut(BorrowedFd<'_>) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let socket: &TcpStream = self.0.as_ref();
        loop {
            ready!(socket.poll_write_ready(cx))?;
            match socket.try_io(Interest::WRITABLE, || attempt(socket.as_fd())) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return Poll::Ready(done),
            }
        }
    }
}

impl AsyncWrite for Half {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl Outgoing for Half {
    /// The kernel keeps a head back until its data follows: one packet, one wake-up of the peer.
    fn poll_write_more(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let flags = SendFlags::MORE | SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        self.poll_try(cx, |socket| Ok(sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), flags)?))
    }

    fn poll_send(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        payload: &dyn Payload,
        from: usize,
    ) -> Poll<io::Result<Sent>> {
        self.poll_try(cx, |socket| payload.send(from, socket))
    }
}

fn into_stream(stream: TcpStream) -> io::Result<Stream> {
    // Replies are written whole; waiting for more would only delay them.
    stream.set_nodelay(true)?;
    let (idle, interval, count) = KEEPALIVE;
    setsockopt(&stream, sockopt::KeepAlive, &true)?;
    setsockopt(&stream, sockopt::TcpKeepIdle, &idle)?;
    setsockopt(&stream, sockopt::TcpKeepInterval, &interval)?;
    setsockopt(&stream, sockopt::TcpKeepCount, &count)?;
    // Keepalive does not run while data is unacknowledged; without this, a quarter of an hour may pass.
    setsockopt(&stream, sockopt::TcpUserTimeout, &USER_TIMEOUT_MS)?;
    let canonical = |addr: SocketAddr| SocketAddr::new(addr.ip().to_canonical(), addr.port());
    let (peer, local) = (canonical(stream.peer_addr()?), canonical(stream.local_addr()?));
    let (reader, writer) = stream.into_split();
    Ok(Stream { reader: Box::new(reader), writer: Box::new(Half(writer)), peer, local })
}
