//! A file system of its own in a file, mounted as the comparison wants it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

/// Of the file, which has holes.
const SIZE: u64 = 16 << 30;

/// Unmounted and removed with the value.
#[derive(Debug)]
pub(super) struct Disk {
    home: TempDir,
}

impl Disk {
    /// ext4, mounted with `options` besides `loop`.
    pub(super) fn mount(below: &Path, options: &str) -> Result<Self> {
        let home = tempfile::Builder::new().prefix("sluice-bench-disk-").tempdir_in(below)?;
        let (image, mount) = (home.path().join("image"), home.path().join("mount"));
        File::create(&image)?.set_len(SIZE)?;
        fs::create_dir(&mount)?;
        run(
            Command::new("mkfs.ext4").args(["-q", "-F", "-E", "lazy_itable_init=0"]).arg(&image),
            "e2fsprogs",
        )?;
        let options = if options.is_empty() { "loop".to_owned() } else { format!("loop,{options}") };
        run(Command::new("mount").arg("-o").arg(options).arg(&image).arg(&mount), "mount")?;
        Ok(Self { home })
    }

    pub(super) fn root(&self) -> PathBuf {
        self.home.path().join("mount")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.root()).stdin(Stdio::null()).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            // Whoever still has it open ends with the benchmark.
            drop(Command::new("umount").arg("-l").arg(self.root()).stdin(Stdio::null()).status());
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
        bail!(
            "{program} failed: {words}; the comparison needs root and loop devices, or --peers without ganesha"
        );
    }
    Ok(())
}
