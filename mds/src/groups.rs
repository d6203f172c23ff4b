//! Groups of callers as this host knows them. AUTH_SYS carries 16 (RFC 5531 appendix A): of a user in more, the client
//! leaves some out, and what only those permit is denied. With an [`Accounts`] the client's list is not looked at.

use std::io;
use std::sync::Arc;

use sluice_env::Env;
use sluice_rpc::Credential;

use crate::accounts::{Accounts, Answers, Question, Unknown};

/// Whose groups are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Uid(u32);

impl Question for Uid {
    type Answer = Arc<[u32]>;
    /// Some 300 bytes each.
    const MOST: usize = 1 << 16;

    fn ask(&self, accounts: &dyn Accounts) -> io::Result<Option<Arc<[u32]>>> {
        Ok(accounts.groups(self.0)?.map(Into::into))
    }

    fn unanswered(&self, error: &io::Error, known: bool) {
        tracing::warn!(
            uid = self.0,
            %error,
            known,
            "this host cannot tell the groups of a user: who is not known from before waits. Is its directory service up?"
        );
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Groups {
    inner: Option<Arc<Answers<Uid>>>,
}

impl Groups {
    pub(crate) fn new(accounts: Option<Arc<dyn Accounts>>) -> Self {
        Self { inner: accounts.map(Answers::new) }
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
        if let Some(groups) = host.get(env, &Uid(sys.uid)).await? {
            // One that he was in when his process began, or that only his client has him in.
            if let Some(primary) = groups.first().filter(|_| !groups.contains(&sys.gid)) {
                sys.gid = *primary;
            }
            sys.gids = groups.to_vec();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    use parking_lot::Mutex;
    use sluice_rpc::AuthSys;

    use super::*;
    use crate::accounts::{ABSENT, AGAIN, FRESH, RENEWED, USABLE};

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

        fn user(&self, _: &str) -> io::Result<Option<u32>> {
            Ok(None)
        }

        fn group(&self, _: &str) -> io::Result<Option<u32>> {
            Ok(None)
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
        for uid in 1_000..1_000 + u32::try_from(Uid::MOST).unwrap() {
            world.of(uid).await.unwrap();
        }
        world.asked();
        let users = world.groups.inner.as_ref().unwrap().count();
        assert!(users <= Uid::MOST, "{users}");
        world.of(7).await.unwrap();
        assert_eq!(world.asked(), 0, "who is known is remembered");
    }
}
