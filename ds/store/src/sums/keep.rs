//! In the background: sums for what has come to rest, and a scrub now and then.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluice_env::Monotonic;

use super::scrub::{FOLDERS, Moment, Scrub};
use super::verify::Verdict;
use super::{Damage, REGION, SUFFIX, SummedFile, Sums, remove_side, sides_in};
use crate::data_file::DataFile;
use crate::format::SUMS_LEFT;
use crate::places::{leaf_path, path_of};
use crate::{FileKey, Store, StoreError};

/// Between two looks for something to do.
const LOOK: Duration = Duration::from_secs(1);
/// What opening a data file costs a device that has to look for it and for its sums, in bytes read.
const OPENING: u64 = 64 << 10;
/// A scrub's place is saved so often.
const SAVE: Duration = Duration::from_secs(30);

/// Side files removed in one go.
const AT_ONCE: usize = 256;

/// What operators ask.
impl Store {
    /// Begins a scrub, if none runs; false when there are no checksums.
    pub fn scrub(&self) -> bool {
        if self.sums.is_some() {
            self.scrub.begin(self.env.clock.wall());
        }
        self.sums.is_some()
    }

    /// Ends the scrub that runs.
    pub fn stop_scrub(&self) {
        if let Some(sums) = &self.sums {
            self.scrub.stop(self.moment(sums));
        }
    }

    /// How far the scrub is, and what was found.
    pub fn scrubbed(&self) -> Scrub {
        let point = self.scrub.get();
        let Some(sums) = &self.sums else { return Scrub::default() };
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Scrub {
            on: true,
            running: point.running,
            begun: point.begun,
            finished: point.finished,
            folders: point.folders,
            compared: point.compared,
            verified: count(&sums.counts.verified),
            sealed: count(&sums.counts.sealed),
            unsealed: count(&sums.counts.unsealed),
            bad: count(&sums.counts.bad),
            lost: count(&sums.counts.lost),
            quarantined: sums.quarantine.ranges() as u64,
        }
    }

    /// What is in quarantine, and a number that is another one whenever that is.
    pub fn damaged(&self) -> (u64, Vec<Damage>) {
        self.sums.as_ref().map_or((0, Vec::new()), |sums| (sums.quarantine.version(), sums.quarantine.all()))
    }

    /// The number alone.
    pub fn damage_version(&self) -> u64 {
        self.sums.as_ref().map_or(0, |sums| sums.quarantine.version())
    }
}

impl Store {
    /// Keeps sums for as long as somebody awaits it. Where there are none any more it removes what is left of them, and returns.
    pub async fn keep_sums(self: Arc<Self>) {
        let Some(sums) = self.sums.clone() else { return self.remove_sums().await };
        let mut pace = Budget { rate: sums.options.rate, ahead: self.env.clock.now() };
        loop {
            self.seal_quiet(&sums, &mut pace).await;
            let (at, created) = (self.moment(&sums), self.superblock.lock().created);
            if self.scrub.is_due(at, created) {
                self.scrub.begin(at.wall);
            }
            if self.scrub.get().running {
                self.scrub_folders(&sums, &mut pace).await;
            } else if self.scrub.is_unsaved() {
                // Ended between two looks.
                self.save_place().await;
            }
            self.env.clock.sleep(LOOK).await;
        }
    }

