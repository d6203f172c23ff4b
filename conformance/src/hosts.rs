//! `three-hosts`: the chapter `Several hosts` of docs/OPERATIONS.md, followed to the letter, and everything rebooted.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::guest::catalogue::Kernel;
use crate::guest::fetch::Cache;
use crate::guest::lab::{self, Lab};
use crate::guest::{host, process::Group};

/// Options of `three-hosts` and `faults`.
#[derive(Args, Debug)]
pub struct Options {
    /// Kernels of the two clients: one for both, or two
    #[arg(long, value_delimiter = ',', default_value = "uml6.1,uml7.2")]
    kernel: Vec<Kernel>,
    /// The program to test [default: sluice beside this one]
    #[arg(long, value_name = "FILE")]
    sluice: Option<PathBuf>,
    /// Begin with this program, of an earlier release; then replace it, and go back, one server at a time under load
    #[arg(long, value_name = "FILE")]
    older: Option<PathBuf>,
    /// Where logs go [default: target/hosts]
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
}

impl Options {
    /// Runs a script of conformance/guest/hosts in a lab. Needs root, as guests do.
    ///
    /// # Errors
    /// If the machine lacks something; what the script finds wrong is an exit code.
    pub fn run(&self, script: &str) -> Result<ExitCode> {
        host::check(&self.kernel)?;
        if !lab::inside() {
            // The lab has no way out: what must be downloaded is downloaded before.
            Cache::open()?.ready(&self.kernel)?;
            return lab::enter();
        }
        let _lab = Lab::new(2)?;
        let home = Path::new(env!("CARGO_MANIFEST_DIR"));
        let this = std::env::current_exe().context("cannot find this program's own file")?;
        let sluice = self.sluice.clone().unwrap_or_else(|| this.with_file_name("sluice"));
        if !sluice.is_file() {
            bail!("there is no {}: cargo build --release -p sluice", sluice.display());
        }
        let results = self.results.clone().unwrap_or_else(|| home.join("../target/hosts"));
        std::fs::create_dir_all(&results).with_context(|| format!("cannot make {}", results.display()))?;
        let kernels: Vec<_> = self.kernel.iter().map(|kernel| kernel.name()).collect();
        let mut command = Command::new("python3");
        command.arg("-B").arg(home.join("guest/hosts").join(script));
        command
            .arg("--sluice")
            .arg(sluice)
            .arg("--runner")
            .arg(this)
            .arg("--results")
            .arg(results.canonicalize()?);
        command.arg("--document").arg(home.join("../docs/OPERATIONS.md"));
        command.arg("--deploy").arg(home.join("../deploy")).args(["--kernel", &kernels.join(",")]);
        if let Some(older) = &self.older {
            command.arg("--older").arg(older);
        }
        // Guests that it starts use this network.
        command.env("SLUICE_LAB", "2");
        let mut script = Group::spawn(command)?;
        let status = script.child().wait().context("cannot wait for the script")?;
        Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
