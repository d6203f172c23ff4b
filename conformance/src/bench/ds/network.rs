//! A network of its own for the benchmark: what this machine's is set to has no say in the figures. A host that sends
//! with BBR, say, paces each connection, and one connection over loopback then moves half as much.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::sched::{CloneFlags, unshare};

const CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// The first one that is permitted: Linux's default, and its nearest relation.
const CHOICES: [&str; 2] = ["cubic", "reno"];

/// From here on this thread, and what it starts, is alone with its loopback. For people: how TCP is set there.
pub(in crate::bench) fn enter() -> Result<String> {
    unshare(CloneFlags::CLONE_NEWNET).context("the benchmark needs root, for a network of its own")?;
    ip(&["link", "set", "lo", "up"])?;
    // Ganesha resolves its own name, and asks for addresses of kinds that the host has beyond loopback.
    ip(&["address", "add", "192.0.2.1/32", "dev", "lo"])?;
    for choice in CHOICES {
        if fs::write(CONGESTION, choice).is_ok() {
            break;
        }
    }
    let chosen = fs::read_to_string(CONGESTION).context("cannot tell how TCP is set")?;
    Ok(format!("loopback of a network name space, TCP with {}", chosen.trim()))
}

fn ip(arguments: &[&str]) -> Result<()> {
    let status = Command::new("ip").args(arguments).status().context("cannot run ip (package iproute2)")?;
    ensure!(status.success(), "ip {} failed", arguments.join(" "));
    Ok(())
}
