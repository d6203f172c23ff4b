//! Checksums at rest: what rots is found and shown to nobody, what does not is never called bad, whatever crashes when.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::summed::*;
use common::{access, bytes, key, simulate};
use proptest::prelude::*;
use sluice_env::Env;
use sluice_store::device::{Device, FileDevice, MemDevice};
use sluice_store::{Access, Epoch, Options, Reflink, Stability, Store, StoreError, SumOptions, Transfer};

#[test]
fn what_rots_is_found_and_shown_to_nobody_until_it_is_rewritten() {
    simulate(async |env| {
        let device = MemDevice::new();
        let mut store = open(&env, &device).await;
        put(&store, 1, 0, 7, 3 << 20).await;
        put(&store, 2, REGION, 8, 10_000).await;
        rest(&env, &store, 30).await;
        scrub(&env, &store).await;
        let clean = store.scrubbed();
        assert_eq!((clean.bad, clean.quarantined, clean.compared), (0, 0, (3 << 20) + 10_000));
        device.rot(&path(&device, key(1), ""), 5 * BLOCK + 17);
        device.rot(&path(&device, key(2), ""), REGION + 9_999);
        scrub(&env, &store).await;
        let all = [damage(1, 5 * BLOCK, 1), damage(2, REGION + 2 * BLOCK, 1)];
        for _ in 0..2 {
            assert_eq!(store.damaged().1, all);
            assert!(is_refused(&store.read_at(key(1), 5 * BLOCK, 1).await));
            assert!(is_refused(&store.read_at(key(1), 0, 1 << 20).await));
            assert!(!store.read_now(key(1), 5 * BLOCK, &mut [0; 4]));
            assert_eq!(store.read_at(key(1), 6 * BLOCK, 10).await.unwrap().data, bytes(7, 10));
            let copy = Transfer {
                source: key(1),
                source_offset: 0,
                must_exist: true,
                target: key(9),
                generation: 0,
                offset: 0,
                length: 1 << 20,
            };
            assert!(is_refused(&store.transfer(copy).await));
            assert!(is_refused(&store.reflink(Reflink { base: None, range: copy }).await));
            device.crash();
            drop(store);
            store = open(&env, &device).await;
        }
        // A part of the block does not make it whole; nor does what a crash takes back.
        let part = store.write_at(&access(1), 5 * BLOCK + 100, bytes(9, 100), Stability::FileSync).await;
        assert!(is_refused(&part), "{part:?}");
        store.write_at(&access(1), 5 * BLOCK, bytes(9, BLOCK as usize), Stability::Unstable).await.unwrap();
        assert_eq!(store.read_at(key(1), 5 * BLOCK, 1).await.unwrap().data, bytes(9, 1));
        device.crash();
        drop(store);
        store = open(&env, &device).await;
        assert_eq!(store.damaged().1, all);
        // Durable, it does; the last block of a file is whole where the file ends.
        put(&store, 1, 5 * BLOCK, 9, BLOCK as usize).await;
        put(&store, 2, REGION + 2 * BLOCK, 9, 10_000 - 2 * BLOCK as usize).await;
        device.crash();
        drop(store);
        store = open(&env, &device).await;
        assert_eq!(store.damaged().1, []);
        assert_eq!(store.read_at(key(1), 5 * BLOCK, 1).await.unwrap().data, bytes(9, 1));
        rest(&env, &store, 30).await;
        scrub(&env, &store).await;
        assert_eq!(store.damaged().1, []);
    });
}

#[test]
fn what_rots_beside_a_write_is_found_when_the_region_comes_to_rest() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await;
        put(&store, 1, 0, 7, 1 << 20).await;
        rest(&env, &store, 30).await;
        device.rot(&path(&device, key(1), ""), 70 * BLOCK);
        put(&store, 1, 0, 8, 1).await;
        put(&store, 1, 20 * BLOCK, 8, BLOCK as usize).await;
        assert_eq!(store.scrubbed().unsealed, 1, "one flush for a region, however many writes");
        assert_eq!(store.damaged().1, [], "nobody looked yet");
        rest(&env, &store, 30).await;
        assert_eq!(store.damaged().1, [damage(1, 70 * BLOCK, 1)]);
        // It keeps the sum of what it should hold.
        scrub(&env, &store).await;
        assert_eq!(store.damaged().1, [damage(1, 70 * BLOCK, 1)]);
        device.rot(&path(&device, key(1), ""), 70 * BLOCK);
        scrub(&env, &store).await;
        assert_eq!(store.damaged().1, [], "the medium gave it back");
        assert_eq!(store.read_at(key(1), 70 * BLOCK, 1).await.unwrap().data, bytes(7, 1));
    });
}

