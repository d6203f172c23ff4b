//! SP4_MACH_CRED: clients that their machines have put under their own tickets. RFC 8881 §2.10.8.3, §18.35.

use sluice_kv::RunLimits;
use sluice_mds::{Config, Protection};
use sluice_namespace::FsError;
use sluice_namespace::stable_storage::{ClientGuard, clear_client_guard, client_guards, put_client_guard};
use sluice_rpc::Service;
use sluice_xdr::control::*;
use sluice_xdr::nfs4::*;
use xxhash_rust::xxh3::xxh3_64;

use crate::admin::{ask, evict};
use crate::exports::rule;
use crate::harness::*;
use crate::layout_recall;
use crate::protection::set;
use crate::tickets::{put, tickets};

const HOST: &str = "host/a@TEST";
const WRONG_CRED: nfsstat4 = nfsstat4::NFS4ERR_WRONG_CRED;
const NOT_BOUND: nfsstat4 = nfsstat4::NFS4ERR_CONN_NOT_BOUND_TO_SESSION;
const BOTH_WAYS: channel_dir_from_client4 = channel_dir_from_client4::CDFC4_FORE_OR_BOTH;

/// What Linux wants enforced.
const ENFORCED: [u32; 5] = [41, 42, 43, 44, 57];
/// And allowed: CLOSE, COMMIT, DELEGRETURN, LOCKU, OPEN_DOWNGRADE, SECINFO, FREE_STATEID, LAYOUTRETURN, SECINFO_NO_NAME,
/// TEST_STATEID; and WRITE.
const ALLOWED: [u32; 10] = [4, 5, 8, 14, 21, 33, 45, 51, 52, 55];
const WRITE: u32 = 38;

fn with_kerberos(seed: u64, test: impl AsyncFn(World)) {
    simulate_with(seed, Config { kerberos: true, ..at_data_servers() }, test);
}

fn machine(raw: Raw) -> Raw {
    raw.with_ticket(HOST, Service::Integrity, None)
}

fn alice(raw: Raw, service: Service) -> Raw {
    raw.with_ticket("alice@TEST", service, Some(5))
}

/// EXCHANGE_ID as Linux sends it.
fn protecting(verifier: u8, flags: u32) -> nfs_argop4 {
    let nfs_argop4::OP_EXCHANGE_ID(mut args) = exchange_id(b"a", [verifier; 8], flags) else { panic!() };
    args.eia_state_protect = state_protect4_a::SP4_MACH_CRED(state_protect_ops4 {
        spo_must_enforce: bitmap4::of(&ENFORCED),
        spo_must_allow: bitmap4::of(&ALLOWED).with(WRITE),
    });
    nfs_argop4::OP_EXCHANGE_ID(args)
}

async fn exchange(raw: &Raw, op: nfs_argop4) -> Result<EXCHANGE_ID4resok, nfsstat4> {
    match raw.one(op).await {
        nfs_resop4::OP_EXCHANGE_ID(EXCHANGE_ID4res::NFS4_OK(ok)) => Ok(ok),
        nfs_resop4::OP_EXCHANGE_ID(EXCHANGE_ID4res::Default(status)) => Err(status),
        other => panic!("{other:?}"),
    }
}

/// A client of host a under its machine's ticket, which is what it calls with.
async fn protected(world: &World) -> Client {
    let raw = machine(world.connect("a").await);
    let known = exchange(&raw, protecting(1, 0)).await.unwrap();
    let made = raw.create_session(known.eir_clientid, known.eir_sequenceid).await;
    let CREATE_SESSION4res::NFS4_OK(made) = made else { panic!("{made:?}") };
    let client = Client::new(raw, known.eir_clientid, made.csr_sessionid);
    client.ok(vec![reclaim_complete(false)]).await;
    client
}

/// The root takes whatever there is. A client without a ticket.
async fn takes_tickets(world: &World) -> Client {
    put(world, ctl_export_action::EXPORT_SET, "/", tickets(rule("any"), [true; 3])).await;
    world.client("b").await
}

