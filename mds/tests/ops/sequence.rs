//! SEQUENCE. Names in parentheses are pynfs codes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sluice_kv::Faults;
use sluice_xdr::nfs4::*;

use crate::harness::*;

fn getroot() -> Vec<nfs_argop4> {
    vec![putrootfh(), getattr(&[FATTR4_TYPE])]
}

fn with(first: nfs_argop4, rest: Vec<nfs_argop4>) -> Vec<nfs_argop4> {
    std::iter::once(first).chain(rest).collect()
}

/// (SEQ1)
#[test]
fn it_may_stand_alone() {
    simulate(1, async |world: World| {
        let client = world.new_client("a").await;
        let reply = client.compound(Vec::new()).await;
        assert_eq!((reply.status, reply.resarray.len()), (nfsstat4::NFS4_OK, 1));
    });
}

/// (SEQ2, SEQ3) Others need it, and it comes first.
#[test]
fn it_leads_every_compound() {
    simulate(2, async |world: World| {
        let client = world.client("a").await;
        let without = client.raw.compound(getroot()).await;
        assert_eq!(without.status, nfsstat4::NFS4ERR_OP_NOT_IN_SESSION);
        let second = vec![sequence(client.session, 1, 1, false)];
        assert_eq!(client.status(second).await, nfsstat4::NFS4ERR_SEQUENCE_POS);
    });
}

/// (SEQ4)
#[test]
fn an_unknown_session_is_bad() {
    simulate(3, async |world: World| {
        let client = world.client("a").await;
        let reply = client.raw.compound(vec![sequence(sessionid4([7; 16]), 0, 1, false)]).await;
        assert_eq!(reply.status, nfsstat4::NFS4ERR_BADSESSION);
    });
}

/// (SEQ5)
#[test]
fn the_slot_must_exist() {
    simulate(4, async |world: World| {
        let client = world.client("a").await;
        let reply = client.raw.compound(vec![sequence(client.session, 4000, 1, false)]).await;
        assert_eq!(reply.status, nfsstat4::NFS4ERR_BADSLOT);
    });
}

/// (SEQ6, SEQ7)
#[test]
fn requests_have_a_size_and_a_number_of_operations() {
    simulate(5, async |world: World| {
        let client = world.client("a").await;
        let many = (0..8).map(|_| putrootfh()).collect();
        let reply = client.raw.compound(with(sequence(client.session, 1, 1, false), many)).await;
        assert_eq!(reply.status, nfsstat4::NFS4ERR_TOO_MANY_OPS);
        let raw = world.connect("small").await;
        let known = raw.exchange_id(b"small", [1; 8]).await;
        let mut args = create_session_args(known.eir_clientid, known.eir_sequenceid);
        args.csa_fore_chan_attrs.ca_maxrequestsize = 400;
        let nfs_resop4::OP_CREATE_SESSION(CREATE_SESSION4res::NFS4_OK(made)) =
            raw.one(nfs_argop4::OP_CREATE_SESSION(args)).await
        else {
            panic!()
        };
        let long = vec![putrootfh(), lookup(&"x".repeat(400))];
        let reply = raw.compound(with(sequence(made.csr_sessionid, 0, 1, false), long)).await;
        assert_eq!(reply.status, nfsstat4::NFS4ERR_REQ_TOO_BIG);
    });
}

/// (SEQ9a, SEQ9b) The reply of a request that was sent again is the reply it had.
#[test]
fn a_retry_gets_the_cached_reply() {
    simulate(6, async |world: World| {
        let client = world.client("a").await;
        let make = vec![putrootfh(), create(createtype4::NF4DIR, "d", &mode(0o755)), getfh()];
        let args = COMPOUND4args {
            tag: Bytes::new(),
            minorversion: 2,
            argarray: with(sequence(client.session, 3, 1, true), make),
        };
        let first = client.raw.bytes(&args).await.unwrap();
        let again = client.raw.bytes(&args).await.unwrap();
        assert_eq!(first, again);
        let reply: COMPOUND4res = sluice_xdr::from_bytes(first).unwrap();
        assert_eq!(reply.status, nfsstat4::NFS4_OK, "made once, not EXIST");
    });
}

