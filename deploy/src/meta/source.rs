//! Where rows come from: a metadata server at work, a store at rest, or a dump.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use sluice_env::Env;
use sluice_kv::{Database, EmbeddedOptions, KeyRange, KeyValue, KvError, Snapshot};
use sluice_namespace::transfer;
use sluice_xdr::control::{ADMIN_ROWS, ADMIN_ROWS_args, ADMIN_ROWS_res};

use super::dump::Reader;
use crate::reach::Admin;
use crate::status::{self, text};
use crate::{cli, installation};

/// Bytes of rows read at a time from a store.
const PAGE: usize = 512 << 10;

/// Rows of one moment, in key order.
pub(super) enum Source {
    Server { admin: Admin, next: ADMIN_ROWS_args, version: u64, first: Vec<KeyValue>, files: u64 },
    Store { snapshot: Snapshot, range: KeyRange },
    Dump(Reader),
}

impl Source {
    pub(super) async fn open(reach: &cli::Reach) -> Result<Self> {
        if reach.mds.is_some() {
            return Self::server(Admin::reach(reach).await?).await;
        }
        let dir = reach.data_dir.clone().map_or_else(installation::default_dir, Ok)?;
        let store = metadata_of(&dir)?;
        if !store.is_dir() {
            bail!("there is no metadata in {}: give --data-dir, or --mds and --key", dir.display());
        }
        match open_store(&store) {
            Ok(db) => Ok(Self::Store { snapshot: db.snapshot().await?, range: transfer::everything() }),
            Err(KvError::InUse { .. }) => {
                let admin = Admin::reach(reach).await.with_context(|| {
                    format!("a metadata server is running in {}: give --mds and --key", dir.display())
                })?;
                Self::server(admin).await
            }
            Err(other) => Err(other.into()),
        }
    }

    pub(super) fn dump(file: &Path) -> Result<Self> {
        Reader::open(file).map(Self::Dump)
    }

    async fn server(admin: Admin) -> Result<Self> {
        let files = status::ask(&admin).await?.files;
        let next = ADMIN_ROWS_args { snapshot: 0, after: bytes::Bytes::new() };
        let mut source = Self::Server { admin, next, version: 0, first: Vec::new(), files };
        // The moment is the one of the first page.
        let rows = source.next().await?;
        if let Self::Server { first, .. } = &mut source {
            *first = rows;
        }
        Ok(source)
    }

    /// The version of the store at the moment that the rows show.
    pub(super) fn version(&self) -> u64 {
        match self {
            Self::Server { version, .. } => *version,
            Self::Store { snapshot, .. } => snapshot.version(),
            Self::Dump(reader) => reader.heading.version,
        }
    }

    /// How much there is to read: of a dump bytes; of a server, about so many inodes and entries.
    pub(super) fn expected(&self) -> Option<u64> {
        match self {
            Self::Server { files, .. } => Some(files.saturating_mul(2)),
            Self::Store { .. } => None,
            Self::Dump(reader) => Some(reader.length),
        }
    }

    /// How much of [`Self::expected`] is done when `counted` inodes and entries were seen.
    pub(super) fn done(&self, counted: u64) -> u64 {
        match self {
            Self::Dump(reader) => reader.position,
            _ => counted,
        }
    }

    /// The next rows; none: that was all.
    pub(super) async fn next(&mut self) -> Result<Vec<KeyValue>> {
        match self {
            Self::Server { first, .. } if !first.is_empty() => Ok(std::mem::take(first)),
            Self::Server { admin, next, version, .. } => match admin.call(ADMIN_ROWS, next).await? {
                ADMIN_ROWS_res::CTL_OK(page) => {
                    *version = page.version;
                    let after = page.rows.last().map(|row| row.key.clone()).unwrap_or_default();
                    *next = ADMIN_ROWS_args { snapshot: page.snapshot, after };
                    Ok(page.rows.into_iter().map(|row| (row.key, row.value)).collect())
                }
                ADMIN_ROWS_res::Default(_, reason) => bail!("{}", text(&reason)),
            },
            Self::Store { snapshot, range } => {
                let rows = snapshot.page(range, PAGE).await?;
                if let Some((last, _)) = rows.last() {
                    *range = transfer::after(last, range);
                }
                Ok(rows)
            }
            Self::Dump(reader) => reader.rows(),
        }
    }
}

/// Where the metadata of an installation, or of a metadata server by itself, lies.
pub(super) fn metadata_of(dir: &Path) -> Result<PathBuf> {
    let installed = installation::Installation::load(dir)?.is_some();
    Ok(if installed { dir.join("mds/metadata") } else { dir.join("metadata") })
}

pub(super) fn open_store(store: &Path) -> Result<Database, KvError> {
    Database::open_embedded(Env::system(), store, EmbeddedOptions::default())
}

/// An empty store in a directory that is made if needed.
pub(super) fn new_store(store: &Path) -> Result<Database> {
    fs::create_dir_all(store).with_context(|| format!("cannot make {}", store.display()))?;
    match open_store(store) {
        Err(KvError::InUse { .. }) => {
            bail!("a metadata server is running in {}: stop it first", store.display())
        }
        opened => Ok(opened?),
    }
}
