//! What happened between two looks, as rates.

use std::collections::BTreeMap;

use serde::Serialize;
use sluice_xdr::control::{ADMIN_ACTIVITY_resok, ADMIN_STATUS_resok, ctl_data_server_status, ctl_operation};

use crate::clients;
use crate::status::{address, health, text};

/// One look.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) status: ADMIN_STATUS_resok,
    pub(super) activity: ADMIN_ACTIVITY_resok,
}

/// A data server; bytes and calls a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct DataServer {
    pub(super) id: u32,
    pub(super) address: String,
    pub(super) health: &'static str,
    pub(super) used_bytes: u64,
    pub(super) total_bytes: u64,
    pub(super) read: f64,
    pub(super) written: f64,
    pub(super) calls: f64,
}

/// An operation that was asked for; times in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Operation {
    pub(super) name: String,
    pub(super) rate: f64,
    pub(super) errors: f64,
    pub(super) mean: f64,
    /// At most this, for 99 of 100: the upper end of its bucket.
    pub(super) p99: f64,
}

/// A client; calls and bytes a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Client {
    pub(super) id: String,
    pub(super) address: String,
    pub(super) name: String,
    pub(super) kernel: String,
    pub(super) state: String,
    pub(super) calls: f64,
    pub(super) opens: u32,
    pub(super) layouts: u32,
    pub(super) proxied: f64,
}

/// All of it, busiest first. Rates are 0 at the first look.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Rates {
    pub(super) listen: String,
    pub(super) uptime_seconds: u64,
    pub(super) files: u64,
    pub(super) used_bytes: u64,
    pub(super) degraded_files: u64,
    /// Operations, and transactions that wrote, a second.
    pub(super) operations_rate: f64,
    pub(super) commits: f64,
    /// Bytes a second at the data servers, and through the metadata server.
    pub(super) direct_read: f64,
    pub(super) direct_written: f64,
    pub(super) proxied: f64,
    pub(super) recalls: f64,
    pub(super) data_servers: Vec<DataServer>,
    pub(super) operations: Vec<Operation>,
    pub(super) clients: Vec<Client>,
}

/// Growth of a counter in so many seconds. One that fell began anew: its server was restarted.
fn rate(now: u64, then: Option<u64>, seconds: f64) -> f64 {
    match then.and_then(|then| now.checked_sub(then)) {
        #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
        Some(grown) if seconds > 0.0 => grown as f64 / seconds,
        _ => 0.0,
    }
}

/// The sum of no floats is -0.
fn sum(rates: impl Iterator<Item = f64>) -> f64 {
    rates.fold(0.0, |sum, rate| sum + rate)
}

impl Rates {
    pub(super) fn between(then: Option<&Sample>, now: &Sample) -> Self {
        // A restart in between: nothing to compare with.
        let then = then.filter(|then| then.activity.nanos < now.activity.nanos);
        #[expect(clippy::cast_precision_loss, reason = "an interval of seconds")]
        let seconds = then.map_or(0.0, |then| (now.activity.nanos - then.activity.nanos) as f64 / 1e9);
        let status = &now.status;
        let of = |count: fn(&ADMIN_STATUS_resok) -> u64| {
            rate(count(status), then.map(|then| count(&then.status)), seconds)
        };
        let data_servers: Vec<_> = status
            .data_servers
            .iter()
            .map(|server| {
                let before =
                    then.and_then(|then| then.status.data_servers.iter().find(|old| old.id == server.id));
                data_server(server, before, seconds)
            })
            .collect();
        let mut operations = operations(then.map(|then| &then.activity), &now.activity, seconds);
        operations.sort_by(|a, b| b.rate.total_cmp(&a.rate).then_with(|| a.name.cmp(&b.name)));
        let mut clients = client_rates(then, now, seconds);
        clients.sort_by(|a, b| b.calls.total_cmp(&a.calls).then_with(|| a.address.cmp(&b.address)));
        Self {
            listen: text(&status.listen),
            uptime_seconds: status.uptime_seconds,
            files: status.files,
            used_bytes: status.used_bytes,
            degraded_files: status.degraded_files,
            operations_rate: sum(operations.iter().map(|operation| operation.rate)),
            commits: of(|status| status.transactions),
            direct_read: sum(data_servers.iter().map(|server| server.read)),
            direct_written: sum(data_servers.iter().map(|server| server.written)),
            proxied: of(|status| status.proxied_bytes_read + status.proxied_bytes_written),
            recalls: of(|status| status.recalls_sent),
            data_servers,
            operations,
            clients,
        }
    }
}

