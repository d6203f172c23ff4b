//! Mirrored files while data servers go and come: nothing acknowledged is lost, nothing old is read, and in the
//! end the mirrors are equal.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sluice_kv::Faults;
use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::nfs3::nfsstat3;
use sluice_xdr::nfs4::nfsstat4;

use crate::client::{Client, Opened, RO, RW, later};
use crate::stage::{UNIT, World, simulate_tuned, simulate_with};
use crate::storage::Segment;
use crate::{NEW, OLD, pattern};

const TWICE: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 2, inline: 0, class: None };

/// A client that writes as Linux does: to every mirror; with a new layout when one fails or is recalled; through
/// the metadata server when there is none to be had.
pub(crate) struct Writer {
    pub(crate) client: Client,
    pub(crate) file: Opened,
    pub(crate) held: Option<Segment>,
    /// Recalls obeyed.
    obeyed: usize,
    /// Writes that went through the metadata server.
    pub(crate) proxied: usize,
}

impl Writer {
    pub(crate) async fn mount(world: &World, host: &str, name: &str) -> Self {
        let client = Client::mount(world, host, NEW).await;
        let file = client.open(name).await;
        Self { client, file, held: None, obeyed: 0, proxied: 0 }
    }

    /// Returns when the data is as durable as fsync makes it.
    pub(crate) async fn write(&mut self, world: &World, at: u64, data: &[u8]) {
        // A segment ends where a component does.
        let here = usize::try_from(UNIT - at % UNIT).unwrap().min(data.len());
        let (first, rest) = data.split_at(here);
        self.write_one(world, at, first).await;
        if !rest.is_empty() {
            Box::pin(self.write(world, at + u64::try_from(here).unwrap(), rest)).await;
        }
    }

    async fn write_one(&mut self, world: &World, at: u64, data: &[u8]) {
        for _ in 0..5_000 {
            self.obey().await;
            if self.attempt(at, data).await {
                return;
            }
            world.sleep(Duration::from_millis(100)).await;
        }
        panic!("a write at {at} makes no progress");
    }

    pub(crate) async fn obey(&mut self) {
        let recalls = self.client.recalls().len();
        if recalls > self.obeyed {
            self.obeyed = recalls;
            let (stateid, _) = self.client.recalled(recalls).await;
            // Refused when it was returned, or revoked, before.
            self.client.layout_return(&self.file, stateid).await;
            self.held = None;
        }
    }

    pub(crate) async fn attempt(&mut self, at: u64, data: &[u8]) -> bool {
        let holds = self.held.as_ref().is_some_and(|held| held.bytes.contains(&at));
        if !holds {
            self.give_back().await;
            match self.client.try_layout(&self.file, self.file.stateid, RW, at).await {
                Ok(segment) => self.held = Some(segment),
                Err(nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE) => return self.through(at, data).await,
                Err(status) if later(status) => return false,
                Err(status) => panic!("{status:?}"),
            }
        }
        let Some(segment) = self.held.clone() else { return false };
        for mirror in 0..segment.body.ffl_mirrors.len() {
            let one = segment.mirror(mirror);
            tokio::select! {
                biased;
                // Linux cancels what is on its way when a layout is recalled.
                _ = self.client.recalled(self.obeyed + 1) => return false,
                written = self.client.write(&one, at, data) => {
                    if written.is_err() {
                        self.held = None;
                        let stateid = segment.stateid;
                        self.client.layout_return_failed(&self.file, stateid, one.data_server(at)).await;
                        return false;
                    }
                }
            }
        }
        let last = at + u64::try_from(data.len()).unwrap() - 1;
        match self.client.layout_commit(&self.file, segment.stateid, Some(last)).await {
            Ok(_) => true,
            // Revoked meanwhile: what was written may not count.
            Err(nfsstat4::NFS4ERR_BADLAYOUT) => {
                self.held = None;
                false
            }
            Err(status) => panic!("{status:?}"),
        }
    }

