//! Sizes are settled, never guessed (docs/DESIGN §6).

use std::sync::Arc;

use sluice_kv::Transaction;
use sluice_namespace::{FsError, InodeKey};

use crate::files::FileEntry;
use crate::server::Mds;

/// Clears the rw_layout row of a file whose last read-write layout was returned cleanly.
pub(crate) async fn clear_rw(_mds: Arc<Mds>, _entry: Arc<FileEntry>) {}

/// Settles a file after an unclean end of a read-write layout.
pub(crate) async fn settle_in_background(_mds: Arc<Mds>, _entry: Arc<FileEntry>) {}

/// Brings the size in the inode up to what the data servers hold, if it may lag; the caller then reads the
/// inode again. True when it changed. Cheap when nothing lags.
///
/// # Errors
/// What the store or the data servers say; DELAY-like errors pass.
pub(crate) async fn settle_size(_mds: &Arc<Mds>, _key: &InodeKey) -> Result<bool, FsError> {
    Ok(false)
}

/// Whether the rw_layout row exists and whether the inode is an orphan.
///
/// # Errors
/// What the store says.
pub(crate) async fn seed(_txn: &Transaction, _key: &InodeKey) -> Result<(bool, bool), FsError> {
    Ok((false, false))
}
