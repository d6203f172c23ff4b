//! Where files end, and what lies between their data and their end.

use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::nfs4::{DEALLOCATE4args, nfs_argop4};

use crate::client::{Client, RO, RW, putfh};
use crate::stage::{UNIT, simulate_with};
use crate::{NEW, pattern};

const SMALL: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 1, inline: 0, class: None };
const WIDE: LayoutPolicy = LayoutPolicy { shape: Shape::Wide, mirrors: 1, inline: 0, class: None };

/// Reads past the page cache end where the server says that the file ends (linux-client §5.6).
#[test]
fn what_a_file_was_extended_by_reads_as_zeros_at_its_data_server_too() {
    for (seed, policy) in [(81, SMALL), (82, LayoutPolicy { mirrors: 2, ..SMALL }), (83, WIDE)] {
        simulate_with(seed, policy, async |world| {
            let client = Client::mount(world, "a", NEW).await;
            let file = client.open("f").await;
            let held = client.layout(&file, file.stateid, RW, 0).await;
            client.write(&held, 0, &pattern(0, 65_536)).await.unwrap();
            client.layout_commit(&file, held.stateid, Some(65_535)).await.unwrap();
            client.truncate(&file, 1 << 20).await;
            let zeros = client.read(&held, 524_288..528_384).await.unwrap();
            assert!(zeros.len() == 4096 && zeros.iter().all(|byte| *byte == 0), "{}", zeros.len());
            client.layout_return(&file, held.stateid).await;
            let ro = client.layout(&file, file.stateid, RO, 0).await;
            let across = client.read(&ro, 61_440..69_632).await.unwrap();
            assert!(across[..4096] == pattern(61_440, 4096)[..] && across[4096..] == [0; 4096]);
            let last = client.read(&ro, 1_044_480..1_052_672).await.unwrap();
            assert_eq!(last.len(), 4096, "no more than the file has");
            // Of a file without any data, too.
            let empty = client.open("g").await;
            client.truncate(&empty, 1 << 20).await;
            let held = client.layout(&empty, empty.stateid, RW, 0).await;
            assert!(client.read(&held, 0..4096).await.unwrap()[..] == [0; 4096]);
        });
    }
}

/// There is nothing to copy of a hole at the end, whether its file has data files or not.
#[test]
fn a_copy_ends_where_its_source_does_though_there_is_a_hole() {
    simulate_with(87, SMALL, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let (with, without) = (client.open("f").await, client.open("g").await);
        let held = client.layout(&with, with.stateid, RW, 0).await;
        client.write(&held, 0, &pattern(0, 65_536)).await.unwrap();
        client.layout_commit(&with, held.stateid, Some(65_535)).await.unwrap();
        client.layout_return(&with, held.stateid).await;
        for (source, name) in [(&with, "h"), (&without, "i")] {
            client.truncate(source, 1 << 20).await;
            let copy = client.open(name).await;
            client.copy_all((source, 0), (&copy, 0), 1 << 20).await.unwrap();
            assert_eq!(client.stat(&copy).await.0, 1 << 20);
            let ro = client.layout(&copy, copy.stateid, RO, 0).await;
            assert!(client.read(&ro, 1_044_480..1_048_576).await.unwrap()[..] == [0; 4096], "{name}");
        }
    });
}

/// The work is for data files, not for pieces of them.
#[test]
fn a_hole_in_a_vast_file_is_made_with_an_order_for_each_data_file() {
    for (seed, policy) in [(84, WIDE), (85, LayoutPolicy::default())] {
        simulate_with(seed, policy, async |world| {
            let client = Client::mount(world, "a", NEW).await;
            let file = client.open("f").await;
            for at in [0, 2 * UNIT, 9 * UNIT] {
                let held = client.layout(&file, file.stateid, RW, at).await;
                client.write(&held, at, &pattern(at, 10_000)).await.unwrap();
                client.layout_commit(&file, held.stateid, Some(at + 9_999)).await.unwrap();
                client.layout_return(&file, held.stateid).await;
            }
            let size = 1 << 62;
            client.truncate(&file, size).await;
            let before = world.cost();
            let from = 2 * UNIT + 5_000;
            let op = nfs_argop4::OP_DEALLOCATE(DEALLOCATE4args {
                da_stateid: file.stateid,
                da_offset: from,
                da_length: size - from,
            });
            client.ok(vec![putfh(&file.handle), op]).await;
            let orders = (world.cost() - before).orders;
            assert!(orders < 12, "{orders}");
            assert!(client.proxied_read(&file, 0, 10_000).await[..] == pattern(0, 10_000)[..]);
            let kept = client.proxied_read(&file, 2 * UNIT, 10_000).await;
            assert!(kept[..5_000] == pattern(2 * UNIT, 5_000)[..] && kept[5_000..] == [0; 5_000]);
            assert!(client.proxied_read(&file, 9 * UNIT, 10_000).await[..] == [0; 10_000]);
            assert_eq!(client.stat(&file).await.0, size);
        });
    }
}

/// What `du` shows, and drains reckon with.
#[test]
fn what_is_freed_counts_no_more_and_mirrors_count_once() {
    const SIZE: u64 = 1 << 20;
    for (seed, mirrors) in [(86, 1), (87, 2)] {
        let policy = LayoutPolicy { mirrors, ..LayoutPolicy::default() };
        simulate_with(seed, policy, async |world| {
            let client = Client::mount(world, "a", NEW).await;
            let file = client.open("f").await;
            let held = client.layout(&file, file.stateid, RW, 0).await;
            for mirror in 0..usize::from(mirrors) {
                client.write(&held.mirror(mirror), 0, &pattern(0, SIZE as usize)).await.unwrap();
            }
            client.layout_commit(&file, held.stateid, Some(SIZE - 1)).await.unwrap();
            client.layout_return(&file, held.stateid).await;
            assert_eq!(client.space(&file).await, SIZE);
            let op = nfs_argop4::OP_DEALLOCATE(DEALLOCATE4args {
                da_stateid: file.stateid,
                da_offset: 0,
                da_length: SIZE / 2,
            });
            client.ok(vec![putfh(&file.handle), op]).await;
            assert_eq!(client.space(&file).await, SIZE / 2);
        });
    }
}
