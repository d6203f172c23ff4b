//! What follows a step of a file's state machine, after its lock is released: callbacks, fences, waking,
//! settling, collecting. None of it blocks the caller.

use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::FsError;
use sluice_state::effect::{Effect, RevokeReason};
use sluice_state::lease::seq4_status;
use sluice_state::recovery::Forfeit;
use sluice_state::{ClientId, StateId, StateKind, recovery};

use crate::files::FileEntry;
use crate::metrics::add;
use crate::server::Mds;
use crate::{callback, dsctl, layout};

/// Before the row of a client is looked at again that is being written.
const ROW_PAUSE: Duration = Duration::from_millis(50);

/// How much was taken from a client.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Broken {
    pub(crate) opens: u32,
    pub(crate) locks: u32,
    pub(crate) delegations: u32,
    pub(crate) layouts: u32,
}

impl Broken {
    fn of(effects: &[Effect]) -> Self {
        let mut broken = Self::default();
        for effect in effects {
            let Effect::Revoked { kind, .. } = effect else { continue };
            match kind {
                StateKind::Open => broken.opens += 1,
                StateKind::Lock => broken.locks += 1,
                StateKind::Delegation => broken.delegations += 1,
                StateKind::Layout => broken.layouts += 1,
                StateKind::Copy => {}
            }
        }
        broken
    }
}

impl Mds {
    /// Applies `effects` of `entry`, in order. What takes time becomes a task.
    pub(crate) fn apply(self: &Arc<Self>, entry: &Arc<FileEntry>, effects: Vec<Effect>) {
        self.watch_no_writer(entry, &effects);
        for effect in effects {
            let (mds, entry) = (Arc::clone(self), Arc::clone(entry));
            match effect {
                Effect::Wake(token) => entry.wake(token),
                // The index heard of these under the machine's lock.
                Effect::Register { .. } | Effect::Release { .. } | Effect::Ranges { .. } => {}
                Effect::Waits { .. } | Effect::WaitsNoMore { .. } => {}
                Effect::Revoked { stateid, kind, client, reason } => {
                    let file = entry.key.fileid.0;
                    // What a client had that is gone is told with that, in one line.
                    let says = reason != RevokeReason::LeaseExpired;
                    match says.then(|| self.revoked.says(self.env.clock.now())).flatten() {
                        Some(unsaid) => {
                            tracing::info!(?client, ?kind, ?stateid, ?reason, file, unsaid, "state revoked");
                        }
                        None => tracing::debug!(?client, ?kind, ?stateid, ?reason, file, "state revoked"),
                    }
                    if kind == StateKind::Layout {
                        add(&self.metrics.layouts_revoked, 1);
                    }
                    self.tell_revoked(client, kind, stateid, reason);
                }
                Effect::Callback(recall) => callback::recall(self, &entry, recall),
                Effect::NotifyLock { owner } => self.spawn(callback::notify_lock(mds, entry, owner)),
                Effect::Fence { fence, client, own } => {
                    self.spawn(dsctl::fence_holder_on_file(mds, entry, client, (fence, own)));
                }
                Effect::Overdue { client, stateid } => {
                    self.spawn(mds.revoke_delegation(entry, client, stateid));
                }
                Effect::RwIdle => self.spawn(layout::settle::clear_rw(mds, entry)),
                Effect::NeedsSettle => self.spawn(layout::settle::settle_in_background(mds, entry)),
                Effect::CloseOrphan => self.spawn(layout::garbage::collect_orphan(mds, entry)),
            }
        }
    }

    /// Takes a delegation that was not returned in time. Its holder may not hear of that before this server is restarted,
    /// and is not to reclaim then what others have changed since: that is durable before they can (RFC 8881 §8.4.3).
    async fn revoke_delegation(self: Arc<Self>, entry: Arc<FileEntry>, client: ClientId, stateid: StateId) {
        if let Err(error) = self.forfeit(client, Forfeit::Delegations).await {
            // The machine says it again.
            tracing::debug!(?client, %error, "a delegation is not taken yet");
            return;
        }
        self.step(&entry, Some(client), |file, ctx| ((), file.revoke_overdue(ctx, client, &stateid)));
        self.clients.lock().end_revoking(client);
        self.quiet_revoked(client);
    }

