//! Exports to hosts by name, to names with wildcards and to netgroups, as clients meet them: docs/adr/0042.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sluice_kv::Faults;
use sluice_mds::{Config, Network, Resolver, Rule, Squash};
use sluice_xdr::control::*;
use sluice_xdr::nfs4::*;

use crate::admin::ask;
use crate::exports::{
    add, address, change, delegated_at, exports, furnish, open_at, read_only, rule, set, status_at,
};
use crate::harness::*;

const RW: layoutiomode4 = layoutiomode4::LAYOUTIOMODE4_RW;
const OK: nfsstat4 = nfsstat4::NFS4_OK;
const ACCESS: nfsstat4 = nfsstat4::NFS4ERR_ACCESS;
/// Whatever has changed is seen after so many seconds: answers are used for five minutes.
const LATER: u64 = 330;

/// A name service.
#[derive(Debug, Default)]
struct Directory {
    hosts: Mutex<BTreeMap<String, Vec<IpAddr>>>,
    /// What owners of addresses call them.
    claimed: Mutex<BTreeMap<IpAddr, String>>,
    netgroups: Mutex<BTreeMap<String, BTreeSet<String>>>,
    /// Of whom nobody can tell in which netgroups they are.
    untold: Mutex<BTreeSet<String>>,
    away: AtomicBool,
    asked: AtomicUsize,
}

impl Directory {
    fn answer(&self) -> io::Result<()> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match self.away.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(()),
        }
    }

    fn is_away(&self, away: bool) {
        self.away.store(away, Ordering::Relaxed);
    }

    fn put(&self, host: &str, address: &str) {
        self.hosts.lock().insert(host.to_owned(), vec![address.parse().unwrap()]);
    }

    fn claim(&self, address: &str, name: &str) {
        self.claimed.lock().insert(address.parse().unwrap(), name.to_owned());
    }

    /// A host with a name of its own.
    fn host(&self, host: &str, address: &str) {
        self.put(host, address);
        self.claim(address, host);
    }

    fn netgroup(&self, group: &str, members: &[&str]) {
        let members = members.iter().map(|member| (*member).to_owned()).collect();
        self.netgroups.lock().insert(group.to_owned(), members);
    }
}

impl Resolver for Directory {
    fn addresses(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        self.answer()?;
        // As getaddrinfo(3) does.
        if let Ok(address) = host.parse() {
            return Ok(vec![address]);
        }
        Ok(self.hosts.lock().get(host).cloned().unwrap_or_default())
    }

    fn name(&self, address: IpAddr) -> io::Result<Option<String>> {
        self.answer()?;
        Ok(self.claimed.lock().get(&address).cloned())
    }

    fn is_in(&self, netgroup: &str, host: &str) -> io::Result<bool> {
        self.answer()?;
        if self.untold.lock().contains(host) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let groups = self.netgroups.lock();
        groups.get(netgroup).map(|members| members.contains(host)).ok_or(io::ErrorKind::NotFound.into())
    }
}

/// The root is the administrator's alone, who has made the directories of [`furnish`]. Hosts a, b and c have names in `x`.
fn with_names(seed: u64, test: impl AsyncFn(World, Arc<Directory>)) {
    let directory = Arc::new(Directory::default());
    let root = Rule { squash: Squash::None, ..Rule::new("10.0.0.3".parse::<Network>().unwrap()) };
    let resolver: Arc<dyn Resolver> = Arc::clone(&directory) as _;
    let config = Config { root_export: vec![root], resolver: Some(resolver), ..at_data_servers() };
    simulate_with(seed, config, async |world: World| {
        furnish(&world).await;
        for host in ["a", "b", "c"] {
            directory.host(&format!("{host}.x"), &address(&world, host));
        }
        test(world, Arc::clone(&directory)).await;
    });
}

async fn known(world: &World, procedure: u32) -> ADMIN_NAMES_resok {
    match ask(world, procedure, &()).await {
        ADMIN_NAMES_res::CTL_OK(known) => known,
        other => panic!("{other:?}"),
    }
}

