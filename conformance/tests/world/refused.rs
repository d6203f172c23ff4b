//! A mirror whose device does not take a write, or one that a small file is to go to: whoever writes through the metadata server
//! hears of no error while there is another one, however much later a heartbeat says what is wrong.

use std::time::Duration;

use sluice_namespace::LayoutPolicy;
use sluice_store::device::Device;
use sluice_xdr::control::{ADMIN_STATUS, ADMIN_STATUS_res};
use sluice_xdr::nfs4::{ALLOCATE4args, Attributes, DEALLOCATE4args, SETATTR4args, nfs_argop4, nfsstat4};

use crate::client::{Client, Opened, RO, RW, attributes, later, putfh};
use crate::drain::{drain, drained, number, server};
use crate::lost::{SIZE, TWICE, at_rest, homes};
use crate::mirrors::{Writer, healed, put};
use crate::stage::{World, simulate_with};
use crate::{NEW, pattern};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    Flushes,
    ReadOnly,
    Full,
}

impl Trouble {
    fn begin(self, world: &World, n: usize) {
        match self {
            Self::Flushes => world.device(n).fail_syncs(u32::MAX),
            Self::ReadOnly => world.device(n).set_read_only(true),
            Self::Full => {
                let space = world.device(n).space().unwrap();
                world.device(n).set_capacity(space.total - space.free);
            }
        }
    }

    /// Its device is looked after, and it is started again.
    async fn end(world: &mut World, n: usize) {
        world.device(n).fail_syncs(0);
        world.device(n).set_read_only(false);
        world.device(n).set_capacity(1 << 40);
        world.crash_data_server(n).await;
        world.start_data_server(n).await;
    }
}

/// As a client does that hears that it has to wait.
async fn write(world: &World, writer: &Writer, at: u64, data: &[u8]) -> nfsstat4 {
    for _ in 0..300 {
        let status = writer.client.proxied_write(&writer.file, at, data).await;
        if !later(status) {
            return status;
        }
        world.sleep(Duration::from_millis(100)).await;
    }
    panic!("a write is asked to wait for ever");
}

#[test]
fn who_writes_where_one_of_two_mirrors_refuses_waits_and_hears_of_no_error() {
    for (mirror, trouble) in [0, 1].into_iter().flat_map(|n| [(n, Trouble::Flushes), (n, Trouble::ReadOnly)])
    {
        simulate_with(97, TWICE, async |world| {
            let (mut writer, mut data) = at_rest(world).await;
            let refuses = homes(world, &mut writer).await[mirror];
            trouble.begin(world, refuses);
            assert_eq!(write(world, &writer, 100, b"new").await, nfsstat4::NFS4_OK, "{mirror} {trouble:?}");
            put(&mut data, 100, b"new");
            // It is read as it was written, wherever that is.
            assert!(writer.client.proxied_read(&writer.file, 0, 1000).await[..] == data[..1000]);
            Trouble::end(world, refuses).await;
            healed(world, "f", &data).await;
        });
    }
}

/// Sets the size, as a client does that hears that it has to wait.
async fn cut(world: &World, writer: &Writer, size: u64) -> nfsstat4 {
    let obj_attributes = attributes(&Attributes { size: Some(size), ..Attributes::default() });
    let stateid = writer.file.stateid;
    let op = nfs_argop4::OP_SETATTR(SETATTR4args { stateid, obj_attributes });
    for _ in 0..300 {
        let (status, _) = writer.client.once(vec![putfh(&writer.file.handle), op.clone()]).await;
        if !later(status) {
            return status;
        }
        world.sleep(Duration::from_millis(100)).await;
    }
    panic!("a truncation is asked to wait for ever");
}

#[test]
fn who_cuts_off_a_file_that_one_of_two_mirrors_does_not_cut_waits_and_hears_of_no_error() {
    const LEFT: u64 = 100_000;
    for mirror in 0..2 {
        simulate_with(105, TWICE, async |world| {
            let (mut writer, mut data) = at_rest(world).await;
            let refuses = homes(world, &mut writer).await[mirror];
            let path = world.data_file_of(refuses, SIZE);
            world.device(refuses).set_fixed(&path, true);
            assert_eq!(cut(world, &writer, LEFT).await, nfsstat4::NFS4_OK, "{mirror}");
            assert_eq!(write(world, &writer, LEFT + 100, b"new").await, nfsstat4::NFS4_OK);
            data.truncate(100_000);
            put(&mut data, LEFT + 100, b"new");
            world.device(refuses).set_fixed(&path, false);
            healed(world, "f", &data).await;
        });
    }
}

