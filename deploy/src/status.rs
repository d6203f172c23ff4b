//! `sluice status` and `sluice policy`.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use serde_json::json;
use sluice_xdr::control::{
    ADMIN_LAST_DUMP, ADMIN_LAST_DUMP_resok, ADMIN_POLICY, ADMIN_POLICY_args, ADMIN_POLICY_res,
    ADMIN_QUOTAS_resok, ADMIN_ROOM, ADMIN_ROOM_resok, ADMIN_STATUS, ADMIN_STATUS_res, ADMIN_STATUS_resok,
    ctl_client_status, ctl_data_server_status, ctl_health, ctl_proxied,
};

use crate::clients::printable;
use crate::quotas::{self, notices};
use crate::reach::Admin;
use crate::servers::{balance, class};
use crate::{cli, why};

/// What was proxied longer ago than so many seconds is no reason to warn any more.
const LATELY: u64 = 300;

pub(crate) async fn ask(admin: &Admin) -> Result<ADMIN_STATUS_resok> {
    match admin.call(ADMIN_STATUS, &()).await? {
        ADMIN_STATUS_res::CTL_OK(status) => Ok(status),
        ADMIN_STATUS_res::Default(status, reason) => bail!("{} ({status:?})", text(&reason)),
    }
}

/// How much room the metadata has; nothing where the metadata server is too old to tell, or does not know.
pub(crate) async fn room(admin: &Admin) -> Option<ADMIN_ROOM_resok> {
    let told = admin.call(ADMIN_ROOM, &()).await.unwrap_or_default();
    Some(told).filter(|room: &ADMIN_ROOM_resok| room.total_bytes > 0)
}

/// The newest dump; nothing where the metadata server is too old to tell.
pub(crate) async fn last_dump(admin: &Admin) -> Option<ADMIN_LAST_DUMP_resok> {
    admin.call(ADMIN_LAST_DUMP, &()).await.ok()
}

pub(crate) async fn run(options: cli::Status) -> Result<()> {
    let admin = Admin::reach(&options.reach).await?;
    let status = ask(&admin).await?;
    let room = room(&admin).await;
    let proxied = why::proxied(&admin).await;
    let exceeded = notices::exceeded(&admin).await;
    let balanced = balance::last(&admin).await;
    let classes = class::all(&admin).await;
    let totals = class::totals(&status.data_servers, &classes);
    if options.json {
        let mut all = to_json(&status, room.as_ref(), &proxied, &exceeded);
        let told = |server: &ctl_data_server_status| class::told(server_json(server), server.id, &classes);
        all["data_servers"] = status.data_servers.iter().map(told).collect();
        all["classes"] = totals.iter().map(class::Total::to_json).collect();
        all["balance"] = balanced.as_ref().map(balance::to_json).into();
        say!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        show(&status, room.as_ref(), &classes);
        if !totals.is_empty() {
            say!();
            class::show_totals(&totals);
        }
        if let Some(notice) = balance::notice(balanced.as_ref()) {
            say!("\n{notice}");
        }
        let mut warnings = warnings(&status, &proxied);
        warnings.extend(notices::used_up(&exceeded).map(|line| format!("warning: {line}")));
        warnings.extend(class::warnings(&totals));
        if !warnings.is_empty() {
            say!();
            warnings.iter().for_each(|warning| say!("{warning}"));
        }
    }
    Ok(())
}

