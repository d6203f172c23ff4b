//! What this host's directory service says, for callers that wait: it is asked beside the server's own threads, what it says is
//! remembered, and nobody waits for it for longer than a while.

use std::fmt::Debug;
use std::hash::Hash;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use parking_lot::Mutex;
use sluice_env::{Env, Monotonic};
use tokio::sync::{Semaphore, watch};

/// An answer is used for so long. What changes meanwhile is seen late by as much.
pub(crate) const FRESH: Duration = Duration::from_secs(300);
/// From here on it is asked for anew while it is used, so that nobody waits for that.
pub(crate) const RENEWED: Duration = Duration::from_secs(240);
/// That there is no such thing is used for less: some directory services say so when they cannot tell.
pub(crate) const ABSENT: Duration = Duration::from_secs(60);
/// A directory service that is away: what it said last is used for so long.
pub(crate) const USABLE: Duration = Duration::from_secs(3600);
/// After a failure it is asked again no sooner than this.
pub(crate) const AGAIN: Duration = Duration::from_secs(5);
/// How long a call waits for an answer; then its client is told to come again.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Questions of one kind at once: each takes a thread for as long as a directory service takes.
const AT_ONCE: usize = 8;
/// Between two looks at all that is remembered for what to forget.
const SWEEP: Duration = Duration::from_secs(1);

/// The users of this host. Every question may block for long.
pub trait Accounts: Debug + Send + Sync {
    /// Numbers of all groups that the user is in, the primary one first; `None` if there is no such user.
    ///
    /// # Errors
    /// If it cannot be known now.
    fn groups(&self, uid: u32) -> io::Result<Option<Vec<u32>>>;

    /// The number of the user of that name; `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be known now.
    fn user(&self, name: &str) -> io::Result<Option<u32>>;

    /// The number of the group of that name; `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be known now.
    fn group(&self, name: &str) -> io::Result<Option<u32>>;
}

/// What is asked.
pub(crate) trait Question: Clone + Debug + Eq + Hash + Send + Sync + 'static {
    type Answer: Clone + Debug + Send + Sync + 'static;
    /// Of how many something is remembered at most: a client can name any number.
    const MOST: usize;

    /// May block for long. `None`: there is no such thing.
    ///
    /// # Errors
    /// If it cannot be known now.
    fn ask(&self, accounts: &dyn Accounts) -> io::Result<Option<Self::Answer>>;

    /// Says that there was no answer; `known`: the last one is used.
    fn unanswered(&self, error: &io::Error, known: bool);
}

/// What is known of one thing.
#[derive(Debug)]
struct Known<A> {
    /// The last answer, and when it came.
    told: Option<(Option<A>, Monotonic)>,
    /// No question before this.
    not_before: Monotonic,
    /// Ends when the question under way is over.
    asking: Option<watch::Receiver<()>>,
}

impl<A> Default for Known<A> {
    fn default() -> Self {
        Self { told: None, not_before: Monotonic::default(), asking: None }
    }
}

impl<A> Known<A> {
    /// Not if what asked has died.
    fn is_asked_for(&self) -> bool {
        self.asking.as_ref().is_some_and(|over| over.has_changed().is_ok())
    }
}

/// It cannot be told now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unknown;

/// Answers to questions of one kind.
#[derive(Debug)]
pub(crate) struct Answers<Q: Question> {
    accounts: Arc<dyn Accounts>,
    known: DashMap<Q, Known<Q::Answer>>,
    turns: Semaphore,
    /// When room was last made.
    swept: Mutex<Option<Monotonic>>,
}

impl<Q: Question> Answers<Q> {
    pub(crate) fn new(accounts: Arc<dyn Accounts>) -> Arc<Self> {
        let (known, turns, swept) = (DashMap::new(), Semaphore::new(AT_ONCE), Mutex::new(None));
        Arc::new(Self { accounts, known, turns, swept })
    }

    /// What the host says; `None`: there is no such thing.
    ///
    /// # Errors
    /// It was asked and has not answered.
    pub(crate) async fn get(self: &Arc<Self>, env: &Env, about: &Q) -> Result<Option<Q::Answer>, Unknown> {
        match self.remembered(env, about) {
            Some(answer) => Ok(answer),
            None => Box::pin(self.answer(env, about)).await,
        }
    }

