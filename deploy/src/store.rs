//! Where the metadata is, and opening it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use sluice_env::Env;
use sluice_kv::{Database, EmbeddedOptions, FoundationOptions, KvError, Room, RunLimits, Tls};
use sluice_namespace::{FsError, Namespace};
use tokio::sync::Notify;

use crate::cli::{Store, StoreKind};
use crate::durability;
use crate::status::size;

/// Between two attempts to reach a cluster, each of which takes some seconds by itself.
const PAUSE: Duration = Duration::from_secs(1);

/// What a store on this machine needs of its device to go on: the next table that it writes, or the next journal.
const LEAST: u64 = 64 << 20;
/// A store that was just opened may give room back, for so long, and is looked at as often.
const SETTLES: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(250);

/// What may be in a data directory before there is metadata.
const OURS: [&str; 4] = ["cluster.key", "identity", "metadata", "lost+found"];

/// What a file system in a FoundationDB cluster is called unless somebody says otherwise.
const NAME: &str = "sluice";

const UNUSABLE: &str = "cannot use FoundationDB (--store foundationdb)";

impl Store {
    pub(crate) fn kind(&self) -> StoreKind {
        self.store.unwrap_or_default()
    }

    fn name(&self) -> &str {
        self.fdb_name.as_deref().unwrap_or(NAME)
    }

    /// Refuses options that would do nothing with metadata in the data directory: whoever gives them takes it for another.
    pub(crate) fn fits(&self, standby: bool) -> Result<()> {
        if self.kind() == StoreKind::Foundationdb {
            return Ok(());
        }
        if standby {
            bail!(
                "--standby is for metadata in FoundationDB (--store foundationdb): with metadata in the data directory a second server is another file system, and takes over nothing"
            );
        }
        let given = [
            ("--fdb-cluster-file", self.fdb_cluster_file.is_some()),
            ("--fdb-library", self.fdb_library.is_some()),
            ("--fdb-name", self.fdb_name.is_some()),
            ("--fdb-tls-certificate", self.fdb_tls_certificate.is_some()),
            ("--fdb-tls-key", self.fdb_tls_key.is_some()),
            ("--fdb-tls-ca", self.fdb_tls_ca.is_some()),
            ("--fdb-tls-verify-peers", self.fdb_tls_verify_peers.is_some()),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => bail!(
                "{option} does nothing with metadata in the data directory: say --store foundationdb (key `store`), or leave it out"
            ),
            None => Ok(()),
        }
    }

    /// The way to a cluster, if there is one.
    fn foundation(&self) -> FoundationOptions {
        FoundationOptions {
            identity: None,
            cluster_file: self.fdb_cluster_file.clone(),
            library: self.fdb_library.clone(),
            name: self.name().to_owned(),
            tls: Tls {
                certificate: self.fdb_tls_certificate.clone(),
                key: self.fdb_tls_key.clone(),
                ca: self.fdb_tls_ca.clone(),
                verify_peers: self.fdb_tls_verify_peers.clone(),
            },
            standby: None,
            still: false,
        }
    }

    /// Refuses certificates that the cluster could not be shown, as far as that can be told without it.
    pub(crate) fn check(&self) -> Result<()> {
        match self.kind() {
            StoreKind::Embedded => Ok(()),
            StoreKind::Foundationdb => self.foundation().check(&Env::system()).context(UNUSABLE),
        }
    }

    /// The same wherever it is read: it is remembered.
    pub(crate) fn absolute(mut self) -> Result<Self> {
        let files = [
            &mut self.fdb_cluster_file,
            &mut self.fdb_tls_certificate,
            &mut self.fdb_tls_key,
            &mut self.fdb_tls_ca,
        ];
        for file in files.into_iter().flatten() {
            *file = std::path::absolute(&file).with_context(|| file.display().to_string())?;
        }
        // Without a slash it is looked for where the system keeps libraries.
        if let Some(library) = self.fdb_library.as_mut().filter(|library| library.components().count() > 1) {
            *library = std::path::absolute(&library).with_context(|| library.display().to_string())?;
        }
        Ok(self)
    }

