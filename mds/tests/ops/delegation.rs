//! Delegations: who is given one, what becomes of it, what others see meanwhile. RFC 8881 §10.2, §10.4. How recalls
//! travel is in callback.rs.

use std::cell::Cell;
use std::time::Duration;

use sluice_kv::Faults;
use sluice_mds::{Config, Delegations};
use sluice_state::lease::seq4_status;
use sluice_xdr::nfs4::*;

use crate::harness::*;

pub const WANT_WRITE: u32 = BOTH | OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG;
pub const SEEN: [u32; 3] = [FATTR4_CHANGE, FATTR4_SIZE, FATTR4_TIME_MODIFY];

/// The file, its open, the delegation that came with it.
pub async fn opens(client: &Client, open: nfs_argop4) -> (nfs_fh4, stateid4, open_delegation4) {
    let results = client.patient(vec![putrootfh(), open, getfh()]).await;
    let [_, nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(open)), nfs_resop4::OP_GETFH(GETFH4res::NFS4_OK(fh))] =
        &results[..]
    else {
        panic!("{results:?}");
    };
    (fh.object.clone(), open.stateid, open.delegation.clone())
}

pub fn writes(delegation: &open_delegation4) -> stateid4 {
    match delegation {
        open_delegation4::OPEN_DELEGATE_WRITE(given) => {
            assert_eq!(given.space_limit, nfs_space_limit4::NFS_LIMIT_SIZE(0));
            given.stateid
        }
        other => panic!("{other:?}"),
    }
}

/// A new file "f", and the write delegation that its maker asked for.
pub async fn writer(client: &Client) -> (nfs_fh4, stateid4, stateid4) {
    let (fh, open, delegation) = opens(client, open_create("f", b"o", WANT_WRITE, 0)).await;
    (fh, open, writes(&delegation))
}

pub async fn asked(world: &World, client: &Client, times: usize) {
    until(&world.env, || (client.callbacks().count() >= times).then_some(())).await;
}

pub fn is_recall(client: &Client, at: usize) -> bool {
    matches!(client.callbacks().received()[at].operation, nfs_cb_argop4::OP_CB_RECALL(_))
}

#[test]
fn who_does_not_ask_is_given_what_was_left_alone_for_a_while() {
    simulate(1, async |world: World| {
        let client = world.client("a").await;
        let nothing = open_delegation4::OPEN_DELEGATE_NONE;
        for access in [BOTH, READ] {
            let name = format!("f{access}");
            let (fh, open, given) = opens(&client, open_create(&name, b"o", access, 0)).await;
            assert_eq!(given, nothing, "just made");
            client.ok(vec![putfh(&fh), close(open)]).await;
            let (fh, open, given) = opens(&client, open_name(&name, b"o", access, 0)).await;
            assert_eq!(given, nothing, "made a moment ago");
            client.ok(vec![putfh(&fh), close(open)]).await;
        }
        world.sleep(world.config.delegation_quiet).await;
        let (_, _, given) = opens(&client, open_name("f3", b"o", BOTH, 0)).await;
        writes(&given);
        let (_, _, given) = opens(&client, open_name("f1", b"o", READ, 0)).await;
        assert!(matches!(given, open_delegation4::OPEN_DELEGATE_READ(_)), "{given:?}");
    });
}

#[test]
fn what_is_switched_off_is_not_given() {
    for (delegations, reads) in [(Delegations::Off, false), (Delegations::Read, true)] {
        let config = Config { delegations, ..at_data_servers() };
        simulate_with(2, config, async |world: World| {
            let client = world.client("a").await;
            let (fh, open, given) = opens(&client, open_create("f", b"o", WANT_WRITE, 0)).await;
            assert!(matches!(given, open_delegation4::OPEN_DELEGATE_NONE_EXT(_)), "{given:?}");
            client.ok(vec![putfh(&fh), close(open)]).await;
            let any = READ | OPEN4_SHARE_ACCESS_WANT_ANY_DELEG;
            let (_, _, given) = opens(&client, open_name("f", b"o", any, 0)).await;
            assert_eq!(matches!(given, open_delegation4::OPEN_DELEGATE_READ(_)), reads);
        });
    }
}

