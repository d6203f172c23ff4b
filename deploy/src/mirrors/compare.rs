//! `sluice mirror compare`.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{ArgGroup, Args};
use serde_json::{Value, json};
use sluice_xdr::control::{
    ADMIN_COMPARE_args, ctl_compare, ctl_compare_state, ctl_compare_what, ctl_copy, ctl_differing,
    ctl_differs, ctl_unequal,
};

use super::{ask, file, findings, look, missed, missed_json, state};
use crate::cli::Reach;
use crate::clients::printable;
use crate::reach::Admin;
use crate::servers::named;
use crate::servers::shown::{Now, Shown};
use crate::status::{size, text};

const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["path", "all", "look", "stop"]))]
pub(crate) struct Options {
    /// File, or directory with all files below, from the root of the file system
    #[arg(value_parser = crate::cli::path)]
    path: Option<String>,
    /// All files
    #[arg(long)]
    all: bool,
    /// Read at most so many MiB per second, at all data servers together [default: no limit]
    #[arg(long, value_name = "MIB", default_value_t = 0, hide_default_value = true, conflicts_with_all = ["look", "stop"])]
    limit: u64,
    /// Only show how far it is, or what the last one found
    #[arg(long)]
    look: bool,
    /// End the one that runs
    #[arg(long)]
    stop: bool,
    /// Do not wait until it is done
    #[arg(long, conflicts_with_all = ["look", "stop"])]
    no_wait: bool,
    #[command(flatten)]
    reach: Reach,
    /// For scripts: a line for each file that differs, and one at the end
    #[arg(long)]
    json: bool,
}

/// An error when copies differ, or not all could be compared: for scripts.
pub(super) async fn run(how: &Options) -> Result<()> {
    let admin = &Admin::reach(&how.reach).await?;
    if how.look {
        return match findings(admin).await? {
            Some((last, found)) => show(&last, &found, how.json),
            None if how.json => {
                say!("null");
                Ok(())
            }
            None => {
                say!("no mirrors were compared since the metadata server's start");
                Ok(())
            }
        };
    }
    let what = if how.stop { ctl_compare_what::COMPARE_STOP } else { ctl_compare_what::COMPARE_BEGIN };
    // The root is all files.
    let path = how.path.clone().filter(|path| !path.split('/').all(str::is_empty)).unwrap_or_default();
    let limit = how.limit.saturating_mul(1 << 20);
    let args = ADMIN_COMPARE_args { what, path: path.clone().into(), limit, after: 0 };
    let began = match ask(admin, &args).await {
        Err(error) if !path.is_empty() => bail!("{path}: {error:#}"),
        told => told?,
    };
    let began = began.context("the metadata server does not know of it any more")?;
    if how.stop {
        return report(how.json, &began);
    }
    if how.no_wait {
        if !how.json {
            say!("mirrors are being compared: sluice mirror compare --look shows how far it is");
            return Ok(());
        }
        return report(true, &began);
    }
    let mut shown = Shown::new(how.json);
    loop {
        // It is not the one that was begun when the server has started anew since.
        let now = look(admin, usize::MAX).await?.filter(|now| now.since == began.since);
        let now = now
            .context("the metadata server was started anew, and the comparison ended with it: begin again")?;
        if now.state != ctl_compare_state::COMPARE_RUNNING {
            break;
        }
        if !how.json {
            shown.show(Now { doing: "comparing".to_owned(), done: None, words: words(&now) }, || json!(null));
        }
        tokio::time::sleep(LOOK).await;
    }
    drop(shown);
    let (last, found) = findings(admin).await?.context("the metadata server does not know of it any more")?;
    show(&last, &found, how.json)
}

fn report(json: bool, last: &ctl_compare) -> Result<()> {
    if json {
        say!("{}", to_json(last))
    } else {
        say!("{}", words(last))
    }
    Ok(())
}

fn show(last: &ctl_compare, found: &[ctl_differing], json: bool) -> Result<()> {
    if json {
        found.iter().for_each(|found| say!("{}", found_json(found)));
    } else {
        for line in found.iter().flat_map(lines) {
            say!("{line}");
        }
        let more = last.differ.saturating_sub(u64::try_from(found.len()).unwrap_or(0));
        if more > 0 {
            say!("and {more} more files that differ");
        }
        for line in last.not_compared.iter().flat_map(|one| missed("not compared", one)) {
            say!("{line}");
        }
    }
    report(json, last)?;
    verdict(last).map_or(Ok(()), |why| bail!("{why}"))
}

