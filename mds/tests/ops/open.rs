//! OPEN, CLOSE, OPEN_DOWNGRADE. Names in parentheses are pynfs codes.

use std::time::Duration;

use bytes::Bytes;
use sluice_mds::Config;
use sluice_xdr::nfs4::*;

use crate::harness::*;

async fn open(client: &Client, ops: Vec<nfs_argop4>) -> Result<OPEN4resok, nfsstat4> {
    let reply = client.compound(ops).await;
    match reply.resarray.last() {
        Some(nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(ok))) => Ok(ok.clone()),
        Some(nfs_resop4::OP_OPEN(OPEN4res::Default(status))) => Err(*status),
        other => panic!("{other:?}"),
    }
}

fn named(how: createhow4) -> Vec<nfs_argop4> {
    let claim = open_claim4::CLAIM_NULL(Bytes::from_static(b"f"));
    vec![putrootfh(), open_with(b"o", BOTH, 0, openflag4::OPEN4_CREATE(how), claim)]
}

/// (OPEN1, OPEN2)
#[test]
fn a_file_is_made_opened_and_closed() {
    simulate(1, async |world: World| {
        let client = world.client("a").await;
        let made = open(&client, named(createhow4::UNCHECKED4(fattr(&mode(0o640))))).await.unwrap();
        assert_eq!(made.stateid.seqid, 1);
        assert!(made.cinfo.after > made.cinfo.before);
        assert_eq!(made.attrset, bitmap4::of(&[FATTR4_MODE]));
        assert_eq!(made.rflags & OPEN4_RESULT_CONFIRM, 0);
        assert_ne!(made.rflags & OPEN4_RESULT_PRESERVE_UNLINKED, 0);
        let fh = client.handle("f").await;
        let (_, stateid) = opened(&client.ok(vec![putfh(&fh), open_fh(b"o", READ, 0), getfh()]).await);
        assert_eq!((stateid.seqid, stateid.other), (2, made.stateid.other), "the same owner");
        client.ok(vec![putfh(&fh), close(stateid)]).await;
        let again = client.status(vec![putfh(&fh), close(stateid)]).await;
        assert_eq!(again, nfsstat4::NFS4ERR_BAD_STATEID);
        // The file is not tied to its data servers: the mode is what was asked.
        assert_eq!(client.attributes("f", &[FATTR4_MODE]).await.mode, Some(0o640));
    });
}

/// (OPEN8) A seqid of zero means the newest (§8.2.2).
#[test]
fn seqids_are_checked() {
    simulate(2, async |world: World| {
        let client = world.client("a").await;
        let (fh, first) = client.open("f", BOTH, 0).await;
        opened(&client.ok(vec![putfh(&fh), open_fh(b"owner", BOTH, 0), getfh()]).await);
        let with = |seqid| close(stateid4 { seqid, ..first });
        assert_eq!(client.status(vec![putfh(&fh), with(1)]).await, nfsstat4::NFS4ERR_OLD_STATEID);
        assert_eq!(client.status(vec![putfh(&fh), with(9)]).await, nfsstat4::NFS4ERR_BAD_STATEID);
        client.ok(vec![putfh(&fh), with(0)]).await;
    });
}

#[test]
fn guarded_and_exclusive_creation() {
    simulate(3, async |world: World| {
        let client = world.client("a").await;
        let guarded = || named(createhow4::GUARDED4(fattr(&mode(0o600))));
        open(&client, guarded()).await.unwrap();
        assert_eq!(open(&client, guarded()).await.unwrap_err(), nfsstat4::NFS4ERR_EXIST);
        client.ok(vec![putrootfh(), remove("f")]).await;
        let exclusive = |verifier| {
            named(createhow4::EXCLUSIVE4_1(creatverfattr {
                cva_verf: verifier4([verifier; 8]),
                cva_attrs: fattr(&mode(0o620)),
            }))
        };
        let made = open(&client, exclusive(1)).await.unwrap();
        assert!(made.attrset.contains(FATTR4_MODE));
        assert_eq!(client.attributes("f", &[FATTR4_MODE]).await.mode, Some(0o620));
        open(&client, exclusive(1)).await.unwrap();
        assert_eq!(open(&client, exclusive(2)).await.unwrap_err(), nfsstat4::NFS4ERR_EXIST);
        // To know the verifier is no permission.
        let user = client.over(client.raw.clone().with_user(7, 7, &[]));
        assert_eq!(open(&user, exclusive(1)).await.unwrap_err(), nfsstat4::NFS4ERR_ACCESS);
    });
}

