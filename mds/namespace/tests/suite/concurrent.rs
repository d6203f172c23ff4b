//! Many at once, on a store that attempts, forgets and does not say: nothing contradicts itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::*;
use sluice_env::{Env, Wall};
use sluice_kv::{Database, Faults, RunLimits};
use sluice_namespace::stable_storage::{ReplyRow, put_reply, reply_key};
use sluice_namespace::*;

const ROOT: InodeKey = InodeKey::ROOT;

/// A client: it runs operations one after the other, each with its reply row as witness.
struct Client {
    world: Arc<World>,
    id: u8,
    seqid: u32,
    update: DirectoryUpdate,
    now: Wall,
    /// Attempts made.
    attempts: Arc<AtomicU64>,
}

impl Client {
    /// Runs `op` to its end as a server does: retried, and an unknown result resolved by the reply row.
    async fn run<T, F>(&mut self, op: F) -> Result<T, FsError>
    where
        T: Settle + Clone + Send + 'static,
        F: for<'t> Fn(
                &'t Namespace,
                &'t mut sluice_kv::Transaction,
                Request<'t>,
            ) -> sluice_env::BoxFuture<'t, Result<Pending<T>, FsError>>
            + Sync,
    {
        let session = [self.id; 16];
        self.seqid += 1;
        let row = ReplyRow {
            stamp: sluice_kv::Versionstamp([0; 10]),
            seqid: self.seqid,
            op_index: 0,
            fingerprint: 0,
            results: Default::default(),
        };
        let limits =
            RunLimits { max_attempts: 10_000, ..RunLimits::default() }.resolve_by(reply_key(&session, 0));
        let (world, update, now, row, op) = (&self.world, self.update, self.now, &row, &op);
        let attempts = &self.attempts;
        let mut tried = false;
        let (pending, committed) = world
            .db
            .run(limits, |mut txn| {
                // As a server does: adaptive first, blind after a conflict.
                let again = std::mem::replace(&mut tried, true);
                let adaptive = update == DirectoryUpdate::Adaptive;
                let update = if adaptive && again { DirectoryUpdate::Blind } else { update };
                Box::pin(async move {
                    attempts.fetch_add(1, Ordering::Relaxed);
                    let request = Request { who: &Credential::ROOT, now, directory: update };
                    let pending = op(&world.ns, &mut txn, request).await?;
                    put_reply(&mut txn, &session, 0, row);
                    Ok::<_, FsError>(pending)
                })
            })
            .await?;
        Ok(pending.resolve(committed.version))
    }

    async fn create(
        &mut self,
        directory: InodeKey,
        called: String,
        node: NewNode,
    ) -> Result<Created, FsError> {
        let fileid = FileId(self.world.id());
        self.run(move |ns, txn, request| {
            let (called, node) = (called.clone(), node.clone());
            Box::pin(async move {
                let create = Create {
                    directory,
                    name: name(&called),
                    node,
                    mode: CreateMode::Guarded,
                    attributes: NewAttributes::mode(0o755),
                    fileid,
                };
                ns.create(txn, &create, &request).await
            })
        })
        .await
    }

    async fn remove(&mut self, directory: InodeKey, called: String, open: bool) -> Result<Removed, FsError> {
        self.run(move |ns, txn, request| {
            let called = called.clone();
            Box::pin(async move {
                let remove = Remove { directory, name: name(&called), expect: None, open };
                ns.remove(txn, &remove, &request).await
            })
        })
        .await
    }

    async fn rename(&mut self, from: (InodeKey, String), to: (InodeKey, String)) -> Result<Renamed, FsError> {
        self.run(move |ns, txn, request| {
            let (from, to) = (from.clone(), to.clone());
            Box::pin(async move {
                let rename = Rename {
                    from: from.0,
                    from_name: name(&from.1),
                    to: to.0,
                    to_name: name(&to.1),
                    expect_source: None,
                    expect_target: None,
                    target_open: false,
                };
                ns.rename(txn, &rename, &request).await
            })
        })
        .await
    }
}

impl Client {
    async fn setattr(&mut self, key: InodeKey, set: SetAttr) -> Result<SizeCommitted, FsError> {
        self.run(move |ns, txn, request| {
            let set = set.clone();
            Box::pin(async move { ns.setattr(txn, &key, &set, &request).await })
        })
        .await
    }

