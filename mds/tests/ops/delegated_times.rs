//! Times of a file that the holder of a write delegation answers for. RFC 9754 §5.

use std::time::Duration;

use bytes::Bytes;
use sluice_mds::{Config, Delegations};
use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::nfs4::*;

use crate::callbacks::Answer;
use crate::harness::*;
use crate::persistence::{comparable, request, send, send_again};

const KEEPS: u32 = BOTH | OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG | OPEN4_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS;
const SEEN: [u32; 5] =
    [FATTR4_CHANGE, FATTR4_SIZE, FATTR4_TIME_ACCESS, FATTR4_TIME_METADATA, FATTR4_TIME_MODIFY];

fn with_times(seed: u64, test: impl AsyncFn(World)) {
    simulate_with(seed, Config { delegations: Delegations::Times, ..at_data_servers() }, test);
}

async fn opens(client: &Client, open: nfs_argop4) -> (nfs_fh4, open_delegation4) {
    let results = client.patient(vec![putrootfh(), open, getfh()]).await;
    let [_, nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(open)), nfs_resop4::OP_GETFH(GETFH4res::NFS4_OK(fh))] =
        &results[..]
    else {
        panic!("{results:?}");
    };
    (fh.object.clone(), open.delegation.clone())
}

/// A new file "f" whose maker answers for its times, as of a second ago.
async fn keeper(world: &World, client: &Client) -> (nfs_fh4, stateid4) {
    let (fh, delegation) = opens(client, open_create("f", b"o", KEEPS, 0)).await;
    let open_delegation4::OPEN_DELEGATE_WRITE_ATTRS_DELEG(given) = delegation else {
        panic!("{delegation:?}")
    };
    world.sleep(Duration::from_secs(10)).await;
    (fh, given.stateid)
}

/// So many seconds after now.
fn at(world: &World, seconds: i64) -> nfstime4 {
    let now = world.env.clock.wall();
    nfstime4 { seconds: now.seconds + seconds, nseconds: now.nanos }
}

fn modified(at: nfstime4) -> Attributes {
    Attributes { time_deleg_modify: Some(at), ..Attributes::default() }
}

fn accessed(at: nfstime4) -> Attributes {
    Attributes { time_deleg_access: Some(at), ..Attributes::default() }
}

/// A LAYOUTCOMMIT of what was written with a new layout, which is kept.
async fn commits(client: &Client, fh: &nfs_fh4, stateid: stateid4) -> stateid4 {
    let get = vec![putfh(fh), layoutget(stateid, layoutiomode4::LAYOUTIOMODE4_RW)];
    let nfs_resop4::OP_LAYOUTGET(LAYOUTGET4res::NFS4_OK(layout)) = client.last(get).await else { panic!() };
    client.ok(vec![putfh(fh), layoutcommit(layout.logr_stateid, 4)]).await;
    layout.logr_stateid
}

fn write(stateid: stateid4, data: &'static [u8]) -> nfs_argop4 {
    let (stable, data) = (stable_how4::FILE_SYNC4, Bytes::from_static(data));
    nfs_argop4::OP_WRITE(WRITE4args { stateid, offset: 0, stable, data })
}

#[test]
fn by_default_times_stay_with_the_server() {
    simulate(1, async |world: World| {
        let client = world.client("a").await;
        let told = client.attributes("/", &[FATTR4_SUPPORTED_ATTRS]).await.supported_attrs.unwrap();
        assert!(!told.contains(FATTR4_TIME_DELEG_ACCESS) && !told.contains(FATTR4_TIME_DELEG_MODIFY));
        let (fh, given) = opens(&client, open_create("f", b"o", KEEPS, 0)).await;
        let open_delegation4::OPEN_DELEGATE_WRITE(given) = given else { panic!("{given:?}") };
        let set = vec![putfh(&fh), setattr(given.stateid, &modified(at(&world, 0)))];
        assert_eq!(client.status(set).await, nfsstat4::NFS4ERR_ATTRNOTSUPP);
    });
}

