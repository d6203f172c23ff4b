//! Exports as clients of different addresses meet them: whole COMPOUNDs. RFC 8881 §7.

use std::time::Duration;

use sluice_kv::Faults;
use sluice_mds::{Config, Network, Rule, Squash};
use sluice_xdr::control::*;
use sluice_xdr::nfs4::*;

use crate::admin::ask;
use crate::harness::*;

const RW: layoutiomode4 = layoutiomode4::LAYOUTIOMODE4_RW;
const RO: layoutiomode4 = layoutiomode4::LAYOUTIOMODE4_READ;

pub fn rule(network: &str) -> ctl_rule {
    ctl_rule {
        network: network.to_owned().into(),
        read_only: false,
        squash: ctl_squash::SQUASH_NONE,
        anonymous_uid: 65_534,
        anonymous_gid: 65_533,
        sys: true,
        none: true,
    }
}

pub fn read_only(network: &str) -> ctl_rule {
    ctl_rule { read_only: true, ..rule(network) }
}

pub fn address(world: &World, host: &str) -> String {
    world.net.ip(host).to_string()
}

pub async fn exports(world: &World) -> ADMIN_EXPORTS_resok {
    match ask(world, ADMIN_EXPORTS, &()).await {
        ADMIN_EXPORTS_res::CTL_OK(ok) => ok,
        other => panic!("{other:?}"),
    }
}

pub async fn change(
    world: &World,
    action: ctl_export_action,
    path: &str,
    rules: &[ctl_rule],
) -> Result<u32, String> {
    let version = exports(world).await.version;
    let args = ADMIN_EXPORT_args { version, action, path: path.to_owned().into(), rules: rules.to_vec() };
    match ask(world, ADMIN_EXPORT, &args).await {
        ADMIN_EXPORT_res::CTL_OK(recalled) => Ok(recalled),
        ADMIN_EXPORT_res::Default(_, why) => Err(String::from_utf8(why.to_vec()).unwrap()),
    }
}

pub async fn add(world: &World, path: &str, rules: &[ctl_rule]) {
    change(world, ctl_export_action::EXPORT_ADD, path, rules).await.unwrap();
}

pub async fn set(world: &World, path: &str, rules: &[ctl_rule]) -> u32 {
    change(world, ctl_export_action::EXPORT_SET, path, rules).await.unwrap()
}

pub async fn take(world: &World, path: &str) -> u32 {
    change(world, ctl_export_action::EXPORT_REMOVE, path, &[]).await.unwrap()
}

/// The root is for the third host alone, which is the administrator's ([`furnish`]): addresses are given out in turn.
fn closed(seed: u64, test: impl AsyncFn(World)) {
    let root = Rule { squash: Squash::None, ..Rule::new("10.0.0.3".parse::<Network>().unwrap()) };
    simulate_with(seed, Config { root_export: vec![root], ..at_data_servers() }, test);
}

/// A client of the administrator's, with directories /p/q/one, /p/two and /other, open to all.
pub async fn furnish(world: &World) -> Client {
    let admin = world.client("admin").await;
    assert_eq!(address(world, "admin"), "10.0.0.3");
    for (parent, name) in [("/", "p"), ("/p", "q"), ("/p/q", "one"), ("/p", "two"), ("/", "other")] {
        admin.mkdir(parent, name).await;
    }
    admin
}

async fn listed(client: &Client, path: &str, numbers: &[u32]) -> Vec<(String, Attributes)> {
    let mut ops = walk(path);
    ops.push(readdir(0, verifier4::default(), 65_536, numbers));
    let nfs_resop4::OP_READDIR(READDIR4res::NFS4_OK(ok)) = client.last(ops).await else { panic!() };
    assert!(ok.reply.eof);
    let one = |entry: entry4| {
        (String::from_utf8(entry.name.to_vec()).unwrap(), Attributes::decode(&entry.attrs).unwrap())
    };
    let mut all: Vec<_> = ok.reply.entries.into_iter().map(one).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

async fn names(client: &Client, path: &str) -> Vec<String> {
    listed(client, path, &[]).await.into_iter().map(|(name, _)| name).collect()
}

pub async fn status_at(client: &Client, path: &str, ops: &[nfs_argop4]) -> nfsstat4 {
    let mut all = walk(path);
    all.extend(ops.iter().cloned());
    client.status(all).await
}

pub async fn open_at(client: &Client, path: &str, name: &str) -> (nfs_fh4, stateid4) {
    let mut ops = walk(path);
    ops.extend([open_create(name, b"owner", BOTH, 0), getfh()]);
    opened(&client.ok(ops).await)
}

/// A file that a client has a write delegation of, and no more.
pub async fn delegated_at(client: &Client, path: &str, name: &str) -> (nfs_fh4, stateid4) {
    let wants = BOTH | OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG;
    let ops = [walk(path), vec![open_create(name, b"o", wants, 0), getfh()]].concat();
    let results = client.ok(ops).await;
    let [.., nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(open)), nfs_resop4::OP_GETFH(GETFH4res::NFS4_OK(found))] =
        &results[..]
    else {
        panic!("{results:?}")
    };
    let open_delegation4::OPEN_DELEGATE_WRITE(given) = &open.delegation else { panic!("{open:?}") };
    client.ok(vec![putfh(&found.object), close(open.stateid)]).await;
    (found.object.clone(), given.stateid)
}

