//! A file system on its way from one store to another: what a row that was read there becomes here.
//!
//! A dump is every row of one moment. Loaded, it must never be taken for the file system that went on without it: what
//! that one did afterwards, clients and data servers may remember. So the copy is given numbers that the other cannot
//! have used. The same holds for a copy that somebody made of a store, and that is to go on in its place: [`adopt`] does
//! there what a load does to rows on their way.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use sluice_kv::{Database, KEYS_END, KeyRange, RunLimits, Transaction, Versionstamp};

use crate::codec::Reader;
use crate::error::FsError;
use crate::inode::STAMP_OFFSET;
use crate::keys::{self, DirectoryField, Sequence};
use crate::sequence::next_number;
use crate::stable_storage::{CapabilityEpochs, MdsEpoch, Older, Row, epoch, older};
use crate::superblock::Superblock;

/// Servers that may have taken it over since the dump. The epoch fits in 32 bits for many loads.
const TAKEOVERS: u64 = 1 << 16;

/// How far the versions of the store may have come since the dump: those of a cluster are a million a second, for nine
/// years. There is room for some 60,000 copies of copies.
const VERSIONS: u64 = 1 << 48;

/// Capability epochs that may have begun since the dump.
const TURNS: u32 = 1 << 12;
/// Those that may be alive in a copy. Data servers compare 16 bits as serial numbers, and the server that has the copy
/// turns them further.
const ALIVE: u32 = 3 * TURNS;

/// Every key of a file system.
pub fn everything() -> KeyRange {
    KeyRange { begin: Bytes::from_static(&[1]), end: Bytes::from_static(KEYS_END) }
}

/// The part of `range` after `last`.
pub fn after(last: &Bytes, range: &KeyRange) -> KeyRange {
    keys::after(last, range)
}

/// The file system's identity, if this row is its superblock.
///
/// # Errors
/// It cannot be read.
pub fn identity(key: &[u8], value: &Bytes) -> Result<Option<[u8; 16]>, FsError> {
    if is_superblock(key) {
        return Ok(Some(Superblock::decode(value.clone())?.uuid));
    }
    Ok(None)
}

/// Is this row the one without which there is no file system?
pub fn is_superblock(key: &[u8]) -> bool {
    key == keys::single(keys::SUPERBLOCK)
}

/// Does this row say that a load was begun and not ended?
pub fn says_loading(key: &[u8]) -> bool {
    key == keys::single(keys::LOADING)
}

/// Is this row an inode or an entry? Of both there are about as many as files, which tells who waits how far it is.
pub fn is_counted(key: &[u8]) -> bool {
    matches!(key.first(), Some(&(keys::INODE | keys::DIRENT)))
}

/// What the row becomes, when the store it comes from had committed up to `version`.
///
/// Change attributes are `change base + version of the stamp`, and the versions of the store that it goes to have
/// nothing to do with those it comes from: stamps begin anew at 0, above a base that no change attribute of before
/// reached, nor one that the other file system has given out since. Every client sees everything changed once.
///
/// # Errors
/// A row that must be changed and cannot be read.
fn moved(key: &Bytes, value: Bytes, version: u64) -> Result<Bytes, FsError> {
    match key.first().copied().unwrap_or_default() {
        keys::INODE | keys::REPLY | keys::DIRECTORY => {
            stamp_at(key)?.map_or(Ok(value.clone()), |offset| unstamped(value, offset))
        }
        _ => onwards(key, value, version),
    }
}

