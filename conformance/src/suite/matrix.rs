//! The full matrix: which cases run with which kernels and minor versions.

use crate::guest::catalogue::{Kernel, Machine};

use super::cases::{CASES, Case};

/// One run of a case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) kernel: Kernel,
    pub(super) vers: &'static str,
    pub(super) case: &'static Case,
}

/// The minor versions that Sluice speaks.
pub(super) const VERSIONS: &[&str] = &["4.2", "4.1"];

/// Cells that belong together: every one of these cases with every one of these kernels.
struct Block {
    kernels: Kernels,
    vers: &'static str,
    cases: &'static [&'static str],
}

#[derive(Clone, Copy)]
enum Kernels {
    All,
    /// Near native speed: long cases.
    Uml,
    Named(&'static [&'static str]),
}

/// What is cheap and broad comes first, so that a matrix which is cut short says most.
const BLOCKS: &[Block] = &[
    Block { kernels: Kernels::All, vers: "4.2", cases: &["smoke", "direct"] },
    Block { kernels: Kernels::All, vers: "4.1", cases: &["smoke", "direct"] },
    Block { kernels: Kernels::All, vers: "4.2", cases: &["holes_eof", "coherency", "mixed", "ds_loss"] },
    Block {
        kernels: Kernels::Uml,
        vers: "4.2",
        cases: &[
            "appends",
            "logs",
            "shared",
            "together",
            "troubled",
            "programs",
            "verified",
            "segments",
            "copies",
            "delegations",
            "acl",
            "quota",
            "exports",
            "small_files",
            "inline",
            "proxied",
            "restart",
            "upgrade",
            "mirror_loss",
            "drain",
            "balance",
            "more_mirrors",
            "keys",
            "differential_part",
            "differential",
        ],
    },
    // One client of each encoding of layouts; links are shaped far below what qemu's emulation moves.
    Block { kernels: Kernels::Named(&["uml6.1", "uml7.2"]), vers: "4.2", cases: &["scaling"] },
    // Half of it is waiting for a client to give up.
    Block { kernels: Kernels::Named(&["uml6.1", "uml7.2"]), vers: "4.2", cases: &["why", "locks"] },
    // Kernels before 6.5 have no TLS, and no tlshd is run with others than this one. Kerberos wants a realm.
    Block {
        kernels: Kernels::Named(&["uml7.2"]),
        vers: "4.2",
        cases: &["differential_full", "tls", "kerberos"],
    },
    Block { kernels: Kernels::Named(&["uml6.1"]), vers: "4.1", cases: &["kerberos"] },
];

impl Kernels {
    fn hold(self, kernel: Kernel) -> bool {
        match self {
            Self::All => true,
            Self::Uml => kernel.entry().machine == Machine::Uml,
            Self::Named(names) => names.contains(&kernel.name()),
        }
    }
}

/// Every cell, in the order in which they run: a case goes through all kernels before the next one.
pub(super) fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for block in BLOCKS {
        for case in block.cases.iter().filter_map(|name| Case::find(name)) {
            let kernels = Kernel::all().filter(|kernel| block.kernels.hold(*kernel));
            cells.extend(kernels.map(|kernel| Cell { kernel, vers: block.vers, case }));
        }
    }
    cells
}

/// Where a line of the stored table belongs: by kernel, newer minor version first, then by case. What this program does
/// not know comes last.
pub(super) fn position(kernel: &str, vers: &str, case: &str) -> (usize, usize, usize) {
    let place = |found: Option<usize>| found.unwrap_or(usize::MAX);
    // A case with two kernels belongs to the first, the tested one.
    let tested = kernel.split('+').next().unwrap_or_default();
    (
        place(Kernel::all().position(|known| known.name() == tested)),
        place(VERSIONS.iter().position(|known| *known == vers)),
        place(CASES.iter().position(|known| known.name == case)),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_case_of_the_matrix_exists_and_no_cell_comes_twice() {
        for name in BLOCKS.iter().flat_map(|block| block.cases) {
            assert!(Case::find(name).is_some(), "{name}");
        }
        let names: Vec<_> = cells().iter().map(|c| (c.kernel.name(), c.vers, c.case.name)).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    }

    #[test]
    fn every_case_is_in_the_matrix_or_has_a_command_of_its_own() {
        let missing = |case: &&Case| cells().iter().all(|cell| cell.case.name != case.name);
        let missing: Vec<_> = CASES.iter().filter(missing).map(|case| case.name).collect();
        // Delegated times are not what is shipped. Power loss is about the kernel under the servers, which is the same in
        // every cell.
        assert_eq!(missing, ["delegated_times", "power_loss", "power_control"]);
    }

    #[test]
    fn every_kernel_is_tried_with_both_minor_versions() {
        for kernel in Kernel::all() {
            for vers in VERSIONS {
                let mut mine = cells().into_iter().filter(|cell| cell.kernel == kernel && cell.vers == *vers);
                assert!(mine.any(|cell| cell.case.name == "direct"), "{kernel} {vers}");
            }
        }
    }

    #[test]
    fn lines_are_ordered_by_kernel_then_version_then_case() {
        assert!(position("uml7.2", "4.1", "smoke") < position("6.1", "4.2", "smoke"));
        assert!(position("6.1", "4.2", "scaling") < position("6.1", "4.1", "smoke"));
        assert!(position("6.1+uml7.2", "4.2", "mixed") < position("6.1", "4.2", "ds_loss"));
        assert!(position("7.2", "4.1", "scaling") < position("9.9", "4.2", "smoke"));
    }
}