pub(crate) async fn policy(options: cli::Policy) -> Result<()> {
    let admin = Admin::reach(&options.reach).await?;
    let ask = async |policy: String| -> Result<String> {
        let arguments = ADMIN_POLICY_args { path: options.path.clone().into(), policy: policy.into() };
        match admin.call(ADMIN_POLICY, &arguments).await? {
            ADMIN_POLICY_res::CTL_OK(policy) => Ok(text(&policy)),
            ADMIN_POLICY_res::Default(_, reason) => bail!("{}: {}", options.path, text(&reason)),
        }
    };
    let parts = [("inline", &options.inline), ("class", &options.class)];
    let parts = || parts.iter().filter_map(|(what, value)| Some((*what, value.as_deref()?)));
    let wanted = match options.policy.clone() {
        Some(policy) => policy,
        // A class that is not spoken of stays: it may be another one by then.
        None if parts().next().is_some() => without(&ask(String::new()).await?, "class"),
        None => String::new(),
    };
    let wanted = parts().fold(wanted, |policy, (what, value)| with(&policy, what, value));
    let policy = ask(wanted).await?;
    if options.json {
        say!("{}", json!({ "path": options.path, "policy": policy }));
    } else {
        say!("{}: {policy}", options.path);
    }
    Ok(())
}

/// A policy with another limit for files that are kept in the metadata, or another class.
fn with(policy: &str, what: &str, value: &str) -> String {
    format!("{},{what}={value}", without(policy, what))
}

fn without(policy: &str, what: &str) -> String {
    let is_it = |part: &&str| part.split_once('=').is_some_and(|(name, _)| name == what);
    policy.split(',').filter(|part| !is_it(part)).collect::<Vec<_>>().join(",")
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn health(server: &ctl_data_server_status) -> &'static str {
    match server.health {
        _ if !server.connected => "unreachable",
        ctl_health::HEALTH_OK => "ok",
        ctl_health::HEALTH_FULL => "full",
        ctl_health::HEALTH_READ_ONLY => "read-only",
        _ => "failing",
    }
}

pub(crate) fn address(server: &ctl_data_server_status) -> String {
    let all: Vec<String> = server
        .addresses
        .iter()
        .map(|address| {
            let host = text(&address.host);
            if host.contains(':') {
                format!("[{host}]:{}", address.port)
            } else {
                format!("{host}:{}", address.port)
            }
        })
        .collect();
    all.join(",")
}

fn to_json(
    status: &ADMIN_STATUS_resok,
    room: Option<&ADMIN_ROOM_resok>,
    proxied: &[ctl_proxied],
    exceeded: &ADMIN_QUOTAS_resok,
) -> serde_json::Value {
    let clients: Vec<_> = status.clients.iter().map(client_json).collect();
    let servers: Vec<_> = status.data_servers.iter().map(server_json).collect();
    json!({
        "mds": {
            "cluster": hex(&status.cluster.0),
            "version": text(&status.version),
            "listen": text(&status.listen),
            "epoch": status.mds_epoch,
            "uptime_seconds": status.uptime_seconds,
            "grace_seconds_left": status.grace_seconds_left,
            "files": status.files,
            "used_bytes": status.used_bytes,
            "store_capacity_bytes": room.map(|room| room.total_bytes),
            "store_free_bytes": room.map(|room| room.free_bytes),
            "proxied_bytes": status.proxied_bytes_read + status.proxied_bytes_written,
            "proxied_bytes_read": status.proxied_bytes_read,
            "proxied_bytes_written": status.proxied_bytes_written,
            "inline_bytes": status.inline_bytes_read + status.inline_bytes_written,
            "inline_bytes_read": status.inline_bytes_read,
            "inline_bytes_written": status.inline_bytes_written,
            "layouts_granted": status.layouts_granted,
            "recalls_sent": status.recalls_sent,
            "transactions": status.transactions,
            "transaction_groups": status.transaction_groups,
            "transaction_conflicts": status.conflicts,
            "read_versions": status.views,
            "reads": status.reads,
            "orders": status.orders,
            "reports": status.reports,
            "degraded_files": status.degraded_files,
            "healed_files": status.healed_files,
            "healed_bytes": status.healed_bytes,
            "healing": text(&status.healing),
            "clients": clients,
        },
        "data_servers": servers,
        "proxied": proxied.iter().map(why::proxied_json).collect::<Vec<_>>(),
        "quotas_exceeded": quotas::all_to_json(&exceeded.quotas),
    })
}