/// What a row becomes that says how far the file system has come: it goes on where no other copy of it has been. Any other
/// stays.
fn onwards(key: &Bytes, value: Bytes, version: u64) -> Result<Bytes, FsError> {
    match key.first().copied().unwrap_or_default() {
        keys::SUPERBLOCK => {
            let mut superblock = Superblock::decode(value)?;
            superblock.change_base = superblock.change_base.saturating_add(version).saturating_add(VERSIONS);
            Ok(superblock.encode())
        }
        keys::MDS_EPOCH => {
            let mut epoch = MdsEpoch::from_bytes(value)?;
            epoch.epoch = epoch.epoch.saturating_add(TAKEOVERS);
            Ok(epoch.to_bytes())
        }
        keys::CAPABILITY => {
            let mut epochs = CapabilityEpochs::from_bytes(value)?;
            epochs.current = epochs.current.saturating_add(TURNS);
            // A copy of a copy of a copy, none of which was used.
            epochs.retire(epochs.current.saturating_sub(ALIVE));
            Ok(epochs.to_bytes())
        }
        keys::SEQUENCE => later(key, value),
        _ => Ok(value),
    }
}

/// Where in its value a row has a versionstamp.
fn stamp_at(key: &Bytes) -> Result<Option<usize>, FsError> {
    Ok(match key.first().copied().unwrap_or_default() {
        keys::INODE | keys::REPLY => Some(STAMP_OFFSET),
        keys::DIRECTORY => match Reader::new("directory state key", key.slice(9.min(key.len())..)).u8()? {
            field if field == DirectoryField::State as u8 => Some(STAMP_OFFSET),
            field if field == DirectoryField::Stamp as u8 => Some(0),
            _ => None,
        },
        _ => None,
    })
}

/// The version of the store that a row names, if it names one.
///
/// # Errors
/// It cannot be read.
pub fn version_of(key: &Bytes, value: &[u8]) -> Result<Option<u64>, FsError> {
    let Some(offset) = stamp_at(key)? else { return Ok(None) };
    let stamp = value.get(offset..offset + Versionstamp::LEN).ok_or(FsError::corrupt("versionstamp"))?;
    let stamp = stamp.try_into().map_err(|_| FsError::corrupt("versionstamp"))?;
    Ok(Some(Versionstamp(stamp).version()))
}

fn unstamped(value: Bytes, offset: usize) -> Result<Bytes, FsError> {
    let mut bytes = BytesMut::from(value);
    let stamp = bytes.get_mut(offset..offset + Versionstamp::LEN).ok_or(FsError::corrupt("versionstamp"))?;
    stamp.fill(0);
    Ok(bytes.freeze())
}

/// As many further as the file system may have given out since the dump.
fn later(key: &Bytes, value: Bytes) -> Result<Bytes, FsError> {
    let found = Sequence::ALL.into_iter().find(|sequence| *key == keys::sequence(*sequence));
    let given_out = given_out(found.ok_or(FsError::corrupt("sequence key"))?);
    crate::sequence::raised(value, given_out)
}

const fn given_out(sequence: Sequence) -> u64 {
    match sequence {
        Sequence::FileId | Sequence::DataFile | Sequence::Fence => 1 << 32,
        // They are 32 bits wide, and made by hand.
        Sequence::Export => 1 << 16,
        // They are few, and a store that registered since the dump registers again.
        Sequence::Store => 0,
    }
}

/// The rows of sequences that there are none of yet: the other file system may have begun them.
fn begun(known: impl Fn(&Bytes) -> bool) -> impl Iterator<Item = (Bytes, Bytes)> {
    let all = Sequence::ALL.into_iter().filter(|sequence| given_out(*sequence) > 0);
    let rows = all.map(|sequence| {
        (keys::sequence(sequence), crate::sequence::first_after(sequence, given_out(sequence)))
    });
    rows.filter(move |(key, _)| !known(key))
}

/// Was a load begun and not ended?
pub(crate) async fn is_loading(txn: &Transaction) -> Result<bool, FsError> {
    Ok(txn.get(&keys::single(keys::LOADING)).await?.is_some())
}

/// Loads rows into a store that holds no file system. What it makes is one only when [`Load::finish`] has returned; a
/// load that was broken off is begun anew.
#[derive(Debug)]
pub struct Load {
    db: Database,
    /// Of the store that the rows come from.
    version: u64,
    batch: Vec<(Bytes, Bytes)>,
    bytes: usize,
    superblock: Option<(Bytes, Bytes)>,
    /// Keys of sequences that were among the rows.
    sequences: Vec<Bytes>,
}

