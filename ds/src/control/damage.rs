//! DAMAGED: what is in quarantine, so that mirrors heal it and people hear of it.

use std::sync::Arc;

use sluice_rpc::{CallError, Connection};
use sluice_store::Damage;
use sluice_xdr::control::{CONTROL_DAMAGED, CTL_FILES_MAX, DAMAGED_args, ctl_damage, ctl_status};

use super::link::{LinkError, call};
use super::wire_file;
use crate::shared::Shared;

/// Tells all of it, if it is not what was told when the store's number for it was `told`. After a registration (`None`) also
/// that there is none: the metadata server may remember some of when checksums were kept.
pub(super) async fn run(
    shared: &Arc<Shared>,
    connection: &Connection,
    told: &mut Option<u64>,
) -> Result<(), LinkError> {
    if *told == Some(shared.store.damage_version()) {
        return Ok(());
    }
    let (version, all) = shared.store.damaged();
    let mut pages = all.chunks(CTL_FILES_MAX as usize).peekable();
    let mut first = true;
    loop {
        let damage: Vec<ctl_damage> = pages.next().unwrap_or_default().iter().map(wire).collect();
        let last = pages.peek().is_none();
        let args = DAMAGED_args { first, last, damage };
        match call(connection, CONTROL_DAMAGED, &args).await {
            Ok(ctl_status::CTL_OK) if last => break,
            Ok(ctl_status::CTL_OK) => first = false,
            Ok(ctl_status::CTL_ERR_NOT_REGISTERED) => return Err(LinkError::RegisterAgain),
            // The next look tries again, all of it. Heartbeats say whether it is there at all.
            Ok(_) | Err(LinkError::Call(CallError::Timeout(_))) => return Ok(()),
            // It does without: readers get errors, and nothing is healed.
            Err(LinkError::Call(CallError::ProcUnavail)) => break,
            Err(error) => return Err(error),
        }
    }
    *told = Some(version);
    Ok(())
}

fn wire(damage: &Damage) -> ctl_damage {
    ctl_damage { file: wire_file(damage.key, 0), offset: damage.offset, length: damage.length }
}
