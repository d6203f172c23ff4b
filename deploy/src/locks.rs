//! `sluice lock`.

use anyhow::{Result, bail};
use clap::Subcommand;
use serde_json::json;
use sluice_xdr::control::{
    ADMIN_BREAK, ADMIN_BREAK_args, ADMIN_BREAK_res, ADMIN_BREAK_resok, ADMIN_LOCKS, ADMIN_LOCKS_args,
    ADMIN_LOCKS_res, ADMIN_LOCKS_resok, ctl_hold, ctl_hold_kind, ctl_hold_place, ctl_named,
};

use crate::cli::Reach;
use crate::clients::{id, printable, resolve};
use crate::reach::Admin;
use crate::servers::named;
use crate::status::{columns, duration, text};

#[derive(Debug, Subcommand)]
pub(crate) enum Lock {
    /// Opens, byte-range locks and delegations, of one file or of all, whose they are, and who waits for a lock
    List {
        /// File, from the root of the file system [default: all files]
        #[arg(value_parser = crate::cli::path)]
        path: Option<String>,
        /// Only this client's: its ID as in `sluice client list`, its address or its name
        #[arg(long, value_name = "CLIENT")]
        client: Option<String>,
        #[command(flatten)]
        reach: Reach,
        /// For scripts: a line for each
        #[arg(long)]
        json: bool,
    },
    /// Take what clients hold of a file: its opens, locks, delegations and layouts. They are told, and go on without it
    Break {
        /// File, from the root of the file system
        #[arg(value_parser = crate::cli::path)]
        path: String,
        /// Only this client's: its ID as in `sluice client list`, its address or its name [default: every client's]
        #[arg(long, value_name = "CLIENT")]
        client: Option<String>,
        #[command(flatten)]
        reach: Reach,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
}

pub(crate) async fn run(command: Lock) -> Result<()> {
    match command {
        Lock::List { path, client, reach, json } => {
            list(&Admin::reach(&reach).await?, path.as_deref(), client.as_deref(), json).await
        }
        Lock::Break { path, client, reach, json } => {
            break_locks(&Admin::reach(&reach).await?, &path, client.as_deref(), json).await
        }
    }
}

/// As they come: there may be millions.
async fn list(admin: &Admin, path: Option<&str>, client: Option<&str>, json: bool) -> Result<()> {
    let client = meant(admin, client).await?;
    let mut arguments = ADMIN_LOCKS_args {
        path: path.unwrap_or_default().to_owned().into(),
        client,
        after: ctl_hold_place::default(),
    };
    let mut widths = [0; 8];
    let mut head =
        vec![["CLIENT", "ADDRESS", "NAME", "KIND", "MODE", "BYTES", "SINCE", "FILE"].map(str::to_owned)];
    loop {
        let page = page(admin, path, &arguments).await?;
        if json {
            page.holds.iter().for_each(|hold| say!("{}", to_json(hold)));
        } else if !page.holds.is_empty() {
            let mut rows = std::mem::take(&mut head);
            rows.extend(page.holds.iter().map(|hold| row(hold, path)));
            columns(&rows, &mut widths);
        }
        if page.eof {
            break;
        }
        arguments.after = page.next;
    }
    if !json && !head.is_empty() {
        say!("{}nobody holds anything", path.map(|path| format!("{path}: ")).unwrap_or_default());
    }
    Ok(())
}

async fn page(admin: &Admin, path: Option<&str>, arguments: &ADMIN_LOCKS_args) -> Result<ADMIN_LOCKS_resok> {
    match (admin.call(ADMIN_LOCKS, arguments).await?, path) {
        (ADMIN_LOCKS_res::CTL_OK(page), _) => Ok(page),
        (ADMIN_LOCKS_res::Default(_, reason), Some(path)) => bail!("{path}: {}", text(&reason)),
        (ADMIN_LOCKS_res::Default(_, reason), None) => bail!("{}", text(&reason)),
    }
}

/// 0: every client.
async fn meant(admin: &Admin, client: Option<&str>) -> Result<u64> {
    match client {
        Some(client) => resolve(admin, client).await,
        None => Ok(0),
    }
}

async fn break_locks(admin: &Admin, path: &str, client: Option<&str>, json: bool) -> Result<()> {
    let client = meant(admin, client).await?;
    let arguments = ADMIN_BREAK_args { path: path.to_owned().into(), client };
    match admin.call(ADMIN_BREAK, &arguments).await? {
        ADMIN_BREAK_res::CTL_OK(broken) if json => say!("{}", broken_json(&broken)),
        ADMIN_BREAK_res::CTL_OK(broken) => say!("{path}: {}", broken_words(&broken)),
        ADMIN_BREAK_res::Default(_, reason) => bail!("{path}: {}", text(&reason)),
    }
    Ok(())
}

fn broken_json(broken: &ADMIN_BREAK_resok) -> serde_json::Value {
    json!({
        "clients": broken.clients,
        "opens": broken.opens,
        "locks": broken.locks,
        "delegations": broken.delegations,
        "layouts": broken.layouts,
        "pending": broken.pending,
    })
}

fn broken_words(broken: &ADMIN_BREAK_resok) -> String {
    if broken.clients == 0 {
        return "there was nothing to break".to_owned();
    }
    let kinds = [
        (broken.opens, "open"),
        (broken.locks, "lock-owner's locks"),
        (broken.delegations, "delegation"),
        (broken.layouts, "layout"),
    ];
    let all: Vec<String> = kinds
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| match (count, what.strip_prefix("lock-owner's")) {
            (1, _) => format!("1 {what}"),
            (_, Some(locks)) => format!("{count} lock-owners'{locks}"),
            (_, None) => format!("{count} {what}s"),
        })
        .collect();
    let clients = if broken.clients == 1 { "client" } else { "clients" };
    let said = match all.is_empty() {
        true => format!("what {} {clients} held is broken already", broken.clients),
        false => format!("{} of {} {clients} broken", all.join(", "), broken.clients),
    };
    match broken.pending {
        0 => said,
        1 => format!("{said}; free as soon as 1 of them cannot write any more, which takes seconds"),
        n => format!("{said}; free as soon as {n} of them cannot write any more, which takes seconds"),
    }
}