/// A transaction of a load ends with the row that reaches one of these.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_ROWS: usize = 5_000;
/// Keys removed at a time, of a load that was broken off.
const CLEARED: usize = 1_000;

impl Load {
    /// Makes ready for rows of a store that had committed up to `version`.
    ///
    /// # Errors
    /// [`FsError::Exists`] if the store holds a file system; what the store says.
    pub async fn begin(db: Database, version: u64) -> Result<Self, FsError> {
        let (unfinished, empty) = db
            .run_read(db.for_as_long_as(PATIENCE), |txn| {
                Box::pin(async move {
                    let empty = txn.range(&everything(), 1, false).await?.is_empty();
                    Ok::<_, FsError>((is_loading(&txn).await?, empty))
                })
            })
            .await?;
        if !unfinished && !empty {
            return Err(FsError::Exists);
        }
        let mut left = unfinished.then(everything);
        while let Some(range) = left {
            left = clear_some(&db, &range).await?;
        }
        write(&db, |txn| txn.set(keys::single(keys::LOADING), Bytes::from_static(&[1]))).await?;
        Ok(Self { db, version, batch: Vec::new(), bytes: 0, superblock: None, sequences: Vec::new() })
    }

    /// Takes the next row.
    ///
    /// # Errors
    /// A row that must be changed and cannot be read; what the store says.
    pub async fn row(&mut self, key: Bytes, value: Bytes) -> Result<(), FsError> {
        if key.first() == Some(&keys::LOADING) {
            return Err(FsError::HalfLoaded);
        }
        // It goes on where no data server has been.
        if key.first() == Some(&keys::OLDER) {
            return Ok(());
        }
        let value = moved(&key, value, self.version)?;
        if key.first() == Some(&keys::SEQUENCE) {
            self.sequences.push(key.clone());
        }
        if key == keys::single(keys::SUPERBLOCK) {
            self.superblock = Some((key, value));
            return Ok(());
        }
        self.bytes += key.len() + value.len();
        self.batch.push((key, value));
        if self.bytes >= BATCH_BYTES || self.batch.len() >= BATCH_ROWS {
            self.put().await?;
        }
        Ok(())
    }

    /// Makes it a file system.
    ///
    /// # Errors
    /// [`FsError::Corrupt`] if no superblock was among the rows; what the store says.
    pub async fn finish(mut self) -> Result<(), FsError> {
        let sequences = std::mem::take(&mut self.sequences);
        self.batch.extend(begun(|key| sequences.contains(key)));
        self.put().await?;
        let (key, value) = self.superblock.take().ok_or(FsError::corrupt("no superblock"))?;
        write(&self.db, |txn| {
            txn.set(key.clone(), value.clone());
            txn.clear(keys::single(keys::LOADING));
        })
        .await?;
        Ok(self.db.flush().await?)
    }

    async fn put(&mut self) -> Result<(), FsError> {
        let batch = std::mem::take(&mut self.batch);
        self.bytes = 0;
        write(&self.db, |txn| batch.iter().for_each(|(key, value)| txn.set(key.clone(), value.clone()))).await
    }
}

/// Where a file system goes on that was adopted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adopted {
    pub next_file: u64,
    pub next_data_file: u64,
    /// Its next metadata server has the one after it.
    pub epoch: u64,
    /// What had been found, if it had been served and found out.
    pub older: Option<Older>,
}

/// Lets a copy of a store go on in the place of what it was copied from: with numbers that the other cannot have used. All
/// of it or nothing; done twice, it goes on twice as far. Nobody serves it. `None`: there is no file system.
///
/// Stamps stay, as versions of the store go on from those that the copy has (see [`version_of`]): what changes from now on
/// has a later one, and all of them count from a base that no change attribute of the other has reached.
///
/// # Errors
/// A row that must be changed and cannot be read; [`FsError::HalfLoaded`]; what the store says.
pub async fn adopt(db: &Database) -> Result<Option<Adopted>, FsError> {
    let (adopted, _) = db
        .run(RunLimits::default().idempotent(), |mut txn| Box::pin(async move { go_on(&mut txn).await }))
        .await?;
    db.flush().await?;
    Ok(adopted)
}