/// (SEQ9c)
#[test]
fn a_large_reply_that_was_not_to_be_cached_is_gone() {
    simulate(7, async |world: World| {
        let client = world.client("a").await;
        for n in 0..40 {
            client.mkdir("/", &format!("a-rather-long-name-of-a-directory-{n}")).await;
        }
        let list = vec![putrootfh(), readdir(0, verifier4::default(), 32768, &[FATTR4_FILEID])];
        let ops = with(sequence(client.session, 3, 1, false), list);
        assert_eq!(client.raw.compound(ops.clone()).await.status, nfsstat4::NFS4_OK);
        let again = client.raw.compound(ops).await;
        assert_eq!(again.status, nfsstat4::NFS4ERR_RETRY_UNCACHED_REP);
        assert_eq!(again.resarray.len(), 2, "SEQUENCE succeeds, the next operation says so");
    });
}

/// §2.10.6.1.3.1
#[test]
fn another_request_under_the_same_sequence_id_is_a_false_retry() {
    simulate(8, async |world: World| {
        let client = world.client("a").await;
        let ops = |rest| with(sequence(client.session, 3, 1, true), rest);
        client.raw.compound(ops(vec![putrootfh(), lookup("one")])).await;
        // Of the same length, and of another.
        for rest in [vec![putrootfh(), lookup("two")], vec![putrootfh()]] {
            let other = client.raw.compound(ops(rest)).await;
            assert_eq!(other.status, nfsstat4::NFS4ERR_SEQ_FALSE_RETRY);
        }
    });
}

/// (SEQ10a, SEQ10b, SEQ13)
#[test]
fn gaps_are_misordered_and_leave_the_slot_alone() {
    simulate(9, async |world: World| {
        let client = world.client("a").await;
        for wrong in [2, 17, u32::MAX] {
            let reply = client.raw.compound(vec![sequence(client.session, 3, wrong, false)]).await;
            assert_eq!(reply.status, nfsstat4::NFS4ERR_SEQ_MISORDERED);
        }
        let right = client.raw.compound(vec![sequence(client.session, 3, 1, false)]).await;
        assert_eq!(right.status, nfsstat4::NFS4_OK);
    });
}

/// (SEQ12) A failed operation still uses the slot.
#[test]
fn failures_are_cached_too() {
    simulate(10, async |world: World| {
        let client = world.client("a").await;
        let ops = with(sequence(client.session, 3, 1, true), vec![putrootfh(), lookup("nothing")]);
        let first = client.raw.compound(ops.clone()).await;
        assert_eq!(first.status, nfsstat4::NFS4ERR_NOENT);
        assert_eq!(client.raw.compound(ops).await, first);
    });
}

/// §2.10.6.4: what cannot be cached must not be done.
#[test]
fn a_reply_too_big_to_cache_is_refused_before_anything_happens() {
    simulate(11, async |world: World| {
        let raw = world.connect("a").await;
        let known = raw.exchange_id(b"a", [1; 8]).await;
        let mut args = create_session_args(known.eir_clientid, known.eir_sequenceid);
        args.csa_fore_chan_attrs.ca_maxresponsesize_cached = 150;
        let nfs_resop4::OP_CREATE_SESSION(CREATE_SESSION4res::NFS4_OK(made)) =
            raw.one(nfs_argop4::OP_CREATE_SESSION(args)).await
        else {
            panic!()
        };
        let client = Client::new(raw, known.eir_clientid, made.csr_sessionid);
        client.ok(vec![reclaim_complete(false)]).await;
        let make = vec![putrootfh(), getattr(&[FATTR4_TYPE]), create(createtype4::NF4DIR, "d", &mode(0o755))];
        let reply = client.raw.compound(with(sequence(client.session, 3, 1, true), make)).await;
        assert_eq!(reply.status, nfsstat4::NFS4ERR_REP_TOO_BIG_TO_CACHE);
        assert_eq!(client.status(vec![putrootfh(), lookup("d")]).await, nfsstat4::NFS4ERR_NOENT);
    });
}

