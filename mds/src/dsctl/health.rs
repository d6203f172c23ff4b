//! Data servers that fall silent. Failover is driven from here: a client never gives up a data server that
//! accepts connections and does not answer.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::stable_storage::StoreState;
use sluice_namespace::{FsError, StoreId};
use sluice_state::Time;
use sluice_state::file::{File, FileId, LayoutFilter};

use super::StoreHandle;
use crate::files::file_id;
use crate::layout::heal::leave;
use crate::server::Mds;

const LOOK: Duration = Duration::from_millis(500);

/// Watches the data servers for the life of this server.
pub(crate) async fn run(mds: Arc<Mds>) {
    let patience = u64::try_from((mds.config.heartbeat * 4).as_nanos()).unwrap_or(u64::MAX);
    // Since when they can be heard: while the store may be another server's they are sent away.
    let mut hears = Some(mds.started);
    // Files that may be on those that were lost, and have yet to be looked at.
    let mut left: BTreeMap<StoreId, VecDeque<FileId>> = BTreeMap::new();
    loop {
        hears = mds.db.is_ours().then(|| hears.unwrap_or_else(|| mds.now()));
        for store in hears.map(|_| mds.data_servers.all()).unwrap_or_default() {
            if hears.is_some_and(|since| silent(&mds, &store, since, patience)) {
                lose(&mds, &store);
                left.insert(store.id, mds.files.all().iter().map(|entry| file_id(&entry.key)).collect());
            }
            match left.get_mut(&store.id) {
                Some(files) if store.view().lost => take_back(&mds, &store, files).await,
                // It is back.
                _ => drop(left.remove(&store.id)),
            }
        }
        left.retain(|_, files| !files.is_empty());
        mds.env.clock.sleep(LOOK).await;
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

/// Takes back every layout of those files that it holds a part of. Some are left while the metadata store is away.
async fn take_back(mds: &Arc<Mds>, store: &StoreHandle, files: &mut VecDeque<FileId>) {
    while let Some(id) = files.pop_front() {
        let Some(entry) = mds.files.get(id).filter(|entry| entry.peek(File::has_layouts)) else { continue };
        let (namespace, key) = (&mds.namespace, entry.key);
        let inode = mds.read(|txn| Box::pin(async move { namespace.getattr(&txn, &key).await })).await;
        let touched = match inode {
            Ok(inode) => {
                inode.layout().is_some_and(|layout| layout.data_files().any(|file| file.store == store.id))
            }
            Err(FsError::Stale) => false,
            Err(error) => {
                tracing::debug!(%error, file = id.0, "layouts on a lost data server are not recalled yet");
                return files.push_front(id);
            }
        };
        if touched {
            mds.step(&entry, None, |file, ctx| ((), file.recall_layouts(ctx, LayoutFilter::All, true)));
        }
    }
}
