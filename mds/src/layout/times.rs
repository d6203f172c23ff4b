//! Times that a client sets on a file whose data it has just written (`cp -p`, `tar`). It flushes the data
//! before the SETATTR, but the LAYOUTCOMMIT of that data follows at CLOSE (linux-client §5.1): were it to move
//! the times, nothing could ever be copied with them. So the data servers' counts of writes are noted with the
//! SETATTR, and a LAYOUTCOMMIT moves the times only if something was written since.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_namespace::{FsError, StoreId};
use sluice_state::ClientId;
use sluice_state::file::File;

use super::settle;
use crate::dsctl::{self, Observed};
use crate::files::FileEntry;
use crate::server::Mds;

/// Per data server: whatever was written after the times were set has a greater number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Noted(BTreeMap<StoreId, u64>);

impl Noted {
    /// `None` when a data server is silent: what it will turn out to have taken counts as new.
    fn of(observed: &Observed) -> Option<Self> {
        let newest = |(store, (_, newest)): (&StoreId, &(u64, u64))| (*store, *newest);
        observed.complete.then(|| Self(observed.writes.iter().map(newest).collect()))
    }

    /// Whether all that was written was written before.
    fn covers(&self, observed: &Observed) -> bool {
        let older = |(store, (last, _)): (&StoreId, &(u64, u64))| {
            self.0.get(store).is_some_and(|noted| last <= noted)
        };
        observed.complete && observed.writes.iter().all(older)
    }
}

/// What a SETATTR of times goes by.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// Where the data ends, for the transaction that sets the times: growth found later would move them.
    pub(crate) end: Option<u64>,
    noted: Option<Noted>,
}

impl Look {
    /// The transaction is durable. What was written meanwhile the GETATTR behind it looks for itself.
    pub(crate) fn done(self, entry: &FileEntry) {
        entry.set_times(self.noted);
    }
}

/// Before a SETATTR of times, with its ticket held: what was written by then. Nothing while nobody can write
/// under a layout, or when a data server is away: the times are set in any case.
///
/// # Errors
/// What the store says.
pub(crate) async fn look(mds: &Arc<Mds>, entry: &FileEntry) -> Result<Look, FsError> {
    // Before an earlier truncation is carried out, data servers show an end that is none.
    if !entry.peek(|file: &File| file.size_may_lag(ClientId(0))) || mds.is_uncut(entry.key.fileid) {
        return Ok(Look::default());
    }
    let inode = settle::inode(mds, entry.key).await?;
    let Ok(observed) = dsctl::observe(mds, &inode).await else { return Ok(Look::default()) };
    Ok(Look { end: Some(observed.size), noted: Noted::of(&observed) })
}

/// Whether a LAYOUTCOMMIT, with its ticket held, tells of nothing that was written after the times were set.
/// Where the data servers had to be asked for that, where the data ends.
///
/// # Errors
/// What the store says.
pub(crate) async fn stand(mds: &Arc<Mds>, entry: &FileEntry) -> Result<(bool, Option<u64>), FsError> {
    let Some(noted) = entry.times_set() else { return Ok((false, None)) };
    let inode = settle::inode(mds, entry.key).await?;
    let observed = dsctl::observe(mds, &inode).await.ok();
    let stand = observed.as_ref().is_some_and(|observed| noted.covers(observed));
    if !stand {
        entry.set_times(None);
    }
    Ok((stand, observed.map(|observed| observed.size)))
}
