//! Why there is no layout for somebody, and what goes through this server because of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use sluice_namespace::{FileId, StoreId};
use sluice_state::{ClientId, Time};
use sluice_xdr::nfs4::nfsstat4;

use crate::server::Mds;

/// Why a client's data goes through this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// The configuration says so.
    Off,
    ReadOnlyExport,
    /// Its calls are sealed (krb5i, krb5p) on a connection in clear: what it would write to data servers and read there would not be.
    Sealed,
    /// The export or the ticket wants TLS, and a data server that is needed cannot ask for it, or not for a certificate.
    InClear(StoreId),
    /// The same, and this client speaks in clear with data servers.
    ClientInClear,
    /// The client has the file open through another export.
    OtherExport,
    /// Another mount of the same host has the layout, and one of the two writes.
    OtherMount,
    /// A data server that is needed does not serve now.
    Away(StoreId),
    /// It does not take writes.
    ReadOnly(StoreId),
    /// It was full for this client just now.
    Full(StoreId),
    /// This client wrote where the file is too long for a data server. What is sent through this one says so to the application.
    TooLong,
    /// No data server takes new files, or fewer than it is to have mirrors.
    NoPlace,
    /// This client failed there, by its own account, and is kept from it or does without it.
    Unreachable(StoreId),
    /// This client could not read or write what the data server has of the file, which answers otherwise.
    DataFile(StoreId),
    /// Data servers refused this client's handles of the file more than once.
    HandlesRefused,
    /// Its data is in the metadata.
    Inline,
    /// It has set-id bits, which a write may take away: no layout comes with OPEN, and none for whose writes they stay.
    SetId,
    /// It was opened for writing by who may not read it: with a layout it could be read at data servers.
    WriteOnly,
    /// Mirrors may differ, and are being made equal.
    Healing,
    /// It has mirrors and is several segments to this client, at whose ends Linux mixes them up.
    Segments,
    /// The owner, the group or the tree of the file has used up its quota.
    Quota,
    /// It holds as many layouts as it may, or all clients do together.
    TooMany,
    /// It has not asked for a layout of any file.
    NeverAsked,
    /// It has not asked for a layout of this file.
    NotAsked,
    /// It has a layout and does not use it.
    Unused,
}

impl Reason {
    /// What a LAYOUTGET is answered. Anything but these makes clients ask again for every request.
    pub(crate) fn status(self, mds: &Mds, file: FileId) -> nfsstat4 {
        match self {
            // The application is to hear of it; any other answer has the client try again for ever.
            Self::Full(_) | Self::NoPlace => nfsstat4::NFS4ERR_NOSPC,
            Self::Healing => mds.heals.refusal(file, mds.now()),
            // One that restarts is back in a moment, and what is proxied waits for it, too. Linux asks for no layout of
            // the file for two minutes after any other answer.
            Self::Away(store) if mds.data_servers.get(store).is_some_and(|store| !store.given_up()) => {
                nfsstat4::NFS4ERR_DELAY
            }
            _ => nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE,
        }
    }

    /// For programs.
    pub(crate) fn code(self) -> &'static str {
        match self {
            Self::Off => "layouts-off",
            Self::ReadOnlyExport => "read-only-export",
            Self::Sealed => "sealed",
            Self::InClear(_) => "data-server-in-clear",
            Self::ClientInClear => "client-in-clear",
            Self::OtherExport => "other-export",
            Self::OtherMount => "other-mount",
            Self::Away(_) => "data-server-away",
            Self::ReadOnly(_) => "data-server-read-only",
            Self::Full(_) => "data-server-full",
            Self::TooLong => "file-too-long",
            Self::NoPlace => "no-space",
            Self::Unreachable(_) => "unreachable-from-client",
            Self::DataFile(_) => "data-file-fails",
            Self::HandlesRefused => "handles-refused",
            Self::Inline => "inline",
            Self::SetId => "set-id",
            Self::WriteOnly => "write-only",
            Self::Healing => "healing",
            Self::Segments => "segments",
            Self::Quota => "quota",
            Self::TooMany => "too-many-layouts",
            Self::NeverAsked => "never-asked",
            Self::NotAsked => "not-asked",
            Self::Unused => "layout-unused",
        }
    }

    /// The data server that it is about.
    pub(crate) fn store(self) -> Option<StoreId> {
        match self {
            Self::Away(store)
            | Self::InClear(store)
            | Self::ReadOnly(store)
            | Self::Full(store)
            | Self::Unreachable(store)
            | Self::DataFile(store) => Some(store),
            _ => None,
        }
    }
}

/// Files whose refusals are remembered; beyond it all are forgotten, and what follows counts as not asked for.
const MOST: usize = 1 << 16;
/// Clients with anything to tell; beyond it the one that was served longest ago is forgotten.
const MOST_CLIENTS: usize = 1 << 12;

/// What went through this server since it started, by client and reason.
#[derive(Debug, Default)]
pub(crate) struct Proxied {
    book: Mutex<Book>,
    /// Refusals in the book. While there are none, a LAYOUTGET that is granted takes no lock.
    refusals: AtomicUsize,
}