    /// Of how many something is remembered.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.known.len()
    }

    /// What can be used without asking; the question about what will soon be too old is begun.
    fn remembered(self: &Arc<Self>, env: &Env, about: &Q) -> Option<Option<Q::Answer>> {
        let now = env.clock.now();
        let known = self.known.get(about)?;
        let (answer, when) = known.told.clone()?;
        let (old, asked) = (now - when, known.is_asked_for() || now < known.not_before);
        drop(known);
        if old >= RENEWED && !asked {
            drop(self.ask(env, about));
        }
        let most = if answer.is_some() { FRESH } else { ABSENT };
        (old < most).then_some(answer)
    }

    /// What the host says now; what it said last, if it says nothing.
    async fn answer(self: &Arc<Self>, env: &Env, about: &Q) -> Result<Option<Q::Answer>, Unknown> {
        if let Some(mut over) = self.ask(env, about) {
            // It never says anything: it ends.
            drop(env.clock.timeout(PATIENCE, over.changed()).await);
        }
        let told = self.known.get(about).and_then(|known| known.told.clone());
        match told {
            Some((answer, when)) if env.clock.now() - when < USABLE => Ok(answer),
            _ => Err(Unknown),
        }
    }

    /// The end of a question about this, which is begun unless one is under way. `None`: one has just failed, or there are
    /// too many.
    fn ask(self: &Arc<Self>, env: &Env, about: &Q) -> Option<watch::Receiver<()>> {
        if self.known.len() >= Q::MOST && !self.known.contains_key(about) && !self.make_room(env) {
            return None;
        }
        let (done, over) = watch::channel(());
        match self.known.entry(about.clone()) {
            Entry::Occupied(known) if known.get().is_asked_for() => return known.get().asking.clone(),
            Entry::Occupied(known) if env.clock.now() < known.get().not_before => return None,
            entry => entry.or_default().asking = Some(over.clone()),
        }
        let (host, env_, about) = (Arc::clone(self), env.clone(), about.clone());
        env.spawn.spawn(Box::pin(async move {
            host.question(&env_, about).await;
            drop(done);
        }));
        Some(over)
    }

    async fn question(&self, env: &Env, about: Q) {
        let Ok(_turn) = self.turns.acquire().await else { return };
        let answer = Arc::new(Mutex::new(None));
        let (accounts, place, asked) = (Arc::clone(&self.accounts), Arc::clone(&answer), about.clone());
        env.spawn.blocking(Box::new(move || *place.lock() = Some(asked.ask(&*accounts)))).await;
        let (now, answer) = (env.clock.now(), answer.lock().take());
        let mut entry = self.known.entry(about.clone()).or_default();
        entry.asking = None;
        // There was such a one a moment ago: a directory service that is away may say the same.
        let known =
            entry.told.as_ref().is_some_and(|(answer, when)| answer.is_some() && now - *when < USABLE);
        match answer {
            Some(Ok(None)) if known => entry.not_before = now + AGAIN,
            Some(Ok(answer)) => entry.told = Some((answer, now)),
            Some(Err(error)) => {
                entry.not_before = now + AGAIN;
                drop(entry);
                about.unanswered(&error, known);
            }
            // The server ends.
            None => {}
        }
    }

    /// Whether there is room for one more. What is known is of more worth than what there is not.
    fn make_room(&self, env: &Env) -> bool {
        let now = env.clock.now();
        let mut swept = self.swept.lock();
        if swept.is_some_and(|last| now - last < SWEEP) {
            return false;
        }
        *swept = Some(now);
        drop(swept);
        let fresh =
            |known: &Known<Q::Answer>| matches!(&known.told, Some((Some(_), when)) if now - *when < FRESH);
        self.known.retain(|_, known| known.is_asked_for() || fresh(known));
        if self.known.len() >= Q::MOST {
            self.known.retain(|_, known| known.is_asked_for());
        }
        self.known.len() < Q::MOST
    }
}
