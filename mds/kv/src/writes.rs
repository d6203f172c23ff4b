//! What a transaction will write: cleared ranges, then one entry per key.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::{Bytes, BytesMut};

use crate::atomic::Operand;
use crate::entries::Entries;
use crate::key::hash;
use crate::{AtomicOp, KvError, Versionstamp};

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Atomic(AtomicOp, Operand),
    /// The value with ten bytes at the offset to be replaced by the versionstamp.
    Stamped(Bytes, usize),
}

/// One step, as nearly always, or several.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    pub(crate) first: Step,
    pub(crate) then: Vec<Step>,
}

impl Chain {
    pub(crate) fn steps(&self) -> impl Iterator<Item = &Step> {
        std::iter::once(&self.first).chain(&self.then)
    }
}

/// What will become of one key.
#[derive(Clone, Debug)]
pub(crate) enum Pending {
    /// Known before commit: the value, or absence.
    Value(Option<Bytes>),
    /// Known only at commit: applied in order to the value stored then.
    Chain(Chain),
}

impl Pending {
    fn step(first: Step) -> Self {
        Self::Chain(Chain { first, then: Vec::new() })
    }

    /// Whether the result depends on what is stored.
    pub(crate) fn needs_base(&self) -> bool {
        matches!(self, Self::Chain(Chain { first: Step::Atomic(..), .. }))
    }

    /// The value as the transaction itself sees it over the stored `base`.
    pub(crate) fn read(&self, base: Option<Bytes>) -> Result<Option<Bytes>, KvError> {
        match self {
            Self::Value(value) => Ok(value.clone()),
            Self::Chain(chain) => chain.steps().try_fold(base, |value, step| match step {
                Step::Atomic(op, operand) => Ok(Some(op.apply(value.as_deref(), operand))),
                Step::Stamped(..) => Err(KvError::Unreadable),
            }),
        }
    }

    /// The value to store over `base` in a transaction stamped `stamp`.
    pub(crate) fn resolve(self, base: Option<&[u8]>, stamp: Versionstamp) -> Option<Bytes> {
        let Chain { first, then } = match self {
            Self::Value(value) => return value,
            Self::Chain(chain) => chain,
        };
        let step = |value: Option<&[u8]>, step| match step {
            Step::Atomic(op, operand) => op.apply(value, &operand),
            Step::Stamped(template, offset) => stamped(template, offset, stamp),
        };
        let value = step(base, first);
        Some(then.into_iter().fold(value, |value, next| step(Some(&value), next)))
    }
}

fn stamped(template: Bytes, offset: usize, stamp: Versionstamp) -> Bytes {
    // In place, unless somebody else has the template.
    let mut value = template.try_into_mut().unwrap_or_else(|template| BytesMut::from(&template[..]));
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
    pub(crate) entries: Entries<Pending>,
}

impl WriteSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.cleared.is_empty() && self.entries.is_empty()
    }

    /// Of the keys of all entries, in order.
    pub(crate) fn hashes(&self) -> impl Iterator<Item = u64> {
        self.entries.keys().map(|key| hash(key))
    }

    pub(crate) fn put(&mut self, key: Bytes, value: Option<Bytes>) {
        self.replace(key, Pending::Value(value));
    }

    pub(crate) fn put_stamped(&mut self, key: Bytes, template: Bytes, offset: usize) {
        self.replace(key, Pending::step(Step::Stamped(template, offset)));
    }

    fn replace(&mut self, key: Bytes, pending: Pending) {
        let mut pending = Some(pending);
        let (there, _) = self.entries.entry(key, || pending.take().unwrap_or(Pending::Value(None)));
        // Not used up if there was one.
        if let Some(pending) = pending {
            *there = pending;
        }
    }

    pub(crate) fn atomic(&mut self, op: AtomicOp, key: Bytes, operand: &[u8]) {
        let cleared = self.is_cleared(&key);
        let (there, found) = self.entries.entry(key, || match cleared {
            true => Pending::Value(Some(op.apply(None, operand))),
            false => Pending::step(Step::Atomic(op, operand.into())),
        });
        if found {
            match there {
                Pending::Value(value) => *value = Some(op.apply(value.as_deref(), operand)),
                Pending::Chain(chain) => chain.then.push(Step::Atomic(op, operand.into())),
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
        !self.cleared.is_empty()
            && self.cleared.range::<[u8], _>(up_to(key)).next_back().is_some_and(|(_, end)| key < &**end)
    }

    /// Whether anything in `[begin, end)` is written.
    pub(crate) fn touches(&self, begin: &[u8], end: &[u8]) -> bool {
        self.is_cleared(begin)
            || self.cleared.range::<[u8], _>(half_open(begin, end)).next().is_some()
            || self.entries.range(begin, end).next().is_some()
    }

    pub(crate) fn entries_in<'a>(
        &'a self,
        begin: &'a [u8],
        end: &'a [u8],
    ) -> impl DoubleEndedIterator<Item = (&'a Bytes, &'a Pending)> {
        self.entries.range(begin, end)
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