#[test]
fn unchecked_creation_of_an_existing_file_empties_it_on_demand() {
    simulate(4, async |world: World| {
        let client = world.client("a").await;
        let (fh, stateid) = client.open("f", BOTH, 0).await;
        client.ok(vec![putfh(&fh), setattr(stateid, &size(99))]).await;
        open(&client, named(createhow4::UNCHECKED4(fattr(&mode(0o600))))).await.unwrap();
        let got = client.attributes("f", &[FATTR4_SIZE, FATTR4_MODE]).await;
        assert_eq!((got.size, got.mode), (Some(99), Some(0o644)), "it was there: only the size is heeded");
        let emptied = open(&client, named(createhow4::UNCHECKED4(fattr(&size(0))))).await.unwrap();
        assert_eq!(emptied.attrset, bitmap4::of(&[FATTR4_SIZE]));
        assert_eq!(client.attributes("f", &[FATTR4_SIZE]).await.size, Some(0));
    });
}

/// §9.7: to cut a file off is to write to it, whatever it is opened for.
#[test]
fn who_denies_writing_has_the_file_as_it_is() {
    simulate(17, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, stateid) = a.open("f", BOTH, 0).await;
        a.ok(vec![putfh(&fh), setattr(stateid, &size(99)), close(stateid)]).await;
        let (_, denies) = a.open("f", READ, OPEN4_SHARE_DENY_WRITE).await;
        let empties = |deny| {
            let how = openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(fattr(&size(0))));
            let claim = open_claim4::CLAIM_NULL(Bytes::from_static(b"f"));
            vec![putrootfh(), open_with(b"o", READ, deny, how, claim)]
        };
        assert_eq!(open(&b, empties(0)).await.unwrap_err(), nfsstat4::NFS4ERR_SHARE_DENIED);
        assert_eq!(a.attributes("f", &[FATTR4_SIZE]).await.size, Some(99));
        a.ok(vec![putfh(&fh), close(denies)]).await;
        // Who denies others to write may do so himself.
        open(&b, empties(OPEN4_SHARE_DENY_WRITE)).await.unwrap();
        open(&b, empties(OPEN4_SHARE_DENY_WRITE)).await.unwrap();
        assert_eq!(a.attributes("f", &[FATTR4_SIZE]).await.size, Some(0));
        // It has not been opened for writing.
        a.open("f", READ, OPEN4_SHARE_DENY_WRITE).await;
    });
}

/// As with SETATTR. Nobody could read such a file to its end.
#[test]
fn no_file_is_made_larger_than_files_may_be() {
    simulate(18, async |world: World| {
        let client = world.client("a").await;
        let too_large = || fattr(&size(1 << 63));
        let exclusive = creatverfattr { cva_verf: verifier4([1; 8]), cva_attrs: too_large() };
        for how in [
            createhow4::UNCHECKED4(too_large()),
            createhow4::GUARDED4(too_large()),
            createhow4::EXCLUSIVE4_1(exclusive),
        ] {
            assert_eq!(open(&client, named(how)).await.unwrap_err(), nfsstat4::NFS4ERR_FBIG);
            assert_eq!(client.status(walk("f")).await, nfsstat4::NFS4ERR_NOENT);
        }
        open(&client, named(createhow4::GUARDED4(fattr(&size((1 << 63) - 1))))).await.unwrap();
    });
}

/// §18.30.3: what was set is in the reply. Here it is nothing at all.
#[test]
fn a_setattr_that_is_refused_has_cut_nothing() {
    simulate(16, async |world: World| {
        let root = world.client("a").await;
        let (fh, open) = root.open("f", BOTH, 0).await;
        root.ok(vec![putfh(&fh), setattr(open, &size(99))]).await;
        root.ok(vec![putfh(&fh), setattr(open, &mode(0o666))]).await;
        let user = root.over(root.raw.clone().with_user(7, 7, &[]));
        let (_, theirs) = opened(&user.ok(vec![putfh(&fh), open_fh(b"user", BOTH, 0), getfh()]).await);
        let both = Attributes { size: Some(0), mode: Some(0o600), ..Attributes::default() };
        let reply = user.compound(vec![putfh(&fh), setattr(theirs, &both)]).await;
        let Some(nfs_resop4::OP_SETATTR(refused)) = reply.resarray.last() else { panic!("{reply:?}") };
        assert_eq!((refused.status, refused.attrsset), (nfsstat4::NFS4ERR_PERM, bitmap4::EMPTY));
        assert_eq!(root.attributes("f", &[FATTR4_SIZE]).await.size, Some(99));
    });
}

