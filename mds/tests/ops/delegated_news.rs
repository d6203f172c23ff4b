//! What others are shown of a file that is delegated: its holder is asked. RFC 8881 §10.4.3.

use std::time::Duration;

use sluice_xdr::control::ctl_stat;
use sluice_xdr::nfs4::*;

use crate::callbacks::Answer;
use crate::delegation::*;
use crate::harness::*;

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

/// Two ask at the same moment, and the holder writes on between them: what the one is shown does not change for the other and look the
/// same.
#[test]
fn who_asks_at_once_is_shown_one_size_for_one_change_attribute() {
    for (seed, late, told) in [(30, 0, [5, 7]), (31, 0, [7, 5]), (32, 40, [5, 7]), (33, 40, [7, 5])] {
        simulate(seed, async |world: World| {
            let (a, b) = (world.client("a").await, world.client("b").await);
            let c = world.client("c").await;
            let (_, _, before) = lone_writer(&world, &a, false).await;
            let change = before.change.unwrap();
            let answer = |after, size| Answer::LateAttributes(Duration::from_millis(after), change + 1, size);
            a.callbacks().script(&[answer(100 + late, told[0]), answer(100, told[1])]);
            let (one, other) = both(b.attributes("f", &SEEN), c.attributes("f", &SEEN)).await;
            assert_eq!(a.callbacks().count(), 2);
            assert!(one.change > before.change && other.change > before.change);
            assert!(one.size == other.size || one.change != other.change, "{one:?} {other:?}");
            // Whoever saw more does not see less later.
            a.callbacks().script(&[Answer::Attributes(change + 1, 7)]);
            assert_eq!(b.attributes("f", &SEEN).await.size, Some(7));
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
        is_no_news(&world, (&b, &fh, layout.logr_stateid), &given, &c).await;
    });
}

/// The holder has committed what it wrote, and says to each other that looks what it was `given`: they see the same twice.
async fn is_no_news(
    world: &World,
    (holder, fh, layout): (&Client, &nfs_fh4, stateid4),
    given: &Attributes,
    other: &Client,
) {
    holder.ok(vec![putfh(fh), layoutcommit(layout, 4)]).await;
    let committed = holder.attributes("f", &SEEN).await;
    assert!(committed.change > given.change);
    let mut seen = Vec::new();
    for _ in 0..2 {
        world.sleep(Duration::from_secs(1)).await;
        holder.callbacks().script(&[Answer::Attributes(given.change.unwrap(), committed.size.unwrap())]);
        seen.push(other.attributes("f", &SEEN).await);
    }
    assert_eq!(seen, [committed.clone(), committed]);
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
        is_no_news(&world, (&a, &fh, layout.logr_stateid), &given, &b).await;
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

/// Nor for a data server that is asked about one after the other, nor for both.
#[test]
fn a_listing_does_not_wait_for_a_silent_data_server_of_each_file() {
    for (seed, holders) in [(126, 0), (127, 3)] {
        simulate(seed, async |mut world: World| {
            let (reader, writer) = (world.client("reader").await, world.client("writer").await);
            for n in 0..5 {
                let name = format!("f{n}");
                let (fh, open) = writer.open(&name, BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0).await;
                writer.ok(vec![putfh(&fh), setattr(open, &size(7))]).await;
                writer.ok(vec![putfh(&fh), layoutget(open, layoutiomode4::LAYOUTIOMODE4_RW)]).await;
            }
            for n in 0..holders {
                let holder = world.client(&format!("h{n}")).await;
                opens(&holder, open_create(&format!("g{n}"), b"o", WANT_WRITE, 0)).await;
                holder.callbacks().script(&[Answer::Silence]);
            }
            let data_server = world.data_server();
            data_server.hold_stats(true);
            let list = async || {
                let start = world.env.clock.now();
                let ops = vec![putrootfh(), readdir(0, verifier4::default(), 4096, &[FATTR4_SIZE])];
                let nfs_resop4::OP_READDIR(READDIR4res::NFS4_OK(page)) = reader.last(ops).await else {
                    panic!()
                };
                let took = world.env.clock.now().since(start);
                assert!(took <= Duration::from_millis(5_500), "{took:?}");
                assert!(page.reply.eof);
                let size = |entry: &entry4| Attributes::decode(&entry.attrs).unwrap().size;
                page.reply.entries.iter().map(size).collect::<Vec<_>>()
            };
            let mut sizes = list().await;
            sizes.sort_unstable();
            assert_eq!(sizes, [vec![Some(0); holders], vec![Some(7); 5]].concat());
            data_server.set_stat(ctl_stat { exists: true, size: 9, ..ctl_stat::default() });
            data_server.hold_stats(false);
            if holders == 0 {
                assert_eq!(list().await, [Some(9); 5]);
            }
        });
    }
}

/// But for what it writes itself: Linux cuts its view of a file that is shown to be shorter than it wrote it.
#[test]
fn what_a_writer_lists_is_no_less_than_it_has_written() {
    simulate(128, async |mut world: World| {
        let writer = world.client("writer").await;
        for n in 0..3 {
            let name = format!("f{n}");
            let (fh, open) = writer.open(&name, BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0).await;
            writer.ok(vec![putfh(&fh), setattr(open, &size(7))]).await;
            writer.ok(vec![putfh(&fh), layoutget(open, layoutiomode4::LAYOUTIOMODE4_RW)]).await;
        }
        let data_server = world.data_server();
        data_server.set_stat(ctl_stat { exists: true, size: 9, ..ctl_stat::default() });
        data_server.hold_stats(true);
        let answers = async {
            world.sleep(Duration::from_secs(7)).await;
            data_server.hold_stats(false);
        };
        let list = writer.last(vec![putrootfh(), readdir(0, verifier4::default(), 4096, &[FATTR4_SIZE])]);
        let (listed, ()) = both(list, answers).await;
        let nfs_resop4::OP_READDIR(READDIR4res::NFS4_OK(page)) = listed else { panic!() };
        let size = |entry: &entry4| Attributes::decode(&entry.attrs).unwrap().size;
        assert_eq!(page.reply.entries.iter().map(size).collect::<Vec<_>>(), [Some(9); 3]);
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
