//! DIGEST: what is there of a range, unit by unit, so that mirrors can be compared without moving their bytes, and it is
//! known where they differ. Clients come first: few are worked on at once, each with one read at a time.

use std::sync::Arc;

use sluice_store::{FileKey, StoreError};
use sluice_xdr::control::{DS_DIGEST_args, DS_DIGEST_res, DS_DIGEST_resok, ctl_digest, ctl_status};

use super::{data_file, stat};
use crate::error::ctl;
use crate::shared::{IO_MAX, Shared};

/// Most bytes in one call: it is to be answered in time by a slow device.
const LENGTH_MAX: u64 = 64 << 20;
/// Most units: a reply of half a megabyte.
const UNITS_MAX: u64 = 1 << 14;
/// Worked on at once.
pub(crate) const AT_ONCE: usize = 2;

pub(super) async fn run(shared: &Arc<Shared>, args: DS_DIGEST_args) -> DS_DIGEST_res {
    let sane = args.unit > 0
        && IO_MAX.is_multiple_of(args.unit)
        && args.length <= LENGTH_MAX
        && args.length.div_ceil(args.unit.into()) <= UNITS_MAX
        && args.offset.checked_add(args.length).is_some_and(|end| i64::try_from(end).is_ok());
    let Some((key, _)) = data_file(&args.target).filter(|_| sane) else {
        return DS_DIGEST_res::Default(ctl_status::CTL_ERR_INVAL);
    };
    let Ok(_turn) = shared.digests.acquire().await else {
        return DS_DIGEST_res::Default(ctl_status::CTL_ERR_AGAIN);
    };
    match digest(shared, key, &args).await {
        Ok(found) => DS_DIGEST_res::CTL_OK(found),
        Err(error) => DS_DIGEST_res::Default(ctl(&error)),
    }
}

async fn digest(
    shared: &Arc<Shared>,
    key: FileKey,
    args: &DS_DIGEST_args,
) -> Result<DS_DIGEST_resok, StoreError> {
    // First: a write that comes between the two looks counts as later than this one.
    let writes = shared.store.writes(key);
    let before = shared.store.stat(key).await?;
    let (unit, end) = (u64::from(args.unit), args.offset + args.length);
    let mut units = vec![ctl_digest::default(); args.length.div_ceil(unit) as usize];
    let (mut read, mut at) = (0, args.offset);
    // Where the next data is, if that is known.
    let mut data = None;
    while at < end {
        let from = match data {
            Some(data) => data,
            None => next_data(shared, key, at).await?,
        };
        if from >= end {
            break;
        }
        // Units are not torn: what is before the data in the first one is zeros.
        at = at.max(from - (from - args.offset) % unit);
        let count = (end - at).min(u64::from(IO_MAX)) as usize;
        let found = match shared.store.read_at(key, at, count).await {
            Ok(found) => found,
            Err(StoreError::Missing) => break,
            Err(error) => return Err(error),
        };
        read += found.data.len() as u64;
        let first = ((at - args.offset) / unit) as usize;
        let mut hollow = true;
        let units = units.iter_mut().zip(0..).skip(first);
        for ((digest, index), bytes) in units.zip(found.data.chunks(unit as usize)) {
            if shared.zeros.get(..bytes.len()) == Some(bytes) {
                continue;
            }
            hollow = false;
            // The last one may be shorter, wherever it is read from.
            *digest = of(shared, bytes, unit.min(args.length - index * unit) as usize);
        }
        if found.end {
            break;
        }
        at += count as u64;
        // Who reads zeros may be in a hole; asking each time would cost a dense file more than the reads.
        data = (!hollow).then_some(at);
    }
    let next = next_data(shared, key, end).await?;
    Ok(DS_DIGEST_resok { stat: stat::wire(before, writes), read, next, units })
}

/// Of a unit that the data file may end in: behind it are zeros.
fn of(shared: &Shared, bytes: &[u8], length: usize) -> ctl_digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(bytes);
    hasher.update(shared.zeros.get(bytes.len()..length).unwrap_or_default());
    ctl_digest { hash: *hasher.finalize().as_bytes() }
}

/// All ones: there is none.
async fn next_data(shared: &Arc<Shared>, key: FileKey, at: u64) -> Result<u64, StoreError> {
    match shared.store.seek(key, at, true).await {
        Ok(found) => Ok(found.unwrap_or(u64::MAX)),
        Err(StoreError::Missing) => Ok(u64::MAX),
        Err(error) => Err(error),
    }
}