/// So many seconds in which clients renew their leases.
async fn idle(world: &World, seconds: u64, clients: &[&Client]) {
    for _ in 0..seconds / 15 {
        world.sleep(Duration::from_secs(15)).await;
        for client in clients {
            client.compound(Vec::new()).await;
        }
    }
}

async fn at_two(client: &Client) -> nfsstat4 {
    status_at(client, "/p/two", &[getattr(&[FATTR4_TYPE])]).await
}

/// A file of its own in /p/two, and a layout of it that lets it write.
async fn writer(client: &Client, name: &str) -> (nfs_fh4, stateid4) {
    let (fh, open) = open_at(client, "/p/two", name).await;
    client.ok(vec![putfh(&fh), layoutget(open, RW)]).await;
    (fh, open)
}

#[test]
fn a_host_is_let_in_by_its_name_also_while_nobody_can_look_it_up() {
    with_names(1, async |mut world: World, directory| {
        let add_ = ctl_export_action::EXPORT_ADD;
        let no = change(&world, add_, "/p/two", &[rule("client7.x")]).await.unwrap_err();
        assert_eq!(no, "client7.x: the name service of the metadata server's host knows no such host");
        directory.is_away(true);
        let no = change(&world, add_, "/p/two", &[rule("a.x")]).await.unwrap_err();
        assert!(no.starts_with("a.x: ") && no.contains("cannot tell") && no.contains("its address"), "{no}");
        directory.is_away(false);
        add(&world, "/p/two", &[rule("a.x"), read_only("b.x")]).await;
        let (a, b, c) = (world.client("a").await, world.client("b").await, world.client("c").await);
        assert_eq!((at_two(&a).await, at_two(&b).await, at_two(&c).await), (OK, OK, ACCESS));
        let made =
            async |client: &Client| status_at(client, "/p/two", &[open_create("f", b"o", BOTH, 0)]).await;
        assert_eq!((made(&a).await, made(&b).await), (OK, nfsstat4::NFS4ERR_ROFS));
        let shown: Vec<_> =
            exports(&world).await.exports[1].rules.iter().map(|rule| rule.network.clone()).collect();
        assert_eq!(shown, ["a.x", "b.x"]);
        directory.is_away(true);
        // Others can be given something meanwhile.
        set(&world, "/p/two", &[rule("a.x"), rule("b.x"), rule("10.9.9.9")]).await;
        world.restart().await;
        let (a, b, c) = (world.client("a").await, world.client("b").await, world.client("c").await);
        assert_eq!((at_two(&a).await, at_two(&b).await, at_two(&c).await), (OK, OK, ACCESS));
        idle(&world, LATER, &[&a]).await;
        assert_eq!(at_two(&a).await, OK, "it keeps the addresses that it had");
        let host = known(&world, ADMIN_NAMES).await.hosts.remove(0);
        assert_eq!((&host.name[..], &host.addresses[..]), (&b"a.x"[..], &[address(&world, "a").into()][..]));
        assert!(host.told_seconds.is_empty() && !host.trouble.is_empty(), "{host:?}");
    });
}

