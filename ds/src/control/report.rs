//! MATERIALISED: data files that exist now, so that handles minted later say MUST_EXIST.

use std::sync::Arc;

use sluice_rpc::Connection;
use sluice_store::FileKey;
use sluice_xdr::control::{CONTROL_MATERIALISED, CTL_FILES_MAX, MATERIALISED_args, ctl_status};

use super::link::{LinkError, call};
use super::wire_file;
use crate::shared::Shared;

/// Reports everything there is to report.
pub(crate) async fn run(shared: &Arc<Shared>, connection: &Connection) -> Result<(), LinkError> {
    loop {
        let news = shared.store.unreported(CTL_FILES_MAX as usize);
        if news.is_empty() {
            return Ok(());
        }
        let files = news.iter().map(|&(key, generation)| wire_file(key, generation)).collect();
        match call(connection, CONTROL_MATERIALISED, &MATERIALISED_args { files }).await? {
            ctl_status::CTL_OK => {
                let keys: Vec<FileKey> = news.iter().map(|(key, _)| *key).collect();
                shared.store.reported(&keys);
            }
            ctl_status::CTL_ERR_NOT_REGISTERED | ctl_status::CTL_ERR_EPOCH => {
                return Err(LinkError::RegisterAgain);
            }
            status => {
                // They stay in the journal; the next news or registration tries again.
                tracing::debug!(?status, files = news.len(), "the report is not taken now");
                return Ok(());
            }
        }
    }
}
