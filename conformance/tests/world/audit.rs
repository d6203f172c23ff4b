//! What data servers hold against what the metadata says: what does not fit is found, and nothing else, however busy
//! both are.

use std::time::Duration;

use sluice_namespace::{LayoutPolicy, Shape};
use sluice_store::device::Device;
use sluice_xdr::control::{
    ADMIN_AUDIT, ADMIN_AUDIT_args, ADMIN_AUDIT_res, ADMIN_EVICT, ADMIN_EVICT_args, ADMIN_EVICT_res,
    ADMIN_STATUS, ADMIN_STATUS_res, ctl_audit_finding, ctl_audit_kind, ctl_data_file,
};

use crate::NEW;
use crate::client::Client;
use crate::drain::{drain, number};
use crate::mirrors::Writer;
use crate::pattern;
use crate::rot::{scrub, with_checksums};
use crate::stage::{World, simulate_with};

const TWICE: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 2, inline: 0, class: None };
const ONCE: LayoutPolicy = LayoutPolicy { mirrors: 1, ..TWICE };

pub(crate) async fn page(world: &World, id: u32, after: ctl_data_file) -> ADMIN_AUDIT_res {
    world.admin(ADMIN_AUDIT, &ADMIN_AUDIT_args { id, only: 0, after }).await
}

pub(crate) async fn audit(world: &World) -> Vec<ctl_audit_finding> {
    let mut findings = Vec::new();
    for id in 0..=4 {
        let mut after = ctl_data_file::default();
        loop {
            let page = match page(world, id, after).await {
                ADMIN_AUDIT_res::CTL_OK(page) => page,
                other => panic!("{other:?}"),
            };
            assert_eq!(page.skipped, 0);
            findings.extend(page.findings);
            after = page.next;
            if page.eof {
                break;
            }
        }
    }
    findings
}

/// The folder and the path of a data file, slot 0, as docs/ds-format.md has them.
fn of_nobody(file: u64) -> (String, String) {
    let mut x = file;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let leaf = (x ^ (x >> 31)) % 4096;
    let folder = format!("data/{:x}/{:02x}", leaf >> 8, leaf & 0xff);
    let name = format!("{folder}/{file:016x}-0000");
    (folder, name)
}

async fn put(world: &World, name: &str, length: usize) -> Writer {
    let mut writer = Writer::mount(world, name, name).await;
    writer.write(world, 0, &pattern(0, length)).await;
    writer
}

#[test]
fn what_does_not_fit_is_found() {
    simulate_with(81, TWICE, async |world| {
        for (name, length) in [("a", 100_001), ("b", 200_002), ("c", 50_003)] {
            let mut writer = put(world, name, length).await;
            writer.give_back().await;
            // What is open is not judged by where it ends.
            writer.client.close(&writer.file).await;
        }
        world.sleep(Duration::from_secs(30)).await;
        assert_eq!(audit(world).await, []);
        // One of the mirrors of b is lost, one of a is longer than a, one of c lost its end, and something of nobody is
        // there.
        let holder = |length| (0..4).find(|n| world.holds(*n, length)).unwrap();
        let (a, b, c) = (holder(100_001), holder(200_002), holder(50_003));
        let path = world.data_file_of(a, 100_001);
        world.device(a).open(&path).unwrap().write_at(b"more", 100_001).unwrap();
        let (folder, name) = of_nobody(0x7000);
        for folder in [folder.rsplit_once('/').unwrap().0, &folder[..]] {
            // It may be there.
            let _ = world.device(a).create_dir(folder);
        }
        world.device(a).create(&name).unwrap().write_at(b"whose?", 0).unwrap();
        world.device(c).open(&world.data_file_of(c, 50_003)).unwrap().set_len(40_000).unwrap();
        let gone = world.data_file_of(b, 200_002);
        world.stop_data_server(b).await;
        world.device(b).remove(&gone).unwrap();
        world.start_data_server(b).await;
        world.sleep(Duration::from_secs(30)).await;
        let mut found = audit(world).await;
        found.sort_by_key(|f| f.kind.0);
        let [orphan, missing, beyond, unequal] = &found[..] else { panic!("{found:?}") };
        assert_eq!(
            (orphan.kind, orphan.file.file, orphan.size, orphan.owner),
            (ctl_audit_kind::AUDIT_NO_OWNER, 0x7000, 6, 0)
        );
        assert_eq!((missing.kind, &missing.name[..]), (ctl_audit_kind::AUDIT_MISSING, &b"b"[..]));
        assert_eq!((beyond.kind, &beyond.name[..]), (ctl_audit_kind::AUDIT_BEYOND, &b"a"[..]));
        assert_eq!((beyond.size, beyond.expected), (100_005, 100_001));
        assert_eq!((unequal.kind, &unequal.name[..]), (ctl_audit_kind::AUDIT_UNEQUAL, &b"c"[..]));
        assert_eq!((unequal.size, unequal.expected), (40_000, 50_003));
    });
}

