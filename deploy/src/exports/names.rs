//! `sluice export names` and `refresh`: what exports have by name, and what the name service says of it.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Value, json};
use sluice_xdr::control::{
    ADMIN_NAMES, ADMIN_NAMES_res, ADMIN_NAMES_resok, ADMIN_REFRESH_NAMES, ctl_named_caller, ctl_named_host,
};

use crate::reach::Admin;
use crate::status::{duration, table, text};

/// How long a metadata server may look names up.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// What is known, after it was asked for anew if that is wanted.
pub(super) async fn run(admin: &Admin, refresh: bool, as_json: bool) -> Result<()> {
    let procedure = if refresh { ADMIN_REFRESH_NAMES } else { ADMIN_NAMES };
    let known = match admin.call_within(PATIENCE, procedure, &()).await? {
        ADMIN_NAMES_res::CTL_OK(known) => known,
        ADMIN_NAMES_res::Default(_, reason) => bail!("{}", text(&reason)),
    };
    if as_json {
        say!("{}", serde_json::to_string_pretty(&to_json(&known))?);
        return Ok(());
    }
    lines(&known);
    Ok(())
}

/// What is known; nothing where the metadata server is too old to tell.
pub(crate) async fn known(admin: &Admin) -> ADMIN_NAMES_resok {
    match admin.call(ADMIN_NAMES, &()).await {
        Ok(ADMIN_NAMES_res::CTL_OK(known)) => known,
        Ok(ADMIN_NAMES_res::Default(..)) | Err(_) => ADMIN_NAMES_resok::default(),
    }
}

fn lines(known: &ADMIN_NAMES_resok) {
    if known.hosts.is_empty() && known.callers.is_empty() {
        say!("no export has hosts by name, and nobody has called who is looked up for one");
        return;
    }
    if !known.hosts.is_empty() {
        let mut rows = vec![["HOST", "ADDRESSES", "LOOKED UP", "TROUBLE"].map(str::to_owned)];
        rows.extend(known.hosts.iter().map(|host| {
            [text(&host.name), addresses(host), looked_up(&host.told_seconds), text(&host.trouble)]
        }));
        table(&rows);
    }
    if !known.callers.is_empty() {
        let mut rows = vec![["CALLER", "NAME", "NETGROUPS", "LOOKED UP", "TROUBLE"].map(str::to_owned)];
        rows.extend(known.callers.iter().map(|caller| {
            [
                text(&caller.address),
                or_dash(text(&caller.name)),
                or_dash(netgroups(caller).join(" ")),
                looked_up(&caller.told_seconds),
                text(&caller.trouble),
            ]
        }));
        table(&rows);
    }
    if known.left_out > 0 {
        say!("and {} more callers", known.left_out);
    }
}

fn addresses(host: &ctl_named_host) -> String {
    let all: Vec<String> = host.addresses.iter().map(|address| text(address)).collect();
    if all.is_empty() { "none: there is no such host".to_owned() } else { all.join(" ") }
}

fn netgroups(caller: &ctl_named_caller) -> Vec<String> {
    caller.netgroups.iter().map(|group| format!("@{}", text(group))).collect()
}

