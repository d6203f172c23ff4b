//! qemu without hardware help: slow, but the distribution's exact kernel.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::job::Job;
use super::process::Group;

/// How long the file servers may take to listen.
const START: Duration = Duration::from_secs(5);
/// Where the package puts the file server that serves the host's tree to a guest.
const VIRTIOFSD: &[&str] = &["/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd"];

/// The machine of `job`, and the file servers that must outlive it.
pub(super) fn command(job: &Job, folder: &Path, qemu: &Path) -> Result<(Command, Vec<Group>)> {
    let kernel = &job.kernel;
    let mut helpers = vec![file_server(folder, "hostroot", Path::new("/"), "always")?];
    // As for UML: the output pipe arrives as descriptor 2 and moves to 3.
    let mut command = Command::new("sh");
    command.args(["-c", "exec 3>&2 2>&1; exec \"$@\"", "guest"]);
    command.arg(qemu.join("usr/bin/qemu-system-x86_64"));
    for data in ["usr/share/qemu", "usr/share/seabios"] {
        command.arg("-L").arg(qemu.join(data));
    }
    command.args(["-accel", "tcg,thread=multi,tb-size=256", "-M", "q35,memory-backend=m,usb=off,vmport=off"]);
    // Without AVX there is less to emulate; a second processor would make it slower on two cores.
    command.args(["-cpu", "Nehalem", "-smp", "1", "-m", &format!("{}M", job.memory_mib)]);
    command.args(["-object", &format!("memory-backend-memfd,id=m,size={}M,share=on", job.memory_mib)]);
    command.args(["-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"]);
    attach(&mut command, folder, "hostroot");
    if let Some(share) = &job.share {
        helpers.push(file_server(folder, "share", &share.canonicalize()?, "auto")?);
        attach(&mut command, folder, "share");
    }
    command.args(["-chardev", "file,id=o,path=/dev/fd/3", "-device", "virtio-serial-pci"]);
    command.args(["-device", "virtconsole,chardev=o", "-device", "virtio-rng-pci"]);
    command.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(&kernel.initramfs);
    // Without hardware help on a busy machine a timer's tick may come too late for the kernel's look whether it ticks.
    let fixed = "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check tsc=nowatchdog net.ifnames=0";
    command.arg("-append").arg(format!("{fixed} {}", job.parameters(folder)?.join(" ")));
    if job.network {
        let tap = job.tap();
        command.args(["-netdev", &format!("tap,id=n,ifname={tap},script=no,downscript=no,vhost=off")]);
        command.args(["-device", &format!("virtio-net-pci,netdev=n,mac={},romfile=", job.mac())]);
    }
    Ok((command, helpers))
}

fn socket(folder: &Path, tag: &str) -> PathBuf {
    folder.join(format!("{tag}.sock"))
}

fn attach(command: &mut Command, folder: &Path, tag: &str) {
    command.args(["-chardev", &format!("socket,id={tag},path={}", socket(folder, tag).display())]);
    command.args(["-device", &format!("vhost-user-fs-pci,chardev={tag},tag={tag},queue-size=256")]);
}

/// The root may be cached for good, which saves most round trips; a shared folder must be coherent.
fn file_server(folder: &Path, tag: &str, source: &Path, cache: &str) -> Result<Group> {
    let program = VIRTIOFSD
        .iter()
        .map(Path::new)
        .find(|path| path.exists())
        .context("virtiofsd is missing: apt-get install qemu-system-common (or virtiofsd)")?;
    let socket = socket(folder, tag);
    let mut command = Command::new(program);
    command.arg(format!("--socket-path={}", socket.display()));
    if program.starts_with("/usr/libexec") {
        command.args([
            format!("--shared-dir={}", source.display()),
            format!("--cache={cache}"),
            "--sandbox=none".into(),
        ]);
    } else {
        command.args(["-o", &format!("source={}", source.display()), "-o", "sandbox=chroot"]);
        command.args(["-o", &format!("cache={cache}"), "-o", "no_posix_lock", "--thread-pool-size=0"]);
    }
    let log = File::create(folder.join(format!("{tag}.log")))?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let server = Group::spawn(command)?;
    let limit = Instant::now() + START;
    while !socket.exists() {
        if Instant::now() > limit {
            bail!("virtiofsd does not listen on {}", socket.display());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(server)
}