async fn go_on(txn: &mut Transaction) -> Result<Option<Adopted>, FsError> {
    if is_loading(txn).await? {
        return Err(FsError::HalfLoaded);
    }
    let found = older(txn).await?;
    let version = txn.read_version().await?;
    let mut rows = Vec::new();
    for table in [keys::SUPERBLOCK, keys::MDS_EPOCH, keys::SEQUENCE, keys::CAPABILITY] {
        rows.extend(txn.range(&keys::table(table), Sequence::ALL.len() + 1, false).await?);
    }
    if !rows.iter().any(|(key, _)| *key == keys::single(keys::SUPERBLOCK)) {
        return Ok(None);
    }
    let missing: Vec<_> = begun(|key| rows.iter().any(|(there, _)| there == key)).collect();
    for (key, value) in rows {
        let value = onwards(&key, value, version)?;
        txn.set(key, value);
    }
    missing.into_iter().for_each(|(key, value)| txn.set(key, value));
    txn.clear(keys::single(keys::OLDER));
    Ok(Some(Adopted {
        next_file: next_number(txn, Sequence::FileId).await?,
        next_data_file: next_number(txn, Sequence::DataFile).await?,
        epoch: epoch(txn).await?.map_or(0, |epoch| epoch.epoch),
        older: found,
    }))
}

/// Some keys of a load that was broken off, but not what says so; where to go on, if there may be more. Not at the first key:
/// a store on this machine steps over each one that was cleared before.
async fn clear_some(db: &Database, range: &KeyRange) -> Result<Option<KeyRange>, FsError> {
    let found = db
        .run_read(db.for_as_long_as(PATIENCE), |txn| {
            Box::pin(async move { Ok::<_, FsError>(txn.range(range, CLEARED, false).await?) })
        })
        .await?;
    let marker = keys::single(keys::LOADING);
    write(db, |txn| {
        found.iter().filter(|(key, _)| *key != marker).for_each(|(key, _)| txn.clear(key.clone()))
    })
    .await?;
    Ok(found.last().filter(|_| found.len() == CLEARED).map(|(last, _)| after(last, range)))
}

/// A transaction that reads nothing: done again, it does the same.
async fn write(db: &Database, fill: impl Fn(&mut Transaction) + Send + Sync) -> Result<(), FsError> {
    let fill = &fill;
    let limits = db.for_as_long_as(PATIENCE).idempotent();
    db.run(limits, |mut txn| {
        Box::pin(async move {
            fill(&mut txn);
            Ok::<_, FsError>(())
        })
    })
    .await
    .map(drop)
}

/// A store that is away for so long while hours of rows are loaded is waited for.
const PATIENCE: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use sluice_env::Env;
    use sluice_kv::Faults;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_round_of_clearing_goes_on_behind_the_last() {
        let db = Database::memory(Env::simulated(1), Faults::NONE);
        let key = |n: usize| Bytes::from([&[keys::INODE], n.to_be_bytes().as_slice()].concat());
        let mut txn = db.begin();
        txn.set(keys::single(keys::LOADING), Bytes::from_static(&[1]));
        // With the row that says so, two rounds and a half.
        (0..CLEARED * 5 / 2).for_each(|n| txn.set(key(n), Bytes::new()));
        txn.commit().await.unwrap();
        let (mut left, mut begins) = (Some(everything()), Vec::new());
        while let Some(range) = left {
            left = clear_some(&db, &range).await.unwrap();
            begins.push(range.begin);
        }
        let behind = |n| after(&key(n), &everything()).begin;
        assert_eq!(begins, [everything().begin, behind(CLEARED - 2), behind(2 * CLEARED - 2)]);
        let there = db.begin().range(&everything(), 9, false).await.unwrap();
        assert_eq!(there.into_iter().map(|(key, _)| key).collect::<Vec<_>>(), [keys::single(keys::LOADING)]);
    }
}
