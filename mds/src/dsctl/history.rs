//! HISTORY: whether these are the metadata that a data server has served, or an older copy of them: a snapshot, a backup.
//! Such a copy gives out again the ids of data files that it gave out since, and data servers have data under those.
//!
//! An id is durable in the store, as part of a block, before anybody is given it (`next_id` in `transact.rs`), so that no
//! data server of ours has one that is still to be leased:
//!
//! * one that registered with this incarnation has none that is still to be leased now;
//! * any other has none that was still to be leased when this incarnation began: clients are sent only to data servers that
//!   have registered, and what this server writes itself waits for that, too (`fence::end_predecessors`). So one that
//!   was away while many new files were made is recognised all the same.
//!
//! Nor does a data server of ours obey an incarnation that is still to come; where the metadata are in a cluster, though, this
//! server may have been replaced by that one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sluice_namespace::stable_storage::{Older, put_older};
use sluice_namespace::{DataFileId, FsError, Sequence, next_number};
use sluice_xdr::control::HISTORY_args;

use super::registry::Registry;
use crate::server::Mds;

/// Stores remembered that were refused; beyond it all are forgotten, until they ask again.
const MOST: usize = 4096;

/// Who remembers more than these metadata.
#[derive(Debug)]
pub(crate) struct Histories {
    /// The next id of a data file when this incarnation began: everything below was given out by earlier ones.
    first: DataFileId,
    /// What is durable of it.
    older: Mutex<Option<Older>>,
    /// By their stores, why they are refused.
    refused: Mutex<BTreeMap<[u8; 16], String>>,
    /// A data server of this installation was heard, or there is none that could be.
    heard: AtomicBool,
    /// One of them knows of no newer metadata.
    borne_out: AtomicBool,
    /// Clients may have to wait: whether anything but [`Soundness::Sound`] is possible.
    doubted: AtomicBool,
}

/// Whether these are the newest metadata, as far as data servers tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Soundness {
    Sound,
    /// None was heard since the start, and one may come.
    Unheard,
    /// A data server has served newer ones.
    Refused,
}

impl Histories {
    /// `alone`: there is no data server that could tell anything.
    pub(super) fn new(first: DataFileId, older: Option<Older>, alone: bool) -> Self {
        Self {
            first,
            doubted: AtomicBool::new(older.is_some() || !alone),
            older: Mutex::new(older),
            refused: Mutex::default(),
            heard: AtomicBool::new(alone),
            borne_out: AtomicBool::new(false),
        }
    }

    /// There is none that could be heard.
    fn hear_nobody(&self) {
        self.heard.store(true, Ordering::Relaxed);
    }

    /// A data server that belongs here has nothing to tell against these metadata.
    pub(super) fn bear_out(&self) {
        if !self.borne_out.swap(true, Ordering::Relaxed) {
            self.heard.store(true, Ordering::Relaxed);
            self.look();
        }
    }

    /// What was known may have changed.
    fn look(&self) -> Soundness {
        // Kept until the end, so that the last look is the one that counts.
        let refused = self.refused.lock();
        // One that obeyed another server for a while, which somebody began by mistake on a copy, stops nobody where others know of none.
        let all_refuse = !refused.is_empty() && !self.borne_out.load(Ordering::Relaxed);
        let soundness = if self.older.lock().is_some() || all_refuse {
            Soundness::Refused
        } else if self.heard.load(Ordering::Relaxed) {
            Soundness::Sound
        } else {
            Soundness::Unheard
        };
        self.doubted.store(soundness != Soundness::Sound, Ordering::Relaxed);
        soundness
    }

    fn refuse(&self, store: [u8; 16], why: &str) {
        {
            let mut refused = self.refused.lock();
            if refused.len() >= MOST {
                refused.clear();
            }
            refused.insert(store, why.to_owned());
        }
        self.heard.store(true, Ordering::Relaxed);
        self.look();
    }

    /// The data server is not refused; `is_known`: it belongs here, and could know of newer metadata.
    fn let_in(&self, store: &[u8; 16], is_known: bool) {
        self.refused.lock().remove(store);
        if is_known {
            self.bear_out();
        }
        self.look();
    }
}

impl Registry {
    /// Why every data server is refused, if the metadata are known to be an older copy.
    pub(crate) fn older(&self) -> Option<String> {
        let Older { store, file, next } = (*self.histories.older.lock())?;
        let known = self.known().into_iter().find(|known| known.uuid == store);
        let who = known.map_or_else(
            || "a data server that they do not know".to_owned(),
            |known| format!("data server {}", known.id.0),
        );
        Some(format!(
            "these metadata are an older copy of what was served: {who} had data file {} when the next one to be made by these was {}, and new files would show what others hold. Stop this metadata server; then start it on the newest metadata there are, or, if these are to go on, run `sluice meta adopt` first",
            file.0, next.0
        ))
    }

    /// Why this store is refused for what it remembers.
    pub(crate) fn refuses(&self, store: &[u8; 16]) -> Option<String> {
        let refused = || self.histories.refused.lock().get(store).cloned();
        self.older().or_else(refused).or_else(|| self.went_back(store))
    }

