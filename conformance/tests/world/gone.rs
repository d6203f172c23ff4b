//! What went with a data server that was removed, and is nowhere else: it is said what that is, an error at once, and nobody
//! waits for it any more.

use std::time::Duration;

use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::control::*;
use sluice_xdr::nfs4::nfsstat4;

use crate::audit::page;
use crate::client::Client;
use crate::drain::{drain, drained, number, remove, server};
use crate::lost::{SIZE, TWICE, at_rest, homes};
use crate::mirrors::healed;
use crate::stage::{World, simulate_tuned};
use crate::{NEW, pattern};

const ONCE: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 1, inline: 0, class: None };

/// The table of data files outside of layouts: docs/metadata-schema.md.
const SPARE: u8 = 0x26;

fn simulate(seed: u64, policy: LayoutPolicy, test: impl AsyncFnOnce(&mut World)) {
    simulate_tuned(seed, |config| (config.policy, config.rebuild_after) = (policy, Duration::ZERO), test);
}

/// What files miss.
async fn missed(world: &World) -> Vec<ctl_audit_finding> {
    match page(world, 0, ctl_data_file::default()).await {
        ADMIN_AUDIT_res::CTL_OK(page) => {
            assert!(page.eof && page.skipped == 0, "{page:?}");
            page.findings
        }
        other => panic!("{other:?}"),
    }
}

async fn why(world: &World, path: &str) -> String {
    let args = ADMIN_WHY_args { path: path.to_owned().into(), client: 0 };
    match world.admin(ADMIN_WHY, &args).await {
        ADMIN_WHY_res::CTL_OK(ok) => String::from_utf8(ok.healing.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    }
}

async fn status(world: &World) -> ADMIN_STATUS_resok {
    match world.admin(ADMIN_STATUS, &()).await {
        ADMIN_STATUS_res::CTL_OK(ok) => ok,
        other => panic!("{other:?}"),
    }
}

/// The data server dies, and is removed with all it had, so many files.
async fn lose(world: &mut World, n: usize) -> u64 {
    world.crash_data_server(n).await;
    world.sleep(Duration::from_secs(40)).await;
    drain(world, n, 0).await.unwrap();
    // Long enough that what can go elsewhere would have gone.
    world.sleep(Duration::from_secs(60)).await;
    let files = remove(world, n, true, &[]).await.unwrap().files;
    assert!(remove(world, n, true, &[files]).await.unwrap().removed);
    files
}

#[test]
fn the_only_copy_is_missing_and_keeps_nobody_else() {
    simulate(7, ONCE, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        for n in 0..12_u64 {
            client.put_whole(&format!("f{n}"), &pattern(n, 5000)).await;
        }
        world.sleep(Duration::from_secs(30)).await;
        assert_eq!(missed(world).await, []);
        let lost = lose(world, 3).await;
        assert!(lost > 1 && lost < 12, "{lost}");
        // At once, before anybody has looked for what was to go elsewhere.
        let found = missed(world).await;
        assert_eq!(found.len(), usize::try_from(lost).unwrap());
        for finding in &found {
            assert_eq!((finding.kind, finding.data_server), (ctl_audit_kind::AUDIT_MISSING, number(3)));
            let path = format!("/{}", String::from_utf8_lossy(&finding.name));
            let why = why(world, &path).await;
            assert!(why.contains("data server 4") && why.contains("is lost"), "{path}: {why}");
        }
        // The others may go, one after the other, as long as one is left that takes what is there.
        world.sleep(Duration::from_secs(30)).await;
        for n in [0, 1] {
            drain(world, n, 0).await.unwrap();
            drained(world, n).await;
            assert_eq!(remove(world, n, false, &[]).await.unwrap().files, 0);
        }
        assert_eq!(missed(world).await.len(), found.len());
        let status = status(world).await;
        assert_eq!((status.degraded_files, &status.healing[..]), (0, &b""[..]));
        assert_eq!(world.check().await, 0);
    });
}

/// What is lost is the copy that counts: the other one missed writes.
#[test]
fn a_copy_that_missed_writes_of_what_is_lost_keeps_nobody_either() {
    for mirror in 0..2 {
        simulate(23, TWICE, async |world| {
            let (mut writer, _) = at_rest(world).await;
            let homes = homes(world, &mut writer).await;
            let (gone, old) = (homes[mirror], homes[1 - mirror]);
            world.crash_data_server(old).await;
            world.sleep(Duration::from_secs(40)).await;
            writer.write(world, 0, b"new").await;
            writer.give_back().await;
            assert_eq!(lose(world, gone).await, 1);
            world.start_data_server(old).await;
            world.sleep(Duration::from_secs(90)).await;
            let [missing] = &missed(world).await[..] else { panic!("it is missing") };
            assert_eq!((missing.kind, missing.data_server), (ctl_audit_kind::AUDIT_MISSING, number(gone)));
            let why = why(world, "/f").await;
            assert!(
                why.contains(&format!("data server {}", number(gone))) && why.contains("is lost"),
                "{why}"
            );
            let words = String::from_utf8(status(world).await.healing.to_vec()).unwrap();
            assert_eq!(words, format!("1 lost with data server {}", number(gone)));
            let read = writer.client.try_read(&writer.file, 0, 100).await;
            assert_eq!(read.unwrap_err(), nfsstat4::NFS4ERR_IO, "never what the other one had");
            drain(world, old, 0).await.unwrap();
            for round in 0.. {
                let row = server(world, old).await.unwrap();
                if row.intent == ctl_intent::INTENT_DRAINED {
                    break;
                }
                assert!(round < 60, "not drained: {row:?}");
                world.sleep(Duration::from_secs(1)).await;
            }
            assert_eq!(remove(world, old, false, &[]).await.unwrap().files, 0);
            // Written anew, it is a file like any other.
            writer.client.truncate(&writer.file, 0).await;
            let data = pattern(9, usize::try_from(SIZE).unwrap());
            writer.write(world, 0, &data).await;
            writer.give_back().await;
            assert_eq!(missed(world).await, []);
            healed(world, "f", &data).await;
        });
    }
}

