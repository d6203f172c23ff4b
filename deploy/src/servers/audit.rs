//! `sluice ds audit`.

use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::json;
use sluice_xdr::control::{
    ADMIN_AUDIT, ADMIN_AUDIT_args, ADMIN_AUDIT_res, ADMIN_AUDIT_resok, ctl_audit_finding, ctl_audit_kind,
    ctl_data_file, ctl_named,
};

use super::{ask, named};
use crate::reach::Admin;
use crate::status::text;

/// For one page: what does not fit is looked at again after a while, and a data server may be slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// What was looked at so far.
#[derive(Default)]
struct Sum {
    held: u64,
    owned: u64,
    skipped: u64,
    findings: u64,
    /// Data servers whose data files could not be listed.
    away: Vec<u32>,
}

/// An error when something is found, or could not be looked at: for scripts.
pub(super) async fn run(admin: &Admin, id: u32, json: bool) -> Result<()> {
    let all: Vec<u32> = ask(admin).await?.servers.iter().map(|server| server.status.id).collect();
    if id != 0 && !all.contains(&id) {
        bail!("there is no data server {id}: sluice ds list shows them");
    }
    let mut sum = Sum::default();
    for server in all.iter().copied().filter(|server| id == 0 || *server == id) {
        match pages(admin, server, id, json, &mut sum.findings).await {
            Ok((held, _)) => sum.held += held,
            Err(error) => {
                if !json {
                    say!("{error}: what it holds was not looked at");
                }
                sum.away.push(server);
            }
        }
    }
    (sum.owned, sum.skipped) = pages(admin, 0, id, json, &mut sum.findings).await?;
    let Sum { held, owned, skipped, findings, away } = sum;
    if json {
        say!(
            "{}",
            json!({ "held": held, "owned": owned, "skipped": skipped, "away": away, "findings": findings })
        );
    } else {
        say!("data files: {held} at data servers, {owned} in the metadata; findings: {findings}");
    }
    match (findings, away.len()) {
        (0, 0) if skipped == 0 => Ok(()),
        (0, _) => bail!("data servers are away: not everything was looked at"),
        (1, _) => bail!("1 finding"),
        (findings, _) => bail!("{findings} findings"),
    }
}

/// All pages of one data server, or of the owners (0) with what they miss at `only` or anywhere (0); data files looked
/// at, and of these those that could not be.
async fn pages(admin: &Admin, id: u32, only: u32, json: bool, findings: &mut u64) -> Result<(u64, u64)> {
    let (mut examined, mut skipped) = (0, 0);
    let mut after = ctl_data_file::default();
    loop {
        let page = page(admin, ADMIN_AUDIT_args { id, only, after }).await?;
        for finding in &page.findings {
            *findings += 1;
            if json { say!("{}", to_json(finding)) } else { say!("{}", line(finding)) }
        }
        examined += page.examined;
        skipped += page.skipped;
        if page.eof {
            return Ok((examined, skipped));
        }
        after = page.next;
    }
}

async fn page(admin: &Admin, args: ADMIN_AUDIT_args) -> Result<ADMIN_AUDIT_resok> {
    match admin.call_within(PATIENCE, ADMIN_AUDIT, &args).await? {
        ADMIN_AUDIT_res::CTL_OK(page) => Ok(page),
        ADMIN_AUDIT_res::Default(_, reason) => bail!("{}", text(&reason)),
    }
}

fn kind(finding: &ctl_audit_finding) -> &'static str {
    match finding.kind {
        ctl_audit_kind::AUDIT_NO_OWNER => "no-owner",
        ctl_audit_kind::AUDIT_MISSING => "missing",
        ctl_audit_kind::AUDIT_BEYOND => "beyond-end",
        ctl_audit_kind::AUDIT_UNEQUAL => "mirrors-differ",
        ctl_audit_kind::AUDIT_DAMAGED => "damaged",
        ctl_audit_kind::AUDIT_FENCE => "fence",
        _ => "unknown",
    }
}

fn owner(finding: &ctl_audit_finding) -> String {
    named(&ctl_named { file: finding.owner, name: finding.name.clone(), reason: Default::default() })
}

fn data_file(finding: &ctl_audit_finding) -> String {
    format!("{:016x}-{:04x}", finding.file.file, finding.file.slot)
}

fn line(finding: &ctl_audit_finding) -> String {
    let (server, file) = (finding.data_server, data_file(finding));
    let (owner, size, expected) = (owner(finding), finding.size, finding.expected);
    let what = match finding.kind {
        ctl_audit_kind::AUDIT_NO_OWNER => format!("{file} ({size} bytes) belongs to no file"),
        ctl_audit_kind::AUDIT_MISSING => format!("{file} is missing, of {owner}"),
        ctl_audit_kind::AUDIT_BEYOND => {
            format!("{file} has {size} bytes, of {owner} which ends at {expected}")
        }
        ctl_audit_kind::AUDIT_UNEQUAL => {
            format!("{file} has {size} bytes and another mirror {expected}, of {owner}")
        }
        ctl_audit_kind::AUDIT_DAMAGED => {
            format!("{file} has {size} bytes in quarantine ({expected} ranges), of {owner}")
        }
        ctl_audit_kind::AUDIT_FENCE => {
            format!("it does not confirm a fence of holder {:08x} ({file})", finding.holder)
        }
        _ => format!("{file}: a finding that this command does not know: upgrade it"),
    };
    format!("data server {server}: {what}")
}

fn to_json(finding: &ctl_audit_finding) -> serde_json::Value {
    json!({
        "kind": kind(finding),
        "data_server": finding.data_server,
        "data_file": data_file(finding),
        "size": finding.size,
        "expected": finding.expected,
        "holder": finding.holder,
        "file": finding.owner,
        "name": text(&finding.name),
    })
}
