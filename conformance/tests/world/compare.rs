//! The copies of mirrored files are compared while clients are at work: what differs is found where it is, nothing else is,
//! and what an administrator says is right becomes the file.

use std::collections::BTreeMap;
use std::time::Duration;

use sluice_namespace::{LayoutPolicy, Shape};
use sluice_store::device::Device;
use sluice_xdr::control::*;
use sluice_xdr::nfs4::nfsstat4;

use crate::client::{Client, RO, RW};
use crate::mirrors::{Writer, healed, put};
use crate::stage::{UNIT, World, simulate_with};
use crate::{NEW, OLD, pattern};

const TWICE: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 2, inline: 0, class: None };
const THRICE: LayoutPolicy = LayoutPolicy { mirrors: 3, ..TWICE };
const STRIPED: LayoutPolicy = LayoutPolicy { shape: Shape::Wide, mirrors: 2, inline: 0, class: None };
const SIZE: usize = 3_000_003;
const PAGE: u64 = 4096;

async fn ask(
    world: &World,
    what: ctl_compare_what,
    path: &str,
    limit: u64,
) -> Result<Vec<ctl_compare>, String> {
    let args = ADMIN_COMPARE_args { what, path: path.to_owned().into(), limit, after: 0 };
    match world.admin(ADMIN_COMPARE, &args).await {
        ADMIN_COMPARE_res::CTL_OK(ok) => Ok(ok.last),
        ADMIN_COMPARE_res::Default(_, why) => Err(String::from_utf8(why.to_vec()).unwrap()),
    }
}

async fn look(world: &World) -> ctl_compare {
    ask(world, ctl_compare_what::COMPARE_LOOK, "", 0).await.unwrap().remove(0)
}

async fn ended(world: &World) -> ctl_compare {
    for _ in 0..600 {
        let now = look(world).await;
        if now.state != ctl_compare_state::COMPARE_RUNNING {
            assert!(now.ended >= now.since && now.since > 0);
            return now;
        }
        world.sleep(Duration::from_millis(500)).await;
    }
    panic!("it does not end: {:?}", look(world).await);
}

/// Of a file, or of all.
pub(crate) async fn compare(world: &World, path: &str) -> ctl_compare {
    ask(world, ctl_compare_what::COMPARE_BEGIN, path, 0).await.unwrap();
    let how = ended(world).await;
    assert_eq!(how.state, ctl_compare_state::COMPARE_DONE);
    how
}

pub(crate) fn why(how: &ctl_compare) -> String {
    let reasons = how.not_compared.iter().map(|one| String::from_utf8_lossy(&one.reason).into_owned());
    reasons.collect::<Vec<_>>().join("; ")
}

/// All is equal, and all of it was looked at.
async fn all_equal(world: &World, files: u64) {
    let how = compare(world, "").await;
    assert_eq!((how.differ, how.compared, why(&how)), (0, files, String::new()), "{how:?}");
}

async fn mend(world: &World, args: ADMIN_MEND_args) -> Result<ADMIN_MEND_resok, String> {
    match world.admin(ADMIN_MEND, &args).await {
        ADMIN_MEND_res::CTL_OK(ok) => Ok(ok),
        ADMIN_MEND_res::Default(_, why) => Err(String::from_utf8(why.to_vec()).unwrap()),
    }
}

fn named(path: &str, from: u32) -> ADMIN_MEND_args {
    ADMIN_MEND_args { path: path.to_owned().into(), from, ..ADMIN_MEND_args::default() }
}

/// A file that nobody is at any more.
async fn put_file(world: &World, name: &str, size: usize) -> Vec<u8> {
    let data = pattern(u64::from(name.as_bytes()[0]), size);
    let mut writer = Writer::mount(world, &format!("w-{name}"), name).await;
    for (at, piece) in (0..).step_by(1 << 20).zip(data.chunks(1 << 20)) {
        writer.write(world, at, piece).await;
    }
    writer.give_back().await;
    writer.client.close(&writer.file).await;
    world.sleep(Duration::from_secs(1)).await;
    data
}

/// The data servers, from 0, that have a data file of this length.
fn holders(world: &World, length: usize) -> Vec<usize> {
    (0..4).filter(|n| world.holds(*n, length as u64)).collect()
}

