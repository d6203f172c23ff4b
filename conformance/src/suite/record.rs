//! The stored matrix: a table in a Markdown file, into which each run merges its lines. Lines of other kernels, cases
//! and minor versions stay as they are, with the date and commit of the run they came from.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::matrix::position;
use super::workspace;
use crate::guest::command::{output, words};

/// Before the table, where there is no file yet.
const PREAMBLE: &str = "# Kernels\n\n";
const COLUMNS: &[&str] =
    &["kernel", "release", "vers", "case", "result", "seconds", "date", "commit", "note"];

/// One line of the table; kernel, minor version and case say which.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Line {
    /// As on the command line; two names with a plus where the case has two guests that differ.
    pub(super) kernel: String,
    /// As `uname -r` says it in the guest.
    pub(super) release: String,
    pub(super) vers: String,
    pub(super) case: String,
    pub(super) result: String,
    pub(super) seconds: String,
    pub(super) date: String,
    /// What was tested; a plus: with changes that were not committed.
    pub(super) commit: String,
    /// Why it failed, or how it differs from the case as written.
    pub(super) note: String,
}

/// The file, and what all lines of a run share.
#[derive(Debug)]
pub(super) struct Record {
    file: PathBuf,
    pub(super) commit: String,
}

impl Record {
    /// Finds out what is being tested and that the file can be merged into, before anything runs.
    pub(super) fn open(file: &Path, commit: Option<&str>) -> Result<Self> {
        let commit = match commit {
            Some(commit) => commit.to_owned(),
            None => head().context("the table names the commit that was tested: use --commit")?,
        };
        let record = Self { file: file.to_owned(), commit };
        record.merge(&[])?;
        Ok(record)
    }

    /// Merges one line.
    pub(super) fn add(&self, line: &Line) -> Result<()> {
        self.merge(std::slice::from_ref(line))
    }

    /// The file is whole at any moment.
    fn merge(&self, new: &[Line]) -> Result<()> {
        let text = merge(&read(&self.file)?, new).with_context(|| self.file.display().to_string())?;
        let new = self.file.with_extension("new");
        fs::write(&new, text).with_context(|| format!("cannot write {}", new.display()))?;
        fs::rename(&new, &self.file).with_context(|| format!("cannot write {}", self.file.display()))
    }
}

/// Today, in UTC.
pub(super) fn today() -> Result<String> {
    Ok(output(words(&["date", "-u", "+%F"]))?.trim().to_owned())
}

/// The commit of the tree, with a plus if there are changes outside of docs/.
fn head() -> Result<String> {
    let tree = workspace().display().to_string();
    let commit = output(words(&["git", "-C", &tree, "rev-parse", "--short=10", "HEAD"]))?;
    let changes = output(words(&["git", "-C", &tree, "status", "--porcelain", "--", ".", ":(exclude)docs"]))?;
    Ok(format!("{}{}", commit.trim(), if changes.trim().is_empty() { "" } else { "+" }))
}

fn read(file: &Path) -> Result<String> {
    match fs::read_to_string(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(PREAMBLE.to_owned()),
        read => read.with_context(|| format!("cannot read {}", file.display())),
    }
}

/// The file's text with these lines in it: what stands around the table stays.
fn merge(text: &str, new: &[Line]) -> Result<String> {
    let (before, table, after) = split(text);
    let mut lines = table.iter().skip(2).map(|row| parse(row)).collect::<Result<Vec<_>>>()?;
    for line in new {
        match lines.iter_mut().find(|known| known.key() == line.key()) {
            Some(known) => *known = line.clone(),
            None => lines.push(line.clone()),
        }
    }
    lines.sort_by_key(|line| position(&line.kernel, &line.vers, &line.case));
    let mut merged = before;
    merged.push_str(&row(COLUMNS.iter().copied()));
    merged.push_str(&row(COLUMNS.iter().map(|_| "---")));
    lines.iter().for_each(|line| merged.push_str(&row(line.fields())));
    merged.push_str(&after);
    Ok(merged)
}

/// What comes before the table, its rows with their two heading rows, and what comes after it.
fn split(text: &str) -> (String, Vec<&str>, String) {
    let all: Vec<&str> = text.split_inclusive('\n').collect();
    let heading = row(COLUMNS.iter().copied());
    let start = all.iter().position(|line| line.trim() == heading.trim()).unwrap_or(all.len());
    let (before, rest) = all.split_at(start);
    let end = rest.iter().position(|line| !line.starts_with('|')).unwrap_or(rest.len());
    let (table, after) = rest.split_at(end);
    (before.concat(), table.to_vec(), after.concat())
}

fn row<'a>(fields: impl Iterator<Item = &'a str>) -> String {
    // A bar or a line's end in a note would end the field.
    let fields: Vec<_> = fields.map(|field| field.replace('|', "/").replace(['\n', '\r'], " ")).collect();
    format!("| {} |\n", fields.join(" | "))
}