/// Of krb5, krb5i and krb5p.
const PRIVACY: [bool; 3] = [false, false, true];

fn only(flavours: [bool; 3]) -> ctl_sec_rule {
    tickets(ctl_rule { sys: false, none: false, ..rule("any") }, flavours)
}

/// A file in an export that takes only these, open by a user of the client, which calls as that user from then on.
async fn alice_opens(
    world: &World,
    client: &mut Client,
    flavours: [bool; 3],
    service: Service,
) -> (nfs_fh4, stateid4) {
    takes_tickets(world).await.mkdir("/", "d").await;
    put(world, ctl_export_action::EXPORT_ADD, "/d", only(flavours)).await;
    client.raw = alice(client.raw.clone(), service);
    let open = open_create("f", b"owner", BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0);
    opened(&client.ok([walk("/d"), vec![open, getfh()]].concat()).await)
}

async fn outside(raw: &Raw, op: nfs_argop4) -> nfsstat4 {
    raw.compound(vec![op]).await.status
}

#[test]
fn linux_is_granted_what_it_asks_for_but_for_write() {
    with_kerberos(1, async |world: World| {
        let raw = world.connect("a").await;
        for service in [Service::Integrity, Service::Privacy] {
            let raw = raw.clone().with_ticket(HOST, service, None);
            let state_protect4_r::SP4_MACH_CRED(granted) =
                exchange(&raw, protecting(1, 0)).await.unwrap().eir_state_protect
            else {
                panic!()
            };
            // It would do without, should there be anything else in the first.
            assert_eq!(granted.spo_must_enforce, bitmap4::of(&ENFORCED));
            assert_eq!(granted.spo_must_allow, bitmap4::of(&ALLOWED));
        }
        // §18.35.3
        for raw in [raw.clone(), raw.clone().with_ticket(HOST, Service::None, None)] {
            let refused = exchange(&raw, protecting(2, 0)).await.unwrap_err();
            assert_eq!(refused, nfsstat4::NFS4ERR_INVAL);
        }
        let none = exchange(&machine(raw), exchange_id(b"b", [1; 8], 0)).await.unwrap();
        assert_eq!(none.eir_state_protect, state_protect4_r::SP4_NONE);
    });
}

/// Whoever it is, on the same host and over the client's own connection.
async fn is_kept_out(client: &Client, over: &Raw) {
    let strangers = [
        over.clone().with_user(0, 0, &[]),
        alice(over.clone(), Service::Privacy),
        over.clone().with_ticket("host/b@TEST", Service::Privacy, None),
        // Its own principal, but anybody may have changed what it said.
        over.clone().with_ticket(HOST, Service::None, None),
    ];
    for raw in strangers {
        for sequence in 1..4 {
            let made = raw.create_session(client.id, sequence).await;
            assert_eq!(made, CREATE_SESSION4res::Default(WRONG_CRED), "{sequence}");
        }
        assert_eq!(outside(&raw, bind(client.session, BOTH_WAYS)).await, WRONG_CRED);
        assert_eq!(outside(&raw, destroy_session(client.session)).await, WRONG_CRED);
        assert_eq!(outside(&raw, destroy_clientid(client.id)).await, WRONG_CRED);
        for op in [exchange_id(b"a", [2; 8], 0), exchange_id(b"a", [1; 8], 0)] {
            assert_eq!(exchange(&raw, op).await.unwrap_err(), nfsstat4::NFS4ERR_CLID_INUSE);
        }
        let update = exchange_id(b"a", [1; 8], EXCHGID4_FLAG_UPD_CONFIRMED_REC_A);
        assert_eq!(exchange(&raw, update).await.unwrap_err(), nfsstat4::NFS4ERR_PERM);
    }
}