/// Writes to a data file without anybody knowing.
fn scribble(world: &World, n: usize, length: usize, at: u64, data: &[u8]) {
    let path = world.data_file_of(n, length as u64);
    world.device(n).open(&path).unwrap().write_at(data, at).unwrap();
}

fn odd(range: &ctl_unequal) -> Vec<u32> {
    range.copies.iter().filter(|copy| copy.odd).map(|copy| copy.data_server).collect()
}

fn id(n: usize) -> u32 {
    u32::try_from(n).unwrap() + 1
}

/// The data servers by the numbers that the metadata server gave them.
pub(crate) async fn places(world: &World) -> BTreeMap<u16, usize> {
    let ADMIN_STATUS_res::CTL_OK(status) = world.admin(ADMIN_STATUS, &()).await else { panic!() };
    let here = |server: &ctl_data_server_status| {
        let ip =
            server.addresses.first().map(|address| String::from_utf8_lossy(&address.host).into_owned())?;
        let n = (0..4).find(|n| world.data_server(*n).ip().to_string() == ip)?;
        Some((u16::try_from(server.id).unwrap(), n))
    };
    status.data_servers.iter().filter(|server| server.connected).filter_map(here).collect()
}

/// Writers go to one mirror after the other: whoever looks in between sees them differ.
#[test]
fn copies_that_are_being_written_are_never_said_to_differ() {
    for (seed, policy) in [(1, TWICE), (2, THRICE), (3, STRIPED)] {
        simulate_with(seed, policy, async |world| {
            let mut models = Vec::new();
            for name in ["a", "b", "idle"] {
                models.push(put_file(world, name, SIZE).await);
            }
            let (mut one, mut two) =
                (Writer::mount(world, "one", "a").await, Writer::mount(world, "two", "b").await);
            let through = Client::mount(world, "through", OLD).await;
            let file = through.open("b").await;
            let mut compared = 0;
            for round in 0..12_u64 {
                ask(world, ctl_compare_what::COMPARE_BEGIN, "", 0).await.unwrap();
                for step in 0..40_u64 {
                    let at = (round * 40 + step) * 5003 % (SIZE as u64 - 70_000);
                    let data = pattern(round * 1000 + step, 60_000);
                    let many = async {
                        for _ in 0..20 {
                            if through.proxied_write(&file, at, &data[..9000]).await == nfsstat4::NFS4_OK {
                                return true;
                            }
                            world.sleep(Duration::from_millis(100)).await;
                        }
                        false
                    };
                    one.write(world, at, &data).await;
                    put(&mut models[0], at, &data);
                    two.write(world, at, &data).await;
                    put(&mut models[1], at, &data);
                    if many.await {
                        put(&mut models[1], at, &data[..9000]);
                    }
                }
                if round % 3 == 2 {
                    one.give_back().await;
                    two.give_back().await;
                }
                let how = ended(world).await;
                assert_eq!(how.differ, 0, "{how:?}");
                assert!(how.compared >= 1, "the one that is idle: {how:?}");
                compared += how.compared;
            }
            one.give_back().await;
            two.give_back().await;
            assert!(compared > 12, "others are compared, too, when they are not written for a while");
            all_equal(world, 3).await;
            for (name, model) in ["a", "b", "idle"].iter().zip(&models) {
                if policy == TWICE {
                    healed(world, name, model).await;
                }
            }
        });
    }
}

