//! HEARTBEAT: still here, so full, so busy, so healthy.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sluice_env::Elapsed;
use sluice_rpc::Connection;
use sluice_store::{Epoch, Vitals};
use sluice_xdr::control::{CONTROL_HEARTBEAT, HEARTBEAT_args, HEARTBEAT_res, ctl_counters, ctl_status};

use super::link::{LinkError, call};
use super::register::Registered;
use super::{capacity, health};
use crate::shared::Shared;

/// How long a heartbeat waits for the device.
const PATIENCE: Duration = Duration::from_millis(500);

/// Between two looks whether a device that hangs does so still.
const LOOK: Duration = Duration::from_secs(1);

/// Where the device hangs this is the last one: silence is what has the metadata server send clients elsewhere.
pub(crate) async fn run(
    shared: &Arc<Shared>,
    connection: &Connection,
    registered: &Registered,
) -> Result<(), LinkError> {
    let vitals = shared.store.vitals(PATIENCE).await;
    tell(shared, connection, registered, &vitals).await?;
    if health::hangs(&vitals) {
        shared.give_up_clients();
        return Err(LinkError::Hangs);
    }
    Ok(())
}

/// Completes while the device does not hang.
pub(crate) async fn device_answers(shared: &Arc<Shared>) {
    while health::hangs(&shared.store.vitals(PATIENCE).await) {
        shared.env.clock.sleep(LOOK).await;
    }
}

async fn tell(
    shared: &Arc<Shared>,
    connection: &Connection,
    registered: &Registered,
    vitals: &Vitals,
) -> Result<(), LinkError> {
    let (health, detail) = health::judge(shared.store.flush_failures(), vitals);
    health::tell(shared, health, &detail);
    let args = HEARTBEAT_args {
        mds_epoch: registered.mds_epoch,
        capacity: vitals.capacity.as_ref().map(capacity::wire).unwrap_or_default(),
        counters: counters(shared),
        health,
        detail: Bytes::from(detail),
    };
    let sent = shared.env.clock.now();
    match call(connection, CONTROL_HEARTBEAT, &args).await? {
        HEARTBEAT_res::CTL_OK(ok) => {
            retire(shared, Epoch(ok.oldest_epoch as u16)).await;
            let now = shared.env.clock.now();
            if shared.contact.renewed(now, sent, registered.isolation) {
                Ok(())
            } else {
                Err(LinkError::RegisterAgain)
            }
        }
        // Until we serve nobody. Then there may be another metadata server, at another address.
        HEARTBEAT_res::Default(ctl_status::CTL_ERR_AGAIN) => {
            let serves = shared.contact.may_serve(shared.env.clock.now());
            if serves { Ok(()) } else { Err(LinkError::Undecided) }
        }
        HEARTBEAT_res::Default(ctl_status::CTL_ERR_NOT_REGISTERED | ctl_status::CTL_ERR_EPOCH) => {
            // Another incarnation: it may have fences for us that we have not seen.
            shared.contact.revoked();
            Err(LinkError::RegisterAgain)
        }
        HEARTBEAT_res::Default(status) => Err(LinkError::Refused("heartbeat".into(), status)),
    }
}

/// In force at once. That it is durable, and waited for, is what the order EPOCH and a registration say; here a device that
/// is slow would keep heartbeats waiting, and the next one tries again.
async fn retire(shared: &Arc<Shared>, oldest: Epoch) {
    match shared.env.clock.timeout(PATIENCE, shared.store.retire(oldest)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "an epoch is not retired durably yet"),
        Err(Elapsed) => tracing::debug!("an epoch is being retired still"),
    }
}

fn counters(shared: &Shared) -> ctl_counters {
    let s = shared.counters.snapshot();
    ctl_counters {
        bytes_read: s.bytes_read,
        bytes_written: s.bytes_written,
        reads: s.reads,
        writes: s.writes,
        commits: s.commits,
        refused: s.refused,
        errors: s.errors,
        flushes: shared.store.flushes(),
    }
}
