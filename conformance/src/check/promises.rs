//! What documents point at is there: files, and the test of each promise in docs/SEMANTICS.md.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Where promises are.
const PROMISES: &str = "docs/SEMANTICS.md";
/// Guest cases are named by their script alone, too.
const CASES: &str = "conformance/guest/cases";
/// What stands where a test is missing: said, so no breach.
const WITHOUT: &[&str] = &["not yet tested", "by construction", "the same"];
/// What begins so is a path from the root.
const TOPS: &[&str] = &["xdr/", "mds/", "ds/", "conformance/", "deploy/", "docs/"];
const EXTENSIONS: &[&str] = &["rs", "sh", "py", "tsv"];

pub(super) fn check(root: &Path, breaches: &mut Vec<String>) -> Result<()> {
    let mut documents = vec![PathBuf::from("README.md")];
    for entry in fs::read_dir(root.join("docs")).context("cannot list docs")? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            documents.extend(path.strip_prefix(root).map(Path::to_path_buf));
        }
    }
    documents.sort();
    for document in documents {
        let text = fs::read_to_string(root.join(&document)).context("cannot read a document")?;
        let name = document.display().to_string();
        for (number, line) in text.lines().enumerate() {
            let at = format!("{name}:{}", number + 1);
            let missing = paths(line).filter(|path| !root.join(path).exists());
            breaches.extend(missing.map(|path| format!("{at}: there is no {path}")));
        }
        if name == PROMISES {
            breaches.extend(promises(root, &text).into_iter().map(|breach| format!("{name}:{breach}")));
        }
    }
    Ok(())
}

/// What stands in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Paths of the tree in backticks, if they are of one file or folder.
fn paths(line: &str) -> impl Iterator<Item = &str> {
    let path = |word: &&str| {
        TOPS.iter().any(|top| word.starts_with(top)) && !word.contains([' ', '<', '{', '*', ',', '='])
    };
    quoted(line).filter(path)
}

/// Rows of tables with a column `test`, in which nothing is named that shows the promise.
fn promises(root: &Path, text: &str) -> Vec<String> {
    let mut breaches = Vec::new();
    let mut column = None;
    for (number, line) in text.lines().enumerate() {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        if !line.starts_with('|') {
            column = None;
        } else if let Some(found) = cells.iter().position(|cell| *cell == "test") {
            column = Some(found);
        } else if let Some(cell) = column.and_then(|column| cells.get(column))
            && !cell.starts_with("---")
        {
            breaches.extend(row(root, cell).err().map(|breach| format!("{}: {breach}", number + 1)));
        }
    }
    breaches
}

/// Every test that a cell names is there, and there is one, or it is said why not.
fn row(root: &Path, cell: &str) -> Result<(), String> {
    let mut beside = PathBuf::from(CASES);
    let mut tests = 0;
    for word in quoted(cell) {
        let Some(file) = test(root, &beside, word)? else { continue };
        beside = file.parent().map(Path::to_path_buf).unwrap_or_default();
        tests += 1;
    }
    let said = tests > 0 || WITHOUT.iter().any(|words| cell.contains(words)) || cell.contains("](");
    if said { Ok(()) } else { Err(format!("no test is named, and not said that there is none: {cell}")) }
}

/// The file that a word means, from the root: a path, one beside the last or a guest's script, or a guest case.
fn test(root: &Path, beside: &Path, word: &str) -> Result<Option<PathBuf>, String> {
    let extension = word.rsplit_once('.').map_or("", |(_, extension)| extension);
    if !EXTENSIONS.contains(&extension) {
        let case = Path::new(CASES).join(format!("{word}.sh"));
        return Ok(root.join(&case).is_file().then_some(case));
    }
    let places = [PathBuf::from(word), beside.join(word), Path::new(CASES).join(word)];
    let found = places.into_iter().find(|place| root.join(place).is_file());
    let Some(file) = found else { return Err(format!("there is no {word}")) };
    let text = fs::read_to_string(root.join(&file)).unwrap_or_default();
    // All of conformance/ is there to test: its suites need not be tests of cargo's.
    let mut folders = file.components().map(|part| part.as_os_str());
    let of_tests = folders.any(|folder| folder == "tests" || folder == "conformance");
    if extension == "rs" && !of_tests && !text.contains("test]") && !text.contains("mod tests") {
        return Err(format!("{word} has no test"));
    }
    Ok(Some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    fn judged(rows: &str) -> Vec<String> {
        promises(&root(), &format!("| promise | test |\n| --- | --- |\n{rows}"))
    }

    #[test]
    fn a_promise_names_a_test_that_is_there_or_says_that_there_is_none() {
        let good = "| a | `conformance/src/check/promises.rs` |\n| b | `restart.sh`; `smoke` |\n\
                    | c | not yet tested |\n| d | `mds/tests/ops/quota.rs`, `open.rs` |\n";
        assert_eq!(judged(good), Vec::<String>::new());
        for (bad, words) in [
            ("| a | `mds/tests/ops/gone.rs` |", "3: there is no mds/tests/ops/gone.rs"),
            ("| a | `mds/tests/ops/quota.rs`, `gone.rs` |", "3: there is no gone.rs"),
            ("| a | `ds/src/error.rs` |", "3: ds/src/error.rs has no test"),
            ("| a | surely |", "3: no test is named"),
            ("| a | |", "3: no test is named"),
        ] {
            let found = judged(bad);
            assert!(matches!(&found[..], [breach] if breach.starts_with(words)), "{bad}: {found:?}");
        }
        // Other tables promise nothing.
        assert_eq!(promises(&root(), "| a | because |\n| --- | --- |\n| b | c |\n"), Vec::<String>::new());
    }

    #[test]
    fn paths_are_told_from_commands_and_patterns() {
        let line =
            "`mds/src/ops/<name>.rs` `mds/src/a.rs` `sluice ds` `ds/x{a,b}.rs` `deploy/container/check`";
        assert_eq!(paths(line).collect::<Vec<_>>(), ["mds/src/a.rs", "deploy/container/check"]);
    }
}
