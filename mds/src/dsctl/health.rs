//! Data servers that fall silent. Failover is driven from here: a client never gives up a data server that
//! accepts connections and does not answer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::stable_storage::StoreState;
use sluice_namespace::{DataFile, FsError, StoreId};
use sluice_state::Time;
use sluice_state::file::{File, FileId, LayoutFilter};
use tokio::task::JoinSet;

use super::StoreHandle;
use crate::files::{FileEntry, file_id};
use crate::layout::heal::leave;
use crate::server::Mds;

const LOOK: Duration = Duration::from_millis(500);
/// Files that are read side by side when data servers are lost.
const AT_ONCE: usize = 16;

/// Watches the data servers for the life of this server.
pub(crate) async fn run(mds: Arc<Mds>) {
    let patience = u64::try_from((mds.config.heartbeat * 4).as_nanos()).unwrap_or(u64::MAX);
    // Since when they can be heard: while the store may be another server's they are sent away.
    let mut hears = Some(mds.started);
    let mut left = Left::default();
    loop {
        hears = mds.db.is_ours().then(|| hears.unwrap_or_else(|| mds.now()));
        // All of a host at once: what is handed out while the first one's layouts are taken back names none of them.
        for store in hears.map(|_| mds.data_servers.all()).unwrap_or_default() {
            if hears.is_some_and(|since| silent(&mds, &store, since, patience)) {
                lose(&mds, &store);
                left.stores.insert(store.id);
                left.files.extend(mds.files.all().iter().map(|entry| file_id(&entry.key)));
            }
        }
        if take_back(&mds, &mut left).await {
            mds.env.clock.sleep(LOOK).await;
        }
    }
}

/// It has not been heard of for several heartbeats, or since it could be.
fn silent(mds: &Mds, store: &StoreHandle, since: Time, patience: u64) -> bool {
    let view = store.view();
    let gone = view.connection.as_ref().is_some_and(|connection| connection.is_closed());
    let heard = mds.now().since(view.last_heard.max(since));
    // A closed connection alone may be a restart: half the patience lets it come back unnoticed.
    !view.lost && view.intent != StoreState::Removed && (heard > patience || (gone && heard > patience / 2))
}

/// What is handed out next leaves it out, or says that there is no layout.
fn lose(mds: &Arc<Mds>, store: &StoreHandle) {
    // Whoever waits for an answer of it waits no longer: a client that gives back its layout, for one.
    let connection = store.update(|view| {
        view.lost = true;
        view.connection.take()
    });
    // One that is just being made fails by itself.
    let proxies = store.nfs.try_lock().ok().and_then(|mut nfs| nfs.take());
    for connection in connection.into_iter().chain(proxies) {
        connection.close();
    }
    tracing::warn!(
        data_server = store.id.0,
        silent_seconds = mds.now().since(store.view().last_heard) / 1_000_000_000,
        "data server lost: its layouts are recalled"
    );
    leave::begin_wanted(mds);
}

/// Files that may be on data servers that were lost, and have yet to be looked at.
#[derive(Debug, Default)]
struct Left {
    files: BTreeSet<FileId>,
    stores: BTreeSet<StoreId>,
}

/// Takes back every layout of those files of which a part is at a data server that is lost, for as long as it takes to look
/// at the others again. True when there is nothing to do but to wait: some are left while the metadata store is away.
async fn take_back(mds: &Arc<Mds>, left: &mut Left) -> bool {
    let begun = mds.env.clock.now();
    let stores = Arc::new(left.stores.clone());
    while mds.env.clock.now() - begun < LOOK {
        let mut looks = JoinSet::new();
        while let Some(id) = (looks.len() < AT_ONCE).then(|| left.files.pop_first()).flatten() {
            if let Some(entry) = mds.files.get(id).filter(|entry| entry.peek(File::has_layouts)) {
                looks.spawn(take_back_one(Arc::clone(mds), Arc::clone(&stores), entry));
            }
        }
        if looks.is_empty() {
            left.stores.clear();
            return true;
        }
        let missed: Vec<_> = looks.join_all().await.into_iter().flatten().collect();
        if !missed.is_empty() {
            left.files.extend(missed);
            return true;
        }
    }
    false
}

/// The file, if it must be looked at again.
async fn take_back_one(
    mds: Arc<Mds>,
    stores: Arc<BTreeSet<StoreId>>,
    entry: Arc<FileEntry>,
) -> Option<FileId> {
    let (namespace, key) = (&mds.namespace, entry.key);
    // One may be back by now.
    let is_lost = |store: StoreId| mds.data_servers.get(store).is_some_and(|store| store.view().lost);
    let lost = |file: &DataFile| stores.contains(&file.store) && is_lost(file.store);
    match mds.read(|txn| Box::pin(async move { namespace.getattr(&txn, &key).await })).await {
        Ok(inode) => {
            if inode.layout().is_some_and(|layout| layout.data_files().any(lost)) {
                mds.step(&entry, None, |file, ctx| ((), file.recall_layouts(ctx, LayoutFilter::All, true)));
            }
            None
        }
        Err(FsError::Stale) => None,
        Err(error) => {
            tracing::debug!(%error, file = key.fileid.0, "layouts on a lost data server are not recalled yet");
            Some(file_id(&key))
        }
    }
}
