//! Deviations from the RFCs, in conformance/exceptions: each says what the RFC has, what Sluice does, why, and which tests
//! pin it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// Where they are.
const FOLDER: &str = "conformance/exceptions";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exception {
    section: String,
    says: String,
    does: String,
    because: String,
    /// `path::function`
    tests: Vec<String>,
}

pub(super) fn check(root: &Path, breaches: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(root.join(FOLDER)).context("cannot list the exceptions")? {
        let path = entry?.path();
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {name}"))?;
        breaches.extend(judge(root, &text).into_iter().map(|breach| format!("{name}: {breach}")));
    }
    Ok(())
}

fn judge(root: &Path, text: &str) -> Vec<String> {
    let exception: Exception = match toml::from_str(text) {
        Ok(exception) => exception,
        Err(error) => return vec![error.message().to_owned()],
    };
    let mut breaches = Vec::new();
    if !exception.section.starts_with("RFC ") || !exception.section.contains('§') {
        breaches.push(format!("{:?} is no section of an RFC", exception.section));
    }
    if [&exception.says, &exception.does, &exception.because].iter().any(|words| words.trim().is_empty()) {
        breaches.push("what the RFC says, what is done, and why: one of them is empty".to_owned());
    }
    if exception.tests.is_empty() {
        breaches.push("no test pins it".to_owned());
    }
    breaches.extend(exception.tests.iter().filter_map(|test| missing(root, test)));
    breaches
}

fn missing(root: &Path, test: &str) -> Option<String> {
    let Some((file, function)) = test.split_once("::") else {
        return Some(format!("{test} is not path::function"));
    };
    let text = fs::read_to_string(root.join(file)).unwrap_or_default();
    let there = text.contains(&format!("fn {function}("));
    (!there).then(|| format!("there is no test {test}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "section = \"RFC 8881 §1\"\nsays = \"a\"\ndoes = \"b\"\nbecause = \"c\"\n\
                        tests = [\"conformance/src/check/exceptions.rs::an_exception_names_its_test\"]\n";

    #[test]
    fn an_exception_names_its_test() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        assert_eq!(judge(&root, GOOD), Vec::<String>::new());
        for (from, to, words) in [
            ("RFC 8881 §1", "somewhere", "is no section"),
            ("because = \"c\"", "because = \"\"", "one of them is empty"),
            ("because = \"c\"\n", "", "missing field"),
            ("an_exception_names_its_test", "gone", "there is no test"),
            ("check/exceptions.rs", "check/gone.rs", "there is no test"),
            ("says", "tells", "unknown field"),
        ] {
            let found = judge(&root, &GOOD.replace(from, to));
            assert!(found.first().is_some_and(|breach| breach.contains(words)), "{to}: {found:?}");
        }
        let none = GOOD.split("tests").next().unwrap_or_default().to_owned() + "tests = []\n";
        assert_eq!(judge(&root, &none), ["no test pins it"]);
    }
}
