//! A data file with sums. Whatever changes it passes here: the sums of the regions that it touches are given up, durably,
//! before the first byte changes, and are not made again before it has been left alone.

use std::collections::HashMap;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use foldhash::fast::FixedState;
use parking_lot::{Condvar, Mutex, MutexGuard};
use sluice_env::Monotonic;

use super::quarantine::refusal;
use super::record::{HEAD, Head, Record, STRIDE, offset_of};
use super::seal::is_of_medium;
use super::{BLOCK, BLOCKS, Counts, REGION, Sums, remove_side, side_path};
use crate::FileKey;
use crate::device::{Cached, DeviceFile, FileStat};
use crate::places::{leaf_of, leaf_path, path_of};

/// Regions given up at once for one who writes in order.
const AHEAD: u64 = 64;

/// Bytes that are copied at once, as many as devices copy. All regions of a long range would be entered again for each piece.
const COPY: u64 = 16 << 20;

/// Blocks of a region, one bit each.
#[derive(Clone, Debug)]
pub(super) struct Blocks([u64; BLOCKS / 64]);

impl Blocks {
    pub(super) const NONE: Self = Self([0; BLOCKS / 64]);
    pub(super) const ALL: Self = Self([u64::MAX; BLOCKS / 64]);

    fn add(&mut self, first: u64, last: u64) {
        for block in first..=last {
            if let Some(word) = self.0.get_mut((block / 64) as usize) {
                *word |= 1 << (block % 64);
            }
        }
    }

    pub(super) fn contains(&self, block: u64) -> bool {
        self.0.get((block / 64) as usize).is_none_or(|word| word >> (block % 64) & 1 == 1)
    }
}

/// A region without good sums on the device.
#[derive(Debug)]
pub(super) struct Open {
    /// Writes under way.
    pub(super) writers: u32,
    /// Blocks that the sums from before say nothing about.
    pub(super) dirty: Blocks,
    /// When it was written to last; `None`: not since the data file was opened.
    pub(super) since: Option<Monotonic>,
    /// Written to since somebody began to make sums.
    pub(super) touched: bool,
    /// What the side file says of it is being changed: nobody writes meanwhile.
    pub(super) committing: bool,
}

impl Open {
    pub(super) fn new(dirty: Blocks, since: Option<Monotonic>) -> Self {
        Self { writers: 0, dirty, since, touched: true, committing: false }
    }
}

#[derive(Debug, Default)]
pub(super) struct Regions {
    /// Those that are known to have no sums; of others the side file knows.
    pub(super) open: HashMap<u64, Open, FixedState>,
    /// Changes of many regions at once that are under way.
    pub(super) wide: u32,
    /// Such changes so far.
    pub(super) changes: u64,
    /// When the last of them ended.
    pub(super) widened: Option<Monotonic>,
    /// The next region, if the file is overwritten in order, and how many to give up with it.
    next: u64,
    ahead: u64,
}

#[derive(Clone, Debug)]
enum Side {
    Unknown,
    Absent,
    There(Arc<dyn DeviceFile>),
}

#[derive(Debug)]
pub(crate) struct SummedFile {
    // Constant.
    pub(super) key: FileKey,
    pub(super) inner: Arc<dyn DeviceFile>,
    pub(super) sums: Arc<Sums>,
    // Each guards itself. Lock order: regions, then side; `regions` is never held while a flush runs.
    pub(super) regions: Mutex<Regions>,
    pub(super) settled: Condvar,
    side: Mutex<Side>,
    /// Changes that are complete, and how many of them a flush has made durable.
    pub(super) modified: AtomicU64,
    pub(super) synced: AtomicU64,
    /// Flushes that failed.
    pub(super) failures: AtomicU64,
    /// It is in the queue for sealing.
    pub(super) queued: AtomicBool,
    /// Its removal has begun: a data file of the same name is another one.
    pub(super) gone: AtomicBool,
    /// All regions that may want sums are in `regions`; else whoever seals has to look.
    pub(super) known: AtomicBool,
}

