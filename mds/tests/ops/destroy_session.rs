//! DESTROY_SESSION and DESTROY_CLIENTID. Names in parentheses are pynfs codes.

use sluice_xdr::nfs4::*;

use crate::harness::*;

async fn outside(raw: &Raw, op: nfs_argop4) -> nfsstat4 {
    raw.compound(vec![op]).await.status
}

/// (DSESS9001)
#[test]
fn a_session_ends() {
    simulate(1, async |world: World| {
        let client = world.client("a").await;
        assert_eq!(outside(&client.raw, destroy_session(client.session)).await, nfsstat4::NFS4_OK);
        assert_eq!(client.status(Vec::new()).await, nfsstat4::NFS4ERR_BADSESSION);
        let again = outside(&client.raw, destroy_session(client.session)).await;
        assert_eq!(again, nfsstat4::NFS4ERR_BADSESSION);
    });
}

/// (DSESS9003, DSESS9004) In a COMPOUND of its own it comes last.
#[test]
fn it_may_end_the_session_it_came_in() {
    simulate(2, async |world: World| {
        let client = world.client("a").await;
        let not_last = vec![destroy_session(client.session), putrootfh()];
        assert_eq!(client.status(not_last).await, nfsstat4::NFS4ERR_NOT_ONLY_OP);
        client.ok(vec![putrootfh(), destroy_session(client.session)]).await;
        assert_eq!(client.status(Vec::new()).await, nfsstat4::NFS4ERR_BADSESSION);
    });
}

/// (DSESS9005)
#[test]
fn outside_a_session_it_stands_alone() {
    simulate(3, async |world: World| {
        let client = world.client("a").await;
        let reply = client.raw.compound(vec![destroy_session(client.session), putrootfh()]).await;
        assert_eq!(reply.status, nfsstat4::NFS4ERR_NOT_ONLY_OP);
    });
}

/// (DSESS9002)
#[test]
fn only_its_own_connections_may_end_it() {
    simulate(4, async |world: World| {
        let client = world.client("a").await;
        let stranger = world.connect("b").await;
        let refused = outside(&stranger, destroy_session(client.session)).await;
        assert_eq!(refused, nfsstat4::NFS4ERR_CONN_NOT_BOUND_TO_SESSION);
        client.ok(Vec::new()).await;
    });
}

/// The state stays with the client, which goes on in another session.
#[test]
fn opens_outlive_the_session() {
    simulate(5, async |world: World| {
        let client = world.client("a").await;
        let (fh, stateid) = client.open("f", BOTH, 0).await;
        outside(&client.raw, destroy_session(client.session)).await;
        let next = client.raw.session(b"a", [1; 8], 0).await;
        assert_eq!(next.id, client.id);
        next.ok(vec![putfh(&fh), close(stateid)]).await;
    });
}

/// RFC 8881 §18.50.3
#[test]
fn a_client_id_ends_when_nothing_is_left() {
    simulate(6, async |world: World| {
        let client = world.client("a").await;
        let (fh, stateid) = client.open("f", BOTH, 0).await;
        let end = destroy_clientid(client.id);
        assert_eq!(outside(&client.raw, end.clone()).await, nfsstat4::NFS4ERR_CLIENTID_BUSY);
        client.ok(vec![putfh(&fh), close(stateid)]).await;
        assert_eq!(outside(&client.raw, end.clone()).await, nfsstat4::NFS4ERR_CLIENTID_BUSY, "a session");
        outside(&client.raw, destroy_session(client.session)).await;
        assert_eq!(outside(&client.raw, end.clone()).await, nfsstat4::NFS4_OK);
        assert_eq!(outside(&client.raw, end).await, nfsstat4::NFS4ERR_STALE_CLIENTID);
    });
}

#[test]
fn an_unconfirmed_client_id_ends_too() {
    simulate(7, async |world: World| {
        let raw = world.connect("a").await;
        let known = raw.exchange_id(b"a", [1; 8]).await;
        assert_eq!(outside(&raw, destroy_clientid(known.eir_clientid)).await, nfsstat4::NFS4_OK);
        let late = raw.create_session(known.eir_clientid, known.eir_sequenceid).await;
        assert_eq!(late, CREATE_SESSION4res::Default(nfsstat4::NFS4ERR_STALE_CLIENTID));
    });
}
