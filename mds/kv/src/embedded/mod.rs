//! The embedded backend: our validator and group committer above an LSM's snapshots.

mod ahead;
mod cold;
mod committer;
mod directory;
mod effect;
mod engine;
mod journal;
mod rows;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sluice_env::Env;

use crate::store::{Request, Shared, Store};
use crate::{Committed, KeyRange, KeyValue, KvError, Room};
use committer::Core;
pub(crate) use directory::is_store;
use engine::{Engine, Snapshot};

/// How the embedded store is tuned.
#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    /// Cache of blocks read, in bytes.
    pub cache_bytes: u64,
    /// Rows kept as the newest version has them, in bytes; 0: none.
    pub row_bytes: usize,
    /// Writes kept for validation, in bytes; a transaction that outlives them is too old.
    pub history_bytes: usize,
    /// Transactions synced together at most, 1 to 65,535.
    pub max_group: usize,
    /// Keys whose values are large: a new store has them in a tree of their own. A store that exists stays as it is.
    pub large: Option<KeyRange>,
    /// For one test only: acknowledge without syncing, so that a power loss loses acknowledged commits.
    pub unsafe_no_sync: bool,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 256 << 20,
            row_bytes: 64 << 20,
            history_bytes: 64 << 20,
            max_group: 1024,
            large: None,
            unsafe_no_sync: false,
        }
    }
}

/// Between two looks whether the engine's own threads are at work: a commit that waits for them would never say that they are not.
const LOOK: Duration = Duration::from_secs(2);

/// Blocks of the LSM have so much before rows have more: merging and listing live on it.
const FIRST_FOR_BLOCKS: u64 = 256 << 20;

impl EmbeddedOptions {
    /// So many bytes for both caches. A row that is known by itself is found several times as fast as one that is looked for in a
    /// block, so where there is much, rows have two thirds; blocks have what a listing or a first look needs.
    #[must_use]
    pub fn with_memory(self, bytes: u64) -> Self {
        let cache_bytes = (bytes / 3).max(FIRST_FOR_BLOCKS.min(bytes / 5 * 4));
        let row_bytes = usize::try_from(bytes - cache_bytes).unwrap_or(usize::MAX);
        Self { cache_bytes, row_bytes, ..self }
    }
}

#[derive(Debug)]
pub(crate) struct Embedded {
    core: Arc<Core>,
    dir: PathBuf,
}

impl Embedded {
    pub(crate) fn open(env: Env, dir: &Path, options: &EmbeddedOptions) -> Result<Self, KvError> {
        let (engine, version) = Engine::open(&env, dir, options)?;
        Ok(Self { core: Arc::new(Core::new(env, engine, version, options)), dir: dir.to_owned() })
    }

    /// Of the file system that the directory is on.
    pub(crate) fn room(&self) -> Option<Room> {
        let found = rustix::fs::statvfs(&self.dir).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Some(Room { total: bytes(found.f_blocks), free: bytes(found.f_bavail) })
    }

    /// Completes when the store answers nothing more, with the reason.
    pub(crate) async fn failed(&self) -> KvError {
        loop {
            let look = async {
                self.core.env.clock.sleep(LOOK).await;
                self.core.look_at_engine().await;
            };
            // A look may wait behind others for a device that answers nothing.
            tokio::select! {
                biased;
                error = self.core.failed() => return error,
                () = look => {}
            }
        }
    }

