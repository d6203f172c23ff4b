//! The private network that guests and servers share: namespaces, one link per server address, taps.
//!
//! Every server address has a link of its own (`srvN` with the address, `portN` on the bridge), although all servers
//! live in one network namespace: routing by source address and strict ARP keep each address's packets on its link,
//! so that a link can be shaped and counted. Traffic among the servers themselves stays on the loopback and is not
//! counted.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{SigSet, Signal, kill};

use super::command::{run, words};
use super::process::pid;

/// Set in the processes inside.
const INSIDE: &str = "SLUICE_LAB";
/// Server addresses: 10.77.0.1 to 10.77.0.9.
pub const SERVERS: u8 = 9;
/// The host's own address, for the runner's conversation with guests.
pub const HOST_ADDRESS: &str = "10.77.0.254";
/// Bytes a shaped link may send at once; below one full segment of the guest's card tbf drops it.
const BURST: &str = "256k";

/// Address of server `number`, 1 to 9.
#[must_use]
pub fn server_address(number: u8) -> String {
    format!("10.77.0.{number}")
}

/// The network of this process.
#[derive(Debug)]
pub struct Lab {
    taps: u8,
}

/// Bytes that crossed a server's link, seen from the server.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Traffic {
    pub received: u64,
    pub sent: u64,
}

/// Whether this process runs inside a lab.
#[must_use]
pub fn inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Runs this same program with the same arguments in namespaces of its own and returns how it ended. Nothing it
/// starts can outlive it: the first process of a process namespace takes the others with it.
///
/// # Errors
/// If the namespaces cannot be made.
pub fn enter() -> Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    // Blocked here and waited for below: the child must be killed, not just this process.
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block().context("cannot block signals")?;
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "unshare", "--net", "--mount", "--propagation", "private"])
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .spawn()
        .context("cannot start unshare")?;
    let id = pid(child.id());
    std::thread::spawn(move || {
        if signals.wait().is_ok() {
            let _ = kill(id, Signal::SIGKILL);
        }
    });
    let status = child.wait().context("cannot wait for the lab")?;
    if let Some(signal) = status.signal() {
        bail!("the lab was ended by signal {signal}");
    }
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

impl Lab {
    /// Builds the network, with taps kc1 to kcN.
    ///
    /// # Errors
    /// Outside of `enter`, or if the host's kernel lacks bridges, veth, taps or policy routing.
    pub fn new(taps: u8) -> Result<Self> {
        if !inside() {
            bail!("a lab exists only inside `guest lab`, `guest run` and `suite`");
        }
        // Inherited from the process that entered; commands of ours must be able to be ended.
        SigSet::all().thread_unblock().context("cannot unblock signals")?;
        ip("link set lo up")?;
        ip("link add kc0 type bridge forward_delay 0")?;
        ip(&format!("addr add {HOST_ADDRESS}/24 dev kc0"))?;
        ip("link set kc0 up")?;
        // Else the bridge itself answers for the servers' addresses, and packets towards them pass by their links.
        knob("kc0", "arp_ignore", "1")?;
        for number in 1..=SERVERS {
            server_link(number)?;
        }
        for number in 1..=taps {
            ip(&format!("tuntap add kc{number} mode tap"))?;
            ip(&format!("link set kc{number} master kc0 up"))?;
        }
        Ok(Self { taps })
    }

    /// How many guests can be connected.
    #[must_use]
    pub fn taps(&self) -> u8 {
        self.taps
    }

    /// Limits a server's link, in each direction, to `mbit` Mbit/s; `None` lifts the limit.
    ///
    /// # Errors
    /// If the traffic control of the host's kernel refuses.
    pub fn shape(&self, server: u8, mbit: Option<u32>) -> Result<()> {
        for device in [format!("srv{server}"), format!("port{server}")] {
            match mbit {
                Some(mbit) => run(words(&[
                    "tc",
                    "qdisc",
                    "replace",
                    "dev",
                    &device,
                    "root",
                    "tbf",
                    "rate",
                    &format!("{mbit}mbit"),
                    "burst",
                    BURST,
                    "latency",
                    "50ms",
                ]))?,
                // Deleting what is not there is an error that changes nothing.
                None => drop(run(words(&["tc", "qdisc", "del", "dev", &device, "root"]))),
            }
        }
        Ok(())
    }

    /// Cuts a server's link, or mends it: packets vanish, connections stay.
    ///
    /// # Errors
    /// If the link cannot be changed.
    pub fn connect(&self, server: u8, connected: bool) -> Result<()> {
        ip(&format!("link set port{server} {}", if connected { "up" } else { "down" }))
    }

    /// Bytes on each server's link so far.
    ///
    /// # Errors
    /// If the counters cannot be read.
    pub fn traffic(&self) -> Result<BTreeMap<u8, Traffic>> {
        Ok(traffic(
            &std::fs::read_to_string("/proc/self/net/dev").context("cannot read the interface counters")?,
        ))
    }
}

fn server_link(number: u8) -> Result<()> {
    let (link, address) = (format!("srv{number}"), server_address(number));
    ip(&format!("link add {link} type veth peer name port{number}"))?;
    ip(&format!("link set port{number} master kc0 up"))?;
    ip(&format!("addr add {address}/32 dev {link}"))?;
    ip(&format!("link set {link} up"))?;
    for (name, value) in [("arp_ignore", "1"), ("arp_announce", "2"), ("rp_filter", "0")] {
        knob(&link, name, value)?;
    }
    let table = 100 + u32::from(number);
    ip(&format!("rule add from {address} lookup {table}"))?;
    ip(&format!("route add 10.77.0.0/24 dev {link} src {address} table {table}"))
}

fn knob(device: &str, name: &str, value: &str) -> Result<()> {
    let file = format!("/proc/sys/net/ipv4/conf/{device}/{name}");
    std::fs::write(&file, value).with_context(|| format!("cannot write {file}"))
}

fn ip(arguments: &str) -> Result<()> {
    let mut command = Command::new("ip");
    command.args(arguments.split(' '));
    run(command)
}

/// Reads /proc/net/dev: after the name, received bytes come first and sent bytes ninth.
fn traffic(text: &str) -> BTreeMap<u8, Traffic> {
    let mut links = BTreeMap::new();
    for line in text.lines() {
        let Some((name, counters)) = line.trim().split_once(':') else { continue };
        let Some(number) = name.strip_prefix("srv").and_then(|number| number.parse().ok()) else { continue };
        let counters: Vec<u64> = counters.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        if let (Some(&received), Some(&sent)) = (counters.first(), counters.get(8)) {
            links.insert(number, Traffic { received, sent });
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_server_links_are_read() {
        let text = "Inter-|   Receive\n face |bytes\n    lo: 9 9 0 0 0 0 0 0 9 9\n  srv2: 10 1 0 0 0 0 0 0 77 3 0 0 0 0 0 0\n port2: 77 3 0 0 0 0 0 0 10 1 0 0 0 0 0 0\n";
        let links = traffic(text);
        assert_eq!(links.len(), 1);
        assert_eq!(links[&2], Traffic { received: 10, sent: 77 });
    }
}
