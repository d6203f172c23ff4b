//! Building a message. Small values are gathered in one buffer; opaques of at least [`SPLICE_MIN`] bytes
//! are referenced, so a READ reply's payload travels from the page it was read into to the socket without
//! a copy.

use bytes::Bytes;

use crate::error::EncodeError;

/// Opaques of at least this many bytes are appended by reference.
pub const SPLICE_MIN: usize = 4096;

/// A growing encoding with a hard size limit. What does not fit is dropped and remembered: check
/// [`Writer::error`] (or let [`Writer::finish`] tell), or roll back with [`Writer::truncate`].
#[derive(Debug)]
pub struct Writer {
    /// All bytes that are not spliced, in order. One buffer, so that any reserved word can be patched.
    inline: Vec<u8>,
    /// Spliced payloads, each with the length of `inline` at which it belongs; ascending.
    splices: Vec<(usize, Bytes)>,
    /// Sum of the splices' lengths.
    spliced: usize,
    limit: usize,
    error: Option<EncodeError>,
}

/// A position to roll back to.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    inline: usize,
    splices: usize,
    spliced: usize,
    error: Option<EncodeError>,
}

/// A word reserved with [`Writer::reserve_u32`].
#[derive(Clone, Copy, Debug)]
#[must_use = "a reserved word is zero until patched"]
pub struct Patch(usize);

impl Default for Writer {
    /// A writer without a size limit.
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

impl Writer {
    /// A writer that accepts at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self::with_capacity(limit, 256)
    }

    /// As [`Writer::new`], with room for `capacity` inline bytes from the start.
    pub fn with_capacity(limit: usize, capacity: usize) -> Self {
        Self {
            inline: Vec::with_capacity(capacity.min(limit)),
            splices: Vec::new(),
            spliced: 0,
            limit,
            error: None,
        }
    }

    /// Bytes written so far.
    #[inline]
    pub fn len(&self) -> usize {
        self.inline.len() + self.spliced
    }

