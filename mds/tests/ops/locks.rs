//! Who has files open or locked, and what becomes of those whose locks an administrator breaks.

use std::time::Duration;

use sluice_kv::Faults;
use sluice_state::lease::seq4_status;
use sluice_xdr::control::*;
use sluice_xdr::nfs4::*;

use crate::admin::{ask, plain};
use crate::failed_store::Log;
use crate::harness::*;
use crate::layout_recall;

const W: nfs_lock_type4 = nfs_lock_type4::WRITE_LT;
const WAITS: nfs_lock_type4 = nfs_lock_type4::WRITEW_LT;
const ALL: (u64, u64) = (0, u64::MAX);
const REVOKED: u32 = seq4_status::ADMIN_STATE_REVOKED;

/// All pages; how many they were.
async fn held(world: &World, path: &'static str, client: u64) -> Result<(Vec<ctl_hold>, usize), String> {
    let mut args = ADMIN_LOCKS_args { path: path.into(), client, after: ctl_hold_place::default() };
    let (mut all, mut pages) = (Vec::new(), 0);
    loop {
        match ask(world, ADMIN_LOCKS, &args).await {
            ADMIN_LOCKS_res::CTL_OK(page) => {
                assert!(page.holds.len() <= 256);
                all.extend(page.holds);
                pages += 1;
                if page.eof {
                    return Ok((all, pages));
                }
                args.after = page.next;
            }
            ADMIN_LOCKS_res::Default(_, why) => return Err(String::from_utf8(why.to_vec()).unwrap()),
        }
    }
}

async fn shown(world: &World, path: &'static str, client: u64) -> Vec<ctl_hold> {
    held(world, path, client).await.unwrap().0
}

async fn breaks(world: &World, path: &'static str, client: u64) -> ADMIN_BREAK_res {
    ask(world, ADMIN_BREAK, &ADMIN_BREAK_args { path: path.into(), client }).await
}

async fn broken(world: &World, path: &'static str, client: u64) -> ADMIN_BREAK_resok {
    match breaks(world, path, client).await {
        ADMIN_BREAK_res::CTL_OK(broken) => broken,
        ADMIN_BREAK_res::Default(status, why) => panic!("{status:?} {why:?}"),
    }
}

async fn lock(client: &Client, fh: &nfs_fh4, op: nfs_argop4) -> Result<stateid4, nfsstat4> {
    let reply = client.compound(vec![putfh(fh), op]).await;
    match reply.resarray.last() {
        Some(nfs_resop4::OP_LOCK(LOCK4res::NFS4_OK(ok))) => Ok(ok.lock_stateid),
        _ => Err(reply.status),
    }
}

/// A has the file locked, and B waits for it.
struct Scene {
    a: Client,
    b: Client,
    fh: nfs_fh4,
    /// A's.
    open: stateid4,
    held: stateid4,
    /// B's.
    theirs: stateid4,
}

async fn scene(world: &World) -> Scene {
    let (a, b) = (world.client("a").await, world.client("b").await);
    let (fh, open) = a.open("f", BOTH, 0).await;
    let (_, theirs) = b.open("f", BOTH, 0).await;
    let held = lock(&a, &fh, lock_new(W, open, b"la", ALL)).await.unwrap();
    assert_eq!(lock(&b, &fh, lock_new(WAITS, theirs, b"lb", ALL)).await, Err(nfsstat4::NFS4ERR_DENIED));
    Scene { a, b, fh, open, held, theirs }
}

impl Scene {
    async fn takes_it(&self) -> Result<stateid4, nfsstat4> {
        self.waits(b"lb", ALL).await
    }

    /// B asks for a lock, and would wait for it.
    async fn waits(&self, owner: &[u8], range: (u64, u64)) -> Result<stateid4, nfsstat4> {
        lock(&self.b, &self.fh, lock_new(WAITS, self.theirs, owner, range)).await
    }
}

