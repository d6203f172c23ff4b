//! Bytes of keys and records: big-endian, strict, bounded.

use bytes::Bytes;
use sluice_env::Wall;

use crate::error::FsError;

/// Builds a key or a record.
#[derive(Debug, Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn with_capacity(n: usize) -> Self {
        Self(Vec::with_capacity(n))
    }
    #[inline]
    pub(crate) fn u8(&mut self, v: u8) -> &mut Self {
        self.0.push(v);
        self
    }
    #[inline]
    pub(crate) fn bool(&mut self, v: bool) -> &mut Self {
        self.u8(u8::from(v))
    }
    #[inline]
    pub(crate) fn u16(&mut self, v: u16) -> &mut Self {
        self.raw(&v.to_be_bytes())
    }
    #[inline]
    pub(crate) fn u32(&mut self, v: u32) -> &mut Self {
        self.raw(&v.to_be_bytes())
    }
    #[inline]
    pub(crate) fn u64(&mut self, v: u64) -> &mut Self {
        self.raw(&v.to_be_bytes())
    }
    #[inline]
    pub(crate) fn wall(&mut self, v: Wall) -> &mut Self {
        self.raw(&v.seconds.to_be_bytes()).u32(v.nanos)
    }
    #[inline]
    pub(crate) fn raw(&mut self, v: &[u8]) -> &mut Self {
        self.0.extend_from_slice(v);
        self
    }
    /// A byte string with its length before it. Longer ones than 4 GiB cannot be made: the store's
    /// values end at 100 kB.
    pub(crate) fn bytes(&mut self, v: &[u8]) -> &mut Self {
        self.u32(u32::try_from(v.len()).unwrap_or(u32::MAX)).raw(v)
    }
    pub(crate) fn finish(&mut self) -> Bytes {
        Bytes::from(std::mem::take(&mut self.0))
    }
}

/// Takes a key or a record apart; `what` names it in errors.
#[derive(Debug)]
pub(crate) struct Reader {
    bytes: Bytes,
    /// So much of it was read.
    at: usize,
    what: &'static str,
}

impl Reader {
    pub(crate) fn new(what: &'static str, bytes: Bytes) -> Self {
        Self { bytes, at: 0, what }
    }
    #[cold]
    pub(crate) fn corrupt(&self) -> FsError {
        FsError::corrupt(self.what)
    }
    #[inline]
    fn left(&self) -> &[u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }
    #[inline]
    pub(crate) fn take(&mut self, n: usize) -> Result<Bytes, FsError> {
        let from = self.at;
        self.skip(n)?;
        Ok(self.bytes.slice(from..self.at))
    }
    /// Steps over so many bytes.
    #[inline]
    pub(crate) fn skip(&mut self, n: usize) -> Result<(), FsError> {
        if self.left().len() < n {
            return Err(self.corrupt());
        }
        self.at += n;
        Ok(())
    }
    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], FsError> {
        let Some(array) = self.left().first_chunk() else { return Err(self.corrupt()) };
        let array = *array;
        self.at += N;
        Ok(array)
    }
    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, FsError> {
        Ok(self.array::<1>()?[0])
    }
    #[inline]
    pub(crate) fn bool(&mut self) -> Result<bool, FsError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.corrupt()),
        }
    }
    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, FsError> {
        Ok(u16::from_be_bytes(self.array()?))
    }
    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, FsError> {
        Ok(u32::from_be_bytes(self.array()?))
    }
    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64, FsError> {
        Ok(u64::from_be_bytes(self.array()?))
    }
    #[inline]
    pub(crate) fn wall(&mut self) -> Result<Wall, FsError> {
        let seconds = i64::from_be_bytes(self.array()?);
        let nanos = self.u32()?;
        if nanos >= 1_000_000_000 {
            return Err(self.corrupt());
        }
        Ok(Wall { seconds, nanos })
    }
    pub(crate) fn bytes(&mut self) -> Result<Bytes, FsError> {
        let n = self.u32()?;
        self.take(usize::try_from(n).map_err(|_| self.corrupt())?)
    }
    /// What is left.
    pub(crate) fn rest(mut self) -> Bytes {
        self.take_rest()
    }
    /// What is left, of a reader that goes on to [`Self::finish`].
    pub(crate) fn take_rest(&mut self) -> Bytes {
        let rest = self.bytes.slice(self.at..);
        self.at = self.bytes.len();
        rest
    }
    /// Refuses trailing bytes.
    pub(crate) fn finish(self) -> Result<(), FsError> {
        if self.left().is_empty() { Ok(()) } else { Err(FsError::corrupt(self.what)) }
    }
    /// The schema version that begins every value: 1 up to `known`.
    #[inline]
    pub(crate) fn schema(&mut self, known: u8) -> Result<u8, FsError> {
        match self.u8()? {
            0 => Err(self.corrupt()),
            v if v > known => Err(FsError::NewerSchema { what: self.what, found: v, known }),
            v => Ok(v),
        }
    }
}

/// A counter that the store adds to atomically: little-endian, as the store's atomic operations want.
pub(crate) fn counter(what: &'static str, value: &[u8]) -> Result<u64, FsError> {
    Ok(u64::from_le_bytes(value.try_into().map_err(|_| FsError::corrupt(what))?))
}

/// Nanoseconds since 1970 of a server time, for atomic maximum; years 1970 to 2554.
pub(crate) fn nanos(t: Wall) -> u64 {
    u64::try_from(t.seconds).map_or(0, |s| s.saturating_mul(1_000_000_000).saturating_add(u64::from(t.nanos)))
}

/// The inverse of [`nanos`].
pub(crate) fn from_nanos(n: u64) -> Wall {
    Wall {
        seconds: i64::try_from(n / 1_000_000_000).unwrap_or(i64::MAX),
        nanos: u32::try_from(n % 1_000_000_000).unwrap_or(0),
    }
}
