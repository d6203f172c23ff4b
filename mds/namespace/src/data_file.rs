//! Where a regular file's bytes are: the layout description inside its inode.

use std::ops::Range;

use crate::class::Class;
use crate::codec::{Reader, Writer};
use crate::error::FsError;
use crate::inline::{self, Inline, MAX_INLINE};
use crate::keys::{DataFileId, StoreId};

/// One data file of a component: a plain file of one store, holding its stripe units at their
/// offsets in the whole file (it is sparse).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataFile {
    pub store: StoreId,
    /// Tells the data files of one [`Layout`] apart. What was part of it never has the slot of another one.
    pub slot: u16,
    /// Raised when older handles must die; the greatest slot's also for what was given up (docs/adr/0008-mirrors-heal.md).
    pub generation: u16,
    /// The store has it: a handle may say that it must exist.
    pub materialised: bool,
    /// This mirror missed writes: nothing is read from it, and nothing more written to it, until it has
    /// been made equal again.
    pub stale: bool,
    /// Its store is lost for good: another data file is being filled to take its place.
    pub moving: bool,
}

impl DataFile {
    const MATERIALISED: u8 = 1;
    const STALE: u8 = 2;
    const MOVING: u8 = 4;

    fn flags(&self) -> u8 {
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        flag(self.materialised, Self::MATERIALISED)
            | flag(self.stale, Self::STALE)
            | flag(self.moving, Self::MOVING)
    }
}

/// The bytes `[start, end)` of a file: stripe units of `stripe_unit` bytes dealt over `width`
/// columns, each on `mirrors` data files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    pub start: u64,
    /// `u64::MAX`: without end.
    pub end: u64,
    /// Bytes; positive.
    pub stripe_unit: u64,
    pub width: u16,
    pub mirrors: u16,
    /// A client may hold a layout of it: it never changes under one.
    pub handed_out: bool,
    /// `width * mirrors` data files, the mirrors of column 0 first.
    pub slots: Vec<DataFile>,
}

impl Component {
    /// Most data files in a component: what a layout body of 4096 bytes holds.
    pub const MAX_SLOTS: usize = 36;

    /// Nobody has written to it, and nobody can have, in a file of `size` bytes: no client knows of it, no data
    /// server reported it, and the file ends before it.
    pub fn is_untouched(&self, size: u64) -> bool {
        !self.handed_out && self.slots.iter().all(|file| !file.materialised) && size <= self.start
    }

    /// How many bytes of a file of `size` bytes lie in its `index`th column, holes counted.
    pub fn bytes_of_column(&self, index: usize, size: u64) -> u64 {
        let unit = u128::from(self.stripe_unit.max(1));
        let round = unit * u128::from(self.width.max(1));
        let before = unit * u128::try_from(index).unwrap_or(u128::MAX).min(u128::from(u16::MAX));
        // Of the first `end` bytes of the file, were the component all of it.
        let until = |end: u64| {
            let end = u128::from(end);
            end / round * unit + (end % round).saturating_sub(before).min(unit)
        };
        let end = size.min(self.end).max(self.start);
        u64::try_from(until(end) - until(self.start)).unwrap_or(u64::MAX)
    }

    /// The mirrors of the column that holds byte `offset` (which must be within the component).
    pub fn column(&self, offset: u64) -> Option<&[DataFile]> {
        if offset < self.start || offset >= self.end {
            return None;
        }
        let column = (offset / self.stripe_unit.max(1)) % u64::from(self.width.max(1));
        let at = usize::try_from(column).ok()?.checked_mul(usize::from(self.mirrors))?;
        self.slots.get(at..at + usize::from(self.mirrors))
    }

    /// The mirrors of each column that may hold any of these bytes.
    pub fn columns_of(&self, bytes: &Range<u64>) -> impl Iterator<Item = &[DataFile]> {
        let (start, end) = (bytes.start.max(self.start), bytes.end.min(self.end));
        let (unit, width) = (self.stripe_unit.max(1), u64::from(self.width.max(1)));
        let first = start / unit;
        let units = if start < end { (end - 1) / unit - first + 1 } else { 0 };
        let columns = (0..).zip(self.slots.chunks(usize::from(self.mirrors.max(1))));
        // How many units after the first of them the column's first one comes.
        let held = columns.filter(move |(column, _)| (column + width - first % width) % width < units);
        held.map(|(_, mirrors)| mirrors)
    }
}

