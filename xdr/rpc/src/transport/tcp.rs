//! TCP over IPv4 and IPv6.

use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use rustix::pipe::{SpliceFlags, splice};
use sluice_env::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::{Incoming, Listener, Outgoing, Spliced, Stream, Transport};
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
        Box::pin(async move {
            let stream = TcpStream::connect(addr).await?;
            let peer = stream.peer_addr()?;
            into_stream(stream, peer)
        })
    }

    fn listen(&self, addr: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let listener = Self::bind(addr)?;
            let local = listener.local_addr()?;
            Ok(Box::new(Listening { listener, local }) as Box<dyn Listener>)
        })
    }
}

impl Tcp {
    /// Listens at `addr`, within a runtime. `[::]` is every address of this host: IPv4 peers are accepted too, and alone where
    /// there is no IPv6.
    ///
    /// # Errors
    /// What the kernel says: the port is taken, the address is not of this host.
    pub fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
        let socket = bound(addr, open)?;
        if addr.is_ipv6() && socket.local_addr()?.is_ipv4() {
            tracing::info!("this host has no IPv6: listening on {}:{}", Ipv4Addr::UNSPECIFIED, addr.port());
        }
        socket.listen(BACKLOG)
    }

    /// Whether [`Self::bind`] has `addr` to listen at now. Nobody is let in for it: whoever connects shall find a server that
    /// answers.
    ///
    /// # Errors
    /// Those of [`Self::bind`].
    pub fn is_free(addr: SocketAddr) -> io::Result<()> {
        bound(addr, open).map(drop)
    }
}

fn open(addr: SocketAddr) -> io::Result<TcpSocket> {
    if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }
}

/// A socket with `addr`, or with what stands for it here.
fn bound(addr: SocketAddr, open: impl Fn(SocketAddr) -> io::Result<TcpSocket>) -> io::Result<TcpSocket> {
    let at = |addr: SocketAddr| -> io::Result<TcpSocket> {
        let socket = open(addr)?;
        // A restarted server must have its port back while old connections are in TIME_WAIT.
        socket.set_reuseaddr(true)?;
        if addr.is_ipv6() && addr.ip().is_unspecified() {
            // Whatever net.ipv6.bindv6only says.
            setsockopt(&socket, sockopt::Ipv6V6Only, &false)?;
        }
        socket.bind(addr)?;
        Ok(socket)
    };
    at(addr).or_else(|error| instead(addr, &error).map_or(Err(error), at))
}

/// What stands for every address of a host that does not know the family of `addr`.
fn instead(addr: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    let every = addr.is_ipv6() && addr.ip().is_unspecified();
    let unknown = error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error());
    (every && unknown).then(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), addr.port()))
}

#[derive(Debug)]
struct Listening {
    listener: TcpListener,
    local: SocketAddr,
}

