//! A portmapper of few words. NFS-Ganesha registers its programs with one and does not start without; nobody
//! asks ours for anything, so it says yes to all. RFC 1833 §2.2.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::thread;

use anyhow::{Context, Result, ensure};

const PORT: u16 = 111;
const NULL: u32 = 0;

/// Serves until this process ends; a portmapper that is there already does as well.
pub(super) fn serve() -> Result<()> {
    let listener = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT)) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => return Ok(()),
        other => other.context("NFS-Ganesha needs a portmapper, and port 111 cannot be had")?,
    };
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // Connections come one after the other, and are closed by the client.
            thread::spawn(move || answer(stream));
        }
    });
    Ok(())
}

fn answer(mut stream: TcpStream) -> Result<()> {
    loop {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark)?;
        let length = (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize;
        ensure!((24..4096).contains(&length), "not a call");
        let mut call = vec![0; length];
        stream.read_exact(&mut call)?;
        let word =
            |at: usize| call.get(at..at + 4).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
        let mut reply = vec![0x8000_0018, word(0), 1, 0, 0, 0, 0];
        if word(20) != NULL {
            reply[0] += 4;
            reply.push(1);
        }
        stream.write_all(&reply.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<_>>())?;
    }
}
