//! The test client: one thread, one blocking connection, a fixed number of calls in flight. As lean as it can
//! be, since it shares the processors with the server it measures.

use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustls::ClientConfig;
use sluice_rpc::AuthSys;
use sluice_xdr::nfs3::{NFS_V3, NFS3_PROGRAM, NFSPROC3_READ, NFSPROC3_WRITE, READ3args, nfs_fh3, stable_how};
use sluice_xdr::{Encode, Writer};

use super::line::Line;
use crate::client::{LAST, put_head};

/// A server that says nothing for so long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes taken from the kernel at once: they stay in the cache of the processor.
const TAKE: usize = 128 << 10;

/// Most calls in flight of one connection.
pub(super) const DEEPEST: usize = 256;

/// Odd, so that it meets all of a power of two, and neighbours last.
const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;

/// Words of a reply that are looked at: xid, type, acceptance, verifier (2), outcome, NFS status.
const HEAD: usize = 28;

/// What is asked again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    /// UNSTABLE.
    Write,
    /// FILE_SYNC.
    Stable,
}

impl Kind {
    pub(super) fn writes(self) -> bool {
        self != Self::Read
    }
}

/// Which piece of a file comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// One behind the other, again and again.
    Forward,
    Random,
    /// Each once, far from the one before. There must be a power of two of them.
    Once,
}

/// A file at a server, and who may use it.
#[derive(Clone, Debug)]
pub(super) struct File {
    pub(super) handle: Vec<u8>,
    pub(super) credential: AuthSys,
}

/// Operations on one file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job<'a> {
    pub(super) file: &'a File,
    pub(super) kind: Kind,
    pub(super) bytes: u32,
    /// Places in the file: it has so many pieces of `bytes`.
    pub(super) places: u64,
    pub(super) order: Order,
    pub(super) depth: usize,
    /// As many bytes as a WRITE carries, or more.
    pub(super) payload: &'a [u8],
}

/// One connection.
#[derive(Debug)]
pub(super) struct Wire {
    stream: Line,
    scanner: Scanner,
    buffer: Vec<u8>,
    seed: u64,
}

/// The calls under way: when each was sent, by slot.
struct Flight {
    sent: Vec<Instant>,
    number: u64,
    took: Vec<u32>,
}

impl Wire {
    /// In clear.
    pub(super) fn connect(address: SocketAddr, seed: u64) -> Result<Self> {
        Self::connect_by(address, seed, None)
    }