    /// An administrator takes what the client holds of the file. As above, and what others are given instead is opens and
    /// locks: until the client has acknowledged that, it reclaims nothing after a restart.
    ///
    /// # Errors
    /// What the store says: nothing is taken.
    pub(crate) async fn break_state(
        self: &Arc<Self>,
        entry: &Arc<FileEntry>,
        client: ClientId,
    ) -> Result<Broken, FsError> {
        self.forfeit(client, Forfeit::Everything).await?;
        let broken = self.step(entry, Some(client), |file, ctx| {
            let effects = file.break_state(ctx, client);
            (Broken::of(&effects), effects)
        });
        self.clients.lock().end_revoking(client);
        self.quiet_revoked(client);
        Ok(broken)
    }

    /// Has it durable that something is taken from the client.
    async fn forfeit(&self, client: ClientId, what: Forfeit) -> Result<(), FsError> {
        let effects = loop {
            let begun = self.clients.lock().begin_revoking(client, what);
            match begun {
                Ok(effects) => break effects,
                // Its row is being written.
                Err(_) => self.env.clock.sleep(ROW_PAUSE).await,
            }
        };
        if effects.is_empty() {
            return Ok(());
        }
        let written = self.persist_client(&effects).await;
        self.clients.lock().revoked_durably(client, what, written.is_ok());
        written
    }

    /// All that was taken from it is freed: it may reclaim again whatever it will have.
    async fn may_reclaim_again(self: Arc<Self>, client: ClientId, effects: Vec<recovery::Effect>) {
        let written = self.persist_client(&effects).await;
        // What is not known to be in the store any more is written again when there is something to write.
        let gone = written.is_ok() || written.as_ref().is_err_and(FsError::maybe_committed);
        self.clients.lock().forgot_revoked(client, gone, written.is_ok());
    }

    /// Has SEQUENCE tell the client, until it has freed what was revoked (RFC 8881 §18.46.3). A client that is
    /// gone with its lease is told by BADSESSION.
    fn tell_revoked(
        self: &Arc<Self>,
        client: ClientId,
        kind: StateKind,
        stateid: StateId,
        reason: RevokeReason,
    ) {
        let Some(shared) = self.clients.lock().shared(client).map(Arc::clone) else { return };
        // Before the flag: whoever is told of it is told again.
        if kind == StateKind::Delegation && reason == RevokeReason::NotReturned {
            shared.note_revoked_delegation(self.now());
            if self.notices.watch(client) {
                self.spawn(Arc::clone(self).forget_unfreed_delegations(Arc::clone(&shared)));
            }
        }
        shared.raise_status(match reason {
            RevokeReason::LeaseExpired => seq4_status::EXPIRED_SOME_STATE_REVOKED,
            RevokeReason::Admin => seq4_status::ADMIN_STATE_REVOKED,
            RevokeReason::NotReturned => seq4_status::RECALLABLE_STATE_REVOKED,
        });
        if kind == StateKind::Layout {
            self.forget_when_told(shared, stateid);
        }
        // It may have been freed in between.
        self.quiet_revoked(client);
    }

    /// Nothing revoked is left to be freed: SEQUENCE need not tell of it any more.
    pub(crate) fn quiet_revoked(self: &Arc<Self>, client: ClientId) {
        let Some(shared) = self.clients.lock().shared(client).map(Arc::clone) else { return };
        if !self.files.index().has_revoked(client) {
            let effects = self.clients.lock().forget_revoked(client);
            if !effects.is_empty() {
                self.spawn(Arc::clone(self).may_reclaim_again(client, effects));
            }
        }
        // In one step: what is revoked from now on raises its flag after this.
        let index = self.files.index();
        if !index.has_revoked_delegation(client) {
            shared.delegations_are_freed();
        }
        if !index.has_revoked(client) {
            shared.clear_status(
                seq4_status::EXPIRED_ALL_STATE_REVOKED
                    | seq4_status::EXPIRED_SOME_STATE_REVOKED
                    | seq4_status::ADMIN_STATE_REVOKED
                    | seq4_status::RECALLABLE_STATE_REVOKED,
            );
        }
    }

    /// Starts a task of this server.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.env.spawn.spawn(Box::pin(task));
    }
}