/// The whole description: one data file id, components in order from byte 0 without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub id: DataFileId,
    pub components: Vec<Component>,
    /// Some mirrors may differ: a read-write layout ended uncleanly.
    pub mirrors_dirty: bool,
}

impl Layout {
    /// Most components.
    pub const MAX_COMPONENTS: usize = 64;

    /// Whether it is one that may be stored: in order, gapless from 0 to without end, the right
    /// number of data files, distinct slot numbers.
    pub fn is_valid(&self) -> bool {
        let mut at = 0;
        let mut slots = Vec::new();
        for c in &self.components {
            let n = usize::from(c.width) * usize::from(c.mirrors);
            if c.start != at || c.end <= c.start || c.stripe_unit == 0 || n != c.slots.len() || n == 0 {
                return false;
            }
            if n > Component::MAX_SLOTS {
                return false;
            }
            slots.extend(c.slots.iter().map(|s| s.slot));
            at = c.end;
        }
        slots.sort_unstable();
        let distinct = slots.windows(2).all(|w| w[0] != w[1]);
        at == u64::MAX && distinct && self.components.len() <= Self::MAX_COMPONENTS
    }

    /// The component that holds byte `offset`.
    pub fn component(&self, offset: u64) -> Option<&Component> {
        self.components.iter().find(|c| c.start <= offset && offset < c.end)
    }

    /// Whether a data file of it is, or will be, at this store.
    pub fn names(&self, store: StoreId) -> bool {
        self.data_files().any(|file| file.store == store)
    }

    /// Every data file.
    pub fn data_files(&self) -> impl Iterator<Item = &DataFile> {
        self.components.iter().flat_map(|c| &c.slots)
    }

    /// The components that may hold data of a file of `size` bytes.
    pub fn in_use(&self, size: u64) -> impl Iterator<Item = &Component> {
        self.components.iter().filter(move |component| !component.is_untouched(size))
    }

    /// Some mirrors are not what they should be: the file waits to be healed.
    pub fn is_degraded(&self) -> bool {
        self.mirrors_dirty || self.data_files().any(|s| s.stale || s.moving)
    }

    /// The columns: the data files that hold the same bytes.
    pub fn columns(&self) -> impl Iterator<Item = &[DataFile]> {
        self.components.iter().flat_map(|c| c.slots.chunks(usize::from(c.mirrors.max(1))))
    }

    /// Some bytes are at more than one good mirror: they may come to differ.
    pub fn has_copies(&self) -> bool {
        self.columns().any(|column| column.iter().filter(|file| !file.stale).nth(1).is_some())
    }

    pub(crate) fn column_mut(&mut self, slot: u16) -> Option<&mut [DataFile]> {
        let columns =
            self.components.iter_mut().flat_map(|c| c.slots.chunks_mut(usize::from(c.mirrors.max(1))));
        let mut columns = columns.filter(|column| column.iter().any(|s| s.slot == slot));
        columns.next()
    }

    /// The data file with the greatest slot number. Its generation says how greater numbers may be used: no data file that is gone
    /// had one of them and this generation, or a later one. A data server takes no data file that is named like one that was
    /// removed there, and nothing else remembers those that were never a part of the file.
    pub(crate) fn greatest(&self) -> Option<&DataFile> {
        self.data_files().max_by_key(|file| file.slot)
    }

    fn greatest_mut(&mut self) -> Option<&mut DataFile> {
        self.components.iter_mut().flat_map(|c| &mut c.slots).max_by_key(|file| file.slot)
    }

    /// One that had a greater number and this generation will not be a part of the file.
    pub(crate) fn gives_up(&mut self, generation: u16) {
        if let Some(greatest) = self.greatest_mut() {
            // No handle has to die: those of before are as good as any.
            greatest.generation = greatest.generation.max(generation.saturating_add(1));
        }
    }

    /// What is the greatest now says what the one did that was.
    pub(crate) fn remembers(&mut self, before: DataFile) {
        if let Some(greatest) = self.greatest_mut().filter(|greatest| greatest.slot != before.slot) {
            greatest.generation = greatest.generation.max(before.generation);
        }
    }

