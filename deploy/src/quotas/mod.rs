//! `sluice quota`, and what other commands say of quotas (`notices`).

pub(crate) mod notices;

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use serde_json::json;
use sluice_xdr::control::{
    ADMIN_QUOTA, ADMIN_QUOTA_args, ADMIN_QUOTA_res, ADMIN_QUOTAS, ADMIN_QUOTAS_args, ADMIN_QUOTAS_res,
    ADMIN_QUOTAS_resok, ctl_limit, ctl_quota, ctl_quota_action, ctl_quota_kind,
};

use crate::cli::Reach;
use crate::reach::Admin;
use crate::status::{table, text};

#[derive(Debug, Subcommand)]
pub(crate) enum Quota {
    /// Everybody who uses something or has limits: users, or groups, or trees
    List {
        /// Groups in place of users
        #[arg(long, conflicts_with = "trees")]
        groups: bool,
        /// Trees in place of users
        #[arg(long)]
        trees: bool,
        #[command(flatten)]
        reach: Reach,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// One user, group or tree; or, with a path, all that hold for what is there
    Show {
        #[command(flatten)]
        whose: Whose,
        /// What is at this path, from the root of the file system
        #[arg(long, value_name = "PATH", value_parser = crate::cli::path,
            conflicts_with_all = ["user", "group", "tree", "every_user", "every_group"])]
        path: Option<String>,
        #[command(flatten)]
        reach: Reach,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Set limits. Those that are not named stay; a directory becomes a tree
    Set {
        #[command(flatten)]
        whose: Whose,
        /// Bytes that may not be exceeded: 10G, 500GiB, 2TB; none
        #[arg(long, value_parser = bytes)]
        bytes: Option<u64>,
        /// Bytes that may be exceeded for a while
        #[arg(long, value_parser = bytes)]
        soft_bytes: Option<u64>,
        /// Files (directories, links and so on, too) that may not be exceeded: 200000, 1M; none
        #[arg(long, value_parser = files)]
        files: Option<u64>,
        /// Files that may be exceeded for a while
        #[arg(long, value_parser = files)]
        soft_files: Option<u64>,
        /// For how long soft limits may be exceeded
        #[arg(long, value_name = "DAYS")]
        grace_days: Option<u16>,
        #[command(flatten)]
        reach: Reach,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Remove limits; a tree is a directory like any other then
    Remove {
        #[command(flatten)]
        whose: Whose,
        #[command(flatten)]
        reach: Reach,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Count anew what everybody uses, while clients are at work
    Recount {
        #[command(flatten)]
        reach: Reach,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args, Debug)]
#[group(multiple = false)]
pub(crate) struct Whose {
    /// User, by number or by the name that it has on this host
    #[arg(long)]
    user: Option<String>,
    /// Group, by number or by the name that it has on this host
    #[arg(long)]
    group: Option<String>,
    /// Directory, from the root of the file system, with all below it
    #[arg(long, value_name = "PATH", value_parser = crate::cli::path)]
    tree: Option<String>,
    /// Users without limits of their own
    #[arg(long)]
    every_user: bool,
    /// Groups without limits of their own
    #[arg(long)]
    every_group: bool,
}

/// As the server names it.
struct Named {
    kind: ctl_quota_kind,
    id: u64,
    path: String,
}

const GRACE: u32 = 7 * 24 * 3600;

pub(crate) async fn run(command: Quota) -> Result<()> {
    match command {
        Quota::List { groups, trees, reach, json } => {
            let kind = match (groups, trees) {
                (true, _) => ctl_quota_kind::QUOTA_GROUP,
                (_, true) => ctl_quota_kind::QUOTA_TREE,
                _ => ctl_quota_kind::QUOTA_USER,
            };
            list(&Admin::reach(&reach).await?, kind, json).await
        }
        Quota::Show { whose, path, reach, json } => {
            let admin = Admin::reach(&reach).await?;
            let named = match path {
                Some(path) => Named { kind: ctl_quota_kind::QUOTA_OF_PATH, id: 0, path },
                None => named(&whose)?,
            };
            print(&ask(&admin, &one(&named)).await?, json)
        }
        Quota::Set { whose, bytes, soft_bytes, files, soft_files, grace_days, reach, json } => {
            let admin = Admin::reach(&reach).await?;
            let named = named(&whose)?;
            let now = ask(&admin, &one(&named)).await?.quotas.into_iter().find(|quota| quota.own);
            let limit = |now: Option<&ctl_limit>, soft: Option<u64>, hard: Option<u64>| ctl_limit {
                soft: soft.unwrap_or(now.map_or(0, |now| now.soft)),
                hard: hard.unwrap_or(now.map_or(0, |now| now.hard)),
            };
            let days = |days: u16| u32::from(days) * 24 * 3600;
            let args = ADMIN_QUOTA_args {
                bytes: limit(now.as_ref().map(|now| &now.bytes), soft_bytes, bytes),
                files: limit(now.as_ref().map(|now| &now.files), soft_files, files),
                grace: grace_days.map_or(now.as_ref().map_or(GRACE, |now| now.grace), days),
                ..arguments(ctl_quota_action::QUOTA_SET, &named)
            };
            change(&admin, &args).await?;
            print(&ask(&admin, &one(&named)).await?, json)
        }
        Quota::Remove { whose, reach, json } => {
            let named = named(&whose)?;
            done(&Admin::reach(&reach).await?, &named, ctl_quota_action::QUOTA_REMOVE, json).await
        }
        Quota::Recount { reach, json } => {
            let nobody = Named { kind: ctl_quota_kind::QUOTA_USER, id: 0, path: String::new() };
            done(&Admin::reach(&reach).await?, &nobody, ctl_quota_action::QUOTA_RECOUNT, json).await
        }
    }
}

/// Scripts are told how things stand afterwards; people see that no error came.
async fn done(admin: &Admin, named: &Named, action: ctl_quota_action, json: bool) -> Result<()> {
    change(admin, &arguments(action, named)).await?;
    if json { print(&ask(admin, &one(named)).await?, true) } else { Ok(()) }
}

fn arguments(action: ctl_quota_action, named: &Named) -> ADMIN_QUOTA_args {
    let none = || ctl_limit { soft: 0, hard: 0 };
    ADMIN_QUOTA_args {
        action,
        kind: named.kind,
        id: named.id,
        path: named.path.clone().into(),
        bytes: none(),
        files: none(),
        grace: 0,
    }
}

fn one(named: &Named) -> ADMIN_QUOTAS_args {
    let path = named.path.clone().into();
    ADMIN_QUOTAS_args { kind: named.kind, one: true, id: named.id, from_start: false, path }
}

async fn ask(admin: &Admin, args: &ADMIN_QUOTAS_args) -> Result<ADMIN_QUOTAS_resok> {
    match admin.call(ADMIN_QUOTAS, args).await? {
        ADMIN_QUOTAS_res::CTL_OK(told) => Ok(told),
        ADMIN_QUOTAS_res::Default(_, reason) => bail!("{}", of_path(&args.path, &reason)),
    }
}

async fn change(admin: &Admin, args: &ADMIN_QUOTA_args) -> Result<()> {
    match admin.call(ADMIN_QUOTA, args).await? {
        ADMIN_QUOTA_res::CTL_OK => Ok(()),
        ADMIN_QUOTA_res::Default(_, reason) => bail!("{}", of_path(&args.path, &reason)),
    }
}

/// What is wrong, and with which path, if one was given.
fn of_path(path: &[u8], reason: &[u8]) -> String {
    if path.is_empty() { text(reason) } else { format!("{}: {}", text(path), text(reason)) }
}

async fn list(admin: &Admin, kind: ctl_quota_kind, as_json: bool) -> Result<()> {
    let mut all: Option<ADMIN_QUOTAS_resok> = None;
    loop {
        let last = all.as_ref().and_then(|all| all.quotas.last()).map(|quota| quota.id);
        let (id, from_start) = (last.unwrap_or_default(), last.is_none());
        let args = ADMIN_QUOTAS_args { kind, one: false, id, from_start, path: "".into() };
        let page = ask(admin, &args).await?;
        let (more, empty) = (page.more, page.quotas.is_empty());
        match &mut all {
            Some(all) => all.quotas.extend(page.quotas),
            None => all = Some(page),
        }
        if !more || empty {
            break;
        }
    }
    let mut all = all.context("nothing was said")?;
    let everybody = match kind {
        ctl_quota_kind::QUOTA_USER => Some(ctl_quota_kind::QUOTA_ANY_USER),
        ctl_quota_kind::QUOTA_GROUP => Some(ctl_quota_kind::QUOTA_ANY_GROUP),
        _ => None,
    };
    if let Some(kind) = everybody {
        let shown = ask(admin, &one(&Named { kind, id: 0, path: String::new() })).await?;
        all.quotas.extend(shown.quotas.into_iter().filter(|quota| quota.own));
    }
    print(&all, as_json)
}

fn print(told: &ADMIN_QUOTAS_resok, as_json: bool) -> Result<()> {
    if as_json {
        let all = json!({ "counting": told.counting, "quotas": all_to_json(&told.quotas) });
        say!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(());
    }
    let names = names(&told.quotas);
    if told.counting {
        say!("what was there before is still being counted: more is used than is shown");
    }
    let mut rows =
        vec![["WHO", "USED", "SOFT", "HARD", "FILES", "SOFT", "HARD", "STANDING"].map(str::to_owned)];
    for quota in &told.quotas {
        rows.push([
            who(quota, &names),
            size(quota.used_bytes),
            limit(quota.bytes.soft, size),
            limit(quota.bytes.hard, size),
            quota.used_files.to_string(),
            limit(quota.files.soft, |n| n.to_string()),
            limit(quota.files.hard, |n| n.to_string()),
            standing(quota, told.now),
        ]);
    }
    table(&rows);
    Ok(())
}

fn limit(limit: u64, shown: impl Fn(u64) -> String) -> String {
    if limit == 0 { "-".to_owned() } else { shown(limit) }
}

/// In one phrase.
fn standing(quota: &ctl_quota, now: u64) -> String {
    let reached = |limit: &ctl_limit, used: u64| limit.hard != 0 && used >= limit.hard;
    if quota.emptying {
        return "being taken apart".to_owned();
    }
    if quota.filling {
        return "being filled".to_owned();
    }
    if reached(&quota.bytes, quota.used_bytes) || reached(&quota.files, quota.used_files) {
        return "full".to_owned();
    }
    let since = [quota.bytes_since, quota.files_since].into_iter().filter(|since| *since != 0).min();
    match since {
        None => "ok".to_owned(),
        Some(since) => match since.saturating_add(quota.grace.into()).saturating_sub(now) {
            0 => "above soft limit, grace is over".to_owned(),
            left => format!("above soft limit, {} h left", left.div_ceil(3600)),
        },
    }
}

/// Of users and groups, as far as this host knows any.
type Names = BTreeMap<(u32, u64), String>;

fn names(quotas: &[ctl_quota]) -> Names {
    let mut names = Names::new();
    for (kind, database) in [(ctl_quota_kind::QUOTA_USER, "passwd"), (ctl_quota_kind::QUOTA_GROUP, "group")] {
        let ids: Vec<String> =
            quotas.iter().filter(|quota| quota.kind == kind).map(|quota| quota.id.to_string()).collect();
        for some in ids.chunks(500) {
            for line in getent(database, some) {
                if let (Some(name), Some(id)) = (line.first(), line.get(2).and_then(|id| id.parse().ok())) {
                    names.insert((kind.0, id), name.clone());
                }
            }
        }
    }
    names
}

/// Lines of a database of this host, in their fields; none where there is no such command.
pub(crate) fn getent(database: &str, keys: &[String]) -> Vec<Vec<String>> {
    let Ok(out) = Command::new("getent").arg(database).arg("--").args(keys).output() else {
        return Vec::new();
    };
    let lines = String::from_utf8_lossy(&out.stdout).into_owned();
    lines.lines().map(|line| line.split(':').map(str::to_owned).collect()).collect()
}

fn named(whose: &Whose) -> Result<Named> {
    let number = |database: &str, name: &String| -> Result<u64> {
        if let Ok(number) = name.parse::<u32>() {
            return Ok(number.into());
        }
        let found = getent(database, std::slice::from_ref(name));
        let id = found.first().and_then(|line| line.get(2)).and_then(|id| id.parse::<u32>().ok());
        Ok(id.with_context(|| format!("{name} is not known on this host: give its number"))?.into())
    };
    let bare = |kind, id| Named { kind, id, path: String::new() };
    Ok(match whose {
        Whose { user: Some(name), .. } => bare(ctl_quota_kind::QUOTA_USER, number("passwd", name)?),
        Whose { group: Some(name), .. } => bare(ctl_quota_kind::QUOTA_GROUP, number("group", name)?),
        Whose { tree: Some(path), .. } => {
            // The root's path has no names; an empty one would be no path.
            Named { kind: ctl_quota_kind::QUOTA_TREE, id: 0, path: format!("/{}", path.trim_matches('/')) }
        }
        Whose { every_user: true, .. } => bare(ctl_quota_kind::QUOTA_ANY_USER, 0),
        Whose { every_group: true, .. } => bare(ctl_quota_kind::QUOTA_ANY_GROUP, 0),
        _ => bail!("whose? --user, --group, --tree, --every-user or --every-group"),
    })
}

/// For people.
fn who(quota: &ctl_quota, names: &Names) -> String {
    let named = |what: &str| match names.get(&(quota.kind.0, quota.id)) {
        Some(name) => format!("{what} {name}"),
        None => format!("{what} {}", quota.id),
    };
    match quota.kind {
        ctl_quota_kind::QUOTA_USER => named("user"),
        ctl_quota_kind::QUOTA_GROUP => named("group"),
        ctl_quota_kind::QUOTA_TREE if quota.path.is_empty() => format!("tree {}", quota.id),
        ctl_quota_kind::QUOTA_TREE => crate::clients::printable(&quota.path),
        ctl_quota_kind::QUOTA_ANY_USER => "every user".to_owned(),
        _ => "every group".to_owned(),
    }
}

/// For programs.
pub(crate) fn all_to_json(quotas: &[ctl_quota]) -> Vec<serde_json::Value> {
    let names = names(quotas);
    quotas.iter().map(|quota| to_json(quota, &names)).collect()
}

fn to_json(quota: &ctl_quota, names: &Names) -> serde_json::Value {
    let kind = match quota.kind {
        ctl_quota_kind::QUOTA_USER => "user",
        ctl_quota_kind::QUOTA_GROUP => "group",
        ctl_quota_kind::QUOTA_TREE => "tree",
        ctl_quota_kind::QUOTA_ANY_USER => "every-user",
        _ => "every-group",
    };
    json!({
        "kind": kind,
        "id": quota.id,
        "name": names.get(&(quota.kind.0, quota.id)),
        "path": (!quota.path.is_empty()).then(|| text(&quota.path)),
        "own_limits": quota.own,
        "bytes": { "used": quota.used_bytes, "soft": quota.bytes.soft, "hard": quota.bytes.hard, "above_soft_since": quota.bytes_since },
        "files": { "used": quota.used_files, "soft": quota.files.soft, "hard": quota.files.hard, "above_soft_since": quota.files_since },
        "grace_seconds": quota.grace,
        "filling": quota.filling,
        "emptying": quota.emptying,
    })
}

fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut whole, mut rest, mut unit) = (bytes, 0, "B");
    for next in UNITS {
        if whole < 1024 {
            break;
        }
        (whole, rest, unit) = (whole / 1024, whole % 1024, next);
    }
    if rest == 0 || whole >= 100 {
        format!("{whole} {unit}")
    } else {
        format!("{whole}.{} {unit}", rest * 10 / 1024)
    }
}

