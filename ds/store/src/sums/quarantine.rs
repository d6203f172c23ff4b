//! Blocks that do not hold what was written there, or cannot be read: nobody gets to see them until they are rewritten.
//! Durable in a file of their own, which is replaced whole.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use foldhash::fast::FixedState;
use parking_lot::Mutex;

use super::BLOCK;
use crate::device::Device;
use crate::format::digest;
use crate::log::{read_all, replace};
use crate::{FileKey, StoreError};

const FILE: &str = "quarantine";
const HEAD: &str = "sluice quarantine 1";

/// Ranges that are kept. A device with more of them is to be replaced, not described.
const MOST: usize = 65_536;

/// A range of a data file, in bytes, of whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Damage {
    pub key: FileKey,
    pub offset: u64,
    pub length: u64,
}

/// By first block: one past the last one. They neither touch nor overlap.
type Ranges = BTreeMap<u64, u64>;

type Files = HashMap<FileKey, Ranges, FixedState>;

/// Blocks that were rewritten, and how many changes of their file were complete then. They may be seen; what the device has
/// in their place counts until a flush covers them: a crash before that brings back what was bad.
type Rewritten = Vec<(u64, Range<u64>)>;

#[derive(Debug, Default)]
struct Known {
    files: Files,
    rewritten: HashMap<FileKey, Rewritten, FixedState>,
    /// What the device holds is another list.
    unsaved: bool,
    /// Begun so far.
    saves: u64,
    /// Files of which the device's list still says what is not so, and the save from which on it does not.
    owed: HashMap<FileKey, u64, FixedState>,
}

impl Known {
    /// What there was to lift.
    fn lift(&mut self, key: FileKey, blocks: &Range<u64>) -> Vec<Range<u64>> {
        let Some(ranges) = self.files.get_mut(&key) else { return Vec::new() };
        let lifted = remove(ranges, blocks);
        if ranges.is_empty() {
            self.files.remove(&key);
        }
        lifted
    }

    fn owes(&mut self, key: FileKey) {
        self.unsaved = true;
        self.owed.insert(key, self.saves + 1);
    }

    fn on_device(&self) -> Vec<u8> {
        if self.rewritten.is_empty() {
            return encode(&self.files);
        }
        let mut files = self.files.clone();
        for (key, rewritten) in &self.rewritten {
            let ranges = files.entry(*key).or_default();
            rewritten.iter().for_each(|(_, blocks)| insert(ranges, blocks.clone()));
        }
        encode(&files)
    }
}

#[derive(Debug)]
pub(crate) struct Quarantine {
    device: Arc<dyn Device>,
    known: Mutex<Known>,
    /// Ranges there are, to spare the lock in a healthy store.
    count: AtomicUsize,
    /// Raised with every change.
    version: AtomicU64,
    /// Held while the list is written; before `known`.
    saving: Mutex<()>,
}

/// Removes the list of a store, durably. Blocking.
pub(crate) fn forget(device: &dyn Device) -> Result<(), StoreError> {
    match device.remove(FILE) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.and_then(|()| device.sync_dir("")).map_err(StoreError::from),
    }
}

