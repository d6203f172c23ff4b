//! The distribution's archive: packages of other releases, downloaded with apt-get and unpacked beside the
//! host's own, never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::catalogue::numbers;
use super::command::{output, run};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Suites that have a security archive of their own.
const STABLE: &[&str] = &["bookworm", "trixie"];

/// A private apt configuration for one suite: the machine's own mirror, but none of its state.
#[derive(Debug)]
pub(super) struct Suite {
    name: &'static str,
    configuration: PathBuf,
}

impl Suite {
    /// Prepares the configuration under `cache` and fetches the package lists unless they are there.
    pub(super) fn open(cache: &Path, name: &'static str) -> Result<Self> {
        let home = cache.join("apt").join(name);
        for folder in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(home.join(folder))
                .with_context(|| format!("cannot write below {}", home.display()))?;
        }
        let mirror = Mirror::of_this_machine()?;
        let mut sources = format!("deb [signed-by={KEYRING}] {} {name} main\n", mirror.archive);
        if let Some(security) = mirror.security
            && STABLE.contains(&name)
        {
            sources += &format!("deb [signed-by={KEYRING}] {security} {name}-security main\n");
        }
        let sources_file = home.join("sources.list");
        fs::write(&sources_file, sources)?;
        let configuration = home.join("conf");
        fs::write(
            &configuration,
            format!(
                "Dir::Etc::sourcelist \"{}\";\nDir::Etc::sourceparts \"/dev/null\";\nDir::State::Lists \"{home}/lists\";\n\
                 Dir::Cache \"{home}/cache\";\nAcquire::Languages \"none\";\nAPT::Sandbox::User \"root\";\n\
                 Acquire::Retries \"3\";\n",
                sources_file.display(),
                home = home.display(),
            ),
        )?;
        let suite = Self { name, configuration };
        if !suite.has_lists(&home.join("lists"))? {
            suite.update()?;
        }
        Ok(suite)
    }

    /// Without the error mode, apt-get calls an update that fetched nothing a success.
    fn update(&self) -> Result<()> {
        let update = || run(self.apt_get(&["-qq", "-o", "APT::Update::Error-Mode=any", "update"]));
        update()
            .or_else(|_| update())
            .with_context(|| format!("cannot fetch the package list of {}", self.name))
    }

    fn has_lists(&self, lists: &Path) -> Result<bool> {
        for entry in fs::read_dir(lists)? {
            if entry?.file_name().to_string_lossy().contains("Packages") {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn apt_get(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("apt-get");
        command.arg("-c").arg(&self.configuration).args(arguments);
        command
    }

    /// Names of the suite's packages that begin with `prefix`.
    pub(super) fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let mut command = Command::new("apt-cache");
        command.arg("-c").arg(&self.configuration).args(["pkgnames", prefix]);
        Ok(output(command)?.lines().map(str::to_owned).collect())
    }

    /// The newest package that begins with `prefix` and that `accept` takes.
    pub(super) fn newest(&self, prefix: &str, accept: impl Fn(&str) -> bool) -> Result<String> {
        let names = self.names(prefix)?;
        match names.into_iter().filter(|name| accept(name)).max_by_key(|name| numbers(name)) {
            Some(name) => Ok(name),
            None => bail!("{} holds no package like {prefix}*; is its list out of date?", self.name),
        }
    }

    /// Downloads a package and unpacks it into `target`.
    pub(super) fn unpack(&self, package: &str, target: &Path) -> Result<()> {
        let holder =
            tempfile::tempdir_in(self.configuration.parent().context("a configuration has a folder")?)?;
        if self.download(holder.path(), package).is_err() {
            // The list may be older than the archive, which keeps one version only.
            self.update()?;
            self.download(holder.path(), package)?;
        }
        fs::create_dir_all(target)?;
        for entry in fs::read_dir(holder.path())? {
            let file = entry?.path();
            let mut unpack = Command::new("dpkg");
            unpack.arg("-x").arg(file).arg(target);
            run(unpack)?;
        }
        Ok(())
    }

    /// The suite's own version, whatever this machine's pins prefer; a package that is only in the security archive
    /// is not found by the suite's name.
    fn download(&self, folder: &Path, package: &str) -> Result<()> {
        let attempt = |name: &str| {
            let mut command = self.apt_get(&["-qq", "download", name]);
            command.current_dir(folder);
            run(command)
        };
        attempt(&format!("{package}/{}", self.name)).or_else(|_| attempt(package))
    }
}

struct Mirror {
    archive: String,
    security: Option<String>,
}

impl Mirror {
    /// The archive that this machine's own apt uses.
    fn of_this_machine() -> Result<Self> {
        let mut command = Command::new("apt-get");
        command.args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]);
        let text =
            output(command).context("guest kernels come from a Debian archive: is this a Debian machine?")?;
        let ending = |ending: &str| {
            text.lines()
                .map(|line| line.trim_end_matches('/'))
                .find(|uri| uri.ends_with(ending))
                .map(str::to_owned)
        };
        let archive = ending("/debian").context(
            "apt on this machine has no Debian archive (or no package lists: run `apt-get update`); guest kernels come from it",
        )?;
        Ok(Self { archive, security: ending("-security") })
    }
}