    /// True when nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size limit, in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes that still fit.
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.len())
    }

    /// Replaces the size limit and returns the old one, for a part with a bound of its own. Does not
    /// affect what was written.
    pub fn set_limit(&mut self, limit: usize) -> usize {
        std::mem::replace(&mut self.limit, limit)
    }

    /// The first thing that went wrong since the start or the last roll-back.
    pub fn error(&self) -> Option<EncodeError> {
        self.error
    }

    /// The present position.
    pub fn mark(&self) -> Mark {
        Mark {
            inline: self.inline.len(),
            splices: self.splices.len(),
            spliced: self.spliced,
            error: self.error,
        }
    }

    /// Drops everything written since `mark`, and the error if it came later.
    pub fn truncate(&mut self, mark: Mark) {
        self.inline.truncate(mark.inline);
        self.splices.truncate(mark.splices);
        self.spliced = mark.spliced;
        self.error = mark.error;
    }

    /// A copy of what was written since `mark`.
    pub fn since(&self, mark: &Mark) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len_since(mark));
        let mut at = mark.inline;
        for (position, payload) in self.splices.iter().skip(mark.splices) {
            out.extend_from_slice(self.inline.get(at..*position).unwrap_or_default());
            out.extend_from_slice(payload);
            at = *position;
        }
        out.extend_from_slice(self.inline.get(at..).unwrap_or_default());
        out
    }

    /// Bytes written since `mark`.
    pub fn len_since(&self, mark: &Mark) -> usize {
        self.len().saturating_sub(mark.inline + mark.spliced)
    }

    /// Encodes `value` if it fits; otherwise leaves the writer as it was and says why.
    pub fn try_encode<T: crate::Encode + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let mark = self.mark();
        value.encode(self);
        match self.error {
            None => Ok(()),
            Some(error) => {
                self.truncate(mark);
                Err(error)
            }
        }
    }

    /// Whether `n` more bytes may be written; remembers a failure.
    #[inline]
    fn admit(&mut self, n: usize) -> bool {
        if self.error.is_some() {
            return false;
        }
        if n > self.room() {
            self.error = Some(EncodeError::Overflow(self.limit));
            return false;
        }
        true
    }

    /// Marks the encoding as failed because a field holds `length` where its declaration allows `maximum`.
    pub fn fail_bound(&mut self, length: usize, maximum: u32) {
        self.error.get_or_insert(EncodeError::Bound { length, maximum });
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if self.admit(bytes.len()) {
            self.inline.extend_from_slice(bytes);
        }
    }

    /// Unsigned integer, RFC 4506 §4.2.
    #[inline]
    pub fn u32(&mut self, value: u32) {
        self.put(&value.to_be_bytes());
    }

    /// Integer, RFC 4506 §4.1.
    #[inline]
    pub fn i32(&mut self, value: i32) {
        self.put(&value.to_be_bytes());
    }

    /// Unsigned hyper integer, RFC 4506 §4.5.
    #[inline]
    pub fn u64(&mut self, value: u64) {
        self.put(&value.to_be_bytes());
    }

    /// Hyper integer, RFC 4506 §4.5.
    #[inline]
    pub fn i64(&mut self, value: i64) {
        self.put(&value.to_be_bytes());
    }

    /// Single-precision floating point, RFC 4506 §4.6.
    pub fn f32(&mut self, value: f32) {
        self.put(&value.to_be_bytes());
    }

    /// Double-precision floating point, RFC 4506 §4.7.
    pub fn f64(&mut self, value: f64) {
        self.put(&value.to_be_bytes());
    }

    /// Boolean, RFC 4506 §4.4.
    #[inline]
    pub fn bool(&mut self, value: bool) {
        self.u32(u32::from(value));
    }

    /// Bytes that are already XDR (a multiple of four), copied as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.put(bytes);
    }

    /// Fixed-length opaque with its padding, RFC 4506 §4.9, copied.
    pub fn opaque_fixed(&mut self, data: &[u8]) {
        self.put(data);
        self.pad(data.len());
    }

    fn pad(&mut self, length: usize) {
        let padding = length.wrapping_neg() % 4;
        if self.admit(padding) {
            self.inline.resize(self.inline.len() + padding, 0);
        }
    }

    /// Variable-length opaque, RFC 4506 §4.10, of at most `maximum` bytes. Referenced when large.
    pub fn opaque(&mut self, data: &Bytes, maximum: u32) {
        if self.length(data.len(), maximum) {
            self.splice(data);
            self.pad(data.len());
        }
    }

    /// Variable-length opaque out of borrowed bytes, copied.
    pub fn opaque_slice(&mut self, data: &[u8], maximum: u32) {
        if self.length(data.len(), maximum) {
            self.opaque_fixed(data);
        }
    }

    /// String, RFC 4506 §4.11.
    pub fn string(&mut self, data: &Bytes, maximum: u32) {
        self.opaque(data, maximum);
    }

    /// Appends bytes without length or padding, by reference when that pays.
    pub fn splice(&mut self, data: &Bytes) {
        if data.len() < SPLICE_MIN {
            self.put(data);
        } else if self.admit(data.len()) {
            self.splices.push((self.inline.len(), data.clone()));
            self.spliced += data.len();
        }
    }

    /// Appends an encoded message as it is.
    pub fn frame(&mut self, frame: &Frame) {
        for segment in &frame.segments {
            self.splice(segment);
        }
    }

    /// Writes a count, refusing one above `maximum`; true if the items may follow.
    pub fn length(&mut self, length: usize, maximum: u32) -> bool {
        match u32::try_from(length) {
            Ok(n) if n <= maximum => self.u32(n),
            _ => self.fail_bound(length, maximum),
        }
        self.error.is_none()
    }

    /// Variable-length array, RFC 4506 §4.13, of at most `maximum` items.
    pub fn array<T>(&mut self, items: &[T], maximum: u32, item: impl Fn(&mut Self, &T)) {
        if self.length(items.len(), maximum) {
            self.array_fixed(items, item);
        }
    }

    /// Fixed-length array, RFC 4506 §4.12.
    pub fn array_fixed<T>(&mut self, items: &[T], item: impl Fn(&mut Self, &T)) {
        for i in items {
            item(self, i);
        }
    }

    /// Optional data, RFC 4506 §4.19.
    pub fn optional<T>(&mut self, value: Option<&T>, item: impl FnOnce(&mut Self, &T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            item(self, value);
        }
    }

    /// A linked list, RFC 4506 §4.19: each item preceded by TRUE, the end marked by FALSE.
    pub fn list<T>(&mut self, items: &[T], item: impl Fn(&mut Self, &T)) {
        for i in items {
            self.bool(true);
            item(self, i);
        }
        self.bool(false);
    }

    /// Writes a zero word whose value is known later. See [`Writer::patch`].
    pub fn reserve_u32(&mut self) -> Patch {
        let at = self.inline.len();
        self.u32(0);
        Patch(at)
    }

    /// Fills in a reserved word. Without effect when the word did not fit or was rolled back.
    pub fn patch(&mut self, at: Patch, value: u32) {
        if let Some(word) = self.inline.get_mut(at.0..at.0.saturating_add(4)) {
            word.copy_from_slice(&value.to_be_bytes());
        }
    }

    /// The finished message in one buffer, or what went wrong. Payloads are copied.
    pub fn finish_in_one(self) -> Result<Vec<u8>, EncodeError> {
        match self.error {
            Some(error) => Err(error),
            None if self.splices.is_empty() => Ok(self.inline),
            None => Ok(self.since(&Mark { inline: 0, splices: 0, spliced: 0, error: None })),
        }
    }

    /// The finished message, or what went wrong.
    pub fn finish(self) -> Result<Frame, EncodeError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let len = self.len();
        let mut segments = Vec::with_capacity(self.splices.len() * 2 + 1);
        let mut inline = Bytes::from(self.inline);
        let mut done = 0;
        for (at, data) in self.splices {
            if at > done {
                segments.push(inline.split_to(at - done));
                done = at;
            }
            segments.push(data);
        }
        if !inline.is_empty() {
            segments.push(inline);
        }
        Ok(Frame { segments, len })
    }
}