#[test]
fn through_the_root_filehandles_are_what_they_were_before_there_were_exports() {
    simulate(1, async |world: World| {
        let client = world.client("a").await;
        client.mkdir("/", "d").await;
        let fh = client.handle("/d").await;
        assert_eq!((fh.0.len(), fh.0[0], &fh.0[1..5]), (29, 1, &[0; 4][..]));
        let known = exports(&world).await.exports;
        assert_eq!((known.len(), known[0].id, known[0].stored), (1, 0, false));
        assert_eq!(&known[0].path[..], b"/");
        assert_eq!(client.attributes("/d", &[FATTR4_FSID]).await.fsid.unwrap().minor, 0);
    });
}

#[test]
fn the_pseudo_file_system_shows_each_client_what_it_may_use() {
    closed(2, async |world: World| {
        let admin = furnish(&world).await;
        let (a, b) = (address(&world, "a"), address(&world, "b"));
        add(&world, "/p/q/one", &[rule(&a)]).await;
        add(&world, "p/two/", &[rule(&b), rule(&a)]).await;
        let (a, b, c) = (world.client("a").await, world.client("b").await, world.client("c").await);
        assert_eq!(names(&a, "/").await, ["p"]);
        assert_eq!(names(&a, "/p").await, ["q", "two"]);
        assert_eq!(names(&b, "/p").await, ["two"]);
        assert_eq!(names(&admin, "/").await, ["other", "p"], "who has the root sees the file system");
        // What one may not use says so; what is not there does not.
        assert_eq!(status_at(&b, "/p/q", &[]).await, nfsstat4::NFS4ERR_ACCESS);
        assert_eq!(status_at(&a, "/other", &[]).await, nfsstat4::NFS4ERR_NOENT);
        assert_eq!(c.status(vec![putrootfh(), getfh()]).await, nfsstat4::NFS4_OK);
        assert_eq!(status_at(&c, "/", &[getattr(&[FATTR4_TYPE])]).await, nfsstat4::NFS4ERR_ACCESS);
        // Each is a file system of its own.
        let fsid = async |path: &str| a.attributes(path, &[FATTR4_FSID]).await.fsid.unwrap();
        let (pseudo, one, two) = (fsid("/").await, fsid("/p/q/one").await, fsid("/p/two").await);
        assert_eq!(pseudo, fsid("/p").await);
        assert!(pseudo != one && one != two && pseudo != two);
        let shown = listed(&a, "/p", &[FATTR4_FSID, FATTR4_FILEHANDLE, FATTR4_FILEID]).await;
        assert_eq!(shown[1].1.fsid, Some(two));
        assert_eq!(shown[1].1.filehandle, Some(a.handle("/p/two").await));
        assert_eq!(shown[1].1.fileid, a.attributes("/p/two", &[FATTR4_FILEID]).await.fileid);
        // Up again, to the root and no further.
        let inside = a.handle("/p/q/one").await;
        let results = a.ok(vec![putfh(&inside), lookupp(), lookupp(), lookupp(), getfh()]).await;
        let nfs_resop4::OP_GETFH(GETFH4res::NFS4_OK(root)) = results.last().unwrap() else { panic!() };
        assert_eq!(root.object, a.handle("/").await);
        assert_eq!(status_at(&a, "/", &[lookupp()]).await, nfsstat4::NFS4ERR_NOENT);
        // There is nothing to change.
        assert_eq!(
            status_at(&a, "/p", &[create(createtype4::NF4DIR, "x", &mode(0o777))]).await,
            nfsstat4::NFS4ERR_ROFS
        );
        assert_eq!(status_at(&a, "/p", &[remove("two")]).await, nfsstat4::NFS4ERR_ROFS);
        assert_eq!(status_at(&a, "/p", &[open_create("x", b"o", BOTH, 0)]).await, nfsstat4::NFS4ERR_ROFS);
        assert_eq!(status_at(&a, "/p", &[open_name("two", b"o", READ, 0)]).await, nfsstat4::NFS4ERR_ISDIR);
        assert_eq!(a.attributes("/p", &[FATTR4_MODE]).await.mode, Some(0o555));
        // A new export shows, and the directory has changed.
        let change_of = async || a.attributes("/p", &[FATTR4_CHANGE]).await.change.unwrap();
        let before = change_of().await;
        admin.mkdir("/p", "three").await;
        add(&world, "/p/three", &[rule("any")]).await;
        assert_eq!(names(&a, "/p").await, ["q", "three", "two"]);
        assert_ne!(change_of().await, before);
    });
}

