//! ALLOCATE: space for the stripe units of a range that are in one data file.

use std::sync::Arc;

use sluice_xdr::control::{DS_ALLOCATE_args, DS_ALLOCATE_res, ctl_status};

use super::{data_file, orders};
use crate::error::ctl;
use crate::shared::Shared;

pub(super) async fn run(shared: &Arc<Shared>, args: DS_ALLOCATE_args) -> DS_ALLOCATE_res {
    let DS_ALLOCATE_args { caller, target, units } = args;
    let Some(target) = data_file(&target).filter(|_| units.are_sound()) else {
        return DS_ALLOCATE_res::Default(ctl_status::CTL_ERR_INVAL);
    };
    let inner = Arc::clone(shared);
    let ((key, generation), until) = (target, shared.patient(&caller, orders::SHORT));
    let work = async move {
        let _step = inner.step(until)?;
        inner.store.allocate_all(key, generation, units.pieces()).await
    };
    match shared.order(target, until, work).await {
        Ok(next) => DS_ALLOCATE_res::CTL_OK(next.unwrap_or(units.end)),
        Err(error) => DS_ALLOCATE_res::Default(ctl(&error)),
    }
}
