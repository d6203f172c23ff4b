//! Callbacks: recalls answered in every way, back channels lost and repaired. RFC 8881 §20, §2.10.3.1.

use std::time::Duration;

use sluice_mds::Config;
use sluice_rpc::Credential;
use sluice_state::lease::seq4_status;
use sluice_xdr::nfs4::*;

use crate::callbacks::Answer;
use crate::harness::*;

fn delegating() -> Config {
    Config { delegation_quiet: Duration::ZERO, ..at_data_servers() }
}

/// Opens for reading; the delegation that came with it.
async fn delegated(client: &Client, name: &str) -> (nfs_fh4, stateid4) {
    let results = client.ok(vec![putrootfh(), open_name(name, b"reader", READ, 0), getfh()]).await;
    let [_, nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(open)), nfs_resop4::OP_GETFH(GETFH4res::NFS4_OK(fh))] =
        &results[..]
    else {
        panic!("{results:?}");
    };
    match &open.delegation {
        open_delegation4::OPEN_DELEGATE_READ(given) => (fh.object.clone(), given.stateid),
        other => panic!("no delegation: {other:?}"),
    }
}

/// A file that exists, with nobody's state on it.
async fn make(client: &Client, name: &str) {
    let (fh, stateid) = client.open(name, WRITE, 0).await;
    client.ok(vec![putfh(&fh), close(stateid)]).await;
}

fn write_open(name: &str) -> Vec<nfs_argop4> {
    vec![putrootfh(), open_name(name, b"writer", WRITE, 0), getfh()]
}

#[test]
fn a_recall_is_answered_and_followed_by_the_return() {
    simulate_with(1, delegating(), async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        make(&b, "f").await;
        let (fh, stateid) = delegated(&a, "f").await;
        let give_back = async {
            until(&world.env, || (a.callbacks().count() > 0).then_some(())).await;
            a.ok(vec![putfh(&fh), delegreturn(stateid)]).await;
        };
        both(b.patient(write_open("f")), give_back).await;
        let received = a.callbacks().received();
        assert_eq!(received.len(), 1);
        let callback = &received[0];
        let nfs_cb_argop4::OP_CB_RECALL(recall) = &callback.operation else { panic!("{callback:?}") };
        assert_eq!((&recall.fh, recall.stateid.other, recall.truncate), (&fh, stateid.other, false));
        assert_eq!((callback.minor, callback.sequence.csa_sessionid), (2, a.session));
        assert_eq!((callback.sequence.csa_slotid, callback.sequence.csa_sequenceid), (0, 1));
        let Credential::Sys(credential) = &callback.credential else { panic!("{callback:?}") };
        assert_eq!((&credential.machine_name[..], credential.uid), (&b"client"[..], 0));
    });
}

/// Its holder may keep back what it has written where the file is to be empty (§20.2). What is asked for may fail after that, and
/// most of it leaves the data where it is.
#[test]
fn a_recall_never_says_that_the_data_goes() {
    simulate_with(6, delegating(), async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let both_at_once = Attributes { size: Some(5), ..mode(0o4755) };
        let changes = [mode(0o4755), mode(0o2755), both_at_once, size(5), size(0)];
        for (at, change) in changes.iter().enumerate() {
            let name = format!("f{at}");
            make(&b, &name).await;
            let (fh, stateid) = delegated(&a, &name).await;
            let give_back = async {
                until(&world.env, || (a.callbacks().count() > at).then_some(())).await;
                a.ok(vec![putfh(&fh), delegreturn(stateid)]).await;
            };
            both(b.patient(vec![putfh(&fh), setattr(ANONYMOUS, change)]), give_back).await;
            let nfs_cb_argop4::OP_CB_RECALL(recall) = &a.callbacks().received()[at].operation else {
                panic!("{change:?}")
            };
            assert!(!recall.truncate, "{change:?}");
        }
    });
}

