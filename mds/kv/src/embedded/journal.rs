//! Mends the engine's journals after a power loss, before the engine reads them.
//!
//! Each group is one batch, synced before the next is written, so a power loss can tear only the last
//! batch of the newest journal that has one, and nobody heard that it committed. Its pages reach the device in
//! any order. The engine discards a last batch that stops short; but one with a hole in the middle it
//! takes for damage and refuses to open, and damage further up it takes for the end and silently
//! discards what follows. So we look first: a bad batch with nothing good behind it is cut off, one
//! with good batches behind it is damage to acknowledged commits and refused. Data of clients is in the torn batch, and may
//! look like a batch: one is good only if it has the store's mark, which nobody else knows.
//!
//! After a sync that failed the last batch may be whole for whoever reads it, and not be on the device, nor ever get there:
//! the kernel keeps such pages, and takes them for written. So the last batch is written again, as it was the first time.
//!
//! The layout below is that of the engine's disk format 3, uncompressed; a test compares it with
//! what the engine writes.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use xxhash_rust::xxh3::Xxh3;

use crate::KvError;
use crate::embedded::directory::{Mark, io_error};
use crate::embedded::engine::MARK_KEY;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
/// What a batch ends with.
const TRAILER: &[u8] = b"FJL\x03";
/// Tag, kind, compression, keyspace, and the lengths of key, value and stored value.
const ITEM_HEADER: usize = 1 + 1 + 1 + 8 + 2 + 4 + 4;
const START_HEADER: usize = 1 + 4 + 8;

/// Bytes of a batch beside the items of its caller: what it begins and ends with, version and mark.
pub(crate) const BATCH_BYTES: u64 = 128;

/// Bytes of an item in a batch.
pub(crate) fn item_bytes(key: &[u8], value: Option<&[u8]>) -> u64 {
    (ITEM_HEADER + key.len() + value.map_or(0, <[u8]>::len)) as u64
}

/// The journal that is written to.
pub(crate) fn newest(engine: &Path) -> io::Result<Option<PathBuf>> {
    Ok(listed(engine)?.pop().map(|(_, path)| path))
}

/// Checks every journal in `engine`, cuts a torn last batch off, and sees to it that what is left is on the device.
/// `mark`: that of the store, if it has one.
pub(crate) fn mend(engine: &Path, mark: Option<&Mark>) -> Result<(), KvError> {
    let (mut last, mut torn): (_, Option<(PathBuf, usize)>) = (None, None);
    for (_, path) in journals(engine)? {
        let bytes = read(&path)?;
        let (good, bad) = batches(&bytes);
        // Later journals may have no batch yet: the next is written only when this one is synced.
        if let Some((path, at)) = torn.as_ref().filter(|_| good.is_some() || bad.is_some()) {
            return Err(damaged(path, *at));
        }
        if let Some(at) = bad {
            if good_batch_after(&bytes, at, mark) {
                return Err(damaged(&path, at));
            }
            torn = Some((path.clone(), at));
        }
        last = good.map(|batch| (path, batch.start, bytes[batch].to_vec())).or(last);
    }
    if let Some((path, at)) = torn {
        cut(&path, at).map_err(|e| io_error("mending", &path, &e))?;
        tracing::info!(journal = %path.display(), at, "cut off a batch torn by a power loss; it was not acknowledged");
    }
    let Some((path, at, batch)) = last else { return Ok(()) };
    write_again(&path, at, &batch).map_err(|e| io_error("mending", &path, &e))
}

fn cut(path: &Path, at: usize) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    file.set_len(at as u64)?;
    file.sync_all()
}

/// The same bytes in the same place, and nothing else: a power loss meanwhile leaves what one may have left the first time.
/// Batches before it were synced before it was written.
fn write_again(path: &Path, at: usize, batch: &[u8]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    file.write_all_at(batch, at as u64)?;
    file.sync_all()
}

fn damaged(path: &Path, at: usize) -> KvError {
    KvError::Corrupt {
        what: format!("{} is damaged at byte {at}, with acknowledged commits behind it", path.display()),
    }
}

/// What the file has blocks for: the rest is a hole, tens of megabytes of zeroes.
fn read(path: &Path) -> Result<Vec<u8>, KvError> {
    let read = || {
        let mut file = File::open(path)?;
        let (mut from, mut end) = (0, 0);
        loop {
            match rustix::fs::seek(&file, SeekFrom::Data(from)) {
                Ok(data) => end = rustix::fs::seek(&file, SeekFrom::Hole(data))?,
                Err(Errno::NXIO) => break,
                Err(error) => return Err(error.into()),
            }
            from = end;
        }
        file.rewind()?;
        let mut bytes = Vec::with_capacity(usize::try_from(end).unwrap_or(0));
        file.take(end).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|e| io_error("reading", path, &e))
}

