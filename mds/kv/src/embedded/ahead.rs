//! Room in the engine's journal, made before it is needed. A commit waits for its bytes, and where they make the journal
//! longer or take new blocks of the file system, for that file system's own journal as well: on ext4 500 us in place of
//! 200. The engine begins a journal with its length set, but without blocks, and one that it opens again it appends to,
//! until that is full. So here a journal that is opened again is taken out of append mode and has its length set like a
//! new one, and zeroes are written ahead of the end. A file that ends with zeroes is what the engine and the check of its
//! journal ([`super::journal`]) expect.

#![allow(unsafe_code, reason = "the engine keeps its descriptor to itself; the one use has its proof")]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;

use crate::embedded::journal;

/// What the engine gives a new journal.
const LENGTH: u64 = 64 << 20;
/// The engine may begin another journal at any time when it has written 64 MB to one. Such a one is left as it is.
const NEARLY_FULL: u64 = 60_000_000;
/// So many zeroes at once: some four hundred small commits have room there. A larger batch takes its blocks as it is written,
/// since writing as many zeroes first would cost more than it saves.
const AHEAD: u64 = 256 << 10;
static ZEROES: [u8; AHEAD as usize] = [0; AHEAD as usize];

/// The room that is left, of a store that is open.
#[derive(Debug)]
pub(crate) struct Ahead {
    engine: PathBuf,
    /// Bytes, as far as can be told from what was written.
    left: Mutex<u64>,
    /// A journal that the engine appends to: what was written behind its end would be in the way.
    appended: Option<PathBuf>,
}

impl Ahead {
    /// For the engine in this folder, which was just opened, and to which nobody writes yet. Without what the kernel
    /// must offer for it everything is as the engine does it.
    pub(crate) fn open(engine: &Path) -> Self {
        let newest = journal::newest(engine).ok().flatten();
        let appended = newest.filter(|journal| {
            overwrite(journal).map_err(|error| tracing::debug!(%error, "the journal is appended to"))
                != Ok(true)
        });
        Self { engine: engine.to_owned(), left: Mutex::new(0), appended }
    }

    /// Before a batch of so many bytes is written, by whoever alone writes batches.
    pub(crate) fn make_room(&self, bytes: u64) {
        let mut left = self.left.lock();
        if *left < bytes && bytes <= AHEAD {
            // Tried again when as much was written: a full device need not be asked for each batch.
            *left = AHEAD;
            if let Err(error) = self.fill() {
                tracing::debug!(%error, "no room is made ahead in the journal");
            }
        }
        *left = left.saturating_sub(bytes);
    }

    /// Zeroes where the newest journal has no blocks yet, and nowhere else: whatever is there stays.
    fn fill(&self) -> io::Result<()> {
        let newest = journal::newest(&self.engine)?.filter(|newest| Some(newest) != self.appended.as_ref());
        let Some(path) = newest else { return Ok(()) };
        let file = OpenOptions::new().write(true).open(path)?;
        let from = rustix::fs::seek(&file, SeekFrom::Hole(0))?;
        let hole_ends = match rustix::fs::seek(&file, SeekFrom::Data(from)) {
            // None behind it.
            Err(Errno::NXIO) => u64::MAX,
            found => found?,
        };
        let room = hole_ends.min(file.metadata()?.len()).saturating_sub(from);
        let zeroes = usize::try_from(room).unwrap_or(usize::MAX).min(ZEROES.len());
        file.write_all_at(&ZEROES[..zeroes], from)
    }
}

