//! What a transaction will write: cleared ranges, then one entry per key.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::{Bytes, BytesMut};

use crate::{AtomicOp, KvError, Versionstamp};

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Atomic(AtomicOp, Bytes),
    /// The value with ten bytes at the offset to be replaced by the versionstamp.
    Stamped(Bytes, usize),
}

/// What will become of one key.
#[derive(Clone, Debug)]
pub(crate) enum Pending {
    /// Known before commit: the value, or absence.
    Value(Option<Bytes>),
    /// Known only at commit: applied in order to the value stored then.
    Chain(Vec<Step>),
}

impl Pending {
    /// Whether the result depends on what is stored.
    pub(crate) fn needs_base(&self) -> bool {
        matches!(self, Self::Chain(steps) if matches!(steps.first(), Some(Step::Atomic(..))))
    }

    /// The value as the transaction itself sees it over the stored `base`.
    pub(crate) fn read(&self, base: Option<Bytes>) -> Result<Option<Bytes>, KvError> {
        match self {
            Self::Value(v) => Ok(v.clone()),
            Self::Chain(steps) => fold(steps, base, None),
        }
    }

    /// The value to store over `base` in a transaction stamped `stamp`.
    pub(crate) fn resolve(self, base: Option<Bytes>, stamp: Versionstamp) -> Result<Option<Bytes>, KvError> {
        match self {
            Self::Value(v) => Ok(v),
            Self::Chain(steps) => fold(&steps, base, Some(stamp)),
        }
    }
}

fn fold(steps: &[Step], base: Option<Bytes>, stamp: Option<Versionstamp>) -> Result<Option<Bytes>, KvError> {
    let mut value = base;
    for step in steps {
        value = Some(match step {
            Step::Atomic(op, operand) => op.apply(value.as_ref(), operand),
            Step::Stamped(template, offset) => stamped(template, *offset, stamp.ok_or(KvError::Unreadable)?),
        });
    }
    Ok(value)
}

fn stamped(template: &Bytes, offset: usize, stamp: Versionstamp) -> Bytes {
    let mut value = BytesMut::from(&template[..]);
    if let Some(hole) = value.get_mut(offset..offset + stamp.0.len()) {
        hole.copy_from_slice(&stamp.0);
    }
    value.freeze()
}

#[derive(Clone, Debug, Default)]
pub(crate) struct WriteSet {
    /// Disjoint, not adjacent: begin to end.
    pub(crate) cleared: BTreeMap<Bytes, Bytes>,
    /// Applied after the cleared ranges.
    pub(crate) entries: BTreeMap<Bytes, Pending>,
}

impl WriteSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.cleared.is_empty() && self.entries.is_empty()
    }

    pub(crate) fn put(&mut self, key: Bytes, value: Option<Bytes>) {
        self.entries.insert(key, Pending::Value(value));
    }

    pub(crate) fn put_stamped(&mut self, key: Bytes, template: Bytes, offset: usize) {
        self.entries.insert(key, Pending::Chain(vec![Step::Stamped(template, offset)]));
    }

    pub(crate) fn atomic(&mut self, op: AtomicOp, key: Bytes, operand: Bytes) {
        let cleared = self.is_cleared(&key);
        match self.entries.get_mut(&key) {
            Some(Pending::Value(v)) => *v = Some(op.apply(v.as_ref(), &operand)),
            Some(Pending::Chain(steps)) => steps.push(Step::Atomic(op, operand)),
            None if cleared => {
                let value = op.apply(None, &operand);
                self.put(key, Some(value));
            }
            None => {
                self.entries.insert(key, Pending::Chain(vec![Step::Atomic(op, operand)]));
            }
        }
    }

    pub(crate) fn clear_range(&mut self, begin: Bytes, end: Bytes) {
        if begin >= end {
            return;
        }
        let overwritten: Vec<Bytes> = self.entries_in(&begin, &end).map(|(k, _)| k.clone()).collect();
        for key in overwritten {
            self.entries.remove(&key);
        }
        let (mut from, mut to) = (begin, end);
        if let Some((b, e)) = self.cleared.range::<[u8], _>(up_to(&from)).next_back()
            && *e >= from
        {
            to = to.max(e.clone());
            from = b.clone();
        }
        let touching: Vec<Bytes> = self
            .cleared
            .range::<[u8], _>((Bound::Included(&*from), Bound::Included(&*to)))
            .map(|(b, _)| b.clone())
            .collect();
        for b in touching {
            if let Some(e) = self.cleared.remove(&b) {
                to = to.max(e);
            }
        }
        self.cleared.insert(from, to);
    }

    pub(crate) fn is_cleared(&self, key: &[u8]) -> bool {
        self.cleared.range::<[u8], _>(up_to(key)).next_back().is_some_and(|(_, end)| key < &**end)
    }

    /// Whether anything in `[begin, end)` is written.
    pub(crate) fn touches(&self, begin: &[u8], end: &[u8]) -> bool {
        self.is_cleared(begin)
            || self.cleared.range::<[u8], _>(half_open(begin, end)).next().is_some()
            || self.entries.range::<[u8], _>(half_open(begin, end)).next().is_some()
    }

    pub(crate) fn entries_in<'a>(
        &'a self,
        begin: &'a [u8],
        end: &'a [u8],
    ) -> impl DoubleEndedIterator<Item = (&'a Bytes, &'a Pending)> {
        self.entries.range::<[u8], _>(half_open(begin, end))
    }
}

/// Bounds of `[begin, end)` that a map accepts even when the range is empty or inverted.
pub(crate) fn half_open<'a>(begin: &'a [u8], end: &'a [u8]) -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
    // An inverted range would panic; `[begin, begin)` is empty.
    (Bound::Included(begin), Bound::Excluded(end.max(begin)))
}

/// Bounds of `(.., key]`.
pub(crate) fn up_to(key: &[u8]) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (Bound::Unbounded, Bound::Included(key))
}
