//! A metadata server that may not have its store any more, for longer than data servers may be silent: whoever could not be
//! heard was not silent.

use std::time::Duration;

use sluice_kv::Faults;
use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::nfs4::{
    Attributes, LOOKUP4args, OPEN4_SHARE_ACCESS_BOTH, OPEN4_SHARE_ACCESS_READ, RENAME4args, createhow4,
    nfs_argop4, nfsstat4, openflag4,
};

use crate::client::{Client, RW, attributes, sizes, text};
use crate::mirrors::{Writer, home};
use crate::stage::{World, simulate_tuned, simulate_with};
use crate::{NEW, pattern};

const TWICE: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 2, inline: 0 };
const ONCE: LayoutPolicy = LayoutPolicy { mirrors: 1, ..TWICE };
const SIZE: usize = 300_000;

async fn away_for(world: &World, seconds: u64) {
    world.set_faults(Faults { away: true, ..Faults::NONE });
    world.sleep(Duration::from_secs(seconds)).await;
    world.set_faults(Faults::NONE);
}

/// A file at rest, and a data server of it that has just been given up.
async fn given_up(world: &mut World) -> (Writer, usize) {
    let mut writer = Writer::mount(world, "a", "f").await;
    writer.write(world, 0, &pattern(3, SIZE)).await;
    let held = writer.held.clone().unwrap();
    let lost = home(world, &writer.client, &held, 0).await;
    writer.give_back().await;
    world.crash_data_server(lost).await;
    world.sleep(Duration::from_secs(12)).await;
    (writer, lost)
}

#[test]
fn what_only_one_data_server_has_is_waited_for() {
    simulate_with(1, ONCE, async |world| {
        let (writer, lost) = given_up(world).await;
        away_for(world, 60).await;
        let read = async || writer.client.try_read(&writer.file, 0, 4096).await;
        assert_eq!(read().await.unwrap_err(), nfsstat4::NFS4ERR_DELAY);
        world.start_data_server(lost).await;
        assert!(writer.client.proxied_read(&writer.file, 0, 4096).await[..] == pattern(3, 4096)[..]);
        // As ever, where it is really silent.
        world.crash_data_server(lost).await;
        world.sleep(Duration::from_secs(40)).await;
        assert_eq!(read().await.unwrap_err(), nfsstat4::NFS4ERR_IO);
    });
}

#[test]
fn nothing_is_made_anew_of_a_data_server_that_could_not_be_heard() {
    let tune = |config: &mut sluice_mds::Config| {
        (config.policy, config.rebuild_after) = (TWICE, Duration::from_secs(60));
    };
    simulate_tuned(2, tune, async |world| {
        let client = Client::mount(world, "b", NEW).await;
        for n in 0..40 {
            let file = client.open(&format!("g{n}")).await;
            assert_eq!(client.proxied_write(&file, 0, &pattern(0, 9)).await, nfsstat4::NFS4_OK);
        }
        let (_, lost) = given_up(world).await;
        away_for(world, 120).await;
        // Whoever looks at all files comes to the last ones when there are others that could take its place.
        world.set_faults(Faults { latency: Duration::from_millis(400), ..Faults::NONE });
        world.sleep(Duration::from_secs(20)).await;
        world.set_faults(Faults::NONE);
        assert_eq!(world.check().await, 0, "it may come back");
        world.start_data_server(lost).await;
        world.sleep(Duration::from_secs(10)).await;
        let holders = (0..4).filter(|n| world.holds(*n, SIZE as u64)).count();
        assert_eq!((holders, world.check().await), (2, 0));
    });
}

/// A file that ends at `SIZE`, which only a data server knows that is away, since its writer is, too: the last that was
/// heard is `TOLD`.
async fn end_unknown(world: &mut World) -> usize {
    let writer = Client::mount(world, "a", NEW).await;
    let file = writer.open("f").await;
    let held = writer.layout(&file, file.stateid, RW, 0).await;
    writer.write(&held, 0, &pattern(3, 100_000)).await.unwrap();
    writer.layout_commit(&file, held.stateid, Some(TOLD - 1)).await.unwrap();
    writer.write(&held, 0, &pattern(3, SIZE)).await.unwrap();
    let lost = home(world, &writer, &held, 0).await;
    world.crash_data_server(lost).await;
    lost
}

