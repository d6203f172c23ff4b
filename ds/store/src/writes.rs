//! Writes: who may, by which way to the device, and how durable they are when they return. The ways:
//! [ADR 0025](../../../docs/adr/0025-large-stable-writes-go-past-the-page-cache.md),
//! [ADR 0026](../../../docs/adr/0026-large-writes-are-copied-once.md).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::data_file::{DataFile, answer};
use crate::fence::Access;
use crate::lane::{Rest, Turn};
use crate::under_way::{Passage, Span};
use crate::{FileKey, Stability, Store, StoreError, Verifier};

/// Bytes of a write, and their way to the device.
#[derive(Clone, Copy, Debug)]
enum Data<'a> {
    /// By way of the page cache.
    Cached(&'a [u8]),
    /// Past it.
    Direct(&'a [u8]),
    /// By way of the page cache. Behind those in memory so many follow that lie in a pipe.
    Piped(&'a [u8], BorrowedFd<'a>, usize),
}

/// Bytes of a write that is worth a way of its own, if somebody waits for it to be durable.
const DIRECT: usize = 256 << 10;

/// Bytes of a large write to memory after which others have a turn, if somebody makes small calls.
const STEP: usize = 128 << 10;

/// What the page cache keeps a file in. A write that ends inside of one may have to read the rest of it first.
const PAGE: u64 = 4096;

impl<'a> Data<'a> {
    fn new(data: &'a [u8], stability: Stability) -> Self {
        if data.len() >= DIRECT && stability != Stability::Unstable {
            Self::Direct(data)
        } else {
            Self::Cached(data)
        }
    }

    /// The page cache takes one write of a file at a time; a device takes several, but not ahead of those that came
    /// before and are to go to the page cache.
    fn turn(self, key: FileKey, offset: u64) -> Turn {
        let span = Span::new(key, offset, self.length());
        if matches!(self, Self::Direct(_)) { Turn::Beside(span) } else { Turn::Alone(span) }
    }

    fn length(self) -> u64 {
        match self {
            Self::Cached(data) | Self::Direct(data) => data.len() as u64,
            Self::Piped(data, _, more) => (data.len() as u64).saturating_add(more as u64),
        }
    }
}

/// For clients.
impl Store {
    /// Writes all of `data` for a client and makes it as durable as `stability` says before it
    /// returns. The data file comes into being if need be. Returns the write verifier that goes
    /// with the data.
    ///
    /// # Errors
    /// `Refused` as [`Self::check`] says, decided as one step with the write: once a fence or a
    /// removal has returned, no write it refuses reaches the device. `NoSpace` before the device
    /// is quite full. `Missing` when the data file must exist and does not. `Io` when it was to be durable and a flush
    /// failed meanwhile, perhaps somebody else's: the device tells that once.
    pub async fn write_at(
        self: &Arc<Self>,
        access: &Access,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Result<Verifier, StoreError> {
        let access = *access;
        // Taken before the write: if a flush of this file fails meanwhile, the client must notice, or be told.
        let verifier = self.verifiers.of(access.key);
        let stable = stability != Stability::Unstable;
        if self.may_write_here(&access, offset, data.len())
            && let Some(inside) = self.callers.enter()
        {
            let file = self.write_checked(&access, offset, Data::Cached(&data))?;
            drop(inside);
            if stable {
                self.flush(&file).await?;
                self.nothing_lost(access.key, verifier)?;
            }
            return Ok(verifier);
        }
        let turn = Data::new(&data, stability).turn(access.key, offset);
        if stable {
            self.write_durably(turn, move |store: &Self| {
                store.write_checked(&access, offset, Data::new(&data, stability))
            })
            .await?;
            self.nothing_lost(access.key, verifier)?;
        } else {
            let write = move |store: &Self| {
                store.write_checked(&access, offset, Data::new(&data, stability)).map(drop)
            };
            self.write_in_turn(turn, write).await?;
        }
        Ok(verifier)
    }

    /// The thread that writes flushes as well, where nobody else does: handing it to another one, and waking who waits in
    /// between, costs as much as a small write.
    async fn write_durably(
        self: &Arc<Self>,
        turn: Turn,
        write: impl FnOnce(&Self) -> Result<Arc<DataFile>, StoreError> + Send + 'static,
    ) -> Result<(), StoreError> {
        let (done, wait) = oneshot::channel();
        let store = Arc::clone(self);
        let passage = self.pass(turn);
        let work = move || {
            let written = write(&store);
            drop(passage);
            let flushes = Arc::clone(&store.flushes);
            // First: whoever has the answer and drops the store may open it again.
            drop(store);
            match written {
                Ok(file) => {
                    let rest = flushes.begin(&file, done)?;
                    Some(Box::new(move || flushes.go_on(rest)) as Rest)
                }
                Err(error) => {
                    answer(vec![done], &Err(error));
                    None
                }
            }
        };
        self.write_lane.begin(&self.env, turn, work);
        wait.await.unwrap_or(Err(StoreError::Closing))
    }

    async fn write_in_turn(
        self: &Arc<Self>,
        turn: Turn,
        write: impl FnOnce(&Self) -> Result<(), StoreError> + Send + 'static,
    ) -> Result<(), StoreError> {
        let passage = self.pass(turn);
        let work = move |store: &Self| {
            let written = write(store);
            // Whoever has the answer may write again at once.
            drop(passage);
            written
        };
        self.on(&self.write_lane, turn, work).await
    }

    /// Lets others know, from now on.
    fn pass(&self, turn: Turn) -> Option<Passage> {
        turn.span().map(|span| self.under_way.begin(span))
    }

    /// [`Self::write_at`], UNSTABLE, of bytes the last `more` of which lie in a pipe that does not block. At most that many
    /// are taken out of it.
    ///
    /// # Errors
    /// As [`Self::write_at`].
    pub async fn write_piped(
        self: &Arc<Self>,
        access: &Access,
        offset: u64,
        data: Bytes,
        (pipe, more): (impl AsFd + Send + 'static, usize),
    ) -> Result<Verifier, StoreError> {
        let access = *access;
        let verifier = self.verifiers.of(access.key);
        let turn = Turn::Alone(Span::new(access.key, offset, data.len().saturating_add(more) as u64));
        let write = move |store: &Self| {
            store.write_checked(&access, offset, Data::Piped(&data, pipe.as_fd(), more)).map(drop)
        };
        self.write_in_turn(turn, write).await?;
        Ok(verifier)
    }

    /// Where bytes of a write may begin to lie in a pipe: the first place at or behind `offset`. `None`: nowhere.
    pub fn pipe_from(&self, offset: u64) -> Option<u64> {
        // What is known to be broken is mended by whole writes only.
        if self.sums.is_some() { None } else { offset.checked_next_multiple_of(PAGE) }
    }

    /// Whether a write is small and sure enough not to block the calling thread: whole pages (of others the rest
    /// might have to be read first), and a device that keeps pace. The file must be open, too.
    pub fn takes_now(&self, offset: u64, length: usize) -> bool {
        length <= self.inline_write
            && (offset | length as u64).is_multiple_of(PAGE)
            && self.pace.is_fast(self.env.clock.now())
    }

    /// [`Self::write_at`], UNSTABLE and on the calling thread, for a write that [`Self::takes_now`]. `None`, with
    /// nothing done, when its file is not open, when as many threads as may are writing, or when a write of the same bytes may be
    /// on its way to it: that came before, and may be this one, given up and sent again.
    pub fn write_now(
        &self,
        access: &Access,
        offset: u64,
        data: &[u8],
    ) -> Option<Result<Verifier, StoreError>> {
        let verifier = self.verifiers.of(access.key);
        let file = self.ready(access.key, offset, data.len())?;
        let _inside = self.callers.enter()?;
        self.small_call();
        let _pass = self.gate.enter();
        let written = self.journal.check(access).map_err(StoreError::from);
        let written = written.and_then(|()| self.write_to(&file, offset, Data::Cached(data)));
        Some(self.health.note(written).map(|()| verifier))
    }

    fn may_write_here(&self, access: &Access, offset: u64, length: usize) -> bool {
        self.takes_now(offset, length) && self.ready(access.key, offset, length).is_some()
    }

    /// The file, if a small write would neither wait nor come before an older one.
    fn ready(&self, key: FileKey, offset: u64, length: usize) -> Option<Arc<DataFile>> {
        if self.under_way.may_be_in(Span::new(key, offset, length as u64)) {
            return None;
        }
        self.files.get(key).filter(|file| file.file.is_ready(offset, length as u64))
    }

    /// Bytes sent past the page cache since the store was opened.
    pub fn direct_bytes(&self) -> u64 {
        self.direct_bytes.load(Ordering::Relaxed)
    }

    /// Bytes written from pipes since the store was opened.
    pub fn piped_bytes(&self) -> u64 {
        self.piped_bytes.load(Ordering::Relaxed)
    }

    /// Check and write as one step for fences.
    fn write_checked(
        &self,
        access: &Access,
        offset: u64,
        data: Data<'_>,
    ) -> Result<Arc<DataFile>, StoreError> {
        let _pass = self.gate.enter();
        self.journal.check(access)?;
        let file = self.health.note(self.open_for(access))?;
        self.health.note(self.write_to(&file, offset, data))?;
        Ok(file)
    }
}

/// For the metadata server.
impl Store {
    /// Writes without asking who, for copies ordered by the metadata server; not durable before a
    /// [`Self::commit`].
    pub async fn fill(
        self: &Arc<Self>,
        key: FileKey,
        generation: u16,
        offset: u64,
        data: Bytes,
    ) -> Result<(), StoreError> {
        // It will be committed, and nobody is about to read it.
        let turn = Data::new(&data, Stability::DataSync).turn(key, offset);
        let write = move |store: &Self| {
            store.write(key, generation, offset, Data::new(&data, Stability::DataSync)).map(drop)
        };
        self.write_in_turn(turn, write).await
    }
}

/// For both.
impl Store {
    fn write(
        &self,
        key: FileKey,
        generation: u16,
        offset: u64,
        data: Data<'_>,
    ) -> Result<Arc<DataFile>, StoreError> {
        let file = self.open_or_create(key, generation)?;
        self.write_to(&file, offset, data)?;
        Ok(file)
    }

    fn write_to(&self, file: &DataFile, offset: u64, data: Data<'_>) -> Result<(), StoreError> {
        self.room.admit(&*self.device, &*file.file, offset, data.length())?;
        let changed = self.change(file, offset, data);
        // Some of what fails may be there, and its sums are given up in any case: it is flushed, and summed, as what succeeds.
        file.wrote(self.files.writes.next());
        changed
    }

    fn change(&self, file: &DataFile, offset: u64, data: Data<'_>) -> Result<(), StoreError> {
        let begun = self.env.clock.now();
        match data {
            Data::Cached(data) => {
                let step =
                    |from, n| file.file.write_at(&data[from..from + n], offset.saturating_add(from as u64));
                self.pace.timed(&self.env, begun, || self.in_steps(offset, data.len(), step))?;
            }
            Data::Piped(data, pipe, more) => {
                let behind = offset.saturating_add(data.len() as u64);
                let step = |from, n| file.file.write_from(pipe, n, behind.saturating_add(from as u64));
                self.pace.timed(&self.env, begun, || {
                    file.file.write_at(data, offset)?;
                    self.in_steps(behind, more, step)
                })?;
                self.piped_bytes.fetch_add(more as u64, Ordering::Relaxed);
            }
            // How long the device takes says nothing about memory.
            Data::Direct(data) => {
                let direct = file.file.write_direct(data, offset)?;
                self.direct_bytes.fetch_add(direct as u64, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// A write to memory of so many bytes at `offset`, in steps if others are to have a turn in between: the kernel lets a
    /// thread have its time, in which a megabyte is copied, and a small call would wait for it. Without small calls that is
    /// a waste: a tenth of the rate. With checksums a write is one: it may have to be whole to mend what is broken.
    fn in_steps(
        &self,
        offset: u64,
        length: usize,
        mut step: impl FnMut(usize, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        if length <= STEP || self.sums.is_some() || !self.small_calls.swap(false, Ordering::Relaxed) {
            return step(0, length);
        }
        let mut done = 0;
        while done < length {
            // What the page cache keeps a file in is as large as the writes that made it, and begins at its multiples.
            let at = offset.saturating_add(done as u64);
            let n = (STEP - (at % STEP as u64) as usize).min(length - done);
            step(done, n)?;
            done += n;
            if done < length {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// Somebody makes small calls.
    pub(crate) fn small_call(&self) {
        // Usually it is known, and nobody else's cache is disturbed.
        if !self.small_calls.load(Ordering::Relaxed) {
            self.small_calls.store(true, Ordering::Relaxed);
        }
    }
}
