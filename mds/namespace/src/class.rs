//! Classes of data servers: names that administrators give them, and that directories choose among (docs/adr/0041).

use std::fmt;

use crate::codec::{Reader, Writer};
use crate::data_file::LayoutPolicy;
use crate::error::FsError;

/// The name of a class: 1 to [`Class::MAX`] lower-case letters, digits and hyphens, the first of them no hyphen. Kept in place:
/// a policy is read by every OPEN that makes a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class {
    name: [u8; Self::MAX],
    length: u8,
}

impl Class {
    /// Bytes of the longest name.
    pub const MAX: usize = 32;
    /// Words that say that there is no class, or that it does not matter which.
    const RESERVED: [&'static str; 2] = [LayoutPolicy::NO_CLASS, "any"];

    /// The class of this name; `None` for what is no name of a class.
    pub fn parse(text: &str) -> Option<Self> {
        let is_good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if text.is_empty() || text.starts_with('-') || Self::RESERVED.contains(&text) {
            return None;
        }
        let mut name = [0; Self::MAX];
        name.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        let length = u8::try_from(text.len()).ok()?;
        text.bytes().all(is_good).then_some(Self { name, length })
    }

    pub fn as_str(&self) -> &str {
        let name = self.name.get(..usize::from(self.length)).unwrap_or_default();
        std::str::from_utf8(name).unwrap_or_default()
    }

    /// Bytes of its encoding.
    pub(crate) fn room(&self) -> usize {
        1 + usize::from(self.length)
    }

    pub(crate) fn encode(&self, w: &mut Writer) {
        w.u8(self.length).raw(self.as_str().as_bytes());
    }

    pub(crate) fn decode(r: &mut Reader) -> Result<Self, FsError> {
        let length = usize::from(r.u8()?);
        let name = r.take(length)?;
        std::str::from_utf8(&name).ok().and_then(Self::parse).ok_or_else(|| r.corrupt())
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Class({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_has_a_short_name() {
        let long = "x".repeat(Class::MAX);
        for name in ["archive", "nvme-2", "7", &long] {
            let class = Class::parse(name).unwrap();
            assert_eq!(class.to_string(), name);
            let mut w = Writer::with_capacity(class.room());
            class.encode(&mut w);
            let mut r = Reader::new("class", w.finish());
            assert_eq!(Class::decode(&mut r).unwrap(), class);
            r.finish().unwrap();
        }
        let longer = format!("{long}x");
        for name in ["", "-a", "NVMe", "a b", "a,b", "ä", "none", "any", &longer] {
            assert_eq!(Class::parse(name), None, "{name}");
        }
        let mut r = Reader::new("class", bytes::Bytes::from_static(b"\x03A b"));
        assert!(Class::decode(&mut r).is_err());
    }
}