#[test]
fn what_is_in_quarantine_is_found() {
    simulate_with(83, ONCE, async |world| {
        with_checksums(world).await;
        for (name, length) in [("a", 100_001), ("b", 200_002)] {
            put(world, name, length).await.give_back().await;
        }
        world.sleep(Duration::from_secs(60)).await;
        scrub(world).await;
        assert_eq!(audit(world).await, []);
        let n = (0..4).find(|n| world.holds(*n, 200_002)).unwrap();
        let path = world.data_file_of(n, 200_002);
        world.device(n).rot(&path, 1_000);
        world.device(n).rot(&path, 150_000);
        scrub(world).await;
        world.sleep(Duration::from_secs(10)).await;
        let found = audit(world).await;
        let [damaged] = &found[..] else { panic!("{found:?}") };
        assert_eq!((damaged.kind, &damaged.name[..]), (ctl_audit_kind::AUDIT_DAMAGED, &b"b"[..]));
        assert_eq!(damaged.expected, 2);
    });
}

/// The data server is there: it is told what it is not to serve any more, and nothing is left of that.
#[test]
fn a_mirror_that_rotted_leaves_no_fence_behind() {
    simulate_with(89, TWICE, async |world| {
        with_checksums(world).await;
        put(world, "a", 200_002).await.give_back().await;
        world.sleep(Duration::from_secs(60)).await;
        let n = (0..4).find(|n| world.holds(*n, 200_002)).unwrap();
        let path = world.data_file_of(n, 200_002);
        world.device(n).rot(&path, 1_000);
        scrub(world).await;
        world.sleep(Duration::from_secs(60)).await;
        assert_eq!(audit(world).await, []);
    });
}

#[test]
fn who_does_not_answer_is_not_taken_for_empty() {
    simulate_with(84, ONCE, async |world| {
        put(world, "a", 100_001).await.give_back().await;
        world.sleep(Duration::from_secs(30)).await;
        let n = (0..4).find(|n| world.holds(*n, 100_001)).unwrap();
        world.mute(n, true);
        world.sleep(Duration::from_secs(15)).await;
        let (mut silent, mut skipped) = (0, 0);
        for id in 0..=4 {
            match page(world, id, ctl_data_file::default()).await {
                ADMIN_AUDIT_res::CTL_OK(page) => {
                    assert_eq!(page.findings, []);
                    skipped += page.skipped;
                }
                ADMIN_AUDIT_res::Default(_, why) => {
                    assert_eq!(&why[..], format!("data server {id} does not answer").as_bytes());
                    silent += 1;
                }
            }
        }
        assert_eq!((silent, skipped), (1, 1));
        // Of one data server alone, too.
        for m in 0..4 {
            let args = ADMIN_AUDIT_args { id: 0, only: number(m), after: ctl_data_file::default() };
            let ADMIN_AUDIT_res::CTL_OK(page) = world.admin(ADMIN_AUDIT, &args).await else { panic!() };
            let here = u64::from(m == n);
            assert_eq!((page.examined, page.skipped), (here, here));
        }
        world.mute(n, false);
        world.sleep(Duration::from_secs(30)).await;
        assert_eq!(audit(world).await, []);
    });
}

