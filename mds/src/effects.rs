//! What follows a step of a file's state machine, after its lock is released: callbacks, fences, waking,
//! settling, collecting. None of it blocks the caller.

use std::sync::Arc;

use sluice_state::effect::Effect;

use crate::files::FileEntry;
use crate::server::Mds;
use crate::{callback, dsctl, layout};

impl Mds {
    /// Applies `effects` of `entry`, in order. What takes time becomes a task.
    pub(crate) fn apply(self: &Arc<Self>, entry: &Arc<FileEntry>, effects: Vec<Effect>) {
        for effect in effects {
            let (mds, entry) = (Arc::clone(self), Arc::clone(entry));
            match effect {
                Effect::Wake(token) => entry.wake(token),
                // The index heard of these under the machine's lock.
                Effect::Register { .. } | Effect::Release { .. } => {}
                Effect::Revoked { stateid, kind, client, reason } => {
                    tracing::info!(
                        ?client,
                        ?kind,
                        ?stateid,
                        ?reason,
                        file = entry.key.fileid.0,
                        "state revoked"
                    );
                }
                Effect::Callback(recall) => self.spawn(callback::recall(mds, entry, recall)),
                Effect::NotifyLock { owner } => self.spawn(callback::notify_lock(mds, entry, owner)),
                Effect::Fence { fence, client } => {
                    self.spawn(dsctl::fence_holder_on_file(mds, entry, client, fence))
                }
                Effect::RwIdle => self.spawn(layout::settle::clear_rw(mds, entry)),
                Effect::NeedsSettle => self.spawn(layout::settle::settle_in_background(mds, entry)),
                Effect::CloseOrphan => self.spawn(layout::garbage::collect_orphan(mds, entry)),
            }
        }
    }

    /// Starts a task of this server.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.env.spawn.spawn(Box::pin(task));
    }
}
