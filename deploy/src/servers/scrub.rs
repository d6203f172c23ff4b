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
/// How long data servers that went away, and what is still to be told, are waited for when no scrub runs any more.
const PATIENCE: u32 = 60;

/// How it is asked for.
pub(super) struct How {
    pub(super) look: bool,
    pub(super) stop: bool,
    pub(super) wait: bool,
    pub(super) json: bool,
}

/// An error when something is damaged, or was not compared: for scripts.
pub(super) async fn run(admin: &Admin, id: u32, how: &How) -> Result<()> {
    let action = match how {
        How { look: true, .. } => ctl_scrub_action::SCRUB_LOOK,
        How { stop: true, .. } => ctl_scrub_action::SCRUB_STOP,
        _ => ctl_scrub_action::SCRUB_START,
    };
    let mut servers = ask(admin, id, action).await?;
    let mut troubles = Vec::new();
    if action == ctl_scrub_action::SCRUB_START {
        let asked = asked(&servers)?;
        if how.wait {
            servers = to_the_end(admin, id, how, &asked).await?;
        }
        troubles.extend(asked.iter().filter_map(|asked| trouble(asked, &servers)));
    }
    if how.json {
        let all: Vec<_> = servers.iter().map(to_json).collect();
        say!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        show(&servers);
    }
    match servers.iter().map(|server| server.damaged).sum::<u64>() {
        0 => {}
        1 => troubles.insert(0, "1 range is damaged".to_owned()),
        ranges => troubles.insert(0, format!("{ranges} ranges are damaged")),
    }
    if troubles.is_empty() { Ok(()) } else { bail!("{}", troubles.join("; ")) }
}

async fn ask(admin: &Admin, id: u32, action: ctl_scrub_action) -> Result<Vec<ctl_scrub_of>> {
    match admin.call(ADMIN_SCRUB, &ADMIN_SCRUB_args { id, action }).await? {
        ADMIN_SCRUB_res::CTL_OK(found) => Ok(found.servers),
        ADMIN_SCRUB_res::Default(_, reason) => bail!("{}", text(&reason)),
    }
}

/// A data server that was to scrub.
#[derive(Clone, Copy, Debug)]
struct Asked {
    id: u32,
    /// What it answered, if it did: when its scrub began, by its clock, and when the last one had ended.
    times: Option<(i64, i64)>,
}

/// Those that keep checksums, or may.
fn asked(servers: &[ctl_scrub_of]) -> Result<Vec<Asked>> {
    let answers = || servers.iter().flat_map(|server| &server.scrub);
    if answers().next().is_none() && !servers.is_empty() {
        bail!("no data server answers: `sluice status` shows since when");
    }
    if !answers().any(|scrub| scrub.on) {
        bail!(
            "no checksums are kept: start the data server with --checksums, or `checksums = true` in its ds.toml"
        );
    }
    let meant = servers.iter().filter(|server| server.scrub.iter().all(|scrub| scrub.on));
    let times = |scrub: &ctl_scrub| (scrub.begun, scrub.finished);
    Ok(meant.map(|server| Asked { id: server.id, times: server.scrub.first().map(times) }).collect())
}

/// What has become of a scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    Runs,
    Ended,
    Away,
    /// It stopped, or its data server does not know of it any more.
    BrokenOff,
}

fn course((begun, last): (i64, i64), server: Option<&ctl_scrub_of>) -> Course {
    match server.and_then(|server| server.scrub.first()) {
        None => Course::Away,
        Some(scrub) if scrub.running => Course::Runs,
        // Its clock may have been set back meanwhile.
        Some(scrub) if scrub.finished >= begun || scrub.finished != last => Course::Ended,
        Some(_) => Course::BrokenOff,
    }
}

fn of(id: u32, servers: &[ctl_scrub_of]) -> Option<&ctl_scrub_of> {
    servers.iter().find(|server| server.id == id)
}

/// Why a data server's scrub says nothing.
fn trouble(asked: &Asked, servers: &[ctl_scrub_of]) -> Option<String> {
    let Asked { id, times } = *asked;
    let Some(times) = times else {
        return Some(format!("data server {id} does not answer: what it holds was not compared"));
    };
    match course(times, of(id, servers)) {
        Course::Runs | Course::Ended => None,
        Course::Away => Some(format!(
            "data server {id} went away during its scrub, which goes on when it is back: `sluice ds scrub {id} --look` shows it"
        )),
        Course::BrokenOff => Some(format!(
            "the scrub of data server {id} did not come to its end: its log says why; start it once more"
        )),
    }
}