#[test]
fn truncation_holes_and_removal() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await;
        for file in 1..=5 {
            put(&store, file, 0, 7, 2 * REGION as usize).await;
        }
        rest(&env, &store, 30).await;
        for file in 1..=5 {
            device.rot(&path(&device, key(file), ""), REGION + 9 * BLOCK);
        }
        scrub(&env, &store).await;
        assert_eq!(store.damaged().1.len(), 5);
        store.truncate(key(1), REGION).await.unwrap();
        store.truncate(key(1), 3 * REGION).await.unwrap();
        store.deallocate(key(2), REGION, REGION).await.unwrap();
        store.deallocate(key(3), REGION + 9 * BLOCK, 10).await.unwrap();
        store.remove(&[(key(4), 0)], Epoch(1)).await.unwrap();
        store.truncate(key(5), REGION + 9 * BLOCK + 5).await.unwrap();
        assert_eq!(store.damaged().1, [damage(3, REGION + 9 * BLOCK, 1), damage(5, REGION + 9 * BLOCK, 1)]);
        rest(&env, &store, 30).await;
        scrub(&env, &store).await;
        let left = store.damaged().1;
        assert_eq!(left, [damage(3, REGION + 9 * BLOCK, 1), damage(5, REGION + 9 * BLOCK, 1)]);
        assert!(device.list("data").unwrap().iter().all(|middle| {
            let leaves = device.list(&format!("data/{middle}")).unwrap();
            leaves.iter().all(|leaf| {
                let names = device.list(&format!("data/{middle}/{leaf}")).unwrap();
                names.iter().all(|name| !name.starts_with(&key(4).to_string()))
            })
        }));
        // What was lost whole is bad, too.
        let file = device.open(&path(&device, key(3), "")).unwrap();
        file.set_len(REGION).unwrap();
        scrub(&env, &store).await;
        assert_eq!(store.damaged().1[0], damage(3, REGION, 1024));
    });
}

/// What is rewritten may be read at once, and is bad again if it is lost: whatever else was made durable meanwhile.
#[test]
fn what_was_rewritten_is_good_once_it_is_durable() {
    simulate(async |env| {
        for durable in [false, true] {
            let device = MemDevice::new();
            let mut store = open(&env, &device).await;
            for file in 1..=3 {
                put(&store, file, 0, 7, 2 * BLOCK as usize).await;
            }
            rest(&env, &store, 30).await;
            device.rot(&path(&device, key(1), ""), 17);
            device.rot(&path(&device, key(2), ""), 17);
            scrub(&env, &store).await;
            assert_eq!(store.damaged().1, [damage(1, 0, 1), damage(2, 0, 1)]);
            for file in [1, 2] {
                // More than was bad: what was good stays that.
                let data = bytes(9, 2 * BLOCK as usize);
                store.write_at(&access(file), 0, data.clone(), Stability::Unstable).await.unwrap();
                assert_eq!(store.read_at(key(file), 0, 2 * BLOCK as usize).await.unwrap().data, data);
            }
            assert_eq!(store.damaged().1, []);
            // Of others: of one that was rewritten, too, and of one that turns out to be bad.
            store.commit(key(2)).await.unwrap();
            device.rot(&path(&device, key(3), ""), 17);
            scrub(&env, &store).await;
            if durable {
                store.commit(key(1)).await.unwrap();
            }
            drop(store);
            device.crash();
            store = open(&env, &device).await;
            let read = store.read_at(key(1), 0, BLOCK as usize).await;
            assert_eq!(is_refused(&read), !durable);
            let bad = if durable { vec![damage(3, 0, 1)] } else { vec![damage(1, 0, 1), damage(3, 0, 1)] };
            assert_eq!(store.damaged().1, bad);
            assert_eq!(store.read_at(key(2), 0, 1).await.unwrap().data, bytes(9, 1));
        }
    });
}

