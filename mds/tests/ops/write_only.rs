//! Files that somebody may write to, and not read. RFC 8881 §9.1.2, §18.43.3.

use sluice_mds::Config;
use sluice_xdr::nfs4::*;

use crate::copy;
use crate::harness::*;

const ACCESS: nfsstat4 = nfsstat4::NFS4ERR_ACCESS;
const NO_DELEGATION: u32 = OPEN4_SHARE_ACCESS_WANT_NO_DELEG;

fn read(stateid: stateid4) -> nfs_argop4 {
    nfs_argop4::OP_READ(READ4args { stateid, offset: 0, count: 99 })
}

fn write(stateid: stateid4) -> nfs_argop4 {
    let stable = stable_how4::FILE_SYNC4;
    nfs_argop4::OP_WRITE(WRITE4args { stateid, offset: 0, stable, data: "mine".into() })
}

/// Root's file f, that others may only write to; a user who has opened it for that, under the stateid.
async fn scene(world: &World) -> (Client, Client, nfs_fh4, stateid4) {
    let root = world.client("a").await;
    let (fh, open) = root.open("f", BOTH | NO_DELEGATION, 0).await;
    root.ok(vec![putfh(&fh), setattr(open, &mode(0o622)), setattr(open, &size(9)), close(open)]).await;
    let user = root.over(root.raw.clone().with_user(7, 7, &[]));
    let opens = vec![putrootfh(), open_name("f", b"user", WRITE | NO_DELEGATION, 0), getfh()];
    let stateid = opened(&user.ok(opens).await).1;
    (root, user, fh, stateid)
}

#[test]
fn who_may_only_write_reads_nothing_by_it() {
    simulate_with(1, Config::default(), async |world: World| {
        let (root, user, fh, stateid) = scene(&world).await;
        let seek = SEEK4args { sa_stateid: stateid, sa_offset: 0, sa_what: data_content4::NFS4_CONTENT_DATA };
        let plus = READ_PLUS4args { rpa_stateid: stateid, rpa_offset: 0, rpa_count: 99 };
        let looks = [read(stateid), nfs_argop4::OP_SEEK(seek), nfs_argop4::OP_READ_PLUS(plus)];
        for looks in &looks {
            assert_eq!(user.status(vec![putfh(&fh), looks.clone()]).await, ACCESS, "{looks:?}");
        }
        let (mine, open) = root.open("mine", BOTH | NO_DELEGATION, 0).await;
        root.ok(vec![putfh(&mine), setattr(open, &mode(0o666)), close(open)]).await;
        let opens = vec![putrootfh(), open_name("mine", b"user", BOTH | NO_DELEGATION, 0), getfh()];
        let target = opened(&user.ok(opens).await).1;
        let clone = CLONE4args {
            cl_src_stateid: stateid,
            cl_dst_stateid: target,
            cl_src_offset: 0,
            cl_dst_offset: 0,
            cl_count: 0,
        };
        let copies = [nfs_argop4::OP_COPY(copy::args(stateid, target, 0)), nfs_argop4::OP_CLONE(clone)];
        for copies in &copies {
            let ops = vec![putfh(&fh), savefh(), putfh(&mine), copies.clone()];
            assert_eq!(user.status(ops).await, ACCESS, "{copies:?}");
        }
        user.ok(vec![putfh(&fh), write(stateid)]).await;
        // Who may read it does, as ever: a client that writes part of a page wants the rest.
        root.ok(vec![putfh(&fh), setattr(ANONYMOUS, &mode(0o626))]).await;
        user.ok(vec![putfh(&fh), read(stateid)]).await;
        // Unless somebody denies it, whatever the mode.
        let b = world.client("b").await;
        b.open("f", READ | NO_DELEGATION, OPEN4_SHARE_DENY_READ).await;
        assert_eq!(user.status(vec![putfh(&fh), read(stateid)]).await, nfsstat4::NFS4ERR_LOCKED);
        user.ok(vec![putfh(&fh), write(stateid)]).await;
    });
}

/// Its owner made it so.
#[test]
fn who_owns_a_file_reads_what_he_opened_to_write() {
    simulate_with(2, Config::default(), async |world: World| {
        let root = world.client("a").await;
        root.mkdir("/", "d").await;
        let user = root.over(root.raw.clone().with_user(7, 7, &[]));
        let how = openflag4::OPEN4_CREATE(createhow4::GUARDED4(fattr(&mode(0o200))));
        let claim = open_claim4::CLAIM_NULL("f".into());
        let opens = [walk("/d"), vec![open_with(b"user", WRITE | NO_DELEGATION, 0, how, claim), getfh()]];
        let (fh, stateid) = opened(&user.ok(opens.concat()).await);
        user.ok(vec![putfh(&fh), write(stateid), read(stateid)]).await;
    });
}

/// A capability for writing lets its holder read, too.
#[test]
fn who_may_only_write_gets_no_layout() {
    simulate(3, async |world: World| {
        let (root, user, fh, stateid) = scene(&world).await;
        let asks = async |iomode| user.status(vec![putfh(&fh), layoutget(stateid, iomode)]).await;
        assert_eq!(asks(layoutiomode4::LAYOUTIOMODE4_READ).await, ACCESS);
        // It writes through this server.
        assert_eq!(asks(layoutiomode4::LAYOUTIOMODE4_RW).await, nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE);
        root.ok(vec![putfh(&fh), setattr(ANONYMOUS, &mode(0o626))]).await;
        assert_eq!(asks(layoutiomode4::LAYOUTIOMODE4_RW).await, nfsstat4::NFS4_OK);
    });
}
