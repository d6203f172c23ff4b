//! One script in one guest: what it needs, the running machine, and what came of it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ChildStderr;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::catalogue::Machine;
use super::fetch::{Cache, Prepared};
use super::lab::HOST_ADDRESS;
use super::process::Group;
use super::{qemu, uml};

const BOOT: &str = include_str!("../../guest/boot.sh");
/// Characters of the kernel console repeated when a guest dies.
const CONSOLE_TAIL: usize = 3000;
/// A guest that has ended its script powers off at once; its pipes close with it.
const DRAIN: Duration = Duration::from_secs(5);

/// Receives the output of a guest as it comes.
pub type Sink = Box<dyn FnMut(&[u8]) + Send>;

/// A guest to be.
#[derive(Clone, Debug)]
pub struct Job {
    pub(super) kernel: Prepared,
    /// Host name, address and tap; guests of one lab count from 1.
    pub(super) number: u8,
    pub(super) script: PathBuf,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    pub(super) share: Option<PathBuf>,
    pub(super) memory_mib: u32,
    pub(super) network: bool,
    timeout: Duration,
    console: Option<PathBuf>,
}

/// How a guest ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Status {
    /// The script's own exit status.
    Exited(i32),
    /// Killed at its time limit.
    TimedOut,
    /// The kernel panicked, or the machine ended without a word.
    Died,
    /// Killed on request.
    Killed,
}

/// What came of a guest.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub status: Status,
    /// Standard output and error of the script.
    pub output: String,
    /// The kernel's console.
    pub console: String,
    /// From start to end.
    pub elapsed: Duration,
}

impl Status {
    /// As a process would say it: 124 for a time-out, 125 for a dead guest.
    #[must_use]
    pub fn code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::TimedOut => 124,
            Self::Died => 125,
            Self::Killed => 137,
        }
    }
}

impl Outcome {
    /// Whether the script succeeded.
    #[must_use]
    pub fn success(&self) -> bool {
        self.status == Status::Exited(0)
    }

    /// The kernel's release, as the guest said it; empty if it did not come that far.
    #[must_use]
    pub fn release(&self) -> &str {
        said(&self.console, "GUEST-KERNEL: ").unwrap_or_default()
    }

    /// How often the machine's network driver gave up and was started again (`boot.sh`).
    #[must_use]
    pub fn network_restarts(&self) -> usize {
        self.console.lines().filter(|line| line.contains("GUEST-NETWORK: ")).count()
    }

    /// The last words of the console, for reports about dead guests.
    #[must_use]
    pub fn console_tail(&self) -> &str {
        let start = self.console.len().saturating_sub(CONSOLE_TAIL);
        let start = (start..self.console.len()).find(|at| self.console.is_char_boundary(*at)).unwrap_or(0);
        &self.console[start..]
    }
}

impl Job {
    /// A guest with number `number` (1 to 200) that runs `script` under bash.
    #[must_use]
    pub fn new(kernel: Prepared, number: u8, script: impl Into<PathBuf>) -> Self {
        let memory_mib = 768;
        Self {
            kernel,
            number,
            script: script.into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            share: None,
            memory_mib,
            network: true,
            timeout: Duration::from_secs(300),
            console: None,
        }
    }

    /// Arguments of the script.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Another script.
    #[must_use]
    pub fn script(mut self, script: impl Into<PathBuf>) -> Self {
        self.script = script.into();
        self
    }

    /// An environment variable of the script.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// A folder of the host, writable in the guest as /share.
    #[must_use]
    pub fn share(mut self, folder: impl Into<PathBuf>) -> Self {
        self.share = Some(folder.into());
        self
    }

    /// Memory in MiB; at least 256 is sensible.
    #[must_use]
    pub fn memory(mut self, mib: u32) -> Self {
        self.memory_mib = mib;
        self
    }

    /// No network card.
    #[must_use]
    pub fn without_network(mut self) -> Self {
        self.network = false;
        self
    }

