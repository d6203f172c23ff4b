//! A dump as a file: what `sluice meta dump` writes. docs/metadata-schema.md has the format.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use serde::{Deserialize, Serialize};
use sluice_kv::{KeyValue, MAX_KEY, MAX_VALUE};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 16] = b"sluice metadata\n";
const FORMAT: u32 = 1;
/// Rows are gathered until they are as many bytes.
const BLOCK: usize = 256 << 10;
/// A block with its last row.
const LARGEST: usize = BLOCK + MAX_KEY + MAX_VALUE + 64;

/// The first thing in the file, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Heading {
    pub(super) format: u32,
    /// The program that wrote it.
    pub(super) sluice: String,
    /// Version of the store at the moment that it shows.
    pub(super) version: u64,
    /// When that was, in seconds since 1970.
    pub(super) seconds: i64,
}

impl Heading {
    pub(super) fn new(version: u64, seconds: i64) -> Self {
        Self { format: FORMAT, sluice: crate::VERSION.to_owned(), version, seconds }
    }
}

/// Standard output, in place of a file.
const STDOUT: &str = "-";

/// Writes rows. The file is there under its name only when it is whole; what is piped on ends without its end if it is not.
pub(super) struct Writer {
    out: BufWriter<Box<dyn Write + Send>>,
    /// `None`: standard output.
    file: Option<Partial>,
    block: BytesMut,
    in_block: u32,
    rows: u64,
    bytes: u64,
}

/// A file that is not whole yet, and locked: nobody else writes one to the same place.
struct Partial {
    open: File,
    path: PathBuf,
    to: PathBuf,
    /// It has its name.
    whole: bool,
}

/// Whether what was written is read from the device, and compared with its checksums, before it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadBack {
    Yes,
    No,
}

/// What the name of a file has more until it is whole.
pub(super) const PARTIAL: &str = ".partial";

pub(super) fn is_stdout(to: &Path) -> bool {
    to == Path::new(STDOUT)
}

/// Whether a dump may be written there. Before anything is asked of a server, which counts those that are under way.
pub(super) fn must_be_free(to: &Path) -> Result<()> {
    if is_stdout(to) {
        return Ok(());
    }
    ensure!(!to.exists(), "{} exists already: choose another name", to.display());
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ensure!(folder.is_dir(), "{} is no folder that is there", folder.display());
    Ok(())
}

impl Partial {
    /// Nobody but its owner may read it: who can, can read every file (it holds the capability keys).
    fn create(to: &Path) -> Result<Self> {
        must_be_free(to)?;
        let mut path = to.as_os_str().to_owned();
        path.push(PARTIAL);
        let path = PathBuf::from(path);
        // What is left of one that was broken off stays locked until its place is taken.
        let _left = remove_left(&path)?;
        let open = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        lock(&open, &path)?;
        let partial = Self { open, path, to: to.to_owned(), whole: false };
        // Another may have been whole just before.
        must_be_free(to)?;
        Ok(partial)
    }

    /// Whether what is there under the name that it has until it is whole is this file.
    fn is_there(&self) -> io::Result<bool> {
        same(&self.open, &self.path)
    }