#[test]
fn nobody_makes_himself_a_filehandle() {
    closed(3, async |world: World| {
        let admin = furnish(&world).await;
        add(&world, "/p/two", &[rule(&address(&world, "a"))]).await;
        add(&world, "/other", &[read_only(&address(&world, "a"))]).await;
        let a = world.client("a").await;
        let (two, other) = (a.handle("/p/two").await, a.handle("/other").await);
        assert_eq!((two.0.len(), two.0[0]), (37, 2));
        let look = async |fh: &nfs_fh4| a.status(vec![putfh(fh), getattr(&[FATTR4_FILEID])]).await;
        assert_eq!(look(&two).await, nfsstat4::NFS4_OK);
        // The inode of one with the export of the other; the root of the file system through one's own export.
        let mut forged = two.0.to_vec();
        forged[5..29].copy_from_slice(&other.0[5..29]);
        assert_eq!(look(&nfs_fh4(forged.into())).await, nfsstat4::NFS4ERR_BADHANDLE);
        let root = admin.handle("/").await;
        let mut forged = two.0.to_vec();
        forged[5..29].copy_from_slice(&root.0[5..29]);
        assert_eq!(look(&nfs_fh4(forged.into())).await, nfsstat4::NFS4ERR_BADHANDLE);
        let mut unsealed = two.0.slice(..29).to_vec();
        unsealed[0] = 1;
        assert_eq!(look(&nfs_fh4(unsealed.into())).await, nfsstat4::NFS4ERR_BADHANDLE);
        // The root's has no seal, and its export lets nobody else in.
        assert_eq!(look(&root).await, nfsstat4::NFS4ERR_ACCESS);
        assert_eq!(
            world.client("b").await.status(vec![putfh(&two), getattr(&[FATTR4_FILEID])]).await,
            nfsstat4::NFS4ERR_ACCESS
        );
    });
}

#[test]
fn where_all_is_read_only_nothing_changes() {
    closed(4, async |world: World| {
        let admin = furnish(&world).await;
        open_at(&admin, "/p/two", "f").await;
        admin.ok([walk("/p/two"), vec![create(createtype4::NF4DIR, "d", &mode(0o777))]].concat()).await;
        admin.ok([walk("/p/two"), vec![create(createtype4::NF4FIFO, "p", &mode(0o666))]].concat()).await;
        add(&world, "/p/two", &[read_only("any")]).await;
        let a = world.client("a").await;
        let at = async |ops: &[nfs_argop4]| status_at(&a, "/p/two", ops).await;
        assert_eq!(at(&[open_name("none", b"o", WRITE, 0)]).await, nfsstat4::NFS4ERR_NOENT);
        assert_eq!(at(&[open_name("d", b"o", WRITE, 0)]).await, nfsstat4::NFS4ERR_ISDIR);
        assert_eq!(at(&[open_name("p", b"o", WRITE, 0)]).await, nfsstat4::NFS4ERR_SYMLINK);
        assert_eq!(at(&[open_create("new", b"o", READ, 0)]).await, nfsstat4::NFS4ERR_ROFS);
        assert_eq!(at(&[open_name("f", b"o", WRITE, 0)]).await, nfsstat4::NFS4ERR_ROFS);
        assert_eq!(at(&[open_create("f", b"o", WRITE, 0)]).await, nfsstat4::NFS4ERR_ROFS);
        let creating = |name: &'static str, how| {
            let claim = open_claim4::CLAIM_NULL(name.into());
            open_with(b"o", READ, 0, openflag4::OPEN4_CREATE(how), claim)
        };
        let nothing = || fattr(&Attributes::default());
        let exclusive = || creatverfattr { cva_verf: verifier4([9; 8]), cva_attrs: nothing() };
        for (name, how, status) in [
            // flock(1), and whatever else opens with O_RDONLY | O_CREAT.
            ("f", createhow4::UNCHECKED4(fattr(&mode(0o600))), nfsstat4::NFS4_OK),
            ("f", createhow4::UNCHECKED4(fattr(&size(0))), nfsstat4::NFS4ERR_ROFS),
            ("f", createhow4::GUARDED4(nothing()), nfsstat4::NFS4ERR_EXIST),
            ("f", createhow4::EXCLUSIVE4_1(exclusive()), nfsstat4::NFS4ERR_EXIST),
            ("d", createhow4::UNCHECKED4(nothing()), nfsstat4::NFS4ERR_ISDIR),
            ("new", createhow4::UNCHECKED4(nothing()), nfsstat4::NFS4ERR_ROFS),
            ("new", createhow4::GUARDED4(nothing()), nfsstat4::NFS4ERR_ROFS),
            ("new", createhow4::EXCLUSIVE4_1(exclusive()), nfsstat4::NFS4ERR_ROFS),
        ] {
            assert_eq!(at(&[creating(name, how.clone())]).await, status, "{name}, {how:?}");
        }
        assert_eq!(at(&[create(createtype4::NF4DIR, "x", &mode(0o777))]).await, nfsstat4::NFS4ERR_ROFS);
        assert_eq!(at(&[remove("f")]).await, nfsstat4::NFS4ERR_ROFS);
        assert_eq!(at(&[savefh(), rename("f", "g")]).await, nfsstat4::NFS4ERR_ROFS);
        assert_eq!(at(&[lookup("f"), savefh(), lookup("f"), link("g")]).await, nfsstat4::NFS4ERR_NOTDIR);
        assert_eq!(at(&[savefh(), link("g")]).await, nfsstat4::NFS4ERR_ROFS);
        assert_eq!(at(&[setattr(ANONYMOUS, &mode(0o600))]).await, nfsstat4::NFS4ERR_ROFS);
        let write = nfs_argop4::OP_WRITE(WRITE4args {
            stateid: ANONYMOUS,
            offset: 0,
            stable: stable_how4::FILE_SYNC4,
            data: "x".into(),
        });
        assert_eq!(at(&[lookup("f"), write]).await, nfsstat4::NFS4ERR_ROFS);
        let all = ACCESS4_READ | ACCESS4_LOOKUP | ACCESS4_MODIFY | ACCESS4_EXTEND | ACCESS4_DELETE;
        let results = a.ok([walk("/p/two"), vec![access(all)]].concat()).await;
        let nfs_resop4::OP_ACCESS(ACCESS4res::NFS4_OK(ok)) = results.last().unwrap() else { panic!() };
        assert_eq!((ok.supported, ok.access), (all, ACCESS4_READ | ACCESS4_LOOKUP));
        // What is written to a FIFO stays on the client.
        let both = ACCESS4_READ | ACCESS4_MODIFY;
        let results = a.ok([walk("/p/two"), vec![lookup("p"), access(both)]].concat()).await;
        let nfs_resop4::OP_ACCESS(ACCESS4res::NFS4_OK(ok)) = results.last().unwrap() else { panic!() };
        assert_eq!(ok.access, both);
        // Reading goes directly.
        let ops = [walk("/p/two"), vec![open_name("f", b"o", READ, 0), getfh()]].concat();
        let (fh, open) = opened(&a.ok(ops).await);
        assert_eq!(a.status(vec![putfh(&fh), layoutget(open, RO)]).await, nfsstat4::NFS4_OK);
        assert_eq!(names(&a, "/p/two").await, ["d", "f", "p"]);
    });
}

