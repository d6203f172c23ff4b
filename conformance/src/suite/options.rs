//! Options of `suite`, and what they choose.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;

use super::cases::{CASES, Case, ROUNDS};
use super::foreign::Foreign;
use super::matrix::{self, Cell, VERSIONS};
use super::{SERVER_KERNEL, workspace};
use crate::guest::catalogue::Kernel;
use crate::guest::fetch::Cache;

/// Options of `suite`.
#[derive(Args, Debug)]
pub struct Options {
    /// Cases, or: list, ci, all [default with --matrix: all]
    #[arg(required_unless_present = "matrix")]
    pub(super) cases: Vec<String>,
    /// Kernels to test with [default: uml7.2; with --matrix all]
    #[arg(long, value_delimiter = ',')]
    kernel: Vec<Kernel>,
    /// Minor versions to mount with [default: 4.2; with --matrix both]
    #[arg(long, value_delimiter = ',', value_parser = ["4.1", "4.2"])]
    vers: Vec<String>,
    /// The full matrix of kernels, minor versions and cases; the other options choose a part of it
    #[arg(long)]
    matrix: bool,
    /// Merge the results into this table, case by case
    #[arg(long, value_name = "FILE", conflicts_with = "reference")]
    pub(super) write_matrix: Option<PathBuf>,
    /// What the tested program was built from, for the table [default: the tree's HEAD]
    #[arg(long, value_name = "ID", requires = "write_matrix")]
    pub(super) commit: Option<String>,
    /// The program to test [default: target/release/sluice beside this one, else in the workspace]
    #[arg(long, value_name = "FILE")]
    sluice: Option<PathBuf>,
    /// Against the Linux kernel's own NFS server in another guest: proves the cases, not Sluice
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "plain")]
    pub(super) reference: Option<Reference>,
    /// Where logs and results.json go
    #[arg(long, value_name = "DIR")]
    pub(super) results: Option<PathBuf>,
    /// How often the power fails in `power_loss`, or how many rounds a case has that has some
    #[arg(long, value_name = "N", default_value_t = ROUNDS, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) rounds: u32,
    /// Where `verified` begins; each round has the next one
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u32,
    /// Stop at the first case that fails
    #[arg(long)]
    pub(super) fail_fast: bool,
    /// Where guests cannot run, say so and succeed
    #[arg(long)]
    pub(super) no_guests: bool,
    /// A suite that others wrote, instead of cases
    #[arg(skip)]
    pub(super) foreign: Option<Foreign>,
}

/// How the kernel's own server serves.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Reference {
    /// Without layouts
    Plain,
    /// With flexible-file layouts towards itself, whose files it recalls from its own clients: slow
    Pnfs,
}

impl Reference {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Pnfs => "pnfs",
        }
    }
}

impl Options {
    /// Of a suite that others wrote.
    pub(crate) fn foreign(foreign: Foreign, kernel: &[Kernel], vers: &[String], results: PathBuf) -> Self {
        Self {
            cases: Vec::new(),
            kernel: kernel.to_vec(),
            vers: vers.to_vec(),
            matrix: false,
            write_matrix: None,
            commit: None,
            sluice: None,
            reference: None,
            results: Some(results),
            rounds: 1,
            seed: 1,
            fail_fast: false,
            no_guests: false,
            foreign: Some(foreign),
        }
    }

    /// Tests this program; or the kernel's own server instead.
    pub(crate) fn against(mut self, sluice: Option<PathBuf>, reference: Option<Reference>) -> Self {
        self.sluice = sluice;
        self.reference = reference;
        self
    }

    /// What must be there before the network without a way out is entered.
    pub(super) fn prepare(&self, cache: &Cache, kernels: &[Kernel], cells: &[Cell]) -> Result<()> {
        cache.ready(kernels)?;
        for which in cells.iter().filter_map(|cell| cell.case.sources) {
            cache.sources(which)?;
        }
        if self.reference.is_some() {
            cache.nfs_server()?;
        } else {
            self.program()?;
        }
        Ok(())
    }

