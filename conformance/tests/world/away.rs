//! A metadata server that may not have its store any more, for longer than data servers may be silent: whoever could not be
//! heard was not silent.

use std::time::Duration;

use sluice_kv::Faults;
use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::nfs3::nfsstat3;
use sluice_xdr::nfs4::*;

use crate::client::{CURRENT, Client, Opened, RO, RW, attributes, layoutget, putfh, sizes, text};
use crate::lost::{at_rest, homes};
use crate::mirrors::{Writer, home};
use crate::stage::{World, simulate_tuned, simulate_with};
use crate::{NEW, OLD, pattern};

const TWICE: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 2, inline: 0, class: None };
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

/// What a data server that is here has not got is a hole as far as the file goes by what was told. Where it ends nobody knows.
#[test]
fn a_hole_is_read_where_it_is_though_nobody_knows_the_end() {
    const STRIPE: u64 = 1 << 20;
    simulate_with(10, LayoutPolicy { shape: Shape::Wide, ..ONCE }, async |world| {
        let (writer, reader) = (Client::mount(world, "a", NEW).await, Client::mount(world, "b", OLD).await);
        let file = writer.open("f").await;
        let held = writer.layout(&file, file.stateid, RW, 0).await;
        writer.write(&held, 0, &pattern(0, 4_096)).await.unwrap();
        writer.layout_commit(&file, held.stateid, Some(6 * STRIPE - 1)).await.unwrap();
        writer.write(&held, 5 * STRIPE, &pattern(0, 4_096)).await.unwrap();
        let open = reader.open("f").await;
        let other = writer.device(held.data_server(5 * STRIPE).ffds_deviceid).await;
        let lost = (0..4).find(|n| world.data_server(*n) == other).unwrap();
        world.crash_data_server(lost).await;
        let read = async |at: u64| {
            let held = reader.layout(&open, open.stateid, RO, at).await;
            reader.at(&held, at).await?.read(held.data_server(at), at, 4_096).await
        };
        world.sleep(Duration::from_secs(12)).await;
        assert_eq!(read(4 * STRIPE).await.unwrap_err(), nfsstat3::NFS3ERR_JUKEBOX, "it may come back");
        // The writer has gone.
        for _ in 0..60 {
            world.sleep(Duration::from_secs(5)).await;
            reader.ok(Vec::new()).await;
        }
        assert_eq!(read(0).await.unwrap(), (pattern(0, 4_096).into(), false));
        assert_eq!(read(4 * STRIPE).await.unwrap(), (vec![0; 4_096].into(), false));
        assert_eq!(read(8 * STRIPE).await.unwrap_err(), nfsstat3::NFS3ERR_IO);
        world.start_data_server(lost).await;
        world.until_serving(lost).await;
        world.sleep(Duration::from_secs(5)).await;
        assert_eq!(read(8 * STRIPE).await.unwrap(), (Vec::new().into(), true));
    });
}

/// What a GETATTR right behind could not tell: Linux would take note of the open only once it is told.
#[test]
fn nobody_opens_a_file_that_is_being_written_while_a_data_server_is_away() {
    simulate_with(5, ONCE, async |world| {
        let (writer, other) = (Client::mount(world, "a", NEW).await, Client::mount(world, "b", NEW).await);
        let file = writer.open("f").await;
        let held = writer.layout(&file, file.stateid, RW, 0).await;
        writer.write(&held, 0, &pattern(3, SIZE)).await.unwrap();
        let lost = home(world, &writer, &held, 0).await;
        let open = async |client: &Client, name| {
            client.once(Client::open_ops(name, OPEN4_SHARE_ACCESS_BOTH)).await.0
        };
        world.crash_data_server(lost).await;
        for client in [&writer, &other] {
            assert_eq!(open(client, "f").await, nfsstat4::NFS4ERR_DELAY);
            assert_eq!(client.size_of("f").await, Err(nfsstat4::NFS4ERR_DELAY));
        }
        world.start_data_server(lost).await;
        world.until_serving(lost).await;
        assert_eq!(open(&other, "f").await, nfsstat4::NFS4_OK);
        assert_eq!(other.size_of("f").await, Ok(SIZE as u64));
        writer.layout_commit(&file, held.stateid, Some(SIZE as u64 - 1)).await.unwrap();
        writer.layout_return(&file, held.stateid).await;
        world.sleep(Duration::from_secs(2)).await;
        world.crash_data_server(lost).await;
        assert_eq!(open(&other, "f").await, nfsstat4::NFS4_OK, "it is at rest");
        assert_eq!(other.size_of("f").await, Ok(SIZE as u64));
    });
}