#[test]
fn who_wants_them_and_may_write_is_given_the_times() {
    with_times(2, async |world: World| {
        let client = world.client("a").await;
        let told = client.attributes("/", &[FATTR4_SUPPORTED_ATTRS, FATTR4_SUPPATTR_EXCLCREAT]).await;
        let (all, new) = (told.supported_attrs.unwrap(), told.suppattr_exclcreat.unwrap());
        for number in [FATTR4_TIME_DELEG_ACCESS, FATTR4_TIME_DELEG_MODIFY] {
            assert!(all.contains(number) && !new.contains(number));
            // They are for SETATTR and CB_GETATTR.
            assert_eq!(client.status(vec![putrootfh(), getattr(&[number])]).await, nfsstat4::NFS4ERR_INVAL);
        }
        let takes = client.attributes("/", &[FATTR4_OPEN_ARGUMENTS]).await.open_arguments.unwrap();
        let times = open_args_share_access_want4::OPEN_ARGS_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS.0;
        assert!(takes.oa_share_access_want.contains(times));
        let plain = open_create("plain", b"o", BOTH | OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG, 0);
        let (_, given) = opens(&client, plain).await;
        assert!(matches!(given, open_delegation4::OPEN_DELEGATE_WRITE(_)), "it did not ask: {given:?}");
        let (fh, stateid) = keeper(&world, &client).await;
        client.ok(vec![putfh(&fh), delegreturn(stateid)]).await;
        let reads = READ | OPEN4_SHARE_ACCESS_WANT_READ_DELEG | OPEN4_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS;
        let (_, open) = client.open("g", BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0).await;
        let g = client.handle("g").await;
        client.ok(vec![putfh(&g), close(open)]).await;
        let (_, given) = opens(&client, open_name("g", b"o", reads, 0)).await;
        assert!(matches!(given, open_delegation4::OPEN_DELEGATE_READ(_)), "{given:?}");
    });
}

#[test]
fn others_see_the_time_that_the_holder_says() {
    with_times(3, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, _) = keeper(&world, &a).await;
        let before = a.attributes("f", &SEEN).await;
        let (change, size) = (before.change.unwrap(), before.size.unwrap());
        let look = async |change: u64, modify: nfstime4| {
            a.callbacks().script(&[Answer::Times(change, size, modify, modify)]);
            b.attributes("f", &SEEN).await
        };
        assert_eq!(look(change, before.time_modify.unwrap()).await, before, "nothing was changed");
        let wrote = at(&world, -5);
        let seen = look(change + 1, wrote).await;
        assert_eq!((seen.time_modify, seen.time_access), (Some(wrote), Some(wrote)));
        assert!(seen.change > before.change && seen.time_metadata >= Some(wrote));
        assert!(seen.time_metadata < Some(at(&world, 0)), "the time of the change, not of the look");
        // The same again is no news but for the data, which may have changed again.
        let again = look(change, wrote).await;
        assert_eq!(again, seen);
        let asked =
            bitmap4::of(&[FATTR4_CHANGE, FATTR4_SIZE, FATTR4_TIME_DELEG_ACCESS, FATTR4_TIME_DELEG_MODIFY]);
        let nfs_cb_argop4::OP_CB_GETATTR(question) = &a.callbacks().received()[0].operation else { panic!() };
        assert_eq!((&question.fh, question.attr_request), (&fh, asked));
        // Times alone, without data: utimes.
        let touched = at(&world, -2);
        assert_eq!(look(change, touched).await.time_modify, Some(touched));
        // A clock that is ahead.
        let seen = look(change, at(&world, 1000)).await;
        assert!(seen.time_modify > Some(touched) && seen.time_modify <= Some(at(&world, 0)), "{seen:?}");
        // Back is not where times go.
        assert_eq!(look(change, wrote).await.time_modify, seen.time_modify);
    });
}

/// The time comes with the size and the change attribute, where the holder has nothing open here, too.
#[test]
fn what_a_holder_says_is_shown_at_once() {
    with_times(11, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, open) = a.open("f", BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0).await;
        a.ok(vec![putfh(&fh), close(open)]).await;
        world.sleep(Duration::from_secs(1)).await;
        let either = KEEPS | OPEN4_SHARE_ACCESS_WANT_OPEN_XOR_DELEGATION;
        let (_, given) = opens(&a, open_name("f", b"o", either, 0)).await;
        assert!(matches!(given, open_delegation4::OPEN_DELEGATE_WRITE_ATTRS_DELEG(_)), "{given:?}");
        let before = a.attributes("f", &SEEN).await;
        world.sleep(Duration::from_secs(10)).await;
        let wrote = at(&world, -5);
        a.callbacks().script(&[Answer::Times(before.change.unwrap() + 1, 5, wrote, wrote)]);
        let seen = b.attributes("f", &SEEN).await;
        assert_eq!((seen.size, seen.time_modify), (Some(5), Some(wrote)));
        assert!(seen.change > before.change, "{seen:?}");
    });
}