/// Takes the engine's newest journal out of append mode, if it is in it. Whether the engine overwrites it now.
fn overwrite(journal: &Path) -> io::Result<bool> {
    let path = journal.canonicalize()?;
    let file = OpenOptions::new().write(true).open(&path)?;
    let length = file.metadata()?.len();
    if length >= NEARLY_FULL && length != LENGTH {
        return Ok(false);
    }
    for number in descriptors_of(&path)?.into_iter().filter(|number| *number != file.as_raw_fd()) {
        // SAFETY: this process has the journal open under that number, and not by our own `file`. So the engine has: it
        // alone opens its journals and keeps the newest open until it begins another, for which there is not nearly enough
        // in this one (or it is a new one, which has its length from the beginning), and nobody writes before this returns.
        let theirs = unsafe { BorrowedFd::borrow_raw(number) };
        if !take_over(theirs, &file)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// From here on what is written to `theirs` goes to the end that the file has now, and on from there.
fn take_over(theirs: BorrowedFd<'_>, file: &File) -> io::Result<bool> {
    let flags = rustix::fs::fcntl_getfl(theirs)?;
    if !flags.contains(OFlags::APPEND) {
        return Ok(true);
    }
    let length = file.metadata()?.len();
    // In this order: in append mode the position does not matter yet.
    if length >= NEARLY_FULL || rustix::fs::seek(theirs, SeekFrom::End(0))? != length {
        return Ok(false);
    }
    rustix::fs::fcntl_setfl(theirs, flags.difference(OFlags::APPEND))?;
    if length < LENGTH {
        file.set_len(LENGTH)?;
        file.sync_all()?;
    }
    Ok(true)
}

/// Numbers under which this process has the file open.
fn descriptors_of(path: &Path) -> io::Result<Vec<RawFd>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        // One that was closed meanwhile is none of ours.
        if fs::read_link(entry.path()).is_ok_and(|target| target == path)
            && let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok())
        {
            found.push(number);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use sluice_env::Env;

    use super::*;
    use crate::{Database, EmbeddedOptions, KeyRange};

    fn open(dir: &Path) -> Database {
        Database::open_embedded(Env::simulated(1), dir, EmbeddedOptions::default()).unwrap()
    }

    async fn put(db: &Database, key: String, value: Vec<u8>) {
        let mut tx = db.begin();
        tx.set(key, value);
        tx.commit().await.unwrap();
    }

    fn journal_of(dir: &Path) -> File {
        let path = journal::newest(&dir.join("engine")).unwrap().unwrap();
        OpenOptions::new().read(true).write(true).open(path).unwrap()
    }

    fn blocks_end(file: &File) -> u64 {
        rustix::fs::seek(file, SeekFrom::Hole(0)).unwrap()
    }

    #[tokio::test]
    async fn a_journal_that_is_opened_again_is_overwritten_and_keeps_what_it_has() {
        let dir = tempfile::tempdir().unwrap();
        for turn in 0..5 {
            let db = open(dir.path());
            let journal = journal_of(dir.path());
            assert_eq!(journal.metadata().unwrap().len(), LENGTH);
            for n in 0..20 {
                put(&db, format!("k{turn}-{n}"), vec![turn; 3000]).await;
                assert_eq!(journal.metadata().unwrap().len(), LENGTH);
            }
            let all = db.begin().range(&KeyRange::all(), 1000, false).await.unwrap();
            assert_eq!(all.len(), 20 * (usize::from(turn) + 1));
            assert!(all.iter().all(|(_, value)| value.len() == 3000));
            db.close().await.unwrap();
        }
    }

    /// A row of a few bytes to a few thousand; now and then more than is made ready at once.
    fn rows(n: usize) -> Vec<(String, usize)> {
        let parts = if n % 97 == 50 { 4 } else { 1 };
        let length = if parts > 1 { 90_000 } else { 100 + n * 37 % 5000 };
        (0..parts).map(|part| (format!("k{n}-{part}"), length)).collect()
    }

    #[tokio::test]
    async fn there_is_room_for_the_next_batch_whatever_the_last_ones_were() {
        let dir = tempfile::tempdir().unwrap();
        let db = open(dir.path());
        let journal = journal_of(dir.path());
        let (mut end, mut moved) = (blocks_end(&journal), 0);
        for n in 0..300 {
            let mut tx = db.begin();
            rows(n).into_iter().for_each(|(key, length)| tx.set(key, vec![7; length]));
            tx.commit().await.unwrap();
            let now = blocks_end(&journal);
            moved += usize::from(now != end);
            end = now;
        }
        // 2 MB, a quarter at a time.
        assert!((5..15).contains(&moved), "blocks were taken {moved} times");
        db.close().await.unwrap();
        let db = open(dir.path());
        for (key, length) in (0..300).flat_map(rows) {
            let value = db.begin().get(key.as_bytes()).await.unwrap().unwrap();
            assert!(value.len() == length && value.iter().all(|byte| *byte == 7), "{key}");
        }
    }

    #[tokio::test]
    async fn only_what_has_no_blocks_is_zeroed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("7.jnl");
        let file = File::create(&path).unwrap();
        file.set_len(LENGTH).unwrap();
        let data = vec![9; 10_000];
        // The hole between the two is smaller than what is asked for.
        for at in [0, 100 << 10] {
            file.write_all_at(&data, at).unwrap();
        }
        file.sync_all().unwrap();
        let ahead = Ahead::open(dir.path());
        ahead.make_room(1);
        assert_eq!(blocks_end(&file), (100 << 10) + 12_288, "up to what lies behind the hole");
        // Enough for a while.
        ahead.make_room(AHEAD - 1);
        assert_eq!(blocks_end(&file), (100 << 10) + 12_288);
        ahead.make_room(1);
        assert!(blocks_end(&file) >= (100 << 10) + 12_288 + AHEAD);
        let bytes = fs::read(&path).unwrap();
        assert!(bytes[..10_000] == data[..] && bytes[100 << 10..][..10_000] == data[..]);
        assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), 20_000);
        // A large batch takes blocks by itself, and the next small one has room again.
        let end = blocks_end(&file);
        ahead.make_room(AHEAD + 1);
        assert_eq!(blocks_end(&file), end);
        ahead.make_room(1);
        assert_eq!(blocks_end(&file), end + AHEAD);
        // And never beyond the end.
        (0..2 * LENGTH / AHEAD).for_each(|_| ahead.make_room(AHEAD));
        assert_eq!((blocks_end(&file), file.metadata().unwrap().len()), (LENGTH, LENGTH));
    }

    /// As the engine opens a journal that is there.
    fn appended(dir: &Path, length: u64) -> (PathBuf, File) {
        let path = dir.join("7.jnl");
        File::create(&path).unwrap().set_len(length).unwrap();
        let theirs = OpenOptions::new().append(true).open(&path).unwrap();
        (path, theirs)
    }

    fn appends(file: &File) -> bool {
        rustix::fs::fcntl_getfl(file).unwrap().contains(OFlags::APPEND)
    }

    #[test]
    fn what_is_written_after_it_was_taken_over_goes_where_the_file_ended() {
        let dir = tempfile::tempdir().unwrap();
        let (path, mut theirs) = appended(dir.path(), 5000);
        Ahead::open(dir.path()).make_room(1);
        assert!(!appends(&theirs));
        theirs.write_all(b"next").unwrap();
        theirs.write_all(b" one").unwrap();
        let bytes = fs::read(path).unwrap();
        assert_eq!((bytes.len() as u64, &bytes[4998..5009]), (LENGTH, &b"\0\0next one\0"[..]));
    }

    #[test]
    fn one_that_is_nearly_full_is_left_to_the_engine_and_the_next_one_is_not() {
        for length in [NEARLY_FULL, LENGTH - 1, LENGTH, LENGTH + 1] {
            let dir = tempfile::tempdir().unwrap();
            let (_, theirs) = appended(dir.path(), length);
            let ahead = Ahead::open(dir.path());
            ahead.make_room(1);
            assert!(appends(&theirs), "{length}");
            assert_eq!((blocks_end(&theirs), theirs.metadata().unwrap().len()), (0, length));
            // The engine goes on to another.
            let next = File::create(dir.path().join("8.jnl")).unwrap();
            next.set_len(LENGTH).unwrap();
            ahead.make_room(AHEAD);
            assert!(blocks_end(&next) == AHEAD && blocks_end(&theirs) == 0);
        }
    }

    #[test]
    fn an_engine_without_a_journal_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        Ahead::open(dir.path()).make_room(100);
        Ahead::open(&dir.path().join("nothing")).make_room(100);
    }
}
