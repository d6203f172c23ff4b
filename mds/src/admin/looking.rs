//! What holders of a monitoring key may ask: whatever changes nothing, costs little, and is no secret (docs/adr/0031).

use std::ops::RangeInclusive;

use sluice_env::BoxFuture;
use sluice_rpc::{Call, Program, Reply, auth_stat};
use sluice_xdr::control::*;
use sluice_xdr::{Decode, Reader};

use super::Admin;

/// The admin program as holders of a monitoring key reach it.
#[derive(Debug)]
pub(crate) struct Looking(pub(crate) Admin);

impl Program for Looking {
    fn number(&self) -> u32 {
        self.0.number()
    }

    fn versions(&self) -> RangeInclusive<u32> {
        self.0.versions()
    }

    fn call<'a>(&'a self, call: Call) -> BoxFuture<'a, Reply> {
        if only_looks(&call) {
            return self.0.call(call);
        }
        Box::pin(async move { Reply::AuthError(auth_stat::AUTH_TOOWEAK) })
    }
}

/// All that is not named here is for holders of the cluster key: rows of the store, which hold keys and small files, and audits,
/// which read everything there is, as well as what changes something.
fn only_looks(call: &Call) -> bool {
    match call.procedure {
        ADMIN_NULL | ADMIN_STATUS | ADMIN_ACTIVITY | ADMIN_ROOM | ADMIN_LAST_DUMP | ADMIN_CLUSTER_KEYS => {
            true
        }
        ADMIN_GUARDS | ADMIN_LAYOUTS | ADMIN_LOCKS | ADMIN_PROXIED | ADMIN_WHY => true,
        ADMIN_SERVERS | ADMIN_CLASSES | ADMIN_DOCTOR | ADMIN_EXPORTS | ADMIN_SEC_EXPORTS
        | ADMIN_TLS_EXPORTS | ADMIN_NAMES | ADMIN_QUOTAS => true,
        ADMIN_KEYS => arguments(call).is_some_and(|args: ADMIN_KEYS_args| !args.rotate),
        ADMIN_BALANCE => arguments(call).is_some_and(|args: ADMIN_BALANCE_args| {
            matches!(args.what, ctl_balance_what::BALANCE_LOOK | ctl_balance_what::BALANCE_PLAN)
        }),
        ADMIN_COMPARE => arguments(call)
            .is_some_and(|args: ADMIN_COMPARE_args| args.what == ctl_compare_what::COMPARE_LOOK),
        ADMIN_MIRRORS => arguments(call)
            .is_some_and(|args: ADMIN_MIRRORS_args| args.what == ctl_mirrors_what::MIRRORS_LOOK),
        ADMIN_SCRUB => {
            arguments(call).is_some_and(|args: ADMIN_SCRUB_args| args.action == ctl_scrub_action::SCRUB_LOOK)
        }
        _ => false,
    }
}

fn arguments<A: Decode>(call: &Call) -> Option<A> {
    A::decode(&mut Reader::new(call.args.clone())).ok()
}