#[test]
fn a_change_holds_at_once_and_takes_back_what_is_out() {
    simulate(5, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        a.mkdir("/", "d").await;
        add(&world, "/d", &[rule(&address(&world, "a")), rule("any")]).await;
        let (fh, open) = open_at(&a, "/d", "f").await;
        let nfs_resop4::OP_LAYOUTGET(LAYOUTGET4res::NFS4_OK(granted)) =
            a.last(vec![putfh(&fh), layoutget(open, RW)]).await
        else {
            panic!()
        };
        let (other, other_open) = open_at(&b, "/d", "g").await;
        b.ok(vec![putfh(&other), layoutget(other_open, RW)]).await;
        assert_eq!(
            set(&world, "/d", &[read_only(&address(&world, "a")), rule("any")]).await,
            1,
            "of one of them"
        );
        until(&world.env, || (a.callbacks().count() >= 1).then_some(())).await;
        assert_eq!(b.callbacks().count(), 0);
        let layoutrecall4::LAYOUTRECALL4_FILE(asked) = a.callbacks().layout_recalls().remove(0).clora_recall
        else {
            panic!()
        };
        assert_eq!(asked.lor_fh, fh, "as the client knows the file");
        a.ok(vec![putfh(&fh), layoutreturn(granted.logr_stateid, layoutiomode4::LAYOUTIOMODE4_ANY)]).await;
        assert_eq!(
            a.status(vec![putfh(&fh), layoutget(open, RW)]).await,
            nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE
        );
        assert_eq!(a.status(vec![putfh(&fh), setattr(open, &size(0))]).await, nfsstat4::NFS4ERR_ROFS);
        assert_eq!(b.status(vec![putfh(&other), setattr(other_open, &size(0))]).await, nfsstat4::NFS4_OK);
        set(&world, "/d", &[rule("any")]).await;
        assert_eq!(a.status(vec![putfh(&fh), setattr(open, &size(0))]).await, nfsstat4::NFS4_OK);
        // Gone: nothing of it is good any more, but what is held may be given back.
        take(&world, "/d").await;
        assert_eq!(a.status(vec![putfh(&fh), getattr(&[FATTR4_SIZE])]).await, nfsstat4::NFS4ERR_STALE);
        assert_eq!(a.status(vec![putfh(&fh), layoutget(open, RO)]).await, nfsstat4::NFS4ERR_STALE);
        a.ok(vec![putfh(&fh), close(open)]).await;
        assert_eq!(names(&a, "/d").await, ["f", "g"], "through the root, as before");
    });
}

