//! Data servers: what they hold, and how they are emptied and taken out.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use sluice_namespace::stable_storage::StoreState;
use sluice_namespace::{InodeKey, StoreId};
use sluice_xdr::control::*;

use super::Admin;
use crate::dsctl::StoreHandle;
use crate::layout::census::{self, Alone, Amount, Census};
use crate::layout::drain::change::{self, Refusal};
use crate::layout::drain::progress::Numbers;
use crate::layout::heal::older::{self, Accepted};
use crate::server::Mds;

/// Files named at most.
const EXAMPLES: usize = 10;

/// What `sluice status` says of a data server that is emptied; "" of others.
pub(super) fn drain_words(mds: &Mds, id: StoreId) -> String {
    let Some(numbers) = mds.drains.of(id).map(|progress| progress.numbers(mds.now())) else {
        return String::new();
    };
    match numbers.left {
        _ if numbers.row.done => "drained".to_owned(),
        Some(left) => format!("draining, {} data files left", left.data_files),
        None => "draining".to_owned(),
    }
}

impl Admin {
    pub(super) async fn servers(&self) -> ADMIN_SERVERS_res {
        let mds = &self.mds;
        census::refresh(mds);
        let census = mds.counting.last();
        let mut servers = Vec::new();
        for store in mds.data_servers.all() {
            servers.push(self.server(&store, census.as_deref()).await);
        }
        let counting = mds.counting.running().into_iter().collect();
        ADMIN_SERVERS_res::CTL_OK(ADMIN_SERVERS_resok { servers, counting })
    }

    async fn server(&self, store: &Arc<StoreHandle>, census: Option<&Census>) -> ctl_server {
        let mds = &self.mds;
        let numbers = mds.drains.of(store.id).map(|progress| progress.numbers(mds.now()));
        let intent = match &numbers {
            Some(numbers) if numbers.row.done => ctl_intent::INTENT_DRAINED,
            None if store.view().intent == StoreState::Active => ctl_intent::INTENT_ACTIVE,
            _ => ctl_intent::INTENT_DRAINING,
        };
        let holds = census.map(|census| {
            let count = census.of(store.id);
            ctl_held {
                age_seconds: mds.now().since(census.ended) / 1_000_000_000,
                amount: wire(count.amount),
                alone: count.alone,
            }
        });
        let drain = match &numbers {
            Some(numbers) => vec![self.drain_of(numbers).await],
            None => Vec::new(),
        };
        ctl_server { status: self.data_server(store), intent, holds: holds.into_iter().collect(), drain }
    }

    async fn drain_of(&self, numbers: &Numbers) -> ctl_drain {
        let mut examples = Vec::new();
        for (key, why) in numbers.held.iter().take(EXAMPLES) {
            examples.push(self.named(key, why).await);
        }
        let row = &numbers.row;
        ctl_drain {
            since: row.since,
            limit: row.rate,
            all: ctl_amount { data_files: row.data_files, bytes: row.bytes },
            moved: wire(numbers.pace.moved),
            left: numbers.left.map(wire).into_iter().collect(),
            rate: wire(numbers.pace.rate),
            held: u64::try_from(numbers.held.len()).unwrap_or(u64::MAX),
            examples,
        }
    }

    pub(super) async fn named(&self, key: &InodeKey, reason: &str) -> ctl_named {
        let (namespace, key) = (&self.mds.namespace, *key);
        let name = self.mds.read(|txn| Box::pin(async move { namespace.first_name(&txn, &key).await })).await;
        ctl_named {
            file: key.fileid.0,
            name: name.ok().flatten().unwrap_or_default(),
            reason: Bytes::copy_from_slice(reason.as_bytes()),
        }
    }

    pub(super) async fn drain(&self, args: ADMIN_DRAIN_args, from: SocketAddr) -> ADMIN_DRAIN_res {
        let done = match store_id(args.id) {
            Err(refusal) => Err(refusal),
            Ok(id) if args.cancel => change::cancel(&self.mds, id).await,
            Ok(id) => change::begin(&self.mds, id, args.limit).await,
        };
        match done.map_err(refused) {
            Ok(()) => {
                let what = if args.cancel { "goes on with" } else { "drains" };
                tracing::info!(%from, data_server = args.id, "an administrator {what} a data server");
                ADMIN_DRAIN_res::CTL_OK
            }
            Err((status, reason)) => ADMIN_DRAIN_res::Default(status, reason),
        }
    }

    pub(super) async fn remove(&self, args: ADMIN_REMOVE_args, from: SocketAddr) -> ADMIN_REMOVE_res {
        let done = match store_id(args.id) {
            Err(refusal) => Err(refusal),
            Ok(id) if args.lost => change::remove_lost(&self.mds, id, args.agreed.first().copied()).await,
            Ok(id) => change::remove(&self.mds, id).await,
        };
        match done.map_err(refused) {
            Ok(loss) => {
                let mut examples = Vec::new();
                for file in loss.examples.iter().take(EXAMPLES) {
                    examples.push(self.named(&file.key, &with_others(file)).await);
                }
                let (removed, files) = (loss.removed, loss.files);
                if removed {
                    tracing::info!(%from, data_server = args.id, lost_files = files, "an administrator removed a data server");
                }
                ADMIN_REMOVE_res::CTL_OK(ADMIN_REMOVE_resok { removed, files, examples })
            }
            Err((status, reason)) => ADMIN_REMOVE_res::Default(status, reason),
        }
    }
}

impl Admin {
    pub(super) async fn accept_older(
        &self,
        args: ADMIN_ACCEPT_OLDER_args,
        from: SocketAddr,
    ) -> ADMIN_ACCEPT_OLDER_res {
        let done = match store_id(args.id) {
            Err(refusal) => Err(refusal),
            Ok(id) => older::accept(&self.mds, id).await,
        };
        match done.map_err(refused) {
            Ok(Accepted { mark, files }) => {
                tracing::info!(%from, data_server = args.id, "an administrator accepted an older copy of a data server's store");
                ADMIN_ACCEPT_OLDER_res::CTL_OK(ADMIN_ACCEPT_OLDER_resok { mark, files })
            }
            Err((status, reason)) => ADMIN_ACCEPT_OLDER_res::Default(status, reason),
        }
    }
}

/// Why that is the only one, where there was another copy.
fn with_others(file: &Alone) -> String {
    let names: Vec<String> = file.with.iter().map(|store| store.0.to_string()).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("its other copy is lost, too, with data server {}", names.join(" and ")),
    }
}

pub(super) fn store_id(id: u32) -> Result<StoreId, Refusal> {
    let none = || Refusal::No(format!("there is no data server {id}: sluice ds list shows them"));
    u16::try_from(id).map(StoreId).map_err(|_| none())
}

pub(super) fn refused(refusal: Refusal) -> (ctl_status, Bytes) {
    match refusal {
        Refusal::No(why) => (ctl_status::CTL_ERR_INVAL, why.into()),
        Refusal::NotYet(why) => (ctl_status::CTL_ERR_AGAIN, why.into()),
    }
}

pub(super) fn wire(amount: Amount) -> ctl_amount {
    ctl_amount { data_files: amount.data_files, bytes: amount.bytes }
}
