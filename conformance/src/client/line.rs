//! How a client's calls travel.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use sluice_rpc::{AuthSys, CallError, Connection, Credential, Frame};
use sluice_xdr::RecordDecoder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use super::Result;

/// A connection to the metadata server.
#[derive(Clone, Debug)]
pub(super) enum Line {
    /// Many calls at once, in both directions.
    Shared(Arc<Connection>),
    /// Calls of one caller at a time, none in the other direction.
    Bare(Arc<Bare>),
}

impl Line {
    pub(super) async fn call(
        &self,
        target: (u32, u32, u32),
        credential: &Credential,
        args: Frame,
        timeout: Duration,
    ) -> Result<Bytes, CallError> {
        let (program, version, procedure) = target;
        match self {
            Self::Shared(connection) => {
                connection.call(program, version, procedure, credential, args, timeout).await
            }
            Self::Bare(bare) => {
                bare.calls(target, credential, vec![args]).await?.pop().ok_or(CallError::Closed)
            }
        }
    }

    /// Calls that are under way together, and their replies in the same order.
    pub(super) async fn together(
        &self,
        target: (u32, u32, u32),
        credential: &Credential,
        args: Vec<Frame>,
        timeout: Duration,
    ) -> Result<Vec<Bytes>, CallError> {
        if let Self::Bare(bare) = self {
            return bare.calls(target, credential, args).await;
        }
        let mut replies = Vec::with_capacity(args.len());
        for args in args {
            replies.push(self.call(target, credential, args, timeout).await?);
        }
        Ok(replies)
    }

    /// Calls back arrive here.
    pub(super) fn has_callbacks(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self, Self::Shared(connection) if connection.is_closed())
    }

    /// A bare one ends with its last handle.
    pub(super) fn close(&self) {
        if let Self::Shared(connection) = self {
            connection.close();
        }
    }
}

/// A socket and nothing around it, for who measures a server on the same processors: of what a call costs, as little as
/// possible shall be the client's.
#[derive(Debug)]
pub(super) struct Bare(Mutex<Stream>);

#[derive(Debug)]
struct Stream {
    stream: TcpStream,
    replies: RecordDecoder,
    out: Vec<u8>,
    xid: u32,
}

/// Bytes of a reply's header when the call was accepted and the server's verifier is empty, as all servers' are.
const HEAD: usize = 24;

impl Bare {
    pub(super) async fn connect(server: SocketAddr, largest: usize) -> std::io::Result<Self> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        Ok(Self(Mutex::new(Stream { stream, replies: RecordDecoder::new(largest), out: Vec::new(), xid: 0 })))
    }

    async fn calls(
        &self,
        target: (u32, u32, u32),
        credential: &Credential,
        calls: Vec<Frame>,
    ) -> Result<Vec<Bytes>, CallError> {
        let Credential::Sys(credential) = credential else { return Err(CallError::GarbageArgs) };
        let lost = |_: std::io::Error| CallError::Closed;
        let mut line = self.0.lock().await;
        let Stream { stream, replies, out, xid } = &mut *line;
        let first = xid.wrapping_add(1);
        out.clear();
        let mut answers = Vec::with_capacity(calls.len());
        for args in calls {
            *xid = xid.wrapping_add(1);
            let args = args.into_bytes();
            put_head(out, *xid, target, credential, args.len());
            out.extend_from_slice(&args);
            answers.push(Bytes::new());
        }
        stream.write_all(out).await.map_err(lost)?;
        let mut missing = answers.len();
        while missing > 0 {
            while let Some(record) = replies.next_record().map_err(|_| CallError::Closed)? {
                let Some((xid, answer)) = answer(record)? else { continue };
                // Of a caller who waits no more: not ours to judge.
                let Some(place) = answers.get_mut(xid.wrapping_sub(first) as usize) else { continue };
                *place = answer;
                missing -= 1;
            }
            if missing > 0 && stream.read_buf(replies.buffer()).await.map_err(lost)? == 0 {
                return Err(CallError::Closed);
            }
        }
        Ok(answers)
    }
}

/// The number and the results of a reply; `None`: it is none.
fn answer(mut record: Bytes) -> Result<Option<(u32, Bytes)>, CallError> {
    let word = |at: usize| record.get(at..at + 4).and_then(|word| word.try_into().ok());
    let word = |at| word(at).map_or(u32::MAX, u32::from_be_bytes);
    let (xid, kind) = (word(0), word(4));
    if kind != 1 {
        return Ok(None);
    }
    if (word(8), word(16), word(20)) != (0, 0, 0) {
        return Err(CallError::SystemErr);
    }
    record.advance(HEAD);
    Ok(Some((xid, record)))
}

/// The mark of a record's only, or last, fragment.
pub(crate) const LAST: u32 = 0x8000_0000;

/// Record mark and header of a call with AUTH_SYS whose arguments have `body` bytes. RFC 5531 §9.
pub(crate) fn put_head(
    out: &mut Vec<u8>,
    xid: u32,
    (program, version, procedure): (u32, u32, u32),
    credential: &AuthSys,
    body: usize,
) {
    let words = |words: usize| u32::try_from(words).unwrap_or(u32::MAX);
    let name = credential.machine_name.len();
    let who = 20 + name.next_multiple_of(4) + 4 * credential.gids.len();
    let mut word = |word: u32| out.extend_from_slice(&word.to_be_bytes());
    word(words(40 + who + body) | LAST);
    for value in [xid, 0, 2, program, version, procedure, 1, words(who), credential.stamp] {
        word(value);
    }
    word(words(name));
    out.extend_from_slice(&credential.machine_name);
    out.resize(out.len() + name.next_multiple_of(4) - name, 0);
    let mut word = |word: u32| out.extend_from_slice(&word.to_be_bytes());
    for value in [credential.uid, credential.gid, words(credential.gids.len())] {
        word(value);
    }
    credential.gids.iter().for_each(|gid| word(*gid));
    word(0);
    word(0);
}