    pub(crate) fn data_file_mut(&mut self, slot: u16) -> Option<&mut DataFile> {
        self.components.iter_mut().flat_map(|c| &mut c.slots).find(|s| s.slot == slot)
    }

    /// Bytes of its encoding.
    pub(crate) fn room(&self) -> usize {
        let component = |c: &Component| 3 * 8 + 2 + 2 + 1 + c.slots.len() * (3 * 2 + 1);
        8 + 1 + 2 + self.components.iter().map(component).sum::<usize>()
    }

    pub(crate) fn encode(&self, w: &mut Writer) {
        w.u64(self.id.0).bool(self.mirrors_dirty);
        w.u16(u16::try_from(self.components.len()).unwrap_or(u16::MAX));
        for c in &self.components {
            w.u64(c.start).u64(c.end).u64(c.stripe_unit).u16(c.width).u16(c.mirrors).bool(c.handed_out);
            for s in &c.slots {
                w.u16(s.store.0).u16(s.slot).u16(s.generation).u8(s.flags());
            }
        }
    }

    pub(crate) fn decode(r: &mut Reader) -> Result<Self, FsError> {
        let id = DataFileId(r.u64()?);
        let mirrors_dirty = r.bool()?;
        let n = usize::from(r.u16()?);
        if n > Self::MAX_COMPONENTS {
            return Err(r.corrupt());
        }
        let mut components = Vec::with_capacity(n);
        for _ in 0..n {
            components.push(decode_component(r)?);
        }
        let layout = Self { id, components, mirrors_dirty };
        if layout.is_valid() { Ok(layout) } else { Err(r.corrupt()) }
    }
}

fn decode_component(r: &mut Reader) -> Result<Component, FsError> {
    let (start, end, stripe_unit) = (r.u64()?, r.u64()?, r.u64()?);
    let (width, mirrors, handed_out) = (r.u16()?, r.u16()?, r.bool()?);
    let n = usize::from(width) * usize::from(mirrors);
    if n > Component::MAX_SLOTS {
        return Err(r.corrupt());
    }
    let mut slots = Vec::with_capacity(n);
    for _ in 0..n {
        let (store, slot, generation) = (StoreId(r.u16()?), r.u16()?, r.u16()?);
        let flags = r.u8()?;
        if flags & !(DataFile::MATERIALISED | DataFile::STALE | DataFile::MOVING) != 0 {
            return Err(r.corrupt());
        }
        slots.push(DataFile {
            store,
            slot,
            generation,
            materialised: flags & DataFile::MATERIALISED != 0,
            stale: flags & DataFile::STALE != 0,
            moving: flags & DataFile::MOVING != 0,
        });
    }
    Ok(Component { start, end, stripe_unit, width, mirrors, handed_out, slots })
}

/// The shape of the files made in a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shape {
    /// The first 64 MiB on one data server, the rest over several, coarsely.
    #[default]
    Default,
    /// One data server.
    Small,
    /// Fine stripes from the first byte, for clients that stripe.
    Wide,
    /// Coarse stripes from the first byte, for clients of any age.
    WideAny,
}

impl Shape {
    const ALL: [(Self, &'static str, u8); 4] = [
        (Self::Default, "default", 0),
        (Self::Small, "small", 1),
        (Self::Wide, "wide", 2),
        (Self::WideAny, "wide-any", 3),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|s| s.0 == self).map_or("default", |s| s.1)
    }

    pub(crate) fn code(self) -> u8 {
        Self::ALL.iter().find(|s| s.0 == self).map_or(0, |s| s.2)
    }

    pub(crate) fn decode(code: u8) -> Option<Self> {
        Self::ALL.iter().find(|s| s.2 == code).map(|s| s.0)
    }
}

/// What a directory says about the layout of the files made in it; new subdirectories inherit it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayoutPolicy {
    pub shape: Shape,
    /// Copies of every byte; 0: the server's default.
    pub mirrors: u8,
    /// Files of at most so many bytes are kept in the metadata; 0: none are.
    pub inline: u32,
    /// Of the data servers that files are placed on; `None`: on those without one (docs/adr/0041).
    pub class: Option<Class>,
}

impl LayoutPolicy {
    /// The bit of the shape's byte that says that the limit of inline files follows.
    const HAS_INLINE: u8 = 0x80;
    /// The one that says that a class follows behind that. A file system that has such a policy is closed to who does not know it.
    pub(crate) const HAS_CLASS: u8 = 0x40;

