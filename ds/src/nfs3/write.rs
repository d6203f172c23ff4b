//! WRITE, RFC 1813 §3.3.7.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use sluice_rpc::{Call, Connection, Reply, Tail};
use sluice_store::{Stability, StoreError, Verifier};
use sluice_xdr::capability::Rights;
use sluice_xdr::from_bytes;
use sluice_xdr::nfs3::{WRITE3args, WRITE3res, WRITE3resfail, WRITE3resok, nfsstat3, stable_how, writeverf3};

use super::{no_wcc, now};
use crate::error::nfs_status;
use crate::shared::{IO_MAX, Shared};

pub(super) async fn run(shared: &Arc<Shared>, call: Call) -> Reply {
    let Call { args, tail, connection: from, .. } = call;
    let (committed, written) = match tail {
        Some(tail) => (stable_how::UNSTABLE, write_tail(shared, &from, &args, tail).await),
        None => {
            let Ok(args) = from_bytes::<WRITE3args>(args) else { return Reply::GarbageArgs };
            (args.stable, write(shared, &from, args).await)
        }
    };
    let result = match written {
        Ok((count, Verifier(verifier))) => WRITE3res::NFS3_OK(WRITE3resok {
            file_wcc: no_wcc(),
            count,
            committed,
            verf: writeverf3(verifier),
        }),
        Err(status) => WRITE3res::Default(status, WRITE3resfail { file_wcc: no_wcc() }),
    };
    super::reply(&result)
}

/// Of a large UNSTABLE WRITE to memory all but the beginning goes there from the socket. What is to be durable is better
/// off in our memory, whence a device takes it.
pub(super) fn leave(shared: &Shared, args: &[u8], length: usize) -> Option<usize> {
    let (asked, stable, data) = now::begun_write(args, length)?;
    // What is refused is refused by the usual way.
    let usual = stable != stable_how::UNSTABLE.0 || asked.count > IO_MAX;
    let here = asked.offset.checked_add(data.len() as u64).filter(|_| !usual)?;
    let from = usize::try_from(shared.store.pipe_from(here)?.checked_sub(asked.offset)?).ok()?;
    args.len().checked_sub(data.len())?.checked_add(from)
}

/// Answers a small UNSTABLE WRITE that goes to memory.
pub(super) fn now(shared: &Shared, from: &Connection, args: &[u8], result: &mut BytesMut) -> bool {
    let Some((asked, stable, data)) = now::write_args(args) else { return false };
    let end = asked.offset.checked_add(data.len() as u64);
    if data.is_empty() || stable != stable_how::UNSTABLE.0 || end.is_none_or(|end| end > i64::MAX as u64) {
        return false;
    }
    if !shared.store.takes_now(asked.offset, data.len()) {
        return false;
    }
    let access = match shared.admit(from, asked.handle, Rights::WRITE) {
        Ok(admitted) => admitted.access,
        Err(status) => return now::refuse(result, status, 2),
    };
    match shared.store.write_now(&access, asked.offset, data) {
        None => false,
        Some(Ok(Verifier(verifier))) => {
            shared.counters.wrote(data.len());
            // nfsstat3, no attributes before and after, count, stability.
            for word in [0, 0, 0, asked.count, stable] {
                result.put_u32(word);
            }
            result.put_slice(&verifier);
            true
        }
        Some(Err(error)) => now::refuse(result, failed(shared, &error), 2),
    }
}

fn failed(shared: &Shared, error: &StoreError) -> nfsstat3 {
    match error {
        StoreError::Refused(_) => shared.counters.refused(),
        _ => shared.counters.error(),
    }
    nfs_status(error)
}

fn stability(how: stable_how) -> Result<Stability, nfsstat3> {
    match how {
        stable_how::UNSTABLE => Ok(Stability::Unstable),
        stable_how::DATA_SYNC => Ok(Stability::DataSync),
        stable_how::FILE_SYNC => Ok(Stability::FileSync),
        _ => Err(nfsstat3::NFS3ERR_INVAL),
    }
}

async fn write(
    shared: &Arc<Shared>,
    from: &Connection,
    args: WRITE3args,
) -> Result<(u32, Verifier), nfsstat3> {
    let access = shared.admit(from, &args.file.data, Rights::WRITE)?.access;
    let stability = stability(args.stable)?;
    let mut data = args.data;
    // RFC 1813 §3.3.7: count is the number of bytes to write; the opaque carries them.
    if data.len() < args.count as usize {
        return Err(nfsstat3::NFS3ERR_INVAL);
    }
    data.truncate(args.count as usize);
    // 0 bytes bring no data file into being.
    if data.is_empty() {
        return Ok((0, shared.store.verifier(access.key)));
    }
    let end = args.offset.checked_add(data.len() as u64);
    if end.is_none_or(|end| end > i64::MAX as u64) {
        return Err(nfsstat3::NFS3ERR_FBIG);
    }
    let written = shared.store.write_at(&access, args.offset, data, stability).await;
    finish(shared, args.count, written)
}

/// A WRITE the end of which is not in memory, as [`leave`] wanted it.
async fn write_tail(
    shared: &Arc<Shared>,
    from: &Connection,
    args: &Bytes,
    tail: Tail,
) -> Result<(u32, Verifier), nfsstat3> {
    let length = tail.length();
    let begun = now::begun_write(args, args.len().saturating_add(length));
    let Some((asked, _, data)) = begun else { return Err(nfsstat3::NFS3ERR_SERVERFAULT) };
    let access = shared.admit(from, asked.handle, Rights::WRITE)?.access;
    if asked.offset.checked_add(u64::from(asked.count)).is_none_or(|end| end > i64::MAX as u64) {
        return Err(nfsstat3::NFS3ERR_FBIG);
    }
    let data = args.slice_ref(data);
    let written = shared.store.write_piped(&access, asked.offset, data, (tail, length)).await;
    finish(shared, asked.count, written)
}

fn finish(
    shared: &Shared,
    count: u32,
    written: Result<Verifier, StoreError>,
) -> Result<(u32, Verifier), nfsstat3> {
    match written {
        Ok(verifier) => {
            shared.counters.wrote(count as usize);
            Ok((count, verifier))
        }
        Err(error) => Err(failed(shared, &error)),
    }
}
