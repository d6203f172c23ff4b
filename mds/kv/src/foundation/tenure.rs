//! One server at a time: what a locked directory is to the embedded store.
//!
//! ```text
//! NAME/\xff/tenure    identity 16, beat 8, process 8, place 8: who has the store, changed every BEAT while it lives
//! ```
//!
//! A server's identity is in a file that is locked while it runs. After a crash it finds itself in the row, with the place
//! where that file is now, and goes on at once: whoever wrote the row had the lock, and has ended. The same identity at
//! another place is a copy, or the host has begun anew, and is like somebody else's. Such a row is watched for as long as a
//! living server would certainly have changed it: no clocks are compared. A server that finds another process in its row
//! answers nothing more, and one that has not changed its row for [`LEASE`] answers nothing until it has: whoever was
//! stopped and goes on cannot know that it was not replaced meanwhile. Nor is a row its own with another beat than it has
//! written: that is of a machine that runs twice, or of this one before it went back to an older state with all its memory,
//! and what that knows of numbers that are free is not true any more. A commit that it had begun before is refused for its
//! age; that no later one is applied either is the epoch's business ([`crate::RunLimits::guarded_by`]). Releases of old
//! know identity and beat alone.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foundationdb::options::TransactionOption;
use sluice_env::{Env, Monotonic};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use xxhash_rust::xxh3::xxh3_64;

use super::{Foundation, failure};
use crate::KvError;
use crate::lock::LockedFile;

const TENURE_KEY: &[u8] = b"\xff/tenure";

/// Between two changes of the row.
const BEAT: Duration = Duration::from_secs(2);
/// How long after it began to change its row a server may answer.
const LEASE: Duration = Duration::from_secs(6);
/// How long a row was seen unchanged before it is taken. The lease of whoever wrote it ended before: it began before the
/// row was seen, and clocks do not differ by a third.
const SILENCE: Duration = Duration::from_secs(9);
/// Between two looks at another server's row.
const LOOK: Duration = Duration::from_secs(1);
/// Before a change of the row that failed is tried again.
const AGAIN: Duration = Duration::from_millis(200);
/// How often a row is cleared that was just being changed.
const RELEASES: u32 = 5;

const IDENTITY: usize = 16;
/// Another for each start of the host.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Who this server is.
#[derive(Debug)]
pub(crate) struct Tenure {
    identity: [u8; IDENTITY],
    process: [u8; 8],
    place: [u8; 8],
    _lock: LockedFile,
}

/// What a row says of whoever wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    /// This process.
    Us,
    /// One that has ended.
    Before,
    /// It may live.
    Another,
}

impl Tenure {
    /// Reads the identity in `file`, or draws one, and locks it.
    pub(crate) fn of(file: &Path, env: &Env) -> Result<Self, KvError> {
        let failed = |e: io::Error| KvError::Io { what: format!("using {}: {e}", file.display()) };
        let open = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(file)
            .map_err(failed)?;
        let lock = LockedFile::new(open, file, failed)?;
        let (mut open, mut stored) = (lock.file(), Vec::new());
        open.read_to_end(&mut stored).map_err(failed)?;
        let identity = match <[u8; IDENTITY]>::try_from(&stored[..]) {
            Ok(identity) => identity,
            Err(_) if stored.is_empty() => {
                let identity = env.random.array();
                open.write_all(&identity).and_then(|()| open.sync_all()).map_err(failed)?;
                identity
            }
            // Cut off by a crash when it was first written, or something else.
            Err(_) => {
                let what = format!("{} does not hold {IDENTITY} bytes: remove it", file.display());
                return Err(KvError::Corrupt { what });
            }
        };
        let process = env.random.array();
        // Without a place nobody is known to have ended.
        let place = place(lock.file()).unwrap_or(process);
        Ok(Self { identity, process, place, _lock: lock })
    }

    fn row(&self, beat: u64) -> Vec<u8> {
        [&self.identity[..], &beat.to_be_bytes(), &self.process, &self.place].concat()
    }

    fn writer(&self, row: &[u8]) -> Writer {
        let Some(rest) = row.strip_prefix(&self.identity).and_then(|rest| rest.get(8..)) else {
            return Writer::Another;
        };
        match rest.split_at_checked(8) {
            Some((process, _)) if process == self.process => Writer::Us,
            Some((_, place)) if place == self.place => Writer::Before,
            _ => Writer::Another,
        }
    }

