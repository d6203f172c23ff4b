//! `sluice why`: how clients get at a file's data, and what is in their way.

use anyhow::{Result, bail};
use serde_json::{Value, json};
use sluice_xdr::control::{
    ADMIN_NAMES_resok, ADMIN_PROXIED, ADMIN_PROXIED_res, ADMIN_QUOTAS_resok, ADMIN_WHY, ADMIN_WHY_args,
    ADMIN_WHY_res, ADMIN_WHY_resok, ctl_client_status, ctl_component, ctl_data_server_status, ctl_placed,
    ctl_proxied, ctl_reason, ctl_way,
};

use crate::cli;
use crate::clients::{id, printable, resolve};
use crate::exports::{access, names, squash, standing};
use crate::quotas::{self, notices};
use crate::reach::Admin;
use crate::status::{self, address, duration, health, size, text};

pub(crate) async fn run(options: cli::Why) -> Result<()> {
    let admin = Admin::reach(&options.reach).await?;
    let client = match &options.client {
        Some(client) => resolve(&admin, client).await?,
        None => 0,
    };
    let arguments = ADMIN_WHY_args { path: options.path.clone().into(), client };
    let found = match admin.call(ADMIN_WHY, &arguments).await? {
        ADMIN_WHY_res::CTL_OK(found) => found,
        ADMIN_WHY_res::Default(_, reason) => bail!("{}: {}", options.path, text(&reason)),
    };
    let servers = status::ask(&admin).await?.data_servers;
    let quotas = notices::of_path(&admin, &options.path).await;
    let names = names::known(&admin).await;
    if options.json {
        say!("{}", serde_json::to_string_pretty(&to_json(&found, &servers, &quotas, &names))?);
    } else {
        lines(&options.path, &found, &servers, (&quotas, &names)).iter().for_each(|line| say!("{line}"));
    }
    Ok(())
}

/// What went through the metadata server, of every client; nothing where it is too old to tell.
pub(crate) async fn proxied(admin: &Admin) -> Vec<ctl_proxied> {
    match admin.call(ADMIN_PROXIED, &()).await {
        Ok(ADMIN_PROXIED_res::CTL_OK(found)) => found.proxied,
        Ok(ADMIN_PROXIED_res::Default(..)) | Err(_) => Vec::new(),
    }
}

/// Who a client is, for people.
pub(crate) fn who(client: &ctl_client_status) -> String {
    let address = if client.address.is_empty() { "not connected".to_owned() } else { text(&client.address) };
    let kernel = if client.kernel.is_empty() { "not told".to_owned() } else { printable(&client.kernel) };
    format!("{address} ({}, kernel {kernel}, NFS 4.{})", printable(&client.name), client.minor_version)
}

/// What it cost, for people.
pub(crate) fn cost(proxied: &ctl_proxied) -> String {
    format!(
        "{} in {} calls, the last {} ago",
        size(proxied.bytes),
        proxied.calls,
        duration(proxied.last_seconds)
    )
}

fn lines(
    path: &str,
    found: &ADMIN_WHY_resok,
    servers: &[ctl_data_server_status],
    (quotas, names): (&ADMIN_QUOTAS_resok, &ADMIN_NAMES_resok),
) -> Vec<String> {
    let mut lines = vec![format!(
        "{path}: {}, mode {:04o}, owner {}:{}, layout policy {}",
        if found.directory { "a directory".to_owned() } else { size(found.size) },
        found.mode,
        found.uid,
        found.gid,
        text(&found.policy)
    )];
    lines.extend(found.components.iter().map(|component| format!("  {}", placed(component))));
    if !found.healing.is_empty() {
        lines.push(format!("  {}", text(&found.healing)));
    }
    let held = |server: &&ctl_data_server_status| {
        let all = found.components.iter().flat_map(|component| &component.slots);
        found.directory || all.into_iter().any(|slot| slot.data_server == server.id)
    };
    lines.extend(servers.iter().filter(held).filter(|server| health(server) != "ok").map(|server| {
        let state = text(&server.state);
        let words = if state.is_empty() { health(server).to_owned() } else { state };
        format!("  data server {} ({}): {words}", server.id, address(server))
    }));
    lines.extend(notices::near(quotas).iter().map(|line| format!("  {line}")));
    if found.clients.is_empty() {
        lines.push("no client is known".to_owned());
    }
    for way in &found.clients {
        lines.push(String::new());
        lines.extend(way_lines(way, names, found.directory));
    }
    lines
}