/// One host of a network that is let in, and a flavour that is not good any more: what is out comes back, or is cut off.
#[test]
fn who_is_locked_out_writes_no_more_at_data_servers_either() {
    let unlike = |rule: ctl_rule| {
        [ctl_rule { sys: false, none: false, ..rule.clone() }, ctl_rule { sys: false, ..rule }]
    };
    for (n, refused) in [nfsstat4::NFS4ERR_ACCESS, nfsstat4::NFS4ERR_WRONGSEC].into_iter().enumerate() {
        simulate(40, async |mut world: World| {
            let data_server = world.data_server();
            let (a, b) = (world.client("a").await, world.client("b").await);
            a.mkdir("/", "d").await;
            set(&world, "/", &[rule("any")]).await;
            let (fh, open) = open_at(&a, "/d", "f").await;
            a.ok(vec![putfh(&fh), layoutget(open, RW)]).await;
            let (other, other_open) = open_at(&b, "/d", "g").await;
            b.ok(vec![putfh(&other), layoutget(other_open, RW)]).await;
            let one = unlike(rule(&address(&world, "a")))[n].clone();
            assert_eq!(set(&world, "/", &[rule("any"), one]).await, 1, "of one of them");
            until(&world.env, || (a.callbacks().count() >= 1).then_some(())).await;
            assert_eq!(b.callbacks().count(), 0);
            assert_eq!(a.status(vec![putfh(&fh), getattr(&[FATTR4_SIZE])]).await, refused);
            // It keeps what it has.
            for _ in 0..6 {
                world.sleep(Duration::from_secs(10)).await;
                a.compound(Vec::new()).await;
            }
            assert!(data_server.fences().iter().any(|fence| fence.kind == ctl_fence_kind::FENCE_HOLDER_FILE));
            assert_eq!(b.status(vec![putfh(&other), getattr(&[FATTR4_SIZE])]).await, nfsstat4::NFS4_OK);
            set(&world, "/", &[rule("any")]).await;
            assert_eq!(a.status(vec![putfh(&fh), getattr(&[FATTR4_SIZE])]).await, nfsstat4::NFS4_OK);
        });
    }
}

/// Who somebody is decides what he may do: what was given to root is not nobody's.
#[test]
fn who_is_squashed_gives_back_what_was_given_to_who_he_was() {
    let [none, root, all] = [ctl_squash::SQUASH_NONE, ctl_squash::SQUASH_ROOT, ctl_squash::SQUASH_ALL];
    let of = |squash, anonymous| ctl_rule {
        squash,
        anonymous_uid: anonymous,
        anonymous_gid: anonymous,
        ..rule("any")
    };
    let cases = [
        (of(none, 1), of(root, 1), 1),
        (of(none, 1), of(all, 1), 1),
        (of(root, 1), of(all, 1), 1),
        (of(root, 1), of(root, 2), 1),
        (of(all, 1), of(all, 2), 1),
        (of(root, 1), of(none, 1), 0),
        (of(all, 1), of(root, 1), 0),
        (ctl_rule { none: false, ..of(none, 1) }, ctl_rule { none: false, ..of(none, 2) }, 0),
    ];
    for (before, after, recalled) in cases {
        simulate(41, async |world: World| {
            let a = world.client("a").await;
            a.ok(vec![putrootfh(), setattr(stateid4::default(), &mode(0o777))]).await;
            a.ok(vec![putrootfh(), create(createtype4::NF4DIR, "d", &mode(0o777))]).await;
            add(&world, "/d", std::slice::from_ref(&before)).await;
            let (fh, open) = open_at(&a, "/d", "f").await;
            a.ok(vec![putfh(&fh), layoutget(open, RW)]).await;
            assert_eq!(
                set(&world, "/d", std::slice::from_ref(&after)).await,
                recalled,
                "{before:?} {after:?}"
            );
        });
    }
}

/// A COMPOUND goes by the exports of its beginning, and may take a while.
#[test]
fn what_is_granted_while_an_export_narrows_is_taken_back() {
    simulate(16, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        a.mkdir("/", "d").await;
        add(&world, "/d", &[rule(&address(&world, "a")), rule("any")]).await;
        let (fh, delegation) = delegated_at(&b, "/d", "f").await;
        let current = stateid4 { seqid: 1, other: [0; 12] };
        let ops = [walk("/d"), vec![open_name("f", b"a", BOTH, 0), layoutget(current, RW)]].concat();
        let asks = async { assert_eq!(a.status(ops).await, nfsstat4::NFS4_OK) };
        let narrows = async {
            until(&world.env, || (b.callbacks().count() > 0).then_some(())).await;
            set(&world, "/d", &[read_only(&address(&world, "a")), rule("any")]).await;
            b.ok(vec![putfh(&fh), delegreturn(delegation)]).await;
        };
        both(asks, narrows).await;
        until(&world.env, || (a.callbacks().count() > 0).then_some(())).await;
        assert_eq!(a.callbacks().layout_recalls().len(), 1);
    });
}

/// A name is no secret, and AUTH_SYS is whatever one says.
#[test]
fn whom_no_export_lets_in_ends_nobody_elses_state() {
    closed(17, async |world: World| {
        furnish(&world).await;
        add(&world, "/p/two", &[rule(&address(&world, "a"))]).await;
        let a = world.client("a").await;
        let (fh, open) = open_at(&a, "/p/two", "f").await;
        let stranger = world.connect("stranger").await;
        stranger.session(b"a", [9; 8], 1).await;
        a.ok(vec![putfh(&fh), close(open)]).await;
    });
}