/// Until none runs and what was found has been told.
async fn to_the_end(admin: &Admin, id: u32, how: &How, asked: &[Asked]) -> Result<Vec<ctl_scrub_of>> {
    let visible = !how.json && std::io::stderr().is_terminal();
    let bar = if visible { ProgressBar::new(1000) } else { ProgressBar::hidden() };
    let mut idle = 0;
    loop {
        tokio::time::sleep(LOOK).await;
        let servers = ask(admin, id, ctl_scrub_action::SCRUB_LOOK).await?;
        let scrubs = || servers.iter().flat_map(|server| &server.scrub).filter(|scrub| scrub.on);
        let least = scrubs().map(|scrub| if scrub.running { scrub.thousandths } else { 1000 }).min();
        bar.set_position(least.unwrap_or(1000).into());
        let courses = || asked.iter().filter_map(|asked| Some(course(asked.times?, of(asked.id, &servers))));
        if courses().any(|course| course == Course::Runs) {
            idle = 0;
            continue;
        }
        let told = servers
            .iter()
            .all(|server| server.scrub.iter().all(|scrub| scrub.quarantined.min(1) == server.damaged.min(1)));
        if idle >= PATIENCE || told && courses().all(|course| course != Course::Away) {
            bar.finish_and_clear();
            return Ok(servers);
        }
        idle += 1;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn server(id: u32, scrub: Option<(bool, bool, i64, i64)>) -> ctl_scrub_of {
        let scrub = scrub.map(|(on, running, begun, finished)| ctl_scrub {
            on,
            running,
            begun,
            finished,
            ..ctl_scrub::default()
        });
        ctl_scrub_of { id, scrub: scrub.into_iter().collect(), ..ctl_scrub_of::default() }
    }

    fn troubles(before: &[ctl_scrub_of], after: &[ctl_scrub_of]) -> Vec<String> {
        asked(before).unwrap().iter().filter_map(|asked| trouble(asked, after)).collect()
    }

    #[test]
    fn who_was_not_compared_is_named() {
        let before = [
            server(1, Some((true, true, 50, 20))),
            server(2, None),
            server(3, Some((true, true, 60, 0))),
            server(4, Some((true, true, 50, 20))),
            server(5, Some((false, false, 0, 0))),
        ];
        let after = [
            server(1, Some((true, false, 50, 50))),
            server(2, Some((true, false, 10, 20))),
            server(3, None),
            // It was killed before it had noted that it scrubs.
            server(4, Some((true, false, 10, 20))),
            server(5, None),
        ];
        let [second, third, fourth] = &troubles(&before, &after)[..] else {
            panic!("three were not compared")
        };
        assert!(second.contains("data server 2 does not answer"), "{second}");
        assert!(third.contains("data server 3 went away"), "{third}");
        assert!(fourth.contains("data server 4 did not come to its end"), "{fourth}");
    }

    #[test]
    fn one_that_is_back_and_goes_on_is_waited_for() {
        let before = [server(1, Some((true, true, 50, 20)))];
        let runs = server(1, Some((true, true, 50, 20)));
        assert_eq!(course((50, 20), Some(&runs)), Course::Runs);
        assert_eq!(course((50, 20), Some(&server(1, Some((true, false, 50, 20))))), Course::BrokenOff);
        assert_eq!(
            course((50, 20), Some(&server(1, Some((true, false, 50, 40))))),
            Course::Ended,
            "its clock was set"
        );
        assert_eq!(troubles(&before, &[server(1, Some((true, false, 50, 90)))]), Vec::<String>::new());
    }

    #[test]
    fn none_that_answers_is_something_else_than_none_with_checksums() {
        let away = asked(&[server(1, None)]).unwrap_err().to_string();
        assert!(away.contains("no data server answers"), "{away}");
        let off = asked(&[server(1, None), server(2, Some((false, false, 0, 0)))]).unwrap_err().to_string();
        assert!(off.contains("no checksums are kept"), "{off}");
    }
}