    /// Sets an attribute, or removes it.
    async fn xattr(
        &mut self,
        key: InodeKey,
        value: Option<&'static str>,
    ) -> Result<DirectoryChange, FsError> {
        self.run(move |ns, txn, request| {
            Box::pin(async move {
                match value {
                    Some(v) => ns.set_xattr(txn, &key, b"a", v.as_bytes(), SetXattr::Either, &request).await,
                    None => ns.remove_xattr(txn, &key, b"a", &request).await,
                }
            })
        })
        .await
    }
}

fn client(world: &Arc<World>, id: u8, update: DirectoryUpdate, attempts: &Arc<AtomicU64>) -> Client {
    let attempts = Arc::clone(attempts);
    Client { world: Arc::clone(world), id, seqid: 0, update, now: NOW, attempts }
}

const FAULTS: Faults = Faults {
    conflict: 0.05,
    unknown_applied: 0.05,
    unknown_lost: 0.05,
    too_old: 0.02,
    unavailable: 0.02,
    latency: Duration::from_millis(3),
    ..Faults::NONE
};

async fn all<T: Send + 'static>(work: Vec<impl Future<Output = T> + Send + 'static>) -> Vec<T> {
    let mut set = tokio::task::JoinSet::new();
    for w in work {
        set.spawn(w);
    }
    set.join_all().await
}

/// Everybody makes, moves and removes names of a few directories; the tree stays a tree.
#[tokio::test(start_paused = true)]
async fn a_faulty_store_and_many_clients_leave_a_clean_file_system() {
    for seed in 0..6_u64 {
        let world = Arc::new(World::with_bits(if seed % 2 == 0 { 56 } else { 2 }).await);
        let mut dirs = vec![ROOT];
        for i in 0..4 {
            dirs.push(world.mkdir(dirs[i / 2], &format!("dir{i}")).await);
        }
        world.db.set_faults(FAULTS);
        let attempts = Arc::new(AtomicU64::new(0));
        let work = (0..8_u8).map(|id| {
            let update =
                if (u64::from(id) + seed) % 2 == 0 { DirectoryUpdate::Blind } else { DirectoryUpdate::Exact };
            let mut c = client(&world, id + 1, update, &attempts);
            let dirs = dirs.clone();
            async move {
                let mut last = 0;
                for i in 0..25_u64 {
                    let n = (i * 7 + u64::from(id) * 13 + seed * 31) % 97;
                    let (a, b) = (dirs[n as usize % 5], dirs[(n / 5) as usize % 5]);
                    let called = format!("n{}", n % 9);
                    let layout = Some(layout(c.world.id(), 1));
                    let file = NewNode::File { layout, read_write_layout: false, size: 0 };
                    let outcome = match n % 5 {
                        0 | 1 => c.create(a, called, file).await.map(|r| r.directory),
                        2 => c.create(a, called, NewNode::Directory).await.map(|r| r.directory),
                        3 => c.remove(a, called, n % 2 == 0).await.map(|r| r.directory),
                        _ => {
                            // Directories by their first names too: cycles must be refused.
                            let from = if n % 2 == 0 { called } else { format!("dir{}", n % 4) };
                            let to = format!("n{}", (n + 1) % 9);
                            c.rename((a, from), (b, to)).await.map(|r| r.source_directory)
                        }
                    };
                    match outcome {
                        Ok(change) => {
                            if change.after != change.before {
                                assert!(change.after > change.before, "{change:?}");
                                last = change.after;
                            }
                        }
                        Err(FsError::Kv(error)) => panic!("the retry loop gave up: {error:?}"),
                        Err(_) => {}
                    }
                }
                last
            }
        });
        all(work.collect()).await;
        world.db.set_faults(Faults::NONE);
        let report = world.clean().await;
        assert!(report.entries > 4, "something was left: {report:?}");
    }
}

