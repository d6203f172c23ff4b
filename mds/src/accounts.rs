//! What this host's directory service says, for callers that wait: it is asked beside the server's own threads, what it says is
//! remembered, and nobody waits for it for longer than a while.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use parking_lot::Mutex;
use sluice_env::{Env, Monotonic};
use sluice_rpc::Sparing;
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
/// How long calls for something of which something was said before wait for the same: from when it was asked for.
pub(crate) const LAG: Duration = Duration::from_secs(1);
/// Questions of one kind at once about what is not known, and as many about what is: each takes a thread for as long as a
/// directory service takes.
const AT_ONCE: usize = 8;
/// The same for the calls of one host: it leaves some to others.
pub(crate) const AT_ONCE_FOR_ONE: usize = 4;
/// Questions that are not over, and those of one host: it may name anybody there is.
const PENDING: usize = 1024;
pub(crate) const PENDING_OF_ONE: usize = 64;
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

    /// The name of the user of that number; `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be known now.
    fn name_of_user(&self, uid: u32) -> io::Result<Option<String>>;

    /// The name of the group of that number; `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be known now.
    fn name_of_group(&self, gid: u32) -> io::Result<Option<String>>;
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

/// An answer; `None`: there is no such thing.
type Told<Q> = Option<<Q as Question>::Answer>;

/// What is known of one thing.
#[derive(Debug)]
struct Known<Q: Question> {
    /// The last answer, and when it came.
    told: Option<(Told<Q>, Monotonic)>,
    /// No question before this.
    not_before: Monotonic,
    /// The question under way.
    asking: Option<Asking<Q>>,
}

/// A question under way.
#[derive(Debug)]
struct Asking<Q: Question> {
    /// Ends with it, and has the answer if there was one.
    over: watch::Receiver<Option<Told<Q>>>,
    since: Monotonic,
}

impl<Q: Question> Clone for Asking<Q> {
    fn clone(&self) -> Self {
        Self { over: self.over.clone(), since: self.since }
    }
}

impl<Q: Question> Default for Known<Q> {
    fn default() -> Self {
        Self { told: None, not_before: Monotonic::default(), asking: None }
    }
}

impl<Q: Question> Known<Q> {
    /// Not if what asked has died.
    fn is_asked_for(&self) -> bool {
        self.asking.as_ref().is_some_and(|asking| asking.over.has_changed().is_ok())
    }

    /// There was such a one lately: it was told less than so long ago.
    fn was_here(&self, now: Monotonic, within: Duration) -> bool {
        matches!(&self.told, Some((Some(_), when)) if now - *when < within)
    }
}

/// Questions of which some wait for the others.
#[derive(Debug)]
pub(crate) struct Lane {
    turns: Semaphore,
    pub(crate) pending: Mutex<Pending>,
}

#[derive(Debug, Default)]
pub(crate) struct Pending {
    pub(crate) all: usize,
    pub(crate) hosts: BTreeMap<IpAddr, Peer>,
}

/// Of one host, whose calls have somebody asked for.
#[derive(Debug)]
pub(crate) struct Peer {
    pending: usize,
    turns: Arc<Semaphore>,
}

/// Of a question that is not over.
#[derive(Debug)]
struct Place {
    lane: Arc<Lane>,
    host: IpAddr,
    /// Taken before one of all.
    turns: Arc<Semaphore>,
}

impl Lane {
    fn new() -> Arc<Self> {
        Arc::new(Self { turns: Semaphore::new(AT_ONCE), pending: Mutex::default() })
    }

    /// One more question, unless there are too many.
    fn enter(self: &Arc<Self>, from: IpAddr) -> Option<Place> {
        let host = from.to_canonical();
        let mut pending = self.pending.lock();
        if pending.all >= PENDING {
            return None;
        }
        let new = || Peer { pending: 0, turns: Arc::new(Semaphore::new(AT_ONCE_FOR_ONE)) };
        let peer = pending.hosts.entry(host).or_insert_with(new);
        if peer.pending >= PENDING_OF_ONE {
            return None;
        }
        peer.pending += 1;
        let turns = Arc::clone(&peer.turns);
        pending.all += 1;
        Some(Place { lane: Arc::clone(self), host, turns })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut pending = self.lane.pending.lock();
        pending.all -= 1;
        if let Some(peer) = pending.hosts.get_mut(&self.host) {
            peer.pending -= 1;
            if peer.pending == 0 {
                pending.hosts.remove(&self.host);
            }
        }
    }
}

