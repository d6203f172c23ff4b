//! Fences that wait for a data server which was away for long: more than it has room for.

use std::time::Duration;

use sluice_kv::RunLimits;
use sluice_namespace::stable_storage::{
    CapabilityEpochs, Fence, PendingFence, capability_epochs, fences, put_fence,
};
use sluice_namespace::{DataFileId, FsError, StoreId};
use sluice_xdr::control::{
    ADMIN_DOCTOR, ADMIN_DOCTOR_res, ADMIN_KEYS, ADMIN_KEYS_args, ADMIN_KEYS_res, CTL_FENCES_MAX, ctl_refused,
};

use crate::admin::ask;
use crate::harness::*;

const PAGE: u64 = CTL_FENCES_MAX as u64;
const AWAY: StoreId = StoreId(2);

/// Data files with these numbers are no part of their files any more.
async fn part(world: &World, files: std::ops::Range<u64>) {
    let epoch = epochs(world).await.current;
    let put = world.db.run::<_, FsError, _>(RunLimits::default().idempotent(), |mut txn| {
        let files = files.clone();
        Box::pin(async move {
            for id in files {
                let fence = Fence::Generation { file: DataFileId(id), slot: 0, generation: 2 };
                put_fence(&mut txn, &PendingFence { store: AWAY, id: 1 << 40 | id, fence, epoch });
            }
            Ok(())
        })
    });
    put.await.unwrap();
}

async fn epochs(world: &World) -> CapabilityEpochs {
    let read =
        world.db.run_read(RunLimits::default(), |txn| Box::pin(async move { capability_epochs(&txn).await }));
    let epochs: Result<_, FsError> = read.await;
    epochs.unwrap().unwrap()
}

/// Rows that it has still to hear of.
async fn untold(world: &World) -> usize {
    let read = world.db.run_read(RunLimits::default(), |txn| {
        Box::pin(async move { fences(&txn, AWAY, None, 100_000).await })
    });
    read.await.unwrap().len()
}

#[test]
fn a_data_server_with_more_fences_than_it_has_room_for_is_let_in_once_they_are_over() {
    simulate(1, async |mut world: World| {
        let away = world.add_data_server("ds2").await;
        away.set_room(5000);
        world.net.freeze("ds2");
        world.sleep(Duration::from_secs(15)).await;
        part(&world, 0..2 * PAGE + 10).await;
        let before = epochs(&world).await;
        world.net.thaw("ds2");
        away.registered(&world.env).await;
        assert!(away.crowded() > 0 && epochs(&world).await.oldest > before.current);
        assert_eq!(untold(&world).await, 0);
    });
}

/// What it keeps of before is in nobody's way, and the layouts of all need not come back once more.
#[test]
fn a_data_server_hears_which_epochs_are_over_before_it_is_told_of_more_fences_than_a_registration_carries() {
    simulate(2, async |mut world: World| {
        let away = world.add_data_server("ds2").await;
        away.set_room(5000);
        world.net.freeze("ds2");
        world.sleep(Duration::from_secs(15)).await;
        part(&world, 0..2 * PAGE + 10).await;
        world.net.thaw("ds2");
        until(&world.env, || (away.crowded() > 0).then_some(())).await;
        world.sleep(Duration::from_millis(50)).await;
        world.net.freeze("ds2");
        // `sluice doctor` says what is the matter.
        let ADMIN_DOCTOR_res::CTL_OK(told) = ask(&world, ADMIN_DOCTOR, &()).await else { panic!() };
        let reason = |refused: &ctl_refused| {
            String::from_utf8_lossy(&refused.reason).contains("no room for more fences")
        };
        assert!(told.refused.iter().any(reason), "{:?}", told.refused);
        world.sleep(Duration::from_secs(20)).await;
        assert_eq!(untold(&world).await, 0, "what is over need not be told, and is not kept");
        let fresh = 1 << 20..(1 << 20) + PAGE + 10;
        part(&world, fresh.clone()).await;
        let (crowded, oldest) = (away.crowded(), epochs(&world).await.oldest);
        world.net.thaw("ds2");
        away.registered(&world.env).await;
        assert_eq!((away.crowded(), epochs(&world).await.oldest), (crowded, oldest));
        let told: std::collections::BTreeSet<u64> =
            away.fences().iter().map(|fence| fence.target.file).collect();
        assert!(fresh.clone().all(|file| told.contains(&file)));
    });
}

/// While it is away they are in dumps, and more come.
#[test]
fn fences_that_are_over_do_not_wait_for_a_data_server_that_is_away() {
    simulate(3, async |mut world: World| {
        world.add_data_server("ds2").await;
        world.net.freeze("ds2");
        world.sleep(Duration::from_secs(30)).await;
        part(&world, 0..3000).await;
        let before = epochs(&world).await;
        let begun: ADMIN_KEYS_res = ask(&world, ADMIN_KEYS, &ADMIN_KEYS_args { rotate: true }).await;
        assert!(matches!(begun, ADMIN_KEYS_res::CTL_OK(_)), "{begun:?}");
        world.sleep(Duration::from_secs(60)).await;
        assert!(epochs(&world).await.oldest > before.current);
        assert_eq!(untold(&world).await, 0);
        part(&world, 3000..3010).await;
        world.sleep(Duration::from_secs(60)).await;
        assert_eq!(untold(&world).await, 10, "there may be handles that these are against");
    });
}
