//! What clients say about data servers: LAYOUTERROR, and the body of LAYOUTRETURN (RFC 8435 §9.1).
//!
//! A client whose layout failed asks for another at once. The first time it gets one: a connection that broke
//! is soon made again, and other mirrors are read first. When that one fails, too, handing out the same again
//! would make it spin: for a while the data server counts as away *for that client*, which reads another mirror
//! or goes through this server. Whether the data server is lost to all is for its heartbeats to say. One that has come
//! back since is another device (`device.rs`), and is handed out at once: what was found before is forgotten, and what is
//! said of the device that it was before says nothing of it, however late that comes.
//!
//! Who was fenced off a file, because of a write without an answer or a layout that did not come back, may have more writes on
//! the way at data servers that are well. They are refused as they should be, and say nothing of the handles that came after.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sluice_namespace::{FileId, StoreId};
use sluice_state::{ClientId, Time};
use sluice_xdr::nfs4::{device_error4, deviceid4, nfsstat4};

use super::device;
use crate::files::FileEntry;
use crate::metrics;
use crate::server::Mds;

/// How long a data server that failed a client is kept from it.
const AVOID: u64 = 30_000_000_000;
/// How long Linux does without a data server that failed it (PNFS_DEVICE_RETRY_TIMEOUT), and goes through this one.
const DONE_WITHOUT: u64 = 120_000_000_000;
/// How long a data server that was full counts as full for the client and the file.
const FULL: u64 = 5_000_000_000;
/// For how long after the first layout that follows a fence what is refused is taken for what was sent before it.
const LATE: u64 = 10_000_000_000;
/// Pairs remembered; beyond it the oldest reports are dropped, which costs a retry.
const MOST: usize = 1 << 16;

/// Reports of all clients.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// Guarded by its own lock.
    pairs: Mutex<BTreeMap<(ClientId, Subject), Report>>,
}

/// What is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Store(StoreId),
    /// Handles of this file are refused: the client was fenced on it, and other files are none the worse.
    File(FileId),
    /// It had no room for more of this file. Others are perhaps written in place.
    Room(StoreId, FileId),
    /// A data server takes no file that is so long.
    Length(FileId),
    /// What it has of this file it does not read or write. It may be lost or in quarantine, and others are well.
    Data(StoreId, FileId),
}

#[derive(Clone, Copy, Debug, Default)]
struct Report {
    /// Nothing there before this.
    avoid_until: Time,
    /// It failed once, and until then a second time counts.
    suspect_until: Time,
    /// A layout with it was handed out since: what is said now is not about the first failure any more.
    tried_again: bool,
    full_until: Time,
    /// It failed, and until then the client may do without it.
    without_until: Time,
    /// Handles of before are cut off, and no layout was handed out since.
    fenced: bool,
    /// What is refused until then was sent before a fence.
    late_until: Time,
    told: bool,
}

impl Report {
    /// A failure, at `now`, that is not for want of room.
    fn failed(&mut self, now: Time) {
        self.without_until = now.plus_nanos(DONE_WITHOUT);
        if self.fenced || now < self.late_until {
            return;
        }
        if now < self.suspect_until && self.tried_again {
            self.avoid_until = now.plus_nanos(AVOID);
        } else if now >= self.suspect_until {
            (self.suspect_until, self.tried_again) = (now.plus_nanos(AVOID), false);
        }
    }
}

/// What a client has found at a data server lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) failed: bool,
    /// It failed once.
    pub(crate) suspect: bool,
    pub(crate) full: bool,
}

impl Reports {
    pub(crate) fn finding(&self, now: Time, client: ClientId, subject: Subject) -> Finding {
        let pairs = self.pairs.lock();
        let report = pairs.get(&(client, subject)).copied().unwrap_or_default();
        Finding {
            failed: now < report.avoid_until,
            suspect: now < report.suspect_until,
            full: now < report.full_until,
        }
    }