/// It cannot be told now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unknown;

/// Answers to questions of one kind.
#[derive(Debug)]
pub(crate) struct Answers<Q: Question> {
    accounts: Arc<dyn Accounts>,
    known: DashMap<Q, Known<Q>>,
    /// About that of which nothing is known.
    pub(crate) questions: Arc<Lane>,
    /// About what is known: it does not stand behind what somebody made up.
    renewals: Arc<Lane>,
    /// When room was last made.
    swept: Mutex<Option<Monotonic>>,
    /// Hosts that name more than is asked for, for the log.
    crowded: Sparing,
}

impl<Q: Question> Answers<Q> {
    pub(crate) fn new(accounts: Arc<dyn Accounts>) -> Arc<Self> {
        Arc::new(Self {
            accounts,
            known: DashMap::new(),
            questions: Lane::new(),
            renewals: Lane::new(),
            swept: Mutex::new(None),
            crowded: Sparing::default(),
        })
    }

    /// What the host says, for a call from that address; `None`: there is no such thing.
    ///
    /// # Errors
    /// It was asked and has not answered, or is asked for too much already.
    pub(crate) async fn get(
        self: &Arc<Self>,
        env: &Env,
        from: IpAddr,
        about: &Q,
    ) -> Result<Option<Q::Answer>, Unknown> {
        match self.remembered(env, from, about) {
            Some(answer) => Ok(answer),
            None => Box::pin(self.answer(env, from, about)).await,
        }
    }

    /// Asks for all of these of which nothing is known that could be used, as many at once as one host may leave room for, for a call
    /// from that address, and waits until that is over, but not for longer than that.
    pub(crate) async fn learn(
        self: &Arc<Self>,
        env: &Env,
        from: IpAddr,
        about: impl IntoIterator<Item = Q>,
        patience: Duration,
    ) {
        let unknown = about.into_iter().filter(|about| self.remembered(env, from, about).is_none());
        let unknown: Vec<Q> = unknown.collect();
        if unknown.is_empty() {
            return;
        }
        let all = async {
            for some in unknown.chunks(PENDING_OF_ONE / 2) {
                let ask = |about| Some((about, self.ask(env, from, about)?));
                let asked: Vec<(&Q, Asking<Q>)> = some.iter().filter_map(ask).collect();
                for (about, Asking { mut over, since }) in asked {
                    let now = env.clock.now();
                    // Not each of many calls for something that a directory service does not tell: from when it was asked for.
                    let left = self.lag(now, about, since).unwrap_or_else(|| (since + patience).since(now));
                    if !left.is_zero() {
                        let _late = env.clock.timeout(left, over.changed()).await;
                    }
                }
            }
        };
        // Who has not been told of by then is told of as if nobody knew.
        let _late = env.clock.timeout(patience, Box::pin(all)).await;
    }

    /// What was said of it last, if that can be used, and there is such a thing.
    pub(crate) fn last(&self, now: Monotonic, about: &Q) -> Option<Q::Answer> {
        self.usable(now, about).flatten()
    }