/// Handles are good for longer than layouts: what a client sends late is no difference yet.
#[test]
fn what_comes_late_under_a_layout_that_was_given_back_is_no_difference() {
    simulate_with(15, TWICE, async |world| {
        put_file(world, "f", SIZE).await;
        let mut writer = Writer::mount(world, "late", "f").await;
        writer.write(world, 0, b"something").await;
        let before = writer.held.clone().unwrap();
        writer.give_back().await;
        for round in 0..100_u64 {
            // For most of the time one copy has what the other has not.
            let data = pattern(round, 10_000);
            writer.client.write(&before.mirror(0), 8192, &data).await.unwrap();
            world.sleep(Duration::from_millis(500)).await;
            if round % 30 == 5 {
                ask(world, ctl_compare_what::COMPARE_BEGIN, "f", 0).await.unwrap();
            }
            world.sleep(Duration::from_millis(400)).await;
            writer.client.write(&before.mirror(1), 8192, &data).await.unwrap();
            world.sleep(Duration::from_millis(100)).await;
            if round % 30 == 29 {
                let how = look(world).await;
                assert_eq!(how.differ, 0, "{how:?}");
                // Unless it has seen them equal for once.
                drop(ask(world, ctl_compare_what::COMPARE_STOP, "", 0).await);
            }
        }
        ended(world).await;
        all_equal(world, 1).await;
    });
}

#[test]
fn a_byte_that_changed_behind_a_data_servers_back_is_found() {
    simulate_with(4, TWICE, async |world| {
        put_file(world, "f", SIZE).await;
        put_file(world, "g", SIZE - 1).await;
        all_equal(world, 2).await;
        let at = 1_234_567;
        let [first, second] = holders(world, SIZE)[..] else { panic!() };
        scribble(world, second, SIZE, at, &[pattern(u64::from(b'f') + at, 1)[0] ^ 1]);
        // And the last byte.
        let last = SIZE as u64 - 1;
        scribble(world, first, SIZE, last, &[pattern(u64::from(b'f') + last, 1)[0] ^ 128]);
        for path in ["", "f"] {
            let how = compare(world, path).await;
            assert_eq!((how.differ, how.compared), (1, if path.is_empty() { 2 } else { 1 }), "{how:?}");
            let [found] = &how.findings[..] else { panic!("{how:?}") };
            assert_eq!((&found.name[..], found.size, found.by_zeros), (&b"f"[..], SIZE as u64, false));
            let [one, end] = &found.first[..] else { panic!("{found:?}") };
            assert_eq!((one.offset, one.length), (at / PAGE * PAGE, PAGE));
            assert_eq!((end.offset, end.offset + end.length), (last / PAGE * PAGE, SIZE as u64));
            assert_eq!((one.hint, odd(one)), (ctl_differs::DIFFERS_SOMEHOW, vec![]));
            let mut servers: Vec<_> = one.copies.iter().map(|copy| copy.data_server).collect();
            servers.sort_unstable();
            assert_eq!(servers, [id(first), id(second)]);
            assert_ne!(one.copies[0].alike, one.copies[1].alike);
            assert_eq!((found.ranges, found.bytes), (2, PAGE + end.length));
        }
        let how = compare(world, "g").await;
        assert_eq!((how.differ, how.compared, how.bytes), (0, 1, SIZE as u64 - 1));
        // Nothing tells which one is right.
        let refused = mend(world, named("f", 0)).await.unwrap_err();
        assert!(refused.contains("did not find"), "the last comparison was of another file: {refused}");
    });
}

#[test]
fn a_directory_is_all_files_below_it_and_no_others() {
    let policy = LayoutPolicy { inline: 4096, ..TWICE };
    simulate_with(15, policy, async |world| {
        let client = Client::mount(world, "m", NEW).await;
        client.mkdir(&["d"]).await;
        client.mkdir(&["d", "e"]).await;
        for (n, path) in [&[][..], &["d"], &["d", "e"], &["d", "e"]].into_iter().enumerate() {
            let name = format!("f{n}");
            put_file(world, &name, SIZE + n).await;
            // The last one is as it should be.
            if n < 3 {
                let holder = holders(world, SIZE + n)[0];
                scribble(world, holder, SIZE + n, 5000, &[1; 10]);
            }
            if !path.is_empty() {
                client.move_below(&name, path).await;
            }
        }
        let small = client.open("s").await;
        assert_eq!(client.proxied_write(&small, 0, b"a little").await, nfsstat4::NFS4_OK);
        client.close(&small).await;
        client.move_below("s", &["d"]).await;

        let how = compare(world, "d").await;
        assert_eq!((how.seen, how.compared, how.differ, why(&how)), (4, 3, 2, String::new()), "{how:?}");
        let mut found: Vec<u64> = how.findings.iter().map(|found| found.size).collect();
        found.sort_unstable();
        assert_eq!(found, [SIZE as u64 + 1, SIZE as u64 + 2]);
        assert!(how.findings.iter().all(|found| &found.name[..] != b"d"), "{how:?}");
        // A file is named as it was asked for.
        let how = compare(world, "d/e/f2").await;
        assert_eq!((how.seen, &how.findings[0].name[..]), (1, &b"d/e/f2"[..]));
        assert!(
            ask(world, ctl_compare_what::COMPARE_BEGIN, "d/s", 0).await.unwrap_err().contains("metadata")
        );
        // What was found below a directory can be mended by its number.
        let how = compare(world, "d").await;
        let args = ADMIN_MEND_args {
            file: how.findings[0].file,
            from: id(holders(world, SIZE + 1)[1]),
            ..Default::default()
        };
        mend(world, args).await.unwrap();
    });
}