/// An OPEN that empties its file gets none: nobody could say later whether its holder has changed it.
#[test]
fn nor_with_a_truncation() {
    simulate(3, async |world: World| {
        let client = world.client("a").await;
        let (fh, open) = client.open("f", BOTH, 0).await;
        client.ok(vec![putfh(&fh), setattr(open, &size(5)), close(open)]).await;
        let how = openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(fattr(&size(0))));
        let open = open_with(b"o", WANT_WRITE, 0, how, open_claim4::CLAIM_NULL("f".into()));
        let (_, _, given) = opens(&client, open).await;
        assert!(matches!(given, open_delegation4::OPEN_DELEGATE_NONE_EXT(_)), "{given:?}");
    });
}

/// §12.5.3: the stateid of a delegation is good for LAYOUTGET, after the last close, too, and for I/O.
#[test]
fn layouts_are_had_with_a_delegation() {
    simulate(7, async |world: World| {
        let a = world.client("a").await;
        let (fh, open, stateid) = writer(&a).await;
        a.ok(vec![putfh(&fh), close(open)]).await;
        for mode in [layoutiomode4::LAYOUTIOMODE4_READ, layoutiomode4::LAYOUTIOMODE4_RW] {
            a.ok(vec![putfh(&fh), layoutget(stateid, mode)]).await;
        }
        a.ok(vec![putfh(&fh), setattr(stateid, &size(3))]).await;
        assert_eq!(a.attributes("f", &SEEN).await.size, Some(3));
    });
}

/// §10.4.4: what was opened under the delegation is claimed before it is returned. Who waits, waits for that.
#[test]
fn opens_under_a_delegation_are_claimed_while_it_is_recalled() {
    simulate(8, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, open, stateid) = writer(&a).await;
        a.ok(vec![putfh(&fh), close(open)]).await;
        let claims = async {
            asked(&world, &a, 1).await;
            let claim = open_claim4::CLAIM_DELEG_CUR_FH(stateid);
            let results = a.ok(vec![putfh(&fh), open_with(b"o", BOTH, 0, NOCREATE, claim), getfh()]).await;
            let (_, open) = opened(&results);
            a.ok(vec![putfh(&fh), delegreturn(stateid)]).await;
            a.ok(vec![putfh(&fh), close(open)]).await;
        };
        both(b.patient(vec![putrootfh(), open_name("f", b"o", READ, 0)]), claims).await;
        let again = open_with(b"o", BOTH, 0, NOCREATE, open_claim4::CLAIM_DELEG_CUR_FH(stateid));
        assert_eq!(a.status(vec![putfh(&fh), again]).await, nfsstat4::NFS4ERR_BAD_STATEID);
        // Delegations do not outlive their client (§10.2.1).
        let gone = open_with(b"o", BOTH, 0, NOCREATE, open_claim4::CLAIM_DELEG_PREV_FH);
        assert_eq!(a.status(vec![putfh(&fh), gone]).await, nfsstat4::NFS4ERR_NOTSUPP);
    });
}

/// The holder may have the file open without a word: its data stays.
#[test]
fn a_file_that_is_delegated_outlives_its_name() {
    simulate(9, async |world: World| {
        let a = world.client("a").await;
        let (fh, open, stateid) = writer(&a).await;
        a.ok(vec![putfh(&fh), close(open)]).await;
        a.ok(vec![putrootfh(), remove("f")]).await;
        world.sleep(Duration::from_secs(1)).await;
        a.ok(vec![putfh(&fh), getattr(&SEEN)]).await;
        a.ok(vec![putfh(&fh), delegreturn(stateid)]).await;
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(a.status(vec![putfh(&fh), getattr(&SEEN)]).await, nfsstat4::NFS4ERR_STALE);
    });
}