impl SummedFile {
    /// `fresh`: the data file was just created.
    pub(crate) fn new(key: FileKey, inner: Arc<dyn DeviceFile>, sums: &Arc<Sums>, fresh: bool) -> Arc<Self> {
        Arc::new(Self {
            key,
            inner,
            sums: Arc::clone(sums),
            regions: Mutex::default(),
            settled: Condvar::new(),
            side: Mutex::new(if fresh { Side::Absent } else { Side::Unknown }),
            // Of a process before this one nobody knows what is durable.
            modified: AtomicU64::new(1),
            synced: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            queued: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            known: AtomicBool::new(fresh),
        })
    }

    /// Nothing is made for it any more.
    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::SeqCst);
    }

    pub(super) fn side(&self) -> io::Result<Option<Arc<dyn DeviceFile>>> {
        let mut side = self.side.lock();
        if let Side::Unknown = *side {
            *side = match self.sums.device.open(&side_path(self.key)) {
                Ok(file) => Side::There(file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Side::Absent,
                Err(error) => return Err(error),
            };
        }
        Ok(match &*side {
            Side::There(file) => Some(Arc::clone(file)),
            _ => None,
        })
    }

    /// The side file, which exists afterwards.
    pub(super) fn make_side(&self) -> io::Result<Arc<dyn DeviceFile>> {
        if let Some(file) = self.side()? {
            return Ok(file);
        }
        self.settle_loss()?;
        let mut side = self.side.lock();
        let path = side_path(self.key);
        let file = match self.sums.device.create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.sums.device.open(&path)?,
            other => other?,
        };
        // Removals say so, then take the data file, then the side file: either they see that or we see them.
        let there = self.sums.device.stat(&path_of(self.key)).map(drop);
        let there =
            if self.gone.load(Ordering::SeqCst) { Err(io::ErrorKind::NotFound.into()) } else { there };
        if let Err(error) = there {
            let _ = self.sums.device.remove(&path);
            return Err(error);
        }
        *side = Side::There(Arc::clone(&file));
        Ok(file)
    }

    fn head(&self, region: u64) -> io::Result<Option<Head>> {
        let Some(side) = self.side()? else { return Ok(None) };
        let mut bytes = [0; HEAD];
        let n = side.read_at(&mut bytes, offset_of(region))?;
        Ok(Head::decode(self.sums.id, region, &bytes[..n]))
    }

    /// As [`Self::or_lose`].
    pub(super) fn found_head(&self, region: u64) -> io::Result<Option<Head>> {
        self.or_lose(self.head(region))
    }

    /// As [`Self::or_lose`].
    pub(super) fn record(&self, region: u64) -> io::Result<Option<Result<Record, Head>>> {
        self.or_lose(self.read_record(region))
    }

    fn read_record(&self, region: u64) -> io::Result<Option<Result<Record, Head>>> {
        let Some(side) = self.side()? else { return Ok(None) };
        let mut bytes = vec![0; STRIDE as usize];
        let n = side.read_at(&mut bytes, offset_of(region))?;
        Ok(Record::decode(self.sums.id, region, &bytes[..n]))
    }

    /// The first region from `at` on that may have sums. A file may have holes of any length. As [`Self::or_lose`].
    pub(super) fn recorded_from(&self, at: u64) -> io::Result<Option<u64>> {
        let data = |side: Option<Arc<dyn DeviceFile>>| match side {
            Some(side) => side.seek_data(offset_of(at)),
            None => Ok(None),
        };
        Ok(self.or_lose(self.side().and_then(data))?.map(|data| data / STRIDE))
    }

    pub(super) fn is_sealed(&self, region: u64) -> io::Result<bool> {
        let sealed = match self.head(region) {
            // Whoever gives it up sees to that.
            Err(error) if is_of_medium(&error) => true,
            head => head?.is_some_and(|head| head.sealed),
        };
        // Behind it: what memory says has been given up may be sealed on the device.
        Ok(sealed || self.sums.is_unsure(self.key, region))
    }

    /// What the side file says; nothing, where its medium does not read it: then all that it says is given up, durably, and made
    /// anew from what the data file has. The data must not suffer for its sums. Never while `regions` is held.
    fn or_lose<T>(&self, read: io::Result<Option<T>>) -> io::Result<Option<T>> {
        match read {
            Err(error) if is_of_medium(&error) => self.lose_side(&error).map(|()| None),
            read => read,
        }
    }

    fn lose_side(&self, why: &io::Error) -> io::Result<()> {
        if self.gone.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::NotFound.into());
        }
        {
            let mut side = self.side.lock();
            if !matches!(*side, Side::Absent) {
                remove_side(&*self.sums.device, self.key)?;
                self.sums.lost.lock().insert(self.key);
                *side = Side::Absent;
                Counts::add(&self.sums.counts.lost, 1);
                tracing::warn!(store = %self.sums.device.name(), file = %self.key, error = %why, "checksums cannot be read: made anew from what the file has");
            }
        }
        self.settle_loss()?;
        self.known.store(false, Ordering::Release);
        self.enqueue();
        Ok(())
    }

    /// A side file that was lost does not come back in a crash: before that, nothing may change that it has sums of, and there
    /// is no other one.
    fn settle_loss(&self) -> io::Result<()> {
        if self.sums.lost.lock().contains(&self.key) {
            self.sums.device.sync_dir(&leaf_path(leaf_of(self.key)))?;
            self.sums.unsure.lock().retain(|(key, _)| *key != self.key);
            self.sums.lost.lock().remove(&self.key);
        }
        Ok(())
    }

    /// Nobody may see what is in quarantine.
    fn shown(&self, offset: u64, length: u64) -> io::Result<()> {
        if self.sums.quarantine.touches(self.key, offset, length) { Err(refusal()) } else { Ok(()) }
    }

    /// Before bytes change.
    fn enter(&self, offset: u64, length: u64) -> io::Result<Writing<'_>> {
        let sums = &self.sums;
        if !sums.quarantine.is_empty()
            && sums.quarantine.splits(self.key, offset, length, self.inner.stat()?.size)
        {
            // The rest of the block is not to be had: what would come of it is neither old nor new.
            return Err(refusal());
        }
        let last = offset.saturating_add(length.saturating_sub(1));
        let mut writing = Writing::new(self, Entered::None);
        let mut regions = self.regions.lock();
        for region in offset / REGION..=last / REGION {
            while regions.open.get(&region).is_none_or(|open| open.committing) {
                regions = self.open_region(regions, region)?;
            }
            let Some(open) = regions.open.get_mut(&region) else { continue };
            open.writers += 1;
            open.touched = true;
            let start = region * REGION;
            let first = offset.max(start) - start;
            open.dirty.add(first / BLOCK, (last.min(start + REGION - 1) - start) / BLOCK);
            writing.entered = match writing.entered {
                Entered::Regions(first, _) => Entered::Regions(first, region),
                _ => Entered::Regions(region, region),
            };
        }
        drop(regions);
        Ok(writing)
    }

    /// One step towards a region that may be written to.
    pub(super) fn open_region<'a>(
        &'a self,
        mut regions: MutexGuard<'a, Regions>,
        region: u64,
    ) -> io::Result<MutexGuard<'a, Regions>> {
        if regions.open.contains_key(&region) {
            self.settled.wait(&mut regions);
            return Ok(regions);
        }
        let now = Some(self.sums.clock.now());
        if !self.is_sealed(region)? {
            regions.open.insert(region, Open::new(Blocks::ALL, now));
            return Ok(regions);
        }
        regions.ahead = if region == regions.next { (2 * regions.ahead).clamp(2, AHEAD) } else { 1 };
        regions.next = region + regions.ahead;
        let wanted = region..region + regions.ahead;
        let mut sealed = Vec::new();
        for region in wanted {
            if !regions.open.contains_key(&region) && self.is_sealed(region)? {
                sealed.push(region);
            }
        }
        for region in &sealed {
            regions.open.insert(*region, Open { committing: true, ..Open::new(Blocks::NONE, now) });
        }
        drop(regions);
        let given_up = self.give_up(&sealed);
        let mut regions = self.regions.lock();
        for region in &sealed {
            match &given_up {
                Ok(()) => regions.open.get_mut(region).into_iter().for_each(|open| open.committing = false),
                Err(_) => drop(regions.open.remove(region)),
            }
        }
        self.settled.notify_all();
        given_up.map(|()| regions)
    }

    /// Gives up the sums of regions, durably. Whatever the device says afterwards, an error leaves them in force.
    fn give_up(&self, sealed: &[u64]) -> io::Result<()> {
        self.settle_loss()?;
        if sealed.is_empty() {
            return Ok(());
        }
        let Some(side) = self.or_lose(self.side())? else { return Ok(()) };
        self.sums.set_unsure(self.key, sealed, true);
        for &region in sealed {
            if let Some(head) = self.found_head(region)? {
                side.write_at(&head.open(self.sums.id, region), offset_of(region))?;
            }
        }
        side.sync_data()?;
        self.sums.set_unsure(self.key, sealed, false);
        Counts::add(&self.sums.counts.unsealed, sealed.len() as u64);
        Ok(())
    }

    /// Before bytes of any number of regions change.
    fn enter_wide(&self, offset: u64, length: u64) -> io::Result<Writing<'_>> {
        let (first, last) = (offset / REGION, offset.saturating_add(length.max(1) - 1) / REGION);
        let mut regions = self.regions.lock();
        // From now on no sums are made.
        regions.wide += 1;
        regions.changes += 1;
        let writing = Writing::new(self, Entered::Wide);
        while regions.open.iter().any(|(region, open)| (first..=last).contains(region) && open.committing) {
            self.settled.wait(&mut regions);
        }
        drop(regions);
        let (mut sealed, mut at) = (Vec::new(), first);
        while let Some(region) = self.recorded_from(at)?.filter(|region| *region <= last) {
            if self.is_sealed(region)? {
                sealed.push(region);
            }
            at = region + 1;
        }
        self.give_up(&sealed)?;
        self.dirty_all(first..=last);
        Ok(writing)
    }

    fn dirty_all(&self, range: RangeInclusive<u64>) {
        let now = Some(self.sums.clock.now());
        for (_, open) in self.regions.lock().open.iter_mut().filter(|(region, _)| range.contains(region)) {
            (open.dirty, open.touched, open.since) = (Blocks::ALL, true, now);
        }
        // Others may be without sums now that had some.
        self.known.store(false, Ordering::Release);
    }

    /// A flush failed. The device says so once, and what it was to write may be gone from memory.
    fn lost(&self) {
        // First: who has written and not yet said what is good by that finds it here, or is undone with the others. It is told, or
        // told another verifier, as it began before.
        self.failures.fetch_add(1, Ordering::AcqRel);
        self.sums.quarantine.lost(self.key);
    }

    fn synced(&self, modified: u64) -> io::Result<()> {
        self.synced.fetch_max(modified, Ordering::AcqRel);
        // What was rewritten is readable after a crash, too, before anybody is told that it is durable.
        self.sums.quarantine.flushed(self.key, modified).map_err(io::Error::from)
    }
}

