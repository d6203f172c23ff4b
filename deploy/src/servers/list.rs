//! `sluice ds list`.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use sluice_xdr::control::{ADMIN_SERVERS_resok, ctl_amount, ctl_drain, ctl_server};

use super::{ask, balance, class, drain, intent, named, named_json};
use crate::reach::Admin;
use crate::status::{address, duration, health, server_json, size, table_but, text};

/// A count that takes longer is not waited for.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(50);

pub(super) async fn run(admin: &Admin, json: bool) -> Result<()> {
    let all = counted(admin).await?;
    let classes = class::all(admin).await;
    if json {
        let told = |server: &ctl_server| class::told(to_json(server), server.status.id, &classes);
        let all: Vec<_> = all.servers.iter().map(told).collect();
        say!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        show(&all, &classes);
        if let Some(notice) = balance::notice(balance::last(admin).await.as_ref()) {
            say!("\n{notice}");
        }
    }
    Ok(())
}

/// What a count says that is begun by asking, if it is over soon.
async fn counted(admin: &Admin) -> Result<ADMIN_SERVERS_resok> {
    let begin = std::time::Instant::now();
    loop {
        let all = ask(admin).await?;
        if all.counting.is_empty() || begin.elapsed() > PATIENCE {
            return Ok(all);
        }
        tokio::time::sleep(LOOK).await;
    }
}

pub(super) fn to_json(server: &ctl_server) -> Value {
    let mut all = server_json(&server.status);
    all["intent"] = intent(server.intent).into();
    all["data_files"] = server.holds.first().map(|held| held.amount.data_files).into();
    all["data_bytes"] = server.holds.first().map(|held| held.amount.bytes).into();
    all["only_copies"] = server.holds.first().map(|held| held.alone).into();
    all["counted_seconds_ago"] = server.holds.first().map(|held| held.age_seconds).into();
    all["drain"] = server.drain.first().map_or(Value::Null, drain_json);
    all
}

fn drain_json(drain: &ctl_drain) -> Value {
    let amount = |amount: &ctl_amount| json!({ "data_files": amount.data_files, "bytes": amount.bytes });
    json!({
        "since": drain.since,
        "limit_bytes_per_second": drain.limit,
        "all": amount(&drain.all),
        "moved": amount(&drain.moved),
        "left": drain.left.first().map(amount),
        "per_second": amount(&drain.rate),
        "eta_seconds": drain::eta(drain),
        "held_up": drain.held,
        "examples": drain.examples.iter().map(named_json).collect::<Vec<_>>(),
    })
}

fn show(all: &ADMIN_SERVERS_resok, classes: &BTreeMap<u32, String>) {
    let head = [
        "DS",
        "CLASS",
        "ADDRESS",
        "STORE",
        "HEALTH",
        "STATE",
        "USED",
        "FREE",
        "FILES",
        "DATA",
        "ONLY COPIES",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(all.servers.iter().map(|server| {
        let status = &server.status;
        let held = server.holds.first();
        let shown = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        [
            status.id.to_string(),
            classes.get(&status.id).cloned().unwrap_or_else(|| "-".to_owned()),
            address(status),
            crate::status::hex(&status.store.0).chars().take(8).collect(),
            if status.connected { health(status).to_owned() } else { text(&status.state) },
            state(server),
            size(status.capacity.used_bytes),
            size(status.capacity.free_bytes),
            shown(held.map(|held| held.amount.data_files.to_string())),
            shown(held.map(|held| size(held.amount.bytes))),
            shown(held.map(|held| held.alone.to_string())),
        ]
    }));
    // Most have no classes.
    table_but(&rows, Some(1).filter(|_| classes.is_empty()));
    let age = all.servers.iter().filter_map(|server| server.holds.first()).map(|held| held.age_seconds).max();
    match (age, all.counting.first()) {
        (_, Some(seen)) => say!("\nfiles are being counted: {seen} so far; ask again"),
        (Some(age), None) if age > 5 => say!("\nfiles were counted {} ago", duration(age)),
        _ => {}
    }
    for server in &all.servers {
        for drain in server.drain.iter().filter(|drain| drain.held > 0) {
            say!(
                "\ndata server {}: {} files cannot be moved now, tried again all the time:",
                server.status.id,
                drain.held
            );
            drain.examples.iter().for_each(|file| say!("  {}", named(file)));
        }
    }
}

fn state(server: &ctl_server) -> String {
    let Some(drain) = server.drain.first() else { return intent(server.intent).to_owned() };
    match drain.left.first() {
        Some(left) if left.data_files > 0 => {
            let eta = drain::eta(drain).map_or(String::new(), |eta| format!(", {} to go", duration(eta)));
            format!("draining: {} left, {}/s{eta}", size(left.bytes), size(drain.rate.bytes))
        }
        _ => intent(server.intent).to_owned(),
    }
}
