//! The directory of an embedded store: a lock, a format version, and the engine's own folder.
//!
//! ```text
//! DIR/LOCK     held exclusively while the store is open
//! DIR/FORMAT   one line: "sluice-kv embedded FORMAT"
//! DIR/MARK     16 random bytes in hexadecimal, which each batch in the engine's journals has as well; stores made by
//!              releases of old have none
//! DIR/engine/  the engine
//! ```
//!
//! Creation builds `engine.new`, writes `FORMAT`, then renames: wherever it is interrupted, the next
//! open can tell an unfinished creation (begin again) from a store that lost its engine (refuse).

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::KvError;
use crate::lock::LockedFile;

/// All keys are in one tree.
pub(crate) const FORMAT_ONE: u32 = 1;
/// Keys of a range are in a tree of their own; a release that did not know would not find them.
pub(crate) const FORMAT_LARGE: u32 = 2;
/// The newest that this release reads.
const NEWEST: u32 = FORMAT_LARGE;

const MAGIC: &str = "sluice-kv embedded ";
const LOCK_FILE: &str = "LOCK";
const FORMAT_FILE: &str = "FORMAT";
const FORMAT_DRAFT: &str = "FORMAT.new";
const MARK_FILE: &str = "MARK";
const ENGINE: &str = "engine";
const ENGINE_DRAFT: &str = "engine.new";
/// The owner's alone: what is in it opens every data file.
const PRIVATE: u32 = 0o700;
/// What a fresh file system contains.
const LOST_AND_FOUND: &str = "lost+found";

/// Tells what the store wrote from what looks like it: values are whatever clients say, and nobody but the store knows this.
pub(crate) type Mark = [u8; 16];

/// A locked store directory.
#[derive(Debug)]
pub(crate) struct Directory {
    dir: PathBuf,
    _lock: LockedFile,
}

pub(crate) fn io_error(doing: &str, path: &Path, error: &io::Error) -> KvError {
    KvError::Io { what: format!("{doing} {}: {error}", path.display()) }
}

/// Is there a store in `dir`, whole or damaged? One whose creation was interrupted is none yet.
pub(crate) fn is_store(dir: &Path) -> bool {
    dir.join(ENGINE).is_dir() || dir.join(FORMAT_FILE).exists() && !dir.join(ENGINE_DRAFT).exists()
}

impl Directory {
    /// Locks `dir`, creating it if needed, and refuses what is not a store of a known format.
    pub(crate) fn open(dir: &Path) -> Result<Self, KvError> {
        make(dir)?;
        // Before the lock: nothing of ours is left in somebody else's directory.
        refuse_foreign(dir)?;
        let lock = lock(dir)?;
        if let Some(text) = read_format(dir)? {
            check_format(dir, &text)?;
        }
        keep_private(dir);
        Ok(Self { dir: dir.to_owned(), _lock: lock })
    }

    /// The engine's folder. Unless the store exists already, `create` first fills it, in this format, with this mark.
    pub(crate) fn engine(
        &self,
        format: u32,
        mark: Mark,
        create: impl FnOnce(&Path) -> Result<(), KvError>,
    ) -> Result<PathBuf, KvError> {
        let engine = self.dir.join(ENGINE);
        if engine.is_dir() {
            return Ok(engine);
        }
        let draft = self.dir.join(ENGINE_DRAFT);
        let finished = !draft.exists() && self.dir.join(FORMAT_FILE).exists();
        if finished {
            return Err(KvError::Corrupt { what: format!("{} is missing", engine.display()) });
        }
        if draft.exists() {
            // First: without its draft, a store of this format would have lost its engine.
            remove_format(&self.dir)?;
            fs::remove_dir_all(&draft).map_err(|e| io_error("removing", &draft, &e))?;
        }
        create(&draft)?;
        self.write_mark(mark)?;
        self.write_format(format)?;
        fs::rename(&draft, &engine).map_err(|e| io_error("renaming", &draft, &e))?;
        sync_directory(&self.dir)?;
        if let Some(parent) = self.dir.parent() {
            // Best effort: a parent that cannot be opened is not ours to sync.
            sync_directory(parent).ok();
        }
        Ok(engine)
    }

    /// The store's mark; `None` if it was made without one.
    pub(crate) fn mark(&self) -> Result<Option<Mark>, KvError> {
        let path = self.dir.join(MARK_FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(io_error("reading", &path, &e)),
        };
        let number = Some(text.trim_end()).filter(|hex| hex.len() == 2 * size_of::<Mark>());
        let mark = number.and_then(|hex| u128::from_str_radix(hex, 16).ok()).map(u128::to_be_bytes);
        let what = || format!("{} is not what a store writes there", path.display());
        mark.map(Some).ok_or_else(|| KvError::Corrupt { what: what() })
    }