/// (COUR6) §8.3: the reservations of clients that are gone hold until somebody wants them, however many.
#[test]
fn reservations_of_several_expired_clients_give_way() {
    let config = Config { lease: Duration::from_secs(10), ..at_data_servers() };
    simulate_with(15, config, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, _) = a.open("f", WRITE, OPEN4_SHARE_DENY_READ).await;
        b.ok(vec![putfh(&fh), open_fh(b"o", WRITE, OPEN4_SHARE_DENY_READ)]).await;
        let c = world.client("c").await;
        let wanted = || vec![putfh(&fh), open_fh(b"o", READ, 0)];
        assert_eq!(open(&c, wanted()).await.unwrap_err(), nfsstat4::NFS4ERR_SHARE_DENIED);
        for _ in 0..4 {
            world.sleep(Duration::from_secs(4)).await;
            c.ok(Vec::new()).await;
        }
        open(&c, wanted()).await.unwrap();
    });
}

#[test]
fn share_reservations_hold_between_clients() {
    simulate(5, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, stateid) = a.open("f", READ, OPEN4_SHARE_DENY_WRITE).await;
        let want = |access, deny| vec![putfh(&fh), open_fh(b"o", access, deny)];
        assert_eq!(open(&b, want(WRITE, 0)).await.unwrap_err(), nfsstat4::NFS4ERR_SHARE_DENIED);
        let deny = want(READ, OPEN4_SHARE_DENY_READ);
        assert_eq!(open(&b, deny).await.unwrap_err(), nfsstat4::NFS4ERR_SHARE_DENIED);
        open(&b, want(READ, OPEN4_SHARE_DENY_WRITE)).await.unwrap();
        // Another owner of the same client is another party.
        assert_eq!(
            a.status(vec![putfh(&fh), open_fh(b"second", WRITE, 0)]).await,
            nfsstat4::NFS4ERR_SHARE_DENIED
        );
        a.ok(vec![putfh(&fh), close(stateid)]).await;
        open(&b, want(READ, OPEN4_SHARE_DENY_WRITE)).await.unwrap();
        let own = open(&b, want(WRITE, 0)).await;
        assert_eq!(own.unwrap_err(), nfsstat4::NFS4ERR_SHARE_DENIED, "§9.7: nor is the same owner excepted");
    });
}

#[test]
fn an_open_is_downgraded_to_what_was_opened_before() {
    simulate(6, async |world: World| {
        let client = world.client("a").await;
        let (fh, _) = client.open("f", READ, 0).await;
        let (_, both) = opened(&client.ok(vec![putfh(&fh), open_fh(b"owner", BOTH, 0), getfh()]).await);
        let status = async |stateid, access, deny| {
            client.status(vec![putfh(&fh), downgrade(stateid, access, deny)]).await
        };
        assert_eq!(status(both, WRITE, 0).await, nfsstat4::NFS4ERR_INVAL, "never opened so");
        assert_eq!(status(both, 0, 0).await, nfsstat4::NFS4ERR_INVAL);
        // As in OPEN, what a client wants of delegations is no access.
        let wants = OPEN4_SHARE_ACCESS_WANT_NO_DELEG | OPEN4_SHARE_ACCESS_WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL;
        assert_eq!(status(both, READ | 1 << 30, 0).await, nfsstat4::NFS4ERR_INVAL);
        let nfs_resop4::OP_OPEN_DOWNGRADE(OPEN_DOWNGRADE4res::NFS4_OK(done)) =
            client.last(vec![putfh(&fh), downgrade(both, READ | wants, 0)]).await
        else {
            panic!()
        };
        assert_eq!(done.open_stateid.seqid, both.seqid + 1);
        let write = client.status(vec![putfh(&fh), setattr(done.open_stateid, &size(1))]).await;
        assert_eq!(write, nfsstat4::NFS4ERR_OPENMODE);
    });
}