#[test]
fn a_forbidden_client_loses_what_it_had_and_nobody_else_does() {
    simulate(6, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, open) = a.open("f", BOTH, 0).await;
        a.ok(vec![putfh(&fh), layoutget(open, RW)]).await;
        let recalled = set(&world, "/", &[rule(&address(&world, "b"))]).await;
        assert_eq!(recalled, 1);
        assert!(exports(&world).await.exports[0].stored);
        assert_eq!(a.status(vec![putfh(&fh), getattr(&[FATTR4_SIZE])]).await, nfsstat4::NFS4ERR_ACCESS);
        assert_eq!(a.status(vec![putrootfh(), getattr(&[FATTR4_SIZE])]).await, nfsstat4::NFS4ERR_ACCESS);
        b.attributes("f", &[FATTR4_FILEID]).await;
        // Removed, it does not come back with what the server was started with.
        take(&world, "/").await;
        assert_eq!(b.status(vec![putrootfh(), getattr(&[FATTR4_SIZE])]).await, nfsstat4::NFS4ERR_ACCESS);
        assert!(exports(&world).await.exports.is_empty());
        add(&world, "/", &[rule("any")]).await;
        a.attributes("f", &[FATTR4_FILEID]).await;
    });
}

#[test]
fn an_export_in_an_export_is_another_file_system() {
    simulate(7, async |world: World| {
        let a = world.client("a").await;
        for (parent, name) in [("/", "d"), ("/d", "e"), ("/", "x")] {
            a.mkdir(parent, name).await;
        }
        open_at(&a, "/d", "f").await;
        let before = a.handle("/d").await;
        add(&world, "/d", &[read_only(&address(&world, "a"))]).await;
        let inner = a.handle("/d").await;
        assert_ne!(inner, before);
        let shown = listed(&a, "/", &[FATTR4_FSID]).await;
        assert_ne!(shown[0].1.fsid, shown[1].1.fsid);
        // What was held goes on under the rules that it was given under.
        a.ok(vec![putfh(&before), create(createtype4::NF4DIR, "held", &mode(0o777))]).await;
        assert_eq!(
            status_at(&a, "/d", &[create(createtype4::NF4DIR, "y", &mode(0o777))]).await,
            nfsstat4::NFS4ERR_ROFS
        );
        // One that the export does not name stays in the outer one.
        let b = world.client("b").await;
        b.ok([walk("/d"), vec![create(createtype4::NF4DIR, "b", &mode(0o777))]].concat()).await;
        // Names do not go across.
        set(&world, "/d", &[rule("any")]).await;
        let across = |op: nfs_argop4| [walk("/d/f"), vec![savefh(), putrootfh(), op]].concat();
        assert_eq!(a.status(across(link("g"))).await, nfsstat4::NFS4ERR_XDEV);
        let ops = [walk("/d"), vec![savefh(), putrootfh(), rename("f", "g")]].concat();
        assert_eq!(a.status(ops).await, nfsstat4::NFS4ERR_XDEV);
        // Where it begins stays where it is.
        assert_eq!(a.status(vec![putrootfh(), remove("d")]).await, nfsstat4::NFS4ERR_FILE_OPEN);
        assert_eq!(
            a.status(vec![putrootfh(), savefh(), rename("d", "z")]).await,
            nfsstat4::NFS4ERR_FILE_OPEN
        );
        // Out of it, up, is what it lies in.
        let results = a.ok([walk("/d/e"), vec![lookupp(), getfh(), lookupp(), getfh()]].concat()).await;
        let fhs: Vec<_> = results
            .iter()
            .filter_map(|result| match result {
                nfs_resop4::OP_GETFH(GETFH4res::NFS4_OK(ok)) => Some(ok.object.clone()),
                _ => None,
            })
            .collect();
        assert_eq!(fhs, [inner, a.handle("/").await]);
        // A directory that was carried out of the export is no way out of it.
        let e = a.handle("/d/e").await;
        a.ok(vec![putfh(&before), savefh(), putrootfh(), lookup("x"), rename("e", "e")]).await;
        assert_eq!(a.status(vec![putfh(&e), lookupp()]).await, nfsstat4::NFS4ERR_STALE);
    });
}

/// The inner export is where it was; what lies around it is not where the outer one's path says.
#[test]
fn out_of_an_export_that_was_carried_off_no_way_leads_into_the_one_that_it_was_in() {
    closed(32, async |world: World| {
        let admin = furnish(&world).await;
        let host = address(&world, "a");
        for path in ["/p", "/p/q/one"] {
            add(&world, path, &[rule(&host)]).await;
        }
        for (parent, name) in [("/p/q", "secret"), ("/", "private")] {
            admin.mkdir(parent, name).await;
        }
        let a = world.client("a").await;
        let inner = a.handle("/p/q/one").await;
        let results = a.ok(vec![putfh(&inner), lookupp(), getfh(), lookup("secret")]).await;
        let nfs_resop4::OP_GETFH(GETFH4res::NFS4_OK(outer)) = &results[2] else { panic!() };
        admin.ok([walk("/p"), vec![savefh()], walk("/private"), vec![rename("q", "q")]].concat()).await;
        assert_eq!(a.status(vec![putfh(&inner), lookupp()]).await, nfsstat4::NFS4ERR_STALE);
        assert_eq!(a.status(vec![putfh(&outer.object), lookupp()]).await, nfsstat4::NFS4ERR_STALE);
        // The export itself goes on.
        a.ok(vec![putfh(&inner), create(createtype4::NF4DIR, "d", &mode(0o777))]).await;
    });
}

