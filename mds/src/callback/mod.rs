//! Calls toward clients: CB_SEQUENCE and what follows it. RFC 8881 §20.

use std::sync::Arc;

use sluice_state::effect::Recall;
use sluice_state::owner::LockOwner;

use crate::files::FileEntry;
use crate::server::Mds;

/// Sends one recall and reports the client's answer to the file's machine.
pub(crate) async fn recall(_mds: Arc<Mds>, _entry: Arc<FileEntry>, _recall: Recall) {}

/// Tells a waiting lock-owner that its lock is free (CB_NOTIFY_LOCK).
pub(crate) async fn notify_lock(_mds: Arc<Mds>, _entry: Arc<FileEntry>, _owner: LockOwner) {}