    fn write_mark(&self, mark: Mark) -> Result<(), KvError> {
        let path = self.dir.join(MARK_FILE);
        let write = || -> io::Result<()> {
            let mut file = File::create(&path)?;
            writeln!(file, "{:032x}", u128::from_be_bytes(mark))?;
            file.sync_all()
        };
        write().map_err(|e| io_error("writing", &path, &e))
    }

    fn write_format(&self, format: u32) -> Result<(), KvError> {
        let draft = self.dir.join(FORMAT_DRAFT);
        let write = || -> io::Result<()> {
            let mut file = File::create(&draft)?;
            writeln!(file, "{MAGIC}{format}")?;
            file.sync_all()?;
            fs::rename(&draft, self.dir.join(FORMAT_FILE))
        };
        // After those of what a finished store has besides.
        sync_directory(&self.dir)?;
        write().map_err(|e| io_error("writing", &draft, &e))?;
        sync_directory(&self.dir)
    }
}

/// Directories above it are made as any other.
fn make(dir: &Path) -> Result<(), KvError> {
    let parents = dir.parent().map_or(Ok(()), fs::create_dir_all);
    let made = parents.and_then(|()| match DirBuilder::new().mode(PRIVATE).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    });
    made.map_err(|e| io_error("creating", dir, &e))
}

/// Releases of old made it as the umask had it. Its files stay as they are: nobody else gets to them.
fn keep_private(dir: &Path) {
    let tighten = || -> io::Result<()> {
        match fs::metadata(dir)?.permissions().mode() & 0o077 {
            0 => Ok(()),
            _ => fs::set_permissions(dir, fs::Permissions::from_mode(PRIVATE)),
        }
    };
    if let Err(error) = tighten() {
        tracing::warn!(
            dir = %dir.display(),
            %error,
            "others may read the metadata store, which holds keys: make its directory its owner's, mode 0700"
        );
    }
}

fn sync_directory(dir: &Path) -> Result<(), KvError> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(|e| io_error("syncing", dir, &e))
}

fn refuse_foreign(dir: &Path) -> Result<(), KvError> {
    if dir.join(FORMAT_FILE).exists() {
        return Ok(());
    }
    for entry in fs::read_dir(dir).map_err(|e| io_error("reading", dir, &e))? {
        let name = entry.map_err(|e| io_error("reading", dir, &e))?.file_name();
        // What an interrupted creation leaves. A finished engine without FORMAT is not among it.
        let ours = [LOCK_FILE, FORMAT_DRAFT, MARK_FILE, ENGINE_DRAFT, LOST_AND_FOUND];
        if !ours.iter().any(|n| name == *n) {
            return Err(KvError::Foreign { dir: dir.to_owned() });
        }
    }
    Ok(())
}

fn lock(dir: &Path) -> Result<LockedFile, KvError> {
    let path = dir.join(LOCK_FILE);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|e| io_error("opening", &path, &e))?;
    LockedFile::new(file, dir, |e| io_error("locking", &path, &e))
}

fn read_format(dir: &Path) -> Result<Option<String>, KvError> {
    let path = dir.join(FORMAT_FILE);
    match fs::read(&path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(io_error("reading", &path, &e)),
    }
}

fn remove_format(dir: &Path) -> Result<(), KvError> {
    let path = dir.join(FORMAT_FILE);
    match fs::remove_file(&path) {
        Ok(()) => sync_directory(dir),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(io_error("removing", &path, &e)),
    }
}

fn check_format(dir: &Path, text: &str) -> Result<(), KvError> {
    // Some other program's FORMAT file makes the directory foreign, not corrupt.
    let foreign = || KvError::Foreign { dir: dir.to_owned() };
    let found: u32 = text.strip_prefix(MAGIC).and_then(|n| n.trim_end().parse().ok()).ok_or_else(foreign)?;
    if found > NEWEST {
        return Err(KvError::NewerFormat { dir: dir.to_owned(), found, supported: NEWEST });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It stopped when all but the last name was there, and was begun again, and stopped before there was anything of the
    /// engine.
    #[test]
    fn a_creation_that_is_interrupted_twice_begins_again() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(ENGINE_DRAFT)).unwrap();
        fs::write(dir.path().join(FORMAT_FILE), "sluice-kv embedded 1\n").unwrap();
        let stopped = KvError::Io { what: "killed".into() };
        let first = Directory::open(dir.path()).unwrap();
        assert_eq!(first.engine(FORMAT_ONE, [7; 16], |_| Err(stopped.clone())).unwrap_err(), stopped);
        drop(first);
        assert!(!is_store(dir.path()));
        let second = Directory::open(dir.path()).unwrap();
        let create = |draft: &Path| fs::create_dir(draft).map_err(|e| io_error("creating", draft, &e));
        assert!(second.engine(FORMAT_ONE, [7; 16], create).unwrap().is_dir());
        assert!(is_store(dir.path()));
    }
}
