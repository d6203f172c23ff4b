//! `sluice doctor`: looks at a whole installation, and says what is wrong and what to do.
//!
//! | module | what |
//! | --- | --- |
//! | `judge` | what the metadata server tells (pure) |
//! | `network` | whether this host reaches everybody |
//! | `mounts` | how this host has it mounted, if it has |
//! | `tls` | whether clients will believe all servers |
//! | `sending` | how this host sends, if it has a data server |

mod judge;
mod mounts;
pub(crate) mod network;
mod sending;
mod tls;

use std::time::SystemTime;

use anyhow::{Result, bail};
use serde::Serialize;
use sluice_xdr::control::{ADMIN_DOCTOR, ADMIN_DOCTOR_res};

use crate::exports::names;
use crate::quotas::notices;
use crate::reach::Admin;
use crate::servers::balance;
use crate::status::{self, text};
use crate::{cli, why};

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    level: Level,
    what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Problem,
    /// Worth knowing, or could be better.
    Note,
    Good,
}

impl Finding {
    fn problem(what: impl Into<String>) -> Self {
        Self { level: Level::Problem, what: what.into() }
    }

    fn note(what: impl Into<String>) -> Self {
        Self { level: Level::Note, what: what.into() }
    }

    fn good(what: impl Into<String>) -> Self {
        Self { level: Level::Good, what: what.into() }
    }
}

pub(crate) async fn run(options: cli::Doctor) -> Result<()> {
    let mut findings = match Admin::reach(&options.reach).await {
        Ok(admin) => examine(&admin, options.dump_days).await?,
        Err(error) => vec![Finding::problem(network::unreachable(&error, &options.reach))],
    };
    findings.sort_by_key(|finding| finding.level);
    let problems = findings.iter().filter(|finding| finding.level == Level::Problem).count();
    if options.json {
        say!("{}", serde_json::to_string_pretty(&findings)?);
    } else {
        findings.iter().for_each(|finding| say!("{}", line(finding)));
    }
    match problems {
        0 => Ok(()),
        1 => bail!("1 problem"),
        problems => bail!("{problems} problems"),
    }
}

fn line(finding: &Finding) -> String {
    let level = match finding.level {
        Level::Problem => "problem",
        Level::Note => "note   ",
        Level::Good => "ok     ",
    };
    format!("{level}  {}", finding.what)
}

async fn examine(admin: &Admin, dump_days: u32) -> Result<Vec<Finding>> {
    let status = status::ask(admin).await?;
    let before = SystemTime::now();
    let told = match admin.call(ADMIN_DOCTOR, &()).await? {
        ADMIN_DOCTOR_res::CTL_OK(told) => told,
        ADMIN_DOCTOR_res::Default(_, reason) => bail!("{}", text(&reason)),
    };
    let mut findings = judge::clock_here(&told, before, SystemTime::now());
    findings.extend(judge::judge(&status, &told, &why::proxied(admin).await));
    findings.extend(status::room(admin).await.and_then(|room| judge::room(&room)));
    findings.extend(status::last_dump(admin).await.and_then(|told| judge::dumps(&told, dump_days)));
    findings.extend(balance::last(admin).await.and_then(|last| judge::balance(&last)));
    findings.extend(judge::quotas(&notices::exceeded(admin).await));
    findings.extend(names::troubles(&names::known(admin).await).into_iter().map(Finding::note));
    findings.extend(network::to_data_servers(&status).await);
    findings.extend(tls::of_all(admin.peer(), &network::addresses(&status)).await);
    findings.extend(mounts::here(&status));
    findings.extend(sending::here(&status));
    Ok(findings)
}
