//! The layout of the tree, as a test: file size, import direction, one file per operation, documents that point at what is
//! there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{exceptions, promises};

/// Longest hand-written source file, in lines.
const MAX_LINES: usize = 800;
/// What each crate of ours may name among our crates; the compiler enforces the rest.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("xdr/env", &[]),
    ("xdr", &[]),
    ("xdr/gen", &[]),
    ("xdr/rpc", &["sluice-xdr", "sluice-env"]),
    ("mds/kv", &["sluice-env"]),
    ("mds/state", &[]),
    ("mds/namespace", &["sluice-kv", "sluice-env"]),
    ("mds", &["sluice-xdr", "sluice-env", "sluice-rpc", "sluice-kv", "sluice-state", "sluice-namespace"]),
    ("ds/store", &["sluice-env"]),
    ("ds", &["sluice-xdr", "sluice-env", "sluice-rpc", "sluice-store"]),
];
/// Everything that may stand at the top.
const TOP_LEVEL: &[&str] = &[
    ".cargo",
    ".ci",
    ".git",
    ".gitignore",
    "Cargo.lock",
    "Cargo.toml",
    "README.md",
    "clippy.toml",
    "conformance",
    "deploy",
    "docs",
    "ds",
    "mds",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "target",
    "xdr",
];
/// Left-overs that must not land. Split so that this file does not find itself.
const BANNED: &[&str] =
    &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X:"), concat!("HA", "CK")];

/// Checks every rule and reports all breaches at once.
///
/// # Errors
/// The list of breaches, one a line.
pub(super) fn run(root: &Path) -> Result<()> {
    let mut breaches = Vec::new();
    top_level(root, &mut breaches)?;
    imports(root, &mut breaches)?;
    sources(root, &mut breaches)?;
    operations(root, &mut breaches)?;
    promises::check(root, &mut breaches)?;
    exceptions::check(root, &mut breaches)?;
    if breaches.is_empty() {
        return Ok(());
    }
    bail!("the tree breaks its own rules:\n  {}", breaches.join("\n  "))
}

fn top_level(root: &Path, breaches: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(root)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !TOP_LEVEL.contains(&name.as_str()) {
            breaches.push(format!("{name}: nothing else belongs at the top level"));
        }
    }
    Ok(())
}

fn imports(root: &Path, breaches: &mut Vec<String>) -> Result<()> {
    for (krate, allowed) in MAY_IMPORT {
        let manifest = root.join(krate).join("Cargo.toml");
        let text =
            fs::read_to_string(&manifest).with_context(|| format!("cannot read {}", manifest.display()))?;
        let dependencies = text.split("[dependencies]").nth(1).unwrap_or_default();
        let dependencies = dependencies.split("\n[").next().unwrap_or_default();
        for line in dependencies.lines().filter(|line| line.starts_with("sluice-")) {
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            if !allowed.contains(&name) {
                breaches.push(format!("{krate}/Cargo.toml: may not import {name}"));
            }
        }
    }
    Ok(())
}

fn sources(root: &Path, breaches: &mut Vec<String>) -> Result<()> {
    let mut files = Vec::new();
    for top in ["xdr", "mds", "ds", "conformance", "deploy"] {
        collect(&root.join(top), &mut files)?;
    }
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        let generated = text.starts_with("// @generated") || text.starts_with("//! @generated");
        if !generated && text.lines().count() > MAX_LINES {
            breaches.push(format!("{name}: more than {MAX_LINES} lines: is it one room, or several?"));
        }
        for (number, line) in text.lines().enumerate() {
            if let Some(word) = BANNED.iter().find(|word| line.contains(**word)) {
                breaches.push(format!("{name}:{}: {word} is not finished work", number + 1));
            }
        }
    }
    Ok(())
}

/// Every file of mds/src/ops is listed in its mod.rs, and every row of the table names one of them.
fn operations(root: &Path, breaches: &mut Vec<String>) -> Result<()> {
    let folder = root.join("mds/src/ops");
    if !folder.is_dir() {
        return Ok(());
    }
    let table = fs::read_to_string(root.join("mds/src/compound/table.rs"))
        .context("cannot read the operation table")?;
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        if path.is_file()
            && let Some(stem) = path.file_stem().and_then(|stem| stem.to_str())
            && stem != "mod"
        {
            files.insert(stem.to_owned());
        }
    }
    for file in files {
        if !table.contains(&format!("{file}::")) {
            breaches.push(format!("mds/src/ops/{file}.rs: no row of compound/table.rs names it"));
        }
    }
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}
