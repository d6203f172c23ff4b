//! READ_PLUS: data and holes, and right at the edges. RFC 7862 §15.10.

use sluice_xdr::nfs4::*;

use crate::client::{Client, Opened, putfh};
use crate::copy::{UNIT, simulate, written};
use crate::{NEW, pattern};

/// Segments as (offset, bytes), `None` for a hole; whether they end the file.
type Found = (Vec<(u64, Result<Vec<u8>, u64>)>, bool);

async fn read_plus(client: &Client, file: &Opened, offset: u64, count: u32) -> Result<Found, nfsstat4> {
    let args = READ_PLUS4args { rpa_stateid: file.stateid, rpa_offset: offset, rpa_count: count };
    let (status, mut results) =
        client.compound(vec![putfh(&file.handle), nfs_argop4::OP_READ_PLUS(args)]).await;
    let Some(nfs_resop4::OP_READ_PLUS(READ_PLUS4res::NFS4_OK(ok))) = results.pop() else {
        return Err(status);
    };
    let segment = |content| match content {
        read_plus_content::NFS4_CONTENT_DATA(data) => (data.d_offset, Ok(data.d_data.to_vec())),
        read_plus_content::NFS4_CONTENT_HOLE(hole) => (hole.di_offset, Err(hole.di_length)),
        other => panic!("{other:?}"),
    };
    Ok((ok.rpr_contents.into_iter().map(segment).collect(), ok.rpr_eof))
}

/// The bytes of the segments, which begin at `offset` and leave nothing out.
fn flat(offset: u64, found: &Found) -> Vec<u8> {
    let mut all = Vec::new();
    for (at, segment) in &found.0 {
        assert_eq!(*at, offset + all.len() as u64);
        match segment {
            Ok(data) => all.extend_from_slice(data),
            Err(length) => all.resize(all.len() + usize::try_from(*length).unwrap(), 0),
        }
    }
    all
}

#[test]
fn data_and_holes_are_told_apart_and_the_end_is_the_end() {
    simulate(51, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let data = pattern(7, 100_000);
        let file = written(&client, "f", &[(2 * UNIT, data.clone())]).await;
        let end = 6 * UNIT + 11;
        client.truncate(&file, end).await;
        let mut all = vec![0; usize::try_from(end).unwrap()];
        let at = usize::try_from(2 * UNIT).unwrap();
        all[at..at + data.len()].copy_from_slice(&data);
        let range = |from: u64, to: u64| &all[usize::try_from(from).unwrap()..usize::try_from(to).unwrap()];

        let whole = read_plus(&client, &file, 0, u32::MAX).await.unwrap();
        assert!(whole.1 && flat(0, &whole) == all);
        assert_eq!(whole.0[0], (0, Err(2 * UNIT)), "one hole over several data servers");
        let kept: usize = whole.0.iter().filter_map(|(_, segment)| segment.as_ref().ok()).map(Vec::len).sum();
        assert!((data.len()..data.len() + 8192).contains(&kept), "{kept} bytes of data");
        // Counts and offsets that end and begin within segments.
        for (from, to) in [
            (5, 6),
            (2 * UNIT - 5, 2 * UNIT + 5),
            (2 * UNIT + 5, 2 * UNIT + 99_000),
            (2 * UNIT + 99_999, end - 1),
            (end - 1, end),
        ] {
            let found = read_plus(&client, &file, from, u32::try_from(to - from).unwrap()).await.unwrap();
            assert!(flat(from, &found) == range(from, to), "{from} to {to}");
            assert_eq!(found.1, to == end, "{from} to {to}");
        }
        // At the end and beyond it there is nothing; of nothing there is nothing.
        for at in [end, end + 1, 1 << 40] {
            assert_eq!(read_plus(&client, &file, at, 10).await, Ok((Vec::new(), true)));
        }
        assert_eq!(read_plus(&client, &file, 10, 0).await, Ok((Vec::new(), false)));
        let empty = client.open("empty").await;
        assert_eq!(read_plus(&client, &empty, 0, 10).await, Ok((Vec::new(), true)));
        client.truncate(&empty, 1000).await;
        assert_eq!(read_plus(&client, &empty, 0, 2000).await, Ok((vec![(0, Err(1000))], true)));
    });
}

#[test]
fn what_does_not_fit_is_left_to_be_asked_for_again() {
    simulate(52, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        // More data than a reply takes, and more segments.
        let length = usize::try_from(5 * UNIT).unwrap();
        let dense = written(&client, "dense", &[(0, pattern(0, length))]).await;
        let pieces: Vec<_> = (0..40).map(|n| (n * 16_384, pattern(n, 4096))).collect();
        let sparse = written(&client, "sparse", &pieces).await;
        for file in [&dense, &sparse] {
            let size = client.stat(file).await.0;
            let (mut all, mut replies) = (Vec::new(), 0);
            loop {
                let at = all.len() as u64;
                let found = read_plus(&client, file, at, u32::MAX).await.unwrap();
                all.extend(flat(at, &found));
                replies += 1;
                if found.1 {
                    break;
                }
                assert!(!found.0.is_empty(), "it gets on");
            }
            assert!(replies > 1);
            assert!(all == client.proxied_content(file, size).await);
        }
    });
}
