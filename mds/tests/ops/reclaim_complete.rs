//! RECLAIM_COMPLETE, grace, restarts, leases. Names in parentheses are pynfs codes.

use std::time::Duration;

use sluice_mds::Config;
use sluice_xdr::nfs4::*;

use crate::harness::*;

const SECOND: Duration = Duration::from_secs(1);

fn reclaim(fh: &nfs_fh4) -> Vec<nfs_argop4> {
    vec![putfh(fh), open_previous(b"owner", BOTH, 0), getfh()]
}

fn fresh() -> Vec<nfs_argop4> {
    vec![putrootfh(), open_create("new", b"owner", BOTH, 0), getfh()]
}

/// (RECC1, RECC4)
#[test]
fn once_is_enough() {
    simulate(1, async |world: World| {
        let client = world.new_client("a").await;
        client.ok(vec![reclaim_complete(false)]).await;
        let again = client.status(vec![reclaim_complete(false)]).await;
        assert_eq!(again, nfsstat4::NFS4ERR_COMPLETE_ALREADY);
    });
}

/// (RECC3) §18.51.3
#[test]
fn before_it_there_is_no_new_state() {
    simulate(2, async |world: World| {
        let client = world.new_client("a").await;
        assert_eq!(client.status(fresh()).await, nfsstat4::NFS4ERR_GRACE);
        client.ok(vec![reclaim_complete(false)]).await;
        client.ok(fresh()).await;
    });
}

/// (RECC2)
#[test]
fn after_it_there_is_no_reclaim() {
    simulate(3, async |world: World| {
        let client = world.client("a").await;
        let (fh, _) = client.open("f", BOTH, 0).await;
        assert_eq!(client.status(reclaim(&fh)).await, nfsstat4::NFS4ERR_NO_GRACE);
    });
}

/// One file system alone is not what grace waits for.
#[test]
fn of_one_file_system_it_needs_a_filehandle() {
    simulate(4, async |world: World| {
        let client = world.new_client("a").await;
        let without = client.status(vec![reclaim_complete(true)]).await;
        assert_eq!(without, nfsstat4::NFS4ERR_NOFILEHANDLE);
        client.ok(vec![putrootfh(), reclaim_complete(true)]).await;
        client.ok(vec![reclaim_complete(false)]).await;
    });
}

/// (REBT1, REBT2) Opens and locks are reclaimed; grace ends with the last RECLAIM_COMPLETE.
#[test]
fn state_survives_a_restart_by_reclaim() {
    simulate(5, async |mut world: World| {
        let a = world.client("a").await;
        let (fh, stateid) = a.open("f", BOTH, 0).await;
        a.ok(vec![putfh(&fh), lock_new(nfs_lock_type4::WRITE_LT, stateid, b"l", (0, 5))]).await;
        let b = world.client("b").await;
        b.open("g", BOTH, 0).await;
        drop((a, b));
        world.restart().await;

        let a = world.new_client("a").await;
        // Who holds what is not known before grace is over, of files that nobody has reclaimed, too.
        let test = vec![putfh(&fh), lockt(nfs_lock_type4::WRITE_LT, b"x", (0, 1))];
        assert_eq!(a.status(test).await, nfsstat4::NFS4ERR_GRACE);
        assert_eq!(a.status(fresh()).await, nfsstat4::NFS4ERR_GRACE);
        let (_, stateid) = opened(&a.ok(reclaim(&fh)).await);
        let lock = reclaiming(lock_new(nfs_lock_type4::WRITE_LT, stateid, b"l", (0, 5)));
        a.ok(vec![putfh(&fh), lock]).await;
        a.ok(vec![reclaim_complete(false)]).await;
        assert_eq!(a.status(fresh()).await, nfsstat4::NFS4ERR_GRACE, "b has not come back yet");
        let b = world.new_client("b").await;
        b.ok(vec![reclaim_complete(false)]).await;
        world.sleep(2 * SECOND).await;
        a.ok(fresh()).await;
        let (_, theirs) = b.open("f", BOTH, 0).await;
        let clash = vec![putfh(&fh), lock_new(nfs_lock_type4::WRITE_LT, theirs, b"l", (0, 1))];
        assert_eq!(b.status(clash).await, nfsstat4::NFS4ERR_DENIED);
    });
}

