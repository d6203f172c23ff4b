//! Files that exist get more mirrors, and fewer, under their clients: nothing acknowledged is lost, nothing old is read, what is
//! given up is gone, and whoever takes part may die on the way.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sluice_namespace::{LayoutPolicy, Shape};
use sluice_store::device::Device;
use sluice_xdr::control::*;
use sluice_xdr::nfs4::*;

use crate::client::{Client, RO, RW};
use crate::compare::{compare, why};
use crate::drain::{Event, event, happen, right, used};
use crate::mirrors::{Writer, healed, home, put};
use crate::stage::{UNIT, World, simulate_with};
use crate::{NEW, OLD, pattern};

/// No data server.
const NONE: usize = 9;

const fn policy(shape: Shape, mirrors: u8) -> LayoutPolicy {
    LayoutPolicy { shape, mirrors, inline: 0, class: None }
}

async fn ask(
    world: &World,
    what: ctl_mirrors_what,
    path: &str,
    mirrors: u32,
) -> Result<Vec<ctl_mirrors>, String> {
    ask_with(world, ADMIN_MIRRORS_args { what, path: path.to_owned().into(), mirrors, limit: 0 }).await
}

async fn ask_with(world: &World, args: ADMIN_MIRRORS_args) -> Result<Vec<ctl_mirrors>, String> {
    match world.admin(ADMIN_MIRRORS, &args).await {
        ADMIN_MIRRORS_res::CTL_OK(ok) => Ok(ok.last),
        ADMIN_MIRRORS_res::Default(_, why) => Err(String::from_utf8(why.to_vec()).unwrap()),
    }
}

async fn begin(world: &World, path: &str, mirrors: u32) {
    ask(world, ctl_mirrors_what::MIRRORS_BEGIN, path, mirrors).await.unwrap();
}

async fn last(world: &World) -> ctl_mirrors {
    ask(world, ctl_mirrors_what::MIRRORS_LOOK, "", 0).await.unwrap().remove(0)
}

async fn ended(world: &World) -> ctl_mirrors {
    for _ in 0..900 {
        let now = last(world).await;
        if now.state != ctl_compare_state::COMPARE_RUNNING {
            assert!(now.ended >= now.since && now.since > 0);
            return now;
        }
        world.sleep(Duration::from_secs(1)).await;
    }
    panic!("it does not end: {:?}", last(world).await);
}

/// Nothing was left as it was.
pub(crate) async fn set(world: &World, path: &str, mirrors: u32) -> ctl_mirrors {
    begin(world, path, mirrors).await;
    let how = ended(world).await;
    assert!(how.state == ctl_compare_state::COMPARE_DONE && how.missed.is_empty(), "{how:?}");
    how
}

async fn put_file(world: &World, name: &str, size: usize) -> Vec<u8> {
    let data = pattern(u64::from(name.as_bytes()[0]), size);
    let mut writer = Writer::mount(world, &format!("w-{name}"), name).await;
    writer.write(world, 0, &data).await;
    writer.give_back().await;
    writer.client.close(&writer.file).await;
    // Until it is known that nobody writes any more.
    world.sleep(Duration::from_secs(1)).await;
    data
}

/// How many copies a reader is told of.
async fn copies(world: &World, name: &str) -> usize {
    let client = Client::mount(world, "counts", NEW).await;
    let file = client.open(name).await;
    let segment = client.layout(&file, file.stateid, RO, 0).await;
    segment.body.ffl_mirrors.len()
}

