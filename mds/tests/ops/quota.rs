//! Quotas: what is refused with DQUOT, what is shown of them, and how they are set. RFC 8881 §5.8.2.28, §15.1.8.2.

use std::time::Duration;

use sluice_kv::Faults;
use sluice_mds::Config;
use sluice_xdr::control::*;
use sluice_xdr::nfs4::*;

use crate::admin::ask;
use crate::copy::{self, fill};
use crate::harness::*;

pub const DQUOT: nfsstat4 = nfsstat4::NFS4ERR_DQUOT;
pub const OK: nfsstat4 = nfsstat4::NFS4_OK;
/// The user of these tests, and the groups it is in.
pub const USER: u32 = 500;
pub const GROUP: u32 = 600;
pub const OTHER_GROUP: u32 = 601;
pub const WEEK: u32 = 7 * 24 * 3600;

/// A client whose calls are those of [`USER`], and of root.
pub async fn clients(world: &World) -> (Client, Client) {
    let root = world.client("a").await;
    root.ok(vec![putrootfh(), setattr(ANONYMOUS, &mode(0o777))]).await;
    let mut user = world.client("u").await;
    user.raw = user.raw.clone().with_user(USER, GROUP, &[OTHER_GROUP]);
    (root, user)
}

/// (soft, hard)
pub const NONE: (u64, u64) = (0, 0);

pub async fn change(
    world: &World,
    action: ctl_quota_action,
    (kind, id, path): (ctl_quota_kind, u32, &str),
    (bytes, files): ((u64, u64), (u64, u64)),
    grace: u32,
) -> Result<(), String> {
    let limit = |(soft, hard)| ctl_limit { soft, hard };
    let args = ADMIN_QUOTA_args {
        action,
        kind,
        id: id.into(),
        path: path.to_owned().into(),
        bytes: limit(bytes),
        files: limit(files),
        grace,
    };
    match ask(world, ADMIN_QUOTA, &args).await {
        ADMIN_QUOTA_res::CTL_OK => Ok(()),
        ADMIN_QUOTA_res::Default(_, why) => Err(String::from_utf8(why.to_vec()).unwrap()),
    }
}

pub async fn set(world: &World, whose: (ctl_quota_kind, u32, &str), bytes: (u64, u64), files: (u64, u64)) {
    change(world, ctl_quota_action::QUOTA_SET, whose, (bytes, files), WEEK).await.unwrap();
}

async fn remove_quota(world: &World, whose: (ctl_quota_kind, u32, &str)) -> Result<(), String> {
    change(world, ctl_quota_action::QUOTA_REMOVE, whose, (NONE, NONE), 0).await
}

pub const OF_USER: (ctl_quota_kind, u32, &str) = (ctl_quota_kind::QUOTA_USER, USER, "");

pub fn of_tree(path: &str) -> (ctl_quota_kind, u32, &str) {
    (ctl_quota_kind::QUOTA_TREE, 0, path)
}

pub async fn quotas(world: &World, args: ADMIN_QUOTAS_args) -> Result<ADMIN_QUOTAS_resok, String> {
    match ask(world, ADMIN_QUOTAS, &args).await {
        ADMIN_QUOTAS_res::CTL_OK(ok) => Ok(ok),
        ADMIN_QUOTAS_res::Default(_, why) => Err(String::from_utf8(why.to_vec()).unwrap()),
    }
}

fn one((kind, id, path): (ctl_quota_kind, u32, &str)) -> ADMIN_QUOTAS_args {
    ADMIN_QUOTAS_args { kind, one: true, id: id.into(), from_start: false, path: path.to_owned().into() }
}

pub fn all(kind: ctl_quota_kind) -> ADMIN_QUOTAS_args {
    ADMIN_QUOTAS_args { kind, one: false, id: 0, from_start: true, path: "".into() }
}

async fn show(world: &World, whose: (ctl_quota_kind, u32, &str)) -> ctl_quota {
    quotas(world, one(whose)).await.unwrap().quotas.remove(0)
}

/// (files, bytes)
pub async fn used(world: &World, whose: (ctl_quota_kind, u32, &str)) -> (u64, u64) {
    let quota = show(world, whose).await;
    (quota.used_files, quota.used_bytes)
}

