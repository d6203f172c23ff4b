//! What a group of transactions writes: the last word on each key, in the order in which keys were first written.

use std::hash::BuildHasher;

use bytes::Bytes;
use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// Keys of one kind begin alike, so that comparing them takes longer than hashing one: each row of a group is looked for
/// once or twice.
#[derive(Debug, Default)]
pub(crate) struct Effect {
    rows: Vec<(Bytes, Option<Bytes>)>,
    places: HashTable<usize>,
    hash: RandomState,
}

impl Effect {
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// `Some(None)`: the row is cleared.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&Option<Bytes>> {
        let place = self.places.find(self.hash.hash_one(key), |place| self.key(*place) == Some(key))?;
        self.rows.get(*place).map(|(_, value)| value)
    }

    pub(crate) fn put(&mut self, key: Bytes, value: Option<Bytes>) {
        let Self { rows, places, hash } = self;
        let hashed = hash.hash_one(&*key);
        let known = places.find(hashed, |place| rows.get(*place).is_some_and(|(known, _)| *known == key));
        if let Some(row) = known.and_then(|place| rows.get_mut(*place)) {
            row.1 = value;
            return;
        }
        let rehash = |place: &usize| rows.get(*place).map_or(0, |(key, _)| hash.hash_one(&**key));
        places.insert_unique(hashed, rows.len(), rehash);
        rows.push((key, value));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Bytes, &Option<Bytes>)> {
        self.rows.iter().map(|(key, value)| (key, value))
    }

    /// The keys in `[begin, end)`. Looks at all of them: ranges are seldom cleared.
    pub(crate) fn keys_in(&self, begin: &[u8], end: &[u8]) -> impl Iterator<Item = &Bytes> {
        self.rows.iter().map(|(key, _)| key).filter(move |key| *begin <= ***key && ***key < *end)
    }

    fn key(&self, place: usize) -> Option<&[u8]> {
        self.rows.get(place).map(|(key, _)| &**key)
    }
}

impl FromIterator<(Bytes, Option<Bytes>)> for Effect {
    fn from_iter<T: IntoIterator<Item = (Bytes, Option<Bytes>)>>(rows: T) -> Self {
        let mut effect = Self::default();
        rows.into_iter().for_each(|(key, value)| effect.put(key, value));
        effect
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_last_word_counts() {
        let (mut effect, mut model) = (Effect::default(), BTreeMap::new());
        for n in 0..5_000u32 {
            let key = Bytes::copy_from_slice(&(n.wrapping_mul(0x9e37_79b9) % 700).to_be_bytes());
            let value = (n % 3 != 0).then(|| Bytes::copy_from_slice(&n.to_be_bytes()));
            effect.put(key.clone(), value.clone());
            model.insert(key, value);
        }
        assert_eq!(effect.len(), model.len());
        assert!(effect.iter().all(|(key, value)| model.get(key) == Some(value)));
        assert!(model.iter().all(|(key, value)| effect.get(key) == Some(value)));
        assert_eq!(effect.get(b"other"), None);
        let (begin, end) = (100u32.to_be_bytes(), 300u32.to_be_bytes());
        let mut within: Vec<_> = effect.keys_in(&begin, &end).cloned().collect();
        within.sort();
        let wanted: Vec<_> =
            model.keys().filter(|key| (&begin[..]..&end[..]).contains(&&key[..])).cloned().collect();
        assert!(!wanted.is_empty() && within == wanted);
    }
}