    /// What it has found lately at a data server that it is to read or write this file at.
    pub(crate) fn there(&self, now: Time, client: ClientId, store: StoreId, file: FileId) -> Finding {
        let of_store = self.finding(now, client, Subject::Store(store));
        let of_data = self.finding(now, client, Subject::Data(store, file));
        Finding {
            failed: of_store.failed || of_data.failed,
            suspect: of_store.suspect || of_data.suspect,
            full: false,
        }
    }

    /// What clients found out about data servers that still counts.
    pub(crate) fn all(&self, now: Time) -> Vec<(ClientId, StoreId, Finding)> {
        let pairs: Vec<_> = self.pairs.lock().keys().copied().collect();
        let mut found: BTreeMap<_, Finding> = BTreeMap::new();
        for (client, subject) in pairs {
            let (Subject::Store(store) | Subject::Room(store, _)) = subject else { continue };
            let finding = self.finding(now, client, subject);
            if finding.failed || finding.full {
                let of_store = found.entry((client, store)).or_default();
                of_store.failed |= finding.failed;
                of_store.full |= finding.full;
            }
        }
        found.into_iter().map(|((client, store), finding)| (client, store, finding)).collect()
    }

    /// The data server that a client may do without, by its own choice; the one that failed last.
    pub(crate) fn done_without(&self, now: Time, client: ClientId) -> Option<StoreId> {
        let pairs = self.pairs.lock();
        let all = (client, Subject::Store(StoreId(0)))..=(client, Subject::Store(StoreId(u16::MAX)));
        let failed = pairs.range(all).filter(|(_, report)| now < report.without_until);
        match failed.max_by_key(|(_, report)| report.without_until)?.0.1 {
            Subject::Store(store) => Some(store),
            Subject::File(_) | Subject::Room(..) | Subject::Length(_) | Subject::Data(..) => None,
        }
    }

    /// A layout with it goes to the client.
    pub(crate) fn handed_out(&self, now: Time, client: ClientId, subject: Subject) {
        if let Some(report) = self.pairs.lock().get_mut(&(client, subject)) {
            report.tried_again |= now < report.suspect_until;
            if std::mem::take(&mut report.fenced) {
                report.late_until = now.plus_nanos(LATE);
            }
        }
    }

    /// The client is being fenced off the file: what was refused so far, and what will be for a while, is no more than that.
    pub(crate) fn fenced(&self, now: Time, client: ClientId, file: FileId) {
        let mut pairs = self.pairs.lock();
        make_room(&mut pairs, now);
        let report = pairs.entry((client, Subject::File(file))).or_default();
        // The time is for `make_room`: the layout that follows begins it anew.
        *report =
            Report { fenced: true, late_until: now.plus_nanos(LATE), told: report.told, ..Report::default() };
    }

    /// A layout was returned without a complaint. If it was handed out after the failure, that is over.
    pub(crate) fn went_well(&self, now: Time, client: ClientId, subject: Subject) {
        if let Some(report) = self.pairs.lock().get_mut(&(client, subject))
            && report.tried_again
            && now >= report.avoid_until
        {
            (report.suspect_until, report.tried_again) = (now, false);
        }
    }

    /// The data server has come back: what was found before says nothing any more.
    pub(crate) fn forget(&self, store: StoreId) {
        let about = |subject: &Subject| match subject {
            Subject::Store(of) | Subject::Room(of, _) | Subject::Data(of, _) => *of == store,
            Subject::File(_) | Subject::Length(_) => false,
        };
        self.pairs.lock().retain(|(_, reported), _| !about(reported));
    }

    /// Takes a report; true when it is the first of its kind.
    fn add(&self, now: Time, client: ClientId, subject: Subject, full: bool) -> bool {
        let mut pairs = self.pairs.lock();
        make_room(&mut pairs, now);
        let report = pairs.entry((client, subject)).or_default();
        if full {
            report.full_until = now.plus_nanos(FULL);
        } else {
            report.failed(now);
        }
        !std::mem::replace(&mut report.told, true)
    }
}

/// For one more.
fn make_room(pairs: &mut BTreeMap<(ClientId, Subject), Report>, now: Time) {
    if pairs.len() >= MOST {
        pairs.retain(|_, report| {
            let until = report.avoid_until.max(report.full_until).max(report.suspect_until);
            now < until.max(report.without_until).max(report.late_until)
        });
    }
    if pairs.len() >= MOST {
        pairs.clear();
    }
}