fn looked_up(told: &[u64]) -> String {
    told.first().map_or_else(|| "not yet".to_owned(), |seconds| format!("{} ago", duration(*seconds)))
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

/// Who a caller is, for `sluice why`; nothing where nobody asked.
pub(crate) fn who(known: &ADMIN_NAMES_resok, address: &str) -> Option<String> {
    // On a socket for both kinds an IPv4 address is an IPv6 one.
    let plain = |text: &str| text.parse().map(|address: IpAddr| address.to_canonical()).ok();
    let meant = plain(address)?;
    let caller = known.callers.iter().find(|caller| plain(&text(&caller.address)) == Some(meant))?;
    let trouble = text(&caller.trouble);
    Some(match (text(&caller.name), netgroups(caller).join(" ")) {
        _ if caller.told_seconds.is_empty() => {
            let why = if trouble.is_empty() { String::new() } else { format!(" ({trouble})") };
            format!("not known{why}: rules by name do not let it in until it is")
        }
        (name, groups) => {
            let name = if name.is_empty() { "no name that has this address".to_owned() } else { name };
            if groups.is_empty() { name } else { format!("{name}, in {groups}") }
        }
    })
}

/// What cannot be looked up, for `sluice doctor`.
pub(crate) fn troubles(known: &ADMIN_NAMES_resok) -> Vec<String> {
    let host = |host: &ctl_named_host| {
        let (name, trouble) = (text(&host.name), text(&host.trouble));
        match trouble.as_str() {
            "" if host.addresses.is_empty() => Some(format!(
                "{name}, which exports have rules for, is no host any more: nobody gets in by that name"
            )),
            "" => None,
            trouble => Some(format!(
                "{name}, which exports have rules for, cannot be looked up ({trouble}): it keeps the addresses that it had"
            )),
        }
    };
    let mut all: Vec<String> = known.hosts.iter().filter_map(host).collect();
    let mut callers = known.callers.iter().filter(|caller| !caller.trouble.is_empty());
    if let Some(first) = callers.next() {
        all.push(format!(
            "{} clients cannot be looked up by name, {} among them ({}): is the name service of the metadata server's host up? `sluice export names` shows all",
            1 + callers.count(),
            text(&first.address),
            text(&first.trouble)
        ));
    }
    all
}

fn to_json(known: &ADMIN_NAMES_resok) -> Value {
    let texts = |all: &[sluice_xdr::control::ctl_string]| all.iter().map(|one| text(one)).collect::<Vec<_>>();
    let trouble = |trouble: &[u8]| (!trouble.is_empty()).then(|| text(trouble));
    let host = |host: &ctl_named_host| {
        json!({
            "name": text(&host.name),
            "addresses": texts(&host.addresses),
            "told_seconds": host.told_seconds.first(),
            "trouble": trouble(&host.trouble),
        })
    };
    let caller = |caller: &ctl_named_caller| {
        json!({
            "address": text(&caller.address),
            "name": (!caller.name.is_empty()).then(|| text(&caller.name)),
            "netgroups": texts(&caller.netgroups),
            "told_seconds": caller.told_seconds.first(),
            "trouble": trouble(&caller.trouble),
        })
    };
    json!({
        "hosts": known.hosts.iter().map(host).collect::<Vec<_>>(),
        "callers": known.callers.iter().map(caller).collect::<Vec<_>>(),
        "left_out": known.left_out,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_somebody_is_and_what_is_in_the_way_is_said() {
        let caller = |address: &str, name: &str, netgroups: &[&str], told: Option<u64>, trouble: &str| {
            ctl_named_caller {
                address: address.to_owned().into(),
                name: name.to_owned().into(),
                netgroups: netgroups.iter().map(|group| (*group).to_owned().into()).collect(),
                told_seconds: told.into_iter().collect(),
                trouble: trouble.to_owned().into(),
            }
        };
        let host = |name: &str, addresses: &[&str], trouble: &str| ctl_named_host {
            name: name.to_owned().into(),
            addresses: addresses.iter().map(|address| (*address).to_owned().into()).collect(),
            told_seconds: vec![3],
            trouble: trouble.to_owned().into(),
        };
        let known = ADMIN_NAMES_resok {
            hosts: vec![
                host("a.x", &["10.0.0.1"], ""),
                host("b.x", &["10.0.0.2"], "away"),
                host("c.x", &[], ""),
            ],
            callers: vec![
                caller("10.0.0.7", "a.x", &["g", "h"], Some(5), ""),
                caller("10.0.0.8", "", &[], Some(5), ""),
                caller("10.0.0.9", "", &[], None, "away"),
            ],
            left_out: 0,
        };
        assert_eq!(who(&known, "::ffff:10.0.0.7").unwrap(), "a.x, in @g @h");
        assert_eq!(who(&known, "10.0.0.8").unwrap(), "no name that has this address");
        let unknown = who(&known, "10.0.0.9").unwrap();
        assert!(unknown.starts_with("not known (away)"), "{unknown}");
        assert_eq!(who(&known, "10.0.0.1"), None);
        let troubles = troubles(&known);
        assert_eq!(troubles.len(), 3, "{troubles:?}");
        assert!(troubles[0].contains("b.x") && troubles[0].contains("(away)"), "{troubles:?}");
        assert!(troubles[1].contains("c.x") && troubles[1].contains("no host any more"), "{troubles:?}");
        assert!(troubles[2].starts_with("1 clients") && troubles[2].contains("10.0.0.9"), "{troubles:?}");
        assert_eq!(to_json(&known)["callers"][2]["told_seconds"], Value::Null);
    }
}