/// An acknowledged creation happened exactly once, an acknowledged removal too.
#[tokio::test(start_paused = true)]
async fn operations_happen_exactly_once() {
    let world = Arc::new(World::new().await);
    let dir = world.mkdir(ROOT, "d").await;
    world.db.set_faults(FAULTS);
    let attempts = Arc::new(AtomicU64::new(0));
    let work = (0..6_u8).map(|id| {
        let mut c = client(&world, id + 1, DirectoryUpdate::Blind, &attempts);
        async move {
            for i in 0..20 {
                // Guarded: applied twice it would be Exists, and a removal NotFound.
                c.create(dir, format!("c{id} {i}"), NewNode::Fifo).await.unwrap();
                if i % 2 == 0 {
                    c.remove(dir, format!("c{id} {i}"), false).await.unwrap();
                }
            }
        }
    });
    all(work.collect()).await;
    world.db.set_faults(Faults::NONE);
    let report = world.clean().await;
    assert_eq!(report.entries, 1 + 6 * 10);
    assert_eq!(world.stat(dir).await.unwrap().directory.unwrap().entries, 60);
}

/// Attempts it takes to make `clients * each` files in one directory at the same time.
async fn attempts_of(update: DirectoryUpdate, clients: u8, each: u64) -> u64 {
    let world = Arc::new(World::new().await);
    let dir = world.mkdir(ROOT, "d").await;
    let counter = Arc::new(AtomicU64::new(0));
    // The first update prepares the directory.
    client(&world, 99, update, &counter).create(dir, "first".into(), NewNode::Fifo).await.unwrap();
    world.db.set_faults(Faults { latency: Duration::from_millis(2), ..Faults::NONE });
    counter.store(0, Ordering::Relaxed);
    let work = (0..clients).map(|id| {
        let mut c = client(&world, id + 1, update, &counter);
        async move {
            for i in 0..each {
                c.create(dir, format!("c{id} {i}"), NewNode::Fifo).await.unwrap();
            }
        }
    });
    all(work.collect()).await;
    world.clean().await;
    counter.load(Ordering::Relaxed)
}

/// In one shared directory blind updates never meet; exact ones do.
#[tokio::test(start_paused = true)]
async fn blind_creates_in_one_directory_do_not_conflict() {
    assert_eq!(attempts_of(DirectoryUpdate::Blind, 8, 10).await, 80);
    assert!(attempts_of(DirectoryUpdate::Exact, 8, 10).await > 120);
    // Adaptive: the first round meets, the rest does not.
    let adaptive = attempts_of(DirectoryUpdate::Adaptive, 8, 10).await;
    assert!((80..=100).contains(&adaptive), "{adaptive}");
}

/// rmdir and create of an entry at the same time: one of them, never both.
#[tokio::test(start_paused = true)]
async fn a_directory_does_not_go_while_an_entry_comes() {
    for round in 0..40 {
        let world = Arc::new(World::new().await);
        let dir = world.mkdir(ROOT, "d").await;
        let sub = world.mkdir(dir, "victim").await;
        let counter = Arc::new(AtomicU64::new(0));
        let update = if round % 2 == 0 { DirectoryUpdate::Blind } else { DirectoryUpdate::Exact };
        if round % 4 < 2 {
            // Already split, and empty again.
            client(&world, 9, update, &counter).create(sub, "x".into(), NewNode::Fifo).await.unwrap();
            world.remove(sub, "x").await.unwrap();
        }
        world.db.set_faults(Faults { latency: Duration::from_millis(2), ..Faults::NONE });
        let mut a = client(&world, 1, update, &counter);
        let mut b = client(&world, 2, update, &counter);
        let (made, gone) =
            tokio::join!(async move { a.create(sub, "entry".into(), NewNode::Fifo).await }, async move {
                b.remove(dir, "victim".into(), false).await
            },);
        assert!(made.is_ok() != gone.is_ok(), "{made:?} {gone:?}");
        world.clean().await;
    }
}

/// Two renames that together would make a cycle: one of them, never both.
#[tokio::test(start_paused = true)]
async fn two_renames_do_not_make_a_cycle() {
    for _ in 0..40 {
        let world = Arc::new(World::new().await);
        let a = world.mkdir(ROOT, "a").await;
        let b = world.mkdir(ROOT, "b").await;
        let (below_a, below_b) = (world.mkdir(a, "x").await, world.mkdir(b, "y").await);
        world.db.set_faults(Faults { latency: Duration::from_millis(2), ..Faults::NONE });
        let counter = Arc::new(AtomicU64::new(0));
        let mut one = client(&world, 1, DirectoryUpdate::Blind, &counter);
        let mut two = client(&world, 2, DirectoryUpdate::Blind, &counter);
        let (first, second) = tokio::join!(
            async move { one.rename((ROOT, "a".into()), (below_b, "in".into())).await },
            async move { two.rename((ROOT, "b".into()), (below_a, "in".into())).await },
        );
        assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
        world.clean().await;
    }
}