/// Other opens of the file wait at a Linux client until the whole COMPOUND is answered.
#[test]
fn a_layout_asked_for_with_an_open_keeps_nobody_waiting() {
    simulate_with(5, ONCE, async |world| {
        let (writer, other) = (Client::mount(world, "a", NEW).await, Client::mount(world, "b", NEW).await);
        let (file, held) = writer.open_with_layout("f").await;
        let lost = home(world, &writer, &held, 0).await;
        writer.write(&held, 0, &pattern(3, SIZE)).await.unwrap();
        writer.layout_commit(&file, held.stateid, Some(SIZE as u64 - 1)).await.unwrap();
        writer.layout_return(&file, held.stateid).await;
        world.sleep(Duration::from_secs(2)).await;
        world.crash_data_server(lost).await;
        let values = attributes(&Attributes { size: Some(10), ..Attributes::default() });
        let cut = nfs_argop4::OP_SETATTR(SETATTR4args { stateid: file.stateid, obj_attributes: values });
        let cut = writer.once(vec![putfh(&file.handle), cut]).await.0;
        assert_eq!(cut, nfsstat4::NFS4ERR_DELAY, "nobody has cut what is there");
        let ops = || {
            let mut ops = Client::open_ops("f", OPEN4_SHARE_ACCESS_BOTH);
            ops.push(layoutget(CURRENT, RW, 0, u64::MAX));
            ops
        };
        let began = world.env.clock.now();
        let (status, results) = other.once(ops()).await;
        let took = world.env.clock.now().since(began);
        assert_eq!(status, nfsstat4::NFS4ERR_LAYOUTTRYLATER);
        Client::opened(&results);
        assert!(took < Duration::from_secs(1), "{took:?}");
        world.start_data_server(lost).await;
        world.until_serving(lost).await;
        world.sleep(Duration::from_secs(2)).await;
        assert_eq!(other.once(ops()).await.0, nfsstat4::NFS4_OK);
        assert_eq!(other.size_of("f").await, Ok(10));
    });
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

/// Linux asks for no layout of a file for two minutes once it was told that there is none, and does without a device for as
/// long once it could not connect to it.
#[test]
fn a_data_server_that_is_started_anew_costs_nobody_the_direct_way() {
    simulate_with(9, ONCE, async |world| {
        let mut writer = Writer::mount(world, "a", "f").await;
        writer.write(world, 0, &pattern(3, SIZE)).await;
        let held = writer.held.clone().unwrap();
        let device = held.data_server(0).ffds_deviceid;
        let restarted = home(world, &writer.client, &held, 0).await;
        writer.give_back().await;
        world.crash_data_server(restarted).await;
        world.sleep(Duration::from_millis(500)).await;
        let (client, file) = (&writer.client, &writer.file);
        let status = async |mode| client.try_layout(file, file.stateid, mode, 0).await.unwrap_err();
        assert_eq!((status(RO).await, status(RW).await), (nfsstat4::NFS4ERR_DELAY, nfsstat4::NFS4ERR_DELAY));
        world.sleep(Duration::from_millis(1500)).await;
        world.start_data_server(restarted).await;
        world.sleep(Duration::from_secs(1)).await;
        let held = client.layout(file, file.stateid, RW, 0).await;
        let again = held.body.ffl_mirrors[0].ffm_data_servers[0].ffds_deviceid;
        assert_ne!(again, device);
        client.layout_return(file, held.stateid).await;

        world.crash_data_server(restarted).await;
        world.sleep(Duration::from_secs(12)).await;
        assert_eq!(status(RO).await, nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE);
    });
}

/// SETATTR of the size, ALLOCATE, DEALLOCATE and SEEK as READ and WRITE: nobody waits for what does not come back.
#[test]
fn what_is_at_a_data_server_that_was_given_up_is_neither_cut_nor_searched_and_nobody_waits() {
    simulate_with(10, ONCE, async |world| {
        let (writer, lost) = given_up(world).await;
        let (client, file) = (&writer.client, &writer.file);
        let (handle, stateid) = (file.handle.clone(), file.stateid);
        let cut = |size| {
            let values = attributes(&Attributes { size: Some(size), ..Attributes::default() });
            nfs_argop4::OP_SETATTR(SETATTR4args { stateid, obj_attributes: values })
        };
        let asks = [
            cut(10),
            nfs_argop4::OP_ALLOCATE(ALLOCATE4args { aa_stateid: stateid, aa_offset: 0, aa_length: 4096 }),
            nfs_argop4::OP_DEALLOCATE(DEALLOCATE4args { da_stateid: stateid, da_offset: 0, da_length: 4096 }),
            nfs_argop4::OP_SEEK(SEEK4args {
                sa_stateid: stateid,
                sa_offset: 0,
                sa_what: data_content4::NFS4_CONTENT_HOLE,
            }),
        ];
        let once = async |op: &nfs_argop4| client.once(vec![putfh(&handle), op.clone()]).await.0;
        for (n, op) in asks.iter().enumerate().skip(1) {
            assert_eq!(once(op).await, nfsstat4::NFS4ERR_DELAY, "{n}: it may come back");
        }
        world.sleep(Duration::from_secs(40)).await;
        for (n, op) in asks.iter().enumerate() {
            assert_eq!(once(op).await, nfsstat4::NFS4ERR_IO, "{n}");
        }
        assert_eq!(once(&cut(SIZE as u64)).await, nfsstat4::NFS4ERR_IO, "where it ends already");
        world.start_data_server(lost).await;
        world.until_serving(lost).await;
        assert!(client.proxied_content(file, SIZE as u64).await == pattern(3, SIZE));
        client.truncate(file, 10).await;
        assert_eq!(client.stat(file).await.0, 10);
    });
}

impl Client {
    /// `truncate -s 0` and an open that empties it, once each: both are told the same.
    async fn empty(&self, name: &str) -> nfsstat4 {
        let nothing = || attributes(&Attributes { size: Some(0), ..Attributes::default() });
        let mut opens = Self::open_ops(name, OPEN4_SHARE_ACCESS_BOTH);
        let mut cuts = opens.clone();
        let Some(nfs_argop4::OP_OPEN(open)) = opens.get_mut(1) else { panic!() };
        open.openhow = openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(nothing()));
        let cut = SETATTR4args { stateid: CURRENT, obj_attributes: nothing() };
        cuts.push(nfs_argop4::OP_SETATTR(cut));
        let told = (self.once(cuts).await.0, self.once(opens).await.0);
        assert_eq!(told.0, told.1);
        told.0
    }
}

