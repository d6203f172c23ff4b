//! Says which commit this is built from: `SLUICE_COMMIT`, else what .git has, else nothing. The same commit gives the
//! same program.

use std::fs;
use std::path::{Path, PathBuf};

/// So many digits tell commits apart.
const DIGITS: usize = 10;

fn main() {
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    println!("cargo::rerun-if-env-changed=SLUICE_COMMIT");
    let commit = match std::env::var("SLUICE_COMMIT") {
        Ok(said) => Some(said),
        Err(_) => head(&Path::new("..").join(".git")),
    };
    // Nothing but the digits of a commit comes into the program.
    let commit = commit.map(|commit| commit.trim().chars().take(DIGITS).collect::<String>());
    let commit = commit.filter(|commit| !commit.is_empty() && commit.chars().all(|c| c.is_ascii_hexdigit()));
    let named = commit.map_or_else(|| version.clone(), |commit| format!("{version} ({commit})"));
    println!("cargo::rustc-env=SLUICE_VERSION={named}");
}

/// The commit that is checked out.
fn head(git: &Path) -> Option<String> {
    let git = repository(git)?;
    let head = read(&git.join("HEAD"))?;
    let Some(name) = head.strip_prefix("ref: ") else { return Some(head) };
    // A work tree of its own has its HEAD, and shares the branches.
    let common =
        fs::read_to_string(git.join("commondir")).map_or_else(|_| git.clone(), |dir| git.join(dir.trim()));
    read(&common.join(name)).or_else(|| packed(&common, name))
}

/// The folder itself, or the one that a file in its place names.
fn repository(git: &Path) -> Option<PathBuf> {
    if git.is_dir() {
        return Some(git.to_owned());
    }
    let named = fs::read_to_string(git).ok()?;
    Some(git.parent()?.join(named.strip_prefix("gitdir: ")?.trim()))
}

fn packed(git: &Path, name: &str) -> Option<String> {
    let all = read(&git.join("packed-refs"))?;
    let mut lines = all.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(_, known)| *known == name).map(|(commit, _)| commit.to_owned())
}

/// A file that is there; when it changes, this runs again.
fn read(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    println!("cargo::rerun-if-changed={}", file.display());
    Some(text.trim().to_owned())
}
