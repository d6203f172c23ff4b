//! What the store alone does with what a create writes: the same rows under keys as scattered, in one transaction each,
//! durable, nothing read. The rows are found out by making a file in a store in memory and looking what it left.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use bytes::{Bytes, BytesMut};
use sluice_env::Env;
use sluice_kv::{AtomicOp, Database, EmbeddedOptions, Faults, KeyRange, KeyValue, Transaction, Versionstamp};
use sluice_namespace::stable_storage::{ReplyRow, put_reply};
use sluice_namespace::{
    Create, CreateMode, Credential, DirectoryUpdate, FileId, FormatOptions, FsError, Inline, InodeKey, Name,
    Namespace, NewAttributes, NewNode, Request, SessionId, Shape,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::bench::load::{self, AsyncOperation, Run, Until};

/// Bytes of the results that a reply row keeps of OPEN, about.
const RESULTS: usize = 190;

/// One row of the write set.
#[derive(Clone, Debug)]
enum Row {
    /// A new key each time: those of this length from this place on are another's.
    New { key: Bytes, spread: usize, value: Bytes },
    /// The same key each time, of the worker.
    Own { key: Bytes, value: Bytes },
    /// A counter that all add to.
    Counter { key: Bytes, width: usize },
    /// Written by all.
    Shared { key: Bytes, value: Bytes },
}

/// A store with nothing else in it.
#[derive(Debug)]
pub(super) struct Bare {
    db: Database,
    rows: Vec<Row>,
    /// As a metadata server has it. `None` only when it has been dropped.
    runtime: Option<Runtime>,
    _home: TempDir,
}

impl Drop for Bare {
    fn drop(&mut self) {
        // Waiting is not allowed where other tasks run.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[derive(Clone, Debug)]
struct Writer {
    db: Database,
    rows: Vec<Row>,
    number: u64,
}

struct Commit(u64);

impl Bare {
    pub(super) async fn open(below: &Path) -> Result<Self> {
        let home = tempfile::Builder::new().prefix("sluice-bench-store-").tempdir_in(below)?;
        let db = Database::open_embedded(Env::system(), home.path(), EmbeddedOptions::default())?;
        let runtime = Some(tokio::runtime::Builder::new_multi_thread().enable_all().build()?);
        Ok(Self { db, rows: rows().await?, runtime, _home: home })
    }

    /// What is in the write set, for people.
    pub(super) fn about(&self) -> String {
        let bytes: usize = self
            .rows
            .iter()
            .map(|row| match row {
                Row::New { key, value, .. } | Row::Own { key, value } | Row::Shared { key, value } => {
                    key.len() + value.len()
                }
                Row::Counter { key, width } => key.len() + width,
            })
            .sum();
        format!(
            "the embedded store alone with the write set of a create: {} rows, {bytes} bytes",
            self.rows.len()
        )
    }

    /// Transactions by so many tasks. `round` tells one run's keys from another's.
    pub(super) async fn run(&self, tasks: usize, round: u64, until: Until) -> Result<Run> {
        let writer = |number| Writer { db: self.db.clone(), rows: self.rows.clone(), number };
        let writers = (0..tasks as u64).map(writer).collect();
        let runtime = self.runtime.as_ref().context("the store is closed")?;
        Ok(runtime.spawn(load::run(writers, until, Commit(round << 40))).await??.0)
    }
}

impl AsyncOperation<Writer> for Commit {
    async fn once(&self, writer: &mut Writer, number: u64) -> Result<bool> {
        let mut transaction = writer.db.begin();
        for row in &writer.rows {
            row.write(&mut transaction, writer.number, self.0 | number);
        }
        transaction.commit().await?;
        Ok(true)
    }
}

impl Row {
    fn write(&self, transaction: &mut Transaction, worker: u64, number: u64) {
        match self {
            Self::New { key, spread, value } => {
                // As names' hashes are.
                let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                transaction.set(changed(key, *spread, mixed), value.clone());
            }
            Self::Own { key, value } => {
                transaction.set(changed(key, key.len().saturating_sub(8), worker), value.clone());
            }
            Self::Counter { key, width } => {
                let mut one = vec![0; *width];
                one.iter_mut().take(1).for_each(|low| *low = 1);
                transaction.atomic(AtomicOp::Add, key.clone(), one);
            }
            Self::Shared { key, value } => transaction.set(key.clone(), value.clone()),
        }
    }
}

fn changed(key: &Bytes, at: usize, number: u64) -> Bytes {
    let mut key = BytesMut::from(&key[..]);
    if let Some(place) = key.get_mut(at..at + 8) {
        place.copy_from_slice(&number.to_be_bytes());
    }
    key.freeze()
}

/// Files that are there before: every shard of every counter has been added to.
const BEFORE: u64 = 16;

/// The rows that one more file in a directory, made while others are made there, leaves new or changed.
async fn rows() -> Result<Vec<Row>> {
    let env = Env::system();
    let db = Database::memory(env.clone(), Faults::default());
    let mut transaction = db.begin();
    let namespace = Namespace::load_or_format(&mut transaction, &FormatOptions::new(&env)).await?;
    transaction.commit().await?;
    let session: SessionId = [7; 16];
    let mut before = BTreeMap::new();
    for number in 0..=BEFORE {
        before = all(&db).await?;
        create(&db, &env, &namespace, number, &session).await?;
    }
    let after = all(&db).await?;
    let changed = after.iter().filter(|(key, value)| before.get(*key) != Some(*value));
    let reply = sluice_namespace::stable_storage::reply_key(&session, 0);
    let rows = changed.map(|(key, value)| match before.contains_key(key) {
        _ if *key == reply => Row::Own { key: key.clone(), value: value.clone() },
        true if matches!(value.len(), 8 | 16) => Row::Counter { key: key.clone(), width: value.len() },
        true => Row::Shared { key: key.clone(), value: value.clone() },
        false => Row::New { key: key.clone(), spread: 9, value: value.clone() },
    });
    Ok(rows.collect())
}

async fn all(db: &Database) -> Result<BTreeMap<Bytes, Bytes>> {
    let pairs: Vec<KeyValue> = db.begin().snapshot_range(&KeyRange::all(), 10_000, false).await?;
    Ok(pairs.into_iter().collect())
}

async fn create(
    db: &Database,
    env: &Env,
    namespace: &Namespace,
    number: u64,
    session: &SessionId,
) -> Result<()> {
    let name = format!("file000.{number:08}");
    let mut transaction = db.begin();
    let create = Create {
        directory: InodeKey::ROOT,
        name: Name::new(name.as_bytes()).map_err(|error| anyhow!("{error}"))?,
        node: NewNode::InlineFile {
            inline: Inline { limit: 8192, shape: Shape::Default, mirrors: 1, class: None },
            size: 0,
        },
        mode: CreateMode::Guarded,
        attributes: NewAttributes::mode(0o644),
        fileid: FileId(1000 + number),
    };
    let who = &Credential::ROOT;
    let request = Request { who, now: env.clock.wall(), directory: DirectoryUpdate::Blind };
    let made: Result<_, FsError> = namespace.create(&mut transaction, &create, &request).await;
    made.context("a create in memory")?;
    let reply = ReplyRow {
        stamp: Versionstamp([0; 10]),
        seqid: 1,
        op_index: 2,
        fingerprint: number,
        results: Bytes::from(vec![0x11; RESULTS]),
    };
    put_reply(&mut transaction, session, 0, &reply);
    transaction.commit().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inode, name, the directory's time, stamp and count, the file system's count, and the reply.
    #[tokio::test]
    async fn the_write_set_is_that_of_a_create() {
        let rows = rows().await.unwrap();
        let count = |which: fn(&Row) -> bool| rows.iter().filter(|row| which(row)).count();
        assert_eq!(count(|row| matches!(row, Row::New { .. })), 2, "{rows:?}");
        assert_eq!(count(|row| matches!(row, Row::Own { .. })), 1, "{rows:?}");
        assert!(count(|row| matches!(row, Row::Counter { .. })) >= 2, "{rows:?}");
        let bytes: usize =
            rows.iter().map(|row| if let Row::New { value, .. } = row { value.len() } else { 0 }).sum();
        assert!((80..400).contains(&bytes), "{rows:?}");
    }

    #[tokio::test]
    async fn every_transaction_writes_rows_of_its_own() {
        let home = tempfile::tempdir().unwrap();
        let bare = Bare::open(home.path()).await.unwrap();
        bare.run(4, 1, Until::Done(50)).await.unwrap();
        let stored = all(&bare.db).await.unwrap().len();
        let shared =
            bare.rows.iter().filter(|row| matches!(row, Row::Counter { .. } | Row::Shared { .. })).count();
        // The workers share the counters; each has a reply row.
        assert!(stored <= 2 * 50 + shared + 4 && stored > 2 * 50 + shared, "{stored} rows");
    }
}
