//! What a suite is known to say of Sluice, test by test, and how a run compares with it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// What a test said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Pass,
    Fail,
    /// The suite found that it cannot be tested here.
    Skip,
}

impl Verdict {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Skip => "skip",
        }
    }

    pub(super) fn parse(word: &str) -> Option<Self> {
        [Self::Pass, Self::Fail, Self::Skip].into_iter().find(|verdict| verdict.word() == word)
    }
}

/// How a verdict compares with what is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Expected,
    /// Fails or is left out as it was before, for this reason.
    Known(String),
    /// Passed before, or is new and does not pass.
    Regression,
    /// Did not pass before: the file should say so no more.
    Better,
}

/// The stored expectations of one suite: lines of code, result and reason with tabs between, `#` for remarks.
///
/// `CODE@KERNEL` says what CODE does with that kernel alone.
#[derive(Debug, Default)]
pub(super) struct Expectations(BTreeMap<String, Known>);

#[derive(Debug)]
struct Known {
    verdict: Verdict,
    /// Of everything but a pass.
    reason: String,
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
            let verdict =
                Verdict::parse(result).with_context(|| format!("line {number}: {result:?} is no result"))?;
            if verdict != Verdict::Pass && reason.is_empty() {
                bail!("line {number}: {code} does not pass, without a reason");
            }
            if all.insert(code.to_owned(), Known { verdict, reason: reason.to_owned() }).is_some() {
                bail!("line {number}: {code} is there twice");
            }
        }
        Ok(Self(all))
    }

    /// Tests that are named, whatever their result.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// A test that is not named is expected to pass.
    pub(super) fn compare(&self, code: &str, verdict: Verdict) -> Comparison {
        Self::judge(self.0.get(code), verdict)
    }

    /// The same for a run with one kernel.
    pub(super) fn compare_with(&self, code: &str, kernel: &str, verdict: Verdict) -> Comparison {
        let known = self.0.get(&format!("{code}@{kernel}")).or_else(|| self.0.get(code));
        Self::judge(known, verdict)
    }

    fn judge(known: Option<&Known>, verdict: Verdict) -> Comparison {
        match known {
            Some(known) if known.verdict == verdict && verdict != Verdict::Pass => {
                Comparison::Known(known.reason.clone())
            }
            Some(known) if known.verdict != Verdict::Pass && verdict == Verdict::Pass => Comparison::Better,
            _ if verdict == Verdict::Pass => Comparison::Expected,
            _ => Comparison::Regression,
        }
    }

    /// Codes that are named for every kernel.
    pub(super) fn codes(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str).filter(|code| !code.contains('@'))
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
    fn a_test_that_is_left_out_did_not_pass() {
        let known = Expectations::parse("A1\tpass\t\nB1\tskip\tnot here\n").unwrap();
        assert_eq!(known.compare("A1", Verdict::Skip), Comparison::Regression);
        assert_eq!(known.compare("B1", Verdict::Skip), Comparison::Known("not here".to_owned()));
        assert_eq!(known.compare("B1", Verdict::Fail), Comparison::Regression);
        assert_eq!(known.compare("B1", Verdict::Pass), Comparison::Better);
    }

    #[test]
    fn a_kernel_may_have_its_own_line() {
        let known = Expectations::parse("A1\tpass\t\nA1@uml6.1\tfail\tits client\n").unwrap();
        assert_eq!(known.compare_with("A1", "uml7.2", Verdict::Fail), Comparison::Regression);
        assert_eq!(
            known.compare_with("A1", "uml6.1", Verdict::Fail),
            Comparison::Known("its client".to_owned())
        );
        assert_eq!(known.codes().collect::<Vec<_>>(), ["A1"]);
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
            assert!(known.len() > 0);
        }
    }
}
