//! Suites that others wrote, as cases: each is a script in guest/external that runs programs brought from outside.

use std::path::PathBuf;

use super::cases::{BASE, Case, SHIPPED};

/// Long enough for a million random operations.
const HOURS: u64 = 36_000;

/// Such a suite.
#[derive(Debug)]
pub struct Entry {
    pub case: Case,
    /// What its folder must hold to be a built one.
    pub programs: &'static [&'static str],
}

/// Every such suite that runs in a guest.
pub const FOREIGN: &[Entry] = &[
    Entry {
        case: Case {
            name: "pjdfstest",
            shows: "what POSIX says of names, permissions, times and errors",
            ..SHIPPED
        },
        programs: &["bin/pjdfstest"],
    },
    Entry {
        case: Case {
            name: "cthon04",
            shows: "the Connectathon tests: basic, special, lock, general",
            ..SHIPPED
        },
        programs: &["basic/test1", "special/op_unlk", "lock/tlocklfs", "lock/tlock64", "general/runtests"],
    },
    Entry {
        case: Case {
            name: "fsx",
            shows: "random operations on a file, checked: buffered, mapped, O_DIRECT, across data servers",
            seconds: HOURS,
            ..BASE
        },
        programs: &["fsx"],
    },
    Entry {
        case: Case {
            name: "fsstress",
            shows: "random operations on a tree by several processes: nothing hangs, nothing is left broken",
            seconds: HOURS,
            ..SHIPPED
        },
        programs: &["fsstress"],
    },
    Entry {
        case: Case {
            name: "xfstests",
            shows: "the quick tests that xfstests has for every file system",
            memory: 1536,
            seconds: HOURS,
            ..SHIPPED
        },
        programs: &["check", "ltp/fsx", "src/lstat64", "tests/generic/group.list"],
    },
];

/// A suite, and where it lies.
#[derive(Clone, Debug)]
pub struct Foreign {
    pub entry: &'static Entry,
    /// The guest finds it as /share/suite.
    pub folder: PathBuf,
    /// Variables for the script.
    pub words: Vec<(&'static str, String)>,
}

impl Foreign {
    /// Finds a suite by name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Entry> {
        FOREIGN.iter().find(|entry| entry.case.name == name)
    }
}