/// What was to take the place of what is lost is removed where it was to be.
#[test]
fn nothing_is_left_of_what_was_to_take_its_place() {
    simulate(31, ONCE, async |world| {
        at_rest(world).await;
        let gone = (0..4).find(|n| world.holds(*n, SIZE)).unwrap();
        assert_eq!(lose(world, gone).await, 1);
        for restart in [false, true] {
            if restart {
                world.restart_metadata_server().await;
            }
            world.sleep(Duration::from_secs(60)).await;
            assert_eq!((world.check().await, world.garbage().await), (0, 0));
            let spares =
                world.rows().await.into_iter().filter(|(key, _)| key.first() == Some(&SPARE)).count();
            assert_eq!(spares, 0);
        }
    });
}

/// Both copies are lost before either was left behind.
#[test]
fn data_servers_that_are_lost_together_are_removed_one_after_the_other() {
    simulate(41, TWICE, async |world| {
        let (mut writer, _) = at_rest(world).await;
        let homes = homes(world, &mut writer).await;
        // One that has another copy.
        let other = writer.client.open("g").await;
        assert_eq!(writer.client.proxied_write(&other, 0, &pattern(1, 5000)).await, nfsstat4::NFS4_OK);
        world.sleep(Duration::from_secs(10)).await;
        for n in &homes {
            world.crash_data_server(*n).await;
        }
        world.sleep(Duration::from_secs(40)).await;
        drain(world, homes[0], 0).await.unwrap();
        // The other one may come back.
        world.sleep(Duration::from_secs(60)).await;
        let why = remove(world, homes[0], true, &[]).await.unwrap_err();
        assert!(why.contains(&format!("data server {}", number(homes[1]))), "{why}");
        drain(world, homes[1], 0).await.unwrap();
        world.sleep(Duration::from_secs(60)).await;
        for (n, with) in [(homes[0], homes[1]), (homes[1], homes[0])] {
            let told = remove(world, n, true, &[]).await.unwrap();
            assert_eq!((told.removed, told.files), (false, 1));
            let reason = String::from_utf8_lossy(&told.examples[0].reason).into_owned();
            assert!(reason.contains(&format!("data server {}", number(with))), "{reason}");
            assert!(remove(world, n, true, &[1]).await.unwrap().removed);
        }
        let found = missed(world).await;
        assert!(
            !found.is_empty() && found.iter().all(|one| one.kind == ctl_audit_kind::AUDIT_MISSING),
            "{found:?}"
        );
        assert!(found.iter().all(|one| &one.name[..] == b"f"), "{found:?}");
        let read = writer.client.try_read(&writer.file, 0, 100).await;
        assert_eq!(read.unwrap_err(), nfsstat4::NFS4ERR_IO);
        assert!(writer.client.proxied_read(&other, 0, 5000).await[..] == pattern(1, 5000)[..]);
        world.sleep(Duration::from_secs(60)).await;
        assert_eq!(world.check().await, 0);
    });
}

/// There is nothing to copy.
#[test]
fn what_is_lost_anyway_needs_no_room_elsewhere() {
    for full in [false, true] {
        simulate(43, ONCE, async |world| {
            let client = Client::mount(world, "a", NEW).await;
            let gone = 3;
            for n in 0_u64.. {
                client.put_whole(&format!("f{n}"), &pattern(n, 50_000)).await;
                if world.data_files(gone) > 0 {
                    break;
                }
            }
            server(world, gone).await;
            world.sleep(Duration::from_secs(60)).await;
            world.crash_data_server(gone).await;
            for n in (0..4).filter(|n| *n != gone) {
                if full {
                    world.device(n).set_capacity(1 << 20);
                } else {
                    world.crash_data_server(n).await;
                }
            }
            world.sleep(Duration::from_secs(60)).await;
            drain(world, gone, 0).await.unwrap();
            world.sleep(Duration::from_secs(60)).await;
            let told = remove(world, gone, true, &[]).await.unwrap();
            assert_eq!((told.removed, told.files), (false, 1));
            assert!(remove(world, gone, true, &[1]).await.unwrap().removed);
        });
    }
}
