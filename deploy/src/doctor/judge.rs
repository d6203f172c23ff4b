//! What the metadata server tells, judged. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::SystemTime;

use sluice_xdr::control::{
    ADMIN_DOCTOR_resok, ADMIN_LAST_DUMP_resok, ADMIN_QUOTAS_resok, ADMIN_ROOM_resok, ADMIN_STATUS_resok,
    ctl_balance, ctl_balance_state, ctl_data_server_status, ctl_machine, ctl_proxied,
};

use super::Finding;
use crate::clients::printable;
use crate::servers::balance;
use crate::status::{address, duration, health, size, text};
use crate::{quotas::notices, why};

/// Clocks that differ by more are told.
const SKEW: i64 = 5_000_000_000;
/// Fewer descriptors are too few for a busy server: a connection takes one, and so does an open file.
const FEW: u64 = 4096;
/// What was refused longer ago, in seconds, is over.
const LATELY: u64 = 600;

/// Of the metadata's device, one part in so many, but no more than this: less than that is left for a while only, and where
/// small files are not kept in the metadata any more (`mds/src/layout/inline.rs`).
const LITTLE: (u64, u64) = (20, 16 << 30);
const SCARCE: (u64, u64) = (10, 64 << 30);

pub(super) fn judge(
    status: &ADMIN_STATUS_resok,
    told: &ADMIN_DOCTOR_resok,
    proxied: &[ctl_proxied],
) -> Vec<Finding> {
    let mut findings = Vec::new();
    if status.data_servers.is_empty() {
        findings.push(Finding::problem(
            "there is no data server: start `sluice ds` somewhere, with this metadata server and its cluster key",
        ));
    }
    for server in &status.data_servers {
        findings.extend(data_server(status, server));
    }
    findings.extend(machines(status, told));
    findings.extend(told.refused.iter().filter(|refused| refused.last_seconds < LATELY).map(|refused| {
        let (address, reason) = (text(&refused.address), text(&refused.reason));
        let ago = duration(refused.last_seconds);
        Finding::problem(format!("a data server at {address} was refused {ago} ago: {reason}"))
    }));
    findings.extend(reports(status, told));
    findings.extend(
        crate::status::warnings(status, proxied).into_iter().map(|warning| {
            Finding::problem(warning.strip_prefix("warning: ").unwrap_or(&warning).to_owned())
        }),
    );
    findings.extend(only_here(status));
    findings.extend(shared_devices(status));
    if status.degraded_files > 0 {
        findings.push(Finding::note(format!("{} files have mirrors to heal", status.degraded_files)));
    }
    findings.extend(old_kernels(status));
    findings
}

fn named(server: &ctl_data_server_status) -> String {
    format!("data server {} ({})", server.id, address(server))
}

/// Something at it cannot be read.
fn damaged(server: &ctl_data_server_status) -> bool {
    text(&server.state).contains("in quarantine")
}

fn data_server(status: &ADMIN_STATUS_resok, server: &ctl_data_server_status) -> Vec<Finding> {
    let mut findings = Vec::new();
    let state = text(&server.state);
    match health(server) {
        "ok" if damaged(server) => findings.push(Finding::problem(format!("{}: {state}", named(server)))),
        // It is emptied on purpose.
        "ok" if !state.is_empty() => findings.push(Finding::note(format!("{}: {state}", named(server)))),
        "ok" => findings.push(Finding::good(named(server))),
        "full" => {
            findings.push(Finding::problem(format!(
                "{} is full: remove files, or add a data server",
                named(server)
            )));
            if damaged(server) {
                findings.push(Finding::problem(format!("{}: {state}", named(server))));
            }
        }
        _ if state.is_empty() => {
            findings.push(Finding::problem(format!("{}: {}", named(server), health(server))))
        }
        _ => findings.push(Finding::problem(format!("{}: {state}", named(server)))),
    }
    let capacity = &server.capacity;
    let scarce = capacity.total_bytes > 0 && capacity.free_bytes < capacity.total_bytes / 10;
    if scarce && health(server) == "ok" {
        findings.push(Finding::note(format!(
            "{} has {} of {} left",
            named(server),
            size(capacity.free_bytes),
            size(capacity.total_bytes)
        )));
    }
    if server.connected && server.version != status.version {
        findings.push(Finding::note(format!(
            "{} runs version {}, the metadata server {}: upgrade whichever is older",
            named(server),
            text(&server.version),
            text(&status.version)
        )));
    }
    findings
}

