//! Quotas: who may use how much. The account is kept by the namespace, in the transactions that change what is
//! used; here it is held against the limits, before such a transaction begins. docs/adr/0018-quotas.md.
//!
//! | module | what |
//! | --- | --- |
//! | `book` | what is used at most, without asking the store (pure) |
//! | `room` | what operations ask for |
//! | `refusals` | how often they did not get it |
//! | `standing` | what is left to somebody, for clients and administrators |
//! | `change` | an administrator sets limits |
//! | `tally` | who is over a limit, for warnings and metrics |
//! | `work` | counts what was there before, puts directories into trees |
//! | `writers` | those who write to data servers directly |

pub(crate) mod book;
pub(crate) mod change;
pub(crate) mod refusals;
pub(crate) mod room;
pub(crate) mod standing;
pub(crate) mod tally;
pub(crate) mod work;
pub(crate) mod writers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use sluice_kv::Database;
use sluice_namespace::{Charged, Credential, FileId, FsError, Limits, Namespace, Quota, Subject};

use crate::server::Mds;
pub(crate) use book::Amount;
use book::{Book, Verdict, fits, over_with, until_now};
use writers::Writers;

/// Quotas of all kinds that there may be.
pub(crate) const MOST: usize = 1 << 18;
/// Rows read at a time.
const PAGE: usize = 1_000;
/// How often somebody is looked at again who is refused only because of what is under way.
const TRIES: u32 = 50;
/// Between two such looks.
const PAUSE: Duration = Duration::from_millis(2);

/// The limits, and what is known of usage.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    /// As stored.
    limits: RwLock<BTreeMap<Subject, Quota>>,
    /// There are any: without, nothing here costs anything.
    any: AtomicBool,
    /// Guarded by its own lock, taken last.
    book: Mutex<Book>,
    /// One change of limits at a time, and no beginning of a count beside its end.
    changing: tokio::sync::Mutex<()>,
    /// Whose limits may be others than those that are stored: a change has begun, and its end is not known.
    doubtful: Mutex<BTreeSet<Subject>>,
    pub(crate) work: tokio::sync::Notify,
    pub(crate) writers: Writers,
    tally: Mutex<tally::Tally>,
    pub(crate) refusals: refusals::Refusals,
}

/// Something is let through; it counts as used already. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Pass {
    mds: Arc<Mds>,
    subjects: Vec<Subject>,
    amount: Amount,
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.mds.quotas.book.lock().done(&self.subjects, self.amount);
    }
}

/// Any tree.
const TREES: Subject = Subject::Tree(FileId(0));

/// The limits of a kind.
///
/// # Errors
/// What the store says.
async fn stored(db: &Database, namespace: &Namespace, like: Subject) -> Result<Vec<Quota>, FsError> {
    let (mut all, mut after): (Vec<Quota>, _) = (Vec::new(), None);
    loop {
        let page = db
            .run_read(sluice_kv::RunLimits::default(), |txn| {
                Box::pin(async move { namespace.quotas(&txn, like, after, PAGE).await })
            })
            .await?;
        after = page.last().map(|quota| quota.subject.code().1);
        let full = page.len() == PAGE;
        all.extend(page);
        if !full {
            return Ok(all);
        }
    }
}

