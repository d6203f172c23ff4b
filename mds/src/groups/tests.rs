use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sluice_env::{BoxFuture, Spawn};
use sluice_rpc::AuthSys;
use tokio::sync::Semaphore;

use super::*;
use crate::accounts::{
    ABSENT, AGAIN, AT_ONCE_FOR_ONE, FRESH, LAG, PATIENCE, PENDING_OF_ONE, RENEWED, USABLE,
};

const MOST: usize = Uid::MOST;

#[derive(Debug, Default)]
struct Directory {
    users: Mutex<BTreeMap<u32, Vec<u32>>>,
    away: AtomicBool,
    /// It knows everybody else, too.
    full: AtomicBool,
    asked: AtomicUsize,
}

impl Accounts for Directory {
    fn groups(&self, uid: u32) -> io::Result<Option<Vec<u32>>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.away.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let of_all = self.full.load(Ordering::Relaxed).then(|| vec![9]);
        Ok(self.users.lock().get(&uid).cloned().or(of_all))
    }

    fn user(&self, _: &str) -> io::Result<Option<u32>> {
        Ok(None)
    }

    fn group(&self, _: &str) -> io::Result<Option<u32>> {
        Ok(None)
    }

    fn name_of_user(&self, _: u32) -> io::Result<Option<String>> {
        Ok(None)
    }

    fn name_of_group(&self, _: u32) -> io::Result<Option<String>> {
        Ok(None)
    }
}

/// How long the directory takes; `None`: until it is let go.
#[derive(Debug)]
struct Takes {
    time: Option<Duration>,
    let_go: Arc<Semaphore>,
    inner: Env,
}

impl Spawn for Takes {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.inner.spawn.spawn(task);
    }

    fn blocking(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        let (time, let_go, env) = (self.time, Arc::clone(&self.let_go), self.inner.clone());
        Box::pin(async move {
            match time {
                Some(time) => env.clock.sleep(time).await,
                None => let_go.acquire().await.unwrap().forget(),
            }
            env.spawn.blocking(work).await;
        })
    }
}

struct World {
    directory: Arc<Directory>,
    groups: Groups,
    env: Env,
    let_go: Arc<Semaphore>,
}

/// Where calls come from.
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

impl World {
    fn new() -> Self {
        let directory = Arc::new(Directory::default());
        directory.users.lock().insert(7, (100..140).collect());
        let accounts: Arc<dyn Accounts> = Arc::clone(&directory) as _;
        let groups = Groups::new(Some(accounts));
        Self { directory, groups, env: Env::simulated(1), let_go: Arc::new(Semaphore::new(0)) }
    }

    fn that_takes(time: Option<Duration>) -> Arc<Self> {
        let mut world = Self::new();
        let takes = Takes { time, let_go: Arc::clone(&world.let_go), inner: world.env.clone() };
        world.env.spawn = Arc::new(takes);
        Arc::new(world)
    }

    async fn of(&self, uid: u32) -> Result<Vec<u32>, Unknown> {
        self.of_at(HERE, uid).await
    }

    /// And for how long the call was kept.
    async fn timed(&self, uid: u32) -> (Result<Vec<u32>, Unknown>, Duration) {
        let began = self.env.clock.now();
        let groups = self.of(uid).await;
        (groups, self.env.clock.now() - began)
    }

    /// Calls of the other host name all of these.
    async fn named(self: &Arc<Self>, users: std::ops::Range<u32>) {
        for uid in users {
            let world = Arc::clone(self);
            self.env.spawn.spawn(Box::pin(async move { drop(world.of_at(THERE, uid).await) }));
        }
        self.later(Duration::from_millis(1)).await;
    }

