//! The only retry loop.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use sluice_env::{BoxFuture, Monotonic};

use crate::transaction::Beside;
use crate::writes::{Chain, Pending, Step};
use crate::{Committed, Database, KvError, Transaction, Versionstamp};

/// How long [`Database::run`] keeps trying.
#[derive(Clone, Debug)]
pub struct RunLimits {
    /// No attempt begins after it. An attempt under way is not interrupted.
    pub deadline: Option<Monotonic>,
    /// At least 1.
    pub max_attempts: u32,
    /// As [`Transaction::resolve_unknown_by`], for every attempt.
    pub resolve_by: Option<Bytes>,
    /// The look-up at `resolve_by` goes on until the store answers, whatever the other limits say: the
    /// caller must not go on without knowing.
    pub until_known: bool,
    /// Applying the operation twice is harmless: an unknown result that no key resolves is retried
    /// instead of reported.
    pub idempotent: bool,
    /// A key and the value it must have, read under conflict by every attempt: another value means that
    /// somebody has taken over ([`KvError::Superseded`]).
    pub guard: Option<(Bytes, Bytes)>,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            deadline: None,
            max_attempts: 100,
            resolve_by: None,
            until_known: false,
            idempotent: false,
            guard: None,
        }
    }
}

impl RunLimits {
    pub fn until(deadline: Monotonic) -> Self {
        Self { deadline: Some(deadline), ..Self::default() }
    }

    #[must_use]
    pub fn resolve_by(mut self, key: impl Into<Bytes>) -> Self {
        self.resolve_by = Some(key.into());
        self
    }

    #[must_use]
    pub fn until_known(mut self) -> Self {
        self.until_known = true;
        self
    }

    #[must_use]
    pub fn guarded_by(mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        self.guard = Some((key.into(), value.into()));
        self
    }

    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }
}

/// The transaction of one attempt, used as a `&mut Transaction`. The second lifetime is that of
/// whatever the operation borrows from around it.
#[derive(Debug)]
pub struct Attempt<'t, 'env: 't> {
    transaction: &'t mut Transaction,
    around: PhantomData<&'t &'env ()>,
}

impl Deref for Attempt<'_, '_> {
    type Target = Transaction;
    fn deref(&self) -> &Transaction {
        self.transaction
    }
}

impl DerefMut for Attempt<'_, '_> {
    fn deref_mut(&mut self) -> &mut Transaction {
        self.transaction
    }
}

/// The longest pause between attempts.
const MAX_PAUSE: Duration = Duration::from_millis(200);