#[test]
fn opens_and_locks_are_shown_with_whose_and_since_when() {
    simulate(1, async |world: World| {
        let Scene { a, b, fh, open, .. } = scene(&world).await;
        world.sleep(Duration::from_secs(7)).await;
        a.ok(vec![putfh(&fh), open_fh(b"other", READ, OPEN4_SHARE_DENY_NONE)]).await;
        lock(&a, &fh, lock_new(nfs_lock_type4::READ_LT, open, b"lc", (5, 10))).await.unwrap_err();
        a.open("g", WRITE, OPEN4_SHARE_DENY_READ).await;
        let file = shown(&world, "/f", 0).await;
        let of = |kind| file.iter().filter(move |hold| hold.kind == kind).collect::<Vec<_>>();
        let [opens, locks, waiting] =
            [ctl_hold_kind::HOLD_OPEN, ctl_hold_kind::HOLD_LOCK, ctl_hold_kind::HOLD_WAITING].map(of);
        let seen: Vec<_> = opens.iter().map(|hold| (hold.client, hold.access, hold.age_seconds)).collect();
        assert_eq!(seen, [(a.id, BOTH, 7), (b.id, BOTH, 7), (a.id, READ, 0)]);
        assert_eq!(locks.len(), 1);
        let held = locks[0];
        assert_eq!((held.client, held.access), (a.id, 2));
        assert_eq!((held.offset, held.length, held.age_seconds, held.taken), (0, u64::MAX, 7, false));
        assert_eq!((&held.client_name[..], &held.name[..]), (&b"a"[..], &b"f"[..]));
        assert_eq!(held.address, bytes::Bytes::from(world.net.ip("a").to_string()));
        let seen: Vec<_> = waiting.iter().map(|it| (it.client, it.access, it.offset, it.length)).collect();
        assert_eq!((seen, waiting[0].age_seconds), (vec![(b.id, 2, 0, u64::MAX)], 7));
        assert_eq!(shown(&world, "f", b.id).await.len(), 2);
        let all = shown(&world, "", 0).await;
        assert_eq!(all.len(), 6);
        let other = all.iter().find(|hold| &hold.name[..] == b"g").unwrap();
        assert_eq!(
            (other.access, other.deny, other.file == held.file),
            (WRITE, OPEN4_SHARE_DENY_READ, false)
        );
        assert!(held_err(&world, "/").await.contains("directory"));
        assert!(
            held_err(&world, "/nothing").await.contains("no such"),
            "{}",
            held_err(&world, "/nothing").await
        );
    });
}

async fn held_err(world: &World, path: &'static str) -> String {
    held(world, path, 0).await.unwrap_err()
}

#[test]
fn much_is_shown_a_page_at_a_time() {
    simulate(2, async |world: World| {
        let a = world.client("a").await;
        let b = world.client("b").await;
        let (fh, open) = a.open("f", BOTH, 0).await;
        let mut held_now = lock(&a, &fh, lock_new(W, open, b"la", (0, 1))).await.unwrap();
        for at in 1..600_u64 {
            held_now = lock(&a, &fh, lock_more(W, held_now, (2 * at, 1))).await.unwrap();
        }
        for number in 0..300 {
            b.open(&format!("n{number}"), READ, 0).await;
        }
        let (all, pages) = held(&world, "", 0).await.unwrap();
        assert_eq!((all.len(), pages), (901, 4));
        let locks: Vec<_> =
            all.iter().filter(|hold| hold.kind == ctl_hold_kind::HOLD_LOCK).map(|hold| hold.offset).collect();
        assert_eq!(locks, (0..600).map(|at| 2 * at).collect::<Vec<u64>>());
        let mut names: Vec<_> = all.iter().map(|hold| (hold.name.clone(), hold.kind, hold.offset)).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 901, "each once");
        assert_eq!(held(&world, "f", 0).await.unwrap().1, 3);
        assert_eq!(shown(&world, "", b.id).await.len(), 300);
    });
}

/// Also over the end of a page, while others come and go.
#[test]
fn who_waits_is_shown_in_the_order_in_which_they_came() {
    const MANY: u64 = 300;
    simulate(8, async |world: World| {
        let scene = scene(&world).await;
        assert!(scene.takes_it().await.is_err(), "asked again, it keeps its place");
        for number in 0..MANY {
            world.sleep(Duration::from_millis(10)).await;
            let owner = number.to_be_bytes();
            assert!(scene.waits(&owner, (1000 - number, 1)).await.is_err());
        }
        let waits = |hold: &&ctl_hold| hold.kind == ctl_hold_kind::HOLD_WAITING;
        let (all, pages) = held(&world, "f", 0).await.unwrap();
        let seen: Vec<_> = all.iter().filter(waits).map(|hold| hold.offset).collect();
        assert_eq!((seen, pages), ([0].into_iter().chain((0..MANY).map(|n| 1000 - n)).collect(), 2));
        // Who is served waits no more, and who asks for nothing any more is forgotten.
        scene.a.ok(vec![putfh(&scene.fh), locku(W, scene.held, ALL)]).await;
        scene.takes_it().await.unwrap();
        let offsets: Vec<_> =
            shown(&world, "f", 0).await.iter().filter(waits).map(|hold| hold.offset).collect();
        assert_eq!(offsets.len() as u64, MANY, "but for the one that has it");
        world.sleep(Duration::from_secs(600)).await;
        assert_eq!(shown(&world, "f", 0).await.iter().filter(waits).count(), 0);
    });
}