#[test]
fn of_three_copies_one_is_outvoted() {
    simulate_with(5, THRICE, async |world| {
        put_file(world, "f", SIZE).await;
        let wrong = holders(world, SIZE)[1];
        scribble(world, wrong, SIZE, 70_000, &[9; 100]);
        let how = compare(world, "").await;
        let [range] = &how.findings[0].first[..] else { panic!("{how:?}") };
        assert_eq!((range.hint, odd(range)), (ctl_differs::DIFFERS_OUTVOTED, vec![id(wrong)]));
    });
}

/// What a write leaves that went to a place where nobody reads.
#[test]
fn zeros_tell_which_copy_is_wrong_and_mend_it() {
    simulate_with(6, TWICE, async |world| {
        let (f, g) = (put_file(world, "f", SIZE).await, put_file(world, "g", SIZE + 1).await);
        let (wrong_of_f, of_g) = (holders(world, SIZE)[0], holders(world, SIZE + 1));
        scribble(world, wrong_of_f, SIZE, 1 << 20, &vec![0; 73 * 4096]);
        // Of this one both are wrong, somewhere.
        scribble(world, of_g[0], SIZE + 1, 0, &[0; 4096]);
        scribble(world, of_g[1], SIZE + 1, 1 << 20, &[0; 4096]);
        let how = compare(world, "").await;
        assert_eq!(how.differ, 2);
        let by_name = |name: &[u8]| how.findings.iter().find(|found| found.name == name).unwrap();
        let found = by_name(b"f");
        assert!(found.by_zeros && !by_name(b"g").by_zeros, "{how:?}");
        let [zeros] = &found.first[..] else { panic!("{found:?}") };
        assert_eq!(
            (zeros.hint, zeros.offset, zeros.length),
            (ctl_differs::DIFFERS_ZEROS, 1 << 20, 73 * PAGE)
        );
        assert_eq!(odd(zeros), [id(wrong_of_f)]);
        assert!(zeros.copies.iter().all(|copy| copy.zeros == (copy.data_server == id(wrong_of_f))));
        assert!(mend(world, named("g", 0)).await.unwrap_err().contains("--from"));
        // It can be told by number, and what is not known cannot.
        let numbered =
            |file| ADMIN_MEND_args { file, from: id(holders(world, SIZE)[1]), ..ADMIN_MEND_args::default() };
        assert!(mend(world, numbered(1 << 40)).await.unwrap_err().contains("compare again"));
        let done = mend(world, numbered(found.file)).await.unwrap();
        assert_eq!((done.copies, done.healing, done.file), (1, true, found.file));
        healed(world, "f", &f).await;
        assert!(!mend(world, ADMIN_MEND_args { look: true, ..named("f", 0) }).await.unwrap().healing);
        // A page that has something of what it should have is no sign of what went astray.
        scribble(world, wrong_of_f, SIZE, 4096, &[0; 4000]);
        let how = compare(world, "f").await;
        assert!(!how.findings[0].by_zeros && how.findings[0].first[0].hint == ctl_differs::DIFFERS_SOMEHOW);
        let refused = mend(world, named("f", 0)).await.unwrap_err();
        assert!(refused.contains("--from"), "{refused}");
        scribble(world, wrong_of_f, SIZE, 4096, &f[4096..8096]);
        // For this one the administrator knows.
        scribble(world, of_g[0], SIZE + 1, 0, &g[..4096]);
        let how = compare(world, "g").await;
        assert!(how.findings[0].by_zeros, "{how:?}");
        assert_eq!(mend(world, named("g", 0)).await.unwrap().copies, 1);
        healed(world, "g", &g).await;
        all_equal(world, 2).await;
    });
}