/// §10.2.1, CLAIM_PREVIOUS.
#[test]
fn a_restart_does_not_take_delegations_away() {
    simulate(10, async |mut world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, _, old) = writer(&a).await;
        // It may have written: the file is not settled after the restart.
        a.ok(vec![putfh(&fh), layoutget(old, layoutiomode4::LAYOUTIOMODE4_RW)]).await;
        drop((a, b));
        world.restart().await;
        let (a, b) = (world.new_client("a").await, world.new_client("b").await);
        // §8.2.4: what it opens under the one of before tells it of the restart.
        assert_eq!(claims(&a, &fh, old).await, [nfsstat4::NFS4ERR_STALE_STATEID; 2]);
        let claim = open_claim4::CLAIM_PREVIOUS(open_delegation_type4::OPEN_DELEGATE_WRITE);
        let results = a.ok(vec![putfh(&fh), open_with(b"o", BOTH, 0, NOCREATE, claim)]).await;
        let Some(nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(open))) = results.last() else {
            panic!("{results:?}")
        };
        let stateid = writes(&open.delegation);
        let open = open.stateid;
        a.ok(vec![reclaim_complete(false)]).await;
        b.ok(vec![reclaim_complete(false)]).await;
        world.sleep(Duration::from_secs(2)).await;
        let returns = async {
            asked(&world, &a, 1).await;
            a.ok(vec![putfh(&fh), delegreturn(stateid)]).await;
            a.ok(vec![putfh(&fh), close(open)]).await;
        };
        both(b.patient(vec![putrootfh(), open_name("f", b"o", READ, 0)]), returns).await;
        assert!(is_recall(&a, 0));
    });
}

async fn reclaims(client: &Client, fh: &nfs_fh4) -> (stateid4, open_delegation4) {
    let claim = open_claim4::CLAIM_PREVIOUS(open_delegation_type4::OPEN_DELEGATE_WRITE);
    let mut results = client.ok(vec![putfh(fh), open_with(b"o", BOTH, 0, NOCREATE, claim)]).await;
    let Some(nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(open))) = results.pop() else { panic!("{results:?}") };
    (open.stateid, open.delegation)
}

/// What an OPEN of "f" under a delegation says, by handle and by name.
async fn claims(client: &Client, fh: &nfs_fh4, stateid: stateid4) -> [nfsstat4; 2] {
    let claim = open_claim4::CLAIM_DELEG_CUR_FH(stateid);
    let by_handle = vec![putfh(fh), open_with(b"o", BOTH, 0, NOCREATE, claim)];
    let current = open_claim_delegate_cur4 { delegate_stateid: stateid, file: "f".into() };
    let claim = open_claim4::CLAIM_DELEGATE_CUR(current);
    let by_name = vec![putrootfh(), open_with(b"o", BOTH, 0, NOCREATE, claim)];
    [client.status(by_handle).await, client.status(by_name).await]
}

/// §8.4.3: others may have changed the file since, and its holder may not have heard of it.
#[test]
fn what_was_revoked_is_not_reclaimed_after_a_restart() {
    simulate(20, async |mut world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, _, stateid) = writer(&a).await;
        revoked(&world, &a, &b, "f").await;
        assert_eq!(claims(&a, &fh, stateid).await, [nfsstat4::NFS4ERR_DELEG_REVOKED; 2]);
        drop((a, b));
        for _ in 0..2 {
            world.restart().await;
            let a = world.new_client("a").await;
            let (_, given) = reclaims(&a, &fh).await;
            assert_eq!(given, open_delegation4::OPEN_DELEGATE_NONE, "its open it has");
        }
        let (a, b) = (world.new_client("a").await, world.new_client("b").await);
        let (open, _) = reclaims(&a, &fh).await;
        a.ok(vec![reclaim_complete(false)]).await;
        b.ok(vec![reclaim_complete(false)]).await;
        world.sleep(Duration::from_secs(2)).await;
        a.ok(vec![putfh(&fh), close(open)]).await;
        // What it was given since is another matter.
        world.sleep(world.config.delegation_quiet).await;
        let (_, _, given) = opens(&a, open_name("f", b"o", WANT_WRITE, 0)).await;
        writes(&given);
        drop((a, b));
        world.restart().await;
        let a = world.new_client("a").await;
        let (_, given) = reclaims(&a, &fh).await;
        writes(&given);
    });
}

