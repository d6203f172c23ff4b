//! What commands ask: who holds what, and taking it back. xdr/spec/control.x, SLUICE_ADMIN.

use sluice_namespace::stable_storage::{Dumped, put_dumped};
use sluice_rpc::{Client as Dialler, Credential};
use sluice_xdr::control::*;
use sluice_xdr::nfs4::*;
use sluice_xdr::{Decode, Encode, from_bytes, to_frame};

use crate::failed_store::Log;
use crate::harness::*;

pub async fn ask<A: Encode, R: Decode>(world: &World, procedure: u32, arguments: &A) -> R {
    let dialler = Dialler::new(world.env.clone(), world.net.host("admin")).with_key(world.key.clone());
    let connection = dialler.dial(world.addr).await.unwrap();
    let arguments = to_frame(arguments, 1 << 20).unwrap();
    let patience = std::time::Duration::from_secs(10);
    let reply = connection
        .call(SLUICE_ADMIN, SLUICE_ADMIN_V2, procedure, &Credential::None, arguments, patience)
        .await
        .unwrap();
    from_bytes(reply).unwrap()
}

async fn layouts(world: &World, path: &'static str) -> Result<Vec<ctl_layout>, String> {
    match ask(world, ADMIN_LAYOUTS, &ADMIN_LAYOUTS_args { path: path.into() }).await {
        ADMIN_LAYOUTS_res::CTL_OK(ok) => Ok(ok.layouts),
        ADMIN_LAYOUTS_res::Default(_, why) => Err(String::from_utf8(why.to_vec()).unwrap()),
    }
}

async fn recall(world: &World, path: &'static str, client: u64) -> u32 {
    match ask(world, ADMIN_RECALL, &ADMIN_RECALL_args { path: path.into(), client }).await {
        ADMIN_RECALL_res::CTL_OK(recalled) => recalled,
        other => panic!("{other:?}"),
    }
}

pub async fn evict(world: &World, client: u64) -> ADMIN_EVICT_res {
    ask(world, ADMIN_EVICT, &ADMIN_EVICT_args { client }).await
}

async fn holds(client: &Client, mode: layoutiomode4) -> (nfs_fh4, stateid4) {
    let (fh, open) = client.open("f", BOTH, 0).await;
    match client.last(vec![putfh(&fh), layoutget(open, mode)]).await {
        nfs_resop4::OP_LAYOUTGET(LAYOUTGET4res::NFS4_OK(ok)) => (fh, ok.logr_stateid),
        other => panic!("{other:?}"),
    }
}

#[test]
fn layouts_are_shown_with_holder_mode_age_and_stateid() {
    simulate(1, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (_, first) = holds(&a, layoutiomode4::LAYOUTIOMODE4_READ).await;
        world.sleep(std::time::Duration::from_secs(7)).await;
        let (_, second) = holds(&b, layoutiomode4::LAYOUTIOMODE4_RW).await;
        let mut all = layouts(&world, "/f").await.unwrap();
        all.sort_by_key(|layout| layout.write);
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].client, all[0].write, all[0].age_seconds), (a.id, false, 7));
        assert_eq!((all[1].client, all[1].write, all[1].age_seconds), (b.id, true, 0));
        assert_eq!((all[0].seqid, all[0].other), (first.seqid, first.other));
        assert_eq!(all[1].other, second.other);
        assert_eq!(&all[1].name[..], b"b");
        assert_eq!(all[0].address, bytes::Bytes::from(world.net.ip("a").to_string()));
        assert!(all.iter().all(|layout| !layout.recalled));
        // Age is that of the layout, whatever is handed out under it later.
        holds(&a, layoutiomode4::LAYOUTIOMODE4_RW).await;
        world.sleep(std::time::Duration::from_secs(1)).await;
        assert!(layouts(&world, "f").await.unwrap().iter().any(|layout| layout.age_seconds == 8));
        assert!(layouts(&world, "/").await.unwrap_err().contains("directory"));
        assert!(layouts(&world, "/nothing").await.is_err());
    });
}

