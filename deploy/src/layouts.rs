//! `sluice layout`.

use anyhow::{Result, bail};
use serde_json::json;
use sluice_xdr::control::{
    ADMIN_LAYOUTS, ADMIN_LAYOUTS_args, ADMIN_LAYOUTS_res, ADMIN_RECALL, ADMIN_RECALL_args, ADMIN_RECALL_res,
    ctl_layout,
};

use crate::cli;
use crate::clients::{id, printable, resolve};
use crate::reach::Admin;
use crate::status::{duration, hex, table, text};

pub(crate) async fn run(command: cli::Layout) -> Result<()> {
    match command {
        cli::Layout::Show { path, reach, json } => show(&Admin::reach(&reach).await?, &path, json).await,
        cli::Layout::Recall { path, client, reach, json } => {
            recall(&Admin::reach(&reach).await?, &path, client.as_deref(), json).await
        }
    }
}

async fn show(admin: &Admin, path: &str, json: bool) -> Result<()> {
    let arguments = ADMIN_LAYOUTS_args { path: path.to_owned().into() };
    let found = match admin.call(ADMIN_LAYOUTS, &arguments).await? {
        ADMIN_LAYOUTS_res::CTL_OK(found) => found,
        ADMIN_LAYOUTS_res::Default(_, reason) => bail!("{path}: {}", text(&reason)),
    };
    if json {
        let all: Vec<_> = found.layouts.iter().map(layout_json).collect();
        say!("{}", serde_json::to_string_pretty(&json!({ "file": found.file, "layouts": all }))?);
        return Ok(());
    }
    if found.layouts.is_empty() {
        say!("{path}: no client holds a layout");
        return Ok(());
    }
    let mut rows =
        vec![["CLIENT", "ADDRESS", "NAME", "MODE", "SINCE", "STATE", "STATEID"].map(str::to_owned)];
    rows.extend(found.layouts.iter().map(|layout| {
        [
            id(layout.client),
            if layout.address.is_empty() { "-".to_owned() } else { text(&layout.address) },
            printable(&layout.name),
            mode(layout).to_owned(),
            duration(layout.age_seconds),
            (if layout.recalled { "recalled" } else { "held" }).to_owned(),
            stateid(layout),
        ]
    }));
    table(&rows);
    Ok(())
}

async fn recall(admin: &Admin, path: &str, client: Option<&str>, json: bool) -> Result<()> {
    let client = match client {
        Some(client) => resolve(admin, client).await?,
        None => 0,
    };
    let arguments = ADMIN_RECALL_args { path: path.to_owned().into(), client };
    match admin.call(ADMIN_RECALL, &arguments).await? {
        ADMIN_RECALL_res::CTL_OK(recalled) if json => say!("{}", json!({ "recalled": recalled })),
        ADMIN_RECALL_res::CTL_OK(0) => say!("{path}: there was nothing to recall"),
        ADMIN_RECALL_res::CTL_OK(recalled) => say!(
            "{path}: {recalled} recalled; `sluice layout show` says who has not returned it yet, and who took another"
        ),
        ADMIN_RECALL_res::Default(_, reason) => bail!("{path}: {}", text(&reason)),
    }
    Ok(())
}

fn mode(layout: &ctl_layout) -> &'static str {
    if layout.write { "read-write" } else { "read" }
}

/// seqid and other, as Wireshark shows them.
fn stateid(layout: &ctl_layout) -> String {
    format!("{}:{}", layout.seqid, hex(&layout.other))
}

fn layout_json(layout: &ctl_layout) -> serde_json::Value {
    json!({
        "client": id(layout.client),
        "address": text(&layout.address),
        "name": text(&layout.name),
        "mode": mode(layout),
        "age_seconds": layout.age_seconds,
        "recalled": layout.recalled,
        "seqid": layout.seqid,
        "other": hex(&layout.other),
    })
}