pub async fn until_whole(world: &World, path: &str) {
    while show(world, of_tree(path)).await.filling {
        world.sleep(Duration::from_millis(10)).await;
    }
}

pub fn at(path: &str, op: nfs_argop4) -> Vec<nfs_argop4> {
    let mut ops = walk(path);
    ops.push(op);
    ops
}

pub fn mkdir(name: &str) -> nfs_argop4 {
    create(createtype4::NF4DIR, name, &mode(0o777))
}

pub fn make(name: &str) -> nfs_argop4 {
    open_create(name, b"o", BOTH, 0)
}

pub fn chgrp(path: &str, gid: u32) -> Vec<nfs_argop4> {
    let owner_group = Some(gid.to_string().into());
    at(path, setattr(ANONYMOUS, &Attributes { owner_group, ..Attributes::default() }))
}

#[test]
fn what_would_be_one_file_too_many_is_not_made() {
    simulate(1, async |world: World| {
        let (root, user) = clients(&world).await;
        set(&world, OF_USER, NONE, (0, 3)).await;
        assert_eq!(user.status(at("/", make("f1"))).await, OK);
        assert_eq!(user.status(at("/", mkdir("d"))).await, OK);
        assert_eq!(user.status(at("/", symlink("s", "x"))).await, OK);
        for op in [make("f2"), mkdir("d2"), symlink("s2", "x")] {
            assert_eq!(user.status(at("/", op)).await, DQUOT);
        }
        assert_eq!(used(&world, OF_USER).await, (3, 0));
        let refused = async || world.mds.statistics().await.unwrap().quotas.refused;
        assert_eq!(refused().await, [("user", 3), ("group", 0), ("tree", 0)]);
        // What is there is opened, and found to be there.
        assert_eq!(user.status(at("/", make("f1"))).await, OK);
        assert_eq!(user.status(at("/", mkdir("d"))).await, nfsstat4::NFS4ERR_EXIST);
        assert_eq!(refused().await[0].1, 3, "who was not refused does not count");
        // Another name is no other file.
        let mut ops = walk("/f1");
        ops.extend([savefh(), putrootfh(), link("g")]);
        assert_eq!(user.status(ops).await, OK);
        // Others are not meant, nor is root.
        assert_eq!(root.status(at("/", make("r"))).await, OK);
        assert_eq!(user.status(at("/", remove("s"))).await, OK);
        assert_eq!(user.status(at("/", make("f2"))).await, OK);
        assert_eq!(user.status(at("/", make("f3"))).await, DQUOT);
        remove_quota(&world, OF_USER).await.unwrap();
        assert_eq!(user.status(at("/", make("f3"))).await, OK);
        assert!(remove_quota(&world, OF_USER).await.unwrap_err().contains("no limits"));
    });
}

#[test]
fn what_would_be_one_byte_too_many_is_not_added() {
    simulate(2, async |world: World| {
        let (root, user) = clients(&world).await;
        let (fh, open) = user.open("f", BOTH, 0).await;
        set(&world, OF_USER, (0, 1_000), NONE).await;
        let resize = |bytes| vec![putfh(&fh), setattr(open, &size(bytes))];
        assert_eq!(user.status(resize(1_001)).await, DQUOT);
        assert_eq!(user.status(resize(1_000)).await, OK);
        let allocate =
            nfs_argop4::OP_ALLOCATE(ALLOCATE4args { aa_stateid: open, aa_offset: 0, aa_length: 1_001 });
        assert_eq!(user.status(vec![putfh(&fh), allocate]).await, DQUOT);
        let how = openflag4::OPEN4_CREATE(createhow4::GUARDED4(fattr(&size(1))));
        let made = open_with(b"o", BOTH, 0, how, open_claim4::CLAIM_NULL(b"g"[..].into()));
        assert_eq!(user.status(at("/", made)).await, DQUOT);
        // A file without bytes is none of the limit's business.
        assert_eq!(user.status(at("/", make("h"))).await, OK);
        assert_eq!(used(&world, OF_USER).await, (2, 1_000));
        assert_eq!(user.status(resize(400)).await, OK);
        assert_eq!(user.status(resize(999)).await, OK);
        // Root may.
        let (fh, open) = root.open("f", BOTH, 0).await;
        assert_eq!(root.status(vec![putfh(&fh), setattr(open, &size(5_000))]).await, OK);
        assert_eq!(used(&world, OF_USER).await, (2, 5_000));
    });
}

