//! How this host has the file system mounted, if it has.

use std::fs;

use sluice_xdr::control::ADMIN_STATUS_resok;

use super::Finding;
use crate::status::text;

/// Less read-ahead, in KiB, leaves one reader with one data server at a time.
const READ_AHEAD: u64 = 4096;

pub(super) fn here(status: &ADMIN_STATUS_resok) -> Vec<Finding> {
    // Nothing is asked of a mount itself: a server that is away would keep us waiting.
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let listen = text(&status.listen);
    let address = listen.parse::<std::net::SocketAddr>().map(|address| address.ip().to_string());
    let address = address.unwrap_or_default();
    let mut findings: Vec<Finding> = mounts
        .lines()
        .filter_map(Mount::read)
        .filter(|mount| mount.server == address)
        .flat_map(|mount| mount.judge(read_ahead))
        .collect();
    findings.dedup();
    findings
}

struct Mount<'a> {
    dir: &'a str,
    /// Major and minor number.
    device: &'a str,
    options: Vec<&'a str>,
    server: &'a str,
}

impl<'a> Mount<'a> {
    /// A line of /proc/self/mountinfo, if it is of NFS; proc_pid_mountinfo(5) has the fields.
    fn read(line: &'a str) -> Option<Self> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ');
        let (device, dir) = (mount.nth(2)?, mount.nth(1)?);
        let mut file_system = file_system.split(' ');
        let (kind, options) = (file_system.next()?, file_system.nth(1)?);
        let options: Vec<&str> = options.split(',').collect();
        let server = options.iter().find_map(|option| option.strip_prefix("addr="))?;
        matches!(kind, "nfs" | "nfs4").then_some(Self { dir, device, options, server })
    }

    fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }

    fn judge(&self, read_ahead: impl Fn(&str) -> Option<u64>) -> Vec<Finding> {
        let mut findings = Vec::new();
        let dir = self.dir;
        match self.option("vers") {
            Some("4.2") => {}
            Some("4.1") => findings.push(Finding::note(format!(
                "{dir} is mounted over 4.1: stripes, holes and user attributes need vers=4.2"
            ))),
            other => findings.push(Finding::problem(format!(
                "{dir} is mounted with vers={}: the direct way to data servers needs 4.2 (or 4.1)",
                other.unwrap_or("?")
            ))),
        }
        if self.option("nconnect").is_none() {
            findings.push(Finding::note(format!(
                "{dir} has one connection for each server: nconnect=4 to 8 moves more"
            )));
        }
        if self.options.contains(&"soft") || self.options.contains(&"softerr") {
            findings.push(Finding::note(format!(
                "{dir} is mounted soft: an application sees errors where it could wait; use hard"
            )));
        }
        if let Some(kib) = read_ahead(self.device).filter(|kib| *kib < READ_AHEAD) {
            findings.push(Finding::note(format!(
                "{dir} reads {kib} KiB ahead: one reader sees one data server at a time; echo 16384 > /sys/class/bdi/$(mountpoint -d {dir})/read_ahead_kb, and nfs4=16384 below [nfsrahead] in /etc/nfs.conf for the next mounts"
            )));
        }
        findings
    }
}

/// In KiB.
fn read_ahead(device: &str) -> Option<u64> {
    fs::read_to_string(format!("/sys/class/bdi/{device}/read_ahead_kb")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    fn judged(options: &str, kib: u64) -> Vec<(Level, String)> {
        let line = format!(
            "36 25 0:52 / /mnt/data rw,relatime shared:1 - nfs4 10.0.0.1:/ rw,{options},addr=10.0.0.1"
        );
        let found = Mount::read(&line).unwrap().judge(|device| (device == "0:52").then_some(kib));
        found.into_iter().map(|finding| (finding.level, finding.what)).collect()
    }

    #[test]
    fn a_mount_that_could_be_better_is_told_how() {
        assert_eq!(judged("vers=4.2,hard,nconnect=4", 16_384), []);
        let found = judged("vers=4.2,soft", 128);
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|(level, what)| *level == Level::Note && what.starts_with("/mnt/data ")));
        assert!(found[2].1.contains("reads 128 KiB ahead"));
        assert!(judged("vers=4.1,nconnect=4", 16_384)[0].1.contains("over 4.1"));
        assert_eq!(judged("vers=4.0,nconnect=4", 16_384)[0].0, Level::Problem);
    }

    #[test]
    fn other_file_systems_are_not_looked_at() {
        assert!(Mount::read("25 1 8:1 / / rw - ext4 /dev/sda1 rw").is_none());
        assert!(Mount::read("").is_none());
    }
}
