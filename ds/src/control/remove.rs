//! REMOVE: gone, and gone for good before the reply.

use std::sync::Arc;

use sluice_store::{Epoch, StoreError};
use sluice_xdr::control::{DS_REMOVE_args, DS_REMOVE_res, ctl_status};

use super::data_file;
use crate::error::ctl;
use crate::shared::Shared;

pub(super) async fn run(shared: &Arc<Shared>, args: DS_REMOVE_args) -> DS_REMOVE_res {
    let all = |status: ctl_status| vec![status; args.files.len()];
    let named: Vec<_> = args.files.iter().map(data_file).collect();
    let targets: Vec<_> = named.iter().flatten().copied().collect();
    let removed = async {
        shared.store.admit_caller(args.caller.mds_epoch).await?;
        shared.store.remove(&targets, Epoch(args.epoch as u16)).await
    };
    let results = match removed.await {
        Ok(()) => named
            .iter()
            .map(|name| if name.is_some() { ctl_status::CTL_OK } else { ctl_status::CTL_ERR_INVAL })
            .collect(),
        Err(error) => {
            if !matches!(error, StoreError::OldCaller) {
                tracing::error!(store = %shared.store.place(), %error, "data files cannot be removed");
            }
            all(ctl(&error))
        }
    };
    DS_REMOVE_res { results }
}
