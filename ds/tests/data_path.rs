//! READ, WRITE, COMMIT and the rest, whole call in, whole reply out.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::*;
use sluice_rpc::{CallError, Credential, Frame};
use sluice_xdr::capability::Rights;
use sluice_xdr::control::*;
use sluice_xdr::nfs3::*;

const MIB: u32 = 1 << 20;
const SPARSE: Rights = RW.or(Rights::SPARSE);

#[test]
fn what_is_written_is_read() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let fh = handle(1, RW);
        assert_eq!(nfs.read(&fh, 0, 100).await.unwrap(), (Bytes::new(), true), "never written: empty");
        let data: Vec<u8> = (0..MIB).map(|i| (i / 7) as u8).collect();
        let verifier = nfs.write(&fh, 4096, &data, stable_how::UNSTABLE).await.unwrap();
        assert_eq!(nfs.commit(&fh).await.unwrap(), verifier);
        let (read, eof) = nfs.read(&fh, 4096, MIB).await.unwrap();
        assert!(read == data && !eof);
        assert_eq!(nfs.read(&fh, 0, 10).await.unwrap(), (Bytes::from_static(&[0; 10]), false), "a hole");
        let (tail, eof) = nfs.read(&fh, u64::from(MIB), 8192).await.unwrap();
        assert!(tail == data[(MIB - 4096) as usize..] && eof);
        assert_eq!(nfs.read(&fh, 1 << 40, 10).await.unwrap(), (Bytes::new(), true));
        let (capped, _) = nfs.read(&fh, 0, u32::MAX).await.unwrap();
        assert_eq!(capped.len(), MIB as usize, "reads are cut to rtmax");
        assert_eq!(nfs.read(&fh, 0, 0).await.unwrap(), (Bytes::new(), false));
        assert_eq!(nfs.read(&fh, 1 << 40, 0).await.unwrap(), (Bytes::new(), true));
        let counters = ds.status().counters;
        assert_eq!(counters.bytes_written, u64::from(MIB));
        assert_eq!((counters.writes, counters.commits), (1, 1));
        assert!(ds.status().procedures.iter().any(|p| p.procedure == NFSPROC3_READ && p.calls >= 7));
    });
}

#[test]
fn offsets_at_the_edge() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let fh = handle(1, RW);
        for offset in [u64::MAX, u64::MAX - 1, i64::MAX as u64, 1 << 63] {
            let write = nfs.write(&fh, offset, b"xx", stable_how::UNSTABLE).await;
            assert_eq!(write, Err(nfsstat3::NFS3ERR_FBIG));
            assert_eq!(nfs.read(&fh, offset, 100).await.unwrap(), (Bytes::new(), true));
        }
        let file = nfs_fh3 { data: fh.clone() };
        let args = WRITE3args { file, offset: 0, count: 9, stable: stable_how::UNSTABLE, data: Bytes::new() };
        let short: WRITE3res = nfs.call(NFSPROC3_WRITE, &args).await;
        assert_eq!(short.discriminant(), nfsstat3::NFS3ERR_INVAL);
        let odd: WRITE3res = nfs.call(NFSPROC3_WRITE, &WRITE3args { stable: stable_how(7), ..args }).await;
        assert_eq!(odd.discriminant(), nfsstat3::NFS3ERR_INVAL);
        let last = handle(2, RW);
        let end = i64::MAX as u64;
        nfs.write(&last, end - 2, b"xy", stable_how::FILE_SYNC).await.unwrap();
        let (tail, eof) = nfs.read(&last, end - 4095, 4096).await.unwrap();
        assert!(tail.len() == 4095 && tail.ends_with(b"\0xy") && eof);
        assert_eq!(nfs.read(&last, end - 1, 8).await.unwrap(), (Bytes::from_static(b"y"), true));
        nfs.write(&fh, 0, b"", stable_how::FILE_SYNC).await.unwrap();
        let stat: DS_STAT_res = w.mds.order(DS_STAT, &DS_STAT_args { files: vec![target(1)] }).await;
        let DS_STAT_res::CTL_OK(stats) = stat else { panic!("{stat:?}") };
        assert!(!stats[0].exists, "nothing of all that brought a data file into being");
    });
}

