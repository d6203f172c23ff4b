//! Where rows come from: a metadata server at work, a store at rest, or a dump.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use sluice_env::Env;
use sluice_kv::{Database, KeyRange, KeyValue, KvError, Snapshot};
use sluice_namespace::transfer;
use sluice_xdr::control::{
    ADMIN_DUMPED, ADMIN_DUMPED_args, ADMIN_DUMPED_res, ADMIN_ROWS, ADMIN_ROWS_args, ADMIN_ROWS_res,
};

use super::dump::Reader;
use super::owner::Owner;
use crate::reach::Admin;
use crate::status::{self, text};
use crate::store::Place;
use crate::{cli, installation, out};

/// Bytes of rows read at a time from a store.
const PAGE: usize = 512 << 10;

/// A server steps over everything that was changed since the moment of a dump, and of the tables that change all the time that
/// is in the last few pages: hours of it may take minutes.
const PAGE_PATIENCE: Duration = Duration::from_secs(600);

/// A store that is away for so long is waited for (a cluster recovers in seconds), and asked as often.
const STORE_PATIENCE: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(500);

/// Rows of one moment, in key order.
pub(super) enum Source {
    Server {
        admin: Admin,
        next: ADMIN_ROWS_args,
        version: u64,
        first: Vec<KeyValue>,
        files: u64,
        /// When the moment was that the rows show.
        begun: Instant,
    },
    /// Nobody else has it open: it does not change, whatever is its newest version.
    Store {
        db: Database,
        snapshot: Snapshot,
        version: u64,
        range: KeyRange,
        // Dropped last: opening a store may make files in it.
        _owner: Option<Owner>,
    },
    Dump(Reader),
}

impl Source {
    pub(super) async fn open(reach: &cli::Reach, store: &cli::Store) -> Result<Self> {
        if reach.mds.is_some() {
            return Self::server(Admin::reach(reach).await?).await;
        }
        let dir = reach.data_dir.clone().map_or_else(installation::default_dir, Ok)?;
        let place = place_of(&dir, store)?;
        if !place.is_there() {
            place.may_be_looked_into()?;
            bail!("there is no metadata in {}: give --data-dir, or --mds and --key", dir.display());
        }
        let owner = Owner::of(place.dir())?;
        match place.open(&Env::system()).await {
            Ok(db) => Self::at_rest(db, owner).await,
            Err(error) if in_use(&error) => {
                let said =
                    format!("a metadata server is running with {}: give --mds and --key", place.name());
                if installation::Installation::load(&dir)?.is_none() {
                    bail!(said);
                }
                let admin = Admin::reach(reach).await.context(said)?;
                Self::server(admin).await
            }
            Err(other) => Err(other),
        }
    }

    /// A store that nobody serves.
    pub(super) async fn at_rest(db: Database, owner: Option<Owner>) -> Result<Self> {
        let (snapshot, range) = (db.snapshot().await?, transfer::everything());
        Ok(Self::Store { db, version: snapshot.version(), snapshot, range, _owner: owner })
    }

    pub(super) fn dump(file: &Path) -> Result<Self> {
        Reader::open(file).map(Self::Dump)
    }

    async fn server(admin: Admin) -> Result<Self> {
        let files = status::ask(&admin).await?.files;
        let next = ADMIN_ROWS_args { snapshot: 0, after: bytes::Bytes::new() };
        let begun = Instant::now();
        let mut source = Self::Server { admin, next, version: 0, first: Vec::new(), files, begun };
        // The moment is the one of the first page.
        let rows = source.next().await?;
        if let Self::Server { first, .. } = &mut source {
            *first = rows;
        }
        Ok(source)
    }

    /// Has the server remember that all of it is in a dump, if it came from one. That it does not know how, or that
    /// nobody was there to hear it, makes the dump no worse.
    pub(super) async fn tell_dumped(&self, rows: u64, bytes: u64, verified: bool) {
        let Self::Server { admin, begun, .. } = self else { return };
        let age_seconds = begun.elapsed().as_secs();
        let arguments = ADMIN_DUMPED_args { age_seconds, rows, bytes, verified };
        let why = match admin.call(ADMIN_DUMPED, &arguments).await {
            Ok(ADMIN_DUMPED_res::CTL_OK) => return,
            Ok(ADMIN_DUMPED_res::Default(_, reason)) => text(&reason),
            Err(error) => format!("{error:#}"),
        };
        out::aside(format_args!(
            "the dump is complete, but for `sluice doctor` and the metrics there is none: {why}"
        ));
    }

    /// The version of the store at the moment that the rows show.
    pub(super) fn version(&self) -> u64 {
        match self {
            Self::Server { version, .. } => *version,
            Self::Store { version, .. } => *version,
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
            Self::Server { admin, next, version, .. } => {
                match admin.call_within(PAGE_PATIENCE, ADMIN_ROWS, next).await? {
                    ADMIN_ROWS_res::CTL_OK(page) => {
                        *version = page.version;
                        let after = page.rows.last().map(|row| row.key.clone()).unwrap_or_default();
                        *next = ADMIN_ROWS_args { snapshot: page.snapshot, after };
                        Ok(page.rows.into_iter().map(|row| (row.key, row.value)).collect())
                    }
                    ADMIN_ROWS_res::Default(_, reason) => bail!("{}", text(&reason)),
                }
            }
            Self::Store { db, snapshot, range, .. } => {
                let rows = page(db, snapshot, range).await?;
                if let Some((last, _)) = rows.last() {
                    *range = transfer::after(last, range);
                }
                Ok(rows)
            }
            Self::Dump(reader) => reader.rows(),
        }
    }
}

/// The next rows of a store that does not change. A cluster that is away for a while is waited for: hours may have been read.
async fn page(db: &Database, snapshot: &mut Snapshot, range: &KeyRange) -> Result<Vec<KeyValue>> {
    let (clock, begun) = (Env::system().clock, tokio::time::Instant::now());
    loop {
        let failed = match snapshot.page(range, PAGE).await {
            Err(error) if error.is_retryable() => error,
            read => return Ok(read?),
        };
        if begun.elapsed() > STORE_PATIENCE {
            return Err(failed.into());
        }
        // One that is only too old is made anew at once.
        if failed != KvError::TooOld {
            clock.sleep(PAUSE).await;
        }
        match db.snapshot().await {
            Err(error) if !error.is_retryable() => return Err(error.into()),
            Err(_) => clock.sleep(PAUSE).await,
            Ok(now) => *snapshot = now,
        }
    }
}

/// Where the metadata of an installation, or of a metadata server by itself, lies.
pub(super) fn place_of(dir: &Path, given: &cli::Store) -> Result<Place> {
    Ok(match installation::Installation::load(dir)? {
        Some(installation) => Place::new(&dir.join("mds"), &installation.store.again(given)?),
        None => Place::new(dir, given),
    })
}

fn in_use(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(KvError::InUse { .. }))
}

/// The store of `place`, made if needed, for who is to be alone with it.
pub(super) async fn store_of(place: &Place) -> Result<Database> {
    match place.open(&Env::system()).await {
        Err(error) if in_use(&error) => {
            bail!("a metadata server is running with {}: stop it first", place.name())
        }
        opened => opened,
    }
}
