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

    /// Opens the installation in `dir`, or begins one, with `wanted` data servers and its metadata in `store`.
    pub(crate) fn open(dir: &Path, wanted: Option<u16>, mds: SocketAddr, store: &Store) -> Result<Self> {
        let found = Self::load(dir)?;
        let store = match &found {
            None => store.clone().absolute()?,
            Some(found) => {
                found.store.again(&store.clone().absolute()?).with_context(|| dir.display().to_string())?
            }
        };
        store.fits(false)?;
        if found.is_none() {
            begin(dir)?;
        }
        let started = found.as_ref().map_or(0, |found| found.started);
        let had = found.as_ref().map(|found| found.data_servers);
        let data_servers = match (had, wanted) {
            (Some(had), Some(wanted)) if wanted < had => bail!(
                "{} has {had} data servers and their data: --data-servers {wanted} would leave some out",
                dir.display()
            ),
            (had, wanted) => wanted.or(had).unwrap_or(4),
        };
        let format = if store.kind() == StoreKind::Embedded { EMBEDDED } else { FORMAT };
        let installation = Self { format, data_servers, started, mds, store };
        installation.save(dir)?;
        Ok(installation)
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

/// Makes a directory that was absent or empty into an installation.
fn begin(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir)
        .with_context(|| format!("cannot make {}: choose a writable --data-dir", dir.display()))?;
    let mut entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let foreign = entries.any(|entry| {
        // What an interrupted first start leaves behind is ours.
        entry.is_ok_and(|entry| {
            entry.file_name() != "cluster.key" && entry.file_name() != "installation.json.new"
        })
    });
    if foreign {
        bail!("{} is not empty and is not a Sluice installation: choose another --data-dir", dir.display());
    }
    let key = key_file(dir);
    if !key.exists() {
        ClusterKey::generate(&Env::system()).write(&key)?;
    }
    Ok(())
}
