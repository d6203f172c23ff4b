//! What is being done: operations and who asks for them. `sluice top` shows the difference between two answers.

use std::sync::atomic::Ordering;

use sluice_xdr::control::*;

use super::Admin;
use crate::metrics::OperationSnapshot;

impl Admin {
    pub(super) fn activity(&self) -> ADMIN_ACTIVITY_res {
        let mds = &self.mds;
        let calls = |id| mds.clients.session(id).map_or(0, |session| session.calls.load(Ordering::Relaxed));
        let clients = mds.client_infos().into_iter().map(|info| ctl_client_activity {
            client: info.id.0,
            calls: info.sessions.iter().map(|id| calls(*id)).sum(),
        });
        ADMIN_ACTIVITY_res::CTL_OK(ADMIN_ACTIVITY_resok {
            nanos: mds.now().since(mds.started),
            operations: mds.metrics.operations.snapshot().iter().map(operation).collect(),
            clients: clients.collect(),
        })
    }
}

fn operation(snapshot: &OperationSnapshot) -> ctl_operation {
    let all = snapshot.statuses.iter().map(|(_, count)| count).sum();
    let good: u64 =
        snapshot.statuses.iter().filter(|(status, _)| status == "NFS4_OK").map(|(_, count)| count).sum();
    ctl_operation {
        name: snapshot.name.into(),
        count: all,
        errors: all - good,
        nanos: u64::try_from(snapshot.total.as_nanos()).unwrap_or(u64::MAX),
        buckets: snapshot.buckets.to_vec(),
    }
}