#[test]
fn a_file_gets_a_copy_under_its_writer_and_survives_the_first() {
    simulate_with(1, policy(Shape::Small, 1), async |world| {
        let mut model = put_file(world, "f", 700_000).await;
        let mut writer = Writer::mount(world, "a", "f").await;
        writer.write(world, 0, b"before").await;
        put(&mut model, 0, b"before");
        let first = home(world, &writer.client, &writer.held.clone().unwrap(), 0).await;
        begin(world, "f", 2).await;
        for step in 0..300_u64 {
            let (at, data) = (step * 3001 % 690_000, pattern(step, 5000));
            writer.write(world, at, &data).await;
            put(&mut model, at, &data);
            world.sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(writer.proxied, 0, "its layouts are taken back for a moment");
        let how = ended(world).await;
        assert_eq!((how.seen, how.more, how.fewer, how.filling, how.bytes), (1, 1, 0, 0, 700_000));
        writer.obey().await;
        healed(world, "f", &model).await;
        assert_eq!(world.check().await, 0);
        writer.write(world, 5, b"both").await;
        put(&mut model, 5, b"both");
        assert_eq!(writer.held.as_ref().unwrap().body.ffl_mirrors.len(), 2);
        world.crash_data_server(first).await;
        writer.write(world, 9, b"after").await;
        put(&mut model, 9, b"after");
        writer.give_back().await;
        right(world, "f", &model, NONE).await;
    });
}

#[test]
fn a_copy_is_given_up_under_reader_and_writer_and_its_data_file_goes() {
    simulate_with(2, policy(Shape::Small, 2), async |world| {
        let mut model = put_file(world, "f", 300_000).await;
        let reader = Client::mount(world, "b", NEW).await;
        let file = reader.open("f").await;
        let before = reader.layout(&file, file.stateid, RO, 0).await;
        assert_eq!(before.body.ffl_mirrors.len(), 2);
        let mut homes = [home(world, &reader, &before, 0).await, home(world, &reader, &before, 1).await];
        homes.sort_unstable();
        let mut writer = Writer::mount(world, "a", "f").await;
        writer.write(world, 0, b"before").await;
        begin(world, "f", 1).await;
        let mut returned = 0;
        for step in 0..200_u64 {
            let (at, data) = (step * 3001 % 290_000, pattern(step, 5000));
            writer.write(world, at, &data).await;
            put(&mut model, at, &data);
            if reader.recalls().len() > returned {
                returned = reader.recalls().len();
                reader.layout_return(&file, before.stateid).await;
            }
            world.sleep(Duration::from_millis(20)).await;
        }
        assert_eq!((returned, writer.proxied), (1, 0));
        let how = ended(world).await;
        assert_eq!((how.seen, how.more, how.fewer), (1, 0, 1));
        let after = reader.layout(&file, file.stateid, RO, 0).await;
        let stays = home(world, &reader, &after, 0).await;
        assert_eq!(after.body.ffl_mirrors.len(), 1);
        let gone = if homes[0] == stays { homes[1] } else { homes[0] };
        world.until(|world| world.data_files(gone) == 0).await;
        // Whoever kept the handle reads nothing there, and writes nothing.
        let kept = (0..2).map(|n| before.mirror(n));
        for kept in kept {
            if home(world, &reader, &kept, 0).await == gone {
                assert!(reader.read(&kept, 0..10).await.is_err());
                assert!(reader.write(&kept, 0, b"late").await.is_err());
            }
        }
        assert_eq!(world.data_files(gone), 0);
        writer.give_back().await;
        right(world, "f", &model, NONE).await;
        // And again: no number of a data file is used twice.
        set(world, "f", 2).await;
        healed(world, "f", &model).await;
        assert_eq!(set(world, "f", 2).await.more, 0, "it has as many");
    });
}

#[test]
fn stripes_get_copies_each_and_a_short_file_stays_one_segment() {
    simulate_with(3, policy(Shape::Wide, 1), async |world| {
        let model = put_file(world, "f", 3_000_003).await;
        set(world, "f", 2).await;
        let how = compare(world, "f").await;
        assert_eq!((how.differ, how.compared, why(&how)), (0, 1, String::new()));
        healed(world, "f", &model).await;
        set(world, "f", 3).await;
        assert_eq!(copies(world, "f").await, 3);
        set(world, "f", 1).await;
        assert_eq!(copies(world, "f").await, 1);
        right(world, "f", &model, NONE).await;
    });
    simulate_with(4, policy(Shape::Default, 1), async |world| {
        let size = usize::try_from(UNIT / 2).unwrap();
        put_file(world, "f", size).await;
        let client = Client::mount(world, "b", OLD).await;
        let file = client.open("f").await;
        let before = client.layout(&file, file.stateid, RW, 0).await;
        assert!(before.bytes.end < u64::MAX, "its end is elsewhere");
        client.layout_return(&file, before.stateid).await;
        set(world, "f", 2).await;
        let after = client.layout(&file, file.stateid, RW, 0).await;
        assert_eq!((after.bytes.end, after.body.ffl_mirrors.len()), (u64::MAX, 2));
    });
}

#[test]
fn all_files_below_a_directory_and_no_others() {
    let shape = LayoutPolicy { inline: 4096, ..policy(Shape::Small, 1) };
    simulate_with(5, shape, async |world| {
        let client = Client::mount(world, "m", NEW).await;
        client.mkdir(&["d"]).await;
        client.mkdir(&["d", "e"]).await;
        for n in 0..12 {
            let name = format!("f{n}");
            // Of one size in the metadata, and of one at data servers.
            if n % 3 == 0 {
                let file = client.open(&name).await;
                assert_eq!(client.proxied_write(&file, 0, b"a little").await, nfsstat4::NFS4_OK);
                client.close(&file).await;
            } else {
                put_file(world, &name, 9000).await;
            }
            match n % 4 {
                0 => {}
                1 => client.move_below(&name, &["d"]).await,
                _ => client.move_below(&name, &["d", "e"]).await,
            }
        }
        let how = set(world, "d", 2).await;
        // 3 and 6 are in the metadata (and 9, which is in `d`); 0, 4 and 8 are not below.
        assert_eq!((how.seen, how.more, how.noted, how.fewer), (9, 6, 3, 0));
        assert_eq!(copies(world, "f4").await, 1);
        let how = compare(world, "").await;
        assert_eq!((how.compared, how.differ, why(&how)), (6, 0, String::new()));
        let how = set(world, "", 1).await;
        assert_eq!((how.seen, how.more, how.noted, how.fewer), (12, 0, 4, 6));
        // What leaves the metadata has as many as were asked for.
        let how = set(world, "f0", 3).await;
        assert_eq!((how.seen, how.noted), (1, 1));
        let mut writer = Writer::mount(world, "w", "f0").await;
        writer.write(world, 0, &pattern(1, 9000)).await;
        writer.give_back().await;
        writer.client.close(&writer.file).await;
        assert_eq!(copies(world, "f0").await, 3);
        assert_eq!(world.check().await, 0);
    });
}

#[test]
fn what_cannot_be_is_refused_and_says_why() {
    simulate_with(6, policy(Shape::Wide, 1), async |world| {
        put_file(world, "f", 3_000_003).await;
        let begin = async |path, mirrors| {
            ask(world, ctl_mirrors_what::MIRRORS_BEGIN, path, mirrors).await.map(drop).unwrap_err()
        };
        assert!(begin("f", 5).await.contains("5 copies need 5 data servers, and there are 4"));
        assert!(begin("f", 0).await.contains("1 to 36"));
        assert!(begin("f", 300).await.contains("1 to 36"));
        assert_eq!(begin("g", 2).await, "no such file or directory");
        let stop = ask(world, ctl_mirrors_what::MIRRORS_STOP, "", 0).await;
        assert!(stop.unwrap_err().contains("no mirrors are being"));
        assert!(ask(world, ctl_mirrors_what::MIRRORS_LOOK, "", 0).await.unwrap().is_empty());
    });
}

#[test]
fn copies_are_given_up_where_data_servers_are_full_and_none_are_added() {
    simulate_with(13, policy(Shape::Small, 2), async |world| {
        let model = put_file(world, "f", 900_000).await;
        for n in 0..4 {
            let used = if world.holds(n, 900_000) { 900_000 } else { 0 };
            world.device(n).set_capacity(used + (16 << 10));
        }
        // Until they have said so.
        world.sleep(Duration::from_secs(10)).await;
        begin(world, "f", 3).await;
        let how = ended(world).await;
        let why: Vec<_> = how.missed.iter().map(|one| String::from_utf8_lossy(&one.reason)).collect();
        assert!(
            how.more == 0 && why.len() == 1 && why[0].contains("data servers that take new files"),
            "{why:?}"
        );
        assert_eq!(set(world, "f", 1).await.fewer, 1);
        right(world, "f", &model, NONE).await;
    });
}

#[test]
fn a_file_that_nobody_has_written_to_has_as_many_as_it_should_when_somebody_does() {
    for shape in [Shape::Small, Shape::Default, Shape::Wide] {
        simulate_with(14, policy(shape, 1), async |world| {
            let client = Client::mount(world, "m", NEW).await;
            let file = client.open("f").await;
            client.close(&file).await;
            let how = set(world, "f", 2).await;
            assert_eq!((how.more, how.bytes), (1, 0));
            let mut writer = Writer::mount(world, "a", "f").await;
            writer.write(world, 0, b"data").await;
            assert_eq!(writer.held.as_ref().unwrap().body.ffl_mirrors.len(), 2);
            writer.give_back().await;
            healed(world, "f", b"data").await;
        });
    }
}

/// What was given is durable before it is filled.
#[test]
fn a_metadata_server_that_starts_anew_fills_what_was_given() {
    simulate_with(7, policy(Shape::Small, 1), async |world| {
        let model = put_file(world, "f", 900_000).await;
        let first = (0..4).find(|n| world.data_files(*n) == 1).unwrap();
        // It cannot be read, and so nothing can be filled.
        begin(world, "f", 2).await;
        world.mute(first, true);
        world.sleep(Duration::from_millis(300)).await;
        world.restart_metadata_server().await;
        world.mute(first, false);
        world.sleep(Duration::from_secs(60)).await;
        assert!(ask(world, ctl_mirrors_what::MIRRORS_LOOK, "", 0).await.unwrap().is_empty());
        set(world, "f", 2).await;
        healed(world, "f", &model).await;
    });
}

/// One of the two would stay: it does if it is there, and else the other one.
#[test]
fn nothing_is_given_up_before_what_is_left_is_known_to_be_there() {
    for lost in 0..2 {
        simulate_with(8, policy(Shape::Small, 2), async |world| {
            let model = put_file(world, "f", 300_000).await;
            let homes: Vec<usize> = (0..4).filter(|n| world.holds(*n, 300_000)).collect();
            let [first, second] = homes[..] else { panic!("{homes:?}") };
            let n = if lost == 0 { first } else { second };
            // Its data server has lost it, and does not know.
            world.crash_data_server(n).await;
            let path = world.data_file_of(n, 300_000);
            world.device(n).remove(&path).unwrap();
            world.start_data_server(n).await;
            world.until_serving(n).await;
            begin(world, "f", 1).await;
            ended(world).await;
            world.sleep(Duration::from_secs(5)).await;
            let reader = Client::mount(world, "b", NEW).await;
            let file = reader.open("f").await;
            assert!(reader.proxied_read(&file, 0, 300_000).await[..] == model[..], "{:?}", last(world).await);
        });
    }
}

/// Whoever got a layout before the metadata server's start reads from the copy that it names, and nobody can ask for it back.
#[test]
fn nothing_is_given_up_while_clients_of_before_a_start_may_read_it() {
    simulate_with(9, policy(Shape::Small, 2), async |world| {
        put_file(world, "f", 300_000).await;
        let client = Client::mount(world, "b", NEW).await;
        let file = client.open("f").await;
        let segment = client.layout(&file, file.stateid, RO, 0).await;
        let read = async |mirror| client.read(&segment.mirror(mirror), 0..10).await;
        assert!(read(0).await.is_ok() && read(1).await.is_ok());
        world.restart_metadata_server().await;
        begin(world, "f", 1).await;
        world.sleep(Duration::from_secs(2)).await;
        assert_eq!(last(world).await.later, 1);
        assert!(read(0).await.is_ok() && read(1).await.is_ok());
        let how = ended(world).await;
        assert!(how.fewer == 1 && how.missed.is_empty(), "{how:?}");
        world.sleep(Duration::from_secs(5)).await;
        assert!(read(0).await.is_err() || read(1).await.is_err(), "it is gone");
    });
}

#[test]
fn it_goes_as_fast_as_it_may_and_ends_when_it_is_told_to() {
    simulate_with(10, policy(Shape::Small, 1), async |world| {
        for n in 0..6 {
            put_file(world, &format!("f{n}"), 900_000).await;
        }
        let args = ADMIN_MIRRORS_args {
            what: ctl_mirrors_what::MIRRORS_BEGIN,
            path: "".into(),
            mirrors: 2,
            limit: 100_000,
        };
        ask_with(world, args.clone()).await.unwrap();
        assert!(ask_with(world, args).await.unwrap_err().contains("already"));
        let how = ended(world).await;
        assert!(how.more == 6 && how.bytes == 5_400_000 && how.ended - how.since >= 50, "{how:?}");
        let args = ADMIN_MIRRORS_args {
            what: ctl_mirrors_what::MIRRORS_BEGIN,
            path: "".into(),
            mirrors: 3,
            limit: 100_000,
        };
        ask_with(world, args).await.unwrap();
        world.sleep(Duration::from_secs(3)).await;
        let how = ask(world, ctl_mirrors_what::MIRRORS_STOP, "", 0).await.unwrap().remove(0);
        assert!(how.state == ctl_compare_state::COMPARE_STOPPED && how.more < 6, "{how:?}");
        let mut three = 0;
        for n in 0..6 {
            three += u64::from(copies(world, &format!("f{n}")).await == 3);
        }
        assert_eq!(three, how.more, "what was under way is not left uncounted");
        world.sleep(Duration::from_secs(10)).await;
        assert_eq!(world.check().await, 0, "what was given is filled");
    });
}

/// A file that was cut short and has grown again has a hole where it had data.
#[test]
fn a_file_that_was_cut_short_gets_copies_that_are_equal() {
    for (seed, mirrors) in [(11, 1), (12, 2)] {
        simulate_with(seed, policy(Shape::Wide, mirrors), async |world| {
            let mut model = put_file(world, "f", 700_000).await;
            let mut writer = Writer::mount(world, "a", "f").await;
            for (at, length) in [(1_600_117, 71_295), (4_057_430, 36_608), (2_457_882, 16_783)] {
                let data = pattern(at, length);
                writer.write(world, at, &data).await;
                put(&mut model, at, &data);
            }
            writer.give_back().await;
            writer.client.truncate(&writer.file, 1_008_000).await;
            model.resize(1_008_000, 0);
            let data = pattern(7, 1388);
            writer.write(world, 2_864_928, &data).await;
            put(&mut model, 2_864_928, &data);
            writer.give_back().await;
            writer.client.close(&writer.file).await;
            world.sleep(Duration::from_secs(1)).await;
            set(world, "f", 2).await;
            right(world, "f", &model, NONE).await;
            let how = compare(world, "f").await;
            assert_eq!((how.differ, why(&how)), (0, String::new()), "{how:?}");
        });
    }
}

async fn live(world: &mut World, wishes: &[u32], events: &[Event]) {
    let mut clients = 0;
    let mut files = used(world, &mut clients).await;
    let mut more = wishes.iter().cycle();
    let wish = std::cell::RefCell::new(&mut more);
    begin(world, "", *wishes.first().unwrap()).await;
    happen(world, &mut files, &mut clients, events, async |world| {
        // It may be over, or ended with the server.
        let _ = ask(world, ctl_mirrors_what::MIRRORS_STOP, "", 0).await;
        let next = *wish.borrow_mut().next().unwrap();
        let _ = ask(world, ctl_mirrors_what::MIRRORS_BEGIN, "", next).await;
        world.sleep(Duration::from_millis(300)).await;
    })
    .await;
    // Until nothing is under way: what is to be healed is known to whoever begins then.
    for round in 0.. {
        let running = ask(world, ctl_mirrors_what::MIRRORS_LOOK, "", 0).await.unwrap();
        let running = running.iter().any(|last| last.state == ctl_compare_state::COMPARE_RUNNING);
        if !running && world.check().await == 0 && world.garbage().await == 0 {
            break;
        }
        assert!(round < 600, "something is left half done");
        world.sleep(Duration::from_secs(1)).await;
    }
    set(world, "", 2).await;
    for used in &files {
        right(world, &used.name, &used.model, NONE).await;
    }
    let how = compare(world, "").await;
    assert_eq!((how.differ, why(&how)), (0, String::new()), "{how:?}");
    set(world, "", 1).await;
    assert_eq!(world.check().await, 0);
    for used in &files {
        right(world, &used.name, &used.model, NONE).await;
        assert!(used.model.is_empty() || copies(world, &used.name).await == 1);
    }
}

/// Copies come and go while clients write, and servers die and come back.
#[test]
fn whoever_dies_meanwhile_nothing_is_lost_and_there_are_as_many_as_were_asked_for() {
    let cases = std::env::var("SLUICE_WORLD_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(3);
    let config = Config { cases, max_shrink_iters: 50, failure_persistence: None, ..Config::default() };
    let wishes = prop::collection::vec(1_u32..=3, 1..5);
    let input = (any::<u64>(), 0usize..3, 1u8..3, wishes, prop::collection::vec(event(), 1..25));
    TestRunner::new(config)
        .run(&input, |(seed, shape, mirrors, wishes, events)| {
            let shape = [Shape::Small, Shape::Default, Shape::Wide][shape];
            simulate_with(seed, policy(shape, mirrors), async |world| live(world, &wishes, &events).await);
            Ok(())
        })
        .unwrap();
}