    /// Removes the side files of sums that were switched off. There is one for each data file, so that clients do not wait for
    /// it, nor whoever closes the store for long.
    async fn remove_sums(self: Arc<Self>) {
        let left = self.blocking(|store| match store.device.stat(SUMS_LEFT) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            found => Ok(found.map(|_| true)?),
        });
        match left.await {
            Ok(true) => tracing::info!(store = %self.place(), "checksums were switched off: removing them"),
            Ok(false) => return,
            Err(error) => {
                tracing::warn!(store = %self.place(), %error, "cannot look whether checksums are left");
                return;
            }
        }
        match self.remove_sides().await {
            Ok(removed) => tracing::info!(store = %self.place(), files = removed, "checksums are removed"),
            Err(error) => {
                tracing::warn!(store = %self.place(), %error, "checksums are not all removed: the next start goes on with it");
            }
        }
    }

    /// How many there were.
    async fn remove_sides(self: &Arc<Self>) -> Result<u64, StoreError> {
        let mut removed = 0;
        for folder in 0..FOLDERS {
            let mut keys = self.blocking(move |store| sides_in(&*store.device, folder)).await?;
            while !keys.is_empty() {
                let some = keys.split_off(keys.len().saturating_sub(AT_ONCE));
                removed += some.len() as u64;
                self.blocking(move |store| some.iter().try_for_each(|key| remove_side(&*store.device, *key)))
                    .await?;
            }
        }
        self.blocking(|store| {
            store.device.remove(SUMS_LEFT)?;
            Ok(store.device.sync_dir("")?)
        })
        .await?;
        Ok(removed)
    }

    fn moment(&self, sums: &Sums) -> Moment {
        let clock = &self.env.clock;
        Moment { wall: clock.wall(), now: clock.now(), interval: sums.options.interval }
    }

    /// Makes sums of what has come to rest since it was written.
    async fn seal_quiet(self: &Arc<Self>, sums: &Sums, pace: &mut Budget) {
        for key in sums.take_queue() {
            match self.seal_file(key, sums.options.quiet, pace).await {
                Ok(()) | Err(StoreError::Missing | StoreError::Refused(_)) => {}
                // The next scrub comes by.
                Err(error) => {
                    tracing::warn!(store = %self.place(), file = %key, %error, "cannot make checksums");
                }
            }
        }
    }

    /// A data file to be looked at, for [`Self::looked_at`] afterwards.
    async fn look_at(self: &Arc<Self>, key: FileKey, pace: &mut Budget) -> Result<Looked, StoreError> {
        let looked = self.blocking(move |store| {
            let (file, anew) = match store.files.get(key) {
                Some(file) => (file, false),
                None => (store.open_file(key)?, true),
            };
            let summed = file.summed.clone().ok_or(StoreError::Missing)?;
            if anew {
                file.referenced.store(false, Ordering::Relaxed);
            }
            Ok(Looked { file, summed, anew })
        });
        let looked = looked.await?;
        if looked.anew {
            pace.spent(self, OPENING).await;
        }
        Ok(looked)
    }

    /// Closes it, if it was open for nobody else: those that clients use stay open.
    async fn looked_at(self: &Arc<Self>, looked: Looked) {
        if !looked.anew {
            return;
        }
        let closed = self.blocking(move |store| {
            let key = looked.file.key;
            drop(looked);
            drop(store.files.take_unused(key));
            Ok(())
        });
        // It fails when nothing is run any more: then it is closed, too.
        let _ = closed.await;
    }

    async fn seal_file(
        self: &Arc<Self>,
        key: FileKey,
        quiet: Duration,
        pace: &mut Budget,
    ) -> Result<(), StoreError> {
        let looked = self.look_at(key, pace).await?;
        let sealed = self.seal_regions(&looked, quiet, pace).await;
        self.looked_at(looked).await;
        sealed
    }

    async fn seal_regions(
        self: &Arc<Self>,
        Looked { file, summed, .. }: &Looked,
        quiet: Duration,
        pace: &mut Budget,
    ) -> Result<(), StoreError> {
        let inner = Arc::clone(summed);
        let picked = Arc::new(self.blocking(move |_| Ok(inner.pick(quiet)?)).await?);
        let mut left = picked.more;
        if !picked.regions.is_empty() {
            // As clients flush: a failure reaches those whose data it was.
            self.flush(file).await?;
            left |= !summed.is_durable(&picked);
        }
        for region in picked.regions.iter().copied().filter(|_| summed.is_durable(&picked)) {
            let (inner, of) = (Arc::clone(summed), Arc::clone(&picked));
            let read = self.blocking(move |_| inner.seal(region, &of)).await?;
            pace.spent(self, read).await;
        }
        if left || summed.has_open() {
            summed.enqueue();
        }
        Ok(())
    }

    /// Works on the scrub for as long as it runs, but looks after what has come to rest now and then.
    async fn scrub_folders(self: &Arc<Self>, sums: &Sums, pace: &mut Budget) {
        if self.scrub.get().folders == 0 {
            // One that has begun goes on after a restart.
            self.save_place().await;
        }
        let until = self.env.clock.now() + SAVE;
        while self.env.clock.now() < until {
            let Some((number, folder)) = self.scrub.next() else { break };
            if let Err(error) = self.scrub_folder((number, folder), pace).await {
                tracing::error!(store = %self.place(), %error, "the scrub has stopped");
                self.scrub.break_off(number, self.moment(sums));
                break;
            }
            if let Some(missed) = self.scrub.folder_done(number, self.moment(sums)) {
                self.say_done(missed);
            }
        }
        self.save_place().await;
    }

    fn say_done(&self, missed: u64) {
        let done = self.scrubbed();
        if missed == 0 {
            tracing::info!(store = %self.place(), bytes = done.compared, quarantined = done.quarantined, "scrub done");
        } else {
            tracing::error!(store = %self.place(), bytes = done.compared, files = missed, "the scrub could not compare some data files, and does not count as done");
        }
    }

    async fn save_place(self: &Arc<Self>) {
        let saved = self.blocking(|store| store.scrub.save(&*store.device)).await;
        if let Err(error) = saved {
            tracing::warn!(store = %self.place(), %error, "cannot note how far the scrub is");
        }
    }

    async fn scrub_folder(
        self: &Arc<Self>,
        (number, folder): (u64, u16),
        pace: &mut Budget,
    ) -> Result<(), StoreError> {
        let names = self.blocking(move |store| match store.device.list(&leaf_path(folder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            names => Ok(names?),
        });
        let names = names.await?;
        let left = names.iter().filter_map(|name| FileKey::parse(name.strip_suffix(SUFFIX)?));
        let left: Vec<FileKey> = left.collect();
        self.blocking(move |store| left.iter().try_for_each(|key| store.remove_left_side(*key))).await?;
        for key in names.iter().filter_map(|name| FileKey::parse(name)) {
            match self.scrub_file(number, key, pace).await {
                Ok(()) | Err(StoreError::Missing | StoreError::Refused(_)) => {}
                // More is bad than can be told.
                Err(error @ StoreError::Corrupt(..)) => return Err(error),
                Err(error) => {
                    tracing::error!(store = %self.place(), file = %key, %error, "cannot be scrubbed");
                    self.scrub.missed(number);
                }
            }
            if !self.scrub.runs(number) {
                break;
            }
        }
        Ok(())
    }

    /// Sums of a data file that is gone.
    pub(crate) fn remove_left_side(&self, key: FileKey) -> Result<(), StoreError> {
        match self.device.stat(&path_of(key)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => remove_side(&*self.device, key),
            _ => Ok(()),
        }
    }

    /// Compares what has sums, and queues what should have some.
    async fn scrub_file(
        self: &Arc<Self>,
        number: u64,
        key: FileKey,
        pace: &mut Budget,
    ) -> Result<(), StoreError> {
        let looked = self.look_at(key, pace).await?;
        let scrubbed = self.scrub_regions(number, &looked.summed, pace).await;
        self.looked_at(looked).await;
        scrubbed
    }

    async fn scrub_regions(
        self: &Arc<Self>,
        number: u64,
        summed: &Arc<SummedFile>,
        pace: &mut Budget,
    ) -> Result<(), StoreError> {
        let mut at = 0;
        loop {
            let inner = Arc::clone(summed);
            let next = self.blocking(move |_| {
                let Some(region) = inner.recorded_from(at)? else { return Ok(None) };
                Ok(Some((region, inner.verify(region)?)))
            });
            let Some((region, verdict)) = next.await? else { break };
            at = region + 1;
            if let Verdict::Compared(bytes) = verdict {
                self.scrub.compared(number, bytes);
                pace.spent(self, bytes).await;
            }
            if !self.scrub.runs(number) {
                return Ok(());
            }
        }
        let inner = Arc::clone(summed);
        if self.blocking(move |_| Ok(inner.wants_sums()?)).await? {
            summed.enqueue();
        }
        Ok(())
    }
}

