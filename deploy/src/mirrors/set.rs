//! `sluice mirror set`.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{ArgGroup, Args};
use serde_json::{Value, json};
use sluice_xdr::control::{
    ADMIN_MIRRORS, ADMIN_MIRRORS_args, ADMIN_MIRRORS_res, ctl_compare_state, ctl_mirrors, ctl_mirrors_what,
};

use super::{missed, missed_json, state};
use crate::cli::Reach;
use crate::clients::printable;
use crate::reach::Admin;
use crate::servers::shown::{Now, Shown};
use crate::status::{size, text};

const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["mirrors", "look", "stop"]))]
pub(crate) struct Options {
    /// Copies of every byte, each at another data server
    #[arg(value_name = "COPIES", requires = "path", value_parser = clap::value_parser!(u32).range(1..=36))]
    mirrors: Option<u32>,
    /// File, or directory with all files below, from the root of the file system; `/` is all
    #[arg(value_parser = crate::cli::path)]
    path: Option<String>,
    /// Copy at most so many MiB per second [default: no limit]
    #[arg(long, value_name = "MIB", default_value_t = 0, hide_default_value = true, conflicts_with_all = ["look", "stop"])]
    limit: u64,
    /// Only show how far it is, or how the last one ended
    #[arg(long)]
    look: bool,
    /// End the one that runs; what files were given is filled all the same
    #[arg(long)]
    stop: bool,
    /// Do not wait until it is done
    #[arg(long, conflicts_with_all = ["look", "stop"])]
    no_wait: bool,
    #[command(flatten)]
    reach: Reach,
    /// For scripts
    #[arg(long)]
    json: bool,
}

/// An error when not all files have as many as they should: for scripts.
pub(super) async fn run(how: &Options) -> Result<()> {
    let admin = &Admin::reach(&how.reach).await?;
    if how.look {
        return match ask(admin, &ADMIN_MIRRORS_args::default()).await? {
            Some(last) => show(&last, how.json),
            None => {
                let none = "no mirrors were added or given up since the metadata server's start";
                say!("{}", if how.json { "null" } else { none });
                Ok(())
            }
        };
    }
    let path = how.path.clone().unwrap_or_default();
    let args = ADMIN_MIRRORS_args {
        what: if how.stop { ctl_mirrors_what::MIRRORS_STOP } else { ctl_mirrors_what::MIRRORS_BEGIN },
        path: path.clone().into(),
        mirrors: how.mirrors.unwrap_or(0),
        limit: how.limit.saturating_mul(1 << 20),
    };
    let began = match ask(admin, &args).await {
        Err(error) if !how.stop => bail!("{path}: {error:#}"),
        told => told?,
    };
    let began = began.context("the metadata server does not know of it any more")?;
    if how.stop {
        return report(&began, how.json);
    }
    if how.no_wait {
        if how.json {
            return report(&began, true);
        }
        say!("begun: sluice mirror set --look shows how far it is");
        return Ok(());
    }
    let mut shown = Shown::new(how.json);
    let last = loop {
        let now = ask(admin, &ADMIN_MIRRORS_args::default()).await?;
        // It is not the one that was begun when the server has started anew since.
        let now = now.filter(|now| now.since == began.since);
        let now = now.context(
            "the metadata server was started anew, and this ended with it: what files were given is filled all the same; begin again for the others",
        )?;
        if now.state != ctl_compare_state::COMPARE_RUNNING {
            break now;
        }
        if !how.json {
            let doing = "changing mirrors".to_owned();
            shown.show(Now { doing, done: None, words: words(&now) }, || json!(null));
        }
        tokio::time::sleep(LOOK).await;
    };
    drop(shown);
    show(&last, how.json)
}

async fn ask(admin: &Admin, args: &ADMIN_MIRRORS_args) -> Result<Option<ctl_mirrors>> {
    // A stop waits for what is under way.
    match admin.call_within(Duration::from_secs(60), ADMIN_MIRRORS, args).await? {
        ADMIN_MIRRORS_res::CTL_OK(told) => Ok(told.last.into_iter().next()),
        ADMIN_MIRRORS_res::Default(_, reason) => bail!("{}", text(&reason)),
    }
}

fn show(last: &ctl_mirrors, json: bool) -> Result<()> {
    if !json {
        for line in last.missed.iter().flat_map(|one| missed("left as it is", one)) {
            say!("{line}");
        }
    }
    report(last, json)?;
    verdict(last).map_or(Ok(()), |why| bail!("{why}"))
}

