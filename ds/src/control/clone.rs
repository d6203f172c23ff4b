//! CLONE: a new data file that shares what others of this store hold.

use std::sync::Arc;

use sluice_store::{Base, Reflink, StoreError, Transfer};
use sluice_xdr::control::{DS_CLONE_args, ctl_status};

use super::transfer::fits;
use super::{data_file, orders};
use crate::error::ctl_of;
use crate::shared::Shared;

pub(super) async fn run(shared: &Arc<Shared>, args: DS_CLONE_args) -> ctl_status {
    let ends = fits(args.offset, args.length) && fits(args.source_offset, args.length);
    let (Some((key, generation)), Some((source, _)), true) =
        (data_file(&args.target), data_file(&args.source.file), ends)
    else {
        return ctl_status::CTL_ERR_INVAL;
    };
    let base = match args.base.first() {
        Some(base) => match data_file(&base.file.file) {
            Some((file, _)) => Some(Base { file, must_exist: base.file.must_exist, end: base.end }),
            None => return ctl_status::CTL_ERR_INVAL,
        },
        None => None,
    };
    let range = Transfer {
        source,
        source_offset: args.source_offset,
        must_exist: args.source.must_exist,
        target: key,
        generation,
        offset: args.offset,
        length: args.length,
    };
    let reflink = Reflink { base, range };
    let until = shared.patient(&args.caller, orders::MOVING);
    // Before anything is made.
    let since = shared.store.verifier(key);
    let store = Arc::clone(&shared.store);
    let made = async {
        // No step that a newer incarnation waits for: it knows nothing of this data file.
        let work = async move { store.reflink(reflink).await };
        shared.order((key, generation), until, work).await?;
        shared.store.commit_since(key, since).await
    };
    let made = made.await;
    // A device that cannot is no fault.
    if let Some(error) = made.as_ref().err().filter(|error| !matches!(error, StoreError::NoReflink)) {
        tracing::warn!(file = %key, %error, "a data file could not be cloned");
    }
    ctl_of(made)
}