/// Which one that is: whoever reads from then on reads that, and what is written meanwhile is not lost.
#[test]
fn the_copy_that_is_said_to_be_right_becomes_the_file_under_its_readers_and_writers() {
    for (seed, wrong) in [(7, 0), (8, 1)] {
        simulate_with(seed, TWICE, async |world| {
            let mut model = put_file(world, "f", SIZE).await;
            let pair = holders(world, SIZE);
            // What is at this one is what the administrator wants, though clients wrote something else.
            scribble(world, pair[wrong], SIZE, 500_000, &[7; 20_000]);
            put(&mut model, 500_000, &[7; 20_000]);
            let mut writer = Writer::mount(world, "writer", "f").await;
            let reader = Client::mount(world, "reader", NEW).await;
            let file = reader.open("f").await;
            reader.layout(&file, file.stateid, RO, 0).await;
            writer.write(world, 0, b"before").await;
            put(&mut model, 0, b"before");
            let mending = mend(world, named("f", id(pair[wrong])));
            let writing = async {
                for n in 0..30_u64 {
                    // Everybody gives back what he holds, and goes on.
                    if let Some(recall) = reader.recalls().len().checked_sub(1) {
                        let (stateid, _) = reader.recalled(recall + 1).await;
                        reader.layout_return(&file, stateid).await;
                    }
                    let data = pattern(n, 3000);
                    writer.write(world, 600_000 + n * 50_000, &data).await;
                    put(&mut model, 600_000 + n * 50_000, &data);
                    world.sleep(Duration::from_millis(50)).await;
                }
            };
            let (done, ()) = tokio::join!(mending, writing);
            assert_eq!(done.unwrap().copies, 1);
            let through = reader.proxied_read(&file, 490_000, 40_000).await;
            assert!(through[..] == model[490_000..530_000]);
            writer.obey().await;
            writer.give_back().await;
            healed(world, "f", &model).await;
            all_equal(world, 1).await;
        });
    }
}

#[test]
fn what_reads_alike_is_equal_however_it_is_kept() {
    simulate_with(9, TWICE, async |world| {
        let mut data = put_file(world, "f", SIZE).await;
        let mut writer = Writer::mount(world, "z", "f").await;
        writer.write(world, SIZE as u64 - 100_000, &[0; 100_000]).await;
        put(&mut data, SIZE as u64 - 100_000, &[0; 100_000]);
        writer.give_back().await;
        // A hole of a megabyte behind it, and an end.
        writer.client.truncate(&writer.file, SIZE as u64 + (1 << 20)).await;
        writer.client.close(&writer.file).await;
        world.sleep(Duration::from_secs(1)).await;
        let lengths = |world: &World| {
            let names = |n: usize| world.data_file_names(n).into_iter().map(move |name| (n, name));
            let all = (0..4).flat_map(names);
            all.map(|(n, name)| (n, world.device(n).stat(&name).unwrap().size, name)).collect::<Vec<_>>()
        };
        let [(one, _, short), (two, _, long)] = &lengths(world)[..] else { panic!("{:?}", lengths(world)) };
        // One ends where its data does, and one has zeros up to beyond the end, and something there that nobody sees.
        world.device(*one).open(short).unwrap().set_len(SIZE as u64 - 60_000).unwrap();
        let end = SIZE as u64 + (1 << 20);
        let file = world.device(*two).open(long).unwrap();
        file.write_at(&vec![0; 1 << 20], SIZE as u64).unwrap();
        file.write_at(b"beyond", end).unwrap();
        all_equal(world, 1).await;
        // A byte more, and it is part of the file.
        file.write_at(b"!", end - 1).unwrap();
        let how = compare(world, "").await;
        let range = &how.findings[0].first[0];
        assert_eq!((range.hint, range.offset + range.length), (ctl_differs::DIFFERS_ZEROS, end));
        assert_eq!(odd(range), [id(*one)]);
    });
}

