//! What the metadata server hears of this server's device.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::*;
use sluice_ds::DataServer;
use sluice_env::{BoxFuture, Env, Spawn};
use sluice_store::device::{Device, MemDevice};
use sluice_xdr::capability::{Capability, Rights};
use sluice_xdr::control::*;
use sluice_xdr::nfs3::*;

const SECOND: Duration = Duration::from_secs(1);

impl World {
    /// What the newest heartbeat said.
    fn health(&self) -> Option<(ctl_health, String)> {
        let says = self.mds.says.lock().unwrap();
        says.heartbeats.last().map(|last| (last.health, String::from_utf8_lossy(&last.detail).into_owned()))
    }

    async fn until_health(&self, health: ctl_health, word: &str) {
        self.until(|| self.health().is_some_and(|(now, detail)| now == health && detail.contains(word)))
            .await;
    }

    /// Heartbeats from now on, for a while, say that all is well.
    async fn stays_well(&self) {
        let first = self.mds.says.lock().unwrap().heartbeats.len();
        self.sleep(10 * SECOND).await;
        let says = self.mds.says.lock().unwrap();
        let said: Vec<ctl_health> = says.heartbeats.iter().skip(first).map(|said| said.health).collect();
        assert!(said.len() >= 4 && said.iter().all(|said| *said == ctl_health::HEALTH_OK), "{said:?}");
    }

    async fn fence(&self, holder: u32) -> ctl_status {
        self.fences(DS_FENCE, holder).await
    }

    async fn fences(&self, procedure: u32, holder: u32) -> ctl_status {
        let fences = vec![fence_of(holder)];
        self.mds.order(procedure, &DS_FENCE_args { caller: self.mds.caller(), fences }).await
    }
}

fn fence_of(holder: u32) -> ctl_fence {
    ctl_fence { kind: ctl_fence_kind::FENCE_HOLDER, holder, target: target(0), epoch: 1 }
}

/// Where the only data file is.
fn data_file(device: &MemDevice) -> String {
    let within = |folder: String| {
        let names = device.list(&folder).unwrap_or_default();
        names.into_iter().map(move |name| format!("{folder}/{name}"))
    };
    within("data".to_owned()).flat_map(within).flat_map(within).next().unwrap()
}

/// What cannot be made durable is refused from memory, and the metadata server can know. Others read on, also when it has
/// to register again.
#[test]
fn a_fence_is_in_force_where_nothing_can_be_written() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        nfs.write(&handle(1, RW), 0, b"x", stable_how::FILE_SYNC).await.unwrap();
        let other = sealed(&Capability { holder: 2, ..capability(1, RW) });
        w.device.set_read_only(true);
        assert_eq!(w.fences(DS_FENCED, 1).await, ctl_status::CTL_ERR_NOENT);
        assert_ne!(w.fence(1).await, ctl_status::CTL_OK);
        assert_eq!(w.fences(DS_FENCED, 1).await, ctl_status::CTL_OK);
        assert_eq!(w.fences(DS_FENCED, 2).await, ctl_status::CTL_ERR_NOENT);
        assert_eq!(nfs.read(&handle(1, RW), 0, 1).await, Err(nfsstat3::NFS3ERR_ACCES));
        nfs.read(&other, 0, 1).await.unwrap();
        let registered = {
            let mut says = w.mds.says.lock().unwrap();
            says.fences = vec![fence_of(1), fence_of(3)];
            says.back.take().unwrap().close();
            says.registrations.len()
        };
        w.until(|| w.mds.says.lock().unwrap().registrations.len() > registered).await;
        w.sleep(ISOLATION + SECOND).await;
        let nfs = w.client(&ds).await;
        nfs.read(&other, 0, 1).await.unwrap();
        assert_eq!(w.fences(DS_FENCED, 3).await, ctl_status::CTL_OK);
    });
}