#[test]
fn stable_survives_power_loss_and_unstable_is_told_by_the_verifier() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        for (file, stable) in [(1, stable_how::DATA_SYNC), (2, stable_how::FILE_SYNC)] {
            nfs.write(&handle(file, RW), 0, b"stable", stable).await.unwrap();
        }
        let fh = handle(3, RW);
        let wrote = nfs.write(&fh, 0, b"unstable", stable_how::UNSTABLE).await.unwrap();
        w.net.crash("ds");
        w.device.crash();
        drop(ds);
        w.sleep(Duration::from_secs(1)).await;
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        for file in [1, 2] {
            assert_eq!(nfs.read(&handle(file, RW), 0, 6).await.unwrap().0, &b"stable"[..]);
        }
        assert_ne!(nfs.commit(&fh).await.unwrap(), wrote, "the client must write again");
        nfs.write(&fh, 0, b"again", stable_how::UNSTABLE).await.unwrap();
    });
}

#[test]
fn device_errors_reach_the_client() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let fh = handle(1, RW);
        let wrote = nfs.write(&fh, 0, b"x", stable_how::UNSTABLE).await.unwrap();
        w.device.fail_syncs(1);
        assert_eq!(nfs.commit(&fh).await, Err(nfsstat3::NFS3ERR_IO));
        assert_ne!(nfs.commit(&fh).await.unwrap(), wrote);
        w.device.set_capacity(1 << 20);
        let full = nfs.write(&fh, 0, &[1; 1 << 20], stable_how::UNSTABLE).await;
        assert_eq!(full, Err(nfsstat3::NFS3ERR_NOSPC));
        w.sleep(Duration::from_secs(10)).await;
        let says = w.mds.says.lock().unwrap();
        let last = says.heartbeats.last().unwrap();
        assert_eq!(last.health, ctl_health::HEALTH_FAILING);
        assert_eq!(last.detail, "1 flushes failed since the start");
    });
}

#[test]
fn the_end_of_a_striped_file_is_where_the_metadata_server_says() {
    simulate(async |w| {
        w.mds.says.lock().unwrap().sizes.insert(1, 20_000);
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let questions = || w.mds.says.lock().unwrap().size_questions;
        let fh = handle(1, SPARSE);
        nfs.write(&fh, 0, &[7; 10_000], stable_how::UNSTABLE).await.unwrap();
        assert_eq!(nfs.read(&fh, 0, 10_000).await.unwrap(), (vec![7; 10_000].into(), false));
        assert_eq!(questions(), 0, "the data file's end was not met");
        let (read, eof) = nfs.read(&fh, 9_000, 2_000).await.unwrap();
        assert_eq!((read, eof), ([[7u8; 1000], [0; 1000]].concat().into(), false));
        assert_eq!(questions(), 1);
        assert_eq!(nfs.read(&fh, 12_000, 4_000).await.unwrap(), (vec![0; 4_000].into(), false));
        assert_eq!(questions(), 1, "known to reach so far");
        assert_eq!(nfs.read(&fh, 16_000, 8_192).await.unwrap(), (vec![0; 4_000].into(), true));
        // Who did not ask for the file's own end is told the data file's, whatever is known.
        assert_eq!(nfs.read(&handle(1, RW), 9_000, 8_192).await.unwrap(), (vec![7; 1_000].into(), true));
        assert_eq!(nfs.read(&fh, 20_000, 8_192).await.unwrap(), (Bytes::new(), true));
        // Another client made the file longer: the end is asked for again, not remembered.
        w.mds.says.lock().unwrap().sizes.insert(1, 1 << 20);
        assert_eq!(nfs.read(&fh, 20_000, 8_192).await.unwrap(), (vec![0; 8_192].into(), false));
        // A truncate is pushed, and binds at once.
        let args = DS_LOGICAL_SIZE_args { file: 1, size: 11_000 };
        let status: ctl_status = w.mds.order(DS_LOGICAL_SIZE, &args).await;
        assert_eq!(status, ctl_status::CTL_OK);
        w.mds.says.lock().unwrap().sizes.insert(1, 11_000);
        assert_eq!(nfs.read(&fh, 10_000, 8_192).await.unwrap(), (vec![0; 1_000].into(), true));
        // A data file never written, of a file that has bytes elsewhere.
        w.mds.says.lock().unwrap().sizes.insert(2, 5_000);
        assert_eq!(nfs.read(&handle(2, SPARSE), 0, 8_192).await.unwrap(), (vec![0; 5_000].into(), true));
        // Nobody knows: neither zeros nor an end may be claimed.
        assert_eq!(nfs.read(&handle(9, SPARSE), 0, 10).await, Err(nfsstat3::NFS3ERR_JUKEBOX));
        // A whole file ends where its only data file does.
        let before = questions();
        nfs.write(&handle(3, RW), 0, b"abc", stable_how::UNSTABLE).await.unwrap();
        assert_eq!(nfs.read(&handle(3, RW), 0, 10).await.unwrap(), (Bytes::from_static(b"abc"), true));
        assert_eq!(questions(), before);
    });
}