#[test]
fn while_the_original_runs_a_retry_is_told_to_wait() {
    simulate(12, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, stateid) = a.open("f", BOTH, 0).await;
        drop((fh, stateid));
        let ops = with(
            sequence(b.session, 3, 1, true),
            vec![putrootfh(), readdir(0, verifier4::default(), 8192, &[])],
        );
        let (first, second) = both(b.raw.compound(ops.clone()), b.raw.compound(ops)).await;
        let mut statuses = [first.status, second.status];
        statuses.sort();
        assert!(
            statuses == [nfsstat4::NFS4_OK; 2] || statuses.contains(&nfsstat4::NFS4ERR_DELAY),
            "{statuses:?}"
        );
    });
}

/// Its connection may have broken just before the answer. Linux takes DELAY for SEQUENCE as "in fifteen seconds".
#[test]
fn a_retry_is_answered_once_the_original_is() {
    simulate(25, async |world: World| {
        let client = world.client("a").await;
        let make = vec![putrootfh(), create(createtype4::NF4DIR, "d", &mode(0o755))];
        let ops = with(sequence(client.session, 3, 1, true), make);
        let again = client.over_slots(world.connect("a").await);
        world.db.set_faults(Faults { latency: Duration::from_millis(300), ..Faults::NONE });
        let begun = world.env.clock.now();
        let retry = async {
            world.sleep(Duration::from_millis(100)).await;
            again.raw.compound(ops.clone()).await
        };
        let (first, second) = both(client.raw.compound(ops.clone()), retry).await;
        assert_eq!((first.status, &second), (nfsstat4::NFS4_OK, &first));
        assert!(world.env.clock.now().since(begun) < Duration::from_secs(5));
    });
}

/// A client whose replies that are to be cached have at most so many bytes.
async fn with_cached(world: &World, most: u32) -> Client {
    let raw = world.connect("a").await;
    let known = raw.exchange_id(b"a", [1; 8]).await;
    let mut args = create_session_args(known.eir_clientid, known.eir_sequenceid);
    args.csa_fore_chan_attrs.ca_maxresponsesize_cached = most;
    let nfs_resop4::OP_CREATE_SESSION(CREATE_SESSION4res::NFS4_OK(made)) =
        raw.one(nfs_argop4::OP_CREATE_SESSION(args)).await
    else {
        panic!("no session")
    };
    let client = Client::new(raw, known.eir_clientid, made.csr_sessionid);
    client.ok(vec![reclaim_complete(false)]).await;
    client
}

/// What a layout takes is known when there is one: FreeBSD caches 4096 bytes.
#[test]
fn a_layout_that_fits_is_given_and_one_that_does_not_is_not() {
    for (seed, most, fits) in [(23, 4096, true), (24, 200, false)] {
        simulate(seed, async |world: World| {
            let client = with_cached(&world, most).await;
            let (fh, open) = client.open("f", BOTH, 0).await;
            let get = || layoutget(open, layoutiomode4::LAYOUTIOMODE4_RW);
            let ops = vec![sequence(client.session, 3, 1, true), putfh(&fh), get()];
            let reply = client.raw.compound(ops).await;
            let expected = if fits { nfsstat4::NFS4_OK } else { nfsstat4::NFS4ERR_REP_TOO_BIG_TO_CACHE };
            assert_eq!(reply.status, expected, "{reply:?}");
            let nfs_resop4::OP_LAYOUTGET(LAYOUTGET4res::NFS4_OK(ok)) =
                client.last(vec![putfh(&fh), get()]).await
            else {
                panic!()
            };
            assert_eq!(ok.logr_stateid.seqid, if fits { 2 } else { 1 });
            let body = ok.logr_layout[0].lo_content.loc_body.len();
            let asks = |maxcount: usize| {
                let mut op = get();
                let nfs_argop4::OP_LAYOUTGET(args) = &mut op else { panic!() };
                args.loga_maxcount = u32::try_from(maxcount).unwrap();
                vec![putfh(&fh), op]
            };
            assert_eq!(client.status(asks(body - 1)).await, nfsstat4::NFS4ERR_TOOSMALL);
            client.ok(asks(body)).await;
        });
    }
}

