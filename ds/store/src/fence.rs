//! Who may not: the rows that refuse handles before their capability epoch is retired. Pure.
//!
//! Every row carries the epoch it was made in. It refuses handles of that epoch and older ones, so
//! that a holder let in again under a newer epoch passes, and it dies when the epoch is retired,
//! because every handle it could refuse has then expired.

use std::collections::HashMap;
use std::hash::Hash;

use foldhash::fast::FixedState;

use crate::{Epoch, FileKey};

/// What a handle claims, after its seal was found good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub holder: u32,
    pub key: FileKey,
    pub generation: u16,
    pub epoch: Epoch,
    /// The data file was materialised before: a write must not bring it into being again, or what
    /// was lost would read as zeros.
    pub must_exist: bool,
}

/// Why a good handle is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("its capability epoch is retired")]
    Expired,
    #[error("its holder is fenced")]
    Fenced,
    #[error("its generation is over")]
    Generation,
    #[error("the data file was removed")]
    Removed,
    #[error("it is older than this process, and the data file that it may make is not there")]
    Earlier,
}

/// A fence, as the metadata server asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// Nothing from this holder on any file.
    Holder { holder: u32, epoch: Epoch },
    /// Nothing from this holder on any slot of one file.
    HolderFile { holder: u32, file: u64, epoch: Epoch },
    /// Nothing with a generation below `least` on one data file.
    Generation { key: FileKey, least: u16, epoch: Epoch },
}

/// One durable change of the table; also the unit of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Row {
    Fence(Fence),
    /// The data file is gone, for generations up to and including this one.
    Tombstone {
        key: FileKey,
        generation: u16,
        epoch: Epoch,
    },
    /// Handles of epochs before this one are refused.
    Oldest(Epoch),
    /// The newest incarnation of the metadata server that gave an order.
    Caller(u64),
    /// A data file exists and the metadata server has yet to hear of it.
    Materialised {
        key: FileKey,
        generation: u16,
    },
    /// It has heard.
    Reported {
        key: FileKey,
    },
}

type Map<K, V> = HashMap<K, V, FixedState>;

/// Gives back what a map took when it had many more.
fn shrink<K: Eq + Hash, V>(map: &mut Map<K, V>) {
    if map.capacity() / 4 > map.len() {
        map.shrink_to(map.len() * 2);
    }
}

/// The table. Every question is answered from memory, in constant time.
#[derive(Debug, Default)]
pub(crate) struct Table {
    holders: Map<u32, Epoch>,
    holder_files: Map<(u32, u64), Epoch>,
    generations: Map<FileKey, (u16, Epoch)>,
    tombstones: Map<FileKey, (u16, Epoch)>,
    unreported: Map<FileKey, u16>,
    oldest: Option<Epoch>,
    caller: u64,
}

impl Table {
    /// Rows that a fence or a removal may add to; the bound of the table is on these.
    pub(crate) fn len(&self) -> usize {
        self.holders.len() + self.holder_files.len() + self.generations.len() + self.tombstones.len()
    }

    /// Rows a compacted journal would hold.
    pub(crate) fn live(&self) -> usize {
        self.len() + self.unreported.len() + 2
    }

    pub(crate) fn oldest(&self) -> Option<Epoch> {
        self.oldest
    }

    pub(crate) fn caller(&self) -> u64 {
        self.caller
    }

    pub(crate) fn check(&self, access: &Access) -> Result<(), Refusal> {
        if let Some(oldest) = self.oldest
            && access.epoch.is_before(oldest)
        {
            return Err(Refusal::Expired);
        }
        if let Some((generation, _)) = self.tombstones.get(&access.key)
            && access.generation <= *generation
        {
            return Err(Refusal::Removed);
        }
        if let Some((least, _)) = self.generations.get(&access.key)
            && access.generation < *least
        {
            return Err(Refusal::Generation);
        }
        let covers = |row: Option<&Epoch>| row.is_some_and(|epoch| !epoch.is_before(access.epoch));
        if covers(self.holders.get(&access.holder))
            || covers(self.holder_files.get(&(access.holder, access.key.file)))
        {
            return Err(Refusal::Fenced);
        }
        Ok(())
    }