#[test]
fn delay_is_asked_again_with_the_next_sequence_id() {
    simulate_with(2, delegating(), async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        make(&b, "f").await;
        let (fh, stateid) = delegated(&a, "f").await;
        a.callbacks().script(&[
            Answer::Status(nfsstat4::NFS4ERR_DELAY),
            Answer::Status(nfsstat4::NFS4ERR_BAD_STATEID),
        ]);
        let give_back = async {
            until(&world.env, || (a.callbacks().count() > 2).then_some(())).await;
            a.ok(vec![putfh(&fh), delegreturn(stateid)]).await;
        };
        both(b.patient(write_open("f")), give_back).await;
        let seqids: Vec<u32> =
            a.callbacks().received().iter().map(|callback| callback.sequence.csa_sequenceid).collect();
        assert_eq!(seqids, [1, 2, 3]);
    });
}

/// RFC 8881 §20.9.3: a CB_SEQUENCE answered DELAY has not moved its slot.
#[test]
fn a_delayed_cb_sequence_is_sent_again_as_it_was() {
    simulate_with(3, delegating(), async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        make(&b, "f").await;
        let (fh, stateid) = delegated(&a, "f").await;
        a.callbacks().script(&[Answer::Sequence(nfsstat4::NFS4ERR_DELAY)]);
        let give_back = async {
            until(&world.env, || (a.callbacks().count() > 1).then_some(())).await;
            a.ok(vec![putfh(&fh), delegreturn(stateid)]).await;
        };
        both(b.patient(write_open("f")), give_back).await;
        let seqids: Vec<u32> =
            a.callbacks().received().iter().map(|callback| callback.sequence.csa_sequenceid).collect();
        assert_eq!(seqids, [1, 1]);
    });
}

/// A path that is down is told in SEQUENCE, repaired by BIND_CONN_TO_SESSION, and what may have been seen is
/// sent again in its own slot.
#[test]
fn silence_moves_the_callback_to_another_connection() {
    simulate_with(4, delegating(), async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        make(&b, "f").await;
        let (fh, stateid) = delegated(&a, "f").await;
        a.callbacks().script(&[Answer::Silence]);
        let repair = async {
            until(&world.env, || (a.callbacks().count() > 0).then_some(())).await;
            world.sleep(Duration::from_secs(6)).await;
            let down = seq4_status::CB_PATH_DOWN | seq4_status::CB_PATH_DOWN_SESSION;
            assert_eq!(a.flags().await, down);
            let other = world.connect_as("a", std::sync::Arc::clone(a.callbacks())).await;
            let bound = other.one(bind(a.session, channel_dir_from_client4::CDFC4_BACK_OR_BOTH)).await;
            let nfs_resop4::OP_BIND_CONN_TO_SESSION(BIND_CONN_TO_SESSION4res::NFS4_OK(bound)) = bound else {
                panic!("{bound:?}");
            };
            assert_eq!(bound.bctsr_dir, channel_dir_from_server4::CDFS4_BOTH);
            assert_eq!(a.flags().await, 0);
            until(&world.env, || (a.callbacks().count() > 2).then_some(())).await;
            a.ok(vec![putfh(&fh), delegreturn(stateid)]).await;
            other
        };
        both(b.patient(write_open("f")), repair).await;
        let seqids: Vec<u32> =
            a.callbacks().received().iter().map(|callback| callback.sequence.csa_sequenceid).collect();
        // The repetition is answered RETRY_UNCACHED_REP: its result is lost, and it is asked anew.
        assert_eq!(seqids, [1, 1, 2]);
    });
}