/// As Linux does it: SETATTR and DELEGRETURN in one COMPOUND, while somebody waits for the file.
#[test]
fn what_the_holder_says_at_its_return_stands() {
    with_times(4, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, stateid) = keeper(&world, &a).await;
        let wrote = at(&world, -5);
        let start = world.env.clock.now();
        let returns = async {
            until(&world.env, || (a.callbacks().count() >= 1).then_some(())).await;
            let times = Attributes { time_deleg_access: Some(wrote), ..modified(wrote) };
            a.ok(vec![putfh(&fh), setattr(stateid, &times), getattr(&SEEN), delegreturn(stateid)]).await;
        };
        both(b.patient(vec![putrootfh(), open_name("f", b"o", READ, 0)]), returns).await;
        assert!(world.env.clock.now().since(start) < Duration::from_secs(1), "nobody waited for nobody");
        let seen = b.attributes("f", &SEEN).await;
        assert_eq!((seen.time_modify, seen.time_access), (Some(wrote), Some(wrote)));
        assert!(seen.time_metadata >= Some(wrote) && seen.time_metadata < Some(at(&world, -4)));
    });
}

#[test]
fn what_does_not_count_changes_nothing() {
    with_times(5, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, stateid) = keeper(&world, &a).await;
        let before = a.attributes("f", &SEEN).await;
        // Earlier than it was when the delegation was given: ignored.
        let old = nfstime4 { seconds: 1, nseconds: 0 };
        for times in [modified(old), accessed(old), modified(before.time_modify.unwrap())] {
            a.ok(vec![putfh(&fh), setattr(stateid, &times)]).await;
            assert_eq!(a.attributes("f", &SEEN).await, before);
        }
        let status = async |client: &Client, stateid, times: &Attributes| {
            client.status(vec![putfh(&fh), setattr(stateid, times)]).await
        };
        let now = at(&world, 0);
        let both_kinds = Attributes { mode: Some(0o600), ..modified(now) };
        assert_eq!(status(&a, stateid, &both_kinds).await, nfsstat4::NFS4ERR_INVAL);
        let no_time = modified(nfstime4 { seconds: now.seconds, nseconds: 1_000_000_000 });
        assert_eq!(status(&a, stateid, &no_time).await, nfsstat4::NFS4ERR_INVAL);
        for client in [&a, &b] {
            let stateid = if client.id == a.id { ANONYMOUS } else { stateid };
            assert_eq!(status(client, stateid, &modified(now)).await, nfsstat4::NFS4ERR_BAD_STATEID);
        }
        assert_eq!(a.attributes("f", &SEEN).await, before);
        // Reading is not changing.
        let read = at(&world, -1);
        a.ok(vec![putfh(&fh), setattr(stateid, &accessed(read))]).await;
        let seen = a.attributes("f", &SEEN).await;
        assert_eq!((seen.time_access, seen.time_metadata), (Some(read), before.time_metadata));
        a.ok(vec![putfh(&fh), setattr(stateid, &modified(at(&world, 1000)))]).await;
        let seen = a.attributes("f", &SEEN).await;
        assert!(seen.time_modify >= Some(now) && seen.time_modify <= Some(at(&world, 0)), "{seen:?}");
        assert_eq!(seen.time_metadata, seen.time_modify);
        a.ok(vec![putfh(&fh), delegreturn(stateid)]).await;
        assert_eq!(status(&a, stateid, &modified(now)).await, nfsstat4::NFS4ERR_BAD_STATEID);
    });
}

/// A LAYOUTCOMMIT moves the times as ever, so that they are not of before the data if the holder dies. What the holder
/// says is what holds, also when the LAYOUTCOMMIT of what it wrote before comes after it.
#[test]
fn layouts_and_the_holder_agree() {
    with_times(6, async |world: World| {
        let a = world.client("a").await;
        let (fh, stateid) = keeper(&world, &a).await;
        let wrote = at(&world, -1);
        let layout = commits(&a, &fh, stateid).await;
        let seen = a.attributes("f", &SEEN).await;
        assert!(seen.time_modify > Some(wrote));
        a.ok(vec![putfh(&fh), setattr(stateid, &modified(wrote))]).await;
        assert_eq!(a.attributes("f", &SEEN).await.time_modify, Some(wrote));
        world.sleep(Duration::from_secs(1)).await;
        a.ok(vec![putfh(&fh), layoutcommit(layout, 4)]).await;
        assert_eq!(a.attributes("f", &SEEN).await.time_modify, Some(wrote));
    });
}

/// What goes through this server moves the times as ever, too, and once: the holder's word comes after it.
#[test]
fn a_write_here_does_not_move_what_the_holder_said() {
    let policy = LayoutPolicy { shape: Shape::Small, mirrors: 1, inline: 4096, class: None };
    let config = Config { delegations: Delegations::Times, policy, ..Config::default() };
    simulate_with(8, config, async |world: World| {
        let a = world.client("a").await;
        let (fh, stateid) = keeper(&world, &a).await;
        let wrote = at(&world, -1);
        a.ok(vec![putfh(&fh), write(stateid, b"data")]).await;
        assert!(a.attributes("f", &SEEN).await.time_modify > Some(wrote));
        let times = Attributes { time_deleg_access: Some(wrote), ..modified(wrote) };
        a.ok(vec![putfh(&fh), setattr(stateid, &times), delegreturn(stateid)]).await;
        world.sleep(Duration::from_secs(1)).await;
        let seen = a.attributes("f", &SEEN).await;
        assert_eq!((seen.time_modify, seen.size), (Some(wrote), Some(4)));
    });
}

