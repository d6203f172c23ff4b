//! `sluice ds balance`.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde_json::{Value, json};
use sluice_xdr::control::{
    ADMIN_BALANCE, ADMIN_BALANCE_args, ADMIN_BALANCE_res, ADMIN_BALANCE_resok, ctl_balance,
    ctl_balance_device, ctl_balance_state, ctl_balance_what,
};

use super::shown::{Now, Shown};
use super::{class, named, named_json};
use crate::cli::Reach;
use crate::clients::printable;
use crate::reach::Admin;
use crate::status::{duration, size, table_but, text};

const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// So near, in percent of a device, every data server comes to the mean
    #[arg(long, value_name = "PERCENT", default_value = "5", value_parser = tolerance)]
    to: Tolerance,
    /// Copy at most so many MiB per second [default: no limit; given again, it holds from now on]
    #[arg(long, value_name = "MIB", default_value_t = 0, hide_default_value = true)]
    limit: u64,
    /// Only show who would give how much to whom
    #[arg(long, visible_alias = "dry-run", conflicts_with_all = ["look", "stop", "no_wait", "limit"])]
    plan: bool,
    /// Only show how far it is, or how the last one ended
    #[arg(long, conflicts_with_all = ["stop", "no_wait", "limit", "to"])]
    look: bool,
    /// End the one that runs: what was moved stays where it is
    #[arg(long, visible_alias = "cancel", conflicts_with_all = ["no_wait", "limit", "to"])]
    stop: bool,
    /// Do not wait until it is done
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    reach: Reach,
    /// For scripts: a line for each look
    #[arg(long)]
    json: bool,
}

/// Thousandths of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tolerance(u16);

fn tolerance(text: &str) -> Result<Tolerance, String> {
    let told = text.trim_end_matches('%');
    let (whole, tenth) = told.split_once('.').unwrap_or((told, "0"));
    let tenths = whole.parse::<u16>().ok().zip(tenth.parse::<u16>().ok().filter(|tenth| *tenth < 10));
    let thousandths = tenths.and_then(|(whole, tenth)| whole.checked_mul(10)?.checked_add(tenth));
    let told = thousandths.filter(|told| (5..=500).contains(told));
    told.map(Tolerance).ok_or_else(|| "between 0.5 and 50 percent, with one digit after the point".to_owned())
}

fn shown(thousandths: impl Into<u32>) -> String {
    let thousandths = thousandths.into();
    match thousandths % 10 {
        0 => format!("{}%", thousandths / 10),
        tenth => format!("{}.{tenth}%", thousandths / 10),
    }
}

pub(super) async fn run(how: &Options) -> Result<()> {
    let admin = &Admin::reach(&how.reach).await?;
    if how.plan {
        let classes = class::all(admin).await;
        plan(&ask(admin, ctl_balance_what::BALANCE_PLAN, how).await?, &classes, how)?;
        return Ok(());
    }
    if how.look {
        match ask(admin, ctl_balance_what::BALANCE_LOOK, how).await?.last.first() {
            Some(last) => show(last, how.json),
            None if how.json => say!("null"),
            None => say!("data servers were never balanced"),
        }
        return Ok(());
    }
    if how.stop {
        let told = ask(admin, ctl_balance_what::BALANCE_STOP, how).await?;
        told.last.iter().for_each(|last| show(last, how.json));
        return Ok(());
    }
    ask(admin, ctl_balance_what::BALANCE_BEGIN, how).await?;
    if !how.no_wait {
        return to_the_end(admin, how).await;
    }
    if how.json {
        say!("{}", to_json(&look(admin, how).await?));
    } else {
        say!("data servers are being balanced: sluice ds balance --look shows how far it is");
    }
    Ok(())
}

