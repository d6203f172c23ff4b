//! Rows with the bytes of inline files.
//!
//! A file is one row, all of it: reading it is one look into the store and one read of the disk, and most are written
//! as a whole. Releases before cut it into rows of 16 KiB, and stores whose superblock does not say `whole` still are
//! written so. A row says which of the two it is, so both may be in one store: what has parts keeps them until
//! it is written to. What is not there, and what a row is too short for, reads as zeros. No row reaches beyond the
//! size.

use std::pin::pin;

use bytes::{BufMut, Bytes, BytesMut};
use sluice_kv::Transaction;

use super::{MAX_INLINE, narrow};
use crate::codec::Reader;
use crate::error::FsError;
use crate::keys::{self, FileId};

/// Bytes of a row that is a part.
const PART: u32 = 16 << 10;

const SCHEMA_PART: u8 = 1;
const SCHEMA_WHOLE: u8 = 2;

/// A row that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Row {
    /// The file's only one.
    Whole(Bytes),
    /// The bytes from a multiple of [`PART`] on; others may have more.
    Part(Bytes),
}

impl Row {
    pub(crate) fn decode(value: Bytes) -> Result<Self, FsError> {
        let mut r = Reader::new("inline data", value);
        let schema = r.schema(SCHEMA_WHOLE)?;
        let bytes = r.take_rest();
        let most = if schema == SCHEMA_WHOLE { MAX_INLINE } else { PART };
        if bytes.is_empty() || bytes.len() > index(most) {
            return Err(r.corrupt());
        }
        Ok(if schema == SCHEMA_WHOLE { Self::Whole(bytes) } else { Self::Part(bytes) })
    }

    /// Where its bytes end in the file, if they are in the row of this number.
    pub(crate) fn end(&self, number: u32) -> Option<u64> {
        match self {
            Self::Whole(bytes) => (number == 0).then_some(length(bytes)),
            Self::Part(bytes) => Some(u64::from(number) * u64::from(PART) + length(bytes)),
        }
    }
}

/// A write that a file has room for.
pub(crate) struct Write<'a> {
    pub(crate) file: FileId,
    /// Before it.
    pub(crate) size: u32,
    pub(crate) offset: u32,
    pub(crate) data: &'a [u8],
}

impl Write<'_> {
    /// The file is one row behind it, whatever it was.
    pub(crate) async fn whole(&self, txn: &mut Transaction) -> Result<(), FsError> {
        if self.data.is_empty() {
            return Ok(());
        }
        // Of a release before, if there are any.
        let mut others = 1..parts(self.size.into());
        if self.offset == 0 && self.data.len() >= index(self.size) {
            put(txn, self.file, 0, SCHEMA_WHOLE, self.data);
        } else {
            let first = pin!(row(txn, self.file, 0)).await?;
            if matches!(first, Some(Row::Whole(_))) {
                others = 1..1;
            }
            let there = pin!(rest(txn, self.file, first, 0, self.size)).await?;
            put_over(txn, self.file, 0, SCHEMA_WHOLE, &there, (index(self.offset), self.data));
        }
        others.for_each(|number| txn.clear(keys::inline_data(self.file, number)));
        Ok(())
    }

    /// As releases before do it: rows that it touches are read and written.
    pub(crate) async fn parts(&self, txn: &mut Transaction) -> Result<(), FsError> {
        let (mut data, mut at) = (self.data, self.offset);
        while !data.is_empty() {
            let (number, within) = (at / PART, at % PART);
            let (piece, after) = data.split_at(data.len().min(index(PART - within)));
            // What is there and is not covered stays.
            let held = self.size.saturating_sub(number * PART).min(PART);
            if within == 0 && piece.len() >= index(held) {
                put(txn, self.file, number, SCHEMA_PART, piece);
            } else {
                let there = part(txn, self.file, number).await?;
                put_over(txn, self.file, number, SCHEMA_PART, &there, (index(within), piece));
            }
            at = (number + 1) * PART;
            data = after;
        }
        Ok(())
    }
}

/// Reads `[offset, end)`, which is within the file.
pub(crate) async fn read(txn: &Transaction, file: FileId, offset: u32, end: u32) -> Result<Bytes, FsError> {
    if offset >= end {
        return Ok(Bytes::new());
    }
    let first = pin!(row(txn, file, 0)).await?;
    pin!(rest(txn, file, first, offset, end)).await
}

