//! Access control lists: the attributes acl and aclsupport, and what they do to every other operation. RFC 8881 §6.

use bytes::Bytes;
use sluice_xdr::nfs4::*;

use crate::harness::*;

const ALLOW: acetype4 = ACE4_ACCESS_ALLOWED_ACE_TYPE;
const DENY: acetype4 = ACE4_ACCESS_DENIED_ACE_TYPE;
const RW: u32 = ACE4_READ_DATA | ACE4_WRITE_DATA | ACE4_APPEND_DATA;
const HEIR: u32 = ACE4_FILE_INHERIT_ACE | ACE4_DIRECTORY_INHERIT_ACE;
/// The user of these tests.
const USER: u32 = 500;

fn ace(type_: acetype4, flag: u32, access_mask: u32, who: &str) -> nfsace4 {
    nfsace4 { type_, flag, access_mask, who: Bytes::copy_from_slice(who.as_bytes()) }
}

fn acl(aces: &[nfsace4]) -> Attributes {
    Attributes { acl: Some(aces.to_vec()), ..Attributes::default() }
}

fn set(path: &str, attributes: &Attributes) -> Vec<nfs_argop4> {
    let mut ops = walk(path);
    ops.push(setattr(ANONYMOUS, attributes));
    ops
}

fn on(path: &str, op: nfs_argop4) -> Vec<nfs_argop4> {
    let mut ops = walk(path);
    ops.push(op);
    ops
}

/// A client whose calls are those of [`USER`].
async fn user(world: &World) -> Client {
    let mut client = world.client("u").await;
    client.raw = client.raw.clone().with_user(USER, 600, &[601]);
    client
}

async fn list_and_mode(client: &Client, path: &str) -> (Vec<nfsace4>, u32) {
    let got = client.attributes(path, &[FATTR4_ACL, FATTR4_MODE]).await;
    (got.acl.unwrap(), got.mode.unwrap())
}

#[test]
fn a_file_without_a_list_shows_what_its_mode_means_and_it_may_be_set() {
    simulate(1, async |world: World| {
        let client = world.client("a").await;
        client.open("f", BOTH, 0).await;
        let support = client.attributes("f", &[FATTR4_ACLSUPPORT]).await.aclsupport;
        assert_eq!(support, Some(ACL4_SUPPORT_ALLOW_ACL | ACL4_SUPPORT_DENY_ACL));
        client.ok(set("f", &mode(0o4604))).await;
        let (list, _) = list_and_mode(&client, "f").await;
        let always = ACE4_READ_ATTRIBUTES | ACE4_READ_ACL | ACE4_SYNCHRONIZE;
        let owner = always | ACE4_WRITE_ATTRIBUTES | ACE4_WRITE_ACL;
        let expected = [
            ace(ALLOW, 0, RW | owner, "OWNER@"),
            ace(DENY, ACE4_IDENTIFIER_GROUP, ACE4_READ_DATA, "GROUP@"),
            ace(ALLOW, ACE4_IDENTIFIER_GROUP, always, "GROUP@"),
            ace(ALLOW, 0, ACE4_READ_DATA | always, "EVERYONE@"),
        ];
        assert_eq!(list, expected);
        client.ok(set("f", &acl(&list))).await;
        assert_eq!(list_and_mode(&client, "f").await, (list.clone(), 0o4604));
        client.ok(vec![putrootfh(), lookup("f"), verify(&acl(&list))]).await;
    });
}

