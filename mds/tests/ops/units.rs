//! ALLOCATE and SEEK of a striped file: which stripe units data servers are asked about, and with how many orders.
//! RFC 7862 §15.1, §15.11. What they and others do with a file that has no data files at all.

use std::ops::Range;
use std::sync::Arc;

use proptest::prelude::*;
use sluice_kv::RunLimits;
use sluice_mds::Config;
use sluice_namespace::{
    Create, CreateMode, Credential, DirectoryUpdate, FileId, FsError, InodeKey, LayoutPolicy, Name,
    Namespace, NewAttributes, NewNode, Request, Shape,
};
use sluice_xdr::nfs4::*;

use crate::data_server::DataServer;
use crate::harness::*;

/// How long the stripe units of such a file are.
const UNIT: u64 = 1 << 20;
const WIDTH: u64 = 3;

fn wide() -> Config {
    Config {
        policy: LayoutPolicy { shape: Shape::Wide, mirrors: 1, inline: 0, class: None },
        ..Config::default()
    }
}

/// A file over three data servers.
async fn striped(world: &mut World) -> ([Arc<DataServer>; 3], Client, (nfs_fh4, stateid4)) {
    let servers =
        [world.data_server(), world.add_data_server("ds2").await, world.add_data_server("ds3").await];
    let client = world.client("a").await;
    let file = client.open("f", BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0).await;
    (servers, client, file)
}

async fn allocate(client: &Client, (fh, open): &(nfs_fh4, stateid4), bytes: &Range<u64>) {
    let (aa_offset, aa_length) = (bytes.start, bytes.end - bytes.start);
    let args = ALLOCATE4args { aa_stateid: *open, aa_offset, aa_length };
    client.ok(vec![putfh(fh), nfs_argop4::OP_ALLOCATE(args)]).await;
}

/// The next hole, or the end.
async fn hole(client: &Client, (fh, open): &(nfs_fh4, stateid4), from: u64) -> u64 {
    let sa_what = data_content4::NFS4_CONTENT_HOLE;
    let args = SEEK4args { sa_stateid: *open, sa_offset: from, sa_what };
    match client.ok(vec![putfh(fh), nfs_argop4::OP_SEEK(args)]).await.pop() {
        Some(nfs_resop4::OP_SEEK(SEEK4res::NFS4_OK(found))) => found.sr_offset,
        other => panic!("{other:?}"),
    }
}

/// Each byte of the range is set aside once, in the data file that has it.
fn covers(mut aside: Vec<(u32, Range<u64>)>, bytes: &Range<u64>) {
    aside.sort_unstable_by_key(|(_, piece)| piece.start);
    let mut at = bytes.start;
    let first = aside[0].0;
    for (slot, piece) in aside {
        assert_eq!(piece.start, at, "{bytes:?}");
        let units = at / UNIT - bytes.start / UNIT;
        assert_eq!(u64::from(slot), (u64::from(first) + units) % WIDTH, "{bytes:?}");
        assert_eq!((piece.end - 1) / UNIT, at / UNIT, "of one unit");
        at = piece.end;
    }
    assert_eq!(at, bytes.end);
}

#[test]
fn a_terabyte_is_set_aside_with_an_order_for_each_data_file() {
    simulate_with(1, wide(), async |mut world| {
        let (servers, client, file) = striped(&mut world).await;
        servers.iter().for_each(|server| server.set_units(Some(usize::MAX), &[]));
        let bytes = 5..(1 << 40) - 77;
        allocate(&client, &file, &bytes).await;
        let (aside, orders): (Vec<_>, Vec<_>) = servers.iter().map(|server| server.take_aside()).unzip();
        assert_eq!(orders, [1; 3]);
        covers(aside.concat(), &bytes);
        // A hole that is not there is looked for in all of it.
        let behind = 1 << 50;
        let one = behind..behind + 1;
        servers.iter().for_each(|server| server.set_units(Some(usize::MAX), std::slice::from_ref(&one)));
        assert_eq!(hole(&client, &file, 5).await, bytes.end);
        let orders: usize = servers.iter().map(|server| server.take_aside().1).sum();
        assert!(orders < 30, "{orders}");
    });
}