#[test]
fn each_bad_open_has_its_status() {
    simulate(7, async |world: World| {
        let client = world.client("a").await;
        client.mkdir("/", "d").await;
        client.ok(vec![putrootfh(), symlink("l", "f")]).await;
        client.open("f", BOTH, 0).await;
        let status = async |op| client.status(vec![putrootfh(), op]).await;
        assert_eq!(status(open_name("nothing", b"o", READ, 0)).await, nfsstat4::NFS4ERR_NOENT);
        assert_eq!(status(open_name("d", b"o", READ, 0)).await, nfsstat4::NFS4ERR_ISDIR);
        assert_eq!(status(open_name("l", b"o", READ, 0)).await, nfsstat4::NFS4ERR_SYMLINK);
        // RFC 7530 §16.16.6. By its handle a FIFO has the wrong type.
        client.ok(vec![putrootfh(), create(createtype4::NF4FIFO, "p", &mode(0o666))]).await;
        assert_eq!(status(open_name("p", b"o", READ, 0)).await, nfsstat4::NFS4ERR_SYMLINK);
        assert_eq!(status(open_create("p", b"o", WRITE, 0)).await, nfsstat4::NFS4ERR_SYMLINK);
        let by_handle = open_with(b"o", READ, 0, NOCREATE, open_claim4::CLAIM_FH);
        let found = client.status(vec![putrootfh(), lookup("p"), by_handle]).await;
        assert_eq!(found, nfsstat4::NFS4ERR_WRONG_TYPE);
        for (path, status) in [("/f", nfsstat4::NFS4ERR_NOTDIR), ("/l", nfsstat4::NFS4ERR_SYMLINK)] {
            let ops = [walk(path), vec![open_name("x", b"o", READ, 0)]].concat();
            assert_eq!(client.status(ops).await, status);
        }
        assert_eq!(status(open_name("f", b"o", 0, 0)).await, nfsstat4::NFS4ERR_INVAL);
        assert_eq!(status(open_name("f", b"o", READ, 4)).await, nfsstat4::NFS4ERR_INVAL);
        assert_eq!(status(open_name("", b"o", READ, 0)).await, nfsstat4::NFS4ERR_INVAL);
        assert_eq!(status(open_name("..", b"o", READ, 0)).await, nfsstat4::NFS4ERR_BADNAME);
        let no_handle = client.status(vec![open_name("f", b"o", READ, 0)]).await;
        assert_eq!(no_handle, nfsstat4::NFS4ERR_NOFILEHANDLE);
    });
}

#[test]
fn permissions_are_checked_at_open() {
    simulate(8, async |world: World| {
        let client = world.client("a").await;
        client.open("f", BOTH, 0).await;
        let user = client.over(client.raw.clone().with_user(500, 500, &[]));
        user.ok(vec![putrootfh(), open_name("f", b"u", READ, 0)]).await;
        let write = user.status(vec![putrootfh(), open_name("f", b"u", WRITE, 0)]).await;
        assert_eq!(write, nfsstat4::NFS4ERR_ACCESS);
        // Who makes a file may write it, whatever its mode (POSIX open with O_CREAT).
        client.ok(vec![putrootfh(), create(createtype4::NF4DIR, "d", &mode(0o777))]).await;
        let claim = open_claim4::CLAIM_NULL(Bytes::from_static(b"mine"));
        let how = openflag4::OPEN4_CREATE(createhow4::GUARDED4(fattr(&mode(0o000))));
        user.ok(vec![putrootfh(), lookup("d"), open_with(b"u", BOTH, 0, how, claim)]).await;
    });
}

/// §16.2.3.1.2: the current stateid is that of the OPEN before.
#[test]
fn the_current_stateid_is_the_one_just_opened() {
    simulate(9, async |world: World| {
        let client = world.client("a").await;
        let ops =
            vec![putrootfh(), open_create("f", b"o", BOTH, 0), setattr(CURRENT, &size(7)), close(CURRENT)];
        client.ok(ops).await;
        assert_eq!(client.attributes("f", &[FATTR4_SIZE]).await.size, Some(7));
        let without = client.status(vec![putrootfh(), lookup("f"), close(CURRENT)]).await;
        assert_eq!(without, nfsstat4::NFS4ERR_BAD_STATEID);
    });
}