/// A data file that is looked at in the background.
#[derive(Debug)]
struct Looked {
    file: Arc<DataFile>,
    summed: Arc<SummedFile>,
    /// It was opened for that.
    anew: bool,
}

/// Bytes per second.
#[derive(Debug)]
struct Budget {
    rate: u64,
    /// What was read so far is paid for then.
    ahead: Monotonic,
}

impl Budget {
    async fn spent(&mut self, store: &Store, bytes: u64) {
        if self.rate == 0 || bytes == 0 {
            return;
        }
        let now = store.env.clock.now();
        let cost = Duration::from_secs_f64(bytes as f64 / self.rate as f64);
        self.ahead = self.ahead.max(now) + cost;
        store.env.clock.sleep_until(self.ahead).await;
    }
}

impl SummedFile {
    fn has_open(&self) -> bool {
        !self.regions.lock().open.is_empty()
    }

    pub(super) fn enqueue(&self) {
        if !self.queued.load(Ordering::Relaxed) && !self.queued.swap(true, Ordering::AcqRel) {
            let there = self.sums.enqueue(self.key);
            self.queued.store(there, Ordering::Release);
        }
    }

    /// Whether some region with data has none, as far as is known without reading.
    fn wants_sums(&self) -> io::Result<bool> {
        if self.has_open() {
            return Ok(true);
        }
        let size = self.inner.stat()?.size;
        let mut at = 0;
        while let Some(data) = self.inner.seek_data(at)? {
            let region = data / REGION;
            if !self.is_sealed(region)? {
                self.known.store(false, Ordering::Release);
                return Ok(true);
            }
            at = (region + 1) * REGION;
            if at >= size {
                break;
            }
        }
        Ok(false)
    }
}