/// However many units an order does, and where it does one, as the release before.
#[test]
fn a_range_of_a_striped_file_is_that_of_its_units() {
    let near = |unit: u64| unit * UNIT..(unit + 1) * UNIT;
    let place = prop_oneof![(0..30_u64).prop_map(|unit| unit * UNIT), (0..30_u64).prop_flat_map(near)];
    let range = (place.clone(), 1..20 * UNIT).prop_map(|(from, length)| from..from + length);
    let holes = proptest::collection::vec((place.clone(), 1..2 * UNIT), 1..4);
    let units = prop_oneof![Just(None), (1..5_usize).prop_map(Some), Just(Some(1000))];
    let case = (range, holes, place, units);
    proptest!(ProptestConfig::with_cases(60), |((range, holes, from, units) in case)| {
        let holes: Vec<_> = holes.into_iter().map(|(at, length)| at..at + length).collect();
        simulate_with(2, wide(), async |mut world| {
            let (servers, client, file) = striped(&mut world).await;
            servers.iter().for_each(|server| server.set_units(units, &holes));
            allocate(&client, &file, &range).await;
            let aside: Vec<_> = servers.iter().flat_map(|server| server.take_aside().0).collect();
            covers(aside, &range);
            let end = 60 * UNIT;
            allocate(&client, &file, &(0..end)).await;
            let next = holes.iter().filter(|hole| from < hole.end).map(|hole| from.max(hole.start)).min();
            let found = hole(&client, &file, from).await;
            assert_eq!(found, next.unwrap_or(end));
        });
    });
}

/// As a store may have it that is older than this program: with a size, and no place for its data.
async fn a_size_and_no_data(world: &World, called: &str, size: u64) {
    let now = world.env.clock.wall();
    let made = world.db.run::<_, FsError, _>(RunLimits::default(), |mut txn| {
        Box::pin(async move {
            let namespace = Namespace::load(&txn).await?.unwrap();
            let create = Create {
                directory: InodeKey::ROOT,
                name: Name::new(called.as_bytes())?,
                node: NewNode::File { layout: None, read_write_layout: false, size },
                mode: CreateMode::Guarded,
                attributes: NewAttributes::mode(0o666),
                fileid: FileId(1 << 40),
            };
            let who = Credential::ROOT;
            let request = Request { who: &who, now, directory: DirectoryUpdate::Exact };
            namespace.create(&mut txn, &create, &request).await.map(drop)
        })
    });
    made.await.unwrap();
}

#[test]
fn a_file_that_has_a_size_and_no_data_is_a_hole() {
    simulate_with(3, wide(), async |world| {
        let size = 100_000;
        a_size_and_no_data(&world, "f", size).await;
        let client = world.client("a").await;
        let file = client.open("f", BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0).await;
        let (fh, open) = (&file.0, file.1);
        let sizes = async || client.attributes("f", &[FATTR4_SIZE]).await.size;
        let free = |da_offset, da_length| {
            let args = DEALLOCATE4args { da_stateid: open, da_offset, da_length };
            vec![putfh(fh), nfs_argop4::OP_DEALLOCATE(args)]
        };
        for (from, length) in [(0, 10), (50, size), (size, 1), (size + 5, 1 << 40)] {
            assert_eq!(client.status(free(from, length)).await, nfsstat4::NFS4_OK, "{from} {length}");
        }
        assert_eq!(sizes().await, Some(size));
        assert_eq!(hole(&client, &file, 77).await, 77);
        let seek = SEEK4args { sa_stateid: open, sa_offset: 0, sa_what: data_content4::NFS4_CONTENT_DATA };
        let data = client.last(vec![putfh(fh), nfs_argop4::OP_SEEK(seek)]).await;
        let none = SEEK4res::NFS4_OK(seek_res4 { sr_eof: true, sr_offset: size });
        assert_eq!(data, nfs_resop4::OP_SEEK(none));
        let args = READ_PLUS4args { rpa_stateid: open, rpa_offset: 5, rpa_count: u32::MAX };
        let read = client.last(vec![putfh(fh), nfs_argop4::OP_READ_PLUS(args)]).await;
        let rest = data_info4 { di_offset: 5, di_length: size - 5 };
        let rpr_contents = vec![read_plus_content::NFS4_CONTENT_HOLE(rest)];
        let whole = READ_PLUS4res::NFS4_OK(read_plus_res4 { rpr_eof: true, rpr_contents });
        assert_eq!(read, nfs_resop4::OP_READ_PLUS(whole));
        allocate(&client, &file, &(0..2 * size)).await;
        assert_eq!(sizes().await, Some(2 * size));
        assert_eq!(client.status(free(0, size)).await, nfsstat4::NFS4_OK);
        assert_eq!(sizes().await, Some(2 * size));
    });
}
