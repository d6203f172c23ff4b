//! A mirror whose device does not take a write: whoever writes through the metadata server hears of no error while there is
//! another one, however much later a heartbeat says what is wrong.

use std::time::Duration;

use sluice_xdr::nfs4::{ALLOCATE4args, DEALLOCATE4args, nfs_argop4, nfsstat4};

use crate::client::{later, putfh};
use crate::lost::{SIZE, TWICE, at_rest, homes};
use crate::mirrors::{Writer, healed, put};
use crate::pattern;
use crate::stage::{World, simulate_with};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    Flushes,
    ReadOnly,
}

impl Trouble {
    fn begin(self, world: &World, n: usize) {
        match self {
            Self::Flushes => world.device(n).fail_syncs(u32::MAX),
            Self::ReadOnly => world.device(n).set_read_only(true),
        }
    }

    /// Its device is looked after, and it is started again.
    async fn end(world: &mut World, n: usize) {
        world.device(n).fail_syncs(0);
        world.device(n).set_read_only(false);
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
