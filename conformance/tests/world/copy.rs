//! COPY in a world of several data servers, some of which die in the middle of it.

use std::time::Duration;

use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::nfs4::*;

use crate::client::{Client, Opened, RW, later, putfh};
use crate::stage::{World, simulate_tuned};
use crate::{NEW, OLD, pattern};

impl Client {
    /// The first bytes of a file, through the metadata server.
    pub(crate) async fn proxied_content(&self, file: &Opened, size: u64) -> Vec<u8> {
        let mut all = Vec::new();
        while (all.len() as u64) < size {
            all.extend_from_slice(&self.proxied_read(file, all.len() as u64, 1 << 20).await);
        }
        all
    }

    /// COPY, once: (bytes copied, or the stateid of what goes on).
    pub(crate) async fn copy(
        &self,
        (from, source): (&Opened, u64),
        (to, target): (&Opened, u64),
        count: u64,
        synchronous: bool,
    ) -> Result<Result<u64, stateid4>, nfsstat4> {
        let op = nfs_argop4::OP_COPY(COPY4args {
            ca_src_stateid: from.stateid,
            ca_dst_stateid: to.stateid,
            ca_src_offset: source,
            ca_dst_offset: target,
            ca_count: count,
            ca_consecutive: true,
            ca_synchronous: synchronous,
            ca_source_server: Vec::new(),
        });
        let ops = vec![putfh(&from.handle), nfs_argop4::OP_SAVEFH, putfh(&to.handle), op];
        let (status, mut results) = self.once(ops).await;
        match results.pop() {
            Some(nfs_resop4::OP_COPY(COPY4res::NFS4_OK(ok))) => {
                assert_eq!(ok.cr_response.wr_committed, stable_how4::FILE_SYNC4);
                assert_eq!(ok.cr_requirements.cr_synchronous, ok.cr_response.wr_callback_id.is_empty());
                Ok(match ok.cr_response.wr_callback_id.first() {
                    None => Ok(ok.cr_response.wr_count),
                    Some(stateid) => Err(*stateid),
                })
            }
            _ => Err(status),
        }
    }

    /// Copies all of the range, as Linux does in copy_file_range and an application around it.
    pub(crate) async fn copy_all(
        &self,
        (from, source): (&Opened, u64),
        (to, target): (&Opened, u64),
        count: u64,
    ) -> Result<(), nfsstat4> {
        let mut done = 0;
        while done < count {
            match self.copy((from, source + done), (to, target + done), count - done, true).await {
                Ok(Ok(0)) => panic!("it does not get on"),
                Ok(Ok(copied)) => done += copied,
                Ok(Err(_)) => panic!("it was not asked for that"),
                Err(status) if later(status) => self.env.clock.sleep(Duration::from_millis(100)).await,
                Err(status) => return Err(status),
            }
        }
        Ok(())
    }

    /// Bytes copied so far, and how the copy ended if it has.
    pub(crate) async fn offload_status(
        &self,
        file: &Opened,
        stateid: stateid4,
    ) -> Result<(u64, Option<nfsstat4>), nfsstat4> {
        let op = nfs_argop4::OP_OFFLOAD_STATUS(OFFLOAD_STATUS4args { osa_stateid: stateid });
        let (status, mut results) = self.once(vec![putfh(&file.handle), op]).await;
        match results.pop() {
            Some(nfs_resop4::OP_OFFLOAD_STATUS(OFFLOAD_STATUS4res::NFS4_OK(ok))) => {
                Ok((ok.osr_count, ok.osr_complete.first().copied()))
            }
            _ => Err(status),
        }
    }

    /// Waits for the end of the n-th copy that this client hears of: the stateid, the bytes, how.
    pub(crate) async fn offloaded(&self, n: usize) -> (stateid4, u64, nfsstat4) {
        loop {
            if let Some(end) = self.copy_end(n) {
                return match &end.coa_offload_info {
                    offload_info4::NFS4_OK(ok) => (end.coa_stateid, ok.wr_count, nfsstat4::NFS4_OK),
                    offload_info4::Default(status, copied) => (end.coa_stateid, *copied, *status),
                };
            }
            self.env.clock.sleep(Duration::from_millis(5)).await;
        }
    }

