//! TRANSFER: make a range of a data file equal to one of another, of this store or of a peer's.

use std::sync::Arc;

use bytes::Bytes;
use sluice_rpc::Connection;
use sluice_store::{FileKey, StoreError, Transfer, Verifier};
use sluice_xdr::control::{DS_TRANSFER_args, ctl_own_file, ctl_peer, ctl_source, ctl_status};
use tokio::task::JoinSet;

use super::copy::{connect, is_zero, read, socket};
use super::data_file;
use super::orders::{self, Until};
use crate::error::ctl_of;
use crate::shared::{IO_MAX, Shared};

/// Zeros of so many bytes that come from a peer become a hole.
const GRAIN: usize = 64 << 10;
/// READs of a peer under way at once. As many are being written meanwhile.
const AHEAD: u64 = 4;

/// What is to be filled.
#[derive(Clone, Copy)]
struct Range {
    key: FileKey,
    generation: u16,
    offset: u64,
    source_offset: u64,
    length: u64,
    /// The write verifier that what is written must still have when it is durable.
    since: Verifier,
    until: Until,
}

pub(super) async fn run(shared: &Arc<Shared>, args: DS_TRANSFER_args) -> ctl_status {
    let Some((key, generation)) = data_file(&args.target) else { return ctl_status::CTL_ERR_INVAL };
    let DS_TRANSFER_args { caller, offset, source, source_offset, length, .. } = args;
    if !fits(offset, length) || !fits(source_offset, length) {
        return ctl_status::CTL_ERR_INVAL;
    }
    // Before anything is written.
    let since = shared.store.verifier(key);
    let until = shared.patient(&caller, orders::MOVING);
    let range = Range { key, generation, offset, source_offset, length, since, until };
    let done = match source {
        ctl_source::TRUE(own) => from_here(shared, range, &own).await,
        ctl_source::FALSE(peer) => from_peer(shared, range, peer).await,
    };
    if let Err(error) = &done {
        tracing::warn!(file = %key, %error, "a transfer failed");
    }
    ctl_of(done)
}

/// A range that a data file can have, and not an empty one.
pub(super) fn fits(offset: u64, length: u64) -> bool {
    length > 0 && offset.checked_add(length).is_some_and(|end| end <= i64::MAX as u64)
}

async fn from_here(shared: &Arc<Shared>, range: Range, own: &ctl_own_file) -> Result<(), StoreError> {
    let Some((source, _)) = data_file(&own.file) else { return Err(StoreError::Missing) };
    let transfer = Transfer {
        source,
        source_offset: range.source_offset,
        must_exist: own.must_exist,
        target: range.key,
        generation: range.generation,
        offset: range.offset,
        length: range.length,
    };
    let inner = Arc::clone(shared);
    let work = async move {
        // One: the metadata server orders no more at a time than a device copies in a moment.
        let _step = inner.step(range.until)?;
        inner.store.transfer(transfer).await.map(drop)
    };
    let done = shared.order((range.key, range.generation), range.until, work).await;
    match done {
        Ok(()) => flush(shared, range).await,
        Err(StoreError::Quarantined) => Err(StoreError::Missing),
        Err(StoreError::Io(why)) if !gives(shared, source, range).await => not_given(why),
        Err(error) => Err(error),
    }
}

/// Whether the source can be read, where something went wrong with it or with what it was to be copied to.
async fn gives(shared: &Shared, source: FileKey, range: Range) -> bool {
    let end = range.source_offset + range.length;
    let mut at = range.source_offset;
    while at < end {
        let count = usize::try_from((end - at).min(IO_MAX.into())).unwrap_or(0);
        match shared.store.read_at(source, at, count).await {
            Ok(read) if !read.data.is_empty() => at += read.data.len() as u64,
            Ok(_) | Err(StoreError::Missing) => break,
            Err(_) => return false,
        }
    }
    true
}

/// A source that does not give what it has is NOENT: IO says that this device does not take it, and then there may be others to
/// write it to.
fn not_given<T>(why: String) -> Result<T, StoreError> {
    tracing::warn!(%why, "what is to be transferred cannot be read");
    Err(StoreError::Missing)
}

