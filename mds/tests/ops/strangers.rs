//! Hosts that no export lets in, and the clients and sessions of others. RFC 8881 §2.10.8.3.

use sluice_mds::{Config, Limits, Network, Rule, Squash};
use sluice_xdr::nfs4::*;

use crate::exports::{add, rule, take};
use crate::harness::*;

const BADSESSION: nfsstat4 = nfsstat4::NFS4ERR_BADSESSION;
const STALE: nfsstat4 = nfsstat4::NFS4ERR_STALE_CLIENTID;

/// The root is for the first host alone, which is a client ready to work: addresses are given out in turn.
fn for_one(seed: u64, test: impl AsyncFn(World, Client)) {
    for_one_within(seed, Limits::default(), test);
}

fn for_one_within(seed: u64, limits: Limits, test: impl AsyncFn(World, Client)) {
    let root = Rule { squash: Squash::None, ..Rule::new("10.0.0.3".parse::<Network>().unwrap()) };
    let config = Config { root_export: vec![root], limits, ..at_data_servers() };
    simulate_with(seed, config, async |world: World| {
        let client = world.client("a").await;
        assert_eq!(world.net.ip("a").to_string(), "10.0.0.3");
        test(world, client).await;
    });
}

/// The status of one operation outside a session.
async fn outside(raw: &Raw, op: nfs_argop4) -> nfsstat4 {
    raw.compound(vec![op]).await.status
}

fn bind_fore(session: sessionid4) -> nfs_argop4 {
    bind(session, channel_dir_from_client4::CDFC4_FORE_OR_BOTH)
}

/// Numbers are no secrets: client IDs are given out in turn, and whoever saw a packet knows a session.
#[test]
fn whom_no_export_lets_in_uses_nobody_elses_session() {
    for_one(1, async |world: World, client: Client| {
        let (fh, open) = client.open("f", BOTH, 0).await;
        let stranger = world.connect("stranger").await;
        assert_eq!(client.over(stranger.clone()).status(vec![putrootfh()]).await, BADSESSION);
        assert_eq!(outside(&stranger, bind_fore(client.session)).await, BADSESSION);
        // Not even that there is one.
        assert_eq!(outside(&stranger, destroy_session(client.session)).await, BADSESSION);
        // A retry, whose answer is the owner's.
        let sent = vec![sequence(client.session, 3, 1, true), putfh(&fh)];
        let answered = client.raw.compound(sent.clone()).await;
        assert_eq!(answered.status, nfsstat4::NFS4_OK);
        let repeated = stranger.compound(sent.clone()).await;
        assert_eq!((repeated.status, repeated.resarray.len()), (BADSESSION, 1));
        assert_eq!(client.raw.compound(sent).await, answered);
        client.ok(vec![putfh(&fh), close(open)]).await;
    });
}

/// The reply to the last CREATE_SESSION tells the session, and a retry gets it whoever sends it (pynfs CSESS10).
#[test]
fn whom_no_export_lets_in_names_nobody_elses_client() {
    for_one(2, async |world: World, _| {
        let raw = world.connect("a").await;
        let known = raw.exchange_id(b"b", [1; 8]).await;
        let (id, sequence) = (known.eir_clientid, known.eir_sequenceid);
        let stranger = world.connect("stranger").await;
        let stale = CREATE_SESSION4res::Default(STALE);
        assert_eq!(stranger.create_session(id, sequence).await, stale, "not confirmed");
        assert_eq!(outside(&stranger, destroy_clientid(id)).await, STALE);
        let made = raw.create_session(id, sequence).await;
        let CREATE_SESSION4res::NFS4_OK(ok) = &made else { panic!("{made:?}") };
        assert_eq!(stranger.create_session(id, sequence).await, stale, "a retry");
        assert_eq!(stranger.create_session(id, sequence + 1).await, stale, "the next one");
        assert_eq!(raw.create_session(id, sequence).await, made);
        assert_eq!(outside(&raw, destroy_session(ok.csr_sessionid)).await, nfsstat4::NFS4_OK);
        assert_eq!(outside(&stranger, destroy_clientid(id)).await, STALE);
        assert_eq!(outside(&raw, destroy_clientid(id)).await, nfsstat4::NFS4_OK);
    });
}

