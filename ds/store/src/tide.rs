//! How far this store has come: a mark that is raised, durably, while there is anything new, and told to the metadata server. A
//! store that went back to a snapshot of itself has an older one than was told. docs/adr/0029.
//!
//! It is in a file of its own, which programs that do not know it leave as it is.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::device::Device;
use crate::format::{TIDE, digest};
use crate::log::{read_all, replace};
use crate::{Store, StoreError};

const MAGIC: &str = "sluice tide 1";

#[derive(Debug, Default)]
struct Known {
    /// Durable.
    mark: u64,
    /// The next one is greater than this, too.
    beyond: u64,
    /// How often something had become durable when it was made; `None`: by another process, and nobody knows what came after it.
    covers: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Tide {
    known: Mutex<Known>,
    /// Held while the file is replaced. Lock order: before `known`.
    keeping: Mutex<()>,
}

impl Tide {
    /// Blocking.
    pub(crate) fn open(device: &dyn Device) -> Result<Self, StoreError> {
        let mark = match read_all(device, TIDE) {
            Ok(bytes) => decode(&bytes)
                .ok_or_else(|| StoreError::Corrupt(device.name(), TIDE.into(), "it is not whole".into()))?,
            Err(StoreError::Missing) => 0,
            Err(error) => return Err(error),
        };
        Ok(Self { known: Mutex::new(Known { mark, ..Known::default() }), keeping: Mutex::default() })
    }

    fn keep(&self, device: &dyn Device, covers: u64) -> Result<u64, StoreError> {
        let _alone = self.keeping.lock();
        let next = {
            let known = self.known.lock();
            known.mark.max(known.beyond).saturating_add(1)
        };
        replace(device, TIDE, encode(next).as_bytes())?;
        let mut known = self.known.lock();
        (known.mark, known.covers) = (next, Some(covers));
        Ok(next)
    }
}

fn encode(mark: u64) -> String {
    let body = format!("{MAGIC}\nmark {mark}\n");
    let check = u64::from_be_bytes(digest(body.as_bytes()));
    format!("{body}check {check:016x}\n")
}

fn decode(bytes: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mark = text.lines().nth(1)?.strip_prefix("mark ")?.parse().ok()?;
    (encode(mark) == text).then_some(mark)
}

impl Store {
    /// The newest mark; 0: none yet. It is durable.
    pub fn tide(&self) -> u64 {
        self.tide.known.lock().mark
    }

    /// The next mark is greater than this one, which is known of this store.
    pub fn tide_goes_beyond(&self, mark: u64) {
        let mut known = self.tide.known.lock();
        known.beyond = known.beyond.max(mark);
    }

    /// Whether anything has become durable since the newest mark, or may have before this process.
    pub fn tide_is_due(&self) -> bool {
        // One that loses what was written, as a test wants it, is to serve what is left.
        self.device.is_honest() && self.tide.known.lock().covers != Some(self.durable())
    }

    /// Makes the next mark, durably. It says that all is there that had become durable before.
    ///
    /// # Errors
    /// What the device says: then the newest one is that of before, as far as anybody knows.
    pub async fn keep_tide(self: &Arc<Self>) -> Result<u64, StoreError> {
        self.blocking(|store| store.tide.keep(&*store.device, store.durable())).await
    }

    /// How often something has become durable.
    fn durable(&self) -> u64 {
        self.flushes.done().wrapping_add(self.journal.written())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written_or_not_at_all() {
        let text = encode(812);
        assert!(text.starts_with("sluice tide 1\nmark 812\ncheck "), "{text}");
        assert_eq!(decode(text.as_bytes()), Some(812));
        for end in 0..text.len() {
            assert_eq!(decode(&text.as_bytes()[..end]), None);
        }
        assert_eq!(decode(text.replace("812", "813").as_bytes()), None);
        assert_eq!(decode(text.replace("tide 1", "tide 2").as_bytes()), None);
    }
}
