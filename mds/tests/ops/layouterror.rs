//! LAYOUTERROR: what the next LAYOUTGET is answered. RFC 7862 §15.6, RFC 8435 §9.

use sluice_xdr::control::ctl_fence_kind;
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

/// As one that is lost, or in quarantine: the data server is well, and a device that fails is told of by heartbeats.
#[test]
fn a_data_file_that_is_not_read_is_held_against_no_other_file() {
    simulate(6, async |world: World| {
        let client = world.client("a").await;
        let (f, open) = client.open("f", BOTH, 0).await;
        let (g, other) = client.open("g", BOTH, 0).await;
        for _ in 0..2 {
            let (layout, body) = get(&client, &f, open, RO).await.unwrap();
            let fails = layoutreturn_failed(layout, devices(&body)[0], nfsstat4::NFS4ERR_IO);
            client.ok(vec![putfh(&f), fails]).await;
        }
        let refused = get(&client, &f, open, RO).await.unwrap_err();
        assert_eq!(refused, nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE);
        for iomode in [RO, RW] {
            get(&client, &g, other, iomode).await.unwrap();
        }
        // One that the client does not reach is another matter.
        for _ in 0..2 {
            let (layout, body) = get(&client, &g, other, RO).await.unwrap();
            let fails = layoutreturn_failed(layout, devices(&body)[0], nfsstat4::NFS4ERR_NXIO);
            client.ok(vec![putfh(&g), fails]).await;
        }
        world.sleep(std::time::Duration::from_secs(31)).await;
        get(&client, &f, open, RO).await.unwrap();
    });
}

/// What the client sends instead must not be overtaken by what it gave up, which a data server may have in a queue yet.
#[test]
fn a_write_without_an_answer_is_cut_off_before_its_client_goes_on() {
    for returned in [false, true] {
        simulate(3, async |mut world: World| {
            let data_server = world.data_server();
            let client = world.client("a").await;
            let (fh, open) = client.open("f", BOTH, 0).await;
            let (layout, body) = get(&client, &fh, open, RW).await.unwrap();
            let (device, lost) = (devices(&body)[0], nfsstat4::NFS4ERR_NXIO);
            data_server.set_stubborn(true);
            let returns = layoutreturn(layout, layoutiomode4::LAYOUTIOMODE4_ANY);
            if returned {
                client.ok(vec![putfh(&fh), layoutreturn_failed(layout, device, lost)]).await;
            } else {
                client.ok(vec![putfh(&fh), layouterror(layout, device, lost)]).await;
                client.ok(vec![putfh(&fh), returns]).await;
            }
            // Nobody else waits.
            client.attributes("f", &[FATTR4_SIZE]).await;
            let asks = client.status(vec![putfh(&fh), layoutget(open, RW)]).await;
            assert_eq!(asks, nfsstat4::NFS4ERR_DELAY, "nothing is recalled");
            data_server.set_stubborn(false);
            get(&client, &fh, open, RW).await.unwrap();
            let fences = data_server.fences();
            assert!(
                matches!(&fences[..], [one] if one.kind == ctl_fence_kind::FENCE_HOLDER_FILE),
                "{fences:?}"
            );
        });
    }
}

/// Of several writes on their way when one got no answer, others are refused at data servers that are well, and are told of when
/// the next layout is there already: one layout after the other, none of them is to blame.
#[test]
fn writes_that_a_fence_stopped_are_not_held_against_the_next_layout() {
    simulate(5, async |world: World| {
        let client = world.client("a").await;
        let (fh, open) = client.open("f", BOTH, 0).await;
        let (layout, body) = get(&client, &fh, open, RW).await.unwrap();
        let device = devices(&body)[0];
        client.ok(vec![putfh(&fh), layoutreturn_failed(layout, device, nfsstat4::NFS4ERR_NXIO)]).await;
        for _ in 0..3 {
            let (layout, body) = get(&client, &fh, open, RW).await.unwrap();
            assert_eq!(devices(&body), [device]);
            client.ok(vec![putfh(&fh), layoutreturn_failed(layout, device, nfsstat4::NFS4ERR_ACCESS)]).await;
        }
        get(&client, &fh, open, RW).await.unwrap();
    });
}

/// An answer ends a write, whatever it says.
#[test]
fn a_write_that_was_refused_costs_no_fence() {
    simulate(4, async |mut world: World| {
        let data_server = world.data_server();
        let client = world.client("a").await;
        let (fh, open) = client.open("f", BOTH, 0).await;
        for refused in [nfsstat4::NFS4ERR_ACCESS, nfsstat4::NFS4ERR_STALE, nfsstat4::NFS4ERR_NOSPC] {
            let (layout, body) = get(&client, &fh, open, RW).await.unwrap();
            client.ok(vec![putfh(&fh), layoutreturn_failed(layout, devices(&body)[0], refused)]).await;
            world.sleep(std::time::Duration::from_secs(31)).await;
        }
        assert_eq!(data_server.fences(), []);
    });
}

/// What one file grows into is of no concern to those who write in place of what is there.
#[test]
fn a_data_server_without_room_for_one_file_takes_what_is_written_in_others() {
    simulate(5, async |world: World| {
        let client = world.client("a").await;
        let (f, open) = client.open("f", BOTH, 0).await;
        let (g, other) = client.open("g", BOTH, 0).await;
        let (layout, body) = get(&client, &f, open, RW).await.unwrap();
        let full = layoutreturn_failed(layout, devices(&body)[0], nfsstat4::NFS4ERR_NOSPC);
        client.ok(vec![putfh(&f), full.clone()]).await;
        get(&client, &g, other, RW).await.unwrap();
        assert_eq!(get(&client, &f, open, RW).await.unwrap_err(), nfsstat4::NFS4ERR_NOSPC);

        // In place of what is there this one is written, too, by way of this server.
        client.ok(vec![putfh(&f), setattr(open, &size(100_000))]).await;
        let refused = get(&client, &f, open, RW).await.unwrap_err();
        assert_eq!(refused, nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE);
        world.sleep(std::time::Duration::from_secs(6)).await;
        get(&client, &f, open, RW).await.unwrap();
    });
}
