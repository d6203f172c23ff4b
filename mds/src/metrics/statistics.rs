//! Everything that is counted, at one moment, for whoever shows it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use sluice_kv::Room;
use sluice_namespace::stable_storage::statistic;
use sluice_namespace::{FsError, Statistic};
use sluice_state::lease::LeaseState;
use sluice_xdr::control::ctl_capacity;

use super::OperationSnapshot;
use crate::server::Mds;

/// A metadata server at one moment; counters count from its start.
#[derive(Clone, Debug)]
pub struct Statistics {
    pub version: String,
    pub in_grace: bool,
    pub files: u64,
    pub used_bytes: u64,
    pub degraded_files: u64,
    pub proxied_read: u64,
    pub proxied_written: u64,
    pub inline_read: u64,
    pub inline_written: u64,
    pub layouts_granted: u64,
    /// Files that began at data servers because those before them became large, and became so; and those that did not.
    pub foreseen: u64,
    pub misjudged: u64,
    pub layouts_returned: u64,
    pub layouts_revoked: u64,
    pub recalls_sent: u64,
    pub layout_errors: u64,
    pub healed_files: u64,
    pub healed_bytes: u64,
    pub transactions: u64,
    pub transaction_groups: u64,
    pub conflicts: u64,
    pub views: u64,
    pub reads: u64,
    /// Of the device under the store, where it is known.
    pub room: Option<Room>,
    /// The moment that the newest complete dump shows, in seconds since 1970, if one is known of.
    pub last_dump: Option<i64>,
    /// Of the balance that was asked for last.
    pub balance: Option<BalanceStatistics>,
    pub orders: u64,
    pub reports: u64,
    pub operations: Vec<OperationSnapshot>,
    /// By the state of their leases.
    pub clients: [(&'static str, u64); 4],
    pub sessions: u64,
    pub opens: u64,
    pub locks: u64,
    pub layouts: u64,
    /// By client address, of those that sent any.
    pub proxied_by: BTreeMap<String, u64>,
    /// By reason, as `sluice why` names them.
    pub proxied_because: BTreeMap<&'static str, u64>,
    pub data_servers: Vec<DataServerStatistics>,
    pub quotas: QuotaStatistics,
}

/// Of quotas; what is looked for every now and then is as the last look found it.
#[derive(Clone, Debug)]
pub struct QuotaStatistics {
    /// Limits set, of whatever kind.
    pub set: u64,
    /// Users, groups and trees above a soft limit, and those that can add nothing more.
    pub above_soft: u64,
    pub full: u64,
    /// What was there before is still being counted.
    pub counting: bool,
    /// Since the start, by the kind of limit.
    pub refused: [(&'static str, u64); 3],
}

/// Data servers that are balanced, or were.
#[derive(Clone, Debug)]
pub struct BalanceStatistics {
    pub running: bool,
    /// Bytes, of one that goes on, once it is known.
    pub left: Option<u64>,
    pub moved_files: u64,
    pub moved_bytes: u64,
    /// Files that could not be moved when it was tried last.
    pub held: u64,
}

/// A data server as the metadata server sees it.
#[derive(Clone, Debug)]
pub struct DataServerStatistics {
    pub id: u16,
    pub connected: bool,
    pub health: &'static str,
    pub capacity: ctl_capacity,
    pub class: Option<String>,
    /// Data files, and bytes in them, that are left to move while it is drained, once they were counted.
    pub left: Option<(u64, u64)>,
}

impl Mds {
    /// Everything there is to show.
    ///
    /// # Errors
    /// The metadata store does not answer.
    pub async fn statistics(&self) -> Result<Statistics, FsError> {
        let (files, used_bytes, degraded_files) = self.totals().await?;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (metrics, work) = (&self.metrics, self.db.work());
        let mut all = Statistics {
            version: self.config.version.clone(),
            in_grace: self.in_grace(),
            files,
            used_bytes,
            degraded_files,
            proxied_read: get(&metrics.proxied_read),
            proxied_written: get(&metrics.proxied_written),
            inline_read: get(&metrics.inline_read),
            inline_written: get(&metrics.inline_written),
            layouts_granted: get(&metrics.layouts_granted),
            foreseen: get(&metrics.foreseen),
            misjudged: get(&metrics.misjudged),
            layouts_returned: get(&metrics.layouts_returned),
            layouts_revoked: get(&metrics.layouts_revoked),
            recalls_sent: get(&metrics.recalls_sent),
            layout_errors: get(&metrics.layout_errors),
            healed_files: get(&metrics.healed_files),
            healed_bytes: get(&metrics.healed_bytes),
            transactions: work.transactions,
            transaction_groups: work.groups,
            conflicts: work.conflicts,
            views: work.views,
            reads: work.reads,
            room: self.db.room(),
            last_dump: self.dumped.get().map(|newest| newest.seconds),
            balance: self.balance_statistics(),
            orders: self.data_servers.orders(),
            reports: get(&metrics.reports),
            operations: metrics.operations.snapshot(),
            clients: ["active", "silent", "ending", "unconfirmed"].map(|state| (state, 0)),
            sessions: 0,
            opens: 0,
            locks: 0,
            layouts: 0,
            proxied_by: BTreeMap::new(),
            proxied_because: self.proxied.bytes_by_reason(),
            data_servers: Vec::new(),
            quotas: self.quotas.statistics(),
        };
        self.count_clients(&mut all);
        all.data_servers = self.data_servers.all().iter().map(|store| self.data_server(store)).collect();
        Ok(all)
    }

    /// Files, the bytes in them, and those with mirrors to heal.
    pub(crate) async fn totals(&self) -> Result<(u64, u64, u64), FsError> {
        self.read(|txn| {
            Box::pin(async move {
                let count = async |what| statistic(&txn, what).await;
                Ok((
                    count(Statistic::Files).await?,
                    count(Statistic::Bytes).await?,
                    count(Statistic::Degraded).await?,
                ))
            })
        })
        .await
    }

    fn count_clients(&self, all: &mut Statistics) {
        for info in self.client_infos() {
            let state = lease_words(info.confirmed, info.lease);
            for (name, count) in &mut all.clients {
                *count += u64::from(*name == state);
            }
            let usage = self.files.index().usage(info.id);
            all.sessions += u64::try_from(info.sessions.len()).unwrap_or(0);
            all.opens += u64::from(usage.opens);
            all.locks += u64::from(usage.locks);
            all.layouts += u64::from(usage.layouts);
            let sessions: Vec<_> = info.sessions.iter().filter_map(|id| self.clients.session(*id)).collect();
            let bytes = self.proxied.bytes_of(info.id);
            if bytes > 0 {
                let address = self.address_of(&sessions).map(|address| address.to_string());
                *all.proxied_by.entry(address.unwrap_or_else(|| "gone".to_owned())).or_default() += bytes;
            }
        }
    }

    fn balance_statistics(&self) -> Option<BalanceStatistics> {
        let numbers = self.balances.last()?.numbers(self.now());
        let (running, moved) = (numbers.is_running(), numbers.moved());
        Some(BalanceStatistics {
            running,
            left: numbers.left.filter(|_| running),
            moved_files: moved.data_files,
            moved_bytes: moved.bytes,
            held: u64::try_from(numbers.held.len()).unwrap_or(u64::MAX),
        })
    }

    fn data_server(&self, store: &crate::dsctl::StoreHandle) -> DataServerStatistics {
        let view = store.view();
        let drain = self.drains.of(store.id).map(|progress| progress.numbers(self.now()));
        let left = drain.and_then(|numbers| numbers.left);
        DataServerStatistics {
            id: store.id.0,
            connected: store.connection().is_some() && !view.lost,
            health: view.health.map_or("unknown", health_words),
            capacity: view.capacity,
            class: view.class.map(|class| class.to_string()),
            left: left.map(|left| (left.data_files, left.bytes)),
        }
    }
}

/// How a lease stands, in the word that people are shown.
pub(crate) fn lease_words(confirmed: bool, lease: LeaseState) -> &'static str {
    match lease {
        _ if !confirmed => "unconfirmed",
        LeaseState::Active => "active",
        LeaseState::Courtesy => "silent",
        LeaseState::Dead => "ending",
    }
}

fn health_words(health: sluice_xdr::control::ctl_health) -> &'static str {
    use sluice_xdr::control::ctl_health;
    match health {
        ctl_health::HEALTH_OK => "ok",
        ctl_health::HEALTH_FULL => "full",
        ctl_health::HEALTH_READ_ONLY => "read-only",
        _ => "failing",
    }
}
