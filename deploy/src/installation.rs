//! What `up` remembers in its data directory: DIR/installation.json, DIR/cluster.key, DIR/mds, DIR/ds1 ...

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use sluice_env::Env;
use sluice_rpc::ClusterKey;

use crate::cli::{Store, StoreKind};

/// The newest format that is read.
const FORMAT: u32 = 2;
/// What an installation with the embedded store is written as: earlier releases understand it.
const EMBEDDED: u32 = 1;

/// The recorded shape of an installation made by `up`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Installation {
    format: u32,
    pub(crate) data_servers: u16,
    /// Of these, how many have registered at least once: their stores exist.
    pub(crate) started: u16,
    /// Where the metadata server was last started: where `status` looks.
    pub(crate) mds: SocketAddr,
    /// Where the metadata is.
    #[serde(default)]
    pub(crate) store: Store,
}

/// Where an installation is kept unless somebody says otherwise.
pub(crate) fn default_dir() -> Result<PathBuf> {
    if nix::unistd::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/sluice"));
    }
    if let Some(data) = std::env::var_os("XDG_DATA_HOME").filter(|dir| !dir.is_empty()) {
        return Ok(PathBuf::from(data).join("sluice"));
    }
    let home = std::env::var_os("HOME").context("no HOME: give --data-dir")?;
    Ok(PathBuf::from(home).join(".local/share/sluice"))
}

pub(crate) fn key_file(dir: &Path) -> PathBuf {
    dir.join("cluster.key")
}

impl Installation {
    /// What `dir` holds, if it is an installation.
    pub(crate) fn load(dir: &Path) -> Result<Option<Self>> {
        let file = dir.join("installation.json");
        let text = match fs::read(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => bail!("cannot read {}: {error}", file.display()),
        };
        let value: serde_json::Value =
            serde_json::from_slice(&text).with_context(|| format!("{} is damaged", file.display()))?;
        if value
            .get("format")
            .and_then(serde_json::Value::as_u64)
            .is_some_and(|format| format > FORMAT.into())
        {
            bail!("{} was written by a newer sluice: upgrade this one", dir.display());
        }
        serde_json::from_value(value).with_context(|| format!("{} is damaged", file.display())).map(Some)
    }

    /// The installation in `dir`, or a new one, with `wanted` data servers and its metadata in `store`. Nothing is written:
    /// who finds that it cannot start leaves what there is as it was.
    pub(crate) fn plan(dir: &Path, wanted: Option<u16>, mds: SocketAddr, store: &Store) -> Result<Self> {
        let found = Self::load(dir)?;
        let store = match &found {
            None => {
                refuse_foreign(dir)?;
                store.clone().absolute()?
            }
            Some(found) => {
                found.store.again(&store.clone().absolute()?).with_context(|| dir.display().to_string())?
            }
        };
        store.fits(false)?;
        let started = found.as_ref().map_or(0, |found| found.started);
        let had = found.as_ref().map(|found| found.data_servers);
        let with_data = started.max(made(dir, had.unwrap_or_default()));
        let data_servers = match wanted {
            Some(wanted) if wanted < with_data => bail!(
                "{} has {with_data} data servers and their data: --data-servers {wanted} would leave some out",
                dir.display()
            ),
            wanted => wanted.or(had).unwrap_or(4),
        };
        let format = if store.kind() == StoreKind::Embedded { EMBEDDED } else { FORMAT };
        Ok(Self { format, data_servers, started, mds, store })
    }

    /// Makes or changes what there is into this.
    pub(crate) fn begin(&self, dir: &Path) -> Result<()> {
        if Self::load(dir)?.is_none() {
            begin(dir)?;
        }
        self.save(dir)
    }

    /// Every data server has registered: from now on none may make a new store.
    pub(crate) fn all_started(&self, dir: &Path) -> Result<()> {
        Self { started: self.data_servers, ..self.clone() }.save(dir)
    }