#[test]
fn nobody_but_its_machine_makes_ends_or_binds_what_a_client_has() {
    with_kerberos(2, async |mut world: World| {
        let mut client = protected(&world).await;
        is_kept_out(&client, &client.raw).await;
        client.ok(vec![putrootfh()]).await;
        world.restart().await;
        let raw = machine(world.connect("a").await);
        is_kept_out(&client, &raw).await;
        assert_eq!(outside(&raw, bind(client.session, BOTH_WAYS)).await, nfsstat4::NFS4_OK);
        client = client.over_slots(raw.clone());
        client.ok(vec![putrootfh()]).await;
        is_kept_out(&client, &raw).await;
        let known = exchange(&raw, protecting(1, 0)).await.unwrap();
        assert_eq!(known.eir_clientid, client.id);
        assert!(matches!(known.eir_state_protect, state_protect4_r::SP4_MACH_CRED(_)));
        // What is not confirmed yet is no more anybody's than what is.
        let restarted = exchange(&raw, protecting(2, 0)).await.unwrap();
        let unsealed = raw.clone().with_ticket(HOST, Service::None, None);
        let made = unsealed.create_session(restarted.eir_clientid, restarted.eir_sequenceid).await;
        assert_eq!(made, CREATE_SESSION4res::Default(WRONG_CRED));
        client.ok(vec![putrootfh()]).await;
        let made = raw.create_session(client.id, 2).await;
        let CREATE_SESSION4res::NFS4_OK(made) = made else { panic!("{made:?}") };
        for session in [client.session, made.csr_sessionid] {
            assert_eq!(outside(&raw, destroy_session(session)).await, nfsstat4::NFS4_OK);
        }
        assert_eq!(outside(&raw, destroy_clientid(client.id)).await, nfsstat4::NFS4_OK);
    });
}

/// §2.10.3.1. Linux binds all connections that it has when it hears that one is not.
#[test]
fn a_connection_is_bound_before_it_is_used() {
    with_kerberos(3, async |world: World| {
        let client = protected(&world).await;
        let other = world.connect("a").await;
        let users = [machine(other.clone()), alice(other.clone(), Service::None), other.clone()];
        let with = |raw: &Raw| client.over(raw.clone());
        for user in &users {
            assert_eq!(with(user).status(vec![putrootfh()]).await, NOT_BOUND);
        }
        let bound = outside(&users[0], bind(client.session, channel_dir_from_client4::CDFC4_FORE)).await;
        assert_eq!(bound, nfsstat4::NFS4_OK);
        // Whoever is on that host.
        let mut client = with(&users[0]);
        for user in users {
            client.raw = user;
            client.ok(vec![putrootfh()]).await;
        }
    });
}

/// Told that its connection is not bound, Linux takes a request for one that was not done.
#[test]
fn what_was_done_is_told_over_a_connection_that_is_not_bound() {
    with_kerberos(4, async |mut world: World| {
        let client = protected(&world).await;
        takes_tickets(&world).await.mkdir("/", "open").await;
        let make = |name: &str, seqid| {
            let make = create(createtype4::NF4DIR, name, &mode(0o777));
            [vec![sequence(client.session, 9, seqid, true)], walk("/open"), vec![make]].concat()
        };
        let mut raw = client.raw.clone();
        for (seqid, restarts) in [(1, false), (2, true)] {
            let name = format!("d{seqid}");
            let made = raw.compound(make(&name, seqid)).await;
            assert_eq!(made.status, nfsstat4::NFS4_OK);
            raw.connection.close();
            if restarts {
                world.restart().await;
            }
            raw = machine(world.connect("a").await);
            // Of flags it hears as of now.
            let again = raw.compound(make(&name, seqid)).await;
            assert_eq!(again.resarray[1..], made.resarray[1..], "{restarts}");
            // Not to another, nor to who says so without integrity, or calls himself by a number that comes of the name.
            let number =
                |shift| u32::try_from(xxh3_64(HOST.as_bytes()) >> shift & u64::from(u32::MAX)).unwrap();
            for thief in [
                alice(raw.clone(), Service::Privacy),
                raw.clone().with_ticket(HOST, Service::None, None),
                raw.clone().with_user(number(0), 0, &[]),
                raw.clone().with_user(number(32), 0, &[]),
            ] {
                assert_eq!(thief.compound(make(&name, seqid)).await.status, NOT_BOUND);
            }
            assert_eq!(raw.compound(make("more", seqid + 1)).await.status, NOT_BOUND);
            assert_eq!(outside(&raw, bind(client.session, BOTH_WAYS)).await, nfsstat4::NFS4_OK);
        }
        assert_eq!(raw.compound(make("more", 3)).await.status, nfsstat4::NFS4_OK);
    });
}

