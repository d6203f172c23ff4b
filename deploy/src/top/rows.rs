//! The lines of the three tables, the same on a screen and without one.

use super::sample::{Client, DataServer, Operation};
use super::words::{bytes_rate, latency, percent, plain_rate};
use crate::clients;

pub(super) const DATA_SERVERS: [&str; 7] =
    ["DS", "ADDRESS", "HEALTH", "USED", "READ/s", "WRITTEN/s", "CALLS/s"];
pub(super) const OPERATIONS: [&str; 5] = ["OPERATION", "/s", "MEAN", "P99 <=", "ERRORS/s"];
pub(super) const CLIENTS: [&str; 8] =
    ["CLIENT", "NAME", "KERNEL", "STATE", "CALLS/s", "OPENS", "LAYOUTS", "PROXIED/s"];

pub(super) fn data_server(server: &DataServer) -> [String; 7] {
    [
        server.id.to_string(),
        server.address.clone(),
        server.health.to_owned(),
        percent(server.used_bytes, server.total_bytes),
        bytes_rate(server.read),
        bytes_rate(server.written),
        plain_rate(server.calls),
    ]
}

pub(super) fn operation(operation: &Operation) -> [String; 5] {
    [
        operation.name.clone(),
        plain_rate(operation.rate),
        latency(operation.mean),
        latency(operation.p99),
        plain_rate(operation.errors),
    ]
}

pub(super) fn client(client: &Client) -> [String; 8] {
    [
        client.address.clone(),
        clients::host(&client.name).to_owned(),
        client.kernel.clone(),
        client.state.clone(),
        plain_rate(client.calls),
        client.opens.to_string(),
        client.layouts.to_string(),
        bytes_rate(client.proxied),
    ]
}
