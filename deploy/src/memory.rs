//! How much memory this process may use: the machine's, or less where a control group or a container has less.

use std::fs;
use std::path::{Path, PathBuf};

/// In bytes; `None` where neither the kernel nor a control group says it.
pub(crate) fn limit() -> Option<u64> {
    limit_below(Path::new("/"))
}

fn limit_below(root: &Path) -> Option<u64> {
    let machine = fs::read_to_string(root.join("proc/meminfo")).ok().and_then(|text| total(&text));
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let groups = groups.lines().filter_map(|line| group_limit(root, line)).min();
    [machine, groups].into_iter().flatten().min()
}

/// What /proc/meminfo says of the machine.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The least of what a group of /proc/self/cgroup may use and what those that it is in may.
fn group_limit(root: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    // Version 2 has one hierarchy without a name and throttles before it kills; version 1 has one for memory.
    let (mount, files): (&str, &[&str]) = if controllers.is_empty() {
        ("sys/fs/cgroup", &["memory.max", "memory.high"])
    } else if controllers.split(',').any(|controller| controller == "memory") {
        ("sys/fs/cgroup/memory", &["memory.limit_in_bytes"])
    } else {
        return None;
    };
    let mount = root.join(mount);
    // In a container the path may be the host's, and what is mounted the container's own group: that is asked in any case.
    let own: PathBuf = mount.join(path.trim_start_matches('/'));
    let groups = own.ancestors().take_while(|group| group.starts_with(&mount));
    // Without a limit there is the word `max`, or a number greater than any machine has.
    let limit = |file: PathBuf| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    groups.flat_map(|group| files.iter().map(|file| group.join(file))).filter_map(limit).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A machine of 24 GiB with these files.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let meminfo = ("proc/meminfo", "MemTotal:       25165824 kB\nMemFree:        1000 kB\n");
        for (path, text) in files.iter().chain([&meminfo]) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn limit_of(files: &[(&str, &str)]) -> u64 {
        limit_below(machine(files).path()).unwrap() / MIB
    }

    #[test]
    fn a_machine_without_groups_is_used_whole() {
        assert_eq!(limit_of(&[]), 24 << 10);
        assert_eq!(limit_below(Path::new("/nowhere")), None);
        assert!(limit().is_some_and(|bytes| bytes > 64 * MIB), "of this machine");
    }

    #[test]
    fn the_least_of_a_group_and_those_it_is_in_counts() {
        let group = ("proc/self/cgroup", "0::/system.slice/sluice.service\n");
        let own = "sys/fs/cgroup/system.slice/sluice.service/memory.max";
        let above = "sys/fs/cgroup/system.slice/memory.max";
        assert_eq!(limit_of(&[group, (own, "max\n"), (above, "max\n")]), 24 << 10);
        assert_eq!(limit_of(&[group, (own, "2147483648\n"), (above, "max\n")]), 2048);
        assert_eq!(limit_of(&[group, (own, "2147483648\n"), (above, "1073741824\n")]), 1024);
        let high = "sys/fs/cgroup/system.slice/sluice.service/memory.high";
        assert_eq!(limit_of(&[group, (own, "2147483648\n"), (high, "536870912\n")]), 512);
        assert_eq!(limit_of(&[group, (own, "1099511627776\n")]), 24 << 10, "more than there is");
    }

    #[test]
    fn a_container_sees_its_own_group() {
        let own = ("proc/self/cgroup", "0::/\n");
        assert_eq!(limit_of(&[own, ("sys/fs/cgroup/memory.max", "1073741824\n")]), 1024);
    }

    #[test]
    fn version_one_has_a_hierarchy_for_memory() {
        let group = ("proc/self/cgroup", "5:cpu,cpuacct:/small\n4:memory:/docker/0123\n1:name=systemd:/\n");
        let unlimited = ("sys/fs/cgroup/memory/docker/0123/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit_of(&[group, unlimited]), 24 << 10);
        let own = ("sys/fs/cgroup/memory/docker/0123/memory.limit_in_bytes", "1073741824\n");
        assert_eq!(limit_of(&[group, own]), 1024);
        let inside = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n");
        assert_eq!(limit_of(&[group, inside]), 512, "the host's path is not there");
    }
}
