//! Where one new file after another becomes large, the next begins at data servers and has its layout with OPEN.

use std::time::Duration;

use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::nfs4::*;

use crate::client::{CURRENT, Client, RW, layoutget, segment};
use crate::stage::simulate_with;
use crate::{NEW, pattern};

const LIMIT: usize = 16 << 10;
const LARGE: usize = LIMIT + 1;
const POLICY: LayoutPolicy =
    LayoutPolicy { shape: Shape::Default, mirrors: 1, inline: 16 << 10, class: None };
const OK: nfsstat4 = nfsstat4::NFS4_OK;
/// Large ones in a row that it takes, after the first of a client, from which it is learned that it asks with OPEN.
const SURE: usize = 32;
const ENOUGH: usize = SURE + 1;

impl Client {
    /// A new file as Linux writes it: whether its layout came with OPEN. Nothing is written if it is empty.
    async fn make(&self, name: &str, bytes: usize) -> bool {
        let mut ops = Self::open_ops(name, OPEN4_SHARE_ACCESS_BOTH);
        ops.push(layoutget(CURRENT, RW, 0, u64::MAX));
        let (status, mut results) = self.compound(ops).await;
        let (file, given) = (Self::opened(&results), status == OK);
        if bytes == 0 || (bytes <= LIMIT && !given) {
            if bytes > 0 {
                assert_eq!(self.proxied_write(&file, 0, &pattern(0, bytes)).await, OK);
            }
            self.close(&file).await;
            return given;
        }
        let layout = match given {
            true => segment(results.pop().unwrap()),
            false => self.layout(&file, file.stateid, RW, 0).await,
        };
        self.write(&layout, 0, &pattern(0, bytes)).await.unwrap();
        let end = bytes as u64;
        assert_eq!(self.layout_commit(&file, layout.stateid, Some(end - 1)).await.unwrap().0, end);
        assert_eq!(self.return_and_close(&file, layout.stateid).await, end);
        given
    }

    /// So many files one after the other: how many had their layouts with OPEN.
    async fn make_all(&self, names: &str, files: usize, bytes: impl Fn(usize) -> usize) -> usize {
        let mut given = 0;
        for n in 0..files {
            given += usize::from(self.make(&format!("{names}{n}"), bytes(n)).await);
        }
        given
    }
}

#[test]
fn a_large_file_after_many_costs_one_transaction_and_one_call_less() {
    simulate_with(190, POLICY, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        assert_eq!(client.make_all("large", ENOUGH, |_| LARGE).await, 0);
        world.sleep(Duration::from_secs(3)).await;
        let before = world.cost();
        assert_eq!(client.make_all("more", 50, |_| LARGE).await, 50);
        world.sleep(Duration::from_secs(3)).await;
        // OPEN and LAYOUTCOMMIT, and what is gathered over many files.
        let cost = world.cost() - before;
        assert!((100..=130).contains(&cost.transactions), "{cost:?}");
        assert_eq!(world.foreseen().await, (50, 0));
        // A small one was not foreseen; those behind it are as before.
        assert!(client.make("small", 100).await);
        assert_eq!(world.foreseen().await, (50, 1));
        let others = client.make_all("after", SURE, |n| if n == 0 { 100 } else { LARGE }).await;
        assert_eq!((others, world.foreseen().await), (0, (50, 1)));
        for (name, bytes) in [("small", 100), ("more7", LARGE), ("after0", 100)] {
            let file = client.open(name).await;
            assert_eq!(client.proxied_content(&file, bytes as u64).await, pattern(0, bytes));
        }
        world.check().await;
    });
}

#[test]
fn where_some_files_are_small_they_are_kept_in_the_metadata() {
    simulate_with(191, POLICY, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let mixed = client.make_all("f", 150, |n| if n % 10 == 9 { 100 } else { LARGE }).await;
        assert_eq!((mixed, world.foreseen().await), (0, (0, 0)));
    });
}

/// A client that asks for no layout, or one whose data goes through the metadata server, has nothing of a layout.
#[test]
fn who_does_not_ask_with_open_is_given_nothing() {
    simulate_with(192, POLICY, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        client.make_all("large", ENOUGH, |_| LARGE).await;
        let plain = Client::mount(world, "b", NEW).await;
        let file = plain.open("plain").await;
        assert_eq!(plain.proxied_write(&file, 0, &pattern(0, 100)).await, OK);
        assert_eq!((world.foreseen().await, world.proxied_because().await), ((0, 0), Vec::new()));
        assert!(client.make("next", LARGE).await, "what others do is not learned from");
    });
}

/// With no data server there a new file is what it would have been.
#[test]
fn without_data_servers_a_file_begins_in_the_metadata() {
    simulate_with(193, POLICY, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        client.make_all("large", ENOUGH, |_| LARGE).await;
        for n in 0..4 {
            world.crash_data_server(n).await;
        }
        world.sleep(Duration::from_secs(60)).await;
        assert!(!client.make("small", 100).await);
        for n in 0..4 {
            world.start_data_server(n).await;
        }
        world.sleep(Duration::from_secs(60)).await;
        assert_eq!(client.make_all("more", SURE + 1, |_| LARGE).await, 1);
        world.check().await;
    });
}

/// Written through the metadata server because the client reaches no data server: it learns, too.
#[test]
fn a_small_file_that_was_written_by_way_of_the_metadata_server_ends_it() {
    simulate_with(194, POLICY, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        client.make_all("large", ENOUGH, |_| LARGE).await;
        let (file, layout) = client.open_with_layout("small").await;
        assert_eq!(client.layout_return(&file, layout.stateid).await, OK);
        assert_eq!(client.proxied_write(&file, 0, &pattern(0, 100)).await, OK);
        assert_eq!(world.foreseen().await, (0, 1));
        assert!(!client.make("next", LARGE).await);
    });
}

/// A client dies with the layout that it had with OPEN: what it wrote is found.
#[test]
fn what_was_written_under_such_a_layout_is_found_after_a_crash() {
    simulate_with(195, POLICY, async |world| {
        let mut client = Client::mount(world, "a", NEW).await;
        client.make_all("large", ENOUGH, |_| LARGE).await;
        let (file, layout) = client.open_with_layout("f").await;
        client.write(&layout, 0, &pattern(0, 70_000)).await.unwrap();
        world.restart_metadata_server().await;
        client.reconnect(world).await;
        assert_eq!(client.stat(&file).await.0, 70_000);
        // What it knew is forgotten; nothing else is.
        let whole = RECLAIM_COMPLETE4args { rca_one_fs: false };
        client.once(vec![nfs_argop4::OP_RECLAIM_COMPLETE(whole)]).await;
        world.sleep(Duration::from_secs(100)).await;
        assert!(!client.make("g", LARGE).await);
        world.check().await;
    });
}
