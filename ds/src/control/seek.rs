//! SEEK: the next data or the next hole of a data file.

use std::sync::Arc;

use sluice_store::StoreError;
use sluice_xdr::control::{DS_SEEK_args, DS_SEEK_res, DS_SEEK_resok, ctl_status};

use super::data_file;
use crate::error::ctl;
use crate::shared::Shared;

pub(super) async fn run(shared: &Arc<Shared>, args: DS_SEEK_args) -> DS_SEEK_res {
    let Some((key, _)) = data_file(&args.target) else {
        return DS_SEEK_res::Default(ctl_status::CTL_ERR_INVAL);
    };
    if args.offset > i64::MAX as u64 {
        return DS_SEEK_res::CTL_OK(DS_SEEK_resok { found: false, offset: 0 });
    }
    match shared.store.seek(key, args.offset, args.data).await {
        Ok(found) => {
            DS_SEEK_res::CTL_OK(DS_SEEK_resok { found: found.is_some(), offset: found.unwrap_or(0) })
        }
        // Never written: nothing but hole, and no end to speak of.
        Err(StoreError::Missing) => DS_SEEK_res::CTL_OK(DS_SEEK_resok { found: false, offset: 0 }),
        Err(error) => DS_SEEK_res::Default(ctl(&error)),
    }
}