impl Quotas {
    /// What is stored.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) async fn load(db: &Database, namespace: &Namespace) -> Result<Self, FsError> {
        let quotas = Self::default();
        for like in [Subject::User(0), Subject::Group(0), TREES, Subject::AnyUser, Subject::AnyGroup] {
            for quota in stored(db, namespace, like).await? {
                quotas.put(quota);
            }
        }
        Ok(quotas)
    }

    /// What is known of usage is not true any more.
    pub(crate) fn forget(&self) {
        self.book.lock().forget();
    }

    /// What is stored for somebody now.
    pub(crate) fn replace(&self, subject: Subject, now: Option<Quota>) {
        match now {
            Some(quota) => self.put(quota),
            None => self.remove(subject),
        }
    }

    /// Trees go with their directories, without anybody's asking.
    fn keep_trees(&self, there: &BTreeSet<Subject>) {
        let gone = |subject: &Subject| matches!(subject, Subject::Tree(_)) && !there.contains(subject);
        let gone: Vec<Subject> = self.limits.read().keys().filter(|subject| gone(subject)).copied().collect();
        gone.into_iter().for_each(|subject| self.remove(subject));
    }

    /// A change begins; it is not known yet how it ends.
    fn doubt(&self, subject: Subject) {
        self.doubtful.lock().insert(subject);
    }

    fn is_doubtful(&self, subject: Subject) -> bool {
        self.doubtful.lock().contains(&subject)
    }

    fn put(&self, quota: Quota) {
        self.limits.write().insert(quota.subject, quota);
        self.any.store(true, Ordering::Release);
        self.writers.limits_changed();
        self.book.lock().forget();
    }

    fn remove(&self, subject: Subject) {
        let mut limits = self.limits.write();
        limits.remove(&subject);
        self.any.store(!limits.is_empty(), Ordering::Release);
        self.writers.limits_changed();
        self.book.lock().forget();
    }

    /// The limits set for somebody in particular.
    pub(crate) fn get(&self, subject: Subject) -> Option<Quota> {
        self.limits.read().get(&subject).copied()
    }

    pub(crate) fn all(&self) -> Vec<Quota> {
        self.limits.read().values().copied().collect()
    }

    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// The limits that hold for somebody: its own, or those for everybody. Root has only its own.
    pub(crate) fn limits(&self, subject: Subject) -> Option<Limits> {
        if !self.any() {
            return None;
        }
        let limits = self.limits.read();
        let fallback = match subject {
            Subject::User(uid) if uid != 0 => limits.get(&Subject::AnyUser),
            Subject::Group(gid) if gid != 0 => limits.get(&Subject::AnyGroup),
            _ => None,
        };
        let found = limits.get(&subject).or(fallback)?;
        Some(found.limits).filter(|limits| !limits.is_none())
    }

    /// The limits that bind `who` when it adds something that these are charged for, and whose others there are.
    fn bound(
        &self,
        who: &Credential,
        subjects: impl Iterator<Item = Subject>,
    ) -> (Vec<(Subject, Limits)>, Vec<Subject>) {
        // As on Linux, root may exceed limits of users and groups (quotactl(2), CAP_SYS_RESOURCE); a tree has
        // the room that it has.
        let binds = |subject: &Subject| !who.is_root() || matches!(subject, Subject::Tree(_));
        let limited = subjects.filter_map(|subject| Some((subject, self.limits(subject)?)));
        let (bound, free): (Vec<_>, Vec<_>) = limited.partition(|(subject, _)| binds(subject));
        (bound, free.into_iter().map(|(subject, _)| subject).collect())
    }
}

impl Mds {
    /// Lets `who` add what is wanted to what `charged` is charged for. While the pass is there it is as if it were
    /// done: others find that much less room.
    ///
    /// # Errors
    /// [`FsError::Quota`]; what the store says.
    pub(crate) async fn make_room(
        self: &Arc<Self>,
        who: &Credential,
        charged: &Charged,
        amount: Amount,
    ) -> Result<Option<Pass>, FsError> {
        self.make_room_for(who, charged.subjects(), amount).await
    }

    /// As [`Mds::make_room`], where only some of them are charged with more.
    ///
    /// # Errors
    /// [`FsError::Quota`]; what the store says.
    pub(crate) async fn make_room_for(
        self: &Arc<Self>,
        who: &Credential,
        subjects: impl Iterator<Item = Subject>,
        amount: Amount,
    ) -> Result<Option<Pass>, FsError> {
        let found = self.find_room(who, subjects, amount).await?;
        found.map_err(|subject| self.quotas.refusals.refuse(subject))
    }

