//! TIDE: how far the store has come, so that an older copy of it is recognised. docs/adr/0029.

use std::sync::Arc;
use std::time::Duration;

use sluice_rpc::{CallError, Connection};
use sluice_xdr::control::{CONTROL_TIDE, TIDE_args, TIDE_res, ctl_status, ctl_uuid};

use super::link::{LinkError, call};
use crate::shared::Shared;

/// Between two marks, while there is anything new. What a snapshot lacks that is younger than the last one is not missed.
const PAUSE: Duration = Duration::from_secs(10);

/// Tells the newest mark before a registration. False: nobody wants to know.
pub(super) async fn tell(shared: &Arc<Shared>, connection: &Connection) -> Result<bool, LinkError> {
    let store = &shared.store;
    let mark = store.tide();
    match newest(shared, connection, mark).await {
        Ok(newest) if newest <= mark => return Ok(true),
        Ok(newest) => tracing::warn!(
            store = %store.place(),
            mark,
            newest,
            "this store is an older copy of itself, and was accepted all the same"
        ),
        // It does without.
        Err(LinkError::Call(CallError::ProcUnavail)) => return Ok(false),
        Err(error) => return Err(error),
    }
    // Before it serves anybody: the same copy is not accepted twice, nor the other one for this one.
    let mark = store.keep_tide().await?;
    newest(shared, connection, mark).await.map(|_| true)
}

/// Makes marks while there is anything new, and tells them, if somebody wants to know.
pub(super) async fn run(shared: &Arc<Shared>, connection: &Connection, wanted: bool) -> LinkError {
    if !wanted {
        return std::future::pending().await;
    }
    let store = &shared.store;
    let mut told = store.tide();
    loop {
        shared.env.clock.sleep(PAUSE).await;
        if store.tide_is_due()
            && let Err(error) = store.keep_tide().await
        {
            tracing::debug!(%error, "there is no mark of how far the store has come now");
            continue;
        }
        let mark = store.tide();
        if mark == told {
            continue;
        }
        match newest(shared, connection, mark).await {
            Ok(_) => told = mark,
            // The next one tells as much. Heartbeats say whether it is there at all.
            Err(
                LinkError::Refused(_, ctl_status::CTL_ERR_AGAIN) | LinkError::Call(CallError::Timeout(_)),
            ) => {}
            Err(error) => return error,
        }
    }
}

/// The newest mark that is known of this store, which has come so far as `mark` says.
async fn newest(shared: &Shared, connection: &Connection, mark: u64) -> Result<u64, LinkError> {
    let store = &shared.store;
    let args = TIDE_args { store: ctl_uuid(store.uuid().0), cluster: ctl_uuid(store.cluster().0), mark };
    match call(connection, CONTROL_TIDE, &args).await? {
        TIDE_res::CTL_OK(newest) => {
            store.tide_goes_beyond(newest);
            Ok(newest)
        }
        TIDE_res::Default(status, reason) => {
            Err(LinkError::Refused(String::from_utf8_lossy(&reason).into_owned(), status))
        }
    }
}
