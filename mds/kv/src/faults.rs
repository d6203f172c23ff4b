//! Faults the in-memory backend injects, drawn from the environment's randomness.

use std::time::Duration;

use sluice_env::Env;

use crate::{KvError, Room};

/// Probabilities are per call, from 0 (never, the default) to 1 (always).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// A commit fails with [`KvError::Conflict`] though nothing conflicts.
    pub conflict: f64,
    /// A commit is applied and answered [`KvError::CommitUnknown`].
    pub unknown_applied: f64,
    /// A commit is not applied and answered [`KvError::CommitUnknown`].
    pub unknown_lost: f64,
    /// A read or a commit fails with [`KvError::TooOld`].
    pub too_old: f64,
    /// Beginning to read, or a commit, fails with [`KvError::Unavailable`]; nothing is applied.
    pub unavailable: f64,
    /// The store has failed for good: whatever is asked of it is [`KvError::Failed`].
    pub failed: bool,
    /// Another server may have the store ([`crate::Database::is_ours`]): whatever is asked of it is [`KvError::Unavailable`].
    pub away: bool,
    /// Every read and commit takes up to this long, uniformly.
    pub latency: Duration,
    /// Little is free on the store's device, as it says: a hundredth.
    pub scarce: bool,
    /// Next to nothing is.
    pub full: bool,
}

impl Faults {
    /// No faults.
    pub const NONE: Self = Self {
        conflict: 0.0,
        unknown_applied: 0.0,
        unknown_lost: 0.0,
        too_old: 0.0,
        unavailable: 0.0,
        failed: false,
        away: false,
        latency: Duration::ZERO,
        scarce: false,
        full: false,
    };
}

/// Between two looks whether a store is ours again.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

fn strikes(env: &Env, probability: f64) -> bool {
    // 53 bits: what a float represents exactly. No draw is spent on a fault that never strikes.
    probability > 0.0 && ((env.random.u64() >> 11) as f64) < probability * (1u64 << 53) as f64
}

/// What becomes of a commit that would otherwise succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitFault {
    None,
    UnknownApplied,
}

impl Faults {
    fn goes_on(&self) -> Result<(), KvError> {
        match self {
            Self { failed: true, .. } => Err(KvError::Failed { what: "injected fault".into() }),
            Self { away: true, .. } => Err(unavailable()),
            _ => Ok(()),
        }
    }

    pub(crate) async fn delay(&self, env: &Env) {
        let most = u64::try_from(self.latency.as_nanos()).unwrap_or(u64::MAX);
        if most > 0 {
            let nanos = env.random.u64() % most.saturating_add(1).max(1);
            env.clock.sleep(Duration::from_nanos(nanos)).await;
        }
    }

    /// What such a store says of its device, which is none.
    pub(crate) fn room(&self) -> Room {
        const GIB: u64 = 1 << 30;
        let free = match self {
            Self { full: true, .. } => GIB / 16,
            Self { scarce: true, .. } => GIB,
            _ => 99 * GIB,
        };
        Room { total: 100 * GIB, free }
    }

    pub(crate) fn view(&self, env: &Env) -> Result<(), KvError> {
        self.goes_on()?;
        if strikes(env, self.unavailable) { Err(unavailable()) } else { Ok(()) }
    }

    pub(crate) fn read(&self, env: &Env) -> Result<(), KvError> {
        self.goes_on()?;
        if strikes(env, self.too_old) { Err(KvError::TooOld) } else { Ok(()) }
    }

    pub(crate) fn commit(&self, env: &Env) -> Result<CommitFault, KvError> {
        self.goes_on()?;
        if strikes(env, self.unavailable) {
            return Err(unavailable());
        }
        if strikes(env, self.too_old) {
            return Err(KvError::TooOld);
        }
        if strikes(env, self.conflict) {
            return Err(KvError::Conflict);
        }
        if strikes(env, self.unknown_lost) {
            return Err(KvError::CommitUnknown);
        }
        Ok(if strikes(env, self.unknown_applied) { CommitFault::UnknownApplied } else { CommitFault::None })
    }
}

fn unavailable() -> KvError {
    KvError::Unavailable { what: "injected fault".into() }
}