    /// Bytes of storage.
    pub(crate) async fn space(&self, file: &Opened) -> u64 {
        let ask = nfs_argop4::OP_GETATTR(GETATTR4args { attr_request: bitmap4::of(&[FATTR4_SPACE_USED]) });
        match self.ok(vec![putfh(&file.handle), ask]).await.pop() {
            Some(nfs_resop4::OP_GETATTR(GETATTR4res::NFS4_OK(ok))) => {
                Attributes::decode(&ok.obj_attributes).unwrap().space_used.unwrap()
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Bytes of the first component, and the stripe unit of the rest: little, so that little need be moved.
pub(crate) const UNIT: u64 = 256 << 10;

pub(crate) fn simulate(seed: u64, test: impl AsyncFnOnce(&mut World)) {
    simulate_tuned(seed, |config| config.first_component = UNIT, test);
}

/// A file of the client's, written by layout and closed.
pub(crate) async fn written(client: &Client, name: &str, pieces: &[(u64, Vec<u8>)]) -> Opened {
    let file = client.open(name).await;
    for (at, data) in pieces {
        let mut from = *at;
        while from < at + data.len() as u64 {
            let to = (at + data.len() as u64).min((from / UNIT + 1) * UNIT);
            let layout = client.layout(&file, file.stateid, RW, from).await;
            let part = &data[usize::try_from(from - at).unwrap()..usize::try_from(to - at).unwrap()];
            for mirror in 0..layout.body.ffl_mirrors.len() {
                client.write(&layout.mirror(mirror), from, part).await.unwrap();
            }
            client.layout_commit(&file, layout.stateid, Some(to - 1)).await.unwrap();
            assert_eq!(client.layout_return(&file, layout.stateid).await, nfsstat4::NFS4_OK);
            from = to;
        }
    }
    file
}

/// All of a file, through the metadata server.
pub(crate) async fn content(client: &Client, file: &Opened) -> Vec<u8> {
    let size = client.stat(file).await.0;
    client.proxied_content(file, size).await
}

/// What a range is in memory.
pub(crate) fn spliced(target: &[u8], at: usize, source: &[u8]) -> Vec<u8> {
    let mut all = target.to_vec();
    all.resize(all.len().max(at + source.len()), 0);
    all[at..at + source.len()].copy_from_slice(source);
    all
}

#[test]
fn any_range_is_copied_whole_between_files_of_any_shape() {
    simulate(31, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let length = usize::try_from(3 * UNIT + 5000).unwrap();
        let source = written(&client, "from", &[(0, pattern(0, length))]).await;
        let all = pattern(0, length);
        let unit = usize::try_from(UNIT).unwrap();
        for (n, (from, at, count)) in [
            (0, 0, length),
            (0, 777, length),
            (unit - 100, 2 * unit - 50, 200),
            (5, 0, unit + 12),
            (length - 1, 10, 1),
            (unit + 4096, 3 * unit, unit),
        ]
        .into_iter()
        .enumerate()
        {
            let before = pattern(99, unit + 3000);
            let target = written(&client, &format!("to{n}"), &[(0, before.clone())]).await;
            let changed = client.stat(&target).await.1;
            client.copy_all((&source, from as u64), (&target, at as u64), count as u64).await.unwrap();
            let expected = spliced(&before, at, &all[from..from + count]);
            assert!(client.stat(&target).await.1 > changed);
            assert_eq!(client.stat(&target).await.0, expected.len() as u64);
            assert!(content(&client, &target).await == expected, "{from} {at} {count}");
            // The same at the data servers.
            let mut at = 0;
            while at < expected.len() as u64 {
                let layout = client.layout(&target, target.stateid, RW, at).await;
                let end = (expected.len() as u64).min((at / UNIT + 1) * UNIT);
                let read = client.read(&layout, at..end).await.unwrap();
                assert!(read[..] == expected[usize::try_from(at).unwrap()..usize::try_from(end).unwrap()]);
                at = end;
            }
        }
        world.check().await;
    });
}

#[test]
fn a_count_of_nothing_is_up_to_the_end_and_beyond_it_there_is_nothing() {
    simulate(32, async |world| {
        let client = Client::mount(world, "a", OLD).await;
        let source = written(&client, "from", &[(0, pattern(0, 10_000))]).await;
        let target = client.open("to").await;
        assert_eq!(client.copy((&source, 4000), (&target, 0), 0, true).await, Ok(Ok(6000)));
        assert!(content(&client, &target).await == pattern(4000, 6000));
        assert_eq!(client.copy((&source, 10_000), (&target, 0), 0, true).await, Ok(Ok(0)));
        let invalid = Err(nfsstat4::NFS4ERR_INVAL);
        assert_eq!(client.copy((&source, 9_999), (&target, 0), 2, true).await, invalid);
        assert_eq!(client.copy((&source, 10_001), (&target, 0), 0, true).await, invalid);
        assert_eq!(client.copy((&source, u64::MAX), (&target, 0), 1, true).await, invalid);
        assert_eq!(client.copy((&source, 0), (&source, 20_000), 10, true).await, invalid, "one file");
        let large = client.copy((&source, 0), (&target, i64::MAX as u64 - 5), 10, true).await;
        assert_eq!(large, Err(nfsstat4::NFS4ERR_FBIG));
    });
}

#[test]
fn holes_stay_holes_and_are_made_where_there_was_data() {
    simulate(33, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let data = pattern(7, 100_000);
        let source = written(&client, "from", &[(2 * UNIT, data.clone())]).await;
        client.truncate(&source, 6 * UNIT + 11).await;
        let fresh = client.open("fresh").await;
        client.copy_all((&source, 0), (&fresh, 0), 6 * UNIT + 11).await.unwrap();
        assert_eq!(client.stat(&fresh).await.0, 6 * UNIT + 11);
        assert!(client.space(&fresh).await <= 200_000, "{} bytes", client.space(&fresh).await);
        let full = usize::try_from(3 * UNIT).unwrap();
        let target = written(&client, "full", &[(0, pattern(3, full))]).await;
        client.copy_all((&source, 0), (&target, 0), 6 * UNIT + 11).await.unwrap();
        assert!(client.space(&target).await <= 200_000, "{} bytes", client.space(&target).await);
        for file in [&fresh, &target] {
            let read = content(&client, file).await;
            let at = usize::try_from(2 * UNIT).unwrap();
            assert!(read[at..at + data.len()] == data[..]);
            assert!(read[..at].iter().chain(&read[at + data.len()..]).all(|byte| *byte == 0));
        }
        // Of exabytes, too.
        let vast = client.open("vast").await;
        client.copy_all((&source, 2 * UNIT), (&vast, 5), 100_000).await.unwrap();
        client.truncate(&vast, 1 << 62).await;
        client.copy_all((&vast, 0), (&fresh, 0), 1 << 62).await.unwrap();
        assert_eq!(client.stat(&fresh).await.0, 1 << 62);
        assert!(client.proxied_read(&fresh, 5, 100_000).await[..] == data[..]);
        client.truncate(&fresh, 6 * UNIT + 11).await;
        client.copy_all((&source, 0), (&fresh, 0), 6 * UNIT + 11).await.unwrap();
        // A hole alone.
        let nothing = client.open("nothing").await;
        client.truncate(&nothing, 3 * UNIT).await;
        client.copy_all((&nothing, 0), (&target, 2 * UNIT), 3 * UNIT).await.unwrap();
        assert!(content(&client, &target).await.iter().all(|byte| *byte == 0));
    });
}

#[test]
fn what_others_wrote_to_the_data_servers_is_in_the_copy() {
    simulate(34, async |world| {
        let writer = Client::mount(world, "writer", NEW).await;
        let (file, layout) = writer.open_with_layout("from").await;
        writer.write(&layout, 0, &pattern(0, 50_000)).await.unwrap();
        // Neither committed nor returned.
        let copier = Client::mount(world, "copier", NEW).await;
        let (source, target) = (copier.open("from").await, copier.open("to").await);
        assert_eq!(copier.copy((&source, 0), (&target, 0), 0, true).await, Ok(Ok(50_000)));
        assert!(content(&copier, &target).await == pattern(0, 50_000));
        writer.layout_commit(&file, layout.stateid, Some(49_999)).await.unwrap();
        // Who holds a layout of the target reads what was copied.
        let held = writer.open("to").await;
        let layout = writer.layout(&held, held.stateid, RW, 0).await;
        copier.copy_all((&source, 10_000), (&target, 0), 40_000).await.unwrap();
        assert!(writer.read(&layout, 0..40_000).await.unwrap()[..] == pattern(10_000, 40_000)[..]);
    });
}

/// Copies go on in steps of this many bytes.
const STEP: u64 = 16 << 10;

fn slowly(seed: u64, policy: LayoutPolicy, test: impl AsyncFnOnce(&mut World)) {
    let tune = |config: &mut sluice_mds::Config| {
        (config.policy, config.first_component) = (policy, UNIT);
        (config.copy_at_once, config.copy_step) = (STEP, STEP);
    };
    simulate_tuned(seed, tune, test);
}

#[test]
fn a_long_copy_goes_on_after_the_answer() {
    slowly(35, LayoutPolicy::default(), async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let length = usize::try_from(2 * UNIT).unwrap();
        let source = written(&client, "from", &[(0, pattern(0, length))]).await;
        let target = client.open("to").await;
        let stateid = client.copy((&source, 0), (&target, 100), 2 * UNIT, false).await.unwrap().unwrap_err();
        let mut last = 0;
        loop {
            let (copied, ended) = client.offload_status(&target, stateid).await.unwrap();
            assert!(copied >= last && copied <= 2 * UNIT);
            last = copied;
            // What is told is there.
            assert!(copied == 0 || client.stat(&target).await.0 >= 100 + copied);
            if let Some(status) = ended {
                assert_eq!((status, copied), (nfsstat4::NFS4_OK, 2 * UNIT));
                break;
            }
        }
        assert_eq!(client.offloaded(1).await, (stateid, 2 * UNIT, nfsstat4::NFS4_OK));
        assert!(content(&client, &target).await[100..] == pattern(0, length)[..]);
        // One that asks for a part and waits.
        assert_eq!(client.copy((&source, 0), (&target, 0), 2 * UNIT, true).await, Ok(Ok(STEP)));
    });
}

/// The n-th data server that holds data of the file of the client.
pub(crate) async fn holder(world: &World, client: &Client, file: &Opened, at: u64) -> usize {
    let layout = client.layout(file, file.stateid, RW, at).await;
    let address = client.device(layout.data_server(at).ffds_deviceid).await;
    assert_eq!(client.layout_return(file, layout.stateid).await, nfsstat4::NFS4_OK);
    (0..4).find(|n| world.data_server(*n) == address).unwrap()
}

#[test]
fn a_data_server_that_comes_back_goes_on_with_the_copy() {
    for of_source in [true, false] {
        slowly(36, LayoutPolicy::default(), async |world| {
            let client = Client::mount(world, "a", NEW).await;
            let length = usize::try_from(2 * UNIT).unwrap();
            let source = written(&client, "from", &[(0, pattern(0, length))]).await;
            let target = written(&client, "to", &[(0, pattern(5, length))]).await;
            let n = holder(world, &client, if of_source { &source } else { &target }, UNIT).await;
            let stateid =
                client.copy((&source, 0), (&target, 0), 2 * UNIT, false).await.unwrap().unwrap_err();
            while client.offload_status(&target, stateid).await.unwrap().0 < UNIT / 2 {}
            world.crash_data_server(n).await;
            world.sleep(Duration::from_secs(10)).await;
            assert_eq!(client.offload_status(&target, stateid).await.unwrap().1, None);
            world.start_data_server(n).await;
            assert_eq!(client.offloaded(1).await, (stateid, 2 * UNIT, nfsstat4::NFS4_OK));
            assert!(content(&client, &target).await == pattern(0, length));
            world.check().await;
        });
    }
}

#[test]
fn one_that_does_not_come_back_ends_it_and_what_was_copied_is_there() {
    slowly(37, LayoutPolicy::default(), async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let length = usize::try_from(2 * UNIT).unwrap();
        let source = written(&client, "from", &[(0, pattern(0, length))]).await;
        let target = client.open("to").await;
        let n = holder(world, &client, &source, UNIT).await;
        let stateid = client.copy((&source, 0), (&target, 0), 2 * UNIT, false).await.unwrap().unwrap_err();
        while client.offload_status(&target, stateid).await.unwrap().0 < UNIT / 2 {}
        world.crash_data_server(n).await;
        let keeps_its_lease = async {
            for _ in 0..30 {
                world.sleep(Duration::from_secs(10)).await;
                client.compound(Vec::new()).await;
            }
        };
        let ((told, copied, status), ()) = tokio::join!(client.offloaded(1), keeps_its_lease);
        assert_eq!((told, status), (stateid, nfsstat4::NFS4ERR_IO));
        assert!((UNIT / 2..=UNIT).contains(&copied), "{copied}");
    });
}

