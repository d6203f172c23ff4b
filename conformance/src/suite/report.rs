//! Results: a table for people, JSON for machines.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::record::{Line, today};
use super::stage::Metric;

/// What came of one case with one kernel and minor version.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(super) case: &'static str,
    pub(crate) kernels: Vec<String>,
    /// `uname -r` of each of them, as far as they came.
    pub(super) releases: Vec<String>,
    pub(crate) vers: String,
    pub(crate) passed: bool,
    pub(crate) seconds: f64,
    /// Why it failed, in one line.
    pub(crate) reason: String,
    pub(super) metrics: Vec<Metric>,
    /// What the guests printed.
    #[serde(skip)]
    pub(crate) output: String,
}

impl Row {
    /// For the stored matrix.
    pub(super) fn line(&self, commit: &str) -> Result<Line> {
        Ok(Line {
            kernel: plus(&self.kernels),
            release: plus(&self.releases),
            vers: self.vers.clone(),
            case: self.case.to_owned(),
            result: self.result().to_owned(),
            seconds: format!("{:.0}", self.seconds),
            date: today()?,
            commit: commit.to_owned(),
            note: self.reason.clone(),
        })
    }

    fn result(&self) -> &'static str {
        if self.passed { "pass" } else { "FAIL" }
    }
}

/// Two names with a plus if they differ.
fn plus(names: &[String]) -> String {
    let mut names = names.to_vec();
    names.dedup();
    names.join("+")
}

/// Prints the table.
pub(super) fn print(rows: &[Row]) {
    println!();
    println!("{:<18} {:<14} {:<5} {:<7} {:>7}  NOTE", "CASE", "KERNELS", "VERS", "RESULT", "SECONDS");
    for row in rows {
        println!(
            "{:<18} {:<14} {:<5} {:<7} {:>7.1}  {}",
            row.case,
            row.kernels.join("+"),
            row.vers,
            row.result(),
            row.seconds,
            row.reason
        );
        for metric in &row.metrics {
            println!("{:>22} {} = {} {}", "", metric.name, metric.value, metric.unit);
        }
    }
    let failed = rows.iter().filter(|row| !row.passed).count();
    println!("{} passed, {failed} failed", rows.len() - failed);
}

/// Writes all rows.
pub(super) fn write(rows: &[Row], file: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(rows)?;
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
