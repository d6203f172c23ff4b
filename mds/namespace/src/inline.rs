//! Small files whose bytes are rows of this store: no data server knows of them (docs/adr/0020).
//!
//! A file is inline from its creation until it is promoted, and never again. Its inode says up to which
//! size, and what policy its data files will follow. Rows hold [`INLINE_CHUNK`] bytes each; what is not
//! there, and what a row is too short for, reads as zeros. No row reaches beyond the size.

use bytes::{Bytes, BytesMut};
use sluice_kv::Transaction;

use crate::codec::{Reader, Writer};
use crate::data_file::{Layout, LayoutPolicy, Shape};
use crate::error::FsError;
use crate::inode::{Inode, Node};
use crate::keys::{self, FileId, InodeKey};
use crate::pending::Pending;
use crate::size::{CommitSize, SizeCommitted};
use crate::superblock;
use crate::{Namespace, Request, fetch, layout};

/// Bytes of one row: a WRITE reads and writes at most what it touches, rounded up to this.
pub const INLINE_CHUNK: u32 = 16 << 10;
/// Greatest limit that a policy may set, in bytes: all rows of a file are read and written in one transaction.
pub const MAX_INLINE: u32 = 64 << 10;

const SCHEMA: u8 = 1;

/// What the inode of an inline file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inline {
    /// Greatest size, in bytes; 1 to [`MAX_INLINE`].
    pub limit: u32,
    /// The policy for its data files, should it get any.
    pub shape: Shape,
    pub mirrors: u8,
}

impl Inline {
    /// A file of this size may be inline.
    pub fn holds(&self, size: u64) -> bool {
        size <= self.limit.into()
    }

    /// What its data files follow.
    pub fn policy(&self) -> LayoutPolicy {
        LayoutPolicy { shape: self.shape, mirrors: self.mirrors, inline: self.limit }
    }

    pub(crate) fn encode(&self, w: &mut Writer) {
        w.u32(self.limit).u8(self.shape.code()).u8(self.mirrors);
    }

    pub(crate) fn decode(r: &mut Reader) -> Result<Option<Self>, FsError> {
        let limit = r.u32()?;
        if limit == 0 {
            return Ok(None);
        }
        if limit > MAX_INLINE {
            return Err(r.corrupt());
        }
        let shape = Shape::decode(r.u8()?).ok_or_else(|| r.corrupt())?;
        Ok(Some(Self { limit, shape, mirrors: r.u8()? }))
    }
}

/// `16KiB`, `4096`, `off`: what a policy calls the limit of its inline files.
pub fn inline_limit(text: &str) -> Option<u32> {
    let limit: u32 = match text.strip_suffix("KiB") {
        _ if text == "off" => 0,
        Some(kib) => kib.parse::<u32>().ok()?.checked_mul(1024)?,
        None => text.parse().ok()?,
    };
    (limit <= MAX_INLINE).then_some(limit)
}

pub(crate) fn limit_text(limit: u32) -> String {
    if limit.is_multiple_of(1024) { format!("{}KiB", limit / 1024) } else { limit.to_string() }
}

/// A file, and if it is inline the bytes that were asked for, as of one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlineData {
    pub inode: Inode,
    /// Those of the range that the file has.
    pub data: Option<Bytes>,
}

impl Namespace {
    /// Reads a range of a file if it is inline.
    ///
    /// Errors: Stale, WrongType.
    pub async fn read_inline(
        &self,
        txn: &Transaction,
        key: &InodeKey,
        offset: u64,
        length: u64,
    ) -> Result<InlineData, FsError> {
        let inode = fetch::inode(txn, key, self.base()).await?;
        let Some(file) = inode.file() else { return Err(FsError::WrongType) };
        let data = match file.inline {
            None => None,
            Some(_) => {
                let end = file.size.min(offset.saturating_add(length));
                Some(read(txn, key.fileid, narrow(offset.min(end))?, narrow(end)?).await?)
            }
        };
        Ok(InlineData { inode, data })
    }

    /// Writes to a file if it is inline and stays so: `None` when it is not, or would outgrow its limit.
    /// Size, change attribute and times move as with any write.
    ///
    /// Errors: Stale, WrongType.
    pub async fn write_inline(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        (offset, data): (u64, &[u8]),
        request: &Request<'_>,
    ) -> Result<Option<Pending<SizeCommitted>>, FsError> {
        let inode = fetch::inode(txn, key, self.base()).await?;
        let Some(file) = inode.file() else { return Err(FsError::WrongType) };
        let end = offset.saturating_add(u64::try_from(data.len()).unwrap_or(u64::MAX));
        if !file.inline.is_some_and(|inline| inline.holds(end)) {
            return Ok(None);
        }
        write(txn, key.fileid, narrow(file.size)?, narrow(offset)?, data).await?;
        // What is stored is known here.
        let space_used = Some(file.size.max(end));
        let commit = CommitSize { end: Some(end), space_used, ..CommitSize::default() };
        self.commit_size(txn, key, &commit, request).await.map(Some)
    }

    /// The file's bytes are in `fresh` now, durably, and it is inline no more; clients see no change. `seen`:
    /// the file as it was when they were read. What [`Namespace::promise_garbage`] wrote down is taken back.
    ///
    /// Errors: Stale, WrongType, Invalid, Busy (the file has changed since).
    pub async fn promote(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        seen: &Inode,
        fresh: &Layout,
    ) -> Result<Inode, FsError> {
        let mut inode = fetch::inode(txn, key, self.base()).await?;
        let unchanged = inode.record.stamp == seen.record.stamp && inode.size() == seen.size();
        let Node::File(file) = &mut inode.record.node else { return Err(FsError::WrongType) };
        if !unchanged || file.inline.is_none() {
            return Err(FsError::Busy);
        }
        if !fresh.is_valid() {
            return Err(FsError::Invalid);
        }
        clear(txn, key.fileid, file.size);
        file.inline = None;
        file.layout = Some(fresh.clone());
        self.garbage_done(txn, &[fresh.id]);
        layout::put_owner(txn, fresh.id, key);
        fetch::put_quietly(txn, key, &inode.record);
        Ok(inode)
    }

