//! Small READs and WRITEs that are answered at once say what all others say.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use bytes::Bytes;
use common::*;
use sluice_xdr::capability::Rights;
use sluice_xdr::control::*;
use sluice_xdr::nfs3::*;

const UNSTABLE: stable_how = stable_how::UNSTABLE;
const PAGE: u64 = 4096;

/// Data, a hole, data, and an end that is not the end of a page.
fn content() -> Vec<u8> {
    let mut content = vec![0; 5 * PAGE as usize + 100];
    for (at, byte) in content.iter_mut().enumerate() {
        if !(PAGE..3 * PAGE).contains(&(at as u64)) {
            *byte = (at / 3) as u8 | 1;
        }
    }
    content
}

async fn fill(nfs: &Nfs, fh: &Bytes) -> Vec<u8> {
    let content = content();
    nfs.write(fh, 0, &content[..PAGE as usize], UNSTABLE).await.unwrap();
    nfs.write(fh, 3 * PAGE, &content[3 * PAGE as usize..], UNSTABLE).await.unwrap();
    content
}

#[test]
fn reads_are_the_same_whatever_is_in_memory() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let fh = handle(1, RW);
        let content = fill(&nfs, &fh).await;
        let end = content.len() as u64;
        let (mut reads, mut bytes) = (0, 0);
        // All of it, nothing, and less than is asked for.
        for cached in [usize::MAX, 0, 1, 1000, PAGE as usize] {
            w.device.set_cached(cached);
            for offset in [0, 1, PAGE - 1, PAGE, 2 * PAGE, 3 * PAGE - 2, end - 4096, end - 1, end, end + 1] {
                for count in [0, 1, 3, 4, 99, 4096, 16 << 10, (16 << 10) + 1, 1 << 20] {
                    let (data, eof) = nfs.read(&fh, offset, count).await.unwrap();
                    let from = offset.min(end) as usize;
                    let to = (offset + u64::from(count)).min(end) as usize;
                    assert_eq!(data, content[from..to.max(from)], "{count} at {offset}, {cached} in memory");
                    // More may be there: only who has looked beyond the end knows of it.
                    let beyond = offset + u64::from(count.max(1)) > end;
                    assert_eq!(eof, beyond, "{count} at {offset}, {cached} in memory");
                    (reads, bytes) = (reads + 1, bytes + data.len() as u64);
                }
            }
        }
        let counters = ds.status().counters;
        assert_eq!((counters.reads, counters.bytes_read), (reads, bytes), "each was counted, once");
    });
}

#[test]
fn a_truncation_is_seen_by_the_next_read() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let fh = handle(1, RW);
        fill(&nfs, &fh).await;
        let truncate =
            |size| DS_TRUNCATE_args { caller: w.mds.caller(), target: target(1), size, logical_size: size };
        let status: ctl_status = w.mds.order(DS_TRUNCATE, &truncate(PAGE / 2)).await;
        assert_eq!(status, ctl_status::CTL_OK);
        let (data, eof) = nfs.read(&fh, 0, 4096).await.unwrap();
        assert_eq!((data, eof), (content()[..PAGE as usize / 2].to_vec().into(), true));
        assert_eq!(nfs.read(&fh, 3 * PAGE, 4096).await.unwrap(), (Bytes::new(), true));
        nfs.write(&fh, 4 * PAGE, &[9; 4096], UNSTABLE).await.unwrap();
        let (data, eof) = nfs.read(&fh, 3 * PAGE, 4096).await.unwrap();
        assert_eq!((data, eof), (vec![0; 4096].into(), false), "what was cut off does not come back");
    });
}

#[test]
fn small_writes_are_judged_as_all_are() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let fh = handle(1, RW);
        nfs.write(&fh, 0, &[1; 8192], UNSTABLE).await.unwrap();
        let mut forged = fh.to_vec();
        forged[31] ^= 1;
        let (forged, read_only, write_only) =
            (Bytes::from(forged), handle(1, Rights::READ), handle(1, Rights::WRITE));
        // Whole pages go the short way, others the long one.
        for length in [4096, 4095, 4000] {
            let data = vec![2; length];
            let write = async |fh| nfs.write(fh, 0, &data, UNSTABLE).await;
            assert_eq!(write(&forged).await, Err(nfsstat3::NFS3ERR_BADHANDLE));
            assert_eq!(write(&read_only).await, Err(nfsstat3::NFS3ERR_ACCES));
            assert_eq!(nfs.read(&forged, 0, 4096).await, Err(nfsstat3::NFS3ERR_BADHANDLE));
            assert_eq!(nfs.read(&write_only, 0, 4096).await, Err(nfsstat3::NFS3ERR_ACCES));
        }
        assert_eq!(nfs.read(&fh, 0, 8192).await.unwrap().0, vec![1; 8192]);
        assert_eq!(ds.status().counters.refused, 12, "each was counted, once");
        let verifier = nfs.write(&fh, 0, &[3; 4096], UNSTABLE).await.unwrap();
        assert_eq!(nfs.write(&fh, 4096, &[3; 100], UNSTABLE).await.unwrap(), verifier);
        assert_eq!(nfs.commit(&fh).await.unwrap(), verifier);
        assert_eq!(nfs.read(&fh, 0, 8192).await.unwrap().0[..4196], [3; 4196]);

        let kind = ctl_fence_kind::FENCE_HOLDER;
        let fence = ctl_fence { kind, holder: 1, target: target(1), epoch: 1 };
        let args = DS_FENCE_args { caller: w.mds.caller(), fences: vec![fence] };
        let status: ctl_status = w.mds.order(DS_FENCE, &args).await;
        assert_eq!(status, ctl_status::CTL_OK);
        for length in [4096, 100] {
            let denied = nfs.write(&fh, 0, &vec![4; length], UNSTABLE).await;
            assert_eq!(denied, Err(nfsstat3::NFS3ERR_ACCES), "fenced");
        }
        assert_eq!(nfs.read(&fh, 0, 4096).await, Err(nfsstat3::NFS3ERR_ACCES), "fenced");
    });
}

#[test]
fn many_small_calls_at_once_are_all_answered() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let fh = handle(1, RW);
        let content = fill(&nfs, &fh).await;
        let (nfs, fh) = (&nfs, &fh);
        // More bytes of replies than leave in one piece, and some that go the long way in between.
        let asked: Vec<(u64, u32)> =
            (0..200).map(|n| (n * 37 % 20_000, if n % 7 == 0 { 20_000 } else { 4096 })).collect();
        let mut answers = Vec::new();
        for call in &asked {
            answers.push(Box::pin(nfs.read(fh, call.0, call.1)));
        }
        let mut got = Vec::new();
        std::future::poll_fn(|cx| {
            got.resize(answers.len(), None);
            for (answer, got) in answers.iter_mut().zip(&mut got) {
                if got.is_none()
                    && let std::task::Poll::Ready(answer) = answer.as_mut().poll(cx)
                {
                    *got = Some(answer);
                }
            }
            if got.iter().all(Option::is_some) {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        })
        .await;
        for ((offset, count), got) in asked.iter().zip(got) {
            let (from, to) = (*offset as usize, (*offset as usize + *count as usize).min(content.len()));
            assert_eq!(got.unwrap().unwrap().0, content[from..to]);
        }
    });
}