/// The rows of a file of this size that goes away, or is inline no more.
pub(crate) fn clear(txn: &mut Transaction, file: FileId, size: u64) {
    for number in 0..parts(size) {
        txn.clear(keys::inline_data(file, number));
    }
}

/// Nothing stays at or above `size`, of a file that had `old` bytes.
pub(crate) async fn cut(txn: &mut Transaction, file: FileId, size: u64, old: u64) -> Result<(), FsError> {
    let kept = narrow(size)?;
    if kept > 0
        && let Some(Row::Whole(bytes)) = row(txn, file, 0).await?
    {
        if bytes.len() > index(kept) {
            put(txn, file, 0, SCHEMA_WHOLE, &bytes[..index(kept)]);
        }
        return Ok(());
    }
    for number in parts(size)..parts(old) {
        txn.clear(keys::inline_data(file, number));
    }
    let within = index(kept % PART);
    if within == 0 {
        return Ok(());
    }
    let last = parts(size) - 1;
    let bytes = part(txn, file, last).await?;
    if bytes.len() > within {
        put(txn, file, last, SCHEMA_PART, &bytes[..within]);
    }
    Ok(())
}

/// `[offset, end)` of a file with this first row.
async fn rest(
    txn: &Transaction,
    file: FileId,
    first: Option<Row>,
    offset: u32,
    end: u32,
) -> Result<Bytes, FsError> {
    let begin = match first {
        // The usual file, all of which is wanted: it is not copied.
        Some(Row::Whole(bytes)) => return Ok(padded(bytes, offset, end)),
        Some(Row::Part(bytes)) => bytes,
        None => Bytes::new(),
    };
    if end <= PART {
        return Ok(padded(begin, offset, end));
    }
    let mut out = BytesMut::new();
    for number in offset / PART..parts(end.into()) {
        let from = number * PART;
        let bytes = if number == 0 { begin.clone() } else { part(txn, file, number).await? };
        out.extend_from_slice(&padded(bytes, offset.saturating_sub(from), (end - from).min(PART)));
    }
    Ok(out.freeze())
}

/// `[from, to)` of what begins with `bytes` and goes on with zeros.
fn padded(bytes: Bytes, from: u32, to: u32) -> Bytes {
    let (from, to) = (index(from), index(to));
    let there = bytes.slice(from.min(bytes.len())..to.min(bytes.len()));
    if there.len() == to - from {
        return there;
    }
    let mut out = BytesMut::with_capacity(to - from);
    out.extend_from_slice(&there);
    out.resize(to - from, 0);
    out.freeze()
}

/// Rows that a file of this size may have.
fn parts(size: u64) -> u32 {
    u32::try_from(size.div_ceil(PART.into())).unwrap_or(u32::MAX).min(MAX_INLINE / PART)
}

async fn row(txn: &Transaction, file: FileId, number: u32) -> Result<Option<Row>, FsError> {
    txn.get(&keys::inline_data(file, number)).await?.map(Row::decode).transpose()
}

/// The bytes of a part; none if it is not there.
async fn part(txn: &Transaction, file: FileId, number: u32) -> Result<Bytes, FsError> {
    match row(txn, file, number).await? {
        Some(Row::Part(bytes)) => Ok(bytes),
        Some(Row::Whole(_)) => Err(FsError::corrupt("inline data")),
        None => Ok(Bytes::new()),
    }
}

fn put(txn: &mut Transaction, file: FileId, number: u32, schema: u8, bytes: &[u8]) {
    put_over(txn, file, number, schema, &[], (0, bytes));
}

/// The same of `there`, with `data` over it from `at` on.
fn put_over(
    txn: &mut Transaction,
    file: FileId,
    number: u32,
    schema: u8,
    there: &[u8],
    (at, data): (usize, &[u8]),
) {
    let end = at + data.len();
    let (before, after) = (&there[..at.min(there.len())], &there[end.min(there.len())..]);
    let mut value = BytesMut::with_capacity(1 + there.len().max(end));
    value.put_u8(schema);
    value.put_slice(before);
    value.put_bytes(0, at - before.len());
    value.put_slice(data);
    value.put_slice(after);
    txn.set(keys::inline_data(file, number), value.freeze());
}

fn length(bytes: &Bytes) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn index(offset: u32) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}
