//! Numbers that are never reused, leased in blocks so that handing one out costs no transaction.

use std::sync::Mutex;

use bytes::Bytes;
use sluice_kv::Transaction;

use crate::codec::{Reader, Writer};
use crate::error::FsError;
use crate::keys::{self, FileId, Sequence};

/// Leases `n` numbers: they belong to the caller once the transaction commits. Numbers left over
/// when the caller dies are never used.
pub async fn lease_block(
    txn: &mut Transaction,
    sequence: Sequence,
    n: u64,
) -> Result<std::ops::Range<u64>, FsError> {
    let next = next_number(txn, sequence).await?;
    let end = next.checked_add(n).ok_or(FsError::NoSpace)?;
    txn.set(keys::sequence(sequence), encode(end));
    Ok(next..end)
}

/// The first number that nobody has leased.
pub async fn next_number(txn: &Transaction, sequence: Sequence) -> Result<u64, FsError> {
    match txn.get(&keys::sequence(sequence)).await? {
        None => Ok(first(sequence)),
        Some(value) => decode(value),
    }
}

const fn first(sequence: Sequence) -> u64 {
    match sequence {
        Sequence::FileId => FileId::FIRST,
        _ => 1,
    }
}

fn encode(next: u64) -> Bytes {
    let mut w = Writer::default();
    w.u8(1).u64(next).finish()
}

fn decode(value: Bytes) -> Result<u64, FsError> {
    let mut r = Reader::new("sequence", value);
    r.schema(1)?;
    let next = r.u64()?;
    r.finish()?;
    Ok(next)
}

/// The row of a sequence that goes on `by` numbers later.
pub(crate) fn raised(row: Bytes, by: u64) -> Result<Bytes, FsError> {
    Ok(encode(decode(row)?.saturating_add(by)))
}

/// The row of a sequence that nobody has leased from, as it is when the first `given_out` numbers are passed over.
pub(crate) fn first_after(sequence: Sequence, given_out: u64) -> Bytes {
    encode(first(sequence).saturating_add(given_out))
}

/// Hands out leased numbers. When [`Self::take`] finds none, the caller leases a block in a
/// transaction of its own and [`Self::refill`]s after its commit.
#[derive(Debug, Default)]
pub struct IdAllocator {
    /// Guarded: leased blocks, in the order of arrival.
    blocks: Mutex<Vec<std::ops::Range<u64>>>,
}

impl IdAllocator {
    /// The next number, if one is left.
    pub fn take(&self) -> Option<u64> {
        let mut blocks = self.blocks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        while let Some(first) = blocks.first_mut() {
            if let Some(n) = first.next() {
                return Some(n);
            }
            blocks.remove(0);
        }
        None
    }

    /// Adds a block whose lease has committed.
    pub fn refill(&self, block: std::ops::Range<u64>) {
        self.blocks.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(block);
    }

    /// Numbers left: lease more before they run out.
    pub fn left(&self) -> u64 {
        let blocks = self.blocks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        blocks.iter().map(|b| b.end - b.start).sum()
    }
}
