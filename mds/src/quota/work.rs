//! What is left to do after a commit, a little at a time: what was there before is counted, and what is in a
//! directory is put into the tree that it became, or taken out. All of it has rows and goes on after a restart.

use std::sync::Arc;
use std::time::Duration;

use sluice_kv::RunLimits;
use sluice_namespace::{Counted, FileId, FsError, Subject, TreeState, Walked};

use crate::server::Mds;

/// Inodes counted, or entries walked, in one transaction; fewer where others are at work at the same place.
const COUNTED: usize = 2_000;
const WALKED: usize = 200;
const LEAST: usize = 8;
/// Transactions without a conflict after which there may be more again: to ask for too much costs a few attempts.
const UNDISTURBED: u32 = 4;
/// After what failed, and between two looks when nobody asks for one.
const RETRY: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_secs(30);
/// Between two steps: others come first.
const BREATH: Duration = Duration::from_millis(2);

/// How much is done in one transaction.
struct Step {
    most: usize,
    limit: usize,
    undisturbed: u32,
}

impl Step {
    const fn of(most: usize) -> Self {
        Self { most, limit: most, undisturbed: 0 }
    }

    fn done(&mut self) {
        self.undisturbed += 1;
        if self.undisturbed == UNDISTURBED {
            (self.limit, self.undisturbed) = ((self.limit * 2).min(self.most), 0);
        }
    }

    /// It would rather be less: false if it can be no less.
    fn met_others(&mut self) -> bool {
        let less = self.limit > LEAST;
        (self.limit, self.undisturbed) = ((self.limit / 2).max(LEAST), 0);
        less
    }
}

/// Runs for the life of the server.
pub(crate) async fn run(mds: Arc<Mds>) {
    loop {
        let asked = mds.quotas.work.notified();
        let done = go_on(&mds).await;
        if let Err(error) = &done {
            tracing::warn!(%error, "cannot go on counting what is used; trying again");
        }
        let pause = if done.is_ok() { LOOK } else { RETRY };
        let _ = mds.env.clock.timeout(pause, asked).await;
        if let Err(error) = mds.take_tally().await {
            tracing::debug!(%error, "cannot look who is over a limit; trying again");
        }
        if let Err(error) = mds.review_soft_limits().await {
            tracing::debug!(%error, "cannot look at soft limits; trying again");
        }
    }
}

async fn go_on(mds: &Arc<Mds>) -> Result<(), FsError> {
    mds.look_up_doubtful().await?;
    count(mds).await?;
    walk(mds).await
}

/// Counts to the end.
async fn count(mds: &Arc<Mds>) -> Result<(), FsError> {
    let (namespace, mut size, mut inodes) = (&mds.namespace, Step::of(COUNTED), 0);
    loop {
        let limit = size.limit;
        // Nobody begins to count anew between the look at the row and what is concluded from it.
        let alone = mds.quotas.changing.lock().await;
        let step = mds
            .write_once(|mut txn| Box::pin(async move { namespace.count_some(&mut txn, limit).await }))
            .await;
        match step {
            Ok(Counted::Some(more)) => {
                inodes += more;
                size.done();
            }
            Ok(Counted::All) => {
                namespace.counting_ended();
                mds.quotas.forget();
                if inodes > 0 {
                    tracing::info!("what users, groups and trees use is counted");
                }
                return Ok(());
            }
            Err(error) if is_contention(&error) && size.met_others() => {}
            Err(error) => return Err(error),
        }
        drop(alone);
        mds.env.clock.sleep(BREATH).await;
    }
}

/// Brings every tree to where its state wants it. One that does not get there keeps no other.
async fn walk(mds: &Arc<Mds>) -> Result<(), FsError> {
    mds.keep_trees().await?;
    let mut all = Ok(());
    for quota in mds.quotas.all() {
        if let (Subject::Tree(tree), Some((_, TreeState::Filling | TreeState::Emptying))) =
            (quota.subject, quota.tree)
        {
            all = all.and(walk_tree(mds, tree).await);
        }
    }
    all
}

async fn walk_tree(mds: &Arc<Mds>, tree: FileId) -> Result<(), FsError> {
    let (namespace, mut size) = (&mds.namespace, Step::of(WALKED));
    loop {
        let limit = size.limit;
        let step = mds
            .write_once(|mut txn| Box::pin(async move { namespace.walk_some(&mut txn, tree, limit).await }))
            .await;
        match step {
            Ok(Walked::Some) => size.done(),
            Ok(Walked::All) => break,
            Err(error) if is_contention(&error) && size.met_others() => {}
            Err(error) => return Err(error),
        }
        mds.env.clock.sleep(BREATH).await;
    }
    let subject = Subject::Tree(tree);
    // What an administrator sets meanwhile is newer.
    let _alone = mds.quotas.changing.lock().await;
    let now = mds.read(|txn| Box::pin(async move { namespace.quota(&txn, subject).await })).await?;
    // Before the tree counts as whole here: what fails is done again.
    mds.watch_present_writers().await?;
    mds.quotas.replace(subject, now);
    Ok(())
}

fn is_contention(error: &FsError) -> bool {
    matches!(error, FsError::Kv(error) if error.is_contention())
}

impl Mds {
    /// A few attempts only: whoever asks would rather do less at a time.
    async fn write_once<'env, T, F>(&self, op: F) -> Result<T, FsError>
    where
        F: for<'t> FnMut(sluice_kv::Attempt<'t, 'env>) -> sluice_env::BoxFuture<'t, Result<T, FsError>>,
    {
        let (key, ours) = self.epoch_guard.clone();
        let limits = RunLimits { max_attempts: 3, ..RunLimits::default() }.guarded_by(key, ours);
        Ok(self.db.run(limits, op).await?.0)
    }
}