/// Without SESSION4_PERSIST.
#[test]
fn old_sessions_and_stateids_are_stale_after_a_restart() {
    simulate(6, async |mut world: World| {
        let raw = world.connect("a").await;
        let known = raw.exchange_id(b"a", [1; 8]).await;
        let mut args = create_session_args(known.eir_clientid, known.eir_sequenceid);
        args.csa_flags = CREATE_SESSION4_FLAG_CONN_BACK_CHAN;
        let nfs_resop4::OP_CREATE_SESSION(CREATE_SESSION4res::NFS4_OK(made)) =
            raw.one(nfs_argop4::OP_CREATE_SESSION(args)).await
        else {
            panic!()
        };
        assert_eq!(made.csr_flags & CREATE_SESSION4_FLAG_PERSIST, 0);
        let a = Client::new(raw, known.eir_clientid, made.csr_sessionid);
        a.ok(vec![reclaim_complete(false)]).await;
        let (fh, stateid) = a.open("f", BOTH, 0).await;
        world.restart().await;
        let old = a.over(world.connect("a").await);
        assert_eq!(old.status(Vec::new()).await, nfsstat4::NFS4ERR_BADSESSION);
        let late = old.raw.create_session(a.id, 5).await;
        assert_eq!(late, CREATE_SESSION4res::Default(nfsstat4::NFS4ERR_STALE_CLIENTID));
        let a = world.new_client("a").await;
        assert_eq!(a.status(vec![putfh(&fh), close(stateid)]).await, nfsstat4::NFS4ERR_STALE_STATEID);
        a.ok(vec![reclaim_complete(false)]).await;
        let layout = layoutget(stateid, layoutiomode4::LAYOUTIOMODE4_RW);
        for op in [close(stateid), layout, free_stateid(stateid)] {
            let status = a.status(vec![putfh(&fh), op]).await;
            assert_eq!(status, nfsstat4::NFS4ERR_BAD_STATEID, "Linux comes again with what is stale");
        }
        // What Linux asks then, before it opens the file anew: whether it must.
        assert_eq!(a.tested(&[stateid]).await, [nfsstat4::NFS4ERR_BAD_STATEID]);
    });
}

/// With it the session goes on, and tells the client to reclaim until it has.
#[test]
fn a_persistent_session_goes_on_after_a_restart() {
    simulate(13, async |mut world: World| {
        let a = world.client("a").await;
        let (fh, stateid) = a.open("f", BOTH, 0).await;
        world.restart().await;
        let a = a.over_slots(world.connect("a").await);
        assert_ne!(a.flags().await & SEQ4_STATUS_RESTART_RECLAIM_NEEDED, 0);
        assert_eq!(a.status(vec![putfh(&fh), close(stateid)]).await, nfsstat4::NFS4ERR_STALE_STATEID);
        // BAD_STATEID would have Linux give up its locks.
        for op in [setattr(stateid, &size(1)), io_advise(stateid)] {
            assert_eq!(a.status(vec![putfh(&fh), op]).await, nfsstat4::NFS4ERR_STALE_STATEID);
        }
        let (_, stateid) = opened(&a.ok(reclaim(&fh)).await);
        a.ok(vec![reclaim_complete(false)]).await;
        assert_eq!(a.flags().await & SEQ4_STATUS_RESTART_RECLAIM_NEEDED, 0);
        a.ok(vec![putfh(&fh), close(stateid)]).await;
    });
}

