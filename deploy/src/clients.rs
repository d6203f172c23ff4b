//! `sluice client`.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use serde_json::json;
use sluice_xdr::control::{
    ADMIN_EVICT, ADMIN_EVICT_args, ADMIN_EVICT_res, ADMIN_GUARDS, ADMIN_GUARDS_resok, ctl_client_status,
};

use crate::cli;
use crate::reach::Admin;
use crate::status::{self, size, text};

pub(crate) async fn run(command: cli::Client) -> Result<()> {
    match command {
        cli::Client::List { reach, json } => list(&Admin::reach(&reach).await?, json).await,
        cli::Client::Evict { client, reach, json } => {
            evict(&Admin::reach(&reach).await?, &client, json).await
        }
    }
}

async fn list(admin: &Admin, json: bool) -> Result<()> {
    let clients = status::ask(admin).await?.clients;
    let machines = machines(admin).await;
    if json {
        let named = |client: &ctl_client_status| {
            let mut all = status::client_json(client);
            all["machine"] = machines.get(&client.client).cloned().into();
            all
        };
        let all: Vec<_> = clients.iter().map(named).collect();
        say!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(());
    }
    let head = [
        "ID", "ADDRESS", "NAME", "KERNEL", "NFS", "STATE", "OPENS", "LOCKS", "LAYOUTS", "PROXIED", "MACHINE",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(clients.iter().map(|client| {
        [
            id(client.client),
            text(&client.address),
            printable(&client.name),
            printable(&client.kernel),
            format!("4.{}", client.minor_version),
            text(&client.state),
            client.opens.to_string(),
            client.locks.to_string(),
            client.layouts.to_string(),
            size(client.proxied_bytes),
            machines.get(&client.client).map(|name| printable(name.as_bytes())).unwrap_or_default(),
        ]
        .map(|cell| if cell.is_empty() { "-".to_owned() } else { cell })
    }));
    // Without Kerberos there are none.
    status::table_but(&rows, Some(head.len() - 1).filter(|_| machines.is_empty()));
    Ok(())
}

/// The principals of the machines of clients that they protect; none where the metadata server is too old to tell.
async fn machines(admin: &Admin) -> BTreeMap<u64, String> {
    let told: ADMIN_GUARDS_resok = admin.call(ADMIN_GUARDS, &()).await.unwrap_or_default();
    told.clients.iter().map(|guard| (guard.client, text(&guard.principal))).collect()
}

async fn evict(admin: &Admin, client: &str, json: bool) -> Result<()> {
    let client = resolve(admin, client).await?;
    match admin.call(ADMIN_EVICT, &ADMIN_EVICT_args { client }).await? {
        ADMIN_EVICT_res::CTL_OK(files) if json => {
            say!("{}", json!({ "client": id(client), "files": files }));
        }
        ADMIN_EVICT_res::CTL_OK(files) => {
            say!("client {} is gone, with its state on {files} files", id(client));
        }
        ADMIN_EVICT_res::Default(_, reason) => bail!("client {}: {}", id(client), text(&reason)),
    }
    Ok(())
}

/// The client that somebody means.
pub(crate) async fn resolve(admin: &Admin, meant: &str) -> Result<u64> {
    one_of(&status::ask(admin).await?.clients, meant)
}

fn one_of(clients: &[ctl_client_status], meant: &str) -> Result<u64> {
    if let Some(client) = clients.iter().find(|client| id(client.client) == meant.to_ascii_lowercase()) {
        return Ok(client.client);
    }
    let named: Vec<_> = clients
        .iter()
        .filter(|client| {
            let name = text(&client.name);
            text(&client.address) == meant || name == meant || host(&name) == meant
        })
        .map(|client| client.client)
        .collect();
    match named[..] {
        [client] => Ok(client),
        [] => bail!("no client is {meant}: sluice client list shows them"),
        _ => {
            let all: Vec<String> = named.into_iter().map(id).collect();
            bail!("several clients are {meant}: name one by its ID ({})", all.join(", "))
        }
    }
}

pub(crate) fn id(client: u64) -> String {
    format!("{client:016x}")
}

/// The host's name in what a Linux client calls itself: `Linux NFSv4.2 node7`.
pub(crate) fn host(name: &str) -> &str {
    let rest = name.strip_prefix("Linux NFSv4.").and_then(|rest| rest.split_once(' '));
    rest.map_or(name, |(_, host)| host)
}

/// A name that clients chose, without what would move the cursor.
pub(crate) fn printable(name: &[u8]) -> String {
    text(name).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(client: u64, address: &'static str, name: &'static str) -> ctl_client_status {
        ctl_client_status {
            client,
            address: address.into(),
            name: name.into(),
            kernel: Default::default(),
            minor_version: 2,
            state: Default::default(),
            opens: 0,
            locks: 0,
            layouts: 0,
            proxied_bytes: 0,
        }
    }

    #[test]
    fn a_client_is_meant_by_id_address_or_name() {
        let linux = client(0xab, "10.0.0.1", "Linux NFSv4.2 node7");
        let all = [linux, client(2, "10.0.0.2", "n2"), client(3, "10.0.0.2", "n3")];
        let named = [("n3", 3), ("Linux NFSv4.2 node7", 0xab), ("node7", 0xab)];
        for (meant, want) in [("00000000000000AB", 0xab), ("10.0.0.1", 0xab)].into_iter().chain(named) {
            assert_eq!(one_of(&all, meant).unwrap(), want);
        }
        assert_eq!(
            one_of(&all, "10.0.0.2").unwrap_err().to_string(),
            "several clients are 10.0.0.2: name one by its ID (0000000000000002, 0000000000000003)"
        );
        assert!(one_of(&all, "x").unwrap_err().to_string().contains("sluice client list"));
        assert_eq!(printable(b"a\x1b[2Jb\n"), "a?[2Jb?");
    }
}