/// What is found at the n-th data server.
async fn first(world: &World, n: usize) -> Vec<ctl_audit_finding> {
    match page(world, number(n), ctl_data_file::default()).await {
        ADMIN_AUDIT_res::CTL_OK(page) => page.findings,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_changes_between_two_looks_is_on_its_way() {
    simulate_with(85, ONCE, async |world| {
        let mut writer = put(world, "a", 100_001).await;
        writer.give_back().await;
        writer.client.close(&writer.file).await;
        world.sleep(Duration::from_secs(30)).await;
        let n = (0..4).find(|n| world.holds(*n, 100_001)).unwrap();
        let path = world.data_file_of(n, 100_001);
        let at_length = |length| world.device(n).open(&path).unwrap().set_len(length).unwrap();
        // Too long at first; then not, or otherwise too long; and in the end it stays so.
        for (then, findings) in [(100_001, 0), (100_009, 0), (100_005, 1)] {
            at_length(100_005);
            let later = async {
                world.sleep(Duration::from_secs(1)).await;
                at_length(then);
            };
            let (found, ()) = tokio::join!(first(world, n), later);
            assert_eq!(found.len(), findings, "{then}: {found:?}");
        }
    });
}

#[test]
fn what_is_written_and_not_yet_told_is_no_finding() {
    simulate_with(86, ONCE, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let (file, layout) = client.open_with_layout("f").await;
        client.write(&layout, 0, &pattern(0, 70_007)).await.unwrap();
        assert_eq!(audit(world).await, []);
        client.layout_commit(&file, layout.stateid, Some(70_006)).await.unwrap();
        assert_eq!(audit(world).await, []);
    });
}

#[test]
fn what_waits_to_be_removed_has_an_owner() {
    simulate_with(87, ONCE, async |world| {
        let mut writer = put(world, "a", 100_001).await;
        writer.give_back().await;
        writer.client.close(&writer.file).await;
        let n = (0..4).find(|n| world.holds(*n, 100_001)).unwrap();
        // It cannot be removed for good.
        world.device(n).fail_syncs(u32::MAX);
        writer.client.remove("a").await;
        world.sleep(Duration::from_secs(5)).await;
        assert!(world.data_files(n) > 0);
        assert_eq!(first(world, n).await, []);
        world.device(n).fail_syncs(0);
        world.sleep(Duration::from_secs(60)).await;
        assert_eq!(world.data_files(n), 0);
    });
}

#[test]
fn a_fence_that_is_not_confirmed_is_found() {
    simulate_with(88, ONCE, async |world| {
        let stubborn = Client::mount(world, "stubborn", NEW).await;
        let (_, layout) = stubborn.open_with_layout("f").await;
        stubborn.write(&layout, 0, &pattern(0, 70_007)).await.unwrap();
        let n = (0..4).find(|n| world.holds(*n, 70_007)).unwrap();
        world.device(n).fail_syncs(u32::MAX);
        let clients = match world.admin(ADMIN_STATUS, &()).await {
            ADMIN_STATUS_res::CTL_OK(status) => status.clients,
            other => panic!("{other:?}"),
        };
        let evict = ADMIN_EVICT_args { client: clients[0].client };
        let _: ADMIN_EVICT_res = world.admin(ADMIN_EVICT, &evict).await;
        world.sleep(Duration::from_secs(5)).await;
        let found = first(world, n).await;
        // Off the file that it holds, and off all that it had.
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().all(|fence| fence.kind == ctl_audit_kind::AUDIT_FENCE && fence.holder != 0));
        // While it is looked for again it comes.
        let later = async {
            world.sleep(Duration::from_secs(4)).await;
            world.device(n).fail_syncs(0);
        };
        let (found, ()) = tokio::join!(first(world, n), later);
        assert_eq!(found, []);
    });
}

#[test]
fn nothing_on_its_way_is_a_finding() {
    simulate_with(82, TWICE, async |world| {
        let world = &*world;
        let done = std::cell::Cell::new(false);
        let work = async {
            for round in 0..25u64 {
                let name = format!("f{round}");
                let mut writer = put(world, &name, 10_000 + 7_000 * round as usize).await;
                if round % 2 == 0 {
                    writer.give_back().await;
                }
                if round % 3 == 0 {
                    // Through the metadata server, beyond the end.
                    let far = 500_000 + round;
                    writer.client.proxied_write(&writer.file, far, b"far").await;
                }
                if round == 10 {
                    drain(world, 2, 0).await.unwrap();
                }
                if round % 5 < 3 {
                    writer.give_back().await;
                    writer.client.close(&writer.file).await;
                    let client = Client::mount(world, &format!("r{round}"), NEW).await;
                    client.remove(&name).await;
                }
                world.sleep(Duration::from_millis(700)).await;
            }
            done.set(true);
        };
        let look = async {
            let mut audits = 0;
            while !done.get() {
                assert_eq!(audit(world).await, []);
                audits += 1;
                world.sleep(Duration::from_millis(500)).await;
            }
            assert!(audits > 10, "{audits}");
        };
        tokio::join!(work, look);
        world.sleep(Duration::from_secs(60)).await;
        assert_eq!(audit(world).await, []);
    });
}