/// Oldest first.
fn journals(engine: &Path) -> Result<Vec<(u64, PathBuf)>, KvError> {
    listed(engine).map_err(|e| io_error("reading", engine, &e))
}

fn listed(engine: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(engine)? {
        let path = entry?.path();
        let number = path.file_stem().and_then(|s| s.to_str()).and_then(|s| s.parse().ok());
        if let Some(number) = number
            && path.extension().is_some_and(|e| e == "jnl")
        {
            found.push((number, path));
        }
    }
    found.sort();
    Ok(found)
}

/// The last of the good batches that the journal begins with, and where the first bad one begins: `None` when they are
/// followed by nothing but the zeros of preallocation.
fn batches(bytes: &[u8]) -> (Option<Range<usize>>, Option<usize>) {
    let (mut at, mut last) = (0, None);
    while let Some(end) = batch(bytes, at) {
        last = Some(at..end);
        at = end;
    }
    (last, bytes.iter().skip(at).any(|&b| b != 0).then_some(at))
}

fn good_batch_after(bytes: &[u8], bad: usize, mark: Option<&Mark>) -> bool {
    let marks = mark.map(|mark| marks(bytes, mark));
    let is_ours = |batch: Range<usize>| {
        marks
            .as_ref()
            .is_none_or(|marks| marks.iter().any(|(from, to)| batch.start <= *from && *to <= batch.end))
    };
    let mut chains = Chains { bytes, known: HashMap::new() };
    // Sums are compared last: data of clients may be made so that very many look like batches until then.
    (bad + 1..bytes.len()).any(|at| {
        bytes[at] == START
            && chains.batch(at).is_some_and(|end| is_ours(at..end))
            && batch(bytes, at).is_some()
    })
}

/// Where the mark is: once in each batch of ours, and nowhere else.
fn marks(bytes: &[u8], mark: &Mark) -> Vec<(usize, usize)> {
    let row = [MARK_KEY, mark].concat();
    let all = bytes.windows(row.len()).enumerate().filter(|(_, part)| *part == row);
    all.map(|(at, _)| (at, at + row.len())).collect()
}

/// How many items follow each other from some place on, and where they end.
#[derive(Clone, Copy)]
struct Way {
    items: usize,
    end: usize,
}

/// Ways from very many places: data of clients may be made of what looks like items, and all of it be on the way from each
/// place that looks like the beginning of a batch. What is known of a way is known of each that leads into it.
struct Chains<'a> {
    bytes: &'a [u8],
    /// From one in so many places ([`Chains::APART`]), or there would be no room for them.
    known: HashMap<usize, Way>,
}

impl Chains<'_> {
    const APART: usize = 64;

    /// The end of what is a batch that begins at `at`, unless its sum is wrong.
    fn batch(&mut self, at: usize) -> Option<usize> {
        let count = number::<4>(self.bytes, at + 1)?;
        let way = self.way(at + START_HEADER);
        if way.items == count { end_of(self.bytes, way.end) } else { None }
    }

    fn way(&mut self, from: usize) -> Way {
        let (mut at, mut items) = (from, 0);
        let mut passed = Vec::new();
        let rest = loop {
            if let Some(known) = self.known.get(&at) {
                break *known;
            }
            let Some(end) = item(self.bytes, at) else { break Way { items: 0, end: at } };
            if items % Self::APART == Self::APART - 1 {
                passed.push((at, items));
            }
            (at, items) = (end, items + 1);
        };
        let all = items + rest.items;
        self.known
            .extend(passed.into_iter().map(|(at, before)| (at, Way { items: all - before, end: rest.end })));
        Way { items: all, end: rest.end }
    }
}

/// The end of the good batch that begins at `at`.
fn batch(bytes: &[u8], mut at: usize) -> Option<usize> {
    if *bytes.get(at)? != START {
        return None;
    }
    let count = number::<4>(bytes, at + 1)?;
    at += START_HEADER;
    let mut hash = Xxh3::new();
    for _ in 0..count {
        let end = item(bytes, at)?;
        hash.update(bytes.get(at..end)?);
        at = end;
    }
    let end = end_of(bytes, at)?;
    (bytes[at + 1..at + 9] == hash.digest().to_le_bytes()).then_some(end)
}

