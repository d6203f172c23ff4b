//! Checksums at rest: scrubs of the data servers, and what they found.

use sluice_xdr::control::*;

use super::Admin;
use crate::dsctl::{StoreHandle, damage_owner, scrub};

/// Damaged ranges named for each data server.
const EXAMPLES: usize = 100;

impl Admin {
    pub(super) async fn scrub(&self, args: ADMIN_SCRUB_args) -> ADMIN_SCRUB_res {
        let all = self.mds.data_servers.all();
        let meant: Vec<_> =
            all.into_iter().filter(|store| args.id == 0 || u32::from(store.id.0) == args.id).collect();
        if meant.is_empty() && args.id != 0 {
            let why = format!("there is no data server {}: sluice ds list shows them", args.id);
            return ADMIN_SCRUB_res::Default(ctl_status::CTL_ERR_INVAL, why.into());
        }
        let mut servers = Vec::with_capacity(meant.len());
        for store in meant {
            servers.push(self.scrub_of(&store, args.action).await);
        }
        ADMIN_SCRUB_res::CTL_OK(ADMIN_SCRUB_resok { servers })
    }

    async fn scrub_of(&self, store: &StoreHandle, action: ctl_scrub_action) -> ctl_scrub_of {
        let told = store.damage();
        let mut examples = Vec::new();
        for (id, damage) in told.some(EXAMPLES) {
            let owner = damage_owner(&self.mds, id).await.ok().flatten();
            let name = match &owner {
                Some(key) => self.named(key, "").await.name,
                None => bytes::Bytes::new(),
            };
            examples.push(ctl_damaged { damage, owner: owner.map_or(0, |key| key.fileid.0), name });
        }
        ctl_scrub_of {
            id: store.id.0.into(),
            scrub: scrub(store, action).await.into_iter().collect(),
            damaged: u64::try_from(told.ranges()).unwrap_or(u64::MAX),
            examples,
        }
    }
}