/// Otherwise it would ask again and again, be heard of each time, and so never be given up.
#[test]
fn a_device_that_takes_nothing_keeps_nobody_from_a_new_metadata_server() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let (old, new) = (handle(1, RW), sealed(&Capability { epoch: 2, ..capability(1, RW) }));
        nfs.write(&old, 0, b"x", stable_how::FILE_SYNC).await.unwrap();
        let before = w.mds.caller();
        w.device.set_read_only(true);
        {
            let mut says = w.mds.says.lock().unwrap();
            (says.mds_epoch, says.oldest_epoch) = (2, 2);
            says.back.take().unwrap().close();
        }
        w.until_heard_by(2).await;
        w.sleep(ISOLATION + SECOND).await;
        assert_eq!(w.mds.says.lock().unwrap().registrations.len(), 2, "it is there to stay");
        assert_eq!(nfs.read(&old, 0, 1).await, Err(nfsstat3::NFS3ERR_ACCES));
        nfs.read(&new, 0, 1).await.unwrap();
        let stale = DS_FENCE_args { caller: before, fences: vec![fence_of(7)] };
        assert_eq!(w.mds.order::<_, ctl_status>(DS_FENCE, &stale).await, ctl_status::CTL_ERR_EPOCH);
        // Whoever it is of, a fence of an epoch that is over is in force; others are when they are told.
        assert_eq!(w.fences(DS_FENCED, 0).await, ctl_status::CTL_OK);
        let newer = |procedure| {
            let fences = vec![ctl_fence { epoch: 2, ..fence_of(1) }];
            let args = DS_FENCE_args { caller: w.mds.caller(), fences };
            let mds = Arc::clone(&w.mds);
            async move { mds.order::<_, ctl_status>(procedure, &args).await }
        };
        assert_eq!(newer(DS_FENCED).await, ctl_status::CTL_ERR_NOENT);
        assert_eq!(newer(DS_FENCE).await, ctl_status::CTL_ERR_IO);
        assert_eq!(newer(DS_FENCED).await, ctl_status::CTL_OK);
        // What this process has in memory only the next one hears before it serves anybody.
        drop(ds);
        w.net.crash("ds");
        w.device.crash();
        w.device.set_read_only(false);
        w.net.partition("ds", "mds");
        w.sleep(SECOND).await;
        let ds = w.start().await;
        let nfs = w.client(&ds).await;
        assert_eq!(nfs.read(&old, 0, 1).await, Err(nfsstat3::NFS3ERR_JUKEBOX));
        w.net.heal("ds", "mds");
        w.until(|| ds.status().serving).await;
        assert_eq!(nfs.read(&old, 0, 1).await, Err(nfsstat3::NFS3ERR_ACCES));
        nfs.read(&new, 0, 1).await.unwrap();
    });
}

#[test]
fn a_file_system_that_became_read_only_is_told() {
    simulate(async |w| {
        let ds = w.serving().await;
        w.client(&ds).await.write(&handle(1, RW), 0, b"x", stable_how::FILE_SYNC).await.unwrap();
        w.until_health(ctl_health::HEALTH_OK, "").await;
        w.device.set_read_only(true);
        w.until_health(ctl_health::HEALTH_READ_ONLY, "read-only").await;
        w.client(&ds).await.read(&handle(1, RW), 0, 1).await.unwrap();
        w.device.set_read_only(false);
        w.until_health(ctl_health::HEALTH_OK, "").await;
    });
}

#[test]
fn a_device_without_inodes_is_full() {
    simulate(async |w| {
        w.device.set_inodes(1000, 64);
        let ds = w.serving().await;
        w.stays_well().await;
        w.device.set_inodes(1000, 63);
        w.until_health(ctl_health::HEALTH_FULL, "inodes").await;
        let refused = w.client(&ds).await.write(&handle(1, RW), 0, b"x", stable_how::UNSTABLE).await;
        assert_eq!(refused, Err(nfsstat3::NFS3ERR_NOSPC));
        w.device.set_inodes(1000, 100);
        w.until_health(ctl_health::HEALTH_OK, "").await;
    });
}