/// Nor does anybody who writes to it, when the metadata server was restarted before that was done.
#[test]
fn after_a_restart_what_one_of_two_mirrors_does_not_cut_is_no_error_either() {
    for mirror in 0..2 {
        simulate_with(107, TWICE, async |world| {
            let (mut writer, mut data) = at_rest(world).await;
            let refuses = homes(world, &mut writer).await[mirror];
            let path = world.data_file_of(refuses, SIZE);
            world.device(refuses).set_fixed(&path, true);
            let values = Attributes { size: Some(100_000), ..Attributes::default() };
            let args = SETATTR4args { stateid: writer.file.stateid, obj_attributes: attributes(&values) };
            let ops = vec![putfh(&writer.file.handle), nfs_argop4::OP_SETATTR(args)];
            assert!(later(writer.client.once(ops).await.0), "it is committed, and not carried out");
            world.restart_metadata_server().await;
            writer.client.reconnect(world).await;
            writer.file = writer.client.reclaim(&writer.file).await;
            let complete = sluice_xdr::nfs4::RECLAIM_COMPLETE4args { rca_one_fs: false };
            writer.client.ok(vec![nfs_argop4::OP_RECLAIM_COMPLETE(complete)]).await;
            assert_eq!(write(world, &writer, 200, b"new").await, nfsstat4::NFS4_OK);
            data.truncate(100_000);
            put(&mut data, 200, b"new");
            world.device(refuses).set_fixed(&path, false);
            healed(world, "f", &data).await;
        });
    }
}

#[test]
fn where_there_is_no_other_mirror_that_is_an_error_until_the_file_is_emptied() {
    for ends in [false, true] {
        simulate_with(106, LayoutPolicy { mirrors: 1, ..TWICE }, async |world| {
            let (mut writer, data) = at_rest(world).await;
            let refuses = homes(world, &mut writer).await[0];
            let path = world.data_file_of(refuses, SIZE);
            world.device(refuses).set_fixed(&path, true);
            assert_eq!(cut(world, &writer, 100_000).await, nfsstat4::NFS4ERR_IO);
            assert_eq!(cut(world, &writer, 50_000).await, nfsstat4::NFS4ERR_IO);
            assert_eq!(write(world, &writer, 100, b"new").await, nfsstat4::NFS4ERR_IO);
            // What was committed is so.
            assert_eq!(writer.client.stat(&writer.file).await.0, 100_000);
            assert!(writer.client.proxied_content(&writer.file, 100_000).await == data[..100_000]);
            if ends {
                world.device(refuses).set_fixed(&path, false);
                world.sleep(Duration::from_secs(5)).await;
            } else {
                assert_eq!(cut(world, &writer, 0).await, nfsstat4::NFS4_OK);
            }
            assert_eq!(write(world, &writer, 200_000, b"new").await, nfsstat4::NFS4_OK);
            let mut expected = if ends { data[..100_000].to_vec() } else { Vec::new() };
            put(&mut expected, 200_000, b"new");
            assert!(writer.client.proxied_content(&writer.file, 200_003).await == expected);
            assert_eq!(cut(world, &writer, 100).await, nfsstat4::NFS4_OK);
            world.sleep(Duration::from_secs(60)).await;
            assert_eq!((world.garbage().await, world.check().await), (0, 0));
            assert!(!world.holds(refuses, SIZE));
        });
    }
}

#[test]
fn one_that_refused_once_is_filled_again() {
    simulate_with(98, TWICE, async |world| {
        let (mut writer, mut data) = at_rest(world).await;
        let refuses = homes(world, &mut writer).await[0];
        world.device(refuses).set_read_only(true);
        let (_, wrote) = tokio::join!(
            async {
                world.sleep(Duration::from_millis(50)).await;
                world.device(refuses).set_read_only(false);
            },
            write(world, &writer, 100, b"new"),
        );
        assert_eq!(wrote, nfsstat4::NFS4_OK);
        put(&mut data, 100, b"new");
        healed(world, "f", &data).await;
    });
}

