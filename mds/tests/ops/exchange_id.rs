//! EXCHANGE_ID. Names in parentheses are pynfs codes.

use sluice_xdr::nfs4::*;

use crate::harness::*;

const UPDATE: u32 = EXCHGID4_FLAG_UPD_CONFIRMED_REC_A;

async fn result(raw: &Raw, op: nfs_argop4) -> Result<EXCHANGE_ID4resok, nfsstat4> {
    match raw.one(op).await {
        nfs_resop4::OP_EXCHANGE_ID(EXCHANGE_ID4res::NFS4_OK(ok)) => Ok(ok),
        nfs_resop4::OP_EXCHANGE_ID(EXCHANGE_ID4res::Default(status)) => Err(status),
        other => panic!("{other:?}"),
    }
}

/// linux-client: exactly one role, no bit that Linux does not know.
#[test]
fn a_new_client_gets_an_id_and_the_role_of_the_server() {
    simulate(1, async |world: World| {
        let raw = world.connect("a").await;
        let ok = raw.exchange_id(b"a", [1; 8]).await;
        assert_eq!(ok.eir_flags, EXCHGID4_FLAG_USE_PNFS_MDS);
        assert_eq!(ok.eir_state_protect, state_protect4_r::SP4_NONE);
        assert!(!ok.eir_server_owner.so_major_id.is_empty());
        assert_eq!(ok.eir_server_scope, ok.eir_server_owner.so_major_id);
        assert_eq!(ok.eir_server_impl_id.len(), 1);
        let again = raw.exchange_id(b"a", [1; 8]).await;
        assert_ne!(ok.eir_clientid, again.eir_clientid, "case 4: the unconfirmed record is replaced");
        let other = raw.exchange_id(b"other", [1; 8]).await;
        assert_eq!(ok.eir_server_owner, other.eir_server_owner);
    });
}

#[test]
fn a_confirmed_client_is_recognised() {
    simulate(2, async |world: World| {
        let client = world.client("a").await;
        let again = client.raw.exchange_id(b"a", [1; 8]).await;
        assert_eq!(again.eir_clientid, client.id);
        assert_eq!(again.eir_flags, EXCHGID4_FLAG_USE_PNFS_MDS | EXCHGID4_FLAG_CONFIRMED_R);
        // The state of the known incarnation goes on.
        client.ok(Vec::new()).await;
    });
}

/// Case 5: another verifier is another incarnation, which takes over once it has a session.
#[test]
fn a_rebooted_client_replaces_itself() {
    simulate(3, async |world: World| {
        let client = world.client("a").await;
        let (fh, stateid) = client.open("f", WRITE, OPEN4_SHARE_DENY_BOTH).await;
        let reborn = client.raw.session(b"a", [2; 8], 0).await;
        assert_ne!(reborn.id, client.id);
        assert_eq!(client.status(Vec::new()).await, nfsstat4::NFS4ERR_BADSESSION);
        reborn.ok(vec![reclaim_complete(false)]).await;
        // The share reservation went with the old incarnation.
        reborn.open("f", BOTH, 0).await;
        let closed = reborn.status(vec![putfh(&fh), close(stateid)]).await;
        assert_eq!(closed, nfsstat4::NFS4ERR_BAD_STATEID);
    });
}

/// Until it is confirmed it changes nothing.
#[test]
fn a_second_incarnation_without_a_session_does_no_harm() {
    simulate(4, async |world: World| {
        let client = world.client("a").await;
        client.raw.exchange_id(b"a", [2; 8]).await;
        client.ok(Vec::new()).await;
    });
}

/// (EID4)
#[test]
fn unknown_flags_are_invalid() {
    simulate(5, async |world: World| {
        let raw = world.connect("a").await;
        let wrong = result(&raw, exchange_id(b"a", [1; 8], 4)).await;
        assert_eq!(wrong, Err(nfsstat4::NFS4ERR_INVAL));
        let reply_only = result(&raw, exchange_id(b"a", [1; 8], EXCHGID4_FLAG_CONFIRMED_R)).await;
        assert_eq!(reply_only, Err(nfsstat4::NFS4ERR_INVAL));
    });
}

