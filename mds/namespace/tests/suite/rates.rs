//! How fast, on the embedded store: run by hand in release mode,
//! `SLUICE_BENCH_DIR=/some/disk cargo test --release -p sluice-namespace-tests --test suite -- --ignored --nocapture rates`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluice_env::Env;
use sluice_kv::{Database, EmbeddedOptions, RunLimits};
use sluice_namespace::*;

use crate::common::layout;

struct Bench {
    env: Env,
    db: Database,
    ns: Namespace,
    next: AtomicU64,
    attempts: AtomicU64,
}

impl Bench {
    async fn new(dir: &std::path::Path) -> Arc<Self> {
        let env = Env::system();
        let db = Database::open_embedded(env.clone(), dir, EmbeddedOptions::default()).unwrap();
        let mut txn = db.begin();
        let ns = Namespace::load_or_format(&mut txn, &FormatOptions::new(&env)).await.unwrap();
        txn.commit().await.unwrap();
        Arc::new(Self { env, db, ns, next: AtomicU64::new(16), attempts: AtomicU64::new(0) })
    }

    async fn create(&self, directory: InodeKey, called: &str, directory_too: bool) -> InodeKey {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        let mut tried = false;
        let made = self.db.run(RunLimits::default(), |mut txn| {
            let again = std::mem::replace(&mut tried, true);
            let node = if directory_too {
                NewNode::Directory
            } else {
                NewNode::File { layout: Some(layout(n, 4)), read_write_layout: true, size: 0 }
            };
            Box::pin(async move {
                self.attempts.fetch_add(1, Ordering::Relaxed);
                let update = if again { DirectoryUpdate::Blind } else { DirectoryUpdate::Adaptive };
                let request =
                    Request { who: &Credential::ROOT, now: self.env.clock.wall(), directory: update };
                let create = Create {
                    directory,
                    name: Name::new(called.as_bytes())?,
                    node,
                    mode: CreateMode::Guarded,
                    attributes: NewAttributes::mode(0o644),
                    fileid: FileId(n),
                };
                self.ns.create(&mut txn, &create, &request).await
            })
        });
        let (pending, _) = made.await.unwrap_or_else(|e: FsError| panic!("{e}"));
        pending.peek().inode.key
    }
}

/// Prints a row: what, operations a second, attempts for each.
fn row(what: &str, tasks: usize, count: u64, seconds: f64, attempts: u64) {
    let rate = count as f64 / seconds;
    let tries = attempts as f64 / count as f64;
    println!("{what:<28} {tasks:>4} tasks {rate:>10.0} /s  {tries:.2} attempts");
}

async fn creates(bench: &Arc<Bench>, tasks: usize, directories: usize, count: u64) -> Vec<InodeKey> {
    let mut dirs = Vec::new();
    for d in 0..directories {
        dirs.push(bench.create(InodeKey::ROOT, &format!("d{tasks} {directories} {d}"), true).await);
    }
    bench.attempts.store(0, Ordering::Relaxed);
    let begin = bench.env.clock.now();
    let mut set = tokio::task::JoinSet::new();
    for task in 0..tasks {
        let (bench, dir) = (Arc::clone(bench), dirs[task % directories]);
        set.spawn(async move {
            for i in 0..count / tasks as u64 {
                bench.create(dir, &format!("file.{task}.{i}"), false).await;
            }
        });
    }
    set.join_all().await;
    let took = bench.env.clock.now().since(begin).as_secs_f64();
    let what = if directories == 1 { "create, one directory" } else { "create, a directory each" };
    row(what, tasks, count, took, bench.attempts.load(Ordering::Relaxed));
    dirs
}

#[test]
#[ignore = "a measurement"]
fn rates() {
    let at = std::env::var_os("SLUICE_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let count: u64 = std::env::var("SLUICE_BENCH_COUNT").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    let dir = tempfile::tempdir_in(at).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let bench = Bench::new(dir.path()).await;
        for tasks in [1, 8, 64, 256] {
            let count = if tasks == 1 { count / 20 } else { count };
            creates(&bench, tasks, tasks.min(64), count).await;
        }
        let mut shared = Vec::new();
        for tasks in [8, 64, 256] {
            shared = creates(&bench, tasks, 1, count).await;
        }
        reads(&bench, shared[0]).await;
    });
}

/// Listings with and without attributes, lookups, getattrs: of one task.
async fn reads(bench: &Arc<Bench>, dir: InodeKey) {
    let me = Credential::ROOT;
    let mut names = Vec::new();
    for attributes in [false, true] {
        names.clear();
        let begin = bench.env.clock.now();
        let mut after = Cookie(0);
        loop {
            let read = ReadDir { directory: dir, after, limit: 1000, attributes };
            let page = bench.ns.readdir(&bench.db.begin(), &read, &me).await.unwrap();
            after = page.entries.last().map_or(after, |e| e.entry.cookie);
            names.extend(page.entries.into_iter().map(|e| e.entry));
            if page.eof {
                break;
            }
        }
        let took = bench.env.clock.now().since(begin).as_secs_f64();
        let what = if attributes { "readdir with attributes" } else { "readdir, names" };
        row(what, 1, names.len() as u64, took, names.len() as u64);
    }
    let count = names.len() as u64;
    let begin = bench.env.clock.now();
    for entry in &names {
        bench.ns.getattr(&bench.db.begin(), &entry.inode).await.unwrap();
    }
    row("getattr", 1, count, bench.env.clock.now().since(begin).as_secs_f64(), count);
    let begin = bench.env.clock.now();
    for entry in &names {
        bench.ns.lookup(&bench.db.begin(), &dir, &Name::new(&entry.name).unwrap(), &me).await.unwrap();
    }
    row("lookup", 1, count, bench.env.clock.now().since(begin).as_secs_f64(), count);
}
