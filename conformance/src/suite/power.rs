//! Machines that a case switches on and off: servers in a guest of their own, whose page cache dies with it, and
//! clients that die with them.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::guest::fetch::Cache;
use crate::guest::job::{Job, Running, Sink};

/// The machines of one case, by name.
#[derive(Debug)]
pub(super) struct Machines {
    cache: Cache,
    /// Where their words go, one file per machine for all its lives.
    logs: PathBuf,
    jobs: BTreeMap<&'static str, Job>,
    on: BTreeMap<String, Running>,
}

impl Machines {
    /// All switched off.
    pub(super) fn new(cache: Cache, logs: &Path, jobs: BTreeMap<&'static str, Job>) -> Self {
        Self { cache, logs: logs.to_owned(), jobs, on: BTreeMap::new() }
    }

    /// Boots a machine with these arguments of its script; does not wait for it.
    pub(super) fn switch_on(&mut self, name: &str, arguments: &[&str]) -> Result<()> {
        let job = self.jobs.get(name).with_context(|| format!("no machine is called {name}"))?;
        if self.on.contains_key(name) {
            bail!("{name} is on already");
        }
        let running = job.clone().args(arguments.iter().copied()).spawn(&self.cache, self.log(name)?)?;
        self.on.insert(name.to_owned(), running);
        Ok(())
    }

    /// Pulls the plugs of these machines, all at once. One that has ended by itself is an error: the case would take
    /// its accident for a loss of power.
    pub(super) fn switch_off(&mut self, names: &[&str]) -> Result<()> {
        let mut off = Vec::new();
        for name in names {
            off.push(self.on.remove(*name).with_context(|| format!("{name} is not on"))?);
        }
        let mut early = Vec::new();
        for (name, machine) in names.iter().zip(&mut off) {
            if machine.ended()? {
                early.push(*name);
            }
            machine.kill();
        }
        if !early.is_empty() {
            bail!("{} had ended before: see its log in {}", early.join(", "), self.logs.display());
        }
        Ok(())
    }

    fn log(&self, name: &str) -> Result<Sink> {
        let file = self.logs.join(format!("{name}.log"));
        let mut keep = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&file)
            .with_context(|| format!("cannot write {}", file.display()))?;
        Ok(Box::new(move |bytes| drop(keep.write_all(bytes))))
    }
}