/// (REBT5) §8.4.3: who misses grace has lost its state, also after the next restart.
#[test]
fn a_client_that_misses_grace_cannot_reclaim() {
    simulate(7, async |mut world: World| {
        let a = world.client("a").await;
        let (fh, _) = a.open("f", BOTH, 0).await;
        drop(a);
        world.restart().await;
        world.sleep(world.config.lease + 2 * SECOND).await;
        let late = world.new_client("a").await;
        assert_eq!(late.status(reclaim(&fh)).await, nfsstat4::NFS4ERR_NO_GRACE);
        drop(late);
        world.restart().await;
        let later = world.new_client("a").await;
        let status = later.status(reclaim(&fh)).await;
        assert!(matches!(status, nfsstat4::NFS4ERR_RECLAIM_BAD | nfsstat4::NFS4ERR_NO_GRACE), "{status:?}");
    });
}

/// A client that was unknown before the restart has nothing to reclaim, and waits like everybody.
#[test]
fn strangers_have_nothing_to_reclaim() {
    simulate(8, async |mut world: World| {
        let a = world.client("a").await;
        let (fh, _) = a.open("f", BOTH, 0).await;
        drop(a);
        world.restart().await;
        let stranger = world.new_client("stranger").await;
        assert_eq!(stranger.status(reclaim(&fh)).await, nfsstat4::NFS4ERR_RECLAIM_BAD);
        stranger.ok(vec![reclaim_complete(false)]).await;
        assert_eq!(stranger.status(fresh()).await, nfsstat4::NFS4ERR_GRACE);
        for _ in 0..4 {
            world.sleep(world.config.lease / 3).await;
            stranger.ok(Vec::new()).await;
        }
        stranger.ok(fresh()).await;
    });
}

/// Without anybody to wait for there is no grace.
#[test]
fn a_restart_without_clients_has_no_grace() {
    simulate(9, async |mut world: World| {
        world.restart().await;
        let a = world.client("a").await;
        a.ok(fresh()).await;
    });
}

/// §8.3: courteous. What nobody else wants is kept, and a SEQUENCE revives the lease.
#[test]
fn an_expired_lease_is_kept_until_it_is_in_the_way() {
    let config = Config { lease: 10 * SECOND, ..at_data_servers() };
    simulate_with(10, config, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, stateid) = a.open("f", WRITE, OPEN4_SHARE_DENY_BOTH).await;
        for _ in 0..6 {
            world.sleep(5 * SECOND).await;
            b.ok(Vec::new()).await;
        }
        a.ok(vec![putfh(&fh), getattr(&[FATTR4_SIZE])]).await;
        let wanted = vec![putrootfh(), open_name("f", b"o", READ, 0)];
        assert_eq!(b.status(wanted.clone()).await, nfsstat4::NFS4ERR_SHARE_DENIED, "alive again");
        for _ in 0..6 {
            world.sleep(5 * SECOND).await;
            b.ok(Vec::new()).await;
        }
        b.ok(wanted).await;
        assert_eq!(a.status(vec![putfh(&fh), close(stateid)]).await, nfsstat4::NFS4ERR_BADSESSION);
        let again = world.client("a").await;
        assert_eq!(again.status(vec![putfh(&fh), close(stateid)]).await, nfsstat4::NFS4ERR_BAD_STATEID);
    });
}

/// The record of a client without state goes a lease after its lease.
#[test]
fn an_idle_client_is_forgotten() {
    let config = Config { lease: 10 * SECOND, ..at_data_servers() };
    simulate_with(11, config, async |world: World| {
        let a = world.client("a").await;
        world.sleep(9 * SECOND).await;
        a.ok(Vec::new()).await;
        world.sleep(18 * SECOND).await;
        a.ok(Vec::new()).await;
        world.sleep(23 * SECOND).await;
        assert_eq!(a.status(Vec::new()).await, nfsstat4::NFS4ERR_BADSESSION);
    });
}

/// The table forgets a client before its row is gone: when the store fails in between, the row goes as soon
/// as the store is back.
#[test]
fn the_end_of_a_client_is_recorded_in_the_end() {
    simulate(12, async |mut world: World| {
        let a = world.client("a").await;
        a.raw.compound(vec![destroy_session(a.session)]).await;
        world.db.set_faults(sluice_kv::Faults { unavailable: 1.0, ..sluice_kv::Faults::NONE });
        let end = async || a.raw.compound(vec![destroy_clientid(a.id)]).await.status;
        assert_eq!(end().await, nfsstat4::NFS4ERR_DELAY);
        world.db.set_faults(sluice_kv::Faults::NONE);
        world.sleep(10 * SECOND).await;
        assert_eq!(end().await, nfsstat4::NFS4ERR_STALE_CLIENTID);
        world.restart().await;
        // Nobody is left who could reclaim: no grace.
        world.client("b").await.ok(fresh()).await;
    });
}

