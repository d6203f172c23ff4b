//! The embedded store's directory, and what a kill leaves behind.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use sluice_env::{BoxFuture, Clock, Env, Monotonic, Spawn, Wall};
use sluice_kv::{AtomicOp, Database, EmbeddedOptions, KeyRange, KvError};
use tokio::sync::Mutex;

fn open(dir: &Path) -> Result<Database, KvError> {
    Database::open_embedded(Env::system(), dir, EmbeddedOptions::default())
}

async fn put(db: &Database, key: &'static str) {
    let mut tx = db.begin();
    tx.set(key, "v");
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn a_second_opener_is_told_which_directory_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path()).unwrap();
    let error = open(dir.path()).unwrap_err();
    assert_eq!(error, KvError::InUse { dir: dir.path().to_owned() });
    assert!(error.to_string().contains(dir.path().to_str().unwrap()));
    db.close().await.unwrap();
    open(dir.path()).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_store_has_let_go_of_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..20 {
        let db = open(dir.path()).unwrap();
        put(&db, "k").await;
        db.close().await.unwrap();
    }
}

/// Counts blocking work, a piece of which can be held up; a clock that shows each look a disk's time later.
#[derive(Debug)]
struct SlowDisk {
    env: Env,
    looks: AtomicU64,
    works: AtomicUsize,
    disk: Arc<Mutex<()>>,
    /// The next piece of work waits for `disk`.
    hold: AtomicBool,
}

impl Clock for SlowDisk {
    fn now(&self) -> Monotonic {
        Monotonic(self.looks.fetch_add(1, Ordering::Relaxed) * 1_000_000)
    }
    fn wall(&self) -> Wall {
        self.env.clock.wall()
    }
    fn sleep_until(&self, at: Monotonic) -> BoxFuture<'static, ()> {
        self.env.clock.sleep_until(at)
    }
}

impl Spawn for SlowDisk {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.env.spawn.spawn(task);
    }
    fn blocking(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        self.works.fetch_add(1, Ordering::Relaxed);
        let disk = self.hold.swap(false, Ordering::Relaxed).then(|| Arc::clone(&self.disk));
        self.env.spawn.blocking(Box::new(move || {
            let _turn = disk.as_ref().map(|disk| disk.blocking_lock());
            work();
        }))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_slow_disk_is_waited_for_elsewhere_and_a_closed_store_has_waited_for_who_reads() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system();
    let slow = Arc::new(SlowDisk {
        env: env.clone(),
        looks: AtomicU64::new(0),
        works: AtomicUsize::new(0),
        disk: Arc::default(),
        hold: AtomicBool::new(false),
    });
    let large = Some(KeyRange::new(&b"large"[..], &b"large\xff"[..]));
    let options = EmbeddedOptions { row_bytes: 0, large, ..EmbeddedOptions::default() };
    let slow_env = Env { clock: slow.clone(), spawn: slow.clone(), ..env.clone() };
    let db = Database::open_embedded(slow_env, dir.path(), options).unwrap();
    put(&db, "k").await;
    let before = slow.works.load(Ordering::Relaxed);
    for _ in 0..20 {
        assert_eq!(db.begin().get(b"k").await.unwrap().as_deref(), Some(&b"v"[..]));
    }
    let listed = db.begin().range(&KeyRange::all(), 10, false).await.unwrap();
    assert_eq!(listed, [(Bytes::from("k"), Bytes::from("v"))]);
    let elsewhere = slow.works.load(Ordering::Relaxed) - before;
    assert!((15..=21).contains(&elsewhere), "{elsewhere} reads of 21");
    // What the disk does for the one tree says nothing of the other, whose rows may be in memory.
    let before = slow.works.load(Ordering::Relaxed);
    assert_eq!(db.begin().get(b"large row").await.unwrap(), None);
    assert_eq!(slow.works.load(Ordering::Relaxed) - before, 0, "the first large row");

    let held = slow.disk.lock().await;
    slow.hold.store(true, Ordering::Relaxed);
    let tx = db.begin();
    let reading = env.clock.timeout(Duration::from_millis(20), tx.get(b"k")).await;
    assert!(reading.is_err(), "the disk does not answer");
    drop(tx);
    let mut closing = Box::pin(db.close());
    let closed = env.clock.timeout(Duration::from_millis(50), closing.as_mut()).await;
    assert!(closed.is_err(), "somebody reads");
    drop(held);
    closing.await.unwrap();
    open(dir.path()).unwrap();
}

/// A process has a copy of every file of the one that starts it until it has its own program: it must not keep
/// the lock.
#[test]
fn a_process_being_started_does_not_keep_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                Command::new("true").status().unwrap();
            }
        });
        let refused = (0..200).find_map(|_| open(dir.path()).map(drop).err());
        ended.store(true, Ordering::Relaxed);
        assert_eq!(refused, None);
    });
}

