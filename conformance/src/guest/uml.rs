//! User-mode-linux: the kernel is a program of the host.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::job::Job;

/// The script's output leaves on descriptor 3, the kernel's console on 1. Only standard descriptors survive an exec
/// from here, so the output pipe arrives as 2 and the shell moves it.
const START: &str = r#"
exec 3>&2 2>&1
if [ -n "$GUEST_LIBC" ]; then
  for f in ld-linux-x86-64.so.2 libc.so.6; do mount -o bind "$GUEST_LIBC/$f" "/usr/lib/x86_64-linux-gnu/$f" || exit 1; done
fi
if [ -n "$GUEST_SHIM" ]; then export LD_PRELOAD="$GUEST_SHIM"; fi
unset GUEST_LIBC GUEST_SHIM
exec "$@"
"#;

/// The machine of `job`; `folder` is its own.
pub(super) fn command(job: &Job, folder: &Path) -> Result<Command> {
    let kernel = &job.kernel;
    // A newer C library is mounted over the host's for this one process. The shell must be static then: a dynamic
    // `mount` between the two mounts would meet a loader and a library that do not match.
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "busybox", "sh", "-c", START, "guest"]);
    command.env("GUEST_LIBC", kernel.libc.as_deref().unwrap_or(Path::new("")));
    command.env("GUEST_SHIM", kernel.shim.as_deref().unwrap_or(Path::new("")));
    // The guest's memory is an unlinked file there.
    command.env("TMPDIR", "/dev/shm");
    command.arg(&kernel.image).args([
        format!("mem={}M", job.memory_mib),
        format!("initrd={}", kernel.initramfs.display()),
        format!("uml_dir={}/", folder.to_str().context("a temporary folder's name is UTF-8")?),
    ]);
    command.args(["umid=g", "con=null", "con0=null,fd:1", "ssl0=null,fd:3", "quiet", "panic=-1"]);
    if job.network {
        command.arg(format!("vec0:transport=tap,ifname={},mac={},depth=128,gro=1", job.tap(), job.mac()));
    }
    if kernel.kernel.entry().seccomp {
        command.arg("seccomp=on");
    }
    command.args(job.parameters(folder)?);
    Ok(command)
}