fn data_server(
    now: &ctl_data_server_status,
    then: Option<&ctl_data_server_status>,
    seconds: f64,
) -> DataServer {
    let of = |count: fn(&ctl_data_server_status) -> u64| rate(count(now), then.map(count), seconds);
    DataServer {
        id: now.id,
        address: address(now),
        health: health(now),
        used_bytes: now.capacity.used_bytes,
        total_bytes: now.capacity.total_bytes,
        read: of(|server| server.counters.bytes_read),
        written: of(|server| server.counters.bytes_written),
        calls: of(|server| server.counters.reads + server.counters.writes + server.counters.commits),
    }
}

fn operations(
    then: Option<&ADMIN_ACTIVITY_resok>,
    now: &ADMIN_ACTIVITY_resok,
    seconds: f64,
) -> Vec<Operation> {
    let before: BTreeMap<_, _> =
        then.into_iter().flat_map(|then| &then.operations).map(|old| (&old.name, old)).collect();
    now.operations
        .iter()
        .map(|operation| {
            let old = before.get(&operation.name).copied();
            // What was not there before was counted from 0.
            let base = |count: fn(&ctl_operation) -> u64| then.map(|_| old.map_or(0, count));
            let grown =
                |count: fn(&ctl_operation) -> u64| count(operation).saturating_sub(old.map_or(0, count));
            let count = if then.is_some() { grown(|operation| operation.count) } else { 0 };
            Operation {
                name: text(&operation.name),
                rate: rate(operation.count, base(|operation| operation.count), seconds),
                errors: rate(operation.errors, base(|operation| operation.errors), seconds),
                #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
                mean: if count == 0 {
                    0.0
                } else {
                    grown(|operation| operation.nanos) as f64 / 1e9 / count as f64
                },
                p99: if count == 0 { 0.0 } else { quantile(operation, old, count) },
            }
        })
        .collect()
}

/// The upper end of the bucket that the slowest of 99 of 100 fell into, in seconds.
fn quantile(now: &ctl_operation, then: Option<&ctl_operation>, count: u64) -> f64 {
    let wanted = count - count / 100;
    let mut seen = 0;
    for (k, all) in now.buckets.iter().enumerate() {
        let before = then.and_then(|then| then.buckets.get(k)).copied().unwrap_or_default();
        seen += all.saturating_sub(before);
        if seen >= wanted {
            return f64::powi(2.0, i32::try_from(k).unwrap_or(i32::MAX)) / 1e6;
        }
    }
    f64::INFINITY
}

/// Calls of each client.
fn calls(sample: &Sample) -> BTreeMap<u64, u64> {
    sample.activity.clients.iter().map(|client| (client.client, client.calls)).collect()
}

/// Bytes of each client that went through the metadata server.
fn proxied(sample: &Sample) -> BTreeMap<u64, u64> {
    sample.status.clients.iter().map(|client| (client.client, client.proxied_bytes)).collect()
}

fn client_rates(then: Option<&Sample>, now: &Sample, seconds: f64) -> Vec<Client> {
    let (calls, calls_then) = (calls(now), then.map(calls));
    let proxied_then = then.map(proxied);
    let all = now.status.clients.iter().map(|client| {
        let id = client.client;
        // Who was not there before was counted from 0.
        let of = |counts: &BTreeMap<u64, u64>| counts.get(&id).copied().unwrap_or(0);
        Client {
            id: clients::id(id),
            address: text(&client.address),
            name: clients::printable(&client.name),
            kernel: clients::printable(&client.kernel),
            state: text(&client.state),
            calls: rate(of(&calls), calls_then.as_ref().map(of), seconds),
            opens: client.opens,
            layouts: client.layouts,
            proxied: rate(client.proxied_bytes, proxied_then.as_ref().map(of), seconds),
        }
    });
    all.collect()
}
