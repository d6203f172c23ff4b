//! The part of a cluster that one file system has: the keys that begin with its name and a slash.
//!
//! ```text
//! NAME/KEY            what the caller writes as KEY
//! NAME/\xff/format    "sluice-kv foundationdb FORMAT"
//! ```
//!
//! Who has it is in [`super::tenure`].

use std::path::PathBuf;

use foundationdb::options::TransactionOption;
use foundationdb::{KeySelector, RangeOption, Transaction};

use super::{Foundation, failure};
use crate::{KvError, strinc};

/// The format this release writes, and the newest it reads.
const FORMAT: u32 = 1;

const MAGIC: &str = "sluice-kv foundationdb ";
/// Callers' keys never begin with 0xff.
const FORMAT_KEY: &[u8] = b"\xff/format";

/// Longest name.
pub(crate) const MAX_NAME: usize = 32;

/// One attempt, its retry, and some for other servers that start at the same time.
const ATTEMPTS: u32 = 10;

#[derive(Clone, Debug)]
pub(crate) struct Space {
    /// The name and a slash. No name has one, so that no space lies in another.
    prefix: Vec<u8>,
}

impl Space {
    pub(crate) fn new(name: &str) -> Result<Self, KvError> {
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(good) {
            let what =
                format!("{name:?} cannot name a file system: 1 to {MAX_NAME} letters, digits, '.', '_', '-'");
            return Err(KvError::NoClient { what });
        }
        Ok(Self { prefix: format!("{name}/").into_bytes() })
    }

    /// The cluster's key of the caller's `key`.
    pub(crate) fn key(&self, key: &[u8]) -> Vec<u8> {
        let mut whole = Vec::with_capacity(self.prefix.len() + key.len());
        whole.extend_from_slice(&self.prefix);
        whole.extend_from_slice(key);
        whole
    }

    /// The caller's key of the cluster's `key`.
    pub(crate) fn without<'a>(&self, key: &'a [u8]) -> Result<&'a [u8], KvError> {
        key.strip_prefix(&*self.prefix)
            .ok_or_else(|| KvError::Corrupt { what: "FoundationDB returned a key outside the range".into() })
    }

    /// How errors call it.
    pub(crate) fn place(&self) -> PathBuf {
        PathBuf::from(format!("foundationdb:{}", String::from_utf8_lossy(&self.prefix)))
    }

    fn check(&self, stored: &[u8]) -> Result<(), KvError> {
        let text = std::str::from_utf8(stored).ok();
        let found = text.and_then(|t| t.strip_prefix(MAGIC)?.trim_end().parse::<u32>().ok());
        match found {
            None => Err(KvError::Foreign { dir: self.place() }),
            Some(found) if found > FORMAT => {
                Err(KvError::NewerFormat { dir: self.place(), found, supported: FORMAT })
            }
            Some(_) => Ok(()),
        }
    }
}

/// Makes the space a store, or finds that it is one.
pub(crate) async fn prepare(store: &Foundation) -> Result<(), KvError> {
    let mut last = KvError::Conflict;
    for _ in 0..ATTEMPTS {
        match attempt(store).await {
            // Written again it would say the same: an unknown result needs no looking up.
            Err(error @ (KvError::Conflict | KvError::TooOld | KvError::CommitUnknown)) => last = error,
            outcome => return outcome,
        }
    }
    Err(last)
}

async fn attempt(store: &Foundation) -> Result<(), KvError> {
    let transaction = store.begin()?;
    let key = store.space.key(FORMAT_KEY);
    if let Some(stored) = store.wait(transaction.get(&key, false)).await.map_err(failure::of_read)? {
        return store.space.check(&stored);
    }
    if !is_empty(store, &transaction).await? {
        return Err(KvError::Foreign { dir: store.space.place() });
    }
    transaction.set_option(TransactionOption::Timeout(0)).map_err(failure::of_call)?;
    transaction.set(&key, format!("{MAGIC}{FORMAT}\n").as_bytes());
    match store.wait(transaction.commit()).await {
        Ok(_) => Ok(()),
        Err(error) => Err(failure::of_commit(*error, key.len())),
    }
}

/// Read under conflict: of two servers that start on an empty space one writes the format.
async fn is_empty(store: &Foundation, transaction: &Transaction) -> Result<bool, KvError> {
    let begin = store.space.prefix.clone();
    // A name is not all 0xff.
    let end = strinc(&begin).unwrap_or_default().to_vec();
    let any = RangeOption {
        begin: KeySelector::first_greater_or_equal(begin),
        end: KeySelector::first_greater_or_equal(end),
        limit: Some(1),
        ..RangeOption::default()
    };
    Ok(store.wait(transaction.get_range(&any, 1, false)).await.map_err(failure::of_read)?.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_plain() {
        for good in ["sluice", "a", "fs-2.old_1", &"x".repeat(MAX_NAME)] {
            assert!(Space::new(good).is_ok(), "{good}");
        }
        for bad in ["", "a/b", "a\0", "\u{e9}", &"x".repeat(MAX_NAME + 1)] {
            assert!(matches!(Space::new(bad), Err(KvError::NoClient { .. })), "{bad}");
        }
    }

    #[test]
    fn no_space_lies_in_another() {
        let (a, ab) = (Space::new("a").unwrap(), Space::new("ab").unwrap());
        assert_eq!(a.without(&a.key(b"k")).unwrap(), b"k");
        assert!(a.without(&ab.key(b"k")).is_err() && ab.without(&a.key(b"bk")).is_err());
    }

    #[test]
    fn only_known_formats_are_opened() {
        let space = Space::new("s").unwrap();
        assert_eq!(space.check(b"sluice-kv foundationdb 1\n"), Ok(()));
        assert!(matches!(
            space.check(b"sluice-kv foundationdb 2\n"),
            Err(KvError::NewerFormat { found: 2, .. })
        ));
        assert!(matches!(space.check(b"something else"), Err(KvError::Foreign { .. })));
    }
}