/// Nobody answers: the machine's deadline revokes, the client hears of it and frees the stateid.
#[test]
fn what_cannot_be_recalled_is_revoked() {
    simulate_with(5, delegating(), async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        make(&b, "f").await;
        let (fh, stateid) = delegated(&a, "f").await;
        a.raw.connection.close();
        world.sleep(Duration::from_millis(100)).await;
        let start = world.env.clock.now();
        b.patient(write_open("f")).await;
        let took = world.env.clock.now().since(start);
        assert!(took >= world.config.recall_timeout, "{took:?}");
        assert!(took < world.config.recall_timeout + Duration::from_secs(6), "{took:?}");
        let a = a.over(world.connect("a").await);
        let revoked = seq4_status::RECALLABLE_STATE_REVOKED;
        assert_eq!(a.flags().await & revoked, revoked);
        assert_eq!(a.tested(&[stateid]).await, [nfsstat4::NFS4ERR_DELEG_REVOKED]);
        let returned = a.status(vec![putfh(&fh), delegreturn(stateid)]).await;
        assert_eq!(returned, nfsstat4::NFS4ERR_DELEG_REVOKED);
        for op in [setattr(stateid, &size(1)), io_advise(stateid)] {
            assert_eq!(a.status(vec![putfh(&fh), op]).await, nfsstat4::NFS4ERR_DELEG_REVOKED);
        }
        for _ in 0..5 {
            assert_eq!(a.flags().await & revoked, revoked, "until it is freed each reply tells of it");
            world.sleep(Duration::from_millis(100)).await;
        }
        world.sleep(Duration::from_secs(5)).await;
        assert_eq!(a.flags().await & revoked, revoked);
        a.ok(vec![free_stateid(stateid)]).await;
        assert_eq!(a.flags().await & revoked, 0);
    });
}

#[test]
fn a_client_that_denies_callbacks_is_told_that_the_path_is_down() {
    simulate_with(6, delegating(), async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        make(&b, "f").await;
        delegated(&a, "f").await;
        a.callbacks().script(&[Answer::Denied]);
        let look = async {
            until(&world.env, || (a.callbacks().count() > 0).then_some(())).await;
            world.sleep(Duration::from_millis(100)).await;
            assert_ne!(a.flags().await & seq4_status::CB_PATH_DOWN_SESSION, 0);
        };
        both(b.patient(write_open("f")), look).await;
        assert_eq!(a.callbacks().count(), 1);
    });
}

#[test]
fn a_session_unknown_to_the_client_is_a_fault() {
    simulate_with(7, delegating(), async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        make(&b, "f").await;
        delegated(&a, "f").await;
        a.callbacks().script(&[Answer::Sequence(nfsstat4::NFS4ERR_BADSESSION)]);
        let look = async {
            until(&world.env, || (a.callbacks().count() > 0).then_some(())).await;
            world.sleep(Duration::from_millis(100)).await;
            assert_ne!(a.flags().await & seq4_status::BACKCHANNEL_FAULT, 0);
        };
        both(b.patient(write_open("f")), look).await;
        assert_eq!(a.callbacks().count(), 1);
    });
}

/// §8.3: courteous, but not in the way.
#[test]
fn a_client_whose_lease_is_over_is_not_waited_for() {
    simulate_with(8, delegating(), async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        make(&b, "f").await;
        delegated(&a, "f").await;
        a.raw.connection.close();
        for _ in 0..7 {
            world.sleep(Duration::from_secs(10)).await;
            b.ok(Vec::new()).await;
        }
        let start = world.env.clock.now();
        b.patient(write_open("f")).await;
        let took = world.env.clock.now().since(start);
        assert!(took < Duration::from_secs(1), "{took:?}");
        let gone = a.over(world.connect("a").await);
        assert_eq!(gone.status(Vec::new()).await, nfsstat4::NFS4ERR_BADSESSION);
    });
}

#[test]
fn more_recalls_than_slots_take_turns() {
    simulate_with(9, delegating(), async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let names: Vec<String> = (0..40).map(|n| format!("f{n}")).collect();
        let mut held = Vec::new();
        for name in &names {
            make(&b, name).await;
            held.push(delegated(&a, name).await);
        }
        let opens = async {
            for name in &names {
                // Each starts its recall and is told to come again.
                b.compound(write_open(name)).await;
            }
        };
        let give_back = async {
            for (fh, stateid) in &held {
                a.ok(vec![putfh(fh), delegreturn(*stateid)]).await;
            }
        };
        let together = async {
            until(&world.env, || (a.callbacks().count() > 0).then_some(())).await;
            give_back.await;
        };
        both(opens, together).await;
        let received = a.callbacks().received();
        assert!(received.iter().all(|callback| callback.sequence.csa_slotid < 16));
    });
}