fn kind(hold: &ctl_hold) -> &'static str {
    match hold.kind {
        ctl_hold_kind::HOLD_OPEN => "open",
        ctl_hold_kind::HOLD_LOCK => "lock",
        ctl_hold_kind::HOLD_DELEGATION => "delegation",
        ctl_hold_kind::HOLD_WAITING => "waiting",
        _ => "unknown",
    }
}

fn access(bits: u32) -> &'static str {
    match bits {
        0 => "none",
        1 => "read",
        2 => "write",
        _ => "read-write",
    }
}

fn mode(hold: &ctl_hold) -> String {
    let deny = if hold.deny == 0 { String::new() } else { format!(", denies {}", access(hold.deny)) };
    let taken = if hold.taken { ", broken" } else { "" };
    format!("{}{deny}{taken}", access(hold.access))
}

/// Of a range of the file.
fn is_range(hold: &ctl_hold) -> bool {
    matches!(hold.kind, ctl_hold_kind::HOLD_LOCK | ctl_hold_kind::HOLD_WAITING)
}

/// First and last byte of a lock.
fn bytes(hold: &ctl_hold) -> String {
    match hold.length {
        _ if !is_range(hold) => "-".to_owned(),
        u64::MAX if hold.offset == 0 => "all".to_owned(),
        u64::MAX => format!("{}-", hold.offset),
        length => format!("{}-{}", hold.offset, hold.offset.saturating_add(length.saturating_sub(1))),
    }
}

