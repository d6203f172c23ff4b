//! Who may deny what to others. RFC 8881 §9.7.

use sluice_xdr::nfs4::*;

use crate::exports::{add, read_only};
use crate::harness::*;

const DENIES: [u32; 3] = [OPEN4_SHARE_DENY_READ, OPEN4_SHARE_DENY_WRITE, OPEN4_SHARE_DENY_BOTH];

/// One who reads a library would keep everybody from it.
#[test]
fn who_may_only_read_keeps_nobody_from_reading() {
    simulate(1, async |mut world: World| {
        let root = world.client("a").await;
        let (fh, open) = root.open("f", BOTH, 0).await;
        root.ok(vec![putfh(&fh), setattr(open, &mode(0o644)), close(open)]).await;
        let user = root.over(root.raw.clone().with_user(7, 7, &[]));
        let expected = [nfsstat4::NFS4ERR_ACCESS, nfsstat4::NFS4_OK, nfsstat4::NFS4ERR_ACCESS];
        for (deny, expected) in DENIES.into_iter().zip(expected) {
            let mut reply = user.compound(vec![putfh(&fh), open_fh(b"user", READ, deny)]).await;
            assert_eq!(reply.status, expected, "{deny}");
            if let Some(nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(ok))) = reply.resarray.pop() {
                user.ok(vec![putfh(&fh), close(ok.stateid)]).await;
            }
        }
        // Nor under a delegation, with which its holder opens by itself.
        let wants = READ | OPEN4_SHARE_ACCESS_WANT_READ_DELEG;
        let nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(given)) =
            user.last(vec![putfh(&fh), open_fh(b"user", wants, 0)]).await
        else {
            panic!()
        };
        let open_delegation4::OPEN_DELEGATE_READ(delegation) = given.delegation else { panic!() };
        let under = |deny| {
            let claim = open_claim4::CLAIM_DELEG_CUR_FH(delegation.stateid);
            vec![putfh(&fh), open_with(b"other", READ, deny, NOCREATE, claim)]
        };
        assert_eq!(user.status(under(OPEN4_SHARE_DENY_BOTH)).await, nfsstat4::NFS4ERR_ACCESS);
        user.ok(under(0)).await;
        // Nor by saying that he had it.
        world.restart().await;
        let user = user.over_slots(world.connect("a").await.with_user(7, 7, &[]));
        let reclaims = |deny| vec![putfh(&fh), open_previous(b"user", READ, deny)];
        assert_eq!(user.status(reclaims(OPEN4_SHARE_DENY_BOTH)).await, nfsstat4::NFS4ERR_ACCESS);
        user.ok(reclaims(0)).await;
    });
}

#[test]
fn who_may_write_keeps_others_from_reading() {
    simulate(2, async |world: World| {
        let root = world.client("a").await;
        let (fh, open) = root.open("f", BOTH, 0).await;
        root.ok(vec![putfh(&fh), setattr(open, &mode(0o646)), close(open)]).await;
        let user = root.over(root.raw.clone().with_user(7, 7, &[]));
        user.ok(vec![putfh(&fh), open_fh(b"user", READ, OPEN4_SHARE_DENY_BOTH)]).await;
        let b = world.client("b").await;
        let refused = b.status(vec![putfh(&fh), open_fh(b"b", READ, 0)]).await;
        assert_eq!(refused, nfsstat4::NFS4ERR_SHARE_DENIED);
    });
}

#[test]
fn through_a_read_only_export_nothing_is_denied() {
    simulate(3, async |mut world: World| {
        let a = world.client("a").await;
        a.mkdir("/", "d").await;
        let made = [walk("/d"), vec![open_create("f", b"owner", BOTH, 0), getfh()]].concat();
        let (fh, open) = opened(&a.ok(made).await);
        a.ok(vec![putfh(&fh), close(open)]).await;
        add(&world, "/d", &[read_only("any")]).await;
        let opens = |deny| [walk("/d"), vec![open_name("f", b"o", READ, deny), getfh()]].concat();
        for deny in DENIES {
            assert_eq!(a.status(opens(deny)).await, nfsstat4::NFS4ERR_ROFS, "{deny}");
        }
        let (fh, _) = opened(&a.ok(opens(0)).await);
        world.restart().await;
        let a = a.over_slots(world.connect("a").await);
        let reclaims = |deny| vec![putfh(&fh), open_previous(b"o", READ, deny)];
        assert_eq!(a.status(reclaims(OPEN4_SHARE_DENY_BOTH)).await, nfsstat4::NFS4ERR_ROFS);
        a.ok(reclaims(0)).await;
    });
}