/// A client of two exports that reach one file knows two files, and one recall means one of them.
#[test]
fn what_is_called_back_is_held_through_one_export() {
    simulate(8, async |world: World| {
        let a = world.client("a").await;
        a.mkdir("/", "d").await;
        let before = a.handle("/d").await;
        add(&world, "/d", &[rule("any")]).await;
        let (inner, open) = open_at(&a, "/d", "f").await;
        a.ok(vec![putfh(&inner), layoutget(open, RW)]).await;
        let ops = vec![putfh(&before), open_name("f", b"other", BOTH, 0), getfh()];
        let (outer, outer_open) = opened(&a.ok(ops).await);
        assert_ne!(inner, outer);
        assert_eq!(
            a.status(vec![putfh(&outer), layoutget(outer_open, RW)]).await,
            nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE
        );
        assert_eq!(a.status(vec![putfh(&inner), layoutget(open, RW)]).await, nfsstat4::NFS4_OK);
    });
}

#[test]
fn squashing_is_the_exports() {
    closed(9, async |world: World| {
        furnish(&world).await;
        let squash = |squash| ctl_rule { squash, ..rule("any") };
        add(&world, "/p/two", &[squash(ctl_squash::SQUASH_ROOT)]).await;
        add(&world, "/other", &[squash(ctl_squash::SQUASH_ALL)]).await;
        let root = world.client("a").await;
        let raw = world.connect("b").await.with_user(1000, 0, &[]);
        let user = raw.session(b"b", [1; 8], 1).await;
        user.ok(vec![reclaim_complete(false)]).await;
        let makes = async |client: &Client, path: &str, name: &str| {
            client.ok([walk(path), vec![create(createtype4::NF4DIR, name, &mode(0o777))]].concat()).await;
            let made =
                client.attributes(&format!("{path}/{name}"), &[FATTR4_OWNER, FATTR4_OWNER_GROUP]).await;
            [made.owner, made.owner_group]
                .map(|id| String::from_utf8(id.unwrap().to_vec()).unwrap())
                .join(":")
        };
        assert_eq!(makes(&root, "/p/two", "r").await, "65534:65533");
        assert_eq!(makes(&user, "/p/two", "u").await, "1000:65533");
        assert_eq!(makes(&root, "/other", "r").await, "65534:65533");
        assert_eq!(makes(&user, "/other", "u").await, "65534:65533");
    });
}

#[test]
fn a_flavour_that_is_not_good_is_refused_by_name() {
    closed(10, async |world: World| {
        furnish(&world).await;
        add(&world, "/p/two", &[ctl_rule { none: false, ..rule("any") }]).await;
        let mut raw = world.connect("a").await;
        let sys = raw.session(b"sys", [1; 8], 1).await;
        sys.ok(vec![reclaim_complete(false)]).await;
        let fh = sys.handle("/p/two").await;
        raw.credential = sluice_rpc::Credential::None;
        let none = raw.session(b"none", [1; 8], 1).await;
        none.ok(vec![reclaim_complete(false)]).await;
        let reply = none.compound(vec![putfh(&fh), getattr(&[FATTR4_SIZE])]).await;
        assert_eq!((reply.status, reply.resarray.len()), (nfsstat4::NFS4ERR_WRONGSEC, 2), "said by PUTFH");
        assert_eq!(none.status(vec![putfh(&fh)]).await, nfsstat4::NFS4_OK);
        assert_eq!(status_at(&none, "/p", &[lookup("two")]).await, nfsstat4::NFS4ERR_WRONGSEC);
        let results = none.ok([walk("/p"), vec![secinfo("two")]].concat()).await;
        let nfs_resop4::OP_SECINFO(SECINFO4res::NFS4_OK(good)) = results.last().unwrap() else { panic!() };
        assert_eq!(good[..], [secinfo4::Default(AUTH_SYS)]);
        assert_eq!(sys.status(vec![putfh(&fh), getattr(&[FATTR4_SIZE])]).await, nfsstat4::NFS4_OK);
    });
}

#[test]
fn exports_and_their_filehandles_outlive_a_restart() {
    simulate(11, async |mut world: World| {
        let a = world.client("a").await;
        a.mkdir("/", "d").await;
        add(&world, "/d", &[read_only("any")]).await;
        take(&world, "/").await;
        let fh = a.handle("/d").await;
        let root = a.handle("/").await;
        let known = exports(&world).await.exports;
        world.restart().await;
        assert_eq!(exports(&world).await.exports, known);
        let a = world.client("a").await;
        assert_eq!(a.handle("/d").await, fh);
        assert_eq!(a.handle("/").await, root);
        assert_eq!(
            a.status(vec![putfh(&fh), create(createtype4::NF4DIR, "x", &mode(0o777))]).await,
            nfsstat4::NFS4ERR_ROFS
        );
    });
}

