//! Who is over a limit, looked for every now and then: for warnings and metrics, not to decide anything.

use sluice_namespace::{FileId, FsError, OverSince, Subject, Usage};

use super::Quotas;
use super::book::{Amount, fits, over_with};
use crate::metrics::QuotaStatistics;
use crate::server::Mds;

/// Named at most.
const NAMED: usize = 64;
/// Subjects read at a time.
const PAGE: usize = 500;

/// What the last look found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Limits set, of whatever kind.
    pub(crate) quotas: u64,
    /// Users, groups and trees above a soft limit.
    pub(crate) above_soft: u64,
    /// Those that can add nothing more.
    pub(crate) full: u64,
    /// What was there before is still being counted.
    pub(crate) counting: bool,
    /// Some of those.
    pub(crate) exceeded: Vec<Subject>,
}

impl Quotas {
    pub(crate) fn tally(&self) -> Tally {
        self.tally.lock().clone()
    }

    pub(crate) fn statistics(&self) -> QuotaStatistics {
        let Tally { quotas, above_soft, full, counting, .. } = self.tally();
        let refused = self.refusals.by_kind();
        QuotaStatistics { set: quotas, above_soft, full, counting, refused }
    }
}

impl Mds {
    /// Looks at everybody who uses something.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) async fn take_tally(&self) -> Result<(), FsError> {
        let namespace = &self.namespace;
        let counted = self.read(|txn| Box::pin(async move { namespace.all_counted(&txn).await })).await?;
        let mut tally = Tally { counting: !counted, ..Tally::default() };
        if self.quotas.any() {
            tally.quotas = u64::try_from(self.quotas.all().len()).unwrap_or(u64::MAX);
            for like in [Subject::User(0), Subject::Group(0), Subject::Tree(FileId(0))] {
                self.tally_of(like, &mut tally).await?;
            }
        }
        *self.quotas.tally.lock() = tally;
        Ok(())
    }

    async fn tally_of(&self, like: Subject, tally: &mut Tally) -> Result<(), FsError> {
        let (namespace, mut after) = (&self.namespace, None);
        loop {
            let (page, next) = self
                .read(|txn| Box::pin(async move { namespace.usages(&txn, like, after, PAGE).await }))
                .await?;
            for (subject, used) in page {
                self.count_one(subject, used, tally).await?;
            }
            match next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    async fn count_one(&self, subject: Subject, used: Usage, tally: &mut Tally) -> Result<(), FsError> {
        let Some(limits) = self.quotas.limits(subject) else { return Ok(()) };
        let (now, one) = (self.seconds(), Amount::new(1, 1));
        if fits(&limits, &OverSince::default(), used.into(), one, now) {
            return Ok(());
        }
        let namespace = &self.namespace;
        let over =
            self.read(|txn| Box::pin(async move { namespace.over_since(&txn, subject).await })).await?;
        let would = over_with(&limits, &over, used.into(), one, now);
        if !fits(&limits, &would, used.into(), one, now) {
            tally.full += 1;
        } else if over == OverSince::default() {
            return Ok(());
        } else {
            tally.above_soft += 1;
        }
        if tally.exceeded.len() < NAMED {
            tally.exceeded.push(subject);
        }
        Ok(())
    }
}