fn parse(row: &str) -> Result<Line> {
    let inner = row.trim().strip_prefix('|').and_then(|rest| rest.strip_suffix('|'));
    let fields: Vec<_> = inner.into_iter().flat_map(|inner| inner.split('|')).map(str::trim).collect();
    let &[kernel, release, vers, case, result, seconds, date, commit, note] = fields.as_slice() else {
        bail!("not a line of the table: {}", row.trim());
    };
    Ok(Line {
        kernel: kernel.to_owned(),
        release: release.to_owned(),
        vers: vers.to_owned(),
        case: case.to_owned(),
        result: result.to_owned(),
        seconds: seconds.to_owned(),
        date: date.to_owned(),
        commit: commit.to_owned(),
        note: note.to_owned(),
    })
}

impl Line {
    /// A case has one line per kernel under test, whoever its partner was.
    fn key(&self) -> (&str, &str, &str) {
        (self.kernel.split('+').next().unwrap_or_default(), &self.vers, &self.case)
    }

    fn fields(&self) -> impl Iterator<Item = &str> {
        [
            self.kernel.as_str(),
            &self.release,
            &self.vers,
            &self.case,
            &self.result,
            &self.seconds,
            &self.date,
            &self.commit,
            &self.note,
        ]
        .into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(kernel: &str, vers: &str, case: &str, date: &str) -> Line {
        Line {
            kernel: kernel.to_owned(),
            release: "6.1.0-49-cloud-amd64".to_owned(),
            vers: vers.to_owned(),
            case: case.to_owned(),
            result: "pass".to_owned(),
            seconds: "12".to_owned(),
            date: date.to_owned(),
            commit: "0123456789".to_owned(),
            note: String::new(),
        }
    }

    fn dates(text: &str) -> Vec<String> {
        split(text).1.iter().skip(2).map(|row| parse(row).unwrap().date).collect()
    }

    #[test]
    fn lines_that_were_not_run_stay_and_those_that_were_are_replaced() {
        let old = [line("6.1", "4.2", "smoke", "d1"), line("6.1", "4.2", "direct", "d2")];
        let text = merge(PREAMBLE, &old).unwrap();
        let text = merge(&text, &[line("6.1", "4.2", "smoke", "d3")]).unwrap();
        assert_eq!(dates(&text), ["d3", "d2"]);
        // The same case with another minor version or kernel is another line.
        let new = [line("6.1", "4.1", "smoke", "d4"), line("uml6.1", "4.2", "smoke", "d5")];
        assert_eq!(dates(&merge(&text, &new).unwrap()), ["d5", "d3", "d2", "d4"]);
    }

    #[test]
    fn another_partner_is_no_other_line() {
        let text = merge(PREAMBLE, &[line("6.1+uml7.2", "4.2", "mixed", "d1")]).unwrap();
        let text = merge(&text, &[line("6.1+uml6.18", "4.2", "mixed", "d2")]).unwrap();
        assert_eq!(dates(&text), ["d2"]);
    }

    #[test]
    fn the_text_around_the_table_stays() {
        let table = merge("", &[line("6.1", "4.2", "smoke", "d1")]).unwrap();
        let text = format!("# Title\n\nwords | with bars\n\n{table}\nafter\n");
        let merged = merge(&text, &[line("6.1", "4.2", "direct", "d2")]).unwrap();
        assert!(merged.starts_with("# Title\n\nwords | with bars\n\n| kernel |"));
        assert!(merged.ends_with("\n\nafter\n"));
        assert_eq!(dates(&merged), ["d1", "d2"]);
        assert_eq!(merge(&merged, &[]).unwrap(), merged);
    }

    #[test]
    fn a_note_cannot_break_the_table() {
        let mut failed = line("6.1", "4.2", "smoke", "d1");
        failed.note = "wanted 'a|b',\nfound 'c'".to_owned();
        let text = merge(PREAMBLE, &[failed]).unwrap();
        assert_eq!(parse(split(&text).1[2]).unwrap().note, "wanted 'a/b', found 'c'");
    }

    #[test]
    fn a_line_that_somebody_broke_is_named_and_nothing_is_lost() {
        let text = merge(PREAMBLE, &[line("6.1", "4.2", "smoke", "d1")]).unwrap() + "| broken |\n";
        assert!(merge(&text, &[]).unwrap_err().to_string().contains("| broken |"));
    }

    #[test]
    fn the_file_is_made_and_then_merged_into() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("matrix.md");
        let record = Record::open(&file, Some("abc")).unwrap();
        record.add(&line("6.1", "4.2", "smoke", "d1")).unwrap();
        record.add(&line("6.1", "4.2", "direct", "d2")).unwrap();
        assert_eq!(dates(&fs::read_to_string(&file).unwrap()), ["d1", "d2"]);
        fs::write(&file, merge(PREAMBLE, &[]).unwrap() + "| x |\n").unwrap();
        assert!(Record::open(&file, Some("abc")).is_err());
        assert!(Record::open(&folder.path().join("absent/matrix.md"), Some("abc")).is_err());
    }
}
