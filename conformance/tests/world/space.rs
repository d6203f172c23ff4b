//! Space that is set aside in files over several data servers, all of it or none, and holes that are looked for: what it
//! comes to, and what it costs. RFC 7862 §15.1, §15.11.

use std::time::Duration;

use sluice_namespace::{LayoutPolicy, Shape};
use sluice_rpc::SimConfig;
use sluice_store::device::Device;
use sluice_xdr::nfs4::*;

use crate::client::{Client, Opened, RW, putfh};
use crate::copy::holder;
use crate::stage::{World, simulate_on, simulate_with};
use crate::{NEW, pattern};

const WIDE: LayoutPolicy = LayoutPolicy { shape: Shape::Wide, mirrors: 1, inline: 0, class: None };
/// How long the stripes of such a file are.
const STRIPE: u64 = 1 << 20;
/// What data servers keep free.
const RESERVE: u64 = 64 << 20;

impl Client {
    /// The next hole, if there is one before the end.
    async fn hole(&self, file: &Opened, from: u64) -> Option<u64> {
        let what = data_content4::NFS4_CONTENT_HOLE;
        let seek = SEEK4args { sa_stateid: file.stateid, sa_offset: from, sa_what: what };
        match self.ok(vec![putfh(&file.handle), nfs_argop4::OP_SEEK(seek)]).await.pop() {
            Some(nfs_resop4::OP_SEEK(SEEK4res::NFS4_OK(found))) => (!found.sr_eof).then_some(found.sr_offset),
            other => panic!("{other:?}"),
        }
    }

    async fn punch(&self, file: &Opened, offset: u64, length: u64) {
        let args = DEALLOCATE4args { da_stateid: file.stateid, da_offset: offset, da_length: length };
        self.ok(vec![putfh(&file.handle), nfs_argop4::OP_DEALLOCATE(args)]).await;
    }

    /// Writes by a layout, which it gives back.
    async fn put(&self, file: &Opened, at: u64, data: &[u8]) {
        let held = self.layout(file, file.stateid, RW, at).await;
        for mirror in 0..held.body.ffl_mirrors.len() {
            self.write(&held.mirror(mirror), at, data).await.unwrap();
        }
        self.layout_commit(file, held.stateid, Some(at + data.len() as u64 - 1)).await.unwrap();
        assert_eq!(self.layout_return(file, held.stateid).await, nfsstat4::NFS4_OK);
    }

    /// The size as somebody sees it who looks while there is a writer.
    async fn size_beside_a_writer(&self, file: &Opened) -> u64 {
        let held = self.layout(file, file.stateid, RW, 0).await;
        let (size, _) = self.stat(file).await;
        assert_eq!(self.layout_return(file, held.stateid).await, nfsstat4::NFS4_OK);
        assert_eq!(self.stat(file).await.0, size);
        size
    }
}

/// Bytes in use at each data server.
fn used(world: &World) -> Vec<u64> {
    let of = |n| world.device(n).space().map(|space| space.total - space.free).unwrap();
    (0..4).map(of).collect()
}

fn fill(world: &World, n: usize) {
    let space = world.device(n).space().unwrap();
    world.device(n).set_capacity(space.total - space.free);
}

#[test]
fn what_there_is_no_room_for_is_refused_before_any_of_it_is_set_aside() {
    for (seed, mirrors) in [(91, 1), (92, 2)] {
        simulate_with(seed, LayoutPolicy { mirrors, ..WIDE }, async |world| {
            let client = Client::mount(world, "a", NEW).await;
            let file = client.open("f").await;
            client.put(&file, 0, &pattern(0, 10_000)).await;
            let before = used(world);
            let room = 40 * STRIPE;
            (0..4).for_each(|n| world.device(n).set_capacity(before[n] + RESERVE + room));
            // Heartbeats say so.
            world.sleep(Duration::from_secs(5)).await;
            let orders = world.cost().orders;
            assert_eq!(client.allocate(&file, 5_000, 1 << 30).await, nfsstat4::NFS4ERR_NOSPC);
            assert!(world.cost().orders - orders < 20, "{}", world.cost().orders - orders);
            assert_eq!(client.size_beside_a_writer(&file).await, 10_000);
            assert_eq!(used(world), before);
            // What there is room for, also if the last heartbeat did not know of it.
            assert_eq!(client.allocate(&file, 5_000, room).await, nfsstat4::NFS4_OK);
            (0..4).for_each(|n| world.device(n).set_capacity(1 << 40));
            assert_eq!(client.allocate(&file, 5_000, 1 << 30).await, nfsstat4::NFS4_OK);
            assert_eq!(client.size_beside_a_writer(&file).await, 5_000 + (1 << 30));
        });
    }
}

