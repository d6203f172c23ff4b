//! Interval algebra over the 64-bit byte space; no NFS in it. Used by byte-range locks and segments.

use std::collections::BTreeMap;

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

/// Disjoint ranges, each with a value; neighbours with equal values are one range.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RangeMap<V> {
    /// From first byte to last byte and value.
    map: BTreeMap<u64, (u64, V)>,
}

/// Disjoint, non-adjacent ranges.
pub type RangeSet = RangeMap<()>;

impl<V> Default for RangeMap<V> {
    fn default() -> Self {
        Self { map: BTreeMap::new() }
    }
}

impl<V: Copy + Eq> RangeMap<V> {
    /// Nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// True when no byte is covered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Number of maximal ranges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// All ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (Range, V)> + '_ {
        self.map.iter().map(|(&start, &(last, value))| (Range { start, last }, value))
    }

    /// The ranges that share a byte with `range`, ascending, unclipped.
    pub fn overlapping(&self, range: Range) -> impl Iterator<Item = (Range, V)> + '_ {
        // The only range that starts before `range` and can reach it is the last such one.
        let from = self
            .map
            .range(..range.start)
            .next_back()
            .filter(|(_, (last, _))| *last >= range.start)
            .map_or(range.start, |(&start, _)| start);
        self.map.range(from..=range.last).map(|(&start, &(last, value))| (Range { start, last }, value))
    }

    /// True when every byte of `range` is covered.
    #[must_use]
    pub fn covers(&self, range: Range) -> bool {
        let mut next = range.start;
        for (piece, _) in self.overlapping(range) {
            if piece.start > next {
                return false;
            }
            match piece.last.checked_add(1) {
                Some(after) if piece.last < range.last => next = after,
                _ => return true,
            }
        }
        false
    }

    /// Sets `range` to `value`, whatever was there: splits, replaces and merges.
    pub fn insert(&mut self, range: Range, value: V) {
        self.remove(range);
        let Range { mut start, mut last } = range;
        if let Some((&s, &(l, v))) = self.map.range(..start).next_back()
            && v == value
            && l.checked_add(1) == Some(start)
        {
            self.map.remove(&s);
            start = s;
        }
        if let Some(after) = last.checked_add(1)
            && let Some(&(l, v)) = self.map.get(&after)
            && v == value
        {
            self.map.remove(&after);
            last = l;
        }
        self.map.insert(start, (last, value));
    }

    /// Clears `range`: what sticks out on either side remains.
    pub fn remove(&mut self, range: Range) {
        let cut: Vec<(Range, V)> = self.overlapping(range).collect();
        for (piece, value) in cut {
            self.map.remove(&piece.start);
            if piece.start < range.start {
                self.map.insert(piece.start, (range.start - 1, value));
            }
            if piece.last > range.last {
                self.map.insert(range.last + 1, (piece.last, value));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 64 cells; the last one stands for everything up to the end of file.
    const CELLS: u64 = 64;

    fn bytes(first: u64, last: u64) -> Range {
        let last = if last == CELLS - 1 { u64::MAX } else { last };
        Range::new(first, last).unwrap()
    }

    fn cell_of(byte: u64) -> usize {
        usize::try_from(byte.min(CELLS - 1)).unwrap()
    }

    proptest! {
        #[test]
        fn agrees_with_a_bitmap(
            steps in proptest::collection::vec((0..CELLS, 0..CELLS, proptest::option::of(0u8..3)), 1..60)
        ) {
            let mut map = RangeMap::new();
            let mut model = [None; CELLS as usize];
            for (a, b, value) in steps {
                let (first, last) = (a.min(b), a.max(b));
                match value {
                    Some(value) => map.insert(bytes(first, last), value),
                    None => map.remove(bytes(first, last)),
                }
                for cell in first..=last {
                    model[cell_of(cell)] = value;
                }
                let mut seen = [None; CELLS as usize];
                let mut before: Option<(Range, u8)> = None;
                for (range, value) in map.iter() {
                    for cell in &mut seen[cell_of(range.start())..=cell_of(range.last())] {
                        prop_assert!(cell.is_none());
                        *cell = Some(value);
                    }
                    if let Some((prev, v)) = before {
                        prop_assert!(prev.last() < range.start());
                        prop_assert!(v != value || prev.last() + 1 < range.start(), "unmerged neighbours");
                    }
                    before = Some((range, value));
                }
                prop_assert_eq!(seen, model);
                let probe = bytes(first, last);
                let hit = model[cell_of(first)..=cell_of(last)].iter().any(Option::is_some);
                prop_assert_eq!(map.overlapping(probe).next().is_some(), hit);
                let all = model[cell_of(first)..=cell_of(last)].iter().all(Option::is_some);
                prop_assert_eq!(map.covers(probe), all);
                let everywhere = model.iter().all(Option::is_some);
                prop_assert_eq!(map.covers(Range::ALL), everywhere);
            }
        }
    }

    #[test]
    fn offsets_and_lengths() {
        assert_eq!(Range::from_offset_length(5, u64::MAX), Range::new(5, u64::MAX));
        assert_eq!(Range::from_offset_length(5, 0), None);
        assert_eq!(Range::from_offset_length(u64::MAX, 1), Range::new(u64::MAX, u64::MAX));
        assert_eq!(Range::from_offset_length(u64::MAX, 2), None);
        assert_eq!(Range::from_offset_length(10, 5).map(Range::length), Some(5));
        assert_eq!(Range::ALL.length(), u64::MAX);
    }
}