impl Quarantine {
    /// Blocking. A list that is damaged itself is forgotten: a scrub finds again what was in it.
    pub(crate) fn open(device: Arc<dyn Device>) -> Result<Self, StoreError> {
        let files = match read_all(&*device, FILE) {
            Ok(bytes) => decode(&bytes).unwrap_or_else(|| {
                tracing::error!(store = %device.name(), "the list of quarantined ranges is damaged: scrub to find them again");
                HashMap::default()
            }),
            Err(StoreError::Missing) => HashMap::default(),
            Err(error) => return Err(error),
        };
        let count = AtomicUsize::new(files.values().map(BTreeMap::len).sum());
        let known = Mutex::new(Known { files, ..Known::default() });
        Ok(Self { device, known, count, version: AtomicU64::new(1), saving: Mutex::default() })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    pub(crate) fn ranges(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Everything, in order.
    pub(crate) fn all(&self) -> Vec<Damage> {
        let known = self.known.lock();
        let of = |(key, ranges): (&FileKey, &Ranges)| {
            let key = *key;
            let damage = move |(first, end): (&u64, &u64)| Damage {
                key,
                offset: first * BLOCK,
                length: (end - first) * BLOCK,
            };
            ranges.iter().map(damage).collect::<Vec<_>>()
        };
        let mut all: Vec<Damage> = known.files.iter().flat_map(of).collect();
        all.sort_unstable();
        all
    }

    /// Whether any byte of the range is in quarantine.
    pub(crate) fn touches(&self, key: FileKey, offset: u64, length: u64) -> bool {
        !self.is_empty() && {
            let known = self.known.lock();
            known.files.get(&key).is_some_and(|ranges| overlap(ranges, &blocks_touched(offset, length)))
        }
    }

    /// Whether a write of the range, to a file that ends at `size`, would leave a part of a block as it is that nobody
    /// may see.
    pub(crate) fn splits(&self, key: FileKey, offset: u64, length: u64, size: u64) -> bool {
        if self.is_empty() || length == 0 {
            return false;
        }
        let (touched, whole) = (blocks_touched(offset, length), blocks_covered(offset, length, size));
        let known = self.known.lock();
        known.files.get(&key).is_some_and(|ranges| {
            overlap(ranges, &(touched.start..whole.start.clamp(touched.start, touched.end)))
                || overlap(ranges, &(whole.end.clamp(touched.start, touched.end)..touched.end))
        })
    }

    /// Adds blocks, durably. Blocking.
    ///
    /// # Errors
    /// `Corrupt` when there are too many already.
    pub(crate) fn add(&self, key: FileKey, blocks: &[u64]) -> Result<(), StoreError> {
        {
            let mut known = self.known.lock();
            if self.ranges() + blocks.len() > MOST {
                let why = format!("more than {MOST} ranges are bad: replace the device");
                return Err(StoreError::Corrupt(self.device.name(), "the device".into(), why));
            }
            let ranges = known.files.entry(key).or_default();
            let before = ranges.clone();
            blocks.iter().for_each(|&block| insert(ranges, block..block.saturating_add(1)));
            if *ranges == before {
                return Ok(());
            }
            known.unsaved = true;
            self.changed(&known);
        }
        self.save()
    }

    /// What was rewritten whole, or is no more, is good again: for readers at once, on the device when [`Self::flushed`] says
    /// so. In a file that ends at `size`, after so many changes were complete. Not if the file has `lost` something since
    /// that may be part of it.
    pub(crate) fn rewritten(
        &self,
        key: FileKey,
        (offset, length): (u64, u64),
        size: u64,
        changes: u64,
        lost: impl FnOnce() -> bool,
    ) {
        if self.is_empty() {
            return;
        }
        let mut known = self.known.lock();
        // Under the lock: what is lost later is undone by [`Self::lost`].
        if lost() {
            return;
        }
        let blocks = blocks_covered(offset, length, size);
        let lifted = known.lift(key, &blocks);
        if !lifted.is_empty() {
            let rewritten = known.rewritten.entry(key).or_default();
            rewritten.extend(lifted.into_iter().map(|blocks| (changes, blocks)));
            self.changed(&known);
        }
    }

    /// A flush of a file is over that began when so many changes of it were complete.
    ///
    /// # Errors
    /// The list cannot be made durable, and says of bytes of this file what is not so any more. Blocking.
    pub(crate) fn flushed(&self, key: FileKey, changes: u64) -> Result<(), StoreError> {
        let (owes, unsaved) = {
            let mut known = self.known.lock();
            self.made_durable(&mut known, key, changes);
            (known.owed.contains_key(&key), known.unsaved)
        };
        if owes {
            // Somebody else may have begun to save it already: then it is waited for.
            return self.save();
        }
        if unsaved && let Err(error) = self.save() {
            // Of other files: nothing that was flushed depends on it.
            tracing::warn!(store = %self.device.name(), %error, "the list of quarantined ranges is saved later");
        }
        Ok(())
    }

    /// A flush of a file failed, and nobody can tell what of it is on the device: what was rewritten is as bad as before, as the
    /// list on the device says still. The next flush may have nothing to write, and succeed.
    pub(crate) fn lost(&self, key: FileKey) {
        let mut known = self.known.lock();
        let Some(rewritten) = known.rewritten.remove(&key) else { return };
        let ranges = known.files.entry(key).or_default();
        rewritten.into_iter().for_each(|(_, blocks)| insert(ranges, blocks));
        self.changed(&known);
    }

    fn made_durable(&self, known: &mut Known, key: FileKey, changes: u64) {
        let Some(rewritten) = known.rewritten.get_mut(&key) else { return };
        let before = rewritten.len();
        // Who writes counts the change when it is done with all else: the count has gone on since, so the bytes were there
        // when the flush began.
        rewritten.retain(|(then, _)| *then >= changes);
        let (durable, all) = (rewritten.len() < before, rewritten.is_empty());
        if durable {
            known.owes(key);
        }
        if all {
            known.rewritten.remove(&key);
            self.changed(known);
        }
    }

    /// Blocks are good, as the device has them; or their file is gone.
    pub(crate) fn lift(&self, key: FileKey, blocks: &Range<u64>) {
        let mut known = self.known.lock();
        if !known.lift(key, blocks).is_empty() {
            known.unsaved = true;
            self.changed(&known);
        }
    }

    /// A file is gone. The next one of its name is not durable before the list on the device is silent about it.
    pub(crate) fn forget(&self, key: FileKey) {
        let mut known = self.known.lock();
        let lifted = !known.lift(key, &(0..u64::MAX)).is_empty();
        if known.rewritten.remove(&key).is_some() || lifted {
            known.owes(key);
            self.changed(&known);
        }
    }

    fn changed(&self, known: &Known) {
        self.count.store(known.files.values().map(BTreeMap::len).sum(), Ordering::Release);
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// Makes the list durable as it is, if it is not. Blocking.
    pub(crate) fn save(&self) -> Result<(), StoreError> {
        // Who was first writes for all that came before it.
        let _alone = self.saving.lock();
        let (bytes, this) = {
            let mut known = self.known.lock();
            if !std::mem::take(&mut known.unsaved) {
                return Ok(());
            }
            known.saves += 1;
            (known.on_device(), known.saves)
        };
        let saved = replace(&*self.device, FILE, &bytes);
        let mut known = self.known.lock();
        match &saved {
            Ok(()) => known.owed.retain(|_, covers| *covers > this),
            Err(_) => known.unsaved = true,
        }
        saved
    }
}

/// The error inside of [`io::Error`].
#[derive(Debug, thiserror::Error)]
#[error("quarantined: the device does not hold what was written there")]
pub(crate) struct Quarantined;

/// What a reader of quarantined bytes gets.
pub(crate) fn refusal() -> io::Error {
    io::Error::other(Quarantined)
}

fn blocks_touched(offset: u64, length: u64) -> Range<u64> {
    if length == 0 {
        return 0..0;
    }
    offset / BLOCK..offset.saturating_add(length).div_ceil(BLOCK)
}

/// The last block is whole where the file ends.
fn blocks_covered(offset: u64, length: u64, size: u64) -> Range<u64> {
    let end = offset.saturating_add(length);
    let first = offset.div_ceil(BLOCK);
    let last = if end >= size { end.div_ceil(BLOCK) } else { end / BLOCK };
    first..last.max(first)
}

fn overlap(ranges: &Ranges, blocks: &Range<u64>) -> bool {
    blocks.start < blocks.end
        && ranges.range(..blocks.end).next_back().is_some_and(|(_, end)| *end > blocks.start)
}

fn insert(ranges: &mut Ranges, mut blocks: Range<u64>) {
    while let Some((&first, &end)) =
        ranges.range(..=blocks.end).next_back().filter(|(_, end)| **end >= blocks.start)
    {
        ranges.remove(&first);
        blocks = blocks.start.min(first)..blocks.end.max(end);
    }
    ranges.insert(blocks.start, blocks.end);
}

/// What of `blocks` was there.
fn remove(ranges: &mut Ranges, blocks: &Range<u64>) -> Vec<Range<u64>> {
    let mut removed = Vec::new();
    if blocks.is_empty() {
        return removed;
    }
    while let Some((&first, &end)) =
        ranges.range(..blocks.end).next_back().filter(|(_, end)| **end > blocks.start)
    {
        ranges.remove(&first);
        removed.push(first.max(blocks.start)..end.min(blocks.end));
        if end > blocks.end {
            ranges.insert(blocks.end, end);
        }
        if first < blocks.start {
            ranges.insert(first, blocks.start);
        }
    }
    removed
}

fn encode(files: &Files) -> Vec<u8> {
    let line = |key: &FileKey, (first, end): (&u64, &u64)| format!("{key} {first} {end}");
    let mut lines: Vec<String> =
        files.iter().flat_map(|(key, ranges)| ranges.iter().map(|range| line(key, range))).collect();
    lines.sort_unstable();
    let body = format!("{HEAD}\n{}", lines.iter().map(|line| format!("{line}\n")).collect::<String>());
    let check = u64::from_be_bytes(digest(body.as_bytes()));
    format!("{body}check {check:016x}\n").into_bytes()
}

fn decode(bytes: &[u8]) -> Option<Files> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut files = Files::default();
    for line in text.lines().skip(1).take_while(|line| !line.starts_with("check ")) {
        let mut words = line.split(' ');
        let key = FileKey::parse(words.next()?)?;
        let (first, end) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        insert(files.entry(key).or_default(), first..end);
    }
    (encode(&files) == bytes).then_some(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MemDevice;

    fn key(file: u64) -> FileKey {
        FileKey { file, slot: 3 }
    }

    fn open(device: &MemDevice) -> Quarantine {
        Quarantine::open(Arc::new(device.clone())).unwrap()
    }

    #[test]
    fn ranges_are_kept_and_lifted_block_by_block() {
        let device = MemDevice::new();
        let quarantine = open(&device);
        quarantine.add(key(1), &[3, 5, 4, 9]).unwrap();
        quarantine.add(key(2), &[0]).unwrap();
        let damage =
            |key, offset: u64, length: u64| Damage { key, offset: offset * BLOCK, length: length * BLOCK };
        assert_eq!(quarantine.all(), [damage(key(1), 3, 3), damage(key(1), 9, 1), damage(key(2), 0, 1)]);
        assert!(
            quarantine.touches(key(1), 6 * BLOCK - 1, 1) && !quarantine.touches(key(1), 6 * BLOCK, 3 * BLOCK)
        );
        assert!(!quarantine.touches(key(1), 4 * BLOCK, 0));
        // Half of block 4 is not the block.
        quarantine.rewritten(key(1), (4 * BLOCK, BLOCK - 1), 1 << 40, 7, || false);
        assert!(quarantine.splits(key(1), 4 * BLOCK, BLOCK - 1, 1 << 40));
        assert!(
            !quarantine.splits(key(1), 4 * BLOCK, BLOCK - 1, 5 * BLOCK - 1),
            "it is where the file ends there"
        );
        assert!(quarantine.splits(key(1), 2 * BLOCK + 1, 2 * BLOCK, 1 << 40), "the end of it");
        assert!(
            !quarantine.splits(key(1), 2 * BLOCK + 1, 4 * BLOCK, 1 << 40),
            "only the good blocks are split"
        );
        assert_eq!(quarantine.all().len(), 3);
        // Nor is it what a flush has failed to write, before it is noted or after.
        quarantine.rewritten(key(1), (4 * BLOCK, BLOCK), 1 << 40, 7, || true);
        assert_eq!(quarantine.all().len(), 3);
        quarantine.rewritten(key(1), (4 * BLOCK, BLOCK), 1 << 40, 7, || false);
        quarantine.lost(key(2));
        assert_eq!(quarantine.all().len(), 4);
        quarantine.lost(key(1));
        assert_eq!(quarantine.all()[0], damage(key(1), 3, 3));
        quarantine.flushed(key(1), 100).unwrap();
        assert_eq!(open(&device).all(), quarantine.all());
        quarantine.rewritten(key(1), (4 * BLOCK, BLOCK), 1 << 40, 7, || false);
        assert_eq!(quarantine.all()[..2], [damage(key(1), 3, 1), damage(key(1), 5, 1)]);
        // Nothing says that it is durable: a crash brings it back, whatever else was saved.
        quarantine.flushed(key(2), 100).unwrap();
        quarantine.flushed(key(1), 7).unwrap();
        quarantine.add(key(2), &[1]).unwrap();
        assert_eq!(open(&device).all()[0], damage(key(1), 3, 3));
        quarantine.flushed(key(1), 8).unwrap();
        device.crash();
        assert_eq!(open(&device).all(), quarantine.all());
        quarantine.rewritten(key(1), (0, 1 << 40), 1 << 40, 9, || false);
        quarantine.forget(key(1));
        quarantine.flushed(key(2), 1).unwrap();
        assert_eq!(open(&device).all(), [damage(key(2), 0, 2)]);
        quarantine.lift(key(1), &(0..u64::MAX));
        quarantine.lift(key(2), &(0..u64::MAX));
        assert!(quarantine.is_empty() && quarantine.all().is_empty());
    }

    #[test]
    fn a_damaged_list_is_forgotten() {
        let device = MemDevice::new();
        open(&device).add(key(1), &[3]).unwrap();
        let file = device.open(FILE).unwrap();
        file.write_at(b"4", HEAD.len() as u64 + 24).unwrap();
        assert!(open(&device).is_empty());
    }
}