/// What could not be written back is clean to Linux, and the memory of the host outlives the process: to look there, and to flush
/// again, says that all is well.
#[test]
fn what_is_only_in_memory_where_a_flush_failed_is_not_taken_for_written() {
    for (mirror, restarted, kept) in [0, 1]
        .into_iter()
        .flat_map(|n| [(n, false, false), (n, true, false), (n, false, true), (n, true, true)])
    {
        simulate_with(105, TWICE, async |world| {
            let (mut writer, mut data) = at_rest(world).await;
            let refuses = homes(world, &mut writer).await[mirror];
            world.device(refuses).keep_failed(kept);
            Trouble::Flushes.begin(world, refuses);
            assert_eq!(write(world, &writer, 100, b"new").await, nfsstat4::NFS4_OK);
            world.device(refuses).fail_syncs(0);
            put(&mut data, 100, b"new");
            if restarted {
                world.restart_data_server(refuses).await;
            }
            healed(world, "f", &data).await;
            // Power fails: nothing is read but what was written.
            world.crash_data_server(refuses).await;
            world.start_data_server(refuses).await;
            healed(world, "f", &data).await;
        });
    }
}

#[test]
fn where_both_mirrors_refuse_it_is_an_error() {
    simulate_with(99, TWICE, async |world| {
        let (mut writer, mut data) = at_rest(world).await;
        let homes = homes(world, &mut writer).await;
        homes.iter().for_each(|n| Trouble::Flushes.begin(world, *n));
        assert_eq!(write(world, &writer, 100, b"new").await, nfsstat4::NFS4ERR_IO);
        for n in homes {
            Trouble::end(world, n).await;
        }
        assert_eq!(write(world, &writer, 100, b"new").await, nfsstat4::NFS4_OK);
        put(&mut data, 100, b"new");
        healed(world, "f", &data).await;
    });
}

/// Of the operations that order data servers to change a file by themselves.
#[derive(Clone, Copy, Debug)]
enum Order {
    Allocate,
    Deallocate,
    Copy,
}

/// Carries it out at the first bytes of the file, as a client does that hears that it has to wait; what is there then.
async fn ordered(world: &World, writer: &Writer, order: Order, data: &mut Vec<u8>) -> nfsstat4 {
    let (file, length) = (&writer.file, 100_000);
    let op = match order {
        Order::Allocate => nfs_argop4::OP_ALLOCATE(ALLOCATE4args {
            aa_stateid: file.stateid,
            aa_offset: SIZE,
            aa_length: length,
        }),
        Order::Deallocate => nfs_argop4::OP_DEALLOCATE(DEALLOCATE4args {
            da_stateid: file.stateid,
            da_offset: 0,
            da_length: length,
        }),
        Order::Copy => {
            let source = writer.client.open("source").await;
            let copied = writer.client.copy_all((&source, 0), (file, 0), length);
            let copied = world.env.clock.timeout(Duration::from_secs(30), copied).await;
            put(data, 0, &pattern(5, 100_000));
            return copied.expect("it is asked to wait for ever").err().unwrap_or(nfsstat4::NFS4_OK);
        }
    };
    match order {
        Order::Allocate => put(data, SIZE, &[0; 100_000]),
        _ => put(data, 0, &[0; 100_000]),
    }
    for _ in 0..300 {
        let (status, _) = writer.client.once(vec![putfh(&file.handle), op.clone()]).await;
        if !later(status) {
            return status;
        }
        world.sleep(Duration::from_millis(100)).await;
    }
    panic!("{order:?} is asked to wait for ever");
}