#[test]
fn an_administrator_asks_for_layouts_back() {
    simulate(2, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, mine) = holds(&a, layoutiomode4::LAYOUTIOMODE4_READ).await;
        holds(&b, layoutiomode4::LAYOUTIOMODE4_READ).await;
        assert_eq!(recall(&world, "f", a.id).await, 1);
        until(&world.env, || (a.callbacks().count() >= 1).then_some(())).await;
        assert_eq!(b.callbacks().count(), 0, "only the one that was named");
        let recalled: Vec<_> = layouts(&world, "f").await.unwrap();
        assert!(recalled.iter().all(|layout| layout.recalled == (layout.client == a.id)));
        a.ok(vec![putfh(&fh), layoutreturn(mine, layoutiomode4::LAYOUTIOMODE4_ANY)]).await;
        assert_eq!(layouts(&world, "f").await.unwrap().len(), 1);
        assert_eq!(recall(&world, "f", 0).await, 1, "the other one's");
    });
}

#[test]
fn an_evicted_client_holds_nothing_and_is_fenced() {
    simulate(3, async |mut world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        holds(&a, layoutiomode4::LAYOUTIOMODE4_RW).await;
        assert_eq!(evict(&world, a.id).await, ADMIN_EVICT_res::CTL_OK(1));
        assert_eq!(a.status(Vec::new()).await, nfsstat4::NFS4ERR_BADSESSION);
        let data_server = world.data_server();
        until(&world.env, || (!data_server.fences().is_empty()).then_some(())).await;
        // What it held is no longer in the way.
        b.open("f", BOTH, OPEN4_SHARE_DENY_BOTH).await;
        assert!(layouts(&world, "f").await.unwrap().is_empty());
        let again = evict(&world, a.id).await;
        assert!(matches!(again, ADMIN_EVICT_res::Default(ctl_status::CTL_ERR_NOENT, _)), "{again:?}");
    });
}

async fn policy(world: &World, set: &'static str) -> Result<String, String> {
    policy_of(world, "/", set).await
}

async fn policy_of(world: &World, path: &'static str, set: &'static str) -> Result<String, String> {
    let arguments = ADMIN_POLICY_args { path: path.into(), policy: set.into() };
    let text = |bytes: bytes::Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    match ask(world, ADMIN_POLICY, &arguments).await {
        ADMIN_POLICY_res::CTL_OK(policy) => Ok(text(policy)),
        ADMIN_POLICY_res::Default(_, why) => Err(text(why)),
    }
}

#[test]
fn more_mirrors_than_data_servers_are_refused() {
    simulate(10, async |mut world: World| {
        let few = policy(&world, "small,mirrors=2").await.unwrap_err();
        assert!(few.starts_with("mirrors=2 needs 2 data servers, and 1 take new files"), "{few}");
        world.add_data_server("ds2").await;
        assert_eq!(policy(&world, "small,mirrors=2").await.unwrap(), "small,mirrors=2");
        assert!(policy(&world, "small,mirrors=3").await.is_err());
    });
}

/// A data server was drained after the policy was set.
#[test]
fn who_finds_no_place_is_told_of_once_a_minute() {
    let two = sluice_namespace::LayoutPolicy { mirrors: 2, ..at_data_servers().policy };
    let config = sluice_mds::Config { policy: two, ..at_data_servers() };
    simulate_with(11, config, async |world: World| {
        let client = world.client("a").await;
        let (log, _logged) = Log::of_this_thread();
        let told = || log.lines().iter().filter(|line| line.contains("a new file found no place")).count();
        for minutes in 1..=2 {
            for _ in 0..10 {
                let made = vec![putrootfh(), open_create("new", b"o", BOTH, 0)];
                assert_eq!(client.status(made).await, nfsstat4::NFS4ERR_NOSPC);
            }
            assert_eq!(told(), minutes);
            world.sleep(std::time::Duration::from_secs(40)).await;
            client.ok(Vec::new()).await;
            world.sleep(std::time::Duration::from_secs(21)).await;
        }
    });
}

/// `: > f`, `>> f` and many programs open with O_CREAT what is there.
#[test]
fn what_is_there_is_opened_though_a_new_file_would_find_no_place() {
    let two = sluice_namespace::LayoutPolicy { mirrors: 2, ..at_data_servers().policy };
    let config = sluice_mds::Config { policy: two, ..at_data_servers() };
    simulate_with(13, config, async |world: World| {
        let client = world.client("a").await;
        client.mkdir("", "d").await;
        assert_eq!(policy_of(&world, "/d", "small,mirrors=1").await.map(drop), Ok(()));
        client.ok(vec![putrootfh(), lookup("d"), open_create("f", b"o", BOTH, 0)]).await;
        client.ok(vec![putrootfh(), lookup("d"), savefh(), putrootfh(), rename("f", "f")]).await;
        let create = |name| vec![putrootfh(), open_create(name, b"o", BOTH, 0)];
        client.ok(create("f")).await;
        assert_eq!(client.status(create("g")).await, nfsstat4::NFS4ERR_NOSPC);
    });
}

