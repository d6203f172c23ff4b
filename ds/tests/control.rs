//! Registration, contact and isolation, reports, orders.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::*;
use sluice_ds::{DataServer, Whereabouts};
use sluice_env::BoxFuture;
use sluice_rpc::{ClusterKey, Keyring, Keys};
use sluice_store::device::{Device, MemDevice};
use sluice_xdr::capability::{Capability, Rights};
use sluice_xdr::control::*;
use sluice_xdr::nfs3::*;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn nothing_is_served_before_the_first_registration() {
    simulate(async |w| {
        w.net.partition("ds", "mds");
        let ds = w.start().await;
        let nfs = w.client(&ds).await;
        let fh = handle(1, RW);
        assert_eq!(nfs.read(&fh, 0, 1).await, Err(nfsstat3::NFS3ERR_JUKEBOX));
        assert_eq!(nfs.write(&fh, 0, b"x", stable_how::UNSTABLE).await, Err(nfsstat3::NFS3ERR_JUKEBOX));
        w.net.heal("ds", "mds");
        w.until(|| ds.status().serving).await;
        nfs.write(&fh, 0, b"x", stable_how::UNSTABLE).await.unwrap();
        let says = w.mds.says.lock().unwrap();
        let first = &says.registrations[0];
        assert_eq!((first.protocol, first.store.0), (CTL_PROTOCOL, ds.status().store.0));
        assert_eq!(first.addresses[0].port, 2050);
        assert!(first.capacity.free_bytes > 0);
    });
}

/// A name, and what it stands for at the moment; nothing: it cannot be looked up.
#[derive(Debug, Default)]
struct Name(Mutex<Vec<SocketAddr>>);

impl Whereabouts for Name {
    fn look(&self) -> BoxFuture<'_, std::io::Result<Vec<SocketAddr>>> {
        let found = self.0.lock().unwrap().clone();
        let found = if found.is_empty() { Err(std::io::ErrorKind::NotFound.into()) } else { Ok(found) };
        Box::pin(std::future::ready(found))
    }
}

/// As of a host that moves, or has an address that the metadata server does not listen on.
#[test]
fn all_addresses_of_the_metadata_servers_name_are_tried_as_it_has_them_then() {
    simulate(async |w| {
        let name = Arc::new(Name::default());
        let mut config = w.config("ds");
        config.mds = Arc::clone(&name) as Arc<dyn Whereabouts>;
        let device = Arc::new(w.device.clone());
        let ds = DataServer::start_on(w.env.clone(), transport(&w, "ds"), device, config).await.unwrap();
        let nobody = SocketAddr::new(w.net.ip("nobody"), 2049);
        for stands_for in [vec![], vec![nobody]] {
            *name.0.lock().unwrap() = stands_for;
            w.sleep(20 * SECOND).await;
            assert!(!ds.status().serving);
        }
        *name.0.lock().unwrap() = vec![nobody, w.mds_addr];
        w.until(|| ds.status().serving).await;
        // Who cannot be asked where it is does not make it unreachable.
        name.0.lock().unwrap().clear();
        w.mds.says.lock().unwrap().back.clone().unwrap().close();
        w.until(|| w.mds.says.lock().unwrap().registrations.len() == 2).await;
        ds.shutdown(LONG).await;
    });
}

/// A name whose servers do not answer any more, after the first time.
#[derive(Debug)]
struct Unanswered {
    env: sluice_env::Env,
    once: Mutex<Vec<SocketAddr>>,
}

impl Whereabouts for Unanswered {
    fn look(&self) -> BoxFuture<'_, std::io::Result<Vec<SocketAddr>>> {
        Box::pin(async {
            let found = std::mem::take(&mut *self.once.lock().unwrap());
            if found.is_empty() {
                self.env.clock.sleep(30 * SECOND).await;
                return Err(std::io::ErrorKind::TimedOut.into());
            }
            Ok(found)
        })
    }
}