/// What was cut off would have to be cut where it is: who reads it later, or writes to it, would wait until then.
#[test]
fn what_is_at_no_data_server_that_is_here_and_finds_no_other_place_is_not_emptied_and_nobody_waits() {
    let cases = [(2, nfsstat4::NFS4ERR_DELAY), (40, nfsstat4::NFS4ERR_IO)];
    for ((silent, told), restarts) in cases.into_iter().flat_map(|case| [(case, false), (case, true)]) {
        simulate_with(17, TWICE, async |world| {
            let (mut writer, data) = at_rest(world).await;
            let homes = homes(world, &mut writer).await;
            world.sleep(Duration::from_secs(5)).await;
            let spare = (0..4).find(|n| !homes.contains(n)).unwrap();
            for n in [homes[0], homes[1], spare] {
                world.crash_data_server(n).await;
            }
            world.sleep(Duration::from_secs(silent)).await;
            let mut other = Client::mount(world, "b", NEW).await;
            assert_eq!(other.empty("f").await, told, "silent for {silent} s");
            if restarts {
                world.restart_metadata_server().await;
            }
            world.sleep(Duration::from_secs(40)).await;
            if restarts {
                other = Client::mount(world, "c", NEW).await;
            }
            let file = other.open("f").await;
            assert_eq!(other.stat(&file).await.0, SIZE as u64);
            assert_eq!(other.try_read(&file, 0, 4096).await, Err(nfsstat4::NFS4ERR_IO), "nobody waits");
            // One copy is back, and has all of it; and there are two who could take it.
            world.start_data_server(homes[0]).await;
            world.until_serving(homes[0]).await;
            assert!(other.proxied_content(&file, SIZE as u64).await == data);
            other.truncate(&file, 0).await;
            assert_eq!(other.proxied_write(&file, 0, &pattern(5, 5000)).await, nfsstat4::NFS4_OK);
            assert!(other.proxied_content(&file, 5000).await == pattern(5, 5000));
            assert_eq!(world.check().await, 0);
        });
    }
}

