//! Where file data is and how clients are told.
//!
//! | module | what |
//! | --- | --- |
//! | `placement` | which data servers a file gets (pure) |
//! | `grant` | what a LAYOUTGET answers |
//! | `flexfiles` | layout bodies, by the client's kernel (pure) |
//! | `device` | device IDs and addresses |
//! | `ready` | what must be durable before data goes anywhere |
//! | `reason` | why there is no layout for somebody, and what goes through this server because of it |
//! | `reports` | what clients say about data servers |
//! | `commits` | LAYOUTCOMMITs of one file, gathered |
//! | `settle` | sizes are settled, never guessed |
//! | `times` | times that a writer sets, and its LAYOUTCOMMIT afterwards |
//! | `garbage` | data files of deleted files |
//! | `spares` | data files that lost their place in a layout |
//! | `sweep` | a walk over a table, page by page |
//! | `inline` | small files that are kept in the metadata, until they get data files |
//! | `classes` | which data servers a class means, and where what leaves one goes |
//! | `habits` | which directories' new files begin at data servers, because those before became large |
//! | `heal` | mirrors are made equal again, or anew |
//! | `census` | how much of which file is where: counted, never kept up to date |
//! | `drain` | a data server is emptied, and taken out |
//! | `balance` | fuller data servers give to emptier ones |
//! | `compare` | copies are compared, and made equal to the right one |
//! | `mirrors` | files that exist get more mirrors, or fewer |
//! | `maintenance` | what an administrator begins for many files, looks at, and stops |
//! | `missed` | files that something was not done with, by reason |
//! | `pace` | how fast data files are moved, and may be |

pub(crate) mod balance;
pub(crate) mod census;
pub(crate) mod classes;
pub(crate) mod commits;
pub(crate) mod compare;
pub(crate) mod device;
pub(crate) mod drain;
pub(crate) mod flexfiles;
pub(crate) mod garbage;
pub(crate) mod grant;
pub(crate) mod habits;
pub(crate) mod heal;
pub(crate) mod inline;
pub(crate) mod maintenance;
pub(crate) mod mirrors;
pub(crate) mod missed;
pub(crate) mod pace;
pub(crate) mod placement;
pub(crate) mod ready;
pub(crate) mod reason;
pub(crate) mod reports;
pub(crate) mod settle;
mod spares;
mod sweep;
pub(crate) mod times;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sluice_namespace::{Layout, LayoutPolicy, StoreId};
use sluice_xdr::nfs4::nfsstat4;

use crate::dsctl::{Placing, StoreHandle};
use crate::error::fs_status;
use crate::server::Mds;
use placement::{Candidate, Wanted};

/// Nanoseconds after which it is said again that a file found no place.
const UNPLACED_AGAIN: u64 = 60 * 1_000_000_000;

/// Chooses data servers for a new file under `policy` and names its data files. No round trip.
///
/// # Errors
/// NOSPC when every data server is full (or fewer take new files than there are to be mirrors), DELAY when
/// none is registered yet or one that is away may have room.
pub(crate) async fn place(mds: &Arc<Mds>, policy: &LayoutPolicy, stripes: bool) -> Result<Placed, nfsstat4> {
    place_beside(mds, policy, stripes, |_| false).await
}

/// The same without the data servers that have just `refused`.
///
/// # Errors
/// As [`place`].
pub(crate) async fn place_beside(
    mds: &Arc<Mds>,
    policy: &LayoutPolicy,
    stripes: bool,
    refused: impl Fn(StoreId) -> bool + Send,
) -> Result<Placed, nfsstat4> {
    let Candidates { list: mut candidates, placing } = candidates(mds);
    let wanted = classes::wanted(mds, policy.class);
    candidates.retain(|candidate| wanted.takes(candidate.class) && !refused(candidate.store));
    let policy = placement::for_maker(with_mirrors(mds, *policy), stripes);
    let mirrors = policy.mirrors;
    if candidates.is_empty() {
        return Err(nobody(mds, mirrors.into(), 0, wanted, refused));
    }
    if mirrors > 1 {
        placement::interleave(&mut candidates);
    }
    let id = mds.next_data_file().await.map_err(|error| fs_status(&error))?;
    let placed = placement::place(id, policy, &candidates, turn(mds), mds.config.first_component);
    placed
        .map(|layout| Placed { layout, placing })
        .ok_or_else(|| nobody(mds, mirrors.into(), candidates.len(), wanted, refused))
}