/// A metadata server that is started anew is found where it was, and by the addresses it has besides one that is dead.
#[test]
fn neither_a_dead_resolver_nor_a_dead_address_keeps_a_data_server_away_for_long() {
    simulate(async |w| {
        let dead = SocketAddr::new(w.net.ip("dead"), 2049);
        let once = Mutex::new(vec![dead, w.mds_addr]);
        let mut config = w.config("ds");
        config.mds = Arc::new(Unanswered { env: w.env.clone(), once });
        w.net.partition("ds", "dead");
        let device = Arc::new(w.device.clone());
        let ds = DataServer::start_on(w.env.clone(), transport(&w, "ds"), device, config).await.unwrap();
        w.until(|| ds.status().serving).await;
        for times in 2..4 {
            let (lost, back) = (w.env.clock.now(), w.mds.says.lock().unwrap().back.clone().unwrap());
            back.close();
            w.until(|| w.mds.says.lock().unwrap().registrations.len() == times).await;
            let took = w.env.clock.now().since(lost);
            assert!(took < 8 * SECOND, "{took:?}");
        }
        ds.shutdown(LONG).await;
    });
}

#[test]
fn folders_are_there_before_the_first_write() {
    simulate(async |w| {
        let ds = w.start().await;
        let made = || w.device.list("data").map_or(0, |middles| middles.len());
        w.until(|| made() == 16).await;
        assert_eq!(w.device.list("data/f").unwrap().len(), 256);
        ds.shutdown(LONG).await;
    });
}

#[test]
fn the_newest_version_that_both_sides_speak_is_used() {
    for (spoken, used) in [
        // One of the release before, which is not asked yet; an older one that is; one of a later release.
        (None, 4),
        (Some((1, 4)), 4),
        (Some((CTL_PROTOCOL, CTL_PROTOCOL + 4)), CTL_PROTOCOL),
    ] {
        simulate(async move |w| {
            w.mds.says.lock().unwrap().spoken = spoken;
            let ds = w.serving().await;
            assert!(ds.status().serving);
            assert_eq!(w.mds.says.lock().unwrap().registrations[0].protocol, used, "{spoken:?}");
        });
    }
}

#[test]
fn without_a_common_version_it_goes_on_trying_until_the_other_side_is_upgraded() {
    simulate(async |w| {
        w.mds.says.lock().unwrap().spoken = Some((CTL_PROTOCOL + 1, CTL_PROTOCOL + 2));
        let ds = w.start().await;
        w.until(|| w.mds.says.lock().unwrap().registrations.len() >= 3).await;
        assert!(!ds.status().serving);
        // The metadata server hears who is too old, so that it can say so.
        assert_eq!(w.mds.says.lock().unwrap().registrations[0].protocol, CTL_PROTOCOL);
        w.mds.says.lock().unwrap().spoken = Some((CTL_PROTOCOL, CTL_PROTOCOL + 2));
        w.until(|| ds.status().serving).await;
    });
}

#[test]
fn what_the_store_remembers_is_told_before_it_registers() {
    simulate(async |w| {
        w.mds.says.lock().unwrap().mds_epoch = 4;
        let ds = w.serving().await;
        let client = w.client(&ds).await;
        for file in [6, 77, 12] {
            client.write(&handle(file, RW), 0, b"hello", stable_how::FILE_SYNC).await.unwrap();
        }
        let kill = async |ds: DataServer| {
            w.net.crash("ds");
            w.device.crash();
            drop(ds);
            w.sleep(SECOND).await;
        };
        kill(ds).await;
        let told = || w.mds.says.lock().unwrap().histories.last().copied().unwrap();
        let first = told();
        assert_eq!((first.cluster, first.newest_file, first.mds_epoch), (ctl_uuid([0; 16]), 0, 0));
        let why = bytes::Bytes::from_static(b"an older copy");
        let refused = HISTORY_res::Default(ctl_status::CTL_ERR_INVAL, why);
        w.mds.says.lock().unwrap().judges = Some(refused);
        let ds = w.start().await;
        w.sleep(LONG).await;
        assert!(!ds.status().serving);
        let (cluster, store) = (ctl_uuid([8; 16]), first.store);
        assert_eq!(told(), HISTORY_args { store, cluster, newest_file: 77, mds_epoch: 4 });
        assert_eq!(
            w.mds.says.lock().unwrap().registrations.len(),
            1,
            "it does not register where it is refused"
        );
        // One that does not ask, and one that is content.
        w.mds.says.lock().unwrap().judges = None;
        w.until(|| ds.status().serving).await;
        kill(ds).await;
        w.mds.says.lock().unwrap().judges = Some(HISTORY_res::CTL_OK);
        w.serving().await;
    });
}

