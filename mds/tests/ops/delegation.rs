//! Delegations: who is given one, what becomes of it, what others see meanwhile. RFC 8881 §10.2, §10.4. How recalls
//! travel is in callback.rs.

use std::time::Duration;

use sluice_kv::Faults;
use sluice_mds::{Config, Delegations};
use sluice_state::lease::seq4_status;
use sluice_xdr::nfs4::*;

use crate::callbacks::Answer;
use crate::harness::*;

const WANT_WRITE: u32 = BOTH | OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG;
const SEEN: [u32; 3] = [FATTR4_CHANGE, FATTR4_SIZE, FATTR4_TIME_MODIFY];

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

async fn asked(world: &World, client: &Client, times: usize) {
    until(&world.env, || (client.callbacks().count() >= times).then_some(())).await;
}

fn is_recall(client: &Client, at: usize) -> bool {
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

/// §10.4.3, CB_GETATTR.
#[test]
fn the_holder_is_asked_how_the_file_is() {
    simulate(4, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, _, stateid) = writer(&a).await;
        let before = a.attributes("f", &SEEN).await;
        assert_eq!(a.callbacks().count(), 0, "it knows itself");
        let (change, size) = (before.change.unwrap(), before.size.unwrap());
        a.callbacks().script(&[Answer::Attributes(change, size)]);
        assert_eq!(b.attributes("f", &SEEN).await, before);
        world.sleep(Duration::from_secs(1)).await;
        let mut last = before;
        for round in 0..2 {
            a.callbacks().script(&[Answer::Attributes(change + 1, 5)]);
            let seen = b.attributes("f", &SEEN).await;
            assert_eq!(seen.size, Some(5));
            assert!(seen.change > last.change, "round {round}: it may have written again");
            assert!(seen.time_modify > last.time_modify || round > 0);
            last = seen;
        }
        let nfs_cb_argop4::OP_CB_GETATTR(question) = &a.callbacks().received()[0].operation else { panic!() };
        assert_eq!((&question.fh, question.attr_request), (&fh, bitmap4::of(&[FATTR4_CHANGE, FATTR4_SIZE])));
        // Attributes that data does not change are nobody's secret.
        b.attributes("f", &[FATTR4_MODE]).await;
        assert_eq!(a.callbacks().count(), 3);
        a.ok(vec![putfh(&fh), delegreturn(stateid)]).await;
        let seen = b.attributes("f", &SEEN).await;
        assert_eq!((seen.size, a.callbacks().count()), (Some(0), 3));
        assert!(seen.change >= last.change, "it never goes back");
    });
}

/// A file "f" that its holder has not open at the server: what it does with it is known to it alone. Change attribute and
/// times are of a while ago.
async fn lone_writer(world: &World, client: &Client, either: bool) -> (nfs_fh4, stateid4, Attributes) {
    let (fh, open) = client.open("f", BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0).await;
    client.ok(vec![putfh(&fh), close(open)]).await;
    world.sleep(Duration::from_secs(1)).await;
    let want = WANT_WRITE | if either { OPEN4_SHARE_ACCESS_WANT_OPEN_XOR_DELEGATION } else { 0 };
    let (fh, open, given) = opens(client, open_name("f", b"o", want, 0)).await;
    if !either {
        client.ok(vec![putfh(&fh), close(open)]).await;
    }
    let before = client.attributes("f", &SEEN).await;
    world.sleep(Duration::from_secs(1)).await;
    (fh, writes(&given), before)
}

