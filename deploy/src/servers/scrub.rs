//! `sluice ds scrub`.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Result, bail};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use sluice_xdr::control::{
    ADMIN_SCRUB, ADMIN_SCRUB_args, ADMIN_SCRUB_res, ctl_damaged, ctl_named, ctl_scrub, ctl_scrub_action,
    ctl_scrub_of,
};

use super::{named, named_json};
use crate::reach::Admin;
use crate::status::{duration, size, table, text};

const LOOK: Duration = Duration::from_secs(1);

/// How it is asked for.
pub(super) struct How {
    pub(super) look: bool,
    pub(super) stop: bool,
    pub(super) wait: bool,
    pub(super) json: bool,
}

/// An error when something is damaged: for scripts.
pub(super) async fn run(admin: &Admin, id: u32, how: &How) -> Result<()> {
    let action = match how {
        How { look: true, .. } => ctl_scrub_action::SCRUB_LOOK,
        How { stop: true, .. } => ctl_scrub_action::SCRUB_STOP,
        _ => ctl_scrub_action::SCRUB_START,
    };
    let mut servers = ask(admin, id, action).await?;
    let kept = servers.iter().any(|server| server.scrub.iter().any(|scrub| scrub.on));
    if action == ctl_scrub_action::SCRUB_START && !kept {
        bail!(
            "no checksums are kept: start the data server with --checksums, or `checksums = true` in its ds.toml"
        );
    }
    if action == ctl_scrub_action::SCRUB_START && how.wait {
        servers = to_the_end(admin, id, how).await?;
    }
    if how.json {
        let all: Vec<_> = servers.iter().map(to_json).collect();
        say!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        show(&servers);
    }
    match servers.iter().map(|server| server.damaged).sum::<u64>() {
        0 => Ok(()),
        1 => bail!("1 range is damaged"),
        ranges => bail!("{ranges} ranges are damaged"),
    }
}

async fn ask(admin: &Admin, id: u32, action: ctl_scrub_action) -> Result<Vec<ctl_scrub_of>> {
    match admin.call(ADMIN_SCRUB, &ADMIN_SCRUB_args { id, action }).await? {
        ADMIN_SCRUB_res::CTL_OK(found) => Ok(found.servers),
        ADMIN_SCRUB_res::Default(_, reason) => bail!("{}", text(&reason)),
    }
}

/// Until none runs and what was found has been told.
async fn to_the_end(admin: &Admin, id: u32, how: &How) -> Result<Vec<ctl_scrub_of>> {
    let visible = !how.json && std::io::stderr().is_terminal();
    let bar = if visible { ProgressBar::new(1000) } else { ProgressBar::hidden() };
    loop {
        tokio::time::sleep(LOOK).await;
        let servers = ask(admin, id, ctl_scrub_action::SCRUB_LOOK).await?;
        let scrubs = || servers.iter().flat_map(|server| &server.scrub).filter(|scrub| scrub.on);
        let least = scrubs().map(|scrub| if scrub.running { scrub.thousandths } else { 1000 }).min();
        bar.set_position(least.unwrap_or(1000).into());
        let told = servers
            .iter()
            .all(|server| server.scrub.iter().all(|scrub| scrub.quarantined.min(1) == server.damaged.min(1)));
        if told && !scrubs().any(|scrub| scrub.running) {
            bar.finish_and_clear();
            return Ok(servers);
        }
    }
}

fn show(servers: &[ctl_scrub_of]) {
    let head = ["DS", "CHECKSUMS", "SCRUB", "COMPARED", "LAST DONE", "DAMAGED"];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(servers.iter().map(|server| {
        let scrub = server.scrub.first();
        [
            server.id.to_string(),
            scrub.map_or("-", |scrub| if scrub.on { "on" } else { "off" }).to_owned(),
            scrub.map_or_else(|| "-".to_owned(), progress),
            scrub.map_or_else(|| "-".to_owned(), |scrub| size(scrub.compared)),
            scrub.map_or_else(|| "-".to_owned(), last),
            server.damaged.to_string(),
        ]
    }));
    table(&rows);
    for server in servers.iter().filter(|server| server.damaged > 0) {
        say!("\ndata server {}: reading these ranges fails there:", server.id);
        server.examples.iter().for_each(|damaged| say!("  {}", line(damaged)));
        let more = server.damaged.saturating_sub(u64::try_from(server.examples.len()).unwrap_or(0));
        if more > 0 {
            say!("  and {more} more");
        }
    }
}

fn progress(scrub: &ctl_scrub) -> String {
    match scrub.running {
        true => format!("{}.{} %", scrub.thousandths / 10, scrub.thousandths % 10),
        false => "idle".to_owned(),
    }
}

fn last(scrub: &ctl_scrub) -> String {
    if scrub.finished == 0 {
        return "never".to_owned();
    }
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    format!("{} ago", duration(now.saturating_sub(scrub.finished.unsigned_abs())))
}

fn owner(damaged: &ctl_damaged) -> ctl_named {
    ctl_named { file: damaged.owner, name: damaged.name.clone(), reason: Default::default() }
}

fn line(damaged: &ctl_damaged) -> String {
    let damage = &damaged.damage;
    let whose = match damaged.owner {
        0 => "of no file any more".to_owned(),
        _ => named(&owner(damaged)),
    };
    format!("{} bytes at {} in {whose}", damage.length, damage.offset)
}

fn to_json(server: &ctl_scrub_of) -> Value {
    let scrub = server.scrub.first().map(|scrub| {
        json!({
            "checksums": scrub.on,
            "running": scrub.running,
            "begun": scrub.begun,
            "finished": scrub.finished,
            "thousandths": scrub.thousandths,
            "compared_bytes": scrub.compared,
            "verified_bytes": scrub.verified,
            "sealed_bytes": scrub.sealed,
            "unsealed_regions": scrub.unsealed,
            "bad_blocks": scrub.bad,
            "lost_records": scrub.lost,
            "quarantined_ranges": scrub.quarantined,
        })
    });
    let damage = |damaged: &ctl_damaged| {
        let mut value = named_json(&owner(damaged));
        value["offset"] = damaged.damage.offset.into();
        value["length"] = damaged.damage.length.into();
        value
    };
    json!({
        "id": server.id,
        "scrub": scrub,
        "damaged": server.damaged,
        "examples": server.examples.iter().map(damage).collect::<Vec<_>>(),
    })
}