/// What is in use counts as set aside.
#[test]
fn where_there_is_data_no_more_room_is_asked_for() {
    simulate_with(93, WIDE, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let file = client.open("f").await;
        let data = pattern(0, 4 * STRIPE as usize);
        client.put(&file, 0, &data).await;
        (0..4).for_each(|n| fill(world, n));
        world.sleep(Duration::from_secs(5)).await;
        assert_eq!(client.allocate(&file, 100, 3 * STRIPE).await, nfsstat4::NFS4_OK);
        assert_eq!(client.allocate(&file, 100, 40 * STRIPE).await, nfsstat4::NFS4ERR_NOSPC);
        assert_eq!(client.size_beside_a_writer(&file).await, 4 * STRIPE);
    });
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Own {
    /// The client has given its layout back.
    None,
    Held,
    /// And it writes under it behind the end before it gives it back; whether it says so.
    Written {
        told: bool,
    },
}

#[test]
fn what_was_set_aside_before_the_room_was_used_up_is_no_part_of_the_file() {
    let cases = [Own::None, Own::Held, Own::Written { told: true }, Own::Written { told: false }];
    for (seed, own) in (94..).zip(cases) {
        simulate_with(seed, WIDE, async |world| {
            let client = Client::mount(world, "a", NEW).await;
            let (file, other) = (client.open("f").await, client.open("g").await);
            client.put(&file, 0, &pattern(0, 10_000)).await;
            client.put(&other, 0, &[1]).await;
            // No heartbeat has told of it yet.
            let n = holder(world, &client, &file, 2 * STRIPE).await;
            fill(world, n);
            let held = match own {
                Own::None => None,
                _ => Some(client.layout(&file, file.stateid, RW, 0).await),
            };
            assert_eq!(client.allocate(&file, 0, 64 * STRIPE).await, nfsstat4::NFS4ERR_NOSPC);
            let mut expected = pattern(0, 10_000);
            if let Some(held) = held {
                if let Own::Written { told } = own {
                    let at = STRIPE;
                    client.write(&held, at, &pattern(at, 5_000)).await.unwrap();
                    expected.resize(at as usize, 0);
                    expected.extend(pattern(at, 5_000));
                    if told {
                        client.layout_commit(&file, held.stateid, Some(at + 4_999)).await.unwrap();
                    }
                }
                let (stateid, _) = client.recalled(1).await;
                assert_eq!(client.layout_return(&file, stateid).await, nfsstat4::NFS4_OK);
            }
            world.device(n).set_capacity(1 << 40);
            let colleague = Client::mount(world, "b", NEW).await;
            let seen = colleague.open("f").await;
            let size = colleague.size_beside_a_writer(&seen).await;
            match own {
                // Nobody knows how much of what lies there was written.
                Own::Written { .. } => assert!(size >= expected.len() as u64, "{own:?} {size}"),
                _ => assert_eq!(size, expected.len() as u64, "{own:?}"),
            }
            let read = colleague.proxied_content(&seen, expected.len() as u64).await;
            assert!(read[..expected.len()] == expected, "{own:?}");
            assert_eq!(client.allocate(&file, 0, 64 * STRIPE).await, nfsstat4::NFS4_OK);
            assert_eq!(colleague.size_beside_a_writer(&seen).await, 64 * STRIPE);
        });
    }
}

/// One data server may say that there is no room long after others have set some aside.
fn far_apart(seed: u64, test: impl AsyncFnOnce(&mut World)) {
    let far = SimConfig { latency_max: Duration::from_millis(100), ..SimConfig::default() };
    simulate_on(seed, far, |config| config.policy = WIDE, test);
}

/// Gives a layout back, recalled or not.
async fn give_back(world: &World, client: &Client, file: &Opened, stateid: stateid4) {
    world.sleep(Duration::from_secs(1)).await;
    let stateid = match client.recalls().is_empty() {
        true => stateid,
        false => client.recalled(1).await.0,
    };
    assert_eq!(client.layout_return(file, stateid).await, nfsstat4::NFS4_OK);
    world.sleep(Duration::from_secs(5)).await;
}