    async fn through(&mut self, at: u64, data: &[u8]) -> bool {
        match self.client.proxied_write(&self.file, at, data).await {
            nfsstat4::NFS4_OK => {
                self.proxied += 1;
                true
            }
            status if later(status) => false,
            status => panic!("{status:?}"),
        }
    }

    pub(crate) async fn give_back(&mut self) {
        if let Some(held) = self.held.take() {
            self.client.layout_return(&self.file, held.stateid).await;
        }
    }
}

/// The data server that a mirror is on.
pub(crate) async fn home(world: &World, client: &Client, segment: &Segment, mirror: usize) -> usize {
    let address = client.device(segment.mirror(mirror).data_server(segment.bytes.start).ffds_deviceid).await;
    (0..4).find(|n| world.data_server(*n) == address).unwrap()
}

/// Waits until nothing is to be healed; then both mirrors of every part must hold `expected`.
pub(crate) async fn healed(world: &mut World, name: &str, expected: &[u8]) {
    for round in 0.. {
        if world.check().await == 0 {
            break;
        }
        assert!(round < 200, "still not healed");
        world.sleep(Duration::from_secs(1)).await;
    }
    let client = Client::mount(world, &format!("witness{}", world.env.random.u64()), OLD).await;
    let file = client.open(name).await;
    let length = u64::try_from(expected.len()).unwrap();
    assert_eq!(client.stat(&file).await.0, length);
    let mut at = 0;
    while at < length {
        let mut segment = client.layout(&file, file.stateid, RO, at).await;
        for _ in 0..60 {
            if segment.body.ffl_mirrors.len() == 2 {
                break;
            }
            // A data server that has missed nothing may just have come back. Then this layout is recalled.
            world.sleep(Duration::from_secs(1)).await;
            client.layout_return(&file, segment.stateid).await;
            segment = client.layout(&file, file.stateid, RO, at).await;
        }
        assert_eq!(segment.body.ffl_mirrors.len(), 2);
        let end = segment.bytes.end.min(length);
        let (from, to) = (usize::try_from(at).unwrap(), usize::try_from(end).unwrap());
        let mut homes = Vec::new();
        for mirror in 0..2 {
            homes.push(home(world, &client, &segment, mirror).await);
            let mut read = client.read(&segment.mirror(mirror), at..end).await.unwrap().to_vec();
            // Of a file that was extended and not written to its end: Linux puts zeros there.
            read.resize(to - from, 0);
            if let Some(wrong) = read.iter().zip(&expected[from..to]).position(|(a, b)| a != b) {
                panic!("mirror {mirror} differs at {}", from + wrong);
            }
        }
        assert_ne!(homes[0], homes[1]);
        client.layout_return(&file, segment.stateid).await;
        at = end;
    }
    let through = client.proxied_read(&file, 0, u32::try_from(length.min(1 << 20)).unwrap()).await;
    assert!(through[..] == expected[..through.len()]);
}

pub(crate) fn put(model: &mut Vec<u8>, at: u64, data: &[u8]) {
    let at = usize::try_from(at).unwrap();
    model.resize(model.len().max(at + data.len()), 0);
    model[at..at + data.len()].copy_from_slice(data);
}