#[test]
fn who_copies_or_sets_space_aside_where_one_of_two_mirrors_refuses_waits_and_hears_of_no_error() {
    for order in [Order::Allocate, Order::Deallocate, Order::Copy] {
        for (mirror, trouble) in
            [0, 1].into_iter().flat_map(|n| [(n, Trouble::Flushes), (n, Trouble::ReadOnly)])
        {
            simulate_with(100, TWICE, async |world| {
                let mut source = Writer::mount(world, "s", "source").await;
                source.write(world, 0, &pattern(5, 100_000)).await;
                source.give_back().await;
                let (mut writer, mut data) = at_rest(world).await;
                let refuses = homes(world, &mut writer).await[mirror];
                trouble.begin(world, refuses);
                let done = ordered(world, &writer, order, &mut data).await;
                assert_eq!(done, nfsstat4::NFS4_OK, "{order:?} {mirror} {trouble:?}");
                let read = writer.client.proxied_content(&writer.file, data.len() as u64).await;
                assert!(read == data, "it is read as it was changed, wherever that is");
                Trouble::end(world, refuses).await;
                healed(world, "f", &data).await;
            });
        }
    }
}

/// What cannot be read is not held against where it was to go.
#[test]
fn a_source_that_cannot_be_read_leaves_the_mirrors_of_the_target_as_they_are() {
    simulate_with(101, TWICE, async |world| {
        let mut source = Writer::mount(world, "s", "source").await;
        source.write(world, 0, &pattern(5, 100_000)).await;
        source.give_back().await;
        world.sleep(Duration::from_secs(60)).await;
        let (writer, data) = at_rest(world).await;
        for n in 0..4 {
            if world.holds(n, 100_000) {
                let path = world.data_file_of(n, 100_000);
                world.device(n).set_unreadable(&path, true);
            }
        }
        let from = writer.client.open("source").await;
        let copied = writer.client.copy_all((&from, 0), (&writer.file, 0), 100_000);
        let copied = world.env.clock.timeout(Duration::from_secs(30), copied).await;
        assert_eq!(copied, Ok(Err(nfsstat4::NFS4ERR_IO)), "it is not asked to wait for ever");
        world.sleep(Duration::from_secs(5)).await;
        assert!(writer.client.proxied_content(&writer.file, SIZE).await == data);
    });
}

async fn healing(world: &World) -> String {
    let ADMIN_STATUS_res::CTL_OK(status) = world.admin(ADMIN_STATUS, &()).await else { panic!() };
    String::from_utf8(status.healing.to_vec()).unwrap()
}

/// What its device cannot read is readable again, and somebody has started it anew.
async fn readable(world: &mut World, n: usize) {
    let path = world.data_file_of(n, SIZE);
    world.device(n).set_unreadable(&path, false);
    world.restart_data_server(n).await;
}

#[test]
fn of_mirrors_that_may_differ_one_that_cannot_be_read_is_not_the_truth() {
    simulate_with(106, TWICE, async |world| {
        let (mut writer, data) = at_rest(world).await;
        let first = homes(world, &mut writer).await[0];
        let path = world.data_file_of(first, SIZE);
        world.device(first).set_unreadable(&path, true);
        // Whoever writes fails at the other one, and says so: mirrors are compared.
        let held = writer.client.layout(&writer.file, writer.file.stateid, RW, 0).await;
        let failed = held.mirror(1).data_server(0).clone();
        let returned = writer.client.layout_return_failed(&writer.file, held.stateid, &failed).await;
        assert_eq!(returned, nfsstat4::NFS4_OK);
        world.sleep(Duration::from_secs(60)).await;
        assert!(writer.client.proxied_content(&writer.file, SIZE).await == data);
        let said = healing(world).await;
        assert_eq!(said, format!("1 wait for what data server {} cannot read of them", number(first)));
        readable(world, first).await;
        healed(world, "f", &data).await;
    });
}

#[test]
fn what_cannot_be_read_and_is_nowhere_else_is_not_tried_again_and_again() {
    simulate_with(107, TWICE, async |world| {
        let (mut writer, mut data) = at_rest(world).await;
        let homes = homes(world, &mut writer).await;
        let (only, away) = (homes[0], homes[1]);
        world.stop_data_server(away).await;
        assert_eq!(write(world, &writer, 100, b"new").await, nfsstat4::NFS4_OK);
        put(&mut data, 100, b"new");
        let path = world.data_file_of(only, SIZE);
        world.device(only).set_unreadable(&path, true);
        world.start_data_server(away).await;
        world.sleep(Duration::from_secs(30)).await;
        let said = healing(world).await;
        assert_eq!(said, format!("1 wait for what data server {} cannot read of them", number(only)));
        // Who writes elsewhere in the file is not asked for his layout each minute.
        let mut held = writer.client.try_layout(&writer.file, writer.file.stateid, RW, 0).await;
        for _ in 0..300 {
            if held.is_ok() {
                break;
            }
            world.sleep(Duration::from_secs(1)).await;
            held = writer.client.try_layout(&writer.file, writer.file.stateid, RW, 0).await;
        }
        let (held, before) = (held.unwrap(), writer.client.recalls().len());
        for _ in 0..60 {
            world.sleep(Duration::from_secs(10)).await;
            writer.client.compound(Vec::new()).await;
        }
        assert_eq!(writer.client.recalls().len(), before);
        assert_eq!(writer.client.layout_return(&writer.file, held.stateid).await, nfsstat4::NFS4_OK);
        readable(world, only).await;
        healed(world, "f", &data).await;
    });
}