/// Of a data file only the bytes of its column are read.
#[test]
fn stripes_are_compared_where_they_are_read() {
    simulate_with(10, STRIPED, async |world| {
        let size = usize::try_from(UNIT).unwrap() * 3 + 12_345;
        put_file(world, "f", size).await;
        all_equal(world, 1).await;
        let client = Client::mount(world, "c", NEW).await;
        let file = client.open("f").await;
        let segment = client.layout(&file, file.stateid, RO, 0).await;
        client.layout_return(&file, segment.stateid).await;
        let unit = segment.body.ffl_stripe_unit;
        assert!(unit > 0 && segment.body.ffl_mirrors.len() == 2);
        let server = async |mirror: usize, at: u64| {
            let address = client.device(segment.mirror(mirror).data_server(at).ffds_deviceid).await;
            (0..4).find(|n| world.data_server(*n) == address).unwrap()
        };
        let holder = server(1, unit).await;
        let other = server(0, unit).await;
        assert_ne!(holder, other);
        // In the data file of the second column, where the first has its bytes: nobody reads that.
        let paths = world.data_file_names(holder);
        let write = |at: u64, data: &[u8]| {
            for path in &paths {
                let file = world.device(holder).open(path).unwrap();
                // Those of the column have data there, the others a hole.
                let mut there = [0; 16];
                file.read_at(&mut there, unit).unwrap();
                if there != [0; 16] {
                    file.write_at(data, at).unwrap();
                }
            }
        };
        write(5000, b"what went astray");
        all_equal(world, 1).await;
        write(unit + 5000, b"wrong");
        let how = compare(world, "f").await;
        let [range] = &how.findings[0].first[..] else { panic!("{how:?}") };
        assert_eq!((range.offset, range.length), (unit + PAGE, PAGE));
        let mut servers: Vec<_> = range.copies.iter().map(|copy| copy.data_server).collect();
        servers.sort_unstable();
        let mut expected = [id(holder), id(other)];
        expected.sort_unstable();
        assert_eq!(servers, expected);
    });
}

#[test]
fn what_is_in_use_or_away_or_known_to_differ_is_said_to_be_so() {
    simulate_with(11, TWICE, async |world| {
        let data = put_file(world, "f", SIZE).await;
        let pair = holders(world, SIZE);
        scribble(world, pair[1], SIZE, 9000, b"different");
        // Somebody may write at any moment.
        let mut writer = Writer::mount(world, "w", "f").await;
        writer.write(world, 1 << 20, b"x").await;
        let how = compare(world, "f").await;
        assert_eq!((how.differ, how.compared), (0, 0), "{how:?}");
        assert!(why(&how).contains("in use"), "{how:?}");
        assert_eq!(writer.client.recalls().len(), 0, "nobody is disturbed for it");
        writer.write(world, 1 << 20, &data[1 << 20..][..1]).await;
        writer.give_back().await;
        writer.client.close(&writer.file).await;
        assert_eq!(compare(world, "f").await.differ, 1);
        // A data server that is away cannot say what it has, nor become the truth.
        world.crash_data_server(pair[1]).await;
        let how = compare(world, "").await;
        assert_eq!((how.differ, how.compared, how.not_compared[0].files), (0, 0, 1));
        assert_eq!(how.not_compared[0].examples[0].name, &b"f"[..]);
        assert!(why(&how).contains(&format!("data server {} is away", id(pair[1]))), "{how:?}");
        let refused = mend(world, named("f", id(pair[1]))).await.unwrap_err();
        assert!(refused.contains("away"), "{refused}");
        // Written without it, it is known to differ.
        let mut writer = Writer::mount(world, "w2", "f").await;
        writer.write(world, 0, b"y").await;
        writer.give_back().await;
        let how = compare(world, "").await;
        assert!(why(&how).contains("misses writes"), "{how:?}");
        let refused = mend(world, named("f", id(pair[0]))).await.unwrap_err();
        assert!(refused.contains("made equal"), "{refused}");
        world.start_data_server(pair[1]).await;
        let mut model = data;
        put(&mut model, 0, b"y");
        healed(world, "f", &model).await;
        all_equal(world, 1).await;
    });
}