    fn save(&self, dir: &Path) -> Result<()> {
        let (file, fresh) = (dir.join("installation.json"), dir.join("installation.json.new"));
        let failed = || format!("cannot write {}", fresh.display());
        let mut out = fs::File::create(&fresh).with_context(failed)?;
        out.write_all(&serde_json::to_vec_pretty(self)?).with_context(failed)?;
        out.sync_all().with_context(failed)?;
        fs::rename(&fresh, &file).with_context(|| format!("cannot replace {}", file.display()))?;
        fs::File::open(dir)?.sync_all().with_context(|| format!("cannot sync {}", dir.display()))
    }
}

/// Held for as long as one `up` has the installation in `dir`, if that is there.
pub(crate) fn hold(dir: &Path) -> Result<Option<fs::File>> {
    let Ok(held) = fs::File::open(dir) else { return Ok(None) };
    match held.try_lock() {
        Err(fs::TryLockError::WouldBlock) => bail!(
            "another `sluice up` runs with {}: stop it, or choose another --data-dir and --port",
            dir.display()
        ),
        // Not every file system locks directories. Then ports and stores keep two apart.
        _ => Ok(Some(held)),
    }
}

/// The last of `had` data servers that has made its store: it may have registered, and have data.
fn made(dir: &Path, had: u16) -> u16 {
    (1..=had).rev().find(|number| dir.join(format!("ds{number}/store")).exists()).unwrap_or_default()
}

/// Makes a directory that was absent or empty into an installation.
fn begin(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir)
        .with_context(|| format!("cannot make {}: choose a writable --data-dir", dir.display()))?;
    refuse_foreign(dir)?;
    let key = key_file(dir);
    if !key.exists() {
        ClusterKey::generate(&Env::system()).write(&key)?;
    }
    Ok(())
}

fn refuse_foreign(dir: &Path) -> Result<()> {
    let mut entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        read => read.with_context(|| format!("cannot read {}", dir.display()))?,
    };
    let foreign = entries.any(|entry| {
        // What an interrupted first start leaves behind is ours.
        entry.is_ok_and(|entry| {
            entry.file_name() != "cluster.key" && entry.file_name() != "installation.json.new"
        })
    });
    if foreign {
        bail!("{} is not empty and is not a Sluice installation: choose another --data-dir", dir.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(dir: &Path, wanted: Option<u16>) -> Result<Installation, String> {
        let mds = "127.0.0.1:2049".parse().unwrap();
        Installation::plan(dir, wanted, mds, &Store::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_is_written_before_it_is_begun() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("new");
        let planned = plan(&dir, Some(3)).unwrap();
        assert!(!dir.exists() && hold(&dir).unwrap().is_none());
        planned.begin(&dir).unwrap();
        let written = fs::read(dir.join("installation.json")).unwrap();
        assert_eq!(plan(&dir, Some(9)).unwrap().data_servers, 9);
        assert_eq!(fs::read(dir.join("installation.json")).unwrap(), written);
        assert!(plan(home.path(), None).unwrap_err().contains("is not a Sluice installation"));
    }

    #[test]
    fn it_shrinks_to_what_has_data_and_no_further() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("new");
        plan(&dir, Some(2)).unwrap().begin(&dir).unwrap();
        plan(&dir, Some(2)).unwrap().all_started(&dir).unwrap();
        // A start that failed, for want of ports, say.
        plan(&dir, Some(8)).unwrap().begin(&dir).unwrap();
        assert_eq!(plan(&dir, Some(2)).unwrap().data_servers, 2);
        let less = plan(&dir, Some(1)).unwrap_err();
        assert!(less.contains("has 2 data servers and their data"), "{less}");
        // One of those came as far as its store.
        fs::create_dir_all(dir.join("ds3/store")).unwrap();
        assert!(plan(&dir, Some(2)).is_err());
        assert_eq!(plan(&dir, Some(3)).unwrap().data_servers, 3);
    }

    #[test]
    fn one_at_a_time_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let held = hold(dir.path()).unwrap();
        let second = hold(dir.path()).unwrap_err().to_string();
        assert!(second.starts_with("another `sluice up` runs with /"), "{second}");
        drop(held);
        hold(dir.path()).unwrap();
    }
}