/// The metadata server's answer counts what somebody wrote here meanwhile: that is no hole.
#[test]
fn what_is_written_while_the_end_is_asked_for_is_read() {
    simulate(async |w| {
        let ds = w.serving().await;
        let (nfs, writer) = (w.client(&ds).await, w.client(&ds).await);
        w.mds.says.lock().unwrap().sizes.extend([(1, 25_000), (2, 12_000)]);
        nfs.write(&handle(1, RW), 0, &[7; 10_000], stable_how::UNSTABLE).await.unwrap();
        w.mds.says.lock().unwrap().sizes_take = Duration::from_secs(1);
        // The second one is not there when it is looked for.
        for (file, from) in [(1, 10_000), (2, 0)] {
            let fh = handle(file, SPARSE);
            let writes = async {
                w.sleep(Duration::from_millis(500)).await;
                writer.write(&fh, from, &[8; 10_000], stable_how::UNSTABLE).await.unwrap();
            };
            let (read, ()) = tokio::join!(nfs.read(&fh, 0, MIB), writes);
            let (data, eof) = read.unwrap();
            let (before, hole) = ([7; 10_000], [0; 5_000]);
            let expected = match file {
                1 => [&before[..], &[8; 10_000], &hole].concat(),
                _ => [&[8; 10_000][..], &hole[..2_000]].concat(),
            };
            assert!(data == expected && eof, "file {file}: {} bytes", data.len());
        }
    });
}

#[test]
fn concurrent_questions_about_one_file_are_asked_once() {
    simulate(async |w| {
        w.mds.says.lock().unwrap().sizes.insert(1, 100_000);
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let fh = handle(1, SPARSE);
        let read = |offset| nfs.read(&fh, offset, 100);
        let (a, b, c, d) = tokio::join!(read(0), read(50_000), read(99_950), read(100_000));
        assert_eq!((a.unwrap().1, b.unwrap().1), (false, false));
        assert_eq!((c.unwrap(), d.unwrap()), ((vec![0; 50].into(), true), (Bytes::new(), true)));
        let questions = w.mds.says.lock().unwrap().size_questions;
        assert!((1..=2).contains(&questions), "{questions}");
    });
}

#[test]
fn the_small_procedures() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let fh = handle(1, RW);
        nfs.write(&fh, 0, &[1; 5000], stable_how::FILE_SYNC).await.unwrap();
        let none = Credential::None;
        let null = nfs.connection.call(NFS3_PROGRAM, 3, 0, &none, Frame::empty(), LONG).await;
        assert_eq!(null, Ok(Bytes::new()));
        let object = nfs_fh3 { data: fh.clone() };
        let attributes = nfs.call(NFSPROC3_GETATTR, &GETATTR3args { object: object.clone() }).await;
        let GETATTR3res::NFS3_OK(ok) = attributes else { panic!("{attributes:?}") };
        assert_eq!((ok.obj_attributes.size, ok.obj_attributes.fileid), (5000, 1));
        let info = nfs.call(NFSPROC3_FSINFO, &FSINFO3args { fsroot: object.clone() }).await;
        let FSINFO3res::NFS3_OK(info) = info else { panic!("{info:?}") };
        assert_eq!((info.rtmax, info.wtmax), (MIB, MIB));
        let stat = nfs.call(NFSPROC3_FSSTAT, &FSSTAT3args { fsroot: object.clone() }).await;
        let FSSTAT3res::NFS3_OK(stat) = stat else { panic!("{stat:?}") };
        assert!(stat.tbytes > stat.fbytes);
        let access = nfs.call(NFSPROC3_ACCESS, &ACCESS3args { object, access: 63 }).await;
        let ACCESS3res::Default(status, _) = access else { panic!("{access:?}") };
        assert_eq!(status, nfsstat3::NFS3ERR_NOTSUPP);
        let beyond = nfs.connection.call(NFS3_PROGRAM, 3, 22, &none, Frame::empty(), LONG).await;
        assert_eq!(beyond, Err(CallError::ProcUnavail));
    });
}

#[test]
fn garbage_is_called_garbage() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let mut state = 1u64;
        for round in 0..2000 {
            let noise: Vec<u8> = (0..round % 90)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 56) as u8
                })
                .collect();
            let procedure = round % 22;
            let frame = Frame::from(Bytes::from(noise));
            let reply = nfs.connection.call(NFS3_PROGRAM, 3, procedure, &Credential::None, frame, LONG).await;
            assert!(matches!(reply, Ok(_) | Err(CallError::GarbageArgs)), "{procedure}: {reply:?}");
        }
        nfs.write(&handle(1, RW), 0, b"alive", stable_how::UNSTABLE).await.unwrap();
    });
}
