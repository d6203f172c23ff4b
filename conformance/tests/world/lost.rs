//! Data files that a data server has lost although it once had them: an error or the other mirror, never zeros.

use std::time::Duration;

use sluice_kv::Faults;
use sluice_namespace::{LayoutPolicy, Shape};
use sluice_store::device::Device;
use sluice_xdr::control::{ADMIN_WHY, ADMIN_WHY_args, ADMIN_WHY_res};
use sluice_xdr::nfs3::nfsstat3;
use sluice_xdr::nfs4::{
    ALLOCATE4args, READ_PLUS4args, SEEK4args, SEEK4res, data_content4, nfs_argop4, nfs_resop4, nfsstat4,
};

use crate::client::{Client, Opened, RO, RW, later, putfh};
use crate::drain::{drain, drained, remove, server};
use crate::mirrors::{Writer, healed, home, put};
use crate::stage::{World, simulate_tuned, simulate_with};
use crate::{NEW, pattern};

pub(crate) const TWICE: LayoutPolicy =
    LayoutPolicy { shape: Shape::Small, mirrors: 2, inline: 0, class: None };
const ONCE: LayoutPolicy = LayoutPolicy { mirrors: 1, ..TWICE };
pub(crate) const SIZE: u64 = 300_000;

/// The file system of a data server is mended, and this data file is not there any more.
async fn lose(world: &mut World, n: usize, length: u64) {
    let path = world.data_file_of(n, length);
    world.crash_data_server(n).await;
    world.device(n).remove(&path).unwrap();
    world.device(n).sync_dir(path.rsplit_once('/').unwrap().0).unwrap();
    world.start_data_server(n).await;
}

/// The data servers of the file, by mirror.
pub(crate) async fn homes(world: &World, writer: &mut Writer) -> Vec<usize> {
    let held = writer.client.layout(&writer.file, writer.file.stateid, RW, 0).await;
    let mut homes = Vec::new();
    for mirror in 0..held.body.ffl_mirrors.len() {
        homes.push(home(world, &writer.client, &held, mirror).await);
    }
    writer.held = Some(held);
    writer.give_back().await;
    homes
}

/// A file of `SIZE` bytes that its data servers have told of.
pub(crate) async fn at_rest(world: &World) -> (Writer, Vec<u8>) {
    let data = pattern(3, usize::try_from(SIZE).unwrap());
    let mut writer = Writer::mount(world, "a", "f").await;
    writer.write(world, 0, &data).await;
    writer.give_back().await;
    world.sleep(Duration::from_secs(60)).await;
    (writer, data)
}

#[test]
fn a_lost_mirror_is_healed_from_the_other_and_not_the_other_from_it() {
    for mirror in 0..2 {
        simulate_with(79, TWICE, async |world| {
            let (mut writer, data) = at_rest(world).await;
            let lost = homes(world, &mut writer).await[mirror];
            lose(world, lost, SIZE).await;
            // Whoever writes fails there, and says so: mirrors are compared.
            let again = writer.client.layout(&writer.file, writer.file.stateid, RW, 0).await;
            let failed = again.mirror(mirror).data_server(0).clone();
            let returned = writer.client.layout_return_failed(&writer.file, again.stateid, &failed).await;
            assert_eq!(returned, nfsstat4::NFS4_OK);
            healed(world, "f", &data).await;
            assert!(world.holds(lost, SIZE));
        });
    }
}

/// Nobody knows yet that the copy which is here is lost.
#[test]
fn who_writes_where_one_of_two_mirrors_is_lost_waits_and_hears_of_no_error() {
    for mirror in 0..2 {
        simulate_with(90, TWICE, async |world| {
            let (mut writer, mut data) = at_rest(world).await;
            let lost = homes(world, &mut writer).await[mirror];
            lose(world, lost, SIZE).await;
            for round in 0.. {
                match writer.client.proxied_write(&writer.file, 100, b"new").await {
                    nfsstat4::NFS4_OK => break,
                    status => assert!(later(status) && round < 100, "{status}"),
                }
                world.sleep(Duration::from_millis(100)).await;
            }
            put(&mut data, 100, b"new");
            healed(world, "f", &data).await;
        });
    }
}

