//! What the host must have: root, the tap device, packages.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::catalogue::{Kernel, Machine};

/// A program the runner calls, and the package it comes in.
struct Tool {
    program: &'static str,
    package: &'static str,
    /// Needed for qemu guests only.
    qemu: bool,
}

const fn tool(program: &'static str, package: &'static str) -> Tool {
    Tool { program, package, qemu: false }
}

const TOOLS: &[Tool] = &[
    tool("busybox", "busybox-static"),
    tool("cpio", "cpio"),
    tool("depmod", "kmod"),
    tool("xz", "xz-utils"),
    tool("zstd", "zstd"),
    tool("lz4", "lz4"),
    tool("gcc", "gcc"),
    tool("ip", "iproute2"),
    tool("unshare", "util-linux"),
    tool("setpriv", "util-linux"),
    tool("mount.nfs4", "nfs-common"),
    tool("mkfs.ext4", "e2fsprogs"),
    tool("git", "git"),
    tool("python3", "python3"),
    Tool { program: "qemu-system-x86_64", package: "qemu-system-x86", qemu: true },
];
/// Packages without a program of their own.
const FILES: &[(&str, &str)] = &[("/usr/include/stdio.h", "libc6-dev")];

/// Packages that are missing for these kernels.
#[must_use]
pub fn missing(kernels: &[Kernel]) -> Vec<&'static str> {
    let qemu = kernels.iter().any(|kernel| kernel.entry().machine == Machine::Qemu);
    let mut packages: Vec<_> = TOOLS
        .iter()
        .filter(|tool| (qemu || !tool.qemu) && !found(tool.program))
        .map(|tool| tool.package)
        .collect();
    packages.extend(FILES.iter().filter(|(file, _)| !Path::new(file).exists()).map(|(_, package)| *package));
    packages.dedup();
    packages
}

fn found(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // sbin is not on every user's path, but root's commands are there.
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|folder| folder.join(program).is_file())
}

/// Checks everything a guest needs.
///
/// # Errors
/// One line that says what to do.
pub fn check(kernels: &[Kernel]) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("NOT RUN: guest tests need root (taps and namespaces): use sudo");
    }
    let packages = missing(kernels);
    if !packages.is_empty() {
        bail!("guests need packages that are missing here: apt-get install {}", packages.join(" "));
    }
    if !Path::new("/dev/net/tun").exists() {
        bail!("NOT RUN: guest tests need /dev/net/tun (modprobe tun, or a container with that device)");
    }
    Ok(())
}

/// Installs what is missing, for every kernel.
///
/// # Errors
/// If not root, or apt-get fails.
pub fn install() -> Result<()> {
    let kernels: Vec<_> = Kernel::all().collect();
    let packages = missing(&kernels);
    if packages.is_empty() {
        println!("every package that guests need is here");
        return Ok(());
    }
    if !nix::unistd::geteuid().is_root() {
        bail!("run as root: apt-get install {}", packages.join(" "));
    }
    let arguments = ["install", "-y", "--no-install-recommends"];
    if !apt_get(&[&arguments[..], &packages].concat())? {
        bail!("apt-get could not install {} (an `apt-get update` may help)", packages.join(" "));
    }
    Ok(())
}

/// On a machine that is there for one run: package lists, which the kernels come by as well, and packages.
///
/// # Errors
/// If not root, or apt-get fails.
pub fn prepare() -> Result<()> {
    if !has_lists() && !apt_get(&["update", "-q"])? {
        bail!("`apt-get update` failed: guests need package lists");
    }
    install()
}

/// Whether this machine knows what the archive has.
fn has_lists() -> bool {
    let lists = std::fs::read_dir("/var/lib/apt/lists").into_iter().flatten().flatten();
    lists.into_iter().any(|entry| entry.file_name().to_string_lossy().contains("_Packages"))
}

fn apt_get(arguments: &[&str]) -> Result<bool> {
    let mut command = Command::new("apt-get");
    let status = command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").status();
    Ok(status.context("cannot start apt-get")?.success())
}
