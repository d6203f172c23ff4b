//! Data files outside of layouts: those that have lost their place in one, and those that were to get one, are removed. One that
//! some heal is to fill stays; while much is made anew that is nearly all of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sluice_env::Monotonic;
use sluice_namespace::{DataFileId, FsError, Spare, StoreId};
use sluice_xdr::control::ctl_data_file;

use super::garbage;
use super::sweep::Sweep;
use crate::dsctl;
use crate::server::Mds;

/// Rows looked at in a turn.
const BATCH: usize = 256;
/// What is remembered of those that are to be filled, and for how long: somebody may plan otherwise without saying so.
const MOST: usize = 1 << 16;
const REVIEW: Duration = Duration::from_secs(30);

type Place = (DataFileId, u16);

/// A walk over their table, and what it has found.
#[derive(Debug)]
pub(super) struct Spares {
    pub(super) sweep: Sweep<Place>,
    /// Those that were to be filled, and when that was seen.
    planned: BTreeMap<Place, Monotonic>,
}

impl Spares {
    pub(super) fn new(now: Monotonic) -> Self {
        Self { sweep: Sweep::new(now), planned: BTreeMap::new() }
    }

    /// Some may be removed now that were to be filled: [`Sweep::ask`].
    pub(super) fn ask(&mut self, before: u64) {
        self.planned.clear();
        self.sweep.ask(before);
    }

    /// The file is gone: nothing of it is to be filled any more.
    pub(super) fn forget(&mut self, id: DataFileId) {
        self.planned.extract_if((id, 0)..=(id, u16::MAX), |_, _| true).for_each(drop);
    }

    /// The rows behind `after`; where the next ones are.
    ///
    /// # Errors
    /// What the metadata store says.
    pub(super) async fn page(
        &mut self,
        mds: &Arc<Mds>,
        after: Option<Place>,
    ) -> Result<Option<Place>, FsError> {
        let (namespace, now) = (&mds.namespace, mds.env.clock.now());
        if after.is_none() {
            self.planned.retain(|_, seen| now.since(*seen) < REVIEW);
        }
        let rows =
            mds.read(|txn| Box::pin(async move { namespace.spares(&txn, after, BATCH).await })).await?;
        let Some(next) = rows.last().map(place) else { return Ok(None) };
        let is_planned =
            |spare: &Spare| self.planned.get(&place(spare)).is_some_and(|seen| now.since(*seen) < REVIEW);
        // Nothing comes of it where nothing can be removed now.
        let may = |spare: &&Spare| dsctl::can_remove(mds, spare.store) && !is_planned(spare);
        let rows: Vec<Spare> = rows.iter().filter(may).copied().collect();
        let (unwanted, planned) = judged(mds, &rows).await?;
        for spare in planned {
            if self.planned.len() < MOST {
                self.planned.insert(place(&spare), now);
            }
        }
        let gone = &remove(mds, unwanted).await;
        if !gone.is_empty() {
            mds.write(|mut txn| {
                Box::pin(async move {
                    gone.iter().for_each(|spare| namespace.spare_done(&mut txn, spare));
                    Ok(())
                })
            })
            .await?;
        }
        Ok(Some(next))
    }
}

fn place(spare: &Spare) -> Place {
    (spare.id, spare.slot)
}

/// Those that may go, and the others.
async fn judged(mds: &Arc<Mds>, spares: &[Spare]) -> Result<(Vec<Spare>, Vec<Spare>), FsError> {
    if spares.is_empty() {
        return Ok((Vec::new(), Vec::new()));
    }
    let namespace = &mds.namespace;
    mds.read(|txn| {
        Box::pin(async move {
            let (mut unwanted, mut planned) = (Vec::new(), Vec::new());
            for spare in spares {
                let may_go = namespace.spare_may_go(&txn, spare).await?;
                (if may_go { &mut unwanted } else { &mut planned }).push(*spare);
            }
            Ok((unwanted, planned))
        })
    })
    .await
}

/// Removes them where they are; those that are gone.
async fn remove(mds: &Arc<Mds>, mut spares: Vec<Spare>) -> Vec<Spare> {
    let mut by_store: BTreeMap<StoreId, Vec<ctl_data_file>> = BTreeMap::new();
    for spare in &spares {
        let (file, slot, generation) = (spare.id.0, spare.slot.into(), spare.generation.into());
        by_store.entry(spare.store).or_default().push(ctl_data_file { file, slot, generation });
    }
    let done = garbage::remove_at(mds, by_store).await;
    spares.retain(|spare| done.contains(&spare.store));
    spares
}
