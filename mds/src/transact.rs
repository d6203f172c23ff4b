//! Transactions on the store: one way to read, one way to write.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use sluice_env::BoxFuture;
use sluice_kv::{Attempt, RunLimits};
use sluice_namespace::{DirectoryUpdate, FileId, FsError, IdAllocator, Sequence, lease_block};

use crate::server::Mds;

/// Counts the attempts of one transaction: after a conflict directories are updated without being read.
#[derive(Debug, Default)]
pub(crate) struct Attempts(AtomicU32);

impl Attempts {
    /// How the attempt that begins now updates directories.
    pub(crate) fn next(&self) -> DirectoryUpdate {
        match self.0.fetch_add(1, Ordering::Relaxed) {
            0 => DirectoryUpdate::Adaptive,
            _ => DirectoryUpdate::Blind,
        }
    }
}

/// How long an operation keeps trying: well below a client's patience, so that it hears DELAY in time.
const PATIENCE: Duration = Duration::from_secs(5);
/// Numbers leased at once. A crash wastes at most these.
const BLOCK: u64 = 4096;

impl Mds {
    fn limits(&self) -> RunLimits {
        RunLimits::until(self.env.clock.now() + PATIENCE)
    }

    /// Runs a transaction that only reads.
    ///
    /// # Errors
    /// What `op` says, or the store.
    pub(crate) fn read<'env, T, F>(&self, op: F) -> impl Future<Output = Result<T, FsError>>
    where
        F: for<'t> FnMut(Attempt<'t, 'env>) -> BoxFuture<'t, Result<T, FsError>>,
    {
        self.db.run_read(self.limits(), op)
    }

    /// Runs a transaction until it commits. `op` may run several times and has no effect but on its
    /// transaction. Yields the commit version, which resolves what is pending.
    ///
    /// # Errors
    /// What `op` says, or the store.
    pub(crate) async fn write<'env, T, F>(&self, op: F) -> Result<(T, u64), FsError>
    where
        F: for<'t> FnMut(Attempt<'t, 'env>) -> BoxFuture<'t, Result<T, FsError>>,
    {
        let (key, ours) = self.epoch_guard.clone();
        let (value, committed) = self.db.run(self.limits().guarded_by(key, ours), op).await?;
        Ok((value, committed.version))
    }

    /// As [`Mds::write`], for a transaction that does no harm when it is carried out twice: a result that is unknown is
    /// reported only if it is in the end.
    ///
    /// # Errors
    /// What `op` says, or the store.
    pub(crate) async fn write_again<'env, T, F>(&self, op: F) -> Result<(T, u64), FsError>
    where
        F: for<'t> FnMut(Attempt<'t, 'env>) -> BoxFuture<'t, Result<T, FsError>>,
    {
        let (key, ours) = self.epoch_guard.clone();
        let (value, committed) = self.db.run(self.limits().guarded_by(key, ours).idempotent(), op).await?;
        Ok((value, committed.version))
    }

    /// As [`Mds::write`], for a transaction that writes the key `witness`: whether it committed is known in
    /// the end, unless the store is lost for good.
    ///
    /// # Errors
    /// What `op` says, or the store.
    pub(crate) async fn write_known<'env, T, F>(&self, witness: Bytes, op: F) -> Result<(T, u64), FsError>
    where
        F: for<'t> FnMut(Attempt<'t, 'env>) -> BoxFuture<'t, Result<T, FsError>>,
    {
        let (key, ours) = self.epoch_guard.clone();
        let limits = self.limits().guarded_by(key, ours).resolve_by(witness).until_known();
        let (value, committed) = self.db.run(limits, op).await?;
        Ok((value, committed.version))
    }

    /// A fileid that was never used.
    ///
    /// # Errors
    /// What the store says when a new block must be leased.
    pub(crate) async fn next_fileid(&self) -> Result<FileId, FsError> {
        self.next_id(&self.fileids, Sequence::FileId).await.map(FileId)
    }

    /// A data file id that was never used.
    ///
    /// # Errors
    /// What the store says when a new block must be leased.
    pub(crate) async fn next_data_file(&self) -> Result<sluice_namespace::DataFileId, FsError> {
        self.next_id(&self.data_files, Sequence::DataFile).await.map(sluice_namespace::DataFileId)
    }

    /// A number for the row of a fence that no other had. Not from the sequence in the fence's own transaction: when a
    /// client with many files is fenced, all of these would conflict.
    ///
    /// # Errors
    /// What the store says when a new block must be leased.
    pub(crate) async fn next_fence(&self) -> Result<u64, FsError> {
        self.next_id(&self.fences, Sequence::Fence).await
    }

    async fn next_id(&self, allocator: &IdAllocator, sequence: Sequence) -> Result<u64, FsError> {
        loop {
            if let Some(id) = allocator.take() {
                return Ok(id);
            }
            // Once in four thousand times.
            if let Some(id) = Box::pin(self.lease(allocator, sequence)).await? {
                return Ok(id);
            }
        }
    }

    /// Leases the next block; a number, if somebody else has meanwhile.
    async fn lease(&self, allocator: &IdAllocator, sequence: Sequence) -> Result<Option<u64>, FsError> {
        let _alone = self.leasing.lock().await;
        if let Some(id) = allocator.take() {
            return Ok(Some(id));
        }
        let (block, _) = self
            .write(|mut txn| Box::pin(async move { lease_block(&mut txn, sequence, BLOCK).await }))
            .await?;
        allocator.refill(block);
        Ok(None)
    }
}