/// A change under way.
struct Writing<'a> {
    file: &'a SummedFile,
    entered: Entered,
    /// Flushes that had failed when it began.
    failures: u64,
}

impl<'a> Writing<'a> {
    fn new(file: &'a SummedFile, entered: Entered) -> Self {
        Self { file, entered, failures: file.failures.load(Ordering::Acquire) }
    }

    /// Bytes were rewritten whole: they are good again, if they were not.
    fn rewritten(&self, offset: u64, length: u64) -> io::Result<()> {
        let (file, quarantine) = (self.file, &self.file.sums.quarantine);
        if !quarantine.is_empty() {
            let (size, changes) = (file.inner.stat()?.size, file.modified.load(Ordering::Acquire));
            let lost = || file.failures.load(Ordering::Acquire) != self.failures;
            quarantine.rewritten(file.key, (offset, length), size, changes, lost);
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Entered {
    /// Refused before anything changed.
    None,
    /// First and last.
    Regions(u64, u64),
    /// See [`Regions::wide`].
    Wide,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let file = self.file;
        file.modified.fetch_add(1, Ordering::AcqRel);
        let now = Some(file.sums.clock.now());
        let mut regions = file.regions.lock();
        match self.entered {
            Entered::None => {}
            Entered::Regions(first, last) => {
                for region in first..=last {
                    if let Some(open) = regions.open.get_mut(&region) {
                        open.writers = open.writers.saturating_sub(1);
                        open.since = now;
                    }
                }
            }
            Entered::Wide => {
                regions.wide = regions.wide.saturating_sub(1);
                regions.changes += 1;
                regions.widened = now;
            }
        }
        drop(regions);
        file.enqueue();
    }
}

impl DeviceFile for SummedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.shown(offset, buffer.len() as u64)?;
        self.inner.read_at(buffer, offset)
    }