/// How many copies there are to be where a policy says nothing of it.
pub(crate) fn with_mirrors(mds: &Mds, policy: LayoutPolicy) -> LayoutPolicy {
    let mirrors = if policy.mirrors == 0 { mds.config.policy.mirrors } else { policy.mirrors };
    LayoutPolicy { mirrors, ..policy }
}

/// The same placement with fresh data files, for a truncation to zero.
///
/// # Errors
/// As [`place`]; what the store says when names run out.
pub(crate) async fn fresh(mds: &Arc<Mds>, old: &Layout) -> Result<Placed, nfsstat4> {
    let id = mds.next_data_file().await.map_err(|error| fs_status(&error))?;
    let Candidates { list, placing } = candidates(mds);
    let mirrors = old.components.iter().map(|component| component.mirrors).max().unwrap_or_default();
    let like = |store| classes::like(mds, store);
    let wanted = old.data_files().next().map_or(Wanted::Any, |file| like(file.store));
    let layout = placement::renewed(id, old, &list, turn(mds), like)
        .ok_or_else(|| nobody(mds, mirrors, wanted.among(&list).count(), wanted, |_| false))?;
    Ok(Placed { layout, placing })
}

/// A layout for the transaction that takes it. A data server that is drained waits for it: `placing` is kept until
/// the transaction is over.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) layout: Layout,
    pub(crate) placing: Placing,
}

/// Data servers to choose from, until what was chosen is in the store.
#[derive(Debug)]
pub(crate) struct Candidates {
    pub(crate) list: Vec<Candidate>,
    pub(crate) placing: Placing,
}

/// The data servers that take new files, in the order of their stores.
pub(crate) fn candidates(mds: &Mds) -> Candidates {
    // Before any of them is looked at: one that is drained from now on waits for this choice, or is not in it.
    let placing = mds.data_servers.placing();
    let candidate = |store: Arc<StoreHandle>| {
        store.update(|view| {
            let (free_bytes, host, class) = (view.capacity.free_bytes, view.host(), view.class);
            let usable = view.serves() && view.takes_new();
            usable.then_some(Candidate { store: store.id, free_bytes, host, class })
        })
    };
    let list = mds.data_servers.known().into_iter().filter_map(candidate).collect();
    Candidates { list, placing }
}

/// Files take turns at the data servers.
pub(crate) fn turn(mds: &Mds) -> u64 {
    mds.data_servers.cursor.fetch_add(1, Ordering::Relaxed)
}

/// So much of what goes away from a data server was copied: how long to wait before more is, where there is a limit.
pub(crate) fn pause(mds: &Mds, store: StoreId, copied: u64) -> Duration {
    mds.drains.pause(mds, store, copied).max(mds.balances.pause(mds, store, copied))
}

/// Why there is no place for `mirrors` where `usable` take new files: a data server that is `wanted` and away may have some, full
/// ones and those that have just `refused` have none, and others do not count. An administrator may not look at what clients are
/// told.
fn nobody(
    mds: &Mds,
    mirrors: u16,
    usable: usize,
    wanted: Wanted,
    refused: impl Fn(StoreId) -> bool,
) -> nfsstat4 {
    let now = mds.now();
    let mut told = mds.data_servers.unplaced.lock();
    if told.is_none_or(|before| now.since(before) > UNPLACED_AGAIN) {
        *told = Some(now);
        let class = match wanted {
            Wanted::Of(class) => class.map(tracing::field::display),
            Wanted::Any => None,
        };
        tracing::warn!(
            mirrors = mirrors.max(1),
            data_servers = usable,
            class,
            "a new file found no place: its policy wants more mirrors than data servers take new files; see sluice ds list and sluice policy"
        );
    }
    drop(told);
    let mut known = mds.data_servers.all();
    known.retain(|store| store.is_active());
    // Of a class that no data server has, none is away either.
    let is_first = known.is_empty();
    known.retain(|store| wanted.takes(store.class()));
    if !is_first && known.iter().all(|store| store.serves() || refused(store.id)) {
        nfsstat4::NFS4ERR_NOSPC
    } else {
        nfsstat4::NFS4ERR_DELAY
    }
}
