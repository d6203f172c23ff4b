//! TCP over IPv4 and IPv6.

use std::io;
use std::net::SocketAddr;

use nix::sys::socket::{setsockopt, sockopt};
use sluice_env::BoxFuture;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::{Listener, Stream, Transport};

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
    Ok(Stream { reader: Box::new(reader), writer: Box::new(writer), peer, local })
}