/// It is written again without anybody's asking.
#[test]
fn a_fence_journal_that_cannot_be_written_is_told_until_it_can_be() {
    simulate(async |w| {
        let _ds = w.serving().await;
        w.until_health(ctl_health::HEALTH_OK, "").await;
        w.device.fail_syncs(1000);
        assert_eq!(w.fence(7).await, ctl_status::CTL_ERR_IO);
        w.until_health(ctl_health::HEALTH_FAILING, "fence journal").await;
        w.device.fail_syncs(0);
        w.until_health(ctl_health::HEALTH_OK, "").await;
        // Of what is asked for here the zeroes ahead hold a part.
        w.device.set_capacity(1 << 20);
        for holder in 8.. {
            let fences = (0..1000).map(|file| ctl_fence {
                kind: ctl_fence_kind::FENCE_HOLDER_FILE,
                holder,
                target: target(file),
                epoch: 1,
            });
            let args = DS_FENCE_args { caller: w.mds.caller(), fences: fences.collect() };
            if w.mds.order::<_, ctl_status>(DS_FENCE, &args).await == ctl_status::CTL_ERR_NOSPC {
                break;
            }
        }
        w.until_health(ctl_health::HEALTH_FULL, "fence journal").await;
        w.device.set_capacity(1 << 40);
        w.until_health(ctl_health::HEALTH_OK, "").await;
    });
}

#[test]
fn a_device_that_is_gone_is_told_once_somebody_needed_it() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        nfs.write(&handle(1, RW), 0, b"x", stable_how::FILE_SYNC).await.unwrap();
        w.device.set_dead(true);
        w.stays_well().await;
        assert_eq!(nfs.read(&handle(1, RW), 0, 1).await, Err(nfsstat3::NFS3ERR_IO));
        w.until_health(ctl_health::HEALTH_FAILING, "probe").await;
        // It stays so without another one who asks.
        w.sleep(10 * SECOND).await;
        w.until_health(ctl_health::HEALTH_FAILING, "probe").await;
        w.device.set_dead(false);
        w.until_health(ctl_health::HEALTH_OK, "").await;
        assert!(w.device.stat("probe.new").is_err(), "it leaves nothing");
    });
}

#[test]
fn one_bad_sector_is_no_device_that_fails() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        nfs.write(&handle(1, RW), 0, b"x", stable_how::FILE_SYNC).await.unwrap();
        w.device.set_unreadable(&data_file(&w.device), true);
        for _ in 0..3 {
            assert_eq!(nfs.read(&handle(1, RW), 0, 1).await, Err(nfsstat3::NFS3ERR_IO));
            w.stays_well().await;
        }
    });
}

/// Two mirrors, damaged in different blocks: neither is what the other should be.
#[test]
fn what_is_in_quarantine_is_equal_to_nothing() {
    simulate(async |w| {
        let other = MemDevice::new();
        let mut sums = Vec::new();
        for (host, device, offset) in [("ds", &w.device, 5_000), ("peer", &other, 40_000)] {
            let mut config = w.config(host);
            config.store.checksums = Some(true);
            let transport = w.net.host(host);
            let ds = DataServer::start_on(w.env.clone(), transport, Arc::new(device.clone()), config)
                .await
                .unwrap();
            w.until(|| ds.status().serving).await;
            let nfs = w.client(&ds).await;
            nfs.write(&handle(1, RW), 0, &[7; 100_000], stable_how::FILE_SYNC).await.unwrap();
            // Until it is at rest.
            w.sleep(60 * SECOND).await;
            let ask = async || {
                let args = DS_CHECKSUM_args { target: target(1), offset: 0, length: 1 << 20 };
                match w.mds.order(DS_CHECKSUM, &args).await {
                    DS_CHECKSUM_res::CTL_OK(found) => (found.bytes, found.hash),
                    other => panic!("{other:?}"),
                }
            };
            let whole = ask().await;
            assert_eq!(whole, (100_000, *blake3::hash(&[7; 100_000]).as_bytes()));
            device.rot(&data_file(device), offset);
            let action = ctl_scrub_action::SCRUB_START;
            let _: ctl_scrub = w.mds.order(DS_SCRUB, &DS_SCRUB_args { action }).await;
            w.sleep(60 * SECOND).await;
            let damaged = ask().await;
            assert!(damaged.0 == 100_000 && damaged != whole);
            sums.push(damaged);
        }
        assert_ne!(sums[0], sums[1]);
    });
}

/// Work that blocks waits while it is held.
#[derive(Debug)]
struct Holding {
    inner: Arc<dyn Spawn>,
    held: Mutex<Option<Held>>,
}

#[derive(Default)]
struct Held(Vec<Box<dyn FnOnce() + Send>>);

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} held", self.0.len())
    }
}