/// While there is anything new, and never one that a crash could take back.
#[test]
fn how_far_the_store_has_come_is_told() {
    simulate(async |w| {
        w.mds.says.lock().unwrap().tides = Some(TIDE_res::CTL_OK(0));
        let marks = || w.mds.says.lock().unwrap().marks.iter().map(|told| told.mark).collect::<Vec<_>>();
        let ds = w.serving().await;
        w.sleep(3 * LONG).await;
        assert_eq!(marks(), [0, 1], "each start makes one: nobody knows what was new at the end of the last");
        let flushes = w.device.syncs();
        w.sleep(3 * LONG).await;
        assert_eq!(w.device.syncs(), flushes, "nothing is new");
        let client = w.client(&ds).await;
        client.write(&handle(1, RW), 0, b"hello", stable_how::FILE_SYNC).await.unwrap();
        w.sleep(LONG).await;
        let told = marks();
        assert!(told.len() <= 4 && told.last() == Some(&(told.len() as u64 - 1)), "{told:?}");
        w.net.crash("ds");
        w.device.crash();
        drop(ds);
        w.sleep(SECOND).await;
        let ds = w.serving().await;
        assert_eq!(marks()[told.len()], *told.last().unwrap(), "before it registers");
        drop(ds);
        w.net.crash("ds");
        w.device.crash();
        w.sleep(SECOND).await;
        // One that went back and is accepted goes on behind what is known of the other, durably, before it serves anybody.
        w.mds.says.lock().unwrap().tides = Some(TIDE_res::CTL_OK(900));
        let ds = w.serving().await;
        assert_eq!(marks().last(), Some(&901));
        drop(ds);
        w.net.crash("ds");
        w.device.crash();
        w.sleep(SECOND).await;
        let why = bytes::Bytes::from_static(b"it went back to an older copy of its store");
        w.mds.says.lock().unwrap().tides = Some(TIDE_res::Default(ctl_status::CTL_ERR_INVAL, why));
        let registered = w.mds.says.lock().unwrap().registrations.len();
        let ds = w.start().await;
        w.sleep(LONG).await;
        assert!(!ds.status().serving);
        assert_eq!(marks().last(), Some(&901));
        assert_eq!(w.mds.says.lock().unwrap().registrations.len(), registered);
        // A release that does not know marks is served as ever.
        w.mds.says.lock().unwrap().tides = None;
        w.until(|| ds.status().serving).await;
        let told = marks().len();
        w.client(&ds).await.write(&handle(2, RW), 0, b"hello", stable_how::FILE_SYNC).await.unwrap();
        w.sleep(LONG).await;
        assert_eq!(marks().len(), told);
    });
}

#[test]
fn isolation_ends_service_and_only_a_registration_brings_it_back() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let fh = handle(1, RW);
        w.sleep(10 * SECOND).await;
        assert!(w.mds.says.lock().unwrap().heartbeats.len() >= 4);
        w.net.partition("ds", "mds");
        w.sleep(25 * SECOND).await;
        nfs.write(&fh, 0, b"x", stable_how::UNSTABLE).await.unwrap();
        w.sleep(6 * SECOND).await;
        let late = nfs.write(&fh, 0, b"x", stable_how::UNSTABLE).await;
        assert_eq!(late, Err(nfsstat3::NFS3ERR_JUKEBOX));
        // Meanwhile the metadata server took us for fenced, and fenced the client for good.
        let fence = ctl_fence { kind: ctl_fence_kind::FENCE_HOLDER, holder: 1, target: target(0), epoch: 1 };
        w.mds.says.lock().unwrap().fences = vec![fence];
        w.net.heal("ds", "mds");
        w.until(|| ds.status().serving).await;
        assert!(w.mds.says.lock().unwrap().registrations.len() >= 2);
        assert_eq!(nfs.read(&fh, 0, 1).await, Err(nfsstat3::NFS3ERR_ACCES));
    });
}