#[derive(Debug, Default)]
struct Book {
    /// What the last LAYOUTGET was answered, if it was refused.
    refused: BTreeMap<(ClientId, FileId), Reason>,
    tallies: BTreeMap<ClientId, BTreeMap<Reason, Tally>>,
    /// Of all clients there ever were.
    bytes: BTreeMap<&'static str, u64>,
}

/// For one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) calls: u64,
    pub(crate) bytes: u64,
    /// When the last one came, and for which file.
    pub(crate) last: Time,
    pub(crate) file: FileId,
}

impl Proxied {
    /// A LAYOUTGET was refused.
    pub(crate) fn refused(&self, client: ClientId, file: FileId, reason: Reason) {
        let mut book = self.book.lock();
        if book.refused.len() >= MOST {
            book.refused.clear();
        }
        book.refused.insert((client, file), reason);
        self.refusals.store(book.refused.len(), Ordering::Relaxed);
    }

    /// A LAYOUTGET was granted.
    pub(crate) fn granted(&self, client: ClientId, file: FileId) {
        if self.refusals.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut book = self.book.lock();
        book.refused.remove(&(client, file));
        self.refusals.store(book.refused.len(), Ordering::Relaxed);
    }

    /// A READ or WRITE was served; `otherwise` is why if no refusal says it.
    pub(crate) fn count(&self, now: Time, client: ClientId, file: FileId, bytes: u64, otherwise: Reason) {
        if bytes == 0 {
            return;
        }
        let mut book = self.book.lock();
        let reason = book.refused.get(&(client, file)).copied().unwrap_or(otherwise);
        if book.tallies.len() >= MOST_CLIENTS && !book.tallies.contains_key(&client) {
            book.forget_one();
        }
        let tally = book.tallies.entry(client).or_default().entry(reason).or_default();
        tally.calls += 1;
        tally.bytes = tally.bytes.saturating_add(bytes);
        (tally.last, tally.file) = (now, file);
        *book.bytes.entry(reason.code()).or_default() += bytes;
    }

    /// By [`Reason::code`].
    pub(crate) fn bytes_by_reason(&self) -> BTreeMap<&'static str, u64> {
        self.book.lock().bytes.clone()
    }

    /// All bytes that a client sent through this server.
    pub(crate) fn bytes_of(&self, client: ClientId) -> u64 {
        self.of(client).iter().map(|(_, tally)| tally.bytes).sum()
    }

    /// What a client sent through this server, by reason.
    pub(crate) fn of(&self, client: ClientId) -> Vec<(Reason, Tally)> {
        let book = self.book.lock();
        let tallies = book.tallies.get(&client).into_iter().flatten();
        tallies.map(|(reason, tally)| (*reason, *tally)).collect()
    }
}

impl Book {
    fn forget_one(&mut self) {
        let last = |tallies: &BTreeMap<Reason, Tally>| tallies.values().map(|tally| tally.last).max();
        let oldest = self.tallies.iter().min_by_key(|(_, tallies)| last(tallies)).map(|(client, _)| *client);
        if let Some(client) = oldest {
            self.tallies.remove(&client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId(7);

    #[test]
    fn what_is_proxied_is_counted_under_the_last_refusal() {
        let (proxied, client) = (Proxied::default(), ClientId(1));
        let away = Reason::Away(StoreId(3));
        proxied.count(Time::from_secs(1), client, FILE, 10, Reason::NotAsked);
        proxied.refused(client, FILE, away);
        proxied.count(Time::from_secs(2), client, FILE, 20, Reason::NotAsked);
        proxied.count(Time::from_secs(3), client, FileId(8), 1, Reason::NotAsked);
        proxied.granted(client, FILE);
        proxied.count(Time::from_secs(4), client, FILE, 40, Reason::Unused);
        let tally = |calls, bytes, last, file| Tally { calls, bytes, last: Time::from_secs(last), file };
        let all = vec![
            (away, tally(1, 20, 2, FILE)),
            (Reason::NotAsked, tally(2, 11, 3, FileId(8))),
            (Reason::Unused, tally(1, 40, 4, FILE)),
        ];
        assert_eq!(proxied.of(client), all);
        proxied.count(Time::from_secs(5), ClientId(2), FILE, 0, Reason::Unused);
        assert_eq!((proxied.bytes_of(client), proxied.bytes_of(ClientId(2))), (71, 0));
        assert_eq!(proxied.of(ClientId(2)), Vec::new());
        let bytes = [("data-server-away", 20), ("layout-unused", 40), ("not-asked", 11)];
        assert_eq!(proxied.bytes_by_reason(), bytes.into());
    }

    #[test]
    fn the_book_has_an_end() {
        let proxied = Proxied::default();
        for n in 0..MOST_CLIENTS as u64 + 5 {
            proxied.count(Time(n), ClientId(n), FILE, 1, Reason::NotAsked);
        }
        for n in 0..MOST as u64 + 5 {
            proxied.refused(ClientId(n), FILE, Reason::Off);
        }
        assert!(proxied.of(ClientId(4)).is_empty() && proxied.of(ClientId(5)).len() == 1);
        let book = proxied.book.lock();
        assert!(book.tallies.len() == MOST_CLIENTS && book.refused.len() <= MOST);
    }
}
