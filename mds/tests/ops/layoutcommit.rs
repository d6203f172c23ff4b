//! LAYOUTCOMMIT. RFC 8881 §18.42.

use std::time::Duration;

use sluice_kv::Faults;
use sluice_xdr::nfs4::*;
use tokio::task::JoinSet;

use crate::harness::*;
use crate::layout_recall;

const WRITERS: u64 = 16;
/// What each of them writes, one behind the other, in bytes.
const PIECE: u64 = 4096;

/// A client that may write "f" directly.
struct Writer {
    client: Client,
    fh: nfs_fh4,
    layout: stateid4,
}

impl Writer {
    async fn new(world: &World, host: &str) -> Self {
        let client = world.client(host).await;
        let (fh, open) = client.open("f", BOTH, 0).await;
        let layout = layout_recall::get(&client, &fh, open).await;
        Self { client, fh, layout }
    }

    /// As Linux says how far it wrote: the attributes come with the answer.
    async fn commits(&self, end: u64) -> Attributes {
        let looks = getattr(&[FATTR4_SIZE, FATTR4_CHANGE, FATTR4_TIME_MODIFY]);
        looked(&self.client.last(vec![putfh(&self.fh), layoutcommit(self.layout, end - 1), looks]).await)
    }
}

/// While a transaction of a file runs, what others say of that file waits, and becomes one (docs/DESIGN §6).
#[test]
fn many_of_one_file_share_transactions() {
    simulate(1, async |world: World| {
        let mut writers = Vec::new();
        for number in 0..WRITERS {
            writers.push(Writer::new(&world, &format!("host{number}")).await);
        }
        world.db.set_faults(Faults { latency: Duration::from_millis(20), ..Faults::NONE });
        let before = world.db.work().transactions;
        let mut saying = JoinSet::new();
        for (end, writer) in (1..).map(|pieces| pieces * PIECE).zip(writers) {
            saying.spawn(async move {
                writer.commits(end).await;
                let seen = writer.client.attributes("f", &[FATTR4_SIZE]).await.size;
                assert!(seen >= Some(end), "{seen:?} after a LAYOUTCOMMIT to {end}");
            });
        }
        saying.join_all().await;
        let spent = world.db.work().transactions - before;
        assert!(spent <= WRITERS / 2, "{spent} transactions");
        world.db.set_faults(Faults::NONE);
        let other = world.client("other").await;
        assert_eq!(other.attributes("f", &[FATTR4_SIZE]).await.size, Some(WRITERS * PIECE));
    });
}

/// What a LAYOUTCOMMIT has just made of a file need not be looked up for the GETATTR behind it. In a cluster each version to
/// read at is a message: one is for the kind of the file, one for the transaction.
#[test]
fn the_attributes_that_come_with_it_are_what_it_has_made() {
    simulate(2, async |world: World| {
        let writer = Writer::new(&world, "a").await;
        writer.commits(PIECE).await;
        let before = world.db.work().views;
        let seen = writer.commits(2 * PIECE).await;
        let spent = world.db.work().views - before;
        assert!(spent <= 2, "{spent} versions to read at");
        let later = writer.client.attributes("f", &[FATTR4_CHANGE, FATTR4_TIME_MODIFY]).await;
        assert_eq!(later, seen);
    });
}

/// Nor does the change come with it where it is not all the writer's own: Linux would take it for that, and go on showing what it
/// has in memory, of before the other's, also to who opens the file anew. Once there were several that stays so: a change of its own
/// would be taken for all that came before it.
#[test]
fn another_ones_change_does_not_come_with_it() {
    simulate(4, async |world: World| {
        let (a, b) = (Writer::new(&world, "a").await, Writer::new(&world, "b").await);
        let first = a.commits(PIECE).await;
        assert_eq!(first.change, a.client.attributes("f", &[FATTR4_CHANGE]).await.change, "all is its own");
        for writer in [&b, &a, &a, &b] {
            let seen = writer.commits(PIECE).await;
            assert!(seen.change.is_none() && seen.time_modify.is_some(), "{seen:?}");
            assert!(
                writer.client.attributes("f", &[FATTR4_CHANGE]).await.change > first.change,
                "asked for, it is told"
            );
        }
    });
}

/// One transaction may make both known, and they have one change attribute then.
#[test]
fn of_several_that_share_a_transaction_nobody_is_alone() {
    simulate(5, async |world: World| {
        let writers =
            [Writer::new(&world, "a").await, Writer::new(&world, "b").await, Writer::new(&world, "c").await];
        world.db.set_faults(Faults { latency: Duration::from_millis(20), ..Faults::NONE });
        let [a, b, c] = writers.each_ref().map(|writer| writer.commits(PIECE));
        // The first one's is under way when the others come.
        let ((_, b), c) = both(both(a, b), c).await;
        assert_eq!([b.change, c.change], [None; 2]);
    });
}

/// Linux takes what comes with a LAYOUTCOMMIT for newer than its own writes that ended before it looked into the reply, and
/// would append over them (ADR 0032): there is no size in it. Whoever asks for no change attribute, or later, is told.
#[test]
fn how_long_the_file_is_does_not_come_with_it() {
    simulate(3, async |world: World| {
        let writer = Writer::new(&world, "a").await;
        let seen = writer.commits(PIECE).await;
        assert_eq!(seen.size, None);
        assert!(seen.change.is_some() && seen.time_modify.is_some(), "{seen:?}");
        let asks = async |attributes: &[u32]| {
            let commit = layoutcommit(writer.layout, PIECE - 1);
            looked(&writer.client.last(vec![putfh(&writer.fh), commit, getattr(attributes)]).await).size
        };
        assert_eq!(asks(&[FATTR4_SIZE]).await, Some(PIECE));
        assert_eq!(asks(&[FATTR4_SIZE, FATTR4_MODE]).await, Some(PIECE));
        assert_eq!(asks(&[FATTR4_SIZE, FATTR4_CHANGE, FATTR4_MODE]).await, None);
        let looks = getattr(&[FATTR4_SIZE, FATTR4_CHANGE, FATTR4_TIME_MODIFY]);
        let commit = layoutcommit(writer.layout, PIECE - 1);
        let all = vec![putfh(&writer.fh), commit, looks.clone(), looks];
        assert_eq!(
            looked(&writer.client.last(all).await).size,
            Some(PIECE),
            "another GETATTR behind that one"
        );
    });
}
