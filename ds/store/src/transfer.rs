//! Making a range of one data file equal to one of another. Nothing here is durable before a [`Store::commit`].

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::data_file::DataFile;
use crate::{FileKey, Store, StoreError};

/// Most that has to be free at a time for what is to be shared: the file system's own records of it, and parts that are copied
/// all the same, such as the odd ends of a range.
const PART: u64 = 16 << 20;

/// A range to be made equal to another of the same length.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    pub source: FileKey,
    pub source_offset: u64,
    /// A source that is not there is an error, and not a hole.
    pub must_exist: bool,
    pub target: FileKey,
    /// Of the target, if it comes into being.
    pub generation: u16,
    pub offset: u64,
    pub length: u64,
}

/// How the data of a range comes to another place.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Means {
    /// All of it may take room.
    Copies,
    /// Next to nothing of it does.
    Shares,
}

impl Store {
    /// Copies a range between two data files of this store; returns how much of it was data. Holes, and what lies
    /// beyond the end of the source, become holes. The target reaches the end of the range afterwards.
    ///
    /// # Errors
    /// `Missing` when the source must exist and does not; `NoSpace`; what the device says.
    pub async fn transfer(self: &Arc<Self>, transfer: Transfer) -> Result<u64, StoreError> {
        self.blocking(move |store| {
            let source = store.open_source(transfer.source, transfer.must_exist)?;
            let target = store.open_or_create(transfer.target, transfer.generation)?;
            let copied = store.transfer_open(source.as_deref(), &target, &transfer, Means::Copies);
            // What was copied before a failure was written, too.
            target.wrote(store.files.writes.next());
            copied
        })
        .await
    }

    /// What is read; `None` is a hole. Blocking.
    pub(crate) fn open_source(
        &self,
        key: FileKey,
        must_exist: bool,
    ) -> Result<Option<Arc<DataFile>>, StoreError> {
        match self.open_file(key) {
            Err(StoreError::Missing) if !must_exist => Ok(None),
            found => found.map(Some),
        }
    }

    /// The same with both open. Blocking.
    pub(crate) fn transfer_open(
        &self,
        source: Option<&DataFile>,
        target: &DataFile,
        transfer: &Transfer,
        means: Means,
    ) -> Result<u64, StoreError> {
        let end = transfer.source_offset.saturating_add(transfer.length);
        let place = |at: u64| transfer.offset.saturating_add(at - transfer.source_offset);
        let (mut at, mut copied) = (transfer.source_offset, 0);
        while at < end {
            let data = match source {
                Some(source) => source.file.seek_data(at)?.unwrap_or(end).clamp(at, end),
                None => end,
            };
            blank(target, place(at), data - at)?;
            let Some(source) = source.filter(|_| data < end) else { break };
            let hole = source.file.seek_hole(data)?.unwrap_or(data).min(end);
            at = self.transfer_run(source, target, data..hole, place(data), means)?;
            copied += at - data;
            if at == data {
                blank(target, place(at), end - at)?;
                break;
            }
        }
        reach(target, place(end))?;
        Ok(copied)
    }

    /// The same for a range without holes; where it ended: the source may be cut meanwhile.
    fn transfer_run(
        &self,
        source: &DataFile,
        target: &DataFile,
        run: Range<u64>,
        to: u64,
        means: Means,
    ) -> Result<u64, StoreError> {
        let place = |at: u64| to.saturating_add(at - run.start);
        let (mut at, mut admitted) = (run.start, run.start);
        while at < run.end {
            if at == admitted {
                let left = run.end - at;
                let length = match means {
                    Means::Copies => left,
                    Means::Shares => left.min(PART),
                };
                self.room.admit(&*self.device, &*target.file, place(at), length)?;
                admitted = at + length;
            }
            let n = target.file.copy_from(&*source.file, at, place(at), admitted - at)?;
            if n == 0 {
                break;
            }
            at = at.saturating_add(n);
        }
        Ok(at)
    }

    /// A range of a data file becomes a hole; an absent one stays absent.
    pub async fn blank(self: &Arc<Self>, key: FileKey, offset: u64, length: u64) -> Result<(), StoreError> {
        self.blocking(move |store| match store.open_file(key) {
            Ok(file) => {
                let blanked = blank(&file, offset, length);
                file.wrote(store.files.writes.next());
                Ok(blanked?)
            }
            Err(StoreError::Missing) => Ok(()),
            Err(error) => Err(error),
        })
        .await
    }

    /// The data file is there, and is at least `size` bytes long.
    pub async fn reach(self: &Arc<Self>, key: FileKey, generation: u16, size: u64) -> Result<(), StoreError> {
        self.blocking(move |store| {
            let file = store.open_or_create(key, generation)?;
            let reached = reach(&file, size);
            file.wrote(store.files.writes.next());
            Ok(reached?)
        })
        .await
    }
}

pub(crate) fn blank(file: &DataFile, offset: u64, length: u64) -> io::Result<()> {
    let there = file.file.stat()?.size.saturating_sub(offset);
    match length.min(there) {
        0 => Ok(()),
        length => file.file.deallocate(offset, length),
    }
}

fn reach(file: &DataFile, size: u64) -> io::Result<()> {
    if file.file.stat()?.size < size { file.file.set_len(size) } else { Ok(()) }
}
