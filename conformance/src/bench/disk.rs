//! A file system of its own in a file, mounted as the comparison wants it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Unmounted with the value.
#[derive(Debug)]
pub(super) struct Disk {
    mount: PathBuf,
    mounted: bool,
}

impl Disk {
    /// A new ext4 of so many bytes in the file `image`, which has holes, mounted at `mount` with `options` besides `loop`.
    pub(super) fn make(image: &Path, mount: &Path, bytes: u64, options: &str) -> Result<Self> {
        File::create(image).and_then(|file| file.set_len(bytes)).context("cannot make a disk")?;
        fs::create_dir(mount).with_context(|| format!("cannot make {}", mount.display()))?;
        run(
            Command::new("mkfs.ext4")
                .args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"])
                .arg(image),
            "e2fsprogs",
        )?;
        let options = if options.is_empty() { "loop".to_owned() } else { format!("loop,{options}") };
        run(Command::new("mount").arg("-o").arg(options).arg(image).arg(mount), "mount")?;
        Ok(Self { mount: mount.to_owned(), mounted: true })
    }

    pub(super) fn root(&self) -> &Path {
        &self.mount
    }

    /// Everything is in the image, and nobody uses it any more.
    pub(super) fn unmount(mut self) -> Result<()> {
        run(Command::new("umount").arg(&self.mount), "mount")?;
        self.mounted = false;
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if !self.mounted {
            return;
        }
        let unmounted = Command::new("umount").arg(&self.mount).stdin(Stdio::null()).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            // Whoever still has it open ends with the benchmark.
            drop(Command::new("umount").arg("-l").arg(&self.mount).stdin(Stdio::null()).status());
        }
    }
}

fn run(command: &mut Command, package: &str) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {program}: apt-get install {package}"))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        bail!("{program} failed: {words}; a disk in a file needs root and loop devices");
    }
    Ok(())
}
