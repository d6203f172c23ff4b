//! INVENTORY: every data file of the store, page by page.

use std::sync::Arc;

use sluice_xdr::control::{
    DS_INVENTORY_args, DS_INVENTORY_res, DS_INVENTORY_resok, ctl_inventory_entry, ctl_status,
};

use super::{data_file, stat, wire_file};
use crate::error::ctl;
use crate::shared::Shared;

/// Entries of a page: a reply of about 600 KiB.
const PAGE_MAX: u32 = 16_384;

pub(super) async fn run(shared: &Arc<Shared>, args: DS_INVENTORY_args) -> DS_INVENTORY_res {
    let Some((after, _)) = data_file(&args.after) else {
        return DS_INVENTORY_res::Default(ctl_status::CTL_ERR_INVAL);
    };
    // Data file ids begin at 1: all zeros is the beginning.
    let after = (after.file != 0 || after.slot != 0).then_some(after);
    let limit = args.limit.clamp(1, PAGE_MAX) as usize;
    match shared.store.inventory(after, limit).await {
        Ok(found) => {
            let eof = found.len() < limit;
            let entries = found.into_iter().map(|entry| ctl_inventory_entry {
                // The store keeps one data file per slot whatever its generation.
                file: wire_file(entry.key, 0),
                stat: stat::wire(Some(entry.stat), shared.store.writes(entry.key)),
            });
            DS_INVENTORY_res::CTL_OK(DS_INVENTORY_resok { entries: entries.collect(), eof })
        }
        Err(error) => DS_INVENTORY_res::Default(ctl(&error)),
    }
}
