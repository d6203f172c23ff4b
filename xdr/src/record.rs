//! Record marking (RFC 5531 §11): a byte stream cut into records of one or more fragments. No I/O here:
//! the connection reads into [`RecordDecoder::buffer`] and asks for [`RecordDecoder::next_record`].

use bytes::{Buf, BufMut, Bytes, BytesMut};
use thiserror::Error;

use crate::writer::Frame;

/// Set in a mark whose fragment is the record's last.
const LAST: u32 = 0x8000_0000;

/// Most fragments one record may come in. Senders use one; a few split at 64 KiB or 1 MiB.
pub const MAX_FRAGMENTS: u32 = 256;

/// Room made for a peer that has not yet shown what it sends.
const INITIAL_ROOM: usize = 16 * 1024;

/// Why a stream cannot be read on: the connection must be closed, its framing is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum RecordError {
    /// A record announces more bytes than the limit.
    #[error("a record of at least {announced} bytes exceeds the limit of {limit}")]
    TooLong {
        /// Bytes of the record as far as announced.
        announced: usize,
        /// The limit.
        limit: usize,
    },
    /// More than [`MAX_FRAGMENTS`] fragments in one record.
    #[error("a record comes in too many fragments")]
    Fragments,
    /// A record without content; no RPC message is empty.
    #[error("an empty record")]
    Empty,
}

/// Cuts a byte stream into records.
///
/// Memory: what was received of the record under way, plus free room no larger than that (16 KiB at least)
/// or than the largest record this peer has already sent in full. An announcement alone costs nothing. A
/// record in several fragments is held twice for a moment, while its last fragment is appended.
#[derive(Debug)]
pub struct RecordDecoder {
    limit: usize,
    /// Received and not yet cut, starting at a mark.
    received: BytesMut,
    /// Earlier fragments of a record in several fragments.
    assembled: Vec<u8>,
    fragments: u32,
    /// Largest record completed: a peer that has sent one is given room for the next at once.
    largest: usize,
}