    /// Of how many something is remembered.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.known.len()
    }

    /// What can be used without asking; the question about what will soon be too old is begun.
    fn remembered(self: &Arc<Self>, env: &Env, from: IpAddr, about: &Q) -> Option<Told<Q>> {
        let now = env.clock.now();
        let known = self.known.get(about)?;
        let (answer, when) = known.told.clone()?;
        let (old, asked) = (now - when, known.is_asked_for() || now < known.not_before);
        drop(known);
        if old >= RENEWED && !asked {
            drop(self.ask(env, from, about));
        }
        let most = if answer.is_some() { FRESH } else { ABSENT };
        (old < most).then_some(answer)
    }

    /// What the host says now; what it said last, if it says nothing.
    async fn answer(self: &Arc<Self>, env: &Env, from: IpAddr, about: &Q) -> Result<Told<Q>, Unknown> {
        if let Some(Asking { mut over, since }) = self.ask(env, from, about) {
            let now = env.clock.now();
            let patience = self.lag(now, about, since).unwrap_or(PATIENCE);
            if !patience.is_zero() {
                // It never says anything more: it ends.
                drop(env.clock.timeout(patience, over.changed()).await);
            }
            if let Some(answer) = over.borrow().clone() {
                return Ok(answer);
            }
        }
        self.usable(env.clock.now(), about).ok_or(Unknown)
    }

    /// How long to wait for an answer about that of which one is known that can be used, and of which this host was asked then: each of
    /// many calls would wait for a directory service that is away.
    fn lag(&self, now: Monotonic, about: &Q, since: Monotonic) -> Option<Duration> {
        self.last(now, about).map(|_| (since + LAG).since(now))
    }

    /// What was said last, if that can be used while nothing newer is said.
    fn usable(&self, now: Monotonic, about: &Q) -> Option<Told<Q>> {
        let (answer, when) = self.known.get(about)?.told.clone()?;
        (now - when < USABLE).then_some(answer)
    }

    /// The question about this, which is begun unless one is under way. `None`: one has just failed, or there are too many.
    fn ask(self: &Arc<Self>, env: &Env, from: IpAddr, about: &Q) -> Option<Asking<Q>> {
        let now = env.clock.now();
        let entry = self.known.entry(about.clone());
        let mut lane = &self.questions;
        if let Entry::Occupied(known) = &entry {
            let known = known.get();
            if known.is_asked_for() {
                return known.asking.clone();
            }
            if now < known.not_before {
                return None;
            }
            if known.was_here(now, USABLE) {
                lane = &self.renewals;
            }
        }
        let Some(place) = lane.enter(from) else {
            drop(entry);
            self.say_crowded(now, from);
            return None;
        };
        let (done, over) = watch::channel(None);
        let asking = Asking { over, since: now };
        entry.or_default().asking = Some(asking.clone());
        let (host, env_, about) = (Arc::clone(self), env.clone(), about.clone());
        env.spawn.spawn(Box::pin(async move { host.question(&env_, about, done, place).await }));
        Some(asking)
    }

    fn say_crowded(&self, now: Monotonic, from: IpAddr) {
        if let Some(unsaid) = self.crowded.says(now) {
            tracing::warn!(
                client = %from,
                unsaid,
                "a host names more users or groups than this one is asked for at a time: for those that are not known it is told to come again. Is the directory service slow?"
            );
        }
    }

    async fn question(&self, env: &Env, about: Q, done: watch::Sender<Option<Told<Q>>>, place: Place) {
        let Ok(_own) = place.turns.acquire().await else { return };
        let Ok(_turn) = place.lane.turns.acquire().await else { return };
        // Who asked has given up, and there is nothing to renew. One is the thing's own.
        let forsaken = |_: &Q, known: &Known<Q>| known.told.is_none() && done.receiver_count() <= 1;
        if self.known.remove_if(&about, forsaken).is_some() {
            return;
        }
        let answer = Arc::new(Mutex::new(None));
        let (accounts, reply, asked) = (Arc::clone(&self.accounts), Arc::clone(&answer), about.clone());
        env.spawn.blocking(Box::new(move || *reply.lock() = Some(asked.ask(&*accounts)))).await;
        let (now, answer) = (env.clock.now(), answer.lock().take());
        let has_room = self.has_room(now, matches!(answer, Some(Ok(Some(_)))));
        let mut entry = self.known.entry(about.clone()).or_default();
        entry.asking = None;
        // There was such a one a moment ago: a directory service that is away may say the same.
        let known = entry.was_here(now, USABLE);
        let mut failed = None;
        let stays = has_room || entry.told.is_some();
        match answer {
            Some(Ok(None)) if known => entry.not_before = now + AGAIN,
            Some(Ok(answer)) => {
                entry.told = Some((answer.clone(), now));
                // It need not be remembered for those who wait for it.
                done.send_replace(Some(answer));
            }
            Some(Err(error)) => {
                entry.not_before = now + AGAIN;
                failed = Some(error);
            }
            // The server ends.
            None => {}
        }
        drop(entry);
        if let Some(error) = failed {
            about.unanswered(&error, known);
        }
        if !stays {
            self.known.remove_if(&about, |_, known| !known.is_asked_for());
        }
    }

    /// Whether one more can be remembered. What there is makes no room for what is only named.
    fn has_room(&self, now: Monotonic, known: bool) -> bool {
        if self.known.len() <= Q::MOST {
            return true;
        }
        let mut swept = self.swept.lock();
        if swept.is_some_and(|last| now - last < SWEEP) {
            return false;
        }
        *swept = Some(now);
        drop(swept);
        // Of so many that there are, those go who were told of the longest ago.
        let within = [USABLE, FRESH, FRESH / 2];
        for within in within.into_iter().take(if known { 3 } else { 1 }) {
            if self.known.len() > Q::MOST {
                self.known.retain(|_, known| known.is_asked_for() || known.was_here(now, within));
            }
        }
        self.known.len() <= Q::MOST
    }
}