/// What is an error in the end.
fn verdict(last: &ctl_compare) -> Option<String> {
    let missed: u64 = last.not_compared.iter().map(|one| one.files).sum();
    let running = last.state == ctl_compare_state::COMPARE_RUNNING;
    match (last.differ, missed) {
        (1, _) => Some("the copies of 1 file differ".to_owned()),
        (differ, _) if differ > 0 => Some(format!("the copies of {differ} files differ")),
        (_, 1) if !running => Some("1 file was not compared".to_owned()),
        (_, missed) if missed > 0 && !running => Some(format!("{missed} files were not compared")),
        _ if last.state == ctl_compare_state::COMPARE_STOPPED => {
            Some("not all files were compared".to_owned())
        }
        _ => None,
    }
}

/// How it stands, on one line.
fn words(last: &ctl_compare) -> String {
    let missed: u64 = last.not_compared.iter().map(|one| one.files).sum();
    let mut words = format!(
        "{} files looked at, {} with mirrors compared ({}), {} differ",
        last.seen,
        last.compared,
        size(last.bytes),
        last.differ
    );
    if last.state == ctl_compare_state::COMPARE_RUNNING {
        words += &format!(", {}/s", size(last.rate));
    }
    if last.later > 0 {
        words += &format!("; {} are looked at again", last.later);
    }
    if missed > 0 {
        words += &format!("; {missed} not compared");
    }
    if last.state == ctl_compare_state::COMPARE_STOPPED {
        let why = printable(&last.words);
        words = if why.is_empty() {
            format!("it was stopped: {words}")
        } else {
            format!("it ended early, as {why}: {words}")
        };
    }
    words
}

/// A file that differs.
fn lines(found: &ctl_differing) -> Vec<String> {
    let mut lines = Vec::new();
    let head = named(&file(found));
    if found.ranges > 0 {
        let ranges = if found.ranges == 1 { "1 range" } else { &format!("{} ranges", found.ranges) };
        lines.push(format!("{head}: differs in {ranges}, {} bytes of {}", found.bytes, found.size));
    }
    for server in &found.lost {
        lines.push(format!("{head}: data server {server} does not have its copy any more"));
    }
    lines.extend(found.first.iter().map(|range| format!("  {}", range_words(range))));
    let more = found.ranges.saturating_sub(u64::try_from(found.first.len()).unwrap_or(0));
    if more > 0 {
        lines.push(format!("  and {more} more ranges"));
    }
    lines
}

/// Data servers that hold the same, together.
fn range_words(range: &ctl_unequal) -> String {
    let mut groups: Vec<(u32, Vec<&ctl_copy>)> = Vec::new();
    for copy in &range.copies {
        match groups.iter_mut().find(|(alike, _)| *alike == copy.alike) {
            Some((_, group)) => group.push(copy),
            None => groups.push((copy.alike, vec![copy])),
        }
    }
    let mut letters = 'A'..='Z';
    let group = |(_, group): &(u32, Vec<&ctl_copy>)| {
        let ids: Vec<String> = group.iter().map(|copy| copy.data_server.to_string()).collect();
        let zeros = group.iter().any(|copy| copy.zeros);
        let what = if zeros { "zeros".to_owned() } else { format!("{}", letters.next().unwrap_or('?')) };
        let servers = if ids.len() == 1 { "data server" } else { "data servers" };
        format!("{what} at {servers} {}", ids.join(", "))
    };
    let have: Vec<String> = groups.iter().map(group).collect();
    let odd: Vec<String> =
        range.copies.iter().filter(|copy| copy.odd).map(|copy| copy.data_server.to_string()).collect();
    let hint = match range.hint {
        ctl_differs::DIFFERS_ZEROS => format!("; {} probably lacks what was written", odd.join(", ")),
        ctl_differs::DIFFERS_OUTVOTED => format!("; {} is outvoted", odd.join(", ")),
        _ => String::new(),
    };
    format!("{} bytes at {}: {}{hint}", range.length, range.offset, have.join(", "))
}

fn to_json(last: &ctl_compare) -> Value {
    json!({
        "state": state(last.state),
        "path": Some(text(&last.path)).filter(|path| !path.is_empty()),
        "since": last.since,
        "ended": Some(last.ended).filter(|ended| *ended > 0),
        "limit_bytes_per_second": last.limit,
        "files_looked_at": last.seen,
        "files_compared": last.compared,
        "bytes": last.bytes,
        "bytes_per_second": last.rate,
        "differ": last.differ,
        "looked_at_again": last.later,
        "not_compared": last.not_compared.iter().map(missed_json).collect::<Vec<_>>(),
        "reason": text(&last.words),
    })
}