fn report(last: &ctl_mirrors, json: bool) -> Result<()> {
    say!("{}", if json { to_json(last).to_string() } else { words(last) });
    Ok(())
}

fn left(last: &ctl_mirrors) -> u64 {
    last.missed.iter().map(|one| one.files).sum()
}

/// What is an error in the end.
fn verdict(last: &ctl_mirrors) -> Option<String> {
    match (last.state, left(last)) {
        (ctl_compare_state::COMPARE_RUNNING, _) => None,
        (_, 1) => Some("1 file was left as it is".to_owned()),
        (_, files) if files > 0 => Some(format!("{files} files were left as they are")),
        (ctl_compare_state::COMPARE_STOPPED, _) => Some("not all files were looked at".to_owned()),
        _ => None,
    }
}

/// How it stands, on one line.
fn words(last: &ctl_mirrors) -> String {
    let copies = if last.mirrors == 1 { "1 copy" } else { &format!("{} copies", last.mirrors) };
    let mut words = format!("{copies} each: {} files looked at", last.seen);
    let mut add = |files: u64, what: String| {
        if files > 0 {
            words += &format!(", {files} {what}");
        }
    };
    add(last.more, format!("got more ({} copied)", size(last.bytes)));
    add(last.fewer, "gave up some".to_owned());
    add(last.noted, "in the metadata will have as many if they leave it".to_owned());
    add(last.filling, "are still being filled".to_owned());
    add(last.later, "are looked at again".to_owned());
    add(left(last), "left as they are".to_owned());
    if last.state == ctl_compare_state::COMPARE_RUNNING && last.rate > 0 {
        words += &format!(", {}/s", size(last.rate));
    }
    if last.state == ctl_compare_state::COMPARE_STOPPED {
        let why = printable(&last.words);
        words = match why.is_empty() {
            true => format!("it was stopped: {words}"),
            false => format!("it ended early, as {why}: {words}"),
        };
    }
    words
}

fn to_json(last: &ctl_mirrors) -> Value {
    json!({
        "state": state(last.state),
        "path": text(&last.path),
        "mirrors": last.mirrors,
        "since": last.since,
        "ended": Some(last.ended).filter(|ended| *ended > 0),
        "limit_bytes_per_second": last.limit,
        "files_looked_at": last.seen,
        "got_more": last.more,
        "gave_up": last.fewer,
        "noted_inline": last.noted,
        "bytes": last.bytes,
        "bytes_per_second": last.rate,
        "still_filling": last.filling,
        "looked_at_again": last.later,
        "left": last.missed.iter().map(missed_json).collect::<Vec<_>>(),
        "reason": text(&last.words),
    })
}

#[cfg(test)]
mod tests {
    use sluice_xdr::control::ctl_missed;

    use super::*;

    #[test]
    fn the_exit_tells_whether_all_files_have_as_many() {
        let mut last =
            ctl_mirrors { state: ctl_compare_state::COMPARE_DONE, mirrors: 2, seen: 9, ..Default::default() };
        assert_eq!(verdict(&last), None);
        assert_eq!(words(&last), "2 copies each: 9 files looked at");
        (last.more, last.bytes, last.noted) = (4, 3 << 20, 2);
        last.missed = vec![ctl_missed { reason: "in use".into(), files: 2, examples: Vec::new() }];
        assert_eq!(verdict(&last).unwrap(), "2 files were left as they are");
        assert_eq!(
            words(&last),
            "2 copies each: 9 files looked at, 4 got more (3072 KiB copied), 2 in the metadata will have as many if they leave it, 2 left as they are"
        );
        assert_eq!(to_json(&last)["left"][0]["files"], 2);
        let stopped = ctl_mirrors { state: ctl_compare_state::COMPARE_STOPPED, mirrors: 1, ..last.clone() };
        assert!(words(&stopped).starts_with("it was stopped: 1 copy each: 9 files"));
        let stopped = ctl_mirrors { missed: Vec::new(), ..stopped };
        assert_eq!(verdict(&stopped).unwrap(), "not all files were looked at");
        assert_eq!(verdict(&ctl_mirrors { state: ctl_compare_state::COMPARE_RUNNING, ..last }), None);
    }
}