impl Spawn for Holding {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.inner.spawn(task);
    }

    fn blocking(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        if let Some(held) = &mut *self.held.lock().unwrap() {
            held.0.push(work);
            return Box::pin(std::future::ready(()));
        }
        // Not under the lock: it may be done at once, and go on with more.
        self.inner.blocking(work)
    }
}

#[test]
fn a_device_that_hangs_keeps_no_heartbeat_waiting_and_is_told() {
    simulate(async |w| {
        let holding = Arc::new(Holding { inner: Arc::clone(&w.env.spawn), held: Mutex::new(None) });
        let mut w = w;
        w.env = Env { spawn: Arc::clone(&holding) as Arc<dyn Spawn>, ..w.env.clone() };
        let ds = w.serving().await;
        w.until_health(ctl_health::HEALTH_OK, "").await;
        *holding.held.lock().unwrap() = Some(Held::default());
        let first = w.mds.says.lock().unwrap().heartbeats.len();
        w.mds.says.lock().unwrap().oldest_epoch = 2;
        w.sleep(12 * SECOND).await;
        let count = w.mds.says.lock().unwrap().heartbeats.len() - first;
        assert!(count >= 4, "{count} heartbeats");
        assert_eq!(w.health().unwrap().0, ctl_health::HEALTH_OK, "it may be slow");
        let nfs = w.client(&ds).await;
        w.until_health(ctl_health::HEALTH_FAILING, "answered").await;
        let last = w.mds.says.lock().unwrap().heartbeats.last().cloned().unwrap();
        assert!(last.capacity.total_bytes > 0, "as it was");
        // That was the last one. Who waits for an answer asks again, elsewhere or here, and nobody is served.
        w.until(|| !ds.status().serving).await;
        w.until(|| nfs.connection.is_closed()).await;
        let told = w.mds.says.lock().unwrap().heartbeats.len();
        w.sleep(20 * SECOND).await;
        assert_eq!(w.mds.says.lock().unwrap().heartbeats.len(), told);
        assert_eq!(w.mds.says.lock().unwrap().registrations.len(), 1);
        let nfs = w.client(&ds).await;
        assert_eq!(nfs.read(&handle(1, RW), 0, 1).await, Err(nfsstat3::NFS3ERR_JUKEBOX));
        let held = holding.held.lock().unwrap().take().unwrap();
        // One look, the journal, and the witness that is called where that does not end.
        assert_eq!(held.0.len(), 3);
        held.0.into_iter().for_each(|work| work());
        w.until(|| ds.status().serving).await;
        w.until_health(ctl_health::HEALTH_OK, "").await;
    });
}

/// It was let in, and waited for its turn while the data file was removed: that is no loss, and no hole.
#[test]
fn what_is_removed_under_a_call_is_stale_and_not_lost() {
    simulate(async |w| {
        let holding = Arc::new(Holding { inner: Arc::clone(&w.env.spawn), held: Mutex::new(None) });
        let mut w = w;
        w.env = Env { spawn: Arc::clone(&holding) as Arc<dyn Spawn>, ..w.env.clone() };
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        for (file, rights) in [(1, RW | Rights::MUST_EXIST), (2, RW)] {
            nfs.write(&handle(file, RW), 0, b"data", stable_how::FILE_SYNC).await.unwrap();
            // Until nobody has it open.
            w.sleep(10 * SECOND).await;
            *holding.held.lock().unwrap() = Some(Held::default());
            let removed = async {
                w.sleep(SECOND).await;
                let held = holding.held.lock().unwrap().take().unwrap();
                assert!(!held.0.is_empty(), "they wait");
                let args = DS_REMOVE_args { caller: w.mds.caller(), epoch: 1, files: vec![target(file)] };
                let removed: DS_REMOVE_res = w.mds.order(DS_REMOVE, &args).await;
                assert_eq!(removed.results, [ctl_status::CTL_OK]);
                held.0.into_iter().for_each(|work| work());
            };
            let fh = handle(file, rights);
            let (read, committed, ()) = tokio::join!(nfs.read(&fh, 0, 4), nfs.commit(&fh), removed);
            assert_eq!(read, Err(nfsstat3::NFS3ERR_STALE));
            assert_eq!(committed, Err(nfsstat3::NFS3ERR_STALE));
        }
        assert_eq!(ds.status().counters.errors, 0);
    });
}
