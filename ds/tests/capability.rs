//! Who is let in, who is not, and with which words.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use common::*;
use sluice_rpc::{CallError, Client, ClusterKey, Credential, Frame};
use sluice_xdr::capability::{Capability, Rights};
use sluice_xdr::control::*;
use sluice_xdr::nfs3::*;

#[test]
fn every_kind_of_bad_handle_has_its_answer() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let good = capability(1, RW);
        nfs.write(&sealed(&good), 0, b"data", stable_how::FILE_SYNC).await.unwrap();
        let status = async |fh: &[u8]| {
            let fh = bytes::Bytes::copy_from_slice(fh);
            let read = nfs.read(&fh, 0, 4).await.err();
            assert_eq!(nfs.write(&fh, 0, b"evil", stable_how::FILE_SYNC).await.err(), read);
            assert_eq!(nfs.commit(&fh).await.err(), read);
            read
        };
        let fh = good.seal(&KEY);
        assert_eq!(status(&fh).await, None);
        nfs.write(&sealed(&good), 0, b"data", stable_how::FILE_SYNC).await.unwrap();
        for byte in 0..32 {
            let mut forged = fh;
            forged[byte] ^= 1;
            let expected = if byte == 1 { nfsstat3::NFS3ERR_STALE } else { nfsstat3::NFS3ERR_BADHANDLE };
            assert_eq!(status(&forged).await, Some(expected), "byte {byte}; another key id is an old key");
        }
        for length in [0, 1, 31] {
            assert_eq!(status(&fh[..length]).await, Some(nfsstat3::NFS3ERR_BADHANDLE));
        }
        assert_eq!(status(&[fh, fh].concat()).await, Some(nfsstat3::NFS3ERR_BADHANDLE));
        assert_eq!(status(&good.seal(&[1; 32])).await, Some(nfsstat3::NFS3ERR_BADHANDLE));
        let foreign = Capability { store: STORE + 1, ..good };
        assert_eq!(status(&foreign.seal(&KEY)).await, Some(nfsstat3::NFS3ERR_STALE));
        let expired = Capability { epoch: 0, ..good };
        assert_eq!(status(&expired.seal(&KEY)).await, Some(nfsstat3::NFS3ERR_ACCES));
        assert_eq!(nfs.read(&handle(1, RW), 0, 4).await.unwrap().0, &b"data"[..]);
        assert!(ds.status().counters.refused >= 100);
    });
}

#[test]
fn rights_are_what_the_handle_says() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let (read_only, write_only) = (handle(1, Rights::READ), handle(1, Rights::WRITE));
        let acces = Some(nfsstat3::NFS3ERR_ACCES);
        assert_eq!(nfs.write(&read_only, 0, b"x", stable_how::UNSTABLE).await.err(), acces);
        assert_eq!(nfs.commit(&read_only).await.err(), acces);
        assert_eq!(nfs.read(&write_only, 0, 1).await.err(), acces);
        nfs.write(&write_only, 0, b"x", stable_how::UNSTABLE).await.unwrap();
        assert_eq!(nfs.read(&read_only, 0, 1).await.unwrap().0, &b"x"[..]);
    });
}

fn fence(kind: ctl_fence_kind, generation: u32) -> ctl_fence {
    let target = ctl_data_file { file: 1, slot: 0, generation };
    ctl_fence { kind, holder: 1, target, epoch: 1 }
}

