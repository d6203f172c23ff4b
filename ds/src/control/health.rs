//! What a heartbeat says of this server's health.

use std::time::Duration;

use sluice_store::{StoreError, Vitals};
use sluice_xdr::control::ctl_health;

use crate::shared::Shared;

/// A device that owes an answer for so long has failed: clients stop being served after as long without contact.
const SILENT: Duration = Duration::from_secs(15);

/// The same of a block written over in place. That waits for nothing that is to be flushed, but others may be before it: in the
/// queue of a device that is used hard, for seconds; in the journal of its file system, where that is full. And who freezes a file
/// system for a snapshot needs some seconds, too.
const UNWRITTEN: Duration = Duration::from_secs(30);

/// Nobody can be served. A client that waits for its answer waits for ever, and asks nobody else: NFSv3 has no way to tell it.
pub(super) fn hangs(vitals: &Vitals) -> bool {
    vitals.silent >= SILENT || vitals.unwritten >= UNWRITTEN
}

/// The worst of what is known, and what that is.
pub(super) fn judge(flush_failures: u64, vitals: &Vitals) -> (ctl_health, String) {
    let Vitals { capacity, journal, probe, silent, unwritten } = vitals;
    let failing = |detail| (ctl_health::HEALTH_FAILING, detail);
    let full = |what| (ctl_health::HEALTH_FULL, format!("no {what}"));
    let refuses_writes = |error: &Option<StoreError>| matches!(error, Some(StoreError::ReadOnly));
    if flush_failures > 0 {
        return failing(format!("{flush_failures} flushes failed since the start"));
    }
    if *silent >= SILENT {
        return failing(format!("the device has not answered for {} s", silent.as_secs()));
    }
    if hangs(vitals) {
        let seconds = unwritten.as_secs();
        return failing(format!("the device answers, and has not taken a small write for {seconds} s"));
    }
    if capacity.is_some_and(|capacity| capacity.read_only) || refuses_writes(probe) || refuses_writes(journal)
    {
        return (ctl_health::HEALTH_READ_ONLY, "the file system of the device is read-only".to_owned());
    }
    if let Some(error) = probe {
        return failing(format!("a probe of the device, after an error, failed: {error}"));
    }
    match journal {
        Some(StoreError::NoSpace) => return full("space left for the fence journal"),
        Some(error) => return failing(format!("the fence journal cannot be written: {error}")),
        None => {}
    }
    match capacity {
        // The answer may come yet.
        None if !silent.is_zero() => (ctl_health::HEALTH_OK, String::new()),
        Some(capacity) if capacity.total > 0 => {
            if capacity.free == 0 {
                full("space left above the reserve")
            } else if capacity.more_files == 0 {
                full("inodes left above the reserve")
            } else {
                (ctl_health::HEALTH_OK, String::new())
            }
        }
        _ => failing("the device does not tell its capacity".to_owned()),
    }
}

/// Says a change once, for who reads the log.
pub(super) fn tell(shared: &Shared, health: ctl_health, detail: &str) {
    let before = std::mem::replace(&mut *shared.health.lock(), health);
    let store = shared.store.place();
    match health {
        same if same == before => {}
        ctl_health::HEALTH_OK => tracing::info!(%store, "health is ok again"),
        _ => tracing::warn!(%store, ?health, detail, "health changed"),
    }
}

#[cfg(test)]
mod tests {
    use sluice_store::Capacity;

    use super::*;

    #[test]
    fn the_worst_is_told() {
        use ctl_health as h;
        let space = Capacity { total: 100, free: 50, more_files: 9, ..Capacity::default() };
        let well = Vitals { capacity: Some(space), ..Vitals::default() };
        let with = |change: &dyn Fn(&mut Vitals)| {
            let mut vitals = well.clone();
            change(&mut vitals);
            judge(0, &vitals)
        };
        let capacity = |change: &dyn Fn(&mut Capacity)| with(&|v| v.capacity.iter_mut().for_each(change));
        let io = || Some(StoreError::Io("bad".to_owned()));
        let second = Duration::from_secs(1);

        assert_eq!(judge(0, &well), (h::HEALTH_OK, String::new()));
        for (judged, health, word) in [
            (judge(2, &well), h::HEALTH_FAILING, "2 flushes"),
            (with(&|v| v.silent = SILENT), h::HEALTH_FAILING, "15 s"),
            (with(&|v| v.silent = SILENT - second), h::HEALTH_OK, ""),
            (with(&|v| v.unwritten = UNWRITTEN), h::HEALTH_FAILING, "small write for 30 s"),
            (with(&|v| v.unwritten = UNWRITTEN - second), h::HEALTH_OK, ""),
            (with(&|v| (v.capacity, v.silent) = (None, second)), h::HEALTH_OK, ""),
            (with(&|v| v.capacity = None), h::HEALTH_FAILING, "capacity"),
            (capacity(&|c| c.total = 0), h::HEALTH_FAILING, "capacity"),
            (capacity(&|c| c.read_only = true), h::HEALTH_READ_ONLY, "read-only"),
            (with(&|v| v.probe = Some(StoreError::ReadOnly)), h::HEALTH_READ_ONLY, "read-only"),
            (with(&|v| v.journal = Some(StoreError::ReadOnly)), h::HEALTH_READ_ONLY, "read-only"),
            (with(&|v| v.probe = io()), h::HEALTH_FAILING, "probe"),
            (with(&|v| v.journal = io()), h::HEALTH_FAILING, "journal"),
            (with(&|v| v.journal = Some(StoreError::NoSpace)), h::HEALTH_FULL, "journal"),
            (capacity(&|c| c.free = 0), h::HEALTH_FULL, "space"),
            (capacity(&|c| c.more_files = 0), h::HEALTH_FULL, "inodes"),
            // The worse one, where there are two.
            (with(&|v| (v.probe, v.journal) = (io(), Some(StoreError::NoSpace))), h::HEALTH_FAILING, "probe"),
            (with(&|v| (v.probe, v.journal) = (io(), Some(StoreError::ReadOnly))), h::HEALTH_READ_ONLY, ""),
        ] {
            assert!(judged.0 == health && judged.1.contains(word), "{judged:?}, not {health:?} {word}");
        }
    }
}