/// One that has lost its store may have been replaced by another, at another address.
#[test]
fn a_metadata_server_that_cannot_say_anything_is_left_when_service_ends() {
    simulate(async |w| {
        let ds = w.serving().await;
        w.mds.says.lock().unwrap().unsure = true;
        w.sleep(25 * SECOND).await;
        assert!(ds.status().serving && w.mds.says.lock().unwrap().registrations.len() == 1);
        let first = w.mds.says.lock().unwrap().back.clone().unwrap();
        assert!(!first.is_closed());
        w.sleep(15 * SECOND).await;
        assert!(first.is_closed(), "there may be another one");
        w.mds.says.lock().unwrap().unsure = false;
        w.until(|| ds.status().serving).await;
    });
}

#[test]
fn a_restarted_metadata_server_is_registered_with_again_and_the_old_one_obeyed_no_more() {
    simulate(async |w| {
        let ds = w.serving().await;
        let old = w.mds.caller();
        w.mds.says.lock().unwrap().mds_epoch = 2;
        w.until(|| w.mds.says.lock().unwrap().registrations.len() == 2 && ds.status().serving).await;
        let fences = vec![];
        let status: ctl_status = w.mds.order(DS_FENCE, &DS_FENCE_args { caller: old, fences }).await;
        assert_eq!(status, ctl_status::CTL_ERR_EPOCH);
        let args = DS_REMOVE_args { caller: old, epoch: 1, files: vec![target(1)] };
        let removed: DS_REMOVE_res = w.mds.order(DS_REMOVE, &args).await;
        assert_eq!(removed.results, [ctl_status::CTL_ERR_EPOCH]);
        let args = DS_TRUNCATE_args { caller: old, target: target(1), size: 0, logical_size: 0 };
        let status: ctl_status = w.mds.order(DS_TRUNCATE, &args).await;
        assert_eq!(status, ctl_status::CTL_ERR_EPOCH);
    });
}

#[test]
fn a_data_file_is_copied_from_a_peer() {
    simulate(async |w| {
        // Both are store 3 to this metadata server, which does not mind.
        let other = MemDevice::new();
        let source = w.start_as("peer", &other).await;
        w.until(|| source.status().serving).await;
        let nfs = w.client(&source).await;
        let fh = handle(1, RW);
        nfs.write(&fh, 0, &[3; 5000], stable_how::UNSTABLE).await.unwrap();
        nfs.write(&fh, 3 << 20, &[4; 5000], stable_how::UNSTABLE).await.unwrap();
        let ds = w.serving().await;
        let reader = Capability { holder: 77, ..capability(1, Rights::READ) };
        let host = source.local_addr().ip().to_string().into();
        let args = DS_COPY_args {
            caller: w.mds.caller(),
            target: target(1),
            source: ctl_address { host, port: source.local_addr().port().into() },
            source_fh: sealed(&reader),
            offset: 0,
            length: u64::MAX,
        };
        let copied: DS_COPY_res = w.mds.order(DS_COPY, &args).await;
        assert_eq!(copied, DS_COPY_res::CTL_OK((3 << 20) + 5000));
        w.device.crash();
        drop(ds);
        w.net.crash("ds");
        w.sleep(SECOND).await;
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        assert_eq!(nfs.read(&fh, 4_999, 2).await.unwrap().0, &[3u8, 0][..]);
        assert_eq!(nfs.read(&fh, 3 << 20, 10_000).await.unwrap(), (vec![4; 5000].into(), true));
        let bad = DS_COPY_args { source_fh: bytes::Bytes::from_static(b"forged"), ..args };
        assert_eq!(
            w.mds.order::<_, DS_COPY_res>(DS_COPY, &bad).await,
            DS_COPY_res::Default(ctl_status::CTL_ERR_IO)
        );
    });
}

/// MiB of it.
const LARGE: u64 = 64;