    fn read_cached(&self, buffer: &mut [u8], offset: u64) -> io::Result<Cached> {
        self.shown(offset, buffer.len() as u64)?;
        self.inner.read_cached(buffer, offset)
    }

    fn begins_reads(&self) -> bool {
        self.inner.begins_reads()
    }

    fn is_cached(&self, offset: u64, length: u64) -> bool {
        self.shown(offset, length).is_ok() && self.inner.is_cached(offset, length)
    }

    fn send(&self, offset: u64, length: usize, socket: BorrowedFd<'_>) -> io::Result<usize> {
        self.shown(offset, length as u64)?;
        self.inner.send(offset, length, socket)
    }

    fn is_ready(&self, offset: u64, length: u64) -> bool {
        let last = offset.saturating_add(length.saturating_sub(1));
        // Who has it may be waiting for the device, and who asks must not wait.
        let Some(regions) = self.regions.try_lock() else { return false };
        (offset / REGION..=last / REGION)
            .all(|region| regions.open.get(&region).is_some_and(|open| !open.committing))
    }

    fn visible(&self, offset: u64, length: u64) -> io::Result<()> {
        self.shown(offset, length)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let length = data.len() as u64;
        let writing = self.enter(offset, length)?;
        self.inner.write_at(data, offset)?;
        writing.rewritten(offset, length)?;
        drop(writing);
        Ok(())
    }

