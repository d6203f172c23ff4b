//! One optimistic transaction.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use sluice_env::{BoxFuture, Monotonic};

use crate::database::Inner;
use crate::key::successor;
use crate::reads::ReadSet;
use crate::store::{Backend, Request, View};
use crate::writes::{Pending, WriteSet};
use crate::{
    AtomicOp, Committed, KEYS_END, KeyRange, KeyValue, KvError, MAX_AGE, MAX_KEY, MAX_TRANSACTION, MAX_VALUE,
    Versionstamp,
};

/// Reads see one version of the store, chosen at the first read, and the transaction's own writes.
///
/// Writes are kept here until [`Transaction::commit`]; dropping the transaction forgets them. They do
/// not fail: one that breaks a limit makes the commit fail. Keys are 1 to [`MAX_KEY`] bytes and do
/// not begin with 0xff.
#[derive(Debug)]
pub struct Transaction {
    db: Arc<Inner>,
    /// Set by the first read.
    view: OnceLock<(Arc<View>, Monotonic)>,
    reads: Mutex<Reads>,
    writes: WriteSet,
    write_conflicts: Vec<KeyRange>,
    written_bytes: usize,
    /// The first limit a write broke.
    refused: Option<KvError>,
    resolve_by: Option<Bytes>,
    /// Reads add no conflicts: nothing will be committed.
    pub(crate) read_only: bool,
}

/// What [`Transaction::compare_beside`] finds: a store on this machine has answered when it is asked.
pub(crate) enum Beside {
    Now(bool),
    Later(BoxFuture<'static, Result<bool, KvError>>),
}

#[derive(Debug, Default)]
struct Reads {
    set: ReadSet,
    bytes: usize,
    /// The first failure a read reported, for the driver: the operation may have wrapped it.
    failed: Option<KvError>,
}

/// The sizes of a write and of a conflict range besides their bytes: at least what FoundationDB counts, so that what
/// any backend takes, it takes. It counts a write as 70 bytes and the file system's name, 33 bytes with its slash,
/// before each of four keys; a conflict range as 25 and two of them.
const WRITE_OVERHEAD: usize = 70 + 4 * 33 + 6;
const CONFLICT_OVERHEAD: usize = 25 + 2 * 33 + 5;

/// What FoundationDB appends to a versionstamped value on its way: where the stamp goes.
const STAMP_OFFSET: usize = 4;

impl Transaction {
    pub(crate) fn new(db: Arc<Inner>) -> Self {
        Self {
            db,
            view: OnceLock::new(),
            reads: Mutex::new(Reads::default()),
            writes: WriteSet::default(),
            write_conflicts: Vec::new(),
            written_bytes: 0,
            refused: None,
            resolve_by: None,
            read_only: false,
        }
    }

    /// The value of `key`. The commit will conflict if another transaction writes `key` meanwhile.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        let result = pin!(self.read_key(key, !self.read_only)).await;
        self.note(result)
    }