fn machines(status: &ADMIN_STATUS_resok, told: &ADMIN_DOCTOR_resok) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(descriptors("the metadata server", &told.machine));
    for machine in &told.machines {
        let server = status.data_servers.iter().find(|server| server.id == machine.data_server);
        let name = server.map_or_else(|| format!("data server {}", machine.data_server), named);
        let uncertain = i64::try_from(machine.round_trip_nanos / 2).unwrap_or(i64::MAX);
        findings.extend(clock(&format!("the clock of {name}"), machine.ahead_nanos, uncertain));
        findings.extend(descriptors(&name, &machine.machine));
    }
    findings
}

/// This host's clock, when the question went out and when the answer was here.
pub(super) fn clock_here(told: &ADMIN_DOCTOR_resok, before: SystemTime, after: SystemTime) -> Vec<Finding> {
    let nanos = |time: SystemTime| match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
        Err(_) => 0,
    };
    let there = told.machine.seconds.saturating_mul(1_000_000_000).saturating_add(told.machine.nanos.into());
    let (before, after) = (nanos(before), nanos(after));
    // Somewhere in between it looked at its clock.
    let middle = before.saturating_add(after.saturating_sub(before) / 2);
    clock("this host's clock", middle.saturating_sub(there), after.saturating_sub(before) / 2)
}

fn clock(whose: &str, ahead: i64, uncertain: i64) -> Vec<Finding> {
    let off = ahead.unsigned_abs();
    if off <= SKEW.saturating_add(uncertain).unsigned_abs() {
        return Vec::new();
    }
    let direction = if ahead > 0 { "ahead of" } else { "behind" };
    vec![Finding::problem(format!(
        "{whose} is {} {direction} the metadata server's: set it, and keep it right with chrony or another NTP client",
        duration(off / 1_000_000_000)
    ))]
}

fn descriptors(whose: &str, machine: &ctl_machine) -> Option<Finding> {
    let (open, most) = (machine.descriptors, machine.descriptors_most);
    let advice = "set LimitNOFILE= in its unit, or `ulimit -n` before its start, to 1048576";
    if open > most / 5 * 4 {
        return Some(Finding::problem(format!(
            "{whose} has {open} of {most} file descriptors open and will soon refuse connections: {advice}"
        )));
    }
    (most < FEW).then(|| {
        Finding::problem(format!(
            "{whose} may have {most} file descriptors only, one for each connection and open file: {advice}"
        ))
    })
}

/// What clients say of data servers, by client.
fn reports(status: &ADMIN_STATUS_resok, told: &ADMIN_DOCTOR_resok) -> Vec<Finding> {
    let all = told.avoided.iter().filter_map(|avoided| {
        let client = status.clients.iter().find(|client| client.client == avoided.client)?;
        let server = status.data_servers.iter().find(|server| server.id == avoided.data_server)?;
        let (client, server) = (why::who(client), named(server));
        Some(Finding::problem(if avoided.full {
            format!("{client} found {server} full")
        } else {
            format!(
                "{client} fails at {server}: look for a firewall or a route that is missing between the two"
            )
        }))
    });
    all.collect()
}

/// While little is left for the metadata, small files go to data servers; when nothing is, the metadata server ends.
pub(super) fn room(device: &ADMIN_ROOM_resok) -> Option<Finding> {
    let left = format!(
        "{} of {} are left on the metadata's device",
        size(device.free_bytes),
        size(device.total_bytes)
    );
    let below = |part: u64, most: u64| device.free_bytes < (device.total_bytes / part).min(most);
    if below(LITTLE.0, LITTLE.1) {
        return Some(Finding::problem(format!(
            "{left}: free space there, for a metadata server that has none ends and does not begin again"
        )));
    }
    below(SCARCE.0, SCARCE.1)
        .then(|| Finding::note(format!("{left}: what small files take more goes to data servers")))
}