    fn write_direct(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        let length = data.len() as u64;
        let writing = self.enter(offset, length)?;
        let direct = self.inner.write_direct(data, offset)?;
        writing.rewritten(offset, length)?;
        drop(writing);
        Ok(direct)
    }

    fn copy_from(&self, source: &dyn DeviceFile, from: u64, to: u64, length: u64) -> io::Result<u64> {
        source.visible(from, length)?;
        let length = length.min(COPY);
        let writing = self.enter(to, length)?;
        let copied = self.inner.copy_from(source, from, to, length)?;
        writing.rewritten(to, copied)?;
        drop(writing);
        Ok(copied)
    }

    fn clone_of(&self, source: &dyn DeviceFile) -> io::Result<()> {
        source.visible(0, u64::MAX)?;
        let writing = self.enter_wide(0, u64::MAX)?;
        self.inner.clone_of(source)?;
        writing.rewritten(0, u64::MAX)?;
        drop(writing);
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }

    fn sync_data(&self) -> io::Result<()> {
        let modified = self.modified.load(Ordering::Acquire);
        self.inner.sync_data().inspect_err(|_| self.lost())?;
        self.synced(modified)
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        let before = self.inner.stat()?.size;
        let from = size.min(before);
        let writing = self.enter_wide(from, size.max(before).saturating_sub(from))?;
        self.inner.set_len(size)?;
        if size <= before {
            // Also where it ends there already: it was cut before, and a flush failed.
            writing.rewritten(size, u64::MAX)?;
        }
        drop(writing);
        Ok(())
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.inner.stat()
    }

