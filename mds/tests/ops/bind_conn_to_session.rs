//! BIND_CONN_TO_SESSION and BACKCHANNEL_CTL.

use std::sync::Arc;
use std::time::Duration;

use sluice_state::lease::seq4_status;
use sluice_xdr::nfs4::*;

use crate::harness::*;

async fn result(raw: &Raw, op: nfs_argop4) -> Result<channel_dir_from_server4, nfsstat4> {
    match raw.one(op).await {
        nfs_resop4::OP_BIND_CONN_TO_SESSION(BIND_CONN_TO_SESSION4res::NFS4_OK(ok)) => Ok(ok.bctsr_dir),
        nfs_resop4::OP_BIND_CONN_TO_SESSION(BIND_CONN_TO_SESSION4res::Default(status)) => Err(status),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_server_takes_both_directions_when_it_may_choose() {
    simulate(1, async |world: World| {
        let client = world.client("a").await;
        let other = world.connect("a").await;
        for (asked, got) in [
            (channel_dir_from_client4::CDFC4_FORE, channel_dir_from_server4::CDFS4_FORE),
            (channel_dir_from_client4::CDFC4_BACK, channel_dir_from_server4::CDFS4_BACK),
            (channel_dir_from_client4::CDFC4_FORE_OR_BOTH, channel_dir_from_server4::CDFS4_BOTH),
            (channel_dir_from_client4::CDFC4_BACK_OR_BOTH, channel_dir_from_server4::CDFS4_BOTH),
        ] {
            assert_eq!(result(&other, bind(client.session, asked)).await, Ok(got));
        }
    });
}

#[test]
fn wrong_sessions_and_directions_are_refused() {
    simulate(2, async |world: World| {
        let client = world.client("a").await;
        let fore = channel_dir_from_client4::CDFC4_FORE;
        let unknown = result(&client.raw, bind(sessionid4([9; 16]), fore)).await;
        assert_eq!(unknown, Err(nfsstat4::NFS4ERR_BADSESSION));
        let sideways = result(&client.raw, bind(client.session, channel_dir_from_client4(99))).await;
        assert_eq!(sideways, Err(nfsstat4::NFS4ERR_INVAL));
    });
}

#[test]
fn it_stands_alone() {
    simulate(3, async |world: World| {
        let client = world.client("a").await;
        let op = bind(client.session, channel_dir_from_client4::CDFC4_FORE);
        let reply = client.raw.compound(vec![op.clone(), putrootfh()]).await;
        assert_eq!(reply.status, nfsstat4::NFS4ERR_NOT_ONLY_OP);
        assert_eq!(client.status(vec![op]).await, nfsstat4::NFS4ERR_NOT_ONLY_OP);
    });
}

/// linux-client §1.6: the flag when the connection with the back channel is lost, and its end.
#[test]
fn a_lost_back_channel_is_told_until_another_is_bound() {
    simulate(4, async |world: World| {
        let client = world.client("a").await;
        let other = world.connect_as("a", Arc::clone(client.callbacks())).await;
        let second = client.over(other.clone());
        assert_eq!(second.flags().await, 0);
        client.raw.connection.close();
        world.sleep(Duration::from_millis(100)).await;
        let down = seq4_status::CB_PATH_DOWN | seq4_status::CB_PATH_DOWN_SESSION;
        assert_eq!(second.flags().await, down);
        let bound = result(&other, bind(client.session, channel_dir_from_client4::CDFC4_BACK_OR_BOTH)).await;
        assert_eq!(bound, Ok(channel_dir_from_server4::CDFS4_BOTH));
        assert_eq!(second.flags().await, 0);
    });
}

/// One session without a back channel beside one that has it: only that one is told.
#[test]
fn each_session_has_its_own_path() {
    simulate(5, async |world: World| {
        let first = world.client("a").await;
        let other = world.connect("a").await;
        let second = other.session(b"a", [1; 8], 0).await;
        first.raw.connection.close();
        world.sleep(Duration::from_millis(100)).await;
        assert_eq!(second.flags().await, 0);
        let again = first.over(other);
        assert_eq!(again.flags().await, seq4_status::CB_PATH_DOWN_SESSION);
    });
}

#[test]
fn the_callback_program_can_be_changed() {
    simulate(6, async |world: World| {
        let client = world.client("a").await;
        let ctl = |parms| {
            nfs_argop4::OP_BACKCHANNEL_CTL(BACKCHANNEL_CTL4args {
                bca_cb_program: CALLBACK_PROGRAM,
                bca_sec_parms: parms,
            })
        };
        client.ok(vec![ctl(vec![callback_sec_parms4::AUTH_NONE])]).await;
        let gss = vec![callback_sec_parms4::RPCSEC_GSS(gss_cb_handles4::default())];
        assert_eq!(client.status(vec![ctl(gss)]).await, nfsstat4::NFS4ERR_INVAL);
        let reply = client.raw.compound(vec![ctl(Vec::new())]).await;
        assert_eq!(reply.status, nfsstat4::NFS4ERR_OP_NOT_IN_SESSION);
    });
}