    /// What is said for a class where there is none.
    pub const NO_CLASS: &'static str = "none";

    /// What the root of a new file system says unless somebody chooses: no copies but what the server makes by itself,
    /// and small files in the metadata (docs/adr/0020).
    pub const OF_NEW_FILE_SYSTEMS: Self =
        Self { shape: Shape::Default, mirrors: 0, inline: 32 << 10, class: None };

    /// Reads `wide`, `default,mirrors=2`, `small,inline=16KiB`, `default,class=archive`, ...
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split(',');
        let name = parts.next()?;
        let shape = Shape::ALL.iter().find(|s| s.1 == name)?.0;
        let mut policy = Self { shape, ..Self::default() };
        for part in parts {
            if let Some(limit) = part.strip_prefix("inline=") {
                policy.inline = inline::inline_limit(limit)?;
                continue;
            }
            if let Some(name) = part.strip_prefix("class=") {
                policy.class = if name == Self::NO_CLASS { None } else { Some(Class::parse(name)?) };
                continue;
            }
            let n: u8 = part.strip_prefix("mirrors=")?.parse().ok()?;
            if n == 0 || usize::from(n) > Component::MAX_SLOTS {
                return None;
            }
            policy.mirrors = n;
        }
        Some(policy)
    }

    /// What a file made under it begins as, if it begins inline: files that are to be wide are large.
    pub fn inline_file(&self) -> Option<Inline> {
        let wide = matches!(self.shape, Shape::Wide | Shape::WideAny);
        let Self { shape, mirrors, inline: limit, class } = *self;
        (limit > 0 && !wide).then_some(Inline { limit, shape, mirrors, class })
    }

    /// Bytes of its encoding.
    pub(crate) fn room(self) -> usize {
        let inline = if self.inline > 0 { 4 } else { 0 };
        2 + inline + self.class.as_ref().map_or(0, Class::room)
    }

    pub(crate) fn encode(self, w: &mut Writer) {
        let has_inline = if self.inline > 0 { Self::HAS_INLINE } else { 0 };
        let has_class = if self.class.is_some() { Self::HAS_CLASS } else { 0 };
        w.u8(self.shape.code() | has_inline | has_class).u8(self.mirrors);
        if self.inline > 0 {
            w.u32(self.inline);
        }
        if let Some(class) = &self.class {
            class.encode(w);
        }
    }

    pub(crate) fn decode(r: &mut Reader) -> Result<Self, FsError> {
        let byte = r.u8()?;
        let shape = Shape::decode(byte & !(Self::HAS_INLINE | Self::HAS_CLASS)).ok_or_else(|| r.corrupt())?;
        let mirrors = r.u8()?;
        let inline = if byte & Self::HAS_INLINE == 0 { 0 } else { r.u32()? };
        if inline > MAX_INLINE || (byte & Self::HAS_INLINE != 0 && inline == 0) {
            return Err(r.corrupt());
        }
        let class = if byte & Self::HAS_CLASS == 0 { None } else { Some(Class::decode(r)?) };
        Ok(Self { shape, mirrors, inline, class })
    }
}