/// §8.2.3: it is used with seqid 0. Another OPEN of the same owner, which the client sends beside it, moves the seqid. What
/// would undo that one is told from it.
#[test]
fn the_current_stateid_is_good_whatever_its_owner_opens_meanwhile() {
    let layout = layoutget(CURRENT, layoutiomode4::LAYOUTIOMODE4_READ);
    for (last, status) in [
        (layout, nfsstat4::NFS4_OK),
        (close(CURRENT), nfsstat4::NFS4ERR_OLD_STATEID),
        (downgrade(CURRENT, READ, 0), nfsstat4::NFS4ERR_OLD_STATEID),
    ] {
        simulate(33, async |world: World| {
            let (a, b) = (world.client("a").await, world.client("b").await);
            let (fh, made) = a.open("f", BOTH, 0).await;
            a.ok(vec![putfh(&fh), close(made)]).await;
            let wanted = open_name("f", b"o", READ | OPEN4_SHARE_ACCESS_WANT_READ_DELEG, 0);
            let open_delegation4::OPEN_DELEGATE_READ(held) =
                open(&b, vec![putrootfh(), wanted]).await.unwrap().delegation
            else {
                panic!()
            };
            // It waits for the delegation, between the OPEN and what is asked with its stateid.
            let waits = setattr(ANONYMOUS, &mode(0o640));
            let ops = vec![putfh(&fh), open_fh(b"o", READ, 0), waits, last.clone()];
            let meanwhile = async {
                until(&world.env, || (b.callbacks().count() > 0).then_some(())).await;
                let again = open(&a, vec![putfh(&fh), open_fh(b"o", READ, 0)]).await.unwrap();
                b.ok(vec![putfh(&fh), delegreturn(held.stateid)]).await;
                again.stateid.seqid
            };
            assert_eq!(both(a.status(ops), meanwhile).await, (status, 2));
        });
    }
}

/// The name, what it means and the directory's change attribute: four rows in one look at the store.
#[test]
fn a_file_is_found_together_with_its_directory() {
    simulate(34, async |world: World| {
        let client = world.client("a").await;
        let (fh, made) = client.open("f", BOTH, 0).await;
        client.ok(vec![putfh(&fh), close(made)]).await;
        let before = world.db.work();
        let found = open(&client, vec![putrootfh(), open_name("f", b"o", READ, 0)]).await.unwrap();
        let spent = world.db.work();
        assert_eq!((spent.views - before.views, spent.reads - before.reads), (1, 4));
        let directory = client.attributes("", &[FATTR4_CHANGE]).await.change;
        assert_eq!((Some(found.cinfo.before), Some(found.cinfo.after)), (directory, directory));
    });
}

/// What it shows and what its state begins with are known: neither is read from the store.
#[test]
fn what_was_just_made_is_not_read_again() {
    simulate(31, async |world: World| {
        let client = world.client("a").await;
        client.open("earlier", BOTH, 0).await;
        let attributes = |results: &[nfs_resop4]| match results.last() {
            Some(nfs_resop4::OP_GETATTR(GETATTR4res::NFS4_OK(ok))) => {
                Attributes::decode(&ok.obj_attributes).unwrap()
            }
            other => panic!("{other:?}"),
        };
        let shown = getattr(&[FATTR4_CHANGE, FATTR4_SIZE, FATTR4_MODE]);
        let before = world.db.work();
        let open = open_create("f", b"o", BOTH, 0);
        let made = client.ok(vec![putrootfh(), open, getfh(), shown.clone()]).await;
        // The directory's policy, and the transaction that makes the file.
        assert_eq!(world.db.work().views - before.views, 2);
        let (_, stateid) = opened(&made[..made.len() - 1]);
        let now = client.attributes("f", &[FATTR4_CHANGE, FATTR4_SIZE, FATTR4_MODE]).await;
        let then = attributes(&made);
        assert_eq!((then.change, then.size, then.mode), (now.change, Some(0), Some(0o644)));
        // One that was there is read as ever, and so is one that was changed since.
        let again = client.ok(vec![putrootfh(), open_create("f", b"o", BOTH, 0), shown.clone()]).await;
        assert_eq!(attributes(&again).change, now.change);
        let changed = vec![putrootfh(), open_create("g", b"o", BOTH, 0), setattr(CURRENT, &size(7)), shown];
        assert_eq!(attributes(&client.ok(changed).await).size, Some(7));
        // Its machine is the file's: who removes it finds it open.
        client.ok(vec![putrootfh(), remove("f")]).await;
        let fh = opened(&made[..made.len() - 1]).0;
        // The newest: it was opened twice.
        client.ok(vec![putfh(&fh), close(stateid4 { seqid: 0, ..stateid })]).await;
        assert_eq!(client.status(vec![putfh(&fh), getattr(&[FATTR4_SIZE])]).await, nfsstat4::NFS4ERR_STALE);
    });
}

