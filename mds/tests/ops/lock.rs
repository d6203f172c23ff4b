//! LOCK, LOCKT, LOCKU between two clients.

use std::time::Duration;

use sluice_mds::Config;
use sluice_xdr::nfs4::*;

use crate::harness::*;

const R: nfs_lock_type4 = nfs_lock_type4::READ_LT;
const W: nfs_lock_type4 = nfs_lock_type4::WRITE_LT;
const ALL: (u64, u64) = (0, u64::MAX);

struct Scene {
    a: Client,
    b: Client,
    fh: nfs_fh4,
    mine: stateid4,
    theirs: stateid4,
}

async fn scene(world: &World) -> Scene {
    let (a, b) = (world.client("a").await, world.client("b").await);
    let (fh, mine) = a.open("f", BOTH, 0).await;
    let (_, theirs) = b.open("f", BOTH, 0).await;
    Scene { a, b, fh, mine, theirs }
}

async fn lock(client: &Client, fh: &nfs_fh4, op: nfs_argop4) -> Result<stateid4, LOCK4denied> {
    let reply = client.compound(vec![putfh(fh), op]).await;
    match reply.resarray.last() {
        Some(nfs_resop4::OP_LOCK(LOCK4res::NFS4_OK(ok))) => Ok(ok.lock_stateid),
        Some(nfs_resop4::OP_LOCK(LOCK4res::NFS4ERR_DENIED(denied))) => Err(denied.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lock_excludes_and_says_who_holds_it() {
    simulate(1, async |world: World| {
        let Scene { a, b, fh, mine, theirs } = scene(&world).await;
        let held = lock(&a, &fh, lock_new(W, mine, b"la", (10, 10))).await.unwrap();
        assert_eq!(held.seqid, 1);
        let denied = lock(&b, &fh, lock_new(R, theirs, b"lb", (15, 100))).await.unwrap_err();
        assert_eq!((denied.offset, denied.length, denied.locktype), (10, 10, W));
        assert_eq!((denied.owner.clientid, &denied.owner.owner[..]), (a.id, &b"la"[..]));
        lock(&b, &fh, lock_new(W, theirs, b"lb", (20, 5))).await.unwrap();
        let more = lock(&a, &fh, lock_more(W, held, (0, 10))).await.unwrap();
        assert_eq!((more.other, more.seqid), (held.other, 2));
    });
}

#[test]
fn readers_share() {
    simulate(2, async |world: World| {
        let Scene { a, b, fh, mine, theirs } = scene(&world).await;
        let held = lock(&a, &fh, lock_new(R, mine, b"la", ALL)).await.unwrap();
        let other = lock(&b, &fh, lock_new(R, theirs, b"lb", ALL)).await.unwrap();
        assert!(lock(&b, &fh, lock_more(W, other, (0, 1))).await.is_err(), "no upgrade beside a reader");
        a.ok(vec![putfh(&fh), locku(R, held, ALL)]).await;
        lock(&b, &fh, lock_more(W, other, (0, 1))).await.unwrap();
    });
}

/// A process that is killed while it waits has no lock to give back: its machine closes the file, and that is all.
#[test]
fn who_closed_the_file_waits_for_no_lock() {
    simulate(14, async |world: World| {
        let Scene { a, b, fh, mine, theirs } = scene(&world).await;
        let held = lock(&a, &fh, lock_new(W, mine, b"la", ALL)).await.unwrap();
        for owner in [b"l1", b"l2"] {
            let wait = lock_new(nfs_lock_type4::WRITEW_LT, theirs, owner, ALL);
            lock(&b, &fh, wait).await.unwrap_err();
        }
        b.ok(vec![putfh(&fh), close(theirs)]).await;
        a.ok(vec![putfh(&fh), locku(W, held, ALL)]).await;
        lock(&a, &fh, lock_new(W, mine, b"another", ALL)).await.unwrap();
    });
}

#[test]
fn unlocking_the_middle_leaves_the_ends() {
    simulate(3, async |world: World| {
        let Scene { a, b, fh, mine, .. } = scene(&world).await;
        let held = lock(&a, &fh, lock_new(W, mine, b"la", (0, 30))).await.unwrap();
        a.ok(vec![putfh(&fh), locku(W, held, (10, 10))]).await;
        let free = async |range| b.status(vec![putfh(&fh), lockt(W, b"x", range)]).await == nfsstat4::NFS4_OK;
        assert!(free((10, 10)).await);
        assert!(!free((9, 1)).await);
        assert!(!free((20, 1)).await);
        assert!(free((30, 1)).await);
    });
}

/// §18.10, §18.22.3 and their like.
#[test]
fn what_is_no_file_has_the_wrong_type() {
    simulate(13, async |world: World| {
        let client = world.client("a").await;
        client.mkdir("/", "d").await;
        client.ok(vec![putrootfh(), symlink("l", "d")]).await;
        client.ok(vec![putrootfh(), create(createtype4::NF4FIFO, "p", &mode(0o666))]).await;
        let read = nfs_argop4::OP_READ(READ4args { stateid: ANONYMOUS, offset: 0, count: 1 });
        let (stable, data) = (stable_how4::FILE_SYNC4, "x".into());
        let write = nfs_argop4::OP_WRITE(WRITE4args { stateid: ANONYMOUS, offset: 0, stable, data });
        let commit = nfs_argop4::OP_COMMIT(COMMIT4args { offset: 0, count: 0 });
        for op in [read, write, commit, lockt(W, b"x", ALL), lock_new(W, ANONYMOUS, b"x", ALL)] {
            for (name, status) in [
                ("p", nfsstat4::NFS4ERR_WRONG_TYPE),
                ("d", nfsstat4::NFS4ERR_ISDIR),
                ("l", nfsstat4::NFS4ERR_SYMLINK),
            ] {
                let found = client.status(vec![putrootfh(), lookup(name), op.clone()]).await;
                assert_eq!(found, status, "{name}: {op:?}");
            }
        }
    });
}

#[test]
fn lockt_asks_without_taking() {
    simulate(4, async |world: World| {
        let Scene { a, b, fh, mine, .. } = scene(&world).await;
        b.ok(vec![putfh(&fh), lockt(W, b"x", ALL)]).await;
        lock(&a, &fh, lock_new(W, mine, b"la", (5, 5))).await.unwrap();
        a.ok(vec![putfh(&fh), lockt(W, b"la", ALL)]).await;
        let reply = b.compound(vec![putfh(&fh), lockt(R, b"x", ALL)]).await;
        let Some(nfs_resop4::OP_LOCKT(LOCKT4res::NFS4ERR_DENIED(denied))) = reply.resarray.last() else {
            panic!("{reply:?}");
        };
        assert_eq!((denied.offset, denied.length), (5, 5));
    });
}

#[test]
fn each_bad_lock_has_its_status() {
    simulate(5, async |world: World| {
        let Scene { a, fh, mine, theirs, .. } = scene(&world).await;
        let status = async |op| a.status(vec![putfh(&fh), op]).await;
        assert_eq!(status(lock_new(W, mine, b"l", (0, 0))).await, nfsstat4::NFS4ERR_INVAL);
        assert_eq!(status(lock_new(W, mine, b"l", (u64::MAX, 2))).await, nfsstat4::NFS4ERR_INVAL);
        assert_eq!(status(lock_new(nfs_lock_type4(9), mine, b"l", ALL)).await, nfsstat4::NFS4ERR_INVAL);
        assert_eq!(status(lock_new(W, theirs, b"l", ALL)).await, nfsstat4::NFS4ERR_BAD_STATEID);
        assert_eq!(status(lockt(W, b"l", (0, 0))).await, nfsstat4::NFS4ERR_INVAL);
        assert_eq!(status(reclaiming(lock_new(W, mine, b"l", ALL))).await, nfsstat4::NFS4ERR_NO_GRACE);
        let (_, reader) = opened(&a.ok(vec![putfh(&fh), open_fh(b"reader", READ, 0), getfh()]).await);
        assert_eq!(status(lock_new(W, reader, b"l", ALL)).await, nfsstat4::NFS4ERR_OPENMODE);
        a.mkdir("/", "d").await;
        assert_eq!(a.status(vec![putrootfh(), lockt(W, b"l", ALL)]).await, nfsstat4::NFS4ERR_ISDIR);
    });
}

#[test]
fn the_last_byte_can_be_locked() {
    simulate(6, async |world: World| {
        let Scene { a, b, fh, mine, theirs } = scene(&world).await;
        lock(&a, &fh, lock_new(W, mine, b"la", (u64::MAX - 1, 1))).await.unwrap();
        let denied = lock(&b, &fh, lock_new(W, theirs, b"lb", ALL)).await.unwrap_err();
        assert_eq!(denied.offset, u64::MAX - 1);
    });
}

/// §18.2.4: CLOSE lets go of what is locked under the open.
#[test]
fn closing_unlocks() {
    simulate(7, async |world: World| {
        let Scene { a, b, fh, mine, theirs } = scene(&world).await;
        lock(&a, &fh, lock_new(W, mine, b"la", ALL)).await.unwrap();
        a.ok(vec![putfh(&fh), close(mine)]).await;
        lock(&b, &fh, lock_new(W, theirs, b"lb", ALL)).await.unwrap();
    });
}

/// §8.3: the locks of a client that is gone hold until somebody wants them.
#[test]
fn locks_of_an_expired_client_give_way() {
    let config = Config { lease: Duration::from_secs(10), ..at_data_servers() };
    simulate_with(8, config, async |world: World| {
        let Scene { a, b, fh, mine, theirs } = scene(&world).await;
        lock(&a, &fh, lock_new(W, mine, b"la", ALL)).await.unwrap();
        let wanted = lock_new(W, theirs, b"lb", ALL);
        assert!(lock(&b, &fh, wanted.clone()).await.is_err());
        for _ in 0..4 {
            world.sleep(Duration::from_secs(4)).await;
            b.ok(Vec::new()).await;
        }
        lock(&b, &fh, wanted).await.unwrap();
        assert_eq!(a.status(Vec::new()).await, nfsstat4::NFS4ERR_BADSESSION);
    });
}

#[test]
fn one_owner_does_not_conflict_with_itself() {
    simulate(9, async |world: World| {
        let Scene { a, fh, mine, .. } = scene(&world).await;
        let first = lock(&a, &fh, lock_new(W, mine, b"l", (0, 10))).await.unwrap();
        let again = lock(&a, &fh, lock_new(R, mine, b"l", (5, 10))).await.unwrap();
        assert_eq!(again.other, first.other, "one lock stateid per owner and open");
    });
}

/// Names of lock-owners are free. One client takes no more than half of what a file has room for, another half of the rest; and
/// those of a client whose lease is over are in nobody's way (§8.3).
#[test]
fn lock_owners_of_one_client_shut_a_file_for_nobody_else() {
    let mut config = Config { lease: Duration::from_secs(10), ..at_data_servers() };
    config.limits.lock_owners_of_file = 16;
    simulate_with(10, config, async |world: World| {
        let Scene { a, b, fh, mine, theirs } = scene(&world).await;
        let takes_all = async |client: &Client, open: stateid4| {
            for n in 0..20u8 {
                match client.status(vec![putfh(&fh), lock_new(R, open, &[n], (0, 1))]).await {
                    nfsstat4::NFS4_OK => {}
                    nfsstat4::NFS4ERR_DELAY => return n,
                    other => panic!("{other}"),
                }
            }
            20
        };
        assert_eq!(takes_all(&a, mine).await, 8);
        assert_eq!(takes_all(&b, theirs).await, 4);
        // Whom it has it goes on with.
        lock(&b, &fh, lock_new(R, theirs, &[0], (0, 9))).await.unwrap();
        for _ in 0..4 {
            world.sleep(Duration::from_secs(4)).await;
            b.ok(Vec::new()).await;
        }
        lock(&b, &fh, lock_new(R, theirs, b"more", ALL)).await.unwrap();
        assert_eq!(a.status(Vec::new()).await, nfsstat4::NFS4ERR_BADSESSION);
    });
}