/// The system lets go of what it could not write, and says so once: the next flush has nothing to write.
#[test]
fn what_was_rewritten_is_bad_again_when_its_flush_fails() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await;
        put(&store, 1, 0, 7, 3 * BLOCK as usize).await;
        rest(&env, &store, 30).await;
        for block in [0, 2] {
            device.rot(&path(&device, key(1), ""), block * BLOCK + 17);
        }
        scrub(&env, &store).await;
        let all = [damage(1, 0, 1), damage(1, 2 * BLOCK, 1)];
        assert_eq!(store.damaged().1, all);
        let data = bytes(9, BLOCK as usize);
        store.write_at(&access(1), 0, data.clone(), Stability::Unstable).await.unwrap();
        assert_eq!(store.read_at(key(1), 0, 10).await.unwrap().data, bytes(9, 10));
        device.fail_syncs(1);
        let commit = store.commit(key(1)).await;
        assert!(matches!(commit, Err(StoreError::Io(_))), "{commit:?}");
        let read = store.read_at(key(1), 0, 10).await;
        assert!(is_refused(&read), "{read:?}");
        rest(&env, &store, 30).await;
        scrub(&env, &store).await;
        assert_eq!(store.damaged().1, all, "it has no sum of what nobody wrote");
        assert!(is_refused(&store.read_at(key(1), 0, 10).await));
        // As clients send again what was lost.
        put(&store, 1, 0, 9, BLOCK as usize).await;
        assert_eq!(store.damaged().1, all[1..]);
        // The same of what is cut off, though the file has become shorter by that.
        device.fail_syncs(1);
        store.truncate(key(1), BLOCK).await.unwrap_err();
        assert_eq!(store.damaged().1, all[1..]);
        store.truncate(key(1), BLOCK).await.unwrap();
        assert_eq!(store.damaged().1, []);
        device.crash();
        drop(store);
        let store = open(&env, &device).await;
        rest(&env, &store, 30).await;
        scrub(&env, &store).await;
        assert_eq!(store.damaged().1, []);
        assert_eq!(store.read_at(key(1), 0, BLOCK as usize).await.unwrap().data, data);
    });
}

/// Pages that are just being sent stay in memory though they could not be written, and nobody tells them from others.
#[test]
fn sums_of_what_a_flush_failed_to_write_are_of_what_the_device_holds() {
    simulate(async |env| {
        let device = MemDevice::new();
        device.keep_failed(true);
        let mut store = open(&env, &device).await;
        put(&store, 1, 0, 7, 3 * BLOCK as usize).await;
        rest(&env, &store, 30).await;
        store.write_at(&access(1), 0, bytes(9, BLOCK as usize), Stability::Unstable).await.unwrap();
        device.fail_syncs(1);
        store.commit(key(1)).await.unwrap_err();
        assert_eq!(store.read_at(key(1), 0, 10).await.unwrap().data, bytes(9, 10), "from memory");
        rest(&env, &store, 30).await;
        assert_eq!(store.scrubbed().sealed, 6 * BLOCK);
        scrub(&env, &store).await;
        assert_eq!(store.damaged().1, [], "the device holds what it held");
        device.crash();
        drop(store);
        store = open(&env, &device).await;
        assert_eq!(store.read_at(key(1), 0, 10).await.unwrap().data, bytes(7, 10));
    });
}

/// As a host has it that starts without one of its own.
#[test]
fn a_clock_that_was_ahead_does_not_end_scrubbing() {
    simulate(async |env| {
        let device = MemDevice::new();
        drop(open(&env, &device).await);
        let later = env.clock.wall().seconds + (1 << 30);
        let ended =
            format!("sluice scrub 1\nrunning 0\nbegun 5\nfinished {later}\nfolders 4096\ncompared 0\n");
        device.create("scrub").unwrap().write_at(ended.as_bytes(), 0).unwrap();
        let sums = SumOptions { interval: Duration::from_secs(3600), ..summed().sums };
        let store = Store::open(&env, Arc::new(device), Options { sums, ..summed() }).await.unwrap();
        assert_eq!(store.scrubbed().finished, later);
        rest(&env, &store, 3000).await;
        assert_eq!(store.scrubbed().finished, later, "it is not time yet");
        rest(&env, &store, 1000).await;
        assert!((1..=env.clock.wall().seconds).contains(&store.scrubbed().finished));
    });
}