/// An open is lost with the permission for it, if that was taken by the time it is reclaimed.
#[test]
fn who_may_not_open_a_file_any_more_does_not_reclaim_it() {
    simulate(14, async |mut world: World| {
        let root = world.client("a").await;
        let (fh, _) = root.open("f", BOTH, 0).await;
        let user = root.over(root.raw.clone().with_user(500, 500, &[]));
        let (other, _) = root.open("other", BOTH, 0).await;
        for file in [&fh, &other] {
            user.ok(vec![putfh(file), open_fh(b"user", READ, 0)]).await;
        }
        root.ok(vec![putfh(&fh), setattr(ANONYMOUS, &mode(0o600))]).await;
        drop((root, user));
        world.restart().await;
        let root = world.new_client("a").await;
        let user = root.over(root.raw.clone().with_user(500, 500, &[]));
        let again = vec![putfh(&fh), open_previous(b"user", READ, 0)];
        assert_eq!(user.status(again).await, nfsstat4::NFS4ERR_ACCESS);
        root.ok(reclaim(&fh)).await;
        // Who may only read gets no delegation to write with, but the open.
        let claim = open_claim4::CLAIM_PREVIOUS(open_delegation_type4::OPEN_DELEGATE_WRITE);
        let again = vec![putfh(&other), open_with(b"user", READ, 0, NOCREATE, claim)];
        let nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(given)) = user.last(again).await else { panic!() };
        assert_eq!(given.delegation, open_delegation4::OPEN_DELEGATE_NONE);
    });
}

/// FreeBSD does not look at sr_status_flags: it reclaims when its session and its client ID are gone.
#[test]
fn who_does_not_notice_that_it_is_to_reclaim_is_made_to() {
    simulate(15, async |mut world: World| {
        let a = world.client("a").await;
        let (fh, _) = a.open("f", BOTH, 0).await;
        world.restart().await;
        let a = a.over_slots(world.connect("a").await);
        let begin = world.env.clock.now();
        loop {
            match a.status(fresh()).await {
                nfsstat4::NFS4ERR_GRACE => world.sleep(SECOND).await,
                nfsstat4::NFS4ERR_BADSESSION => break,
                other => panic!("{other:?}"),
            }
            assert!(world.env.clock.now().since(begin) < world.config.lease * 2, "it waits for ever");
        }
        assert!(world.env.clock.now().since(begin) > world.config.lease);
        // What it had alone would do for FreeBSD otherwise.
        let old = a.raw.create_session(a.id, 2).await;
        assert_eq!(old, CREATE_SESSION4res::Default(nfsstat4::NFS4ERR_STALE_CLIENTID));
        let a = world.new_client("a").await;
        assert_eq!(a.status(reclaim(&fh)).await, nfsstat4::NFS4ERR_NO_GRACE);
        a.ok(vec![reclaim_complete(false)]).await;
        a.ok(fresh()).await;
    });
}

/// Whoever was away for all of it hears of it when it is back.
#[test]
fn a_silent_client_has_time_to_notice() {
    simulate(16, async |mut world: World| {
        let a = world.client("a").await;
        world.restart().await;
        world.sleep(world.config.lease * 3 / 2).await;
        let a = a.over_slots(world.connect("a").await);
        assert_ne!(a.flags().await & SEQ4_STATUS_RESTART_RECLAIM_NEEDED, 0);
        world.sleep(world.config.lease / 2).await;
        a.ok(vec![reclaim_complete(false)]).await;
        for _ in 0..6 {
            world.sleep(world.config.lease / 2).await;
            a.ok(Vec::new()).await;
        }
        a.ok(fresh()).await;
    });
}
