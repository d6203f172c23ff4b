//! LAYOUTERROR: what the next LAYOUTGET is answered. RFC 7862 §15.6, RFC 8435 §9.

use sluice_xdr::nfs4::*;

use crate::harness::*;
use crate::mirrors::{RO, RW, devices, get};

/// A failure that we know nothing of: one more layout, then the way through this server.
#[test]
fn what_fails_again_goes_through_the_server() {
    simulate(1, async |world: World| {
        let client = world.client("a").await;
        let (fh, open) = client.open("f", BOTH, 0).await;
        let (layout, body) = get(&client, &fh, open, RW).await.unwrap();
        let device = devices(&body)[0];
        let fails = layouterror(layout, device, nfsstat4::NFS4ERR_IO);
        // Linux tells of one failure twice.
        client.ok(vec![putfh(&fh), fails.clone()]).await;
        client.ok(vec![putfh(&fh), fails.clone()]).await;
        client.ok(vec![putfh(&fh), layoutreturn(layout, layoutiomode4::LAYOUTIOMODE4_ANY)]).await;
        let (layout, again) = get(&client, &fh, open, RW).await.unwrap();
        assert_eq!(devices(&again), [device]);
        client.ok(vec![putfh(&fh), layouterror(layout, device, nfsstat4::NFS4ERR_IO)]).await;
        client.ok(vec![putfh(&fh), layoutreturn(layout, layoutiomode4::LAYOUTIOMODE4_ANY)]).await;
        for iomode in [RW, RO] {
            let refused = get(&client, &fh, open, iomode).await.unwrap_err();
            assert_eq!(refused, nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE);
        }
        // Another client is none the worse.
        let other = world.client("b").await;
        let (fh, open) = other.open("f", BOTH, 0).await;
        get(&other, &fh, open, RO).await.unwrap();
        world.sleep(std::time::Duration::from_secs(31)).await;
        let (fh, open) = client.open("f", BOTH, 0).await;
        get(&client, &fh, open, RW).await.unwrap();
    });
}

/// A client that is fenced on one file has other files at the same data server.
#[test]
fn refused_handles_are_of_their_file_alone() {
    simulate(2, async |world: World| {
        let client = world.client("a").await;
        let (f, open) = client.open("f", BOTH, 0).await;
        let (g, other) = client.open("g", BOTH, 0).await;
        for _ in 0..2 {
            let (layout, body) = get(&client, &f, open, RW).await.unwrap();
            let refused = layouterror(layout, devices(&body)[0], nfsstat4::NFS4ERR_ACCESS);
            client.ok(vec![putfh(&f), refused]).await;
            client.ok(vec![putfh(&f), layoutreturn(layout, layoutiomode4::LAYOUTIOMODE4_ANY)]).await;
        }
        let refused = get(&client, &f, open, RW).await.unwrap_err();
        assert_eq!(refused, nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE);
        get(&client, &g, other, RW).await.unwrap();
    });
}