fn way_lines(way: &ctl_way, names: &ADMIN_NAMES_resok, directory: bool) -> Vec<String> {
    let mut lines = vec![who(&way.client)];
    lines.extend(names::who(names, &text(&way.client.address)).map(|name| format!("  name     {name}")));
    let export = match way.rules.first() {
        Some(rule) => format!("{}, {}", text(&way.export), standing(rule)),
        None if way.client.address.is_empty() => "unknown while it is not connected".to_owned(),
        None => "none: it may not mount this path; `sluice export list` shows who may".to_owned(),
    };
    lines.push(format!("  export   {export}"));
    let verdict = |reason: &[ctl_reason]| match reason.first() {
        Some(reason) => format!("through the metadata server, because {}", text(&reason.words)),
        None => "straight from the data servers".to_owned(),
    };
    // Nobody reads or writes a directory's data.
    if !directory {
        lines.push(format!("  reads    {}", verdict(&way.read)));
        lines.push(format!("  writes   {}", verdict(&way.write).replace("straight from", "straight to")));
    }
    lines.push(format!("  layouts  {}", text(&way.shape)));
    let holds = [
        (!way.holds.is_empty()).then(|| format!("a {} layout", text(&way.holds))),
        way.delegation.then(|| "a delegation".to_owned()),
    ];
    let holds: Vec<String> = holds.into_iter().flatten().collect();
    if !holds.is_empty() {
        lines.push(format!("  holds    {}", holds.join(" and ")));
    }
    lines.extend(
        way.proxied
            .iter()
            .map(|proxied| format!("  proxied  {}: {}", cost(proxied), text(&proxied.reason.words))),
    );
    lines
}

fn placed(component: &ctl_component) -> String {
    let end = if component.end == u64::MAX { "end".to_owned() } else { size(component.end) };
    let mirrors = usize::try_from(component.mirrors.max(1)).unwrap_or(1);
    let columns: Vec<String> = component
        .slots
        .chunks(mirrors)
        .map(|column| column.iter().map(slot).collect::<Vec<_>>().join("="))
        .collect();
    let shape = match columns.len() {
        1 => String::new(),
        stripes => format!("{stripes} stripes of {}, ", size(component.stripe_unit.into())),
    };
    let copies = if mirrors > 1 { format!("{mirrors} copies, ") } else { String::new() };
    format!("{} - {end}  {shape}{copies}data servers {}", size(component.start), columns.join(" "))
}

fn slot(slot: &ctl_placed) -> String {
    let mark = if slot.stale { "(stale)" } else { "" };
    format!("{}{mark}", slot.data_server)
}

fn to_json(
    found: &ADMIN_WHY_resok,
    servers: &[ctl_data_server_status],
    quotas: &ADMIN_QUOTAS_resok,
    names: &ADMIN_NAMES_resok,
) -> Value {
    json!({
        "file": found.file,
        "directory": found.directory,
        "size": found.size,
        "mode": format!("{:04o}", found.mode),
        "uid": found.uid,
        "gid": found.gid,
        "policy": text(&found.policy),
        "healing": text(&found.healing),
        "components": found.components.iter().map(component_json).collect::<Vec<_>>(),
        "data_servers": servers.iter().map(status::server_json).collect::<Vec<_>>(),
        "quotas": quotas::all_to_json(&quotas.quotas),
        "clients": found.clients.iter().map(|way| way_json(way, names)).collect::<Vec<_>>(),
    })
}

fn component_json(component: &ctl_component) -> Value {
    let slots: Vec<_> = component
        .slots
        .iter()
        .map(|slot| json!({ "data_server": slot.data_server, "stale": slot.stale, "there": slot.there }))
        .collect();
    json!({
        "start": component.start,
        "end": (component.end != u64::MAX).then_some(component.end),
        "stripe_unit": component.stripe_unit,
        "mirrors": component.mirrors,
        "slots": slots,
    })
}

fn way_json(way: &ctl_way, names: &ADMIN_NAMES_resok) -> Value {
    let reason = |reason: &[ctl_reason]| reason.first().map(reason_json);
    json!({
        "client": status::client_json(&way.client),
        "known_as": names::who(names, &text(&way.client.address)),
        "export": (!way.rules.is_empty()).then(|| text(&way.export)),
        "access": way.rules.first().map(access),
        "squash": way.rules.first().map(squash),
        "layouts": text(&way.shape),
        "holds": text(&way.holds),
        "delegation": way.delegation,
        "read_proxied_because": reason(&way.read),
        "write_proxied_because": reason(&way.write),
        "proxied": way.proxied.iter().map(proxied_json).collect::<Vec<_>>(),
    })
}

fn reason_json(reason: &ctl_reason) -> Value {
    json!({ "code": text(&reason.code), "words": text(&reason.words) })
}