fn row(hold: &ctl_hold, path: Option<&str>) -> [String; 8] {
    let file = ctl_named { file: hold.file, name: hold.name.clone(), ..ctl_named::default() };
    [
        id(hold.client),
        printable(&hold.address),
        printable(&hold.client_name),
        kind(hold).to_owned(),
        mode(hold),
        bytes(hold),
        duration(hold.age_seconds),
        path.map_or_else(|| named(&file), |path| printable(path.as_bytes())),
    ]
    .map(|cell| if cell.is_empty() { "-".to_owned() } else { cell })
}

fn to_json(hold: &ctl_hold) -> serde_json::Value {
    let lock = is_range(hold);
    json!({
        "file": hold.file,
        "name": text(&hold.name),
        "client": id(hold.client),
        "address": text(&hold.address),
        "client_name": text(&hold.client_name),
        "kind": kind(hold),
        "access": access(hold.access),
        "deny": access(hold.deny),
        "offset": lock.then_some(hold.offset),
        "length": (lock && hold.length != u64::MAX).then_some(hold.length),
        "age_seconds": hold.age_seconds,
        "broken": hold.taken,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold() -> ctl_hold {
        ctl_hold {
            file: 77,
            name: "a\u{1b}[2J\nb".into(),
            client: 0xab,
            address: "10.0.0.1".into(),
            client_name: "Linux NFSv4.2 node\r7".into(),
            kind: ctl_hold_kind::HOLD_LOCK,
            access: 2,
            deny: 0,
            offset: 100,
            length: 50,
            age_seconds: 300,
            taken: false,
        }
    }

    #[test]
    fn names_do_not_reach_the_terminal_as_they_are() {
        let shown = row(&hold(), None);
        assert!(shown.iter().all(|cell| !cell.chars().any(char::is_control)), "{shown:?}");
        assert_eq!(shown[2..7], ["Linux NFSv4.2 node?7", "lock", "write", "100-149", "5 min"]);
        assert!(shown[7].contains("77") && row(&hold(), Some("/d/\tf"))[7] == "/d/?f", "{shown:?}");
        assert!(!to_json(&hold()).to_string().chars().any(char::is_control));
    }

    #[test]
    fn modes_and_ranges_are_in_words() {
        let open = ctl_hold { kind: ctl_hold_kind::HOLD_OPEN, access: 3, deny: 2, taken: true, ..hold() };
        assert_eq!(
            (mode(&open), bytes(&open)),
            ("read-write, denies write, broken".to_owned(), "-".to_owned())
        );
        let all = ctl_hold { offset: 0, length: u64::MAX, ..hold() };
        assert_eq!(bytes(&all), "all");
        assert_eq!(bytes(&ctl_hold { offset: 7, ..all.clone() }), "7-");
        assert_eq!(
            bytes(&ctl_hold { offset: u64::MAX - 1, length: 1, ..all.clone() }),
            "18446744073709551614-18446744073709551614"
        );
        assert_eq!(to_json(&all)["length"], serde_json::Value::Null);
        let waits = ctl_hold { kind: ctl_hold_kind::HOLD_WAITING, ..hold() };
        assert_eq!(
            (kind(&waits), mode(&waits), bytes(&waits)),
            ("waiting", "write".to_owned(), "100-149".to_owned())
        );
        assert_eq!((&to_json(&waits)["offset"], &to_json(&waits)["length"]), (&json!(100), &json!(50)));
    }

    #[test]
    fn what_is_broken_is_counted_in_words() {
        assert_eq!(broken_words(&ADMIN_BREAK_resok::default()), "there was nothing to break");
        let one = ADMIN_BREAK_resok { clients: 1, opens: 2, locks: 1, ..ADMIN_BREAK_resok::default() };
        assert_eq!(broken_words(&one), "2 opens, 1 lock-owner's locks of 1 client broken");
        let some = ADMIN_BREAK_resok { clients: 2, locks: 3, layouts: 1, pending: 1, ..one };
        assert_eq!(
            broken_words(&some),
            "2 opens, 3 lock-owners' locks, 1 layout of 2 clients broken; free as soon as 1 of them cannot write any more, which takes seconds"
        );
    }
}