#[test]
fn a_write_through_the_server_is_refused_where_it_adds_something() {
    simulate(3, async |world: World| {
        let (_, user) = clients(&world).await;
        let (fh, open) = user.open("f", BOTH, 0).await;
        set(&world, OF_USER, (0, 1_000), NONE).await;
        let write = |offset| {
            nfs_argop4::OP_WRITE(WRITE4args {
                stateid: open,
                offset,
                stable: stable_how4::FILE_SYNC4,
                data: vec![7; 100].into(),
            })
        };
        assert_eq!(user.status(vec![putfh(&fh), write(901)]).await, DQUOT);
        assert_eq!(used(&world, OF_USER).await, (1, 0));
    });
}

/// From one file of a user to another, where they are at data servers, and where they are in the metadata.
#[test]
fn a_copy_or_a_clone_is_refused_where_it_adds_something() {
    for (seed, config, direct) in [(13, at_data_servers(), true), (14, Config::default(), false)] {
        simulate_with(seed, config, async |world: World| {
            let (_, user) = clients(&world).await;
            let (from, source) = user.open("from", BOTH, 0).await;
            let (to, target) = user.open("to", BOTH, 0).await;
            if direct {
                fill(&user, &from, source, 8_192).await;
            } else {
                user.ok(vec![putfh(&from), setattr(source, &size(8_192))]).await;
            }
            set(&world, OF_USER, (0, 12_000), NONE).await;
            let between = |op| vec![putfh(&from), savefh(), putfh(&to), op];
            let copy = |bytes| between(nfs_argop4::OP_COPY(copy::args(source, target, bytes)));
            let clone = between(nfs_argop4::OP_CLONE(CLONE4args {
                cl_src_stateid: source,
                cl_dst_stateid: target,
                cl_src_offset: 0,
                cl_dst_offset: 0,
                cl_count: 0,
            }));
            assert_eq!(user.status(copy(8_192)).await, DQUOT);
            assert_eq!(user.status(clone).await, DQUOT);
            assert_eq!(used(&world, OF_USER).await, (2, 8_192));
            assert_eq!(user.attributes("to", &[FATTR4_SIZE]).await.size, Some(0));
            user.ok(copy(3_000)).await;
            assert_eq!(used(&world, OF_USER).await, (2, 11_192));
            // What is there already is not added again.
            user.ok(copy(3_000)).await;
            assert_eq!(used(&world, OF_USER).await, (2, 11_192));
        });
    }
}

#[test]
fn a_file_is_not_given_to_who_has_no_room_for_it() {
    simulate(4, async |world: World| {
        let (root, user) = clients(&world).await;
        let (fh, open) = user.open("f", BOTH, 0).await;
        user.ok(vec![putfh(&fh), setattr(open, &size(100))]).await;
        set(&world, (ctl_quota_kind::QUOTA_GROUP, OTHER_GROUP, ""), (0, 99), NONE).await;
        assert_eq!(user.status(chgrp("/f", OTHER_GROUP)).await, DQUOT);
        let group = Some(OTHER_GROUP.to_string().into());
        let grown = Attributes { owner_group: group, ..size(1_000) };
        user.ok(vec![putfh(&fh), setattr(open, &size(0))]).await;
        assert_eq!(user.status(vec![putfh(&fh), setattr(open, &grown)]).await, DQUOT, "both at once");
        user.ok(vec![putfh(&fh), setattr(open, &size(99))]).await;
        assert_eq!(user.status(chgrp("/f", OTHER_GROUP)).await, OK);
        assert_eq!(user.status(vec![putfh(&fh), setattr(open, &size(100))]).await, DQUOT);
        assert_eq!(used(&world, (ctl_quota_kind::QUOTA_GROUP, OTHER_GROUP, "")).await, (1, 99));
        assert_eq!(used(&world, (ctl_quota_kind::QUOTA_GROUP, GROUP, "")).await, (0, 0));
        assert_eq!(root.status(vec![putfh(&fh), setattr(ANONYMOUS, &size(100))]).await, OK);
    });
}