    fn allocate(&self, offset: u64, length: u64, extend: bool) -> io::Result<()> {
        // No byte changes but that the file may become longer.
        let end = self.inner.stat()?.size;
        let writing = self.enter_wide(end, offset.saturating_add(length).saturating_sub(end))?;
        self.inner.allocate(offset, length, extend)?;
        drop(writing);
        Ok(())
    }

    fn deallocate(&self, offset: u64, length: u64) -> io::Result<()> {
        let writing = self.enter_wide(offset, length)?;
        self.inner.deallocate(offset, length)?;
        writing.rewritten(offset, length)?;
        drop(writing);
        Ok(())
    }

    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.inner.seek_data(offset)
    }

    fn seek_hole(&self, offset: u64) -> io::Result<Option<u64>> {
        self.inner.seek_hole(offset)
    }

    fn has_place(&self, offset: u64, length: u64) -> io::Result<bool> {
        self.inner.has_place(offset, length)
    }

    fn is_recorded(&self) -> io::Result<bool> {
        self.inner.is_recorded()
    }

    fn set_recorded(&self) -> io::Result<()> {
        self.inner.set_recorded()
    }
}

impl Sums {
    fn is_unsure(&self, key: FileKey, region: u64) -> bool {
        self.lost.lock().contains(&key) || self.unsure.lock().contains(&(key, region))
    }

    fn set_unsure(&self, key: FileKey, regions: &[u64], unsure: bool) {
        let mut all = self.unsure.lock();
        for region in regions {
            if unsure {
                all.insert((key, *region));
            } else {
                all.remove(&(key, *region));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use sluice_env::Env;

    use super::*;
    use crate::SumOptions;
    use crate::device::{Device, MemDevice};
    use crate::sums::Quarantine;

    /// A data file that was just created, and the device it is on.
    fn created() -> (Arc<SummedFile>, MemDevice) {
        let memory = MemDevice::new();
        let device: Arc<dyn Device> = Arc::new(memory.clone());
        let quarantine = Quarantine::open(Arc::clone(&device)).unwrap();
        let (inner, clock) = (device.create("a").unwrap(), Env::simulated(1).clock);
        let sums = Sums::new(1, device, clock, SumOptions::default(), quarantine);
        (SummedFile::new(FileKey { file: 1, slot: 0 }, inner, &sums, true), memory)
    }

    /// Who may not wait asks, and somebody holds the regions while he reads from the device.
    #[test]
    fn whether_it_is_ready_is_said_at_once() {
        let (file, _device) = created();
        file.write_at(&[1; 10], 0).unwrap();
        assert!(file.is_ready(0, 10));
        let (sender, answer) = mpsc::channel();
        let held = file.regions.lock();
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send(file.is_ready(0, 10)));
            assert_eq!(answer.recv_timeout(Duration::from_secs(5)), Ok(false));
            drop(held);
        });
    }

    /// The rest of the range is asked for again and again.
    #[test]
    fn a_piece_of_a_long_copy_enters_the_regions_of_that_piece() {
        let (file, device) = created();
        let source = device.create("b").unwrap();
        source.write_at(&[7; 100], 0).unwrap();
        assert_eq!(file.copy_from(&*source, 0, 0, 1 << 40).unwrap(), 100);
        assert_eq!(file.regions.lock().open.len() as u64, COPY / REGION);
    }
}
