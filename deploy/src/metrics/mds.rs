//! What a metadata server shows.

use std::fmt;
use std::sync::{Arc, OnceLock};

use anyhow::Result;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use sluice_env::BoxFuture;
use sluice_mds::{BalanceStatistics, DataServerStatistics, Mds, QuotaStatistics, Statistics};
use sluice_rpc::{Admission, ProcedureSnapshot, Server};

use super::Source;
use super::page::{In, Label, Page, one};

const NFS4_PROGRAM: u32 = 100_003;

/// A metadata server to be scraped.
pub(crate) struct MdsSource {
    pub(crate) mds: Arc<Mds>,
    pub(crate) server: Arc<Server>,
}

/// A server that may have to wait for another to end before it serves.
#[derive(Default)]
pub(crate) struct Waiting(OnceLock<MdsSource>);

impl Waiting {
    /// It serves from now on.
    pub(crate) fn serves(&self, source: MdsSource) {
        drop(self.0.set(source));
    }
}

impl Source for Waiting {
    fn snapshot(&self) -> BoxFuture<'_, Result<Box<dyn Collector>, String>> {
        match self.0.get() {
            Some(source) => source.snapshot(),
            None => Box::pin(async { Ok(Box::new(Idle) as Box<dyn Collector>) }),
        }
    }
}

/// What such a server shows meanwhile.
#[derive(Debug)]
struct Idle;

impl Collector for Idle {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        runs(&mut Page(encoder), crate::VERSION, false)
    }
}

fn runs(page: &mut Page<'_>, version: &str, serves: bool) -> fmt::Result {
    let version = vec![("version", version.to_owned())];
    page.gauge("sluice_mds_info", In::Things, "Which software runs", [(version, 1u64)])?;
    let help = "1 while it answers clients; 0 while it waits for another metadata server to end";
    page.gauge("sluice_mds_serving", In::Things, help, one(u64::from(serves)))
}

impl Source for MdsSource {
    fn snapshot(&self) -> BoxFuture<'_, Result<Box<dyn Collector>, String>> {
        Box::pin(async move {
            let statistics = self.mds.statistics().await;
            let all = statistics.map_err(|error| format!("the metadata store does not answer: {error}"))?;
            let snapshot: Box<dyn Collector> =
                Box::new(Snapshot { all, admission: self.server.admission(), calls: self.server.metrics() });
            Ok(snapshot)
        })
    }
}

#[derive(Debug)]
struct Snapshot {
    all: Statistics,
    admission: Admission,
    calls: Vec<ProcedureSnapshot>,
}

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (mut page, all) = (Page(encoder), &self.all);
        runs(&mut page, &all.version, true)?;
        let help = "1 while clients reclaim after a restart";
        page.gauge("sluice_mds_grace", In::Things, help, one(u64::from(all.in_grace)))?;
        contents(&mut page, all)?;
        data_path(&mut page, all)?;
        layouts(&mut page, all)?;
        clients(&mut page, all)?;
        store(&mut page, all)?;
        quotas(&mut page, &all.quotas)?;
        data_servers(&mut page, &all.data_servers)?;
        balance(&mut page, all.balance.as_ref())?;
        operations(&mut page, all)?;
        let name = |procedure| match procedure {
            0 => Some("NULL"),
            1 => Some("COMPOUND"),
            _ => None,
        };
        page.connections("sluice_mds", self.admission)?;
        page.calls("sluice_mds", NFS4_PROGRAM, name, &self.calls)
    }
}

fn contents(page: &mut Page<'_>, all: &Statistics) -> fmt::Result {
    page.gauge("sluice_mds_files", In::Things, "Files", one(all.files))?;
    page.gauge("sluice_mds_used", In::Bytes, "Bytes in files, by their sizes", one(all.used_bytes))?;
    let help = "Files with mirrors to heal";
    page.gauge("sluice_mds_degraded_files", In::Things, help, one(all.degraded_files))?;
    let help = "Files whose mirrors were made equal again";
    page.counter("sluice_mds_healed_files", In::Things, help, one(all.healed_files))?;
    page.counter("sluice_mds_healed", In::Bytes, "Bytes written to heal mirrors", one(all.healed_bytes))
}