#[test]
fn a_mirror_that_missed_writes_is_not_read_before_it_is_healed() {
    simulate_with(8, TWICE, async |world| {
        let mut writer = Writer::mount(world, "a", "f").await;
        writer.write(world, 0, b"old data").await;
        let before = writer.held.clone().unwrap();
        let lost = home(world, &writer.client, &before, 0).await;
        world.crash_data_server(lost).await;
        // The one that is left is written alone, and directly.
        writer.write(world, 0, b"new data").await;
        let one = writer.held.clone().unwrap();
        assert_eq!((one.body.ffl_mirrors.len(), writer.proxied), (1, 0));
        assert_ne!(home(world, &writer.client, &one, 0).await, lost);
        assert_eq!(world.check().await, 1);
        // Nobody copies from the one that is left while it is mute: what comes back is old.
        world.mute(home(world, &writer.client, &one, 0).await, true);
        world.start_data_server(lost).await;
        let old = writer.client.read(&before, 0..100).await;
        assert!(matches!(old, Err(nfsstat3::NFS3ERR_STALE | nfsstat3::NFS3ERR_ACCES)), "{old:?}");
        let through = writer.client.try_read(&writer.file, 0, 100).await;
        assert!(through.is_err(), "old data: {through:?}");
        world.mute(home(world, &writer.client, &one, 0).await, false);
        let reader = async |world: &World| {
            let client = Client::mount(world, "b", NEW).await;
            let file = client.open("f").await;
            for _ in 0..50 {
                if let Ok(segment) = client.try_layout(&file, file.stateid, RO, 0).await {
                    assert!(client.read(&segment, 0..100).await.unwrap()[..] == b"new data"[..]);
                    client.layout_return(&file, segment.stateid).await;
                }
                world.sleep(Duration::from_millis(100)).await;
            }
        };
        reader(world).await;
        writer.obey().await;
        healed(world, "f", b"new data").await;
        writer.write(world, 3, b" more").await;
        assert_eq!(writer.held.as_ref().unwrap().body.ffl_mirrors.len(), 2);
        healed(world, "f", b"new more").await;
    });
}

/// Linux waits longer each time that it is told to: its second question after the loss must be answered.
#[test]
fn a_mirror_that_is_given_up_is_left_behind_before_the_writer_asks_again() {
    simulate_with(12, TWICE, async |world| {
        let mut writer = Writer::mount(world, "a", "f").await;
        writer.write(world, 0, b"old data").await;
        let lost = home(world, &writer.client, &writer.held.clone().unwrap(), 0).await;
        world.crash_data_server(lost).await;
        assert!(!writer.attempt(0, b"new data").await, "one mirror is gone");
        assert!(!writer.attempt(0, b"new data").await, "and may be back in a moment");
        world.sleep(Duration::from_secs(10)).await;
        writer.obey().await;
        assert!(writer.attempt(0, b"new data").await);
        assert_eq!(writer.proxied, 0);
    });
}