/// Who has a delegation opens by the name that it knows, and does not ask whether that is still the file's.
#[test]
fn what_has_lost_a_name_in_grace_is_not_delegated_again() {
    let renamed = vec![putrootfh(), savefh(), rename("f", "g")];
    for (seed, unname) in [(21, vec![putrootfh(), remove("f")]), (22, renamed)] {
        simulate(seed, async |mut world: World| {
            let (a, b) = (world.client("a").await, world.client("b").await);
            let (fh, _, _) = writer(&a).await;
            a.ok(vec![putfh(&fh), savefh(), putrootfh(), link("other")]).await;
            let (kept, open, _) = opens(&a, open_create("kept", b"k", WANT_WRITE, 0)).await;
            a.ok(vec![putfh(&kept), close(open)]).await;
            drop((a, b));
            world.restart().await;
            let (a, b) = (world.new_client("a").await, world.new_client("b").await);
            b.ok(unname.clone()).await;
            let (_, given) = reclaims(&a, &fh).await;
            assert_eq!(given, open_delegation4::OPEN_DELEGATE_NONE, "its open it has");
            let (_, given) = reclaims(&a, &kept).await;
            writes(&given);
        });
    }
}

/// Nor by one who began while all that was still to be known, and was not there any more when it was asked.
#[test]
fn what_has_lost_a_name_in_a_grace_that_did_not_end_is_not_delegated_again() {
    simulate(23, async |mut world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, _, _) = writer(&a).await;
        a.ok(vec![putfh(&fh), savefh(), putrootfh(), link("other")]).await;
        drop((a, b));
        world.restart().await;
        world.new_client("b").await.ok(vec![putrootfh(), remove("f")]).await;
        world.restart().await;
        let a = world.new_client("a").await;
        let (_, given) = reclaims(&a, &fh).await;
        assert_eq!(given, open_delegation4::OPEN_DELEGATE_NONE, "its open it has");
        world.sleep(Duration::from_secs(200)).await;
        // Once a grace has ended all is as it was.
        let a = world.client("c").await;
        let (kept, ..) = opens(&a, open_create("kept", b"k", WANT_WRITE, 0)).await;
        drop(a);
        world.restart().await;
        let (_, given) = reclaims(&world.new_client("c").await, &kept).await;
        writes(&given);
    });
}

/// Nor while it is being looked at. The store takes its time, so that the name may go at any moment of that.
#[test]
fn what_loses_a_name_while_it_is_reclaimed_is_not_delegated_again() {
    for seed in 40..50 {
        simulate(seed, async |mut world: World| {
            let a = world.client("a").await;
            let _b = world.client("b").await;
            let mut files = Vec::new();
            for n in 0..30 {
                let (fh, ..) = opens(&a, open_create(&format!("f{n}"), b"o", WANT_WRITE, 0)).await;
                a.ok(vec![putfh(&fh), savefh(), putrootfh(), link(&format!("other{n}"))]).await;
                files.push(fh);
            }
            drop(a);
            world.restart().await;
            let (a, b) = (world.new_client("a").await, world.new_client("b").await);
            world.db.set_faults(Faults { latency: Duration::from_millis(20), ..Faults::NONE });
            for (n, fh) in files.iter().enumerate() {
                let (before, gone) = (a.callbacks().count(), Cell::new(false));
                let asked = || a.callbacks().count() > before;
                let unname = async {
                    b.patient(vec![putrootfh(), remove(&format!("f{n}"))]).await;
                    gone.set(true);
                };
                let claims = async {
                    world.sleep(Duration::from_millis(2 * u64::try_from(n).unwrap())).await;
                    let (_, given) = reclaims(&a, fh).await;
                    if given != open_delegation4::OPEN_DELEGATE_NONE {
                        until(&world.env, || (asked() || gone.get()).then_some(())).await;
                        assert!(asked(), "it goes on finding what is not there");
                        a.ok(vec![putfh(fh), delegreturn(writes(&given))]).await;
                    }
                };
                both(unname, claims).await;
            }
        });
    }
}