fn data_path(page: &mut Page<'_>, all: &Statistics) -> fmt::Result {
    let both = |read, write| {
        [("read", read), ("write", write)].map(|(way, bytes)| (vec![("direction", way.to_owned())], bytes))
    };
    let help = "Bytes that went through the metadata server instead of straight to a data server";
    page.counter("sluice_mds_proxied", In::Bytes, help, both(all.proxied_read, all.proxied_written))?;
    let help = "Bytes of files that are kept in the metadata";
    page.counter("sluice_mds_inline", In::Bytes, help, both(all.inline_read, all.inline_written))?;
    let help = "Bytes through the metadata server, by the client's address; of clients that are known now";
    let by = all.proxied_by.iter().map(|(client, bytes)| (vec![("client", client.clone())], *bytes));
    page.counter("sluice_mds_client_proxied", In::Bytes, help, by)?;
    let help = "Bytes that went through the metadata server, by the reason that `sluice why` gives";
    let by =
        all.proxied_because.iter().map(|(reason, bytes)| (vec![("reason", (*reason).to_owned())], *bytes));
    page.counter("sluice_mds_proxied_because", In::Bytes, help, by)
}

fn layouts(page: &mut Page<'_>, all: &Statistics) -> fmt::Result {
    let things = In::Things;
    page.counter("sluice_mds_layouts_granted", things, "LAYOUTGETs that gave one", one(all.layouts_granted))?;
    let foreseen = [("large", all.foreseen), ("small", all.misjudged)];
    let foreseen = foreseen.map(|(became, files)| (vec![("became", became.to_owned())], files));
    let help = "Files that began at data servers because those before them in their directory became large";
    page.counter("sluice_mds_foreseen_files", things, help, foreseen)?;
    let help = "LAYOUTRETURNs of a file that gave something back";
    page.counter("sluice_mds_layouts_returned", things, help, one(all.layouts_returned))?;
    let help = "Layouts taken away: not returned in time, or with the lease";
    page.counter("sluice_mds_layouts_revoked", things, help, one(all.layouts_revoked))?;
    page.counter("sluice_mds_recalls", things, "Recalls sent to clients", one(all.recalls_sent))?;
    let help = "Errors at data servers that clients reported";
    page.counter("sluice_mds_layout_errors", things, help, one(all.layout_errors))
}

fn clients(page: &mut Page<'_>, all: &Statistics) -> fmt::Result {
    let states = all.clients.map(|(state, count)| (vec![("state", state.to_owned())], count));
    page.gauge("sluice_mds_clients", In::Things, "Clients, by the state of their leases", states)?;
    page.gauge("sluice_mds_sessions", In::Things, "Sessions of clients", one(all.sessions))?;
    page.gauge("sluice_mds_opens", In::Things, "Opens that clients hold", one(all.opens))?;
    page.gauge("sluice_mds_locks", In::Things, "Lock stateids that clients hold", one(all.locks))?;
    page.gauge("sluice_mds_layouts", In::Things, "Layouts that clients hold", one(all.layouts))
}

fn store(page: &mut Page<'_>, all: &Statistics) -> fmt::Result {
    let things = In::Things;
    let help = "Transactions of the metadata store that wrote something";
    page.counter("sluice_mds_transactions", things, help, one(all.transactions))?;
    let help = "Flushes of the metadata store's device, each for a group of transactions";
    page.counter("sluice_mds_transaction_groups", things, help, one(all.transaction_groups))?;
    let help = "Attempts of transactions that lost against another";
    page.counter("sluice_mds_transaction_conflicts", things, help, one(all.conflicts))?;
    let help = "Transactions of the metadata store, and attempts, that read";
    page.counter("sluice_mds_read_versions", things, help, one(all.views))?;
    let help = "Reads of the metadata store, of a key or a range";
    page.counter("sluice_mds_reads", things, help, one(all.reads))?;
    // A device that does not tell has no series, rather than one that says 0.
    let room = || all.room.into_iter();
    let help = "Size of the device that the metadata is on; of a cluster, of the one that has the least left, by its share";
    page.gauge("sluice_mds_store_capacity", In::Bytes, help, room().map(|room| (Vec::new(), room.total)))?;
    let help = "Bytes that the metadata may still fill there";
    page.gauge("sluice_mds_store_free", In::Bytes, help, room().map(|room| (Vec::new(), room.free)))?;
    let help = "The moment that the newest complete dump shows, in seconds since 1970, as the commands that made dumps told; no series: none is known of";
    let dumped = all.last_dump.map(|seconds| (Vec::new(), seconds));
    page.gauge("sluice_mds_last_dump", In::Seconds, help, dumped)?;
    page.counter("sluice_mds_orders", things, "Calls to data servers", one(all.orders))?;
    page.counter("sluice_mds_reports", things, "Calls of data servers, heartbeats aside", one(all.reports))
}

