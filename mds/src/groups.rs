//! Groups of callers as this host knows them. AUTH_SYS carries 16 (RFC 5531 appendix A): of a user in more, the client
//! leaves some out, and what only those permit is denied. With an [`Accounts`] the client's list is not looked at.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use parking_lot::Mutex;
use sluice_env::{Env, Monotonic};
use sluice_rpc::Credential;
use tokio::sync::{Semaphore, watch};

/// An answer is used for so long. What changes meanwhile is seen late by as much.
const FRESH: Duration = Duration::from_secs(300);
/// From here on it is asked for anew while it is used, so that nobody waits for that.
const RENEWED: Duration = Duration::from_secs(240);
/// That there is no such user is used for less: some directory services say so when they cannot tell.
const ABSENT: Duration = Duration::from_secs(60);
/// A directory service that is away: what it said last is used for so long.
const USABLE: Duration = Duration::from_secs(3600);
/// After a failure it is asked again no sooner than this.
const AGAIN: Duration = Duration::from_secs(5);
/// How long a call waits for an answer; then its client is told to come again.
const PATIENCE: Duration = Duration::from_secs(10);
/// Questions at once: each takes a thread for as long as a directory service takes.
const AT_ONCE: usize = 8;
/// Users remembered at most, some 300 bytes each: a client can name 2^32.
const MOST: usize = 1 << 16;
/// Between two looks at all of them for those to forget.
const SWEEP: Duration = Duration::from_secs(1);

/// The users of this host.
pub trait Accounts: Debug + Send + Sync {
    /// Numbers of all groups that the user is in, the primary one first; `None` if there is no such user. May block for long.
    ///
    /// # Errors
    /// If it cannot be known now.
    fn groups(&self, uid: u32) -> io::Result<Option<Vec<u32>>>;
}

/// What is known of one user.
#[derive(Debug, Default)]
struct User {
    /// The last answer, and when it came.
    told: Option<(Option<Arc<[u32]>>, Monotonic)>,
    /// No question before this.
    not_before: Monotonic,
    /// Ends when the question under way is over.
    asking: Option<watch::Receiver<()>>,
}