/// A power loss keeps exactly what was acknowledged.
#[tokio::test(start_paused = true)]
async fn a_crash_keeps_what_was_acknowledged() {
    let mut world = World::new().await;
    let env: Env = world.env.clone();
    let dir = world.mkdir(ROOT, "d").await;
    for i in 0..10 {
        world.file(dir, &format!("f{i}")).await;
    }
    let mut txn = world.db.begin();
    let remove = Remove { directory: dir, name: name("f3"), expect: None, open: false };
    world.ns.remove(&mut txn, &remove, &world.request(&Credential::ROOT)).await.unwrap();
    let next: Database = world.db.crash().unwrap();
    assert!(txn.commit().await.is_err());
    world.db = next;
    assert_eq!(world.clean().await.entries, 11);
    assert_eq!(world.list(dir, 4).await.len(), 10);
    drop(env);
}

/// What is made in a directory at the same time does not keep anybody from changing its attributes.
#[tokio::test(start_paused = true)]
async fn attributes_of_a_busy_directory_are_set_at_the_first_attempt() {
    let world = Arc::new(World::new().await);
    let dir = world.mkdir(ROOT, "d").await;
    let (made, tried) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    client(&world, 99, DirectoryUpdate::Blind, &made).create(dir, "0".into(), NewNode::Fifo).await.unwrap();
    world.db.set_faults(Faults { latency: Duration::from_millis(2), ..Faults::NONE });
    let done = Arc::new(AtomicU64::new(0));
    let creators = (0..8_u8).map(|id| {
        let mut c = client(&world, id + 1, DirectoryUpdate::Adaptive, &made);
        let done = Arc::clone(&done);
        async move {
            let mut n = 0;
            while done.load(Ordering::Relaxed) == 0 && n < 400 {
                c.create(dir, format!("c{id} {n}"), NewNode::Fifo).await.unwrap();
                n += 1;
            }
            n
        }
    });
    let creators = creators.collect();
    let mut changer = client(&world, 100, DirectoryUpdate::Adaptive, &tried);
    let changes = async move {
        let mut last = 0;
        for round in 0..10_i64 {
            let past = Wall { seconds: round, nanos: 0 };
            for set in [
                SetAttr { mode: Some(0o775), ..SetAttr::default() },
                SetAttr { uid: Some(5), gid: Some(6), ..SetAttr::default() },
                SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() },
                SetAttr { mtime: Some(SetTime::To(past)), ..SetAttr::default() },
            ] {
                let change = changer.setattr(dir, set).await.unwrap().inode.change;
                assert!(change > last, "{change} {last}");
                last = change;
            }
            for value in [Some("1"), None] {
                let change = changer.xattr(dir, value).await.unwrap();
                assert!(
                    change.before >= last && change.after > change.before && !change.atomic,
                    "{change:?}"
                );
                last = change.after;
            }
        }
        done.store(1, Ordering::Relaxed);
    };
    let (each, ()) = tokio::join!(all(creators), changes);
    assert_eq!(tried.load(Ordering::Relaxed), 10 * 6);
    // Nor does it keep anybody from making anything.
    assert!(each.iter().all(|n| *n > 20), "{each:?}");
    let entries = world.stat(dir).await.unwrap().directory.unwrap().entries;
    assert_eq!(entries, 1 + each.iter().sum::<u64>());
    world.clean().await;
}

