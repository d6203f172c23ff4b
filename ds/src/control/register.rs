//! REGISTER: who we are, and in return what lets us serve.

use std::sync::Arc;
use std::time::Duration;

use sluice_rpc::{CallError, Connection};
use sluice_store::{Epoch, Fence, FileKey, StoreError, Uuid};
use sluice_xdr::control::{
    CONTROL_HISTORY, CONTROL_REGISTER, CONTROL_VERSIONS, CTL_PROTOCOL, CTL_PROTOCOL_OLDEST, HISTORY_args,
    HISTORY_res, REGISTER_args, REGISTER_res, REGISTER_resok, ctl_fence, ctl_fence_kind, ctl_uuid,
    ctl_versions,
};

use super::link::{LinkError, call};
use super::{Identity, capacity, data_file, tide};
use crate::access::AsOf;
use crate::shared::Shared;

/// What a registration granted.
#[derive(Clone, Debug)]
pub(crate) struct Registered {
    pub(crate) mds_epoch: u64,
    pub(crate) store_id: u32,
    pub(crate) heartbeat: Duration,
    pub(crate) isolation: Duration,
    /// How far the store has come is to be told.
    pub(crate) tides: bool,
}

/// Registers on `connection` and sees to it that what comes back is in force, before anything is served on it.
pub(crate) async fn run(
    shared: &Arc<Shared>,
    connection: &Connection,
    identity: &Identity,
) -> Result<Registered, LinkError> {
    let store = &shared.store;
    let protocol = protocol(connection).await?;
    tell_history(shared, connection).await?;
    let tides = tide::tell(shared, connection).await?;
    let args = REGISTER_args {
        protocol,
        store: ctl_uuid(store.uuid().0),
        cluster: ctl_uuid(store.cluster().0),
        incarnation: ctl_uuid(identity.incarnation),
        addresses: identity.addresses.clone(),
        capacity: capacity::run(shared).await,
        version: identity.version.clone().into(),
        newest_epoch: store.oldest().map_or(0, |epoch| epoch.0.into()),
    };
    let sent = shared.env.clock.now();
    match call(connection, CONTROL_REGISTER, &args).await? {
        REGISTER_res::CTL_OK(granted) => {
            let registered = apply(shared, &granted, identity, tides).await?;
            shared.contact.registered(sent, registered.isolation);
            Ok(registered)
        }
        REGISTER_res::Default(status, reason) => {
            Err(LinkError::Refused(String::from_utf8_lossy(&reason).into_owned(), status))
        }
    }
}

/// The newest version of the control protocol that both sides speak. With none in common it is our newest, which
/// the metadata server refuses in words, and remembers for who looks there.
async fn protocol(connection: &Connection) -> Result<u32, LinkError> {
    let ours = ctl_versions { oldest: CTL_PROTOCOL_OLDEST, newest: CTL_PROTOCOL };
    let theirs: ctl_versions = match call(connection, CONTROL_VERSIONS, &ours).await {
        Ok(theirs) => theirs,
        // Version 4 does not know the question.
        Err(LinkError::Call(CallError::ProcUnavail)) => ctl_versions { oldest: 4, newest: 4 },
        Err(error) => return Err(error),
    };
    let common = ours.newest.min(theirs.newest);
    Ok(if common < ours.oldest.max(theirs.oldest) { ours.newest } else { common })
}

/// Tells what the store remembers: metadata that are an older copy of what it has served would give out again the numbers
/// of data files that it has.
async fn tell_history(shared: &Shared, connection: &Connection) -> Result<(), LinkError> {
    let store = &shared.store;
    let args = HISTORY_args {
        store: ctl_uuid(store.uuid().0),
        cluster: ctl_uuid(store.cluster().0),
        newest_file: store.newest_file(),
        mds_epoch: store.newest_caller(),
    };
    match call(connection, CONTROL_HISTORY, &args).await {
        Ok(HISTORY_res::CTL_OK) => Ok(()),
        Ok(HISTORY_res::Default(status, reason)) => {
            Err(LinkError::Refused(String::from_utf8_lossy(&reason).into_owned(), status))
        }
        // It does without.
        Err(LinkError::Call(CallError::ProcUnavail)) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn apply(
    shared: &Arc<Shared>,
    granted: &REGISTER_resok,
    identity: &Identity,
    tides: bool,
) -> Result<Registered, LinkError> {
    let store = &shared.store;
    store.adopt(Uuid(granted.cluster.0)).await?;
    // What of this cannot be written down holds all the same, and is told with every registration until it is: a data server
    // that only asked again and again would be neither there nor gone.
    match store.hear_caller(granted.mds_epoch).await {
        Err(StoreError::OldCaller) => return Err(LinkError::Old),
        other => other?,
    }
    let oldest = Epoch(granted.oldest_epoch as u16);
    match store.retire(oldest).await {
        Err(error) if store.is_retired(oldest).await => {
            tracing::warn!(%error, "older handles are refused from memory only");
        }
        other => other?,
    }
    let fences: Option<Vec<Fence>> = granted.fences.iter().map(fence).collect();
    let Some(fences) = fences else {
        // A fence that is not understood would be one that does not hold.
        let why = "it sends a fence of an unknown kind".to_owned();
        return Err(LinkError::Refused(why, sluice_xdr::control::ctl_status::CTL_ERR_VERSION));
    };
    match store.fence(&fences).await {
        Err(error) if store.in_force(&fences).await => {
            tracing::warn!(%error, "fences hold in memory only");
        }
        other => other?,
    }
    shared.seals.set_store(granted.store_id as u16);
    let (mds_epoch, current) = (granted.mds_epoch, granted.capability_epoch);
    shared.seals.set_keys(AsOf { mds_epoch, current, oldest: granted.oldest_epoch }, &granted.keys);
    store.serve_from(Epoch(current as u16));
    // Pushes may have been missed while we were away.
    shared.sizes.forget();
    let isolation = identity.isolation.min(Duration::from_millis(granted.isolation_ms.into()));
    let heartbeat = Duration::from_millis(granted.heartbeat_ms.into());
    Ok(Registered {
        mds_epoch: granted.mds_epoch,
        store_id: granted.store_id,
        // Two heartbeats may be lost before the isolation time runs out.
        heartbeat: heartbeat.min(isolation / 3).max(Duration::from_millis(50)),
        isolation,
        tides,
    })
}

/// A fence from the wire; `None` if its kind or its numbers are unknown here. Of an epoch the low 16
/// bits count, as in the filehandle.
pub(crate) fn fence(fence: &ctl_fence) -> Option<Fence> {
    let (holder, epoch) = (fence.holder, Epoch(fence.epoch as u16));
    Some(match fence.kind {
        ctl_fence_kind::FENCE_HOLDER => Fence::Holder { holder, epoch },
        ctl_fence_kind::FENCE_HOLDER_FILE => Fence::HolderFile { holder, file: fence.target.file, epoch },
        ctl_fence_kind::FENCE_GENERATION => {
            let (key, least): (FileKey, u16) = data_file(&fence.target)?;
            Fence::Generation { key, least, epoch }
        }
        _ => return None,
    })
}
