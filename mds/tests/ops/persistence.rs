//! Persistent sessions: a request whose reply was lost in a restart has its original reply when it is sent
//! again, and was run once. RFC 8881 §2.10.6.5, §18.36.3.

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use sluice_kv::{Faults, RunLimits};
use sluice_namespace::stable_storage::replies;
use sluice_namespace::{FormatOptions, FsError, Namespace};
use sluice_xdr::nfs4::*;

use crate::harness::*;

const SECOND: Duration = Duration::from_secs(1);
const SLOT: u32 = 3;

/// A request of slot 3 that is to be cached.
pub(crate) fn request(client: &Client, seqid: u32, ops: Vec<nfs_argop4>) -> COMPOUND4args {
    request_caching(client, seqid, ops, true)
}

fn request_caching(client: &Client, seqid: u32, ops: Vec<nfs_argop4>, cache: bool) -> COMPOUND4args {
    let first = sequence(client.session, SLOT, seqid, cache);
    let argarray = std::iter::once(first).chain(ops).collect();
    COMPOUND4args { tag: Bytes::new(), minorversion: 2, argarray }
}

pub(crate) async fn send(raw: &Raw, request: &COMPOUND4args) -> COMPOUND4res {
    sluice_xdr::from_bytes(raw.bytes(request).await.unwrap()).unwrap()
}

/// The same over a new connection, as often as SEQUENCE says DELAY (the store may be away).
pub(crate) async fn send_again(world: &World, request: &COMPOUND4args) -> COMPOUND4res {
    loop {
        let reply = send(&world.connect("a").await, request).await;
        if reply.resarray.len() > 1 || reply.status != nfsstat4::NFS4ERR_DELAY {
            return reply;
        }
        world.sleep(SECOND).await;
    }
}

/// What must be the same in both replies: all but SEQUENCE's flags, and a stateid of an open that was lost.
pub(crate) fn comparable(reply: &COMPOUND4res) -> Vec<nfs_resop4> {
    let mut results = reply.resarray[1..].to_vec();
    for result in &mut results {
        if let nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(ok)) = result {
            ok.stateid = stateid4::default();
        }
    }
    results
}

fn guarded(name: &str) -> nfs_argop4 {
    let how = openflag4::OPEN4_CREATE(createhow4::GUARDED4(fattr(&mode(0o600))));
    open_with(b"owner", BOTH, 0, how, open_claim4::CLAIM_NULL(Bytes::copy_from_slice(name.as_bytes())))
}

fn exclusive(name: &str) -> nfs_argop4 {
    let both = creatverfattr { cva_verf: verifier4([9; 8]), cva_attrs: fattr(&mode(0o600)) };
    let how = openflag4::OPEN4_CREATE(createhow4::EXCLUSIVE4_1(both));
    open_with(b"owner", BOTH, 0, how, open_claim4::CLAIM_NULL(Bytes::copy_from_slice(name.as_bytes())))
}

fn setxattr() -> nfs_argop4 {
    nfs_argop4::OP_SETXATTR(SETXATTR4args {
        sxa_option: setxattr_option4::SETXATTR4_CREATE,
        sxa_key: Bytes::from_static(b"new"),
        sxa_value: Bytes::from_static(b"value"),
    })
}

fn removexattr() -> nfs_argop4 {
    nfs_argop4::OP_REMOVEXATTR(REMOVEXATTR4args { rxa_name: Bytes::from_static(b"old") })
}

fn mkdir(name: &str) -> nfs_argop4 {
    create(createtype4::NF4DIR, name, &mode(0o700))
}

