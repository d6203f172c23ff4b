//! The keys that a process shows and accepts, which may change while it runs.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;
use zeroize::Zeroizing;

use crate::key::{ClusterKey, KeyError, digits, read_text};

/// The most keys of one file: whoever replaces a key has two.
const MOST: usize = 4;

/// What stands before a key that only lets its holder look.
const MONITOR: &str = "monitor";

/// What whoever shows a key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Everything: it is a server of this installation, or an administrator.
    Server,
    /// Look.
    Monitor,
}

/// The cluster keys of one file: the first is shown to others, all are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    first: ClusterKey,
    older: Vec<ClusterKey>,
}

impl From<ClusterKey> for Keys {
    fn from(first: ClusterKey) -> Self {
        Self { first, older: Vec::new() }
    }
}

impl Keys {
    /// Reads a key file of a server: one cluster key a line, readable by its owner only.
    ///
    /// # Errors
    /// It cannot be read, others may read it, or it holds something else: a monitoring key, for instance.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        match KeyFile::read(path)? {
            KeyFile::Cluster(keys) => Ok(keys),
            KeyFile::Monitor(_) => Err(KeyError::OnlyLooks { path: path.into() }),
        }
    }

    /// The one that is shown.
    pub fn first(&self) -> &ClusterKey {
        &self.first
    }

    /// Those that are accepted, too.
    pub fn older(&self) -> &[ClusterKey] {
        &self.older
    }

    pub fn iter(&self) -> impl Iterator<Item = &ClusterKey> {
        std::iter::once(&self.first).chain(&self.older)
    }

    /// The same with `new` before them.
    #[must_use]
    pub fn renewed(self, new: ClusterKey) -> Self {
        let mut older = vec![self.first];
        older.extend(self.older);
        Self { first: new, older }
    }

    /// Puts these in place of what the file at `path` holds, which keeps its owner; whoever reads it sees either.
    ///
    /// # Errors
    /// It cannot be written. Then it is as it was.
    pub fn replace(&self, path: &Path) -> Result<(), KeyError> {
        let failed = |error| KeyError::Write { path: path.into(), error };
        let owner = fs::metadata(path).map_err(failed)?;
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let beside = path.with_file_name(name);
        let mut text = Zeroizing::new(String::with_capacity(MOST * 80));
        for key in self.iter() {
            text.push_str(&Zeroizing::new(key.digits()));
            text.push('\n');
        }
        let write = || {
            match fs::remove_file(&beside) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
            if file.metadata()?.uid() != owner.uid() || file.metadata()?.gid() != owner.gid() {
                fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
            }
            file.set_permissions(fs::Permissions::from_mode(owner.permissions().mode() & 0o700))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&beside, path)?;
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
        };
        write().inspect_err(|_| drop(fs::remove_file(&beside))).map_err(failed)
    }
}

/// What a file of keys is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyFile {
    Cluster(Keys),
    /// A key that lets its holder look; it was made of a cluster key, and is good as long as that one is accepted.
    Monitor(ClusterKey),
}

impl KeyFile {
    /// Reads a file of keys of either kind.
    ///
    /// # Errors
    /// It cannot be read, others may read it, or it holds no keys.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let text = read_text(path)?;
        parse(&text).ok_or_else(|| KeyError::Malformed { path: path.into() })
    }

    /// The one that is shown.
    pub fn first(&self) -> &ClusterKey {
        match self {
            Self::Cluster(keys) => keys.first(),
            Self::Monitor(key) => key,
        }
    }
}

fn parse(text: &[u8]) -> Option<KeyFile> {
    let mut lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
    let first = lines.next()?;
    if let Some(key) = first.strip_prefix(MONITOR.as_bytes()) {
        return digits(key.trim_ascii()).filter(|_| lines.next().is_none()).map(KeyFile::Monitor);
    }
    let first = digits(first)?;
    let older: Option<Vec<ClusterKey>> = lines.map(digits).collect();
    older.filter(|older| older.len() < MOST).map(|older| KeyFile::Cluster(Keys { first, older }))
}

/// The line of a monitoring key in its file.
pub(crate) fn monitor_line(key: &ClusterKey) -> Zeroizing<String> {
    Zeroizing::new(format!("{MONITOR} {}\n", &*Zeroizing::new(key.digits())))
}

/// What a peer has proved to hold.
#[derive(Clone, PartialEq, Eq)]
pub struct Shown {
    /// The cluster key; of a monitor, the one that its own was made of.
    pub key: ClusterKey,
    pub role: Role,
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.role, self.key.fingerprint())
    }
}

/// The keys of a process, shared by all that dial and accept in it.
#[derive(Clone, Debug)]
pub struct Keyring(Arc<watch::Sender<Keys>>);

impl<K: Into<Keys>> From<K> for Keyring {
    fn from(keys: K) -> Self {
        Self(Arc::new(watch::Sender::new(keys.into())))
    }
}

impl Keyring {
    pub fn keys(&self) -> Keys {
        self.0.borrow().clone()
    }

    /// From now on these. What was accepted by others stands until [`crate::Server::close_strangers`].
    pub fn replace(&self, keys: Keys) {
        self.0.send_replace(keys);
    }

    /// Whether what a peer has shown would be accepted still.
    pub fn accepts(&self, shown: &Shown) -> bool {
        self.0.borrow().iter().any(|key| *key == shown.key)
    }

    /// Whether it is the key that this process shows itself.
    pub fn is_first(&self, shown: &Shown) -> bool {
        self.0.borrow().first == shown.key
    }

    /// Tells of every [`Self::replace`] from now on.
    pub fn changes(&self) -> watch::Receiver<Keys> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> ClusterKey {
        ClusterKey::from_bytes([byte; 32])
    }

    #[test]
    fn a_file_holds_the_key_that_is_shown_and_those_that_are_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cluster.key");
        key(1).write(&path).unwrap();
        let keys = Keys::read(&path).unwrap();
        assert_eq!(keys, key(1).into());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        let both = keys.renewed(key(2));
        both.replace(&path).unwrap();
        assert_eq!(Keys::read(&path).unwrap(), both);
        assert_eq!((both.first(), both.older()), (&key(2), &[key(1)][..]));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o400);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");

        let ring = Keyring::from(both.clone());
        let shown = |byte| Shown { key: key(byte), role: Role::Server };
        assert!(ring.accepts(&shown(1)) && ring.accepts(&shown(2)) && !ring.accepts(&shown(3)));
        ring.replace(both.first().clone().into());
        assert!(!ring.accepts(&shown(1)) && ring.is_first(&shown(2)));
    }

    #[test]
    fn a_monitoring_key_is_none_for_servers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("monitor.key");
        let monitor = key(1).monitor();
        monitor.write_monitor(&path).unwrap();
        assert_eq!(KeyFile::read(&path).unwrap(), KeyFile::Monitor(monitor.clone()));
        assert_ne!(monitor, key(1));
        let error = Keys::read(&path).unwrap_err().to_string();
        assert!(error.contains("only lets its holder look"), "{error}");
    }

    #[test]
    fn what_is_no_key_file_is_refused_whole() {
        let digits = "ab".repeat(32);
        let good = format!("\n {digits}\r\n\n{digits} \n");
        assert!(matches!(parse(good.as_bytes()), Some(KeyFile::Cluster(_))), "white space");
        for bad in [
            String::new(),
            format!("{digits}\n{}", &digits[1..]),
            format!("{digits} {digits}"),
            format!("monitor {digits}\n{digits}"),
            format!("{digits}\nmonitor {digits}"),
            format!("{digits}\n").repeat(MOST + 1),
        ] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
