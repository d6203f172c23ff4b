//! The Linux kernel's own NFS server, in a guest: `bench-ds --guest KERNEL` boots one and runs the benchmark there.

use std::env;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::exported;
use super::wire::File;
use crate::guest::catalogue::Kernel;
use crate::guest::fetch::Cache;
use crate::guest::job::Job;
use crate::guest::{host, lab};

/// Where the guest's script has put it.
const NFS_PORT: u16 = 2049;
const MOUNT_PORT: u16 = 20_048;

/// Names the directory that the guest's kernel exports.
const EXPORT: &str = "SLUICE_BENCH_EXPORT";

const SCRIPT: &str = include_str!("../../../guest/bench_ds.sh");

/// What the whole run of one guest may take.
const LIMIT: Duration = Duration::from_secs(3600);

pub(super) fn address() -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), NFS_PORT)
}

/// New files of the kernel's server.
pub(super) fn create(count: usize) -> Result<Vec<File>> {
    let Some(export) = env::var_os(EXPORT) else {
        bail!(
            "the kernel's own server is measured in a guest: --guest 7.2, or --guest uml7.2 for a quick look"
        );
    };
    exported::create(
        SocketAddr::new(Ipv4Addr::LOCALHOST.into(), MOUNT_PORT),
        address(),
        Path::new(&export),
        count,
    )
}

/// The threads of the server.
pub(super) fn threads() -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if fs::read_to_string(entry.path().join("comm")).is_ok_and(|name| name.trim() == "nfsd") {
            found.push(id);
        }
    }
    Ok(found)
}

/// The release of this kernel.
pub(super) fn release() -> Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned())
}

/// Runs `bench-ds` with these arguments in a guest, beside that kernel's server, both on one ext4.
pub(super) fn in_guest(kernel: Kernel, sluice: PathBuf, arguments: Vec<String>) -> Result<ExitCode> {
    host::check(&[kernel])?;
    if !lab::inside() {
        // The lab has no way out: what must be downloaded is downloaded before.
        Cache::open()?.ready(&[kernel])?;
        Cache::open()?.nfs_server()?;
        return lab::enter();
    }
    let cache = Cache::open()?;
    let share = tempfile::Builder::new().prefix("sluice-bench-guest-").tempdir()?;
    fs::write(share.path().join("nfs-server"), cache.nfs_server()?.display().to_string())?;
    let script = share.path().join("bench_ds.sh");
    fs::write(&script, SCRIPT)?;
    let program = env::current_exe()?.display().to_string();
    let outcome = Job::new(cache.kernel(kernel)?, 1, &script)
        .args(arguments)
        .env("BENCH", program)
        .env("SLUICE", sluice.display().to_string())
        .share(share.path())
        .memory(3072)
        .timeout(LIMIT)
        .run(&cache, Box::new(|bytes| drop(std::io::Write::write_all(&mut std::io::stdout(), bytes))))
        .with_context(|| format!("cannot run a guest of {kernel}"))?;
    if outcome.status.code() > 1 {
        bail!("the guest did not come to its end: {:?}\n{}", outcome.status, outcome.console_tail());
    }
    Ok(ExitCode::from(u8::try_from(outcome.status.code()).unwrap_or(1)))
}
