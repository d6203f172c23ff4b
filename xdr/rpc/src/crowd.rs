//! Who gives up its place when all places are taken. One host that opens connections and says nothing must keep nobody out;
//! many clients behind one address, with several connections each, are to have as many as there is room for.
//!
//! In this order, and always who has been silent for longest:
//!
//! 1. who has not sent anything yet;
//! 2. who has not sent a whole record yet;
//! 3. of an address that has more than its part ([`Limits::part_of_address`](crate::Limits)), who has nothing under way.
//!
//! Peers that hold the cluster key stay.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use sluice_env::Monotonic;
use tokio::sync::Notify;

use crate::connection::Connection;

/// Nobody is sent away who was silent for less.
const SILENT: Duration = Duration::from_secs(10);
/// Connections that are sent away together: all have to be looked at to find the next.
const TOGETHER: usize = 64;
/// Between two looks at all of them.
const LOOK: Duration = Duration::from_millis(100);

/// Those who have not said yet what they speak, and what was found at the last look at the others.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    /// In the order in which they came.
    arriving: Mutex<BTreeMap<u64, Arrived>>,
    looked: Mutex<Looked>,
}

#[derive(Debug)]
struct Arrived {
    at: Monotonic,
    sent_away: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Looked {
    at: Option<Monotonic>,
    /// Places that were made then, and are not given to anybody yet.
    places: usize,
}

/// One who has not said yet what it speaks.
#[derive(Debug)]
pub(crate) struct Arriving<'a> {
    crowd: &'a Crowd,
    id: u64,
    /// Told when somebody else gets its place.
    pub(crate) sent_away: Arc<Notify>,
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        self.crowd.arriving.lock().remove(&self.id);
    }
}

impl Crowd {
    pub(crate) fn arrives(&self, id: u64, at: Monotonic) -> Arriving<'_> {
        let sent_away = Arc::new(Notify::new());
        self.arriving.lock().insert(id, Arrived { at, sent_away: Arc::clone(&sent_away) });
        Arriving { crowd: self, id, sent_away }
    }

    /// Makes a place; false if nobody is to go. `part`: what one address may have while others wait.
    pub(crate) fn makes_room(
        &self,
        now: Monotonic,
        part: usize,
        all: impl FnOnce() -> Vec<Arc<Connection>>,
    ) -> bool {
        let mut arriving = self.arriving.lock();
        if let Some(first) = arriving.first_entry()
            && now.since(first.get().at) >= SILENT
        {
            first.remove().sent_away.notify_one();
            return true;
        }
        drop(arriving);
        let mut looked = self.looked.lock();
        if looked.at.is_none_or(|at| now.since(at) >= LOOK) {
            let leaving = leaving(&all(), now, part);
            leaving.iter().for_each(|connection| connection.close());
            *looked = Looked { at: Some(now), places: leaving.len() };
        }
        let any = looked.places > 0;
        looked.places = looked.places.saturating_sub(1);
        any
    }
}

/// Who goes.
fn leaving(all: &[Arc<Connection>], now: Monotonic, part: usize) -> Vec<Arc<Connection>> {
    let mut held: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for connection in all {
        *held.entry(connection.peer().ip()).or_default() += 1;
    }
    let spoke = |connection: &Connection| connection.records.load(Ordering::Relaxed) > 0;
    let silent = |connection: &&Arc<Connection>| {
        let sends = spoke(connection) && connection.partial.load(Ordering::Relaxed);
        let stays = connection.is_secure() || connection.is_closed() || sends || !connection.is_idle();
        !stays && now.since(connection.active()) >= SILENT
    };
    let mut silent: Vec<_> = all.iter().filter(silent).collect();
    silent.sort_by_key(|connection| (spoke(connection), connection.active()));
    let goes = |connection: &&Arc<Connection>| {
        let Some(count) = held.get_mut(&connection.peer().ip()) else { return false };
        let goes = *count > part || !spoke(connection);
        *count -= usize::from(goes);
        goes
    };
    silent.into_iter().filter(goes).take(TOGETHER).map(Arc::clone).collect()
}