    /// The value of `key`, without a conflict.
    pub async fn snapshot_get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        let result = pin!(self.read_key(key, false)).await;
        self.note(result)
    }

    /// The first `limit` pairs of `range` in key order, or the last ones in descending order when
    /// `reverse`. The commit will conflict if another transaction writes, inserts or clears anything
    /// in the part of the range that was looked at: when `limit` pairs are returned, that is up to
    /// and including the last of them, else the whole range.
    pub async fn range(
        &self,
        range: &KeyRange,
        limit: usize,
        reverse: bool,
    ) -> Result<Vec<KeyValue>, KvError> {
        let result = pin!(self.read_range(range, limit, reverse, !self.read_only)).await;
        self.note(result)
    }

    /// As [`Self::range`], without a conflict.
    pub async fn snapshot_range(
        &self,
        range: &KeyRange,
        limit: usize,
        reverse: bool,
    ) -> Result<Vec<KeyValue>, KvError> {
        let result = pin!(self.read_range(range, limit, reverse, false)).await;
        self.note(result)
    }

    /// The version this transaction reads at. All versions are ordered across the life of the store.
    pub async fn read_version(&self) -> Result<u64, KvError> {
        let result = self.view().await.map(|view| view.version());
        self.note(result)
    }

    pub fn set(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        let (key, value) = (key.into(), value.into());
        if self.admit(&key, value.len()) {
            self.writes.put(key, Some(value));
        }
    }

    pub fn clear(&mut self, key: impl Into<Bytes>) {
        let key = key.into();
        if self.admit(&key, 0) {
            self.writes.put(key, None);
        }
    }

    /// Clears every key in `range`. With the embedded backend it costs the commit one read and one
    /// write per key present.
    pub fn clear_range(&mut self, range: &KeyRange) {
        if self.admit_range(range) {
            self.writes.clear_range(range.begin.clone(), range.end.clone());
        }
    }

    /// Applies `op` to whatever `key` holds at commit, without reading it.
    pub fn atomic(&mut self, op: AtomicOp, key: impl Into<Bytes>, operand: impl AsRef<[u8]>) {
        let (key, operand) = (key.into(), operand.as_ref());
        if let Err(error) = op.check(operand) {
            self.refuse(error);
        } else if self.admit(&key, operand.len()) {
            self.writes.atomic(op, key, operand);
        }
    }

    /// Sets `key` to `value` with the ten bytes at `offset` replaced by the commit's versionstamp.
    /// Reading the key in this transaction is [`KvError::Unreadable`].
    pub fn set_versionstamped_value(
        &mut self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        offset: usize,
    ) {
        let (key, value) = (key.into(), value.into());
        if offset.saturating_add(Versionstamp::LEN) > value.len() {
            self.refuse(KvError::BadOperand);
        } else if self.admit(&key, value.len() + STAMP_OFFSET) {
            self.writes.put_stamped(key, value, offset);
        }
    }

    /// As if `key` had been read.
    pub fn add_read_conflict_key(&mut self, key: &[u8]) {
        if self.admit_key(key) {
            self.reads.get_mut().add_key(key);
        }
    }

    /// As if the whole of `range` had been read.
    pub fn add_read_conflict_range(&mut self, range: &KeyRange) {
        if self.admit_range(range) {
            self.reads.get_mut().add_range(range.clone());
        }
    }

    /// As if `key` had been written.
    pub fn add_write_conflict_key(&mut self, key: &[u8]) {
        if self.admit_key(key) {
            self.add_write_conflict(KeyRange::single(Bytes::copy_from_slice(key)));
        }
    }

    /// As if the whole of `range` had been written.
    pub fn add_write_conflict_range(&mut self, range: &KeyRange) {
        if self.admit_range(range) {
            self.add_write_conflict(range.clone());
        }
    }

    /// Names the key that tells, after [`KvError::CommitUnknown`], whether this transaction was
    /// applied: it holds what this transaction wrote to it. The transaction must set that key to a
    /// value no other transaction writes there. [`crate::Database::run`] then resolves an unknown
    /// result by itself.
    pub fn resolve_unknown_by(&mut self, key: impl Into<Bytes>) {
        self.resolve_by = Some(key.into());
    }

    /// Bytes counted against [`MAX_TRANSACTION`] so far.
    pub fn approximate_size(&self) -> usize {
        self.written_bytes.saturating_add(self.reads.lock().bytes)
    }

    /// Whether commit has anything to apply.
    pub fn is_read_only(&self) -> bool {
        self.writes.is_empty() && self.write_conflicts.is_empty()
    }

    /// Applies the writes if nothing read was written since. A transaction without writes always
    /// commits. After [`KvError::CommitUnknown`] it is no longer in flight.
    pub async fn commit(self) -> Result<Committed, KvError> {
        if let Some(error) = self.refused {
            return Err(error);
        }
        if self.is_read_only() {
            let version = match self.view.get() {
                Some((view, _)) => view.version(),
                None => self.db.backend.view().await?.version(),
            };
            return Ok(Committed { version, versionstamp: None, exact: true });
        }
        let bytes = self.approximate_size();
        if bytes > MAX_TRANSACTION {
            return Err(KvError::TooLarge { bytes });
        }
        if self.expired() {
            return Err(KvError::TooOld);
        }
        let reads = self.reads.into_inner().set;
        let view = match self.view.into_inner() {
            // Whoever was reading at it has ended: [`Self::compare_beside`] is awaited first.
            Some((view, _)) => Some(Arc::into_inner(view).ok_or(KvError::TooOld)?),
            // A conflict asked for without any read: it covers the time from now on.
            None if !reads.is_empty() => Some(self.db.backend.view().await?),
            None => None,
        };
        let write_conflicts = self.write_conflicts;
        let request = Request { view, reads, writes: self.writes, write_conflicts, bytes };
        let committed = pin!(self.db.backend.commit(request)).await?;
        self.db.committed.fetch_add(1, Ordering::Relaxed);
        Ok(committed)
    }

    /// The key named by [`Self::resolve_unknown_by`] with what this transaction will have written there.
    pub(crate) fn witness(&self) -> Option<(Bytes, Pending)> {
        let key = self.resolve_by.as_ref()?;
        let pending = self.writes.entries.get(key)?;
        Some((key.clone(), pending.clone()))
    }

    /// The first failure a read of this transaction reported.
    pub(crate) fn read_failure(&self) -> Option<KvError> {
        self.reads.lock().failed.clone()
    }

    fn note<T>(&self, result: Result<T, KvError>) -> Result<T, KvError> {
        if let Err(error) = &result {
            self.reads.lock().failed.get_or_insert_with(|| error.clone());
        }
        result
    }

    fn refuse(&mut self, error: KvError) {
        self.refused.get_or_insert(error);
    }

    fn admit_key(&mut self, key: &[u8]) -> bool {
        match check_key(key) {
            Ok(()) => true,
            Err(error) => {
                self.refuse(error);
                false
            }
        }
    }

    fn admit(&mut self, key: &[u8], value: usize) -> bool {
        if value > MAX_VALUE {
            self.refuse(KvError::ValueTooLong { bytes: value });
            return false;
        }
        // The key counts four times: a cleared key is a range, and so is the conflict of every write.
        self.written_bytes += 4 * key.len() + value + WRITE_OVERHEAD;
        self.admit_key(key)
    }

    fn admit_range(&mut self, range: &KeyRange) -> bool {
        match check_range(range) {
            Ok(()) => {
                self.written_bytes += 2 * (range.begin.len() + range.end.len()) + WRITE_OVERHEAD;
                true
            }
            Err(error) => {
                self.refuse(error);
                false
            }
        }
    }

    fn add_write_conflict(&mut self, range: KeyRange) {
        self.written_bytes += range.begin.len() + range.end.len() + CONFLICT_OVERHEAD;
        self.write_conflicts.push(range);
    }

    fn expired(&self) -> bool {
        self.view.get().is_some_and(|(_, since)| self.db.env.clock.now().since(*since) > MAX_AGE)
    }

    /// Whether `key` has the value `expected`, found out while the transaction does other things. The commit will conflict as
    /// after [`Self::get`]; it must not begin before this has ended.
    pub(crate) async fn compare_beside(&mut self, key: &Bytes, expected: &Bytes) -> Result<Beside, KvError> {
        let view = self.view().await?;
        self.db.reads.fetch_add(1, Ordering::Relaxed);
        let beside = match (&self.db.backend, &**view) {
            (Backend::Embedded(store), View::Embedded(view)) => {
                Beside::Now(store.is(view, key, expected).await?)
            }
            _ => {
                let (db, view) = (Arc::clone(&self.db), Arc::clone(view));
                let (key, expected) = (key.clone(), expected.clone());
                Beside::Later(Box::pin(async move {
                    Ok(db.backend.get(&view, &key).await?.is_some_and(|value| value == expected))
                }))
            }
        };
        self.reads.get_mut().add_key(key);
        Ok(beside)
    }

    async fn view(&self) -> Result<&Arc<View>, KvError> {
        if self.expired() {
            return Err(KvError::TooOld);
        }
        if self.view.get().is_none() {
            let fresh = self.db.backend.view().await?;
            self.db.views.fetch_add(1, Ordering::Relaxed);
            // Of two concurrent first reads one chooses the version for both.
            self.view.get_or_init(|| (Arc::new(fresh), self.db.env.clock.now()));
        }
        match self.view.get() {
            Some((view, _)) => Ok(view),
            None => Err(KvError::Closed),
        }
    }

    async fn read_key(&self, key: &[u8], conflict: bool) -> Result<Option<Bytes>, KvError> {
        if key.len() > MAX_KEY {
            return Err(KvError::KeyTooLong { bytes: key.len() });
        }
        let pending = match self.writes.entries.get(key) {
            // What this transaction decides by itself depends on nobody: no conflict.
            Some(pending) if !pending.needs_base() => return pending.read(None),
            Some(pending) => Some(pending),
            None if self.writes.is_cleared(key) => return Ok(None),
            None => None,
        };
        let view = self.view().await?;
        if conflict {
            self.reads.lock().add_key(key);
        }
        self.db.reads.fetch_add(1, Ordering::Relaxed);
        let base = pin!(self.db.backend.get(view, key)).await?;
        match pending {
            Some(pending) => pending.read(base),
            None => Ok(base),
        }
    }

    async fn read_range(
        &self,
        range: &KeyRange,
        limit: usize,
        reverse: bool,
        conflict: bool,
    ) -> Result<Vec<KeyValue>, KvError> {
        check_range(range)?;
        if limit == 0 || range.begin == range.end {
            return Ok(Vec::new());
        }
        let view = self.view().await?;
        let pairs = if self.writes.touches(&range.begin, &range.end) {
            Box::pin(self.merged(view, range, limit, reverse)).await
        } else {
            self.db.reads.fetch_add(1, Ordering::Relaxed);
            pin!(self.db.backend.range(view, &range.begin, &range.end, limit, reverse)).await
        };
        if conflict {
            // Whether an unreadable key lies within the limit depends on what others wrote.
            let seen = match &pairs {
                Ok(pairs) => looked_at(range, pairs, limit, reverse),
                Err(_) => range.clone(),
            };
            self.reads.lock().add_range(seen);
        }
        pairs
    }

    /// The stored pairs of `range` under this transaction's writes.
    async fn merged(
        &self,
        view: &View,
        range: &KeyRange,
        limit: usize,
        reverse: bool,
    ) -> Result<Vec<KeyValue>, KvError> {
        let mut out = Vec::new();
        let (mut begin, mut end) = (range.begin.clone(), range.end.clone());
        // At least a few: cleared keys use up a page without adding to the result.
        let page = limit.clamp(32, 4096);
        loop {
            self.db.reads.fetch_add(1, Ordering::Relaxed);
            let stored = self.db.backend.range(view, &begin, &end, page, reverse).await?;
            let (low, high) = match stored.last() {
                Some((last, _)) if stored.len() == page && reverse => (last.clone(), end.clone()),
                Some((last, _)) if stored.len() == page => (begin.clone(), successor(last)),
                _ => (begin.clone(), end.clone()),
            };
            self.overlay(stored, &low, &high, limit, reverse, &mut out)?;
            let done = if reverse { low <= begin } else { high >= end };
            if done || out.len() >= limit {
                return Ok(out);
            }
            if reverse {
                end = low;
            } else {
                begin = high;
            }
        }
    }

    /// Appends to `out`, up to `limit`, the pairs of `[low, high)` given all `stored` ones of it.
    fn overlay(
        &self,
        stored: Vec<KeyValue>,
        low: &[u8],
        high: &[u8],
        limit: usize,
        reverse: bool,
        out: &mut Vec<KeyValue>,
    ) -> Result<(), KvError> {
        let forward = self.writes.entries_in(low, high);
        let mut pending: Box<dyn Iterator<Item = (&Bytes, &Pending)> + Send + '_> =
            if reverse { Box::new(forward.rev()) } else { Box::new(forward) };
        let mut next_pending = pending.next();
        let mut stored = stored.into_iter().peekable();
        while out.len() < limit {
            let order = match (next_pending, stored.peek()) {
                (None, None) => return Ok(()),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some((p, _)), Some((s, _))) if reverse => (**s).cmp(&**p),
                (Some((p, _)), Some((s, _))) => (**p).cmp(&**s),
            };
            let base = if order.is_ge() { stored.next() } else { None };
            if order.is_le()
                && let Some((key, write)) = next_pending
            {
                next_pending = pending.next();
                if let Some(value) = write.read(base.map(|(_, v)| v))? {
                    out.push((key.clone(), value));
                }
            } else if let Some(pair) = base
                && !self.writes.is_cleared(&pair.0)
            {
                out.push(pair);
            }
        }
        Ok(())
    }
}

