//! Names: data files, holders, capability epochs, write verifiers.

use std::fmt;

/// One data file of a store: the data file id of the cluster and the slot (component, stripe and
/// mirror) that it fills. The generation is not part of the name: raising it kills older handles
/// and keeps the bytes, removing a data file kills every handle up to the generation removed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileKey {
    pub file: u64,
    pub slot: u16,
}

impl fmt::Debug for FileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for FileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:04x}", self.file, self.slot)
    }
}

impl FileKey {
    /// Spreads ids, which are handed out in order.
    pub(crate) fn mixed(self) -> u64 {
        let mut x = self.file ^ (u64::from(self.slot) << 48);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (file, slot) = name.split_once('-')?;
        if file.len() != 16 || slot.len() != 4 {
            return None;
        }
        Some(Self { file: u64::from_str_radix(file, 16).ok()?, slot: u16::from_str_radix(slot, 16).ok()? })
    }
}

/// A capability epoch. Epochs wrap: of two, the newer is the one less than half the circle ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Epoch(pub u16);

impl Epoch {
    /// Whether `self` was issued before `other`.
    pub fn is_before(self, other: Self) -> bool {
        other.0.wrapping_sub(self.0).cast_signed() > 0
    }

    /// The later of two.
    pub fn max(self, other: Self) -> Self {
        if self.is_before(other) { other } else { self }
    }
}

/// What a write is worth until it is committed: it changes whenever an unstable write may have
/// been lost (RFC 1813 §3.3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Verifier(pub [u8; 8]);

/// Sixteen random bytes that name a store or a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    pub fn is_nil(self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// How durable a write must be before it is acknowledged (RFC 1813 §3.3.7 `stable_how`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stability {
    /// In memory: lost by a power failure unless a commit follows.
    Unstable,
    /// The data and what is needed to find it.
    DataSync,
    /// Data and all metadata.
    FileSync,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        let key = FileKey { file: 0xdead_beef, slot: 0x12 };
        assert_eq!(FileKey::parse(&key.to_string()), Some(key));
        for bad in ["", "-", "x", "00000000deadbeef", "00000000deadbeef-00120", "zz-0001", "lost+found"] {
            assert_eq!(FileKey::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn epochs_wrap() {
        assert!(Epoch(1).is_before(Epoch(2)));
        assert!(!Epoch(2).is_before(Epoch(2)));
        assert!(Epoch(65_535).is_before(Epoch(3)));
        assert!(!Epoch(3).is_before(Epoch(65_535)));
        assert_eq!(Epoch(65_535).max(Epoch(0)), Epoch(0));
    }
}
