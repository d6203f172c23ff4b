//! A cursor over received bytes. Opaques come out as slices of the input, never as copies; nothing is
//! allocated on the strength of a length that the remaining input could not fill.

use bytes::Bytes;

use crate::error::DecodeError;

/// Deepest nesting of a recursive type. None of our protocols needs more than a handful.
pub const MAX_NESTING: u32 = 64;

/// RFC 4506 §4.10 demands zero padding and every client we met complies, so anything else is damage.
const REJECT_NONZERO_PADDING: bool = true;

/// Vectors start with room for at most this many bytes of items and grow as items really arrive: the size
/// of an item in memory may be many times its size on the wire.
const INITIAL_VEC_BYTES: usize = 4096;

/// A decoding cursor. Values it hands out share the input's buffer and keep it alive: copy what must live
/// long (a name, a filehandle) out of a large record.
#[derive(Clone, Debug)]
pub struct Reader {
    input: Bytes,
    position: usize,
    nesting: u32,
}

impl Reader {
    /// A cursor at the start of `input`.
    pub fn new(input: Bytes) -> Self {
        Self { input, position: 0, nesting: 0 }
    }

    /// Bytes not yet consumed.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.input.len() - self.position
    }

    /// Bytes consumed so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Everything not yet consumed, without consuming it.
    pub fn rest(&self) -> Bytes {
        self.input.slice(self.position..)
    }

    /// Ends decoding; bytes left over are [`DecodeError::Trailing`].
    pub fn finish(self) -> Result<(), DecodeError> {
        match self.remaining() {
            0 => Ok(()),
            n => Err(DecodeError::Trailing(n)),
        }
    }

    #[inline]
    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let rest = self.input.get(self.position..).ok_or(DecodeError::Short)?;
        let value = *rest.first_chunk::<N>().ok_or(DecodeError::Short)?;
        self.position += N;
        Ok(value)
    }

    /// Unsigned integer, RFC 4506 §4.2.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(self.take()?))
    }

    /// Integer, RFC 4506 §4.1.
    #[inline]
    pub fn i32(&mut self) -> Result<i32, DecodeError> {
        Ok(i32::from_be_bytes(self.take()?))
    }

    /// Unsigned hyper integer, RFC 4506 §4.5.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_be_bytes(self.take()?))
    }

    /// Hyper integer, RFC 4506 §4.5.
    #[inline]
    pub fn i64(&mut self) -> Result<i64, DecodeError> {
        Ok(i64::from_be_bytes(self.take()?))
    }

    /// Single-precision floating point, RFC 4506 §4.6.
    pub fn f32(&mut self) -> Result<f32, DecodeError> {
        Ok(f32::from_be_bytes(self.take()?))
    }

    /// Double-precision floating point, RFC 4506 §4.7.
    pub fn f64(&mut self) -> Result<f64, DecodeError> {
        Ok(f64::from_be_bytes(self.take()?))
    }

    /// Boolean, RFC 4506 §4.4: an enum of 0 and 1, nothing else.
    #[inline]
    pub fn bool(&mut self) -> Result<bool, DecodeError> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(DecodeError::BadDiscriminant { union: "bool", value }),
        }
    }

    /// Fixed-length opaque of `length` bytes, RFC 4506 §4.9, as a slice of the input.
    pub fn opaque_fixed(&mut self, length: usize) -> Result<Bytes, DecodeError> {
        let data = self.data_range(length)?;
        Ok(self.input.slice(data))
    }

    /// Fixed-length opaque of `N` bytes, copied out: for verifiers, stateids and the like.
    pub fn opaque_array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let data = self.data_range(N)?;
        self.input.get(data).and_then(|d| d.first_chunk::<N>()).copied().ok_or(DecodeError::Short)
    }

    /// Variable-length opaque of at most `maximum` bytes, RFC 4506 §4.10, as a slice of the input.
    pub fn opaque(&mut self, maximum: u32) -> Result<Bytes, DecodeError> {
        let length = self.length(maximum, 1)?;
        self.opaque_fixed(length)
    }

    /// String of at most `maximum` bytes, RFC 4506 §4.11. Whether it is UTF-8 is judged above this layer:
    /// POSIX names are bytes.
    pub fn string(&mut self, maximum: u32) -> Result<Bytes, DecodeError> {
        self.opaque(maximum)
    }

    /// Consumes `length` bytes and their padding; the range of the bytes within the input.
    fn data_range(&mut self, length: usize) -> Result<std::ops::Range<usize>, DecodeError> {
        let start = self.position;
        let end = start.checked_add(length).ok_or(DecodeError::Short)?;
        let padded = end.checked_add(length.wrapping_neg() % 4).ok_or(DecodeError::Short)?;
        let padding = self.input.get(end..padded).ok_or(DecodeError::Short)?;
        if REJECT_NONZERO_PADDING && padding.iter().any(|&b| b != 0) {
            return Err(DecodeError::Padding);
        }
        self.position = padded;
        Ok(start..end)
    }

    /// Reads a count of items of at least `min_size` bytes each and refuses one that exceeds `maximum`
    /// or that the remaining input cannot hold.
    pub fn length(&mut self, maximum: u32, min_size: usize) -> Result<usize, DecodeError> {
        let length = self.u32()?;
        if length > maximum {
            return Err(DecodeError::TooLong { length, maximum });
        }
        let count = length as usize;
        // A void item takes no bytes; bound it all the same.
        if count > self.remaining() / min_size.max(1) {
            return Err(DecodeError::Short);
        }
        Ok(count)
    }

    /// Variable-length array, RFC 4506 §4.13, of at most `maximum` items of at least `min_size` bytes each.
    pub fn array<T>(
        &mut self,
        maximum: u32,
        min_size: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let count = self.length(maximum, min_size)?;
        let mut items = Vec::with_capacity(count.min(INITIAL_VEC_BYTES / size_of::<T>().max(1)));
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// Fixed-length array, RFC 4506 §4.12.
    pub fn array_fixed<T, const N: usize>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<[T; N], DecodeError> {
        let mut items = Vec::with_capacity(N.min(INITIAL_VEC_BYTES / size_of::<T>().max(1)));
        for _ in 0..N {
            items.push(item(self)?);
        }
        items.try_into().map_err(|_| DecodeError::Short)
    }

    /// Optional data, RFC 4506 §4.19.
    pub fn optional<T>(
        &mut self,
        item: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        if self.bool()? { item(self).map(Some) } else { Ok(None) }
    }

    /// A linked list, RFC 4506 §4.19: items each preceded by TRUE, ended by FALSE. Decoded in a loop, so
    /// its length costs no stack, and every item takes at least four bytes of input.
    pub fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let mut items = Vec::new();
        while self.bool()? {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// Runs `item` one level deeper; for types that contain themselves.
    pub fn nested<T>(
        &mut self,
        item: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<T, DecodeError> {
        if self.nesting >= MAX_NESTING {
            return Err(DecodeError::Nesting);
        }
        self.nesting += 1;
        let result = item(self);
        self.nesting -= 1;
        result
    }
}