/// (EID6, EID6a-h)
#[test]
fn updates_need_a_confirmed_record_of_the_same_incarnation() {
    simulate(6, async |world: World| {
        let raw = world.connect("a").await;
        let nobody = result(&raw, exchange_id(b"a", [1; 8], UPDATE)).await;
        assert_eq!(nobody, Err(nfsstat4::NFS4ERR_NOENT));
        let client = world.client("a").await;
        let same = result(&client.raw, exchange_id(b"a", [1; 8], UPDATE)).await.unwrap();
        assert_eq!(same.eir_clientid, client.id);
        let reborn = result(&client.raw, exchange_id(b"a", [9; 8], UPDATE)).await;
        assert_eq!(reborn, Err(nfsstat4::NFS4ERR_NOT_SAME));
        let stranger = client.raw.clone().with_user(5, 5, &[]);
        let other = result(&stranger, exchange_id(b"a", [1; 8], UPDATE)).await;
        assert_eq!(other, Err(nfsstat4::NFS4ERR_PERM));
    });
}

/// (EID5 family) Another principal takes the name only of a client without state.
#[test]
fn the_name_of_a_client_with_state_is_its_own() {
    simulate(7, async |world: World| {
        let client = world.client("a").await;
        client.open("f", READ, 0).await;
        let stranger = client.raw.clone().with_user(5, 5, &[]);
        let refused = result(&stranger, exchange_id(b"a", [1; 8], 0)).await;
        assert_eq!(refused, Err(nfsstat4::NFS4ERR_CLID_INUSE));
        client.ok(Vec::new()).await;
    });
}

/// (EID2)
#[test]
fn the_implementation_id_may_be_missing() {
    simulate(9, async |world: World| {
        let raw = world.connect("a").await;
        let nfs_argop4::OP_EXCHANGE_ID(mut args) = exchange_id(b"a", [1; 8], 0) else { panic!() };
        args.eia_client_impl_id.clear();
        assert!(result(&raw, nfs_argop4::OP_EXCHANGE_ID(args)).await.is_ok());
    });
}

/// (EID8)
#[test]
fn outside_a_session_it_stands_alone() {
    simulate(10, async |world: World| {
        let raw = world.connect("a").await;
        let reply = raw.compound(vec![exchange_id(b"a", [1; 8], 0), putrootfh()]).await;
        assert_eq!(reply.status, nfsstat4::NFS4ERR_NOT_ONLY_OP);
        assert_eq!(reply.resarray.len(), 1);
    });
}

/// SP4_SSV; SP4_MACH_CRED is in machine_credential.rs.
#[test]
fn state_protection_by_a_shared_secret_is_declined() {
    simulate(11, async |world: World| {
        let raw = world.connect("a").await;
        let nfs_argop4::OP_EXCHANGE_ID(mut args) = exchange_id(b"a", [1; 8], 0) else { panic!() };
        args.eia_state_protect = state_protect4_a::SP4_SSV(ssv_sp_parms4::default());
        let refused = result(&raw, nfs_argop4::OP_EXCHANGE_ID(args)).await;
        assert_eq!(refused, Err(nfsstat4::NFS4ERR_ENCR_ALG_UNSUPP));
    });
}

/// (EID9)
#[test]
fn an_unconfirmed_id_is_forgotten_after_a_lease() {
    simulate(12, async |world: World| {
        let raw = world.connect("a").await;
        let known = raw.exchange_id(b"a", [1; 8]).await;
        world.sleep(world.config.lease + std::time::Duration::from_secs(5)).await;
        let late = raw.create_session(known.eir_clientid, known.eir_sequenceid).await;
        assert_eq!(late, CREATE_SESSION4res::Default(nfsstat4::NFS4ERR_STALE_CLIENTID));
    });
}