#[test]
fn a_scrub_that_has_just_begun_goes_on_after_a_crash() {
    simulate(async |env| {
        let device = MemDevice::new();
        let slow = Options { sums: SumOptions { rate: 1 << 20, ..summed().sums }, ..summed() };
        let start = || Store::open(&env, Arc::new(device.clone()), slow.clone());
        let mut store = start().await.unwrap();
        put(&store, 1, 0, 7, 12 << 20).await;
        rest(&env, &store, 60).await;
        assert!(store.scrub());
        let begun = store.scrubbed().begun;
        rest(&env, &store, 3).await;
        assert!(store.scrubbed().running);
        device.crash();
        drop(store);
        store = start().await.unwrap();
        assert_eq!((store.scrubbed().running, store.scrubbed().begun), (true, begun));
        rest(&env, &store, 60).await;
        assert!(store.scrubbed().finished >= begun);
    });
}

/// Somebody wrote a byte very far out.
#[test]
fn holes_of_any_length_cost_nothing() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await;
        put(&store, 1, 0, 7, BLOCK as usize).await;
        put(&store, 1, 1 << 60, 8, BLOCK as usize).await;
        rest(&env, &store, 30).await;
        scrub(&env, &store).await;
        assert!(store.scrubbed().compared > 2 * BLOCK, "both ends");
        device.rot(&path(&device, key(1), ""), 1 << 60);
        scrub(&env, &store).await;
        assert_eq!(store.damaged().1, [damage(1, 1 << 60, 1)]);
        store.deallocate(key(1), 0, 1 << 61).await.unwrap();
        store.truncate(key(1), 5).await.unwrap();
        assert_eq!(store.damaged().1, []);
    });
}

#[test]
fn sums_are_given_up_durably_before_the_first_byte_changes() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await;
        put(&store, 1, 0, 7, 1 << 20).await;
        rest(&env, &store, 30).await;
        // The side file reaches the medium, as it may at any time.
        device.open(&path(&device, key(1), ".sums")).unwrap().sync_data().unwrap();
        device.sync_dir(path(&device, key(1), "").rsplit_once('/').unwrap().0).unwrap();
        device.fail_syncs(1);
        let write = store.write_at(&access(1), 0, bytes(8, 10), Stability::Unstable).await;
        assert!(matches!(write, Err(StoreError::Io(_))), "{write:?}");
        assert_eq!(store.read_at(key(1), 0, 1).await.unwrap().data, bytes(7, 1), "nothing has changed");
        // What memory says of the failed attempt is not believed.
        store.write_at(&access(1), 0, bytes(8, 10), Stability::Unstable).await.unwrap();
        device.crash_keeping(|| true);
        drop(store);
        let store = open(&env, &device).await;
        scrub(&env, &store).await;
        assert_eq!(store.damaged().1, []);
        assert_eq!(store.read_at(key(1), 0, 1).await.unwrap().data, bytes(8, 1));
    });
}