#[test]
fn the_mode_follows_the_list_and_the_list_the_mode() {
    simulate(2, async |world: World| {
        let client = world.client("a").await;
        client.open("f", BOTH, 0).await;
        client.ok(set("f", &mode(0o2755))).await;
        let list = [
            ace(ALLOW, 0, RW, "OWNER@"),
            ace(DENY, 0, ACE4_EXECUTE, "501"),
            ace(ALLOW, 0, RW | ACE4_EXECUTE | ACE4_READ_ACL, "500"),
            ace(ALLOW, ACE4_IDENTIFIER_GROUP, ACE4_READ_DATA, "601"),
            ace(ALLOW, 0, ACE4_READ_DATA | ACE4_WRITE_DATA, "EVERYONE@"),
        ];
        client.ok(set("f", &acl(&list))).await;
        // Writing is both of its bits; users and groups by number do not count; high bits stay.
        assert_eq!(list_and_mode(&client, "f").await, (list.to_vec(), 0o2644));
        // No permission bit is set: the list stays as it is.
        let masked = mode_masked4 { mm_value_to_set: 0o4000, mm_mask_bits: 0o6000 };
        let masked = Attributes { mode_set_masked: Some(masked), ..Attributes::default() };
        client.ok(set("f", &masked)).await;
        assert_eq!(list_and_mode(&client, "f").await, (list.to_vec(), 0o4644));
        client.ok(set("f", &mode(0o640))).await;
        let (now, bits) = list_and_mode(&client, "f").await;
        assert_eq!(bits, 0o640);
        let named: Vec<_> = now.iter().filter(|ace| !ace.who.ends_with(b"@")).cloned().collect();
        let limited =
            [list[1].clone(), ace(ALLOW, 0, ACE4_READ_DATA | ACE4_READ_ACL, "500"), list[3].clone()];
        assert_eq!(named, limited, "nobody named gets what the group bits do not say");
        // Both at once: the list has the last word.
        let both = Attributes { mode: Some(0o777), ..acl(&list) };
        client.ok(set("f", &both)).await;
        assert_eq!(list_and_mode(&client, "f").await, (list.to_vec(), 0o644));
    });
}

/// A file gets a group that its owner is not in, with set-group-id and no right to execute: a list does not make it a program.
#[test]
fn a_list_makes_no_program_of_a_group_that_its_owner_is_not_in() {
    simulate(31, async |world: World| {
        let root = world.client("a").await;
        root.open("f", BOTH, 0).await;
        let theirs = |group: &'static str| Attributes {
            owner: Some(USER.to_string().into()),
            owner_group: Some(group.into()),
            ..Attributes::default()
        };
        let user = user(&world).await;
        for (group, bits) in [("700", 0o755), ("601", 0o2755)] {
            root.ok(set("f", &theirs(group))).await;
            root.ok(set("f", &mode(0o2644))).await;
            let list = [
                ace(ALLOW, 0, RW | ACE4_EXECUTE, "OWNER@"),
                ace(ALLOW, ACE4_IDENTIFIER_GROUP, ACE4_READ_DATA | ACE4_EXECUTE, "GROUP@"),
                ace(ALLOW, 0, ACE4_READ_DATA | ACE4_EXECUTE, "EVERYONE@"),
            ];
            user.ok(set("f", &acl(&list))).await;
            assert_eq!(list_and_mode(&user, "f").await.1, bits, "{group}");
        }
    });
}

#[test]
fn what_a_list_says_holds_for_open_and_access() {
    simulate(3, async |world: World| {
        let client = world.client("a").await;
        let user = user(&world).await;
        client.open("f", BOTH, 0).await;
        let open = async |access| user.status(vec![putrootfh(), open_name("f", b"o", access, 0)]).await;
        let may = async || {
            let all = ACCESS4_READ | ACCESS4_MODIFY | ACCESS4_EXTEND | ACCESS4_EXECUTE | ACCESS4_XAREAD;
            let nfs_resop4::OP_ACCESS(ACCESS4res::NFS4_OK(ok)) = user.last(on("f", access(all))).await else {
                panic!()
            };
            ok.access
        };
        client.ok(set("f", &acl(&[ace(ALLOW, 0, RW, "500")]))).await;
        assert_eq!(may().await, ACCESS4_READ | ACCESS4_MODIFY | ACCESS4_EXTEND | ACCESS4_XAREAD);
        assert_eq!(open(BOTH).await, nfsstat4::NFS4_OK);
        let by_group = ace(ALLOW, ACE4_IDENTIFIER_GROUP, RW, "601");
        client.ok(set("f", &acl(&[ace(DENY, 0, ACE4_WRITE_DATA, "500"), by_group]))).await;
        assert_eq!(may().await, ACCESS4_READ | ACCESS4_XAREAD);
        assert_eq!(open(WRITE).await, nfsstat4::NFS4ERR_ACCESS);
        assert_eq!(user.status(set("f", &size(0))).await, nfsstat4::NFS4ERR_ACCESS);
        let xattrs = [ace(DENY, 0, ACE4_READ_NAMED_ATTRS, "500"), ace(ALLOW, 0, ACE4_READ_DATA, "EVERYONE@")];
        client.ok(set("f", &acl(&xattrs))).await;
        assert_eq!(may().await, ACCESS4_READ);
        client.ok(set("f", &acl(&[]))).await;
        assert_eq!((may().await, open(READ).await), (0, nfsstat4::NFS4ERR_ACCESS));
        // READ_ATTRIBUTES is not enforced: stat is always allowed.
        user.ok(on("f", getattr(&[FATTR4_SIZE]))).await;
        client.ok(vec![putrootfh(), open_name("f", b"root", BOTH, 0)]).await;
    });
}