/// Takes what a client says went wrong with its layout of a file.
pub(crate) fn take(mds: &Arc<Mds>, entry: &FileEntry, client: ClientId, errors: &[device_error4]) {
    metrics::add(&mds.metrics.layout_errors, u64::try_from(errors.len()).unwrap_or(0));
    let recalled = entry.peek(|file| file.layout_of(client)).is_some_and(|(_, recalled)| recalled);
    for error in errors {
        let Some(store) = device::store(&error.de_deviceid) else { continue };
        if !blames(error.de_status, recalled) || !is_now(mds, store, &error.de_deviceid) {
            continue;
        }
        let file = entry.key.fileid;
        let subject = match error.de_status {
            // A new layout brings new handles, unless the client is fenced for as long as its handles live.
            nfsstat4::NFS4ERR_ACCESS | nfsstat4::NFS4ERR_STALE | nfsstat4::NFS4ERR_BADHANDLE => {
                Subject::File(file)
            }
            nfsstat4::NFS4ERR_NOSPC | nfsstat4::NFS4ERR_DQUOT => Subject::Room(store, file),
            nfsstat4::NFS4ERR_FBIG => Subject::Length(file),
            // A device that fails is told of by heartbeats.
            nfsstat4::NFS4ERR_IO => Subject::Data(store, file),
            _ => Subject::Store(store),
        };
        // What is refused in words is not tried again to see whether it is so.
        let full = matches!(subject, Subject::Room(..));
        if mds.reports.add(mds.now(), client, subject, full) {
            tracing::info!(
                ?client,
                data_server = store.0,
                status = ?error.de_status,
                operation = ?error.de_opnum,
                file = file.0,
                "a client reports a data server"
            );
        }
    }
}

/// The data server is still the device that it was to whoever had that layout: it was not started anew, nor lost, since.
fn is_now(mds: &Mds, store: StoreId, reported: &deviceid4) -> bool {
    mds.data_servers.get(store).is_some_and(|store| device::id(&store) == *reported)
}

