//! SPACE: allocate or deallocate a range of a data file.

use std::sync::Arc;

use sluice_xdr::control::{DS_SPACE_args, ctl_space_operation, ctl_status};

use super::{data_file, orders};
use crate::error::ctl_of;
use crate::shared::Shared;

pub(super) async fn run(shared: &Arc<Shared>, args: DS_SPACE_args) -> ctl_status {
    let Some(target) = data_file(&args.target) else { return ctl_status::CTL_ERR_INVAL };
    let DS_SPACE_args { caller, operation, offset, length, .. } = args;
    let end = offset.checked_add(length);
    if length == 0 || end.is_none_or(|end| end > i64::MAX as u64) {
        return ctl_status::CTL_ERR_INVAL;
    }
    let inner = Arc::clone(shared);
    let ((key, generation), until) = (target, shared.patient(&caller, orders::SHORT));
    let done = match operation {
        ctl_space_operation::SPACE_ALLOCATE => {
            let work = async move {
                let _step = inner.step(until)?;
                inner.store.allocate(key, generation, offset, length).await
            };
            shared.order(target, until, work).await
        }
        ctl_space_operation::SPACE_DEALLOCATE => {
            let work = async move {
                let _step = inner.step(until)?;
                inner.store.deallocate(key, offset, length).await
            };
            shared.order(target, until, work).await
        }
        _ => return ctl_status::CTL_ERR_INVAL,
    };
    ctl_of(done)
}
