//! What a suite is known to say of Sluice, test by test, and how a run compares with it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// What a test said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Pass,
    Fail,
}

impl Verdict {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
        }
    }
}

/// How a verdict compares with what is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Expected,
    /// Fails as it did before, for this reason.
    Known(String),
    /// Passed before, or is new and fails.
    Regression,
    /// Failed before: the file should say so no more.
    Better,
}

/// The stored expectations of one suite: lines of code, result and reason with tabs between, `#` for remarks.
#[derive(Debug, Default)]
pub(super) struct Expectations {
    /// A test that is not named is expected to pass.
    failing: BTreeMap<String, String>,
    named: usize,
}

impl Expectations {
    pub(super) fn read(file: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        Self::parse(&text).with_context(|| file.display().to_string())
    }

    fn parse(text: &str) -> Result<Self> {
        let mut all = BTreeMap::new();
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split('\t').collect();
            let [code, result, reason] = *fields else { bail!("line {number} does not have three fields") };
            let reason = match (result, reason.is_empty()) {
                ("pass", _) => None,
                ("fail", false) => Some(reason.to_owned()),
                ("fail", true) => bail!("line {number}: {code} fails without a reason"),
                _ => bail!("line {number}: {result:?} is neither pass nor fail"),
            };
            if all.insert(code.to_owned(), reason).is_some() {
                bail!("line {number}: {code} is there twice");
            }
        }
        let named = all.len();
        let failing = all.into_iter().filter_map(|(code, reason)| Some((code, reason?))).collect();
        Ok(Self { failing, named })
    }

    /// Tests that are named, whatever their result.
    pub(super) fn len(&self) -> usize {
        self.named
    }

    pub(super) fn compare(&self, code: &str, verdict: Verdict) -> Comparison {
        match (verdict, self.failing.get(code)) {
            (Verdict::Pass, None) => Comparison::Expected,
            (Verdict::Pass, Some(_)) => Comparison::Better,
            (Verdict::Fail, None) => Comparison::Regression,
            (Verdict::Fail, Some(reason)) => Comparison::Known(reason.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_is_told_apart() {
        let known = Expectations::parse("# remark\nA1\tpass\t\nB1\tfail\tnot wanted\n").unwrap();
        assert_eq!(known.len(), 2);
        assert_eq!(known.compare("A1", Verdict::Pass), Comparison::Expected);
        assert_eq!(known.compare("A1", Verdict::Fail), Comparison::Regression);
        assert_eq!(known.compare("B1", Verdict::Fail), Comparison::Known("not wanted".to_owned()));
        assert_eq!(known.compare("B1", Verdict::Pass), Comparison::Better);
        assert_eq!(known.compare("NEW1", Verdict::Fail), Comparison::Regression);
        assert_eq!(known.compare("NEW1", Verdict::Pass), Comparison::Expected);
    }

    #[test]
    fn a_malformed_line_is_an_error() {
        for text in ["A1\tpass", "A1\tmaybe\tx", "A1\tfail\t", "A1\tpass\t\nA1\tpass\t"] {
            assert!(Expectations::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_stored_files_are_well_formed() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("expectations");
        for file in std::fs::read_dir(folder).unwrap() {
            let known = Expectations::read(&file.unwrap().path()).unwrap();
            assert!(known.len() > 100);
        }
    }
}