    fn is_ours(&self, row: Option<&[u8]>) -> bool {
        row.is_some_and(|row| self.writer(row) == Writer::Us)
    }

    /// Ours, and of one of these beats.
    fn is_ours_of(&self, row: Option<&[u8]>, beats: &Range<u64>) -> bool {
        let beat = |row: &[u8]| row.get(IDENTITY..)?.first_chunk().copied().map(u64::from_be_bytes);
        self.is_ours(row) && row.and_then(beat).is_some_and(|beat| beats.contains(&beat))
    }
}

/// This very file, of this host as long as it runs.
fn place(file: &File) -> io::Result<[u8; 8]> {
    let (boot, found) = (fs::read(BOOT)?, file.metadata()?);
    let of = [&boot[..], &found.dev().to_be_bytes(), &found.ino().to_be_bytes()].concat();
    Ok(xxh3_64(&of).to_be_bytes())
}

/// What to write, for what was read.
type Decide<'a> = &'a (dyn Fn(Option<&[u8]>) -> Option<Vec<u8>> + Sync);

/// The row, wherever it is.
trait Row: Sync {
    /// Reads it under conflict and writes what `decide` says, if anything; an empty value clears it. Returns what was
    /// read.
    fn step(&self, decide: Decide<'_>) -> impl Future<Output = Result<Option<Vec<u8>>, KvError>> + Send;
}

/// Until when this server may answer.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    until: AtomicU64,
    changed: Notify,
}

impl Lease {
    pub(crate) fn holds(&self, now: Monotonic) -> bool {
        now.0 < self.until.load(Ordering::Acquire)
    }

    /// Counts from before the row was changed.
    fn renew(&self, began: Monotonic) {
        let until = began.0.saturating_add(u64::try_from(LEASE.as_nanos()).unwrap_or(u64::MAX));
        self.until.fetch_max(until, Ordering::AcqRel);
        self.changed.notify_waiters();
    }

