//! Small files whose bytes are rows of this store: no data server knows of them (docs/adr/0020).
//!
//! A file is inline from its creation until it is promoted, and never again. Its inode says up to which
//! size, and what policy its data files will follow. What its rows are, `rows` knows.

pub(crate) mod rows;

use std::pin::pin;

use bytes::Bytes;
use sluice_kv::Transaction;

use crate::class::Class;
use crate::codec::{Reader, Writer};
use crate::data_file::{Layout, LayoutPolicy, Shape};
use crate::error::FsError;
use crate::inode::{Inode, Node};
use crate::keys::InodeKey;
use crate::pending::Pending;
use crate::size::{CommitSize, SizeCommitted};
use crate::superblock;
use crate::{Namespace, Request, fetch, layout};

/// Greatest limit that a policy may set, in bytes: a value of the store has room for it, and all rows of a file are
/// read and written in one transaction.
pub const MAX_INLINE: u32 = 64 << 10;

/// What the inode of an inline file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inline {
    /// Greatest size, in bytes; 1 to [`MAX_INLINE`].
    pub limit: u32,
    /// The policy for its data files, should it get any.
    pub shape: Shape,
    pub mirrors: u8,
    pub class: Option<Class>,
}

impl Inline {
    /// A file of this size may be inline.
    pub fn holds(&self, size: u64) -> bool {
        size <= self.limit.into()
    }

    /// What its data files follow.
    pub fn policy(&self) -> LayoutPolicy {
        LayoutPolicy { shape: self.shape, mirrors: self.mirrors, inline: self.limit, class: self.class }
    }

    pub(crate) fn encode(&self, w: &mut Writer) {
        let has_class = if self.class.is_some() { LayoutPolicy::HAS_CLASS } else { 0 };
        w.u32(self.limit).u8(self.shape.code() | has_class).u8(self.mirrors);
        if let Some(class) = &self.class {
            class.encode(w);
        }
    }

    /// Bytes of its encoding.
    pub(crate) fn room(&self) -> usize {
        4 + 1 + 1 + self.class.as_ref().map_or(0, Class::room)
    }

    pub(crate) fn decode(r: &mut Reader) -> Result<Option<Self>, FsError> {
        let limit = r.u32()?;
        if limit == 0 {
            return Ok(None);
        }
        if limit > MAX_INLINE {
            return Err(r.corrupt());
        }
        let byte = r.u8()?;
        let shape = Shape::decode(byte & !LayoutPolicy::HAS_CLASS).ok_or_else(|| r.corrupt())?;
        let mirrors = r.u8()?;
        let class = if byte & LayoutPolicy::HAS_CLASS == 0 { None } else { Some(Class::decode(r)?) };
        Ok(Some(Self { limit, shape, mirrors, class }))
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
        let inode = pin!(fetch::inode(txn, key, self.base())).await?;
        let Some(file) = inode.file() else { return Err(FsError::WrongType) };
        let data = match file.inline {
            None => None,
            Some(_) => {
                let end = file.size.min(offset.saturating_add(length));
                Some(rows::read(txn, key.fileid, narrow(offset.min(end))?, narrow(end)?).await?)
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
        let inode = pin!(fetch::inode(txn, key, self.base())).await?;
        let Some(file) = inode.file() else { return Err(FsError::WrongType) };
        let end = offset.saturating_add(u64::try_from(data.len()).unwrap_or(u64::MAX));
        if !file.inline.is_some_and(|inline| inline.holds(end)) {
            return Ok(None);
        }
        let write = rows::Write { file: key.fileid, size: narrow(file.size)?, offset: narrow(offset)?, data };
        if self.superblock.whole {
            pin!(write.whole(txn)).await?;
        } else {
            Box::pin(write.parts(txn)).await?;
        }
        // What is stored is known here.
        let space_used = Some(file.size.max(end));
        let commit = CommitSize { end: Some(end), space_used, ..CommitSize::default() };
        pin!(self.commit_size_of(txn, inode, &commit, request)).await.map(Some)
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
        // How many mirrors it is to have is changed without a new stamp.
        if !unchanged || file.inline.is_none() || file.inline != seen.inline() {
            return Err(FsError::Busy);
        }
        if !fresh.is_valid() {
            return Err(FsError::Invalid);
        }
        rows::clear(txn, key.fileid, file.size);
        file.inline = None;
        file.layout = Some(fresh.clone());
        self.garbage_done(txn, &[fresh.id]);
        layout::put_owner(txn, fresh.id, key);
        fetch::put_quietly(txn, key, &inode.record);
        Ok(inode)
    }

    /// What [`Self::promote`] and [`Self::set_clone`] leave that take these data files, and nothing else makes.
    pub fn witness_of_taking(fresh: &Layout) -> Bytes {
        layout::owner(fresh.id)
    }

    /// Files may be kept inline from now on, each in one row from when the store is loaded again: releases that know
    /// of neither refuse it.
    pub(crate) async fn allow_inline(&self, txn: &mut Transaction) -> Result<(), FsError> {
        superblock::raise(txn, |superblock| (superblock.inline, superblock.whole) = (true, true)).await
    }
}

/// An offset in a file that its record says is inline.
fn narrow(offset: u64) -> Result<u32, FsError> {
    u32::try_from(offset).ok().filter(|n| *n <= MAX_INLINE).ok_or(FsError::corrupt("inline file"))
}