#[test]
fn neither_is_one_where_all_others_are_full_or_read_only() {
    for full in [false, true] {
        simulate_with(18, ONCE, async |world| {
            let (_writer, lost) = given_up(world).await;
            for n in (0..4).filter(|n| *n != lost) {
                if full {
                    world.device(n).set_capacity(1);
                } else {
                    world.device(n).set_read_only(true);
                }
            }
            world.sleep(Duration::from_secs(40)).await;
            let other = Client::mount(world, "b", NEW).await;
            assert_eq!(other.empty("f").await, nfsstat4::NFS4ERR_IO);
            let file = other.open("f").await;
            assert_eq!(other.try_read(&file, 0, 4096).await, Err(nfsstat4::NFS4ERR_IO), "nobody waits");
            world.start_data_server(lost).await;
            world.until_serving(lost).await;
            assert!(other.proxied_content(&file, SIZE as u64).await == pattern(3, SIZE));
            other.truncate(&file, 0).await;
            assert_eq!(other.stat(&file).await.0, 0);
        });
    }
}

/// To empty it is how room is made.
#[test]
fn where_all_data_servers_are_full_a_file_is_emptied_where_it_is_and_where_they_are_read_only_it_is_not() {
    for full in [false, true] {
        simulate_with(19, ONCE, async |world| {
            let mut writer = Writer::mount(world, "a", "f").await;
            writer.write(world, 0, &pattern(3, SIZE)).await;
            writer.give_back().await;
            for n in 0..4 {
                if full {
                    world.device(n).set_capacity(1);
                } else {
                    world.device(n).set_read_only(true);
                }
            }
            world.sleep(Duration::from_secs(10)).await;
            let told = Client::mount(world, "b", NEW).await.empty("f").await;
            let (client, file) = (&writer.client, &writer.file);
            if full {
                assert_eq!((told, client.stat(file).await.0), (nfsstat4::NFS4_OK, 0));
                return;
            }
            assert_eq!(told, nfsstat4::NFS4ERR_NOSPC, "as who makes a file is told");
            assert!(client.proxied_content(file, SIZE as u64).await == pattern(3, SIZE));
            (0..4).for_each(|n| world.device(n).set_read_only(false));
            world.sleep(Duration::from_secs(10)).await;
            client.truncate(file, 0).await;
            assert_eq!(client.stat(file).await.0, 0);
        });
    }
}

impl Client {
    /// SETATTR of the size, once.
    async fn cut_once(&self, file: &Opened, size: u64) -> nfsstat4 {
        let values = attributes(&Attributes { size: Some(size), ..Attributes::default() });
        let cut = nfs_argop4::OP_SETATTR(SETATTR4args { stateid: file.stateid, obj_attributes: values });
        self.once(vec![putfh(&file.handle), cut]).await.0
    }

    /// A READ through the metadata server, which answers within a few seconds.
    async fn reads(&self, world: &World, file: &Opened, length: u32) -> Vec<u8> {
        let read = self.proxied_read(file, 0, length);
        world.env.clock.timeout(Duration::from_secs(5), read).await.expect("nobody waits").to_vec()
    }
}

