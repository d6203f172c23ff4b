//! A map that has an entry or two, nearly always, and rarely thousands: what clients hold of one file, and do with it.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

/// Entries that are looked through in a row.
const FEW: usize = 8;

/// An ordered map. Up to [`FEW`] entries lie in a list of just their size, since a node of a tree has room for eleven
/// and there are millions of files; beyond that all of them are in a tree, until the last one goes.
#[derive(Debug)]
pub(crate) struct Few<K, V> {
    /// Ascending by key. Empty when there is a tree.
    list: Vec<(K, V)>,
    /// Empty when there is a list.
    tree: BTreeMap<K, V>,
}

impl<K, V> Default for Few<K, V> {
    fn default() -> Self {
        Self { list: Vec::new(), tree: BTreeMap::new() }
    }
}

/// Where `key` is in a list, or belongs.
fn find<K: Ord, V>(list: &[(K, V)], key: &K) -> Result<usize, usize> {
    list.binary_search_by(|(held, _)| held.cmp(key))
}

impl<K: Ord, V> Few<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.list.len() + self.tree.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty() && self.tree.is_empty()
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        if !self.tree.is_empty() {
            return self.tree.get(key);
        }
        self.list.get(find(&self.list, key).ok()?).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        if !self.tree.is_empty() {
            return self.tree.get_mut(key);
        }
        let at = find(&self.list, key).ok()?;
        self.list.get_mut(at).map(|(_, value)| value)
    }

    /// What is there, or is put there now.
    pub(crate) fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        if self.list.len() == FEW && find(&self.list, &key).is_err() {
            self.tree = std::mem::take(&mut self.list).into_iter().collect();
        }
        if !self.tree.is_empty() {
            return self.tree.entry(key).or_insert_with(make);
        }
        let at = find(&self.list, &key).unwrap_or_else(|at| {
            if self.list.is_empty() {
                self.list.reserve_exact(1);
            }
            self.list.insert(at, (key, make()));
            at
        });
        &mut self.list[at].1
    }

    /// What was there before.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        if let Some(held) = self.get_mut(&key) {
            return Some(std::mem::replace(held, value));
        }
        self.get_or_insert_with(key, || value);
        None
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        if !self.tree.is_empty() {
            return self.tree.remove(key);
        }
        let at = find(&self.list, key).ok()?;
        let (_, removed) = self.list.remove(at);
        // Files stay open for days.
        if self.list.is_empty() {
            self.list = Vec::new();
        }
        Some(removed)
    }

    /// Ascending by key.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let list = self.list.iter().map(|(key, value)| (key, value));
        list.chain(&self.tree)
    }

    /// Ascending by key.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        let list = self.list.iter_mut().map(|(key, value)| (&*key, value));
        list.chain(&mut self.tree)
    }

    /// From the first key on that is not below `key`, ascending.
    pub(crate) fn starting_at(&self, key: K) -> impl Iterator<Item = (&K, &V)> {
        let at = self.list.partition_point(|(held, _)| *held < key);
        let list = self.list.iter().skip(at).map(|(key, value)| (key, value));
        list.chain(self.tree.range(key..))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.iter_mut().map(|(_, value)| value)
    }
}

impl<K: Ord, V> IntoIterator for Few<K, V> {
    type Item = (K, V);
    type IntoIter = std::iter::Chain<std::vec::IntoIter<(K, V)>, std::collections::btree_map::IntoIter<K, V>>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter().chain(self.tree)
    }
}

/// What is in it, however it lies.
impl<K: Ord + Hash, V: Hash> Hash for Few<K, V> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_usize(self.len());
        self.iter().for_each(|entry| entry.hash(state));
    }
}

#[cfg(test)]
mod tests {
    use std::hash::DefaultHasher;

    use proptest::prelude::*;

    use super::*;

    fn hash(of: &impl Hash) -> u64 {
        let mut hasher = DefaultHasher::new();
        of.hash(&mut hasher);
        hasher.finish()
    }

    /// Whatever comes and goes: as a tree would have it.
    fn compare(few: &mut Few<u8, u32>, tree: &mut BTreeMap<u8, u32>) {
        assert_eq!((few.len(), few.is_empty()), (tree.len(), tree.is_empty()));
        assert!(few.iter().eq(tree.iter()));
        assert!(few.iter_mut().eq(tree.iter_mut()));
        assert!(few.keys().eq(tree.keys()) && few.values().eq(tree.values()));
        for key in 0..=16 {
            assert_eq!(few.get(&key), tree.get(&key));
            assert_eq!(few.get_mut(&key), tree.get_mut(&key));
            assert!(few.starting_at(key).eq(tree.range(key..)), "from {key}");
        }
    }

    proptest! {
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0u8..16, prop::option::weighted(0.7, any::<u32>())), 0..100)) {
            let (mut few, mut tree) = (Few::default(), BTreeMap::new());
            for (key, value) in steps {
                match value {
                    Some(value) => assert_eq!(few.insert(key, value), tree.insert(key, value)),
                    None => assert_eq!(few.remove(&key), tree.remove(&key)),
                }
                compare(&mut few, &mut tree);
            }
            assert!(few.into_iter().eq(tree));
        }
    }

    #[test]
    fn it_grows_into_a_tree_and_is_small_again_when_empty() {
        let mut few = Few::default();
        for key in 0..=FEW {
            assert!(few.tree.is_empty(), "{key}");
            few.insert(key, ());
        }
        assert!(!few.tree.is_empty() && few.list.is_empty());
        let mut other = Few::default();
        for key in (0..=FEW).rev() {
            other.insert(key, ());
        }
        assert_eq!(hash(&few), hash(&other));
        few.remove(&FEW);
        other = Few::default();
        (0..FEW).for_each(|key| assert_eq!(other.insert(key, ()), None));
        assert!(!few.tree.is_empty() && other.tree.is_empty());
        assert_eq!(hash(&few), hash(&other), "the same entries, in a tree and in a list");
        (0..FEW).for_each(|key| assert_eq!(few.remove(&key), Some(())));
        assert!(few.is_empty() && few.tree.is_empty());
    }
}