/// Nor of one another; what is its own it may use, over all its connections, after a restart too.
#[test]
fn whom_no_export_lets_in_has_what_is_its_own() {
    for_one(3, async |mut world: World, _| {
        let (first, other) = (world.connect("stranger").await, world.connect("other").await);
        let own = first.session(b"s", [1; 8], 1).await;
        assert_eq!(outside(&other, bind_fore(own.session)).await, BADSESSION);
        assert_eq!(own.over(other.clone()).status(Vec::new()).await, BADSESSION);
        assert_eq!(outside(&other, destroy_clientid(own.id)).await, STALE);
        let second = world.connect("stranger").await;
        own.over(second.clone()).ok(vec![putrootfh()]).await;
        assert_eq!(outside(&second, bind_fore(own.session)).await, nfsstat4::NFS4_OK);
        world.restart().await;
        let (third, other) = (world.connect("stranger").await, world.connect("other").await);
        assert_eq!(own.over_slots(other).status(Vec::new()).await, BADSESSION);
        let again = own.over_slots(third.clone());
        again.ok(vec![putrootfh()]).await;
        assert_eq!(outside(&third, destroy_session(own.session)).await, nfsstat4::NFS4_OK);
        assert_eq!(outside(&third, destroy_clientid(own.id)).await, nfsstat4::NFS4_OK);
    });
}

/// It has things to give back, over a new connection if the old one is lost.
#[test]
fn who_is_locked_out_goes_on_with_the_session_it_made() {
    for_one(4, async |world: World, client: Client| {
        client.mkdir("/", "d").await;
        add(&world, "/d", &[rule("any")]).await;
        let b = world.client("b").await;
        let ops = [walk("/d"), vec![open_create("f", b"owner", BOTH, 0), getfh()]].concat();
        let (fh, open) = opened(&b.ok(ops).await);
        take(&world, "/d").await;
        assert_eq!(b.status(vec![putfh(&fh), getattr(&[FATTR4_SIZE])]).await, nfsstat4::NFS4ERR_STALE);
        let anew = world.connect("b").await;
        assert_eq!(b.over(world.connect("c").await).status(Vec::new()).await, BADSESSION);
        b.over(anew).ok(vec![putfh(&fh), close(open)]).await;
    });
}

/// A host could be as many clients as it has names for: then there would be no room for anybody else.
#[test]
fn those_whom_no_export_lets_in_make_way_for_one_another() {
    let limits = Limits { strangers: 3, ..Limits::default() };
    for_one_within(5, limits, async |mut world: World, client: Client| {
        let raw = world.connect("stranger").await;
        let mut own = Vec::new();
        for name in 0..5 {
            own.push(raw.session(&[name], [1; 8], 1).await);
        }
        for (n, one) in own.iter().enumerate() {
            let expected = if n < 2 { BADSESSION } else { nfsstat4::NFS4_OK };
            assert_eq!(one.status(vec![putrootfh()]).await, expected, "{n}");
        }
        assert_eq!(outside(&raw, destroy_clientid(own[0].id)).await, STALE);
        // Whoever comes next has the same right.
        let other = world.connect("other").await.session(b"o", [1; 8], 1).await;
        other.ok(vec![putrootfh()]).await;
        client.ok(vec![putrootfh()]).await;
        // Nothing is left of those that are gone.
        world.restart().await;
        let raw = world.connect("stranger").await;
        for (n, one) in own.iter().enumerate() {
            let expected = if n < 3 { BADSESSION } else { nfsstat4::NFS4_OK };
            assert_eq!(one.over_slots(raw.clone()).status(vec![putrootfh()]).await, expected, "{n}");
        }
        // As many as there may be are known from before.
        raw.session(b"new", [1; 8], 1).await.ok(vec![putrootfh()]).await;
        assert_eq!(own[3].over_slots(raw.clone()).status(Vec::new()).await, BADSESSION);
    });
}
