//! Several suites of kernel clients at once, each in a network of its own.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, anyhow, bail};

/// One suite: kernel, minor version, cases.
type Run = (&'static str, &'static str, &'static str);

/// Runs all lanes to their ends, and their suites' output, line by line, under their names.
///
/// # Errors
/// The first suite that failed, lane by lane. The others of its lane are run nevertheless.
pub(super) fn run(root: &Path, lanes: &'static [&'static [Run]]) -> Result<()> {
    let ended: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> = lanes.iter().map(|runs| scope.spawn(|| lane(root, runs))).collect();
        running.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    for lane in ended {
        lane.map_err(|_| anyhow!("a lane of the suite died"))??;
    }
    Ok(())
}

fn lane(root: &Path, runs: &[Run]) -> Result<()> {
    let ended: Vec<_> = runs.iter().map(|run| suite(root, run)).collect();
    ended.into_iter().collect()
}

fn suite(root: &Path, (kernel, vers, cases): &Run) -> Result<()> {
    // Each suite enters a network of its own, from which a process does not come back.
    let this = std::env::current_exe().context("cannot find this program's own file")?;
    let mut suite = Command::new(this)
        .arg("suite")
        .args(cases.split(' '))
        .args(["--kernel", kernel, "--vers", vers, "--results"])
        .arg(root.join(format!("target/guest-suite/{kernel}-{vers}")))
        .current_dir(root)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the suite")?;
    let output = suite.stdout.take().context("the suite has an output")?;
    for line in BufReader::new(output).lines() {
        println!("{kernel:>6} {vers}| {}", line.context("cannot read what the suite says")?);
    }
    let status = suite.wait().context("cannot wait for the suite")?;
    if !status.success() {
        bail!("`suite {cases} --kernel {kernel} --vers {vers}` ended with {status}");
    }
    Ok(())
}