#[test]
fn a_restart_of_the_metadata_server_ends_it_and_it_can_be_asked_for_again() {
    slowly(38, LayoutPolicy::default(), async |world| {
        let mut client = Client::mount(world, "a", NEW).await;
        let length = usize::try_from(2 * UNIT).unwrap();
        let source = written(&client, "from", &[(0, pattern(0, length))]).await;
        let target = client.open("to").await;
        let stateid = client.copy((&source, 0), (&target, 0), 2 * UNIT, false).await.unwrap().unwrap_err();
        let mut told = 0;
        while told < UNIT / 2 {
            told = client.offload_status(&target, stateid).await.unwrap().0;
        }
        world.restart_metadata_server().await;
        client.reconnect(world).await;
        let gone = client.offload_status(&target, stateid).await;
        assert!(matches!(gone, Err(nfsstat4::NFS4ERR_BAD_STATEID)), "{gone:?}");
        let reclaim = RECLAIM_COMPLETE4args { rca_one_fs: false };
        client.ok(vec![nfs_argop4::OP_RECLAIM_COMPLETE(reclaim)]).await;
        let (source, target) = (client.open("from").await, client.open("to").await);
        let size = client.stat(&target).await.0;
        assert!(size >= told, "what was told is there");
        let there = content(&client, &target).await;
        assert!(there[..usize::try_from(told).unwrap()] == pattern(0, usize::try_from(told).unwrap())[..]);
        // Nobody has bound a back channel yet: no answer could tell of an end to come.
        client.copy_all((&source, 0), (&target, 0), 2 * UNIT).await.unwrap();
        assert!(content(&client, &target).await == pattern(0, length));
        world.check().await;
    });
}

