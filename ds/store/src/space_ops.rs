//! Operations on space: truncate, allocate, deallocate, seek. Each is idempotent and durable when
//! it returns; if a flush failed meanwhile it says so, whoever's that was.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::data_file::DataFile;
use crate::room::BLOCK;
use crate::{FileKey, Store, StoreError, Verifier};

/// What is done of many ranges at once, at most: whoever waits for the device, or for the answer, does so for a moment.
const RANGES: (usize, Duration) = (4096, Duration::from_secs(1));

/// What was found of a hole that was looked for in many ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sought {
    Hole(u64),
    /// None before the range that begins here.
    NoneBefore(u64),
    /// None in any of them.
    None,
}

impl Store {
    async fn flush_since(self: &Arc<Self>, file: &Arc<DataFile>, since: Verifier) -> Result<(), StoreError> {
        self.flush(file).await?;
        self.nothing_lost(file.key, since)
    }

    /// Sets the data file's size to `size` bytes; one that cannot be so long is left as it is, if there is nothing to cut.
    /// An absent file stays absent.
    pub async fn truncate(self: &Arc<Self>, key: FileKey, size: u64) -> Result<(), StoreError> {
        let since = self.verifiers.of(key);
        let file = self.blocking(move |store| {
            let file = store.open_file(key)?;
            let cut = file.file.set_len(size).map_err(StoreError::from);
            // Whatever came of it.
            file.touched();
            match cut {
                // Where the file ends the metadata server knows; what the data file lacks before that reads as zeros.
                Err(StoreError::TooBig) if file.file.stat()?.size <= size => {}
                cut => cut?,
            }
            Ok(file)
        });
        match file.await {
            Ok(file) => self.flush_since(&file, since).await,
            Err(StoreError::Missing) => {
                if size == 0 {
                    // Whatever was lost, it is empty now.
                    self.files.shard(key).made.forget(key);
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Reserves space for a range, so that writing it cannot fail for want of space, and extends
    /// the file to its end. The data file comes into being if need be.
    pub async fn allocate(
        self: &Arc<Self>,
        key: FileKey,
        generation: u16,
        offset: u64,
        length: u64,
    ) -> Result<(), StoreError> {
        let all = std::iter::once(offset..offset.saturating_add(length));
        self.allocate_all(key, generation, all).await.map(drop)
    }

    /// The same of many ranges, in their order, with one flush, and of some of them, if they are very many: where the first
    /// begins that is still to be done.
    pub async fn allocate_all(
        self: &Arc<Self>,
        key: FileKey,
        generation: u16,
        ranges: impl Iterator<Item = Range<u64>> + Send + 'static,
    ) -> Result<Option<u64>, StoreError> {
        let since = self.verifiers.of(key);
        let done = self.blocking(move |store| {
            let file = store.open_or_create(key, generation)?;
            let mut next = None;
            for (range, enough) in store.some_of(ranges) {
                if enough {
                    next = Some(range.start);
                    break;
                }
                let length = range.end.saturating_sub(range.start);
                store.room.admit(&*store.device, &*file.file, range.start, length)?;
                let allocated = file.file.allocate(range.start, length, true);
                file.touched();
                allocated?;
            }
            Ok((file, next))
        });
        let (file, next) = done.await?;
        self.flush_since(&file, since).await?;
        Ok(next)
    }

    /// Each with whether enough was done before it.
    fn some_of(&self, ranges: impl Iterator<Item = Range<u64>>) -> impl Iterator<Item = (Range<u64>, bool)> {
        let (most, patience) = RANGES;
        let clock = Arc::clone(&self.env.clock);
        let begun = clock.now();
        ranges.enumerate().map(move |(nth, range)| {
            let enough = nth > 0 && (nth >= most || clock.now().since(begun) > patience);
            (range, enough)
        })
    }

    /// The range reads as zeros afterwards; the size stays. An absent file is all zeros already.
    pub async fn deallocate(
        self: &Arc<Self>,
        key: FileKey,
        offset: u64,
        length: u64,
    ) -> Result<(), StoreError> {
        let since = self.verifiers.of(key);
        let file = self.blocking(move |store| {
            let file = store.open_file(key)?;
            // Beyond the end there is nothing, and a file system may not know offsets that the file as a whole has.
            let end = file.file.stat()?.size.next_multiple_of(BLOCK);
            let length = length.min(end.saturating_sub(offset));
            if length > 0 {
                let freed = file.file.deallocate(offset, length);
                file.touched();
                freed?;
            }
            Ok(file)
        });
        match file.await {
            Ok(file) => self.flush_since(&file, since).await,
            Err(StoreError::Missing) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The first byte of data (`data`) or the first hole at or after `offset`; the end of the file
    /// counts as a hole. `None`: nothing of the kind before the end, or `offset` lies beyond it.
    ///
    /// # Errors
    /// `Missing` when the data file is not there.
    pub async fn seek(
        self: &Arc<Self>,
        key: FileKey,
        offset: u64,
        data: bool,
    ) -> Result<Option<u64>, StoreError> {
        self.blocking(move |store| {
            let file = store.open_file(key)?;
            let found = if data { file.file.seek_data(offset) } else { file.file.seek_hole(offset) };
            Ok(found?)
        })
        .await
    }

    /// The first hole in many ranges, which come in their order; where they are very many, in some of them. What lies
    /// behind the end of the file is a hole.
    ///
    /// # Errors
    /// `Missing` when the data file is not there.
    pub async fn hole_in(
        self: &Arc<Self>,
        key: FileKey,
        ranges: impl Iterator<Item = Range<u64>> + Send + 'static,
    ) -> Result<Sought, StoreError> {
        self.blocking(move |store| {
            let file = store.open_file(key)?;
            for (range, enough) in store.some_of(ranges) {
                if enough {
                    return Ok(Sought::NoneBefore(range.start));
                }
                let hole = file.file.seek_hole(range.start)?.unwrap_or(range.start);
                if hole < range.end {
                    return Ok(Sought::Hole(hole));
                }
            }
            Ok(Sought::None)
        })
        .await
    }
}
