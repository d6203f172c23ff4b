//! An administrator sets limits, removes them, or has everything counted anew.

use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::{FsError, InodeKey, Limit, Limits, Quota, Subject};

use super::MOST;
use crate::server::Mds;

/// How long it is tried to look up what became of a change before its end is told.
const SOON: Duration = Duration::from_secs(1);

/// Why it is not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("the soft limit is above the hard limit")]
    SoftAboveHard,
    #[error("there are {MOST} quotas, and there may be no more")]
    TooMany,
    #[error("no limits are set there")]
    Nothing,
    #[error("not a directory")]
    NotDirectory,
    #[error("it is inside a quota tree, and trees do not nest")]
    Inside,
    #[error("there is a quota tree below it, and trees do not nest")]
    Outside,
    #[error("the tree is still being taken apart: try again later")]
    Emptying,
    #[error("{0}")]
    Store(#[from] FsError),
}

/// Whose limits.
#[derive(Clone, Debug)]
pub(crate) enum Whose {
    Subject(Subject),
    /// Of the tree that a directory is, or becomes.
    Tree(InodeKey),
}

impl Mds {
    /// Sets limits; a directory becomes a tree.
    ///
    /// # Errors
    /// Nothing was changed; or, with an error of the store, perhaps.
    pub(crate) async fn set_quota(self: &Arc<Self>, whose: &Whose, limits: Limits) -> Result<(), Refusal> {
        let _alone = self.quotas.changing.lock().await;
        let reversed = |limit: Limit| limit.hard != 0 && limit.soft > limit.hard;
        if reversed(limits.bytes) || reversed(limits.files) {
            return Err(Refusal::SoftAboveHard);
        }
        let subject = whose.subject();
        let new = self.quotas.get(subject).is_none();
        if new && self.quotas.all().len() >= MOST {
            return Err(Refusal::TooMany);
        }
        self.quotas.doubt(subject);
        let set = match whose {
            Whose::Subject(subject) => self.set_limits(*subject, limits).await,
            Whose::Tree(root) => self.set_tree(root, limits, new).await,
        };
        self.settled(subject, set).await
    }

    async fn set_limits(&self, subject: Subject, limits: Limits) -> Result<(), Refusal> {
        let namespace = &self.namespace;
        self.write_again(|mut txn| {
            Box::pin(async move {
                namespace.set_limits(&mut txn, subject, limits);
                Ok(())
            })
        })
        .await?;
        Ok(())
    }

    async fn set_tree(&self, root: &InodeKey, limits: Limits, new: bool) -> Result<(), Refusal> {
        self.require_no_tree_below(root).await?;
        let namespace = &self.namespace;
        let set = self
            .write_again(|mut txn| Box::pin(async move { namespace.set_tree(&mut txn, root, limits).await }))
            .await;
        set.map_err(|error| match error {
            FsError::NotDirectory => Refusal::NotDirectory,
            FsError::Invalid => Refusal::Inside,
            FsError::Busy => Refusal::Emptying,
            other => Refusal::Store(other),
        })?;
        if new { self.require_no_tree_below_still(root).await } else { Ok(()) }
    }

    /// Removes limits; a tree is a directory like any other then.
    ///
    /// # Errors
    /// Nothing was changed; or, with an error of the store, perhaps.
    pub(crate) async fn remove_quota(self: &Arc<Self>, whose: &Whose) -> Result<(), Refusal> {
        let _alone = self.quotas.changing.lock().await;
        let (namespace, subject) = (&self.namespace, whose.subject());
        // What is known here may be from before a change whose end nobody was told.
        let stored = self.read(|txn| Box::pin(async move { namespace.quota(&txn, subject).await })).await?;
        self.quotas.doubt(subject);
        let removed = if stored.is_some() { self.clear(subject).await } else { Err(Refusal::Nothing) };
        self.settled(subject, removed).await
    }

    async fn clear(&self, subject: Subject) -> Result<(), Refusal> {
        let namespace = &self.namespace;
        self.write_again(|mut txn| {
            Box::pin(async move {
                let Subject::Tree(tree) = subject else {
                    namespace.clear_limits(&mut txn, subject);
                    return Ok(());
                };
                match namespace.remove_tree(&mut txn, tree).await {
                    // By an attempt whose end is not known, or with its directory.
                    Err(FsError::NotFound) => Ok(()),
                    done => done,
                }
            })
        })
        .await?;
        Ok(())
    }

    /// Counts everything anew while clients are at work.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) async fn recount(self: &Arc<Self>) -> Result<(), FsError> {
        let _alone = self.quotas.changing.lock().await;
        let namespace = &self.namespace;
        self.write(|mut txn| {
            Box::pin(async move {
                namespace.count_anew(&mut txn);
                Ok(())
            })
        })
        .await?;
        self.quotas.forget();
        self.quotas.work.notify_one();
        Ok(())
    }

    /// What is stored holds from now on, whatever is known of how the change ended, and what there is to do is done.
    async fn settled(
        self: &Arc<Self>,
        subject: Subject,
        changed: Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let reload = self.reload_quota(subject);
        let reloaded = match changed {
            Ok(()) => reload.await.map_err(Refusal::from),
            // The administrator has waited already where the store is away: it is looked up when that is back.
            Err(why) => {
                _ = self.env.clock.timeout(SOON, reload).await;
                Err(why)
            }
        };
        self.quotas.work.notify_one();
        reloaded
    }

    async fn reload_quota(&self, subject: Subject) -> Result<(), FsError> {
        let namespace = &self.namespace;
        let now = self.read(|txn| Box::pin(async move { namespace.quota(&txn, subject).await })).await?;
        self.quotas.replace(subject, now);
        if now.is_some() {
            self.watch_present_writers().await?;
        }
        self.quotas.doubtful.lock().remove(&subject);
        Ok(())
    }

    /// Looks up what became of changes whose end nobody could be told.
    ///
    /// # Errors
    /// What the store says.
    pub(super) async fn look_up_doubtful(&self) -> Result<(), FsError> {
        let doubtful = self.quotas.doubtful.lock().clone();
        for subject in doubtful {
            // Most are of a change that is under way.
            let _alone = self.quotas.changing.lock().await;
            if self.quotas.is_doubtful(subject) {
                self.reload_quota(subject).await?;
            }
        }
        Ok(())
    }

    /// A client may have moved a tree to below the directory before that became one. Now that it is one, its border keeps
    /// others out: what is not there now does not come.
    async fn require_no_tree_below_still(&self, root: &InodeKey) -> Result<(), Refusal> {
        let checked = self.require_no_tree_below(root).await;
        if checked.is_err() {
            self.clear(Subject::Tree(root.fileid)).await?;
        }
        checked
    }

    /// One after the other: there may be many trees, and each is a few reads.
    async fn require_no_tree_below(&self, root: &InodeKey) -> Result<(), Refusal> {
        let namespace = &self.namespace;
        for quota in self.quotas.all() {
            let Quota { tree: Some((other, _)), .. } = quota else { continue };
            if other == *root {
                continue;
            }
            let below =
                self.read(|txn| Box::pin(async move { namespace.is_within(&txn, &other, root).await })).await;
            match below {
                Ok(true) => return Err(Refusal::Outside),
                // It has gone with its directory.
                Ok(false) | Err(FsError::Stale) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl Whose {
    pub(crate) fn subject(&self) -> Subject {
        match self {
            Self::Subject(subject) => *subject,
            Self::Tree(root) => Subject::Tree(root.fileid),
        }
    }
}