#[test]
fn a_host_that_has_another_address_is_let_in_from_there_and_not_from_where_it_was() {
    for on_demand in [false, true] {
        with_names(2, async |world: World, directory| {
            directory.put("client7.x", &address(&world, "a"));
            add(&world, "/p/two", &[rule("client7.x"), rule("c.x")]).await;
            let (a, b, c) = (world.client("a").await, world.client("b").await, world.client("c").await);
            let (fh, open) = writer(&a, "f").await;
            writer(&c, "g").await;
            assert_eq!((at_two(&a).await, at_two(&b).await), (OK, ACCESS));
            directory.put("client7.x", &address(&world, "b"));
            if on_demand {
                let host = known(&world, ADMIN_REFRESH_NAMES).await.hosts.remove(1);
                assert_eq!(host.addresses, [address(&world, "b")]);
                assert_eq!(&host.told_seconds[..], [0]);
            } else {
                idle(&world, LATER, &[&a, &b, &c]).await;
            }
            // As if an administrator had said so.
            until(&world.env, || (a.callbacks().count() >= 1).then_some(())).await;
            assert_eq!(a.status(vec![putfh(&fh), layoutget(open, RW)]).await, ACCESS);
            assert_eq!((at_two(&a).await, at_two(&b).await, at_two(&c).await), (ACCESS, OK, OK));
            assert_eq!(c.callbacks().count(), 0);
            // A name that nobody has any more lets nobody in.
            directory.hosts.lock().remove("client7.x");
            known(&world, ADMIN_REFRESH_NAMES).await;
            assert_eq!((at_two(&a).await, at_two(&b).await), (ACCESS, ACCESS));
        });
    }
}

/// As a cluster answers that recovers just then.
#[test]
fn a_host_that_moved_while_nobody_knows_what_is_stored_is_looked_up_there() {
    with_names(11, async |world: World, directory| {
        directory.put("client7.x", &address(&world, "a"));
        add(&world, "/p/two", &[rule("client7.x")]).await;
        let (a, b) = (world.client("a").await, world.client("b").await);
        assert_eq!((at_two(&a).await, at_two(&b).await), (OK, ACCESS));
        directory.put("client7.x", &address(&world, "b"));
        world.db.set_faults(Faults { unknown_applied: 1.0, ..Faults::NONE });
        known(&world, ADMIN_REFRESH_NAMES).await;
        world.db.set_faults(Faults::NONE);
        idle(&world, 15, &[&a, &b]).await;
        assert_eq!((at_two(&a).await, at_two(&b).await), (ACCESS, OK));
    });
}

/// Until then nobody asked who they are.
#[test]
fn the_first_rule_by_name_takes_back_only_from_whom_it_gives_less() {
    let cases = [
        (vec![rule("any")], vec![rule("any"), rule("*.x")], 0),
        (vec![rule("any")], vec![rule("any"), read_only("*.y")], 0),
        (vec![rule("any")], vec![rule("any"), read_only("*.x")], 1),
        (vec![rule("any")], vec![read_only("any"), rule("@trusted")], 0),
        (vec![rule("any")], vec![rule("any"), read_only("@trusted")], 1),
        // Whom a network settled.
        (vec![rule("10.0.0.0/8"), rule("*.x")], vec![rule("*.x")], 0),
        (
            vec![rule("10.0.0.0/8"), rule("*.x")],
            vec![read_only("any"), rule("*.x"), read_only("@trusted")],
            0,
        ),
        (vec![rule("10.0.0.0/8"), rule("*.x")], vec![rule("any"), read_only("*.x")], 1),
    ];
    for (seed, (before, after, recalled)) in (20..).zip(cases) {
        with_names(seed, async |world: World, directory| {
            directory.netgroup("trusted", &["a.x"]);
            add(&world, "/p/two", &before).await;
            let a = world.client("a").await;
            let (fh, open) = writer(&a, "f").await;
            // Those who are remembered are looked through meanwhile, as every ten seconds.
            world.sleep(Duration::from_secs(8)).await;
            let latency = Duration::from_secs(2);
            world.db.set_faults(Faults { latency, ..Faults::NONE });
            assert_eq!(set(&world, "/p/two", &after).await, recalled, "{after:?}");
            world.db.set_faults(Faults::NONE);
            if recalled == 0 {
                assert_eq!(a.status(vec![putfh(&fh), layoutget(open, RW)]).await, OK);
                assert_eq!(a.callbacks().count(), 0);
            }
        });
    }
}

