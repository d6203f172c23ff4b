//! HOLE: the next hole in the stripe units of a range that are in one data file.

use std::sync::Arc;

use sluice_store::Sought;
use sluice_xdr::control::{DS_HOLE_args, DS_HOLE_res, DS_HOLE_resok, ctl_status};

use super::data_file;
use crate::error::ctl;
use crate::shared::Shared;

pub(super) async fn run(shared: &Arc<Shared>, args: DS_HOLE_args) -> DS_HOLE_res {
    let DS_HOLE_args { target, units } = args;
    let Some((key, _)) = data_file(&target).filter(|_| units.are_sound()) else {
        return DS_HOLE_res::Default(ctl_status::CTL_ERR_INVAL);
    };
    match shared.store.hole_in(key, units.pieces()).await {
        Ok(Sought::Hole(offset)) => DS_HOLE_res::CTL_OK(DS_HOLE_resok { found: true, offset }),
        Ok(Sought::NoneBefore(offset)) => DS_HOLE_res::CTL_OK(DS_HOLE_resok { found: false, offset }),
        Ok(Sought::None) => DS_HOLE_res::CTL_OK(DS_HOLE_resok { found: false, offset: units.end }),
        Err(error) => DS_HOLE_res::Default(ctl(&error)),
    }
}