/// Whether it says anything about what is to be handed out next.
fn blames(status: nfsstat4, recalled: bool) -> bool {
    match status {
        // Linux 7.3 reports I/O that it cancelled for our own recall as NXIO, and handles die with a recall.
        nfsstat4::NFS4ERR_NXIO
        | nfsstat4::NFS4ERR_ACCESS
        | nfsstat4::NFS4ERR_STALE
        | nfsstat4::NFS4ERR_BADHANDLE => !recalled,
        nfsstat4::NFS4_OK | nfsstat4::NFS4ERR_DELAY => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_told_once_and_wears_off() {
        let reports = Reports::default();
        let (client, store) = (ClientId(7), Subject::Store(StoreId(3)));
        let start = Time::from_secs(100);
        assert!(reports.add(start, client, store, false));
        assert!(!reports.add(start, client, store, true));
        let once = Finding { suspect: true, full: true, failed: false };
        assert_eq!(reports.finding(start, client, store), once);
        assert_eq!(reports.finding(start, ClientId(8), store), Finding::default());
        let later = start.plus_secs(6);
        assert_eq!(reports.finding(later, client, store), Finding { full: false, ..once });
        assert_eq!(reports.finding(start.plus_secs(31), client, store), Finding::default());
    }

    #[test]
    fn what_a_client_does_without_is_known_for_as_long_as_it_does() {
        let reports = Reports::default();
        let (client, now) = (ClientId(7), Time::from_secs(100));
        let store = |number| Subject::Store(StoreId(number));
        assert_eq!(reports.done_without(now, client), None);
        reports.add(now, client, store(3), false);
        reports.add(now.plus_secs(1), client, store(2), false);
        reports.add(now.plus_secs(2), client, store(9), true);
        reports.add(now.plus_secs(3), client, Subject::File(FileId(1)), false);
        assert_eq!(reports.done_without(now.plus_secs(5), client), Some(StoreId(2)));
        assert_eq!(reports.done_without(now.plus_secs(5), ClientId(8)), None);
        assert_eq!(reports.done_without(now.plus_secs(122), client), None);
        reports.add(now.plus_secs(200), client, store(2), false);
        reports.forget(StoreId(2));
        assert_eq!(reports.done_without(now.plus_secs(201), client), None);
    }

    #[test]
    fn only_what_fails_again_is_kept_from_the_client() {
        let reports = Reports::default();
        let (client, store) = (ClientId(7), Subject::Store(StoreId(3)));
        let failed = |at| reports.finding(at, client, store).failed;
        let start = Time::from_secs(100);
        // Linux tells of one failure twice: in LAYOUTERROR and in LAYOUTRETURN.
        reports.add(start, client, store, false);
        reports.add(start.plus_secs(1), client, store, false);
        assert!(!failed(start.plus_secs(1)));
        reports.handed_out(start.plus_secs(1), client, store);
        reports.add(start.plus_secs(2), client, store, false);
        assert!(failed(start.plus_secs(2)) && failed(start.plus_secs(31)) && !failed(start.plus_secs(33)));
        // Long after, it is the first time again.
        reports.add(start.plus_secs(100), client, store, false);
        assert!(!failed(start.plus_secs(100)));
        reports.handed_out(start.plus_secs(101), client, store);
        reports.forget(StoreId(3));
        reports.add(start.plus_secs(101), client, store, false);
        assert!(!failed(start.plus_secs(101)));
    }

    #[test]
    fn what_went_well_in_between_is_not_held_against_anybody() {
        let reports = Reports::default();
        let (client, file) = (ClientId(7), Subject::File(FileId(3)));
        let now = Time::from_secs(100);
        reports.add(now, client, file, false);
        // The return of the layout that failed, after a LAYOUTERROR that said so.
        reports.went_well(now, client, file);
        assert!(reports.finding(now, client, file).suspect);
        reports.handed_out(now, client, file);
        reports.went_well(now, client, file);
        assert_eq!(reports.finding(now, client, file), Finding::default());
        for _ in 0..2 {
            reports.add(now, client, file, false);
            assert!(!reports.finding(now, client, file).failed);
            reports.handed_out(now, client, file);
            reports.went_well(now, client, file);
        }
        reports.add(now, client, file, false);
        reports.handed_out(now, client, file);
        reports.add(now, client, file, false);
        reports.went_well(now, client, file);
        assert!(reports.finding(now, client, file).failed);
    }

    #[test]
    fn what_is_refused_behind_a_fence_is_not_held_against_the_handles_that_follow() {
        let reports = Reports::default();
        let (client, file) = (ClientId(7), FileId(3));
        let refused = |at| {
            reports.add(at, client, Subject::File(file), false);
            reports.finding(at, client, Subject::File(file)).failed
        };
        let now = Time::from_secs(100);
        let again = |at| {
            reports.handed_out(at, client, Subject::File(file));
            refused(at)
        };
        // The first one may be known before the fence is asked for.
        assert!(!refused(now));
        reports.fenced(now, client, file);
        assert!(!refused(now.plus_secs(20)), "however long the fence takes");
        assert!(!again(now.plus_secs(21)) && !again(now.plus_secs(22)) && !again(now.plus_secs(30)));
        // What is refused for longer is refused for another reason.
        assert!(!again(now.plus_secs(31)) && again(now.plus_secs(32)));
        reports.fenced(now.plus_secs(33), client, file);
        assert!(!reports.finding(now.plus_secs(33), client, Subject::File(file)).failed);
    }

    #[test]
    fn what_our_own_recalls_do_is_nobodys_fault() {
        assert!(!blames(nfsstat4::NFS4ERR_ACCESS, true));
        assert!(blames(nfsstat4::NFS4ERR_ACCESS, false));
        assert!(!blames(nfsstat4::NFS4ERR_NXIO, true));
        assert!(blames(nfsstat4::NFS4ERR_NXIO, false));
        assert!(blames(nfsstat4::NFS4ERR_IO, true));
    }
}
