//! CHECKSUM: what is there of a range, so that mirrors can be compared without moving their bytes. It asks the medium: a mirror
//! that has them only in memory, because a flush failed, is not equal.

use std::sync::Arc;

use sluice_store::{FileKey, StoreError};
use sluice_xdr::control::{DS_CHECKSUM_args, DS_CHECKSUM_res, DS_CHECKSUM_resok, ctl_status};

use super::data_file;
use crate::error::ctl;
use crate::shared::{IO_MAX, Shared};

/// Most bytes in one call: it is to be answered in time by a slow device.
const LENGTH_MAX: u64 = 64 << 20;

pub(super) async fn run(shared: &Arc<Shared>, args: DS_CHECKSUM_args) -> DS_CHECKSUM_res {
    let Some((key, _)) = data_file(&args.target).filter(|_| args.length <= LENGTH_MAX) else {
        return DS_CHECKSUM_res::Default(ctl_status::CTL_ERR_INVAL);
    };
    match checksum(shared, key, args.offset, args.length).await {
        Ok(found) => DS_CHECKSUM_res::CTL_OK(found),
        Err(error) => DS_CHECKSUM_res::Default(ctl(&error)),
    }
}

async fn checksum(
    shared: &Arc<Shared>,
    key: FileKey,
    offset: u64,
    length: u64,
) -> Result<DS_CHECKSUM_resok, StoreError> {
    let mut hasher = blake3::Hasher::new();
    let mut bytes = 0;
    // Signed offsets below us end there, and so does every data file.
    let end = offset.saturating_add(length).min(i64::MAX as u64);
    while offset + bytes < end {
        let count = (end - offset - bytes).min(u64::from(IO_MAX)) as usize;
        let found = match shared.store.read_medium(key, offset + bytes, count).await {
            Ok(found) => found,
            Err(StoreError::Missing) => break,
            // Equal to nothing, so that a healthy mirror is copied over it; nor to what is in quarantine elsewhere: which
            // blocks of the range these are may differ, and so may all others.
            Err(StoreError::Quarantined) => {
                let size = shared.store.stat(key).await?.map_or(0, |stat| stat.size);
                let there = size.saturating_sub(offset + bytes).min(count as u64);
                if there == 0 {
                    break;
                }
                hasher.update(b"quarantined");
                hasher.update(&shared.store.uuid().0);
                hasher.update(&key.file.to_le_bytes());
                hasher.update(&key.slot.to_le_bytes());
                bytes += there;
                continue;
            }
            Err(error) => return Err(error),
        };
        bytes += found.data.len() as u64;
        hasher.update(&found.data);
        if found.end {
            break;
        }
    }
    Ok(DS_CHECKSUM_resok { bytes, hash: *hasher.finalize().as_bytes() })
}
