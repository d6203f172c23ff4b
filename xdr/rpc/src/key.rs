//! The cluster key: what every server of one Sluice shares, and nobody else knows.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sluice_env::Env;
use thiserror::Error;
use zeroize::Zeroizing;

use crate::keyring::monitor_line;

/// A key in a file.
const DIGITS: usize = 64;
/// No file of keys is longer.
const LONGEST: u64 = 1024;

/// 32 secret bytes, wiped when dropped. `Debug` shows the fingerprint only.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey(Zeroizing<[u8; 32]>);

/// Why a key file cannot be used. Never contains key material.
#[derive(Debug, Error)]
pub enum KeyError {
    #[error("cannot read the cluster key {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("cannot write the cluster key {}: {error}", path.display())]
    Write { path: PathBuf, error: io::Error },
    #[error("a cluster key exists already at {}; it is never overwritten", path.display())]
    Exists { path: PathBuf },
    #[error("others may read the cluster key {path} (mode {mode:03o}); run: chmod 600 {path}", path = path.display())]
    Permissions { path: PathBuf, mode: u32 },
    #[error("{} is not a cluster key: 64 hexadecimal digits are expected", path.display())]
    Malformed { path: PathBuf },
    #[error("{} holds a monitoring key, which only lets its holder look: the cluster key is needed here", path.display())]
    OnlyLooks { path: PathBuf },
}

impl ClusterKey {
    /// A new key out of the environment's randomness.
    pub fn generate(env: &Env) -> Self {
        Self(Zeroizing::new(env.random.array()))
    }

    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The secret itself. Do not log it.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// A key for one purpose, from which this key cannot be computed. `purpose` is a constant, unique in
    /// the project.
    pub fn derive(&self, purpose: &str) -> [u8; 32] {
        blake3::derive_key(purpose, &*self.0)
    }

    /// Eight hexadecimal digits that tell keys apart and reveal nothing.
    pub fn fingerprint(&self) -> String {
        hex(&self.derive("sluice 2026-01 cluster key fingerprint")[..4])
    }

    /// The key with which somebody may look at what this one's servers do, and change nothing.
    #[must_use]
    pub fn monitor(&self) -> Self {
        Self::from_bytes(self.derive("sluice 2026-11 monitoring key"))
    }

    /// Writes a new key file of mode 0600; an existing file is left alone.
    ///
    /// # Errors
    /// There is a file already, or it cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), KeyError> {
        write_new(path, &Zeroizing::new(self.digits() + "\n"))
    }

    /// The same for a key that [`Self::monitor`] made.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn write_monitor(&self, path: &Path) -> Result<(), KeyError> {
        write_new(path, &monitor_line(self))
    }

    pub(crate) fn digits(&self) -> String {
        hex(&*self.0)
    }
}

fn write_new(path: &Path, text: &str) -> Result<(), KeyError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => KeyError::Exists { path: path.into() },
        _ => KeyError::Write { path: path.into(), error },
    };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)
}

/// What is in a file of keys, which must be readable by its owner only.
pub(crate) fn read_text(path: &Path) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    let failed = |error| KeyError::Read { path: path.into(), error };
    let file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(KeyError::Permissions { path: path.into(), mode });
    }
    let mut text = Zeroizing::new(Vec::with_capacity(LONGEST as usize));
    // Bounded: somebody may name a device or a huge file.
    file.take(LONGEST).read_to_end(&mut text).map_err(failed)?;
    Ok(text)
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterKey({})", self.fingerprint())
    }
}

fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    let mut text = String::with_capacity(2 * bytes.len() + 1);
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// A key of its digits.
pub(crate) fn digits(digits: &[u8]) -> Option<ClusterKey> {
    if digits.len() != DIGITS {
        return None;
    }
    let digit = |d: u8| char::from(d).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let mut bytes = Zeroizing::new([0; 32]);
    for (byte, pair) in bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(ClusterKey(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyring::Keys;

    #[test]
    fn a_key_survives_its_file_and_nothing_else_does() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let key = ClusterKey::from_bytes([0xa7; 32]);
        key.write(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Keys::read(&path).unwrap(), key.clone().into());
        assert!(matches!(key.write(&path), Err(KeyError::Exists { .. })));

        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let error = Keys::read(&path).unwrap_err().to_string();
        assert!(error.contains("mode 640") && error.contains("chmod 600"), "{error}");

        for bad in ["", "a7", &"g".repeat(64), &"a".repeat(65), &"a".repeat(63)] {
            let path = dir.path().join("bad");
            let _ = std::fs::remove_file(&path);
            File::options()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)
                .unwrap()
                .write_all(bad.as_bytes())
                .unwrap();
            assert!(matches!(Keys::read(&path), Err(KeyError::Malformed { .. })), "{bad:?}");
        }
        let missing = Keys::read(&dir.path().join("no")).unwrap_err();
        assert!(matches!(missing, KeyError::Read { .. }));
    }

    #[test]
    fn debug_does_not_tell() {
        let key = ClusterKey::from_bytes([0xa7; 32]);
        let shown = format!("{key:?}");
        assert!(!shown.contains("a7a7") && shown.contains(&key.fingerprint()), "{shown}");
        assert_ne!(key.fingerprint(), ClusterKey::from_bytes([0xa6; 32]).fingerprint());
    }
}