    /// Whether [`Mds::soundness`] is to be asked: what each COMPOUND looks at.
    pub(crate) fn is_doubted(&self) -> bool {
        self.histories.doubted.load(Ordering::Relaxed)
    }
}

impl Mds {
    /// What clients may be shown of these metadata.
    pub(crate) fn soundness(&self) -> Soundness {
        let histories = &self.data_servers.histories;
        let soundness = histories.look();
        // None serves anybody by now that has not heard of this server: what one of them knows may be long in coming.
        if soundness == Soundness::Unheard
            && self.data_servers.all().iter().all(|store| super::isolated(self, store))
        {
            histories.hear_nobody();
            return histories.look();
        }
        soundness
    }
}

/// Why a data server is refused for what it remembers.
///
/// # Errors
/// What the store says: it is not known whether it is to be refused.
pub(super) async fn judge(mds: &Arc<Mds>, told: &HISTORY_args) -> Result<Option<String>, FsError> {
    // What one of another cluster remembers says nothing of this one; it is refused when it registers.
    if told.cluster.0 != mds.namespace.superblock().uuid {
        return Ok(None);
    }
    let why = compare(mds, told).await?;
    let registry = &mds.data_servers;
    match &why {
        Some(why) => registry.histories.refuse(told.store.0, why),
        None => {
            let is_known = registry.known().iter().any(|known| known.uuid == told.store.0);
            registry.histories.let_in(&told.store.0, is_known);
        }
    }
    Ok(why)
}

async fn compare(mds: &Arc<Mds>, told: &HISTORY_args) -> Result<Option<String>, FsError> {
    let registry = &mds.data_servers;
    if let Some(why) = registry.older() {
        return Ok(Some(why));
    }
    let ours = registry.mds_epoch();
    // First: a server that was replaced says nothing about the metadata.
    if told.mds_epoch > ours {
        return Ok(Some(format!(
            "it has obeyed epoch {} of the metadata server, and this one has epoch {ours}: these metadata are an older copy of what it has served, or another metadata server has taken over. Stop this one; then start it on the newest metadata there are, or, if these are to go on, run `sluice meta adopt` first",
            told.mds_epoch
        )));
    }
    let next = next(mds, &told.store.0).await?;
    if told.newest_file < next.0 {
        return Ok(None);
    }
    let older = Older { store: told.store.0, file: DataFileId(told.newest_file), next };
    // It holds beyond the moment at which as many ids were given out, and for data servers that are away now. Only who still has
    // the file system can write it.
    mds.write_again(|mut txn| {
        Box::pin(async move {
            put_older(&mut txn, &older);
            Ok(())
        })
    })
    .await?;
    *registry.histories.older.lock() = Some(older);
    registry.histories.look();
    // Those that came before this one.
    for store in registry.all() {
        if let Some(connection) = store.connection() {
            connection.close();
        }
    }
    let why = registry.older();
    if let Some(why) = &why {
        tracing::error!(%why, "all data servers are refused");
    }
    Ok(why)
}

/// The first id that the store cannot have.
async fn next(mds: &Arc<Mds>, store: &[u8; 16]) -> Result<DataFileId, FsError> {
    let registered = |known: &Arc<super::StoreHandle>| known.uuid == *store && known.view().process.is_some();
    if !mds.data_servers.known().iter().any(registered) {
        return Ok(mds.data_servers.histories.first);
    }
    let next = mds.read(|txn| Box::pin(async move { next_number(&txn, Sequence::DataFile).await }));
    next.await.map(DataFileId)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histories(alone: bool) -> Histories {
        Histories::new(DataFileId(1), None, alone)
    }

    #[test]
    fn one_that_obeyed_another_server_stops_nobody_where_others_know_of_none() {
        let all = histories(false);
        assert_eq!(all.look(), Soundness::Unheard);
        all.refuse([1; 16], "it has obeyed epoch 9");
        assert_eq!(all.look(), Soundness::Refused);
        // One that is new knows nothing.
        all.let_in(&[2; 16], false);
        assert_eq!(all.look(), Soundness::Refused);
        all.let_in(&[3; 16], true);
        assert_eq!(all.look(), Soundness::Sound);
        assert!(!all.doubted.load(Ordering::Relaxed));
        // Nor if it comes last.
        all.refuse([4; 16], "it has obeyed epoch 9");
        assert_eq!(all.look(), Soundness::Sound);
    }

    #[test]
    fn a_file_that_is_not_there_yet_stops_everybody() {
        let all = histories(false);
        all.let_in(&[3; 16], true);
        *all.older.lock() = Some(Older { store: [1; 16], file: DataFileId(9), next: DataFileId(1) });
        assert_eq!(all.look(), Soundness::Refused);
    }

    #[test]
    fn who_has_no_data_servers_waits_for_none() {
        assert_eq!(histories(true).look(), Soundness::Sound);
    }
}