#[test]
fn the_list_itself_times_and_owner_are_who_the_list_gives_them_to() {
    simulate(4, async |world: World| {
        let client = world.client("a").await;
        let user = user(&world).await;
        client.open("f", BOTH, 0).await;
        let see = async || user.status(on("f", getattr(&[FATTR4_ACL, FATTR4_SIZE]))).await;
        assert_eq!(see().await, nfsstat4::NFS4_OK);
        client.ok(set("f", &acl(&[ace(ALLOW, 0, ACE4_READ_DATA, "500")]))).await;
        assert_eq!(see().await, nfsstat4::NFS4ERR_ACCESS);
        assert_eq!(user.status(on("f", getattr(&[FATTR4_SIZE]))).await, nfsstat4::NFS4_OK);
        assert_eq!(user.status(on("f", nverify(&acl(&[])))).await, nfsstat4::NFS4ERR_ACCESS);
        // In a listing it is the entry's trouble.
        let list = readdir(0, verifier4::default(), 4096, &[FATTR4_ACL, FATTR4_RDATTR_ERROR]);
        let nfs_resop4::OP_READDIR(READDIR4res::NFS4_OK(listed)) = user.last(vec![putrootfh(), list]).await
        else {
            panic!()
        };
        let shown = Attributes::decode(&listed.reply.entries[0].attrs).unwrap();
        assert_eq!((shown.rdattr_error, shown.acl), (Some(nfsstat4::NFS4ERR_ACCESS), None));
        let list = readdir(0, verifier4::default(), 4096, &[FATTR4_ACL]);
        assert_eq!(user.status(vec![putrootfh(), list]).await, nfsstat4::NFS4ERR_ACCESS);
        let own = ace(ALLOW, 0, ACE4_WRITE_ACL, "500");
        assert_eq!(user.status(set("f", &acl(std::slice::from_ref(&own)))).await, nfsstat4::NFS4ERR_PERM);
        assert_eq!(user.status(set("f", &mode(0o600))).await, nfsstat4::NFS4ERR_PERM);
        let at = settime4::SET_TO_CLIENT_TIME4(nfstime4 { seconds: 5, nseconds: 0 });
        let times = Attributes { time_modify_set: Some(at), ..Attributes::default() };
        assert_eq!(user.status(set("f", &times)).await, nfsstat4::NFS4ERR_PERM);
        let me = Attributes { owner: Some(Bytes::from_static(b"500")), ..Attributes::default() };
        assert_eq!(user.status(set("f", &me)).await, nfsstat4::NFS4ERR_PERM);
        let rights = ACE4_WRITE_ATTRIBUTES | ACE4_WRITE_ACL | ACE4_WRITE_OWNER;
        client.ok(set("f", &acl(&[ace(ALLOW, 0, rights, "500")]))).await;
        user.ok(set("f", &times)).await;
        // The list, and so the permission bits; but no program runs as somebody else for it.
        user.ok(set("f", &mode(0o4755))).await;
        assert_eq!(list_and_mode(&client, "f").await.1, 0o755);
        let other = Attributes { owner: Some(Bytes::from_static(b"502")), ..Attributes::default() };
        assert_eq!(user.status(set("f", &other)).await, nfsstat4::NFS4ERR_PERM, "taken, not given away");
        user.ok(set("f", &me)).await;
        // An owner whom the list gives nothing sees it and sets it all the same.
        user.ok(set("f", &acl(&[]))).await;
        assert_eq!(list_and_mode(&user, "f").await, (vec![], 0));
        user.ok(set("f", &mode(0o600))).await;
    });
}

