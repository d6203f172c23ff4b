//! How much room the cluster has, by its own account: what it writes under `\xff\xff/status/json`.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde::Deserialize;
use sluice_env::Env;

use super::{Foundation, failure};
use crate::{KvError, Room};

/// The cluster gathers its status anew for each that asks.
const LOOK: Duration = Duration::from_secs(30);
const STATUS: &[u8] = b"\xff\xff/status/json";
/// One part in so many of a process' device is never taken: the cluster refuses to write long before it is full.
const KEPT: u64 = 20;

#[derive(Debug, Deserialize)]
struct Status {
    #[serde(default)]
    cluster: Cluster,
}

#[derive(Debug, Default, Deserialize)]
struct Cluster {
    #[serde(default)]
    processes: BTreeMap<String, Process>,
}

#[derive(Debug, Deserialize)]
struct Process {
    #[serde(default)]
    roles: Vec<Role>,
}

/// Of a process that stores something; the others have neither.
#[derive(Debug, Deserialize)]
struct Role {
    kvstore_total_bytes: Option<serde_json::Number>,
    kvstore_available_bytes: Option<serde_json::Number>,
}

impl Role {
    fn room(&self) -> Option<Room> {
        let total = self.kvstore_total_bytes.as_ref()?.as_u64()?;
        let available = self.kvstore_available_bytes.as_ref()?.as_u64()?;
        Some(Room { total, free: available.saturating_sub(total / KEPT) })
    }
}

/// Of the process that has the least, by its share: where one of them has none left, all of the cluster stands still.
fn least(status: &[u8]) -> Option<Room> {
    let status: Status = serde_json::from_slice(status).ok()?;
    let roles = status.cluster.processes.values().flat_map(|process| &process.roles);
    roles
        .filter_map(Role::room)
        .min_by_key(|room| u128::from(room.free) * 1_000_000 / u128::from(room.total.max(1)))
}

/// Looks for as long as the store is in use. A cluster that does not answer is taken to have what it had.
pub(crate) async fn watch(store: Weak<Foundation>, env: Env) {
    // While the cluster answers the store is not held: whoever lets go of it gives it to the next server.
    let in_use = || store.upgrade().filter(|store| store.goes_on().is_ok());
    while let Some(database) = in_use().map(|store| Arc::clone(&store.database)) {
        match look(&database).await {
            Ok(Some(room)) => {
                if let Some(store) = in_use() {
                    *store.room.lock() = Some(room);
                }
            }
            Ok(None) => tracing::debug!("the cluster's status does not say how much room there is"),
            Err(error) => tracing::debug!(%error, "the cluster's status cannot be had"),
        }
        drop(database);
        env.clock.sleep(LOOK).await;
    }
}

async fn look(database: &foundationdb::Database) -> Result<Option<Room>, KvError> {
    // Not as a store's transactions are: with their options it would be looked for among the keys.
    let transaction = database.create_trx().map_err(failure::of_call)?;
    let status = transaction.get(STATUS, true).await.map_err(failure::of_read)?;
    Ok(status.and_then(|status| least(&status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_that_has_the_least_counts_less_what_the_cluster_keeps_for_itself() {
        let status = br#"{"client": {"messages": []}, "cluster": {"processes": {
            "a": {"address": "10.0.0.1:4500", "roles": [
                {"role": "storage", "kvstore_total_bytes": 1000, "kvstore_available_bytes": 600},
                {"role": "cluster_controller"}]},
            "b": {"roles": [{"role": "log", "kvstore_total_bytes": 4000, "kvstore_available_bytes": 800}]},
            "c": {"excluded": true}}}}"#;
        assert_eq!(least(status), Some(Room { total: 4000, free: 600 }));
    }

    #[test]
    fn nothing_is_known_of_a_status_without_it() {
        for status in
            ["", "{}", "[]", r#"{"cluster": {}}"#, r#"{"cluster": {"processes": {"a": {"roles": [{}]}}}}"#]
        {
            assert_eq!(least(status.as_bytes()), None, "{status}");
        }
        let wrong = r#"{"cluster": {"processes": {"a": {"roles": [
            {"kvstore_total_bytes": 1000, "kvstore_available_bytes": -1}]}}}}"#;
        assert_eq!(least(wrong.as_bytes()), None);
        let less = r#"{"cluster": {"processes": {"a": {"roles": [
            {"kvstore_total_bytes": 1000, "kvstore_available_bytes": 20}]}}}}"#;
        assert_eq!(least(less.as_bytes()), Some(Room { total: 1000, free: 0 }));
    }
}
