//! Hosts that different exports let in, and the clients and sessions of one another. RFC 8881 §2.10.8.3.

use sluice_mds::{Config, Network, Rule, Squash};
use sluice_xdr::nfs4::*;

use crate::exports::{add, read_only, rule};
use crate::harness::*;
use crate::layout_recall;

const BADSESSION: nfsstat4 = nfsstat4::NFS4ERR_BADSESSION;
const STALE: nfsstat4 = nfsstat4::NFS4ERR_STALE_CLIENTID;

/// /a is for the hosts a and c, and for d to read; /b is for b. The root is for an administrator on the first host: addresses are
/// given out in turn.
fn tenants(seed: u64, test: impl AsyncFn(World)) {
    let root = Rule { squash: Squash::None, ..Rule::new("10.0.0.3".parse::<Network>().unwrap()) };
    let config = Config { root_export: vec![root], ..at_data_servers() };
    simulate_with(seed, config, async |world: World| {
        let admin = world.client("admin").await;
        admin.mkdir("/", "a").await;
        admin.mkdir("/", "b").await;
        let at = |host: &str| world.net.ip(host).to_string();
        let of_a = [rule(&at("a")), rule(&at("c")), read_only(&at("d"))];
        let of_b = [rule(&at("b"))];
        add(&world, "/a", &of_a).await;
        add(&world, "/b", &of_b).await;
        test(world).await;
    });
}

/// A client of host a with a layout of a file in /a: the client, the file and the layout.
async fn at_work(world: &World) -> (Client, nfs_fh4, stateid4) {
    let a = world.client("a").await;
    let access = BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG;
    let (fh, open) =
        opened(&a.ok([walk("/a"), vec![open_create("f", b"owner", access, 0), getfh()]].concat()).await);
    let layout = layout_recall::get(&a, &fh, open).await;
    (a, fh, layout)
}

/// A connection from a host whose root calls himself as somebody else does.
async fn posing(world: &World, host: &str, whom: &Client) -> Raw {
    Raw { credential: whom.raw.credential.clone(), ..world.connect(host).await }
}

/// The status of one operation outside a session.
async fn outside(raw: &Raw, op: nfs_argop4) -> nfsstat4 {
    raw.compound(vec![op]).await.status
}

fn return_all() -> nfs_argop4 {
    nfs_argop4::OP_LAYOUTRETURN(LAYOUTRETURN4args {
        lora_reclaim: false,
        lora_layout_type: layouttype4::LAYOUT4_FLEX_FILES,
        lora_iomode: layoutiomode4::LAYOUTIOMODE4_ANY,
        lora_layoutreturn: layoutreturn4::Default(layoutreturn_type4::LAYOUTRETURN4_ALL),
    })
}

/// Whatever it knows of the client, that is as if it were not there.
async fn is_kept_out(raw: &Raw, client: &Client) {
    for sequence in 1..4 {
        let made = raw.create_session(client.id, sequence).await;
        assert_eq!(made, CREATE_SESSION4res::Default(STALE), "{sequence}");
    }
    assert_eq!(outside(raw, destroy_clientid(client.id)).await, STALE);
    for direction in [channel_dir_from_client4::CDFC4_FORE_OR_BOTH, channel_dir_from_client4::CDFC4_BACK] {
        assert_eq!(outside(raw, bind(client.session, direction)).await, BADSESSION);
    }
    assert_eq!(outside(raw, destroy_session(client.session)).await, BADSESSION);
    let returns = vec![putrootfh(), return_all()];
    assert_eq!(client.over(raw.clone()).status(returns).await, BADSESSION);
}

/// Client IDs are numbers in turn, and the last CREATE_SESSION tells a session to whoever sends it again.
#[test]
fn a_tenant_uses_nobody_elses_client() {
    tenants(1, async |mut world: World| {
        let (a, fh, layout) = at_work(&world).await;
        // Nor does one that may only read where the other writes.
        for host in ["b", "d"] {
            is_kept_out(&posing(&world, host, &a).await, &a).await;
        }
        assert_eq!(a.tested(&[layout]).await, [nfsstat4::NFS4_OK]);
        let again = a.raw.create_session(a.id, 2).await;
        assert!(matches!(again, CREATE_SESSION4res::NFS4_OK(_)), "{again:?}");
        a.ok(vec![putfh(&fh), layoutreturn(layout, layoutiomode4::LAYOUTIOMODE4_ANY)]).await;
        world.restart().await;
        is_kept_out(&posing(&world, "b", &a).await, &a).await;
        a.over_slots(world.connect("a").await).ok(vec![putrootfh()]).await;
    });
}

/// Hosts of different networks have the same names, and a host that comes with another verifier was restarted: all that it had ends
/// (§18.35.4).
#[test]
fn a_tenant_that_calls_itself_as_another_is_another_client() {
    tenants(2, async |mut world: World| {
        let (a, _, layout) = at_work(&world).await;
        let raw = posing(&world, "b", &a).await;
        assert_ne!(raw.exchange_id(b"a", [1; 8]).await.eir_clientid, a.id);
        let b = raw.session(b"a", [2; 8], 1).await;
        b.ok(vec![putrootfh()]).await;
        assert_eq!(a.tested(&[layout]).await, [nfsstat4::NFS4_OK]);
        for restarted in [false, true] {
            if restarted {
                world.restart().await;
            }
            let known = posing(&world, "b", &a).await.exchange_id(b"a", [2; 8]).await;
            assert_eq!(known.eir_clientid, b.id, "{restarted}");
            let known = posing(&world, "a", &a).await.exchange_id(b"a", [1; 8]).await;
            assert_eq!(known.eir_clientid, a.id, "{restarted}");
        }
        // What one is called as another cannot be taken from it by whoever calls itself so.
        let address = world.net.ip("b").to_string();
        let squats = format!("{address} apart from others: a");
        assert_ne!(
            posing(&world, "a", &a).await.exchange_id(squats.as_bytes(), [2; 8]).await.eir_clientid,
            b.id
        );
    });
}

/// A host may have several addresses, or get another one.
#[test]
fn an_address_that_may_do_as_much_goes_on_with_a_client() {
    tenants(3, async |mut world: World| {
        let (a, fh, _) = at_work(&world).await;
        let other = posing(&world, "c", &a).await;
        a.over(other.clone()).ok(vec![putfh(&fh), getattr(&[FATTR4_SIZE])]).await;
        let binds = bind(a.session, channel_dir_from_client4::CDFC4_BACK_OR_BOTH);
        let second = posing(&world, "c", &a).await;
        assert_eq!(outside(&second, binds).await, nfsstat4::NFS4_OK);
        assert_eq!(other.exchange_id(b"a", [1; 8]).await.eir_clientid, a.id);
        world.restart().await;
        let other = posing(&world, "c", &a).await;
        a.over_slots(other.clone()).ok(vec![putrootfh()]).await;
        assert_eq!(other.exchange_id(b"a", [1; 8]).await.eir_clientid, a.id);
        let made = other.create_session(a.id, 2).await;
        assert!(matches!(made, CREATE_SESSION4res::NFS4_OK(_)), "{made:?}");
    });
}