/// A user's ticket is over, or of a flavour that its machine's is not: what he had is given back all the same.
#[test]
fn a_machine_gives_back_what_its_users_have_where_its_flavour_is_not_good() {
    with_kerberos(5, async |world: World| {
        let mut client = protected(&world).await;
        let as_machine = client.raw.clone();
        let (fh, open) = alice_opens(&world, &mut client, PRIVACY, Service::Privacy).await;
        let write =
            nfs_argop4::OP_WRITE(WRITE4args { data: "x".into(), stateid: open, ..WRITE4args::default() });

        // A user with the same flavour is told that it is not good, whatever he does.
        let wrong = nfsstat4::NFS4ERR_WRONGSEC;
        client.raw = alice(as_machine.clone(), Service::Integrity);
        assert_eq!(client.status(vec![putfh(&fh), close(open)]).await, wrong);
        // And so is the machine of a client that was promised nothing.
        let plain = machine(world.connect("c").await).session(b"c", [1; 8], 0).await;
        plain.ok(vec![reclaim_complete(false)]).await;
        let look = getattr(&[FATTR4_SIZE]);
        assert_eq!(plain.status(vec![putfh(&fh), look.clone(), close(open)]).await, wrong);

        client.raw = as_machine;
        let commit = nfs_argop4::OP_COMMIT(COMMIT4args { offset: 0, count: 0 });
        client.ok(vec![putfh(&fh), commit.clone()]).await;
        client.ok(vec![putfh(&fh), look.clone(), commit]).await;
        let down = downgrade(open, BOTH, 0);
        let read = nfs_argop4::OP_READ(READ4args { stateid: open, offset: 0, count: 10 });
        let refused = [
            vec![putfh(&fh), look.clone()],
            vec![putfh(&fh), look.clone(), test_stateid(&[open])],
            vec![putfh(&fh), write.clone()],
            vec![putfh(&fh), write, close(open)],
            vec![putfh(&fh), read, close(open)],
            [walk("/d"), vec![lookup("f"), close(open)]].concat(),
        ];
        for ops in refused {
            assert_eq!(client.status(ops.clone()).await, wrong, "{ops:?}");
        }
        let results = client.ok(vec![putfh(&fh), look.clone(), down]).await;
        let nfs_resop4::OP_OPEN_DOWNGRADE(OPEN_DOWNGRADE4res::NFS4_OK(down)) = &results[2] else { panic!() };
        client.ok(vec![putfh(&fh), look.clone(), close(down.open_stateid), look]).await;
        assert_eq!(client.tested(&[open]).await, [nfsstat4::NFS4ERR_BAD_STATEID]);
    });
}