/// Nor before it is known that it will be: its client has a layout, so that whoever looks asks the data servers.
#[test]
fn nobody_sees_a_file_grow_by_space_that_is_refused_in_the_end() {
    for seed in 110..120 {
        far_apart(seed, async |world| {
            let client = Client::mount(world, "a", NEW).await;
            let colleague = Client::mount(world, "b", NEW).await;
            let file = client.open("f").await;
            client.put(&file, 0, &pattern(0, 10_000)).await;
            let n = holder(world, &client, &file, 2 * STRIPE).await;
            let seen = colleague.open("f").await;
            let held = client.layout(&file, file.stateid, RW, 0).await;
            // No heartbeat has told of it yet.
            fill(world, n);
            let looks = async {
                loop {
                    assert_eq!(colleague.stat(&seen).await.0, 10_000);
                }
            };
            let refused = tokio::select! {
                () = looks => unreachable!(),
                refused = client.allocate(&file, 0, 64 * STRIPE) => refused,
            };
            assert_eq!(refused, nfsstat4::NFS4ERR_NOSPC);
            give_back(world, &client, &file, held.stateid).await;
            world.device(n).set_capacity(1 << 40);
            let other = Client::mount(world, "c", NEW).await;
            let seen = other.open("f").await;
            assert_eq!(other.size_beside_a_writer(&seen).await, 10_000);
        });
    }
}

#[test]
fn space_in_many_stripe_units_is_set_aside_at_all_data_servers_side_by_side() {
    const UNITS: u64 = 64;
    simulate_with(98, WIDE, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let file = client.open("f").await;
        client.put(&file, 0, &pattern(0, 4 * STRIPE as usize)).await;
        // They are known to be there.
        world.sleep(Duration::from_secs(3)).await;
        let begun = world.env.clock.now();
        assert_eq!(client.allocate(&file, 4 * STRIPE, 1).await, nfsstat4::NFS4_OK);
        let one = world.env.clock.now().since(begun);
        let (begun, before) = (world.env.clock.now(), world.cost());
        let (from, end) = (2 * STRIPE + 5_000, (UNITS + 2) * STRIPE + 77);
        assert_eq!(client.allocate(&file, from, end - from).await, nfsstat4::NFS4_OK);
        let (took, orders) = (world.env.clock.now().since(begun), (world.cost() - before).orders);
        // Each data file is looked at, and given one order.
        assert!((8..8 + 8).contains(&orders), "{orders}");
        assert!(took < one * 4, "{took:?}, and {one:?} for one");
        assert_eq!(client.stat(&file).await.0, end);
        assert!(client.proxied_content(&file, 4 * STRIPE).await == pattern(0, 4 * STRIPE as usize));
    });
}

/// A million stripe units: with a few orders to each data file, of which each ends in a moment.
#[test]
fn a_terabyte_of_a_striped_file_is_set_aside_with_few_orders() {
    simulate_with(102, WIDE, async |world| {
        (0..4).for_each(|n| world.device(n).set_capacity(1 << 40));
        world.sleep(Duration::from_secs(5)).await;
        let client = Client::mount(world, "a", NEW).await;
        let file = client.open("f").await;
        let before = world.cost();
        let end = (1 << 40) - 4_097;
        assert_eq!(client.allocate(&file, 4_095, end - 4_095).await, nfsstat4::NFS4_OK);
        let orders = (world.cost() - before).orders;
        assert!(orders < 300, "{orders}");
        assert_eq!(client.size_beside_a_writer(&file).await, end);
        // Of all of it there is a hole where it begins.
        assert_eq!(client.hole(&file, 4_095).await, Some(4_095));
    });
}

#[test]
fn a_hole_is_found_wherever_it_is_among_many_stripe_units() {
    const UNITS: u64 = 40;
    for (seed, policy) in [(99, WIDE), (100, LayoutPolicy { mirrors: 2, ..WIDE })] {
        simulate_with(seed, policy, async |world| {
            let client = Client::mount(world, "a", NEW).await;
            let file = client.open("f").await;
            let data = pattern(0, (UNITS * STRIPE) as usize - 100);
            client.put(&file, 0, &data).await;
            let begun = world.env.clock.now();
            assert_eq!(client.hole(&file, (UNITS - 1) * STRIPE).await, None);
            let one = world.env.clock.now().since(begun);
            let (begun, before) = (world.env.clock.now(), world.cost());
            assert_eq!(client.hole(&file, 0).await, None);
            let (took, orders) = (world.env.clock.now().since(begun), (world.cost() - before).orders);
            // One unit, two, sixteen, and the rest.
            assert!((1 + 2 + 4 + 4..1 + 2 + 4 + 4 + 8).contains(&orders), "{orders}");
            assert!(took < one * 12, "{took:?}, and {one:?} for one");
            // A part of a unit is at the data servers of that.
            let before = world.cost();
            client.punch(&file, 34 * STRIPE, 4_096).await;
            let orders = (world.cost() - before).orders;
            // Then all four are asked what is left.
            assert!(orders <= u64::from(policy.mirrors) + 4, "{orders}");
            client.put(&file, 34 * STRIPE, &pattern(34 * STRIPE, 4_096)).await;
            // One unit, a part of another one, and one at the end of a third, with the beginning of the next.
            let holes = [(17 * STRIPE, 1), (23 * STRIPE + 8_192, 4_096), (32 * STRIPE - 4_096, 8_192)];
            let holes = holes.map(|(at, length)| at..at + if length == 1 { STRIPE } else { length });
            for hole in &holes {
                client.punch(&file, hole.start, hole.end - hole.start).await;
            }
            let next = |from: u64| {
                let hole = holes.iter().find(|hole| from < hole.end)?;
                Some(from.max(hole.start))
            };
            let near = holes.iter().flat_map(|hole| [hole.start, hole.end]);
            for at in near.chain([0, STRIPE, 9 * STRIPE + 5, 39 * STRIPE]) {
                for from in [at.saturating_sub(1), at, at + 1, at + 4_095] {
                    assert_eq!(client.hole(&file, from).await, next(from), "{from}");
                }
            }
            // One that is near costs little, however long the file is.
            let before = world.cost();
            assert_eq!(client.hole(&file, 17 * STRIPE - 1).await, Some(17 * STRIPE));
            assert!((world.cost() - before).orders <= 4);
        });
    }
}