#[test]
fn a_broken_lock_goes_to_who_waits_and_its_holder_is_told() {
    simulate(3, async |world: World| {
        let (log, _logged) = Log::of_this_thread();
        let scene = scene(&world).await;
        let Scene { a, b, fh, open, held, .. } = &scene;
        let done = broken(&world, "/f", a.id).await;
        assert_eq!((done.clients, done.opens, done.locks, done.pending), (1, 1, 1, 0));
        until(&world.env, || (b.callbacks().count() >= 1).then_some(())).await;
        scene.takes_it().await.unwrap();
        // RFC 8881 §8.5, §18.46.3.
        assert_eq!(a.flags().await, REVOKED);
        assert_eq!(a.tested(&[*open, *held]).await, [nfsstat4::NFS4ERR_ADMIN_REVOKED; 2]);
        let data =
            WRITE4args { stateid: *held, offset: 0, stable: stable_how4::FILE_SYNC4, data: "x".into() };
        let write = vec![putfh(fh), nfs_argop4::OP_WRITE(data)];
        assert_eq!(a.status(write).await, nfsstat4::NFS4ERR_ADMIN_REVOKED);
        assert_eq!(lock(a, fh, lock_more(W, *held, ALL)).await, Err(nfsstat4::NFS4ERR_ADMIN_REVOKED));
        a.ok(vec![free_stateid(*held)]).await;
        assert_eq!(a.flags().await, REVOKED);
        a.ok(vec![free_stateid(*open)]).await;
        assert_eq!(a.flags().await, 0);
        // It goes on, and may have the file again, and wait in its turn.
        let (_, again) = opened(&a.ok(vec![putfh(fh), open_fh(b"owner", BOTH, 0), getfh()]).await);
        assert_eq!(lock(a, fh, lock_new(WAITS, again, b"la", ALL)).await, Err(nfsstat4::NFS4ERR_DENIED));
        let done = broken(&world, "/f", 0).await;
        assert_eq!((done.clients, done.opens, done.locks), (2, 2, 1));
        assert_eq!(broken(&world, "/f", 0).await, ADMIN_BREAK_resok::default());
        assert_eq!(shown(&world, "", 0).await, []);
        let lines: Vec<String> = log.lines().iter().map(|line| plain(line)).collect();
        let said: Vec<_> =
            lines.iter().filter(|line| line.contains("an administrator broke what a client held")).collect();
        assert_eq!(said.len(), 3, "{lines:?}");
        let from = format!("from={}:", world.net.ip("admin"));
        assert!(said.iter().all(|line| line.contains(&from) && line.contains("path=\"/f\"")), "{said:?}");
        assert!(said[0].contains("opens=1 locks=1 delegations=0 layouts=0"), "{said:?}");
    });
}

/// What it may have on the way to data servers is not to be written under another one's lock.
#[test]
fn a_lock_of_who_writes_to_data_servers_is_free_when_they_refuse_it() {
    simulate(4, async |mut world: World| {
        let data_server = world.data_server();
        let scene = scene(&world).await;
        let Scene { a, fh, open, .. } = &scene;
        layout_recall::get(a, fh, *open).await;
        data_server.set_stubborn(true);
        let done = broken(&world, "f", a.id).await;
        assert_eq!((done.layouts, done.pending), (1, 1));
        assert!(scene.takes_it().await.is_err());
        assert!(shown(&world, "f", a.id).await.iter().all(|hold| hold.taken));
        let anew = a.status(vec![putfh(fh), open_fh(b"owner", BOTH, 0)]).await;
        assert_eq!(anew, nfsstat4::NFS4ERR_DELAY);
        data_server.set_stubborn(false);
        let fences = data_server.fences().len();
        until(&world.env, || (data_server.fences().len() > fences).then_some(())).await;
        world.sleep(Duration::from_secs(1)).await;
        scene.takes_it().await.unwrap();
        assert_eq!(shown(&world, "f", a.id).await, []);
        a.ok(vec![putfh(fh), open_fh(b"owner", BOTH, 0)]).await;
    });
}

