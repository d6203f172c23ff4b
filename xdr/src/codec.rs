//! The two traits of the wire, and the primitives of RFC 4506 §4 that implement them.

use bytes::Bytes;

use crate::error::{DecodeError, EncodeError};
use crate::reader::Reader;
use crate::writer::{Frame, Writer};

/// No declared maximum: the bound is what remains of the input (RFC 4506 §4.10 allows 2^32-1).
pub const UNBOUNDED: u32 = u32::MAX;

/// A value that can be written in XDR. Errors (size limit, declared bounds) stick to the [`Writer`].
pub trait Encode {
    /// Appends the encoding of `self`.
    fn encode(&self, w: &mut Writer);
}

/// A value that can be read from XDR.
pub trait Decode: Sized {
    /// The fewest bytes any value of this type takes on the wire; bounds item counts before anything is
    /// allocated for them.
    const MIN_SIZE: usize;

    /// Takes one value off the front of `r`. After an error the position of `r` is unspecified.
    fn decode(r: &mut Reader) -> Result<Self, DecodeError>;
}

/// Decodes exactly one `T` out of all of `bytes`; trailing bytes are an error.
pub fn from_bytes<T: Decode>(bytes: Bytes) -> Result<T, DecodeError> {
    let mut r = Reader::new(bytes);
    let value = T::decode(&mut r)?;
    r.finish()?;
    Ok(value)
}

/// Encodes `value` alone, in at most `limit` bytes; large opaques are referenced, not copied.
pub fn to_frame<T: Encode + ?Sized>(value: &T, limit: usize) -> Result<Frame, EncodeError> {
    let mut w = Writer::new(limit);
    value.encode(&mut w);
    w.finish()
}

/// Encodes `value` alone into one contiguous buffer, without a size limit.
pub fn to_bytes<T: Encode + ?Sized>(value: &T) -> Result<Bytes, EncodeError> {
    Ok(to_frame(value, usize::MAX)?.into_bytes())
}

macro_rules! primitive {
    ($($t:ident: $size:literal),*) => {$(
        impl Encode for $t {
            fn encode(&self, w: &mut Writer) {
                w.$t(*self);
            }
        }
        impl Decode for $t {
            const MIN_SIZE: usize = $size;
            fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
                r.$t()
            }
        }
    )*};
}

primitive!(u32: 4, i32: 4, u64: 8, i64: 8, f32: 4, f64: 8, bool: 4);

impl Encode for () {
    fn encode(&self, _: &mut Writer) {}
}

impl Decode for () {
    const MIN_SIZE: usize = 0;
    fn decode(_: &mut Reader) -> Result<Self, DecodeError> {
        Ok(())
    }
}

/// Variable-length opaque without a declared maximum.
impl Encode for Bytes {
    fn encode(&self, w: &mut Writer) {
        w.opaque(self, UNBOUNDED);
    }
}

impl Decode for Bytes {
    const MIN_SIZE: usize = 4;
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        r.opaque(UNBOUNDED)
    }
}

/// Fixed-length opaque.
impl<const N: usize> Encode for [u8; N] {
    fn encode(&self, w: &mut Writer) {
        w.opaque_fixed(self);
    }
}

impl<const N: usize> Decode for [u8; N] {
    const MIN_SIZE: usize = N.next_multiple_of(4);
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        r.opaque_array()
    }
}

/// Variable-length array without a declared maximum.
impl<T: Encode> Encode for Vec<T> {
    fn encode(&self, w: &mut Writer) {
        w.array(self, UNBOUNDED, |w, item| item.encode(w));
    }
}

impl<T: Decode> Decode for Vec<T> {
    const MIN_SIZE: usize = 4;
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        r.array(UNBOUNDED, T::MIN_SIZE, T::decode)
    }
}

/// Optional data (RFC 4506 §4.19).
impl<T: Encode> Encode for Option<T> {
    fn encode(&self, w: &mut Writer) {
        w.optional(self.as_ref(), |w, value| value.encode(w));
    }
}

impl<T: Decode> Decode for Option<T> {
    const MIN_SIZE: usize = 4;
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        r.optional(T::decode)
    }
}

impl<T: Encode + ?Sized> Encode for &T {
    fn encode(&self, w: &mut Writer) {
        (**self).encode(w);
    }
}

impl<T: Encode> Encode for Box<T> {
    fn encode(&self, w: &mut Writer) {
        (**self).encode(w);
    }
}

impl<T: Decode> Decode for Box<T> {
    const MIN_SIZE: usize = T::MIN_SIZE;
    fn decode(r: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self::new(T::decode(r)?))
    }
}

/// The codec and Debug of an enum: a number that keeps values its description does not know.
macro_rules! wire_enum {
    ($name:ident, $inner:ident, $xdr:literal) => {
        impl $crate::Encode for $name {
            fn encode(&self, w: &mut $crate::Writer) {
                w.$inner(self.0);
            }
        }

        impl $crate::Decode for $name {
            const MIN_SIZE: usize = 4;

            fn decode(r: &mut $crate::Reader) -> Result<Self, $crate::DecodeError> {
                Ok(Self(r.$inner()?))
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!($xdr, "({})"), self.0),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(self, f)
            }
        }
    };
}

pub(crate) use wire_enum;
