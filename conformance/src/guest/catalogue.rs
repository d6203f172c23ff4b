//! The kernels we can boot and where the distribution keeps them.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};

/// How a kernel runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Machine {
    /// User-mode-linux: the same source, near-native speed, one processor.
    Uml,
    /// The distribution's exact cloud kernel under qemu's TCG.
    Qemu,
}

/// One row of the catalogue.
#[derive(Debug, Eq, PartialEq)]
pub struct Entry {
    /// As written on the command line.
    pub name: &'static str,
    pub machine: Machine,
    /// The suite of the archive that holds it.
    pub suite: &'static str,
    /// What comes before the version's last numbers in the package name (qemu), or the package (UML).
    pub package: &'static str,
    /// What comes after them.
    pub flavour: &'static str,
    /// UML before 6.13 needs its extended-state buffer widened (guest/xstate_shim.c).
    pub narrow_xstate: bool,
    /// Built against a newer C library than bookworm's.
    pub newer_libc: bool,
    /// Can serve its processes through seccomp instead of ptrace, which is faster.
    pub seccomp: bool,
    /// Clients from 6.18 on take stripes inside a mirror; older ones get disjoint segments.
    pub stripes: bool,
}

/// Every kernel, oldest first, user-mode-linux before qemu.
pub const CATALOGUE: &[Entry] = &[
    uml("uml6.1", "bookworm", Entry { narrow_xstate: true, ..BASE }),
    uml("uml6.12", "trixie", Entry { narrow_xstate: true, newer_libc: true, ..BASE }),
    uml("uml7.2", "sid", Entry { newer_libc: true, seccomp: true, stripes: true, ..BASE }),
    qemu("6.1", "bookworm", "linux-image-6.1.0-", "-cloud-amd64", false),
    qemu("6.12", "trixie", "linux-image-6.12.", "-cloud-amd64", false),
    qemu("6.18", "trixie-backports", "linux-image-6.18.", "-cloud-amd64", true),
    qemu("7.2", "trixie-backports", "linux-image-7.2.", "-cloud-amd64", true),
];

const BASE: Entry = Entry {
    name: "",
    machine: Machine::Uml,
    suite: "",
    package: "user-mode-linux",
    flavour: "",
    narrow_xstate: false,
    newer_libc: false,
    seccomp: false,
    stripes: false,
};

const fn uml(name: &'static str, suite: &'static str, traits: Entry) -> Entry {
    Entry { name, suite, ..traits }
}

const fn qemu(
    name: &'static str,
    suite: &'static str,
    package: &'static str,
    flavour: &'static str,
    stripes: bool,
) -> Entry {
    Entry { name, machine: Machine::Qemu, suite, package, flavour, stripes, ..BASE }
}

/// A kernel of the catalogue.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Kernel(&'static Entry);

impl Kernel {
    /// Its row.
    #[must_use]
    pub fn entry(self) -> &'static Entry {
        self.0
    }

    /// As written on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// All of them, in the catalogue's order.
    pub fn all() -> impl Iterator<Item = Self> {
        CATALOGUE.iter().map(Self)
    }
}

impl FromStr for Kernel {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        let Some(entry) = CATALOGUE.iter().find(|entry| entry.name == name) else {
            let names: Vec<_> = CATALOGUE.iter().map(|entry| entry.name).collect();
            bail!("no kernel is called {name:?}; there are {}", names.join(" "));
        };
        Ok(Self(entry))
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.0.name)
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0.name)
    }
}

impl Entry {
    /// Whether a package name is one build of this (qemu) kernel: only digits, dots, dashes and the
    /// distribution's suffix stand between its fixed parts, which leaves out -dbg, -unsigned and -rt.
    #[must_use]
    pub fn is_build(&self, package: &str) -> bool {
        let Some(middle) =
            package.strip_prefix(self.package).and_then(|rest| rest.strip_suffix(self.flavour))
        else {
            return false;
        };
        let middle = middle.replacen("+deb13", "", 1);
        middle.starts_with(|first: char| first.is_ascii_digit())
            && middle.chars().all(|c| c.is_ascii_digit() || c == '.')
    }
}

/// The numbers in a package name, to compare versions: 6.1.0-49 is newer than 6.1.0-9.
#[must_use]
pub fn numbers(package: &str) -> Vec<u64> {
    package.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_are_told_from_their_relatives() {
        let entry = Kernel::from_str("6.1").unwrap().entry();
        assert!(entry.is_build("linux-image-6.1.0-49-cloud-amd64"));
        assert!(!entry.is_build("linux-image-6.1.0-49-cloud-amd64-dbg"));
        assert!(!entry.is_build("linux-image-6.1.0-49-rt-amd64"));
        let entry = Kernel::from_str("6.12").unwrap().entry();
        assert!(entry.is_build("linux-image-6.12.107+deb13-cloud-amd64"));
        assert!(entry.is_build("linux-image-6.12.48+deb13.1-cloud-amd64"));
        assert!(!entry.is_build("linux-image-6.12.48+deb13-amd64"));
    }

    #[test]
    fn numbers_order_versions() {
        assert!(numbers("linux-image-6.1.0-49-cloud-amd64") > numbers("linux-image-6.1.0-9-cloud-amd64"));
    }

    #[test]
    fn names_are_unique_and_found() {
        for kernel in Kernel::all() {
            assert_eq!(Kernel::from_str(kernel.name()).unwrap().name(), kernel.name());
        }
        assert!(Kernel::from_str("5.10").is_err());
    }
}