#[test]
fn a_foreign_directory_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("thesis.tex"), "x").unwrap();
    assert_eq!(open(dir.path()).unwrap_err(), KvError::Foreign { dir: dir.path().to_owned() });
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    // Another program's idea of a FORMAT file.
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("FORMAT"), "ext4 1").unwrap();
    assert_eq!(open(dir.path()).unwrap_err(), KvError::Foreign { dir: dir.path().to_owned() });
}

#[test]
fn the_root_of_a_fresh_file_system_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("lost+found")).unwrap();
    open(dir.path()).unwrap();
}

#[test]
fn a_newer_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).unwrap());
    fs::write(dir.path().join("FORMAT"), "sluice-kv embedded 3\n").unwrap();
    let error = open(dir.path()).unwrap_err();
    assert_eq!(error, KvError::NewerFormat { dir: dir.path().to_owned(), found: 3, supported: 2 });
}

fn format(dir: &Path) -> String {
    fs::read_to_string(dir.join("FORMAT")).unwrap()
}

async fn keys(db: &Database, reverse: bool) -> Vec<Bytes> {
    let all = db.begin().range(&KeyRange::all(), 100, reverse).await.unwrap();
    all.into_iter().map(|(key, _)| key).collect()
}

/// Whatever is asked for later, a store stays as it was made: with one tree or with two.
#[tokio::test]
async fn where_rows_are_is_decided_when_the_store_is_made() {
    let within = |large| EmbeddedOptions { large, ..EmbeddedOptions::default() };
    let range = || Some(KeyRange::new("b", "c"));
    for (made, format_of_it) in [(None, 1), (range(), 2)] {
        let dir = tempfile::tempdir().unwrap();
        for (turn, asked) in
            [made.clone(), None, range(), Some(KeyRange::new("a", "z"))].into_iter().enumerate()
        {
            let db = Database::open_embedded(Env::system(), dir.path(), within(asked)).unwrap();
            let left = keys(&db, false).await;
            assert_eq!(left, if turn == 0 { &[][..] } else { &["a1", "b2", "c1"] });
            for key in ["a1", "b1", "b2", "c1"] {
                put(&db, key).await;
            }
            let all = keys(&db, false).await;
            assert_eq!(all, ["a1", "b1", "b2", "c1"]);
            assert!(keys(&db, true).await.into_iter().rev().eq(all));
            // Across a bound, on a bound, and no further than asked.
            let some = db.begin().range(&KeyRange::new("a", "c"), 2, true).await.unwrap();
            assert!(some.iter().map(|(key, _)| &key[..]).eq([b"b2", b"b1"]));
            let mut tx = db.begin();
            tx.clear_range(&KeyRange::new("b1", "b2"));
            tx.commit().await.unwrap();
            assert_eq!(keys(&db, false).await, ["a1", "b2", "c1"]);
            db.close().await.unwrap();
        }
        assert_eq!(format(dir.path()), format!("sluice-kv embedded {format_of_it}\n"));
    }
}

/// Bytes that the journals below take on the disk.
fn journals(dir: &Path) -> u64 {
    let inside = |entry: fs::DirEntry| match entry.path() {
        path if path.is_dir() => journals(&path),
        path if path.extension().is_some_and(|is| is == "jnl") => entry.metadata().unwrap().blocks() * 512,
        _ => 0,
    };
    fs::read_dir(dir).unwrap().map(|entry| inside(entry.unwrap())).sum()
}

/// A journal goes when all that it has is in tables, and a tree that has a row of each now and then would keep all of them: half
/// a gigabyte, on a device that is full, where removing small files is what gives room back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_that_hardly_changes_does_not_keep_journals() {
    const ROWS: u32 = 4096;
    let large = KeyRange::new(&b"m"[..], &b"n"[..]);
    let options = EmbeddedOptions { large: Some(large), unsafe_no_sync: true, ..EmbeddedOptions::default() };
    let (env, dir) = (Env::system(), tempfile::tempdir().unwrap());
    let db = Database::open_embedded(env.clone(), dir.path(), options).unwrap();
    for batch in 0..110u32 {
        let mut tx = db.begin();
        tx.clear([&b"m"[..], &batch.to_be_bytes()].concat());
        for row in 0..ROWS {
            tx.set([&b"a"[..], &(batch * ROWS + row).to_be_bytes()].concat(), vec![7; 1000]);
        }
        tx.commit().await.unwrap();
    }
    // In the background, once what was written last is on its way into tables.
    for _ in 0..300 {
        if journals(dir.path()) <= 256 << 20 {
            return;
        }
        env.clock.sleep(Duration::from_millis(100)).await;
    }
    panic!("{} MiB", journals(dir.path()) >> 20);
}