#[test]
fn without_a_back_channel_there_is_no_delegation() {
    simulate_with(10, delegating(), async |world: World| {
        let raw = world.connect("a").await;
        let known = raw.exchange_id(b"a", [1; 8]).await;
        let mut args = create_session_args(known.eir_clientid, known.eir_sequenceid);
        args.csa_flags = 0;
        let nfs_resop4::OP_CREATE_SESSION(CREATE_SESSION4res::NFS4_OK(made)) =
            raw.one(nfs_argop4::OP_CREATE_SESSION(args)).await
        else {
            panic!()
        };
        let a = Client::new(raw, known.eir_clientid, made.csr_sessionid);
        a.ok(vec![reclaim_complete(false)]).await;
        make(&a, "f").await;
        let nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(open)) =
            a.last(vec![putrootfh(), open_name("f", b"o", READ, 0)]).await
        else {
            panic!()
        };
        assert_eq!(open.delegation, open_delegation4::OPEN_DELEGATE_NONE);
    });
}

/// CB_NOTIFY_LOCK, §20.11.
#[test]
fn a_waiting_lock_owner_is_told() {
    simulate(11, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, mine) = a.open("f", BOTH, 0).await;
        let (_, theirs) = b.open("f", BOTH, 0).await;
        let nfs_resop4::OP_LOCK(LOCK4res::NFS4_OK(held)) =
            a.last(vec![putfh(&fh), lock_new(nfs_lock_type4::WRITE_LT, mine, b"la", (0, 10))]).await
        else {
            panic!()
        };
        let wait = vec![putfh(&fh), lock_new(nfs_lock_type4::WRITEW_LT, theirs, b"lb", (0, 10))];
        assert_eq!(b.status(wait.clone()).await, nfsstat4::NFS4ERR_DENIED);
        a.ok(vec![putfh(&fh), locku(nfs_lock_type4::WRITE_LT, held.lock_stateid, (0, 10))]).await;
        until(&world.env, || (b.callbacks().count() > 0).then_some(())).await;
        let nfs_cb_argop4::OP_CB_NOTIFY_LOCK(notice) = &b.callbacks().received()[0].operation else {
            panic!()
        };
        assert_eq!((&notice.cnla_fh, &notice.cnla_lock_owner.owner[..]), (&fh, &b"lb"[..]));
        b.ok(wait).await;
    });
}

/// §9.6: who gives up its place makes way for the next, by whatever it gives it up.
#[test]
fn the_next_in_line_is_told_when_the_one_before_it_frees_its_stateid() {
    simulate(14, async |world: World| {
        let (a, b, c) = (world.client("a").await, world.client("b").await, world.client("c").await);
        let (fh, mine) = a.open("f", BOTH, 0).await;
        let locks = async |client: &Client, ops: nfs_argop4| {
            let result = client.compound(vec![putfh(&fh), ops]).await;
            match result.resarray.last() {
                Some(nfs_resop4::OP_LOCK(LOCK4res::NFS4_OK(ok))) => Ok(ok.lock_stateid),
                Some(nfs_resop4::OP_LOCKU(LOCKU4res::NFS4_OK(stateid))) => Ok(*stateid),
                _ => Err(result.status),
            }
        };
        let write = nfs_lock_type4::WRITE_LT;
        let held = locks(&a, lock_new(write, mine, b"la", (0, 10))).await.unwrap();
        // B has a stateid without a lock, and asks with it.
        let (_, theirs) = b.open("f", BOTH, 0).await;
        let stateid = locks(&b, lock_new(write, theirs, b"lb", (50, 1))).await.unwrap();
        let empty = locks(&b, locku(write, stateid, (50, 1))).await.unwrap();
        let (_, third) = c.open("f", BOTH, 0).await;
        let denied = Err(nfsstat4::NFS4ERR_DENIED);
        assert_eq!(locks(&b, lock_more(nfs_lock_type4::WRITEW_LT, empty, (0, 10))).await, denied);
        assert_eq!(locks(&c, lock_new(nfs_lock_type4::WRITEW_LT, third, b"lc", (0, 10))).await, denied);
        locks(&a, locku(write, held, (0, 10))).await.unwrap();
        until(&world.env, || (b.callbacks().count() > 0).then_some(())).await;
        // The place is reserved for b, which does not want it any more.
        b.ok(vec![free_stateid(empty)]).await;
        world.sleep(Duration::from_millis(500)).await;
        assert_eq!(c.callbacks().count(), 1);
        locks(&c, lock_new(nfs_lock_type4::WRITEW_LT, third, b"lc", (0, 10))).await.unwrap();
    });
}