/// Requests that would fail, or do something else, if they ran twice.
fn once_only() -> Vec<(&'static str, Vec<nfs_argop4>)> {
    let stays = getattr(&[FATTR4_TYPE, FATTR4_FILEID]);
    let all = vec![
        ("mkdir", vec![putrootfh(), mkdir("new"), getfh(), stays.clone()]),
        ("symlink", vec![putrootfh(), symlink("new", "target"), getfh(), stays.clone()]),
        ("rmdir", vec![putrootfh(), remove("dir")]),
        ("remove", vec![putrootfh(), remove("file"), stays.clone()]),
        ("rename", vec![putrootfh(), savefh(), putrootfh(), rename("file", "new"), lookup("new"), getfh()]),
        ("link", vec![putrootfh(), lookup("file"), savefh(), putrootfh(), link("new"), stays.clone()]),
        ("guarded", vec![putrootfh(), guarded("new"), getfh(), stays.clone()]),
        ("exclusive", vec![putrootfh(), exclusive("new"), getfh(), stays]),
        ("setxattr", vec![putrootfh(), lookup("file"), setxattr()]),
        ("removexattr", vec![putrootfh(), lookup("file"), removexattr()]),
        (
            "several",
            vec![
                putrootfh(),
                mkdir("new"),
                mkdir("below"),
                putrootfh(),
                remove("file"),
                lookup("new"),
                getfh(),
            ],
        ),
        ("swap", {
            let (out, back) = (rename("file", "new"), rename("dir", "file"));
            vec![putrootfh(), savefh(), out, back, rename("new", "dir"), lookup("dir"), getfh()]
        }),
    ];
    all
}

/// A client, and in the root a file with an attribute, and a directory.
async fn prepared(world: &World) -> Client {
    let client = world.client("a").await;
    client.mkdir("/", "dir").await;
    let (fh, stateid) = client.open("file", BOTH, 0).await;
    let old = nfs_argop4::OP_SETXATTR(SETXATTR4args {
        sxa_option: setxattr_option4::SETXATTR4_EITHER,
        sxa_key: Bytes::from_static(b"old"),
        sxa_value: Bytes::from_static(b"value"),
    });
    client.ok(vec![putfh(&fh), old, close(stateid)]).await;
    client
}

#[test]
fn a_lost_reply_is_given_again_after_a_restart() {
    for (n, (name, ops)) in (1..).zip(once_only()) {
        simulate(n, async |mut world: World| {
            let client = prepared(&world).await;
            let request = request(&client, 1, ops.clone());
            let first = send(&client.raw, &request).await;
            assert_eq!(first.status, nfsstat4::NFS4_OK, "{name}: {first:?}");
            for round in 0..2 {
                world.restart().await;
                let again = send_again(&world, &request).await;
                assert_eq!(comparable(&again), comparable(&first), "{name}, restart {round}");
                let Some(nfs_resop4::OP_SEQUENCE(SEQUENCE4res::NFS4_OK(ok))) = again.resarray.first() else {
                    panic!("{again:?}");
                };
                assert_ne!(ok.sr_status_flags & SEQ4_STATUS_RESTART_RECLAIM_NEEDED, 0);
                // And now out of memory.
                assert_eq!(comparable(&send_again(&world, &request).await), comparable(&again), "{name}");
            }
        });
    }
}