/// One that copies a large data file from a peer.
async fn order_to_copy(w: &World) -> (DataServer, DS_TRANSFER_args) {
    let source = w.start_as("peer", &MemDevice::new()).await;
    w.until(|| source.status().serving).await;
    let nfs = w.client(&source).await;
    for mib in 0..LARGE {
        nfs.write(&handle(1, RW), mib << 20, &[3; 1 << 20], stable_how::UNSTABLE).await.unwrap();
    }
    let reader = Capability { holder: 77, ..capability(1, Rights::READ) };
    let host = source.local_addr().ip().to_string().into();
    let address = ctl_address { host, port: source.local_addr().port().into() };
    let args = DS_TRANSFER_args {
        caller: w.mds.caller(),
        target: target(1),
        offset: 0,
        source: ctl_source::FALSE(ctl_peer { address, fh: sealed(&reader) }),
        source_offset: 0,
        length: LARGE << 20,
    };
    (source, args)
}

#[test]
fn an_order_that_was_given_up_before_its_turn_does_nothing() {
    simulate(async |w| {
        let (_source, copy) = order_to_copy(&w).await;
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let fh = handle(1, RW);
        nfs.write(&fh, 0, &[1; 5000], stable_how::UNSTABLE).await.unwrap();
        w.net.freeze("peer");
        let caller = w.mds.caller();
        let args = DS_TRUNCATE_args { caller, target: target(1), size: 0, logical_size: 0 };
        let begin = w.env.clock.now();
        let second = async {
            w.sleep(SECOND).await;
            let cut: ctl_status = w.mds.order(DS_TRUNCATE, &args).await;
            (cut, w.env.clock.now().since(begin))
        };
        // What asks for nothing is answered when all that came before it is over.
        let nothing = async {
            w.sleep(2 * SECOND).await;
            let ctl_source::FALSE(peer) = &copy.source else { panic!() };
            let args = DS_COPY_args {
                caller,
                target: target(1),
                source: peer.address.clone(),
                source_fh: bytes::Bytes::new(),
                offset: 0,
                length: 0,
            };
            let waited: DS_COPY_res = w.mds.order(DS_COPY, &args).await;
            (waited, w.env.clock.now().since(begin))
        };
        let first = w.mds.order::<_, ctl_status>(DS_TRANSFER, &copy);
        let (first, (cut, when), (waited, then)) = tokio::join!(first, second, nothing);
        assert_eq!((first, cut), (ctl_status::CTL_ERR_BUSY, ctl_status::CTL_ERR_BUSY));
        assert!(when < 10 * SECOND, "while somebody waits for the answer: {when:?}");
        assert_eq!(waited, DS_COPY_res::CTL_OK(0));
        assert!(then > 20 * SECOND, "the peer was given up: {then:?}");
        w.net.thaw("peer");
        w.sleep(60 * SECOND).await;
        assert_eq!(nfs.read(&fh, 0, 10_000).await.unwrap(), (vec![1; 5000].into(), true));
    });
}

#[test]
fn an_order_to_copy_ends_before_it_is_given_up() {
    simulate(async |w| {
        let (_source, copy) = order_to_copy(&w).await;
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let fh = handle(1, RW);
        let begin = w.env.clock.now();
        let ends = async {
            let status: ctl_status = w.mds.order(DS_TRANSFER, &copy).await;
            (status, w.env.clock.now().since(begin))
        };
        let copied = async || {
            let args = DS_STAT_args { files: vec![target(1)] };
            match w.mds.order(DS_STAT, &args).await {
                DS_STAT_res::CTL_OK(stats) => stats[0].size,
                other => panic!("{other:?}"),
            }
        };
        let last = (LARGE - 1) << 20;
        // The peer is reached now and then.
        let slowly = async {
            for _ in 0..2 {
                let before = copied().await;
                while copied().await == before {}
                w.net.partition("ds", "peer");
                w.sleep(28 * SECOND).await;
                w.net.heal("ds", "peer");
            }
            w.net.partition("ds", "peer");
            assert!(copied().await < last, "it is not over yet");
            nfs.write(&fh, last, &[1; 5000], stable_how::UNSTABLE).await.unwrap();
            w.net.heal("ds", "peer");
        };
        let ((status, when), ()) = tokio::join!(ends, slowly);
        assert_eq!(status, ctl_status::CTL_ERR_BUSY);
        assert!(when < 60 * SECOND, "while somebody waits for the answer: {when:?}");
        w.sleep(60 * SECOND).await;
        assert_eq!(nfs.read(&fh, last, 2).await.unwrap().0, &[1u8, 1][..]);
    });
}

