//! Sums for what has come to rest: it is durable, it is read back, and if nobody wrote to it meanwhile its sums count.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::file::{Blocks, Open, SummedFile};
use super::record::{self, NEVER_KNOWN, Record, offset_of};
use super::{BLOCK, BLOCKS, Counts, REGION};
use crate::StoreError;
use crate::places::{leaf_of, leaf_path, path_of};

/// Regions that may get sums, if no more happens to them.
#[derive(Debug, Default)]
pub(crate) struct Picked {
    pub(crate) regions: Vec<u64>,
    /// Changes of the file so far: they have to be durable.
    modified: u64,
    /// As [`super::file::Regions::changes`].
    changes: u64,
    /// There are regions that are not quiet yet.
    pub(crate) more: bool,
}

impl SummedFile {
    /// What has been left alone for `quiet`. Blocking.
    pub(crate) fn pick(&self, quiet: Duration) -> io::Result<Picked> {
        self.queued.store(false, Ordering::Release);
        if !self.known.swap(true, Ordering::AcqRel) {
            self.look_for_open()?;
        }
        let now = self.sums.clock.now();
        let mut regions = self.regions.lock();
        let mut picked = Picked { changes: regions.changes, ..Picked::default() };
        if regions.wide > 0 {
            return Ok(Picked { more: true, ..picked });
        }
        for (region, open) in &mut regions.open {
            let rests = open.since.is_none_or(|since| now.since(since) >= quiet);
            if rests && open.writers == 0 && !open.committing {
                open.touched = false;
                picked.regions.push(*region);
            } else {
                picked.more = true;
            }
        }
        // Under the lock: whatever was written before is counted, or its writer is still there.
        picked.modified = self.modified.load(Ordering::Acquire);
        picked.regions.sort_unstable();
        Ok(picked)
    }

    /// Enters all regions with data that have no sums. Those of a data file that was just opened have rested as long as anybody
    /// knows: it may be closed before it is looked at again, and would never be quiet.
    fn look_for_open(&self) -> io::Result<()> {
        let size = self.inner.stat()?.size;
        let mut at = 0;
        while let Some(data) = self.inner.seek_data(at)? {
            let region = data / REGION;
            let length = size.saturating_sub(region * REGION).min(REGION);
            // First: sums that cannot be read are given up, which takes a flush.
            let head = self.found_head(region)?;
            let mut regions = self.regions.lock();
            let known = regions.open.contains_key(&region);
            if !known {
                let sealed = self.is_sealed(region)?;
                let short = sealed && head.is_some_and(|head| head.length < length);
                if short {
                    // It has grown by a hole.
                    regions = self.open_region(regions, region)?;
                } else if !sealed {
                    let open = Open::new(Blocks::ALL, regions.widened);
                    regions.open.insert(region, open);
                }
            }
            drop(regions);
            at = (region + 1) * REGION;
        }
        Ok(())
    }

    /// Everything that was written when `picked` was made is durable.
    pub(crate) fn is_durable(&self, picked: &Picked) -> bool {
        self.synced.load(Ordering::Acquire) >= picked.modified
    }

    /// Makes the sums of one region; how many bytes were read. Blocking.
    ///
    /// # Errors
    /// Those of the device; it has no sums then, or its old ones are still given up.
    pub(crate) fn seal(&self, region: u64, picked: &Picked) -> Result<u64, StoreError> {
        let start = region.saturating_mul(REGION);
        let length = self.inner.stat()?.size.saturating_sub(start).min(REGION);
        let empty = length == 0 || self.inner.seek_data(start)?.is_none_or(|data| data >= start + length);
        if empty {
            // A hole needs no sums.
            self.regions.lock().open.retain(|r, open| *r != region || open.touched || open.writers > 0);
            return Ok(0);
        }
        let old = self.record(region)?.and_then(Result::ok);
        let content = Content::read(|buffer, at| self.read_back(buffer, at), start, length)?;
        let sums = record::sums(self.key, region, &content.bytes);
        let dirty = match self.regions.lock().open.get(&region) {
            Some(open) => open.dirty.clone(),
            None => return Ok(length),
        };
        let found = self.compare(region, &old, &dirty, &content, sums)?;
        if !self.commit_begins(region, picked) {
            return Ok(length);
        }
        let sealed = self.write_record(region, length, found);
        self.regions.lock().open.remove(&region);
        self.settled.notify_all();
        sealed?;
        Counts::add(&self.sums.counts.sealed, length);
        Ok(length)
    }