    /// As [`Mds::make_room_for`], where it is not known yet whether somebody is refused when there is none: whose
    /// limit it is, then.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) async fn find_room(
        self: &Arc<Self>,
        who: &Credential,
        subjects: impl Iterator<Item = Subject>,
        amount: Amount,
    ) -> Result<Result<Option<Pass>, Subject>, FsError> {
        if amount.is_none() || !self.quotas.any() {
            return Ok(Ok(None));
        }
        let (bound, free) = self.quotas.bound(who, subjects);
        if bound.is_empty() && free.is_empty() {
            return Ok(Ok(None));
        }
        for _ in 0..TRIES {
            let unknown = match self.pass(&bound, &free, amount) {
                Ok(pass) => return Ok(Ok(Some(pass))),
                Err(unknown) => unknown,
            };
            let mut doubtful = false;
            for (subject, limits) in bound.iter().filter(|(subject, _)| unknown.contains(subject)) {
                match self.look(*subject, limits, amount).await {
                    Err(FsError::Quota) => return Ok(Err(*subject)),
                    looked => doubtful |= looked?,
                }
            }
            if doubtful {
                self.env.clock.sleep(PAUSE).await;
            }
        }
        // What is under way takes its time: whether there is room is not known yet.
        Err(FsError::Busy)
    }

    /// Where it is known that there is room for all who are `bound`; else what is to be read.
    fn pass(
        self: &Arc<Self>,
        bound: &[(Subject, Limits)],
        free: &[Subject],
        amount: Amount,
    ) -> Result<Pass, Vec<Subject>> {
        let now = self.seconds();
        let mut book = self.quotas.book.lock();
        match book.take(bound, amount, now) {
            Verdict::Yes => {
                book.give(free.iter().copied(), amount);
                let subjects = bound.iter().map(|(subject, _)| subject).chain(free).copied().collect();
                Ok(Pass { mds: Arc::clone(self), subjects, amount })
            }
            Verdict::Read(unknown) => Err(unknown),
        }
    }

    /// Reads what a subject uses, and remembers since when that is too much; whether something under way may be in
    /// it or not.
    async fn look(&self, subject: Subject, limits: &Limits, amount: Amount) -> Result<bool, FsError> {
        let now = self.seconds();
        let mark = self.quotas.book.lock().mark(subject);
        let namespace = &self.namespace;
        let (used, over) = self
            .read(|txn| {
                Box::pin(async move {
                    Ok((namespace.usage(&txn, subject).await?, namespace.over_since(&txn, subject).await?))
                })
            })
            .await?;
        let created = u64::try_from(namespace.superblock().created.seconds).unwrap_or(0);
        let since = until_now(&over, now, created);
        let would = over_with(limits, &since, used.into(), amount, now);
        // What is refused for the hard limit exceeds nothing.
        let refused = !fits(limits, &would, used.into(), amount, now);
        let remembered =
            if refused { over_with(limits, &since, used.into(), Amount::default(), now) } else { would };
        if remembered != over {
            self.write(|mut txn| {
                Box::pin(async move {
                    namespace.set_over_since(&mut txn, subject, remembered);
                    Ok(())
                })
            })
            .await?;
        }
        // Nobody knows of room who was not told of it here.
        if fits(limits, &remembered, used.into(), Amount::new(0, 1), now) {
            self.quotas.writers.has_room(subject);
        }
        let doubtful = self.quotas.book.lock().read(subject, mark, used, remembered);
        // By what is stored alone there is no room: that is no doubt.
        if refused { Err(FsError::Quota) } else { Ok(doubtful) }
    }

    /// Forgets the limits of trees whose directories were removed.
    async fn keep_trees(&self) -> Result<(), FsError> {
        let _alone = self.quotas.changing.lock().await;
        let there = stored(&self.db, &self.namespace, TREES).await?;
        self.quotas.keep_trees(&there.iter().map(|quota| quota.subject).collect());
        Ok(())
    }

    /// Forgets what was remembered of soft limits that nobody exceeds any more.
    pub(crate) async fn review_soft_limits(&self) -> Result<(), FsError> {
        let over = self.quotas.book.lock().over();
        for subject in over {
            let limits = self.quotas.limits(subject).unwrap_or_default();
            self.look(subject, &limits, Amount::default()).await?;
        }
        Ok(())
    }

    /// Seconds since 1970.
    pub(crate) fn seconds(&self) -> u64 {
        u64::try_from(self.env.clock.wall().seconds).unwrap_or(0)
    }
}