#[test]
fn a_drain_says_what_cannot_be_read() {
    const ONCE: LayoutPolicy = LayoutPolicy { mirrors: 1, ..TWICE };
    simulate_with(108, ONCE, async |world| {
        let (mut writer, data) = at_rest(world).await;
        let home = homes(world, &mut writer).await[0];
        let path = world.data_file_of(home, SIZE);
        world.device(home).set_unreadable(&path, true);
        drain(world, home, 0).await.unwrap();
        world.sleep(Duration::from_secs(60)).await;
        let state = server(world, home).await.unwrap().drain.pop().unwrap();
        let why = state.examples.iter().map(|one| format!("{one:?}")).collect::<String>();
        assert!(why.contains("cannot read some of it, and there is no other copy"), "{why}");
        readable(world, home).await;
        drained(world, home).await;
        assert!(writer.client.proxied_content(&writer.file, SIZE).await == data);
    });
}

/// Files of at most 16 KiB are in the metadata, larger ones at one data server or two.
const SMALL: LayoutPolicy = LayoutPolicy { mirrors: 1, inline: 16 << 10, ..TWICE };
const SMALL_TWICE: LayoutPolicy = LayoutPolicy { mirrors: 2, ..SMALL };
const FEW: u64 = 9000;

/// A file that is in the metadata.
async fn small(client: &Client, name: &str) -> Opened {
    let file = client.open(name).await;
    assert_eq!(client.proxied_write(&file, 0, &pattern(0, 9000)).await, nfsstat4::NFS4_OK);
    file
}

/// What makes a small file one that is at data servers.
#[derive(Clone, Copy, Debug)]
enum Way {
    Write,
    Layout,
    Allocate,
    Extend,
    Copy,
}

impl Way {
    /// Once, but for a copy: how it ended.
    async fn go(self, client: &Client, file: &Opened, other: &Opened) -> nfsstat4 {
        let stateid = file.stateid;
        let op = match self {
            Self::Write => Client::write_op(file, FEW, &pattern(FEW, 9000)),
            Self::Allocate => {
                nfs_argop4::OP_ALLOCATE(ALLOCATE4args { aa_stateid: stateid, aa_offset: FEW, aa_length: FEW })
            }
            Self::Extend => {
                let obj_attributes = attributes(&Attributes { size: Some(2 * FEW), ..Attributes::default() });
                nfs_argop4::OP_SETATTR(SETATTR4args { stateid, obj_attributes })
            }
            Self::Layout => match client.try_layout(file, stateid, RW, 0).await {
                Ok(held) => return client.layout_return(file, held.stateid).await,
                Err(status) => return status,
            },
            Self::Copy => {
                let copied = client.copy_all((other, 0), (file, FEW), 100_000).await;
                return copied.err().unwrap_or(nfsstat4::NFS4_OK);
            }
        };
        client.once(vec![putfh(&file.handle), op]).await.0
    }
}

async fn is_small(client: &Client, file: &Opened) -> bool {
    client.layout_status(file, RO, 0).await == nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE
}

/// All of these were looked after.
async fn end(world: &mut World, bad: &[usize]) {
    for n in bad {
        Trouble::end(world, *n).await;
    }
    world.sleep(Duration::from_secs(60)).await;
    assert_eq!((world.garbage().await, world.check().await), (0, 0));
}