    /// Whether `key` has this value.
    pub(crate) async fn is(
        &self,
        view: &Shared<Snapshot>,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, KvError> {
        self.core.check()?;
        match self.core.known_to_be(view, key, value) {
            Some(same) => Ok(same),
            None => Ok(self.get(view, key).await?.as_deref() == Some(value)),
        }
    }

    /// The value of `key` as of all that was acknowledged, if it is kept in memory: `Some(None)` if there is none. Some: it is
    /// what a transaction that begins now and reads nothing else would read.
    pub(crate) fn now(&self, key: &[u8]) -> Option<Option<Bytes>> {
        self.core.check().ok()?;
        self.core.now(key)
    }

    /// As [`Store::range`], always on a thread that may stand still.
    pub(crate) async fn range_at_leisure(
        &self,
        view: &Shared<Snapshot>,
        begin: &[u8],
        end: &[u8],
        limit: usize,
    ) -> Result<Vec<KeyValue>, KvError> {
        self.core.check()?;
        let (view, begin, end) = (view.clone(), Bytes::copy_from_slice(begin), Bytes::copy_from_slice(end));
        Box::pin(self.core.elsewhere(move |core| core.range_at_leisure(&view, &begin, &end, limit))).await
    }

    /// Groups committed since the store was opened.
    pub(crate) fn groups(&self) -> u64 {
        self.core.groups()
    }
}

/// Reads run on the caller's thread while they are served from memory, since handing one to another thread costs several times what
/// it takes; on threads that may wait for the disk while it is the disk that answers ([`cold::Cold`]).
impl Store for Embedded {
    type View = Shared<Snapshot>;

    async fn view(&self) -> Result<Self::View, KvError> {
        self.core.check()?;
        Ok(self.core.newest())
    }

    async fn get(&self, view: &Self::View, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.core.check()?;
        if let Some(known) = self.core.known(view, key) {
            return Ok(known);
        }
        if !self.core.cold(key).waits() {
            return self.core.look_up(view, key);
        }
        let (view, key) = (view.clone(), Bytes::copy_from_slice(key));
        Box::pin(self.core.elsewhere(move |core| core.look_up(&view, &key))).await
    }

    async fn range(
        &self,
        view: &Self::View,
        begin: &[u8],
        end: &[u8],
        limit: usize,
        reverse: bool,
    ) -> Result<Vec<KeyValue>, KvError> {
        self.core.check()?;
        if !self.core.cold(begin).waits() {
            return self.core.range(view, begin, end, limit, reverse);
        }
        let (view, begin, end) = (view.clone(), Bytes::copy_from_slice(begin), Bytes::copy_from_slice(end));
        Box::pin(self.core.elsewhere(move |core| core.range(&view, &begin, &end, limit, reverse))).await
    }

    fn commit(
        &self,
        request: Request<Self::View>,
    ) -> impl Future<Output = Result<Committed, KvError>> + Send {
        self.core.commit(request)
    }

    async fn flush(&self) -> Result<(), KvError> {
        self.core.check()?;
        self.core.flush().await
    }

    async fn close(&self) -> Result<(), KvError> {
        self.core.close().await;
        let flushed = self.core.flush().await;
        self.core.shut();
        flushed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shared_between_blocks_and_rows() {
        let default = EmbeddedOptions::default();
        for (mib, blocks, rows) in [(20, 16, 4), (320, 256, 64), (600, 256, 344), (4608, 1536, 3072)] {
            let options = default.clone().with_memory(mib << 20);
            assert_eq!((options.cache_bytes >> 20, options.row_bytes >> 20), (blocks, rows), "of {mib}");
        }
        let least = default.clone().with_memory(320 << 20);
        assert_eq!((least.cache_bytes, least.row_bytes), (default.cache_bytes, default.row_bytes));
    }

    /// Nobody has to commit anything for that, and may be waiting for those threads.
    #[tokio::test]
    async fn a_store_whose_engine_stopped_in_the_background_has_failed() {
        let dir = tempfile::tempdir().unwrap();
        let env = Env::system();
        let store = Embedded::open(env.clone(), dir.path(), &EmbeddedOptions::default()).unwrap();
        let failed = |within| env.clock.timeout(Duration::from_secs(within), store.failed());
        assert!(failed(5).await.is_err());
        let mut look = vec![dir.path().to_owned()];
        while let Some(folder) = look.pop() {
            let inside = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
            look.extend(inside.filter(|path| path.is_dir()));
            if folder.ends_with("tables") {
                std::fs::remove_dir_all(&folder).unwrap();
                look.retain(|path| !path.starts_with(&folder));
            }
        }
        store.core.engine.rotate();
        let why = failed(60).await.unwrap().to_string();
        assert!(why.contains("in the background") && why.contains("the log says why"), "{why}");
        assert!(store.core.check().is_err());
    }
}