#[test]
fn everybody_has_the_limits_of_everybody_unless_they_have_their_own() {
    simulate(5, async |world: World| {
        let (root, user) = clients(&world).await;
        let everybody = (ctl_quota_kind::QUOTA_ANY_USER, 0, "");
        set(&world, everybody, NONE, (0, 1)).await;
        assert_eq!(user.status(at("/", make("f1"))).await, OK);
        assert_eq!(user.status(at("/", make("f2"))).await, DQUOT);
        let shown = show(&world, OF_USER).await;
        assert_eq!((shown.own, shown.files.hard), (false, 1));
        set(&world, OF_USER, NONE, (0, 2)).await;
        assert_eq!(user.status(at("/", make("f2"))).await, OK);
        assert_eq!(user.status(at("/", make("f3"))).await, DQUOT);
        // None of its own keeps those of everybody away.
        set(&world, OF_USER, NONE, NONE).await;
        assert_eq!(user.status(at("/", make("f3"))).await, OK);
        assert_eq!(root.status(at("/", make("r1"))).await, OK);
        assert_eq!(root.status(at("/", make("r2"))).await, OK);
    });
}

#[test]
fn a_soft_limit_may_be_exceeded_for_a_while() {
    simulate(6, async |world: World| {
        let (_, user) = clients(&world).await;
        let limits = (NONE, (1, 4));
        change(&world, ctl_quota_action::QUOTA_SET, OF_USER, limits, 3600).await.unwrap();
        assert_eq!(user.status(at("/", mkdir("f1"))).await, OK);
        assert_eq!(show(&world, OF_USER).await.files_since, 0);
        assert_eq!(user.status(at("/", mkdir("f2"))).await, OK);
        let since = show(&world, OF_USER).await.files_since;
        assert_ne!(since, 0);
        world.sleep(Duration::from_secs(1800)).await;
        let user = {
            let mut user = world.client("u2").await;
            user.raw = user.raw.clone().with_user(USER, GROUP, &[]);
            user
        };
        assert_eq!(user.status(at("/", mkdir("f3"))).await, OK);
        assert_eq!(show(&world, OF_USER).await.files_since, since);
        world.sleep(Duration::from_secs(1801)).await;
        let user = {
            let mut user = world.client("u3").await;
            user.raw = user.raw.clone().with_user(USER, GROUP, &[]);
            user
        };
        assert_eq!(user.status(at("/", mkdir("f4"))).await, DQUOT);
        // Within it again, the time begins anew.
        user.ok(at("/", remove("f3"))).await;
        user.ok(at("/", remove("f2"))).await;
        assert_eq!(user.status(at("/", mkdir("f2"))).await, OK);
        assert!(show(&world, OF_USER).await.files_since > since + 3600);
        let reversed = change(&world, ctl_quota_action::QUOTA_SET, OF_USER, (NONE, (5, 4)), 0).await;
        assert!(reversed.unwrap_err().contains("above"));
    });
}

const RW: layoutiomode4 = layoutiomode4::LAYOUTIOMODE4_RW;

fn layout_at(stateid: stateid4, offset: u64) -> nfs_argop4 {
    let nfs_argop4::OP_LAYOUTGET(args) = layoutget(stateid, RW) else { panic!() };
    nfs_argop4::OP_LAYOUTGET(LAYOUTGET4args { loga_offset: offset, ..args })
}