#[test]
fn stateids_belong_to_their_client_and_their_file() {
    simulate(10, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, stateid) = a.open("f", BOTH, 0).await;
        let (other, _) = a.open("g", BOTH, 0).await;
        assert_eq!(b.status(vec![putfh(&fh), close(stateid)]).await, nfsstat4::NFS4ERR_BAD_STATEID);
        assert_eq!(a.status(vec![putfh(&other), close(stateid)]).await, nfsstat4::NFS4ERR_BAD_STATEID);
    });
}

/// The try after it would find its own file (EXIST), or one whose mode does not let it in.
#[test]
fn what_could_not_be_opened_is_not_made() {
    let mut config = at_data_servers();
    config.limits.opens.per_client = 1;
    simulate_with(32, config, async |world: World| {
        let client = world.client("a").await;
        let (fh, stateid) = client.open("first", BOTH, 0).await;
        let hows = [
            createhow4::GUARDED4(fattr(&mode(0o600))),
            createhow4::UNCHECKED4(fattr(&mode(0o400))),
            createhow4::EXCLUSIVE4_1(creatverfattr {
                cva_verf: verifier4([7; 8]),
                cva_attrs: fattr(&mode(0o600)),
            }),
        ];
        for how in hows {
            assert_eq!(open(&client, named(how)).await.unwrap_err(), nfsstat4::NFS4ERR_DELAY);
            let status = client.status(vec![putrootfh(), lookup("f")]).await;
            assert_eq!(status, nfsstat4::NFS4ERR_NOENT);
        }
        // The owner of an open adds to it.
        client.ok(vec![putrootfh(), open_create("first", b"owner", READ, 0)]).await;
        client.ok(vec![putfh(&fh), close(stateid4 { seqid: 0, ..stateid })]).await;
        open(&client, named(createhow4::GUARDED4(fattr(&mode(0o600))))).await.unwrap();
    });
}

/// §8.3: courteous, but not in the way, of anybody.
#[test]
fn opens_of_expired_clients_make_room() {
    let mut config = at_data_servers();
    config.limits.opens.in_all = 2;
    simulate_with(31, config, async |world: World| {
        let (old, new) = (world.client("a").await, world.client("b").await);
        old.open("a", BOTH, 0).await;
        world.sleep(Duration::from_secs(10)).await;
        new.open("b", BOTH, 0).await;
        let c = world.client("c").await;
        let opens = |name| vec![putrootfh(), open_create(name, b"o", BOTH, 0), getfh()];
        assert_eq!(c.status(opens("c")).await, nfsstat4::NFS4ERR_DELAY, "they are there");
        for _ in 0..3 {
            world.sleep(world.config.lease / 2).await;
            c.ok(Vec::new()).await;
        }
        let (fh, open) = opened(&c.patient(opens("c")).await);
        assert_eq!(new.flags().await, 0, "the one that was silent for longest is enough");
        assert_eq!(c.status(opens("d")).await, nfsstat4::NFS4ERR_DELAY);
        c.ok(vec![putfh(&fh), close(open)]).await;
        c.ok(opens("d")).await;
        assert_eq!(old.status(Vec::new()).await, nfsstat4::NFS4ERR_BADSESSION);
    });
}

/// Whoever may only read a file opens it as often as he likes: half of what it has room for is left to others. Who has gone is in
/// nobody's way.
#[test]
fn opens_of_one_client_shut_a_file_for_nobody_else() {
    let mut config = at_data_servers();
    config.limits.opens_of_file = 16;
    simulate_with(33, config, async |world: World| {
        let (old, new) = (world.client("a").await, world.client("b").await);
        let (_, first) = old.open("f", BOTH, 0).await;
        let takes_all = async |client: &Client| {
            for n in 0..20u8 {
                match client.status(vec![putrootfh(), open_name("f", &[n], READ, 0)]).await {
                    nfsstat4::NFS4_OK => {}
                    nfsstat4::NFS4ERR_DELAY => return n,
                    other => panic!("{other}"),
                }
            }
            20
        };
        assert_eq!(takes_all(&old).await, 7, "one it had before");
        assert_eq!(takes_all(&new).await, 4);
        // What it has it adds to.
        let added = opened(&old.ok(vec![putrootfh(), open_create("f", b"owner", READ, 0), getfh()]).await).1;
        assert_eq!((added.other, added.seqid), (first.other, 2));
        for _ in 0..3 {
            world.sleep(world.config.lease / 2).await;
            new.ok(Vec::new()).await;
        }
        new.ok(vec![putrootfh(), open_name("f", b"more", READ, 0)]).await;
        assert_eq!(old.status(Vec::new()).await, nfsstat4::NFS4ERR_BADSESSION);
    });
}