/// 10G and 10GiB are powers of 1024, 10GB is one of 1000.
fn bytes(given: &str) -> Result<u64, String> {
    quantity(given, |unit| match unit {
        "" | "B" => Some((1, 0)),
        unit => {
            let (letter, rest) = unit.split_at_checked(1)?;
            let power = u32::try_from("KMGTPE".find(letter)?).ok()? + 1;
            match rest {
                "" | "iB" => Some((1024, power)),
                "B" => Some((1000, power)),
                _ => None,
            }
        }
    })
}

/// 1M is a million.
fn files(given: &str) -> Result<u64, String> {
    quantity(given, |unit| match unit {
        "" => Some((1, 0)),
        unit => {
            Some((1000, u32::try_from(["K", "M", "G"].iter().position(|known| *known == unit)?).ok()? + 1))
        }
    })
}

fn quantity(given: &str, unit: impl Fn(&str) -> Option<(u64, u32)>) -> Result<u64, String> {
    if given == "none" {
        return Ok(0);
    }
    let digits = given.find(|c: char| !c.is_ascii_digit()).unwrap_or(given.len());
    let (number, rest) = given.split_at(digits);
    let number = number.parse::<u64>().ok();
    let factor = unit(rest.trim()).and_then(|(base, power)| base.checked_pow(power));
    let all = number.zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
    match all {
        // Stored so, it would be no limit.
        Some(0) => Err("nothing at all cannot be a limit; none takes one away".to_owned()),
        Some(all) => Ok(all),
        None => Err(format!("{given} is not a number with a unit, as 500, 10G or 2TB; or none")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_path_is_said_of_that_path() {
        assert_eq!(of_path(b"/nodir", b"no such file"), "/nodir: no such file");
        assert_eq!(of_path(b"", b"no limits are set there"), "no limits are set there");
    }

    #[test]
    fn quantities_have_units() {
        for (given, expected) in [
            ("none", 0),
            ("512", 512),
            ("10G", 10 << 30),
            ("500GiB", 500 << 30),
            ("2TB", 2_000_000_000_000),
            ("1 KiB", 1024),
        ] {
            assert_eq!(bytes(given), Ok(expected), "{given}");
        }
        for wrong in ["", "0", "0G", "G", "10X", "10Gi", "99999999999G", "-1", "1.5G"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!((files("1M"), files("20K"), files("7")), (Ok(1_000_000), Ok(20_000), Ok(7)));
        assert!(files("1GiB").is_err());
        assert_eq!([size(0), size(1023), size(1536), size(10 << 30)], ["0 B", "1023 B", "1.5 KiB", "10 GiB"]);
    }

    #[test]
    fn a_standing_is_one_phrase() {
        let quota = ctl_quota { kind: ctl_quota_kind::QUOTA_USER, id: 7, ..ctl_quota::default() };
        assert_eq!(standing(&quota, 100), "ok");
        let above = ctl_quota { bytes_since: 100, grace: 3600, ..quota.clone() };
        assert_eq!(standing(&above, 200), "above soft limit, 1 h left");
        assert_eq!(standing(&above, 3700), "above soft limit, grace is over");
        let full = ctl_quota { files: ctl_limit { soft: 0, hard: 3 }, used_files: 3, ..above };
        assert_eq!(standing(&full, 200), "full");
        assert_eq!(who(&full, &Names::new()), "user 7");
    }
}