#[test]
fn entries_are_added_and_removed_as_lists_say() {
    simulate(5, async |world: World| {
        let client = world.client("a").await;
        let user = user(&world).await;
        client.mkdir("/", "d").await;
        for name in ["kept", "given"] {
            client.ok(on("d", open_create(name, b"o", BOTH, 0))).await;
        }
        let search = ACE4_EXECUTE | ACE4_LIST_DIRECTORY;
        client
            .ok(set(
                "d",
                &acl(&[
                    ace(ALLOW, 0, search | ACE4_ADD_FILE, "500"),
                    ace(DENY, 0, ACE4_DELETE_CHILD, "EVERYONE@"),
                ]),
            ))
            .await;
        let make = open_create("new", b"u", BOTH, 0);
        assert_eq!(user.status(on("d", make)).await, nfsstat4::NFS4_OK);
        let subdirectory = || create(createtype4::NF4DIR, "s", &mode(0o755));
        assert_eq!(user.status(on("d", subdirectory())).await, nfsstat4::NFS4ERR_ACCESS);
        assert_eq!(user.status(on("d", remove("new"))).await, nfsstat4::NFS4ERR_ACCESS);
        let mut renaming = walk("d");
        renaming.extend([savefh(), rename("kept", "moved")]);
        assert_eq!(user.status(renaming.clone()).await, nfsstat4::NFS4ERR_ACCESS);
        client.ok(set("d/given", &acl(&[ace(ALLOW, 0, ACE4_DELETE, "500")]))).await;
        user.ok(on("d", remove("given"))).await;
        let directory = ace(ALLOW, 0, search | ACE4_ADD_SUBDIRECTORY | ACE4_DELETE_CHILD, "500");
        client.ok(set("d", &acl(&[directory]))).await;
        user.ok(on("d", subdirectory())).await;
        assert_eq!(
            user.status(renaming.clone()).await,
            nfsstat4::NFS4ERR_ACCESS,
            "what is moved is added too"
        );
        user.ok(on("d", remove("new"))).await;
        user.ok(on("d", remove("s"))).await;
        assert_eq!(user.status(on("d", remove("absent"))).await, nfsstat4::NFS4ERR_NOENT);
        client.ok(set("d", &acl(&[ace(ALLOW, 0, ACE4_ADD_FILE | ACE4_DELETE_CHILD, "500")]))).await;
        assert_eq!(
            user.status(on("d", remove("kept"))).await,
            nfsstat4::NFS4ERR_ACCESS,
            "not to be searched"
        );
    });
}

