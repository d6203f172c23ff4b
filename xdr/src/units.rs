//! The stripe units of a range that are in one data file. What lies between them there is other data files', and a hole.

use std::ops::Range;

use crate::control::ctl_units;

impl ctl_units {
    /// They lie within what a file can be long, and one comes after the other.
    pub fn are_sound(&self) -> bool {
        self.unit > 0 && self.offset < self.end && i64::try_from(self.end).is_ok()
    }

    /// One range each; nothing where [`Self::are_sound`] is false for want of a unit.
    pub fn pieces(self) -> Pieces {
        Pieces(self)
    }
}

/// One after the other: there may be millions.
#[derive(Clone, Copy, Debug)]
pub struct Pieces(ctl_units);

impl Iterator for Pieces {
    type Item = Range<u64>;

    fn next(&mut self) -> Option<Range<u64>> {
        let ctl_units { offset, end, unit, apart } = self.0;
        let boundary = offset.checked_div(unit)?.saturating_add(1).saturating_mul(unit);
        let piece = (offset < end).then(|| offset..boundary.min(end))?;
        self.0.offset = boundary.saturating_add(apart);
        Some(piece)
    }
}
