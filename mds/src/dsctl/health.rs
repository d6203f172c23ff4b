//! Data servers that fall silent. Failover is driven from here: a client never gives up a data server that
//! accepts connections and does not answer.

use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::stable_storage::StoreState;
use sluice_state::file::LayoutFilter;

use super::StoreHandle;
use crate::layout::heal::leave;
use crate::server::Mds;

const LOOK: Duration = Duration::from_millis(500);

/// Watches the data servers for the life of this server.
pub(crate) async fn run(mds: Arc<Mds>) {
    let patience = u64::try_from((mds.config.heartbeat * 4).as_nanos()).unwrap_or(u64::MAX);
    loop {
        for store in mds.data_servers.all() {
            if silent(&mds, &store, patience) {
                lose(&mds, &store).await;
            }
        }
        mds.env.clock.sleep(LOOK).await;
    }
}

/// It has not been heard of for several heartbeats, or since this server started.
fn silent(mds: &Mds, store: &StoreHandle, patience: u64) -> bool {
    let view = store.view();
    let gone = view.connection.as_ref().is_some_and(|connection| connection.is_closed());
    let heard = mds.now().since(view.last_heard.max(mds.started));
    // A closed connection alone may be a restart: half the patience lets it come back unnoticed.
    !view.lost && view.intent != StoreState::Removed && (heard > patience || (gone && heard > patience / 2))
}

/// Marks it, and takes back every layout of a file that it holds a part of: what is handed out next leaves
/// it out, or says that there is no layout.
async fn lose(mds: &Arc<Mds>, store: &StoreHandle) {
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
    for entry in mds.files.all() {
        if !entry.peek(sluice_state::file::File::has_layouts) {
            continue;
        }
        let key = entry.key;
        let namespace = &mds.namespace;
        let inode = mds.read(|txn| Box::pin(async move { namespace.getattr(&txn, &key).await })).await;
        let touched = inode
            .ok()
            .and_then(|inode| {
                inode.layout().map(|layout| layout.data_files().any(|file| file.store == store.id))
            })
            .unwrap_or(false);
        if touched {
            mds.step(&entry, None, |file, ctx| ((), file.recall_layouts(ctx, LayoutFilter::All, true)));
        }
    }
}
