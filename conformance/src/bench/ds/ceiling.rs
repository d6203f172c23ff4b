//! The ceiling: a server that answers READ and WRITE from memory. No store, no checks, one blocking thread for
//! each connection; what remains is the record marking, the socket and the scheduler.

use std::io::{IoSlice, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::ExitCode;

use anyhow::Result;
use sluice_xdr::nfs3::{NFSPROC3_COMMIT, NFSPROC3_READ, NFSPROC3_WRITE};

/// Largest record: a 1 MiB WRITE and its headers.
const LARGEST: usize = (1 << 20) + 4096;

/// Larger payloads are referenced, smaller ones copied behind their headers.
const COPIED: usize = 64 << 10;

/// Serves until the process is killed; the first line of its output is its port.
///
/// # Errors
/// If it cannot listen.
pub fn serve() -> Result<ExitCode> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?.port());
    for stream in listener.incoming() {
        let stream = stream?;
        std::thread::Builder::new().stack_size(128 << 10).spawn(move || {
            // A client that leaves ends its thread.
            let _ = answer(stream);
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

fn answer(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let payload = vec![0x5a; 1 << 20];
    let mut received = vec![0; 2 * LARGEST];
    let (mut from, mut to) = (0, 0);
    let mut out = Vec::new();
    loop {
        match stream.read(&mut received[to..])? {
            0 => return Ok(()),
            n => to += n,
        }
        while let Some(length) = record(&received[from..to]) {
            reply(&mut stream, &received[from + 4..from + length], &payload, &mut out)?;
            from += length;
        }
        stream.write_all(&out)?;
        out.clear();
        if from == to {
            (from, to) = (0, 0);
        } else if to > LARGEST {
            received.copy_within(from..to, 0);
            (from, to) = (0, to - from);
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
}

/// The length of the whole record at the beginning of `bytes`, with its mark.
fn record(bytes: &[u8]) -> Option<usize> {
    let length = (word(bytes, 0) & 0x7fff_ffff) as usize + 4;
    (bytes.len() >= 4 && bytes.len() >= length).then_some(length)
}

fn reply(stream: &mut TcpStream, call: &[u8], payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    // Behind xid, type, version, program, version, procedure: credential and verifier.
    let args = 24 + 8 + word(call, 28).next_multiple_of(4) as usize + 8;
    let count_at = args + 4 + word(call, args).next_multiple_of(4) as usize + 8;
    let count = word(call, count_at).min(1 << 20);
    let result: &[u32] = match word(call, 20) {
        NFSPROC3_READ => &[0, 0, count, 0, count],
        NFSPROC3_WRITE => &[0, 0, 0, count, 0, 1, 1],
        NFSPROC3_COMMIT => &[0, 0, 0, 1, 1],
        _ => &[],
    };
    let data = if word(call, 20) == NFSPROC3_READ { &payload[..count as usize] } else { &[] };
    let length = u32::try_from(24 + 4 * result.len() + data.len())?;
    for value in [length | 0x8000_0000, word(call, 0), 1, 0, 0, 0, 0].iter().chain(result) {
        out.extend_from_slice(&value.to_be_bytes());
    }
    if data.len() <= COPIED {
        out.extend_from_slice(data);
        return Ok(());
    }
    let mut sent = 0;
    while sent < out.len() + data.len() {
        let head = out.get(sent..).unwrap_or_default();
        let data = &data[sent.saturating_sub(out.len())..];
        sent += stream.write_vectored(&[IoSlice::new(head), IoSlice::new(data)])?;
    }
    out.clear();
    Ok(())
}