/// Nobody could cut it, and everybody would be kept from the whole file until somebody could.
#[test]
fn what_is_at_a_data_server_that_is_read_only_is_not_cut_and_nobody_waits() {
    for layouts in [false, true] {
        simulate_with(20, ONCE, async |world| {
            let mut writer = Writer::mount(world, "a", "f").await;
            writer.write(world, 0, &pattern(3, SIZE)).await;
            if !layouts {
                writer.give_back().await;
            }
            (0..4).for_each(|n| world.device(n).set_read_only(true));
            world.sleep(Duration::from_secs(10)).await;
            let (client, file) = (&writer.client, &writer.file);
            assert_eq!(client.cut_once(file, 4096).await, nfsstat4::NFS4ERR_IO);
            assert_eq!(
                client.cut_once(file, SIZE as u64).await,
                nfsstat4::NFS4ERR_IO,
                "where it ends already"
            );
            assert_eq!(client.stat(file).await.0, SIZE as u64);
            assert!(client.reads(world, file, SIZE as u32).await == pattern(3, SIZE));
            let other = Client::mount(world, "b", NEW).await;
            let same = other.open("f").await;
            assert!(other.reads(world, &same, SIZE as u32).await == pattern(3, SIZE));
            (0..4).for_each(|n| world.device(n).set_read_only(false));
            world.sleep(Duration::from_secs(10)).await;
            client.truncate(file, 4096).await;
            assert_eq!(client.stat(file).await.0, 4096);
        });
    }
}

/// A heartbeat has not said yet that nobody can cut it: the store knows that it is cut, and what is left of it can be read. What was
/// cut off is never seen again.
#[test]
fn what_turns_out_not_to_be_cut_can_be_read_and_grows_once_it_is() {
    for (layouts, restarts) in [(false, false), (true, false), (false, true)] {
        // No heartbeat comes in the middle, which would tell sooner that nothing can be cut.
        simulate_with(23, ONCE, async |world| {
            let mut writer = Writer::mount(world, "a", "f").await;
            writer.write(world, 0, &pattern(3, SIZE)).await;
            if !layouts {
                writer.give_back().await;
            }
            (0..4).for_each(|n| world.device(n).set_read_only(true));
            let told = writer.client.cut_once(&writer.file, 4096).await;
            assert_eq!(told, nfsstat4::NFS4ERR_DELAY, "it will be done");
            world.sleep(Duration::from_secs(40)).await;
            let mut other = Client::mount(world, "b", NEW).await;
            let mut same = other.open("f").await;
            assert_eq!(other.stat(&same).await.0, 4096);
            assert!(other.reads(world, &same, SIZE as u32).await[..] == pattern(3, 4096)[..]);
            assert_eq!(other.cut_once(&same, 100).await, nfsstat4::NFS4ERR_IO);
            assert_eq!(other.cut_once(&same, SIZE as u64).await, nfsstat4::NFS4ERR_IO, "nor can it grow");
            assert_eq!(other.proxied_write(&same, 8192, b"new").await, nfsstat4::NFS4ERR_DELAY);
            let layout = other.try_layout(&same, same.stateid, RO, 0).await;
            assert_eq!(
                layout.unwrap_err(),
                nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE,
                "others ask for it for ever"
            );
            assert_eq!(other.stat(&same).await.0, 4096);
            if restarts {
                world.restart_metadata_server().await;
                world.sleep(Duration::from_secs(200)).await;
                other = Client::mount(world, "c", NEW).await;
                same = other.open("f").await;
                assert_eq!(other.stat(&same).await.0, 4096);
            }
            (0..4).for_each(|n| world.device(n).set_read_only(false));
            world.sleep(Duration::from_secs(10)).await;
            other.truncate(&same, SIZE as u64).await;
            let mut zeros = vec![0; SIZE];
            zeros[..4096].copy_from_slice(&pattern(3, 4096));
            assert!(other.proxied_content(&same, SIZE as u64).await == zeros, "what was cut off stays off");
            assert_eq!(other.proxied_write(&same, 8192, &pattern(5, 100)).await, nfsstat4::NFS4_OK);
            world.sleep(Duration::from_secs(10)).await;
            zeros[8192..8292].copy_from_slice(&pattern(5, 100));
            assert!(other.proxied_content(&same, SIZE as u64).await == zeros);
            assert_eq!(world.check().await, 0);
        });
    }
}

