//! Files that something asked for was not done with, and why, for people: bounded, whatever happens.

use std::collections::BTreeMap;

use sluice_namespace::InodeKey;

/// Reasons, and files named for each.
const MOST: usize = 64;
const EXAMPLES: usize = 4;
const OTHER: &str = "other reasons";

/// Files, for one reason.
#[derive(Clone, Debug, Default)]
pub(crate) struct Missed {
    pub(crate) files: u64,
    /// The first of them.
    pub(crate) examples: Vec<InodeKey>,
}

/// Files by reason.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reasons(BTreeMap<String, Missed>);

impl Reasons {
    pub(crate) fn add(&mut self, key: InodeKey, why: &str) {
        let full = self.0.len() >= MOST - 1 && !self.0.contains_key(why);
        let missed = self.0.entry(if full { OTHER } else { why }.to_owned()).or_default();
        missed.files += 1;
        if missed.examples.len() < EXAMPLES {
            missed.examples.push(key);
        }
    }

    /// For all reasons together.
    pub(crate) fn files(&self) -> u64 {
        self.0.values().map(|missed| missed.files).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &Missed)> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_bounded_and_no_file_is_left_out() {
        let mut reasons = Reasons::default();
        for n in 0..100 {
            (0..5).for_each(|_| reasons.add(InodeKey::ROOT, &format!("{n}")));
        }
        assert_eq!((reasons.iter().count(), reasons.files()), (MOST, 500));
        let (_, other) = reasons.iter().find(|(why, _)| *why == OTHER).unwrap();
        assert_eq!((other.files, other.examples.len()), (185, EXAMPLES));
    }
}