#[test]
fn who_writes_directly_loses_its_layouts_when_the_limit_is_reached() {
    simulate(7, async |world: World| {
        let (root, user) = clients(&world).await;
        set(&world, OF_USER, (0, 1_000), NONE).await;
        let (first, open) = user.open("f", BOTH, 0).await;
        let (second, other) = user.open("g", BOTH, 0).await;
        let layout = async |fh: &nfs_fh4, open| match user.last(vec![putfh(fh), layoutget(open, RW)]).await {
            nfs_resop4::OP_LAYOUTGET(LAYOUTGET4res::NFS4_OK(ok)) => ok.logr_stateid,
            other => panic!("{other:?}"),
        };
        let (held, _held_too) = (layout(&first, open).await, layout(&second, other).await);
        // What was written is committed, and charged, whatever the limit says.
        assert_eq!(user.status(vec![putfh(&first), layoutcommit(held, 998)]).await, OK);
        world.sleep(Duration::from_millis(50)).await;
        assert_eq!(user.callbacks().layout_recalls().len(), 0);
        assert_eq!(user.status(vec![putfh(&first), layoutcommit(held, 1_999)]).await, OK);
        assert_eq!(used(&world, OF_USER).await, (2, 2_000));
        until(&world.env, || (user.callbacks().layout_recalls().len() >= 2).then_some(())).await;
        for (fh, held) in [(&first, held), (&second, _held_too)] {
            let any = layoutiomode4::LAYOUTIOMODE4_ANY;
            let held = stateid4 { seqid: 0, ..held };
            user.patient(vec![putfh(fh), layoutreturn(held, any)]).await;
        }
        // Nothing to add there; what is there may be written over through the server.
        assert_eq!(user.status(vec![putfh(&first), layout_at(open, 2_000)]).await, DQUOT);
        let unavailable = nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE;
        assert_eq!(user.status(vec![putfh(&first), layout_at(open, 0)]).await, unavailable);
        assert_eq!(user.status(vec![putfh(&second), layout_at(other, 0)]).await, DQUOT);
        let reading = layoutget(open, layoutiomode4::LAYOUTIOMODE4_READ);
        assert_eq!(user.status(vec![putfh(&first), reading]).await, OK);
        // Root writes where it likes.
        let (fh, open) = root.open("f", BOTH, 0).await;
        root.patient(vec![putfh(&fh), layout_at(open, 2_000)]).await;
    });
}

#[test]
fn who_writes_directly_is_looked_at_without_saying_so() {
    simulate(8, async |mut world: World| {
        let data_server = world.data_server();
        let (_, user) = clients(&world).await;
        let (fh, open) = user.open("f", BOTH, 0).await;
        // The layout was there before the limit.
        user.ok(vec![putfh(&fh), layoutget(open, RW)]).await;
        set(&world, OF_USER, (0, 1_000), NONE).await;
        data_server.set_stat(ctl_stat {
            exists: true,
            size: 5_000,
            allocated_bytes: 8_192,
            ..ctl_stat::default()
        });
        until(&world.env, || (!user.callbacks().layout_recalls().is_empty()).then_some(())).await;
        assert_eq!(used(&world, OF_USER).await, (1, 5_000));
    });
}

const ROOM: [u32; 9] = [
    FATTR4_QUOTA_AVAIL_HARD,
    FATTR4_QUOTA_AVAIL_SOFT,
    FATTR4_QUOTA_USED,
    FATTR4_SPACE_TOTAL,
    FATTR4_SPACE_AVAIL,
    FATTR4_SPACE_FREE,
    FATTR4_FILES_TOTAL,
    FATTR4_FILES_AVAIL,
    FATTR4_FILES_FREE,
];

#[test]
fn a_tree_is_shown_as_if_it_were_a_file_system_of_its_own() {
    simulate(9, async |world: World| {
        let (root, user) = clients(&world).await;
        root.mkdir("/", "home").await;
        root.mkdir("/home", "anna").await;
        root.ok(at("/home/anna", setattr(ANONYMOUS, &mode(0o777)))).await;
        let (fh, open) = opened(&user.ok([at("/home/anna", make("f")), vec![getfh()]].concat()).await);
        user.ok(vec![putfh(&fh), setattr(open, &size(300))]).await;
        let whole = root.attributes("/", &ROOM).await;
        assert_eq!((whole.space_total, whole.quota_avail_hard), (Some(1 << 40), Some(1 << 40)));
        set(&world, of_tree("/home/anna"), (800, 1_000), (0, 10)).await;
        until_whole(&world, "/home/anna").await;
        let shown = user.attributes("/home/anna/f", &ROOM).await;
        assert_eq!(
            (shown.space_total, shown.space_avail, shown.space_free),
            (Some(1_000), Some(700), Some(700))
        );
        assert_eq!((shown.files_total, shown.files_avail, shown.files_free), (Some(10), Some(8), Some(8)));
        assert_eq!((shown.quota_avail_hard, shown.quota_avail_soft), (Some(700), Some(500)));
        assert_eq!(shown.quota_used, Some(300));
        // Around it nothing has changed.
        assert_eq!(root.attributes("/home", &ROOM).await.space_total, Some(1 << 40));
        // The owner's limits leave less, which is not what df shows.
        set(&world, OF_USER, (0, 400), NONE).await;
        let shown = user.attributes("/home/anna/f", &ROOM).await;
        assert_eq!((shown.space_avail, shown.quota_avail_hard), (Some(700), Some(100)));
        // In a listing, too.
        let list = readdir(0, verifier4::default(), 4096, &[FATTR4_QUOTA_AVAIL_HARD]);
        let nfs_resop4::OP_READDIR(READDIR4res::NFS4_OK(ok)) = user.last(at("/home/anna", list)).await else {
            panic!()
        };
        let entry = Attributes::decode(&ok.reply.entries[0].attrs).unwrap();
        assert_eq!(entry.quota_avail_hard, Some(100));
        // And compared.
        let same = Attributes { quota_avail_hard: Some(100), ..Attributes::default() };
        user.ok(at("/home/anna/f", verify(&same))).await;
    });
}