#[test]
fn switched_off_and_on_again() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await;
        put(&store, 1, 0, 7, 1 << 20).await;
        rest(&env, &store, 30).await;
        let side = device.open(&path(&device, key(1), ".sums")).unwrap();
        let mut old = vec![0; 5000];
        let length = side.read_at(&mut old, 0).unwrap();
        device.rot(&path(&device, key(1), ""), 0);
        scrub(&env, &store).await;
        assert_eq!(store.damaged().1, [damage(1, 0, 1)]);
        device.crash_keeping(|| true);
        drop(store);
        let off = Options { checksums: Some(false), ..summed() };
        let store = Store::open(&env, Arc::new(device.clone()), off).await.unwrap();
        assert!(!store.scrub() && !store.scrubbed().on);
        rest(&env, &store, 1).await;
        let folder = path(&device, key(1), "").rsplit_once('/').unwrap().0.to_owned();
        assert_eq!(device.list(&folder).unwrap(), [key(1).to_string()]);
        let superblock = device.open("superblock").unwrap();
        let mut text = [0; 30];
        superblock.read_at(&mut text, 0).unwrap();
        assert!(text.starts_with(b"sluice data store\nformat 1\n"), "the release before reads it");
        put(&store, 1, 0, 8, 100).await;
        device.crash_keeping(|| true);
        drop(store);
        // Sums from before, as a backup might bring them back, say nothing about what was written meanwhile.
        device.create(&format!("{folder}/{}.sums", key(1))).unwrap().write_at(&old[..length], 0).unwrap();
        let store = open(&env, &device).await;
        scrub(&env, &store).await;
        rest(&env, &store, 30).await;
        assert_eq!((store.damaged().1, store.scrubbed().sealed), (vec![], 1 << 20));
        device.rot(&path(&device, key(1), ""), 0);
        // Not said again, it stays on.
        device.crash_keeping(|| true);
        drop(store);
        let store = Store::open(&env, Arc::new(device.clone()), Options { checksums: None, ..summed() })
            .await
            .unwrap();
        scrub(&env, &store).await;
        assert_eq!(store.damaged().1, [damage(1, 0, 1)]);
    });
}

/// 9000 bytes, as one mirror is filled from the other.
fn from_2_to_1() -> Transfer {
    Transfer {
        source: key(2),
        source_offset: 0,
        must_exist: true,
        target: key(1),
        generation: 0,
        offset: 0,
        length: 9000,
    }
}

/// As after a check of the file system, which found its way back to the sums only.
#[test]
fn a_file_that_was_lost_and_comes_again_has_no_sums_of_the_one_before() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await;
        put(&store, 1, 0, 7, 1 << 20).await;
        rest(&env, &store, 30).await;
        drop(store);
        let lost = path(&device, key(1), "");
        device.remove(&lost).unwrap();
        device.sync_dir(lost.rsplit_once('/').unwrap().0).unwrap();
        let store = open(&env, &device).await;
        // As it is filled from its mirror.
        put(&store, 2, 0, 8, 9000).await;
        store.transfer(from_2_to_1()).await.unwrap();
        store.commit(key(1)).await.unwrap();
        drop(store);
        let store = open(&env, &device).await;
        scrub(&env, &store).await;
        assert_eq!((store.damaged().1, store.scrubbed().bad), (vec![], 0));
        assert_eq!(store.read_at(key(1), 0, 9000).await.unwrap().data, bytes(8, 9000));
    });
}

/// What is filled is opened as if it might not be there.
#[test]
fn a_file_that_is_filled_after_a_restart_keeps_its_sums() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await;
        put(&store, 1, 0, 7, 2 * REGION as usize).await;
        put(&store, 2, 0, 8, 9000).await;
        rest(&env, &store, 30).await;
        drop(store);
        let store = open(&env, &device).await;
        let side = path(&device, key(1), ".sums");
        let before = device.stat(&side).unwrap().size;
        store.transfer(from_2_to_1()).await.unwrap();
        assert_eq!(device.stat(&side).unwrap().size, before);
    });
}

#[test]
fn a_write_that_failed_leaves_its_file_with_sums() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await;
        put(&store, 1, 0, 7, 1 << 20).await;
        rest(&env, &store, 30).await;
        device.set_longest(1 << 20);
        let failed =
            store.write_at(&access(1), BLOCK, bytes(8, 4 << 20), Stability::Unstable).await.unwrap_err();
        assert!(matches!(failed, StoreError::TooBig), "{failed}");
        device.set_longest(1 << 40);
        rest(&env, &store, 30).await;
        let before = store.scrubbed().compared;
        scrub(&env, &store).await;
        let compared = store.scrubbed().compared - before;
        assert!(compared >= 1 << 20, "{compared} bytes have sums");
        assert_eq!(store.damaged().1, []);
    });
}