pub(crate) fn proxied_json(proxied: &ctl_proxied) -> Value {
    json!({
        "client": id(proxied.client),
        "reason": reason_json(&proxied.reason),
        "calls": proxied.calls,
        "bytes": proxied.bytes,
        "last_seconds": proxied.last_seconds,
        "file": proxied.file,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_xdr::control::{ctl_limit, ctl_named_caller, ctl_quota, ctl_quota_kind, ctl_rule, ctl_squash};

    fn found() -> ADMIN_WHY_resok {
        let slot = |data_server, stale| ctl_placed { data_server, stale, there: true };
        let reason =
            ctl_reason { code: "data-server-away".into(), words: "data server 2 does not serve".into() };
        let rule = ctl_rule {
            network: "any".into(),
            read_only: false,
            squash: ctl_squash::SQUASH_ROOT,
            anonymous_uid: 65_534,
            anonymous_gid: 65_534,
            sys: true,
            none: false,
        };
        let client = ctl_client_status {
            client: 7,
            address: "10.0.0.7".into(),
            name: "node7\x1b[2J".into(),
            kernel: "6.1.0".into(),
            minor_version: 2,
            ..ctl_client_status::default()
        };
        let proxied = ctl_proxied {
            client: 7,
            reason: reason.clone(),
            calls: 3,
            bytes: 5 << 20,
            last_seconds: 9,
            file: 5,
        };
        ADMIN_WHY_resok {
            size: 3 << 30,
            mode: 0o640,
            uid: 5,
            gid: 6,
            policy: "default,mirrors=2".into(),
            components: vec![
                ctl_component {
                    end: 64 << 20,
                    mirrors: 2,
                    slots: vec![slot(1, false), slot(2, true)],
                    ..Default::default()
                },
                ctl_component {
                    start: 64 << 20,
                    end: u64::MAX,
                    stripe_unit: 1 << 20,
                    mirrors: 1,
                    slots: vec![slot(1, false), slot(2, false)],
                },
            ],
            clients: vec![
                ctl_way {
                    client,
                    export: "/data".into(),
                    rules: vec![rule],
                    shape: "all stripes at once".into(),
                    holds: "read".into(),
                    delegation: true,
                    write: vec![reason],
                    proxied: vec![proxied],
                    ..ctl_way::default()
                },
                ctl_way::default(),
            ],
            ..ADMIN_WHY_resok::default()
        }
    }

    #[test]
    fn a_file_is_explained_in_lines() {
        let away =
            ctl_data_server_status { id: 2, state: "unreachable for 12 s".into(), ..Default::default() };
        let elsewhere = ctl_data_server_status { id: 3, ..Default::default() };
        let files = ctl_limit { soft: 0, hard: 3 };
        let tree = ctl_quota_kind::QUOTA_TREE;
        let full =
            ctl_quota { kind: tree, path: "/data".into(), files, used_files: 3, ..ctl_quota::default() };
        let quotas = ADMIN_QUOTAS_resok { quotas: vec![full], ..ADMIN_QUOTAS_resok::default() };
        let caller = ctl_named_caller {
            address: "10.0.0.7".into(),
            name: "node7.example.com".into(),
            told_seconds: vec![3],
            ..ctl_named_caller::default()
        };
        let names = ADMIN_NAMES_resok { callers: vec![caller], ..ADMIN_NAMES_resok::default() };
        let lines = lines("/data/f", &found(), &[away, elsewhere], (&quotas, &names));
        let wanted = [
            "/data/f: 3072 MiB, mode 0640, owner 5:6, layout policy default,mirrors=2",
            "  0 B - 64 MiB  2 copies, data servers 1=2(stale)",
            "  64 MiB - end  2 stripes of 1024 KiB, data servers 1 2",
            "  data server 2 (): unreachable for 12 s",
            "  quota of /data: 3 of 3 files: full",
            "",
            "10.0.0.7 (node7?[2J, kernel 6.1.0, NFS 4.2)",
            "  name     node7.example.com",
            "  export   /data, read-write, root is nobody",
            "  reads    straight from the data servers",
            "  writes   through the metadata server, because data server 2 does not serve",
            "  layouts  all stripes at once",
            "  holds    a read layout and a delegation",
            "  proxied  5120 KiB in 3 calls, the last 9 s ago: data server 2 does not serve",
            "",
            "not connected (, kernel not told, NFS 4.0)",
            "  export   unknown while it is not connected",
            "  reads    straight from the data servers",
            "  writes   straight to the data servers",
            "  layouts  ",
        ];
        assert_eq!(lines, wanted);
    }
}
