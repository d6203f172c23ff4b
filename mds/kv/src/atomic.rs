//! Atomic read-modify-writes.

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
    pub(crate) fn apply(self, present: Option<&Bytes>, operand: &Bytes) -> Bytes {
        let width = operand.len();
        let numbers = || (number(present.map_or(&[], |v| v), width), number(operand, width));
        match self {
            Self::Add => {
                let (a, b) = numbers();
                encode(a.wrapping_add(b), width)
            }
            Self::Max => {
                let (a, b) = numbers();
                encode(a.max(b), width)
            }
            Self::Min if present.is_none() => operand.clone(),
            Self::Min => {
                let (a, b) = numbers();
                encode(a.min(b), width)
            }
            Self::ByteMax => match present {
                Some(v) if v > operand => v.clone(),
                _ => operand.clone(),
            },
        }
    }
}

/// The first `width` bytes of `bytes` as a little-endian number, missing ones zero.
fn number(bytes: &[u8], width: usize) -> u128 {
    let mut raw = [0; WIDEST];
    for (to, from) in raw.iter_mut().zip(bytes.iter().take(width)) {
        *to = *from;
    }
    u128::from_le_bytes(raw)
}

fn encode(n: u128, width: usize) -> Bytes {
    Bytes::copy_from_slice(&n.to_le_bytes()[..width.min(WIDEST)])
}