/// Nobody has heard of anything that was written.
#[test]
fn a_file_that_was_only_begun_at_a_data_server_that_was_given_up_can_be_emptied() {
    simulate_with(11, ONCE, async |world| {
        let writer = Client::mount(world, "a", NEW).await;
        let file = writer.open("f").await;
        let held = writer.layout(&file, file.stateid, RW, 0).await;
        let lost = home(world, &writer, &held, 0).await;
        writer.write(&held, 0, &pattern(3, 5000)).await.unwrap();
        world.crash_data_server(lost).await;
        world.sleep(Duration::from_secs(300)).await;
        let other = Client::mount(world, "b", NEW).await;
        let mut ops = Client::open_ops("f", OPEN4_SHARE_ACCESS_BOTH);
        let Some(nfs_argop4::OP_OPEN(open)) = ops.get_mut(1) else { panic!() };
        let empty = attributes(&Attributes { size: Some(0), ..Attributes::default() });
        open.openhow = openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(empty));
        let again = Client::opened(&other.ok(ops).await);
        assert_eq!(other.proxied_write(&again, 0, &pattern(5, 5000)).await, nfsstat4::NFS4_OK);
        assert!(other.proxied_content(&again, 5000).await == pattern(5, 5000));
    });
}

/// fdatasync needs no LAYOUTCOMMIT, and a data server that is away does not keep its layouts from coming back.
#[test]
fn what_was_written_under_a_layout_that_came_back_while_nobody_could_be_asked_is_looked_for_afterwards() {
    for restarts in [false, true] {
        simulate_with(15, ONCE, async |world| {
            let dies = Client::mount(world, "dies", NEW).await;
            let (file, held) = dies.open_with_layout("f").await;
            dies.write(&held, 0, &pattern(3, SIZE)).await.unwrap();
            let away = home(world, &dies, &held, 0).await;
            world.crash_data_server(away).await;
            assert_eq!(dies.layout_return(&file, held.stateid).await, nfsstat4::NFS4_OK);
            drop(dies);
            world.net.crash("dies");
            world.sleep(Duration::from_secs(1)).await;
            if restarts {
                world.restart_metadata_server().await;
            }
            world.start_data_server(away).await;
            let other = Client::mount(world, "other", NEW).await;
            let same = other.open("f").await;
            assert_eq!(other.stat(&same).await.0, SIZE as u64);
            assert!(other.proxied_content(&same, SIZE as u64).await == pattern(3, SIZE));
        });
    }
}

/// Nor does a return of everything say how far that was written.
#[test]
fn what_was_written_under_layouts_that_came_back_all_at_once_is_counted() {
    simulate_with(16, ONCE, async |world| {
        let dies = Client::mount(world, "dies", NEW).await;
        let (_, held) = dies.open_with_layout("f").await;
        dies.write(&held, 0, &pattern(3, SIZE)).await.unwrap();
        let all = nfs_argop4::OP_LAYOUTRETURN(LAYOUTRETURN4args {
            lora_reclaim: false,
            lora_layout_type: layouttype4::LAYOUT4_FLEX_FILES,
            lora_iomode: layoutiomode4::LAYOUTIOMODE4_ANY,
            lora_layoutreturn: layoutreturn4::Default(layoutreturn_type4::LAYOUTRETURN4_ALL),
        });
        dies.ok(vec![nfs_argop4::OP_PUTROOTFH, all]).await;
        drop(dies);
        world.net.crash("dies");
        let other = Client::mount(world, "other", NEW).await;
        let same = other.open("f").await;
        assert_eq!(other.stat(&same).await.0, SIZE as u64);
    });
}