/// A refusal that has come to nothing since is not counted to the time that a writer has waited for the next heal: a kernel that is
/// sent through the metadata server stays there for two minutes.
#[test]
fn a_short_heal_is_waited_for_however_long_ago_the_last_refusal_was() {
    let tune = |config: &mut sluice_mds::Config| (config.heal_piece, config.policy) = (1 << 10, TWICE);
    simulate_tuned(14, tune, async |world| {
        let mut writer = Writer::mount(world, "a", "f").await;
        let long = pattern(0, 1 << 20);
        writer.write(world, 0, &long).await;
        let lost = home(world, &writer.client, &writer.held.clone().unwrap(), 1).await;
        world.crash_data_server(lost).await;
        writer.write(world, 0, b"new data").await;
        world.start_data_server(lost).await;
        let mut refused = 0;
        while refused < 5 {
            world.sleep(Duration::from_millis(100)).await;
            writer.obey().await;
            refused += usize::from(!writer.attempt(0, b"new data").await);
        }
        // The heal comes to nothing.
        world.crash_data_server(lost).await;
        for _ in 0..60 {
            writer.write(world, 0, b"new data").await;
            world.sleep(Duration::from_millis(500)).await;
        }
        world.start_data_server(lost).await;
        for _ in 0..100 {
            writer.write(world, 0, b"new more").await;
            world.sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(writer.proxied, 0);
        writer.give_back().await;
        let mut model = long;
        put(&mut model, 0, b"new more");
        healed(world, "f", &model).await;
    });
}

/// With one copy left there is nothing that could differ.
#[test]
fn who_dies_with_the_last_copy_in_hand_takes_it_from_nobody() {
    simulate_with(15, TWICE, async |world| {
        let mut writer = Writer::mount(world, "a", "f").await;
        writer.write(world, 0, b"old data").await;
        let lost = home(world, &writer.client, &writer.held.clone().unwrap(), 1).await;
        world.crash_data_server(lost).await;
        writer.write(world, 0, b"new data").await;
        let dies = Client::mount(world, "b", NEW).await;
        let file = dies.open("f").await;
        let segment = dies.layout(&file, file.stateid, RW, 0).await;
        assert_eq!(segment.body.ffl_mirrors.len(), 1);
        writer.write(world, 0, b"and more").await;
        let recalls = writer.client.recalls().len();
        // It has lost all that it had.
        let again = Client::mount(world, "b", NEW).await;
        again.open("f").await;
        world.sleep(Duration::from_secs(5)).await;
        assert_eq!(writer.client.recalls().len(), recalls);
        assert!(writer.attempt(0, b"the rest").await);
    });
}

#[test]
fn readers_that_are_cut_off_with_the_old_mirror_hold_up_the_writer() {
    simulate_with(9, TWICE, async |world| {
        let mut writer = Writer::mount(world, "a", "f").await;
        writer.write(world, 0, b"old data").await;
        let reader = Client::mount(world, "b", NEW).await;
        let file = reader.open("f").await;
        let reads = reader.layout(&file, file.stateid, RO, 0).await;
        let lost = home(world, &writer.client, &reads, 0).await;
        // It goes on serving whoever reaches it, until it has been alone for too long.
        world.net.partition(&format!("ds{}", lost + 1), "mds");
        world.net.partition("b", "mds");
        writer.write(world, 0, b"new data").await;
        let old = reads.mirror(0);
        let answer = world.env.clock.timeout(Duration::from_secs(1), reader.read(&old, 0..8)).await;
        assert!(!matches!(answer, Ok(Ok(_))), "what was overwritten is read: {answer:?}");
    });
}

#[test]
fn a_long_file_is_healed_under_a_writer() {
    for (seed, policy) in
        [(10, TWICE), (11, LayoutPolicy { shape: Shape::Default, mirrors: 2, inline: 0, class: None })]
    {
        simulate_with(seed, policy, async |world| {
            let mut writer = Writer::mount(world, "a", "f").await;
            let mut model = Vec::new();
            for unit in 0..12 {
                let (at, data) = (unit * UNIT, pattern(unit * UNIT, 100_000));
                writer.write(world, at, &data).await;
                put(&mut model, at, &data);
            }
            let lost = home(world, &writer.client, &writer.held.clone().unwrap(), 1).await;
            world.crash_data_server(lost).await;
            for unit in 0..12 {
                let (at, data) = (unit * UNIT + 5000, pattern(unit + 7, 70_000));
                writer.write(world, at, &data).await;
                put(&mut model, at, &data);
            }
            world.start_data_server(lost).await;
            for round in 0..60 {
                let (at, data) = ((round * 7 % 12) * UNIT + round * 100, pattern(round, 9_000));
                writer.write(world, at, &data).await;
                put(&mut model, at, &data);
                world.sleep(Duration::from_millis(50)).await;
            }
            writer.give_back().await;
            healed(world, "f", &model).await;
        });
    }
}

#[test]
fn a_heal_survives_the_death_of_whoever_takes_part() {
    for victim in 0..3 {
        simulate_with(20 + victim, TWICE, async |world| {
            let mut writer = Writer::mount(world, "a", "f").await;
            let mut model = pattern(3, 4 << 20);
            for at in (0..4).map(|mib| mib << 20) {
                writer.write(world, at, &model[usize::try_from(at).unwrap()..][..1 << 20]).await;
            }
            let held = writer.held.clone().unwrap();
            let (lost, left) =
                (home(world, &writer.client, &held, 0).await, home(world, &writer.client, &held, 1).await);
            world.crash_data_server(lost).await;
            let new = pattern(99, 3 << 20);
            for at in (0..3).map(|mib| mib << 20) {
                writer.write(world, at, &new[usize::try_from(at).unwrap()..][..1 << 20]).await;
            }
            put(&mut model, 0, &new);
            writer.give_back().await;
            writer.client.close(&writer.file).await;
            world.start_data_server(lost).await;
            // Somewhere in the copy.
            for millis in [2200, 40, 90] {
                world.sleep(Duration::from_millis(millis)).await;
                match victim {
                    0 => world.restart_metadata_server().await,
                    1 => {
                        world.crash_data_server(lost).await;
                        world.start_data_server(lost).await;
                    }
                    _ => {
                        world.crash_data_server(left).await;
                        world.start_data_server(left).await;
                    }
                }
            }
            for n in 0..4 {
                world.until_serving(n).await;
            }
            healed(world, "f", &model).await;
        });
    }
}

#[test]
fn mirrors_of_a_dead_writer_are_compared() {
    simulate_with(30, TWICE, async |world| {
        let mut writer = Writer::mount(world, "a", "f").await;
        writer.write(world, 0, &pattern(0, 100_000)).await;
        // One more write reaches one mirror alone, and the client dies.
        let held = writer.held.clone().unwrap();
        writer.client.write(&held.mirror(1), 50_000, &[7; 30_000]).await.unwrap();
        world.net.crash("a");
        let other = Client::mount(world, "b", NEW).await;
        let file = other.open("f").await;
        assert_eq!(other.stat(&file).await.0, 100_000);
        // As soon as its lease is over.
        world.sleep(Duration::from_secs(100)).await;
        let taken = other.layout(&file, file.stateid, RW, 0).await;
        assert_eq!(taken.body.ffl_mirrors.len(), 2);
        assert_eq!(other.layout_return(&file, taken.stateid).await, nfsstat4::NFS4_OK);
        let both = other.layout(&file, file.stateid, RO, 0).await;
        let first = other.read(&both.mirror(0), 0..100_000).await.unwrap();
        let second = other.read(&both.mirror(1), 0..100_000).await.unwrap();
        assert!(first == second, "two truths");
        assert!(first[..50_000] == pattern(0, 50_000)[..]);
    });
}

/// Who had a layout before reads the mirror that the others are made equal to, like everybody, also while they are not yet.
#[test]
fn whoever_reads_when_mirrors_begin_to_differ_is_called_back() {
    simulate_with(32, TWICE, async |world| {
        let mut writer = Writer::mount(world, "a", "f").await;
        writer.write(world, 0, &pattern(0, 100_000)).await;
        let reader = Client::mount(world, "r", NEW).await;
        let file = reader.open("f").await;
        let before = reader.layout(&file, file.stateid, RO, 0).await;
        assert_eq!(before.body.ffl_mirrors.len(), 2);
        let held = writer.held.clone().unwrap();
        writer.client.write(&held.mirror(1), 50_000, &[7; 30_000]).await.unwrap();
        world.net.crash("a");
        for _ in 0..20 {
            world.sleep(Duration::from_secs(5)).await;
            reader.ok(Vec::new()).await;
        }
        // Somebody asks: then the dead one's layout ends.
        let other = Client::mount(world, "b", NEW).await;
        let found = other.open("f").await;
        other.layout(&found, found.stateid, RO, 0).await;
        let recalled = reader.recalls();
        assert_eq!(recalled.len(), 1, "{recalled:?}");
        assert_eq!(reader.layout_return(&file, before.stateid).await, nfsstat4::NFS4_OK);
        healed(world, "f", &pattern(0, 100_000)).await;
    });
}

/// The store does not say what became of the transaction that says so.
#[test]
fn whoever_reads_when_mirrors_begin_to_differ_is_called_back_though_nobody_was_told() {
    for seed in 100..112 {
        simulate_with(seed, TWICE, async |world| {
            let mut writer = Writer::mount(world, "a", "f").await;
            writer.write(world, 0, &pattern(0, 100_000)).await;
            let (reader, other) =
                (Client::mount(world, "r", NEW).await, Client::mount(world, "b", NEW).await);
            let file = reader.open("f").await;
            reader.layout(&file, file.stateid, RO, 0).await;
            let held = writer.held.clone().unwrap();
            writer.client.write(&held.mirror(1), 50_000, &[7; 30_000]).await.unwrap();
            world.net.crash("a");
            for _ in 0..20 {
                world.sleep(Duration::from_secs(5)).await;
                tokio::join!(reader.ok(Vec::new()), other.ok(Vec::new()));
            }
            world.set_faults(Faults { unknown_applied: 0.7, ..Faults::NONE });
            let found = other.open("f").await;
            other.layout(&found, found.stateid, RO, 0).await;
            world.set_faults(Faults::NONE);
            other.stat(&found).await;
            let recalled = reader.recalls();
            assert_eq!(recalled.len(), 1, "{recalled:?}");
        });
    }
}

#[test]
fn a_write_that_failed_at_one_mirror_and_is_never_sent_again_leaves_no_two_truths() {
    simulate_with(31, TWICE, async |world| {
        let mut writer = Writer::mount(world, "a", "f").await;
        let model = pattern(0, 100_000);
        writer.write(world, 0, &model).await;
        let held = writer.held.clone().unwrap();
        let second = held.mirror(1);
        writer.client.write(&second, 50_000, &[7; 30_000]).await.unwrap();
        let failed = held.mirror(0).data_server(0).clone();
        let returned = writer.client.layout_return_failed(&writer.file, held.stateid, &failed).await;
        assert_eq!(returned, nfsstat4::NFS4_OK);
        assert_eq!(world.check().await, 1);
        world.net.crash("a");
        healed(world, "f", &model).await;
    });
}

#[test]
fn what_is_lost_for_good_gets_another_place() {
    simulate_tuned(
        40,
        |config| {
            config.policy = TWICE;
            config.rebuild_after = Duration::from_secs(120);
        },
        async |world| {
            let mut writer = Writer::mount(world, "a", "f").await;
            let model = pattern(1, 3 << 20);
            writer.write(world, 0, &model).await;
            let held = writer.held.clone().unwrap();
            let lost = home(world, &writer.client, &held, 0).await;
            writer.give_back().await;
            // Nobody writes meanwhile: nothing was missed, and still there is one copy too few.
            world.crash_data_server(lost).await;
            world.sleep(Duration::from_secs(60)).await;
            assert_eq!(world.check().await, 0, "it may come back");
            world.sleep(Duration::from_secs(90)).await;
            writer.obey().await;
            healed(world, "f", &model).await;
            let after = writer.client.layout(&writer.file, writer.file.stateid, RO, 0).await;
            for mirror in 0..2 {
                assert_ne!(home(world, &writer.client, &after, mirror).await, lost);
            }
            // It comes back after all: what it held is fenced, and removed.
            world.start_data_server(lost).await;
            let old = writer.client.read(&held.mirror(0), 0..100).await;
            assert!(matches!(old, Err(nfsstat3::NFS3ERR_STALE | nfsstat3::NFS3ERR_ACCES)), "{old:?}");
            world.sleep(Duration::from_secs(20)).await;
            assert_eq!(world.data_files(lost), 0);
        },
    );
}

#[test]
fn a_truncation_goes_on_without_a_mirror_that_is_lost() {
    simulate_with(41, TWICE, async |world| {
        let mut writer = Writer::mount(world, "a", "f").await;
        let model = pattern(1, 1 << 20);
        writer.write(world, 0, &model).await;
        let lost = home(world, &writer.client, &writer.held.clone().unwrap(), 1).await;
        writer.give_back().await;
        world.crash_data_server(lost).await;
        writer.client.truncate(&writer.file, 5000).await;
        writer.client.truncate(&writer.file, 300_000).await;
        assert_eq!(writer.client.stat(&writer.file).await.0, 300_000);
        world.start_data_server(lost).await;
        let mut expected = model[..5000].to_vec();
        expected.resize(300_000, 0);
        healed(world, "f", &expected).await;
    });
}

/// What happens next.
#[derive(Clone, Debug)]
enum Event {
    Write { at: u64, length: usize, seed: u64 },
    Truncate { size: u64 },
    Crash { n: usize },
    Start,
    Mute { n: usize, seconds: u64 },
    RestartMds,
    NewClient,
    Sleep { millis: u64 },
}

fn event() -> impl Strategy<Value = Event> {
    let at = 0..3 * UNIT;
    prop_oneof![
        8 => (at, 1usize..200_000, any::<u64>()).prop_map(|(at, length, seed)| Event::Write { at, length, seed }),
        1 => (0..3 * UNIT).prop_map(|size| Event::Truncate { size }),
        3 => (0usize..4).prop_map(|n| Event::Crash { n }),
        3 => Just(Event::Start),
        1 => (0usize..4, 1u64..40).prop_map(|(n, seconds)| Event::Mute { n, seconds }),
        1 => Just(Event::RestartMds),
        1 => Just(Event::NewClient),
        3 => (0u64..8000).prop_map(|millis| Event::Sleep { millis }),
    ]
}

/// One data server at a time is away: with one copy left nothing may be lost, and everything goes on.
async fn live(world: &mut World, events: &[Event]) {
    let mut clients = 0;
    let mut writer = Writer::mount(world, "client0", "f").await;
    let mut model = Vec::new();
    let mut down = None;
    for event in events {
        match event {
            Event::Write { at, length, seed } => {
                let data = pattern(*seed, *length);
                writer.write(world, *at, &data).await;
                put(&mut model, *at, &data);
            }
            Event::Truncate { size } => {
                writer.give_back().await;
                writer.client.truncate(&writer.file, *size).await;
                model.resize(usize::try_from(*size).unwrap(), 0);
            }
            Event::Crash { n } if down.is_none() && world.check().await == 0 => {
                world.crash_data_server(*n).await;
                down = Some(*n);
            }
            Event::Crash { .. } => {}
            Event::Start => {
                if let Some(n) = down.take() {
                    world.start_data_server(n).await;
                }
            }
            Event::Mute { n, seconds } if down.is_none() && world.check().await == 0 => {
                world.mute(*n, true);
                let data = pattern(*seconds, 1000);
                writer.write(world, *seconds, &data).await;
                put(&mut model, *seconds, &data);
                world.sleep(Duration::from_secs(*seconds)).await;
                world.mute(*n, false);
                world.until_serving(*n).await;
            }
            Event::Mute { .. } => {}
            Event::RestartMds | Event::NewClient => {
                if matches!(event, Event::RestartMds) {
                    world.restart_metadata_server().await;
                }
                world.net.crash(&format!("client{clients}"));
                clients += 1;
                writer = Writer::mount(world, &format!("client{clients}"), "f").await;
            }
            Event::Sleep { millis } => world.sleep(Duration::from_millis(*millis)).await,
        }
        writer.obey().await;
    }
    if let Some(n) = down {
        world.start_data_server(n).await;
    }
    for n in 0..4 {
        world.until_serving(n).await;
    }
    writer.obey().await;
    writer.give_back().await;
    writer.client.close(&writer.file).await;
    healed(world, "f", &model).await;
}

#[test]
fn whatever_happens_one_copy_is_left_and_then_there_are_two() {
    let cases = std::env::var("SLUICE_WORLD_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(4);
    let mut runner = TestRunner::new(Config {
        cases,
        max_shrink_iters: 50,
        failure_persistence: None,
        ..Config::default()
    });
    let input = (any::<u64>(), any::<bool>(), prop::collection::vec(event(), 1..40));
    runner
        .run(&input, |(seed, wide, events)| {
            let shape = if wide { Shape::Default } else { Shape::Small };
            simulate_with(seed, LayoutPolicy { shape, mirrors: 2, inline: 0, class: None }, async |world| {
                live(world, &events).await
            });
            Ok(())
        })
        .unwrap();
}