    /// What there is, and what it was before.
    fn compare(
        &self,
        region: u64,
        old: &Option<Record>,
        dirty: &Blocks,
        content: &Content,
        sums: Vec<u32>,
    ) -> Result<Found, StoreError> {
        let mut found = Found { sums, ..Found::default() };
        let mut blocks = content.bytes.chunks(BLOCK as usize);
        for (at, sum) in found.sums.iter_mut().enumerate() {
            let (within, block) = (at as u64, region * BLOCKS as u64 + at as u64);
            let quarantined = self.sums.quarantine.touches(self.key, block * BLOCK, 1);
            let comparable = old.as_ref().filter(|old| {
                let end = |length: u64| length.min((within + 1) * BLOCK);
                end(old.length) == end(content.bytes.len() as u64) && (quarantined || !dirty.contains(within))
            });
            let expected = comparable.and_then(|old| old.sums.get(at)).copied();
            let readable = !content.unreadable.contains(&within);
            let believed = blocks.next().is_some_and(record::is_believed) && readable;
            match expected {
                Some(NEVER_KNOWN) if believed && *sum != NEVER_KNOWN => found.good.push(block),
                Some(NEVER_KNOWN) if *sum != NEVER_KNOWN => {
                    *sum = NEVER_KNOWN;
                    found.unknown.extend((!quarantined).then_some(block));
                }
                // It keeps the sum of what it should hold.
                Some(expected) => {
                    let differs = expected != *sum && !self.again(block, expected)?;
                    *sum = expected;
                    found.bad.extend((differs || !readable).then_some(block));
                }
                // Of what it should hold nothing is known: only who rewrites it makes it good.
                None if quarantined => *sum = !*sum,
                None if !readable => {
                    *sum = NEVER_KNOWN;
                    found.unknown.push(block);
                }
                None => {}
            }
        }
        Ok(found)
    }

    /// What the device holds, which memory has, too, unless a flush failed: what that was to write may be there still, as if it had
    /// been written.
    fn read_back(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.failures.load(Ordering::Acquire) == 0 {
            return self.inner.read_at(buffer, offset);
        }
        self.sums.device.read_uncached(&path_of(self.key), buffer, offset)
    }

    /// Whether a second look finds what is expected.
    fn again(&self, block: u64, expected: u32) -> io::Result<bool> {
        let mut bytes = vec![0; BLOCK as usize];
        let read = of_medium(self.read_back(&mut bytes, block * BLOCK))?;
        Ok(read.is_some_and(|read| record::sum(self.key, block, &bytes[..read]) == expected))
    }

    /// Whether nobody wrote to the region since it was picked; nobody does before its entry is gone.
    fn commit_begins(&self, region: u64, picked: &Picked) -> bool {
        let mut regions = self.regions.lock();
        if regions.wide > 0 || regions.changes != picked.changes {
            return false;
        }
        match regions.open.get_mut(&region) {
            Some(open) if open.writers == 0 && !open.touched && !open.committing => {
                open.committing = true;
                true
            }
            _ => false,
        }
    }

    /// Not flushed: a crash that loses it leaves a region without sums. But where something is in quarantine because it was
    /// never known, the record says so durably before that is: after a crash nobody could tell it from what is known to be bad.
    fn write_record(&self, region: u64, length: u64, found: Found) -> Result<(), StoreError> {
        self.quarantine(&found.bad)?;
        self.believe(&found.good)?;
        let record = Record { sealed: true, length, sums: found.sums };
        let side = self.make_side()?;
        side.write_at(&record.encode(self.sums.id, region), offset_of(region))?;
        if !found.unknown.is_empty() {
            side.sync_data()?;
            self.sums.device.sync_dir(&leaf_path(leaf_of(self.key)))?;
        }
        self.quarantine(&found.unknown)
    }