#[test]
fn the_copy_that_is_away_is_not_left_behind_for_one_that_is_lost() {
    for mirror in 0..2 {
        simulate_with(93, TWICE, async |world| {
            let (mut writer, mut data) = at_rest(world).await;
            let homes = homes(world, &mut writer).await;
            let (lost, good) = (homes[mirror], homes[1 - mirror]);
            lose(world, lost, SIZE).await;
            world.crash_data_server(good).await;
            world.sleep(Duration::from_secs(10)).await;
            for _ in 0..30 {
                let status = writer.client.try_layout(&writer.file, writer.file.stateid, RW, 0).await.err();
                assert!(status.is_some(), "nobody has the data");
                world.sleep(Duration::from_secs(1)).await;
            }
            world.start_data_server(good).await;
            writer.write(world, 0, b"new").await;
            data[..3].copy_from_slice(b"new");
            healed(world, "f", &data).await;
        });
    }
}

#[test]
fn the_only_copy_that_is_lost_is_an_error_for_writers_too_until_the_file_is_emptied() {
    simulate_with(80, ONCE, async |world| {
        let (mut writer, data) = at_rest(world).await;
        let n = (0..4).find(|n| world.holds(*n, SIZE)).unwrap();
        lose(world, n, SIZE).await;
        let held = writer.client.layout(&writer.file, writer.file.stateid, RW, 0).await;
        let read = writer.client.read(&held, 0..4096).await;
        assert_eq!(read.unwrap_err(), nfsstat3::NFS3ERR_IO);
        // Part of a file would be made, with zeros in place of the rest.
        let written = writer.client.write(&held, 4096, &data[..4096]).await;
        assert_eq!(written.unwrap_err(), nfsstat3::NFS3ERR_IO);
        assert_eq!(world.data_files(n), 0);
        writer.held = Some(held);
        writer.give_back().await;
        assert_eq!(writer.client.proxied_write(&writer.file, 0, b"x").await, nfsstat4::NFS4ERR_IO);
        let ro = writer.client.layout(&writer.file, writer.file.stateid, RO, 0).await;
        assert_eq!(writer.client.read(&ro, 0..4096).await.unwrap_err(), nfsstat3::NFS3ERR_IO);
        assert_eq!(writer.client.layout_return(&writer.file, ro.stateid).await, nfsstat4::NFS4_OK);
        // As `truncate -s 0` does it on Linux: with a layout to write with, which came with the open.
        let held = writer.client.layout(&writer.file, writer.file.stateid, RW, 0).await;
        let gives_back = async {
            let recalled = world.env.clock.timeout(Duration::from_secs(20), writer.client.recalled(1)).await;
            let stateid = recalled.map_or(held.stateid, |(stateid, _)| stateid);
            assert_eq!(writer.client.layout_return(&writer.file, stateid).await, nfsstat4::NFS4_OK);
        };
        tokio::join!(writer.client.truncate(&writer.file, 0), gives_back);
        writer.write(world, 0, &data).await;
        assert!(writer.client.proxied_read(&writer.file, 0, 300_000).await[..] == data[..]);
    });
}

/// As an earlier release left it that cut the file where it was.
#[test]
fn what_was_emptied_and_is_lost_is_emptied_once_more_and_can_be_written() {
    simulate_with(87, ONCE, async |world| {
        let (mut writer, data) = at_rest(world).await;
        let n = (0..4).find(|n| world.holds(*n, SIZE)).unwrap();
        let held = writer.client.layout(&writer.file, writer.file.stateid, RW, 0).await;
        writer.client.truncate(&writer.file, 0).await;
        writer.held = Some(held);
        writer.give_back().await;
        lose(world, n, 0).await;
        writer.client.truncate(&writer.file, 0).await;
        writer.write(world, 0, &data).await;
        assert!(writer.client.proxied_read(&writer.file, 0, 300_000).await[..] == data[..]);
    });
}

impl Client {
    /// Where there is data, from this offset on.
    async fn seek_data(&self, file: &Opened, offset: u64) -> Result<Option<u64>, nfsstat4> {
        let seek = SEEK4args {
            sa_stateid: file.stateid,
            sa_offset: offset,
            sa_what: data_content4::NFS4_CONTENT_DATA,
        };
        let (status, mut results) = self.compound(vec![putfh(&file.handle), nfs_argop4::OP_SEEK(seek)]).await;
        match results.pop() {
            Some(nfs_resop4::OP_SEEK(SEEK4res::NFS4_OK(found))) => {
                Ok((!found.sr_eof).then_some(found.sr_offset))
            }
            _ => Err(status),
        }
    }

