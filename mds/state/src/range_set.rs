//! Interval algebra over the 64-bit byte space; no NFS in it. Used by byte-range locks and segments.

/// A non-empty closed interval `[start, last]`. `last == u64::MAX` means "to the end of file".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    start: u64,
    last: u64,
}

impl Range {
    /// Every byte.
    pub const ALL: Self = Self { start: 0, last: u64::MAX };

    /// `[start, last]`, or `None` when it is empty.
    #[must_use]
    pub const fn new(start: u64, last: u64) -> Option<Self> {
        if start <= last { Some(Self { start, last }) } else { None }
    }

    /// From an NFS offset and length: length `u64::MAX` means "to the end of file" (RFC 8881 §18.10.3).
    /// `None` for a length of 0 and for a range that ends beyond 2^64-1.
    #[must_use]
    pub const fn from_offset_length(offset: u64, length: u64) -> Option<Self> {
        if length == u64::MAX {
            return Some(Self { start: offset, last: u64::MAX });
        }
        if length == 0 {
            return None;
        }
        match offset.checked_add(length - 1) {
            Some(last) => Some(Self { start: offset, last }),
            None => None,
        }
    }

    /// First byte.
    #[must_use]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// Last byte, `u64::MAX` for "to the end of file".
    #[must_use]
    pub const fn last(self) -> u64 {
        self.last
    }

    /// The NFS length: `u64::MAX` for a range to the end of file.
    #[must_use]
    pub const fn length(self) -> u64 {
        if self.last == u64::MAX { u64::MAX } else { self.last - self.start + 1 }
    }

    /// True when the two share a byte.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.start <= other.last && other.start <= self.last
    }

    /// True when `other` lies within.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.last <= self.last
    }
}