    /// Everything to run, in order.
    pub(super) fn cells(&self) -> Result<Vec<Cell>> {
        let mut cells = if self.matrix { matrix::cells() } else { Vec::new() };
        let cases = self.chosen()?;
        if self.matrix {
            let wanted = |cell: &Cell| {
                (cases.is_empty() || cases.iter().any(|case| case.name == cell.case.name))
                    && (self.kernel.is_empty() || self.kernel.contains(&cell.kernel))
                    && (self.vers.is_empty() || self.vers.iter().any(|vers| vers == cell.vers))
            };
            cells.retain(wanted);
        } else {
            let default = [SERVER_KERNEL.parse()?];
            let kernels = if self.kernel.is_empty() { &default } else { self.kernel.as_slice() };
            for vers in VERSIONS.iter().filter(|vers| self.mounts(vers)) {
                for kernel in kernels {
                    cells.extend(cases.iter().map(|case| Cell { kernel: *kernel, vers, case }));
                }
            }
        }
        if self.reference.is_some() {
            cells.retain(|cell| cell.case.reference);
        }
        if cells.is_empty() {
            bail!("no case is left to run");
        }
        Ok(cells)
    }

    /// Whether a run that is no matrix mounts with this minor version.
    fn mounts(&self, vers: &str) -> bool {
        match self.vers.as_slice() {
            [] => Some(&vers) == VERSIONS.first(),
            chosen => chosen.iter().any(|chosen| chosen == vers),
        }
    }

    fn chosen(&self) -> Result<Vec<&'static Case>> {
        let mut chosen: Vec<_> = self.foreign.iter().map(|foreign| &foreign.entry.case).collect();
        for name in &self.cases {
            match name.as_str() {
                "all" => chosen.extend(CASES),
                "ci" => chosen.extend(CASES.iter().filter(|case| case.ci)),
                name => chosen.push(
                    Case::find(name)
                        .with_context(|| format!("no case is called {name:?}: see `suite list`"))?,
                ),
            }
        }
        Ok(chosen)
    }

    pub(super) fn kernels(&self, cells: &[Cell]) -> Vec<Kernel> {
        let mut kernels: Vec<_> = cells.iter().flat_map(|cell| cell.case.kernels(cell.kernel)).collect();
        if self.reference.is_some() || cells.iter().any(|cell| cell.case.powered) {
            kernels.extend(SERVER_KERNEL.parse::<Kernel>().ok());
        }
        kernels.sort_by_key(|kernel| kernel.name());
        kernels.dedup();
        kernels
    }

    pub(super) fn program(&self) -> Result<PathBuf> {
        let mut candidates: Vec<PathBuf> = self.sluice.clone().into_iter().collect();
        if candidates.is_empty() {
            let beside = std::env::current_exe()?;
            candidates.extend(beside.parent().map(|folder| folder.join("sluice")));
            candidates.push(workspace().join("target/release/sluice"));
        }
        match candidates.iter().find(|file| file.is_file()) {
            Some(file) => Ok(file.canonicalize()?),
            None => bail!(
                "there is no {}: cargo build --release -p sluice",
                candidates.last().map_or_else(String::new, |file| file.display().to_string())
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    /// Kernel, minor version and case of each cell that these words choose.
    fn cells(words: &str) -> Vec<String> {
        let line = Line::try_parse_from(std::iter::once("suite").chain(words.split(' '))).unwrap();
        let cells = line.options.cells().unwrap();
        cells.iter().map(|cell| format!("{} {} {}", cell.kernel, cell.vers, cell.case.name)).collect()
    }

    #[test]
    fn cases_run_where_they_are_sent() {
        assert_eq!(cells("smoke"), ["uml7.2 4.2 smoke"]);
        assert_eq!(cells("smoke --kernel 6.1 --vers 4.1,4.2"), ["6.1 4.2 smoke", "6.1 4.1 smoke"]);
    }

    #[test]
    fn options_choose_a_part_of_the_matrix() {
        assert_eq!(cells("--matrix"), cells("--matrix all"));
        assert_eq!(cells("--matrix").len(), matrix::cells().len());
        assert_eq!(cells("--matrix smoke --kernel 6.18"), ["6.18 4.2 smoke", "6.18 4.1 smoke"]);
        assert_eq!(
            cells("--matrix smoke direct --kernel 7.2 --vers 4.1"),
            ["7.2 4.1 smoke", "7.2 4.1 direct"]
        );
        let nothing = Line::try_parse_from(["suite", "--matrix", "scaling", "--kernel", "6.18"]).unwrap();
        assert!(nothing.options.cells().is_err());
        assert!(Line::try_parse_from(["suite"]).is_err());
    }
}
