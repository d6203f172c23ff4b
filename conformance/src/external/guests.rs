//! `pjdfstest`, `cthon04`, `fsx`, `fsstress`, `xfstests`: suites of programs that run on a mount, in guests with stock kernels,
//! compared with what is known of each test.

use std::collections::BTreeSet;
use std::fmt::{Display, Formatter};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;

use super::expectations::{Comparison, Expectations, Verdict};
use crate::guest::catalogue::Kernel;
use crate::suite::foreign::Foreign;
use crate::suite::{self, Outcome, Reference};

/// How a line begins that says what a test said; code, verdict and words follow, with tabs between.
const RESULT: &str = "RESULT\t";
/// What the expectations name of a suite of random operations.
const SEEDS: [u64; 3] = [1, 2, 3];

/// Options of every suite that runs in guests.
#[derive(Args, Debug)]
pub struct Options {
    /// The folder of the built suite
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Kernels to test with
    #[arg(long, value_delimiter = ',', default_value = "uml7.2")]
    kernel: Vec<Kernel>,
    /// Minor versions to mount with
    #[arg(long, value_delimiter = ',', default_value = "4.2", value_parser = ["4.1", "4.2"])]
    vers: Vec<String>,
    /// Only tests whose code begins so, or so, with commas between
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// The program to test [default: target/release/sluice beside this one, else in the workspace]
    #[arg(long, value_name = "FILE")]
    sluice: Option<PathBuf>,
    /// Against the Linux kernel's own NFS server instead: what fails there too
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "plain")]
    reference: Option<Reference>,
    /// What is known of each test [default: the suite's own file in conformance/expectations]
    #[arg(long, value_name = "FILE")]
    expectations: Option<PathBuf>,
    /// Where logs and results go [default: target/SUITE]
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
    /// Where the suite is absent, say so and succeed
    #[arg(long)]
    no_suite: bool,
}

/// Options of a suite of random operations.
#[derive(Args, Debug)]
pub struct Random {
    #[command(flatten)]
    common: Options,
    /// Operations with each seed
    #[arg(long, value_name = "N")]
    operations: u64,
    /// Seeds, one run each
    #[arg(long, value_delimiter = ',', default_values_t = SEEDS)]
    seeds: Vec<u64>,
}

impl Random {
    /// Runs the suite of this name.
    ///
    /// # Errors
    /// As `Options::run`.
    pub fn run(&self, name: &str) -> Result<ExitCode> {
        let seeds: Vec<_> = self.seeds.iter().map(u64::to_string).collect();
        let words = [("OPERATIONS", self.operations.to_string()), ("SEEDS", seeds.join(" "))];
        self.common.run(name, &words, self.seeds == SEEDS)
    }
}

impl Options {
    /// Runs the suite of this name; the exit code says whether nothing that passed fails now, and, of the `whole` suite,
    /// whether every test was heard of.
    ///
    /// # Errors
    /// If the suite, the servers or the guests cannot run.
    pub fn run(&self, name: &str, words: &[(&'static str, String)], whole: bool) -> Result<ExitCode> {
        let entry = Foreign::find(name).with_context(|| format!("no suite is called {name}"))?;
        if let Some(program) = entry.programs.iter().find(|program| !self.folder.join(program).is_file()) {
            let absent = format!("there is no built {name} in {} (no {program})", self.folder.display());
            if self.no_suite {
                eprintln!("{name} was NOT RUN: {absent}");
                return Ok(ExitCode::SUCCESS);
            }
            bail!(absent);
        }
        let home = Path::new(env!("CARGO_MANIFEST_DIR"));
        let file = self.expectations.clone();
        let known =
            Expectations::read(&file.unwrap_or_else(|| home.join(format!("expectations/{name}.tsv"))))?;
        let foreign = Foreign {
            entry,
            folder: self.folder.canonicalize()?,
            words: words.iter().cloned().chain([("ONLY", self.only.clone())]).collect(),
        };
        let results = self.results.clone().unwrap_or_else(|| home.join("../target").join(name));
        let options = suite::Options::foreign(foreign, &self.kernel, &self.vers, results.clone())
            .against(self.sluice.clone(), self.reference);
        let rows = match suite::run_foreign(&options)? {
            Outcome::Played(rows) => rows,
            Outcome::Elsewhere(code) => return Ok(code),
        };
        let mut sound = true;
        for row in &rows {
            let run = Run { name, kernel: &row.kernels.join("+"), vers: &row.vers };
            let report =
                Report::judge(&verdicts(&row.output), &known, run.kernel, whole && self.only.is_empty());
            report.print(&run);
            if !row.passed {
                println!("{run} did not come to its end: {}", row.reason);
            }
            sound &= row.passed && (report.sound() || self.reference.is_some());
        }
        println!("logs are in {}", results.display());
        Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// One kernel with one minor version.
struct Run<'a> {
    name: &'a str,
    kernel: &'a str,
    vers: &'a str,
}

impl Display for Run<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} on {}, vers={}", self.name, self.kernel, self.vers)
    }
}