/// It was told of flavours that it may give back without a good one, and not in clear what is for TLS.
#[test]
fn a_machine_gives_nothing_back_in_clear_where_an_export_wants_tls() {
    let config = Config { kerberos: true, protection: Protection::Tls, ..at_data_servers() };
    simulate_with(10, config, async |world: World| {
        let mut client = protected(&world).await;
        let as_machine = client.raw.clone();
        let (fh, open) = alice_opens(&world, &mut client, PRIVACY, Service::Privacy).await;
        client.raw = as_machine;
        let closes = vec![putfh(&fh), getattr(&[FATTR4_SIZE]), close(open)];
        let wants = |wants| [ctl_tls_rule { sec: only(PRIVACY), wants }];
        set(&world, "/d", &wants(ctl_protection::PROTECTION_TLS)).await;
        assert_eq!(client.status(closes.clone()).await, nfsstat4::NFS4ERR_WRONGSEC);
        set(&world, "/d", &wants(ctl_protection::PROTECTION_NONE)).await;
        client.ok(closes).await;
    });
}

/// Layouts, too, and under the promise alone.
#[test]
fn a_machine_returns_its_users_layouts() {
    with_kerberos(6, async |world: World| {
        let mut client = protected(&world).await;
        let as_machine = client.raw.clone();
        let (fh, open) = alice_opens(&world, &mut client, [true, false, false], Service::None).await;
        let layout = layout_recall::get(&client, &fh, open).await;
        client.raw = as_machine;
        let gives = layoutreturn(layout, layoutiomode4::LAYOUTIOMODE4_ANY);
        client.ok(vec![putfh(&fh), gives, getattr(&[FATTR4_SIZE]), close(open)]).await;
    });
}

async fn rows(world: &World) -> Vec<ClientGuard> {
    let read = world
        .db
        .run_read(RunLimits::default(), |txn| Box::pin(async move { client_guards(&txn, None, 9).await }));
    read.await.unwrap()
}

#[test]
fn administrators_see_whose_ticket_it_is_and_end_the_client() {
    with_kerberos(7, async |world: World| {
        let client = protected(&world).await;
        world.client("b").await;
        let told: ADMIN_GUARDS_resok = ask(&world, ADMIN_GUARDS, &()).await;
        assert_eq!(told.clients, [ctl_client_guard { client: client.id, principal: HOST.to_owned().into() }]);
        assert!(matches!(evict(&world, client.id).await, ADMIN_EVICT_res::CTL_OK(_)));
        assert_eq!(client.status(vec![putrootfh()]).await, nfsstat4::NFS4ERR_BADSESSION);
        let told: ADMIN_GUARDS_resok = ask(&world, ADMIN_GUARDS, &()).await;
        assert!(told.clients.is_empty());
        assert!(rows(&world).await.is_empty());
    });
}

/// A row of a release that has none: the client is as any other.
#[test]
fn without_its_row_a_client_is_not_protected() {
    with_kerberos(8, async |mut world: World| {
        let client = protected(&world).await;
        let id = client.id;
        let cleared = world.db.run::<_, FsError, _>(RunLimits::default(), |mut txn| {
            Box::pin(async move {
                clear_client_guard(&mut txn, id);
                // And leaves behind that of a client that it forgot.
                put_client_guard(&mut txn, &ClientGuard { client: id + 1, enforced: 1, allowed: 0 });
                Ok(())
            })
        });
        cleared.await.unwrap();
        world.restart().await;
        let raw = machine(world.connect("a").await);
        client.over_slots(raw.clone()).ok(vec![putrootfh()]).await;
        let known = exchange(&raw, protecting(1, 0)).await.unwrap();
        assert_eq!((known.eir_clientid, known.eir_state_protect), (id, state_protect4_r::SP4_NONE));
        assert!(rows(&world).await.is_empty());
    });
}

/// Nobody could come with a ticket.
#[test]
fn a_start_without_kerberos_enforces_nothing() {
    with_kerberos(9, async |mut world: World| {
        let client = protected(&world).await;
        for kerberos in [false, true] {
            world.config.kerberos = kerberos;
            world.restart().await;
            let raw = world.connect("a").await;
            let status = client.over_slots(raw).status(vec![putrootfh()]).await;
            assert_eq!(status, if kerberos { NOT_BOUND } else { nfsstat4::NFS4_OK });
        }
    });
}