/// §10.4.3: a size that nobody has seen comes with a change attribute that nobody has seen.
#[test]
fn a_size_that_the_holder_says_is_never_shown_as_nothing_new() {
    for (seed, either) in [(24, false), (25, true)] {
        simulate(seed, async |world: World| {
            let (a, b) = (world.client("a").await, world.client("b").await);
            let (_, _, before) = lone_writer(&world, &a, either).await;
            let change = before.change.unwrap();
            a.callbacks().script(&[Answer::Attributes(change + 1, 5)]);
            let seen = b.attributes("f", &SEEN).await;
            assert_eq!(seen.size, Some(5));
            assert!(seen.change > before.change && seen.time_modify > before.time_modify, "{seen:?}");
            world.sleep(Duration::from_secs(1)).await;
            a.callbacks().script(&[Answer::Attributes(change + 2, 7)]);
            let list = vec![putrootfh(), readdir(0, verifier4::default(), 4096, &SEEN)];
            let nfs_resop4::OP_READDIR(READDIR4res::NFS4_OK(page)) = b.last(list).await else { panic!() };
            let listed = Attributes::decode(&page.reply.entries[0].attrs).unwrap();
            assert_eq!(listed.size, Some(7));
            assert!(listed.change > seen.change && listed.time_modify > seen.time_modify, "{listed:?}");
        });
    }
}

/// What it had written before somebody looks is seen by whoever looks, however the holder lets it be known.
#[test]
fn what_the_holder_flushes_in_place_of_an_answer_is_shown() {
    for (seed, returns) in [(26, true), (27, false)] {
        simulate(seed, async |world: World| {
            let (a, b) = (world.client("a").await, world.client("b").await);
            let (fh, stateid, before) = lone_writer(&world, &a, false).await;
            let late = Duration::from_secs(1);
            let answer =
                if returns { Answer::Late(late, nfsstat4::NFS4ERR_BADHANDLE) } else { Answer::Silence };
            a.callbacks().script(&[answer]);
            let flushes = async {
                asked(&world, &a, 1).await;
                a.ok(vec![putfh(&fh), setattr(stateid, &size(5)), delegreturn(stateid)]).await;
            };
            let (seen, ()) = both(b.attributes("f", &SEEN), flushes).await;
            assert_eq!(seen.size, Some(5));
            assert!(seen.change > before.change && seen.time_modify > before.time_modify, "{seen:?}");
        });
    }
}

/// What is settled for an OPEN is what its delegation comes with: the holder has changed nothing by that.
#[test]
fn what_a_delegation_comes_with_is_no_news_later() {
    simulate(28, async |mut world: World| {
        let a = world.client("a").await;
        let (fh, open) = a.open("f", BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0).await;
        a.ok(vec![putfh(&fh), setattr(open, &size(5))]).await;
        a.ok(vec![putfh(&fh), layoutget(open, layoutiomode4::LAYOUTIOMODE4_RW)]).await;
        drop(a);
        world.restart().await;
        let (a, b, c) =
            (world.new_client("a").await, world.new_client("b").await, world.new_client("c").await);
        for client in [&a, &b, &c] {
            client.ok(vec![reclaim_complete(false)]).await;
        }
        world.sleep(Duration::from_secs(5)).await;
        let (_, _, given) = opens(&b, open_name("f", b"o", WANT_WRITE, 0)).await;
        let stateid = writes(&given);
        let given = b.attributes("f", &SEEN).await;
        let get = vec![putfh(&fh), layoutget(stateid, layoutiomode4::LAYOUTIOMODE4_RW)];
        let nfs_resop4::OP_LAYOUTGET(LAYOUTGET4res::NFS4_OK(layout)) = b.last(get).await else { panic!() };
        b.ok(vec![putfh(&fh), layoutcommit(layout.logr_stateid, 4)]).await;
        let committed = b.attributes("f", &SEEN).await;
        assert!(committed.change > given.change);
        let mut seen = Vec::new();
        for _ in 0..2 {
            world.sleep(Duration::from_secs(1)).await;
            b.callbacks().script(&[Answer::Attributes(given.change.unwrap(), committed.size.unwrap())]);
            seen.push(c.attributes("f", &SEEN).await);
        }
        assert_eq!(seen, [committed.clone(), committed]);
    });
}

