//! What follows a step of the client table: rows first, in one transaction, then memory.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::FsError;
use sluice_state::ClientId;
use sluice_state::client::Expire;
use sluice_state::effect::RevokeReason;
use sluice_state::recovery::Effect;
use sluice_state::stateid::Usage;

use super::records;
use crate::dsctl::Soundness;
use crate::server::Mds;

/// Between two attempts to write rows of clients.
const STORE_PAUSE: Duration = Duration::from_secs(1);

impl Mds {
    /// Applies effects in the order the table gave them: the durable ones are committed before any other.
    ///
    /// # Errors
    /// What the store says; nothing was applied then. The table has taken the step already, so the rest
    /// follows in the background as soon as the store takes it.
    pub(crate) async fn apply_client(self: &Arc<Self>, effects: Vec<Effect>) -> Result<(), FsError> {
        let (durable, volatile): (Vec<_>, Vec<_>) = effects.into_iter().partition(Effect::is_durable);
        match self.persist_client(&durable).await {
            Ok(()) => {
                self.apply_volatile(volatile);
                Ok(())
            }
            Err(error) => {
                self.spawn(Arc::clone(self).apply_client_later(durable, volatile));
                Err(error)
            }
        }
    }

    /// Writing the rows again does no harm: client and session IDs are never used twice.
    async fn apply_client_later(self: Arc<Self>, durable: Vec<Effect>, volatile: Vec<Effect>) {
        loop {
            self.env.clock.sleep(STORE_PAUSE).await;
            match self.persist_client(&durable).await {
                Ok(()) => return self.apply_volatile(volatile),
                // A successor serves the clients now.
                Err(FsError::Fenced { .. }) => return,
                Err(error) => tracing::warn!(%error, "the end of a client is not recorded yet"),
            }
        }
    }

    /// Commits the rows, which say how it is, not what has changed.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) async fn persist_client(&self, durable: &[Effect]) -> Result<(), FsError> {
        if durable.is_empty() {
            return Ok(());
        }
        self.write_again(|mut txn| {
            Box::pin(async move {
                durable.iter().for_each(|effect| records::write(&mut txn, effect));
                Ok(())
            })
        })
        .await?;
        Ok(())
    }

    pub(crate) fn apply_volatile(self: &Arc<Self>, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::DropSession(session) => self.clients.drop_session(session),
                Effect::ReleaseState(client) => self.release_state(client, RevokeReason::LeaseExpired),
                _ => {}
            }
        }
    }

    /// Takes everything a client holds on files. Fences run in the background; until they are in force
    /// the machines keep what conflicts waiting.
    fn release_state(self: &Arc<Self>, client: ClientId, reason: RevokeReason) {
        let (files, held) = {
            let index = self.files.index();
            (index.files_of(client), index.usage(client))
        };
        if !files.is_empty() {
            let Usage { opens, locks, layouts, delegations, .. } = held;
            tracing::info!(
                ?client,
                files = files.len(),
                opens,
                locks,
                layouts,
                delegations,
                "a client is gone; its state is released"
            );
        }
        for file in files {
            if let Some(entry) = self.files.get(file) {
                self.step(&entry, Some(client), |file, ctx| ((), file.client_expired(ctx, client, reason)));
            }
        }
        self.files.index().forget_client(client);
        self.copies.forget_client(client);
    }

    /// Somebody conflicts with state of `holder`: ends it if its lease is over (RFC 8881 §8.3). True when
    /// the conflict is worth another try.
    pub(crate) async fn expel_if_courtesy(self: &Arc<Self>, holder: ClientId) -> bool {
        let step = self.clients.lock().expire(self.now(), holder);
        match step {
            Expire::Active | Expire::Draining => false,
            Expire::Gone(effects) => match self.apply_client(effects).await {
                Ok(()) => true,
                Err(error) => {
                    tracing::error!(client = ?holder, %error, "cannot record that a client is gone");
                    false
                }
            },
        }
    }

    /// A bound of all clients together is reached: of those whose lease is over and who hold what `counts`, the one that
    /// has been silent for longest ends (RFC 8881 §8.3). True when that is worth another try.
    pub(crate) async fn expel_longest_silent(self: &Arc<Self>, counts: impl Fn(&Usage) -> bool) -> bool {
        let holder = {
            let table = self.clients.lock();
            let index = self.files.index();
            table.longest_silent(self.now(), &|client| counts(&index.usage(client)))
        };
        match holder {
            Some(holder) => self.expel_if_courtesy(holder).await,
            None => false,
        }
    }

    /// The same of these, who have too much of one file together.
    pub(crate) async fn expel_longest_silent_of(self: &Arc<Self>, holders: &BTreeSet<ClientId>) -> bool {
        if holders.is_empty() {
            return false;
        }
        let holder = self.clients.lock().longest_silent(self.now(), &|client| holders.contains(&client));
        match holder {
            Some(holder) => self.expel_if_courtesy(holder).await,
            None => false,
        }
    }

    /// One round of housekeeping: leases that ran out, records never confirmed, grace that ends.
    pub(crate) async fn housekeep(self: &Arc<Self>) {
        let now = self.now();
        self.reading.forget_idle(now);
        let effects = {
            let mut table = self.clients.lock();
            let index = self.files.index();
            let has_state = |client| index.has_state(client);
            table.reap(now, &has_state)
        };
        if let Err(error) = self.apply_client(effects).await {
            tracing::error!(%error, "cannot record that clients are gone");
        }
        let ending = self.clients.lock().grace().poll(now);
        // What nobody has reclaimed is given to others: who held it must not write under it any more.
        // On an older copy nobody can reclaim anything: it is for the start on the right one, or after `meta adopt`, to end it.
        let refused = ending.is_some() && self.soundness() == Soundness::Refused;
        if let Some(effect) = ending.filter(|_| !refused && self.data_servers.turns.predecessors_over()) {
            match self.persist_client(&[effect]).await {
                Ok(()) => {
                    self.clients.lock().grace().ended();
                    tracing::info!("grace is over: clients may take new state");
                }
                Err(error) => tracing::error!(%error, "cannot record the end of grace"),
            }
        }
    }
}