fn quotas(page: &mut Page<'_>, all: &QuotaStatistics) -> fmt::Result {
    page.gauge("sluice_mds_quotas", In::Things, "Limits set, of users, groups and trees", one(all.set))?;
    let help = "Users, groups and trees above a soft limit, and those that can add nothing more; looked for every 30 s";
    let states = [("above-soft", all.above_soft), ("full", all.full)];
    let states = states.map(|(state, count)| (vec![("state", state.to_owned())], count));
    page.gauge("sluice_mds_quota_subjects", In::Things, help, states)?;
    let help = "1 while what was there before is being counted";
    page.gauge("sluice_mds_quota_counting", In::Things, help, one(u64::from(all.counting)))?;
    let help = "Operations refused for a limit, by the kind of it";
    let refused = all.refused.map(|(kind, count)| (vec![("kind", kind.to_owned())], count));
    page.counter("sluice_mds_quota_refused", In::Things, help, refused)
}

fn data_servers(page: &mut Page<'_>, all: &[DataServerStatistics]) -> fmt::Result {
    let named = |one: &DataServerStatistics| -> Vec<Label> { vec![("data_server", one.id.to_string())] };
    let up = all.iter().map(|one| (named(one), u64::from(one.connected)));
    page.gauge("sluice_mds_data_server_up", In::Things, "1 if the metadata server reaches it", up)?;
    let health = all.iter().flat_map(|one| {
        ["ok", "full", "read-only", "failing", "unknown"].map(|state| {
            let mut labels = named(one);
            labels.push(("health", state.to_owned()));
            (labels, u64::from(one.health == state))
        })
    });
    let help = "1 for the health that a data server last told of its device";
    page.gauge("sluice_mds_data_server_health", In::Things, help, health)?;
    let total = all.iter().map(|one| (named(one), one.capacity.total_bytes));
    page.gauge("sluice_mds_data_server_capacity", In::Bytes, "Size of its device", total)?;
    let free = all.iter().map(|one| (named(one), one.capacity.free_bytes));
    page.gauge("sluice_mds_data_server_free", In::Bytes, "Bytes left on its device", free)?;
    let classes = all.iter().filter_map(|one| {
        let mut labels = named(one);
        labels.push(("class", one.class.clone()?));
        Some((labels, 1u64))
    });
    let help = "1 for the class of a data server that has one; to multiply others with";
    page.gauge("sluice_mds_data_server_class", In::Things, help, classes)?;
    let drained = || all.iter().filter_map(|one| one.left.map(|left| (named(one), left)));
    let files = drained().map(|(labels, (files, _))| (labels, files));
    let help = "Data files left to move from one that is drained";
    page.gauge("sluice_mds_data_server_drain_files", In::Things, help, files)?;
    let bytes = drained().map(|(labels, (_, bytes))| (labels, bytes));
    let help = "Bytes left to move from one that is drained, holes counted";
    page.gauge("sluice_mds_data_server_drain", In::Bytes, help, bytes)
}

fn balance(page: &mut Page<'_>, all: Option<&BalanceStatistics>) -> fmt::Result {
    // Where none was ever asked for, none runs and there is nothing else to say.
    let running = all.is_some_and(|all| all.running);
    let help = "1 while data files go from fuller data servers to emptier ones";
    page.gauge("sluice_mds_balance_running", In::Things, help, one(u64::from(running)))?;
    let shown = |value: fn(&BalanceStatistics) -> Option<u64>| all.and_then(value).map(|n| (Vec::new(), n));
    let help = "Bytes that the balance under way has still to move, holes counted";
    page.gauge("sluice_mds_balance_left", In::Bytes, help, shown(|all| all.left))?;
    let help = "Data files that the balance that was asked for last has moved";
    page.gauge("sluice_mds_balance_moved_files", In::Things, help, shown(|all| Some(all.moved_files)))?;
    let help = "Bytes in them";
    page.gauge("sluice_mds_balance_moved", In::Bytes, help, shown(|all| Some(all.moved_bytes)))?;
    let help = "Files that it could not move when it was tried last";
    page.gauge("sluice_mds_balance_held_files", In::Things, help, shown(|all| Some(all.held)))
}

fn operations(page: &mut Page<'_>, all: &Statistics) -> fmt::Result {
    let counts = all.operations.iter().flat_map(|operation| {
        operation.statuses.iter().map(|(status, count)| {
            (vec![("operation", operation.name.to_owned()), ("status", status.clone())], *count)
        })
    });
    let help = "NFSv4 operations, by how they were answered; SEQUENCE is counted with COMPOUND";
    page.counter("sluice_mds_operations", In::Things, help, counts)?;
    let took = all.operations.iter().map(|operation| {
        let labels = vec![("operation", operation.name.to_owned())];
        (labels, operation.total.as_secs_f64(), operation.buckets.to_vec())
    });
    page.latency("sluice_mds_operation_duration", "How long an NFSv4 operation took", took)
}