/// A client with so many slots for callbacks.
pub async fn with_slots(world: &World, host: &str, slots: u32) -> Client {
    let raw = world.connect(host).await;
    let known = raw.exchange_id(host.as_bytes(), [1; 8]).await;
    let mut args = create_session_args(known.eir_clientid, known.eir_sequenceid);
    args.csa_back_chan_attrs.ca_maxrequests = slots;
    let nfs_resop4::OP_CREATE_SESSION(CREATE_SESSION4res::NFS4_OK(made)) =
        raw.one(nfs_argop4::OP_CREATE_SESSION(args)).await
    else {
        panic!()
    };
    let client = Client::new(raw, known.eir_clientid, made.csr_sessionid);
    client.ok(vec![reclaim_complete(false)]).await;
    client
}

/// §20.9.3: a CB_SEQUENCE that fails has not moved its slot, which is as good as before.
#[test]
fn what_was_not_run_leaves_its_slot_as_it_is() {
    let delayed = vec![Answer::Sequence(nfsstat4::NFS4ERR_DELAY); 200];
    let refused = vec![Answer::Sequence(nfsstat4::NFS4ERR_TOO_MANY_OPS)];
    for answers in [delayed, refused] {
        simulate(12, async |world: World| {
            let (a, b) = (world.client("a").await, with_slots(&world, "b", 1).await);
            let (fh, mine) = a.open("f", BOTH, 0).await;
            let (_, theirs) = b.open("f", BOTH, 0).await;
            b.callbacks().script(&answers);
            for _ in 0..2 {
                let before = b.callbacks().count();
                let take = vec![putfh(&fh), lock_new(nfs_lock_type4::WRITE_LT, mine, b"la", (0, 10))];
                let nfs_resop4::OP_LOCK(LOCK4res::NFS4_OK(held)) = a.last(take).await else { panic!() };
                let wait = vec![putfh(&fh), lock_new(nfs_lock_type4::WRITEW_LT, theirs, b"lb", (0, 10))];
                assert_eq!(b.status(wait).await, nfsstat4::NFS4ERR_DENIED);
                a.ok(vec![putfh(&fh), locku(nfs_lock_type4::WRITE_LT, held.lock_stateid, (0, 10))]).await;
                until(&world.env, || (b.callbacks().count() > before).then_some(())).await;
                // Longer than a notice is worth.
                world.sleep(Duration::from_secs(6)).await;
                assert_eq!(b.flags().await, 0);
            }
            let received = b.callbacks().received();
            assert!(received.iter().all(|callback| callback.sequence.csa_sequenceid == 1));
        });
    }
}