/// What is to be saved beside it is others' business.
#[test]
fn a_flush_does_not_fail_for_the_list_of_what_others_have_lost() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await;
        put(&store, 1, 0, 7, 2 * BLOCK as usize).await;
        rest(&env, &store, 30).await;
        device.rot(&path(&device, key(1), ""), 17);
        scrub(&env, &store).await;
        assert_eq!(store.damaged().1.len(), 1);
        store.write_at(&access(2), 0, bytes(8, 9000), Stability::Unstable).await.unwrap();
        let before = store.commit(key(2)).await.unwrap();
        store.write_at(&access(2), 0, bytes(9, 9000), Stability::Unstable).await.unwrap();
        store.remove(&[(key(1), 0)], Epoch(1)).await.unwrap();
        // Nothing more can be opened.
        device.set_descriptors(device.all_opened());
        assert_eq!(store.commit(key(2)).await.unwrap(), before);
        assert_eq!(store.flush_failures(), 0);
        device.set_descriptors(1000);
        store.write_at(&access(2), 0, bytes(8, 9000), Stability::FileSync).await.unwrap();
        drop(store);
        device.crash();
        assert_eq!(open(&env, &device).await.damaged().1, [], "it was saved in the end");
    });
}

#[test]
fn a_file_that_comes_again_has_no_sums_of_the_one_before() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await;
        put(&store, 1, 0, 7, 1 << 20).await;
        rest(&env, &store, 30).await;
        store.remove(&[(key(1), 0)], Epoch(1)).await.unwrap();
        let again = Access { generation: 1, ..access(1) };
        store.write_at(&again, 0, bytes(8, 9000), Stability::FileSync).await.unwrap();
        scrub(&env, &store).await;
        rest(&env, &store, 30).await;
        scrub(&env, &store).await;
        assert_eq!((store.damaged().1, store.scrubbed().compared), (vec![], 9000));
    });
}

#[test]
fn damaged_sums_are_made_anew_and_say_nothing_about_data() {
    simulate(async |env| {
        let device = MemDevice::new();
        let store = open(&env, &device).await;
        put(&store, 1, 0, 7, 1 << 20).await;
        rest(&env, &store, 30).await;
        device.rot(&path(&device, key(1), ".sums"), 600);
        scrub(&env, &store).await;
        assert_eq!((store.scrubbed().lost, store.damaged().1.len()), (1, 0));
        rest(&env, &store, 30).await;
        scrub(&env, &store).await;
        assert_eq!((store.scrubbed().lost, store.scrubbed().compared), (1, 1 << 20));
    });
}

/// More of them than may be open at once wait for sums: each is closed before its turn has come again.
#[test]
fn any_number_of_files_gets_sums_and_clients_keep_theirs_open() {
    simulate(async |env| {
        let device = MemDevice::new();
        let few = Options { open_files: 16, ..summed() };
        let store = Store::open(&env, Arc::new(device.clone()), few.clone()).await.unwrap();
        for file in 1..=64 {
            put(&store, file, 0, 7, 100).await;
        }
        rest(&env, &store, 600).await;
        assert_eq!(store.scrubbed().sealed, 6400);
        scrub(&env, &store).await;
        assert_eq!((store.scrubbed().compared, store.damaged().1), (6400, vec![]));
        // What was opened only to be looked at is closed again.
        drop(store);
        let store = Store::open(&env, Arc::new(device.clone()), few).await.unwrap();
        let open = device.all_opened();
        scrub(&env, &store).await;
        assert_eq!(device.all_opened(), open);
    });
}