#[test]
fn what_is_wrong_with_an_export_is_said() {
    simulate(12, async |world: World| {
        let a = world.client("a").await;
        a.mkdir("/", "d").await;
        a.open("f", BOTH, 0).await;
        let refused = async |action, path: &str, rules: &[ctl_rule]| {
            change(&world, action, path, rules).await.unwrap_err()
        };
        let (add_, set_) = (ctl_export_action::EXPORT_ADD, ctl_export_action::EXPORT_SET);
        assert!(refused(add_, "/", &[rule("any")]).await.contains("exported already"));
        assert!(refused(add_, "/f", &[rule("any")]).await.contains("not a directory"));
        assert!(refused(add_, "/nothing", &[rule("any")]).await.contains("no such"));
        assert!(refused(add_, "/d/../d", &[rule("any")]).await.contains("name"));
        assert!(refused(add_, "/d", &[rule("10.0.0.1/8")]).await.contains("10.0.0.0/8 is one"));
        assert!(refused(add_, "/d", &[rule("any"), read_only("::/0")]).await.contains("two rules"));
        assert!(refused(set_, "/d", &[rule("any")]).await.contains("not exported"));
        // Made from a table that is another one now.
        let version = exports(&world).await.version;
        add(&world, "/d", &[rule("any")]).await;
        let args = ADMIN_EXPORT_args {
            version,
            action: ctl_export_action::EXPORT_REMOVE,
            path: "/d".into(),
            rules: Vec::new(),
        };
        let late = ask(&world, ADMIN_EXPORT, &args).await;
        assert!(matches!(late, ADMIN_EXPORT_res::Default(ctl_status::CTL_ERR_AGAIN, _)), "{late:?}");
    });
}

/// Nobody gets by a reclaim what an OPEN would refuse. Who owns the file may have made it with any mode.
#[test]
fn a_squashed_root_reclaims_only_what_it_may_open() {
    closed(40, async |mut world: World| {
        let admin = furnish(&world).await;
        let guarded = |name: &'static str, bits| {
            let how = openflag4::OPEN4_CREATE(createhow4::GUARDED4(fattr(&mode(bits))));
            let open = open_with(b"owner", BOTH, 0, how, open_claim4::CLAIM_NULL(name.into()));
            [walk("/p/two"), vec![open, getfh()]].concat()
        };
        opened(&admin.ok(guarded("secret", 0o600)).await);
        let squashed = ctl_rule { squash: ctl_squash::SQUASH_ROOT, ..rule("any") };
        add(&world, "/p/two", &[squashed]).await;
        let a = world.client("a").await;
        let (own, _) = opened(&a.ok(guarded("own", 0)).await);
        let secret = a.handle("/p/two/secret").await;
        drop((admin, a));
        world.restart().await;
        let a = world.new_client("a").await;
        let reclaim = |fh: &nfs_fh4, access| vec![putfh(fh), open_previous(b"owner", access, 0)];
        for access in [READ, WRITE, BOTH] {
            assert_eq!(a.status(reclaim(&secret, access)).await, nfsstat4::NFS4ERR_ACCESS);
        }
        a.ok(reclaim(&own, BOTH)).await;
    });
}

/// As a cluster answers that recovers just then.
#[test]
fn a_change_whose_end_is_not_known_is_looked_up_before_the_next_one() {
    simulate(31, async |world: World| {
        let client = world.client("a").await;
        client.mkdir("/", "d").await;
        let (wide, narrow) = (rule("0.0.0.0/0"), rule("10.9.0.0/16"));
        add(&world, "/d", std::slice::from_ref(&wide)).await;
        let set = async |rules: &[ctl_rule]| change(&world, ctl_export_action::EXPORT_SET, "/d", rules).await;
        // As often as it is tried, nobody is told; it is made all the same.
        world.db.set_faults(Faults { unknown_applied: 1.0, ..Faults::NONE });
        assert!(set(std::slice::from_ref(&narrow)).await.is_err());
        world.db.set_faults(Faults::NONE);
        let again = change(&world, ctl_export_action::EXPORT_REMOVE, "/d", &[]).await;
        assert!(again.unwrap_err().contains("look again"));
        let known = exports(&world).await.exports;
        let there: Vec<_> = known.iter().filter(|export| &export.path[..] == b"/d").collect();
        assert_eq!((there.len(), &there[0].rules[..]), (1, std::slice::from_ref(&narrow)));
        take(&world, "/d").await;
        assert!(exports(&world).await.exports.iter().all(|export| &export.path[..] != b"/d"));
    });
}

#[test]
fn a_change_whose_end_is_not_known_holds_without_another_one() {
    simulate(32, async |world: World| {
        let client = world.client("a").await;
        client.mkdir("/", "d").await;
        add(&world, "/d", &[rule("0.0.0.0/0")]).await;
        let before = exports(&world).await.version;
        world.db.set_faults(Faults { unknown_applied: 1.0, ..Faults::NONE });
        assert!(change(&world, ctl_export_action::EXPORT_REMOVE, "/d", &[]).await.is_err());
        world.db.set_faults(Faults { unavailable: 1.0, ..Faults::NONE });
        world.sleep(Duration::from_secs(30)).await;
        world.db.set_faults(Faults::NONE);
        world.sleep(Duration::from_secs(30)).await;
        let known = exports(&world).await;
        assert!(known.exports.iter().all(|export| &export.path[..] != b"/d"), "it holds");
        assert_ne!(known.version, before);
    });
}