#[test]
fn a_small_file_goes_to_the_data_servers_that_take_it_and_who_writes_hears_of_no_error() {
    let troubles = [Trouble::Flushes, Trouble::ReadOnly, Trouble::Full];
    for (good, trouble) in (0..4).flat_map(|good| troubles.map(|trouble| (good, trouble))) {
        for policy in [SMALL, SMALL_TWICE] {
            simulate_with(102, policy, async |world| {
                let client = Client::mount(world, "a", NEW).await;
                let file = small(&client, "f").await;
                let copies = usize::from(policy.mirrors);
                let good: Vec<usize> = (0..copies).map(|n| (good + n) % 4).collect();
                let bad: Vec<usize> = (0..4).filter(|n| !good.contains(n)).collect();
                bad.iter().for_each(|n| trouble.begin(world, *n));
                let grown = client.proxied_write(&file, FEW, &pattern(FEW, 9000)).await;
                assert_eq!(grown, nfsstat4::NFS4_OK, "{trouble:?} but at {good:?}");
                assert!(client.proxied_content(&file, 2 * FEW).await == pattern(0, 18_000));
                end(world, &bad).await;
                let holders: Vec<usize> = (0..4).filter(|n| world.data_files(*n) > 0).collect();
                assert_eq!(holders.len(), copies, "what was made elsewhere is gone");
                assert!(good.iter().all(|n| holders.contains(n)));
            });
        }
    }
}

#[test]
fn so_does_a_small_file_of_which_a_layout_or_more_room_is_asked_for() {
    for way in [Way::Write, Way::Layout, Way::Allocate, Way::Extend, Way::Copy] {
        for good in 0..4 {
            simulate_with(103, SMALL, async |world| {
                let client = Client::mount(world, "a", NEW).await;
                let mut source = Writer::mount(world, "s", "source").await;
                source.write(world, 0, &pattern(5, 100_000)).await;
                source.give_back().await;
                let (file, other) = (small(&client, "f").await, client.open("source").await);
                let bad: Vec<usize> = (0..4).filter(|n| *n != good).collect();
                bad.iter().for_each(|n| Trouble::ReadOnly.begin(world, *n));
                assert_eq!(way.go(&client, &file, &other).await, nfsstat4::NFS4_OK, "{way:?} but at {good}");
                assert!(!is_small(&client, &file).await);
                assert!(client.proxied_content(&file, FEW).await[..9000] == pattern(0, 9000));
                end(world, &bad).await;
            });
        }
    }
}

#[test]
fn where_no_data_server_takes_a_small_file_it_is_an_error_and_the_file_stays_as_it_is() {
    use Trouble::{Flushes, Full, ReadOnly};
    let alike = [
        ([Full; 4], nfsstat4::NFS4ERR_NOSPC),
        ([ReadOnly; 4], nfsstat4::NFS4ERR_ROFS),
        ([Flushes; 4], nfsstat4::NFS4ERR_IO),
    ];
    // Somebody who makes room is not enough.
    let one = (0..4).map(|n| {
        let mut troubles = [Full; 4];
        troubles[n] = Flushes;
        (troubles, nfsstat4::NFS4ERR_IO)
    });
    for (troubles, expected) in alike.into_iter().chain(one) {
        simulate_with(104, SMALL, async |world| {
            let client = Client::mount(world, "a", NEW).await;
            let file = small(&client, "f").await;
            troubles.iter().enumerate().for_each(|(n, trouble)| trouble.begin(world, n));
            let grow = async || client.proxied_write(&file, FEW, &pattern(FEW, 9000)).await;
            assert_eq!(grow().await, expected, "{troubles:?}");
            // What it has is written over in place.
            let held = client.try_layout(&file, file.stateid, RW, 0).await;
            let unavailable = nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE;
            assert_eq!(held.map(|held| held.stateid), Err(unavailable), "{troubles:?}");
            assert_eq!(client.proxied_write(&file, 0, &pattern(0, 9000)).await, nfsstat4::NFS4_OK);
            assert!(is_small(&client, &file).await);
            assert!(client.proxied_content(&file, FEW).await == pattern(0, 9000));
            end(world, &[0, 1, 2, 3]).await;
            assert_eq!(grow().await, nfsstat4::NFS4_OK);
            assert!(client.proxied_content(&file, 2 * FEW).await == pattern(0, 18_000));
        });
    }
}