/// Out of turn: the next order on the file need not wait for the device.
async fn flush(shared: &Arc<Shared>, range: Range) -> Result<(), StoreError> {
    shared.store.commit_since(range.key, range.since).await
}

async fn from_peer(shared: &Arc<Shared>, range: Range, peer: ctl_peer) -> Result<(), StoreError> {
    let address = socket(&peer.address).ok_or_else(|| StoreError::Io("the peer has no address".into()))?;
    let inner = Arc::clone(shared);
    let work = async move {
        // Away for the moment, as far as anybody can tell.
        let connection = connect(&inner, address).await.map_err(|_| StoreError::Closing)?;
        let copied = fill(&inner, &connection, &peer.fh, range).await;
        connection.close();
        copied
    };
    shared.order((range.key, range.generation), range.until, work).await?;
    flush(shared, range).await
}

/// The peer reads on while what it gave is written.
async fn fill(
    shared: &Shared,
    peer: &Arc<Connection>,
    handle: &Bytes,
    range: Range,
) -> Result<(), StoreError> {
    let store = &shared.store;
    let step = AHEAD * u64::from(IO_MAX);
    let place = |at: u64| range.offset + (at - range.source_offset);
    let end = range.source_offset + range.length;
    let mut next = range.source_offset;
    let mut found = Vec::new();
    while next < end || !found.is_empty() {
        let upto = next.saturating_add(step).min(end);
        let write = async {
            for (from, data) in found {
                let _step = shared.step(range.until)?;
                put(shared, &range, place(from), data).await?;
            }
            Ok::<_, StoreError>(())
        };
        let (written, ahead) = tokio::join!(write, window(peer, handle, next, upto));
        written?;
        found = ahead?;
        next = upto;
    }
    let _step = shared.step(range.until)?;
    store.reach(range.key, range.generation, place(end)).await
}

/// What a peer has of a range, in pieces, each with its offset there.
async fn window(
    peer: &Arc<Connection>,
    handle: &Bytes,
    from: u64,
    end: u64,
) -> Result<Vec<(u64, Bytes)>, StoreError> {
    let mut reads = JoinSet::new();
    let mut at = from;
    while at < end {
        let upto = end.min(at + u64::from(IO_MAX));
        let (peer, handle) = (Arc::clone(peer), handle.clone());
        reads.spawn(async move { piece(&peer, &handle, at, upto).await });
        at = upto;
    }
    let mut found = Vec::new();
    while let Some(read) = reads.join_next().await {
        match read.map_err(|_| StoreError::Closing)? {
            Ok(read) => found.extend(read),
            Err(StoreError::Io(why)) => return not_given(why),
            Err(error) => return Err(error),
        }
    }
    found.sort_unstable_by_key(|(at, _)| *at);
    Ok(found)
}

/// All of a range; beyond the end of the peer's data file there are zeros.
async fn piece(
    peer: &Connection,
    handle: &Bytes,
    from: u64,
    end: u64,
) -> Result<Vec<(u64, Bytes)>, StoreError> {
    let mut found = Vec::new();
    let mut at = from;
    while at < end {
        let read = read(peer, handle, at, end).await?;
        let length = read.data.len() as u64;
        if length > 0 {
            found.push((at, read.data));
        }
        at += length;
        if read.eof && at < end {
            found.push((at, vec![0; usize::try_from(end - at).unwrap_or(0)].into()));
            break;
        }
        if length == 0 {
            return Err(StoreError::Io("the peer returned nothing before its end".into()));
        }
    }
    Ok(found)
}

/// Writes what is not zeros, and makes holes of the rest.
async fn put(shared: &Shared, range: &Range, at: u64, data: Bytes) -> Result<(), StoreError> {
    let store = &shared.store;
    let mut from = 0;
    while from < data.len() {
        let grain = |from: usize| data.slice(from..data.len().min(from + GRAIN));
        let zero = is_zero(&grain(from));
        let mut to = from + grain(from).len();
        while to < data.len() && is_zero(&grain(to)) == zero {
            to += grain(to).len();
        }
        let offset = at + from as u64;
        if zero {
            store.blank(range.key, offset, (to - from) as u64).await?;
        } else {
            store.fill(range.key, range.generation, offset, data.slice(from..to)).await?;
        }
        from = to;
    }
    Ok(())
}
