//! MATERIALISED: data files that exist now, so that handles minted later say MUST_EXIST.

use std::sync::Arc;
use std::time::Duration;

use sluice_rpc::{CallError, Connection};
use sluice_store::FileKey;
use sluice_xdr::control::{CONTROL_MATERIALISED, CTL_FILES_MAX, MATERIALISED_args, ctl_status};

use super::link::{LinkError, call};
use super::wire_file;
use crate::shared::Shared;

/// Until what was not taken is reported again.
const AGAIN: Duration = Duration::from_secs(2);
/// The same of what was not answered: it may still be at work on that.
const SILENT: Duration = Duration::from_secs(10);

/// Reports a page of what there is to report; after how long there is to be another one.
pub(super) async fn run(
    shared: &Arc<Shared>,
    connection: &Connection,
) -> Result<Option<Duration>, LinkError> {
    let mut news = shared.store.unreported(CTL_FILES_MAX as usize + 1);
    let more = news.len() > CTL_FILES_MAX as usize;
    news.truncate(CTL_FILES_MAX as usize);
    if news.is_empty() {
        return Ok(None);
    }
    let files = news.iter().map(|&(key, generation)| wire_file(key, generation)).collect();
    let taken = match call(connection, CONTROL_MATERIALISED, &MATERIALISED_args { files }).await {
        // Heartbeats say whether it is there at all.
        Err(LinkError::Call(CallError::Timeout(patience))) => {
            tracing::debug!(?patience, files = news.len(), "the report is not answered");
            return Ok(Some(SILENT));
        }
        taken => taken?,
    };
    match taken {
        ctl_status::CTL_OK => {
            let keys: Vec<FileKey> = news.iter().map(|(key, _)| *key).collect();
            shared.store.reported(&keys);
            Ok(more.then_some(Duration::ZERO))
        }
        ctl_status::CTL_ERR_NOT_REGISTERED | ctl_status::CTL_ERR_EPOCH => Err(LinkError::RegisterAgain),
        status => {
            tracing::debug!(?status, files = news.len(), "the report is not taken now");
            Ok(Some(AGAIN))
        }
    }
}
