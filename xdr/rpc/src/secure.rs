//! Mutual authentication and encryption under the cluster key, on the port that serves everybody.
//!
//! A secure connection begins with [`MAGIC`], whose first byte begins no legal record mark, followed by a
//! Noise handshake (NNpsk0: ephemeral keys of both sides and a pre-shared key) and then by RPC records
//! inside Noise messages. Every handshake and transport message is preceded by its length in two bytes.
//! A server that cannot decrypt the first message answers with length zero: the keys differ.
//!
//! The first handshake message can be replayed, but who replays it cannot send a transport message, and a
//! program sees only what came in transport messages.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use sluice_env::{Env, Random};
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash};
use snow::{Builder, HandshakeState, TransportState};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, WriteHalf};

use crate::key::ClusterKey;
use crate::keyring::{Keys, Role, Shown};
use crate::transport::{Outgoing, Stream};

/// The first bytes of a secure connection.
pub const MAGIC: [u8; 8] = *b"SLUICE1\n";

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const PURPOSE: &str = "sluice 2026-01 secure channel pre-shared key";
/// Largest Noise message, and what of it is ours.
const MESSAGE: usize = 65_535;
const TAG: usize = 16;
const PAYLOAD: usize = MESSAGE - TAG;
/// A handshake message: a public key and a tag.
const HANDSHAKE: usize = 32 + TAG;

/// Why a secure connection did not come about.
#[derive(Debug, Error)]
pub enum SecureError {
    /// The peer holds another cluster key (or this side does).
    #[error("the cluster key differs from the peer's")]
    KeyDiffers,
    /// The peer ended the connection without a word: it has no cluster key, or is no Sluice server.
    #[error("the peer does not accept secure connections")]
    Refused,
    /// What came is no handshake of ours.
    #[error("the secure handshake is malformed")]
    Malformed,
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The cryptographic library refused our own request.
    #[error("secure channel: {0}")]
    Internal(snow::Error),
}

struct EnvRandom(Arc<dyn Random>);

impl snow::types::Random for EnvRandom {
    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), snow::Error> {
        self.0.fill(out);
        Ok(())
    }
}

/// The library's own primitives with the environment's randomness, so that a simulation repeats itself.
struct EnvResolver(Arc<dyn Random>);

impl CryptoResolver for EnvResolver {
    fn resolve_rng(&self) -> Option<Box<dyn snow::types::Random>> {
        Some(Box::new(EnvRandom(Arc::clone(&self.0))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

fn handshake(env: &Env, key: &ClusterKey, initiator: bool) -> Result<HandshakeState, SecureError> {
    let psk = zeroize::Zeroizing::new(key.derive(PURPOSE));
    let build = || {
        let resolver = Box::new(EnvResolver(Arc::clone(&env.random)));
        let builder = Builder::with_resolver(PATTERN.parse()?, resolver).psk(0, &psk)?.prologue(&MAGIC)?;
        if initiator { builder.build_initiator() } else { builder.build_responder() }
    };
    build().map_err(SecureError::Internal)
}

/// Opens the secure channel on a stream we dialled. Bounded by the caller's timeout.
pub async fn connect(mut stream: Stream, env: &Env, key: &ClusterKey) -> Result<Stream, SecureError> {
    let mut noise = handshake(env, key, true)?;
    let mut hello = [0; MAGIC.len() + 2 + HANDSHAKE];
    let (magic, message) = hello.split_at_mut(MAGIC.len());
    magic.copy_from_slice(&MAGIC);
    put_handshake(&mut noise, message)?;
    stream.write_all(&hello).await?;
    stream.flush().await?;

    let length = match stream.read_u16().await {
        Ok(0) => return Err(SecureError::KeyDiffers),
        Ok(length) => usize::from(length),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(SecureError::Refused),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(SecureError::Refused),
        Err(error) => return Err(error.into()),
    };
    if length != HANDSHAKE {
        return Err(SecureError::Malformed);
    }
    let mut answer = [0; HANDSHAKE];
    stream.read_exact(&mut answer).await?;
    take_handshake(&mut noise, &answer)?;
    SecureStream::over(stream, noise, BytesMut::new())
}

/// Answers a peer that has sent [`MAGIC`] and shows one of `keys`, or a monitoring key of one; `early` holds the bytes read
/// after it. Bounded by the caller's timeout.
pub async fn accept(
    mut stream: Stream,
    mut early: BytesMut,
    env: &Env,
    keys: &Keys,
) -> Result<(Stream, Shown), SecureError> {
    while early.len() < 2 + HANDSHAKE {
        if stream.read_buf(&mut early).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
    }
    if usize::from(early.get_u16()) != HANDSHAKE {
        return Err(SecureError::Malformed);
    }
    let hello = early.split_to(HANDSHAKE);
    let (mut noise, shown) = match judge(&hello, env, keys) {
        Ok(judged) => judged,
        Err(error) => {
            stream.write_u16(0).await?;
            stream.shutdown().await?;
            return Err(error);
        }
    };
    let mut answer = [0; 2 + HANDSHAKE];
    put_handshake(&mut noise, &mut answer)?;
    stream.write_all(&answer).await?;
    stream.flush().await?;
    Ok((SecureStream::over(stream, noise, early)?, shown))
}

/// Which key a first message was made with: it says so by being decrypted.
fn judge(hello: &[u8], env: &Env, keys: &Keys) -> Result<(HandshakeState, Shown), SecureError> {
    for role in [Role::Server, Role::Monitor] {
        for key in keys.iter() {
            let mut noise = match role {
                Role::Server => handshake(env, key, false)?,
                Role::Monitor => handshake(env, &key.monitor(), false)?,
            };
            match take_handshake(&mut noise, hello) {
                Err(SecureError::KeyDiffers) => {}
                taken => return taken.map(|()| (noise, Shown { key: key.clone(), role })),
            }
        }
    }
    Err(SecureError::KeyDiffers)
}

fn put_handshake(noise: &mut HandshakeState, out: &mut [u8]) -> Result<(), SecureError> {
    let (length, message) = out.split_at_mut(2);
    length.copy_from_slice(&(HANDSHAKE as u16).to_be_bytes());
    match noise.write_message(&[], message) {
        Ok(HANDSHAKE) => Ok(()),
        Ok(_) => Err(SecureError::Malformed),
        Err(error) => Err(SecureError::Internal(error)),
    }
}

fn take_handshake(noise: &mut HandshakeState, message: &[u8]) -> Result<(), SecureError> {
    match noise.read_message(message, &mut [0; HANDSHAKE]) {
        Ok(0) => Ok(()),
        Err(snow::Error::Decrypt) => Err(SecureError::KeyDiffers),
        _ => Err(SecureError::Malformed),
    }
}

/// A stream whose bytes travel inside Noise messages.
pub struct SecureStream {
    inner: Stream,
    noise: TransportState,
    /// Received, still encrypted.
    incoming: BytesMut,
    /// Decrypted, not yet read.
    plain: BytesMut,
    /// Encrypted, not yet sent.
    outgoing: BytesMut,
    /// Gathers the buffers of a vectored write.
    gathered: Vec<u8>,
    aborted: Arc<AtomicBool>,
}

impl Drop for SecureStream {
    fn drop(&mut self) {
        if self.aborted.load(Ordering::SeqCst) {
            self.inner.writer.abort();
        }
    }
}

/// The sending half.
#[derive(Debug)]
struct SecureHalf {
    half: WriteHalf<SecureStream>,
    aborted: Arc<AtomicBool>,
}

impl AsyncWrite for SecureHalf {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.half).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.half).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.half.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.half).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.half).poll_shutdown(cx)
    }
}