    /// Hard limit from start to end.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Keeps the kernel's console in a file.
    #[must_use]
    pub fn console(mut self, file: impl Into<PathBuf>) -> Self {
        self.console = Some(file.into());
        self
    }

    /// The guest's address in the lab.
    #[must_use]
    pub fn address(&self) -> String {
        format!("10.77.0.{}", self.number.saturating_add(10))
    }

    /// The guest's host name.
    #[must_use]
    pub fn name(&self) -> String {
        format!("guest{}", self.number)
    }

    pub(super) fn tap(&self) -> String {
        format!("kc{}", self.number)
    }

    /// Locally administered, and different for every guest of a lab.
    pub(super) fn mac(&self) -> String {
        format!("52:54:00:77:00:{:02x}", self.number)
    }

    /// What init reads from the kernel's command line.
    pub(super) fn parameters(&self, job: &Path) -> Result<Vec<String>> {
        let mode = match self.kernel.kernel.entry().machine {
            Machine::Uml => "uml",
            Machine::Qemu => "qemu",
        };
        let modules =
            self.kernel.modules.canonicalize().context("the kernel's modules are gone from the cache")?;
        let mut parameters = vec![
            format!("guest.mode={mode}"),
            format!("guest.modules={}", modules.display()),
            format!("guest.job={}", job.display()),
            format!("guest.name={}", self.name()),
        ];
        if let Some(share) = &self.share {
            parameters.push(format!("guest.share={}", share.canonicalize()?.display()));
        }
        if self.network {
            parameters.push(format!("guest.ip={}", self.address()));
        }
        if parameters.iter().any(|parameter| parameter.contains([' ', '\'', '"'])) {
            bail!("a guest's paths may not contain spaces or quotes: {}", parameters.join(" "));
        }
        Ok(parameters)
    }

    /// Boots the guest; its output goes to `sink` as it comes.
    ///
    /// # Errors
    /// If the script cannot be read or the machine cannot start.
    pub fn spawn(&self, cache: &Cache, mut sink: Sink) -> Result<Running> {
        let folder = tempfile::Builder::new().prefix("sluice-guest.").tempdir()?;
        self.write_scripts(folder.path())?;
        let console = self.console.clone().unwrap_or_else(|| folder.path().join("console"));
        let started = Instant::now();
        let (machine, helpers) = match self.kernel.kernel.entry().machine {
            Machine::Uml => (uml::command(self, folder.path())?, Vec::new()),
            Machine::Qemu => qemu::command(self, folder.path(), &cache.qemu()?)?,
        };
        let mut machine = machine;
        machine
            .stdin(std::process::Stdio::null())
            .stdout(
                fs::File::create(&console).with_context(|| format!("cannot write {}", console.display()))?,
            )
            .stderr(std::process::Stdio::piped())
            .current_dir(folder.path());
        let mut machine = Group::spawn(machine)?;
        let pipe = machine.child().stderr.take().context("the guest's output has no pipe")?;
        let reader = std::thread::spawn(move || collect(pipe, &mut sink));
        Ok(Running {
            machine,
            helpers,
            reader: Some(reader),
            console,
            started,
            deadline: started + self.timeout,
            killed: false,
            _folder: folder,
        })
    }

    /// Boots the guest and waits for its end.
    ///
    /// # Errors
    /// As `spawn` and `Running::wait`.
    pub fn run(&self, cache: &Cache, sink: Sink) -> Result<Outcome> {
        self.spawn(cache, sink)?.wait()
    }

    fn write_scripts(&self, folder: &Path) -> Result<()> {
        fs::copy(&self.script, folder.join("script"))
            .with_context(|| format!("cannot read {}", self.script.display()))?;
        let mut text = String::from("cd /tmp\n");
        for (name, value) in &self.env {
            text += &format!("export {name}={}\n", quote(value));
        }
        let args: Vec<_> = self.args.iter().map(|arg| quote(arg)).collect();
        text += &format!("exec /bin/bash /job/script {}\n", args.join(" "));
        fs::write(folder.join("run"), text)?;
        let boot = folder.join("boot");
        fs::write(&boot, BOOT.replace("@host@", HOST_ADDRESS))?;
        fs::set_permissions(&boot, fs::Permissions::from_mode(0o755))?;
        // The guest's unprivileged users reach the script too.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
        Ok(())
    }
}

fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn collect(mut pipe: ChildStderr, sink: &mut Sink) -> String {
    let mut all = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count) = pipe.read(&mut buffer) {
        if count == 0 {
            break;
        }
        sink(&buffer[..count]);
        all.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&all).replace('\r', "")
}

/// A booted guest. Dropping it pulls its plug.
#[derive(Debug)]
pub struct Running {
    machine: Group,
    helpers: Vec<Group>,
    reader: Option<JoinHandle<String>>,
    console: PathBuf,
    started: Instant,
    deadline: Instant,
    killed: bool,
    _folder: TempDir,
}

impl Running {
    /// Pulls the plug: page cache and state are lost, as in a power failure.
    pub fn kill(&mut self) {
        self.killed = true;
        self.machine.kill();
    }

    /// Process id of the machine, for a kill from another thread.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.machine.id()
    }

    /// Stops the machine's clock, as a client that hangs: `SIGSTOP`, and `SIGCONT` to go on.
    pub fn signal(&self, signal: Signal) {
        self.machine.signal(signal);
    }

    /// Whether the machine has ended.
    ///
    /// # Errors
    /// If it cannot be looked at.
    pub fn ended(&mut self) -> Result<bool> {
        Ok(self.machine.wait_until(Instant::now())?.is_some())
    }

    /// Waits for the end of the script, at most until the job's time limit.
    ///
    /// # Errors
    /// If the machine cannot be waited for.
    pub fn wait(mut self) -> Result<Outcome> {
        let ended = self.machine.wait_until(self.deadline)?;
        let elapsed = self.started.elapsed();
        self.machine.kill();
        self.helpers.clear();
        let output = self.join();
        let console = fs::read(&self.console).unwrap_or_default();
        let console = String::from_utf8_lossy(&console).replace('\r', "");
        let status = match exit_status(&console) {
            Some(status) if ended.is_some() => Status::Exited(status),
            _ if self.killed => Status::Killed,
            _ if ended.is_none() => Status::TimedOut,
            _ => Status::Died,
        };
        Ok(Outcome { status, output, console, elapsed })
    }

    /// The reader ends when the last process of the machine has closed its end of the pipe.
    fn join(&mut self) -> String {
        let Some(reader) = self.reader.take() else { return String::new() };
        let limit = Instant::now() + DRAIN;
        while !reader.is_finished() {
            if Instant::now() >= limit {
                return "(the guest's output never ended)".to_owned();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        reader.join().unwrap_or_default()
    }
}

/// What `boot` said on the console.
fn exit_status(console: &str) -> Option<i32> {
    said(console, "GUEST-STATUS: ")?.parse().ok()
}

/// The rest of the last line with this word.
fn said<'a>(console: &'a str, word: &str) -> Option<&'a str> {
    let (_, rest) = console.rsplit_once(word)?;
    Some(rest.lines().next()?.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_shell() {
        let mut command = std::process::Command::new("sh");
        let hostile = "it's $HOME `x` \"y\" \\";
        command.args(["-c", &format!("printf %s {}", quote(hostile))]);
        assert_eq!(String::from_utf8(command.output().unwrap().stdout).unwrap(), hostile);
    }

    #[test]
    fn the_last_status_on_the_console_counts() {
        assert_eq!(exit_status("noise\nGUEST-STATUS: 7\nreboot: Power down\n"), Some(7));
        assert_eq!(exit_status("Kernel panic"), None);
        assert_eq!(
            said("x\nGUEST-KERNEL: 6.1.0-49-cloud-amd64\ny", "GUEST-KERNEL: "),
            Some("6.1.0-49-cloud-amd64")
        );
    }
}