/// Nor is a truncation that an OPEN waits for, of which its client is shown what it came to.
#[test]
fn what_an_open_waits_for_is_no_news_later_either() {
    simulate(29, async |mut world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let server = world.data_server();
        let (fh, open) = a.open("f", BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0).await;
        let get = vec![putfh(&fh), layoutget(open, layoutiomode4::LAYOUTIOMODE4_RW)];
        let nfs_resop4::OP_LAYOUTGET(LAYOUTGET4res::NFS4_OK(layout)) = a.last(get).await else { panic!() };
        a.ok(vec![putfh(&fh), layoutcommit(layout.logr_stateid, 99)]).await;
        world.sleep(Duration::from_secs(1)).await;
        // The truncation waits for what it says, and the other OPEN has found the file by then.
        server.hold_stats(true);
        let how = openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(fattr(&size(0))));
        let empties = open_with(b"o", BOTH, 0, how, open_claim4::CLAIM_NULL("f".into()));
        let second = async {
            world.sleep(Duration::from_secs(1)).await;
            opens(&a, open_name("f", b"o", WANT_WRITE, 0)).await
        };
        let lets = async {
            world.sleep(Duration::from_secs(2)).await;
            server.hold_stats(false);
        };
        let (_, ((_, _, given), ())) = both(opens(&a, empties), both(second, lets)).await;
        writes(&given);
        let given = a.attributes("f", &SEEN).await;
        assert_eq!(given.size, Some(0));
        a.ok(vec![putfh(&fh), layoutcommit(layout.logr_stateid, 4)]).await;
        let committed = a.attributes("f", &SEEN).await;
        assert!(committed.change > given.change);
        let mut seen = Vec::new();
        for _ in 0..2 {
            world.sleep(Duration::from_secs(1)).await;
            a.callbacks().script(&[Answer::Attributes(given.change.unwrap(), committed.size.unwrap())]);
            seen.push(b.attributes("f", &SEEN).await);
        }
        assert_eq!(seen, [committed.clone(), committed]);
    });
}

/// What its holder has set meanwhile is newer than what it says.
#[test]
fn news_from_the_holder_do_not_undo_the_time_that_it_sets() {
    simulate(30, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, stateid, before) = lone_writer(&world, &a, false).await;
        let late = Duration::from_secs(1);
        a.callbacks().script(&[Answer::LateAttributes(late, before.change.unwrap() + 1000, 0)]);
        let at = settime4::SET_TO_CLIENT_TIME4(nfstime4 { seconds: 77, nseconds: 0 });
        let times = Attributes { time_modify_set: Some(at), ..Attributes::default() };
        let sets = async {
            asked(&world, &a, 1).await;
            a.ok(vec![putfh(&fh), setattr(stateid, &times)]).await;
        };
        let (seen, ()) = both(b.attributes("f", &SEEN), sets).await;
        assert_eq!(seen.time_modify.unwrap().seconds, 77);
        assert!(seen.change > before.change, "{seen:?}");
        a.callbacks().script(&[Answer::Attributes(seen.change.unwrap(), 0)]);
        assert_eq!(b.attributes("f", &SEEN).await, seen);
    });
}

#[test]
fn a_listing_asks_the_holder_too() {
    simulate(5, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, open, stateid) = writer(&a).await;
        let change = a.attributes("f", &SEEN).await.change.unwrap();
        let list = async || {
            let ops = vec![putrootfh(), readdir(0, verifier4::default(), 4096, &[FATTR4_SIZE])];
            let nfs_resop4::OP_READDIR(READDIR4res::NFS4_OK(page)) = b.last(ops).await else { panic!() };
            Attributes::decode(&page.reply.entries[0].attrs).unwrap().size
        };
        a.callbacks().script(&[Answer::Attributes(change + 1, 7)]);
        assert_eq!(list().await, Some(7));
        // Nobody has it open any more, and what was written is still with the holder.
        a.ok(vec![putfh(&fh), close(open)]).await;
        a.callbacks().script(&[Answer::Attributes(change + 2, 9)]);
        assert_eq!(list().await, Some(9));
        // One that does not answer is recalled, and does not keep others from the listing.
        a.callbacks().script(&[Answer::Status(nfsstat4::NFS4ERR_BADHANDLE)]);
        assert_eq!(list().await, Some(0));
        asked(&world, &a, 4).await;
        assert!(is_recall(&a, 3));
        a.ok(vec![putfh(&fh), delegreturn(stateid)]).await;
    });
}