impl Database {
    /// Runs `op` on fresh transactions until one commits, `op` refuses, or the limits are reached.
    ///
    /// `op` may run several times and must have no effect but on its transaction:
    ///
    /// ```ignore
    /// let (n, committed) = db.run(RunLimits::default(), |mut tx| Box::pin(async move {
    ///     let n = increment(&mut tx, name).await?;
    ///     Ok::<_, FsError>(n)
    /// })).await?;
    /// ```
    ///
    /// An error of `op` ends the run, unless a read of the transaction failed in a way worth
    /// retrying. An unknown commit result is resolved by the key of [`Transaction::resolve_unknown_by`];
    /// without one it is reported ([`KvError::CommitUnknown`]) or, if the limits say `idempotent`, retried.
    /// An unknown result is never reported as [`KvError::GaveUp`] of a harmless error.
    ///
    /// In a box: it has some three kilobytes, and a future that awaits another is so much larger, and copies it twice. Through
    /// the eight or so that lie between an operation and this, a create copied a hundred kilobytes.
    pub fn run<'env, T, E, F>(
        &self,
        limits: RunLimits,
        op: F,
    ) -> impl Future<Output = Result<(T, Committed), E>>
    where
        E: From<KvError>,
        F: for<'t> FnMut(Attempt<'t, 'env>) -> BoxFuture<'t, Result<T, E>>,
    {
        Box::pin(self.attempts(limits, op))
    }

    async fn attempts<'env, T, E, F>(&self, limits: RunLimits, mut op: F) -> Result<(T, Committed), E>
    where
        E: From<KvError>,
        F: for<'t> FnMut(Attempt<'t, 'env>) -> BoxFuture<'t, Result<T, E>>,
    {
        let mut tries = Tries::new(self, &limits);
        loop {
            let mut tx = self.begin();
            if let Some(key) = &limits.resolve_by {
                tx.resolve_unknown_by(key.clone());
            }
            // The guard is looked at while the operation reads, where that takes a while.
            let guard = pin!(guard(&mut tx, &limits)).await;
            let (outcome, guarded) = match guard {
                Guard::Is(Ok(())) => {
                    (op(Attempt { transaction: &mut tx, around: PhantomData }).await, Ok(()))
                }
                Guard::Is(Err(error)) => (Err(error.clone().into()), Err(error)),
                Guard::Later(guard) => {
                    tokio::join!(op(Attempt { transaction: &mut tx, around: PhantomData }), guard)
                }
            };
            if let Err(error) = guarded {
                if error == KvError::Superseded {
                    self.inner.backend.superseded();
                }
                if !error.is_retryable() {
                    return Err(error.into());
                }
                tries.again(error).await?;
                continue;
            }
            let value = match (outcome, tx.read_failure()) {
                (Ok(value), _) => value,
                (Err(_), Some(failure)) if failure.is_retryable() => {
                    tries.again(failure).await?;
                    continue;
                }
                (Err(error), _) => return Err(error),
            };
            let witness = if self.inner.backend.loses_answers() { tx.witness() } else { None };
            match pin!(tx.commit()).await {
                Ok(committed) => return Ok((value, committed)),
                Err(KvError::CommitUnknown) => match Box::pin(self.resolve(witness, &mut tries)).await? {
                    Fate::Committed(committed) => return Ok((value, committed)),
                    Fate::Lost => tries.again(KvError::CommitUnknown).await?,
                    Fate::Unknown if limits.idempotent => {
                        tries.maybe_applied = true;
                        tries.again(KvError::CommitUnknown).await?;
                    }
                    Fate::Unknown => return Err(KvError::CommitUnknown.into()),
                },
                Err(error) if error.is_retryable() => tries.again(error).await?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Runs `op` on a transaction that only reads, at one version of the store, again as long as reads
    /// fail in a way worth retrying. Writes are forgotten; reads cost no conflict bookkeeping.
    pub async fn run_read<'env, T, E, F>(&self, limits: RunLimits, mut op: F) -> Result<T, E>
    where
        E: From<KvError>,
        F: for<'t> FnMut(Attempt<'t, 'env>) -> BoxFuture<'t, Result<T, E>>,
    {
        let mut tries = Tries::new(self, &limits);
        loop {
            let mut tx = self.begin();
            tx.read_only = true;
            match (op(Attempt { transaction: &mut tx, around: PhantomData }).await, tx.read_failure()) {
                (Err(_), Some(failure)) if failure.is_retryable() => tries.again(failure).await?,
                (outcome, _) => return outcome,
            }
        }
    }

    /// Learns from `witness` whether the transaction that would have written it committed.
    async fn resolve(
        &self,
        witness: Option<(Bytes, Pending)>,
        tries: &mut Tries<'_>,
    ) -> Result<Fate, KvError> {
        let Some((key, expected)) = witness else { return Ok(Fate::Unknown) };
        loop {
            let tx = self.begin();
            match async { Ok((tx.snapshot_get(&key).await?, tx.read_version().await?)) }.await {
                Ok((stored, version)) => return Ok(fate(&expected, stored, version)),
                Err(error) => {
                    let retry: KvError = error;
                    if !retry.is_retryable() {
                        return Err(KvError::CommitUnknown);
                    }
                    // The question stays open until it is answered: whatever ends the loop, the
                    // result is unknown.
                    if tries.limits.until_known {
                        tries.made = tries.made.saturating_add(1);
                        tries.pause().await;
                    } else if tries.again::<KvError>(retry).await.is_err() {
                        return Err(KvError::CommitUnknown);
                    }
                }
            }
        }
    }
}

/// Whether the guard's key still has its value. A store on this machine has said so when it is asked.
enum Guard {
    Is(Result<(), KvError>),
    Later(BoxFuture<'static, Result<(), KvError>>),
}

/// Begins to look at it.
async fn guard(tx: &mut Transaction, limits: &RunLimits) -> Guard {
    let Some((key, expected)) = &limits.guard else { return Guard::Is(Ok(())) };
    let judge = |same| if same { Ok(()) } else { Err(KvError::Superseded) };
    match pin!(tx.compare_beside(key, expected)).await {
        Err(error) => Guard::Is(Err(error)),
        Ok(Beside::Now(same)) => Guard::Is(judge(same)),
        Ok(Beside::Later(same)) => Guard::Later(Box::pin(async move { judge(same.await?) })),
    }
}

enum Fate {
    Committed(Committed),
    Lost,
    Unknown,
}

/// Compares what the witness key holds with what the transaction would have written.
fn fate(expected: &Pending, stored: Option<Bytes>, version: u64) -> Fate {
    let at_most = Committed { version, versionstamp: None, exact: false };
    match expected {
        Pending::Value(value) if *value == stored => Fate::Committed(at_most),
        Pending::Value(_) => Fate::Lost,
        Pending::Chain(Chain { first: Step::Stamped(template, offset), then }) if then.is_empty() => {
            match stored {
                Some(stored) => match Versionstamp::within(template, &stored, *offset) {
                    Some(stamp) => Fate::Committed(Committed {
                        version: stamp.version(),
                        versionstamp: Some(stamp),
                        exact: true,
                    }),
                    None => Fate::Lost,
                },
                None => Fate::Lost,
            }
        }
        // An atomic result does not say whose it is.
        Pending::Chain(_) => Fate::Unknown,
    }
}

/// Counts the attempts and paces them.
struct Tries<'a> {
    db: &'a Database,
    limits: &'a RunLimits,
    made: u32,
    /// Some attempt may have been applied: giving up must say so.
    maybe_applied: bool,
}

impl<'a> Tries<'a> {
    fn new(db: &'a Database, limits: &'a RunLimits) -> Self {
        Self { db, limits, made: 0, maybe_applied: false }
    }

    /// Pauses before the next attempt, or gives up.
    async fn again<E: From<KvError>>(&mut self, last: KvError) -> Result<(), E> {
        self.made += 1;
        if last == KvError::Conflict {
            self.db.inner.conflicts.fetch_add(1, Ordering::Relaxed);
        }
        let late = self.limits.deadline.is_some_and(|d| self.db.inner.env.clock.now() >= d);
        if late || self.made >= self.limits.max_attempts {
            let last = if self.maybe_applied { KvError::CommitUnknown } else { harmless(last) };
            return Err(KvError::GaveUp { attempts: self.made, last: Box::new(last) }.into());
        }
        // The first retry of a conflict is free: what it lost against is already readable.
        if self.made == 1 && last == KvError::Conflict {
            return Ok(());
        }
        self.pause().await;
        Ok(())
    }

    async fn pause(&self) {
        let env = &self.db.inner.env;
        let most = MAX_PAUSE.min(Duration::from_micros(50) * (1 << self.made.min(12)));
        let nanos = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX).max(1);
        env.clock.sleep(Duration::from_nanos(env.random.u64() % nanos)).await;
    }
}

/// An unknown result that was resolved as not applied is a conflict like any other.
fn harmless(last: KvError) -> KvError {
    if last == KvError::CommitUnknown { KvError::Conflict } else { last }
}
