//! What holders of a monitoring key may ask, and which cluster keys are in use (docs/adr/0031).

use std::collections::BTreeSet;
use std::time::Duration;

use sluice_rpc::{CallError, Client as Dialler, Connection, Credential, Frame, auth_stat};
use sluice_xdr::control::*;
use sluice_xdr::{Encode, to_frame};

use crate::admin::ask;
use crate::harness::*;

const PATIENCE: Duration = Duration::from_secs(10);

async fn call(
    connection: &Connection,
    program: (u32, u32),
    procedure: u32,
    args: Frame,
) -> Result<bytes::Bytes, CallError> {
    let (program, version) = program;
    connection.call(program, version, procedure, &Credential::None, args, PATIENCE).await
}

fn frame<A: Encode>(args: &A) -> Frame {
    to_frame(args, 1 << 20).unwrap()
}

fn balance(what: ctl_balance_what) -> ADMIN_BALANCE_args {
    ADMIN_BALANCE_args { what, ..ADMIN_BALANCE_args::default() }
}

fn compare(what: ctl_compare_what) -> ADMIN_COMPARE_args {
    ADMIN_COMPARE_args { what, ..ADMIN_COMPARE_args::default() }
}

fn refused(answer: &Result<bytes::Bytes, CallError>) -> bool {
    matches!(answer, Err(CallError::Auth(auth_stat::AUTH_TOOWEAK)))
}

#[test]
fn a_monitoring_key_lets_its_holder_look_and_nothing_else() {
    simulate(1, async |world: World| {
        let monitor =
            Dialler::new(world.env.clone(), world.net.host("grafana")).with_key(world.key.monitor());
        let connection = monitor.dial(world.addr).await.unwrap();
        let admin = (SLUICE_ADMIN, SLUICE_ADMIN_V2);

        // Whatever there is or will be is refused, but for these.
        let looks: BTreeSet<u32> = [
            ADMIN_NULL,
            ADMIN_STATUS,
            ADMIN_LAYOUTS,
            ADMIN_GUARDS,
            ADMIN_ACTIVITY,
            ADMIN_EXPORTS,
            ADMIN_SEC_EXPORTS,
            ADMIN_TLS_EXPORTS,
            ADMIN_NAMES,
            ADMIN_PROXIED,
            ADMIN_WHY,
            ADMIN_DOCTOR,
            ADMIN_SERVERS,
            ADMIN_CLASSES,
            ADMIN_QUOTAS,
            ADMIN_ROOM,
            ADMIN_LOCKS,
            ADMIN_LAST_DUMP,
            ADMIN_CLUSTER_KEYS,
        ]
        .into();
        for procedure in 0..100 {
            let answer = call(&connection, admin, procedure, Frame::empty()).await;
            assert_eq!(refused(&answer), !looks.contains(&procedure), "{procedure}: {answer:?}");
        }
        for (procedure, args, looks) in [
            (ADMIN_KEYS, frame(&ADMIN_KEYS_args { rotate: false }), true),
            (ADMIN_KEYS, frame(&ADMIN_KEYS_args { rotate: true }), false),
            (ADMIN_BALANCE, frame(&balance(ctl_balance_what::BALANCE_LOOK)), true),
            (ADMIN_BALANCE, frame(&balance(ctl_balance_what::BALANCE_PLAN)), true),
            (ADMIN_BALANCE, frame(&balance(ctl_balance_what::BALANCE_BEGIN)), false),
            (ADMIN_BALANCE, frame(&balance(ctl_balance_what::BALANCE_STOP)), false),
            (ADMIN_COMPARE, frame(&compare(ctl_compare_what::COMPARE_LOOK)), true),
            (ADMIN_COMPARE, frame(&compare(ctl_compare_what::COMPARE_BEGIN)), false),
            (ADMIN_COMPARE, frame(&compare(ctl_compare_what::COMPARE_STOP)), false),
            (ADMIN_MEND, frame(&ADMIN_MEND_args { from: 1, ..ADMIN_MEND_args::default() }), false),
            (ADMIN_SCRUB, frame(&ADMIN_SCRUB_args { id: 0, action: ctl_scrub_action::SCRUB_LOOK }), true),
            (ADMIN_SCRUB, frame(&ADMIN_SCRUB_args { id: 0, action: ctl_scrub_action::SCRUB_START }), false),
            (ADMIN_SCRUB, frame(&ADMIN_SCRUB_args { id: 0, action: ctl_scrub_action::SCRUB_STOP }), false),
            (ADMIN_DRAIN, frame(&ADMIN_DRAIN_args { id: 1, ..ADMIN_DRAIN_args::default() }), false),
        ] {
            let answer = call(&connection, admin, procedure, args).await;
            assert_eq!(refused(&answer), !looks, "{procedure}: {answer:?}");
            assert!(!looks || answer.is_ok(), "{procedure}: {answer:?}");
        }
        let ADMIN_KEYS_res::CTL_OK(keys) = ask(&world, ADMIN_KEYS, &ADMIN_KEYS_args { rotate: false }).await
        else {
            panic!()
        };
        assert_eq!(keys.keys.len(), 1, "nothing was rotated");

        // It is no data server either, and no client's way in.
        let register =
            call(&connection, (SLUICE_CONTROL, SLUICE_CONTROL_V1), CONTROL_REGISTER, Frame::empty());
        assert_eq!(register.await, Err(CallError::ProgUnavail { program: SLUICE_CONTROL }));
    });
}

#[test]
fn who_came_with_which_cluster_key_is_told() {
    simulate(2, async |mut world: World| {
        world.add_data_server("ds2").await;
        let told: ADMIN_CLUSTER_KEYS_resok = ask(&world, ADMIN_CLUSTER_KEYS, &()).await;
        let key = ctl_cluster_key {
            fingerprint: world.key.fingerprint().into(),
            shown: true,
            data_servers: vec![1, 2],
        };
        assert_eq!(told.keys, [key]);
    });
}