const TOLD: u64 = 100_000;

impl Client {
    /// LOOKUP in the root with its size, asked once.
    async fn size_of(&self, name: &str) -> Result<u64, nfsstat4> {
        let lookup = nfs_argop4::OP_LOOKUP(LOOKUP4args { objname: text(name) });
        let ops = vec![nfs_argop4::OP_PUTROOTFH, lookup, Self::getattr()];
        let (status, results) = self.once(ops).await;
        if status == nfsstat4::NFS4_OK { Ok(sizes(results.last().unwrap()).0) } else { Err(status) }
    }

    async fn rename(&self, from: &str, to: &str) {
        let rename = nfs_argop4::OP_RENAME(RENAME4args { oldname: text(from), newname: text(to) });
        let root = nfs_argop4::OP_PUTROOTFH;
        self.ok(vec![root.clone(), nfs_argop4::OP_SAVEFH, root, rename]).await;
    }
}

#[test]
fn a_file_whose_end_only_one_knows_that_is_given_up_can_be_listed_and_moved_and_is_not_opened() {
    for restarts in [false, true] {
        simulate_with(3, ONCE, async |world| {
            let lost = end_unknown(world).await;
            let first = Client::mount(world, "b", NEW).await;
            assert_eq!(first.size_of("f").await, Err(nfsstat4::NFS4ERR_DELAY), "it may come back");
            if restarts {
                world.restart_metadata_server().await;
            }
            world.sleep(Duration::from_secs(300)).await;
            let other = Client::mount(world, "b", NEW).await;
            assert_eq!(other.size_of("f").await, Ok(TOLD));
            let open = async |access| other.compound(Client::open_ops("f", access)).await.0;
            assert_eq!(open(OPEN4_SHARE_ACCESS_READ).await, nfsstat4::NFS4ERR_IO, "who knows what there is");
            other.rename("f", "g").await;
            world.start_data_server(lost).await;
            world.until_serving(lost).await;
            let whole = other.open("g").await;
            assert_eq!(other.stat(&whole).await.0, SIZE as u64);
            assert!(other.proxied_content(&whole, SIZE as u64).await == pattern(3, SIZE));
            assert_eq!(world.check().await, 0);
        });
    }
}

#[test]
fn a_file_whose_end_only_one_knows_that_is_given_up_can_be_emptied_and_removed() {
    simulate_with(4, ONCE, async |world| {
        let lost = end_unknown(world).await;
        world.sleep(Duration::from_secs(300)).await;
        let other = Client::mount(world, "b", NEW).await;
        assert_eq!(other.size_of("f").await, Ok(TOLD));
        let mut ops = Client::open_ops("f", OPEN4_SHARE_ACCESS_BOTH);
        let Some(nfs_argop4::OP_OPEN(open)) = ops.get_mut(1) else { panic!() };
        let empty = attributes(&Attributes { size: Some(0), ..Attributes::default() });
        open.openhow = openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(empty));
        let file = Client::opened(&other.ok(ops).await);
        assert_eq!(other.stat(&file).await.0, 0);
        assert_eq!(other.proxied_write(&file, 0, &pattern(5, 5000)).await, nfsstat4::NFS4_OK);
        world.start_data_server(lost).await;
        world.until_serving(lost).await;
        world.sleep(Duration::from_secs(10)).await;
        assert_eq!(other.stat(&file).await.0, 5000, "what was there is not part of it any more");
        assert!(other.proxied_content(&file, 5000).await == pattern(5, 5000));
        other.close(&file).await;
        other.remove("f").await;
        world.sleep(Duration::from_secs(10)).await;
        assert_eq!((world.check().await, world.data_files(lost)), (0, 0));
    });
}
