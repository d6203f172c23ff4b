//! CREATE_SESSION. Names in parentheses are pynfs codes.

use std::time::Duration;

use sluice_state::lease::seq4_status;
use sluice_xdr::nfs4::*;

use crate::harness::*;

type Result = std::result::Result<CREATE_SESSION4resok, nfsstat4>;

async fn result(raw: &Raw, args: CREATE_SESSION4args) -> Result {
    match raw.one(nfs_argop4::OP_CREATE_SESSION(args)).await {
        nfs_resop4::OP_CREATE_SESSION(CREATE_SESSION4res::NFS4_OK(ok)) => Ok(ok),
        nfs_resop4::OP_CREATE_SESSION(CREATE_SESSION4res::Default(status)) => Err(status),
        other => panic!("{other:?}"),
    }
}

async fn asked(raw: &Raw, change: impl FnOnce(&mut CREATE_SESSION4args)) -> Result {
    let known = raw.exchange_id(b"a", [1; 8]).await;
    let mut args = create_session_args(known.eir_clientid, known.eir_sequenceid);
    change(&mut args);
    result(raw, args).await
}

#[test]
fn linux_gets_what_it_needs() {
    simulate(1, async |world: World| {
        let ok = asked(&world.connect("a").await, |_| {}).await.unwrap();
        assert_eq!(ok.csr_fore_chan_attrs, fore());
        assert_eq!(ok.csr_back_chan_attrs, back());
        assert_eq!(ok.csr_flags & CREATE_SESSION4_FLAG_CONN_BACK_CHAN, CREATE_SESSION4_FLAG_CONN_BACK_CHAN);
    });
}

/// (CSESS4, CSESS5, CSESS5a) The reply of the last one is kept.
#[test]
fn a_retry_is_answered_alike_and_other_sequence_ids_are_misordered() {
    simulate(2, async |world: World| {
        let raw = world.connect("a").await;
        let known = raw.exchange_id(b"a", [1; 8]).await;
        let (id, seqid) = (known.eir_clientid, known.eir_sequenceid);
        let early = result(&raw, create_session_args(id, seqid.wrapping_sub(1))).await;
        assert_eq!(early, Err(nfsstat4::NFS4ERR_SEQ_MISORDERED), "nothing to repeat yet");
        let first = result(&raw, create_session_args(id, seqid)).await.unwrap();
        let again = result(&raw, create_session_args(id, seqid)).await.unwrap();
        assert_eq!(first, again);
        let next = result(&raw, create_session_args(id, seqid + 1)).await.unwrap();
        assert_ne!(first.csr_sessionid, next.csr_sessionid);
        let far = result(&raw, create_session_args(id, seqid + 3)).await;
        assert_eq!(far, Err(nfsstat4::NFS4ERR_SEQ_MISORDERED));
    });
}

/// (CSESS7)
#[test]
fn unknown_clients_are_stale() {
    simulate(3, async |world: World| {
        let raw = world.connect("a").await;
        let got = result(&raw, create_session_args(0x0dea_d000, 1)).await;
        assert_eq!(got, Err(nfsstat4::NFS4ERR_STALE_CLIENTID));
    });
}

/// (CSESS8) Confirming is for whoever asked for the client ID.
#[test]
fn another_principal_cannot_confirm() {
    simulate(4, async |world: World| {
        let raw = world.connect("a").await;
        let known = raw.exchange_id(b"a", [1; 8]).await;
        let stranger = raw.clone().with_user(7, 7, &[]);
        let args = create_session_args(known.eir_clientid, known.eir_sequenceid);
        assert_eq!(result(&stranger, args.clone()).await, Err(nfsstat4::NFS4ERR_CLID_INUSE));
        assert!(result(&raw, args).await.is_ok());
    });
}

/// (CSESS15)
#[test]
fn unknown_flags_are_invalid() {
    simulate(5, async |world: World| {
        let got = asked(&world.connect("a").await, |args| args.csa_flags = 0xf).await;
        assert_eq!(got, Err(nfsstat4::NFS4ERR_INVAL));
    });
}

/// (CSESS16, CSESS16a) Security is chosen from the list; none at all is no reason to refuse.
#[test]
fn callback_security_may_be_anything() {
    simulate(6, async |world: World| {
        let raw = world.connect("a").await;
        for parms in [vec![callback_sec_parms4::AUTH_NONE], Vec::new()] {
            assert!(asked(&raw, |args| args.csa_sec_parms = parms).await.is_ok());
        }
    });
}

/// (CSESS22, CSESS23)
#[test]
fn too_much_is_lowered() {
    simulate(7, async |world: World| {
        let raw = world.connect("a").await;
        let ok = asked(&raw, |args| {
            args.csa_fore_chan_attrs.ca_maxrequests = 5000;
            args.csa_fore_chan_attrs.ca_maxresponsesize = u32::MAX;
            args.csa_fore_chan_attrs.ca_maxrequestsize = u32::MAX;
        })
        .await
        .unwrap();
        let got = ok.csr_fore_chan_attrs;
        assert!(got.ca_maxrequests < 5000 && got.ca_maxrequests > 0);
        assert!(got.ca_maxresponsesize < 1 << 24 && got.ca_maxrequestsize < 1 << 24);
    });
}