async fn ask(admin: &Admin, what: ctl_balance_what, how: &Options) -> Result<ADMIN_BALANCE_resok> {
    let limit = how.limit.saturating_mul(1 << 20);
    let args = ADMIN_BALANCE_args { what, tolerance: how.to.0.into(), limit };
    match admin.call(ADMIN_BALANCE, &args).await? {
        ADMIN_BALANCE_res::CTL_OK(told) => Ok(told),
        ADMIN_BALANCE_res::Default(_, reason) => bail!("{}", text(&reason)),
    }
}

async fn look(admin: &Admin, how: &Options) -> Result<ctl_balance> {
    let last = ask(admin, ctl_balance_what::BALANCE_LOOK, how).await?.last.into_iter().next();
    last.context("the metadata server does not know of it any more")
}

/// What the metadata server knows of a balance, if it does.
pub(crate) async fn last(admin: &Admin) -> Option<ctl_balance> {
    let args = ADMIN_BALANCE_args { what: ctl_balance_what::BALANCE_LOOK, tolerance: 0, limit: 0 };
    match admin.call(ADMIN_BALANCE, &args).await.ok()? {
        ADMIN_BALANCE_res::CTL_OK(told) => told.last.into_iter().next(),
        ADMIN_BALANCE_res::Default(..) => None,
    }
}

/// For those who look at data servers while one goes on.
pub(crate) fn notice(last: Option<&ctl_balance>) -> Option<String> {
    let last = last.filter(|last| last.state == ctl_balance_state::BALANCE_RUNNING)?;
    Some(format!("data servers are being balanced: {}", words(last)))
}

/// An error when they are not balanced in the end: for scripts.
async fn to_the_end(admin: &Admin, how: &Options) -> Result<()> {
    let mut shown = Shown::new(how.json);
    let last = loop {
        let last = look(admin, how).await?;
        if last.state != ctl_balance_state::BALANCE_RUNNING {
            break last;
        }
        let now = Now { doing: "balancing".to_owned(), done: done(&last), words: words(&last) };
        shown.show(now, || to_json(&last));
        tokio::time::sleep(LOOK).await;
    };
    drop(shown);
    match last.state {
        ctl_balance_state::BALANCE_EVEN => show(&last, how.json),
        _ if how.json => {
            show(&last, true);
            bail!("data servers are not balanced");
        }
        _ => bail!("{}", words(&last)),
    }
    Ok(())
}

fn plan(told: &ADMIN_BALANCE_resok, classes: &BTreeMap<u32, String>, how: &Options) -> Result<()> {
    let class = |device: &ctl_balance_device| device.servers.first().and_then(|id| classes.get(id));
    if how.json {
        let device = |device: &ctl_balance_device| {
            json!({
                "data_servers": device.servers,
                "class": class(device),
                "used_bytes": device.used_bytes,
                "total_bytes": device.total_bytes,
                "gives_bytes": device.gives,
                "takes_bytes": device.takes,
            })
        };
        let flows = told.flows.iter();
        let flows = flows.map(|flow| json!({ "from": flow.from, "to": flow.to, "bytes": flow.bytes }));
        let devices: Vec<Value> = told.devices.iter().map(device).collect();
        let mean = f64::from(told.mean) / 10.0;
        let moves: Vec<Value> = flows.collect();
        let all = json!({ "mean_percent": mean, "devices": devices, "moves": moves });
        say!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(());
    }
    let mut rows = vec![["DS", "CLASS", "USED", "OF", "", "GIVES", "TAKES"].map(str::to_owned)];
    let some = |bytes: u64| if bytes > 0 { size(bytes) } else { "-".to_owned() };
    rows.extend(told.devices.iter().map(|device| {
        [
            device.servers.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
            class(device).cloned().unwrap_or_else(|| "-".to_owned()),
            size(device.used_bytes),
            size(device.total_bytes),
            percent(device.used_bytes, device.total_bytes),
            some(device.gives),
            some(device.takes),
        ]
    }));
    // Most have no classes.
    table_but(&rows, Some(1).filter(|_| classes.is_empty()));
    let mean = means(&told.devices, class);
    if told.flows.is_empty() {
        let within = shown(how.to.0);
        say!("\nthe mean is {mean}: every data server is within {within} of it, or nothing can go anywhere");
        return Ok(());
    }
    say!("\nthe mean is {mean}; about as much would go from one to the other:");
    for flow in &told.flows {
        say!("  data server {} to {}: {}", flow.from, flow.to, size(flow.bytes));
    }
    Ok(())
}

