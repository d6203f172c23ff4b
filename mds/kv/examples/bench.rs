//! Rates of the embedded store, beside the bare engine under a minimal group commit in the same run:
//! `cargo run --release -p sluice-kv --example bench -- DIRECTORY [SECONDS [GROUP]]`
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement ends at the first surprise")]

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use bytes::Bytes;
use fjall::{KeyspaceCreateOptions, PersistMode, Readable};
use sluice_env::{Env, Monotonic};
use sluice_kv::{Database, EmbeddedOptions, KeyRange, KvError, RunLimits};
use tokio::sync::oneshot;

const KEYS: u64 = 200_000;
const VALUE: usize = 100;

fn key(n: u64) -> Bytes {
    // Spread like hashed names: neighbours in time are not neighbours in order.
    let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Bytes::from([b"k".as_slice(), &mixed.to_be_bytes(), &n.to_be_bytes()].concat())
}

fn value(n: u64) -> Bytes {
    let mut v = vec![0x5a; VALUE];
    v[..8].copy_from_slice(&n.to_le_bytes());
    v.into()
}

/// A small generator, one per task.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[allow(clippy::disallowed_methods, reason = "a measurement drives its own tasks")]
fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> tokio::task::JoinHandle<T> {
    tokio::spawn(work)
}

/// What `tasks` tasks did together until the deadline.
struct Rate {
    per_second: f64,
    median: Duration,
    worst: Duration,
    p99: Duration,
}

async fn measure<F, W>(env: &Env, tasks: u64, seconds: u64, work: F) -> Rate
where
    F: Fn(u64, Monotonic) -> W,
    W: Future<Output = Vec<u32>> + Send + 'static,
{
    let start = env.clock.now();
    let end = start + Duration::from_secs(seconds);
    let running: Vec<_> = (0..tasks).map(|t| spawn(work(t, end))).collect();
    let mut micros = Vec::new();
    for task in running {
        micros.extend(task.await.unwrap());
    }
    let elapsed = env.clock.now().since(start).as_secs_f64();
    micros.sort_unstable();
    let at = |q: f64| {
        let i = ((micros.len() as f64 * q) as usize).min(micros.len() - 1);
        Duration::from_micros(u64::from(micros[i]))
    };
    Rate { per_second: micros.len() as f64 / elapsed, median: at(0.5), p99: at(0.99), worst: at(1.0) }
}

fn micros(env: &Env, since: Monotonic) -> u32 {
    u32::try_from(env.clock.now().since(since).as_micros()).unwrap_or(u32::MAX)
}

async fn load(db: &Database) {
    for chunk in 0..KEYS / 1000 {
        let mut tx = db.begin();
        for n in chunk * 1000..(chunk + 1) * 1000 {
            tx.set(key(n), value(n));
        }
        tx.commit().await.unwrap();
    }
}

/// Durable transactions that read three keys and write them.
async fn transactions(env: &Env, db: &Database, tasks: u64, seconds: u64) -> (Rate, u64) {
    let retries = Arc::new(AtomicU64::new(0));
    let rate = measure(env, tasks, seconds, |t, end| {
        let (env, db, retries) = (env.clone(), db.clone(), retries.clone());
        async move {
            let mut dice = Dice(t + 1);
            let mut latencies = Vec::new();
            while env.clock.now() < end {
                let keys = [(); 3].map(|()| key(dice.roll() % KEYS));
                let since = env.clock.now();
                let keys = &keys;
                let mut attempts = 0;
                db.run(RunLimits::default(), |mut tx| {
                    attempts += 1;
                    Box::pin(async move {
                        for k in keys {
                            let n = tx.get(k).await?.map_or(0, |v| u64::from(v[0]));
                            tx.set(k.clone(), value(n + 1));
                        }
                        Ok::<_, KvError>(())
                    })
                })
                .await
                .unwrap();
                retries.fetch_add(attempts - 1, Ordering::Relaxed);
                latencies.push(micros(&env, since));
            }
            latencies
        }
    })
    .await;
    (rate, retries.load(Ordering::Relaxed))
}

async fn point_reads(env: &Env, db: &Database, tasks: u64, seconds: u64) -> Rate {
    measure(env, tasks, seconds, |t, end| {
        let (env, db) = (env.clone(), db.clone());
        async move {
            let mut dice = Dice(t + 1);
            let mut latencies = Vec::new();
            while env.clock.now() < end {
                let tx = db.begin();
                let since = env.clock.now();
                tx.snapshot_get(&key(dice.roll() % KEYS)).await.unwrap().unwrap();
                latencies.push(micros(&env, since));
            }
            latencies
        }
    })
    .await
}

async fn scans(env: &Env, db: &Database, tasks: u64, seconds: u64) -> Rate {
    measure(env, tasks, seconds, |t, end| {
        let (env, db) = (env.clone(), db.clone());
        async move {
            let mut dice = Dice(t + 1);
            let mut latencies = Vec::new();
            while env.clock.now() < end {
                let range = KeyRange::new(key(dice.roll() % KEYS), &b"l"[..]);
                let since = env.clock.now();
                let pairs = db.begin().snapshot_range(&range, 1000, false).await.unwrap();
                assert!(!pairs.is_empty());
                latencies.push(micros(&env, since));
            }
            latencies
        }
    })
    .await
}

type Job = (Vec<(Bytes, Bytes)>, oneshot::Sender<()>);