    pub(crate) async fn allocate(&self, file: &Opened, offset: u64, length: u64) -> nfsstat4 {
        let args = ALLOCATE4args { aa_stateid: file.stateid, aa_offset: offset, aa_length: length };
        loop {
            let (status, _) = self.once(vec![putfh(&file.handle), nfs_argop4::OP_ALLOCATE(args)]).await;
            if !later(status) {
                return status;
            }
            self.env.clock.sleep(Duration::from_millis(100)).await;
        }
    }
}

#[test]
fn what_is_lost_is_no_hole_to_a_seek_or_a_copy() {
    simulate_with(87, ONCE, async |world| {
        let (writer, _) = at_rest(world).await;
        let n = (0..4).find(|n| world.holds(*n, SIZE)).unwrap();
        lose(world, n, SIZE).await;
        let (client, file) = (&writer.client, &writer.file);
        assert_eq!(client.seek_data(file, 0).await, Err(nfsstat4::NFS4ERR_IO));
        let copy = client.open("copy").await;
        assert_eq!(client.copy_all((file, 0), (&copy, 0), SIZE).await, Err(nfsstat4::NFS4ERR_IO));
        let read = READ_PLUS4args { rpa_stateid: file.stateid, rpa_offset: 0, rpa_count: 4096 };
        let (status, results) =
            client.compound(vec![putfh(&file.handle), nfs_argop4::OP_READ_PLUS(read)]).await;
        assert_eq!(status, nfsstat4::NFS4ERR_IO, "{results:?}");
    });
    for mirror in 0..2 {
        simulate_with(88, TWICE, async |world| {
            let (mut writer, data) = at_rest(world).await;
            let lost = homes(world, &mut writer).await[mirror];
            lose(world, lost, SIZE).await;
            let (client, file) = (&writer.client, &writer.file);
            assert_eq!(client.seek_data(file, 0).await, Ok(Some(0)));
            let copy = client.open("copy").await;
            client.copy_all((file, 0), (&copy, 0), SIZE).await.unwrap();
            assert!(client.proxied_content(&copy, SIZE).await == data);
        });
    }
}

#[test]
fn nothing_is_made_in_the_place_of_what_is_lost() {
    let shapes = [(ONCE, nfsstat4::NFS4ERR_IO), (TWICE, nfsstat4::NFS4_OK)];
    for (policy, expected) in shapes {
        for copies in [false, true] {
            simulate_with(89, policy, async |world| {
                let (mut writer, mut data) = at_rest(world).await;
                let lost = homes(world, &mut writer).await[0];
                lose(world, lost, SIZE).await;
                let (client, file) = (&writer.client, &writer.file);
                if copies {
                    let source = client.open("source").await;
                    assert_eq!(client.proxied_write(&source, 0, b"four").await, nfsstat4::NFS4_OK);
                    let copied = client.copy_all((&source, 0), (file, 8192), 4).await;
                    assert_eq!(copied.err().unwrap_or(nfsstat4::NFS4_OK), expected);
                    data[8192..8196].copy_from_slice(b"four");
                } else {
                    assert_eq!(client.allocate(file, 4096, 4096).await, expected);
                }
                if expected == nfsstat4::NFS4_OK {
                    healed(world, "f", &data).await;
                } else {
                    assert!(!world.holds(lost, SIZE) && !world.holds(lost, 8192) && !world.holds(lost, 8196));
                    assert_eq!(client.try_read(file, 0, 4096).await.unwrap_err(), nfsstat4::NFS4ERR_IO);
                }
            });
        }
    }
}

/// Nobody is asked any more whether it is there.
#[test]
fn what_went_with_a_removed_data_server_is_an_error_at_once() {
    simulate_with(94, ONCE, async |world| {
        let (mut writer, _) = at_rest(world).await;
        let gone = homes(world, &mut writer).await[0];
        world.forget_data_server(gone).await;
        let client = Client::mount(world, "b", NEW).await;
        let file = client.open("f").await;
        let args = ALLOCATE4args { aa_stateid: file.stateid, aa_offset: 4096, aa_length: 4096 };
        let (status, _) = client.once(vec![putfh(&file.handle), nfs_argop4::OP_ALLOCATE(args)]).await;
        assert_eq!(status, nfsstat4::NFS4ERR_IO);
        let source = client.open("source").await;
        assert_eq!(client.proxied_write(&source, 0, b"four").await, nfsstat4::NFS4_OK);
        let copied = client.copy((&source, 0), (&file, 8192), 4, true).await;
        assert_eq!(copied.unwrap_err(), nfsstat4::NFS4ERR_IO);
    });
}

