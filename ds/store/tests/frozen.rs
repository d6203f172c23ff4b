//! A file system that was frozen (`fsfreeze`), in earnest: for root, where there are loop devices.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a test may fail, and says so; its tasks are tokio's"
)]

mod common;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use common::{access, bytes, key, open_on};
use sluice_env::Env;
use sluice_store::Stability;
use sluice_store::device::FileDevice;

const SOON: Duration = Duration::from_millis(100);

/// What came of a command, if there is such a one.
fn ran(program: &str, arguments: &[&Path]) -> Result<(), String> {
    let ran =
        Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    let said = String::from_utf8_lossy(&ran.stderr);
    if ran.status.success() { Ok(()) } else { Err(format!("{program}: {}", said.trim())) }
}

/// An ext4 of its own, mounted until this is dropped.
struct Mounted(PathBuf, tempfile::TempDir);

impl Mounted {
    fn new() -> Result<Self, String> {
        if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
            return Err("only root may mount and freeze a file system".to_owned());
        }
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (image, at) = (dir.path().join("image"), dir.path().join("mnt"));
        File::create(&image).unwrap().set_len(64 << 20).unwrap();
        std::fs::create_dir(&at).unwrap();
        ran("mkfs.ext4", &[Path::new("-q"), Path::new("-F"), &image])?;
        ran("mount", &[Path::new("-o"), Path::new("loop"), &image, &at])?;
        Ok(Self(at, dir))
    }

    fn freeze(&self) {
        ran("fsfreeze", &[Path::new("-f"), &self.0]).unwrap();
    }

    fn thaw(&self) -> Result<(), String> {
        ran("fsfreeze", &[Path::new("-u"), &self.0])
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // It may not be frozen.
        let _ = self.thaw();
        if let Err(why) = ran("umount", &[Path::new("-l"), &self.0]) {
            eprintln!("{} stays mounted: {why}", self.1.path().display());
        }
    }
}

/// In real time.
#[allow(clippy::disallowed_methods, reason = "in real time")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_file_system_answers_questions_and_its_witness_does_not_come_back() {
    let disk = match Mounted::new() {
        Ok(disk) => disk,
        Err(why) => {
            writeln!(std::io::stderr(), "NOT RUN: a frozen file system: {why}").unwrap();
            return;
        }
    };
    let device = Arc::new(FileDevice::new(disk.0.join("store")).unwrap());
    let store = open_on(&Env::system(), device).await.unwrap();
    store.write_at(&access(1), 0, bytes(1, 20_000), Stability::FileSync).await.unwrap();
    disk.freeze();
    let waits = Arc::clone(&store);
    let waits = tokio::spawn(async move {
        waits.write_at(&access(1), 0, bytes(2, 20_000), Stability::FileSync).await.unwrap()
    });
    let mut hangs = store.vitals(SOON).await;
    for _ in 0..200 {
        tokio::time::sleep(SOON).await;
        hangs = store.vitals(SOON).await;
        if hangs.unwritten > Duration::from_secs(2) {
            break;
        }
    }
    let waited = !waits.is_finished();
    let read = store.read_at(key(1), 0, 20_000).await;
    disk.thaw().unwrap();
    assert!(waited, "the file system is not frozen");
    assert!(hangs.unwritten > Duration::from_secs(2), "{hangs:?}");
    assert!(hangs.silent < Duration::from_secs(1) && hangs.capacity.is_some(), "{hangs:?}");
    assert_eq!(read.unwrap().data, bytes(1, 20_000));
    waits.await.unwrap();
    for _ in 0..50 {
        if store.vitals(SOON).await.unwritten.is_zero() {
            break;
        }
        tokio::time::sleep(SOON).await;
    }
    let well = store.vitals(SOON).await;
    assert!(well.unwritten.is_zero() && well.capacity.is_some(), "{well:?}");
    assert_eq!(store.read_at(key(1), 0, 20_000).await.unwrap().data, bytes(2, 20_000));
}