#[test]
fn changes_are_in_the_log_with_the_host_that_made_them() {
    simulate(12, async |world: World| {
        let (log, _logged) = Log::of_this_thread();
        policy(&world, "").await.unwrap();
        policy(&world, "wide").await.unwrap();
        let quota = ADMIN_QUOTA_args {
            action: ctl_quota_action::QUOTA_SET,
            kind: ctl_quota_kind::QUOTA_USER,
            id: 77,
            path: "".into(),
            bytes: ctl_limit { soft: 0, hard: 4096 },
            files: ctl_limit::default(),
            grace: 0,
        };
        assert_eq!(ask::<_, ADMIN_QUOTA_res>(&world, ADMIN_QUOTA, &quota).await, ADMIN_QUOTA_res::CTL_OK);
        let client = world.client("a").await;
        client.mkdir("", "d").await;
        crate::exports::add(&world, "/d", &[crate::exports::read_only("10.7.0.0/16")]).await;
        crate::exports::take(&world, "/d").await;
        let from = format!("from={}:", world.net.ip("admin"));
        for (said, times) in [
            ("an administrator set a layout policy", 1),
            ("an administrator set a quota", 1),
            ("whose=\"user 77\" bytes=4096", 1),
            ("exports have changed", 2),
            ("path=/d change=added for 10.7.0.0/16 (read-only", 1),
            ("path=/d change=removed", 1),
        ] {
            let lines = log.lines();
            let found: Vec<_> =
                lines.iter().map(|line| plain(line)).filter(|line| line.contains(said)).collect();
            assert_eq!(found.len(), times, "{said}: {lines:?}");
            assert!(found.iter().all(|line| line.contains(&from)), "{found:?}");
        }
    });
}

/// Without colours.
pub fn plain(line: &str) -> String {
    let mut parts = line.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |line, part| line + part.split_once('m').map_or(part, |(_, rest)| rest))
}

async fn rows(world: &World, snapshot: u64, after: &[u8]) -> Result<ADMIN_ROWS_resok, String> {
    let arguments = ADMIN_ROWS_args { snapshot, after: bytes::Bytes::copy_from_slice(after) };
    match ask(world, ADMIN_ROWS, &arguments).await {
        ADMIN_ROWS_res::CTL_OK(page) => Ok(page),
        ADMIN_ROWS_res::Default(_, why) => Err(String::from_utf8(why.to_vec()).unwrap()),
    }
}

#[test]
fn rows_are_those_of_the_moment_when_reading_began() {
    simulate(1, async |world: World| {
        let client = world.client("a").await;
        client.open("before", BOTH, 0).await;
        let first = rows(&world, 0, b"").await.unwrap();
        client.open("after", BOTH, 0).await;
        let (mut count, mut last) = (0, Vec::new());
        loop {
            let page = rows(&world, first.snapshot, &last).await.unwrap();
            assert_eq!((page.snapshot, page.version), (first.snapshot, first.version));
            let Some(row) = page.rows.last() else { break };
            assert!(page.rows.is_sorted_by(|a, b| a.key < b.key) && page.rows[0].key > last);
            last = row.key.to_vec();
            let shows = |name: &[u8]| page.rows.iter().any(|row| row.value.ends_with(name));
            assert!(shows(b"before") && !shows(b"after"));
            count += page.rows.len();
        }
        assert_eq!(count, first.rows.len());
        // The last page ended it.
        assert!(rows(&world, first.snapshot, b"").await.unwrap_err().contains("begin anew"));
    });
}

/// What changes meanwhile is kept for them.
#[test]
fn readers_end_before_the_device_is_full() {
    simulate(1, async |world: World| {
        let begun = rows(&world, 0, b"").await.unwrap();
        world.db.set_faults(sluice_kv::Faults { scarce: true, ..sluice_kv::Faults::NONE });
        world.sleep(std::time::Duration::from_secs(5)).await;
        let why = rows(&world, begun.snapshot, b"").await.unwrap_err();
        assert!(why.contains("filling up"), "{why}");
    });
}