/// The end of the item that begins at `at`.
fn item(bytes: &[u8], at: usize) -> Option<usize> {
    let end = match *bytes.get(at)? {
        ITEM => {
            let key = number::<2>(bytes, at + 11)?;
            let stored = number::<4>(bytes, at + 17)?;
            at.checked_add(ITEM_HEADER)?.checked_add(key)?.checked_add(stored)?
        }
        CLEAR => at + 9,
        _ => return None,
    };
    (end <= bytes.len()).then_some(end)
}

/// The end of a batch whose items end at `at`, whatever its sum.
fn end_of(bytes: &[u8], at: usize) -> Option<usize> {
    let trailer = bytes.get(at + 9..at + 9 + TRAILER.len())?;
    (bytes[at] == END && trailer == TRAILER).then_some(at + 9 + TRAILER.len())
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<usize> {
    let mut raw = [0; 8];
    raw[..N].copy_from_slice(bytes.get(at..at + N)?);
    usize::try_from(u64::from_le_bytes(raw)).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::time::{Duration, SystemTime};

    use bytes::Bytes;
    use rustix::fs::FallocateFlags;
    use sluice_env::Env;

    use super::*;
    use crate::{Database, EmbeddedOptions};

    const PAGE: usize = 4096;
    const COMMITS: usize = 3;

    fn open(dir: &Path) -> Result<Database, KvError> {
        open_with(dir, 1)
    }

    fn open_with(dir: &Path, seed: u64) -> Result<Database, KvError> {
        Database::open_embedded(Env::simulated(seed), dir, EmbeddedOptions::default())
    }

    /// A store with three commits of several pages each; returns its journal and where its batches begin.
    async fn store(dir: &Path) -> (PathBuf, Vec<usize>) {
        store_with(dir, 1).await
    }

    async fn store_with(dir: &Path, seed: u64) -> (PathBuf, Vec<usize>) {
        let db = open_with(dir, seed).unwrap();
        for n in 0..COMMITS {
            let mut tx = db.begin();
            for part in 0..4 {
                // Compressible and longer than the engine's threshold for compressing.
                tx.set(format!("k{n}{part}"), vec![b'a' + u8::try_from(n).unwrap(); 6000]);
            }
            tx.clear(format!("gone{n}"));
            tx.commit().await.unwrap();
        }
        db.close().await.unwrap();
        let (_, path) = journals(&dir.join("engine")).unwrap().pop().unwrap();
        let bytes = read(&path).unwrap();
        let mut starts = vec![0];
        while let Some(end) = batch(&bytes, *starts.last().unwrap()) {
            starts.push(end);
        }
        (path, starts)
    }

    async fn keys(db: &Database) -> Vec<Bytes> {
        let all = db.begin().range(&crate::KeyRange::all(), 100, false).await.unwrap();
        all.into_iter().map(|(k, _)| k).collect()
    }

    fn zero(path: &Path, from: usize, to: usize) {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(&vec![0; to - from], from as u64).unwrap();
    }

    #[tokio::test]
    async fn the_layout_is_what_the_engine_writes() {
        let dir = tempfile::tempdir().unwrap();
        let (path, starts) = store(dir.path()).await;
        // One batch creates the store, and each group is one; behind them are zeros.
        assert_eq!(starts.len(), 1 + COMMITS + 1, "{starts:?}");
        assert_eq!(batches(&read(&path).unwrap()), (Some(starts[COMMITS]..starts[COMMITS + 1]), None));
        // The hole behind what was read is more of them.
        assert!(read(&path).unwrap().len() < 1 << 20 && fs::metadata(path).unwrap().len() == 64 << 20);
    }

    #[tokio::test]
    async fn a_torn_last_batch_is_cut_off_whatever_pages_are_missing() {
        let dir = tempfile::tempdir().unwrap();
        let (path, starts) = store(dir.path()).await;
        let [.., from, to] = starts[..] else { panic!("{starts:?}") };
        let intact = read(&path).unwrap();
        let pages: Vec<_> = (from / PAGE..=(to - 1) / PAGE).collect();
        assert!(pages.len() > 4);
        for lost in 1u32..1 << pages.len() {
            let mut bytes = intact.clone();
            for (_, page) in pages.iter().enumerate().filter(|(i, _)| lost & (1 << i) != 0) {
                bytes[(page * PAGE).max(from)..((page + 1) * PAGE).min(to)].fill(0);
            }
            fs::write(&path, bytes).unwrap();
            let db = open(dir.path()).unwrap();
            assert_eq!(keys(&db).await.len(), 4 * (COMMITS - 1), "lost {lost:b}");
            drop(db);
            if lost % 7 == 0 {
                // And it goes on from there.
                let db = open(dir.path()).unwrap();
                let mut tx = db.begin();
                tx.set("more", "v");
                tx.commit().await.unwrap();
                drop(db);
                assert_eq!(keys(&open(dir.path()).unwrap()).await.len(), 4 * (COMMITS - 1) + 1);
            }
            fs::write(&path, &intact).unwrap();
        }
    }

    /// The last batch has a value that is a batch, as the engine writes it, and is torn.
    async fn torn_around_a_batch(dir: &Path, inner: &[u8]) -> PathBuf {
        let (path, starts) = store(dir).await;
        let db = open(dir).unwrap();
        let mut tx = db.begin();
        tx.set("a", vec![b'x'; 6000]);
        tx.set("b", inner.to_vec());
        tx.commit().await.unwrap();
        db.close().await.unwrap();
        let from = starts.last().unwrap();
        zero(&path, from + 1000, from + 1100);
        path
    }

    #[tokio::test]
    async fn what_a_client_wrote_is_no_batch() {
        // Of another store: whoever can make a batch does not know the mark.
        let other = tempfile::tempdir().unwrap();
        let (path, starts) = store_with(other.path(), 2).await;
        let batch = read(&path).unwrap()[starts[1]..starts[2]].to_vec();
        let dir = tempfile::tempdir().unwrap();
        torn_around_a_batch(dir.path(), &batch).await;
        assert_eq!(keys(&open(dir.path()).unwrap()).await.len(), 4 * COMMITS);

        // A store that was made without a mark cannot tell, and must not lose what was acknowledged.
        let dir = tempfile::tempdir().unwrap();
        torn_around_a_batch(dir.path(), &batch).await;
        fs::remove_file(dir.path().join("MARK")).unwrap();
        assert!(matches!(open(dir.path()).unwrap_err(), KvError::Corrupt { .. }));
    }

    /// Clients write whatever they like: here, nothing but what a batch may go on with, and many beginnings of one.
    #[test]
    fn what_looks_like_many_batches_is_gone_through_once() {
        let tail = [CLEAR, 0, 0, 0, 0, START, 0, 0, 0].repeat((4 << 20) / 9);
        let clock = Env::system().clock;
        let begun = clock.now();
        assert!(!good_batch_after(&tail, 0, None));
        assert!(clock.now() - begun < Duration::from_secs(10), "{:?}", clock.now() - begun);
    }

    /// One that clears so many rows.
    fn small_batch(rows: u8) -> Vec<u8> {
        let items = [CLEAR, 7, 7, 7, 7, 7, 7, 7, 7].repeat(rows.into());
        let mut hash = Xxh3::new();
        hash.update(&items);
        let begin = [START, rows, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7];
        [&begin, &*items, &[END], &hash.digest().to_le_bytes(), TRAILER].concat()
    }

    /// Wherever it is in what looks like others, and whatever leads to the same end.
    #[test]
    fn a_batch_is_good_however_it_is_found() {
        let env = Env::simulated(1);
        let below = |most: usize| usize::try_from(env.random.u64()).unwrap() % most;
        let mut good = 0;
        for _ in 0..20_000 {
            let mut bytes: Vec<u8> =
                (0..400).map(|_| [0, 0, 0, START, CLEAR, CLEAR, END][below(7)]).collect();
            let batch_there = small_batch(u8::try_from(below(20)).unwrap());
            let at = 1 + below(400 - batch_there.len() - 1);
            bytes[at..at + batch_there.len()].copy_from_slice(&batch_there);
            if below(2) == 0 {
                // Damaged, or not at all.
                bytes[at + below(batch_there.len())] = below(5) as u8;
            }
            let there = (1..bytes.len()).any(|at| batch(&bytes, at).is_some());
            assert_eq!(good_batch_after(&bytes, 0, None), there, "{bytes:?}");
            good += usize::from(there);
        }
        assert!((10_000..19_000).contains(&good), "{good}");
    }

    /// A journal behind that of [`store`], with these bytes.
    fn next_journal(path: &Path, bytes: &[u8]) {
        let number: u64 = path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
        let next = path.with_file_name(format!("{}.jnl", number + 1));
        fs::write(&next, bytes).unwrap();
        OpenOptions::new().write(true).open(next).unwrap().set_len(64 << 20).unwrap();
    }

    /// As when a sync failed, and another that the next journal was begun after did not.
    #[tokio::test]
    async fn a_torn_batch_is_the_last_while_no_later_journal_has_one() {
        let dir = tempfile::tempdir().unwrap();
        let (path, starts) = store(dir.path()).await;
        let [.., from, _] = starts[..] else { panic!("{starts:?}") };
        zero(&path, from + 1000, from + 1100);
        next_journal(&path, b"");
        assert_eq!(keys(&open(dir.path()).unwrap()).await.len(), 4 * (COMMITS - 1));
        // And it goes on from there.
        let db = open(dir.path()).unwrap();
        let mut tx = db.begin();
        tx.set("more", "v");
        tx.commit().await.unwrap();
        drop(db);
        assert_eq!(keys(&open(dir.path()).unwrap()).await.len(), 4 * (COMMITS - 1) + 1);
    }

    #[tokio::test]
    async fn a_torn_batch_with_a_later_journal_s_behind_it_is_refused() {
        for torn_too in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (path, starts) = store(dir.path()).await;
            let [.., from, _] = starts[..] else { panic!("{starts:?}") };
            let mut later = read(&path).unwrap()[starts[1]..starts[2]].to_vec();
            if torn_too {
                later[1000..1100].fill(0);
            }
            zero(&path, from + 1000, from + 1100);
            next_journal(&path, &later);
            let before = read(&path).unwrap();
            let error = open(dir.path()).unwrap_err();
            assert!(matches!(error, KvError::Corrupt { .. }), "{error}");
            assert!(read(&path).unwrap() == before, "it is left as it was found");
        }
    }

    fn set_written(path: &Path, at: SystemTime) {
        OpenOptions::new().write(true).open(path).unwrap().set_modified(at).unwrap();
    }

    fn written(path: &Path) -> SystemTime {
        fs::metadata(path).unwrap().modified().unwrap()
    }

    /// After a failed sync the kernel may keep a batch in memory for whoever reads it, and never write it.
    #[tokio::test]
    async fn the_last_batch_is_written_again_and_is_what_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let (path, starts) = store(dir.path()).await;
        let engine = dir.path().join("engine");
        let before = read(&path).unwrap();
        set_written(&path, SystemTime::UNIX_EPOCH);
        mend(&engine, None).unwrap();
        assert!(written(&path) > SystemTime::UNIX_EPOCH);
        assert!(read(&path).unwrap() == before);
        // The engine may have begun another journal, which has none yet.
        let next = engine.join("77.jnl");
        File::create_new(&next).unwrap().set_len(64 << 20).unwrap();
        set_written(&path, SystemTime::UNIX_EPOCH);
        mend(&engine, None).unwrap();
        assert!(written(&path) > SystemTime::UNIX_EPOCH);
        fs::remove_file(&next).unwrap();
        // Behind one that is torn is none that was acknowledged; the one before it may be the last.
        let [.., from, to] = starts[..] else { panic!("{starts:?}") };
        zero(&path, from + 1000, from + 1100);
        set_written(&path, SystemTime::UNIX_EPOCH);
        mend(&engine, None).unwrap();
        assert!(read(&path).unwrap() == before[..from] && from < to);
        assert_eq!(keys(&open(dir.path()).unwrap()).await.len(), 4 * (COMMITS - 1));
    }

    #[tokio::test]
    async fn damage_to_an_acknowledged_batch_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (path, starts) = store(dir.path()).await;
        let intact = read(&path).unwrap();
        for (from, to) in [(starts[1], starts[1] + 1), (starts[1] + 7000, starts[1] + 7100), (0, starts[1])] {
            zero(&path, from, to);
            let error = open(dir.path()).unwrap_err();
            assert!(matches!(error, KvError::Corrupt { .. }), "{from}..{to}: {error}");
            assert_ne!(read(&path).unwrap(), intact);
            fs::write(&path, &intact).unwrap();
        }
        // The same where the file system has lost the blocks.
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let hole = (starts[1] + 6000).next_multiple_of(PAGE) as u64;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, flags, hole, PAGE as u64).unwrap();
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(0)).unwrap(), hole);
        assert!(matches!(open(dir.path()).unwrap_err(), KvError::Corrupt { .. }));
        fs::write(&path, &intact).unwrap();
        assert_eq!(keys(&open(dir.path()).unwrap()).await.len(), 4 * COMMITS);
    }
}