/// The mean, or that of each class.
fn means<'a>(
    devices: &'a [ctl_balance_device],
    class: impl Fn(&'a ctl_balance_device) -> Option<&'a String>,
) -> String {
    let mut sums: BTreeMap<Option<&String>, (u64, u64)> = BTreeMap::new();
    for device in devices {
        let (used, total) = sums.entry(class(device)).or_default();
        *used = used.saturating_add(device.used_bytes);
        *total = total.saturating_add(device.total_bytes);
    }
    let one = sums.len() == 1;
    let each = sums.into_iter().map(|(class, (used, total))| match class {
        _ if one => percent(used, total),
        Some(class) => format!("{} of class {class}", percent(used, total)),
        None => format!("{} without a class", percent(used, total)),
    });
    each.collect::<Vec<_>>().join(", ")
}

fn percent(part: u64, all: u64) -> String {
    let thousandths = (u128::from(part) * 1000).checked_div(u128::from(all)).unwrap_or(0);
    shown(u32::try_from(thousandths).unwrap_or(u32::MAX))
}

fn state(last: &ctl_balance) -> &'static str {
    match last.state {
        ctl_balance_state::BALANCE_RUNNING => "running",
        ctl_balance_state::BALANCE_EVEN => "balanced",
        ctl_balance_state::BALANCE_NOTHING_MORE => "nothing-more",
        ctl_balance_state::BALANCE_STOPPED => "stopped",
        _ => "no-progress",
    }
}

pub(crate) fn to_json(last: &ctl_balance) -> Value {
    json!({
        "state": state(last),
        "since": last.since,
        "ended": Some(last.ended).filter(|ended| *ended > 0),
        "tolerance_percent": f64::from(last.tolerance) / 10.0,
        "limit_bytes_per_second": last.limit,
        "reason": text(&last.words),
        "moved": { "data_files": last.moved.data_files, "bytes": last.moved.bytes },
        "left_bytes": last.left.first(),
        "per_second": { "data_files": last.rate.data_files, "bytes": last.rate.bytes },
        "eta_seconds": eta(last),
        "spread_percent": f64::from(last.spread) / 10.0,
        "files_looked_at": last.seen,
        "held_up": last.held,
        "examples": last.examples.iter().map(named_json).collect::<Vec<_>>(),
    })
}

fn show(last: &ctl_balance, json: bool) {
    if json {
        say!("{}", to_json(last));
        return;
    }
    say!("{}", words(last));
    if last.held > 0 {
        say!("{} files could not be moved when it was tried last:", last.held);
        last.examples.iter().for_each(|file| say!("  {}", named(file)));
    }
}

/// Seconds until it is done at the present rate, if that can be said.
fn eta(last: &ctl_balance) -> Option<u64> {
    last.left.first()?.checked_div(last.rate.bytes)
}