/// §18.46.3: a SEQUENCE that fails leaves its slot as it was, also where its own result is too long.
#[test]
fn it_fits_itself_or_it_fails() {
    simulate(25, async |world: World| {
        let client = with_cached(&world, 60).await;
        let make = |cache| {
            let first = sequence(client.session, 3, 1, cache);
            with(first, vec![putrootfh(), create(createtype4::NF4DIR, "d", &mode(0o755))])
        };
        let reply = client.raw.compound(make(true)).await;
        assert_eq!((reply.status, reply.resarray.len()), (nfsstat4::NFS4ERR_REP_TOO_BIG_TO_CACHE, 1));
        let reply = client.raw.compound(make(false)).await;
        assert_eq!((reply.status, reply.resarray.len()), (nfsstat4::NFS4_OK, 3), "{reply:?}");
    });
}

/// §2.10.3.1: under SP4_NONE any connection may carry a request.
#[test]
fn another_connection_is_bound_by_using_it() {
    simulate(13, async |world: World| {
        let client = world.client("a").await;
        let other = world.connect_as("a", Arc::clone(client.callbacks())).await;
        client.over(other).ok(getroot()).await;
    });
}

#[test]
fn unknown_minor_versions_are_refused() {
    simulate(14, async |world: World| {
        for minor in [0, 3] {
            let raw = world.connect("a").await.with_minor(minor);
            let reply = raw.compound(vec![putrootfh()]).await;
            assert_eq!(reply.status, nfsstat4::NFS4ERR_MINOR_VERS_MISMATCH);
            assert!(reply.resarray.is_empty());
        }
    });
}

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

/// More connections than a session keeps bound take turns: each is watched once, however often it is bound anew.
#[test]
fn a_connection_is_watched_once() {
    simulate(20, async |world: World| {
        let client = world.client("a").await;
        let mut connections = vec![client.raw.clone()];
        for _ in 0..64 {
            connections.push(world.connect("a").await);
        }
        world.sleep(Duration::from_secs(1)).await;
        let before = tasks();
        let mut seqid = 0;
        for _ in 0..100 {
            for connection in &connections {
                seqid += 1;
                let reply = connection.compound(vec![sequence(client.session, 9, seqid, false)]).await;
                assert_eq!(reply.status, nfsstat4::NFS4_OK);
            }
        }
        world.sleep(Duration::from_secs(1)).await;
        assert!(tasks() <= before + 65, "{before} tasks before, {} after", tasks());
    });
}

#[test]
fn sessions_that_are_gone_leave_nothing_with_their_connection() {
    simulate(21, async |world: World| {
        let client = world.client("a").await;
        world.sleep(Duration::from_secs(1)).await;
        let before = tasks();
        for n in 2..1002 {
            let CREATE_SESSION4res::NFS4_OK(made) = client.raw.create_session(client.id, n).await else {
                panic!()
            };
            let reply = client.raw.compound(vec![destroy_session(made.csr_sessionid)]).await;
            assert_eq!(reply.status, nfsstat4::NFS4_OK);
        }
        world.sleep(Duration::from_secs(10)).await;
        assert!(tasks() <= before + 1, "{before} tasks before, {} after", tasks());
    });
}

/// Every session that used a connection hears of its end.
#[test]
fn a_connection_that_closes_leaves_all_its_sessions() {
    simulate(22, async |world: World| {
        let first = world.client("a").await;
        let CREATE_SESSION4res::NFS4_OK(made) = first.raw.create_session(first.id, 2).await else { panic!() };
        let second = Client::new(first.raw.clone(), first.id, made.csr_sessionid);
        let down = SEQ4_STATUS_CB_PATH_DOWN_SESSION;
        assert_eq!((first.flags().await & down, second.flags().await & down), (0, 0));
        first.raw.connection.close();
        world.sleep(Duration::from_secs(1)).await;
        let raw = world.connect("a").await;
        for session in [first, second] {
            assert_eq!(session.over_slots(raw.clone()).flags().await & down, down);
        }
    });
}
