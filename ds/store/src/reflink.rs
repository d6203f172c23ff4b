//! New data files that share what others hold, instead of a copy of it. Nothing here is durable before a
//! [`Store::commit`].

use std::io;
use std::sync::Arc;

use crate::data_file::DataFile;
use crate::transfer::{Means, blank};
use crate::{FileKey, Store, StoreError, Transfer};

/// A data file to be made of ranges of others.
#[derive(Clone, Copy, Debug)]
pub struct Reflink {
    /// What it is outside of the range; without one, a hole before it and nothing behind it.
    pub base: Option<Base>,
    /// What it is in the range, and where.
    pub range: Transfer,
}

/// See [`Reflink::base`].
#[derive(Clone, Copy, Debug)]
pub struct Base {
    pub file: FileKey,
    /// One that is not there is an error, and not a hole.
    pub must_exist: bool,
    /// What it holds from here on is not wanted.
    pub end: u64,
}

impl Store {
    /// Makes a data file that nobody knows of yet. What shares nothing is an error, and not a copy: the caller can
    /// have that in better ways.
    ///
    /// # Errors
    /// `NoReflink` when the device cannot; `Missing` when a source must exist and does not; `NoSpace`; what the device
    /// says. What was made until then stays, to be removed.
    pub async fn reflink(self: &Arc<Self>, reflink: Reflink) -> Result<(), StoreError> {
        self.blocking(move |store| {
            let range = reflink.range;
            let source = store.open_source(range.source, range.must_exist)?;
            let base = match reflink.base {
                Some(base) => store.open_source(base.file, base.must_exist)?.map(|file| (file, base.end)),
                None => None,
            };
            let target = store.open_or_create(range.target, range.generation)?;
            let base = base.as_ref().map(|(file, end)| (&**file, *end));
            let made = store.reflink_open(base, source.as_deref(), &target, &range);
            target.wrote(store.files.writes.next());
            made
        })
        .await
    }

    fn reflink_open(
        &self,
        base: Option<(&DataFile, u64)>,
        source: Option<&DataFile>,
        target: &DataFile,
        range: &Transfer,
    ) -> Result<(), StoreError> {
        let end = range.offset.saturating_add(range.length);
        match (base, source) {
            (Some((base, end)), _) => {
                clone(target, base)?;
                if target.file.stat()?.size > end {
                    target.file.set_len(end)?;
                }
            }
            (None, Some(source)) if range.offset == range.source_offset => {
                // In place, whatever the file system can do with a part of a file.
                clone(target, source)?;
                target.file.set_len(end)?;
                return Ok(blank(target, 0, range.offset)?);
            }
            // To learn whether it can: a part is copied with those means that share if it can.
            (None, Some(source)) => {
                clone(target, source)?;
                target.file.set_len(0)?;
            }
            (None, None) => {}
        }
        self.transfer_open(source, target, range, Means::Shares).map(drop)
    }
}

fn clone(target: &DataFile, source: &DataFile) -> Result<(), StoreError> {
    match target.file.clone_of(&*source.file) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Err(StoreError::NoReflink),
        done => Ok(done?),
    }
}