/// How it stands, on one line.
pub(crate) fn words(last: &ctl_balance) -> String {
    let moved = format!("{} data files ({}) moved", last.moved.data_files, size(last.moved.bytes));
    let why = printable(&last.words);
    match last.state {
        ctl_balance_state::BALANCE_RUNNING => {
            let mut words = moved;
            match last.left.first() {
                _ if !why.is_empty() => words += &format!(", waiting: {why}"),
                Some(left) => words += &format!(", {} left, {}/s", size(*left), size(last.rate.bytes)),
                None => words += ", looking how full data servers are",
            }
            if let Some(eta) = eta(last).filter(|_| why.is_empty()) {
                words += &format!(", {} to go", duration(eta));
            }
            if last.rate.bytes == 0 && last.seen > 0 && why.is_empty() {
                words += &format!(", {} files looked at", last.seen);
            }
            if last.held > 0 {
                words += &format!("; {} held up", last.held);
            }
            words
        }
        ctl_balance_state::BALANCE_EVEN => format!("data servers are balanced, {why}: {moved}"),
        ctl_balance_state::BALANCE_STOPPED => format!("the balance was stopped: {moved}"),
        _ => format!("data servers are not balanced any further: {why}; {moved}"),
    }
}

/// Thousandths that are done.
fn done(last: &ctl_balance) -> Option<u64> {
    let left = u128::from(*last.left.first()?);
    let all = left + u128::from(last.moved.bytes);
    u64::try_from((u128::from(last.moved.bytes) * 1000).checked_div(all).unwrap_or(0)).ok()
}

#[cfg(test)]
mod tests {
    use sluice_xdr::control::ctl_amount;

    use super::*;

    fn balance(state: ctl_balance_state, words: &'static str, left: Option<u64>) -> ctl_balance {
        ctl_balance {
            state,
            words: words.into(),
            moved: ctl_amount { data_files: 10, bytes: 10 << 20 },
            left: left.into_iter().collect(),
            rate: ctl_amount { data_files: 1, bytes: 1 << 20 },
            ..ctl_balance::default()
        }
    }

    #[test]
    fn how_it_stands_is_said_in_words() {
        let running = |words, left| balance(ctl_balance_state::BALANCE_RUNNING, words, left);
        let half = running("", Some(10 << 20));
        assert_eq!(done(&half), Some(500));
        assert_eq!(words(&half), "10 data files (10 MiB) moved, 10 MiB left, 1024 KiB/s, 10 s to go");
        let waits = running("data server 3 is being drained first", Some(10 << 20));
        assert_eq!(
            words(&waits),
            "10 data files (10 MiB) moved, waiting: data server 3 is being drained first"
        );
        assert_eq!(done(&running("", None)), None);
        let even = balance(ctl_balance_state::BALANCE_EVEN, "each is within 5% of the mean, 31%", None);
        assert_eq!(
            words(&even),
            "data servers are balanced, each is within 5% of the mean, 31%: 10 data files (10 MiB) moved"
        );
        let stuck = balance(ctl_balance_state::BALANCE_NO_PROGRESS, "3 files are in use", None);
        assert!(words(&stuck).starts_with("data servers are not balanced any further: 3 files are in use"));
        assert_eq!(to_json(&stuck)["state"], "no-progress");
        assert_eq!(percent(314, 1000), "31.4%");
    }

    #[test]
    fn each_class_has_its_mean() {
        let device = |id, used_bytes| ctl_balance_device {
            servers: vec![id],
            used_bytes,
            total_bytes: 100,
            ..ctl_balance_device::default()
        };
        let devices = [device(1, 10), device(2, 80), device(3, 60)];
        assert_eq!(means(&devices, |_| None), "50%");
        let archive = "archive".to_owned();
        let class = |device: &ctl_balance_device| Some(&archive).filter(|_| device.servers[0] > 1);
        assert_eq!(means(&devices, class), "10% without a class, 70% of class archive");
    }

    #[test]
    fn a_tolerance_is_in_percent_and_not_too_near() {
        assert_eq!(tolerance("5"), Ok(Tolerance(50)));
        assert_eq!(tolerance("2.5%"), Ok(Tolerance(25)));
        for wrong in ["0", "0.4", "51", "-5", "2.55", "5.", "x", "99999"] {
            assert!(tolerance(wrong).is_err(), "{wrong}");
        }
        assert_eq!((shown(50_u16), shown(25_u16)), ("5%".to_owned(), "2.5%".to_owned()));
    }
}