#[test]
fn a_tree_binds_root_and_has_a_border() {
    simulate(10, async |world: World| {
        let (root, _) = clients(&world).await;
        root.mkdir("/", "t").await;
        root.mkdir("/t", "below").await;
        root.mkdir("/", "out").await;
        let (fh, open) = root.open("f", BOTH, 0).await;
        root.ok(vec![putfh(&fh), setattr(open, &size(100))]).await;
        set(&world, of_tree("/t"), (0, 50), (0, 4)).await;
        until_whole(&world, "/t").await;
        assert_eq!(used(&world, of_tree("/t")).await, (2, 0));
        let xdev = nfsstat4::NFS4ERR_XDEV;
        let across = |from: &str, to: &str, op| [walk(from), vec![savefh()], walk(to), vec![op]].concat();
        assert_eq!(root.status(across("/", "/t", rename("out", "out"))).await, xdev);
        assert_eq!(root.status(across("/f", "/t", link("g"))).await, xdev);
        // A file moves if there is room for it.
        assert_eq!(root.status(across("/", "/t", rename("f", "f"))).await, DQUOT);
        root.ok(vec![putfh(&fh), setattr(open, &size(50))]).await;
        assert_eq!(root.status(across("/", "/t", rename("f", "f"))).await, OK);
        assert_eq!(used(&world, of_tree("/t")).await, (3, 50));
        assert_eq!(root.status(vec![putfh(&fh), setattr(open, &size(51))]).await, DQUOT);
        assert_eq!(root.status(at("/t", mkdir("d"))).await, OK);
        assert_eq!(root.status(at("/t", mkdir("e"))).await, DQUOT);
        // Trees do not nest.
        let nested = change(&world, ctl_quota_action::QUOTA_SET, of_tree("/t/below"), (NONE, NONE), 0).await;
        assert!(nested.unwrap_err().contains("inside"));
        let around = change(&world, ctl_quota_action::QUOTA_SET, of_tree("/"), (NONE, NONE), 0).await;
        assert!(around.unwrap_err().contains("below"));
        remove_quota(&world, of_tree("/t")).await.unwrap();
        while quotas(&world, all(ctl_quota_kind::QUOTA_TREE)).await.unwrap().quotas.len() == 1 {
            world.sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(root.status(across("/", "/t", rename("out", "out"))).await, OK);
    });
}

#[test]
fn limits_outlive_a_restart_and_are_told_with_what_is_used() {
    simulate(11, async |mut world: World| {
        let (root, user) = clients(&world).await;
        root.mkdir("/", "t").await;
        user.ok(at("/", make("f"))).await;
        set(&world, OF_USER, (10, 20), (1, 2)).await;
        set(&world, of_tree("/t"), NONE, (0, 1)).await;
        until_whole(&world, "/t").await;
        drop((root, user));
        world.restart().await;
        let users = quotas(&world, all(ctl_quota_kind::QUOTA_USER)).await.unwrap();
        assert!(!users.counting && !users.more);
        let of: Vec<_> = users.quotas.iter().map(|q| (q.id, q.own, q.used_files, q.files.hard)).collect();
        assert_eq!(of, [(0, false, 2, 0), (USER.into(), true, 1, 2)]);
        let of_path =
            ADMIN_QUOTAS_args { kind: ctl_quota_kind::QUOTA_OF_PATH, path: "/t".into(), ..all(OF_USER.0) };
        let standing = quotas(&world, of_path).await.unwrap().quotas;
        assert_eq!(standing.iter().map(|q| q.kind.0).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(&standing[2].path[..], b"/t");
        // Those who are at a limit are named.
        let exceeded = async || quotas(&world, all(ctl_quota_kind::QUOTA_EXCEEDED)).await.unwrap().quotas;
        while exceeded().await.is_empty() {
            world.sleep(Duration::from_secs(5)).await;
        }
        let named: Vec<_> = exceeded().await.iter().map(|q| q.kind.0).collect();
        assert_eq!(named, [3], "the tree has its one file; the user may make one more for a while");
        let told = world.mds.statistics().await.unwrap().quotas;
        assert_eq!((told.set, told.above_soft, told.full, told.counting), (2, 0, 1, false));
    });
}

#[test]
fn everything_is_counted_anew_while_clients_are_at_work() {
    simulate(12, async |world: World| {
        let (_, user) = clients(&world).await;
        for n in 0..50 {
            user.ok(at("/", make(&format!("f{n}")))).await;
        }
        let recount = ctl_quota_action::QUOTA_RECOUNT;
        change(&world, recount, OF_USER, (NONE, NONE), 0).await.unwrap();
        for n in 0..50 {
            user.ok(at("/", remove(&format!("f{n}")))).await;
            user.ok(at("/", make(&format!("g{n}")))).await;
        }
        while quotas(&world, one(OF_USER)).await.unwrap().counting {
            world.sleep(Duration::from_millis(10)).await;
        }
        for n in 0..50 {
            user.ok(at("/", remove(&format!("g{n}")))).await;
        }
        // What was open has been kept for whoever has it open.
        let kept = used(&world, OF_USER).await.0;
        let report = sluice_namespace::check(&world.db.snapshot().await.unwrap()).await.unwrap();
        assert_eq!(report.problems, []);
        assert_eq!(report.orphans, kept);
    });
}

/// Whoever counts is woken by every change of limits, and finds nothing to count.
#[test]
fn counting_anew_is_not_taken_for_ended_before_it_has_begun() {
    simulate(13, async |world: World| {
        let (root, _) = clients(&world).await;
        let latency = Duration::from_millis(50);
        for round in 0..40 {
            world.db.set_faults(Faults { latency, ..Faults::NONE });
            set(&world, OF_USER, NONE, (0, 1_000)).await;
            // It looks at other things first.
            world.sleep(Duration::from_millis(round * 20)).await;
            let recount = ctl_quota_action::QUOTA_RECOUNT;
            change(&world, recount, OF_USER, (NONE, NONE), 0).await.unwrap();
            for n in 0..5 {
                root.ok(at("/", mkdir(&format!("d{round}.{n}")))).await;
            }
            while quotas(&world, one(OF_USER)).await.unwrap().counting {
                world.sleep(Duration::from_millis(10)).await;
            }
            world.db.set_faults(Faults::NONE);
            let report = sluice_namespace::check(&world.db.snapshot().await.unwrap()).await.unwrap();
            assert_eq!(report.problems, [], "{round}");
        }
    });
}

/// A step that is never through before somebody changes one of its files becomes smaller.
#[test]
fn a_tree_whose_files_change_all_the_while_is_filled() {
    const FILES: usize = 300;
    simulate(14, async |world: World| {
        let (root, _) = clients(&world).await;
        root.ok(at("/", mkdir("t"))).await;
        for n in 0..FILES {
            root.ok(at("/t", mkdir(&format!("d{n}")))).await;
        }
        let busy = async {
            for n in 0.. {
                root.ok(at(&format!("/t/d{}", n * 7 % FILES), setattr(ANONYMOUS, &mode(0o700)))).await;
            }
        };
        let filled = async {
            set(&world, of_tree("/t"), NONE, (0, 1_000)).await;
            until_whole(&world, "/t").await;
        };
        world.db.set_faults(Faults { latency: Duration::from_millis(4), ..Faults::NONE });
        let filled = world.env.clock.timeout(Duration::from_secs(120), filled);
        let filled = tokio::select! { filled = filled => filled, () = busy => unreachable!() };
        filled.unwrap();
        world.db.set_faults(Faults::NONE);
        assert_eq!(used(&world, of_tree("/t")).await.0, 1 + FILES as u64);
    });
}

/// Others come and go: what was made smaller for them is as large as before when they have gone.
#[test]
fn a_tree_is_filled_as_fast_as_before_when_nobody_disturbs_any_more() {
    const FILES: usize = 1_200;
    simulate(15, async |world: World| {
        let (root, _) = clients(&world).await;
        root.ok(at("/", mkdir("t"))).await;
        for n in 0..FILES {
            root.ok(at("/t", symlink(&format!("s{n}"), "x"))).await;
        }
        let work = || world.db.work().transactions;
        let before = work();
        let others = async {
            until(&world.env, || (work() > before).then_some(())).await;
            world.db.set_faults(Faults { conflict: 1.0, ..Faults::NONE });
            world.sleep(Duration::from_millis(10)).await;
            world.db.set_faults(Faults::NONE);
        };
        both(set(&world, of_tree("/t"), NONE, (0, 10_000)), others).await;
        until_whole(&world, "/t").await;
        let took = work() - before;
        assert!(took < 30, "{took}");
        assert_eq!(used(&world, of_tree("/t")).await.0, 1 + FILES as u64);
    });
}

/// As a cluster answers that recovers just then. Nobody is told, as often as it is tried; it is made all the same.
#[test]
fn what_is_stored_of_limits_holds_when_nobody_was_told_that_it_is() {
    simulate(16, async |world: World| {
        let (root, user) = clients(&world).await;
        root.ok(at("/", mkdir("t"))).await;
        for (whose, directory, most) in [(OF_USER, "/", 1), (of_tree("/t"), "/t", 2)] {
            let change = async |action| change(&world, action, whose, (NONE, (0, most)), WEEK).await;
            world.db.set_faults(Faults { unknown_applied: 1.0, ..Faults::NONE });
            assert!(change(ctl_quota_action::QUOTA_SET).await.is_err());
            world.db.set_faults(Faults::NONE);
            assert_eq!(user.status(at(directory, mkdir("d1"))).await, OK);
            assert_eq!(user.status(at(directory, mkdir("d2"))).await, DQUOT);
            remove_quota(&world, whose).await.unwrap();
            assert_eq!(user.status(at(directory, mkdir("d2"))).await, OK);
            user.ok(at(directory, remove("d2"))).await;
            world.sleep(Duration::from_secs(1)).await;
            set(&world, whose, NONE, (0, most)).await;
            assert_eq!(user.status(at(directory, mkdir("d2"))).await, DQUOT);
            world.db.set_faults(Faults { unknown_applied: 1.0, ..Faults::NONE });
            // That a tree is taken apart already shows when it is tried again.
            assert_eq!(change(ctl_quota_action::QUOTA_REMOVE).await.is_ok(), directory == "/t");
            world.db.set_faults(Faults::NONE);
            assert_eq!(user.status(at(directory, mkdir("d2"))).await, OK);
            world.sleep(Duration::from_secs(1)).await;
            assert!(remove_quota(&world, whose).await.unwrap_err().contains("no limits"));
        }
    });
}

/// Nor can it be looked up at once.
#[test]
fn limits_that_were_set_while_the_store_went_away_hold_when_it_is_back() {
    simulate(17, async |world: World| {
        let (_, user) = clients(&world).await;
        let set = change(&world, ctl_quota_action::QUOTA_SET, OF_USER, (NONE, (0, 1)), WEEK);
        world.db.set_faults(Faults { unknown_applied: 1.0, ..Faults::NONE });
        let goes = async {
            world.sleep(Duration::from_secs(2)).await;
            world.db.set_faults(Faults { unavailable: 1.0, ..Faults::NONE });
        };
        assert!(both(set, goes).await.0.is_err());
        world.db.set_faults(Faults::NONE);
        world.sleep(Duration::from_secs(2)).await;
        assert_eq!(user.status(at("/", mkdir("d1"))).await, OK);
        assert_eq!(user.status(at("/", mkdir("d2"))).await, DQUOT);
        remove_quota(&world, OF_USER).await.unwrap();
        assert_eq!(user.status(at("/", mkdir("d2"))).await, OK);
    });
}