#[test]
fn a_copy_that_is_lost_is_found_and_made_anew() {
    simulate_with(12, TWICE, async |world| {
        let data = put_file(world, "f", SIZE).await;
        let pair = holders(world, SIZE);
        let path = world.data_file_of(pair[0], SIZE as u64);
        world.stop_data_server(pair[0]).await;
        world.device(pair[0]).remove(&path).unwrap();
        world.start_data_server(pair[0]).await;
        world.sleep(Duration::from_secs(30)).await;
        let how = compare(world, "").await;
        let [found] = &how.findings[..] else { panic!("{how:?}") };
        assert_eq!((&found.lost[..], found.ranges, found.by_zeros), (&[id(pair[0])][..], 0, false));
        let refused = mend(world, named("f", id(pair[0]))).await.unwrap_err();
        assert!(refused.contains("does not have it"), "{refused}");
        assert_eq!(mend(world, named("f", id(pair[1]))).await.unwrap().copies, 1);
        healed(world, "f", &data).await;
        all_equal(world, 1).await;
    });
}

#[test]
fn it_is_as_fast_as_it_may_be_and_can_be_stopped() {
    simulate_with(13, TWICE, async |world| {
        put_file(world, "f", SIZE).await;
        assert!(ask(world, ctl_compare_what::COMPARE_LOOK, "", 0).await.unwrap().is_empty());
        assert!(
            ask(world, ctl_compare_what::COMPARE_STOP, "", 0).await.unwrap_err().contains("no comparison")
        );
        assert!(ask(world, ctl_compare_what::COMPARE_BEGIN, "nowhere", 0).await.is_err());
        // Both copies count.
        let began = world.env.clock.now();
        ask(world, ctl_compare_what::COMPARE_BEGIN, "", 500_000).await.unwrap();
        let how = ended(world).await;
        let took = world.env.clock.now().since(began).as_secs();
        assert!((11..16).contains(&took), "{took} s: {how:?}");
        assert_eq!((how.state, how.limit), (ctl_compare_state::COMPARE_DONE, 500_000));
        ask(world, ctl_compare_what::COMPARE_BEGIN, "", 10).await.unwrap();
        world.sleep(Duration::from_secs(5)).await;
        assert!(ask(world, ctl_compare_what::COMPARE_BEGIN, "", 0).await.unwrap_err().contains("already"));
        ask(world, ctl_compare_what::COMPARE_STOP, "", 0).await.unwrap();
        let how = look(world).await;
        assert_eq!((how.state, how.compared), (ctl_compare_state::COMPARE_STOPPED, 0), "{how:?}");
        all_equal(world, 1).await;
        // It is the server's, and ends with it.
        ask(world, ctl_compare_what::COMPARE_BEGIN, "", 10).await.unwrap();
        world.restart_metadata_server().await;
        assert!(ask(world, ctl_compare_what::COMPARE_LOOK, "", 0).await.unwrap().is_empty());
        world.sleep(Duration::from_secs(200)).await;
        all_equal(world, 1).await;
    });
}

/// Clients that hold no layout, and a file with one copy.
#[test]
fn what_has_one_copy_is_passed_by() {
    simulate_with(14, LayoutPolicy { mirrors: 1, ..TWICE }, async |world| {
        put_file(world, "f", SIZE).await;
        let how = compare(world, "").await;
        assert_eq!((how.seen, how.compared, how.not_compared.len()), (1, 0, 0));
        assert!(
            ask(world, ctl_compare_what::COMPARE_BEGIN, "f", 0).await.unwrap_err().contains("no mirrors")
        );
        let client = Client::mount(world, "c", NEW).await;
        let file = client.open("f").await;
        client.layout(&file, file.stateid, RW, 0).await;
        assert!(mend(world, named("f", 1)).await.unwrap_err().contains("no copy"));
        let asked = client.recalls();
        assert!(!asked.is_empty(), "it was asked for its layout before that was looked at");
        assert!(asked.iter().all(|recall| recall == &asked[0]), "{asked:?}");
    });
}
