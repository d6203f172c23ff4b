//! Names of directory entries, and where a name's hash puts it.

use crate::error::FsError;
use crate::keys::Cookie;

/// Greatest length of a name, in bytes.
pub const MAX_NAME: usize = 255;

/// A name that may stand in a directory: 1 to 255 bytes, no slash, no NUL, neither `.` nor `..`.
/// Whether it is UTF-8 is judged above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    pub fn new(bytes: &'a [u8]) -> Result<Self, FsError> {
        if bytes.len() > MAX_NAME {
            return Err(FsError::NameTooLong);
        }
        let special = bytes.is_empty() || bytes == b"." || bytes == b"..";
        if special || bytes.contains(&b'/') || bytes.contains(&0) {
            return Err(FsError::BadName);
        }
        Ok(Self(bytes))
    }

    pub fn bytes(&self) -> &'a [u8] {
        self.0
    }
}

/// The keyed hash of names. The key is the file system's own, so that nobody outside can choose
/// names that collide.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct NameHash {
    pub(crate) key: [u8; 32],
    /// Bits kept, 56 except in tests that want collisions.
    pub(crate) bits: u8,
}

impl NameHash {
    /// Index 0 of the place of `name`.
    pub(crate) fn head(&self, name: &Name<'_>) -> Cookie {
        let digest = blake3::keyed_hash(&self.key, name.bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&digest.as_bytes()[..8]);
        let hash = u64::from_be_bytes(first) >> (64 - u32::from(self.bits.clamp(1, 56)));
        // Hash 0 would make the reserved cookies 0 to 2.
        Cookie::new(hash.max(1), 0)
    }
}

impl std::fmt::Debug for NameHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NameHash").field("bits", &self.bits).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cannot_be() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0"] {
            assert!(matches!(Name::new(bad), Err(FsError::BadName)), "{bad:?}");
        }
        assert!(matches!(Name::new(&[b'x'; 256]), Err(FsError::NameTooLong)));
        for good in [&b"a"[..], b"...", b".a", b"\xff\xfe", &[b'x'; 255]] {
            assert!(Name::new(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn places_depend_on_the_key_and_are_never_reserved() {
        let a = NameHash { key: [1; 32], bits: 56 };
        let b = NameHash { key: [2; 32], bits: 56 };
        let n = Name::new(b"name").unwrap();
        assert_ne!(a.head(&n), b.head(&n));
        let weak = NameHash { key: [1; 32], bits: 1 };
        for i in 0..64_u32 {
            let text = i.to_string();
            assert_eq!(weak.head(&Name::new(text.as_bytes()).unwrap()), Cookie::new(1, 0));
        }
    }
}