/// Nor does it keep anybody from what changes nothing in it.
#[tokio::test(start_paused = true)]
async fn what_changes_nothing_in_a_busy_directory_does_not_start_over_for_it() {
    // Those who meet go blind; who is alone reads the state under conflict, and writes it.
    for (many, update, most) in [(8_u8, DirectoryUpdate::Blind, 1), (1, DirectoryUpdate::Exact, 2)] {
        let world = Arc::new(World::new().await);
        let dir = world.mkdir(ROOT, "d").await;
        let (made, tried) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        client(&world, 99, update, &made).create(dir, "0".into(), NewNode::Fifo).await.unwrap();
        world.db.set_faults(Faults { latency: Duration::from_millis(2), ..Faults::NONE });
        let creators = (0..many).map(|id| {
            let mut c = client(&world, id + 1, DirectoryUpdate::Adaptive, &made);
            async move {
                for n in 0..50 {
                    c.create(dir, format!("c{id} {n}"), NewNode::Fifo).await.unwrap();
                }
            }
        });
        let mut renamer = client(&world, 100, DirectoryUpdate::Adaptive, &tried);
        let renames = async move {
            for _ in 0..10 {
                let same = (dir, "0".to_owned());
                let change = renamer.rename(same.clone(), same).await.unwrap().target_directory;
                assert!(change.before == change.after && (!change.atomic || many == 1), "{change:?}");
            }
        };
        tokio::join!(all(creators.collect()), renames);
        let tried = tried.load(Ordering::Relaxed);
        assert!(tried <= 10 * most, "{tried} attempts beside {many}");
        world.clean().await;
    }
}

/// Whoever commits last has set the time of a directory, by hand or by making something in it; and what shows changes
/// only with the change attribute.
#[tokio::test(start_paused = true)]
async fn times_set_by_hand_are_in_order_with_what_is_made() {
    let mut by_hand = 0;
    for round in 0..60 {
        let world = Arc::new(World::new().await);
        let dir = world.mkdir(ROOT, "d").await;
        let tried = Arc::new(AtomicU64::new(0));
        let update = [DirectoryUpdate::Blind, DirectoryUpdate::Adaptive, DirectoryUpdate::Exact][round % 3];
        client(&world, 99, update, &tried).create(dir, "0".into(), NewNode::Fifo).await.unwrap();
        world.db.set_faults(Faults { latency: Duration::from_millis(2), ..Faults::NONE });
        let done = Arc::new(AtomicU64::new(0));
        let work = (0..5_u8).map(|id| {
            let mut c = client(&world, id + 1, update, &tried);
            // Clocks of requests differ, and who is late may be first.
            c.now.seconds += (round as i64 * 7 + i64::from(id) * 3) % 5;
            async move {
                let mut done = Vec::new();
                let many = if id < 3 { round as i64 / 3 } else { 4 };
                for n in 0..many {
                    c.now.seconds += 1;
                    done.push(if id < 3 {
                        let made = c.create(dir, format!("c{id} {n}"), NewNode::Fifo).await.unwrap();
                        (made.directory.after, None)
                    } else {
                        let past = Wall { seconds: n, nanos: id.into() };
                        let set = SetAttr { mtime: Some(SetTime::To(past)), ..SetAttr::default() };
                        (c.setattr(dir, set).await.unwrap().inode.change, Some(past))
                    });
                }
                done
            }
        });
        let (watched, watching) = (Arc::clone(&world), Arc::clone(&done));
        let watch = async move {
            let mut seen: Vec<Inode> = Vec::new();
            while watching.load(Ordering::Relaxed) == 0 {
                let now = watched.stat(dir).await.unwrap();
                match seen.last() {
                    Some(last) if last.change == now.change => assert_eq!(*last, now),
                    last => {
                        assert!(last.is_none_or(|last| last.change < now.change), "{last:?} {now:?}");
                        seen.push(now);
                    }
                }
            }
            seen
        };
        let work = work.collect();
        let work = async move {
            let changes = all(work).await;
            done.store(1, Ordering::Relaxed);
            changes
        };
        let (changes, seen) = tokio::join!(work, watch);
        let changes: BTreeMap<u64, Option<Wall>> = changes.into_iter().flatten().collect();
        for shown in seen.iter().chain([&world.stat(dir).await.unwrap()]) {
            let Some(change) = changes.get(&shown.change) else { continue };
            match change {
                Some(at) => assert_eq!(shown.mtime(), *at, "round {round}"),
                None => assert!(shown.mtime() >= NOW, "round {round}: {shown:?}"),
            }
            assert!(shown.ctime() >= NOW);
            by_hand += u64::from(change.is_some());
        }
        world.clean().await;
    }
    assert!(by_hand > 100, "{by_hand}");
}

