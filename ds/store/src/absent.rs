//! What it means that a data file is not there: it was never written, or it is lost. Who was told that it was written has
//! handles that say so; a handle made earlier cannot. What was written since this process began is remembered here, and
//! from before that such a handle is not good for what it does not find: its holder gets a newer one.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::FixedState;

use crate::data_file::DataFile;
use crate::{Access, Epoch, FileKey, Refusal, Store, StoreError};

/// Data files that a shard remembers.
const REMEMBERED: usize = 8192;

/// Data files that came into being lately, and were not removed since.
#[derive(Debug, Default)]
pub(crate) struct Made {
    /// As [`FileKey::mixed`], and the generations of their makers.
    keys: HashMap<u64, u16, FixedState>,
    /// As they were made; some of them were removed since.
    order: VecDeque<u64>,
}

impl Made {
    pub(crate) fn add(&mut self, key: FileKey, maker: u16) {
        let key = key.mixed();
        if self.keys.insert(key, maker).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.keys.remove(&oldest);
        }
    }

    pub(crate) fn forget(&mut self, key: FileKey) {
        self.keys.remove(&key.mixed());
    }

    /// The generation of its maker, if it is remembered.
    pub(crate) fn by(&self, key: FileKey) -> Option<u16> {
        self.keys.get(&key.mixed()).copied()
    }

    fn has(&self, key: FileKey) -> bool {
        self.keys.contains_key(&key.mixed())
    }
}

impl Store {
    /// The capability epoch in which this process began to serve. Only the first one counts.
    pub fn serve_from(&self, epoch: Epoch) {
        // Told again at every registration.
        let _ = self.since.set(epoch);
    }

    /// What it means for a holder that a data file is not there.
    ///
    /// # Errors
    /// `Missing` when it is lost, `Refused` when only a newer handle can tell, or when it was removed since the holder was
    /// let in.
    pub fn absent(&self, access: &Access) -> Result<(), StoreError> {
        // Reads wait for their turn, and nobody who removes a data file waits for them. What is refused now was refused
        // before the data file went.
        self.check(access)?;
        if access.must_exist || self.files.shard(access.key).made.has(access.key) {
            return Err(StoreError::Missing);
        }
        match self.since.get() {
            Some(since) if access.epoch.is_before(*since) => Err(Refusal::Earlier.into()),
            _ => Ok(()),
        }
    }

    /// The data file that a holder writes to, which comes into being unless it should be there. Blocking.
    pub(crate) fn open_for(&self, access: &Access) -> Result<Arc<DataFile>, StoreError> {
        let file = match self.files.get(access.key) {
            Some(file) => file,
            None => match self.absent(access) {
                Ok(()) => return self.open_or_create(access.key, access.generation),
                Err(why) => self.open_file(access.key).map_err(|error| match error {
                    StoreError::Missing => why,
                    other => other,
                })?,
            },
        };
        file.used_by(access.generation);
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(file: u64) -> FileKey {
        FileKey { file, slot: 1 }
    }

    #[test]
    fn so_many_are_remembered_and_no_more() {
        let mut made = Made::default();
        let most = REMEMBERED as u64;
        (0..most).for_each(|file| made.add(key(file), 0));
        // It is one, however often it comes.
        made.add(key(0), 3);
        assert_eq!((made.by(key(0)), made.by(key(1))), (Some(3), Some(0)));
        assert!((0..most).all(|file| made.has(key(file))));
        made.forget(key(5));
        assert!(!made.has(key(5)));
        made.add(key(most), 0);
        assert!(!made.has(key(0)) && made.has(key(1)) && made.has(key(most)));
        assert!(made.order.len() <= REMEMBERED);
    }
}