/// Who moves data through the metadata server now, and why.
pub(crate) fn warnings(status: &ADMIN_STATUS_resok, proxied: &[ctl_proxied]) -> Vec<String> {
    let lately = proxied.iter().filter(|proxied| proxied.last_seconds < LATELY);
    let named = lately.filter_map(|proxied| {
        let client = status.clients.iter().find(|client| client.client == proxied.client)?;
        Some(format!(
            "warning: {} moves data through the metadata server ({}): {}",
            why::who(client),
            why::cost(proxied),
            text(&proxied.reason.words)
        ))
    });
    named.collect()
}

pub(crate) fn client_json(client: &ctl_client_status) -> serde_json::Value {
    json!({
        "id": format!("{:016x}", client.client),
        "address": text(&client.address),
        "name": text(&client.name),
        "kernel": text(&client.kernel),
        "minor_version": client.minor_version,
        "state": text(&client.state),
        "opens": client.opens,
        "locks": client.locks,
        "layouts": client.layouts,
        "proxied_bytes": client.proxied_bytes,
    })
}

pub(crate) fn server_json(server: &ctl_data_server_status) -> serde_json::Value {
    json!({
        "id": server.id,
        "store": hex(&server.store.0),
        "address": address(server),
        "health": health(server),
        "state": text(&server.state),
        "version": text(&server.version),
        "capacity_bytes": server.capacity.total_bytes,
        "free_bytes": server.capacity.free_bytes,
        "used_bytes": server.capacity.used_bytes,
        "files": server.capacity.files,
        "bytes_read": server.counters.bytes_read,
        "bytes_written": server.counters.bytes_written,
        "refused": server.counters.refused,
        "errors": server.counters.errors,
        "flushes": server.counters.flushes,
    })
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn show(status: &ADMIN_STATUS_resok, room: Option<&ADMIN_ROOM_resok>, classes: &BTreeMap<u32, String>) {
    say!(
        "metadata server {}  up {}  {} files, {} used{}",
        text(&status.listen),
        duration(status.uptime_seconds),
        status.files,
        size(status.used_bytes),
        if status.grace_seconds_left > 0 {
            format!("  waiting for clients to reclaim, at most {} s", status.grace_seconds_left)
        } else {
            String::new()
        }
    );
    let direct: u64 =
        status.data_servers.iter().map(|ds| ds.counters.bytes_read + ds.counters.bytes_written).sum();
    let proxied = status.proxied_bytes_read + status.proxied_bytes_written;
    say!(
        "data moved      {} at the data servers, {} inline, {} through the metadata server{}",
        size(direct),
        size(status.inline_bytes_read + status.inline_bytes_written),
        size(proxied),
        if proxied > 0 { " (a healthy mount proxies nothing)" } else { "" }
    );
    if let Some(room) = room {
        say!("metadata        {} of {} left on its device", size(room.free_bytes), size(room.total_bytes));
    }
    say!("version         {}", versions(status));
    if status.degraded_files > 0 {
        let waits = text(&status.healing);
        say!(
            "degraded        {} {} with mirrors to heal{}",
            status.degraded_files,
            if status.degraded_files == 1 { "file" } else { "files" },
            if waits.is_empty() { String::new() } else { format!(" ({waits})") }
        );
    }
    say!();
    let mut rows =
        vec![["DS", "CLASS", "ADDRESS", "HEALTH", "USED", "FREE", "READ", "WRITTEN"].map(str::to_owned)];
    rows.extend(status.data_servers.iter().map(|ds| {
        let state = text(&ds.state);
        [
            ds.id.to_string(),
            classes.get(&ds.id).cloned().unwrap_or_else(|| "-".to_owned()),
            address(ds),
            if state.is_empty() { health(ds).to_owned() } else { state },
            size(ds.capacity.used_bytes),
            size(ds.capacity.free_bytes),
            size(ds.counters.bytes_read),
            size(ds.counters.bytes_written),
        ]
    }));
    // Most have no classes.
    table_but(&rows, Some(1).filter(|_| classes.is_empty()));
    say!();
    let mut rows =
        vec![["CLIENT", "KERNEL", "NFS", "STATE", "OPENS", "LAYOUTS", "PROXIED"].map(str::to_owned)];
    rows.extend(status.clients.iter().map(|client| {
        [
            text(&client.address),
            if client.kernel.is_empty() { "not told".to_owned() } else { printable(&client.kernel) },
            format!("4.{}", client.minor_version),
            text(&client.state),
            client.opens.to_string(),
            client.layouts.to_string(),
            size(client.proxied_bytes),
        ]
    }));
    table(&rows);
}

/// One version, if all servers that are there run it; else who runs which.
fn versions(status: &ADMIN_STATUS_resok) -> String {
    let mut others: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for server in status.data_servers.iter().filter(|ds| ds.connected && ds.version != status.version) {
        others.entry(text(&server.version)).or_default().push(server.id.to_string());
    }
    let ours = text(&status.version);
    if others.is_empty() {
        return ours;
    }
    let others = others.into_iter().map(|(version, servers)| match &servers[..] {
        [one] => format!("data server {one}: {version}"),
        _ => format!("data servers {}: {version}", servers.join(", ")),
    });
    format!("metadata server: {ours}; {}", others.collect::<Vec<_>>().join("; "))
}

pub(crate) fn table<const N: usize>(rows: &[[String; N]]) {
    columns(rows, &mut [0; N]);
}

/// The same, of a table that comes in parts: a column is never narrower than before.
pub(crate) fn columns<const N: usize>(rows: &[[String; N]], widths: &mut [usize; N]) {
    fit(rows, widths);
    lines(rows, widths, None);
}

/// A table without a column, if there is one in which there is nothing to be seen.
pub(crate) fn table_but<const N: usize>(rows: &[[String; N]], left_out: Option<usize>) {
    let mut widths = [0; N];
    fit(rows, &mut widths);
    lines(rows, &widths, left_out);
}

fn fit<const N: usize>(rows: &[[String; N]], widths: &mut [usize; N]) {
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
}

fn lines<const N: usize>(rows: &[[String; N]], widths: &[usize; N], left_out: Option<usize>) {
    for row in rows {
        let cells = row.iter().zip(widths).enumerate().filter(|(at, _)| Some(*at) != left_out);
        let cells: Vec<String> = cells.map(|(_, (cell, width))| format!("{cell:<width$}")).collect();
        say!("{}", cells.join("  ").trim_end());
    }
}

pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut unit = 0;
    let mut value = bytes;
    while value >= 10 * 1024 && unit + 1 < UNITS.len() {
        value /= 1024;
        unit += 1;
    }
    format!("{value} {}", UNITS[unit])
}

pub(crate) fn duration(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_beside_a_policy_takes_the_place_of_what_it_said() {
        assert_eq!(with("default", "class", "archive"), "default,class=archive");
        assert_eq!(with("small,inline=16KiB,class=nvme", "class", "none"), "small,inline=16KiB,class=none");
        assert_eq!(with("small,inline=16KiB,class=nvme", "inline", "off"), "small,class=nvme,inline=off");
    }

    #[test]
    fn who_runs_another_version_is_named() {
        let server = |id, version: &str| ctl_data_server_status {
            id,
            connected: id != 4,
            version: version.to_owned().into(),
            ..ctl_data_server_status::default()
        };
        let mut status = ADMIN_STATUS_resok {
            version: "2 (b)".into(),
            data_servers: vec![server(1, "2 (b)"), server(4, "1 (a)")],
            ..ADMIN_STATUS_resok::default()
        };
        // One that is away may come back with any.
        assert_eq!(versions(&status), "2 (b)");
        status.data_servers.extend([server(2, "1 (a)"), server(3, "1 (a)"), server(5, "3")]);
        assert_eq!(versions(&status), "metadata server: 2 (b); data servers 2, 3: 1 (a); data server 5: 3");
    }
}
