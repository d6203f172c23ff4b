//! What a data server tells of data files that came into being, and how patiently.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use sluice_store::{Access, Epoch, FileKey, Options, Stability, Store};
use sluice_xdr::control::*;
use sluice_xdr::nfs3::stable_how;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn first_materialisations_are_reported_once_and_across_restarts() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        nfs.write(&handle(1, RW), 0, b"x", stable_how::UNSTABLE).await.unwrap();
        w.sleep(SECOND).await;
        assert!(w.mds.says.lock().unwrap().materialised.is_empty());
        nfs.commit(&handle(1, RW)).await.unwrap();
        nfs.commit(&handle(1, RW)).await.unwrap();
        w.sleep(SECOND).await;
        assert_eq!(w.mds.says.lock().unwrap().materialised, [target(1)]);
        w.net.partition("ds", "mds");
        nfs.write(&handle(2, RW), 0, b"x", stable_how::FILE_SYNC).await.unwrap();
        w.net.crash("ds");
        w.device.crash();
        drop(ds);
        w.net.heal("ds", "mds");
        w.sleep(SECOND).await;
        let _ds = w.serving().await;
        w.until(|| w.mds.says.lock().unwrap().materialised.contains(&target(2))).await;
    });
}

/// A metadata server that is slow to take them does not take the data server for lost.
#[test]
fn heartbeats_go_on_between_the_pages_of_a_long_report() {
    const FILES: u64 = 4 * CTL_FILES_MAX as u64 + 1;
    simulate(async |w| {
        let options = Options { create: true, reserve: 0, ..Options::default() };
        let store = Store::open(&w.env, Arc::new(w.device.clone()), options).await.unwrap();
        for file in 0..FILES {
            let key = FileKey { file, slot: 0 };
            let access = Access { holder: 1, key, generation: 0, epoch: Epoch(1), must_exist: false };
            store.write_at(&access, 0, "x".into(), Stability::FileSync).await.unwrap();
        }
        drop(store);
        w.mds.says.lock().unwrap().takes_reports = (ctl_status::CTL_OK, 9 * SECOND);
        let _ds = w.serving().await;
        let (mut heard, mut last) = (0, w.env.clock.now());
        loop {
            let (count, reported) = {
                let says = w.mds.says.lock().unwrap();
                (says.heartbeats.len(), says.materialised.len() as u64)
            };
            if count > heard {
                (heard, last) = (count, w.env.clock.now());
            }
            // It counts as lost after eight seconds.
            assert!(w.env.clock.now().since(last) < 6 * SECOND, "{heard} heartbeats, {reported} reported");
            if reported == FILES {
                break;
            }
            w.sleep(SECOND / 10).await;
        }
        w.sleep(10 * SECOND).await;
        assert_eq!(w.mds.says.lock().unwrap().materialised.len() as u64, FILES, "once");
    });
}

#[test]
fn a_report_that_is_not_taken_is_repeated() {
    simulate(async |w| {
        w.mds.says.lock().unwrap().takes_reports.0 = ctl_status::CTL_ERR_AGAIN;
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        nfs.write(&handle(1, RW), 0, b"x", stable_how::FILE_SYNC).await.unwrap();
        w.sleep(5 * SECOND).await;
        w.mds.says.lock().unwrap().takes_reports.0 = ctl_status::CTL_OK;
        w.until(|| w.mds.says.lock().unwrap().materialised == [target(1)]).await;
        // The same if it wants to be registered with first.
        w.mds.says.lock().unwrap().takes_reports.0 = ctl_status::CTL_ERR_NOT_REGISTERED;
        nfs.write(&handle(2, RW), 0, b"x", stable_how::FILE_SYNC).await.unwrap();
        w.until(|| w.mds.says.lock().unwrap().registrations.len() == 2).await;
        w.mds.says.lock().unwrap().takes_reports.0 = ctl_status::CTL_OK;
        w.until(|| w.mds.says.lock().unwrap().materialised.contains(&target(2))).await;
    });
}

/// One that takes no report in time is only slow while it answers heartbeats: a registration would be more work for it.
#[test]
fn a_report_that_is_not_answered_is_repeated_and_costs_no_contact() {
    simulate(async |w| {
        w.mds.says.lock().unwrap().takes_reports.1 = 15 * SECOND;
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        nfs.write(&handle(1, RW), 0, b"x", stable_how::FILE_SYNC).await.unwrap();
        w.sleep(60 * SECOND).await;
        let heard = {
            let mut says = w.mds.says.lock().unwrap();
            says.takes_reports.1 = Duration::ZERO;
            assert!((2..=4).contains(&says.materialised.len()), "{} reports", says.materialised.len());
            says.materialised.clear();
            says.heartbeats.len()
        };
        assert!(heard >= 28, "{heard} heartbeats");
        w.until(|| w.mds.says.lock().unwrap().materialised == [target(1)]).await;
        w.sleep(30 * SECOND).await;
        let says = w.mds.says.lock().unwrap();
        assert_eq!((says.registrations.len(), says.materialised.len()), (1, 1));
    });
}