/// (CSESS25, CSESS27, CSESS28)
#[test]
fn too_little_is_refused() {
    simulate(8, async |world: World| {
        let raw = world.connect("a").await;
        let small: [fn(&mut CREATE_SESSION4args); 3] = [
            |args| args.csa_fore_chan_attrs.ca_maxrequestsize = 20,
            |args| args.csa_fore_chan_attrs.ca_maxresponsesize = 0,
            |args| args.csa_back_chan_attrs.ca_maxoperations = 1,
        ];
        for change in small {
            assert_eq!(asked(&raw, change).await, Err(nfsstat4::NFS4ERR_TOOSMALL));
        }
    });
}

/// (CSESS24)
#[test]
fn outside_a_session_it_stands_alone() {
    simulate(9, async |world: World| {
        let raw = world.connect("a").await;
        let known = raw.exchange_id(b"a", [1; 8]).await;
        let ops = vec![create_session(known.eir_clientid, known.eir_sequenceid), putrootfh()];
        assert_eq!(raw.compound(ops).await.status, nfsstat4::NFS4ERR_NOT_ONLY_OP);
    });
}

/// (CSESS26) A reply that does not fit ends the COMPOUND there.
#[test]
fn small_replies_are_kept_small() {
    simulate(10, async |world: World| {
        let raw = world.connect("a").await;
        let ok = asked(&raw, |args| args.csa_fore_chan_attrs.ca_maxresponsesize = 400).await.unwrap();
        let client = Client::new(raw, 0, ok.csr_sessionid);
        let many = (0..7).map(|_| getattr(&[FATTR4_SUPPORTED_ATTRS, FATTR4_FILEHANDLE, FATTR4_TIME_ACCESS]));
        let mut ops = vec![putrootfh()];
        ops.extend(many.take(6));
        let reply = client.compound(ops).await;
        assert_eq!(reply.status, nfsstat4::NFS4ERR_REP_TOO_BIG);
        assert!(sluice_xdr::to_bytes(&reply).unwrap().len() <= 400);
    });
}

/// (CSESS29) The callback program is the client's choice.
#[test]
fn any_callback_program_will_do() {
    simulate(11, async |world: World| {
        let got = asked(&world.connect("a").await, |args| args.csa_cb_program = 1).await;
        assert!(got.is_ok());
    });
}

/// (CSESS20, CSESS21) The program that was announced is called at once; the client hears if nobody serves it.
#[test]
fn a_new_back_channel_is_tried_at_once() {
    simulate(12, async |world: World| {
        let client = world.connect("a").await.session(b"a", [1; 8], 0).await;
        until(&world.env, || (client.callbacks().probes() == 1).then_some(())).await;
        assert_eq!(client.flags().await, 0);
        assert_eq!(client.callbacks().count(), 0, "nothing else was called");

        let raw = world.connect("b").await;
        let known = raw.exchange_id(b"b", [1; 8]).await;
        let mut args = create_session_args(known.eir_clientid, known.eir_sequenceid);
        args.csa_cb_program += 1;
        let session = result(&raw, args).await.unwrap().csr_sessionid;
        let unserved = Client::new(raw, known.eir_clientid, session);
        world.sleep(Duration::from_secs(1)).await;
        let down = seq4_status::CB_PATH_DOWN | seq4_status::CB_PATH_DOWN_SESSION;
        assert_eq!(unserved.flags().await & down, down);
        assert_eq!(unserved.callbacks().probes(), 0);
    });
}

/// After a takeover by a server with less memory more may be promised than there is.
#[test]
fn who_has_no_session_gets_one_and_expired_clients_make_room() {
    simulate(31, async |mut world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        world.config.limits.replies = 64 << 10;
        world.restart().await;
        let raw = world.connect("a").await;
        let (a, b) = (a.over_slots(raw.clone()), b.over_slots(world.connect("b").await));
        a.ok(vec![reclaim_complete(false)]).await;
        b.ok(vec![reclaim_complete(false)]).await;
        // Its only session is gone: it cannot do without.
        a.ok(vec![destroy_session(a.session)]).await;
        let known = raw.exchange_id(b"a", [1; 8]).await;
        let made = raw.create_session(known.eir_clientid, known.eir_sequenceid).await;
        let CREATE_SESSION4res::NFS4_OK(made) = made else { panic!("{made:?}") };
        assert_eq!(made.csr_fore_chan_attrs.ca_maxrequests, 1);
        let renew = async |seqid| {
            let mut op = sequence(made.csr_sessionid, 0, seqid, false);
            if let nfs_argop4::OP_SEQUENCE(args) = &mut op {
                args.sa_highest_slotid = 0;
            }
            assert_eq!(raw.compound(vec![op]).await.status, nfsstat4::NFS4_OK);
        };
        // A stranger waits until those who are silent are not in its way any more.
        let stranger = world.connect("c").await;
        let known = stranger.exchange_id(b"c", [1; 8]).await;
        let refused = stranger.create_session(known.eir_clientid, known.eir_sequenceid).await;
        assert!(matches!(refused, CREATE_SESSION4res::Default(nfsstat4::NFS4ERR_NOSPC)), "{refused:?}");
        for seqid in 1..4 {
            world.sleep(world.config.lease / 2).await;
            renew(seqid).await;
        }
        let known = stranger.exchange_id(b"c", [1; 8]).await;
        let made = stranger.create_session(known.eir_clientid, known.eir_sequenceid).await;
        assert!(matches!(made, CREATE_SESSION4res::NFS4_OK(_)), "{made:?}");
        renew(4).await;
    });
}