/// What one test said.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    code: String,
    verdict: Verdict,
    words: String,
}

/// The verdicts among everything that a guest printed.
fn verdicts(output: &str) -> Vec<Said> {
    let said = |line: &str| {
        let mut fields = line.strip_prefix(RESULT)?.splitn(3, '\t');
        let (code, verdict) = (fields.next()?, Verdict::parse(fields.next()?)?);
        Some(Said { code: code.to_owned(), verdict, words: fields.next().unwrap_or_default().to_owned() })
    };
    output.lines().filter_map(said).collect()
}

/// A run beside what is known.
#[derive(Debug, Default)]
struct Report {
    passed: usize,
    failed: usize,
    skipped: usize,
    regressions: usize,
    /// Known by name, and not heard of.
    absent: Vec<String>,
    /// Code, verdict and remark of what is worth a line.
    lines: Vec<(String, Verdict, String)>,
}

impl Report {
    fn judge(said: &[Said], known: &Expectations, kernel: &str, whole: bool) -> Self {
        let mut report = Self::default();
        for Said { code, verdict, words } in said {
            match verdict {
                Verdict::Pass => report.passed += 1,
                Verdict::Fail => report.failed += 1,
                Verdict::Skip => report.skipped += 1,
            }
            let remark = match known.compare_with(code, kernel, *verdict) {
                Comparison::Expected => continue,
                Comparison::Known(reason) => format!("known: {reason}"),
                Comparison::Better => "BETTER than known: change the expectations".to_owned(),
                Comparison::Regression => {
                    report.regressions += 1;
                    format!("REGRESSION: {words}")
                }
            };
            report.lines.push((code.clone(), *verdict, remark));
        }
        if whole {
            let heard: BTreeSet<_> = said.iter().map(|said| said.code.as_str()).collect();
            report.absent = known.codes().filter(|code| !heard.contains(code)).map(str::to_owned).collect();
        }
        report
    }

    /// Whether nothing that passed fails now, and nothing has vanished.
    fn sound(&self) -> bool {
        self.regressions == 0 && self.absent.is_empty() && self.passed > 0
    }

    fn print(&self, run: &Run<'_>) {
        println!();
        for (code, verdict, remark) in &self.lines {
            println!("{code:<42} {:<5} {remark}", verdict.word());
        }
        for code in &self.absent {
            println!("{code:<42} {:<5} REGRESSION: it did not run", "-");
        }
        println!(
            "{run}: {} passed, {} failed, {} skipped; {} regressions",
            self.passed,
            self.failed,
            self.skipped,
            self.regressions + self.absent.len()
        );
        if self.passed + self.failed + self.skipped == 0 {
            println!("NOTHING RAN");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "[1.2] step\nRESULT\tA1\tpass\t\nnoise RESULT\tX\tpass\t\n\
                          RESULT\tB1\tfail\tstatus 1: no\nRESULT\tC1\tskip\tnot here\nRESULT\tD1\tmaybe\t\n";

    fn judge(known: &str, whole: bool) -> Report {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), known).unwrap();
        let known = Expectations::read(file.path()).unwrap();
        Report::judge(&verdicts(OUTPUT), &known, "uml7.2", whole)
    }

    #[test]
    fn verdicts_are_found_among_noise() {
        let codes: Vec<_> = verdicts(OUTPUT).into_iter().map(|said| said.code).collect();
        assert_eq!(codes, ["A1", "B1", "C1"]);
        assert_eq!(verdicts(OUTPUT)[1].words, "status 1: no");
    }

    #[test]
    fn what_is_known_is_no_regression() {
        let report = judge("A1\tpass\t\nB1@uml7.2\tfail\tits client\nC1\tskip\tnot here\n", true);
        assert!(report.sound());
        assert_eq!((report.passed, report.failed, report.skipped), (1, 1, 1));
    }

    #[test]
    fn a_failure_and_a_test_that_vanished_are_regressions() {
        assert!(!judge("A1\tpass\t\nC1\tskip\tnot here\n", true).sound());
        let gone = "B1\tfail\tno\nC1\tskip\tnot here\nE1\tpass\t\n";
        assert!(!judge(gone, true).sound());
        assert!(judge(gone, false).sound(), "a part was asked for");
    }

    #[test]
    fn a_run_without_a_verdict_is_no_success() {
        assert!(!Report::judge(&[], &Expectations::default(), "uml7.2", true).sound());
    }
}
