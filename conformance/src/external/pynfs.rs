//! `pynfs`: the NFSv4.1 and 4.2 server tests of pynfs, compared with what is known of them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Deserialize;

use super::expectations::{Comparison, Expectations, Verdict};
use super::server::{self, Server};
use crate::guest::process::Group;

/// Ample for every test there is, one after the other, but for waits of whole leases.
const LONGEST: Duration = Duration::from_secs(3600);
/// More leases than all tests together wait for: each of a restart waits for a grace period to end.
const LEASES: u32 = 30;
/// pynfs sends a request in several small writes; without this each waits for the acknowledgement of the one
/// before.
const NODELAY: &str = "\
import socket

class Socket(socket.socket):
    def connect(self, address):
        super().connect(address)
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

socket.socket = Socket
";
/// What pynfs calls as its server helper: the metadata server dies as in a crash, its parent starts it again, and the
/// tests go on once it listens.
const HELPER: &str = r#"#!/bin/bash
mds=$(pgrep -P PARENT -f ' mds ') || exit 1
[ "$1" = reboot ] && kill -KILL $mds || exit 1
# What is killed may still answer for a moment.
while [ -e /proc/$mds ]; do sleep 0.1; done
for try in $(seq 600); do
  (exec 3<>/dev/tcp/127.0.0.1/PORT) 2>/dev/null && exit 0
  sleep 0.1
done
exit 1
"#;

/// Options of `pynfs`.
#[derive(Args, Debug)]
pub struct Options {
    /// A checkout of pynfs, built with its setup.py
    #[arg(long, value_name = "DIR")]
    suite: PathBuf,
    /// Minor versions to test
    #[arg(long, value_delimiter = ',', default_value = "2", value_parser = clap::value_parser!(u32).range(1..=2))]
    minor: Vec<u32>,
    /// Test codes and flags as pynfs takes them; `no` before one leaves it out
    #[arg(long, value_delimiter = ',', default_value = "all,flex")]
    codes: Vec<String>,
    /// Seconds of a lease: many tests wait for one to run out, and what reclaims must be done within one
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u32).range(5..=600))]
    lease: u32,
    /// The program to test [default: sluice beside this one, else in the workspace]
    #[arg(long, value_name = "FILE")]
    sluice: Option<PathBuf>,
    /// The Python to run the suite with
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,
    /// What is known of each test
    #[arg(long, value_name = "FILE", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/expectations/pynfs-4.1.tsv"))]
    expectations: PathBuf,
    /// Where logs and results go
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/pynfs"))]
    results: PathBuf,
    /// Where the suite is absent, say so and succeed
    #[arg(long)]
    no_suite: bool,
}

/// Runs the tests; the exit code says whether nothing that passed fails now.
///
/// # Errors
/// If the suite or the server cannot run.
pub fn main(options: &Options) -> Result<ExitCode> {
    if let Err(reason) = options.usable() {
        if options.no_suite {
            eprintln!("pynfs was NOT RUN: {reason:#}");
            return Ok(ExitCode::SUCCESS);
        }
        return Err(reason);
    }
    let known = Expectations::read(&options.expectations)?;
    let program = server::program(options.sluice.as_deref())?;
    let mut sound = true;
    for minor in &options.minor {
        sound &= options.run(&program, &known, *minor)?;
    }
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The report that pynfs writes.
#[derive(Debug, Deserialize)]
struct Report {
    testcase: Vec<Test>,
}

#[derive(Debug, Deserialize)]
struct Test {
    code: String,
    time: String,
    failure: Option<Failure>,
    /// Not chosen, or something it depends on failed.
    skipped: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct Failure {
    message: String,
}

impl Options {
    fn folder(&self) -> PathBuf {
        self.suite.join("nfs4.1")
    }

    fn usable(&self) -> Result<()> {
        let script = self.folder().join("testserver.py");
        if !script.is_file() {
            bail!("there is no pynfs in {} (no {})", self.suite.display(), script.display());
        }
        let mut command = Command::new(&self.python);
        command.arg("testserver.py").arg("--showcodes").current_dir(self.folder());
        let output = command
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot start {}", self.python.display()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("pynfs does not start (is it built?): {}", said.trim().lines().last().unwrap_or_default());
        }
        Ok(())
    }

    /// One minor version against a server of its own; true when nothing regressed.
    fn run(&self, program: &Path, known: &Expectations, minor: u32) -> Result<bool> {
        let results = self.results.join(format!("minor{minor}"));
        fs::create_dir_all(&results).with_context(|| format!("cannot write {}", results.display()))?;
        let results = results.canonicalize()?;
        let home = tempfile::tempdir()?;
        let server =
            Server::start(program, &home.path().join("data"), &results.join("server.log"), self.lease)?;
        let started = Instant::now();
        let report = self.test(home.path(), &results, &server, minor)?;
        let took = started.elapsed();
        server.stop()?;
        let sound = tell(&report, &said(&results)?, known, minor, took);
        println!("logs and results are in {}", results.display());
        Ok(sound)
    }

    fn test(&self, home: &Path, results: &Path, server: &Server, minor: u32) -> Result<Report> {
        let site = home.join("site");
        fs::create_dir(&site)?;
        fs::write(site.join("sitecustomize.py"), NODELAY)?;
        let helper = home.join("helper");
        let text = HELPER.replace("PARENT", &server.id().to_string());
        fs::write(&helper, text.replace("PORT", &server.port.to_string()))?;
        fs::set_permissions(&helper, fs::Permissions::from_mode(0o755))?;
        let json = results.join("results.json");
        // A report of an earlier run must not be taken for this one's.
        let _ = fs::remove_file(&json);
        let output = File::create(results.join("output.txt"))?;
        let mut command = Command::new(&self.python);
        command.arg("testserver.py").arg(format!("127.0.0.1:{}/", server.port));
        command.arg(format!("--minorversion={minor}")).arg("--maketree").arg("--json").arg(&json);
        command.arg("--serverhelper").arg(&helper);
        command.args(&self.codes).current_dir(self.folder()).env("PYTHONPATH", &site);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        println!("== pynfs, minor version {minor}: {}", self.codes.join(" "));
        let mut process = Group::spawn(command)?;
        let longest = LONGEST + LEASES * Duration::from_secs(self.lease.into());
        if process.wait_until(Instant::now() + longest)?.is_none() {
            bail!("pynfs did not end within {} s: see {}", longest.as_secs(), results.display());
        }
        let report = fs::read(&json)
            .with_context(|| format!("pynfs left no report: see {}", results.join("output.txt").display()))?;
        serde_json::from_slice(&report).context("the report of pynfs is not what was expected")
    }
}

/// Tests of which the report says "passed" and the output does not: those that passed with a warning or found
/// the server without a feature, and those skipped for a dependency.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said {
    warned: BTreeSet<String>,
    skipped: u32,
}