/// It may not overwrite what clients of the next one write. The peer's silence keeps nobody from registering.
#[test]
fn what_moves_data_for_a_replaced_metadata_server_ends_when_its_successor_is_registered_with() {
    for transfer in [true, false] {
        simulate(async |w| {
            let (_source, args) = order_to_copy(&w).await;
            let ds = w.serving().await;
            let nfs = w.client(&ds).await;
            let (fh, last) = (handle(1, RW), (LARGE - 1) << 20);
            let order = async {
                if transfer {
                    return w.mds.order::<_, ctl_status>(DS_TRANSFER, &args).await;
                }
                let ctl_source::FALSE(peer) = &args.source else { panic!() };
                let copy = DS_COPY_args {
                    caller: args.caller,
                    target: args.target,
                    source: peer.address.clone(),
                    source_fh: peer.fh.clone(),
                    offset: 0,
                    length: LARGE << 20,
                };
                match w.mds.order(DS_COPY, &copy).await {
                    DS_COPY_res::CTL_OK(_) => ctl_status::CTL_OK,
                    DS_COPY_res::Default(status) => status,
                }
            };
            let replaced = async {
                while copied(&w).await.is_none_or(|size| size <= 4 << 20) {}
                w.net.freeze("peer");
                w.sleep(SECOND).await;
                assert!(copied(&w).await.unwrap() < last, "it is not over yet");
                let begin = w.env.clock.now();
                w.mds.says.lock().unwrap().mds_epoch = 2;
                w.until_heard_by(2).await;
                assert!(w.env.clock.now().since(begin) < 8 * SECOND, "nobody waits for a peer");
                nfs.write(&fh, last, &[1; 5000], stable_how::FILE_SYNC).await.unwrap();
                w.net.thaw("peer");
            };
            let (status, ()) = tokio::join!(order, replaced);
            w.sleep(60 * SECOND).await;
            assert_eq!(nfs.read(&fh, last, 2).await.unwrap().0, &[1u8, 1][..], "transfer: {transfer}");
            assert_eq!(status, ctl_status::CTL_ERR_EPOCH, "transfer: {transfer}");
        });
    }
}

/// The length of data file 1.
async fn copied(w: &World) -> Option<u64> {
    match w.mds.order(DS_STAT, &DS_STAT_args { files: vec![target(1)] }).await {
        DS_STAT_res::CTL_OK(stats) => stats[0].exists.then_some(stats[0].size),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_there_can_be_compared_without_moving_it() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let (one, two) = ([5; 20_000], [[5; 12_345].as_slice(), &[6]].concat());
        nfs.write(&handle(1, RW), 4096, &one, stable_how::UNSTABLE).await.unwrap();
        nfs.write(&handle(2, RW), 4096, &two, stable_how::UNSTABLE).await.unwrap();
        let ask = async |file, offset, length| {
            let args = DS_CHECKSUM_args { target: target(file), offset, length };
            match w.mds.order(DS_CHECKSUM, &args).await {
                DS_CHECKSUM_res::CTL_OK(found) => Some((found.bytes, found.hash)),
                DS_CHECKSUM_res::Default(_) => None,
            }
        };
        assert_eq!(ask(1, 0, 4096 + 12_345).await, ask(2, 0, 4096 + 12_345).await);
        assert_ne!(ask(1, 0, 4096 + 12_346).await, ask(2, 0, 4096 + 12_346).await);
        let (bytes, hash) = ask(1, 4096, 1 << 20).await.unwrap();
        assert_eq!((bytes, hash), (20_000, *blake3::hash(&one).as_bytes()));
        // What is not there is no bytes; a data file need not be.
        assert_eq!(ask(1, 1 << 40, 100).await.unwrap().0, 0);
        assert_eq!(ask(3, 0, 100).await.unwrap().0, 0);
        assert_eq!(ask(1, 0, u64::MAX).await, None, "too much for one call");
    });
}