#[test]
fn whoever_was_told_is_told_to_wait_anew_before_he_has_no_access() {
    with_names(13, async |world: World, directory| {
        for group in ["trusted", "more", "third"] {
            directory.netgroup(group, &["a.x"]);
        }
        add(&world, "/p/two", &[rule("@trusted")]).await;
        let a = world.client("a").await;
        assert_eq!(at_two(&a).await, OK);
        // It is asked for, and told.
        set(&world, "/p/two", &[rule("@more"), rule("@trusted")]).await;
        idle(&world, 60, &[&a]).await;
        assert_eq!(at_two(&a).await, OK);
        directory.untold.lock().extend(["a.x".to_owned(), address(&world, "a")]);
        set(&world, "/p/two", &[rule("@third"), rule("@trusted")]).await;
        let raw = world.connect("a").await;
        let status = raw.compound(vec![exchange_id(b"other", [1; 8], 0)]).await.status;
        assert_eq!(status, nfsstat4::NFS4ERR_DELAY);
    });
}

#[test]
fn whoever_claims_a_name_that_is_anothers_is_not_let_in_by_it() {
    with_names(3, async |world: World, directory| {
        let [a, b, c] = ["a", "b", "c"].map(|host| address(&world, host));
        // Its owner calls it so; the name has another address. And an address is no name, or it would have itself.
        directory.claim(&b, "a.x");
        directory.claim(&c, &c);
        add(&world, "/p/two", &[rule("*.x"), rule("10.*")]).await;
        add(&world, "/other", &[rule("*.X"), read_only("any")]).await;
        let (at_a, at_b, at_c) = (world.client("a").await, world.client("b").await, world.client("c").await);
        assert_eq!((at_two(&at_a).await, at_two(&at_b).await, at_two(&at_c).await), (OK, ACCESS, ACCESS));
        let made = async |client: &Client, name| {
            status_at(client, "/other", &[open_create(name, b"o", BOTH, 0)]).await
        };
        assert_eq!(made(&at_a, "f").await, OK);
        assert_eq!(
            (made(&at_b, "g").await, made(&at_c, "h").await),
            (nfsstat4::NFS4ERR_ROFS, nfsstat4::NFS4ERR_ROFS)
        );
        let names: Vec<_> =
            known(&world, ADMIN_NAMES).await.callers.into_iter().map(|one| (one.address, one.name)).collect();
        let expected = [(a, "a.x"), (b, ""), (c, "")].map(|(address, name)| (address.into(), name.into()));
        assert!(expected.iter().all(|one| names.contains(one)), "{names:?}");
    });
}

#[test]
fn netgroups_have_names_and_addresses() {
    with_names(4, async |world: World, directory| {
        directory.netgroup("trusted", &["a.x", &address(&world, "b")]);
        let no =
            change(&world, ctl_export_action::EXPORT_ADD, "/p/two", &[rule("@other")]).await.unwrap_err();
        assert!(no.starts_with("@other: ") && no.contains("no such netgroup"), "{no}");
        add(&world, "/p/two", &[rule("@trusted")]).await;
        let (a, b, c) = (world.client("a").await, world.client("b").await, world.client("c").await);
        assert_eq!((at_two(&a).await, at_two(&b).await, at_two(&c).await), (OK, OK, ACCESS));
        let asked = directory.asked.load(Ordering::Relaxed);
        for _ in 0..100 {
            at_two(&a).await;
        }
        assert_eq!(directory.asked.load(Ordering::Relaxed), asked, "nobody is asked for each call");
        // In another netgroup, which is asked for before its rule holds, it goes on; out of both it does not.
        let (fh, _) = writer(&a, "f").await;
        writer(&b, "g").await;
        directory.netgroup("more", &["a.x"]);
        assert_eq!(set(&world, "/p/two", &[rule("@more"), rule("@trusted")]).await, 0);
        assert_eq!(at_two(&a).await, OK);
        directory.netgroup("trusted", &[&address(&world, "b")]);
        idle(&world, LATER, &[&a, &b]).await;
        assert_eq!((at_two(&a).await, a.callbacks().count()), (OK, 0));
        directory.netgroup("more", &[]);
        idle(&world, LATER, &[&a, &b]).await;
        until(&world.env, || (a.callbacks().count() >= 1).then_some(())).await;
        assert_eq!(a.status(vec![putfh(&fh), getattr(&[FATTR4_SIZE])]).await, ACCESS);
        assert_eq!((at_two(&b).await, b.callbacks().count()), (OK, 0));
    });
}