#[test]
fn a_source_that_is_cut_meanwhile_ends_the_copy() {
    slowly(39, LayoutPolicy::default(), async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let length = usize::try_from(2 * UNIT).unwrap();
        let source = written(&client, "from", &[(0, pattern(0, length))]).await;
        let target = client.open("to").await;
        let stateid = client.copy((&source, 0), (&target, 0), 2 * UNIT, false).await.unwrap().unwrap_err();
        while client.offload_status(&target, stateid).await.unwrap().0 < STEP {}
        client.truncate(&source, UNIT + 5).await;
        let (told, copied, status) = client.offloaded(1).await;
        assert_eq!((told, copied, status), (stateid, UNIT + 5, nfsstat4::NFS4_OK));
        assert!(content(&client, &target).await == pattern(0, usize::try_from(UNIT + 5).unwrap()));
    });
}

#[test]
fn mirrors_of_the_target_are_equal_also_if_one_of_them_was_away() {
    let twice = LayoutPolicy { shape: Shape::Small, mirrors: 2, inline: 0, class: None };
    slowly(40, twice, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let length = 300_000;
        let source = written(&client, "from", &[(0, pattern(0, length))]).await;
        let target = written(&client, "to", &[(0, pattern(9, length))]).await;
        client.copy_all((&source, 0), (&target, 0), 1 << 17).await.unwrap();
        assert_eq!(world.check().await, 0);
        let layout = client.layout(&target, target.stateid, RW, 0).await;
        for mirror in 0..2 {
            let read = client.read(&layout.mirror(mirror), 0..1 << 17).await.unwrap();
            assert!(read[..] == pattern(0, 1 << 17)[..], "mirror {mirror}");
        }
        assert_eq!(client.layout_return(&target, layout.stateid).await, nfsstat4::NFS4_OK);
        let n = holder(world, &client, &target, 0).await;
        world.crash_data_server(n).await;
        client.copy_all((&source, 0), (&target, 0), length as u64).await.unwrap();
        assert!(content(&client, &target).await == pattern(0, length));
        world.start_data_server(n).await;
        for _ in 0..120 {
            if world.check().await == 0 {
                break;
            }
            world.sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(world.check().await, 0, "healed");
        let layout = client.layout(&target, target.stateid, RW, 0).await;
        for mirror in 0..2 {
            let read = client.read(&layout.mirror(mirror), 0..length as u64).await.unwrap();
            assert!(read[..] == pattern(0, length)[..], "mirror {mirror}");
        }
    });
}

#[test]
fn a_file_of_one_data_file_ends_where_that_does() {
    let small = LayoutPolicy { shape: Shape::Small, mirrors: 1, inline: 0, class: None };
    slowly(41, small, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let source = written(&client, "from", &[(0, pattern(0, 10_000))]).await;
        let target = client.open("to").await;
        // Beyond the data there is a hole, in the middle of which the second part begins.
        let long = written(&client, "long", &[(0, pattern(0, 10_000)), (299_999, vec![7])]).await;
        client.copy_all((&long, 0), (&target, 0), 200_000).await.unwrap();
        let layout = client.layout(&target, target.stateid, RW, 0).await;
        let read = client.read(&layout, 0..300_000).await.unwrap();
        assert!(read.len() == 200_000 && read[..10_000] == pattern(0, 10_000)[..]);
        client.copy_all((&source, 0), (&target, 250_000), 10_000).await.unwrap();
        assert_eq!(client.stat(&target).await.0, 260_000);
        assert!(client.read(&layout, 250_000..300_000).await.unwrap()[..] == pattern(0, 10_000)[..]);
    });
}
