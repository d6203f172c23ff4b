//! Long-running children: each leads its own process group, and the whole group dies with the value.

use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// How often a wait looks at its child.
const POLL: Duration = Duration::from_millis(10);

/// A child and everything it starts.
#[derive(Debug)]
pub struct Group {
    child: Child,
}

impl Group {
    /// Starts `command` as the leader of a new process group.
    ///
    /// # Errors
    /// If it cannot start.
    pub fn spawn(mut command: Command) -> Result<Self> {
        use std::os::unix::process::CommandExt;
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.process_group(0).spawn().with_context(|| format!("cannot start {program}"))?;
        Ok(Self { child })
    }

    /// Process id of the leader.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The child itself, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits until `deadline` at the latest.
    ///
    /// # Errors
    /// If the child cannot be waited for.
    pub fn wait_until(&mut self, deadline: Instant) -> Result<Option<ExitStatus>> {
        loop {
            if let Some(status) = self.child.try_wait().context("cannot wait for a child")? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Sends a signal to the leader alone.
    pub fn signal(&self, signal: Signal) {
        // It may have ended: then there is nothing to signal.
        let _ = kill(pid(self.id()), signal);
    }

    /// Kills the group and reaps the leader.
    pub fn kill(&mut self) {
        let _ = killpg(pid(self.id()), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Process ids are positive and far below 2^31.
pub(crate) fn pid(id: u32) -> Pid {
    Pid::from_raw(i32::try_from(id).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_dies_with_its_value() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 100 & echo $!; wait"]).stdout(std::process::Stdio::piped());
        let mut group = Group::spawn(command).unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(
            &mut std::io::BufReader::new(group.child().stdout.take().unwrap()),
            &mut line,
        )
        .unwrap();
        let grandchild = Pid::from_raw(line.trim().parse().unwrap());
        assert!(kill(grandchild, None).is_ok());
        assert!(group.wait_until(Instant::now()).unwrap().is_none());
        drop(group);
        let gone = |_| {
            std::thread::sleep(POLL);
            // A killed orphan may stay a zombie until the first process of the machine reaps it.
            std::fs::read_to_string(format!("/proc/{grandchild}/stat"))
                .map_or(true, |stat| stat.contains(") Z "))
        };
        assert!((0..200).any(gone), "the grandchild outlived its group");
    }
}