/// §10.4.4, and §8.4.2.1: it kept out whatever could be reclaimed.
#[test]
fn what_a_delegation_stands_for_is_claimed_in_grace_too() {
    simulate(23, async |mut world: World| {
        let (a, b, c) = (world.client("a").await, world.client("b").await, world.client("c").await);
        let (fh, _, _) = writer(&a).await;
        c.open("others", BOTH, 0).await;
        drop((a, b, c));
        world.restart().await;
        // The third one does not come back: grace goes on.
        let (a, b) = (world.new_client("a").await, world.new_client("b").await);
        let (_, given) = reclaims(&a, &fh).await;
        let stateid = writes(&given);
        a.ok(vec![reclaim_complete(false)]).await;
        b.ok(vec![reclaim_complete(false)]).await;
        let claims = async {
            asked(&world, &a, 1).await;
            let claim = open_claim4::CLAIM_DELEG_CUR_FH(stateid);
            let results = a.ok(vec![putfh(&fh), open_with(b"p", BOTH, 0, NOCREATE, claim), getfh()]).await;
            let (_, open) = opened(&results);
            let lock = || lock_new(nfs_lock_type4::WRITE_LT, open, b"la", (0, 1));
            a.ok(vec![putfh(&fh), lock()]).await;
            a.ok(vec![putfh(&fh), delegreturn(stateid)]).await;
            // What nothing stands for waits for the end of grace.
            assert_eq!(a.status(vec![putfh(&fh), lock()]).await, nfsstat4::NFS4ERR_GRACE);
        };
        both(b.patient(vec![putrootfh(), lookup("f"), setattr(ANONYMOUS, &mode(0o600))]), claims).await;
        assert!(is_recall(&a, 0));
    });
}

/// B opens it, and A does not give back what it has of it.
pub async fn revoked(world: &World, a: &Client, b: &Client, name: &str) {
    let stays = async {
        loop {
            a.flags().await;
            world.sleep(Duration::from_secs(5)).await;
        }
    };
    let opens = b.patient(vec![putrootfh(), open_name(name, b"o", BOTH, 0)]);
    tokio::select! { _ = opens => {}, () = stays => {} }
}

/// That it has freed what was revoked before may be in the store though the store did not say so.
#[test]
fn what_is_revoked_next_is_not_reclaimed_after_a_restart_either() {
    simulate(21, async |mut world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (_, _, stateid) = writer(&a).await;
        revoked(&world, &a, &b, "f").await;
        world.db.set_faults(Faults { unknown_applied: 1.0, ..Faults::NONE });
        a.ok(vec![free_stateid(stateid)]).await;
        world.sleep(Duration::from_millis(100)).await;
        world.db.set_faults(Faults::NONE);
        world.sleep(Duration::from_secs(1)).await;
        let (fh, _, given) = opens(&a, open_create("g", b"o", WANT_WRITE, 0)).await;
        writes(&given);
        revoked(&world, &a, &b, "g").await;
        drop((a, b));
        world.restart().await;
        let a = world.new_client("a").await;
        let (_, given) = reclaims(&a, &fh).await;
        assert_eq!(given, open_delegation4::OPEN_DELEGATE_NONE);
    });
}

/// Courteous, but not in the way (§8.3).
#[test]
fn a_holder_whose_lease_is_over_is_not_waited_for() {
    simulate(13, async |world: World| {
        let a = world.client("a").await;
        writer(&a).await;
        world.sleep(2 * world.config.lease).await;
        let b = world.client("b").await;
        let start = world.env.clock.now();
        b.patient(vec![putrootfh(), open_name("f", b"o", READ, 0)]).await;
        assert!(world.env.clock.now().since(start) < Duration::from_secs(1));
        assert_eq!(a.callbacks().count(), 0);
    });
}

/// Whoever calls only when another's call has been answered does not lose its lease over that (§8.3).
#[test]
fn no_call_waits_for_as_long_as_a_lease_however_short_it_is() {
    let second = Duration::from_secs(1);
    let config = Config { lease: 5 * second, recall_timeout: 10 * second, ..Config::default() };
    simulate_with(31, config, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (_, _, stateid) = writer(&a).await;
        let mut longest = Duration::ZERO;
        loop {
            let asked = world.env.clock.now();
            let status = b.status(vec![putrootfh(), open_name("f", b"o", READ, 0)]).await;
            longest = longest.max(world.env.clock.now().since(asked));
            let flags = a.flags().await;
            if status == nfsstat4::NFS4_OK {
                assert_eq!(flags, seq4_status::RECALLABLE_STATE_REVOKED);
                break;
            }
            assert_eq!((status, flags), (nfsstat4::NFS4ERR_DELAY, 0));
        }
        assert!(longest < world.config.lease / 2, "{longest:?}");
        // Each reply says so until it is freed (§18.46.3).
        assert_eq!(a.flags().await, seq4_status::RECALLABLE_STATE_REVOKED);
        a.ok(vec![free_stateid(stateid)]).await;
        assert_eq!(a.flags().await, 0);
    });
}

