//! Whether the device holds what the sums say.

use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::file::{Blocks, Open, SummedFile};
use super::record::{self, NEVER_KNOWN, Record};
use super::seal::{Content, of_medium};
use super::{BLOCK, BLOCKS, Counts, REGION};
use crate::StoreError;
use crate::places::path_of;

/// What was found out about a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// So many bytes were compared; what was bad is in quarantine.
    Compared(u64),
    /// It has no sums, or is being written to.
    Open,
}

impl SummedFile {
    /// Compares one region, as the medium has it. Blocking.
    pub(crate) fn verify(&self, region: u64) -> Result<Verdict, StoreError> {
        let Some(before) = self.at_rest(region) else { return Ok(Verdict::Open) };
        let record = match self.record(region)? {
            Some(Ok(record)) if record.sealed => record,
            Some(Err(head)) if head.sealed => {
                Counts::add(&self.sums.counts.lost, 1);
                let first = region * REGION;
                // A loss of power while they were written does that; no data is suspected for it.
                tracing::warn!(store = %self.sums.device.name(), file = %self.key, first, "checksums of a range do not fit their own check: made anew from what the file has");
                self.known.store(false, Ordering::Release);
                return self.drop_damaged(region);
            }
            _ => return Ok(Verdict::Open),
        };
        let start = region.saturating_mul(REGION);
        let content = self.read_raw(start, record.length)?;
        let (good, bad, learned) = self.judge(region, &record, &content)?;
        if bad.is_empty() && self.sums.quarantine.is_empty() {
            if self.at_rest(region) != Some(before) {
                // Somebody writes: what was read may be of both.
                return Ok(Verdict::Open);
            }
        } else {
            // Who writes now waits until it is noted what was bad before.
            if !self.hold(region, before) {
                return Ok(Verdict::Open);
            }
            let noted = self.note(&good, &bad);
            self.regions.lock().open.remove(&region);
            self.settled.notify_all();
            noted?;
        }
        if learned {
            // What was never known got no sum until now.
            self.give_up_seal(region)?;
        }
        Counts::add(&self.sums.counts.verified, record.length);
        Ok(Verdict::Compared(record.length))
    }

    /// Which blocks are good, and which are bad; whether any of the good ones was not known before.
    fn judge(
        &self,
        region: u64,
        record: &Record,
        content: &Content,
    ) -> io::Result<(Vec<Range<u64>>, Vec<u64>, bool)> {
        let sums = record::sums(self.key, region, &content.bytes);
        let (mut good, mut bad, mut learned) = (Vec::new(), Vec::new(), false);
        let mut blocks = content.bytes.chunks(BLOCK as usize);
        for (within, expected) in (0u64..).zip(&record.sums) {
            let block = region * BLOCKS as u64 + within;
            let readable = !content.unreadable.contains(&within);
            let believed = blocks.next().is_some_and(record::is_believed);
            let equal = sums.get(within as usize) == Some(expected);
            let equal = equal
                || if *expected == NEVER_KNOWN {
                    learned |= readable && believed;
                    believed
                } else {
                    self.again_raw(block, record, *expected)?
                };
            if readable && equal { good.push(block..block + 1) } else { bad.push(block) }
        }
        Ok((good, bad, learned))
    }

    /// Of a region that is held.
    fn note(&self, good: &[Range<u64>], bad: &[u64]) -> Result<(), StoreError> {
        let quarantine = &self.sums.quarantine;
        if !quarantine.is_empty() {
            // Good again, or it never was the medium.
            good.iter().for_each(|blocks| quarantine.lift(self.key, blocks));
            quarantine.save()?;
        }
        let is_new = |block: &&u64| !quarantine.touches(self.key, *block * BLOCK, 1);
        let new: Vec<u64> = bad.iter().filter(is_new).copied().collect();
        self.quarantine(&new)
    }

    /// Nobody writes to the region from now on, if nobody has since it was at rest; see [`Self::at_rest`].
    fn hold(&self, region: u64, before: u64) -> bool {
        let now = Some(self.sums.clock.now());
        let mut regions = self.regions.lock();
        if regions.wide > 0 || regions.changes != before || regions.open.contains_key(&region) {
            return false;
        }
        regions.open.insert(region, Open { committing: true, ..Open::new(Blocks::NONE, now) });
        true
    }

    /// Nobody writes to the region: the count of wide changes, which says later whether somebody did.
    fn at_rest(&self, region: u64) -> Option<u64> {
        let regions = self.regions.lock();
        (regions.wide == 0 && !regions.open.contains_key(&region)).then_some(regions.changes)
    }

    fn read_raw(&self, start: u64, length: u64) -> io::Result<Content> {
        let path = path_of(self.key);
        Content::read(|buffer, at| self.sums.device.read_uncached(&path, buffer, at), start, length)
    }

    fn again_raw(&self, block: u64, record: &Record, expected: u32) -> io::Result<bool> {
        let end = (block % BLOCKS as u64 * BLOCK + BLOCK).min(record.length);
        let mut bytes = vec![0; (end - block % BLOCKS as u64 * BLOCK) as usize];
        let raw = self.sums.device.read_uncached(&path_of(self.key), &mut bytes, block * BLOCK);
        let read = of_medium(raw)?;
        Ok(read.is_some_and(|read| record::sum(self.key, block, &bytes[..read]) == expected))
    }

    fn give_up_seal(&self, region: u64) -> io::Result<()> {
        let regions = self.regions.lock();
        // Whoever writes to it has done so, or is about to.
        if !regions.open.contains_key(&region) {
            drop(self.open_region(regions, region)?);
        }
        Ok(())
    }

    /// Sums that are damaged themselves are given up.
    fn drop_damaged(&self, region: u64) -> Result<Verdict, StoreError> {
        self.give_up_seal(region)?;
        if let Some(open) = self.regions.lock().open.get_mut(&region) {
            open.dirty = Blocks::ALL;
        }
        Ok(Verdict::Open)
    }
}