/// The data file that holds the one ends before the file does, and so do all of the second component.
#[test]
fn a_hole_is_found_behind_the_first_component() {
    use crate::stage::UNIT;
    simulate_with(101, LayoutPolicy::default(), async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let file = client.open("f").await;
        client.put(&file, 0, &pattern(0, UNIT as usize)).await;
        client.put(&file, UNIT, &pattern(UNIT, 8_192)).await;
        client.truncate(&file, UNIT * 100).await;
        assert_eq!(client.hole(&file, 5).await, Some(UNIT + 8_192));
        assert_eq!(client.hole(&file, 50 * UNIT).await, Some(50 * UNIT));
        client.punch(&file, UNIT - 4_096, 4_096).await;
        assert_eq!(client.hole(&file, 5).await, Some(UNIT - 4_096));
    });
}

/// However the size came to be: what was written into a hole, and what is none behind the end.
#[test]
fn what_a_file_takes_is_what_is_stored_of_it() {
    for (seed, mirrors) in [(102, 1), (103, 2)] {
        simulate_with(seed, LayoutPolicy { mirrors, ..WIDE }, async |world| {
            let client = Client::mount(world, "a", NEW).await;
            let size = 8 * STRIPE;
            let file = client.open("filled").await;
            client.truncate(&file, size).await;
            for at in (0..size).step_by(STRIPE as usize) {
                client.put(&file, at, &pattern(at, STRIPE as usize)).await;
            }
            client.close(&file).await;
            world.sleep(SOON).await;
            assert_eq!(client.space(&file).await, size);
            let file = client.open("sparse").await;
            let held = client.layout(&file, file.stateid, RW, 1 << 30).await;
            for mirror in 0..held.body.ffl_mirrors.len() {
                client.write(&held.mirror(mirror), 1 << 30, &[1]).await.unwrap();
            }
            client.layout_commit(&file, held.stateid, Some(1 << 30)).await.unwrap();
            let written = client.stat(&file).await;
            assert_eq!(client.layout_return(&file, held.stateid).await, nfsstat4::NFS4_OK);
            client.close(&file).await;
            world.sleep(SOON).await;
            let space = client.space(&file).await;
            assert!((512..16 * STRIPE).contains(&space), "{space}");
            assert_eq!(client.stat(&file).await, written, "nobody need read it again");
            world.check().await;
        });
    }
}

/// Rows of layouts that are back are cleared by then.
const SOON: Duration = Duration::from_secs(1);

/// What was right before is not written again.
#[test]
fn a_file_that_takes_what_it_is_long_costs_no_more() {
    simulate_with(104, WIDE, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let transactions = async |name: &str, length: usize| {
            let file = client.open(name).await;
            let before = world.cost();
            let held = client.layout(&file, file.stateid, RW, 0).await;
            client.write(&held, 0, &pattern(0, length)).await.unwrap();
            client.layout_commit(&file, held.stateid, Some(length as u64 - 1)).await.unwrap();
            assert_eq!(client.layout_return(&file, held.stateid).await, nfsstat4::NFS4_OK);
            world.sleep(SOON).await;
            (world.cost() - before).transactions
        };
        transactions("first", 8_192).await;
        let whole = transactions("whole", 8_192).await;
        assert_eq!(transactions("odd", 5_000).await, whole);
        assert_eq!(transactions("short", 100).await, whole);
    });
}