/// An encoded message as a sequence of buffers, for a vectored write.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    segments: Vec<Bytes>,
    len: usize,
}

impl Frame {
    /// A message without bytes (the result of a void procedure).
    pub fn empty() -> Self {
        Self::default()
    }

    /// Total bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The buffers in order; none is empty.
    pub fn segments(&self) -> &[Bytes] {
        &self.segments
    }

    /// The buffers in order, owned.
    pub fn into_segments(self) -> Vec<Bytes> {
        self.segments
    }

    /// Puts `bytes` in front.
    pub fn prepend(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.len += bytes.len();
            self.segments.insert(0, bytes);
        }
    }

    /// Puts `other` behind.
    pub fn append(&mut self, other: Self) {
        self.len += other.len;
        self.segments.extend(other.segments);
    }

    /// One contiguous buffer; free of copies when there is only one segment.
    pub fn to_bytes(&self) -> Bytes {
        match self.segments.as_slice() {
            [only] => only.clone(),
            segments => segments.concat().into(),
        }
    }

    /// As [`Frame::to_bytes`], consuming.
    pub fn into_bytes(mut self) -> Bytes {
        match self.segments.len() {
            1 => self.segments.swap_remove(0),
            _ => self.segments.concat().into(),
        }
    }
}

impl From<Bytes> for Frame {
    fn from(bytes: Bytes) -> Self {
        let mut frame = Self::empty();
        frame.prepend(bytes);
        frame
    }
}

impl<'a> IntoIterator for &'a Frame {
    type Item = &'a Bytes;
    type IntoIter = std::slice::Iter<'a, Bytes>;
    fn into_iter(self) -> Self::IntoIter {
        self.segments.iter()
    }
}