/// Holes, zeros and the end of a data file read alike, and digest alike.
#[test]
fn what_readers_see_can_be_compared_unit_by_unit() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let (zeros, unit) = ([0; 32], 4096_u32);
        let (one, two) = (handle(1, RW), handle(2, RW));
        nfs.write(&one, 4096, &[5; 5000], stable_how::UNSTABLE).await.unwrap();
        nfs.write(&one, 3 << 20, &[6; 100], stable_how::UNSTABLE).await.unwrap();
        // The same, with zeros where the first has nothing.
        nfs.write(&two, 0, &[[0; 4096].as_slice(), &[5; 5000], &[0; 9000]].concat(), stable_how::UNSTABLE)
            .await
            .unwrap();
        nfs.write(&two, 3 << 20, &[[6; 100].as_slice(), &[0; 50]].concat(), stable_how::UNSTABLE)
            .await
            .unwrap();
        // What is read with the last unit begins earlier here.
        nfs.write(&two, (3 << 20) - 8192, &[0; 8192], stable_how::UNSTABLE).await.unwrap();
        let ask = async |file, offset, length, unit| {
            let args = DS_DIGEST_args { target: target(file), offset, length, unit };
            match w.mds.order(DS_DIGEST, &args).await {
                DS_DIGEST_res::CTL_OK(found) => Ok(found),
                DS_DIGEST_res::Default(status) => Err(status),
            }
        };
        let hashes = |found: &DS_DIGEST_resok| found.units.iter().map(|unit| unit.hash).collect::<Vec<_>>();
        for (offset, length) in [
            (0, 4 << 20),
            (4096, 20_000),
            (4097, 8191),
            (0, 1),
            (3 << 20, 100),
            (3 << 20, 4096),
            (0, (3 << 20) + 3000),
        ] {
            let (a, b) =
                (ask(1, offset, length, unit).await.unwrap(), ask(2, offset, length, unit).await.unwrap());
            assert_eq!(hashes(&a), hashes(&b), "{offset} {length}");
            assert_eq!(a.units.len() as u64, length.div_ceil(4096));
        }
        let all = ask(1, 0, 4 << 20, unit).await.unwrap();
        let full = blake3::hash(&[5; 4096]);
        let part = blake3::hash(&[[5; 904].as_slice(), &[0; 3192]].concat());
        assert_eq!(hashes(&all)[..4], [zeros, *full.as_bytes(), *part.as_bytes(), zeros]);
        let last = blake3::hash(&[[6; 100].as_slice(), &[0; 3996]].concat());
        assert_eq!(all.units[768].hash, *last.as_bytes());
        assert_eq!(all.units.iter().filter(|unit| unit.hash != zeros).count(), 3);
        assert!(all.read < 3 << 20 && all.next == u64::MAX, "holes are not read: {all:?}");
        let stat = all.stat;
        assert!(stat.exists && stat.size == (3 << 20) + 100 && stat.last_write <= stat.writes);
        // What comes behind the range, and what a byte more does.
        assert_eq!(ask(1, 0, 65_536, 65_536).await.unwrap().next, 3 << 20);
        nfs.write(&two, 10_000, &[1], stable_how::UNSTABLE).await.unwrap();
        let (a, b) = (ask(1, 0, 4 << 20, unit).await.unwrap(), ask(2, 0, 4 << 20, unit).await.unwrap());
        let differ: Vec<_> = (0..1024).filter(|n| a.units[*n] != b.units[*n]).collect();
        assert_eq!(differ, [2]);
        assert!(b.stat.last_write > stat.writes, "a write since then is seen");
        // One that is not there is nothing but zeros, and says so.
        let none = ask(3, 0, 8192, unit).await.unwrap();
        assert_eq!((hashes(&none), none.stat.exists, none.read), (vec![zeros; 2], false, 0));
        for (offset, length, unit) in
            [(0, 1 << 30, 1 << 20), (0, 64 << 20, 1024), (0, 1, 0), (0, 1, 3), (u64::MAX, 2, 1)]
        {
            assert_eq!(ask(1, offset, length, unit).await, Err(ctl_status::CTL_ERR_INVAL));
        }
    });
}

