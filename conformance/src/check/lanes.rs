//! Several commands with kernel clients at once, each in a network of its own: a client mostly waits for its servers'
//! disks and clocks.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;

use anyhow::{Context, Result, anyhow, bail};

/// One command of this program.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) name: String,
    pub(super) arguments: Vec<String>,
}

impl Cell {
    /// One case with one kernel.
    pub(super) fn case(case: &str, kernel: &str, vers: &str) -> Self {
        let results = format!("target/guest-suite/{kernel}-{vers}");
        let arguments = ["suite", case, "--kernel", kernel, "--vers", vers, "--results", &results];
        Self {
            name: format!("{case} on {kernel}, vers={vers}"),
            arguments: arguments.map(str::to_owned).into(),
        }
    }

    /// Hosts with names of their own, and clients with these kernels.
    pub(super) fn hosts(command: &str, kernels: &str) -> Self {
        let results = format!("target/hosts/{command}");
        let arguments = [command, "--kernel", kernels, "--results", &results];
        Self { name: format!("{command} with {kernels}"), arguments: arguments.map(str::to_owned).into() }
    }
}

/// This program's file, which must have been asked for before anything was built: a build may replace it, and then the
/// system says only that it is gone.
///
/// # Errors
/// The system does not say where it is.
pub(super) fn program() -> Result<&'static Path> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    if let Some(known) = PROGRAM.get() {
        return Ok(known);
    }
    let here = std::env::current_exe().context("cannot find this program's own file")?;
    Ok(PROGRAM.get_or_init(|| here))
}

/// Runs every cell, `width` at a time, in this order, with the servers' data in a folder of `data` (else where temporary
/// files are). A cell's output comes when it has ended.
///
/// # Errors
/// Names every cell that failed; the others are run nevertheless.
pub(super) fn run(root: &Path, cells: &[Cell], width: usize, data: Option<&Path>) -> Result<()> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    let lane = || -> Result<()> {
        while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = command(root, cell, data) {
                println!("== {error:#}");
                let mut failed = failed.lock().map_err(|_| anyhow!("another lane died"))?;
                failed.push(cell.name.clone());
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..width).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().try_for_each(|lane| lane.join().map_err(|_| anyhow!("a lane died"))?)
    })?;
    let failed = failed.into_inner().map_err(|_| anyhow!("a lane died"))?;
    if !failed.is_empty() {
        bail!("{} of {} cases failed: {}", failed.len(), cells.len(), failed.join("; "));
    }
    Ok(())
}

fn command(root: &Path, cell: &Cell, data: Option<&Path>) -> Result<()> {
    // Each enters a network of its own, from which a process does not come back.
    let ended = Command::new(program()?)
        .args(&cell.arguments)
        .envs(data.map(|folder| ("TMPDIR", folder)))
        .current_dir(root)
        .stdin(Stdio::null())
        .output()
        .context("cannot start one of the lanes")?;
    print!("{}{}", String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    if !ended.status.success() {
        bail!("`{}` ended with {}", cell.arguments.join(" "), ended.status);
    }
    Ok(())
}