/// Each of them asks the device for something.
#[test]
fn files_that_get_sums_are_opened_within_the_rate() {
    simulate(async |env| {
        let device = MemDevice::new();
        let slow = SumOptions { rate: 1 << 20, ..summed().sums };
        let options = Options { open_files: 16, sums: slow, ..summed() };
        let store = Store::open(&env, Arc::new(device), options).await.unwrap();
        for file in 1..=320 {
            put(&store, file, 0, 7, 1).await;
        }
        // 16 in a second.
        let look = async {
            env.clock.sleep(Duration::from_secs(5)).await;
            let sealed = store.scrubbed().sealed;
            env.clock.sleep(Duration::from_secs(10)).await;
            store.scrubbed().sealed - sealed
        };
        let ((), more) = tokio::join!(rest(&env, &store, 60), look);
        assert!((140..=170).contains(&more), "{more} in 10 s");
        assert_eq!(store.scrubbed().sealed, 320);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]
    /// Whatever is written, cut, copied and lost in whatever order: nothing is ever called bad.
    #[test]
    fn nothing_good_is_ever_called_bad(seed in any::<u64>(), steps in 10usize..60) {
        simulate(async move |env| {
            let mut state = seed | 1;
            let mut draw = move || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state
            };
            let device = MemDevice::new();
            let mut store = open(&env, &device).await;
            // A record spans two pages: a crash that keeps one of them tears sums that were being sealed.
            let mut torn = false;
            for _ in 0..steps {
                let file = draw() % 3;
                let at = (draw() % 5 / 3) * REGION + draw() % (20 * BLOCK);
                let at = if draw() % 2 == 0 { at } else { at / BLOCK * BLOCK };
                let length = (draw() % (3 * BLOCK) + 1) as usize;
                match draw() % 12 {
                    0..=2 => {
                        let data = bytes(draw() as u8, length);
                        store.write_at(&access(file), at, data, Stability::Unstable).await.unwrap();
                    }
                    3 => put(&store, file, at, draw() as u8, length).await,
                    4 => store.truncate(key(file), at).await.unwrap(),
                    5 => store.deallocate(key(file), at, length as u64).await.unwrap(),
                    6 => {
                        let target = key((file + 1) % 3);
                        let range = Transfer {
                            source: key(file), source_offset: at, must_exist: false, target, generation: 0,
                            offset: at / 2, length: length as u64,
                        };
                        store.transfer(range).await.unwrap();
                    }
                    7 => drop(store.commit(key(file)).await),
                    8 | 9 => rest(&env, &store, draw() % 30).await,
                    10 => scrub(&env, &store).await,
                    _ => {
                        let mut coin = draw();
                        let kind = draw() % 3;
                        torn |= kind == 1;
                        device.crash_keeping(|| {
                            coin = coin.rotate_left(1);
                            kind == 0 || (kind == 1 && coin & 1 == 1)
                        });
                        drop(store);
                        store = open(&env, &device).await;
                    }
                }
            }
            rest(&env, &store, 30).await;
            scrub(&env, &store).await;
            let found = store.scrubbed();
            assert_eq!(store.damaged().1, vec![]);
            assert!(torn || found.lost == 0, "{} sums lost", found.lost);
        });
    }
}

/// The real thing, without waiting: on a directory, with threads, while others write.
#[allow(clippy::disallowed_methods, reason = "in real time")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_a_directory_while_others_write() {
    let env = Env::system();
    let dir = tempfile::tempdir().unwrap();
    let device = Arc::new(FileDevice::new(dir.path()).unwrap());
    let sums = SumOptions { quiet: Duration::ZERO, rate: 0, interval: Duration::ZERO };
    let store = Store::open(&env, Arc::clone(&device) as Arc<dyn Device>, Options { sums, ..summed() })
        .await
        .unwrap();
    let keeper = tokio::spawn(Arc::clone(&store).keep_sums());
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..4u64 {
        let store = Arc::clone(&store);
        writers.spawn(async move {
            for round in 0..300u64 {
                let at = (round * 7 + writer * 13) % 50 * BLOCK + if round % 3 == 0 { 100 } else { 0 };
                let stable = if round % 9 == 0 { Stability::DataSync } else { Stability::Unstable };
                store.write_at(&access(writer / 2), at, bytes(round as u8, 4096), stable).await.unwrap();
                if round % 20 == 0 {
                    store.scrub();
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        });
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
    store.commit(key(0)).await.unwrap();
    while store.scrubbed().running || store.scrubbed().sealed == 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(store.damaged().1, []);
    tokio::time::sleep(Duration::from_secs(3)).await;
    // Behind everybody's back, past the page cache or not.
    let file = device.open(&path(&*device, key(0), "")).unwrap();
    let mut byte = [0];
    file.read_at(&mut byte, 12 * BLOCK + 5).unwrap();
    file.write_at(&[byte[0] ^ 1], 12 * BLOCK + 5).unwrap();
    file.sync_data().unwrap();
    store.scrub();
    while store.scrubbed().running {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(store.damaged().1, [damage(0, 12 * BLOCK, 1)]);
    keeper.abort();
}
