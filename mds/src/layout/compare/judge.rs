//! What differences between copies tell. Pure.

use sluice_namespace::{Component, DataFile};

/// Of a unit; all zero: nothing but zeros.
pub(super) type Hash = [u8; 32];
const ZEROS: Hash = [0; 32];

/// Ranges kept of a file; of others only their number and bytes.
const MOST: usize = 16;

/// What tells which copies of a range are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hint {
    /// Nothing.
    Somehow,
    /// The odd ones are zeros, and all others, as many at least, hold the same: what was lost on its way leaves that.
    Zeros,
    /// More copies than not hold the same.
    Outvoted,
}

/// What one copy has of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copy {
    /// Copies with the same number hold the same.
    pub(crate) alike: u32,
    pub(crate) zeros: bool,
    pub(crate) odd: bool,
}

/// Copies that are not equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judgement {
    pub(crate) hint: Hint,
    /// In the order of the column.
    pub(crate) copies: Vec<Copy>,
}

/// `None`: they are equal.
pub(super) fn judge(hashes: &[Hash]) -> Option<Judgement> {
    let first = |hash: &Hash| hashes.iter().position(|other| other == hash).unwrap_or(0);
    let alike: Vec<usize> = hashes.iter().map(first).collect();
    if alike.iter().all(|group| *group == 0) {
        return None;
    }
    let size = |group: usize| alike.iter().filter(|other| **other == group).count();
    let largest = alike.iter().copied().max_by_key(|group| size(*group)).unwrap_or(0);
    let is_zeros = |at: usize| hashes.get(at) == Some(&ZEROS);
    let mut with_data = alike.iter().copied().filter(|at| !is_zeros(*at));
    let data = with_data.next().filter(|data| with_data.all(|other| other == *data));
    let zeros = alike.iter().filter(|at| is_zeros(**at)).count();
    let (hint, right) = match data {
        Some(data) if zeros > 0 && zeros <= size(data) => (Hint::Zeros, Some(data)),
        _ if size(largest) * 2 > hashes.len() => (Hint::Outvoted, Some(largest)),
        _ => (Hint::Somehow, None),
    };
    let copy = |group: &usize| Copy {
        alike: u32::try_from(*group).unwrap_or(u32::MAX),
        zeros: is_zeros(*group),
        odd: right.is_some_and(|right| right != *group),
    };
    Some(Judgement { hint, copies: alike.iter().map(copy).collect() })
}

/// A range that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unequal {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) judgement: Judgement,
    /// The copies.
    pub(crate) column: Vec<DataFile>,
}

/// A column that differs somewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Column {
    files: Vec<DataFile>,
    /// By zeros, in all ranges so far.
    right: Vec<bool>,
}

/// What differs of a file. Ranges come in the order in which columns are gone through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Differences {
    pub(crate) bytes: u64,
    pub(crate) ranges: u64,
    /// The first of them.
    pub(crate) first: Vec<Unequal>,
    columns: Vec<Column>,
    /// Where the last range ended, and what it was.
    last: Option<(u64, Judgement)>,
}

impl Differences {
    pub(super) fn add(&mut self, column: &[DataFile], (offset, length): (u64, u64), judgement: Judgement) {
        self.bytes += length;
        let new = self.columns.last().is_none_or(|last| last.files != column);
        if new {
            self.columns.push(Column { files: column.to_vec(), right: vec![true; column.len()] });
        }
        if let Some(last) = self.columns.last_mut() {
            for (right, copy) in last.right.iter_mut().zip(&judgement.copies) {
                *right &= judgement.hint == Hint::Zeros && !copy.odd;
            }
        }
        let goes_on = |(end, before): &(u64, Judgement)| !new && *end == offset && *before == judgement;
        if self.last.as_ref().is_some_and(goes_on) {
            // Behind those that are kept, it is only counted.
            if self.ranges <= MOST as u64
                && let Some(range) = self.first.last_mut()
            {
                range.length += length;
            }
        } else {
            self.ranges += 1;
            if self.first.len() < MOST {
                let (judgement, column) = (judgement.clone(), column.to_vec());
                self.first.push(Unequal { offset, length, judgement, column });
            }
        }
        self.last = Some((offset + length, judgement));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges == 0
    }

    /// One copy of each column that differs, if zeros tell which is right: the same one in all of its ranges.
    pub(crate) fn right_by_zeros(&self) -> Option<Vec<DataFile>> {
        let right = |column: &Column| {
            let mut right = column.files.iter().zip(&column.right).filter(|(_, right)| **right);
            right.next().map(|(file, _)| *file)
        };
        self.columns.iter().map(right).collect::<Option<Vec<_>>>().filter(|right| !right.is_empty())
    }
}

/// The next bytes of a column, at `at` or later and before `end`: at most `most` of them, and none of another column. What
/// lies in a data file where other columns have their bytes nobody reads.
pub(super) fn stretch(
    component: &Component,
    column: usize,
    at: u64,
    end: u64,
    most: u64,
) -> Option<std::ops::Range<u64>> {
    let (unit, width) = (component.stripe_unit.max(1), u64::from(component.width.max(1)));
    let column = u64::try_from(column).ok()? % width;
    let at = at.max(component.start);
    let turns = (column + width - at / unit % width) % width;
    let from = match turns {
        0 => at,
        turns => (at / unit + turns).checked_mul(unit)?,
    };
    let limit = if width == 1 { end } else { end.min((from / unit + 1).saturating_mul(unit)) };
    let to = limit.min(component.end).min(from.saturating_add(most));
    (from < to).then_some(from..to)
}

