//! What `sluice doctor` judges: machines, clocks, who was refused, what clients report.

use std::sync::Arc;
use std::time::Duration;

use sluice_env::Wall;
use sluice_xdr::control::*;

use super::Admin;
use crate::dsctl::{self, StoreHandle};

/// For all data servers together.
const PATIENCE: Duration = Duration::from_secs(5);

impl Admin {
    pub(super) async fn doctor(&self) -> ADMIN_DOCTOR_res {
        let (mds, now) = (&self.mds, self.mds.now());
        let mut machines = Vec::new();
        let begun = mds.env.clock.now();
        for store in mds.data_servers.all() {
            // Who asks does not wait for ever for data servers that do not answer; `sluice status` names those.
            if mds.env.clock.now() - begun > PATIENCE {
                break;
            }
            machines.extend(self.machine_of(&store).await);
        }
        let refused = mds.data_servers.refused.lock().clone();
        let refused = refused
            .into_iter()
            .map(|((address, _), refused)| ctl_refused {
                address: address.to_string().into(),
                reason: refused.reason.into(),
                last_seconds: now.since(refused.last) / 1_000_000_000,
            })
            .collect();
        let avoided = mds.reports.all(now).into_iter();
        let avoided = avoided
            .map(|(client, store, finding)| ctl_avoided {
                client: client.0,
                data_server: store.0.into(),
                full: finding.full,
            })
            .collect();
        let (wall, descriptors) = (mds.env.clock.wall(), mds.env.process.descriptors());
        ADMIN_DOCTOR_res::CTL_OK(ADMIN_DOCTOR_resok {
            machine: ctl_machine {
                seconds: wall.seconds,
                nanos: wall.nanos,
                descriptors: descriptors.open,
                descriptors_most: descriptors.most,
            },
            machines,
            refused,
            avoided,
        })
    }

    async fn machine_of(&self, store: &Arc<StoreHandle>) -> Option<ctl_machine_of> {
        let clock = &self.mds.env.clock;
        let (asked, begun) = (clock.wall(), clock.now());
        let machine = dsctl::machine(store).await?;
        let took = clock.now() - begun;
        let there = Wall { seconds: machine.seconds, nanos: machine.nanos };
        let round_trip = i64::try_from(took.as_nanos()).unwrap_or(i64::MAX);
        Some(ctl_machine_of {
            data_server: store.id.0.into(),
            // It looked at its clock about in the middle.
            ahead_nanos: nanos(there).saturating_sub(nanos(asked)).saturating_sub(round_trip / 2),
            round_trip_nanos: round_trip.unsigned_abs(),
            machine,
        })
    }
}

/// Since 1970; a clock that is centuries off is off by the most that there is.
fn nanos(wall: Wall) -> i64 {
    wall.seconds.saturating_mul(1_000_000_000).saturating_add(wall.nanos.into())
}
