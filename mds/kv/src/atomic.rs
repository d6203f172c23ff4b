//! Atomic read-modify-writes.

use std::ops::Deref;

use bytes::Bytes;

use crate::KvError;

/// An atomic read-modify-write that causes no read conflict. Operands and values are little-endian
/// unsigned integers of 1 to 16 bytes; an absent value counts as zero; the result has the operand's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Wrapping addition.
    Add,
    /// The greater of the two as unsigned integers.
    Max,
    /// The lesser of the two; an absent value becomes the operand.
    Min,
    /// The greater of the two as byte strings, of any length; an absent value becomes the operand.
    ByteMax,
}

/// Bytes of the widest operand.
const WIDEST: usize = 16;

impl AtomicOp {
    pub(crate) fn check(self, operand: &[u8]) -> Result<(), KvError> {
        match self {
            Self::ByteMax => Ok(()),
            Self::Add | Self::Max | Self::Min if (1..=WIDEST).contains(&operand.len()) => Ok(()),
            Self::Add | Self::Max | Self::Min => Err(KvError::BadOperand),
        }
    }

    /// The new value, given the present one and an operand that passed [`Self::check`].
    pub(crate) fn apply(self, present: Option<&[u8]>, operand: &[u8]) -> Bytes {
        let width = operand.len();
        let numbers = || (number(present.unwrap_or_default(), width), number(operand, width));
        match self {
            Self::Add => {
                let (a, b) = numbers();
                encode(a.wrapping_add(b), width)
            }
            Self::Max => {
                let (a, b) = numbers();
                encode(a.max(b), width)
            }
            Self::Min if present.is_none() => Bytes::copy_from_slice(operand),
            Self::Min => {
                let (a, b) = numbers();
                encode(a.min(b), width)
            }
            Self::ByteMax => match present {
                Some(v) if *v > *operand => Bytes::copy_from_slice(v),
                _ => Bytes::copy_from_slice(operand),
            },
        }
    }
}

/// The first `width` bytes of `bytes` as a little-endian number, missing ones zero.
fn number(bytes: &[u8], width: usize) -> u128 {
    let mut raw = [0; WIDEST];
    let n = bytes.len().min(width).min(WIDEST);
    raw[..n].copy_from_slice(&bytes[..n]);
    u128::from_le_bytes(raw)
}

fn encode(n: u128, width: usize) -> Bytes {
    Bytes::copy_from_slice(&n.to_le_bytes()[..width.min(WIDEST)])
}

/// An operand until it is applied. A number, as nearly all are, needs no memory of its own.
#[derive(Clone, Debug)]
pub(crate) enum Operand {
    Number([u8; WIDEST], u8),
    Longer(Bytes),
}

impl From<&[u8]> for Operand {
    fn from(operand: &[u8]) -> Self {
        let mut number = [0; WIDEST];
        match number.get_mut(..operand.len()) {
            Some(bytes) => {
                bytes.copy_from_slice(operand);
                // It fits: at most 16.
                Self::Number(number, operand.len() as u8)
            }
            None => Self::Longer(Bytes::copy_from_slice(operand)),
        }
    }
}

impl Deref for Operand {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Number(bytes, length) => &bytes[..usize::from(*length)],
            Self::Longer(bytes) => bytes,
        }
    }
}