impl User {
    /// Not if what asked has died.
    fn is_asked_for(&self) -> bool {
        self.asking.as_ref().is_some_and(|over| over.has_changed().is_ok())
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Groups {
    inner: Option<Arc<Host>>,
}

#[derive(Debug)]
struct Host {
    accounts: Arc<dyn Accounts>,
    users: DashMap<u32, User>,
    turns: Semaphore,
    /// When room was last made.
    swept: Mutex<Option<Monotonic>>,
}

/// Who cannot be told now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unknown;

impl Groups {
    pub(crate) fn new(accounts: Option<Arc<dyn Accounts>>) -> Self {
        let host = |accounts| {
            let (users, turns, swept) = (DashMap::new(), Semaphore::new(AT_ONCE), Mutex::new(None));
            Arc::new(Host { accounts, users, turns, swept })
        };
        Self { inner: accounts.map(host) }
    }

    /// Whether anybody is asked.
    pub(crate) fn asks(&self) -> bool {
        self.inner.is_some()
    }

    /// Puts in the caller's groups. Those of the client stand if this host does not know the user, and for root, who
    /// needs none.
    ///
    /// # Errors
    /// The host was asked and has not answered.
    pub(crate) async fn complete(&self, env: &Env, caller: &mut Credential) -> Result<(), Unknown> {
        let sys = match caller {
            Credential::Sys(sys) => Some(sys),
            Credential::Gss(caller) => caller.user.as_mut(),
            _ => None,
        };
        let (Some(host), Some(sys)) = (&self.inner, sys) else { return Ok(()) };
        if sys.uid == 0 {
            return Ok(());
        }
        let groups = match host.remembered(env, sys.uid) {
            Some(groups) => groups,
            None => Box::pin(host.answer(env, sys.uid)).await?,
        };
        if let Some(groups) = groups {
            // One that he was in when his process began, or that only his client has him in.
            if let Some(primary) = groups.first().filter(|_| !groups.contains(&sys.gid)) {
                sys.gid = *primary;
            }
            sys.gids = groups.to_vec();
        }
        Ok(())
    }
}

impl Host {
    /// What can be used without asking; the question about what will soon be too old is begun.
    fn remembered(self: &Arc<Self>, env: &Env, uid: u32) -> Option<Option<Arc<[u32]>>> {
        let now = env.clock.now();
        let user = self.users.get(&uid)?;
        let (groups, when) = user.told.clone()?;
        let (old, asked) = (now - when, user.is_asked_for() || now < user.not_before);
        drop(user);
        if old >= RENEWED && !asked {
            drop(self.ask(env, uid));
        }
        let most = if groups.is_some() { FRESH } else { ABSENT };
        (old < most).then_some(groups)
    }

    /// What the host says now; what it said last, if it says nothing.
    async fn answer(self: &Arc<Self>, env: &Env, uid: u32) -> Result<Option<Arc<[u32]>>, Unknown> {
        if let Some(mut over) = self.ask(env, uid) {
            // It never says anything: it ends.
            drop(env.clock.timeout(PATIENCE, over.changed()).await);
        }
        let told = self.users.get(&uid).and_then(|user| user.told.clone());
        match told {
            Some((groups, when)) if env.clock.now() - when < USABLE => Ok(groups),
            _ => Err(Unknown),
        }
    }

    /// The end of a question about this user, which is begun unless one is under way. `None`: one has just failed, or there
    /// are too many.
    fn ask(self: &Arc<Self>, env: &Env, uid: u32) -> Option<watch::Receiver<()>> {
        if self.users.len() >= MOST && !self.users.contains_key(&uid) && !self.make_room(env) {
            return None;
        }
        let (done, over) = watch::channel(());
        match self.users.entry(uid) {
            Entry::Occupied(user) if user.get().is_asked_for() => return user.get().asking.clone(),
            Entry::Occupied(user) if env.clock.now() < user.get().not_before => return None,
            entry => entry.or_default().asking = Some(over.clone()),
        }
        let (host, env_) = (Arc::clone(self), env.clone());
        env.spawn.spawn(Box::pin(async move {
            host.question(&env_, uid).await;
            drop(done);
        }));
        Some(over)
    }

    async fn question(&self, env: &Env, uid: u32) {
        let Ok(_turn) = self.turns.acquire().await else { return };
        let answer = Arc::new(Mutex::new(None));
        let (accounts, place) = (Arc::clone(&self.accounts), Arc::clone(&answer));
        env.spawn.blocking(Box::new(move || *place.lock() = Some(accounts.groups(uid)))).await;
        let (now, answer) = (env.clock.now(), answer.lock().take());
        let mut user = self.users.entry(uid).or_default();
        user.asking = None;
        // There was such a user a moment ago: a directory service that is away may say the same.
        let known = user.told.as_ref().is_some_and(|(groups, when)| groups.is_some() && now - *when < USABLE);
        match answer {
            Some(Ok(None)) if known => user.not_before = now + AGAIN,
            Some(Ok(groups)) => user.told = Some((groups.map(Into::into), now)),
            Some(Err(error)) => {
                user.not_before = now + AGAIN;
                drop(user);
                tracing::warn!(
                    uid,
                    %error,
                    known,
                    "this host cannot tell the groups of a user: who is not known from before waits. Is its directory service up?"
                );
            }
            // The server ends.
            None => {}
        }
    }

    /// Whether there is room for one more. Users whose groups are known are of more worth than those that there are not.
    fn make_room(&self, env: &Env) -> bool {
        let now = env.clock.now();
        let mut swept = self.swept.lock();
        if swept.is_some_and(|last| now - last < SWEEP) {
            return false;
        }
        *swept = Some(now);
        drop(swept);
        let fresh = |user: &User| matches!(&user.told, Some((Some(_), when)) if now - *when < FRESH);
        self.users.retain(|_, user| user.is_asked_for() || fresh(user));
        if self.users.len() >= MOST {
            self.users.retain(|_, user| user.is_asked_for());
        }
        self.users.len() < MOST
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use sluice_rpc::AuthSys;

    use super::*;

    #[derive(Debug, Default)]
    struct Directory {
        users: Mutex<BTreeMap<u32, Vec<u32>>>,
        away: AtomicBool,
        asked: AtomicUsize,
    }

    impl Accounts for Directory {
        fn groups(&self, uid: u32) -> io::Result<Option<Vec<u32>>> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            if self.away.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Ok(self.users.lock().get(&uid).cloned())
        }
    }

    struct World {
        directory: Arc<Directory>,
        groups: Groups,
        env: Env,
    }

    impl World {
        fn new() -> Self {
            let directory = Arc::new(Directory::default());
            directory.users.lock().insert(7, (100..140).collect());
            let accounts: Arc<dyn Accounts> = Arc::clone(&directory) as _;
            Self { directory, groups: Groups::new(Some(accounts)), env: Env::simulated(1) }
        }

        async fn of(&self, uid: u32) -> Result<Vec<u32>, Unknown> {
            let mut caller = Credential::Sys(AuthSys { uid, gid: 1, gids: vec![3], ..AuthSys::root("h") });
            self.groups.complete(&self.env, &mut caller).await?;
            let Credential::Sys(sys) = caller else { panic!("{caller:?}") };
            let primary = sys.gids.first().copied().filter(|gid| *gid != 3).unwrap_or(1);
            assert_eq!((sys.uid, sys.gid), (uid, primary));
            Ok(sys.gids)
        }

        fn asked(&self) -> usize {
            self.directory.asked.swap(0, Ordering::Relaxed)
        }

        async fn later(&self, by: Duration) {
            self.env.clock.sleep(by).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_is_in_all_groups_that_the_host_knows_and_is_looked_up_once() {
        let world = World::new();
        assert_eq!(world.of(7).await, Ok((100..140).collect()));
        assert_eq!(world.of(7).await, Ok((100..140).collect()));
        assert_eq!(world.asked(), 1);
        assert_eq!(world.of(8).await, Ok(vec![3]), "whom the host does not know the client knows");
        assert_eq!(world.of(0).await, Ok(vec![3]), "root");
        assert_eq!(world.asked(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_seen_after_a_while_and_who_is_at_work_does_not_wait_for_it() {
        let world = World::new();
        world.of(7).await.unwrap();
        world.directory.users.lock().insert(7, vec![9]);
        world.later(RENEWED - Duration::from_secs(1)).await;
        assert_eq!(world.of(7).await.unwrap().len(), 40);
        assert_eq!(world.asked(), 1);
        world.later(Duration::from_secs(2)).await;
        assert_eq!(world.of(7).await.unwrap().len(), 40, "it is asked for meanwhile");
        world.later(Duration::from_secs(1)).await;
        assert_eq!(world.of(7).await, Ok(vec![9]));
        assert_eq!(world.asked(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_idle_is_not_judged_by_what_was_long_ago() {
        let world = World::new();
        world.of(7).await.unwrap();
        world.directory.users.lock().insert(7, vec![9]);
        world.later(FRESH).await;
        assert_eq!(world.of(7).await, Ok(vec![9]));
        assert_eq!(world.of(8).await, Ok(vec![3]));
        world.directory.users.lock().insert(8, vec![9]);
        world.later(ABSENT).await;
        assert_eq!(world.of(8).await, Ok(vec![9]), "a new user");
    }

    #[tokio::test(start_paused = true)]
    async fn a_directory_that_is_away_and_says_that_there_is_nobody_is_not_believed_at_once() {
        let world = World::new();
        world.of(7).await.unwrap();
        world.directory.users.lock().clear();
        world.later(FRESH * 2).await;
        assert_eq!(world.of(7).await.unwrap().len(), 40);
        world.later(USABLE).await;
        assert_eq!(world.of(7).await, Ok(vec![3]), "gone for good");
    }

    #[tokio::test(start_paused = true)]
    async fn while_the_directory_is_away_what_it_said_holds_for_an_hour() {
        let world = World::new();
        world.of(7).await.unwrap();
        world.directory.away.store(true, Ordering::Relaxed);
        world.later(FRESH * 2).await;
        assert_eq!(world.of(7).await.unwrap().len(), 40);
        assert_eq!(world.of(9).await, Err(Unknown), "nothing is known of him");
        world.asked();
        assert_eq!(world.of(9).await, Err(Unknown));
        assert_eq!(world.asked(), 0, "it is not asked for each call");
        world.later(USABLE).await;
        assert_eq!(world.of(7).await, Err(Unknown));
        world.directory.away.store(false, Ordering::Relaxed);
        world.later(AGAIN).await;
        assert_eq!(world.of(7).await.unwrap().len(), 40);
        assert_eq!(world.of(9).await, Ok(vec![3]));
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_there_are_not_do_not_fill_the_memory() {
        let world = World::new();
        world.of(7).await.unwrap();
        for uid in 1_000..1_000 + u32::try_from(MOST).unwrap() {
            world.of(uid).await.unwrap();
        }
        world.asked();
        let users = &world.groups.inner.as_ref().unwrap().users;
        assert!(users.len() <= MOST, "{}", users.len());
        world.of(7).await.unwrap();
        assert_eq!(world.asked(), 0, "who is known is remembered");
    }
}