#[tokio::test]
async fn a_store_that_lost_its_engine_or_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(dir.path()).unwrap();
    put(&db, "k").await;
    db.close().await.unwrap();
    let (format, engine) = (dir.path().join("FORMAT"), dir.path().join("engine"));
    let text = fs::read(&format).unwrap();
    fs::remove_file(&format).unwrap();
    assert!(matches!(open(dir.path()), Err(KvError::Foreign { .. })));
    fs::write(&format, text).unwrap();
    fs::rename(&engine, dir.path().join("away")).unwrap();
    assert!(matches!(open(dir.path()), Err(KvError::Corrupt { .. })));
    fs::rename(dir.path().join("away"), &engine).unwrap();
    assert!(open(dir.path()).unwrap().begin().get(b"k").await.unwrap().is_some());
}

#[test]
fn an_interrupted_creation_begins_again() {
    // At each point where it can stop: the lock alone, a partial engine, a format without an engine.
    for stage in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("LOCK"), "").unwrap();
        if stage > 0 {
            fs::create_dir(dir.path().join("engine.new")).unwrap();
            fs::write(dir.path().join("engine.new/0.jnl"), "torn").unwrap();
        }
        if stage > 1 {
            fs::write(dir.path().join("FORMAT"), "sluice-kv embedded 1\n").unwrap();
        }
        drop(open(dir.path()).unwrap());
        open(dir.path()).unwrap();
    }
}

const KILL_DIR: &str = "SLUICE_KV_KILL_DIR";

fn slot(task: u8, n: u64, part: u8) -> Bytes {
    [b"slot".as_slice(), &[task], &n.to_be_bytes(), &[part]].concat().into()
}

/// Commits for as long as it lives, several tasks at once, and reports each commit once it is acknowledged.
#[allow(clippy::disallowed_methods, reason = "a test drives its own tasks")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the child of a_killed_process_loses_nothing_acknowledged"]
async fn committing_child() {
    let Some(dir) = std::env::var_os(KILL_DIR) else { return };
    let db = open(Path::new(&dir)).unwrap();
    let start = db.begin().read_version().await.unwrap();
    let tasks: Vec<_> = (0..8u8)
        .map(|task| {
            let db = db.clone();
            tokio::spawn(async move {
                for n in start.. {
                    let mut tx = db.begin();
                    for part in 0..3 {
                        tx.set(slot(task, n, part), vec![part; 2000]);
                    }
                    tx.atomic(AtomicOp::Add, "count", 1u64.to_le_bytes());
                    let version = tx.commit().await.unwrap().version;
                    let line = format!("acked {task} {n} {version}\n");
                    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

/// Runs the child until `acks` commits are reported and kills it; returns (task, n, version) of each
/// report that came out whole.
fn commit_and_kill(dir: &Path, acks: usize) -> Vec<(u8, u64, u64)> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["committing_child", "--exact", "--ignored", "--nocapture"])
        .env(KILL_DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut acked = Vec::new();
    let mut killed = false;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let fields: Vec<_> = line.split(' ').collect();
        if let ["acked", task, n, version] = fields[..] {
            acked.push((task.parse().unwrap(), n.parse().unwrap(), version.parse().unwrap()));
        }
        if acked.len() >= acks && !killed {
            child.kill().unwrap();
            killed = true;
        }
    }
    child.wait().unwrap();
    assert!(killed, "the child ended by itself");
    acked
}

#[tokio::test]
async fn a_killed_process_loses_nothing_acknowledged() {
    killed_again_and_again(None).await;
}

/// What three of the tasks write is in the second tree, and what they count is not.
#[tokio::test]
async fn a_killed_process_loses_nothing_of_two_trees() {
    killed_again_and_again(Some(KeyRange::new(&b"slot\x03"[..], &b"slot\x06"[..]))).await;
}

async fn killed_again_and_again(large: Option<KeyRange>) {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::system();
    let options = EmbeddedOptions { large, ..EmbeddedOptions::default() };
    Database::open_embedded(env.clone(), dir.path(), options).unwrap().close().await.unwrap();
    let (mut total, mut highest) = (0, 0);
    for _ in 0..8 {
        let acked = commit_and_kill(dir.path(), 1 + (env.random.u64() % 400) as usize);
        let db = open(dir.path()).unwrap();
        for (task, n, version) in &acked {
            for part in 0..3 {
                let stored = db.begin().get(&slot(*task, *n, part)).await.unwrap();
                assert_eq!(stored, Some(vec![part; 2000].into()), "task {task} n {n} version {version}");
            }
            assert!(*version > highest, "version {version} was used before");
        }
        highest = acked.iter().map(|a| a.2).max().unwrap().max(db.begin().read_version().await.unwrap());
        assert_eq!(highest, db.begin().read_version().await.unwrap());
        // What was not acknowledged is there whole or not at all, and counted once.
        total += acked.len() as u64;
        let count = db.begin().get(b"count").await.unwrap().unwrap();
        let count = u64::from_le_bytes(count[..].try_into().unwrap());
        let all = db.begin().range(&KeyRange::prefix("slot"), usize::MAX, false).await.unwrap();
        assert_eq!(all.len() as u64, 3 * count);
        assert!(count >= total);
        total = count;
    }
}