fn said(results: &Path) -> Result<Said> {
    Ok(Said::parse(&fs::read_to_string(results.join("output.txt"))?))
}

impl Said {
    fn parse(output: &str) -> Self {
        let mut said = Self::default();
        for line in output.lines() {
            if let Some((test, "WARNING" | "UNSUPPORTED")) = line.rsplit_once(" : ") {
                said.warned.extend(test.split_whitespace().next().map(str::to_owned));
            }
            if let Some(counts) = line.strip_prefix("Of those: ") {
                said.skipped = counts.split(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0);
            }
        }
        said
    }
}

/// Prints what is worth a line, and the sums; true when nothing regressed.
fn tell(report: &Report, said: &Said, known: &Expectations, minor: u32, took: Duration) -> bool {
    let (mut passed, mut failed, mut regressions) = (0, 0, 0);
    for test in report.testcase.iter().filter(|test| test.skipped.is_none()) {
        let verdict = if test.failure.is_none() && !said.warned.contains(&test.code) {
            passed += 1;
            Verdict::Pass
        } else {
            failed += 1;
            Verdict::Fail
        };
        let message = test.failure.as_ref().map_or("", |failure| failure.message.as_str());
        let remark = match known.compare(&test.code, verdict) {
            Comparison::Expected => continue,
            Comparison::Known(reason) => format!("known: {reason}"),
            Comparison::Better => "BETTER than known: change the expectations".to_owned(),
            Comparison::Regression => {
                regressions += 1;
                format!("REGRESSION: {}", message.split_whitespace().collect::<Vec<_>>().join(" "))
            }
        };
        println!("{:<22} {:<5} {:>6} s  {remark}", test.code, verdict.word(), seconds(&test.time));
    }
    let ran = passed + failed;
    println!(
        "pynfs, minor version {minor}: {passed} of {ran} passed, {failed} failed ({regressions} of them \
         regressions), {} skipped for what they depend on, {} s",
        said.skipped,
        took.as_secs()
    );
    println!("{} tests are known by name", known.len());
    if ran == 0 {
        println!("NOTHING RAN: no test has these codes in this minor version");
    }
    regressions == 0 && ran > 0
}

fn seconds(time: &str) -> String {
    time.parse::<f64>().map_or_else(|_| time.to_owned(), |time| format!("{time:.1}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_judged() {
        let text = r#"{"tests": 3, "testcase": [
            {"code": "A1", "name": "a", "classname": "s", "time": "0.5"},
            {"code": "B1", "name": "b", "classname": "s", "time": "1", "failure": {"message": "no", "err": ""}},
            {"code": "C1", "name": "c", "classname": "s", "time": "0", "skipped": 1}]}"#;
        let report: Report = serde_json::from_str(text).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("known.tsv");
        let judge = |known: &str, output: &str| {
            fs::write(&file, known).unwrap();
            let known = Expectations::read(&file).unwrap();
            tell(&report, &Said::parse(output), &known, 2, Duration::ZERO)
        };
        assert!(judge("B1\tfail\tfor a reason\n", ""));
        assert!(!judge("B1\tpass\t\n", ""));
        assert!(!judge("B1\tfail\tfor a reason\n", "A1       st_a.testA        : WARNING\n"));
    }

    #[test]
    fn what_the_report_hides_is_read_from_the_output() {
        let said = Said::parse(
            "A1       st_a.testA      : WARNING\nB1   st_b.testB  : PASS\nC1   st_c.testC  : UNSUPPORTED\n\
             Of those: 3 Skipped, 0 Failed, 2 Warned, 1 Passed\n",
        );
        assert_eq!(said.warned, BTreeSet::from(["A1".to_owned(), "C1".to_owned()]));
        assert_eq!(said.skipped, 3);
    }

    #[test]
    fn an_empty_run_is_no_success() {
        let report = Report { testcase: Vec::new() };
        assert!(!tell(&report, &Said::default(), &Expectations::default(), 2, Duration::ZERO));
    }
}
