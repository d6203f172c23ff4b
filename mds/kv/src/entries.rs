//! What a transaction writes, by key and in the order of keys: a sorted list while there are few, as nearly always, since
//! a tree takes three times as long for a handful; a tree when there are many, where a list would take time by the square.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use crate::writes::half_open;

/// Most entries of a list.
const FEW: usize = 64;
/// Room for those of most transactions.
const ROOM: usize = 12;

#[derive(Clone, Debug)]
pub(crate) enum Entries<V> {
    Few(Vec<(Bytes, V)>),
    Many(BTreeMap<Bytes, V>),
}

impl<V> Default for Entries<V> {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl<V> Entries<V> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Few(list) => list.len(),
            Self::Many(tree) => tree.len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&V> {
        match self {
            Self::Few(list) => list.get(place(list, key).ok()?).map(|(_, value)| value),
            Self::Many(tree) => tree.get(key),
        }
    }

    /// The value of `key`, which is `fresh()` if there was none; whether there was.
    pub(crate) fn entry(&mut self, key: Bytes, fresh: impl FnOnce() -> V) -> (&mut V, bool) {
        self.spread();
        match self {
            Self::Few(list) => {
                let found = place(list, &key);
                let at = match found {
                    Ok(at) => at,
                    Err(at) => {
                        if list.capacity() == 0 {
                            list.reserve(ROOM);
                        }
                        list.insert(at, (key, fresh()));
                        at
                    }
                };
                (&mut list[at].1, found.is_ok())
            }
            Self::Many(tree) => {
                let there = tree.contains_key(&key);
                (tree.entry(key).or_insert_with(fresh), there)
            }
        }
    }

    pub(crate) fn remove(&mut self, key: &[u8]) {
        match self {
            Self::Few(list) => {
                if let Ok(at) = place(list, key) {
                    list.remove(at);
                }
            }
            Self::Many(tree) => drop(tree.remove(key)),
        }
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &Bytes> {
        self.iter().map(|(key, _)| key)
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&Bytes, &V)> {
        self.within((Bound::Unbounded, Bound::Unbounded))
    }

    /// Those of `[begin, end)`.
    pub(crate) fn range<'a>(
        &'a self,
        begin: &'a [u8],
        end: &'a [u8],
    ) -> impl DoubleEndedIterator<Item = (&'a Bytes, &'a V)> {
        self.within(half_open(begin, end))
    }

    fn within<'a>(
        &'a self,
        bounds: (Bound<&'a [u8]>, Bound<&'a [u8]>),
    ) -> impl DoubleEndedIterator<Item = (&'a Bytes, &'a V)> {
        // One of the two is empty.
        let (list, tree) = match self {
            Self::Few(list) => (slice(list, bounds), None),
            Self::Many(tree) => (&[][..], Some(tree.range::<[u8], _>(bounds))),
        };
        list.iter().map(|(key, value)| (key, value)).chain(tree.into_iter().flatten())
    }

    /// A list that is full becomes a tree.
    fn spread(&mut self) {
        if let Self::Few(list) = self
            && list.len() >= FEW
        {
            *self = Self::Many(std::mem::take(list).into_iter().collect());
        }
    }

    /// Every entry, in order.
    pub(crate) fn drain(self, mut each: impl FnMut(Bytes, V)) {
        match self {
            Self::Few(list) => list.into_iter().for_each(|(key, value)| each(key, value)),
            Self::Many(tree) => tree.into_iter().for_each(|(key, value)| each(key, value)),
        }
    }
}

/// Where a key is, or where it belongs.
fn place<V>(list: &[(Bytes, V)], key: &[u8]) -> Result<usize, usize> {
    list.binary_search_by(|(known, _)| (**known).cmp(key))
}

fn slice<'a, V>(list: &'a [(Bytes, V)], (begin, end): (Bound<&[u8]>, Bound<&[u8]>)) -> &'a [(Bytes, V)] {
    let at = |key| place(list, key).unwrap_or_else(|at| at);
    let from = if let Bound::Included(begin) = begin { at(begin) } else { 0 };
    let to = if let Bound::Excluded(end) = end { at(end) } else { list.len() };
    list.get(from..to).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_and_a_tree_are_the_same_to_whoever_asks() {
        let (mut entries, mut model) = (Entries::default(), BTreeMap::new());
        let (mut seed, mut was_few, mut was_many) = (7u32, false, false);
        let mut pick = |below: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) % below
        };
        for step in 0..4_000u32 {
            if step % 500 == 0 {
                (entries, model) = (Entries::default(), BTreeMap::new());
            }
            let key = Bytes::copy_from_slice(&(pick(120) as u16).to_be_bytes());
            if pick(4) == 0 {
                entries.remove(&key);
                model.remove(&key);
            } else {
                let there = model.contains_key(&key);
                let (value, found) = entries.entry(key.clone(), || 0);
                assert_eq!((*value, found), (model.get(&key).copied().unwrap_or(0), there));
                *value = step;
                model.insert(key.clone(), step);
            }
            match &entries {
                Entries::Few(list) => was_few |= list.len() > 1,
                Entries::Many(_) => was_many = true,
            }
            assert_eq!(entries.len(), model.len());
            assert_eq!(entries.is_empty(), model.is_empty());
            assert_eq!(entries.get(&key), model.get(&key));
            let (one, other) = ((pick(130) as u16).to_be_bytes(), (pick(130) as u16).to_be_bytes());
            let bounds = half_open(&one, &other);
            assert!(entries.range(&one, &other).eq(model.range::<[u8], _>(bounds)));
            assert!(entries.range(&one, &other).rev().eq(model.range::<[u8], _>(bounds).rev()));
            assert!(entries.iter().eq(model.iter()) && entries.keys().eq(model.keys()));
        }
        assert!(was_few && was_many);
        let mut drained = Vec::new();
        entries.drain(|key, value| drained.push((key, value)));
        assert!(drained.into_iter().eq(model));
    }
}