/// Whoever lists a directory waits no longer for many of them than for one; what is not known then is shown as it is stored.
#[test]
fn a_listing_does_not_wait_for_one_silent_holder_after_the_other() {
    simulate(25, async |world: World| {
        let reader = world.client("reader").await;
        let mut holders = Vec::new();
        for n in 0..5 {
            let holder = world.client(&format!("h{n}")).await;
            opens(&holder, open_create(&format!("f{n}"), b"o", WANT_WRITE, 0)).await;
            holder.callbacks().script(&[Answer::Silence]);
            holders.push(holder);
        }
        let start = world.env.clock.now();
        let ops = vec![putrootfh(), readdir(0, verifier4::default(), 4096, &[FATTR4_SIZE])];
        let nfs_resop4::OP_READDIR(READDIR4res::NFS4_OK(page)) = reader.last(ops).await else { panic!() };
        let took = world.env.clock.now().since(start);
        assert!(took <= Duration::from_secs(5), "{took:?}");
        assert_eq!(page.reply.entries.len(), 5);
    });
}

/// Each answer may be quick, and there may be many of them: the rest comes with the next page.
#[test]
fn a_listing_ends_early_where_many_answers_take_long() {
    simulate(26, async |world: World| {
        let (reader, holder) = (world.client("reader").await, world.client("h").await);
        let mut answers = Vec::new();
        for n in 0..40 {
            let name = format!("f{n}");
            opens(&holder, open_create(&name, b"o", WANT_WRITE, 0)).await;
            answers.push(Answer::LateAttributes(Duration::from_millis(300), u64::MAX / 2, 7));
        }
        holder.callbacks().script(&answers);
        let (mut sizes, mut pages, mut cookie) = (Vec::new(), 0, 0);
        loop {
            let start = world.env.clock.now();
            let ops = vec![putrootfh(), readdir(cookie, verifier4::default(), 65536, &[FATTR4_SIZE])];
            let nfs_resop4::OP_READDIR(READDIR4res::NFS4_OK(page)) = reader.last(ops).await else { panic!() };
            let took = world.env.clock.now().since(start);
            assert!(took <= Duration::from_secs(5), "{took:?}");
            let size = |entry: &entry4| Attributes::decode(&entry.attrs).unwrap().size;
            sizes.extend(page.reply.entries.iter().map(size));
            pages += 1;
            if page.reply.eof {
                break;
            }
            cookie = page.reply.entries.last().unwrap().cookie;
        }
        assert_eq!(sizes, [Some(7); 40]);
        assert!(pages < 10, "{pages}");
    });
}

#[test]
fn a_holder_that_does_not_say_is_recalled() {
    simulate(6, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, _, stateid) = writer(&a).await;
        a.callbacks().script(&[Answer::Status(nfsstat4::NFS4ERR_BADHANDLE)]);
        let ops = vec![putfh(&fh), getattr(&SEEN)];
        assert_eq!(b.status(ops.clone()).await, nfsstat4::NFS4ERR_DELAY);
        asked(&world, &a, 2).await;
        assert!(is_recall(&a, 1));
        a.ok(vec![putfh(&fh), delegreturn(stateid)]).await;
        b.ok(ops).await;
        let (_, _, given) = opens(&b, open_name("f", b"o", WANT_WRITE, 0)).await;
        assert!(matches!(given, open_delegation4::OPEN_DELEGATE_NONE_EXT(_)), "it was just fought over");
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