    /// Under TLS, if it is said how.
    pub(super) fn connect_by(
        address: SocketAddr,
        seed: u64,
        tls: Option<&Arc<ClientConfig>>,
    ) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let stream = match tls {
            Some(tls) => Line::under_tls(stream, tls)?,
            None => Line::Clear(stream),
        };
        Ok(Self { stream, scanner: Scanner::default(), buffer: Vec::new(), seed })
    }

    /// One call, its result undecoded.
    pub(super) fn call(
        &mut self,
        target: (u32, u32, u32),
        credential: &AuthSys,
        args: &impl Encode,
    ) -> Result<Vec<u8>> {
        let mut body = Writer::default();
        args.encode(&mut body);
        let body = body.finish()?.into_bytes();
        let mut call = Vec::new();
        put_head(&mut call, 7, target, credential, body.len());
        call.extend_from_slice(&body);
        self.stream.write_all(&call)?;
        self.stream.flush()?;
        let (mut record, mut last) = (Vec::new(), false);
        while !last {
            let mut mark = [0; 4];
            self.stream.read_exact(&mut mark).context("no reply")?;
            let mark = u32::from_be_bytes(mark);
            last = mark & LAST != 0;
            let begin = record.len();
            record.resize(begin + (mark & !LAST) as usize, 0);
            self.stream.read_exact(&mut record[begin..])?;
        }
        ensure!(record.len() >= 24 && accepted(&record), "procedure {} was refused", target.2);
        Ok(record.split_off(24))
    }

    /// Repeats `job` until `until`, or until it was done `most` times, and waits for all replies. How long each
    /// operation took, in microseconds.
    pub(super) fn drive(&mut self, job: &Job<'_>, until: Instant, most: u64) -> Result<Vec<u32>> {
        self.buffer.resize(TAKE, 0);
        let begun = Instant::now();
        let mut flight = Flight { sent: vec![begun; job.depth], number: 0, took: Vec::new() };
        let mut free: Vec<usize> = (0..job.depth).collect();
        let mut done = Vec::new();
        let mut busy = 0;
        loop {
            let now = Instant::now();
            if now < until {
                let left = usize::try_from(most - flight.number).unwrap_or(usize::MAX);
                let slots: Vec<usize> = free.drain(..free.len().min(left)).collect();
                busy += slots.len();
                self.send(job, &slots, now, &mut flight)?;
            }
            if busy == 0 {
                return Ok(flight.took);
            }
            let n = self.stream.read(&mut self.buffer).context("no reply")?;
            ensure!(n > 0, "the server closed the connection");
            self.scanner.feed(&self.buffer[..n], &mut done)?;
            let now = Instant::now();
            for reply in done.drain(..) {
                ensure!(reply.good, "an operation failed with NFS status {}", reply.status);
                let whole = job.kind.writes() || reply.bytes >= job.bytes as usize;
                ensure!(whole, "a short READ: a reply of {} bytes", reply.bytes);
                let slot = reply.xid as usize % DEEPEST;
                let sent = flight.sent.get(slot).context("a reply to no call")?;
                let micros = now.saturating_duration_since(*sent).as_micros();
                flight.took.push(u32::try_from(micros).unwrap_or(u32::MAX));
                free.push(slot);
                busy -= 1;
            }
        }
    }

    /// One call for each slot, with as few system calls as there are payloads too large to copy.
    fn send(&mut self, job: &Job<'_>, slots: &[usize], now: Instant, flight: &mut Flight) -> Result<()> {
        let mut out = Vec::with_capacity(slots.len() * 256);
        for &slot in slots {
            let xid = u32::try_from(slot).unwrap_or(0) | ((flight.number as u32) << 8);
            let offset = self.place(job, flight.number) * u64::from(job.bytes);
            flight.number += 1;
            if let Some(sent) = flight.sent.get_mut(slot) {
                *sent = now;
            }
            put_io(&mut out, xid, job, offset)?;
            if job.kind.writes() {
                let payload = &job.payload[..job.bytes as usize];
                if payload.len() <= 16 << 10 {
                    out.extend_from_slice(payload);
                } else {
                    write_both(&mut self.stream, &out, payload)?;
                    out.clear();
                }
            }
        }
        self.stream.write_all(&out).context("the server takes no calls")?;
        self.stream.flush().context("the server takes no calls")
    }

    fn place(&mut self, job: &Job<'_>, number: u64) -> u64 {
        match job.order {
            Order::Forward => number % job.places,
            Order::Random => {
                self.seed =
                    self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (self.seed >> 33) % job.places
            }
            Order::Once => number.wrapping_mul(STRIDE).wrapping_add(self.seed) % job.places,
        }
    }
}

/// A READ, or a WRITE up to its payload. Payloads are whole words.
fn put_io(out: &mut Vec<u8>, xid: u32, job: &Job<'_>, offset: u64) -> Result<()> {
    let handle = &job.file.handle;
    let args = 4 + handle.len().next_multiple_of(4) + 12;
    let (procedure, body) = match job.kind {
        Kind::Read => (NFSPROC3_READ, args),
        Kind::Write | Kind::Stable => (NFSPROC3_WRITE, args + 8 + job.bytes as usize),
    };
    put_head(out, xid, (NFS3_PROGRAM, NFS_V3, procedure), &job.file.credential, body);
    let mut args = Writer::with_capacity(256, 128);
    let file = nfs_fh3 { data: bytes::Bytes::copy_from_slice(handle) };
    READ3args { file, offset, count: job.bytes }.encode(&mut args);
    if job.kind.writes() {
        let stable = if job.kind == Kind::Stable { stable_how::FILE_SYNC } else { stable_how::UNSTABLE };
        args.u32(stable.0);
        args.u32(job.bytes);
    }
    out.extend_from_slice(&args.finish()?.into_bytes());
    Ok(())
}