impl RecordDecoder {
    /// A decoder for records of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, received: BytesMut::new(), assembled: Vec::new(), fragments: 0, largest: 0 }
    }

    /// The buffer to read the stream into, with free room; append only.
    pub fn buffer(&mut self) -> &mut BytesMut {
        let room = self.room_wanted();
        if self.received.capacity() - self.received.len() < room.min(4096) || self.record_wants_room() {
            self.received.reserve(room);
        }
        &mut self.received
    }

    /// Free room in the buffer.
    pub fn room(&self) -> usize {
        self.received.capacity() - self.received.len()
    }

    /// Goes on in another buffer, where all that was received is copied to. The old one, empty; records cut from it may
    /// be in use.
    pub fn move_to(&mut self, mut buffer: BytesMut) -> BytesMut {
        buffer.clear();
        buffer.extend_from_slice(&self.received);
        let mut old = std::mem::replace(&mut self.received, buffer);
        old.clear();
        old
    }

    /// Gives the buffer up while it holds nothing, so that a silent peer costs no memory.
    pub fn give_up(&mut self) -> Option<BytesMut> {
        (self.received.is_empty() && self.received.capacity() > 0).then(|| std::mem::take(&mut self.received))
    }

    /// True if there is no buffer to read into.
    pub fn is_bare(&self) -> bool {
        self.received.capacity() == 0
    }

    /// The next record where it lies, if all of it has arrived and it came in one fragment; take it away with
    /// [`Self::skip`]. `None` is no verdict: [`Self::next_record`] knows the rest.
    pub fn peek(&self) -> Option<&[u8]> {
        let mark = u32::from_be_bytes(*self.received.first_chunk::<4>()?);
        let length = (mark & !LAST) as usize;
        if mark & LAST == 0
            || length == 0
            || length > self.limit
            || !self.assembled.is_empty()
            || self.fragments > 0
        {
            return None;
        }
        self.received.get(4..length + 4)
    }

    /// What has arrived of a record that comes in one fragment, and how many bytes that will have.
    pub fn begun(&self) -> Option<(&[u8], usize)> {
        let mark = u32::from_be_bytes(*self.received.first_chunk::<4>()?);
        let length = (mark & !LAST) as usize;
        let alone = mark & LAST != 0 && self.assembled.is_empty() && self.fragments == 0;
        let received = self.received.get(4..)?;
        (alone && length <= self.limit && received.len() < length).then_some((received, length))
    }

    /// Takes away what [`Self::begun`] showed: the rest of the record does not come here.
    pub fn take_begun(&mut self) -> Option<Bytes> {
        self.begun()?;
        self.received.advance(4);
        Some(self.received.split().freeze())
    }

    /// The buffer to read the stream into, with room for `room` bytes; append only, and no more than that.
    pub fn buffer_for(&mut self, room: usize) -> bytes::buf::Limit<&mut BytesMut> {
        self.received.reserve(room);
        (&mut self.received).limit(room)
    }

    /// Takes away what [`Self::peek`] showed.
    pub fn skip(&mut self) {
        if let Some(length) = self.peek().map(<[u8]>::len) {
            self.received.advance(length + 4);
            self.largest = self.largest.max(length);
        }
    }

    /// Copies `data` in; for tests and for streams that already own their bytes.
    pub fn feed(&mut self, data: &[u8]) {
        self.received.extend_from_slice(data);
    }

    /// Bytes held that are not yet part of a finished record.
    pub fn pending(&self) -> usize {
        self.received.len() + self.assembled.len()
    }

    /// Bytes still missing from the fragment under way, if its mark has arrived.
    pub fn missing(&self) -> Option<usize> {
        let mark = u32::from_be_bytes(*self.received.first_chunk::<4>()?);
        Some(((mark & !LAST) as usize + 4).saturating_sub(self.received.len()))
    }

    /// Whether a record is under way of which a fragment has arrived, and not the last one.
    pub fn in_fragments(&self) -> bool {
        self.fragments > 0
    }

    /// True while a fragment is under way that the free room cannot hold and that deserves all its room.
    fn record_wants_room(&self) -> bool {
        let free = self.received.capacity() - self.received.len();
        self.missing()
            .is_some_and(|missing| free < missing && self.received.len() + missing <= self.largest + 4)
    }

    fn room_wanted(&self) -> usize {
        let proven = self.received.len().max(INITIAL_ROOM);
        match self.missing() {
            Some(missing) if missing > 0 && self.received.len() + missing <= self.largest + 4 => missing,
            // A mark is a promise, not data: room grows with what arrived.
            Some(missing) if missing > 0 => missing.min(proven),
            _ => INITIAL_ROOM,
        }
    }

    /// The next whole record, or `None` when more bytes are needed. After an error the stream is lost.
    pub fn next_record(&mut self) -> Result<Option<Bytes>, RecordError> {
        loop {
            let Some(mark) = self.received.first_chunk::<4>() else { return Ok(None) };
            let mark = u32::from_be_bytes(*mark);
            let length = (mark & !LAST) as usize;
            let last = mark & LAST != 0;
            // Judged before the bytes arrive: a hostile length costs nothing.
            let announced = self.assembled.len().saturating_add(length);
            if announced > self.limit {
                return Err(RecordError::TooLong { announced, limit: self.limit });
            }
            if self.fragments >= MAX_FRAGMENTS {
                return Err(RecordError::Fragments);
            }
            if announced == 0 && last {
                return Err(RecordError::Empty);
            }
            if self.received.len() - 4 < length {
                return Ok(None);
            }
            self.received.advance(4);
            let fragment = self.received.split_to(length);
            if let Some(record) = self.join(fragment, last) {
                self.largest = self.largest.max(record.len());
                return Ok(Some(record));
            }
        }
    }

    /// Adds a fragment; the record if it is complete. A record in one fragment is not copied.
    fn join(&mut self, fragment: BytesMut, last: bool) -> Option<Bytes> {
        if !last {
            self.fragments += 1;
            self.assemble(&fragment);
            return None;
        }
        self.fragments = 0;
        if self.assembled.is_empty() {
            return Some(fragment.freeze());
        }
        self.assemble(&fragment);
        Some(std::mem::take(&mut self.assembled).into())
    }

    /// Appends a fragment, growing in proportion to what arrived and never beyond the limit.
    fn assemble(&mut self, fragment: &[u8]) {
        let room = self.assembled.capacity() - self.assembled.len();
        if room < fragment.len() {
            let most = self.limit.saturating_sub(self.assembled.len());
            self.assembled.reserve_exact(self.assembled.len().max(fragment.len()).min(most));
        }
        self.assembled.extend_from_slice(fragment);
    }
}

/// The mark of a record of `length` bytes in one fragment; `None` if 31 bits cannot say it.
pub fn mark(length: usize) -> Option<[u8; 4]> {
    let length = u32::try_from(length).ok().filter(|l| l & LAST == 0)?;
    Some((length | LAST).to_be_bytes())
}

/// `message` with its mark in front, ready for the stream; `None` if it exceeds 2^31-1 bytes.
pub fn frame_record(mut message: Frame) -> Option<Frame> {
    let mark = mark(message.len())?;
    message.prepend(Bytes::copy_from_slice(&mark));
    Some(message)
}