fn reclaim_open(fh: &nfs_fh4) -> Vec<nfs_argop4> {
    vec![putfh(fh), open_previous(b"owner", BOTH, 0), getfh()]
}

/// RFC 8881 §8.4.3: who was given it since is not to lose it to one who has not heard.
#[test]
fn a_broken_lock_is_not_reclaimed_after_a_restart() {
    simulate(5, async |mut world: World| {
        let scene = scene(&world).await;
        broken(&world, "/f", scene.a.id).await;
        scene.takes_it().await.unwrap();
        let fh = scene.fh.clone();
        drop(scene);
        for again in [false, true] {
            world.restart().await;
            let (a, b) = (world.new_client("a").await, world.new_client("b").await);
            assert_eq!(a.status(reclaim_open(&fh)).await, nfsstat4::NFS4ERR_RECLAIM_BAD);
            let why = breaks(&world, "/f", 0).await;
            assert!(matches!(&why, ADMIN_BREAK_res::Default(ctl_status::CTL_ERR_AGAIN, _)), "{why:?}");
            let (_, open) = opened(&b.ok(reclaim_open(&fh)).await);
            lock(&b, &fh, reclaiming(lock_new(W, open, b"lb", ALL))).await.unwrap();
            if !again {
                continue;
            }
            for client in [&a, &b] {
                client.ok(vec![reclaim_complete(false)]).await;
            }
            world.sleep(Duration::from_secs(2)).await;
            let (_, open) = a.open("f", BOTH, 0).await;
            assert_eq!(lock(&a, &fh, lock_new(W, open, b"la", ALL)).await, Err(nfsstat4::NFS4ERR_DENIED));
        }
        // What it was given since is its own.
        world.restart().await;
        let a = world.new_client("a").await;
        a.ok(reclaim_open(&fh)).await;
    });
}

#[test]
fn who_has_acknowledged_reclaims_what_else_it_has() {
    simulate(6, async |mut world: World| {
        let scene = scene(&world).await;
        let Scene { a, open, held, .. } = &scene;
        let (other, _) = a.open("g", BOTH, 0).await;
        broken(&world, "/f", a.id).await;
        a.ok(vec![free_stateid(*held), free_stateid(*open)]).await;
        world.sleep(Duration::from_secs(1)).await;
        drop(scene);
        world.restart().await;
        let a = world.new_client("a").await;
        a.ok(reclaim_open(&other)).await;
    });
}

/// What is not durable would be reclaimed.
#[test]
fn nothing_is_broken_that_a_restart_would_give_back() {
    simulate(7, async |world: World| {
        let scene = scene(&world).await;
        world.sleep(Duration::from_secs(1)).await;
        world.db.set_faults(Faults { conflict: 1.0, ..Faults::NONE });
        let refused = breaks(&world, "/f", scene.a.id).await;
        world.db.set_faults(Faults::NONE);
        assert!(matches!(&refused, ADMIN_BREAK_res::Default(ctl_status::CTL_ERR_AGAIN, _)), "{refused:?}");
        assert_eq!(scene.takes_it().await, Err(nfsstat4::NFS4ERR_DENIED));
        assert_eq!(scene.a.flags().await, 0);
        broken(&world, "/f", scene.a.id).await;
        scene.takes_it().await.unwrap();
    });
}

/// Those of a delegation of which nobody is asked.
#[test]
fn a_delegation_is_shown_and_broken() {
    simulate(8, async |world: World| {
        let a = world.client("a").await;
        let want = BOTH | OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG;
        let results = a.ok(vec![putrootfh(), open_create("f", b"o", want, 0)]).await;
        let Some(nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(open))) = results.last() else { panic!() };
        let open_delegation4::OPEN_DELEGATE_WRITE(given) = &open.delegation else { panic!("{open:?}") };
        let seen = shown(&world, "f", 0).await;
        assert_eq!((seen[1].kind, seen[1].access), (ctl_hold_kind::HOLD_DELEGATION, 2));
        let done = broken(&world, "f", 0).await;
        assert_eq!((done.opens, done.delegations), (1, 1));
        assert_eq!(a.flags().await, REVOKED);
        a.ok(vec![free_stateid(given.stateid), free_stateid(open.stateid)]).await;
        assert_eq!(a.flags().await, 0);
    });
}