#[test]
fn readers_are_few_and_one_that_died_is_forgotten() {
    simulate(1, async |world: World| {
        let mut begun = Vec::new();
        for _ in 0..4 {
            begun.push(rows(&world, 0, b"").await.unwrap().snapshot);
        }
        assert!(rows(&world, 0, b"").await.unwrap_err().contains("under way"));
        world.sleep(std::time::Duration::from_secs(62)).await;
        assert!(rows(&world, 0, b"").await.is_ok());
        assert!(rows(&world, begun[0], b"").await.is_err());
    });
}

#[test]
fn the_newest_dump_is_remembered() {
    simulate(14, async |mut world: World| {
        let newest = async |world: &World| {
            let told: ADMIN_LAST_DUMP_resok = ask(world, ADMIN_LAST_DUMP, &()).await;
            told.newest.first().map(|dump| (dump.age_seconds, dump.rows, dump.verified))
        };
        let dumped = async |world: &World, age_seconds, rows| {
            let told = ADMIN_DUMPED_args { age_seconds, rows, bytes: 9, verified: rows > 1 };
            let answer: ADMIN_DUMPED_res = ask(world, ADMIN_DUMPED, &told).await;
            answer
        };
        assert_eq!(newest(&world).await, None);
        assert_eq!(dumped(&world, 50, 1).await, ADMIN_DUMPED_res::CTL_OK);
        world.sleep(std::time::Duration::from_secs(10)).await;
        assert_eq!(newest(&world).await, Some((60, 1, false)));
        // Two were made at once, and the later one was whole first.
        dumped(&world, 5, 2).await;
        dumped(&world, 30, 3).await;
        assert_eq!(newest(&world).await, Some((5, 2, true)));
        world.restart().await;
        world.sleep(std::time::Duration::from_secs(1)).await;
        let (age, rows, _) = newest(&world).await.unwrap();
        assert!(age >= 6 && rows == 2, "{age}");
        world.db.set_faults(sluice_kv::Faults { conflict: 1.0, ..sluice_kv::Faults::NONE });
        assert!(matches!(
            dumped(&world, 0, 4).await,
            ADMIN_DUMPED_res::Default(ctl_status::CTL_ERR_AGAIN, _)
        ));
        assert_eq!(newest(&world).await.unwrap().1, 2);
    });
}

/// The clock was ahead when it was made, and is right since.
#[test]
fn a_dump_of_a_moment_to_come_hides_no_other() {
    simulate(15, async |mut world: World| {
        let newest = async |world: &World| {
            let told: ADMIN_LAST_DUMP_resok = ask(world, ADMIN_LAST_DUMP, &()).await;
            told.newest.first().map(|dump| (dump.age_seconds, dump.rows))
        };
        let dumped = async |world: &World, rows| {
            let told = ADMIN_DUMPED_args { age_seconds: 5, rows, bytes: 9, verified: true };
            let answer: ADMIN_DUMPED_res = ask(world, ADMIN_DUMPED, &told).await;
            assert_eq!(answer, ADMIN_DUMPED_res::CTL_OK);
        };
        for (ahead, age) in [(30, 0), (365 * 86_400, u64::MAX)] {
            let seconds = world.env.clock.wall().seconds + ahead;
            let mut txn = world.db.begin();
            put_dumped(&mut txn, &Dumped { seconds, rows: 1, bytes: 9, verified: true });
            txn.commit().await.unwrap();
            world.restart().await;
            assert_eq!(newest(&world).await, Some((age, 1)), "who is little ahead may have been set right");
            dumped(&world, 2).await;
            assert_eq!(newest(&world).await, Some((5, 2)));
            world.restart().await;
            assert_eq!(newest(&world).await.unwrap().1, 2, "it is durable");
        }
    });
}

#[test]
fn the_room_that_the_metadata_has_is_told() {
    simulate(9, async |world: World| {
        for (scarce, free_bytes) in [(false, 99 << 30), (true, 1 << 30)] {
            world.db.set_faults(sluice_kv::Faults { scarce, ..sluice_kv::Faults::NONE });
            let told: ADMIN_ROOM_resok = ask(&world, ADMIN_ROOM, &()).await;
            assert_eq!(told, ADMIN_ROOM_resok { total_bytes: 100 << 30, free_bytes });
        }
    });
}