    async fn of_at(&self, from: IpAddr, uid: u32) -> Result<Vec<u32>, Unknown> {
        let mut caller = Credential::Sys(AuthSys { uid, gid: 1, gids: vec![3], ..AuthSys::root("h") });
        self.groups.complete(&self.env, from, &mut caller).await?;
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
    let known = world.groups.inner.as_ref().unwrap().count();
    assert!(known <= MOST, "{known}");
    world.of(7).await.unwrap();
    assert_eq!(world.asked(), 0, "who is known is remembered");
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn one_host_that_names_everybody_keeps_no_known_user_waiting() {
    let world = World::that_takes(Some(Duration::from_millis(10)));
    world.of(7).await.unwrap();
    let known: (Result<Vec<u32>, Unknown>, Duration) = (Ok((100..140).collect()), Duration::ZERO);
    world.named(1_000..71_000).await;
    assert_eq!(world.timed(7).await, known);
    world.later(290 * SECOND).await;
    world.directory.users.lock().insert(7, vec![9]);
    world.named(100_000..170_000).await;
    assert_eq!(world.timed(7).await, known);
    world.later(SECOND).await;
    world.named(200_000..270_000).await;
    assert_eq!(world.timed(7).await, (Ok(vec![9]), Duration::ZERO), "it was asked for meanwhile");
}

#[tokio::test(start_paused = true)]
async fn one_host_that_names_everybody_keeps_no_turns_from_others() {
    let world = World::that_takes(None);
    world.named(1_000..1_000 + u32::try_from(MOST).unwrap()).await;
    let seven = async {
        world.later(SECOND).await;
        // Of those that came first, as many as one host is given.
        world.let_go.add_permits(AT_ONCE_FOR_ONE + 1);
    };
    let (groups, ()) = tokio::join!(world.of(7), seven);
    assert_eq!(groups.unwrap().len(), 40);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_names_too_many_is_told_so_at_once_and_another_is_not() {
    let world = World::that_takes(Some(Duration::from_millis(10)));
    world.named(1_000..1_000 + u32::try_from(PENDING_OF_ONE).unwrap()).await;
    let began = world.env.clock.now();
    assert_eq!(world.of_at(THERE, 7).await, Err(Unknown));
    assert_eq!(world.env.clock.now(), began);
    // Who is asked for already is waited for.
    assert_eq!(world.of_at(THERE, 1_000).await, Ok(vec![3]));
    assert_eq!(world.of(7).await.unwrap().len(), 40);
    world.later(SECOND).await;
    assert_eq!(world.of_at(THERE, 8).await, Ok(vec![3]), "its questions are over");
    let pending = world.groups.inner.as_ref().unwrap().questions.pending.lock();
    assert!(pending.all == 0 && pending.hosts.is_empty(), "{pending:?}");
}

#[tokio::test(start_paused = true)]
async fn nobody_is_asked_for_any_more_for_whom_nobody_waits() {
    let world = World::that_takes(None);
    world.named(1_000..1_050).await;
    world.later(2 * PATIENCE).await;
    world.let_go.add_permits(Semaphore::MAX_PERMITS / 2);
    world.later(SECOND).await;
    assert_eq!(world.asked(), AT_ONCE_FOR_ONE);
    assert_eq!(world.groups.inner.as_ref().unwrap().count(), AT_ONCE_FOR_ONE);
}

/// Each call of one that is at work would stand still for as long.
#[tokio::test(start_paused = true)]
async fn a_directory_that_says_nothing_is_waited_for_once() {
    let world = World::that_takes(None);
    world.let_go.add_permits(1);
    world.of(7).await.unwrap();
    world.later(FRESH).await;
    let known: Vec<u32> = (100..140).collect();
    assert_eq!(world.timed(7).await, (Ok(known.clone()), LAG));
    for _ in 0..3 {
        assert_eq!(world.timed(7).await, (Ok(known.clone()), Duration::ZERO));
    }
    world.directory.users.lock().insert(7, vec![9]);
    world.let_go.add_permits(1);
    world.later(Duration::from_millis(1)).await;
    assert_eq!(world.timed(7).await, (Ok(vec![9]), Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn users_for_whom_there_is_no_room_are_in_their_groups_and_put_out_nobody() {
    let world = World::new();
    world.of(7).await.unwrap();
    world.directory.full.store(true, Ordering::Relaxed);
    for uid in 1_000..1_010 + u32::try_from(MOST).unwrap() {
        assert_eq!(world.of(uid).await, Ok(vec![9]));
    }
    let known = world.groups.inner.as_ref().unwrap().count();
    assert!(known <= MOST, "{known}");
    world.asked();
    world.of(7).await.unwrap();
    assert_eq!(world.asked(), 0);
    // Those who were told of long ago make room.
    world.later(FRESH / 2 + SECOND).await;
    world.of(1_000_000).await.unwrap();
    world.of(1_000_000).await.unwrap();
    assert_eq!(world.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn whoever_is_not_told_of_is_waited_for_once_and_not_by_each_call() {
    let world = World::that_takes(None);
    let host = world.groups.inner.as_ref().unwrap();
    let patience = Duration::from_secs(3);
    let learns = async |users: std::ops::Range<u32>| {
        let began = world.env.clock.now();
        host.learn(&world.env, HERE, users.map(Uid), patience).await;
        world.env.clock.now() - began
    };
    world.let_go.add_permits(1);
    assert_eq!(learns(7..8).await, Duration::ZERO);
    assert_eq!(learns(20..23).await, patience, "all of them together");
    assert_eq!(learns(20..23).await, Duration::ZERO, "each is still asked for");
    // Of whom something was said that can be used.
    world.later(FRESH).await;
    assert_eq!(learns(7..8).await, LAG);
    assert_eq!(learns(7..8).await, Duration::ZERO);
    assert!(host.last(world.env.clock.now(), &Uid(7)).is_some());
}
