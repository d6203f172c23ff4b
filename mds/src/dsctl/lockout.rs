//! Cutting clients off from all files (docs/DESIGN §6). A handle is good until its epoch is over, so whoever gave back its
//! layouts has good handles yet: enough for a client that is trusted, and too much for one that is evicted or locked out.

use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::FsError;
use sluice_namespace::stable_storage::{Fence, PendingFence, put_fence};
use sluice_state::ClientId;

use super::registry::holder;
use super::{epochs, fence};
use crate::server::Mds;

/// Clients that are fenced one by one at every data server; of more, all older epochs are retired.
const FEW: usize = 64;
/// Rows of one transaction.
const ROWS: usize = 1024;
/// Between two attempts to write them.
const RETRY: Duration = Duration::from_millis(500);

/// A client is ended by an administrator: its handles are refused at all data servers, those of layouts that it gave back
/// too. Durable when it returns, told in the background.
///
/// # Errors
/// What the store says: it follows in the background as soon as that takes it.
pub(crate) async fn evicted(mds: &Arc<Mds>, client: ClientId) -> Result<(), FsError> {
    let epoch = mds.data_servers.epochs().current;
    // After the epoch was read. Its tag may come again, with another client.
    mds.data_servers.turns.fenced_off(client);
    let done = fence_off(mds, &[client], epoch).await;
    if done.is_err() {
        let again = Arc::clone(mds);
        mds.spawn(async move { fence_off_surely(&again, &[client], epoch).await });
    }
    done
}

/// Clients may not use some export any more as they could. What they hold is recalled, by the caller, where it goes too far;
/// what they gave back before is over when they have had the time to give back the rest.
pub(crate) fn locked_out(mds: &Arc<Mds>, clients: Vec<ClientId>) {
    match clients.len() {
        0 => {}
        1..=FEW => {
            let own = Arc::clone(mds);
            mds.spawn(async move { end_older(&own, &clients).await });
        }
        _ => mds.data_servers.turns.want_retirement(),
    }
}

/// Handles that they are given from now on are good; older ones are refused, once their layouts are back.
async fn end_older(mds: &Arc<Mds>, clients: &[ClientId]) {
    let older = loop {
        match epochs::set_apart(mds).await {
            Ok(Some(older)) => break older,
            // Too many are alive: all of them are about to be retired.
            Ok(None) | Err(FsError::Fenced { .. }) => return,
            Err(error) => {
                tracing::warn!(%error, "cannot tell the handles of clients without an export from later ones");
                mds.env.clock.sleep(RETRY).await;
            }
        }
    };
    epochs::give_back(mds, clients).await;
    fence_off_surely(mds, clients, older).await;
}

async fn fence_off_surely(mds: &Arc<Mds>, clients: &[ClientId], epoch: u32) {
    while let Err(error) = fence_off(mds, clients, epoch).await {
        // A successor begins with an epoch of its own, and retires the older ones.
        if matches!(error, FsError::Fenced { .. }) {
            return;
        }
        tracing::warn!(%error, clients = clients.len(), "cannot record the fences of clients; trying again");
        mds.env.clock.sleep(RETRY).await;
    }
}

/// A row for each of them at every data server, durable; told to those that are there, others hear when they register.
async fn fence_off(mds: &Arc<Mds>, clients: &[ClientId], epoch: u32) -> Result<(), FsError> {
    let mut rows = Vec::new();
    for store in mds.data_servers.all() {
        for client in clients {
            let (id, fence) = (mds.next_fence().await?, Fence::Holder { holder: holder(*client) });
            rows.push(PendingFence { store: store.id, id, fence, epoch });
        }
    }
    for rows in rows.chunks(ROWS) {
        fence::write_with(mds, rows, |mut txn| {
            Box::pin(async move {
                rows.iter().for_each(|row| put_fence(&mut txn, row));
                Ok(())
            })
        })
        .await?;
        fence::tell(mds, rows.to_vec());
    }
    Ok(())
}
