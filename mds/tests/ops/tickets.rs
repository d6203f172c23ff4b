//! Exports that take Kerberos tickets, as clients without one and administrators meet them. RFC 8881 §2.6.3, §18.29.

use sluice_mds::Config;
use sluice_xdr::control::*;
use sluice_xdr::nfs4::*;

use crate::admin::ask;
use crate::exports::rule;
use crate::harness::*;

pub fn tickets(rule: ctl_rule, [krb5, krb5i, krb5p]: [bool; 3]) -> ctl_sec_rule {
    ctl_sec_rule { rule, krb5, krb5i, krb5p }
}

async fn known(world: &World) -> ADMIN_SEC_EXPORTS_resok {
    match ask(world, ADMIN_SEC_EXPORTS, &()).await {
        ADMIN_SEC_EXPORTS_res::CTL_OK(ok) => ok,
        other => panic!("{other:?}"),
    }
}

pub async fn put(world: &World, action: ctl_export_action, path: &str, rule: ctl_sec_rule) {
    let version = known(world).await.version;
    let args = ADMIN_SEC_EXPORT_args { version, action, path: path.to_owned().into(), rules: vec![rule] };
    let res: ADMIN_EXPORT_res = ask(world, ADMIN_SEC_EXPORT, &args).await;
    assert!(matches!(res, ADMIN_EXPORT_res::CTL_OK(_)), "{res:?}");
}

fn with_kerberos(seed: u64, test: impl AsyncFn(World)) {
    simulate_with(seed, Config { kerberos: true, ..at_data_servers() }, test);
}

/// Flavours as SECINFO names them; of tickets the service.
fn flavours(found: &[secinfo4]) -> Vec<String> {
    let name = |flavour: &secinfo4| match flavour {
        secinfo4::RPCSEC_GSS(info) => {
            assert_eq!((&info.oid[..], info.qop), (&b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02"[..], 0));
            format!("krb5 {}", info.service.0)
        }
        secinfo4::Default(flavour) => flavour.to_string(),
    };
    found.iter().map(name).collect()
}

async fn secinfo_of(client: &Client, name: &str) -> Vec<String> {
    let results = client.ok(vec![putrootfh(), secinfo(name)]).await;
    let nfs_resop4::OP_SECINFO(SECINFO4res::NFS4_OK(found)) = &results[1] else { panic!() };
    flavours(found)
}

#[test]
fn who_has_no_ticket_is_told_what_is_wanted() {
    with_kerberos(1, async |world: World| {
        let client = world.client("a").await;
        for name in ["all", "some", "plain"] {
            client.mkdir("/", name).await;
        }
        let add = ctl_export_action::EXPORT_ADD;
        put(&world, add, "/all", tickets(rule("any"), [true; 3])).await;
        let closed = ctl_rule { sys: false, none: false, ..rule("any") };
        put(&world, add, "/some", tickets(closed, [false, false, true])).await;
        assert_eq!(secinfo_of(&client, "plain").await, ["1", "0"]);
        assert_eq!(secinfo_of(&client, "all").await, ["1", "krb5 1", "krb5 2", "krb5 3", "0"]);
        assert_eq!(secinfo_of(&client, "some").await, ["krb5 3"], "what leads there may be walked through");
        let within = client.status(vec![putrootfh(), lookup("some"), getattr(&[FATTR4_TYPE])]).await;
        assert_eq!(within, nfsstat4::NFS4ERR_WRONGSEC);
        assert_eq!(
            client.status(vec![putrootfh(), lookup("all"), getattr(&[FATTR4_TYPE])]).await,
            nfsstat4::NFS4_OK
        );
    });
}

#[test]
fn without_a_keytab_nobody_is_asked_for_a_ticket() {
    simulate(2, async |world: World| {
        let client = world.client("a").await;
        client.mkdir("/", "d").await;
        assert!(!known(&world).await.kerberos);
        put(&world, ctl_export_action::EXPORT_ADD, "/d", tickets(rule("any"), [true; 3])).await;
        assert_eq!(secinfo_of(&client, "d").await, ["1", "0"]);
    });
}

#[test]
fn a_command_that_knows_of_no_tickets_takes_none_away() {
    with_kerberos(3, async |world: World| {
        let client = world.client("a").await;
        client.mkdir("/", "d").await;
        put(&world, ctl_export_action::EXPORT_ADD, "/d", tickets(rule("10.0.0.0/8"), [true, false, true]))
            .await;
        crate::exports::set(&world, "/d", &[crate::exports::read_only("10.0.0.0/8"), rule("any")]).await;
        let exports = known(&world).await.exports;
        let d = exports.iter().find(|export| &export.path[..] == b"/d").unwrap();
        let shown: Vec<_> =
            d.rules.iter().map(|rule| (rule.rule.read_only, [rule.krb5, rule.krb5i, rule.krb5p])).collect();
        assert_eq!(shown, [(true, [true, false, true]), (false, [false; 3])]);
        // But who lets nobody in from a network means those with tickets, too.
        let nobody = ctl_rule { sys: false, none: false, ..rule("10.0.0.0/8") };
        crate::exports::set(&world, "/d", &[nobody, rule("any")]).await;
        let exports = known(&world).await.exports;
        let d = exports.iter().find(|export| &export.path[..] == b"/d").unwrap();
        assert!(!d.rules.iter().any(|rule| rule.krb5 || rule.krb5i || rule.krb5p));
    });
}
