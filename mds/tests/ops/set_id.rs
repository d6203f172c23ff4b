//! Set-user-id and set-group-id bits of files whose data is written without this server seeing it: others than root take
//! them away by writing.

use sluice_xdr::nfs4::*;

use crate::harness::*;

const CURRENT: stateid4 = stateid4 { seqid: 1, other: [0; 12] };
const RW: layoutiomode4 = layoutiomode4::LAYOUTIOMODE4_RW;
const ANY: layoutiomode4 = layoutiomode4::LAYOUTIOMODE4_ANY;

/// Somebody who is not root, and his file.
async fn owner(world: &World, name: &'static [u8]) -> Client {
    let raw = world.connect("user").await.with_user(7, 7, &[]);
    let user = raw.session(name, [1; 8], 1).await;
    user.ok(vec![reclaim_complete(false)]).await;
    user
}

async fn bits(client: &Client) -> u32 {
    client.attributes("f", &[FATTR4_MODE]).await.mode.unwrap()
}

async fn layout(client: &Client, fh: &nfs_fh4, open: stateid4, iomode: layoutiomode4) -> stateid4 {
    match client.last(vec![putfh(fh), layoutget(open, iomode)]).await {
        nfs_resop4::OP_LAYOUTGET(LAYOUTGET4res::NFS4_OK(ok)) => ok.logr_stateid,
        other => panic!("{other:?}"),
    }
}

fn shown(answer: &nfs_resop4) -> u32 {
    match answer {
        nfs_resop4::OP_GETATTR(GETATTR4res::NFS4_OK(ok)) => {
            Attributes::decode(&ok.obj_attributes).unwrap().mode.unwrap()
        }
        other => panic!("{other:?}"),
    }
}

/// A file of mode 6777, made by root.
async fn furnished(world: &World) -> (Client, nfs_fh4) {
    let root = world.client("root").await;
    let (fh, open) = root.open("f", BOTH, 0).await;
    // As Linux asks, which believes what it is shown.
    let ops = vec![putfh(&fh), setattr(stateid4::default(), &mode(0o6777)), getattr(&[FATTR4_MODE])];
    assert_eq!(shown(&root.last(ops).await), 0o6777);
    root.ok(vec![putfh(&fh), close(open)]).await;
    (root, fh)
}

#[test]
fn a_layout_to_write_with_takes_them_away() {
    simulate(1, async |world: World| {
        let (root, fh) = furnished(&world).await;
        let user = owner(&world, b"user").await;
        // Whoever only opens the file does not write.
        let ops = vec![putrootfh(), open_name("f", b"o", BOTH, 0), getfh(), layoutget(CURRENT, RW)];
        let reply = user.compound(ops).await;
        assert_eq!(reply.status, nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE);
        let (_, open) = opened(&reply.resarray[..reply.resarray.len() - 1]);
        layout(&user, &fh, open, layoutiomode4::LAYOUTIOMODE4_READ).await;
        let before = user.attributes("f", &[FATTR4_CHANGE, FATTR4_MODE]).await;
        assert_eq!(before.mode, Some(0o6777), "nor whoever reads");
        let (_, mine) = root.open("f", BOTH, 0).await;
        let given = layout(&root, &fh, mine, layoutiomode4::LAYOUTIOMODE4_READ).await;
        assert_eq!(bits(&root).await, 0o6777, "nor root");
        root.ok(vec![putfh(&fh), layoutreturn(given, ANY), close(mine)]).await;
        // In the same COMPOUND, too.
        let ops = vec![putfh(&fh), getattr(&[FATTR4_MODE]), layoutget(open, RW), getattr(&[FATTR4_MODE])];
        assert_eq!(shown(&user.last(ops).await), 0o777);
        let after = user.attributes("f", &[FATTR4_CHANGE, FATTR4_MODE]).await;
        assert_eq!(after.mode, Some(0o777));
        assert!(after.change > before.change);
        // The next OPEN has nothing to lose.
        let ops = vec![putrootfh(), open_name("f", b"o", BOTH, 0), layoutget(CURRENT, RW)];
        user.ok(ops).await;
    });
}

