//! Owners and those whom access control lists are about, by name. RFC 8881 §5.9.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use sluice_mds::{Accounts, Config, Owners, TellNames};
use sluice_xdr::nfs4::*;

use crate::harness::*;

const ALICE: u32 = 1042;
const STAFF: u32 = 2050;
/// Users above all have names.
const MANY: u32 = 100_000;

#[derive(Debug, Default)]
struct Directory {
    away: AtomicBool,
    asked: AtomicUsize,
}

impl Directory {
    fn says<T>(&self, known: bool, answer: T) -> io::Result<Option<T>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.away.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(known.then_some(answer))
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Accounts for Directory {
    fn groups(&self, _: u32) -> io::Result<Option<Vec<u32>>> {
        Ok(None)
    }

    fn user(&self, name: &str) -> io::Result<Option<u32>> {
        self.says(name == "alice", ALICE)
    }

    fn group(&self, name: &str) -> io::Result<Option<u32>> {
        self.says(name == "staff", STAFF)
    }

    fn name_of_user(&self, uid: u32) -> io::Result<Option<String>> {
        self.says(uid == ALICE || uid > MANY, if uid > MANY { format!("u{uid}") } else { "alice".to_owned() })
    }

    fn name_of_group(&self, gid: u32) -> io::Result<Option<String>> {
        self.says(gid == STAFF, "staff".to_owned())
    }
}

fn with_names(seed: u64, test: impl AsyncFn(World, Arc<Directory>)) {
    with_names_told(seed, TellNames::Nobody, test);
}

fn with_names_told(seed: u64, tell: TellNames, test: impl AsyncFn(World, Arc<Directory>)) {
    let directory = Arc::new(Directory::default());
    let accounts: Arc<dyn Accounts> = Arc::clone(&directory) as _;
    let owners = Some(Owners { domain: "example.com".to_owned(), accounts, tell });
    simulate_with(seed, Config { owners, ..at_data_servers() }, async |world| {
        directory.away.store(false, Ordering::Relaxed);
        directory.asked.store(0, Ordering::Relaxed);
        test(world, Arc::clone(&directory)).await;
    });
}

fn name(name: &str) -> Option<Bytes> {
    Some(Bytes::copy_from_slice(name.as_bytes()))
}

fn owner(of: &str) -> Attributes {
    Attributes { owner: name(of), ..Attributes::default() }
}

fn group(of: &str) -> Attributes {
    Attributes { owner_group: name(of), ..Attributes::default() }
}

fn both(of: &str, of_group: &str) -> Attributes {
    Attributes { owner: name(of), owner_group: name(of_group), ..mode(0o640) }
}

fn ace(flag: u32, who: &str) -> nfsace4 {
    let who = Bytes::copy_from_slice(who.as_bytes());
    nfsace4 { type_: ACE4_ACCESS_ALLOWED_ACE_TYPE, flag, access_mask: ACE4_READ_DATA | ACE4_READ_ACL, who }
}

fn acl(aces: &[nfsace4]) -> Attributes {
    Attributes { acl: Some(aces.to_vec()), ..Attributes::default() }
}

fn on(path: &str, op: nfs_argop4) -> Vec<nfs_argop4> {
    let mut ops = walk(path);
    ops.push(op);
    ops
}

fn set(path: &str, attributes: &Attributes) -> Vec<nfs_argop4> {
    on(path, setattr(ANONYMOUS, attributes))
}

/// Owner and group as they are told.
async fn of(client: &Client, path: &str) -> [Bytes; 2] {
    let got = client.attributes(path, &[FATTR4_OWNER, FATTR4_OWNER_GROUP]).await;
    [got.owner.unwrap(), got.owner_group.unwrap()]
}

#[test]
fn a_file_is_given_by_name_and_told_by_number() {
    with_names(1, async |world: World, _| {
        let client = world.client("a").await;
        client.open("f", BOTH, 0).await;
        client.ok(set("f", &both("alice@example.com", "staff@EXAMPLE.com"))).await;
        assert_eq!(of(&client, "f").await, ["1042", "2050"]);
        client.ok(set("f", &both("7", "8"))).await;
        assert_eq!(of(&client, "f").await, ["7", "8"], "numbers are as good as before");
        client.ok(set("f", &Attributes { size: Some(0), ..owner("alice@example.com") })).await;
        assert_eq!(of(&client, "f").await, ["1042", "8"], "together with a size");
    });
}

#[test]
fn what_is_made_may_belong_to_somebody_by_name() {
    with_names(2, async |world: World, _| {
        let client = world.client("a").await;
        let wanted = both("alice@example.com", "staff@example.com");
        client.ok(vec![putrootfh(), create(createtype4::NF4DIR, "d", &wanted)]).await;
        let verifier = verifier4([9; 8]);
        let exclusive =
            createhow4::EXCLUSIVE4_1(creatverfattr { cva_verf: verifier, cva_attrs: fattr(&wanted) });
        for (path, how) in [
            ("unchecked", createhow4::UNCHECKED4(fattr(&wanted))),
            ("guarded", createhow4::GUARDED4(fattr(&wanted))),
            ("exclusive", exclusive),
        ] {
            let claim = open_claim4::CLAIM_NULL(path.to_owned().into());
            let how = openflag4::OPEN4_CREATE(how);
            client.ok(vec![putrootfh(), open_with(b"owner", BOTH, 0, how, claim)]).await;
            assert_eq!(of(&client, path).await, ["1042", "2050"], "{path}");
        }
        assert_eq!(of(&client, "d").await, ["1042", "2050"]);
    });
}

#[test]
fn a_list_may_be_about_users_and_groups_by_name() {
    with_names(3, async |world: World, _| {
        let client = world.client("a").await;
        client.open("f", BOTH, 0).await;
        let wanted = [
            ace(0, "alice@example.com"),
            ace(ACE4_IDENTIFIER_GROUP, "staff@example.com"),
            ace(0, "77"),
            ace(0, "OWNER@"),
        ];
        client.ok(set("f", &acl(&wanted))).await;
        let who = async |number| {
            let got = client.attributes("f", &[number]).await;
            let aces = got.acl.or(got.dacl.map(|dacl| dacl.na41_aces)).unwrap();
            aces.into_iter().map(|ace| (ace.who, ace.flag & ACE4_IDENTIFIER_GROUP != 0)).collect::<Vec<_>>()
        };
        let told = |who: [(&'static str, bool); 4]| who.map(|(who, group)| (Bytes::from(who), group));
        let expected = told([("1042", false), ("2050", true), ("77", false), ("OWNER@", false)]);
        assert_eq!(who(FATTR4_ACL).await, expected);
        client.ok(set("f", &acl(&[ace(0, "EVERYONE@")]))).await;
        let dacl = nfsacl41 { na41_flag: 0, na41_aces: wanted.to_vec() };
        client.ok(set("f", &Attributes { dacl: Some(dacl), ..Attributes::default() })).await;
        assert_eq!(who(FATTR4_DACL).await, expected);
        // A user is no group, nor the other way about.
        for wrong in [ace(0, "staff@example.com"), ace(ACE4_IDENTIFIER_GROUP, "alice@example.com")] {
            assert_eq!(client.status(set("f", &acl(&[wrong]))).await, nfsstat4::NFS4ERR_BADOWNER);
        }
        // As by number, and nobody is asked for them.
        let many = vec![ace(0, "bob@example.com"); 600];
        assert_eq!(client.status(set("f", &acl(&many))).await, nfsstat4::NFS4ERR_NOSPC);
    });
}

#[test]
fn whom_this_host_does_not_know_is_refused() {
    with_names(4, async |world: World, directory: Arc<Directory>| {
        let client = world.client("a").await;
        client.open("f", BOTH, 0).await;
        for bad in ["alice@example.org", "alice@", "alice", "@example.com", "alice@example.com.", "-1"] {
            assert_eq!(client.status(set("f", &owner(bad))).await, nfsstat4::NFS4ERR_BADOWNER, "{bad}");
        }
        assert_eq!(directory.asked(), 0, "nobody is asked about those");
        for bad in [owner("bob@example.com"), group("alice@example.com"), owner("staff@example.com")] {
            assert_eq!(client.status(set("f", &bad)).await, nfsstat4::NFS4ERR_BADOWNER, "{bad:?}");
        }
        // Nor for what is refused anyhow.
        let asked = directory.asked();
        let hidden = Attributes { hidden: Some(true), ..owner("carol@example.com") };
        assert_eq!(client.status(set("f", &hidden)).await, nfsstat4::NFS4ERR_ATTRNOTSUPP);
        assert_eq!(directory.asked(), asked);
        assert_eq!(of(&client, "f").await, ["0", "0"]);
        // A name lets nobody do what he may not do by number.
        let mut user = world.client("u").await;
        user.raw = user.raw.clone().with_user(500, 600, &[]);
        for who in ["alice@example.com", "1042"] {
            assert_eq!(user.status(set("f", &owner(who))).await, nfsstat4::NFS4ERR_PERM, "{who}");
        }
    });
}

#[test]
fn who_compares_may_name_owners_too() {
    with_names(5, async |world: World, directory: Arc<Directory>| {
        let client = world.client("a").await;
        client.open("f", BOTH, 0).await;
        client.ok(set("f", &both("alice@example.com", "staff@example.com"))).await;
        let same = Attributes { mode: Some(0o640), ..both("alice@example.com", "staff@example.com") };
        client.ok(on("f", verify(&same))).await;
        client.ok(on("f", verify(&both("1042", "2050")))).await;
        assert_eq!(client.status(on("f", nverify(&same))).await, nfsstat4::NFS4ERR_SAME);
        for other in ["bob@example.com", "alice@example.org", "fred", "1043"] {
            assert_eq!(client.status(on("f", verify(&owner(other)))).await, nfsstat4::NFS4ERR_NOT_SAME);
            client.ok(on("f", nverify(&owner(other)))).await;
        }
        let list = [ace(0, "alice@example.com"), ace(ACE4_IDENTIFIER_GROUP, "staff@example.com")];
        client.ok(set("f", &acl(&list))).await;
        client.ok(on("f", verify(&acl(&list)))).await;
        directory.away.store(true, Ordering::Relaxed);
        let unknown = owner("carol@example.com");
        assert_eq!(client.status(on("f", verify(&unknown))).await, nfsstat4::NFS4ERR_DELAY);
    });
}

#[test]
fn while_the_host_cannot_tell_who_names_somebody_is_to_come_again() {
    with_names(6, async |world: World, directory: Arc<Directory>| {
        let client = world.client("a").await;
        client.open("f", BOTH, 0).await;
        client.ok(set("f", &owner("alice@example.com"))).await;
        directory.away.store(true, Ordering::Relaxed);
        assert_eq!(client.status(set("f", &group("staff@example.com"))).await, nfsstat4::NFS4ERR_DELAY);
        client.ok(set("f", &owner("5"))).await;
        client.ok(set("f", &owner("alice@example.com"))).await;
        assert_eq!(of(&client, "f").await, ["1042", "0"], "who is known from before is known");
        directory.away.store(false, Ordering::Relaxed);
        world.sleep(Duration::from_secs(6)).await;
        client.ok(set("f", &group("staff@example.com"))).await;
        assert_eq!(of(&client, "f").await, ["1042", "2050"]);
    });
}

/// Owner and group of each entry, as a listing tells them.
async fn listed(client: &Client, dir: &str) -> Vec<(Bytes, [Bytes; 2])> {
    let attr_request = bitmap4::of(&[FATTR4_OWNER, FATTR4_OWNER_GROUP]);
    let args = READDIR4args {
        cookie: 0,
        cookieverf: verifier4::default(),
        dircount: 4096,
        maxcount: 65_536,
        attr_request,
    };
    let results = client.ok(on(dir, nfs_argop4::OP_READDIR(args))).await;
    let Some(nfs_resop4::OP_READDIR(READDIR4res::NFS4_OK(ok))) = results.last() else {
        panic!("{results:?}")
    };
    let one = |entry: &entry4| {
        let values = Attributes::decode(&entry.attrs).unwrap();
        (entry.name.clone(), [values.owner.unwrap(), values.owner_group.unwrap()])
    };
    ok.reply.entries.iter().map(one).collect()
}

#[test]
fn where_it_is_wanted_owners_are_told_by_name() {
    with_names_told(7, TellNames::Everybody, async |world: World, directory: Arc<Directory>| {
        let client = world.client("a").await;
        for name in ["known", "unknown"] {
            client.open(name, BOTH, 0).await;
        }
        client.ok(set("known", &both("1042", "2050"))).await;
        client.ok(set("unknown", &both("7", "8"))).await;
        let named = ["alice@example.com", "staff@example.com"].map(Bytes::from);
        let numbers = ["7", "8"].map(Bytes::from);
        assert_eq!(of(&client, "known").await, named);
        assert_eq!(of(&client, "unknown").await, numbers, "who has no name here");
        let list = [("known".into(), named.clone()), ("unknown".into(), numbers.clone())];
        assert_eq!(listed(&client, "").await, list);
        let asked = directory.asked();
        assert_eq!(asked, 4, "each is asked for once");
        assert_eq!(listed(&client, "").await, list);
        // What is told is taken.
        client.ok(set("unknown", &both("alice@example.com", "staff@example.com"))).await;
        assert_eq!(of(&client, "unknown").await, named);
        let same =
            nfs_argop4::OP_VERIFY(VERIFY4args { obj_attributes: fattr(&both("alice@example.com", "2050")) });
        client.ok(on("known", same)).await;
        let wanted = [ace(0, "1042"), ace(ACE4_IDENTIFIER_GROUP, "2050"), ace(0, "2050"), ace(0, "OWNER@")];
        client.ok(set("known", &acl(&wanted))).await;
        for number in [FATTR4_ACL, FATTR4_DACL] {
            let got = client.attributes("known", &[number]).await;
            let aces = got.acl.or(got.dacl.map(|dacl| dacl.na41_aces)).unwrap();
            let who: Vec<Bytes> = aces.into_iter().map(|ace| ace.who).collect();
            assert_eq!(who, ["alice@example.com", "staff@example.com", "2050", "OWNER@"], "{number}");
        }
    });
}

#[test]
fn a_listing_names_all_the_owners_that_it_has() {
    with_names_told(10, TellNames::Everybody, async |world: World, directory: Arc<Directory>| {
        let client = world.client("a").await;
        let owner = |n: u32| Attributes { owner: Some((MANY + n).to_string().into()), ..mode(0o755) };
        for n in 1..=300 {
            client.ok(vec![putrootfh(), create(createtype4::NF4DIR, &format!("d{n}"), &owner(n))]).await;
        }
        for (name, [owner, _]) in listed(&client, "").await {
            let n: u32 = std::str::from_utf8(&name[1..]).unwrap().parse().unwrap();
            assert_eq!(owner, format!("u{}@example.com", MANY + n));
        }
        assert_eq!(directory.asked(), 301, "and one group");
    });
}

#[test]
fn while_nobody_tells_names_those_that_were_told_are_used_and_else_numbers() {
    with_names_told(8, TellNames::Everybody, async |world: World, directory: Arc<Directory>| {
        let client = world.client("a").await;
        for name in ["f", "g"] {
            client.open(name, BOTH, 0).await;
        }
        client.ok(set("f", &both("1042", "8"))).await;
        client.ok(set("g", &both("7", "2050"))).await;
        assert_eq!(of(&client, "f").await, ["alice@example.com", "8"]);
        directory.away.store(true, Ordering::Relaxed);
        assert_eq!(of(&client, "g").await, ["7", "2050"]);
        // Long enough for what was told to be asked for again.
        for _ in 0..12 {
            world.sleep(Duration::from_secs(30)).await;
            client.ok(Vec::new()).await;
        }
        assert_eq!(of(&client, "f").await, ["alice@example.com", "8"], "as it was told last");
        directory.away.store(false, Ordering::Relaxed);
        world.sleep(Duration::from_secs(10)).await;
        assert_eq!(of(&client, "g").await, ["7", "staff@example.com"]);
    });
}

#[test]
fn who_has_no_ticket_is_told_numbers_where_tickets_decide() {
    with_names_told(9, TellNames::Tickets, async |world: World, directory: Arc<Directory>| {
        let client = world.client("a").await;
        client.open("f", BOTH, 0).await;
        client.ok(set("f", &both("1042", "2050"))).await;
        assert_eq!(of(&client, "f").await, ["1042", "2050"]);
        assert_eq!(directory.asked(), 0);
    });
}