impl Listener for Listening {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Stream>> {
        Box::pin(async move {
            loop {
                let (stream, peer) = match self.listener.accept().await {
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                    accepted => accepted?,
                };
                match into_stream(stream, peer) {
                    // A peer that left already. Others are behind it.
                    Err(error) => tracing::debug!(%peer, "connection lost before it was accepted: {error}"),
                    good => return good,
                }
            }
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

/// The receiving half of a socket.
#[derive(Debug)]
struct ReadHalf {
    half: OwnedReadHalf,
    /// It had nothing when it was last asked: what woke us says whether anything will follow.
    waited: bool,
    at_end: bool,
}

impl ReadHalf {
    /// What the system said when it woke us, if it did.
    fn hear(&mut self, cx: &mut Context<'_>) {
        if std::mem::take(&mut self.waited)
            && let Poll::Ready(Ok(ready)) = pin!(self.half.ready(Interest::READABLE)).poll(cx)
        {
            self.at_end |= ready.is_read_closed();
        }
    }
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.hear(cx);
        let read = Pin::new(&mut self.half).poll_read(cx, buf);
        self.waited = read.is_pending();
        read
    }
}

impl Incoming for ReadHalf {
    fn splices(&self) -> bool {
        true
    }

    fn poll_splice(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        most: usize,
    ) -> Poll<io::Result<Spliced>> {
        self.hear(cx);
        let Self { half, waited, .. } = &mut *self;
        let socket: &TcpStream = half.as_ref();
        loop {
            let ready = socket.poll_read_ready(cx);
            *waited = ready.is_pending();
            ready!(ready)?;
            let moved = socket.try_io(Interest::READABLE, || {
                match splice(socket, None, pipe, None, most, SpliceFlags::NONBLOCK) {
                    Ok(n) => Ok(Spliced::Bytes(n)),
                    // Either the socket has nothing, or the pipe has no room: only the pipe can say which.
                    Err(Errno::AGAIN) if is_full(pipe)? => Ok(Spliced::Full),
                    Err(error) => Err(error.into()),
                }
            });
            match moved {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return Poll::Ready(done),
            }
        }
    }

    fn is_at_end(&self) -> bool {
        self.at_end
    }

    fn look_for_end(&mut self) {
        let socket: &TcpStream = self.half.as_ref();
        let end = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut asked = [PollFd::new(socket, PollFlags::RDHUP)];
        // Who cannot be asked is believed to be there: reading shows.
        if poll(&mut asked, Some(&Timespec::default())).is_ok() {
            self.at_end |= asked[0].revents().intersects(end);
        }
    }
}

/// Whether a pipe takes no more.
fn is_full(pipe: BorrowedFd<'_>) -> io::Result<bool> {
    let mut asked = [PollFd::new(&pipe, PollFlags::OUT)];
    poll(&mut asked, Some(&Timespec::default()))?;
    Ok(!asked[0].revents().contains(PollFlags::OUT))
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

    /// The end of a stream waits behind its data, at a peer that does not read for as long as it likes. A reset does not.
    fn abort(&mut self) {
        let socket: &TcpStream = self.0.as_ref();
        if let Err(error) = set_socket_linger(socket, Some(Duration::ZERO)) {
            tracing::warn!("a connection is closed and not reset: {error}");
        }
    }
}

fn into_stream(stream: TcpStream, peer: SocketAddr) -> io::Result<Stream> {
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
    let (peer, local) = (canonical(peer), canonical(stream.local_addr()?));
    let (half, writer) = stream.into_split();
    let reader = ReadHalf { half, waited: false, at_end: false };
    Ok(Stream { reader: Box::new(reader), writer: Box::new(Half(writer)), peer, local })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::Ipv6Addr;
    use std::process::Command;

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    #[test]
    fn every_address_is_every_one_that_there_is() {
        let at = |address: &str| address.parse::<SocketAddr>().unwrap();
        let unknown = io::Error::from(Errno::AFNOSUPPORT);
        assert_eq!(instead(at("[::]:2049"), &unknown), Some(at("0.0.0.0:2049")));
        assert_eq!(instead(at("[::1]:2049"), &unknown), None, "one that was asked for");
        assert_eq!(instead(at("0.0.0.0:2049"), &unknown), None);
        assert_eq!(instead(at("[::]:2049"), &Errno::ADDRINUSE.into()), None);
    }

    #[tokio::test]
    async fn a_host_without_ipv6_has_every_address_all_the_same() {
        let without = |addr: SocketAddr| match addr {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => Err(Errno::AFNOSUPPORT.into()),
        };
        let socket = bound("[::]:0".parse().unwrap(), without).unwrap();
        let at = socket.local_addr().unwrap();
        assert_eq!(at.ip(), Ipv4Addr::UNSPECIFIED);
        assert!(bound("[::1]:0".parse().unwrap(), without).is_err(), "one that was asked for");
        // And whoever has it is seen.
        let _listening = socket.listen(1).unwrap();
        let taken = bound(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), at.port()), without);
        assert_eq!(taken.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    /// A server that looks before it takes over finds what it will find when it listens.
    #[tokio::test]
    async fn what_is_free_can_be_listened_at() {
        let any: SocketAddr = "[::]:0".parse().unwrap();
        Tcp::is_free(any).unwrap();
        let listening = Tcp::bind(any).unwrap();
        let at = listening.local_addr().unwrap();
        assert_eq!(Tcp::is_free(at).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(listening);
        Tcp::is_free(at).unwrap();
    }

    /// On a thread with a network of its own, whose settings are its own too.
    #[test]
    fn ipv4_peers_are_accepted_whatever_the_hosts_default_is() {
        let thread = std::thread::spawn(|| {
            if unshare(CloneFlags::CLONE_NEWNET).is_err() {
                writeln!(io::stderr(), "NOT RUN: only root has a network of its own").unwrap();
                return;
            }
            assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
            std::fs::write("/proc/sys/net/ipv6/bindv6only", "1").unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = Tcp.listen("[::]:0".parse().unwrap()).await.unwrap();
                let port = listener.local_addr().port();
                Tcp.connect(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)).await.unwrap();
            });
        });
        thread.join().unwrap();
    }
}