    /// What is remembered, with what is `given` now. How a cluster is reached may change; which file system it is may
    /// not: the data servers have its data.
    pub(crate) fn again(&self, given: &Self) -> Result<Self> {
        if given.store.is_some_and(|kind| kind != self.kind()) {
            bail!("its metadata is {}: leave --store out", self.described());
        }
        if given.fdb_name.is_some() && given.name() != self.name() {
            bail!("its metadata is {}: leave --fdb-name out", self.described());
        }
        Self { store: self.store, ..given.clone() }.fits(false)?;
        let given = given.clone();
        Ok(Self {
            store: self.store,
            fdb_cluster_file: given.fdb_cluster_file.or_else(|| self.fdb_cluster_file.clone()),
            fdb_library: given.fdb_library.or_else(|| self.fdb_library.clone()),
            fdb_name: self.fdb_name.clone(),
            fdb_tls_certificate: given.fdb_tls_certificate.or_else(|| self.fdb_tls_certificate.clone()),
            fdb_tls_key: given.fdb_tls_key.or_else(|| self.fdb_tls_key.clone()),
            fdb_tls_ca: given.fdb_tls_ca.or_else(|| self.fdb_tls_ca.clone()),
            fdb_tls_verify_peers: given.fdb_tls_verify_peers.or_else(|| self.fdb_tls_verify_peers.clone()),
        })
    }

    fn described(&self) -> String {
        match self.kind() {
            StoreKind::Embedded => "in the data directory".to_owned(),
            StoreKind::Foundationdb => format!("in FoundationDB as {}", self.name()),
        }
    }

    /// The options of `sluice mds` that say the same.
    pub(crate) fn arguments(&self) -> Result<Vec<String>> {
        if self.kind() == StoreKind::Embedded {
            return Ok(Vec::new());
        }
        let mut arguments =
            ["--store", "foundationdb", "--fdb-name", self.name()].map(str::to_owned).to_vec();
        let files = [
            ("--fdb-cluster-file", &self.fdb_cluster_file),
            ("--fdb-library", &self.fdb_library),
            ("--fdb-tls-certificate", &self.fdb_tls_certificate),
            ("--fdb-tls-key", &self.fdb_tls_key),
            ("--fdb-tls-ca", &self.fdb_tls_ca),
        ];
        for (option, file) in files {
            if let Some(file) = file {
                let text = file.to_str().with_context(|| format!("{} is not UTF-8", file.display()))?;
                arguments.extend([option.to_owned(), text.to_owned()]);
            }
        }
        if let Some(pattern) = &self.fdb_tls_verify_peers {
            arguments.extend(["--fdb-tls-verify-peers".to_owned(), pattern.clone()]);
        }
        Ok(arguments)
    }
}

/// A store and where it is, for those who open it.
pub(crate) struct Place {
    /// The metadata server's data directory.
    dir: PathBuf,
    options: Store,
    standby: Option<Arc<Notify>>,
    /// Bytes of memory for what is read and written, where that is up to us.
    cache: Option<u64>,
}

impl Place {
    pub(crate) fn new(dir: &Path, options: &Store) -> Self {
        Self { dir: dir.to_owned(), options: options.clone(), standby: None, cache: None }
    }

    /// To wait while another server has it, and to say so.
    pub(crate) fn standby(self, standby: Option<Arc<Notify>>) -> Self {
        Self { standby, ..self }
    }

    /// How much memory is for what is read and written; without it, little.
    pub(crate) fn cache(self, bytes: u64) -> Self {
        Self { cache: Some(bytes), ..self }
    }

    /// How messages call it.
    pub(crate) fn name(&self) -> String {
        match self.options.kind() {
            StoreKind::Embedded => self.metadata().display().to_string(),
            StoreKind::Foundationdb => format!("foundationdb:{}", self.options.name()),
        }
    }