/// The peer: the bare engine, no validation, no versions; queued writes go down in one synced batch.
struct Bare {
    db: fjall::Database,
    data: fjall::Keyspace,
    queue: Mutex<mpsc::Sender<Job>>,
}

impl Bare {
    fn open(dir: &Path) -> Arc<Self> {
        let db =
            fjall::Database::builder(dir).cache_size(256 << 20).manual_journal_persist(true).open().unwrap();
        let data = db.keyspace("data", KeyspaceCreateOptions::default).unwrap();
        let (queue, jobs) = mpsc::channel::<Job>();
        let (writer_db, writer_data) = (db.clone(), data.clone());
        std::thread::spawn(move || {
            while let Ok(first) = jobs.recv() {
                let mut group = vec![first];
                group.extend(jobs.try_iter().take(255));
                let mut batch = writer_db.batch().durability(Some(PersistMode::SyncAll));
                for (k, v) in group.iter_mut().flat_map(|(writes, _)| writes.drain(..)) {
                    batch.insert(&writer_data, k, v);
                }
                batch.commit().unwrap();
                group.into_iter().for_each(|(_, done)| done.send(()).unwrap());
            }
        });
        Arc::new(Self { db, data, queue: Mutex::new(queue) })
    }

    fn load(&self) {
        for chunk in 0..KEYS / 1000 {
            let mut batch = self.db.batch();
            for n in chunk * 1000..(chunk + 1) * 1000 {
                batch.insert(&self.data, key(n), value(n));
            }
            batch.commit().unwrap();
        }
    }

    async fn write(&self, writes: Vec<(Bytes, Bytes)>) {
        let (done, wait) = oneshot::channel();
        self.queue.lock().unwrap().send((writes, done)).unwrap();
        wait.await.unwrap();
    }
}

async fn bare_transactions(env: &Env, bare: &Arc<Bare>, tasks: u64, seconds: u64) -> Rate {
    measure(env, tasks, seconds, |t, end| {
        let (env, bare) = (env.clone(), bare.clone());
        async move {
            let mut dice = Dice(t + 1);
            let mut latencies = Vec::new();
            while env.clock.now() < end {
                let since = env.clock.now();
                let snapshot = bare.db.snapshot();
                let mut writes = Vec::with_capacity(3);
                for _ in 0..3 {
                    let k = key(dice.roll() % KEYS);
                    let n = snapshot.get(&bare.data, &k).unwrap().map_or(0, |v| u64::from(v[0]));
                    writes.push((k, value(n + 1)));
                }
                bare.write(writes).await;
                latencies.push(micros(&env, since));
            }
            latencies
        }
    })
    .await
}

async fn bare_reads(env: &Env, bare: &Arc<Bare>, tasks: u64, seconds: u64, scan: bool) -> Rate {
    measure(env, tasks, seconds, |t, end| {
        let (env, bare) = (env.clone(), bare.clone());
        async move {
            let mut dice = Dice(t + 1);
            let mut latencies = Vec::new();
            while env.clock.now() < end {
                let from = key(dice.roll() % KEYS);
                let since = env.clock.now();
                let snapshot = bare.db.snapshot();
                if scan {
                    let pairs =
                        snapshot.range(&bare.data, from..).take(1000).map(|g| g.into_inner().unwrap());
                    assert!(!pairs.collect::<Vec<_>>().is_empty());
                } else {
                    snapshot.get(&bare.data, from).unwrap().unwrap();
                }
                latencies.push(micros(&env, since));
            }
            latencies
        }
    })
    .await
}

fn row(what: &str, tasks: u64, rate: &Rate, note: &str) {
    println!(
        "{what:28} {tasks:5} {:10.0}/s  median {:>8.2?}  p99 {:>8.2?}  worst {:>8.2?}  {note}",
        rate.per_second, rate.median, rate.p99, rate.worst
    );
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let mut args = std::env::args().skip(1);
    let dir = args.next().unwrap_or_else(|| ".".into());
    let seconds = args.next().and_then(|s| s.parse().ok()).unwrap_or(5);
    let dir = tempfile::tempdir_in(dir).unwrap();
    let env = Env::system();
    let mut options = EmbeddedOptions::default();
    options.max_group = args.next().and_then(|s| s.parse().ok()).unwrap_or(options.max_group);
    let db = Database::open_embedded(env.clone(), &dir.path().join("store"), options).unwrap();
    load(&db).await;
    let bare = Bare::open(&dir.path().join("bare"));
    bare.load();
    for tasks in [1, 8, 64, 256] {
        let peer = bare_transactions(&env, &bare, tasks, seconds).await;
        row("bare engine, group commit", tasks, &peer, "");
        let (rate, retries) = transactions(&env, &db, tasks, seconds).await;
        let ratio = rate.per_second / peer.per_second;
        row("3-key read-modify-write", tasks, &rate, &format!("ratio {ratio:.2}, {retries} retries"));
    }
    for tasks in [1, 8] {
        row("bare engine, point reads", tasks, &bare_reads(&env, &bare, tasks, seconds, false).await, "");
        row("point reads", tasks, &point_reads(&env, &db, tasks, seconds).await, "");
        row("bare engine, 1000-key scans", tasks, &bare_reads(&env, &bare, tasks, seconds, true).await, "");
        row("1000-key scans", tasks, &scans(&env, &db, tasks, seconds).await, "");
    }
}