fn found_json(found: &ctl_differing) -> Value {
    let copy = |copy: &ctl_copy| {
        json!({
            "data_server": copy.data_server,
            "alike": copy.alike,
            "zeros": copy.zeros,
            "odd": copy.odd,
        })
    };
    let range = |range: &ctl_unequal| {
        json!({
            "offset": range.offset,
            "length": range.length,
            "hint": match range.hint {
                ctl_differs::DIFFERS_ZEROS => Some("zeros"),
                ctl_differs::DIFFERS_OUTVOTED => Some("outvoted"),
                _ => None,
            },
            "copies": range.copies.iter().map(copy).collect::<Vec<_>>(),
        })
    };
    json!({
        "file": found.file,
        "name": text(&found.name),
        "size": found.size,
        "bytes": found.bytes,
        "ranges": found.ranges,
        "first": found.first.iter().map(range).collect::<Vec<_>>(),
        "lost_at": found.lost,
        "zeros_tell": found.by_zeros,
    })
}

#[cfg(test)]
mod tests {
    use sluice_xdr::control::ctl_missed;

    use super::*;

    fn copy(data_server: u32, alike: u32, zeros: bool, odd: bool) -> ctl_copy {
        ctl_copy { data_server, alike, zeros, odd }
    }

    fn range(hint: ctl_differs, copies: Vec<ctl_copy>) -> ctl_unequal {
        ctl_unequal { offset: 1 << 20, length: 8192, hint, copies }
    }

    #[test]
    fn a_range_is_told_with_who_has_what() {
        let zeros = range(ctl_differs::DIFFERS_ZEROS, vec![copy(3, 0, false, false), copy(2, 1, true, true)]);
        assert_eq!(
            range_words(&zeros),
            "8192 bytes at 1048576: A at data server 3, zeros at data server 2; 2 probably lacks what was written"
        );
        let votes = vec![copy(1, 0, false, false), copy(2, 1, false, true), copy(3, 0, false, false)];
        assert_eq!(
            range_words(&range(ctl_differs::DIFFERS_OUTVOTED, votes)),
            "8192 bytes at 1048576: A at data servers 1, 3, B at data server 2; 2 is outvoted"
        );
        let either =
            range(ctl_differs::DIFFERS_SOMEHOW, vec![copy(1, 0, false, false), copy(2, 1, false, false)]);
        assert_eq!(range_words(&either), "8192 bytes at 1048576: A at data server 1, B at data server 2");
        let found = ctl_differing {
            file: 7,
            name: "f".into(),
            size: 3 << 20,
            bytes: 8192,
            ranges: 3,
            first: vec![zeros],
            lost: vec![4],
            by_zeros: false,
        };
        let lines = lines(&found);
        assert_eq!(lines[0], "f (find -inum 7): differs in 3 ranges, 8192 bytes of 3145728");
        assert_eq!(lines[1], "f (find -inum 7): data server 4 does not have its copy any more");
        assert_eq!(lines.last().unwrap(), "  and 2 more ranges");
        assert_eq!(found_json(&found)["first"][0]["hint"], "zeros");
    }

    #[test]
    fn the_exit_tells_whether_all_is_equal() {
        let mut last = ctl_compare { state: ctl_compare_state::COMPARE_DONE, ..ctl_compare::default() };
        assert_eq!(verdict(&last), None);
        let reason = "in use".into();
        last.not_compared = vec![ctl_missed { reason, files: 2, examples: Vec::new() }];
        assert_eq!(verdict(&last).unwrap(), "2 files were not compared");
        assert_eq!(
            missed("not compared", &last.not_compared[0]),
            ["not compared: 2 files, in use", "  and 2 more"]
        );
        last.differ = 1;
        assert_eq!(verdict(&last).unwrap(), "the copies of 1 file differ");
        let stopped = ctl_compare { state: ctl_compare_state::COMPARE_STOPPED, ..ctl_compare::default() };
        assert!(
            verdict(&stopped).is_some() && words(&stopped).starts_with("it was stopped: 0 files looked at")
        );
        let runs = ctl_compare { rate: 1 << 20, later: 3, ..ctl_compare::default() };
        assert_eq!(verdict(&runs), None);
        assert_eq!(
            words(&runs),
            "0 files looked at, 0 with mirrors compared (0 B), 0 differ, 1024 KiB/s; 3 are looked at again"
        );
        assert_eq!(to_json(&runs)["state"], "running");
    }
}
