//! WRITE, RFC 1813 §3.3.7.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use sluice_rpc::Reply;
use sluice_store::{Stability, StoreError, Verifier};
use sluice_xdr::capability::Rights;
use sluice_xdr::from_bytes;
use sluice_xdr::nfs3::{WRITE3args, WRITE3res, WRITE3resfail, WRITE3resok, nfsstat3, stable_how, writeverf3};

use super::{no_wcc, now};
use crate::error::nfs_status;
use crate::shared::Shared;

pub(super) async fn run(shared: &Arc<Shared>, args: Bytes) -> Reply {
    let Ok(args) = from_bytes::<WRITE3args>(args) else { return Reply::GarbageArgs };
    let committed = args.stable;
    let result = match write(shared, args).await {
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

/// Answers a small UNSTABLE WRITE that goes to memory.
pub(super) fn now(shared: &Shared, args: &[u8], result: &mut BytesMut) -> bool {
    let Some((asked, stable, data)) = now::write_args(args) else { return false };
    let end = asked.offset.checked_add(data.len() as u64);
    if data.is_empty() || stable != stable_how::UNSTABLE.0 || end.is_none_or(|end| end > i64::MAX as u64) {
        return false;
    }
    if !shared.store.takes_now(asked.offset, data.len()) {
        return false;
    }
    let access = match shared.admit(asked.handle, Rights::WRITE) {
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

async fn write(shared: &Arc<Shared>, args: WRITE3args) -> Result<(u32, Verifier), nfsstat3> {
    let access = shared.admit(&args.file.data, Rights::WRITE)?.access;
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
    let count = data.len();
    match shared.store.write_at(&access, args.offset, data, stability).await {
        Ok(verifier) => {
            shared.counters.wrote(count);
            Ok((args.count, verifier))
        }
        Err(error) => Err(failed(shared, &error)),
    }
}
