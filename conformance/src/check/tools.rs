//! What is not Rust, by its own tools: alerts, the compose file, the description of the image, the Helm chart. The tools
//! come from outside, and are kept with the user's other caches.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{Options, ended_well};

/// What each checks, and its script. It ends with [`CANNOT`] where its tools are not to be had.
const CHECKS: &[(&str, &str)] = &[
    ("alerts, by promtool", "deploy/monitoring/check"),
    (
        "compose file, image description and Helm chart, by hadolint, compose, helm and kubernetes-validate",
        "deploy/container/check",
    ),
];
/// As automake's tests say that they were skipped.
const CANNOT: i32 = 77;

/// Runs them all; what could not be run is said, and an error only if it was asked for by name.
pub(super) fn deploy(root: &Path, options: &Options) -> Result<()> {
    let mut missing = Vec::new();
    for (what, script) in CHECKS {
        let ended = Command::new(root.join(script)).current_dir(root).output();
        let ended = ended.with_context(|| format!("cannot start {script}"))?;
        let said = String::from_utf8_lossy(&ended.stdout) + String::from_utf8_lossy(&ended.stderr);
        print!("{said}");
        if ended.status.code() == Some(CANNOT) {
            let why = said.lines().last().unwrap_or_default();
            missing.push(format!("NOT RUN: {what}: {why}"));
        } else {
            ended_well(&Command::new(script), ended.status)?;
        }
    }
    if !options.only.is_empty() && !missing.is_empty() {
        bail!(missing.join("\n"));
    }
    missing.iter().for_each(|line| println!("{line}"));
    Ok(())
}
