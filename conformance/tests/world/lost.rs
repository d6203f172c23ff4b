//! Data files that a data server has lost although it once had them: an error or the other mirror, never zeros.

use std::time::Duration;

use sluice_namespace::{LayoutPolicy, Shape};
use sluice_store::device::Device;
use sluice_xdr::control::{ADMIN_WHY, ADMIN_WHY_args, ADMIN_WHY_res};
use sluice_xdr::nfs3::nfsstat3;
use sluice_xdr::nfs4::nfsstat4;

use crate::client::{RO, RW};
use crate::drain::{drain, server};
use crate::mirrors::{Writer, healed, home};
use crate::pattern;
use crate::stage::{World, simulate_with};

const TWICE: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 2, inline: 0 };
const ONCE: LayoutPolicy = LayoutPolicy { mirrors: 1, ..TWICE };
const SIZE: u64 = 300_000;

/// The file system of a data server is mended, and this data file is not there any more.
async fn lose(world: &mut World, n: usize, length: u64) {
    let path = world.data_file_of(n, length);
    world.crash_data_server(n).await;
    world.device(n).remove(&path).unwrap();
    world.device(n).sync_dir(path.rsplit_once('/').unwrap().0).unwrap();
    world.start_data_server(n).await;
}

/// A file of `SIZE` bytes that its data servers have told of.
async fn at_rest(world: &World) -> (Writer, Vec<u8>) {
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
            let held = writer.client.layout(&writer.file, writer.file.stateid, RW, 0).await;
            let lost = home(world, &writer.client, &held, mirror).await;
            writer.held = Some(held);
            writer.give_back().await;
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
        writer.client.truncate(&writer.file, 0).await;
        writer.write(world, 0, &data).await;
        assert!(writer.client.proxied_read(&writer.file, 0, 300_000).await[..] == data[..]);
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
