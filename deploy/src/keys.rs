//! The key file of a server while it runs: it may be replaced under it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use sluice_rpc::{Keyring, Keys};

use crate::owner;

/// Between two looks at the file.
const LOOK: Duration = Duration::from_secs(2);

/// What a file looked like; another one looks different.
pub(crate) type Look = Option<(u64, u64, i64, i64, u64)>;

pub(crate) fn look(file: &Path) -> Look {
    let seen = fs::metadata(file).ok()?;
    Some((seen.dev(), seen.ino(), seen.mtime(), seen.mtime_nsec(), seen.size()))
}

/// Reads the keys in `file`, and has the ring hold what is there from then on; `replaced` is told of it. What cannot be read is
/// said, and the keys are as before.
///
/// # Errors
/// It cannot be read now.
pub(crate) fn follow(file: &Path) -> Result<Followed> {
    let seen = look(file);
    Ok(Followed { ring: read(file)?.into(), file: file.to_owned(), seen })
}

/// The keys of a server.
///
/// # Errors
/// One line: what is wrong with the file, and whose it is if it is another user's.
pub(crate) fn read(file: &Path) -> Result<Keys> {
    Keys::read(file).map_err(owner::of_key)
}

/// A file that was read, and may be looked at again.
#[derive(Debug)]
pub(crate) struct Followed {
    ring: Keyring,
    file: PathBuf,
    seen: Look,
}

impl Followed {
    pub(crate) fn ring(&self) -> Keyring {
        self.ring.clone()
    }

    /// Looks at the file now and then, for ever.
    pub(crate) async fn on(mut self, replaced: impl Fn()) {
        loop {
            tokio::time::sleep(LOOK).await;
            if self.again() {
                replaced();
            }
        }
    }

    /// Whether there are other keys now.
    pub(crate) fn again(&mut self) -> bool {
        let seen = look(&self.file);
        if seen == self.seen {
            return false;
        }
        self.seen = seen;
        match read(&self.file) {
            Ok(keys) if keys == self.ring.keys() => false,
            Ok(keys) => {
                let older: Vec<String> = keys.older().iter().map(|key| key.fingerprint()).collect();
                tracing::info!(
                    file = %self.file.display(),
                    key = keys.first().fingerprint(),
                    accepted_too = older.join(" "),
                    "the cluster key has been replaced"
                );
                self.ring.replace(keys);
                true
            }
            Err(error) => {
                tracing::warn!("the cluster keys are as before: {error}");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_env::Env;
    use sluice_rpc::ClusterKey;

    use super::*;

    #[test]
    fn what_is_put_in_place_of_a_key_file_is_in_force() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cluster.key");
        let [first, second] = [(), ()].map(|()| ClusterKey::generate(&Env::system()));
        first.write(&file).unwrap();
        let mut followed = follow(&file).unwrap();
        assert!(!followed.again());
        let both = Keys::read(&file).unwrap().renewed(second.clone());
        both.replace(&file).unwrap();
        assert!(followed.again() && !followed.again());
        assert_eq!(followed.ring().keys(), both);

        fs::write(&file, "half a ke").unwrap();
        assert!(!followed.again());
        fs::remove_file(&file).unwrap();
        assert!(!followed.again());
        assert_eq!(followed.ring().keys(), both, "what cannot be read changes nothing");
        second.write(&file).unwrap();
        assert!(followed.again());
        assert_eq!(followed.ring().keys(), second.into());
    }
}