    /// Blocks are what they should be, as far as anybody knows.
    fn believe(&self, good: &[u64]) -> Result<(), StoreError> {
        if good.is_empty() {
            return Ok(());
        }
        good.iter().for_each(|&block| self.sums.quarantine.lift(self.key, &(block..block + 1)));
        self.sums.quarantine.save()
    }

    /// Nobody is to see these blocks again before they are rewritten: durable.
    pub(super) fn quarantine(&self, bad: &[u64]) -> Result<(), StoreError> {
        if bad.is_empty() {
            return Ok(());
        }
        Counts::add(&self.sums.counts.bad, bad.len() as u64);
        tracing::error!(
            store = %self.sums.device.name(),
            file = %self.key,
            first = bad[0] * BLOCK,
            blocks = bad.len(),
            "the device does not hold what was written there: quarantined"
        );
        self.sums.quarantine.add(self.key, bad)
    }
}

/// What is to be sealed.
#[derive(Debug, Default)]
struct Found {
    sums: Vec<u32>,
    /// Blocks that nobody wrote to and that are not what they were, or cannot be read any more.
    bad: Vec<u64>,
    /// Blocks of which nothing was ever known, as they could not be read, and which are not in quarantine yet.
    unknown: Vec<u64>,
    /// Such blocks that can be read now.
    good: Vec<u64>,
}

/// What a region holds.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) bytes: Vec<u8>,
    /// Blocks of the region that the device does not read.
    pub(super) unreadable: Vec<u64>,
}

impl Content {
    /// Up to `length` bytes; shorter where the file ends. Blocks that cannot be read are zeros.
    pub(super) fn read(
        read_at: impl Fn(&mut [u8], u64) -> io::Result<usize>,
        start: u64,
        length: u64,
    ) -> io::Result<Self> {
        let mut bytes = buffer(length);
        if let Some(read) = of_medium(read_at(&mut bytes, start))? {
            bytes.truncate(read);
            return Ok(Self { bytes, unreadable: Vec::new() });
        }
        let mut unreadable = Vec::new();
        for (within, block) in (0..).zip(bytes.chunks_mut(BLOCK as usize)) {
            if of_medium(read_at(block, start + within * BLOCK))?.is_none() {
                block.fill(0);
                unreadable.push(within);
            }
        }
        Ok(Self { bytes, unreadable })
    }
}

fn buffer(length: u64) -> Vec<u8> {
    vec![0; usize::try_from(length.min(REGION)).unwrap_or(0)]
}

/// `None` where the medium is why nothing was read. Any other error says nothing about it.
pub(super) fn of_medium(read: io::Result<usize>) -> io::Result<Option<usize>> {
    match read {
        Err(error) if is_of_medium(&error) => Ok(None),
        read => read.map(Some),
    }
}

pub(crate) fn is_of_medium(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(is_media)
}

/// EIO, EBADMSG, EILSEQ, ENODATA: the medium, or a file system that checks itself.
fn is_media(errno: i32) -> bool {
    use rustix::io::Errno;
    [Errno::IO, Errno::BADMSG, Errno::ILSEQ, Errno::NODATA].iter().any(|known| known.raw_os_error() == errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_medium_makes_a_block_unreadable() {
        use rustix::io::Errno;
        let content = |of_a_block: Errno| {
            let read = |buffer: &mut [u8], at: u64| match buffer.len() as u64 {
                BLOCK if at == 2 * BLOCK => Err(of_a_block.into()),
                BLOCK => Ok(buffer.len()),
                _ => Err(Errno::IO.into()),
            };
            Content::read(read, 0, 4 * BLOCK).map(|content| content.unreadable)
        };
        assert_eq!(content(Errno::IO).unwrap(), [2]);
        let error = content(Errno::MFILE).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::MFILE.raw_os_error()));
    }
}
