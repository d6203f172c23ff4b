//! Layouts and delegations are asked back before there are too many of them (`sluice_state::pressure` says of whom).

use std::sync::Arc;
use std::time::Duration;

use sluice_state::ClientId;
use sluice_state::file::LayoutFilter;
use sluice_state::pressure::{Demand, Pressure, Recallable};

use crate::callback;
use crate::server::Mds;

/// Between two looks. What is granted in between is little beside what is left at seven eighths of a bound.
const PERIOD: Duration = Duration::from_secs(2);
/// Recalls at a time; the rest follows with the next look that finds the client unmoved.
const MOST: usize = 1024;

/// Runs for the life of the server.
pub(crate) async fn run(mds: Arc<Mds>) {
    let mut pressure = Pressure::default();
    loop {
        mds.env.clock.sleep(PERIOD).await;
        let holders = mds.files.index().usages();
        let patience = u64::try_from(mds.config.lease.as_nanos()).unwrap_or(u64::MAX);
        let limits = mds.config.limits;
        let bound = |what| match what {
            Recallable::Layouts => limits.layouts,
            Recallable::Delegations => limits.delegations,
        };
        for demand in pressure.look(mds.now(), patience, bound, &holders) {
            answer(&mds, demand).await;
        }
    }
}

async fn answer(mds: &Arc<Mds>, demand: Demand) {
    let (Demand::Ask { client, .. } | Demand::Recall { client, .. }) = demand;
    // What is kept out of courtesy alone goes first (§8.3).
    if mds.expel_if_courtesy(client).await {
        return;
    }
    match demand {
        Demand::Ask { client, what, keep } => {
            tracing::info!(?client, ?what, keep, "a client holds much, and is asked for some of it");
            mds.spawn(callback::recall_any(Arc::clone(mds), client, what, keep));
        }
        Demand::Recall { client, what, count } => {
            tracing::info!(?client, ?what, count, "a client has not given back enough; it is recalled");
            recall(mds, client, what, usize::try_from(count).unwrap_or(MOST).min(MOST));
        }
    }
}

/// The files that were made first, first: what was worked on lately is needed soonest.
fn recall(mds: &Arc<Mds>, client: ClientId, what: Recallable, count: usize) {
    let mut left = count;
    // Not within the loop's head, which would keep the index locked.
    let files = mds.files.index().files_of(client);
    for file in files {
        if left == 0 {
            return;
        }
        let Some(entry) = mds.files.get(file) else { continue };
        let effects = mds.step(&entry, Some(client), |file, ctx| {
            let effects = match what {
                Recallable::Layouts => file.recall_layouts(ctx, LayoutFilter::Client(client), false),
                Recallable::Delegations => file.recall_delegation(ctx, client),
            };
            (effects.len(), effects)
        });
        // Not there, or recalled before.
        left -= effects.min(1);
    }
}