/// Who asks has less patience than a path that works may need: its slot is free when the answer comes.
#[test]
fn an_answer_that_comes_late_is_an_answer() {
    simulate(13, async |world: World| {
        let (a, b) = (with_slots(&world, "a", 1).await, world.client("b").await);
        let wants = BOTH | OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG;
        let results = a.ok(vec![putrootfh(), open_create("f", b"o", wants, 0), getfh()]).await;
        let Some(nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(open))) = results.get(1) else {
            panic!("{results:?}")
        };
        let open_delegation4::OPEN_DELEGATE_WRITE(given) = &open.delegation else { panic!("{results:?}") };
        let (fh, _) = opened(&results);
        a.callbacks().script(&[Answer::Late(Duration::from_secs(4), nfsstat4::NFS4ERR_BADHANDLE)]);
        let holder = async {
            until(&world.env, || (a.callbacks().count() > 0).then_some(())).await;
            world.sleep(Duration::from_millis(3500)).await;
            assert_eq!(a.flags().await, 0, "the path is as it was");
            until(&world.env, || (a.callbacks().count() > 1).then_some(())).await;
            a.ok(vec![putfh(&fh), delegreturn(given.stateid)]).await;
        };
        both(b.patient([walk("f"), vec![getattr(&[FATTR4_SIZE])]].concat()), holder).await;
        let slots = a.callbacks().received().into_iter().map(|callback| callback.sequence);
        let slots: Vec<(u32, u32)> = slots.map(|seen| (seen.csa_slotid, seen.csa_sequenceid)).collect();
        let each: Vec<(u32, u32)> = (1..).map(|seqid| (0, seqid)).take(slots.len()).collect();
        assert_eq!(slots, each);
        assert_eq!(a.flags().await, 0);
    });
}

/// The reply of CREATE_SESSION may still be on its way: what the client cannot know yet it answers BADSESSION.
#[test]
fn a_session_is_called_once_its_client_has_used_it() {
    simulate_with(14, delegating(), async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        make(&b, "f").await;
        make(&b, "g").await;
        let (f, of_f) = delegated(&a, "f").await;
        let (g, of_g) = delegated(&a, "g").await;
        let made = a.raw.create_session(a.id, 2).await;
        let CREATE_SESSION4res::NFS4_OK(made) = made else { panic!("{made:?}") };
        let next = Client::new(a.raw.clone(), a.id, made.csr_sessionid);
        let over = |n: usize| a.callbacks().received()[n].sequence.csa_sessionid;
        let first = async {
            until(&world.env, || (a.callbacks().count() > 0).then_some(())).await;
            assert_eq!(over(0), a.session);
            a.ok(vec![putfh(&f), delegreturn(of_f)]).await;
        };
        both(b.patient(write_open("f")), first).await;
        let destroyed = a.raw.compound(vec![destroy_session(a.session)]).await;
        assert_eq!(destroyed.status, nfsstat4::NFS4_OK);
        let second = async {
            world.sleep(Duration::from_secs(2)).await;
            assert_eq!(a.callbacks().count(), 1, "there is no session to call over");
            assert_eq!(next.flags().await, 0);
            until(&world.env, || (a.callbacks().count() > 1).then_some(())).await;
            assert_eq!(over(1), next.session);
            next.ok(vec![putfh(&g), delegreturn(of_g)]).await;
        };
        both(b.patient(write_open("g")), second).await;
    });
}

/// Two mounts of one host, one of them read-only: what the other reads under the delegation is of before what this one writes. A
/// mount that has it itself has returned it before.
#[test]
fn who_opens_for_writing_is_asked_for_its_own_read_delegation_and_does_not_wait() {
    simulate_with(17, delegating(), async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        make(&b, "f").await;
        let (fh, stateid) = delegated(&a, "f").await;
        let results = a.ok(write_open("f")).await;
        let (_, open) = opened(&results);
        until(&world.env, || (a.callbacks().count() > 0).then_some(())).await;
        let nfs_cb_argop4::OP_CB_RECALL(recall) = &a.callbacks().received()[0].operation else { panic!() };
        assert_eq!((&recall.fh, recall.stateid.other), (&fh, stateid.other));
        // What it has open for reading is claimed first.
        let claim = open_claim4::CLAIM_DELEG_CUR_FH(stateid);
        a.ok(vec![putfh(&fh), open_with(b"reader", READ, 0, NOCREATE, claim)]).await;
        a.ok(vec![putfh(&fh), delegreturn(stateid)]).await;
        a.ok(vec![putfh(&fh), close(open)]).await;
        let results = a.ok(write_open("f")).await;
        let (_, open) = opened(&results);
        a.ok(vec![putfh(&fh), close(open)]).await;
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(a.callbacks().count(), 1);
    });
}