impl Reads {
    fn add_key(&mut self, key: &[u8]) {
        self.bytes += 2 * key.len() + CONFLICT_OVERHEAD;
        self.set.keys.push(key);
    }

    fn add_range(&mut self, range: KeyRange) {
        self.bytes += range.begin.len() + range.end.len() + CONFLICT_OVERHEAD;
        self.set.ranges.push(range);
    }
}

/// The part of `range` that decided the result.
fn looked_at(range: &KeyRange, pairs: &[KeyValue], limit: usize, reverse: bool) -> KeyRange {
    match pairs.last() {
        Some((last, _)) if pairs.len() >= limit && reverse => KeyRange::new(last.clone(), range.end.clone()),
        Some((last, _)) if pairs.len() >= limit => KeyRange::new(range.begin.clone(), successor(last)),
        _ => range.clone(),
    }
}

fn check_key(key: &[u8]) -> Result<(), KvError> {
    match key.first() {
        None | Some(0xff) => Err(KvError::KeyOutside),
        Some(_) if key.len() > MAX_KEY => Err(KvError::KeyTooLong { bytes: key.len() }),
        Some(_) => Ok(()),
    }
}

pub(crate) fn check_range(range: &KeyRange) -> Result<(), KvError> {
    let longest = range.begin.len().max(range.end.len());
    // A bound may be the successor of the longest key.
    if longest > MAX_KEY + 1 {
        Err(KvError::KeyTooLong { bytes: longest })
    } else if *range.end > *KEYS_END {
        Err(KvError::KeyOutside)
    } else if range.begin > range.end {
        Err(KvError::InvertedRange)
    } else {
        Ok(())
    }
}
