//! Which cluster key the metadata server is shown: the first in our file, as soon as it knows that one (docs/adr/0031).

use std::time::Duration;

use sluice_rpc::{Client, Connection};

use super::link::LinkError;
use crate::shared::Shared;

/// Between two looks whether the metadata server has heard of a newer key.
const LOOK: Duration = Duration::from_secs(10);

/// Ends when the connection is to be made again, with another key.
pub(super) async fn replaced(shared: &Shared, client: &Client, connection: &Connection) -> LinkError {
    let (Some(keys), Some(shown)) = (connection.keyring(), connection.shown()) else {
        return std::future::pending().await;
    };
    let mut changes = keys.changes();
    while keys.accepts(shown) {
        // It fails without the ring, which the connection holds.
        if keys.is_first(shown) {
            let _ = changes.changed().await;
        } else if client.is_known(connection.peer()).await {
            break;
        } else {
            let _ = shared.env.clock.timeout(LOOK, changes.changed()).await;
        }
    }
    LinkError::KeyReplaced
}