#[test]
fn what_is_made_inherits() {
    simulate(6, async |world: World| {
        let client = world.client("a").await;
        client.mkdir("/", "d").await;
        let owner = ace(ALLOW, HEIR, RW | ACE4_EXECUTE, "OWNER@");
        let team = ace(ALLOW, HEIR | ACE4_IDENTIFIER_GROUP, RW | ACE4_EXECUTE, "601");
        let files = ace(DENY, ACE4_FILE_INHERIT_ACE | ACE4_INHERIT_ONLY_ACE, ACE4_DELETE, "EVERYONE@");
        client.ok(set("d", &acl(&[owner.clone(), team.clone(), files.clone()]))).await;
        let with_umask = Attributes {
            mode_umask: Some(mode_umask4 { mu_mode: 0o666, mu_umask: 0o022 }),
            ..Attributes::default()
        };
        let make = |name: &str, attributes: &Attributes| {
            let how = openflag4::OPEN4_CREATE(createhow4::GUARDED4(fattr(attributes)));
            open_with(b"o", BOTH, 0, how, open_claim4::CLAIM_NULL(Bytes::copy_from_slice(name.as_bytes())))
        };
        let plain = |ace: &nfsace4, mask: u32| nfsace4 {
            flag: ace.flag & ACE4_IDENTIFIER_GROUP,
            access_mask: mask,
            ..ace.clone()
        };
        // The umask does not count where a list says who gets what (RFC 8275).
        client.ok(on("d", make("f", &with_umask))).await;
        let (list, bits) = list_and_mode(&client, "d/f").await;
        assert_eq!(list, [plain(&owner, RW), plain(&team, RW), plain(&files, ACE4_DELETE)]);
        assert_eq!(bits, 0o600);
        client.ok(vec![putrootfh(), make("outside", &with_umask)]).await;
        assert_eq!(client.attributes("outside", &[FATTR4_MODE]).await.mode, Some(0o644));
        // A mode alone is the mode.
        client.ok(on("d", make("g", &mode(0o640)))).await;
        let (list, bits) = list_and_mode(&client, "d/g").await;
        assert_eq!(bits, 0o640);
        assert!(list.contains(&plain(&team, ACE4_READ_DATA)), "{list:?}");
        // Nothing said: as inherited.
        client.ok(on("d", make("h", &Attributes::default()))).await;
        let (list, bits) = list_and_mode(&client, "d/h").await;
        assert_eq!((list[1].access_mask, bits), (RW | ACE4_EXECUTE, 0o700));
        // A list of one's own: nothing is inherited.
        let own = [ace(ALLOW, 0, ACE4_READ_DATA, "OWNER@")];
        client.ok(on("d", make("i", &acl(&own)))).await;
        assert_eq!(list_and_mode(&client, "d/i").await, (own.to_vec(), 0o400));
        // Directories hand on what they inherit.
        client.ok(on("d", create(createtype4::NF4DIR, "s", &Attributes::default()))).await;
        assert_eq!(
            list_and_mode(&client, "d/s").await,
            (vec![owner.clone(), team.clone(), files.clone()], 0o700)
        );
        client.ok(on("d", create(createtype4::NF4DIR, "t", &mode(0o750)))).await;
        client.ok(on("d/t", make("f", &with_umask))).await;
        let (list, _) = list_and_mode(&client, "d/t/f").await;
        assert!(list.contains(&plain(&team, RW)), "{list:?}");
        // An exclusive create without attributes, and a link, have none.
        let how = openflag4::OPEN4_CREATE(createhow4::EXCLUSIVE4(verifier4([7; 8])));
        let exclusive = open_with(b"o", BOTH, 0, how, open_claim4::CLAIM_NULL(Bytes::from_static(b"x")));
        client.ok(on("d", exclusive)).await;
        assert_eq!(client.attributes("d/x", &[FATTR4_MODE]).await.mode, Some(0));
        client.ok(on("d", symlink("l", "target"))).await;
        assert_eq!(client.attributes("d/l", &[FATTR4_MODE]).await.mode, Some(0o777));
    });
}

#[test]
fn what_cannot_be_kept_has_its_status() {
    simulate(7, async |world: World| {
        let client = world.client("a").await;
        client.open("f", BOTH, 0).await;
        client.mkdir("/", "d").await;
        client.ok(vec![putrootfh(), symlink("l", "f")]).await;
        let status = async |path: &str, aces: &[nfsace4]| client.status(set(path, &acl(aces))).await;
        let good = ace(ALLOW, 0, ACE4_READ_DATA, "EVERYONE@");
        for (bad, expected) in [
            (nfsace4 { type_: ACE4_SYSTEM_AUDIT_ACE_TYPE, ..good.clone() }, nfsstat4::NFS4ERR_ATTRNOTSUPP),
            (nfsace4 { type_: 9, ..good.clone() }, nfsstat4::NFS4ERR_ATTRNOTSUPP),
            (nfsace4 { flag: 0x100, ..good.clone() }, nfsstat4::NFS4ERR_INVAL),
            (nfsace4 { access_mask: 0x8000, ..good.clone() }, nfsstat4::NFS4ERR_INVAL),
            (nfsace4 { flag: ACE4_FILE_INHERIT_ACE, ..good.clone() }, nfsstat4::NFS4ERR_INVAL),
            (ace(ALLOW, 0, 1, "fred@example"), nfsstat4::NFS4ERR_BADOWNER),
            (ace(ALLOW, 0, 1, "ANONYMOUS@"), nfsstat4::NFS4ERR_BADOWNER),
            (ace(ALLOW, 0, 1, "4294967296"), nfsstat4::NFS4ERR_BADOWNER),
            (ace(ALLOW, 0, 1, ""), nfsstat4::NFS4ERR_INVAL),
        ] {
            assert_eq!(status("f", std::slice::from_ref(&bad)).await, expected, "{bad:?}");
        }
        assert_eq!(status("l", std::slice::from_ref(&good)).await, nfsstat4::NFS4ERR_INVAL);
        assert_eq!(status("d", &vec![good.clone(); 600]).await, nfsstat4::NFS4ERR_NOSPC);
        let sacl = Attributes { sacl: Some(nfsacl41::default()), ..Attributes::default() };
        assert_eq!(client.status(set("f", &sacl)).await, nfsstat4::NFS4ERR_ATTRNOTSUPP);
        // A umask is for what is made.
        let umask = Some(mode_umask4 { mu_mode: 0o666, mu_umask: 0o022 });
        let umask = Attributes { mode_umask: umask, ..Attributes::default() };
        assert_eq!(client.status(set("f", &umask)).await, nfsstat4::NFS4ERR_INVAL);
        assert_eq!(list_and_mode(&client, "f").await.1, 0o644);
    });
}

