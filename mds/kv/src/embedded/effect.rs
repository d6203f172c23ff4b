//! What a group of transactions writes: the last word on each key, in the order in which keys were first written.

use bytes::Bytes;
use hashbrown::HashTable;

use crate::key::hash;

/// Keys of one kind begin alike, so that comparing them takes longer than hashing one: each row of a group is looked for
/// once or twice.
#[derive(Debug, Default)]
pub(crate) struct Effect {
    rows: Vec<Row>,
    places: HashTable<usize>,
}

#[derive(Debug)]
struct Row {
    hash: u64,
    key: Bytes,
    value: Option<Bytes>,
}

impl Effect {
    /// With room for so many rows.
    pub(crate) fn with_room(rows: usize) -> Self {
        Self { rows: Vec::with_capacity(rows), places: HashTable::with_capacity(rows) }
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// `Some(None)`: the row is cleared. `hash` is the key's.
    pub(crate) fn get(&self, hash: u64, key: &[u8]) -> Option<&Option<Bytes>> {
        let place = self.places.find(hash, |place| self.is_at(*place, hash, key))?;
        self.rows.get(*place).map(|row| &row.value)
    }

    pub(crate) fn put(&mut self, hash: u64, key: Bytes, value: Option<Bytes>) {
        let place = self.places.find(hash, |place| self.is_at(*place, hash, &key)).copied();
        if let Some(row) = place.and_then(|place| self.rows.get_mut(place)) {
            row.value = value;
            return;
        }
        let Self { rows, places } = self;
        places.insert_unique(hash, rows.len(), |place| rows.get(*place).map_or(0, |row| row.hash));
        rows.push(Row { hash, key, value });
    }

    fn is_at(&self, place: usize, hash: u64, key: &[u8]) -> bool {
        self.rows.get(place).is_some_and(|row| row.hash == hash && row.key == key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Bytes, &Option<Bytes>)> {
        self.rows.iter().map(|row| (&row.key, &row.value))
    }

    /// Each row with its key's hash.
    pub(crate) fn hashed(&self) -> impl Iterator<Item = (u64, &Bytes, &Option<Bytes>)> {
        self.rows.iter().map(|row| (row.hash, &row.key, &row.value))
    }

    /// The keys in `[begin, end)`. Looks at all of them: ranges are seldom cleared.
    pub(crate) fn keys_in(&self, begin: &[u8], end: &[u8]) -> impl Iterator<Item = &Bytes> {
        self.rows.iter().map(|row| &row.key).filter(move |key| *begin <= ***key && ***key < *end)
    }
}

impl FromIterator<(Bytes, Option<Bytes>)> for Effect {
    fn from_iter<T: IntoIterator<Item = (Bytes, Option<Bytes>)>>(rows: T) -> Self {
        let mut effect = Self::default();
        rows.into_iter().for_each(|(key, value)| effect.put(hash(&key), key, value));
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
            effect.put(hash(&key), key.clone(), value.clone());
            model.insert(key, value);
        }
        assert_eq!(effect.len(), model.len());
        assert!(effect.iter().all(|(key, value)| model.get(key) == Some(value)));
        assert!(model.iter().all(|(key, value)| effect.get(hash(key), key) == Some(value)));
        assert_eq!(effect.get(hash(b"other"), b"other"), None);
        let (begin, end) = (100u32.to_be_bytes(), 300u32.to_be_bytes());
        let mut within: Vec<_> = effect.keys_in(&begin, &end).cloned().collect();
        within.sort();
        let wanted: Vec<_> =
            model.keys().filter(|key| (&begin[..]..&end[..]).contains(&&key[..])).cloned().collect();
        assert!(!wanted.is_empty() && within == wanted);
    }
}