/// The server dies at a random moment of a request that takes a while: before, between and after its
/// transactions. Half the time it dies again while the request is resumed.
fn dies(seed: u64, which: usize, after: Duration, twice: bool) {
    let (name, ops) = once_only().swap_remove(which);
    simulate(seed, async |mut world: World| {
        let client = prepared(&world).await;
        let request = request(&client, 1, ops.clone());
        let slow = Faults { latency: Duration::from_millis(20), ..Faults::NONE };
        world.db.set_faults(slow);
        let raw = client.raw.clone();
        for _ in 0..=u8::from(twice) {
            let raw = if raw.connection.is_closed() { world.connect("a").await } else { raw.clone() };
            let lost = raw.bytes(&request);
            let dies = async {
                world.sleep(after).await;
                world.restart().await;
            };
            drop(tokio::join!(lost, dies));
        }
        world.db.set_faults(Faults::NONE);
        let reply = send_again(&world, &request).await;
        let grace = reply.status == nfsstat4::NFS4ERR_GRACE;
        if !grace {
            assert_eq!(reply.status, nfsstat4::NFS4_OK, "{name}: {reply:?}");
            return;
        }
        // An OPEN that had not begun: it made nothing, and its client asks again after grace.
        assert!(matches!(name, "guarded" | "exclusive"), "{name}: {reply:?}");
        let there = vec![putrootfh(), lookup("new")];
        assert_eq!(client.over_slots(world.connect("a").await).status(there).await, nfsstat4::NFS4ERR_NOENT);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn nothing_runs_twice_whenever_the_server_dies(
        seed in 1u64..1 << 40,
        which in 0..once_only().len(),
        millis in 0u64..250,
        twice: bool,
    ) {
        dies(seed, which, Duration::from_millis(millis), twice);
    }
}

/// A commit whose result is unknown is neither repeated nor forgotten.
#[test]
fn an_unknown_result_becomes_known() {
    simulate(20, async |world: World| {
        let client = prepared(&world).await;
        let faults = Faults {
            unknown_applied: 0.3,
            unknown_lost: 0.3,
            conflict: 0.1,
            unavailable: 0.1,
            latency: Duration::from_millis(2),
            ..Faults::NONE
        };
        world.db.set_faults(faults);
        for n in 0..60 {
            let name = format!("d{n}");
            for op in [mkdir(&name), remove(&name), guarded(&name), remove(&name)] {
                client.patient(vec![putrootfh(), op]).await;
            }
            let (from, to) = if n % 2 == 0 { ("file", "moved") } else { ("moved", "file") };
            client.patient(vec![putrootfh(), savefh(), rename(from, to)]).await;
        }
    });
}

/// While the store cannot say whether a commit happened, nobody is told anything.
#[test]
fn what_is_unknown_is_not_answered() {
    let silent = std::cell::Cell::new(0);
    for (applied, millis) in (0..40).map(|n| (n % 2 == 0, n)) {
        simulate(21, async |world: World| {
            let client = prepared(&world).await;
            let request = request(&client, 1, vec![putrootfh(), mkdir("new"), getfh()]);
            let (unknown_applied, unknown_lost) = if applied { (1.0, 0.0) } else { (0.0, 1.0) };
            let latency = Duration::from_millis(10);
            world.db.set_faults(Faults { unknown_applied, unknown_lost, latency, ..Faults::NONE });
            let away = async {
                world.sleep(Duration::from_millis(millis)).await;
                world.db.set_faults(Faults { unavailable: 1.0, ..Faults::NONE });
                // Longer than any transaction is tried.
                world.sleep(20 * SECOND).await;
                let early = send(&world.connect("a").await, &request).await;
                // The original is still being served.
                silent.set(silent.get() + u32::from(early.resarray.len() == 1));
                world.db.set_faults(Faults::NONE);
            };
            let (reply, ()) = tokio::join!(send(&client.raw, &request), away);
            let there = client.status(vec![putrootfh(), lookup("new")]).await;
            let told = match reply.status {
                nfsstat4::NFS4ERR_DELAY => nfsstat4::NFS4ERR_NOENT,
                other => other,
            };
            assert_eq!(there, told, "{millis} ms: {reply:?}");
        });
    }
    assert!(silent.get() > 2, "the moment was never met");
}

/// §2.10.6.1.3.1, also after a restart.
#[test]
fn another_request_under_the_same_seqid_is_a_false_retry() {
    simulate(22, async |mut world: World| {
        let client = prepared(&world).await;
        send(&client.raw, &request(&client, 1, vec![putrootfh(), mkdir("one")])).await;
        world.restart().await;
        let raw = world.connect("a").await;
        for ops in [vec![putrootfh(), mkdir("two")], vec![putrootfh()]] {
            let other = send(&raw, &request(&client, 1, ops)).await;
            assert_eq!(other.status, nfsstat4::NFS4ERR_SEQ_FALSE_RETRY);
        }
        let somebody = world.connect("a").await.with_user(7, 7, &[]);
        let other = send(&somebody, &request(&client, 1, vec![putrootfh(), mkdir("one")])).await;
        assert_eq!(other.status, nfsstat4::NFS4ERR_SEQ_FALSE_RETRY);
        let old = send(&raw, &request(&client, 0, vec![putrootfh(), mkdir("one")])).await;
        assert_eq!(old.status, nfsstat4::NFS4ERR_SEQ_MISORDERED);
        let retry = send(&raw, &request(&client, 1, vec![putrootfh(), mkdir("one")])).await;
        assert_eq!(retry.status, nfsstat4::NFS4_OK);
    });
}

/// A client that sends a request again may use more slots by then: sa_highest_slotid is not the request.
#[test]
fn a_retry_may_name_another_highest_slot() {
    simulate(23, async |mut world: World| {
        let client = prepared(&world).await;
        let mut request = request(&client, 1, vec![putrootfh(), mkdir("one")]);
        send(&client.raw, &request).await;
        for restart in [false, true] {
            if restart {
                world.restart().await;
            }
            let nfs_argop4::OP_SEQUENCE(args) = &mut request.argarray[0] else { panic!() };
            args.sa_highest_slotid += 1;
            assert_eq!(send_again(&world, &request).await.status, nfsstat4::NFS4_OK);
        }
    });
}

/// What was too large to be kept, and not asked to be, is known to have been done.
#[test]
fn a_large_reply_that_was_not_to_be_cached_is_gone_after_a_restart() {
    simulate(24, async |mut world: World| {
        let client = prepared(&world).await;
        for n in 0..10 {
            client.mkdir("/", &format!("a-rather-long-name-of-a-directory-{n}")).await;
        }
        let list = readdir(0, verifier4::default(), 32768, &[FATTR4_FILEID]);
        let large = request_caching(&client, 1, vec![putrootfh(), list, mkdir("new")], false);
        let small = request_caching(&client, 2, vec![putrootfh(), mkdir("small")], false);
        assert_eq!(send(&client.raw, &large).await.status, nfsstat4::NFS4_OK);
        world.restart().await;
        let again = send_again(&world, &large).await;
        assert_eq!((again.status, again.resarray.len()), (nfsstat4::NFS4ERR_RETRY_UNCACHED_REP, 2));
        assert_eq!(send_again(&world, &small).await.status, nfsstat4::NFS4_OK);
        world.restart().await;
        assert_eq!(send_again(&world, &small).await.status, nfsstat4::NFS4_OK, "small ones are kept anyway");
    });
}

/// What an interrupted OPEN yields can be used at once, and reclaimed like any other open.
#[test]
fn an_open_that_is_resumed_is_open() {
    simulate(25, async |mut world: World| {
        let client = prepared(&world).await;
        let make = request(&client, 1, vec![putrootfh(), guarded("new"), getfh()]);
        let (fh, lost) = opened(&send(&client.raw, &make).await.resarray);
        let other = world.client("b").await;
        world.restart().await;
        let again = send_again(&world, &make).await;
        let (same, stateid) = opened(&again.resarray);
        assert_eq!(same, fh);
        assert_ne!(stateid.other, lost.other);
        let client = client.over_slots(world.connect("a").await);
        let fresh = vec![putrootfh(), guarded("newer")];
        assert_eq!(client.status(fresh.clone()).await, nfsstat4::NFS4ERR_GRACE, "others wait");
        let reclaim = vec![putfh(&fh), open_previous(b"owner", BOTH, 0), getfh()];
        let (_, reclaimed) = opened(&client.ok(reclaim).await);
        assert_eq!((reclaimed.other, reclaimed.seqid), (stateid.other, stateid.seqid + 1));
        client.ok(vec![reclaim_complete(false)]).await;
        other.over_slots(world.connect("b").await).ok(vec![reclaim_complete(false)]).await;
        world.sleep(2 * SECOND).await;
        client.ok(fresh).await;
        client.ok(vec![putfh(&fh), close(reclaimed)]).await;
    });
}

/// The retry comes when grace is over, and without a right to reclaim: the file is there, and its own.
#[test]
fn an_open_is_resumed_after_grace() {
    simulate(26, async |mut world: World| {
        let client = prepared(&world).await;
        let make = request(&client, 1, vec![putrootfh(), guarded("new"), getfh()]);
        let (fh, _) = opened(&send(&client.raw, &make).await.resarray);
        world.restart().await;
        world.sleep(world.config.lease * 3 / 2).await;
        // Nor does what its owner has opened since keep it out.
        let client = client.over_slots(world.connect("a").await);
        client.ok(vec![reclaim_complete(false)]).await;
        client.ok(vec![putfh(&fh), open_fh(b"owner", READ, OPEN4_SHARE_DENY_WRITE)]).await;
        let (same, _) = opened(&send_again(&world, &make).await.resarray);
        assert_eq!(same, fh);
    });
}

/// A file that was there and was cut off: not a second time, when somebody may have written to it.
#[test]
fn a_truncation_by_open_is_not_repeated() {
    simulate(27, async |mut world: World| {
        let client = prepared(&world).await;
        client.ok(vec![putrootfh(), lookup("file"), setattr(ANONYMOUS, &size(100))]).await;
        let empty = Attributes { size: Some(0), ..Attributes::default() };
        let how = openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(fattr(&empty)));
        let name = open_claim4::CLAIM_NULL(Bytes::from_static(b"file"));
        let cut = request(&client, 1, vec![putrootfh(), open_with(b"owner", BOTH, 0, how, name), getfh()]);
        let first = send(&client.raw, &cut).await;
        assert_eq!(client.attributes("file", &[FATTR4_SIZE]).await.size, Some(0));
        client.ok(vec![putrootfh(), lookup("file"), setattr(ANONYMOUS, &size(70))]).await;
        world.restart().await;
        assert_eq!(comparable(&send_again(&world, &cut).await), comparable(&first));
        let client = client.over_slots(world.connect("a").await);
        assert_eq!(client.attributes("file", &[FATTR4_SIZE]).await.size, Some(70));
    });
}

/// What ftruncate sends, over sessions that outlive a restart and others: a commit of unknown result leaves nothing that
/// keeps the next from cutting the file, and nothing that a later start would cut.
#[test]
fn a_truncation_of_unknown_result_is_carried_out() {
    for (seed, persists, timed) in [(31, true, true), (32, false, true), (33, false, false)] {
        simulate(seed, async |mut world: World| {
            let client = match persists {
                true => world.client("a").await,
                false => passing(&world).await,
            };
            let (fh, open) = client.open("file", BOTH, 0).await;
            client.ok(vec![putfh(&fh), setattr(open, &size(1 << 20))]).await;
            crate::layout_recall::get(&client, &fh, open).await;
            let now = timed.then_some(settime4::Default(time_how4::SET_TO_SERVER_TIME4));
            let shorter =
                |size| Attributes { size: Some(size), time_modify_set: now, ..Attributes::default() };
            world.db.set_faults(Faults { unknown_applied: 1.0, ..Faults::NONE });
            let cut = request(&client, 1, vec![putfh(&fh), setattr(open, &shorter(4096))]);
            let calm = async {
                world.sleep(SECOND).await;
                world.db.set_faults(Faults::NONE);
            };
            // It may go without an answer.
            drop(tokio::join!(client.raw.bytes(&cut), calm));
            world.sleep(5 * SECOND).await;
            assert_eq!(intents(&world).await, Vec::<u64>::new());
            let data_server = world.data_server();
            let cut = data_server.cuts();
            assert!(cut.iter().any(|(_, size)| *size == 4096), "{cut:?}");
            client.patient(vec![putfh(&fh), setattr(open, &shorter(2048))]).await;
            let cuts = data_server.cuts();
            world.restart().await;
            world.sleep(5 * SECOND).await;
            assert_eq!(data_server.cuts(), cuts);
        });
    }
}

/// A client whose session ends with the server.
async fn passing(world: &World) -> Client {
    let raw = world.connect("a").await;
    let known = raw.exchange_id(b"a", [1; 8]).await;
    let mut args = create_session_args(known.eir_clientid, known.eir_sequenceid);
    args.csa_flags = CREATE_SESSION4_FLAG_CONN_BACK_CHAN;
    let nfs_resop4::OP_CREATE_SESSION(CREATE_SESSION4res::NFS4_OK(made)) =
        raw.one(nfs_argop4::OP_CREATE_SESSION(args)).await
    else {
        panic!("no session")
    };
    let client = Client::new(raw, known.eir_clientid, made.csr_sessionid);
    client.ok(vec![reclaim_complete(false)]).await;
    client
}

/// Files that are still to be cut at data servers, and where.
async fn intents(world: &World) -> Vec<u64> {
    let all = world
        .db
        .run_read::<_, FsError, _>(RunLimits::default(), |mut txn| {
            Box::pin(async move {
                let namespace = Namespace::load_or_format(&mut txn, &FormatOptions::new(&world.env)).await?;
                namespace.truncate_intents(&txn, None, 1000).await
            })
        })
        .await
        .unwrap();
    all.into_iter().map(|intent| intent.size).collect()
}

/// A SETATTR of the size and more, of a server that dies meanwhile, has done all of it or nothing: what others write
/// before it is sent again is not cut off by what is left of it.
#[test]
fn a_size_is_set_together_with_the_rest() {
    let (all, none) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    for millis in (0..400).step_by(8) {
        simulate(34, async |mut world: World| {
            let client = prepared(&world).await;
            client.ok(vec![putrootfh(), lookup("file"), setattr(ANONYMOUS, &size(100))]).await;
            let both = Attributes { size: Some(40), mode: Some(0o600), ..Attributes::default() };
            let set = request(&client, 1, vec![putrootfh(), lookup("file"), setattr(ANONYMOUS, &both)]);
            world.db.set_faults(Faults { latency: Duration::from_millis(20), ..Faults::NONE });
            let raw = client.raw.clone();
            let dies = async {
                world.sleep(Duration::from_millis(millis)).await;
                world.restart().await;
            };
            drop(tokio::join!(raw.bytes(&set), dies));
            world.db.set_faults(Faults::NONE);
            let client = client.over_slots(world.connect("a").await);
            let found = client.attributes("file", &[FATTR4_SIZE, FATTR4_MODE]).await;
            match (found.size, found.mode) {
                (Some(40), Some(0o600)) => all.set(all.get() + 1),
                (Some(100), Some(0o644)) => none.set(none.get() + 1),
                other => panic!("{other:?} after {millis} ms"),
            }
        });
    }
    assert!(all.get() > 2 && none.get() > 2, "{all:?} {none:?}");
}

/// Opens, locks and what only reads leave nothing behind: run again, they find what there is.
#[test]
fn what_changes_nothing_writes_nothing() {
    simulate(28, async |mut world: World| {
        let client = prepared(&world).await;
        let before = rows(&world).await;
        let read = request(&client, 1, vec![putrootfh(), lookup("file"), getattr(&[FATTR4_SIZE])]);
        let open = request(&client, 2, vec![putrootfh(), open_name("file", b"o", READ, 0)]);
        let fails = request(&client, 3, vec![putrootfh(), mkdir("dir")]);
        send(&client.raw, &read).await;
        send(&client.raw, &open).await;
        assert_eq!(send(&client.raw, &fails).await.status, nfsstat4::NFS4ERR_EXIST);
        assert_eq!(rows(&world).await, before);
        world.restart().await;
        assert_eq!(send_again(&world, &fails).await.status, nfsstat4::NFS4ERR_EXIST);
    });
}

/// Session and slot of every reply row.
async fn rows(world: &World) -> Vec<([u8; 16], u32)> {
    let all = world
        .db
        .run_read::<_, FsError, _>(RunLimits::default(), |txn| {
            Box::pin(async move { replies(&txn, None, 1000).await })
        })
        .await
        .unwrap();
    all.into_iter().map(|(session, slot, _)| (session, slot)).collect()
}

#[test]
fn rows_go_with_their_session() {
    simulate(29, async |mut world: World| {
        let client = prepared(&world).await;
        send(&client.raw, &request(&client, 1, vec![putrootfh(), mkdir("new")])).await;
        let id = client.session.0;
        assert!(rows(&world).await.contains(&(id, SLOT)));
        let second = client.raw.create_session(client.id, 2).await;
        let CREATE_SESSION4res::NFS4_OK(second) = second else { panic!("{second:?}") };
        client.raw.compound(vec![destroy_session(client.session)]).await;
        assert_eq!(rows(&world).await, []);
        // A client that falls silent, and one that restarts.
        let client = Client::new(client.raw.clone(), client.id, second.csr_sessionid);
        client.mkdir("/", "silent").await;
        let other = world.client("b").await;
        other.mkdir("/", "restarts").await;
        assert_eq!(rows(&world).await.len(), 2);
        other.raw.session(b"b", [2; 8], 1).await;
        assert_eq!(rows(&world).await.len(), 1);
        world.sleep(3 * world.config.lease).await;
        assert_eq!(rows(&world).await, []);
        world.restart().await;
        assert_eq!(rows(&world).await, []);
    });
}

/// A request that outlived its session left a row: the next start clears it.
#[test]
fn a_row_without_a_session_is_cleared() {
    simulate(30, async |mut world: World| {
        let client = prepared(&world).await;
        client.mkdir("/", "new").await;
        let kept = rows(&world).await;
        let stray = [0xee; 16];
        world
            .db
            .run::<_, FsError, _>(RunLimits::default(), |mut txn| {
                Box::pin(async move {
                    let row = sluice_namespace::stable_storage::ReplyRow {
                        stamp: sluice_kv::Versionstamp([0; 10]),
                        seqid: 1,
                        op_index: 1,
                        fingerprint: 1,
                        results: Bytes::new(),
                    };
                    sluice_namespace::stable_storage::put_reply(&mut txn, &stray, 7, &row);
                    Ok(())
                })
            })
            .await
            .unwrap();
        assert_eq!(rows(&world).await.len(), kept.len() + 1);
        world.restart().await;
        assert_eq!(rows(&world).await, kept);
    });
}