#[test]
fn a_list_outlives_a_restart_and_a_long_one_is_shown() {
    simulate(8, async |mut world: World| {
        let client = world.client("a").await;
        client.mkdir("/", "d").await;
        let list: Vec<_> =
            (1000..1250).map(|uid| ace(ALLOW, HEIR, ACE4_READ_DATA, &uid.to_string())).collect();
        client.ok(set("d", &acl(&list))).await;
        drop(client);
        world.restart().await;
        let client = world.client("b").await;
        assert_eq!(list_and_mode(&client, "d").await, (list.clone(), 0));
        // A mode makes two of each: for the directory, and for what will be in it.
        client.ok(set("d", &mode(0o750))).await;
        let (now, bits) = list_and_mode(&client, "d").await;
        assert_eq!((now.len(), bits), (502, 0o750));
        client.ok(set("d", &acl(&now))).await;
    });
}

fn dacl(flags: aclflag4, aces: &[nfsace4]) -> Attributes {
    let dacl = nfsacl41 { na41_flag: flags, na41_aces: aces.to_vec() };
    Attributes { dacl: Some(dacl), ..Attributes::default() }
}

async fn dacl_of(client: &Client, path: &str) -> nfsacl41 {
    client.attributes(path, &[FATTR4_DACL]).await.dacl.unwrap()
}

/// The entries about users by number.
fn named(aces: &[nfsace4]) -> Vec<nfsace4> {
    aces.iter().filter(|ace| !ace.who.ends_with(b"@")).cloned().collect()
}