impl Outgoing for SecureHalf {
    /// The stream inside is to be had when both halves are gone.
    fn abort(&mut self) {
        self.aborted.store(true, Ordering::SeqCst);
    }
}

impl fmt::Debug for SecureStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secure{:?}", self.inner)
    }
}

impl SecureStream {
    fn over(inner: Stream, noise: HandshakeState, incoming: BytesMut) -> Result<Stream, SecureError> {
        let noise = noise.into_transport_mode().map_err(SecureError::Internal)?;
        let (peer, local) = (inner.peer, inner.local);
        let secure = Self {
            inner,
            noise,
            incoming,
            plain: BytesMut::new(),
            outgoing: BytesMut::new(),
            gathered: Vec::new(),
            aborted: Arc::default(),
        };
        let aborted = Arc::clone(&secure.aborted);
        let (reader, half) = tokio::io::split(secure);
        let writer = SecureHalf { half, aborted };
        Ok(Stream { reader: Box::new(reader), writer: Box::new(writer), peer, local })
    }

    /// Decrypts the next message if all of it is here.
    fn open_message(&mut self) -> io::Result<bool> {
        let Some(length) = self.incoming.first_chunk::<2>() else { return Ok(false) };
        let length = usize::from(u16::from_be_bytes(*length));
        let Some(message) = self.incoming.get(2..2 + length) else { return Ok(false) };
        self.plain.resize(length, 0);
        // A failure means tampering or a lost byte: the stream cannot go on.
        let n = self.noise.read_message(message, &mut self.plain).map_err(io::Error::other)?;
        self.plain.truncate(n);
        self.incoming.advance(2 + length);
        Ok(true)
    }

    fn seal_message(&mut self, plain: &[u8]) -> io::Result<()> {
        let start = self.outgoing.len();
        self.outgoing.resize(start + 2 + plain.len() + TAG, 0);
        let Some((length, message)) = self.outgoing.get_mut(start..).and_then(|m| m.split_at_mut_checked(2))
        else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let n = self.noise.write_message(plain, message).map_err(io::Error::other)?;
        length.copy_from_slice(&u16::try_from(n).map_err(io::Error::other)?.to_be_bytes());
        self.outgoing.truncate(start + 2 + n);
        Ok(())
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.outgoing.is_empty() {
            let n = ready!(Pin::new(&mut self.inner).poll_write(cx, &self.outgoing))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.outgoing.advance(n);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for SecureStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        // An empty message is no end of stream: look on.
        while this.plain.is_empty() {
            if this.open_message()? {
                continue;
            }
            this.incoming.reserve(MESSAGE + 2);
            let read = this.inner.read_buf(&mut this.incoming);
            let read = std::pin::pin!(read);
            if ready!(read.poll(cx))? == 0 {
                // An end inside a message is for the record layer an end like any other.
                return Poll::Ready(Ok(()));
            }
        }
        let n = this.plain.len().min(buf.remaining());
        buf.put_slice(&this.plain.split_to(n));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SecureStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        // At most one message is queued here; the rest waits with its owner.
        ready!(self.poll_drain(cx))?;
        let n = buf.len().min(PAYLOAD);
        self.seal_message(buf.get(..n).unwrap_or_default())?;
        // The bytes are ours now: what the stream does not take at once, the next write or flush sends.
        match self.poll_drain(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(n)),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_drain(cx))?;
        let mut gathered = std::mem::take(&mut self.gathered);
        gathered.clear();
        for buf in bufs {
            let room = PAYLOAD - gathered.len();
            gathered.extend_from_slice(buf.get(..room).unwrap_or(buf));
        }
        let written = self.as_mut().poll_write(cx, &gathered);
        self.gathered = gathered;
        written
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