/// exports(5): hosts, networks, wildcards, netgroups, everybody, in whatever order they were given.
#[test]
fn of_several_rules_the_one_that_says_most_holds() {
    with_names(5, async |world: World, directory| {
        directory.netgroup("trusted", &["a.x", "b.x", "c.x"]);
        let [a, b, c] = ["a", "b", "c"].map(|host| address(&world, host));
        let client = [world.client("a").await, world.client("b").await, world.client("c").await];
        let writes = async |rules: &[ctl_rule]| {
            change(&world, ctl_export_action::EXPORT_ADD, "/p/two", rules).await.unwrap();
            let mut all = [OK; 3];
            for (client, status) in client.iter().zip(&mut all) {
                *status = status_at(client, "/p/two", &[remove("none")]).await;
            }
            crate::exports::take(&world, "/p/two").await;
            all.map(|status| match status {
                nfsstat4::NFS4ERR_NOENT => 'w',
                nfsstat4::NFS4ERR_ROFS => 'r',
                ACCESS => '-',
                other => panic!("{other:?}"),
            })
        };
        let hole = |clients: &str| ctl_rule { sys: false, none: false, ..rule(clients) };
        assert_eq!(writes(&[read_only("any"), rule("@trusted")]).await, ['w', 'w', 'w']);
        assert_eq!(writes(&[rule("@trusted"), read_only("*.x")]).await, ['r', 'r', 'r']);
        assert_eq!(writes(&[read_only("*.x"), rule("10.0.0.0/8")]).await, ['w', 'w', 'w']);
        assert_eq!(writes(&[rule("10.0.0.0/8"), read_only("a.x"), hole("b.x")]).await, ['r', '-', 'w']);
        assert_eq!(writes(&[rule("a.x"), read_only(&a), rule("*.x"), hole("c.x*")]).await, ['r', 'w', '-']);
        assert_eq!(writes(&[rule("any"), hole("@trusted"), read_only(&b)]).await, ['-', 'r', '-']);
        assert_eq!(writes(&[read_only("*x"), hole("[!a].x"), rule(&c)]).await, ['r', '-', 'w']);
        let no = change(&world, ctl_export_action::EXPORT_ADD, "/p/two", &[rule("*.x"), rule("*.X")]).await;
        assert_eq!(no.unwrap_err(), "two rules are for *.x");
    });
}

#[test]
fn who_cannot_be_looked_up_waits_and_then_has_no_access_until_he_can() {
    with_names(6, async |world: World, directory| {
        let b = address(&world, "b");
        add(&world, "/p/two", &[rule("*.x"), rule("any")]).await;
        add(&world, "/other", &[rule(&b)]).await;
        directory.is_away(true);
        let raw = world.connect("a").await;
        let began = world.env.clock.now();
        let mut told_to_wait = 0;
        let status = async |raw: &Raw| raw.compound(vec![exchange_id(b"a", [1; 8], 0)]).await.status;
        while status(&raw).await == nfsstat4::NFS4ERR_DELAY {
            told_to_wait += 1;
            world.sleep(Duration::from_secs(1)).await;
        }
        let waited = (world.env.clock.now() - began).as_secs();
        assert!(told_to_wait > 0 && (30..50).contains(&waited), "{told_to_wait} times in {waited} s");
        let a = world.client("a").await;
        assert_eq!(at_two(&a).await, ACCESS, "`any` is for whom it is known of that he has no such name");
        // Whom a network lets in waits, too, but is let in.
        let raw = world.connect("b").await;
        while status(&raw).await == nfsstat4::NFS4ERR_DELAY {
            world.sleep(Duration::from_secs(1)).await;
        }
        let b = world.client("b").await;
        assert_eq!(status_at(&b, "/other", &[getattr(&[FATTR4_TYPE])]).await, OK);
        let callers = known(&world, ADMIN_NAMES).await.callers;
        assert!(
            callers.iter().any(|one| one.told_seconds.is_empty() && !one.trouble.is_empty()),
            "{callers:?}"
        );
        directory.is_away(false);
        idle(&world, 60, &[&a]).await;
        assert_eq!(at_two(&a).await, OK);
    });
}

