//! Exports that want TLS of connections, as clients in clear, under it and with a certificate meet them. docs/adr/0045.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType};
use sluice_mds::{Config, Protection};
use sluice_namespace::LayoutPolicy;
use sluice_rpc::tls::{Files, TlsClient};
use sluice_rpc::{Client as Dialler, Demand, Service, Tls};
use sluice_xdr::control::*;
use sluice_xdr::flexfiles::ff_layout4;
use sluice_xdr::nfs4::*;
use tempfile::TempDir;

use crate::admin::ask;
use crate::exports::{address, open_at, rule, status_at};
use crate::harness::*;

const RW: layoutiomode4 = layoutiomode4::LAYOUTIOMODE4_RW;
const NONE: ctl_protection = ctl_protection::PROTECTION_NONE;
const TLS: ctl_protection = ctl_protection::PROTECTION_TLS;
const MUTUAL: ctl_protection = ctl_protection::PROTECTION_MUTUAL;

/// An authority, and what it has signed, in files.
struct Office {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Office {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { dir, issuer: Issuer::new(params, key) }
    }

    fn authority(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    fn signs(&self, world: &World, host: &str) -> [PathBuf; 2] {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::IpAddress(world.net.ip(host))];
        let files = ["pem", "key"].map(|kind| self.dir.path().join(format!("{host}.{kind}")));
        std::fs::write(&files[0], params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        std::fs::write(&files[1], key.serialize_pem()).unwrap();
        files
    }

    /// A client of that host: under TLS, with a certificate of its own or without.
    async fn client(&self, world: &World, host: &str, certified: bool) -> Client {
        let raw = self.connected(world, host, certified).await;
        let owner = bytes::Bytes::from(format!("{host} under TLS"));
        let client = raw.session(&owner, [1; 8], 1).await;
        client.ok(vec![reclaim_complete(false)]).await;
        client
    }

    async fn connected(&self, world: &World, host: &str, certified: bool) -> Raw {
        let own = certified.then(|| self.signs(world, host));
        let own: Option<(&Path, &Path)> = own.as_ref().map(|[pem, key]| (pem.as_path(), key.as_path()));
        let tls = TlsClient::trusting(&self.authority(), own).unwrap();
        let raw = world.connect(host).await;
        let program = std::sync::Arc::clone(&raw.callbacks) as std::sync::Arc<dyn sluice_rpc::Program>;
        let dialler = Dialler::new(world.env.clone(), world.net.host(host)).with_programs(vec![program]);
        let connection = dialler.with_tls(tls, (NFS4_PROGRAM, 4)).dial(world.addr).await.unwrap();
        Raw { connection, ..raw }
    }
}

/// Runs a test in a world whose metadata server offers TLS, and believes certificates of its office. The data server speaks TLS
/// as told.
fn offered(seed: u64, data_server: Option<ctl_protection>, test: impl AsyncFn(World, Office)) {
    offered_with(seed, at_data_servers(), data_server, test);
}

fn offered_with(
    seed: u64,
    config: Config,
    data_server: Option<ctl_protection>,
    test: impl AsyncFn(World, Office),
) {
    let config = Config { protection: Protection::Mutual, ..config };
    simulate_with(seed, config, async |mut world: World| {
        let office = Office::new();
        let [certificate, key] = office.signs(&world, MDS);
        let files = Files { certificate, key, clients: Some(office.authority()) };
        world.tls = Some(Tls::new(Demand::Offer, &files.read().unwrap()).unwrap());
        if let Some(protection) = data_server {
            world.data_server().set_protection(protection);
        }
        world.restart().await;
        test(world, office).await;
    });
}

fn wants(wants: ctl_protection, rule: ctl_rule) -> ctl_tls_rule {
    ctl_tls_rule { sec: ctl_sec_rule { rule, ..ctl_sec_rule::default() }, wants }
}

async fn known(world: &World) -> ADMIN_TLS_EXPORTS_resok {
    match ask(world, ADMIN_TLS_EXPORTS, &()).await {
        ADMIN_TLS_EXPORTS_res::CTL_OK(ok) => ok,
        other => panic!("{other:?}"),
    }
}

async fn change(world: &World, action: ctl_export_action, path: &str, rules: &[ctl_tls_rule]) -> u32 {
    let version = known(world).await.version;
    let args = ADMIN_TLS_EXPORT_args { version, action, path: path.to_owned().into(), rules: rules.to_vec() };
    match ask(world, ADMIN_TLS_EXPORT, &args).await {
        ADMIN_EXPORT_res::CTL_OK(recalled) => recalled,
        refused => panic!("{refused:?}"),
    }
}

async fn add(world: &World, path: &str, rules: &[ctl_tls_rule]) {
    change(world, ctl_export_action::EXPORT_ADD, path, rules).await;
}

pub async fn set(world: &World, path: &str, rules: &[ctl_tls_rule]) -> u32 {
    change(world, ctl_export_action::EXPORT_SET, path, rules).await
}

/// What the handles of a layout want of connections: the byte of a capability that says so.
async fn handles_want(client: &Client, fh: &nfs_fh4, open: stateid4) -> Result<Vec<u8>, nfsstat4> {
    let mut reply = client.compound(vec![putfh(fh), layoutget(open, RW)]).await;
    let Some(nfs_resop4::OP_LAYOUTGET(LAYOUTGET4res::NFS4_OK(ok))) = reply.resarray.pop() else {
        return Err(reply.status);
    };
    let body: ff_layout4 = sluice_xdr::from_bytes(ok.logr_layout[0].lo_content.loc_body.clone()).unwrap();
    let servers = body.ffl_mirrors.iter().flat_map(|mirror| &mirror.ffm_data_servers);
    Ok(servers.flat_map(|server| server.ffds_fh_vers.iter().map(|fh| fh.0[22])).collect())
}

#[test]
fn whoever_comes_with_less_than_an_export_wants_is_refused_at_its_door() {
    offered(1, None, async |world: World, office: Office| {
        let clear = world.client("clear").await;
        let (tls, mutual) =
            (office.client(&world, "tls", false).await, office.client(&world, "mutual", true).await);
        for name in ["open", "tls", "mutual"] {
            clear.mkdir("/", name).await;
        }
        let before = clear.handle("/tls").await;
        add(&world, "/open", &[wants(NONE, rule("any"))]).await;
        add(&world, "/tls", &[wants(TLS, rule("any"))]).await;
        add(&world, "/mutual", &[wants(MUTUAL, rule("any"))]).await;
        let good = [
            (&clear, [nfsstat4::NFS4_OK, nfsstat4::NFS4ERR_WRONGSEC, nfsstat4::NFS4ERR_WRONGSEC]),
            (&tls, [nfsstat4::NFS4_OK, nfsstat4::NFS4_OK, nfsstat4::NFS4ERR_WRONGSEC]),
            (&mutual, [nfsstat4::NFS4_OK; 3]),
        ];
        for (client, expected) in good {
            for (path, expected) in ["/open", "/tls", "/mutual"].into_iter().zip(expected) {
                // LOOKUP itself says so: nobody gets at the directory as a part of the export around it.
                assert_eq!(status_at(client, path, &[]).await, expected, "{path}");
                assert_eq!(status_at(client, path, &[getattr(&[FATTR4_SIZE])]).await, expected, "{path}");
                // §2.6.3.1.1: before SECINFO it does not matter, and SECINFO says what is good with TLS.
                let walked = walk(path);
                let (to, _) = walked.split_at(walked.len() - 1);
                let ops = [to, &[secinfo(&path[1..])]].concat();
                let nfs_resop4::OP_SECINFO(SECINFO4res::NFS4_OK(flavours)) = client.last(ops).await else {
                    panic!()
                };
                assert_eq!(flavours, [secinfo4::Default(AUTH_SYS), secinfo4::Default(AUTH_NONE)]);
            }
        }
        // Every operation is judged, by the connection that it comes over: a handle is no way around.
        let fh = tls.handle("/tls").await;
        assert_eq!(clear.status(vec![putfh(&fh), getattr(&[FATTR4_SIZE])]).await, nfsstat4::NFS4ERR_WRONGSEC);
        assert_eq!(tls.status(vec![putfh(&fh), getattr(&[FATTR4_SIZE])]).await, nfsstat4::NFS4_OK);
        let same = tls.over(Raw { credential: tls.raw.credential.clone(), ..clear.raw.clone() });
        assert_eq!(same.status(vec![putfh(&fh), getattr(&[FATTR4_SIZE])]).await, nfsstat4::NFS4ERR_WRONGSEC);
        // What it holds by the outer export goes on under that one's rules (ADR 0013).
        assert_eq!(clear.status(vec![putfh(&before), getattr(&[FATTR4_SIZE])]).await, nfsstat4::NFS4_OK);
    });
}

#[test]
fn it_is_by_network_and_outlives_a_restart() {
    offered(2, None, async |mut world: World, office: Office| {
        let (one, other) = (world.client("one").await, world.client("other").await);
        let tls = office.client(&world, "one", false).await;
        one.mkdir("/", "d").await;
        add(&world, "/d", &[wants(TLS, rule("any")), wants(NONE, rule(&address(&world, "other")))]).await;
        let all = async |world: &World, clients: [&Client; 3]| {
            let mut all = Vec::new();
            for client in clients {
                all.push(status_at(client, "/d", &[]).await);
            }
            let exports = known(world).await;
            let d = exports.exports.iter().find(|export| &export.path[..] == b"/d").unwrap().clone();
            (all, exports.protection, d.rules.into_iter().map(|rule| rule.wants).collect::<Vec<_>>())
        };
        let (good, refused) = (nfsstat4::NFS4_OK, nfsstat4::NFS4ERR_WRONGSEC);
        let expected = (vec![refused, good, good], MUTUAL, vec![NONE, TLS]);
        assert_eq!(all(&world, [&one, &other, &tls]).await, expected);
        world.restart().await;
        let (one, other) = (world.client("one").await, world.client("other").await);
        let tls = office.client(&world, "one", false).await;
        assert_eq!(all(&world, [&one, &other, &tls]).await, expected);
    });
}

#[test]
fn its_layouts_are_good_under_tls_alone() {
    for (seed, at_data_server, expected) in [
        (10, Some(MUTUAL), [Ok(vec![0]), Ok(vec![1]), Ok(vec![3])]),
        (11, Some(TLS), [Ok(vec![0]), Ok(vec![1]), Err(nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE)]),
        (
            12,
            Some(NONE),
            [Ok(vec![0]), Err(nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE), Err(nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE)],
        ),
        // Of a release that takes such handles for damaged ones.
        (
            13,
            None,
            [Ok(vec![0]), Err(nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE), Err(nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE)],
        ),
    ] {
        offered(seed, at_data_server, async |world: World, office: Office| {
            let client = office.client(&world, "mutual", true).await;
            for ((wanted, name), expected) in
                [NONE, TLS, MUTUAL].into_iter().zip(["a", "b", "c"]).zip(&expected)
            {
                client.mkdir("/", name).await;
                add(&world, &format!("/{name}"), &[wants(wanted, rule("any"))]).await;
                let (fh, open) = open_at(&client, &format!("/{name}"), "f").await;
                assert_eq!(handles_want(&client, &fh, open).await, *expected, "{wanted:?}");
                let args = ADMIN_WHY_args { path: format!("/{name}/f").into(), client: client.id };
                let ADMIN_WHY_res::CTL_OK(why) = ask(&world, ADMIN_WHY, &args).await else { panic!() };
                let codes: Vec<_> = why.clients[0].write.iter().map(|reason| &reason.code[..]).collect();
                match expected {
                    Ok(_) => assert!(codes.is_empty(), "{codes:?}"),
                    Err(_) => assert_eq!(codes, [b"data-server-in-clear"]),
                }
            }
        });
    }
}

/// The layout that it is asked for.
async fn gives_back(world: &World, client: &Client, fh: &nfs_fh4) {
    let recall = until(&world.env, || client.callbacks().layout_recalls().pop()).await;
    let layoutrecall4::LAYOUTRECALL4_FILE(file) = recall.clora_recall else { panic!() };
    client.ok(vec![putfh(fh), layoutreturn(file.lor_stateid, RW)]).await;
}

async fn reasons(world: &World, client: &Client, path: &str) -> [Vec<bytes::Bytes>; 2] {
    let args = ADMIN_WHY_args { path: path.to_owned().into(), client: client.id };
    let ADMIN_WHY_res::CTL_OK(why) = ask(world, ADMIN_WHY, &args).await else { panic!() };
    let codes = |reasons: &[ctl_reason]| reasons.iter().map(|reason| reason.code.clone()).collect();
    [codes(&why.clients[0].read), codes(&why.clients[0].write)]
}

/// It would write in clear before a data server refuses that.
#[test]
fn a_kernel_that_speaks_in_clear_with_data_servers_is_given_no_layout() {
    offered(14, Some(MUTUAL), async |world: World, office: Office| {
        let raw = office.connected(&world, "old", false).await;
        let client = raw.session_of(b"old", "Linux 6.12.0 #1 SMP x86_64").await;
        for (wanted, name) in [(NONE, "a"), (TLS, "b")] {
            client.mkdir("/", name).await;
            add(&world, &format!("/{name}"), &[wants(wanted, rule("any"))]).await;
            let (fh, open) = open_at(&client, &format!("/{name}"), "f").await;
            let got = handles_want(&client, &fh, open).await;
            let codes = reasons(&world, &client, &format!("/{name}/f")).await;
            if wanted == NONE {
                assert_eq!((got, codes), (Ok(vec![0]), [vec![], vec![]]));
            } else {
                let code = vec![bytes::Bytes::from("client-in-clear")];
                assert_eq!((got, codes), (Err(nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE), [code.clone(), code]));
            }
        }
    });
}

/// Whatever the export says, in clear on no way.
#[test]
fn who_asks_for_privacy_under_tls_has_handles_that_want_tls() {
    let config = Config { kerberos: true, ..at_data_servers() };
    for (seed, at_data_server, expected) in
        [(16, TLS, Ok(vec![1])), (17, NONE, Err(nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE))]
    {
        offered_with(seed, config.clone(), Some(at_data_server), async |world: World, office: Office| {
            let mut client = office.client(&world, "a", false).await;
            let taken = crate::tickets::tickets(rule("any"), [true; 3]);
            crate::tickets::put(&world, ctl_export_action::EXPORT_SET, "/", taken).await;
            for (service, expected) in [
                (Service::None, Ok(vec![0])),
                (Service::Integrity, expected.clone()),
                (Service::Privacy, expected.clone()),
            ] {
                client.raw = client.raw.clone().with_ticket("alice@TEST", service, Some(0));
                let (fh, open) = open_at(&client, "/", &format!("{service:?}")).await;
                assert_eq!(handles_want(&client, &fh, open).await, expected, "{service:?}");
            }
        });
    }
}

/// To read, those that can ask for TLS are enough.
#[test]
fn a_mirror_in_clear_is_not_read_and_not_in_the_way_of_the_others() {
    let policy = LayoutPolicy { mirrors: 2, ..at_data_servers().policy };
    offered_with(18, Config { policy, ..at_data_servers() }, Some(TLS), async |mut world: World, office| {
        world.add_data_server("ds2").await;
        let client = office.client(&world, "a", false).await;
        client.mkdir("/", "d").await;
        add(&world, "/d", &[wants(NONE, rule("any"))]).await;
        let (fh, open) = open_at(&client, "/d", "f").await;
        assert_eq!(handles_want(&client, &fh, open).await, Ok(vec![0, 0]));
        assert_eq!(set(&world, "/d", &[wants(TLS, rule("any"))]).await, 1);
        gives_back(&world, &client, &fh).await;
        let unavailable = nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE;
        assert_eq!(handles_want(&client, &fh, open).await, Err(unavailable));
        let results = client.ok(vec![putfh(&fh), layoutget(open, layoutiomode4::LAYOUTIOMODE4_READ)]).await;
        let Some(nfs_resop4::OP_LAYOUTGET(LAYOUTGET4res::NFS4_OK(ok))) = results.last() else { panic!() };
        let body: ff_layout4 = sluice_xdr::from_bytes(ok.logr_layout[0].lo_content.loc_body.clone()).unwrap();
        let servers: Vec<_> = body.ffl_mirrors.iter().flat_map(|mirror| &mirror.ffm_data_servers).collect();
        assert_eq!(servers.len(), 1);
        assert_eq!(servers[0].ffds_fh_vers[0].0[22], 1);
        let in_clear = vec![bytes::Bytes::from("data-server-in-clear")];
        assert_eq!(reasons(&world, &client, "/d/f").await, [vec![], in_clear]);
    });
}

/// It is asked again, and not taken for one that can ask for nothing.
#[test]
fn a_data_server_that_does_not_say_what_its_clients_can_have_comes_again() {
    offered(19, Some(TLS), async |mut world: World, office: Office| {
        let client = office.client(&world, "a", false).await;
        client.mkdir("/", "d").await;
        add(&world, "/d", &[wants(TLS, rule("any"))]).await;
        let (fh, open) = open_at(&client, "/d", "f").await;
        world.data_server().set_unsaid(1);
        let env = world.env.clone();
        world.data_server().restart(&env).await;
        assert_eq!(handles_want(&client, &fh, open).await, Ok(vec![1]));
    });
}

/// What is small stays in the metadata where there would be no layout all the same.
#[test]
fn nothing_is_placed_in_vain() {
    offered_with(15, Config::default(), None, async |world: World, office: Office| {
        let client = office.client(&world, "tls", false).await;
        let placed = async |name: &str| {
            let path = format!("/{name}/f").into();
            let args = ADMIN_WHY_args { path, client: client.id };
            let ADMIN_WHY_res::CTL_OK(why) = ask(&world, ADMIN_WHY, &args).await else { panic!() };
            !why.components.is_empty()
        };
        for (wanted, name) in [(NONE, "a"), (TLS, "b")] {
            client.mkdir("/", name).await;
            add(&world, &format!("/{name}"), &[wants(wanted, rule("any"))]).await;
            let (fh, open) = open_at(&client, &format!("/{name}"), "f").await;
            assert!(!placed(name).await);
            assert_eq!(handles_want(&client, &fh, open).await.is_ok(), wanted == NONE);
            assert_eq!(placed(name).await, wanted == NONE);
        }
    });
}

/// In a directory whose files become large they are placed as they are made, but not for who would be given no layout of them.
#[test]
fn what_is_made_is_not_placed_in_vain() {
    offered_with(21, Config::default(), None, async |world: World, office: Office| {
        let client = office.client(&world, "tls", false).await;
        client.mkdir("/", "d").await;
        add(&world, "/d", &[wants(NONE, rule("any"))]).await;
        for n in 0..40 {
            let (fh, open) = open_at(&client, "/d", &format!("f{n}")).await;
            let current = stateid4 { seqid: 1, other: [0; 12] };
            client.ok(vec![putfh(&fh), layoutget(open, RW), layoutcommit(current, (1 << 20) - 1)]).await;
        }
        for (wanted, name) in [(NONE, "a"), (TLS, "b")] {
            set(&world, "/d", &[wants(wanted, rule("any"))]).await;
            open_at(&client, "/d", name).await;
            let args = ADMIN_WHY_args { path: format!("/d/{name}").into(), client: client.id };
            let ADMIN_WHY_res::CTL_OK(why) = ask(&world, ADMIN_WHY, &args).await else { panic!() };
            assert_eq!(why.components.is_empty(), wanted == TLS);
        }
    });
}

#[test]
fn what_is_wanted_from_now_on_is_taken_back_from_who_has_it_without() {
    offered(20, Some(MUTUAL), async |world: World, office: Office| {
        let client = office.client(&world, "tls", false).await;
        client.mkdir("/", "d").await;
        add(&world, "/d", &[wants(NONE, rule("any"))]).await;
        let (fh, open) = open_at(&client, "/d", "f").await;
        assert_eq!(handles_want(&client, &fh, open).await, Ok(vec![0]));
        assert_eq!(set(&world, "/d", &[wants(TLS, rule("any"))]).await, 1, "handles that are good in clear");
        gives_back(&world, &client, &fh).await;
        assert_eq!(handles_want(&client, &fh, open).await, Ok(vec![1]));
        // What wants less takes nothing back.
        assert_eq!(set(&world, "/d", &[wants(NONE, rule("any"))]).await, 0);
    });
}

#[test]
fn a_command_that_knows_of_no_protection_takes_none_away() {
    offered(30, None, async |world: World, _office: Office| {
        let client = world.client("clear").await;
        client.mkdir("/", "d").await;
        add(&world, "/d", &[wants(TLS, rule("10.0.0.0/8")), wants(MUTUAL, rule("10.1.0.0/16"))]).await;
        crate::exports::set(&world, "/d", &[crate::exports::read_only("10.0.0.0/8"), rule("any")]).await;
        let shown = async || {
            let exports = known(&world).await.exports;
            let d = exports.into_iter().find(|export| &export.path[..] == b"/d").unwrap();
            d.rules.into_iter().map(|rule| (rule.sec.rule.read_only, rule.wants)).collect::<Vec<_>>()
        };
        assert_eq!(shown().await, [(true, TLS), (false, NONE)]);
        // Nor one that knows of tickets.
        let version = known(&world).await.version;
        let rules = vec![ctl_sec_rule { rule: rule("10.0.0.0/8"), krb5: true, ..ctl_sec_rule::default() }];
        let args = ADMIN_SEC_EXPORT_args {
            version,
            action: ctl_export_action::EXPORT_SET,
            path: "/d".into(),
            rules,
        };
        let res: ADMIN_EXPORT_res = ask(&world, ADMIN_SEC_EXPORT, &args).await;
        assert!(matches!(res, ADMIN_EXPORT_res::CTL_OK(_)), "{res:?}");
        assert_eq!(shown().await, [(false, TLS)]);
        let unknown = wants(ctl_protection(7), rule("any"));
        let args = ADMIN_TLS_EXPORT_args {
            version: known(&world).await.version,
            action: ctl_export_action::EXPORT_SET,
            path: "/d".into(),
            rules: vec![unknown],
        };
        let res: ADMIN_EXPORT_res = ask(&world, ADMIN_TLS_EXPORT, &args).await;
        assert!(matches!(res, ADMIN_EXPORT_res::Default(ctl_status::CTL_ERR_INVAL, _)), "{res:?}");
    });
}