impl std::fmt::Display for LayoutPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.shape.name())?;
        if self.mirrors > 0 {
            write!(f, ",mirrors={}", self.mirrors)?;
        }
        if self.inline > 0 {
            write!(f, ",inline={}", inline::limit_text(self.inline))?;
        }
        if let Some(class) = self.class {
            write!(f, ",class={class}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// One component of `width` columns, one mirror, fresh.
    pub(crate) fn layout(id: u64, width: u16) -> Layout {
        let slots = (0..width)
            .map(|n| DataFile { store: StoreId(n + 1), slot: n, generation: 1, ..DataFile::default() })
            .collect();
        let c = Component {
            start: 0,
            end: u64::MAX,
            stripe_unit: 1 << 20,
            width,
            mirrors: 1,
            handed_out: false,
            slots,
        };
        Layout { id: DataFileId(id), components: vec![c], mirrors_dirty: false }
    }

    #[test]
    fn the_bytes_of_a_file_are_those_of_its_columns() {
        for (start, end, size) in
            [(0, u64::MAX, 0), (0, u64::MAX, 1), (0, u64::MAX, (9 << 20) + 7), (5, 99, 80)]
        {
            let mut c = layout(1, 4).components.remove(0);
            (c.start, c.end) = (start, end);
            let sum: u64 = (0..4).map(|column| c.bytes_of_column(column, size)).sum();
            assert_eq!(sum, size.min(end).saturating_sub(start));
        }
        let c = layout(1, 4).components.remove(0);
        assert_eq!(c.bytes_of_column(1, (9 << 20) + 7), (2 << 20) + 7);
        assert_eq!(c.bytes_of_column(3, (9 << 20) + 7), 2 << 20);
    }

    #[test]
    fn a_column_is_its_stripe() {
        let l = layout(1, 4);
        let c = l.component(0).unwrap();
        for (offset, store) in [(0, 1), (1 << 20, 2), ((4 << 20) + 5, 1), ((7 << 20) - 1, 3)] {
            assert_eq!(c.column(offset).unwrap()[0].store, StoreId(store));
        }
    }

    #[test]
    fn the_columns_of_bytes_are_those_that_hold_one_of_them() {
        for (start, end) in [(0, u64::MAX), (2 << 20, 9 << 20)] {
            for (width, unit) in [(1, 1 << 20), (4, 1 << 20), (3, 7)] {
                let mut c = layout(1, width).components.remove(0);
                (c.start, c.end, c.stripe_unit) = (start, end, unit);
                for from in [0, unit - 1, unit, (2 << 20) + 5, 5 * unit + 1, 8 << 20] {
                    for length in [0, 1, unit, unit + 1, 2 * unit, u64::from(width) * unit + 1] {
                        let bytes = from..from + length;
                        let all = bytes.clone().step_by(usize::try_from(unit).unwrap_or(1).min(1 << 19));
                        let each = all.chain(bytes.clone().last()).filter_map(|at| c.column(at));
                        let want: BTreeSet<StoreId> = each.map(|column| column[0].store).collect();
                        let found: BTreeSet<StoreId> =
                            c.columns_of(&bytes).map(|column| column[0].store).collect();
                        assert_eq!(found, want, "{bytes:?} of {c:?}");
                    }
                }
            }
        }
        assert_eq!(layout(1, 4).components[0].columns_of(&(0..u64::MAX)).count(), 4);
    }

    #[test]
    fn only_gapless_layouts_with_distinct_slots_are_valid() {
        assert!(layout(1, 4).is_valid());
        assert!(!layout(1, 0).is_valid());
        assert!(!layout(1, 37).is_valid());
        let mut l = layout(1, 2);
        l.components[0].slots[1].slot = 0;
        assert!(!l.is_valid());
        let mut l = layout(1, 2);
        l.components[0].end = 100;
        assert!(!l.is_valid());
        let mut l = layout(1, 2);
        l.components[0].start = 1;
        assert!(!l.is_valid());
    }

    #[test]
    fn decode_is_the_inverse_and_refuses_what_is_not_valid() {
        let mut l = layout(9, 3);
        l.components[0].slots[2].materialised = true;
        l.components[0].slots[1].stale = true;
        l.mirrors_dirty = true;
        let bytes = |l: &Layout| {
            let mut w = Writer::default();
            l.encode(&mut w);
            w.finish()
        };
        assert_eq!(Layout::decode(&mut Reader::new("layout", bytes(&l))).unwrap(), l);
        l.components[0].start = 7;
        assert!(Layout::decode(&mut Reader::new("layout", bytes(&l))).is_err());
    }

    #[test]
    fn policies_have_names() {
        for text in [
            "default",
            "small",
            "wide",
            "wide-any",
            "wide,mirrors=2",
            "small,mirrors=2,inline=16KiB",
            "default,class=archive",
            "small,mirrors=2,inline=16KiB,class=nvme-2",
        ] {
            assert_eq!(LayoutPolicy::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(LayoutPolicy::parse("small,class=none"), LayoutPolicy::parse("small"));
        for text in [
            "",
            "Wide",
            "wide,mirrors=0",
            "wide,mirrors=37",
            "wide,",
            "wide,x=1",
            "small,inline=65KiB",
            "small,inline=",
            "small,class=",
            "small,class=NVMe",
            "small,class=any",
        ] {
            assert!(LayoutPolicy::parse(text).is_none(), "{text}");
        }
    }
}