fn write_both(stream: &mut Line, head: &[u8], payload: &[u8]) -> Result<()> {
    let mut sent = 0;
    while sent < head.len() + payload.len() {
        let slices = [
            IoSlice::new(head.get(sent..).unwrap_or_default()),
            IoSlice::new(&payload[sent.saturating_sub(head.len())..]),
        ];
        match stream.write_vectored(&slices).context("the server takes no calls")? {
            0 => bail!("the server takes no calls"),
            n => sent += n,
        }
    }
    Ok(())
}

fn accepted(head: &[u8]) -> bool {
    let word =
        |at: usize| head.get(at..at + 4).map_or(u32::MAX, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
    (word(4), word(8), word(16), word(20)) == (1, 0, 0, 0)
}

/// A reply that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reply {
    xid: u32,
    good: bool,
    status: u32,
    bytes: usize,
}

/// Finds replies in the stream and looks at their beginnings only; servers may cut them in fragments.
#[derive(Debug, Default)]
struct Scanner {
    mark: [u8; 4],
    marked: usize,
    /// Of the fragment under way.
    missing: usize,
    last: bool,
    head: [u8; HEAD],
    seen: usize,
}

impl Scanner {
    fn feed(&mut self, mut bytes: &[u8], done: &mut Vec<Reply>) -> Result<()> {
        loop {
            while self.marked < 4 {
                let Some((first, rest)) = bytes.split_first() else { return Ok(()) };
                self.mark[self.marked] = *first;
                self.marked += 1;
                bytes = rest;
                if self.marked == 4 {
                    let mark = u32::from_be_bytes(self.mark);
                    (self.missing, self.last) = ((mark & !LAST) as usize, mark & LAST != 0);
                }
            }
            let (part, rest) = bytes.split_at(self.missing.min(bytes.len()));
            if self.seen < HEAD {
                let n = part.len().min(HEAD - self.seen);
                self.head[self.seen..self.seen + n].copy_from_slice(&part[..n]);
            }
            self.seen += part.len();
            self.missing -= part.len();
            bytes = rest;
            if self.missing > 0 {
                return Ok(());
            }
            self.marked = 0;
            if self.last {
                ensure!(self.seen >= HEAD, "a reply of {} bytes: the call was refused", self.seen);
                done.push(self.reply());
                self.seen = 0;
            }
        }
    }

    fn reply(&self) -> Reply {
        let [x0, x1, x2, x3, .., s0, s1, s2, s3] = self.head;
        let status = u32::from_be_bytes([s0, s1, s2, s3]);
        let xid = u32::from_be_bytes([x0, x1, x2, x3]);
        Reply { xid, good: accepted(&self.head) && status == 0, status, bytes: self.seen }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_is_each_once_and_no_neighbour_follows() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut wire = Wire::connect(listener.local_addr().unwrap(), 0x301).unwrap();
        let file = File { handle: Vec::new(), credential: AuthSys::root("bench") };
        let job = Job {
            file: &file,
            kind: Kind::Read,
            bytes: 4096,
            places: 1 << 14,
            order: Order::Once,
            depth: 1,
            payload: &[],
        };
        let mut places: Vec<u64> = (0..job.places).map(|number| wire.place(&job, number)).collect();
        assert!(places.windows(2).all(|pair| pair[0].abs_diff(pair[1]) > 100));
        places.sort_unstable();
        assert!(places.into_iter().eq(0..job.places));
    }

    #[test]
    fn replies_are_found_however_they_are_cut() {
        let words = |words: &[u32]| words.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<_>>();
        let mut stream = words(&[LAST | 32, 9, 1, 0, 0, 0, 0, 0, 0xffff_ffff]);
        stream.extend(words(&[12, 10, 1, 0, LAST | 16, 0, 0, 0, 70]));
        let good = Reply { xid: 9, good: true, status: 0, bytes: 32 };
        let bad = Reply { xid: 10, good: false, status: 70, bytes: 28 };
        for size in 1..stream.len() {
            let (mut scanner, mut done) = (Scanner::default(), Vec::new());
            stream.chunks(size).for_each(|part| scanner.feed(part, &mut done).unwrap());
            assert_eq!(done, [good, bad], "in pieces of {size}");
        }
        let refused = words(&[LAST | 24, 9, 1, 0, 0, 0, 4]);
        assert!(Scanner::default().feed(&refused, &mut Vec::new()).is_err());
    }
}
