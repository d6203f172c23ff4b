//! Data files of deleted files: removed at the data servers, then forgotten.

use std::sync::Arc;

use crate::files::FileEntry;
use crate::server::Mds;

/// The last open of an unlinked file is gone.
pub(crate) async fn collect_orphan(_mds: Arc<Mds>, _entry: Arc<FileEntry>) {}

/// Works through the garbage queue for the life of the server.
pub(crate) async fn run(_mds: Arc<Mds>) {}

/// Something was queued.
pub(crate) fn poke(_mds: &Arc<Mds>) {}