#[test]
fn a_handle_captured_before_a_fence_is_refused_after_it_and_after_a_restart() {
    for (kind, expected, other_file) in [
        (ctl_fence_kind::FENCE_HOLDER, nfsstat3::NFS3ERR_ACCES, false),
        (ctl_fence_kind::FENCE_HOLDER_FILE, nfsstat3::NFS3ERR_ACCES, true),
        (ctl_fence_kind::FENCE_GENERATION, nfsstat3::NFS3ERR_STALE, true),
    ] {
        simulate(async |w| {
            let ds = w.serving().await;
            let nfs = w.client(&ds).await;
            let fh = handle(1, RW);
            nfs.write(&fh, 0, b"old", stable_how::FILE_SYNC).await.unwrap();
            let args = DS_FENCE_args { caller: w.mds.caller(), fences: vec![fence(kind, 1)] };
            let status: ctl_status = w.mds.order(DS_FENCE, &args).await;
            assert_eq!(status, ctl_status::CTL_OK);
            assert_eq!(nfs.write(&fh, 0, b"new", stable_how::FILE_SYNC).await, Err(expected));
            assert_eq!(nfs.write(&handle(2, RW), 0, b"x", stable_how::UNSTABLE).await.is_ok(), other_file);
            ds.shutdown(LONG).await;
            w.device.crash();
            drop(ds);
            let ds = w.serving().await;
            let nfs = w.client(&ds).await;
            assert_eq!(nfs.read(&fh, 0, 3).await, Err(expected));
            let stranger = sealed(&Capability { holder: 2, generation: 1, ..capability(1, RW) });
            assert_eq!(nfs.read(&stranger, 0, 3).await.unwrap().0, &b"old"[..]);
        });
    }
}

#[test]
fn fences_that_were_pending_hold_before_anything_is_served() {
    simulate(async |w| {
        w.mds.says.lock().unwrap().fences = vec![fence(ctl_fence_kind::FENCE_HOLDER, 0)];
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        assert_eq!(nfs.read(&handle(1, RW), 0, 1).await, Err(nfsstat3::NFS3ERR_ACCES));
    });
}

#[test]
fn a_removed_file_is_stale_and_stays_so() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let fh = handle(1, RW);
        nfs.write(&fh, 0, b"data", stable_how::UNSTABLE).await.unwrap();
        let files = vec![target(1), target(2)];
        let args = DS_REMOVE_args { caller: w.mds.caller(), epoch: 1, files };
        for _ in 0..2 {
            let removed: DS_REMOVE_res = w.mds.order(DS_REMOVE, &args).await;
            assert_eq!(removed.results, [ctl_status::CTL_OK; 2]);
            let late = nfs.write(&fh, 0, b"late", stable_how::FILE_SYNC).await;
            assert_eq!(late, Err(nfsstat3::NFS3ERR_STALE));
            assert_eq!(nfs.read(&fh, 0, 1).await, Err(nfsstat3::NFS3ERR_STALE));
        }
    });
}

#[test]
fn a_lost_data_file_is_an_error_and_never_a_hole() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let lost = handle(1, RW | Rights::MUST_EXIST);
        let io = Some(nfsstat3::NFS3ERR_IO);
        assert_eq!(nfs.read(&lost, 0, 10).await.err(), io);
        assert_eq!(nfs.write(&lost, 0, b"x", stable_how::UNSTABLE).await.err(), io);
        assert_eq!(nfs.commit(&lost).await.err(), io);
        assert_eq!(nfs.read(&handle(1, RW), 0, 10).await.unwrap(), (bytes::Bytes::new(), true));
        assert!(ds.status().counters.errors >= 3);
    });
}

#[test]
fn without_the_cluster_key_no_order_is_taken() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let frame = |args: &DS_REMOVE_args| frame(args);
        let args = DS_REMOVE_args { caller: w.mds.caller(), epoch: 1, files: vec![target(1)] };
        let none = Credential::None;
        for program in [SLUICE_DATA_SERVER, SLUICE_CONTROL, 100_005, 100_021, 400_122] {
            let reply = nfs.connection.call(program, 1, DS_REMOVE, &none, frame(&args), LONG).await;
            assert_eq!(reply, Err(CallError::ProgUnavail { program }));
        }
        let old = nfs.connection.call(NFS3_PROGRAM, 2, 0, &none, Frame::empty(), LONG).await;
        assert!(matches!(old, Err(CallError::ProgMismatch { low: 3, high: 3, .. })), "{old:?}");
        // Nor does a data server take orders from one that holds another key.
        let stranger = Client::new(w.env.clone(), transport(&w, "stranger"));
        let stranger = stranger.with_key(ClusterKey::generate(&w.env)).dial(ds.local_addr()).await;
        assert!(stranger.is_err());
    });
}
