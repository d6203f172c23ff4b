//! `sluice ds drain` and `undrain`.

use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use serde_json::json;
use sluice_xdr::control::{
    ADMIN_DRAIN, ADMIN_DRAIN_args, ADMIN_DRAIN_res, ctl_drain, ctl_intent, ctl_server, ctl_status,
};

use super::shown::{Asking, Now, Shown};
use super::{ask, list, named};
use crate::reach::Admin;
use crate::status::{duration, size, text};

const LOOK: Duration = Duration::from_secs(1);

/// How it is asked for.
pub(super) struct How {
    /// Bytes per second; 0: no limit.
    pub(super) limit: u64,
    pub(super) wait: bool,
    pub(super) json: bool,
}

pub(super) async fn run(admin: &Admin, id: u32, how: &How) -> Result<()> {
    begin(admin, id, how).await?;
    if !how.wait {
        if how.json {
            say!("{}", list::to_json(&one(admin, id).await?));
        } else {
            say!("data server {id} is being drained: sluice ds list shows how far it is");
        }
        return Ok(());
    }
    let mut shown = Shown::new(how.json);
    loop {
        let server = one(admin, id).await?;
        if let Some(drain) = server.drain.first() {
            shown.show(now(id, drain), || list::to_json(&server));
        }
        match server.intent {
            ctl_intent::INTENT_DRAINED => break,
            ctl_intent::INTENT_ACTIVE => bail!("the drain of data server {id} was cancelled"),
            _ => tokio::time::sleep(LOOK).await,
        }
    }
    drop(shown);
    if !how.json {
        say!("data server {id} is drained and holds nothing: sluice ds remove {id} takes it out");
    }
    Ok(())
}

/// Asks until there is a verdict: what it holds may have to be counted first.
async fn begin(admin: &Admin, id: u32, how: &How) -> Result<()> {
    let mut asking = Asking::new(format!("draining data server {id}"), how.json);
    loop {
        let args = ADMIN_DRAIN_args { id, cancel: false, limit: how.limit };
        match admin.call(ADMIN_DRAIN, &args).await? {
            ADMIN_DRAIN_res::CTL_OK => return Ok(()),
            ADMIN_DRAIN_res::Default(ctl_status::CTL_ERR_AGAIN, reason) => asking.not_yet(&reason).await?,
            ADMIN_DRAIN_res::Default(_, reason) => {
                bail!("data server {id} cannot be drained: {}", text(&reason));
            }
        }
    }
}

pub(super) async fn cancel(admin: &Admin, id: u32, json: bool) -> Result<()> {
    let args = ADMIN_DRAIN_args { id, cancel: true, limit: 0 };
    match admin.call(ADMIN_DRAIN, &args).await? {
        ADMIN_DRAIN_res::CTL_OK if json => say!("{}", json!({ "id": id, "intent": "active" })),
        ADMIN_DRAIN_res::CTL_OK => {
            say!("data server {id} takes new files again; what was moved stays where it is")
        }
        ADMIN_DRAIN_res::Default(_, reason) => bail!("{}", text(&reason)),
    }
    Ok(())
}

async fn one(admin: &Admin, id: u32) -> Result<ctl_server> {
    let found = ask(admin).await?.servers.into_iter().find(|server| server.status.id == id);
    found.ok_or_else(|| anyhow!("there is no data server {id} any more"))
}

fn now(id: u32, drain: &ctl_drain) -> Now {
    Now { doing: format!("draining data server {id}"), done: done(drain), words: words(drain) }
}

/// Seconds until it is done at the present rate, if that can be said.
pub(super) fn eta(drain: &ctl_drain) -> Option<u64> {
    let left = drain.left.first()?;
    let bytes = left.bytes.checked_div(drain.rate.bytes).or((left.bytes == 0).then_some(0));
    let files = left.data_files.checked_div(drain.rate.data_files).or((left.data_files == 0).then_some(0));
    // Large files finish seldom, and small ones hold few bytes: where one of the rates is zero, the other one tells.
    match (bytes, files) {
        (Some(bytes), Some(files)) => Some(bytes.max(files)),
        (one, other) => one.or(other),
    }
}

/// Thousandths that are done.
fn done(drain: &ctl_drain) -> Option<u64> {
    let left = drain.left.first()?;
    let part = |left: u64, all: u64| {
        1000 - (u128::from(left.min(all)) * 1000).checked_div(u128::from(all)).unwrap_or(0)
    };
    let done = part(left.bytes, drain.all.bytes).min(part(left.data_files, drain.all.data_files));
    u64::try_from(done).ok()
}

fn words(drain: &ctl_drain) -> String {
    let mut words = match drain.left.first() {
        // The last pass over all files has to find none.
        Some(left) if left.data_files == 0 && drain.held == 0 => {
            return "nothing is left, making sure".to_owned();
        }
        Some(left) => format!(
            "{} data files ({}) left, {} files/s, {}/s",
            left.data_files,
            size(left.bytes),
            drain.rate.data_files,
            size(drain.rate.bytes)
        ),
        None => format!(
            "{} data files ({}) moved, counting what is left",
            drain.moved.data_files,
            size(drain.moved.bytes)
        ),
    };
    if let Some(eta) = eta(drain) {
        words += &format!(", {} to go", duration(eta));
    }
    if drain.held > 0 {
        words += &format!("; {} held up", drain.held);
        if let Some(first) = drain.examples.first() {
            words += &format!(", as {}", named(first));
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use sluice_xdr::control::ctl_amount;

    use super::*;

    fn drain(left: Option<(u64, u64)>, rate: (u64, u64)) -> ctl_drain {
        let amount = |(data_files, bytes)| ctl_amount { data_files, bytes };
        ctl_drain {
            since: 0,
            limit: 0,
            all: amount((100, 100 << 20)),
            moved: amount((10, 10 << 20)),
            left: left.map(amount).into_iter().collect(),
            rate: amount(rate),
            held: 0,
            examples: Vec::new(),
        }
    }

    #[test]
    fn the_time_to_go_is_that_of_what_takes_longest() {
        assert_eq!(eta(&drain(Some((50, 50 << 20)), (1, 10 << 20))), Some(50));
        assert_eq!(eta(&drain(Some((50, 50 << 20)), (0, 10 << 20))), Some(5));
        assert_eq!(eta(&drain(Some((50, 50 << 20)), (0, 0))), None);
        assert_eq!(eta(&drain(None, (1, 1))), None);
    }

    #[test]
    fn progress_is_said_in_words_and_in_parts() {
        let half = drain(Some((50, 20 << 20)), (5, 4 << 20));
        assert_eq!(done(&half), Some(500), "files are what it waits for");
        assert_eq!(words(&half), "50 data files (20 MiB) left, 5 files/s, 4096 KiB/s, 10 s to go");
        let early = drain(None, (0, 0));
        assert_eq!(done(&early), None);
        assert_eq!(words(&early), "10 data files (10 MiB) moved, counting what is left");
        let over = drain(Some((0, 0)), (2, 4 << 20));
        assert_eq!(done(&over), Some(1000));
        assert_eq!(words(&over), "nothing is left, making sure");
    }
}