#[test]
fn epochs_and_keys_turn() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let old = handle(1, RW);
        nfs.write(&old, 0, b"x", stable_how::UNSTABLE).await.unwrap();
        let key = |id, key| ctl_capability_key { id, epoch: 1, key };
        let turn = |oldest_epoch, keys| DS_EPOCH_args {
            caller: w.mds.caller(),
            capability_epoch: 2,
            oldest_epoch,
            keys,
        };
        // Both keys good, both epochs good: no outage.
        let args = turn(1, vec![key(0, KEY), key(1, [9; 32])]);
        assert_eq!(w.mds.order::<_, ctl_status>(DS_EPOCH, &args).await, ctl_status::CTL_OK);
        let new = Capability { key_id: 1, epoch: 2, ..capability(1, RW) }.seal(&[9; 32]);
        let new = bytes::Bytes::copy_from_slice(&new);
        nfs.read(&old, 0, 1).await.unwrap();
        nfs.read(&new, 0, 1).await.unwrap();
        let args = turn(2, vec![key(1, [9; 32])]);
        assert_eq!(w.mds.order::<_, ctl_status>(DS_EPOCH, &args).await, ctl_status::CTL_OK);
        assert_eq!(nfs.read(&old, 0, 1).await, Err(nfsstat3::NFS3ERR_STALE));
        nfs.read(&new, 0, 1).await.unwrap();
    });
}

#[test]
fn one_seed_is_one_world() {
    let run = || {
        let (send, receive) = std::sync::mpsc::channel();
        simulate(async |w| {
            let ds = w.serving().await;
            let nfs = w.client(&ds).await;
            for file in 1..20 {
                nfs.write(&handle(file, RW), 0, &[1; 9000], stable_how::UNSTABLE).await.unwrap();
                nfs.commit(&handle(file, RW)).await.unwrap();
            }
            w.sleep(10 * SECOND).await;
            send.send((w.net.digest(), w.net.events())).unwrap();
        });
        receive.recv().unwrap()
    };
    assert_eq!(run(), run());
}

#[test]
fn another_cluster_key_is_shown_as_soon_as_the_metadata_server_knows_it() {
    simulate(async |w| {
        let ours = Keyring::from(w.key.clone());
        let mut config = w.config("ds");
        config.cluster_keys = ours.clone();
        let device = Arc::new(w.device.clone());
        let ds = DataServer::start_on(w.env.clone(), w.net.host("ds"), device, config).await.unwrap();
        w.until(|| ds.status().serving).await;
        let new = ClusterKey::generate(&w.env);
        let both = Keys::from(w.key.clone()).renewed(new.clone());
        let shown = || {
            let all = w.mds_server.connections();
            let open = all.iter().find(|connection| !connection.is_closed());
            open.and_then(|connection| Some(connection.shown()?.key.clone()))
        };

        // The data server has it first.
        ours.replace(both.clone());
        w.sleep(5 * SECOND).await;
        assert_eq!(shown(), Some(w.key.clone()));
        assert!(ds.status().serving);
        let registrations = || w.mds.says.lock().unwrap().registrations.len();
        assert_eq!(registrations(), 1, "the connection stands");
        w.mds_keys.replace(both);
        w.sleep(61 * SECOND).await;
        assert_eq!(shown(), Some(new.clone()));
        assert_eq!(registrations(), 2);

        // Nothing is left to be done when the older one goes, wherever it goes first.
        for ring in [&w.mds_keys, &ours] {
            ring.replace(new.clone().into());
            w.mds_server.close_strangers();
            w.sleep(61 * SECOND).await;
            assert_eq!((shown(), registrations()), (Some(new.clone()), 2));
            assert!(ds.status().serving);
        }

        // Who knows neither of the other's keys is out; with the right one it is back.
        w.mds_keys.replace(w.key.clone().into());
        w.mds_server.close_strangers();
        w.until(|| !ds.status().connected).await;
        w.sleep(10 * SECOND).await;
        assert!(!ds.status().connected);
        ours.replace(w.key.clone().into());
        w.until(|| ds.status().connected).await;
        assert_eq!(shown(), Some(w.key.clone()));
    });
}