/// A holder that does not answer leaves the times as they are, and is not believed what would take them back for those
/// who saw them so.
#[test]
fn what_others_were_shown_is_not_taken_back() {
    with_times(9, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, stateid) = keeper(&world, &a).await;
        let wrote = at(&world, -1);
        commits(&a, &fh, stateid).await;
        let committed = a.attributes("f", &SEEN).await;
        let no_answer = Answer::Status(nfsstat4::NFS4ERR_BADHANDLE);
        a.callbacks().script(&[no_answer, no_answer]);
        assert_eq!(b.status(vec![putfh(&fh), getattr(&SEEN)]).await, nfsstat4::NFS4ERR_DELAY);
        let list = vec![putrootfh(), readdir(0, verifier4::default(), 8192, &SEEN)];
        let nfs_resop4::OP_READDIR(READDIR4res::NFS4_OK(page)) = b.last(list).await else { panic!() };
        let listed = Attributes::decode(&page.reply.entries[0].attrs).unwrap();
        assert_eq!(listed.time_modify, committed.time_modify);
        a.ok(vec![putfh(&fh), setattr(stateid, &modified(wrote)), delegreturn(stateid)]).await;
        let seen = b.attributes("f", &SEEN).await;
        assert_eq!((seen.time_modify, seen.time_access), (committed.time_modify, committed.time_access));
    });
}

/// The reply was lost with the server, the client sends SETATTR and DELEGRETURN again.
#[test]
fn what_was_set_is_answered_again_after_a_restart() {
    with_times(10, async |mut world: World| {
        let a = world.client("a").await;
        let (fh, stateid) = keeper(&world, &a).await;
        let wrote = at(&world, -1);
        let request = request(&a, 1, vec![putfh(&fh), setattr(stateid, &modified(wrote))]);
        let first = send(&a.raw, &request).await;
        assert_eq!(first.status, nfsstat4::NFS4_OK);
        world.restart().await;
        assert_eq!(comparable(&send_again(&world, &request).await), comparable(&first));
        // What is new is not answered so: the delegation of before is to be reclaimed first.
        let a = a.over_slots(world.connect("a").await);
        let later = vec![putfh(&fh), setattr(stateid, &modified(at(&world, 0)))];
        assert_eq!(a.status(later).await, nfsstat4::NFS4ERR_STALE_STATEID);
        assert_eq!(a.attributes("f", &SEEN).await.time_modify, Some(wrote));
    });
}

/// As Linux does it: it names the type that it held, and asks for what it asks for with any OPEN.
#[test]
fn the_times_are_reclaimed_with_the_delegation() {
    with_times(7, async |mut world: World| {
        let a = world.client("a").await;
        let (fh, _) = keeper(&world, &a).await;
        let plain = open_create("plain", b"o", BOTH | OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG, 0);
        let (other, _) = opens(&a, plain).await;
        drop(a);
        world.restart().await;
        let a = world.new_client("a").await;
        let reclaim = async |fh: &nfs_fh4, want, held| {
            let claim = open_claim4::CLAIM_PREVIOUS(held);
            let results = a.ok(vec![putfh(fh), open_with(b"o", want, 0, NOCREATE, claim)]).await;
            let Some(nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(open))) = results.last() else {
                panic!("{results:?}")
            };
            open.delegation.clone()
        };
        let given = reclaim(&other, KEEPS, open_delegation_type4::OPEN_DELEGATE_WRITE).await;
        assert!(matches!(given, open_delegation4::OPEN_DELEGATE_WRITE(_)), "{given:?}");
        let given = reclaim(&fh, BOTH, open_delegation_type4::OPEN_DELEGATE_WRITE_ATTRS_DELEG).await;
        let open_delegation4::OPEN_DELEGATE_WRITE_ATTRS_DELEG(given) = given else { panic!("{given:?}") };
        a.ok(vec![reclaim_complete(false)]).await;
        let wrote = at(&world, -1);
        a.ok(vec![putfh(&fh), setattr(given.stateid, &modified(wrote)), delegreturn(given.stateid)]).await;
        assert_eq!(a.attributes("f", &SEEN).await.time_modify, Some(wrote));
    });
}