    /// Whether everything that the fence is to refuse is refused.
    pub(crate) fn holds(&self, fence: &Fence) -> bool {
        let over = |epoch: Epoch| self.oldest.is_some_and(|oldest| epoch.is_before(oldest));
        let covers = |row: Option<&Epoch>, epoch: Epoch| row.is_some_and(|row| !row.is_before(epoch));
        match *fence {
            Fence::Holder { holder, epoch } => over(epoch) || covers(self.holders.get(&holder), epoch),
            Fence::HolderFile { holder, file, epoch } => {
                over(epoch) || covers(self.holder_files.get(&(holder, file)), epoch)
            }
            Fence::Generation { key, least, epoch } => {
                let row = self.generations.get(&key).filter(|(generation, _)| *generation >= least);
                over(epoch) || covers(row.map(|(_, epoch)| epoch), epoch)
            }
        }
    }

    /// The generation up to which a data file is gone.
    pub(crate) fn tombstone(&self, key: FileKey) -> Option<u16> {
        self.tombstones.get(&key).map(|(generation, _)| *generation)
    }

    /// All data files that are gone.
    pub(crate) fn removed(&self) -> impl Iterator<Item = FileKey> {
        self.tombstones.keys().copied()
    }

    pub(crate) fn unreported(&self, limit: usize) -> Vec<(FileKey, u16)> {
        let mut all: Vec<_> = self.unreported.iter().map(|(k, g)| (*k, *g)).collect();
        all.sort_unstable();
        all.truncate(limit);
        all
    }

    pub(crate) fn apply(&mut self, row: &Row) {
        match *row {
            Row::Fence(Fence::Holder { holder, epoch }) => raise(&mut self.holders, holder, epoch),
            Row::Fence(Fence::HolderFile { holder, file, epoch }) => {
                raise(&mut self.holder_files, (holder, file), epoch);
            }
            Row::Fence(Fence::Generation { key, least, epoch }) => {
                raise_both(&mut self.generations, key, least, epoch);
            }
            Row::Tombstone { key, generation, epoch } => {
                raise_both(&mut self.tombstones, key, generation, epoch);
                self.unreported.remove(&key);
            }
            Row::Oldest(epoch) => self.retire(epoch),
            Row::Caller(caller) => self.caller = self.caller.max(caller),
            // A flush that was overtaken by the removal of its file has nothing to report.
            Row::Materialised { key, generation } if self.tombstone(key) >= Some(generation) => {}
            Row::Materialised { key, generation } => {
                self.unreported.insert(key, generation);
            }
            Row::Reported { key } => {
                self.unreported.remove(&key);
            }
        }
    }

    fn retire(&mut self, oldest: Epoch) {
        if self.oldest.is_some_and(|known| oldest.is_before(known)) {
            return;
        }
        self.oldest = Some(oldest);
        let alive = |epoch: &Epoch| !epoch.is_before(oldest);
        self.holders.retain(|_, epoch| alive(epoch));
        self.holder_files.retain(|_, epoch| alive(epoch));
        self.generations.retain(|_, (_, epoch)| alive(epoch));
        self.tombstones.retain(|_, (_, epoch)| alive(epoch));
        // Hundreds of thousands may be gone at once, and the next come as slowly as these did.
        shrink(&mut self.holder_files);
        shrink(&mut self.generations);
        shrink(&mut self.tombstones);
    }

    /// The rows that rebuild this table.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::with_capacity(self.live());
        rows.push(Row::Caller(self.caller));
        rows.extend(self.oldest.map(Row::Oldest));
        rows.extend(self.holders.iter().map(|(&holder, &epoch)| Row::Fence(Fence::Holder { holder, epoch })));
        rows.extend(
            self.holder_files
                .iter()
                .map(|(&(holder, file), &epoch)| Row::Fence(Fence::HolderFile { holder, file, epoch })),
        );
        rows.extend(
            self.generations
                .iter()
                .map(|(&key, &(least, epoch))| Row::Fence(Fence::Generation { key, least, epoch })),
        );
        rows.extend(self.tombstones.iter().map(|(&key, &(generation, epoch))| Row::Tombstone {
            key,
            generation,
            epoch,
        }));
        rows.extend(self.unreported.iter().map(|(&key, &generation)| Row::Materialised { key, generation }));
        rows
    }
}

fn raise<K: Eq + Hash>(map: &mut Map<K, Epoch>, key: K, epoch: Epoch) {
    let row = map.entry(key).or_insert(epoch);
    *row = row.max(epoch);
}

fn raise_both(map: &mut Map<FileKey, (u16, Epoch)>, key: FileKey, value: u16, epoch: Epoch) {
    let row = map.entry(key).or_insert((value, epoch));
    *row = (row.0.max(value), row.1.max(epoch));
}

#[cfg(test)]
#[path = "fence_tests.rs"]
mod tests;