/// A layout is the machine's, whoever asked for it: others there write with it.
#[test]
fn who_may_keep_them_gets_no_layout_for_others_of_the_machine() {
    simulate(3, async |world: World| {
        let (root, fh) = furnished(&world).await;
        let (_, mine) = root.open("f", BOTH, 0).await;
        let user = root.over(root.raw.clone().with_user(7, 7, &[]));
        let (_, theirs) = opened(&user.ok(vec![putfh(&fh), open_fh(b"user", BOTH, 0), getfh()]).await);
        let refused = root.status(vec![putfh(&fh), layoutget(mine, RW)]).await;
        assert_eq!(refused, nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE);
        assert_eq!(bits(&root).await, 0o6777);
        let given = layout(&user, &fh, theirs, RW).await;
        assert_eq!(bits(&root).await, 0o777);
        // Once there is one, the machine asks under it.
        layout(&root, &fh, given, RW).await;
    });
}

/// What was written before comes, with LAYOUTCOMMIT, after the bits were set: it was written before.
#[test]
fn who_sets_them_is_sure_that_nobody_is_writing() {
    let masked = mode_masked4 { mm_value_to_set: 0o4755, mm_mask_bits: 0o7777 };
    let masked = Attributes { mode_set_masked: Some(masked), ..Attributes::default() };
    [(2, mode(0o4755)), (4, masked)]
        .into_iter()
        .for_each(|(seed, how)| sets_them_while_there_is_a_writer(seed, how));
}

fn sets_them_while_there_is_a_writer(seed: u64, how: Attributes) {
    simulate(seed, async |world: World| {
        let (root, fh) = furnished(&world).await;
        let user = owner(&world, b"user").await;
        let (_, open) = user.open("f", BOTH, 0).await;
        let given = layout(&user, &fh, open, RW).await;
        assert_eq!(bits(&root).await, 0o777);
        let sets = root.patient(vec![putfh(&fh), setattr(stateid4::default(), &how)]);
        let gives_back = async {
            until(&world.env, || (user.callbacks().count() > 0).then_some(())).await;
            assert_eq!(bits(&user).await, 0o777, "not before");
            let recalled = user.callbacks().layout_recalls().remove(0);
            assert!(!recalled.clora_changed, "what was written goes where it would have gone");
            let layoutrecall4::LAYOUTRECALL4_FILE(file) = recalled.clora_recall else { panic!() };
            assert_eq!(file.lor_stateid.other, given.other);
            user.ok(vec![putfh(&fh), layoutreturn(file.lor_stateid, ANY)]).await;
        };
        both(sets, gives_back).await;
        assert_eq!(bits(&root).await, 0o4755);
        // A mode without them disturbs nobody.
        layout(&user, &fh, open, RW).await;
        root.ok(vec![putfh(&fh), setattr(stateid4::default(), &mode(0o700))]).await;
        assert_eq!(user.callbacks().count(), 1);
    });
}

/// Nobody loses what he holds to a request that is refused.
#[test]
fn who_may_not_set_something_calls_nothing_back() {
    simulate(5, async |world: World| {
        let root = world.client("root").await;
        let (fh, open) = root.open("f", BOTH, 0).await;
        root.ok(vec![putfh(&fh), setattr(stateid4::default(), &mode(0o755))]).await;
        layout(&root, &fh, open, RW).await;
        let user = owner(&world, b"user").await;
        let both = Attributes { size: Some(0), ..mode(0o4755) };
        for (how, refused) in [
            (mode(0o4755), nfsstat4::NFS4ERR_PERM),
            (size(0), nfsstat4::NFS4ERR_ACCESS),
            (size(70_000), nfsstat4::NFS4ERR_ACCESS),
            (both, nfsstat4::NFS4ERR_ACCESS),
        ] {
            assert_eq!(user.status(vec![putfh(&fh), setattr(stateid4::default(), &how)]).await, refused);
        }
        root.ok(vec![putfh(&fh), setattr(stateid4::default(), &mode(0o757))]).await;
        let both = Attributes { size: Some(0), ..mode(0o4755) };
        let refused = user.status(vec![putfh(&fh), setattr(stateid4::default(), &both)]).await;
        assert_eq!(refused, nfsstat4::NFS4ERR_PERM, "may write and not set bits");
        world.sleep(std::time::Duration::from_secs(1)).await;
        assert_eq!(root.callbacks().count(), 0);
        assert_eq!(bits(&root).await, 0o757);
    });
}