/// A writer that does not return in time is fenced off what it may be writing.
#[test]
fn a_revoked_writer_writes_no_more() {
    simulate(11, async |mut world: World| {
        let data_server = world.data_server();
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, _, stateid) = writer(&a).await;
        let layout = layoutiomode4::LAYOUTIOMODE4_RW;
        a.ok(vec![putfh(&fh), layoutget(stateid, layout)]).await;
        let fences = data_server.fences().len();
        let start = world.env.clock.now();
        let stays = async {
            // It is there, but goes on as if nothing had been said.
            while world.env.clock.now().since(start) < world.config.lease {
                a.flags().await;
                world.sleep(Duration::from_secs(5)).await;
            }
        };
        both(b.patient(vec![putrootfh(), open_name("f", b"o", READ, 0)]), stays).await;
        assert!(world.env.clock.now().since(start) >= world.config.lease, "it had time to flush");
        assert_eq!(data_server.fences().len(), fences + 1);
        let revoked = seq4_status::RECALLABLE_STATE_REVOKED;
        assert_eq!(a.flags().await & revoked, revoked);
        a.ok(vec![free_stateid(stateid)]).await;
    });
}

#[test]
fn what_open_takes_can_be_asked() {
    simulate(12, async |world: World| {
        let client = world.client("a").await;
        let got = client.attributes("/", &[FATTR4_OPEN_ARGUMENTS]).await.open_arguments.unwrap();
        let want = open_args_share_access_want4::OPEN_ARGS_SHARE_ACCESS_WANT_ANY_DELEG.0;
        let xor = open_args_share_access_want4::OPEN_ARGS_SHARE_ACCESS_WANT_OPEN_XOR_DELEGATION.0;
        assert!(got.oa_share_access_want.contains(want) && got.oa_share_access_want.contains(xor));
        let times = open_args_share_access_want4::OPEN_ARGS_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS.0;
        assert!(!got.oa_share_access_want.contains(times));
    });
}

/// RFC 9754 §4: a client that wants either has nothing to close.
#[test]
fn a_delegation_in_place_of_an_open_is_all_that_a_client_needs() {
    const EITHER: u32 = OPEN4_SHARE_ACCESS_WANT_OPEN_XOR_DELEGATION;
    simulate(13, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, open) = a.open("f", BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0).await;
        a.ok(vec![putfh(&fh), close(open)]).await;
        world.sleep(Duration::from_secs(40)).await;
        let both_at_once = vec![
            putrootfh(),
            open_name("f", b"o", READ | EITHER, 0),
            layoutget(CURRENT, layoutiomode4::LAYOUTIOMODE4_READ),
        ];
        let results = a.ok(both_at_once).await;
        let [_, nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(given)), _] = &results[..] else {
            panic!("{results:?}")
        };
        assert_eq!(given.stateid, stateid4::default());
        assert_eq!(given.rflags & OPEN4_RESULT_NO_OPEN_STATEID, OPEN4_RESULT_NO_OPEN_STATEID);
        let open_delegation4::OPEN_DELEGATE_READ(delegation) = &given.delegation else { panic!("{given:?}") };
        // Somebody who writes has it recalled; what is open by it is claimed first.
        let claims = async {
            asked(&world, &a, 1).await;
            let claim = open_claim4::CLAIM_DELEG_CUR_FH(delegation.stateid);
            let results = a.ok(vec![putfh(&fh), open_with(b"o", READ, 0, NOCREATE, claim), getfh()]).await;
            a.ok(vec![putfh(&fh), delegreturn(delegation.stateid)]).await;
            opened(&results).1
        };
        let (_, open) = both(b.patient(vec![putrootfh(), open_name("f", b"o", BOTH, 0)]), claims).await;
        a.ok(vec![putfh(&fh), close(open)]).await;
        // Where there is no delegation to be had there is an open, as ever.
        let (_, open, none) = opens(&a, open_name("f", b"o", READ | EITHER, 0)).await;
        assert_eq!(none, open_delegation4::OPEN_DELEGATE_NONE);
        a.ok(vec![putfh(&fh), close(open)]).await;
    });
}

