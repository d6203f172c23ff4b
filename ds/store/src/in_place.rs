//! Large reads of what is in the page cache: the pages themselves go to the socket. A copy through our memory costs three
//! times as much processor time as all the rest of such a read.
//!
//! What the client gets is what the file holds when it leaves, not when the call was judged; so the judgement is
//! repeated then, and a client that was fenced meanwhile gets nothing.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bytes::Bytes;

use crate::data_file::DataFile;
use crate::fence::{Access, Refusal};
use crate::lane::Turn;
use crate::sums::is_of_medium;
use crate::{Store, StoreError};

/// Bytes of a data file, all of them in memory when this was made.
#[derive(Clone, Debug)]
pub struct InPlace {
    store: Arc<Store>,
    file: Arc<DataFile>,
    access: Access,
    offset: u64,
    length: usize,
}

impl Store {
    /// `length` bytes to be sent from where they are; `None` when that is not possible just now, or when the file ends
    /// before them.
    pub fn in_place(self: &Arc<Self>, access: &Access, offset: u64, length: usize) -> Option<InPlace> {
        let now = self.env.clock.now();
        let file = self.files.get(access.key)?;
        // The last byte is there: what is cut off later reads as zeros.
        let here =
            self.send_pace.is_fast(now) && !file.is_unread(now) && file.file.is_cached(offset, length as u64);
        here.then(|| InPlace { store: Arc::clone(self), file, access: *access, offset, length })
    }
}

impl InPlace {
    /// How many there are.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Sends some of them, from the one at `from` on, to a socket that does not block. `None` when they are no longer in
    /// memory, or as many threads as may are sending: [`Self::load`] then.
    ///
    /// # Errors
    /// `WouldBlock` when the socket takes none; `PermissionDenied` when the reader was fenced since.
    pub fn send(&self, from: usize, socket: BorrowedFd<'_>) -> io::Result<Option<usize>> {
        let Self { store, file, .. } = self;
        self.judge().map_err(|refusal| io::Error::new(io::ErrorKind::PermissionDenied, refusal))?;
        let (offset, left) = (self.offset + from as u64, self.length.saturating_sub(from));
        let begun = store.env.clock.now();
        // The samples of a moment ago are good for the first piece.
        if !store.send_pace.is_fast(begun) || (from > 0 && !file.file.is_cached(offset, left as u64)) {
            return Ok(None);
        }
        // All may have been in memory and not have arrived there yet.
        let Some(_inside) = store.callers.enter() else { return Ok(None) };
        let sent = store.send_pace.timed(&store.env, begun, || file.file.send(offset, left, socket));
        // Others are about the socket.
        let sent = sent.inspect_err(|error| {
            if is_of_medium(error) {
                file.set_unread(begun);
            }
        })?;
        Ok((sent > 0).then_some(sent))
    }

    /// The next `most` of them from the one at `from` on. What the file does not have any more is zeros.
    ///
    /// # Errors
    /// Those of the device; `Refused` when the reader was fenced since.
    pub async fn load(&self, from: usize, most: usize) -> Result<Bytes, StoreError> {
        self.judge()?;
        let (file, offset) = (Arc::clone(&self.file), self.offset + from as u64);
        let left = self.length.saturating_sub(from).min(most);
        // What is in memory is had without waiting for a thread, and lies in the caches of the processor that encrypts it.
        if left <= self.store.inline_read
            && let Some(read) = self.store.health.note(self.store.read_cached(&*file.file, offset, left))?
            && !read.end
        {
            return Ok(read.data);
        }
        let load = move |store: &Store| {
            let mut buffer = store.pool.take(left);
            let read = store.read_noting(&file, buffer.as_mut(), offset)?;
            buffer.as_mut().get_mut(read..).unwrap_or_default().fill(0);
            Ok(buffer.freeze(left))
        };
        self.store.on(&self.store.read_lane, Turn::Any, load).await
    }

    /// A data file that was removed is still what it was: nobody has written to it since.
    fn judge(&self) -> Result<(), Refusal> {
        match self.store.check(&self.access) {
            Err(Refusal::Removed) => Ok(()),
            judged => judged,
        }
    }
}