#[cfg(test)]
mod tests {
    use sluice_namespace::StoreId;

    use super::*;

    const A: Hash = [1; 32];
    const B: Hash = [2; 32];
    const C: Hash = [3; 32];

    fn odd(hashes: &[Hash]) -> (Hint, Vec<usize>) {
        let found = judge(hashes).unwrap();
        let odd = (0..hashes.len()).filter(|at| found.copies[*at].odd).collect();
        (found.hint, odd)
    }

    #[test]
    fn zeros_and_votes_tell_which_copy_is_the_odd_one() {
        assert!(judge(&[A, A]).is_none() && judge(&[ZEROS, ZEROS]).is_none() && judge(&[A]).is_none());
        assert_eq!(odd(&[A, B]), (Hint::Somehow, vec![]));
        assert_eq!(odd(&[ZEROS, B]), (Hint::Zeros, vec![0]));
        assert_eq!(odd(&[A, ZEROS, A]), (Hint::Zeros, vec![1]));
        assert_eq!(odd(&[A, B, A]), (Hint::Outvoted, vec![1]));
        // Most are zeros: that the one with data is right is not what was seen to go wrong.
        assert_eq!(odd(&[ZEROS, B, ZEROS]), (Hint::Outvoted, vec![1]));
        // Two that differ from each other and from zeros: neither is known to be right.
        assert_eq!(odd(&[ZEROS, A, B]), (Hint::Somehow, vec![]));
        assert_eq!(odd(&[A, B, C]), (Hint::Somehow, vec![]));
        assert_eq!(odd(&[ZEROS, ZEROS, A, A]), (Hint::Zeros, vec![0, 1]));
        assert_eq!(odd(&[A, A, B, B]), (Hint::Somehow, vec![]));
        let copies = judge(&[A, ZEROS, A]).unwrap().copies;
        assert_eq!(copies.iter().map(|copy| copy.alike).collect::<Vec<_>>(), [0, 1, 0]);
        assert_eq!(copies.iter().map(|copy| copy.zeros).collect::<Vec<_>>(), [false, true, false]);
    }

    fn column(first: u16) -> Vec<DataFile> {
        let file = |slot| DataFile { store: StoreId(slot + 1), slot, ..DataFile::default() };
        vec![file(first), file(first + 1)]
    }

    #[test]
    fn ranges_grow_together_and_only_zeros_that_agree_tell() {
        let mut found = Differences::default();
        let zeros = || judge(&[A, ZEROS]).unwrap();
        found.add(&column(0), (0, 4096), zeros());
        found.add(&column(0), (4096, 4096), judge(&[B, ZEROS]).unwrap());
        found.add(&column(0), (16384, 100), zeros());
        assert_eq!((found.ranges, found.bytes, found.first[0].length), (2, 8292, 8192));
        assert_eq!(found.right_by_zeros().unwrap()[0].slot, 0);
        // Another column at the end of the first: a range of its own.
        found.add(&column(2), (16484, 100), judge(&[ZEROS, A]).unwrap());
        assert_eq!(found.ranges, 3);
        let right: Vec<u16> = found.right_by_zeros().unwrap().iter().map(|file| file.slot).collect();
        assert_eq!(right, [0, 3]);
        // Once the other way round: nobody can have one of them as a whole.
        found.add(&column(2), (20480, 100), zeros());
        assert_eq!(found.right_by_zeros(), None);
        for n in 0..40 {
            found.add(&column(2), (30_000 + n * 1000, 10), judge(&[A, B]).unwrap());
        }
        assert_eq!((found.ranges, found.first.len()), (44, MOST));
    }

    #[test]
    fn stretches_are_the_bytes_of_a_column() {
        let slots = (0..6).map(|slot| DataFile { slot, ..DataFile::default() }).collect();
        let (unit, width, mirrors) = (100, 3, 2);
        let mut component =
            Component { start: 200, end: 1000, stripe_unit: unit, width, mirrors, handed_out: true, slots };
        for end in [200, 201, 550, 1000, 5000] {
            let mut bytes = vec![0; 1000];
            for index in 0..3 {
                let mut at = 0;
                while let Some(range) = stretch(&component, index, at, end, 70) {
                    assert!(range.end - range.start <= 70);
                    for byte in range.clone() {
                        let slot = component.column(byte).unwrap()[0].slot;
                        assert_eq!(usize::from(slot), index * 2, "byte {byte}");
                        bytes[usize::try_from(byte).unwrap()] += 1;
                    }
                    at = range.end;
                }
            }
            let all = 200..usize::try_from(end.min(1000)).unwrap();
            assert!((0..1000).all(|byte| bytes[byte] == i32::from(all.contains(&byte))), "{end}");
        }
        component.width = 1;
        assert_eq!(stretch(&component, 0, 250, 900, 10_000), Some(250..900), "no stripes, no units");
    }
}