    pub(crate) fn ended(&self) {
        self.until.store(0, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Completes at the next change from now on.
    pub(crate) fn renewed(&self) -> Notified<'_> {
        self.changed.notified()
    }
}

/// Takes the store, or finds that a living server has it; a `standby` waits until none has, and is told when it begins to.
pub(crate) async fn take(
    store: &Foundation,
    tenure: &Tenure,
    standby: Option<&Notify>,
) -> Result<(), KvError> {
    let taken = wait(store, &store.env, tenure, standby).await?;
    store.lease.renew(taken.ok_or_else(|| KvError::InUse { dir: store.space.place() })?);
    Ok(())
}

/// When it began to take it; `None`: a living server has it.
async fn wait(
    row: &impl Row,
    env: &Env,
    tenure: &Tenure,
    standby: Option<&Notify>,
) -> Result<Option<Monotonic>, KvError> {
    let clock = &env.clock;
    let free = |row: Option<&[u8]>| row.is_none_or(|row| tenure.writer(row) != Writer::Another);
    // Another server's row, and since when it has been the same.
    let mut seen: Option<(Vec<u8>, Monotonic)> = None;
    loop {
        let began = clock.now();
        let silent = seen.clone().filter(|(_, since)| began.since(*since) >= SILENCE).map(|(row, _)| row);
        let may_take = |row: Option<&[u8]>| free(row) || row == silent.as_deref();
        let found = row.step(&|row| may_take(row).then(|| tenure.row(0))).await;
        // The other may have changed its row for as long as it had not been read.
        let read = clock.now();
        match (found, &mut seen) {
            (Ok(row), _) if may_take(row.as_deref()) => return Ok(Some(began)),
            (Ok(row), None) => {
                tracing::info!("another server had this store; waiting to see whether it lives");
                seen = Some((row.unwrap_or_default(), read));
                if let Some(told) = standby {
                    told.notify_one();
                }
            }
            (Ok(row), Some((known, _))) if row.as_deref() == Some(known) => {}
            (Ok(row), Some(seen)) if standby.is_some() => *seen = (row.unwrap_or_default(), read),
            (Ok(_), Some(_)) => return Ok(None),
            // What became of it is in the row.
            (Err(KvError::Conflict | KvError::TooOld | KvError::CommitUnknown), _) => {}
            // A cluster that is away keeps the other server from changing its row: that is no silence.
            (Err(error), Some((_, since))) if standby.is_some() => {
                tracing::warn!(%error, "the store is away; waiting");
                *since = read;
            }
            (Err(error), _) => return Err(error),
        }
        clock.sleep(LOOK).await;
    }
}

/// Changes the row for as long as the store is in use.
pub(crate) async fn keep(store: Weak<Foundation>, env: Env) {
    let mut next = env.clock.now() + BEAT;
    // From the last that is known to be in the row to the next: those between may have been written.
    let mut beats = 0..1;
    loop {
        env.clock.sleep_until(next).await;
        let Some(store) = store.upgrade() else { return };
        let Some(tenure) = store.tenure.as_ref().filter(|_| store.goes_on().is_ok()) else { return };
        let began = env.clock.now();
        match renew(&*store, &store.lease, tenure, &mut beats, began).await {
            Ok(true) => {}
            Ok(false) => return store.lose(),
            Err(error) => tracing::warn!(%error, "the store's tenure was not renewed"),
        }
        next = next_beat(began, env.clock.now());
    }
}

/// The lease counts from when the row began to be changed, and so do beats: what took long is not waited for again.
fn next_beat(began: Monotonic, now: Monotonic) -> Monotonic {
    (began + BEAT).max(now + AGAIN)
}

/// False: somebody else has the store. `beats`: which of ours the row may have, and behind them the one that it gets.
async fn renew(
    row: &impl Row,
    lease: &Lease,
    tenure: &Tenure,
    beats: &mut Range<u64>,
    began: Monotonic,
) -> Result<bool, KvError> {
    let (may_be, beat) = (beats.clone(), beats.end);
    // Whatever becomes of it, it is not written again.
    beats.end += 1;
    let found = row.step(&|row| tenure.is_ours_of(row, &may_be).then(|| tenure.row(beat))).await?;
    let ours = tenure.is_ours_of(found.as_deref(), &may_be);
    if ours {
        beats.start = beat;
        lease.renew(began);
    }
    Ok(ours)
}

/// Lets the next server begin at once.
pub(crate) async fn release(store: &Foundation) -> Result<(), KvError> {
    let Some(tenure) = &store.tenure else { return Ok(()) };
    clear(store, &store.env, tenure).await
}

/// A beat of our own may be on its way.
async fn clear(row: &impl Row, env: &Env, tenure: &Tenure) -> Result<(), KvError> {
    for _ in 1..RELEASES {
        match row.step(&|row| tenure.is_ours(row).then(Vec::new)).await {
            Err(KvError::Conflict | KvError::TooOld | KvError::CommitUnknown) => env.clock.sleep(AGAIN).await,
            done => return done.map(drop),
        }
    }
    row.step(&|row| tenure.is_ours(row).then(Vec::new)).await.map(drop)
}

impl Row for Foundation {
    async fn step(&self, decide: Decide<'_>) -> Result<Option<Vec<u8>>, KvError> {
        let transaction = self.begin()?;
        // It waits behind nobody's load: a lease that lapses costs everybody.
        transaction.set_option(TransactionOption::PrioritySystemImmediate).map_err(failure::of_call)?;
        let key = self.space.key(TENURE_KEY);
        let row = self.wait(transaction.get(&key, false)).await.map_err(failure::of_read)?;
        let row = row.map(|row| row.to_vec());
        let Some(next) = decide(row.as_deref()) else { return Ok(row) };
        transaction.set_option(TransactionOption::Timeout(0)).map_err(failure::of_call)?;
        if next.is_empty() {
            transaction.clear(&key);
        } else {
            transaction.set(&key, &next);
        }
        match self.wait(transaction.commit()).await {
            Ok(_) => Ok(row),
            Err(error) => Err(failure::of_commit(*error, key.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use parking_lot::Mutex;

    use super::*;

    /// The row of a test, how long it takes to read it, and how often it is being changed by another just then.
    struct Here {
        env: Env,
        row: Mutex<Option<Vec<u8>>>,
        slow: Mutex<Duration>,
        conflicts: Mutex<u32>,
    }

    impl Row for Here {
        async fn step(&self, decide: Decide<'_>) -> Result<Option<Vec<u8>>, KvError> {
            let slow = *self.slow.lock();
            self.env.clock.sleep(slow).await;
            let mut conflicts = self.conflicts.lock();
            if *conflicts > 0 {
                *conflicts -= 1;
                return Err(KvError::Conflict);
            }
            let mut row = self.row.lock();
            let found = row.clone();
            if let Some(next) = decide(found.as_deref()) {
                *row = Some(next);
            }
            Ok(found)
        }
    }

    struct World {
        env: Env,
        here: Here,
        folder: tempfile::TempDir,
    }

    impl World {
        fn new() -> Self {
            let env = Env::simulated(1);
            let here = Here {
                env: env.clone(),
                row: Mutex::default(),
                slow: Mutex::default(),
                conflicts: Mutex::default(),
            };
            Self { env, here, folder: tempfile::tempdir().unwrap() }
        }

        fn file(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        fn tenure(&self, name: &str) -> Tenure {
            Tenure::of(&self.file(name), &self.env).unwrap()
        }

        async fn wait(&self, tenure: &Tenure, standby: bool) -> Option<Duration> {
            let told = Notify::new();
            self.wait_as(tenure, standby.then_some(&told)).await
        }

        async fn wait_as(&self, tenure: &Tenure, standby: Option<&Notify>) -> Option<Duration> {
            let began = self.env.clock.now();
            let taken = wait(&self.here, &self.env, tenure, standby).await.unwrap()?;
            Some(taken.since(began))
        }

        async fn beats(&self, tenure: &Tenure) {
            for beat in 1.. {
                self.env.clock.sleep(BEAT).await;
                *self.here.row.lock() = Some(tenure.row(beat));
            }
        }

        /// What a waiting server comes to while that one lives.
        async fn wait_beside(&self, lives: &Tenure, tenure: &Tenure) -> Option<Duration> {
            tokio::select! {
                () = self.beats(lives) => unreachable!(),
                taken = self.wait(tenure, false) => taken,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_was_killed_goes_on_at_once() {
        let w = World::new();
        let first = w.tenure("a");
        assert_eq!(w.wait(&first, false).await, Some(Duration::ZERO));
        drop(first);
        let again = w.tenure("a");
        assert_eq!(w.wait(&again, false).await, Some(Duration::ZERO));
        assert!(again.is_ours(w.here.row.lock().as_deref()));
    }

    /// A data directory that was copied to another host, or moved while its server lives.
    #[tokio::test(start_paused = true)]
    async fn a_copied_identity_is_another_server() {
        let w = World::new();
        let first = w.tenure("a");
        w.wait(&first, false).await.unwrap();
        fs::copy(w.file("a"), w.file("copy")).unwrap();
        let copy = w.tenure("copy");
        assert_eq!(w.wait_beside(&first, &copy).await, None);
        // When it is silent the copy takes it, and it finds out when it goes on.
        assert!(w.wait(&copy, false).await.unwrap() >= SILENCE);
        assert!(!first.is_ours(w.here.row.lock().as_deref()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_of_old_finds_what_it_knows_and_is_told_from_ours() {
        let w = World::new();
        let ours = w.tenure("a");
        let mut row = ours.row(7);
        assert_eq!(row.drain(..24).collect::<Vec<_>>(), [&ours.identity[..], &7u64.to_be_bytes()].concat());
        // It may live, somewhere, with a copy.
        let old = [&ours.identity[..], &7u64.to_be_bytes()].concat();
        *w.here.row.lock() = Some(old.clone());
        assert_eq!(ours.writer(&old), Writer::Another);
        assert!(w.wait(&ours, false).await.unwrap() >= SILENCE);
    }

    /// The lease of whoever changed the row just before it was read lasts longer than from when the read began.
    #[tokio::test(start_paused = true)]
    async fn silence_begins_when_the_row_was_read() {
        let w = World::new();
        let (first, second) = (w.tenure("a"), w.tenure("b"));
        w.wait(&first, false).await.unwrap();
        let slow = Duration::from_secs(5);
        *w.here.slow.lock() = slow;
        let changes = async {
            w.env.clock.sleep(slow - Duration::from_millis(1)).await;
            *w.here.row.lock() = Some(first.row(9));
            *w.here.slow.lock() = Duration::ZERO;
        };
        let (taken, ()) = tokio::join!(w.wait(&second, true), changes);
        assert!(taken.unwrap() >= slow + SILENCE, "{taken:?}");
    }

    /// Its service manager takes it for started then, and for nothing less.
    #[tokio::test(start_paused = true)]
    async fn a_standby_says_that_it_waits_and_takes_what_is_free_without_a_word() {
        let w = World::new();
        let (first, second) = (w.tenure("a"), w.tenure("b"));
        let told = Notify::new();
        let is_told = async || w.env.clock.timeout(BEAT, told.notified()).await.is_ok();
        assert_eq!(w.wait_as(&first, Some(&told)).await, Some(Duration::ZERO));
        assert!(!is_told().await, "nobody had it");
        tokio::select! {
            () = w.beats(&first) => unreachable!(),
            taken = w.wait_as(&second, Some(&told)) => panic!("{taken:?}: the first one lives"),
            told = is_told() => assert!(told, "it waits"),
        }
    }

    /// A cluster that recovers for almost as long as a lease, twice in a row.
    #[tokio::test(start_paused = true)]
    async fn a_lease_lapses_for_as_long_as_the_store_is_away_and_no_longer() {
        let w = World::new();
        let (tenure, lease) = (w.tenure("a"), Lease::default());
        w.wait(&tenure, false).await.unwrap();
        let (mut began, mut beats) = (w.env.clock.now(), 0..1);
        lease.renew(began);
        for beat in 1..4 {
            let next = next_beat(began, w.env.clock.now());
            w.env.clock.sleep_until(next).await;
            *w.here.slow.lock() = LEASE - Duration::from_millis(500);
            began = w.env.clock.now();
            assert!(renew(&w.here, &lease, &tenure, &mut beats, began).await.unwrap());
            assert!(beat == 1 || lease.holds(w.env.clock.now()), "beat {beat}");
            // The next one is not late: what the last one left of the lease is enough to begin it.
            assert!(lease.holds(next_beat(began, w.env.clock.now())), "beat {beat}");
            *w.here.slow.lock() = Duration::ZERO;
            began = w.env.clock.now();
            assert!(renew(&w.here, &lease, &tenure, &mut beats, began).await.unwrap());
        }
    }

    /// Its machine went back to an older state, or goes on twice: what it has in memory is not how things are.
    #[tokio::test(start_paused = true)]
    async fn a_beat_that_was_not_written_is_somebody_elses() {
        let w = World::new();
        let (tenure, lease) = (w.tenure("a"), Lease::default());
        w.wait(&tenure, false).await.unwrap();
        let mut beats = 0..1;
        let beat_once =
            async |beats: &mut Range<u64>| renew(&w.here, &lease, &tenure, beats, w.env.clock.now()).await;
        assert!(beat_once(&mut beats).await.unwrap());
        let older = beats.clone();
        for _ in 0..3 {
            assert!(beat_once(&mut beats).await.unwrap());
        }
        assert!(!beat_once(&mut older.clone()).await.unwrap(), "as it was before");
        // What nobody knows the end of may have been written, or not.
        for written in [false, true] {
            *w.here.conflicts.lock() = 1;
            let beat = beats.end;
            assert!(beat_once(&mut beats).await.is_err());
            if written {
                *w.here.row.lock() = Some(tenure.row(beat));
            }
            assert!(beat_once(&mut beats).await.unwrap(), "{written}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_row_that_is_being_changed_is_cleared_all_the_same() {
        let w = World::new();
        let first = w.tenure("a");
        w.wait(&first, false).await.unwrap();
        *w.here.conflicts.lock() = 2;
        clear(&w.here, &w.env, &first).await.unwrap();
        assert_eq!(w.here.row.lock().as_deref().unwrap_or_default(), b"", "the next one takes it at once");
        *w.here.conflicts.lock() = RELEASES;
        assert!(clear(&w.here, &w.env, &first).await.is_err());
    }
}
