//! What a case plays on: the network, the servers, the board; and the requests that guests may make of the host.
//!
//! A guest opens a TCP connection to the host's address, writes one line, and reads a status line (0 or 1) and a
//! text until the end of the connection. The host's address is no server's, so this traffic is not counted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, killpg};
use serde::Serialize;

use super::board::Board;
use super::power::Machines;
use super::sluice::Sluice;
use crate::guest::lab::{HOST_ADDRESS, Lab};
use crate::guest::process::pid;

/// Port of the conversation with guests.
pub(super) const PORT: u16 = 7777;

/// A figure that a case reports.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Metric {
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) unit: String,
}

/// Shared by the case's threads.
#[derive(Debug)]
pub(crate) struct Stage {
    lab: Lab,
    act: Mutex<Option<Arc<Act>>>,
}

/// One case.
#[derive(Debug)]
pub(crate) struct Act {
    pub(crate) board: Board,
    /// None: the reference server.
    pub(super) sluice: Option<Mutex<Sluice>>,
    /// Machines that the case switches on and off.
    machines: Option<Mutex<Machines>>,
    limit: Duration,
    guests: Mutex<BTreeMap<u8, u32>>,
    killed: Mutex<BTreeSet<u8>>,
    metrics: Mutex<Vec<Metric>>,
}

impl Act {
    pub(super) fn new(sluice: Option<Sluice>, machines: Option<Machines>, limit: Duration) -> Self {
        Self {
            board: Board::default(),
            sluice: sluice.map(Mutex::new),
            machines: machines.map(Mutex::new),
            limit,
            guests: Mutex::default(),
            killed: Mutex::default(),
            metrics: Mutex::default(),
        }
    }

    /// Guests that only meet each other: they bring their servers themselves.
    pub(crate) fn meeting(limit: Duration) -> Self {
        Self::new(None, None, limit)
    }

    /// A guest's machine, so that it can be killed.
    pub(super) fn add_guest(&self, number: u8, process: u32) {
        lock(&self.guests).insert(number, process);
    }

    /// Whether the case itself killed this guest.
    pub(super) fn was_killed(&self, number: u8) -> bool {
        lock(&self.killed).contains(&number)
    }

    pub(super) fn metrics(&self) -> Vec<Metric> {
        lock(&self.metrics).clone()
    }

    fn sluice(&self) -> Result<MutexGuard<'_, Sluice>> {
        Ok(lock(self.sluice.as_ref().context("the reference server does not do that")?))
    }

    /// Whether the case brings its servers itself.
    pub(super) fn has_machines(&self) -> bool {
        self.machines.is_some()
    }

    fn machines(&self) -> Result<MutexGuard<'_, Machines>> {
        Ok(lock(self.machines.as_ref().context("this case has no machines to switch")?))
    }

    fn kill_guest(&self, number: u8) -> Result<()> {
        let process =
            *lock(&self.guests).get(&number).with_context(|| format!("there is no guest {number}"))?;
        lock(&self.killed).insert(number);
        killpg(pid(process), Signal::SIGKILL).with_context(|| format!("cannot kill guest {number}"))
    }
}