/// The layout says nothing of what was written under it, and outlives a restart of its data server.
#[test]
fn a_handle_of_before_what_is_lost_was_written_makes_nothing_anew() {
    for restarted in [false, true] {
        simulate_with(90, ONCE, async |world| {
            let data = pattern(3, usize::try_from(SIZE).unwrap());
            let mut writer = Writer::mount(world, "a", "f").await;
            writer.write(world, 0, &data).await;
            let held = writer.held.clone().unwrap();
            // It has been told of, and is not open any more.
            world.sleep(Duration::from_secs(60)).await;
            let n = (0..4).find(|n| world.holds(*n, SIZE)).unwrap();
            if restarted {
                lose(world, n, SIZE).await;
            } else {
                world.device(n).remove(&world.data_file_of(n, SIZE)).unwrap();
            }
            // After a restart it may know what it has told of, or not.
            let refused =
                |status| status == nfsstat3::NFS3ERR_IO || restarted && status == nfsstat3::NFS3ERR_STALE;
            assert!(refused(writer.client.write(&held, 4096, &data[..4096]).await.unwrap_err()));
            assert!(refused(writer.client.read(&held, 0..4096).await.unwrap_err()));
            assert_eq!(world.data_files(n), 0);
            // A newer one tells.
            writer.give_back().await;
            let again = writer.client.layout(&writer.file, writer.file.stateid, RW, 0).await;
            assert_eq!(writer.client.read(&again, 0..4096).await.unwrap_err(), nfsstat3::NFS3ERR_IO);
        });
    }
}

/// Stripes that nobody has written yet are what is not there after any restart.
#[test]
fn what_was_never_written_is_written_after_a_restart() {
    simulate_with(92, ONCE, async |world| {
        let mut writer = Writer::mount(world, "a", "f").await;
        let before = writer.client.layout(&writer.file, writer.file.stateid, RW, 0).await;
        let n = home(world, &writer.client, &before, 0).await;
        world.crash_data_server(n).await;
        world.start_data_server(n).await;
        assert_eq!(writer.client.write(&before, 0, b"data").await.unwrap_err(), nfsstat3::NFS3ERR_STALE);
        writer.held = Some(before);
        writer.give_back().await;
        writer.write(world, 0, b"data").await;
        assert_eq!(writer.proxied, 0);
        assert!(writer.client.proxied_read(&writer.file, 0, 4).await[..] == b"data"[..]);
    });
}

#[test]
fn what_is_lost_is_counted_when_nothing_more_can_come_there() {
    let tune = |config: &mut sluice_mds::Config| {
        (config.policy, config.rebuild_after) = (ONCE, Duration::ZERO);
    };
    simulate_tuned(87, tune, async |world| {
        let (client, lost) = (Client::mount(world, "a", NEW).await, 3);
        let mut files = 0..;
        let mut make = async || {
            client.put_whole(&format!("f{}", files.next().unwrap()), &[7; 5000]).await;
        };
        for _ in 0..40 {
            make().await;
        }
        // Whoever looks has it counted.
        server(world, lost).await;
        world.sleep(Duration::from_secs(1)).await;
        let before = world.data_files(lost);
        while world.data_files(lost) == before {
            make().await;
        }
        world.crash_data_server(lost).await;
        world.sleep(Duration::from_secs(40)).await;
        world.set_faults(Faults { latency: Duration::from_millis(20), ..Faults::NONE });
        drain(world, lost, 0).await.unwrap();
        let told = remove(world, lost, true, &[]).await.unwrap();
        assert_eq!(told.files, u64::try_from(before).unwrap() + 1);
        world.set_faults(Faults::NONE);
        assert!(remove(world, lost, true, &[told.files]).await.unwrap().removed);
    });
}

