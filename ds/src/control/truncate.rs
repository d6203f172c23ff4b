//! TRUNCATE: the data file ends at `size`; the file it belongs to at `logical_size`.

use std::sync::Arc;

use sluice_xdr::control::{DS_TRUNCATE_args, ctl_status};

use super::{data_file, orders};
use crate::error::ctl_of;
use crate::shared::Shared;

pub(super) async fn run(shared: &Arc<Shared>, args: DS_TRUNCATE_args) -> ctl_status {
    let Some(target) = data_file(&args.target) else { return ctl_status::CTL_ERR_INVAL };
    if args.size > i64::MAX as u64 {
        return ctl_status::CTL_ERR_INVAL;
    }
    let (inner, until) = (Arc::clone(shared), shared.patient(&args.caller, orders::SHORT));
    let work = async move {
        let _step = inner.step(until)?;
        // First the bound, so that nobody reads what is being cut off as a hole above the new end.
        inner.sizes.push(target.0.file, args.logical_size);
        inner.store.truncate(target.0, args.size).await
    };
    ctl_of(shared.order(target, until, work).await)
}