    /// The metadata server's data directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    fn metadata(&self) -> PathBuf {
        self.dir.join("metadata")
    }

    /// Whether there may be something in it: a store that is opened is made.
    pub(crate) fn is_there(&self) -> bool {
        self.options.kind() == StoreKind::Foundationdb || Database::is_embedded(&self.metadata())
    }

    /// What is somebody else's looks as if nothing were there.
    ///
    /// # Errors
    /// That whoever asks may not look.
    pub(crate) fn may_be_looked_into(&self) -> Result<()> {
        match std::fs::read_dir(self.metadata()) {
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Err(error)
                .with_context(|| format!("cannot look into {}: do it as its owner", self.dir.display())),
            _ => Ok(()),
        }
    }

    /// Whether the versions of the store go on from those that its rows name, wherever they were brought from.
    pub(crate) fn has_versions_of_its_own(&self) -> bool {
        self.options.kind() == StoreKind::Embedded
    }

    fn missing(&self) -> String {
        let (place, is_it) = match self.options.kind() {
            StoreKind::Embedded => (self.name(), "is the device mounted?"),
            StoreKind::Foundationdb => (self.name(), "is it the right --fdb-name and cluster file?"),
        };
        format!(
            "{place}: the metadata is not there: {is_it} (if it is lost: sluice meta load; a new file system is made without --existing, or by sluice up in another --data-dir)"
        )
    }

    /// Whether a file system is in the opened store. Refuses to begin one where there was one (`existing`).
    pub(crate) async fn has_file_system(&self, db: &Database, existing: bool) -> Result<bool> {
        let found = db.run_read::<_, FsError, _>(RunLimits::default(), |txn| {
            Box::pin(async move { Ok(Namespace::load(&txn).await?.is_some()) })
        });
        let found = found.await?;
        if existing && !found {
            bail!(self.missing());
        }
        Ok(found)
    }

    /// Refuses to begin a file system where there was one (`existing`), and among things that are not ours (but for `own`,
    /// which this server was told of). True if a file system is there.
    pub(crate) fn check_found(&self, existing: bool, own: &[Option<&Path>]) -> Result<bool> {
        if self.is_there() {
            return Ok(true);
        }
        if existing {
            bail!(self.missing());
        }
        if let Some(name) = self.foreign(own)? {
            bail!(
                "{} has no metadata and is not empty ({name}): give the right --data-dir, or an empty one; after a sluice meta load that failed, load a good dump first",
                self.dir.display()
            );
        }
        Ok(false)
    }

    /// The name of something in the data directory that no metadata server has there.
    fn foreign(&self, own: &[Option<&Path>]) -> Result<Option<String>> {
        let cannot = || format!("cannot look into {}", self.dir.display());
        let entries = match std::fs::read_dir(&self.dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            read => read.with_context(cannot)?,
        };
        for entry in entries {
            let entry = entry.with_context(cannot)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_told = own.iter().flatten().any(|file| is_same(file, &entry.path()));
            if !OURS.contains(&&name[..]) && !name.starts_with('.') && !is_told {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Opens it, once.
    pub(crate) async fn open(&self, env: &Env) -> Result<Database> {
        self.options.fits(self.standby.is_some())?;
        match self.options.kind() {
            StoreKind::Embedded => embedded(env, &self.metadata(), self.cache),
            StoreKind::Foundationdb => {
                let opened = Database::open_foundation(env.clone(), &self.foundation()?).await;
                opened.context(UNUSABLE)
            }
        }
    }

    /// Opens it, waiting for a cluster that is away.
    pub(crate) async fn await_open(&self, env: &Env) -> Result<Database> {
        loop {
            match self.open(env).await {
                Err(error) if matches!(error.downcast_ref(), Some(KvError::Unavailable { .. })) => {
                    let why = error.root_cause();
                    tracing::warn!(%why, "the FoundationDB cluster does not answer; trying again");
                    env.clock.sleep(PAUSE).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Refuses a store that would fail soon after its start, before a start has cost anything: each is a takeover, after
    /// which clients reclaim what they hold. A cluster looks after its devices itself.
    pub(crate) async fn check_room(&self, env: &Env, db: &Database) -> Result<()> {
        if self.options.kind() == StoreKind::Foundationdb {
            return Ok(());
        }
        // What fills the device may be its own: journals that were full when it ended go once they are in tables.
        let begun = env.clock.now();
        loop {
            match enough(&self.name(), db.room()) {
                Err(_) if env.clock.now().since(begun) < SETTLES => env.clock.sleep(LOOK).await,
                found => return found,
            }
        }
    }

    fn foundation(&self) -> Result<FoundationOptions> {
        let dir = &self.dir;
        std::fs::create_dir_all(dir)
            .with_context(|| format!("cannot make {}: choose a writable --data-dir", dir.display()))?;
        let options = self.options.foundation();
        Ok(FoundationOptions {
            identity: Some(dir.join("identity")),
            standby: self.standby.clone(),
            ..options
        })
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    one.canonicalize().is_ok_and(|one| other.canonicalize().is_ok_and(|other| one == other))
}

fn enough(name: &str, device: Option<Room>) -> Result<()> {
    match device {
        Some(Room { free, .. }) if free < LEAST => bail!(
            "{name}: {} are free on its device, and a metadata server needs {}: free space there",
            size(free),
            size(LEAST)
        ),
        _ => Ok(()),
    }
}

fn embedded(env: &Env, dir: &Path, cache: Option<u64>) -> Result<Database> {
    // The store makes its own directory, which nobody else may read.
    let above = dir.parent().unwrap_or(dir);
    std::fs::create_dir_all(above)
        .with_context(|| format!("cannot make {}: choose a writable --data-dir", above.display()))?;
    let defaults = EmbeddedOptions::default();
    let defaults = cache.into_iter().fold(defaults, EmbeddedOptions::with_memory);
    let options = EmbeddedOptions {
        large: Some(sluice_namespace::large_rows()),
        unsafe_no_sync: durability::unsafe_no_sync("mds"),
        ..defaults
    };
    Ok(Database::open_embedded(env.clone(), dir, options)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_cluster(name: &str) -> Store {
        Store {
            store: Some(StoreKind::Foundationdb),
            fdb_name: Some(name.to_owned()),
            fdb_cluster_file: Some("/etc/a.cluster".into()),
            ..Store::default()
        }
    }

    #[test]
    fn what_is_remembered_is_passed_on() {
        assert!(Store::default().arguments().unwrap().is_empty());
        let arguments = in_cluster("fs").arguments().unwrap();
        let wanted = "--store foundationdb --fdb-name fs --fdb-cluster-file /etc/a.cluster";
        assert_eq!(arguments.join(" "), wanted);
    }

    #[test]
    fn options_of_a_cluster_are_refused_without_one() {
        let without = Store { store: None, ..in_cluster("fs") };
        let said = without.fits(false).unwrap_err().to_string();
        assert!(said.starts_with("--fdb-cluster-file does nothing"), "{said}");
        let said = Store::default().fits(true).unwrap_err().to_string();
        assert!(said.starts_with("--standby is for metadata in FoundationDB"), "{said}");
        assert!(Store::default().again(&without).is_err(), "an installation in a data directory");
        in_cluster("fs").fits(true).unwrap();
        in_cluster("fs").again(&without).unwrap();
        Store::default().fits(false).unwrap();
    }

    /// Two trees; one that was made with one stays so, whoever opens it (`mds/kv/tests/embedded.rs`).
    #[tokio::test]
    async fn a_new_store_has_small_files_in_a_tree_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::new(dir.path(), &Store::default());
        place.open(&Env::system()).await.unwrap().close().await.unwrap();
        let format = std::fs::read_to_string(place.metadata().join("FORMAT")).unwrap();
        assert_eq!(format, "sluice-kv embedded 2\n");
    }

    /// It holds the key that opens every data file.
    #[tokio::test]
    async fn nobody_but_its_owner_reads_a_store() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let place = Place::new(&dir.path().join("mds"), &Store::default());
        let mode = || std::fs::metadata(place.metadata()).unwrap().permissions().mode() & 0o777;
        place.open(&Env::system()).await.unwrap().close().await.unwrap();
        assert_eq!(mode(), 0o700);
        // As releases of old left it.
        std::fs::set_permissions(place.metadata(), PermissionsExt::from_mode(0o755)).unwrap();
        place.open(&Env::system()).await.unwrap().close().await.unwrap();
        assert_eq!(mode(), 0o700);
    }

    #[tokio::test]
    async fn a_file_system_is_not_made_where_one_was_or_where_somebody_elses_things_are() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::new(dir.path(), &Store::default());
        let refused = |existing| place.check_found(existing, &[]).unwrap_err().to_string();
        assert!(refused(true).contains("is the device mounted?"), "{}", refused(true));
        // What is looked at before a first start, and what a file system of its own has.
        std::fs::write(dir.path().join("cluster.key"), "").unwrap();
        std::fs::create_dir(dir.path().join("lost+found")).unwrap();
        std::fs::create_dir(place.metadata()).unwrap();
        assert!(!place.check_found(false, &[]).unwrap());
        assert!(refused(true).contains("is the device mounted?"), "an empty directory is no store");
        let photos = dir.path().join("photos");
        std::fs::write(&photos, "").unwrap();
        assert!(refused(false).contains("not empty (photos)"), "{}", refused(false));
        assert!(!place.check_found(false, &[None, Some(&photos)]).unwrap());
        place.open(&Env::system()).await.unwrap().close().await.unwrap();
        for existing in [true, false] {
            assert!(place.check_found(existing, &[]).unwrap());
        }
    }

    /// As after a first start that ended too early, or under a name that was mistyped.
    #[tokio::test]
    async fn a_store_without_a_file_system_is_none() {
        let (env, dir) = (Env::system(), tempfile::tempdir().unwrap());
        let place = Place::new(dir.path(), &Store::default());
        let db = place.open(&env).await.unwrap();
        assert!(!place.has_file_system(&db, false).await.unwrap());
        let refused = place.has_file_system(&db, true).await.unwrap_err().to_string();
        assert!(refused.contains("is the device mounted?"), "{refused}");
        let transport = Arc::new(sluice_rpc::Tcp);
        sluice_mds::Mds::start(env, transport, db.clone(), sluice_mds::Config::default()).await.unwrap();
        assert!(place.has_file_system(&db, true).await.unwrap());
        let foundation = Place::new(dir.path(), &in_cluster("typo"));
        assert!(foundation.missing().contains("right --fdb-name"), "{}", foundation.missing());
    }

    #[test]
    fn a_server_does_not_begin_on_a_device_that_is_full() {
        let of = |free| enough("/d/metadata", Some(Room { total: 1 << 40, free }));
        let error = of((64 << 20) - 1).unwrap_err().to_string();
        assert!(error.starts_with("/d/metadata: 63") && error.ends_with("free space there"), "{error}");
        of(64 << 20).unwrap();
        enough("/d/metadata", None).unwrap();
    }

    #[test]
    fn a_cluster_may_be_reached_otherwise_but_stays_where_it_is() {
        let was = in_cluster("fs");
        assert_eq!(was.again(&Store::default()).unwrap(), was);
        let elsewhere = Store { fdb_cluster_file: Some("/etc/b.cluster".into()), ..Store::default() };
        let now = was.again(&elsewhere).unwrap();
        assert_eq!((now.fdb_cluster_file, now.fdb_name), (elsewhere.fdb_cluster_file, was.fdb_name.clone()));
        let other = in_cluster("other");
        let embedded = Store { store: Some(StoreKind::Embedded), ..Store::default() };
        for refused in [was.again(&other), was.again(&embedded), embedded.again(&was)] {
            assert!(refused.unwrap_err().to_string().starts_with("its metadata is in "));
        }
    }
}
