//! How full the data servers are now, for a client that asks (statfs). Otherwise heartbeats tell it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluice_env::Monotonic;
use sluice_rpc::CallError;
use sluice_xdr::control::{DS_CAPACITY, ctl_capacity};
use tokio::sync::Mutex;

use super::StoreHandle;
use super::orders::call_over;
use crate::layout::garbage;
use crate::metrics;
use crate::server::Mds;

/// A data server that does not answer by then is taken as its last heartbeat said.
const PATIENCE: Duration = Duration::from_millis(250);
/// An answer is good for so long, if nothing was freed since by this server.
const FRESH: Duration = Duration::from_millis(200);

/// Looks at the capacity of all data servers.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// Held while one looks: others wait, and most of them need not look then.
    last: Mutex<Option<Look>>,
    /// Orders that may have freed space, and were carried out.
    freed: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct Look {
    began: Monotonic,
    /// [`Looks::freed`] at that time.
    freed: u64,
}

impl Look {
    /// Whether it says what one who came at `arrived` has to know, and asks now.
    fn serves(&self, arrived: Monotonic, now: Monotonic, freed: u64) -> bool {
        self.began >= arrived || (self.freed == freed && now.since(self.began) < FRESH)
    }
}

impl Looks {
    /// Data servers have freed space that they were told to.
    pub(super) fn freed(&self) {
        self.freed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Brings what is known of the data servers' capacity up to date, as far as they answer at once. What was removed
/// before is gone from them first, if that does not take long.
pub(crate) async fn look(mds: &Arc<Mds>) {
    garbage::worked_off(mds).await;
    let (looks, clock) = (&mds.data_servers.looks, &mds.env.clock);
    let arrived = clock.now();
    let mut last = looks.last.lock().await;
    let look = Look { began: clock.now(), freed: looks.freed.load(Ordering::Relaxed) };
    if last.is_some_and(|last| last.serves(arrived, look.began, look.freed)) {
        return;
    }
    let mut tasks = tokio::task::JoinSet::new();
    for store in mds.data_servers.all() {
        // One that was mute is not waited for again before it is heard of.
        if !store.update(|view| view.mute) {
            tasks.spawn(async move { ask(&store).await });
        }
    }
    while tasks.join_next().await.is_some() {}
    *last = Some(look);
}

async fn ask(store: &StoreHandle) {
    let Some(connection) = store.connection() else { return };
    metrics::add(&store.orders, 1);
    match call_over::<_, ctl_capacity>(&connection, DS_CAPACITY, &(), PATIENCE).await {
        Ok(capacity) if capacity.total_bytes > 0 => store.update(|view| view.capacity = capacity),
        Err(CallError::Timeout(_)) => store.update(|view| view.mute = true),
        // Its device does not tell, it knows no such call, or it has just gone.
        Ok(_) | Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_serves_who_came_before_it_and_for_a_moment_others() {
        let at = |millis: u64| Monotonic(millis * 1_000_000);
        let look = Look { began: at(1000), freed: 7 };
        assert!(look.serves(at(900), at(1250), 9), "it began later");
        assert!(look.serves(at(1001), at(1199), 7));
        assert!(!look.serves(at(1001), at(1200), 7), "too old");
        assert!(!look.serves(at(1001), at(1002), 8), "there is more space since");
    }
}
