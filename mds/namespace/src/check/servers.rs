//! The data servers' own rows, against each other.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::Problem;
use crate::error::FsError;
use crate::keys::StoreId;
use crate::stable_storage::{StoreState, decode_drain, decode_store, decode_store_number};

/// What is left to find of each when its row was seen: the tables come in the order of the functions.
#[derive(Default)]
pub(super) struct Servers {
    /// Until the row of its uuid is found.
    unnumbered: BTreeMap<[u8; 16], StoreId>,
    /// Until the row of its drain is found.
    draining: BTreeSet<StoreId>,
    wrong: BTreeSet<StoreId>,
}

impl Servers {
    pub(super) fn store_row(&mut self, value: Bytes) -> Result<(), FsError> {
        let store = decode_store(value)?;
        if store.state == StoreState::Draining {
            self.draining.insert(store.id);
        }
        // Two of one uuid: it leads to one of them.
        self.wrong.extend(self.unnumbered.insert(store.uuid, store.id));
        Ok(())
    }

    pub(super) fn number_row(&mut self, uuid: [u8; 16], value: Bytes) -> Result<(), FsError> {
        let id = decode_store_number(value)?;
        let says = self.unnumbered.remove(&uuid);
        if says != Some(id) {
            self.wrong.insert(id);
            self.wrong.extend(says);
        }
        Ok(())
    }

    /// Whether it is done, and of which.
    pub(super) fn drain_row(&mut self, value: Bytes) -> Result<(StoreId, bool), FsError> {
        let drain = decode_drain(value)?;
        if !self.draining.remove(&drain.store) {
            self.wrong.insert(drain.store);
        }
        Ok((drain.store, drain.done))
    }

    pub(super) fn compare(&self, problems: &mut Vec<Problem>) {
        let wrong = self.wrong.iter().chain(&self.draining).chain(self.unnumbered.values());
        let wrong: BTreeSet<_> = wrong.copied().collect();
        problems.extend(wrong.into_iter().map(|store| Problem::Store { store }));
    }
}