#[test]
fn while_the_name_service_is_away_who_is_known_goes_on_for_an_hour() {
    with_names(7, async |world: World, directory| {
        add(&world, "/p/two", &[rule("*.x")]).await;
        let a = world.client("a").await;
        let (fh, open) = writer(&a, "f").await;
        directory.is_away(true);
        idle(&world, 3500, &[&a]).await;
        assert_eq!(a.status(vec![putfh(&fh), layoutget(open, RW)]).await, OK);
        assert_eq!(a.callbacks().count(), 0);
        idle(&world, 200, &[&a]).await;
        until(&world.env, || (a.callbacks().count() >= 1).then_some(())).await;
        assert_eq!(a.status(vec![putfh(&fh), layoutget(open, RW)]).await, ACCESS);
        directory.is_away(false);
        idle(&world, 60, &[&a]).await;
        assert_eq!(at_two(&a).await, OK);
    });
}

#[test]
fn what_is_granted_while_a_client_becomes_another_one_is_taken_back() {
    with_names(10, async |world: World, directory| {
        add(&world, "/p/two", &[rule("*.x")]).await;
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, delegation) = delegated_at(&b, "/p/two", "f").await;
        let current = stateid4 { seqid: 1, other: [0; 12] };
        let ops = [walk("/p/two"), vec![open_name("f", b"a", BOTH, 0), layoutget(current, RW)]].concat();
        let asks = async { assert_eq!(a.status(ops).await, OK) };
        let changes = async {
            until(&world.env, || (b.callbacks().count() > 0).then_some(())).await;
            directory.claim(&address(&world, "a"), "a.y");
            known(&world, ADMIN_REFRESH_NAMES).await;
            b.ok(vec![putfh(&fh), delegreturn(delegation)]).await;
        };
        both(asks, changes).await;
        until(&world.env, || (a.callbacks().count() > 0).then_some(())).await;
        assert_eq!(a.callbacks().layout_recalls().len(), 1);
        assert_eq!(at_two(&a).await, ACCESS);
    });
}

#[test]
fn a_server_that_asks_no_name_service_takes_no_names() {
    simulate(8, async |world: World| {
        let client = world.client("a").await;
        client.mkdir("/", "d").await;
        let no = change(&world, ctl_export_action::EXPORT_ADD, "/d", &[rule("a.x")]).await.unwrap_err();
        assert!(no.contains("asks no name service"), "{no}");
        let ADMIN_NAMES_res::Default(status, _) = ask(&world, ADMIN_REFRESH_NAMES, &()).await else {
            panic!()
        };
        assert_eq!(status, ctl_status::CTL_ERR_NOTSUPP);
    });
}

/// What an older command sends back is what it was shown.
#[test]
fn a_command_that_knows_of_no_names_keeps_them() {
    with_names(9, async |world: World, directory| {
        directory.netgroup("trusted", &["a.x"]);
        let before = [rule("a.x"), rule("10.9.0.0/16"), rule("*.x"), rule("@trusted"), read_only("any")];
        add(&world, "/p/two", &before).await;
        let shown = exports(&world).await.exports.remove(1).rules;
        assert_eq!(shown, before);
        directory.is_away(true);
        set(&world, "/p/two", &[&shown[..], &[rule("10.8.0.0/16")]].concat()).await;
        let after = exports(&world).await.exports.remove(1).rules;
        assert_eq!((after.len(), &after[0], &after[3..]), (6, &before[0], &before[2..]));
    });
}