impl Stage {
    /// Listens for guests.
    pub(crate) fn open(lab: Lab) -> Result<Arc<Self>> {
        let stage = Arc::new(Self { lab, act: Mutex::default() });
        let listener = TcpListener::bind((HOST_ADDRESS, PORT)).context("cannot listen for guests")?;
        let serving = Arc::clone(&stage);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let stage = Arc::clone(&serving);
                std::thread::spawn(move || stage.serve(&stream));
            }
        });
        Ok(stage)
    }

    /// Begins a case; links are whole and unshaped again.
    pub(crate) fn begin(&self, act: Arc<Act>) -> Result<()> {
        for server in self.lab.traffic()?.into_keys() {
            self.lab.shape(server, None)?;
            self.lab.connect(server, true)?;
        }
        *lock(&self.act) = Some(act);
        Ok(())
    }

    /// Ends it: guests that wait for each other wait no longer.
    pub(crate) fn end(&self) {
        if let Some(act) = lock(&self.act).take() {
            act.board.close();
        }
    }

    fn serve(&self, stream: &TcpStream) {
        let mut line = String::new();
        if BufReader::new(stream).read_line(&mut line).is_err() {
            return;
        }
        let (status, text) = match self.answer(line.trim()) {
            Ok(text) => (0, text),
            Err(error) => (1, format!("{error:#}")),
        };
        // A guest that has died does not read its answer.
        let _ = (&mut &*stream).write_all(format!("{status}\n{text}").as_bytes());
    }

    fn answer(&self, line: &str) -> Result<String> {
        let act = lock(&self.act).clone().context("no case is running")?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let nothing = String::new();
        match words.as_slice() {
            ["post", name, value @ ..] => act.board.post(name, &value.join(" ")),
            ["await", name] => return act.board.wait(name, act.limit),
            ["barrier", name, count] => act.board.barrier(name, count.parse()?, act.limit)?,
            ["metric", name, value, unit @ ..] => lock(&act.metrics).push(Metric {
                name: (*name).to_owned(),
                value: value.parse().with_context(|| format!("{value} is no number"))?,
                unit: unit.join(" "),
            }),
            ["status"] => return act.sluice()?.status(),
            ["policy", path, policy @ ..] => return act.sluice()?.policy(path, policy),
            ["sluice", words @ ..] => return act.sluice()?.ask(words),
            ["traffic"] => return self.traffic(),
            ["shape", server, mbit] => self.lab.shape(server.parse()?, Some(mbit.parse()?))?,
            ["unshape", server] => self.lab.shape(server.parse()?, None)?,
            ["cut", server] => self.lab.connect(server.parse()?, false)?,
            ["mend", server] => self.lab.connect(server.parse()?, true)?,
            ["kill", name] => act.sluice()?.signal(name, Signal::SIGKILL)?,
            ["devices", mib] => act.sluice()?.give_devices(mib.parse()?)?,
            ["renew", name] => act.sluice()?.renew(name)?,
            ["lose", name] => {
                let sluice = act.sluice()?;
                // Before its parent can restart it.
                sluice.freeze(true);
                sluice.signal(name, Signal::SIGKILL)?;
            }
            ["regain"] => act.sluice()?.freeze(false),
            ["mute", name] => act.sluice()?.signal(name, Signal::SIGSTOP)?,
            ["unmute", name] => act.sluice()?.signal(name, Signal::SIGCONT)?,
            ["power", "on", name, arguments @ ..] => act.machines()?.switch_on(name, arguments)?,
            ["power", "off", names @ ..] => act.machines()?.switch_off(names)?,
            ["kill-guest", number] => act.kill_guest(number.parse()?)?,
            ["restart", options @ ..] => {
                let mut sluice = act.sluice()?;
                sluice.stop()?;
                sluice.start(&owned(options))?;
            }
            ["kerberos"] => return act.sluice()?.kerberos(),
            ["certificates"] => return act.sluice()?.certificates(),
            ["fresh", data_servers, options @ ..] => {
                act.sluice()?.fresh(data_servers.parse()?, &owned(options))?;
            }
            _ => bail!("the host does not know how to {line:?}"),
        }
        Ok(nothing)
    }

    /// One line per server link: number, bytes received, bytes sent. Link 1 is the metadata server's, link n + 1 data
    /// server n's.
    fn traffic(&self) -> Result<String> {
        let mut text = String::new();
        for (server, traffic) in self.lab.traffic()? {
            writeln!(text, "{server} {} {}", traffic.received, traffic.sent)?;
        }
        Ok(text)
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// A thread that panicked under the lock leaves nothing half-done here: every update is one assignment.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