    /// It is on the disk, and as it was written.
    fn read_back(&self, rows: u64, bytes: u64) -> Result<()> {
        self.sync()?;
        // What is not in memory any more comes from the device; where that cannot be had, it is read as it is.
        let _ = posix_fadvise(&self.open, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        let mut reader = Reader::open(&self.path).context("what was written cannot be read back")?;
        while !reader.rows().context("what was written cannot be read back")?.is_empty() {}
        let (found, length) = (reader.rows, reader.length);
        ensure!(
            (found, reader.position, length) == (rows, bytes, bytes),
            "{}: {rows} rows and {bytes} bytes were written, and {found} rows and {length} bytes read back",
            self.path.display()
        );
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.open.sync_all().with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// It is on the disk, under its name.
    fn finish(mut self) -> Result<()> {
        self.sync()?;
        let there = self.is_there().with_context(|| format!("cannot look at {}", self.path.display()))?;
        ensure!(there, "{} was removed or replaced by something else", self.path.display());
        std::fs::rename(&self.path, &self.to)
            .with_context(|| format!("cannot rename {} to {}", self.path.display(), self.to.display()))?;
        self.whole = true;
        let folder = self.to.parent().filter(|folder| !folder.as_os_str().is_empty());
        sync_folder(folder.unwrap_or(Path::new(".")))
    }
}

/// What is not whole is of no use to anybody, and takes room.
impl Drop for Partial {
    fn drop(&mut self) {
        if !self.whole && self.is_there().unwrap_or(false) {
            let _ = std::fs::remove_file(&self.path);
        }
        // A process that is just being started has a copy of the open file, for a moment.
        let _ = self.open.unlock();
    }
}

/// Removes what is left of a dump that was broken off, which nobody writes any more, and holds its lock. Somebody else may
/// have made it readable, so it is not written into.
fn remove_left(path: &Path) -> Result<Option<File>> {
    let cannot = || format!("cannot remove {}", path.display());
    loop {
        let found = match std::fs::symlink_metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            found => found.with_context(cannot)?,
        };
        let left = if found.is_file() {
            let left = File::open(path).with_context(cannot)?;
            lock(&left, path)?;
            // Whoever had the lock may have removed it, and another may have been made.
            if !same(&left, path).with_context(cannot)? {
                continue;
            }
            Some(left)
        } else {
            None
        };
        std::fs::remove_file(path).with_context(cannot)?;
        return Ok(left);
    }
}

fn lock(file: &File, path: &Path) -> Result<()> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => bail!("another dump is being written to {}", path.display()),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

fn same(open: &File, path: &Path) -> io::Result<bool> {
    let open = open.metadata()?;
    match std::fs::symlink_metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (open.dev(), open.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The names in a folder are on the disk.
pub(super) fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .with_context(|| format!("cannot sync {}", folder.display()))
}

/// Whether a file begins as a dump does.
pub(super) fn begins_as_dump(file: &Path) -> bool {
    let mut magic = [0; MAGIC.len()];
    File::open(file).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == *MAGIC
}

impl Writer {
    /// Of a file that is not there yet, or of standard output (`-`).
    pub(super) fn create(to: &Path, heading: &Heading) -> Result<Self> {
        let file = if is_stdout(to) { None } else { Some(Partial::create(to)?) };
        let out: Box<dyn Write + Send> = match &file {
            Some(file) => Box::new(file.open.try_clone().context("cannot open the dump twice")?),
            None => Box::new(io::stdout()),
        };
        let mut writer = Self {
            out: BufWriter::new(out),
            file,
            block: BytesMut::with_capacity(LARGEST),
            in_block: 0,
            rows: 0,
            bytes: 0,
        };
        writer.write(MAGIC)?;
        writer.put(&serde_json::to_vec(heading)?, 0)?;
        Ok(writer)
    }

    pub(super) fn row(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.block.put_u32(u32::try_from(key.len())?);
        self.block.put_u32(u32::try_from(value.len())?);
        self.block.put_slice(key);
        self.block.put_slice(value);
        self.in_block += 1;
        self.rows += 1;
        if self.block.len() >= BLOCK { self.end_block() } else { Ok(()) }
    }

    fn end_block(&mut self) -> Result<()> {
        let block = std::mem::take(&mut self.block);
        self.put(&block, self.in_block)?;
        self.block = block;
        self.block.clear();
        self.in_block = 0;
        Ok(())
    }

    /// One block: sizes, how many rows, checksum of what follows, and that.
    fn put(&mut self, plain: &[u8], rows: u32) -> Result<()> {
        let packed = lz4_flex::block::compress(plain);
        let mut head = BytesMut::with_capacity(Head::SIZE);
        head.put_u32(u32::try_from(packed.len())?);
        head.put_u32(u32::try_from(plain.len())?);
        head.put_u32(rows);
        head.put_u64(xxh3_64(&packed));
        self.write(&head)?;
        self.write(&packed)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len() as u64;
        let name = self.name();
        self.out.write_all(bytes).with_context(|| format!("cannot write {name}"))
    }

    fn name(&self) -> String {
        let to_stdout = || "to standard output".to_owned();
        self.file.as_ref().map_or_else(to_stdout, |file| file.path.display().to_string())
    }

    /// Ends it, on the disk if it is a file; rows and bytes written.
    pub(super) fn finish(mut self, read_back: ReadBack) -> Result<(u64, u64)> {
        if self.in_block > 0 {
            self.end_block()?;
        }
        // A block without rows ends it, and says how many there are.
        self.put(&self.rows.to_be_bytes(), 0)?;
        let name = self.name();
        self.out.flush().with_context(|| format!("cannot write {name}"))?;
        if let Some(file) = self.file {
            if read_back == ReadBack::Yes {
                file.read_back(self.rows, self.bytes)?;
            }
            file.finish()?;
        }
        Ok((self.rows, self.bytes))
    }
}

/// Reads rows.
pub(super) struct Reader {
    input: BufReader<File>,
    name: String,
    pub(super) heading: Heading,
    rows: u64,
    /// Read until now, and all.
    pub(super) position: u64,
    pub(super) length: u64,
}

struct Head {
    packed: usize,
    plain: usize,
    rows: u32,
    checksum: u64,
}

impl Head {
    const SIZE: usize = 20;
}

impl Reader {
    pub(super) fn open(file: &Path) -> Result<Self> {
        let name = file.display().to_string();
        let input = File::open(file).with_context(|| format!("cannot read {name}"))?;
        let length = input.metadata().with_context(|| format!("cannot read {name}"))?.len();
        let heading = Heading { format: 0, sluice: String::new(), version: 0, seconds: 0 };
        let mut reader = Self { input: BufReader::new(input), name, heading, rows: 0, position: 0, length };
        let mut magic = [0; MAGIC.len()];
        if reader.read(&mut magic).is_err() || magic != *MAGIC {
            bail!("{} is not a dump of Sluice's metadata", reader.name);
        }
        let (heading, _) = reader.block()?;
        let value: serde_json::Value = serde_json::from_slice(&heading).with_context(|| reader.damaged())?;
        if value
            .get("format")
            .and_then(serde_json::Value::as_u64)
            .is_some_and(|format| format > FORMAT.into())
        {
            bail!("{} was written by a newer sluice: upgrade this one", reader.name);
        }
        reader.heading = serde_json::from_value(value).with_context(|| reader.damaged())?;
        Ok(reader)
    }

    /// The next rows; none: that was all.
    pub(super) fn rows(&mut self) -> Result<Vec<KeyValue>> {
        let (mut block, count) = self.block()?;
        if count == 0 {
            let all = block.try_get_u64().with_context(|| self.damaged())?;
            ensure!(all == self.rows, "{}: it has {} rows of {all}", self.damaged(), self.rows);
            return Ok(Vec::new());
        }
        let mut rows = Vec::with_capacity(usize::try_from(count)?.min(block.len() / 8));
        while !block.is_empty() {
            let row = row(&mut block).with_context(|| self.damaged())?;
            rows.push(row);
        }
        ensure!(rows.len() == usize::try_from(count)?, "{}", self.damaged());
        self.rows += u64::from(count);
        Ok(rows)
    }

    fn block(&mut self) -> Result<(Bytes, u32)> {
        let mut head = [0; Head::SIZE];
        self.read(&mut head)?;
        let mut head = head.as_slice();
        let head = Head {
            packed: usize::try_from(head.get_u32())?,
            plain: usize::try_from(head.get_u32())?,
            rows: head.get_u32(),
            checksum: head.get_u64(),
        };
        // What the sizes say is not believed beyond what a block can be.
        ensure!(
            head.plain <= LARGEST && head.packed <= lz4_flex::block::get_maximum_output_size(LARGEST),
            "{}",
            self.damaged()
        );
        let mut packed = vec![0; head.packed];
        self.read(&mut packed)?;
        ensure!(xxh3_64(&packed) == head.checksum, "{}", self.damaged());
        let plain = lz4_flex::block::decompress(&packed, head.plain).with_context(|| self.damaged())?;
        Ok((Bytes::from(plain), head.rows))
    }

    fn read(&mut self, into: &mut [u8]) -> Result<()> {
        match self.input.read_exact(into) {
            Ok(()) => {
                self.position += into.len() as u64;
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                bail!("{} is cut short after {} bytes", self.name, self.length)
            }
            Err(error) => Err(error).with_context(|| format!("cannot read {}", self.name)),
        }
    }

    fn damaged(&self) -> String {
        format!("{} is damaged near byte {}", self.name, self.position)
    }
}

fn row(block: &mut Bytes) -> Result<KeyValue> {
    let (key, value) = (usize::try_from(block.try_get_u32()?)?, usize::try_from(block.try_get_u32()?)?);
    ensure!(
        key <= MAX_KEY && value <= MAX_VALUE && key + value <= block.len(),
        "a row is longer than its block"
    );
    Ok((block.split_to(key), block.split_to(value)))
}

#[cfg(test)]
#[path = "dump_tests.rs"]
mod tests;
