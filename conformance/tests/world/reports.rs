//! What clients report of data servers without giving a layout back (LAYOUTERROR).

use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::nfs3::nfsstat3;
use sluice_xdr::nfs4::{LAYOUTERROR4args, device_error4, nfs_argop4, nfs_opnum4, nfsstat4};

use crate::client::{Client, Opened, RO, RW, putfh};
use crate::mirrors::{Writer, healed};
use crate::stage::{World, simulate_with};
use crate::storage::Segment;
use crate::{NEW, pattern};

const TWICE: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 2, inline: 0, class: None };

/// An operation failed at the first mirror, as Linux says it before it tries again under the same layout.
async fn layout_error(
    client: &Client,
    file: &Opened,
    held: &Segment,
    (opnum, status): (nfs_opnum4, nfsstat4),
) {
    let error = device_error4 {
        de_deviceid: held.mirror(0).data_server(0).ffds_deviceid,
        de_status: status,
        de_opnum: opnum,
    };
    let op = nfs_argop4::OP_LAYOUTERROR(LAYOUTERROR4args {
        lea_offset: 0,
        lea_length: u64::MAX,
        lea_stateid: held.stateid,
        lea_errors: vec![error],
    });
    client.ok(vec![putfh(&file.handle), op]).await;
}

/// The second mirror has what the first does not.
async fn half_written(world: &World, writer: &mut Writer, opnum: nfs_opnum4) {
    let model = pattern(0, 100_000);
    writer.write(world, 0, &model).await;
    let held = writer.held.clone().unwrap();
    writer.client.write(&held.mirror(1), 50_000, &[7; 30_000]).await.unwrap();
    layout_error(&writer.client, &writer.file, &held, (opnum, nfsstat4::NFS4ERR_NOSPC)).await;
    // The report was the first to go: the return has nothing more to say.
    writer.give_back().await;
}

#[test]
fn mirrors_of_which_one_failed_a_write_are_compared_though_the_layout_comes_back_without_a_word() {
    for (seed, opnum) in [(76, nfs_opnum4::OP_WRITE), (77, nfs_opnum4::OP_COMMIT)] {
        simulate_with(seed, TWICE, async |world| {
            let mut writer = Writer::mount(world, "a", "f").await;
            half_written(world, &mut writer, opnum).await;
            assert_eq!(world.check().await, 1);
            world.net.crash("a");
            healed(world, "f", &pattern(0, 100_000)).await;
        });
    }
}

#[test]
fn a_read_that_failed_makes_no_mirrors_differ() {
    simulate_with(78, TWICE, async |world| {
        let mut writer = Writer::mount(world, "a", "f").await;
        writer.write(world, 0, b"data").await;
        let held = writer.held.clone().unwrap();
        layout_error(&writer.client, &writer.file, &held, (nfs_opnum4::OP_READ, nfsstat4::NFS4ERR_NOSPC))
            .await;
        assert_eq!(world.check().await, 0);
    });
}

/// When a data server is gone, all who read there say so, and of no operation: it could not be sent.
#[test]
fn what_failed_for_a_reader_makes_no_mirrors_differ() {
    simulate_with(88, TWICE, async |world| {
        let mut writer = Writer::mount(world, "a", "f").await;
        writer.write(world, 0, b"data").await;
        writer.give_back().await;
        let reader = Client::mount(world, "b", NEW).await;
        let file = reader.open("f").await;
        let held = reader.layout(&file, file.stateid, RO, 0).await;
        layout_error(&reader, &file, &held, (nfs_opnum4(0), nfsstat4::NFS4ERR_NOSPC)).await;
        assert_eq!(world.check().await, 0);
    });
}

/// The file system of a data server has a longest file, of 16 TiB with ext4. Linux gives the layout back and asks for another at once.
#[test]
fn what_is_too_long_for_a_data_server_is_told_to_the_application() {
    const LONGEST: u64 = 1 << 30;
    simulate_with(89, LayoutPolicy { mirrors: 1, ..TWICE }, async |world| {
        (0..4).for_each(|n| world.device(n).set_longest(LONGEST));
        let client = Client::mount(world, "a", NEW).await;
        let file = client.open("f").await;
        let held = client.layout(&file, file.stateid, RW, 0).await;
        client.write(&held, 0, &pattern(0, 5_000)).await.unwrap();
        let refused = client.write(&held, LONGEST, &[7; 4_096]).await.unwrap_err();
        assert_eq!(refused, nfsstat3::NFS3ERR_FBIG);
        let said = (nfs_opnum4::OP_WRITE, nfsstat4::NFS4ERR_FBIG);
        layout_error(&client, &file, &held, said).await;
        assert_eq!(client.layout_return(&file, held.stateid).await, nfsstat4::NFS4_OK);
        // Once is tried again.
        let again = client.layout(&file, file.stateid, RW, 0).await;
        layout_error(&client, &file, &again, said).await;
        assert_eq!(client.layout_return(&file, again.stateid).await, nfsstat4::NFS4_OK);
        assert_eq!(client.layout_status(&file, RW, LONGEST).await, nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE);
        assert_eq!(client.proxied_write(&file, LONGEST, &[7; 4_096]).await, nfsstat4::NFS4ERR_FBIG);
        // Before there it goes on, and others are none the worse.
        assert_eq!(client.proxied_write(&file, 5_000, &pattern(5_000, 5_000)).await, nfsstat4::NFS4_OK);
        assert_eq!(client.layout_status(&file, RO, 0).await, nfsstat4::NFS4_OK);
        let other = Client::mount(world, "b", NEW).await;
        let seen = other.open("f").await;
        assert_eq!(other.layout_status(&seen, RW, 0).await, nfsstat4::NFS4_OK);
        assert!(other.proxied_content(&seen, 10_000).await == pattern(0, 10_000));
        world.sleep(std::time::Duration::from_secs(31)).await;
        assert_eq!(client.layout_status(&file, RW, 0).await, nfsstat4::NFS4_OK);
    });
}
