//! STAT: what is there of some data files.

use std::sync::Arc;

use sluice_store::Writes;
use sluice_store::device::FileStat;
use sluice_xdr::control::{DS_STAT_args, DS_STAT_res, ctl_stat, ctl_status};

use super::data_file;
use crate::error::ctl;
use crate::shared::Shared;

pub(super) fn wire(stat: Option<FileStat>, writes: Writes) -> ctl_stat {
    let exists = stat.is_some();
    let FileStat { size, allocated } = stat.unwrap_or_default();
    let Writes { last, newest } = writes;
    ctl_stat { exists, size, allocated_bytes: allocated, last_write: last, writes: newest }
}

pub(super) async fn run(shared: &Arc<Shared>, args: DS_STAT_args) -> DS_STAT_res {
    let mut stats = Vec::with_capacity(args.files.len());
    for file in &args.files {
        let Some((key, _)) = data_file(file) else {
            return DS_STAT_res::Default(ctl_status::CTL_ERR_INVAL);
        };
        // First: a write that comes between the two looks counts as later than this one.
        let writes = shared.store.writes(key);
        match shared.store.stat(key).await {
            Ok(stat) => stats.push(wire(stat, writes)),
            Err(error) => return DS_STAT_res::Default(ctl(&error)),
        }
    }
    DS_STAT_res::CTL_OK(stats)
}