#[test]
fn what_was_mirrored_where_a_data_server_was_removed_is_made_anew() {
    simulate_with(88, TWICE, async |world| {
        let (_, mut data) = at_rest(world).await;
        let gone = (0..4).find(|n| world.holds(*n, SIZE)).unwrap();
        world.forget_data_server(gone).await;
        let mut writer = Writer::mount(world, "b", "f").await;
        writer.write(world, 1000, &[9; 5000]).await;
        data[1000..6000].fill(9);
        writer.give_back().await;
        healed(world, "f", &data).await;
        assert_eq!(world.untold(gone).await, 0, "nobody will ever hear of them");
    });
}

/// The only data server that could have taken it was away, too.
#[test]
fn what_found_no_place_when_a_data_server_was_removed_has_one_later() {
    simulate_with(89, LayoutPolicy { mirrors: 3, ..TWICE }, async |world| {
        at_rest(world).await;
        let (gone, spare) = ((0..4).find(|n| world.holds(*n, SIZE)), (0..4).find(|n| !world.holds(*n, SIZE)));
        let (gone, spare) = (gone.unwrap(), spare.unwrap());
        world.crash_data_server(spare).await;
        world.forget_data_server(gone).await;
        world.sleep(Duration::from_secs(60)).await;
        world.start_data_server(spare).await;
        for _ in 0..1800 {
            if world.holds(spare, SIZE) && world.check().await == 0 {
                return;
            }
            world.sleep(Duration::from_secs(1)).await;
        }
        panic!("there are two copies still where there should be three");
    });
}

#[test]
fn what_is_lost_is_moved_nowhere_as_a_hole() {
    simulate_with(86, ONCE, async |world| {
        let (writer, _) = at_rest(world).await;
        let n = (0..4).find(|n| world.holds(*n, SIZE)).unwrap();
        lose(world, n, SIZE).await;
        drain(world, n, 0).await.unwrap();
        world.sleep(Duration::from_secs(120)).await;
        let ro = writer.client.layout(&writer.file, writer.file.stateid, RO, 0).await;
        assert_eq!(writer.client.read(&ro, 0..4096).await.unwrap_err(), nfsstat3::NFS3ERR_IO);
        let args = ADMIN_WHY_args { path: "/f".into(), client: 0 };
        let ADMIN_WHY_res::CTL_OK(why) = world.admin(ADMIN_WHY, &args).await else { panic!("no such file") };
        assert!(String::from_utf8_lossy(&why.healing).contains("is lost"), "{why:?}");
        let stuck = format!("{:?}", server(world, n).await.unwrap());
        assert!(stuck.contains("damaged, or lost"), "{stuck}");
    });
}

/// What its writer never had made durable, and died: one mirror has it and the other has not, unless somebody compares them
/// again.
#[test]
fn what_a_mirror_was_made_equal_to_is_durable_before_it_is_looked_at() {
    simulate_with(89, TWICE, async |world| {
        let data = pattern(3, 1 << 20);
        let mut writer = Writer::mount(world, "a", "f").await;
        writer.write(world, 0, &data).await;
        let held = writer.held.clone().unwrap();
        let (source, gone) =
            (home(world, &writer.client, &held, 0).await, home(world, &writer.client, &held, 1).await);
        for mirror in 0..2 {
            let one = held.mirror(mirror);
            let there = writer.client.at(&one, 0).await.unwrap();
            there.write(one.data_server(0), 0, bytes::Bytes::from(vec![7; 1000])).await.unwrap();
        }
        writer.give_back().await;
        writer.client.close(&writer.file).await;
        world.net.crash("a");
        // Pieces of 256 KiB, of which the first is copied and the limit waited for.
        drain(world, gone, 32 << 10).await.unwrap();
        world.until(|world| (0..4).any(|n| n != gone && n != source && world.data_files(n) > 0)).await;
        world.sleep(Duration::from_secs(1)).await;
        world.crash_data_server(source).await;
        world.start_data_server(source).await;
        drained(world, gone).await;
        let client = Client::mount(world, "b", NEW).await;
        let file = client.open("f").await;
        let reads = client.layout(&file, file.stateid, RO, 0).await;
        assert_eq!(reads.body.ffl_mirrors.len(), 2);
        let first = client.read(&reads.mirror(0), 0..1 << 20).await.unwrap();
        let second = client.read(&reads.mirror(1), 0..1 << 20).await.unwrap();
        assert!(first == second, "mirrors differ and nobody knows");
        assert!(first[1000..] == data[1000..]);
    });
}