/// §6.2.2: the same list with another name, and flags.
#[test]
fn dacl_is_the_list_too() {
    simulate(10, async |world: World| {
        let client = world.client("a").await;
        client.open("f", BOTH, 0).await;
        let (list, _) = list_and_mode(&client, "f").await;
        assert_eq!(dacl_of(&client, "f").await, nfsacl41 { na41_flag: 0, na41_aces: list.clone() });
        let flags = ACL4_AUTO_INHERIT | ACL4_DEFAULTED;
        let came = ace(ALLOW, ACE4_INHERITED_ACE, RW, "500");
        client.ok(set("f", &dacl(flags, std::slice::from_ref(&came)))).await;
        assert_eq!(dacl_of(&client, "f").await, nfsacl41 { na41_flag: flags, na41_aces: vec![came] });
        let plain = ace(ALLOW, 0, RW, "500");
        assert_eq!(list_and_mode(&client, "f").await, (vec![plain.clone()], 0), "acl never says so");
        client.ok(vec![putrootfh(), lookup("f"), nverify(&dacl(0, std::slice::from_ref(&plain)))]).await;
        // Whoever knows of acl alone takes the list out of it.
        client.ok(set("f", &acl(&[ace(ALLOW, ACE4_INHERITED_ACE, RW, "500")]))).await;
        assert_eq!(dacl_of(&client, "f").await, nfsacl41 { na41_flag: 0, na41_aces: vec![plain.clone()] });
        for (wrong, status) in [
            (dacl(8, std::slice::from_ref(&plain)), nfsstat4::NFS4ERR_INVAL),
            (Attributes { acl: Some(vec![]), ..dacl(0, &[]) }, nfsstat4::NFS4ERR_INVAL),
            (dacl(0, &[ace(ALLOW, 0x100, RW, "500")]), nfsstat4::NFS4ERR_INVAL),
            (dacl(0, &[ace(ALLOW, ACE4_FILE_INHERIT_ACE, RW, "500")]), nfsstat4::NFS4ERR_INVAL),
            (dacl(0, &[ace(ACE4_SYSTEM_AUDIT_ACE_TYPE, 0, RW, "500")]), nfsstat4::NFS4ERR_ATTRNOTSUPP),
            // §6.2.3: nothing is audited.
            (
                Attributes { sacl: Some(nfsacl41::default()), ..Attributes::default() },
                nfsstat4::NFS4ERR_ATTRNOTSUPP,
            ),
        ] {
            assert_eq!(client.status(set("f", &wrong)).await, status, "{wrong:?}");
        }
        let user = user(&world).await;
        client.ok(set("f", &dacl(0, &[ace(DENY, 0, ACE4_READ_ACL, "500")]))).await;
        let refused = user.status(on("f", getattr(&[FATTR4_DACL]))).await;
        assert_eq!(refused, nfsstat4::NFS4ERR_ACCESS);
    });
}

/// §6.4.3.2: who passes changes of a directory's list on finds what came from it, and what somebody chose.
#[test]
fn what_a_directory_hands_on_by_itself_is_marked() {
    simulate(11, async |mut world: World| {
        let client = world.client("a").await;
        client.mkdir("/", "d").await;
        let own = ace(ALLOW, 0, ACE4_EXECUTE | RW, "OWNER@");
        let heir = ace(ALLOW, HEIR, ACE4_READ_DATA, "500");
        client.ok(set("d", &dacl(ACL4_AUTO_INHERIT, &[own, heir.clone()]))).await;
        let quiet = openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(fattr(&Attributes::default())));
        let quiet = open_with(b"o", BOTH, 0, quiet, open_claim4::CLAIM_NULL("quiet".into()));
        client.ok(on("d", quiet)).await;
        client.ok(on("d", open_create("chosen", b"o", BOTH, 0))).await;
        client.mkdir("d", "below").await;
        let list = createhow4::UNCHECKED4(fattr(&dacl(ACL4_PROTECTED, &[ace(ALLOW, 0, RW, "501")])));
        let list = openflag4::OPEN4_CREATE(list);
        client.ok(on("d", open_with(b"o", BOTH, 0, list, open_claim4::CLAIM_NULL("own".into())))).await;
        let both = ACL4_AUTO_INHERIT | ACL4_PROTECTED;
        let on_files = ace(ALLOW, ACE4_INHERITED_ACE, ACE4_READ_DATA, "500");
        let further = HEIR | ACE4_INHERITED_ACE | ACE4_INHERIT_ONLY_ACE;
        let mut expected = vec![
            ("d/quiet", ACL4_AUTO_INHERIT, vec![on_files.clone()]),
            ("d/chosen", both, vec![on_files.clone()]),
            ("d/below", both, vec![on_files.clone(), ace(ALLOW, further, ACE4_READ_DATA, "500")]),
            ("d/own", ACL4_PROTECTED, vec![ace(ALLOW, 0, RW, "501")]),
        ];
        for restarted in [false, true] {
            let client = if restarted { world.new_client("a").await } else { world.client("b").await };
            for (path, flags, entries) in &expected {
                let got = dacl_of(&client, path).await;
                assert_eq!((got.na41_flag, &named(&got.na41_aces)), (*flags, entries), "{path}");
            }
            if !restarted {
                // A mode that is set is somebody's choice.
                client.ok(set("d/quiet", &mode(0o640))).await;
                expected[0].1 = both;
                world.restart().await;
            }
        }
    });
}