/// Backups of the metadata. A file system that is younger than that need not have one yet; FoundationDB has its own.
pub(super) fn dumps(told: &ADMIN_LAST_DUMP_resok, days: u32) -> Option<Finding> {
    let late = u64::from(days) * 86_400;
    let advice = "`sluice meta dump` makes one, sluice-dump.timer one every day; where the metadata is backed up otherwise, `--dump-days 0`";
    let what = match told.newest.first() {
        _ if days == 0 => return None,
        Some(newest) if newest.age_seconds <= late => return None,
        Some(newest) if newest.age_seconds == u64::MAX => {
            "the newest dump of the metadata is of a moment to come, since the metadata server's clock is, or was, wrong"
                .to_owned()
        }
        Some(newest) => format!("the newest dump of the metadata is {} old", duration(newest.age_seconds)),
        None if told.file_system_seconds <= late => return None,
        None => "no dump of the metadata is known of".to_owned(),
    };
    Some(Finding::note(format!("{what}: {advice}")))
}

/// A balance that goes on, or did not come to its end; one that did is over.
pub(super) fn balance(last: &ctl_balance) -> Option<Finding> {
    match last.state {
        ctl_balance_state::BALANCE_RUNNING => balance::notice(Some(last)).map(Finding::note),
        ctl_balance_state::BALANCE_NO_PROGRESS => Some(Finding::note(format!(
            "{}: when that is mended, `sluice ds balance` begins another one",
            balance::words(last)
        ))),
        _ => None,
    }
}

/// That somebody has used up what it was given is what limits are for: no problem of the installation.
pub(super) fn quotas(exceeded: &ADMIN_QUOTAS_resok) -> Option<Finding> {
    notices::used_up(exceeded).map(Finding::note)
}

/// Data servers that tell hosts other than their own an address by which each host means itself.
fn only_here(status: &ADMIN_STATUS_resok) -> Vec<Finding> {
    let elsewhere = |host: &[u8]| text(host).parse().is_ok_and(|host: IpAddr| !host.is_loopback());
    let here = |host: &[u8]| text(host).parse().is_ok_and(|host: IpAddr| host.is_loopback());
    let clients = status.clients.iter().any(|client| elsewhere(&client.address));
    let serves_elsewhere =
        |server: &ctl_data_server_status| server.addresses.iter().any(|address| elsewhere(&address.host));
    let servers = status.data_servers.iter();
    let told = servers.clone().filter(|server| server.addresses.iter().any(|address| here(&address.host)));
    told.filter(|server| clients || servers.clone().any(|o| o.id != server.id && serves_elsewhere(o)))
        .map(|server| {
            Finding::problem(format!(
                "{} tells other hosts a loopback address, by which each means itself: set `advertise` there (its name for the metadata server stands for loopback, in /etc/hosts perhaps)",
                named(server)
            ))
        })
        .collect()
}

fn shared_devices(status: &ADMIN_STATUS_resok) -> Vec<Finding> {
    let mut devices: BTreeMap<[u8; 16], Vec<String>> = BTreeMap::new();
    for server in &status.data_servers {
        devices.entry(server.capacity.device.0).or_default().push(server.id.to_string());
    }
    devices.remove(&[0; 16]);
    let shared = devices.into_values().filter(|servers| servers.len() > 1);
    shared
        .map(|servers| {
            Finding::note(format!(
                "data servers {} are on one device: together they are no faster than one, and fail together",
                servers.join(", ")
            ))
        })
        .collect()
}

fn old_kernels(status: &ADMIN_STATUS_resok) -> Option<Finding> {
    let takes_stripes = |kernel: &str| {
        let mut numbers = kernel.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 18)
    };
    let old: Vec<String> = status
        .clients
        .iter()
        .filter(|client| !client.kernel.is_empty())
        .filter(|client| !takes_stripes(&text(&client.kernel)) || client.minor_version < 2)
        .map(|client| {
            format!(
                "{} ({}, NFS 4.{})",
                text(&client.address),
                printable(&client.kernel),
                client.minor_version
            )
        })
        .take(8)
        .collect();
    (!old.is_empty()).then(|| {
        Finding::note(format!(
            "stripes take a kernel of 6.18 or newer over NFS 4.2; these clients get one stripe unit at a time, so give large shared files the policy `wide-any`: {}",
            old.join(", ")
        ))
    })
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