/// Its holder asks nobody any more: what comes with it is from after it was given, whatever is changed beside it, and when.
#[test]
fn what_comes_with_a_delegation_in_place_of_an_open_is_what_holds() {
    const EITHER: u32 = OPEN4_SHARE_ACCESS_WANT_OPEN_XOR_DELEGATION;
    simulate(18, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, open) = a.open("f", BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0).await;
        a.ok(vec![putfh(&fh), close(open)]).await;
        let mut given = 0;
        for late in 0..25_u32 {
            world.sleep(Duration::from_secs(40)).await;
            a.ok(Vec::new()).await;
            b.ok(Vec::new()).await;
            let before = a.callbacks().count();
            world.db.set_faults(Faults { latency: Duration::from_millis(10), ..Faults::NONE });
            let opens = async {
                let ops =
                    vec![putrootfh(), open_name("f", b"o", READ | EITHER, 0), getattr(&[FATTR4_CHANGE])];
                let results = a.patient(ops).await;
                // At once: what came before it is told.
                let recalled = a.callbacks().count() > before;
                (results, recalled)
            };
            let changes = async {
                world.sleep(Duration::from_millis(3) * late).await;
                let set = vec![putfh(&fh), setattr(stateid4::default(), &mode(0o600 + late % 8))];
                let reply = world.env.clock.timeout(Duration::from_millis(200), b.compound(set)).await;
                reply.is_ok_and(|reply| reply.status == nfsstat4::NFS4_OK)
            };
            let ((results, recalled), _) = both(opens, changes).await;
            world.db.set_faults(Faults::NONE);
            let [_, nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(open)), nfs_resop4::OP_GETATTR(look)] =
                &results[..]
            else {
                panic!("{results:?}")
            };
            let open_delegation4::OPEN_DELEGATE_READ(delegation) = &open.delegation else {
                a.ok(vec![putfh(&fh), close(open.stateid)]).await;
                continue;
            };
            given += 1;
            let GETATTR4res::NFS4_OK(seen) = look else { panic!("{look:?}") };
            let seen = Attributes::decode(&seen.obj_attributes).unwrap().change;
            // Nobody asked for it back: it holds.
            if !recalled && a.callbacks().count() == before {
                assert_eq!(seen, b.attributes("f", &[FATTR4_CHANGE]).await.change, "{late}");
            }
            a.ok(vec![putfh(&fh), delegreturn(delegation.stateid)]).await;
        }
        assert!(given > 5, "{given}");
    });
}

/// §10.4: under a read delegation files are opened for reading. Whoever may not write gets no open for it there.
#[test]
fn a_read_delegation_is_claimed_for_reading_alone() {
    simulate(15, async |world: World| {
        let root = world.client("a").await;
        let (fh, open) = root.open("f", BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0).await;
        root.ok(vec![putfh(&fh), close(open)]).await;
        let user = root.over(root.raw.clone().with_user(500, 500, &[]));
        let wanted = open_name("f", b"o", READ | OPEN4_SHARE_ACCESS_WANT_READ_DELEG, 0);
        let (_, open, given) = opens(&user, wanted).await;
        let open_delegation4::OPEN_DELEGATE_READ(held) = given else { panic!("{given:?}") };
        user.ok(vec![putfh(&fh), close(open)]).await;
        for access in [WRITE, BOTH] {
            let by_handle = open_claim4::CLAIM_DELEG_CUR_FH(held.stateid);
            let by_name = open_claim4::CLAIM_DELEGATE_CUR(open_claim_delegate_cur4 {
                delegate_stateid: held.stateid,
                file: "f".into(),
            });
            for (at, claim) in [(putfh(&fh), by_handle), (putrootfh(), by_name)] {
                let status = user.status(vec![at, open_with(b"o", access, 0, NOCREATE, claim)]).await;
                assert_eq!(status, nfsstat4::NFS4ERR_OPENMODE);
            }
        }
        let claim = open_claim4::CLAIM_DELEG_CUR_FH(held.stateid);
        let results = user.ok(vec![putfh(&fh), open_with(b"o", READ, 0, NOCREATE, claim), getfh()]).await;
        let (_, open) = opened(&results);
        user.ok(vec![putfh(&fh), layoutget(open, layoutiomode4::LAYOUTIOMODE4_READ)]).await;
        user.ok(vec![putfh(&fh), close(open), delegreturn(held.stateid)]).await;
    });
}