    /// What [`Self::promote`] leaves, and nothing else makes.
    pub fn witness_of_promotion(fresh: &Layout) -> Bytes {
        layout::owner(fresh.id)
    }

    /// Files may be kept inline from now on: releases that know of none refuse the store.
    pub(crate) async fn allow_inline(&self, txn: &mut Transaction) -> Result<(), FsError> {
        superblock::raise(txn, |superblock| superblock.inline = true).await
    }
}

/// The rows of a file of this size that goes away, or is inline no more.
pub(crate) fn clear(txn: &mut Transaction, file: FileId, size: u64) {
    for chunk in 0..chunks(size) {
        txn.clear(keys::inline_data(file, chunk));
    }
}

/// Nothing stays at or above `size`, of a file that had `old` bytes.
pub(crate) async fn cut(txn: &mut Transaction, file: FileId, size: u64, old: u64) -> Result<(), FsError> {
    for chunk in chunks(size)..chunks(old) {
        txn.clear(keys::inline_data(file, chunk));
    }
    let within = narrow(size)? % INLINE_CHUNK;
    if within == 0 {
        return Ok(());
    }
    let last = chunks(size) - 1;
    let kept = row(txn, file, last).await?;
    let within = usize::try_from(within).unwrap_or(usize::MAX);
    if kept.len() > within {
        put(txn, file, last, &kept[..within]);
    }
    Ok(())
}

/// Rows that a file of this size may have.
fn chunks(size: u64) -> u32 {
    u32::try_from(size.div_ceil(INLINE_CHUNK.into())).unwrap_or(u32::MAX).min(MAX_INLINE / INLINE_CHUNK)
}

/// An offset in a file that its record says is inline.
fn narrow(offset: u64) -> Result<u32, FsError> {
    u32::try_from(offset).ok().filter(|n| *n <= MAX_INLINE).ok_or(FsError::corrupt("inline file"))
}

/// The bytes of a row; none if it is not there.
async fn row(txn: &Transaction, file: FileId, chunk: u32) -> Result<Bytes, FsError> {
    match txn.get(&keys::inline_data(file, chunk)).await? {
        Some(value) => decode(value),
        None => Ok(Bytes::new()),
    }
}

pub(crate) fn decode(value: Bytes) -> Result<Bytes, FsError> {
    let mut r = Reader::new("inline data", value);
    r.schema(SCHEMA)?;
    let bytes = r.take_rest();
    if bytes.is_empty() || bytes.len() > usize::try_from(INLINE_CHUNK).unwrap_or(0) {
        return Err(r.corrupt());
    }
    Ok(bytes)
}

fn put(txn: &mut Transaction, file: FileId, chunk: u32, bytes: &[u8]) {
    let value = Writer::with_capacity(1 + bytes.len()).u8(SCHEMA).raw(bytes).finish();
    txn.set(keys::inline_data(file, chunk), value);
}

/// `end` is within the file.
async fn read(txn: &Transaction, file: FileId, offset: u32, end: u32) -> Result<Bytes, FsError> {
    let (first, mut at) = (offset / INLINE_CHUNK, offset);
    let mut out = BytesMut::new();
    while at < end {
        let chunk = at / INLINE_CHUNK;
        let upto = end.min((chunk + 1) * INLINE_CHUNK);
        let bytes = row(txn, file, chunk).await?;
        let from = usize::try_from(at % INLINE_CHUNK).unwrap_or(usize::MAX);
        let length = usize::try_from(upto - at).unwrap_or(0);
        let there = bytes.slice(from.min(bytes.len())..(from + length).min(bytes.len()));
        // The usual file has one row, all of which is wanted: it is not copied.
        if chunk == first && upto == end && there.len() == length {
            return Ok(there);
        }
        let whole = out.len() + length;
        out.extend_from_slice(&there);
        out.resize(whole, 0);
        at = upto;
    }
    Ok(out.freeze())
}

/// `size`: before this write. The end is within the limit.
async fn write(
    txn: &mut Transaction,
    file: FileId,
    size: u32,
    offset: u32,
    data: &[u8],
) -> Result<(), FsError> {
    let mut rest = data;
    let mut at = offset;
    while !rest.is_empty() {
        let (chunk, within) = (at / INLINE_CHUNK, at % INLINE_CHUNK);
        let room = usize::try_from(INLINE_CHUNK - within).unwrap_or(0);
        let (piece, after) = rest.split_at(rest.len().min(room));
        let begin = chunk * INLINE_CHUNK;
        let length = u32::try_from(piece.len()).unwrap_or(0);
        // What is there and is not covered stays.
        let held = size.saturating_sub(begin).min(INLINE_CHUNK);
        if within == 0 && length >= held {
            put(txn, file, chunk, piece);
        } else {
            let mut bytes = BytesMut::from(&row(txn, file, chunk).await?[..]);
            let from = usize::try_from(within).unwrap_or(0);
            bytes.resize(bytes.len().max(from + piece.len()), 0);
            if let Some(place) = bytes.get_mut(from..from + piece.len()) {
                place.copy_from_slice(piece);
            }
            put(txn, file, chunk, &bytes);
        }
        at += length;
        rest = after;
    }
    Ok(())
}
