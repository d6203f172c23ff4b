//! What can be wrong with bytes on the wire, and what can stop us from producing them.

use thiserror::Error;

/// Why a decoder refused its input. The input is the peer's fault: callers answer GARBAGE_ARGS,
/// NFS4ERR_BADXDR or close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum DecodeError {
    /// The input ended inside a value.
    #[error("the input ends inside a value")]
    Short,
    /// A count or length exceeds its declared maximum, or could not fit in what remains of the input.
    #[error("a length of {length} exceeds the limit of {maximum}")]
    TooLong {
        /// The announced length, in bytes or items.
        length: u32,
        /// The most that was acceptable at this place, in the same unit.
        maximum: u32,
    },
    /// A union (or bool) discriminant that names no arm.
    #[error("{value} selects no arm of {union}")]
    BadDiscriminant {
        /// XDR name of the union.
        union: &'static str,
        /// The value found.
        value: u32,
    },
    /// A whole value was decoded and bytes remain.
    #[error("{0} bytes follow the value")]
    Trailing(usize),
    /// The bytes that pad an opaque to a multiple of four are not zero.
    #[error("padding is not zero")]
    Padding,
    /// A recursive type nests deeper than [`crate::reader::MAX_NESTING`].
    #[error("values nest too deeply")]
    Nesting,
}

/// Why a value could not be encoded: our fault, or a size limit agreed with the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum EncodeError {
    /// The writer's size limit, in bytes, does not hold the value.
    #[error("the encoding exceeds the limit of {0} bytes")]
    Overflow(usize),
    /// A variable-length field holds more than its declaration allows.
    #[error("a field of {length} bytes or items exceeds its declared maximum of {maximum}")]
    Bound {
        /// What the value holds.
        length: usize,
        /// What its declaration allows.
        maximum: u32,
    },
}
