//! What clients say about data servers: LAYOUTERROR, and the body of LAYOUTRETURN (RFC 8435 §9.1).
//!
//! A client whose layout failed asks for another at once. Handing out the same again would make it spin:
//! for a while the data server counts as away *for that client*, so that it reads another mirror, or goes
//! through this server. Whether the data server is lost to all is for its heartbeats to say.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sluice_namespace::StoreId;
use sluice_state::{ClientId, Time};
use sluice_xdr::nfs4::{device_error4, nfsstat4};

use super::device;
use crate::files::FileEntry;
use crate::metrics;
use crate::server::Mds;

/// How long a data server that failed a client is kept from it.
const AVOID: u64 = 30_000_000_000;
/// How long a data server that was full counts as full for the client.
const FULL: u64 = 5_000_000_000;
/// Pairs remembered; beyond it the oldest reports are dropped, which costs a retry.
const MOST: usize = 1 << 16;

/// Reports of all clients.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// Guarded by its own lock.
    pairs: Mutex<BTreeMap<(ClientId, StoreId), Report>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Report {
    /// Nothing there before this.
    avoid_until: Time,
    full_until: Time,
    told: bool,
}

/// What a client has found at a data server lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) failed: bool,
    pub(crate) full: bool,
}

impl Reports {
    pub(crate) fn finding(&self, now: Time, client: ClientId, store: StoreId) -> Finding {
        let pairs = self.pairs.lock();
        let report = pairs.get(&(client, store)).copied().unwrap_or_default();
        Finding { failed: now < report.avoid_until, full: now < report.full_until }
    }

    /// Takes a report; true when it is the first of its kind.
    fn add(&self, now: Time, client: ClientId, store: StoreId, full: bool) -> bool {
        let mut pairs = self.pairs.lock();
        if pairs.len() >= MOST {
            pairs.retain(|_, report| now < report.avoid_until.max(report.full_until));
        }
        if pairs.len() >= MOST {
            pairs.clear();
        }
        let report = pairs.entry((client, store)).or_default();
        if full {
            report.full_until = now.plus_nanos(FULL);
        } else {
            report.avoid_until = now.plus_nanos(AVOID);
        }
        !std::mem::replace(&mut report.told, true)
    }
}

/// Takes what a client says went wrong with its layout of a file.
pub(crate) fn take(mds: &Arc<Mds>, entry: &FileEntry, client: ClientId, errors: &[device_error4]) {
    metrics::add(&mds.metrics.layout_errors, u64::try_from(errors.len()).unwrap_or(0));
    let recalled = entry.peek(|file| file.layout_of(client)).is_some_and(|(_, recalled)| recalled);
    for error in errors {
        let Some(store) = device::store(&error.de_deviceid) else { continue };
        if !blames(error.de_status, recalled) || mds.data_servers.get(store).is_none() {
            continue;
        }
        let full = matches!(error.de_status, nfsstat4::NFS4ERR_NOSPC | nfsstat4::NFS4ERR_DQUOT);
        if mds.reports.add(mds.now(), client, store, full) {
            tracing::info!(
                ?client,
                data_server = store.0,
                status = ?error.de_status,
                operation = ?error.de_opnum,
                file = entry.key.fileid.0,
                "a client reports a data server"
            );
        }
    }
}

/// Whether it is the data server's fault.
fn blames(status: nfsstat4, recalled: bool) -> bool {
    match status {
        // A fence, or a handle that has had its time: a new layout brings a new one.
        nfsstat4::NFS4ERR_ACCESS | nfsstat4::NFS4ERR_STALE | nfsstat4::NFS4ERR_BADHANDLE => false,
        // Linux 7.3 reports I/O that it cancelled for our own recall in this way.
        nfsstat4::NFS4ERR_NXIO => !recalled,
        nfsstat4::NFS4_OK | nfsstat4::NFS4ERR_DELAY | nfsstat4::NFS4ERR_FBIG => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_told_once_and_wears_off() {
        let reports = Reports::default();
        let (client, store) = (ClientId(7), StoreId(3));
        let start = Time::from_secs(100);
        assert!(reports.add(start, client, store, false));
        assert!(!reports.add(start, client, store, true));
        assert_eq!(reports.finding(start, client, store), Finding { failed: true, full: true });
        assert_eq!(reports.finding(start, ClientId(8), store), Finding::default());
        let later = start.plus_secs(6);
        assert_eq!(reports.finding(later, client, store), Finding { failed: true, full: false });
        assert_eq!(reports.finding(start.plus_secs(31), client, store), Finding::default());
    }

    #[test]
    fn fences_and_our_own_recalls_are_nobodys_fault() {
        assert!(!blames(nfsstat4::NFS4ERR_ACCESS, false));
        assert!(!blames(nfsstat4::NFS4ERR_NXIO, true));
        assert!(blames(nfsstat4::NFS4ERR_NXIO, false));
        assert!(blames(nfsstat4::NFS4ERR_IO, true));
    }
}