/// Whether two transactions that begin together both commit, the first one last: a change of attributes and a creation.
async fn goes_beside<T>(
    w: &World,
    dir: InodeKey,
    change: impl AsyncFnOnce(&mut sluice_kv::Transaction) -> Result<Pending<T>, FsError>,
) -> (Pending<T>, bool) {
    let mut txn = w.db.begin();
    let pending = change(&mut txn).await.unwrap();
    w.file(dir, &format!("f{}", w.id())).await;
    (pending, txn.commit().await.is_ok())
}

/// An answer that says what was before is true, or says that it may not be.
#[tokio::test(start_paused = true)]
async fn the_change_before_an_attribute_was_set_is_read_under_conflict_while_nobody_is_busy() {
    let mut w = World::new().await;
    let dir = w.mkdir(ROOT, "d").await;
    let who = Credential::ROOT;
    let rest = Wall { seconds: NOW.seconds + 60, nanos: 0 };
    for (made, at, update, atomic) in [
        // What is made, when an attribute is set after that and how; whether that is atomic.
        (DirectoryUpdate::Exact, NOW, DirectoryUpdate::Adaptive, true),
        (DirectoryUpdate::Exact, NOW, DirectoryUpdate::Blind, false),
        (DirectoryUpdate::Blind, NOW, DirectoryUpdate::Adaptive, false),
        (DirectoryUpdate::Blind, NOW, DirectoryUpdate::Exact, true),
        (DirectoryUpdate::Blind, rest, DirectoryUpdate::Adaptive, true),
    ] {
        w.update = made;
        w.file(dir, &format!("f{}", w.id())).await;
        let request = Request { who: &who, now: at, directory: update };
        let before = w.stat(dir).await.unwrap().change;
        let (set, committed) = goes_beside(&w, dir, async |t| {
            w.ns.set_xattr(t, &dir, b"a", b"1", SetXattr::Either, &request).await
        })
        .await;
        assert_eq!((set.peek().atomic, committed), (atomic, !atomic), "{made:?} {update:?}");
        assert_eq!(set.peek().before, before);
    }
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_time_set_by_hand_hides_what_was_made_before_it() {
    let mut w = World::new().await;
    let who = Credential::ROOT;
    let later = |s| Wall { seconds: NOW.seconds + s, nanos: 0 };
    let by_hand = SetAttr { mtime: Some(SetTime::To(later(-500))), ..SetAttr::default() };
    let chmod = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    for update in [DirectoryUpdate::Blind, DirectoryUpdate::Exact] {
        let dir = w.mkdir(ROOT, &format!("{update:?}")).await;
        w.update = update;
        let request = Request { who: &who, now: later(10), directory: update };
        w.now = later(5);
        w.file(dir, "first").await;
        // The clock goes on from the one to the other, and the second commits first.
        w.now = later(11);
        let (_, committed) =
            goes_beside(&w, dir, async |t| w.ns.setattr(t, &dir, &by_hand, &request).await).await;
        let shown = w.stat(dir).await.unwrap();
        assert_eq!(committed, update == DirectoryUpdate::Blind, "exact updates are met");
        assert_eq!(shown.mtime(), if committed { later(-500) } else { later(11) });
        assert!(shown.ctime() >= later(10));
        // Other attributes say nothing of that time.
        w.now = later(12);
        let (_, committed) =
            goes_beside(&w, dir, async |t| w.ns.setattr(t, &dir, &chmod, &request).await).await;
        let shown = w.stat(dir).await.unwrap();
        assert!(committed && shown.record.mode == 0o700);
        assert_eq!((shown.mtime(), shown.ctime()), (later(12), later(12)));
        assert_eq!(shown.directory.unwrap().entries, 3);
        // By a clock that is behind, too.
        w.now = later(1);
        w.setattr(dir, by_hand.clone(), &who).await.unwrap();
        assert_eq!(w.stat(dir).await.unwrap().mtime(), later(-500));
        w.file(dir, "last").await;
        assert!(w.stat(dir).await.unwrap().mtime() > later(10));
    }
    w.clean().await;
}
