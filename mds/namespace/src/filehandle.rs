//! The NFSv4 filehandle: which inode of which export, and the key to find it with one read.
//!
//! 29 bytes: version 1, export id u32, home u64, cookie u64, fileid u64, big-endian.

use bytes::Bytes;

use crate::codec::{Reader, Writer};
use crate::error::FsError;
use crate::keys::InodeKey;

/// An inode as seen through an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileHandle {
    pub export: u32,
    pub inode: InodeKey,
}

impl FileHandle {
    /// Bytes on the wire.
    pub const SIZE: usize = 1 + 4 + InodeKey::SIZE;
    const VERSION: u8 = 1;

    pub fn encode(&self) -> Bytes {
        let mut w = Writer::with_capacity(Self::SIZE);
        w.u8(Self::VERSION).u32(self.export);
        self.inode.encode(&mut w);
        w.finish()
    }

    /// Anything but what [`Self::encode`] makes is [`FsError::BadHandle`].
    pub fn decode(bytes: &Bytes) -> Result<Self, FsError> {
        let read = || {
            let mut r = Reader::new("filehandle", bytes.clone());
            if r.u8()? != Self::VERSION {
                return Err(r.corrupt());
            }
            let fh = Self { export: r.u32()?, inode: InodeKey::decode(&mut r)? };
            r.finish()?;
            Ok(fh)
        };
        read().map_err(|_: FsError| FsError::BadHandle)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::keys::{Cookie, FileId};

    proptest! {
        #[test]
        fn decode_accepts_exactly_what_encode_makes(export: u32, home: u64, cookie: u64, fileid: u64, cut in 0usize..29) {
            let inode = InodeKey { home: FileId(home), cookie: Cookie(cookie), fileid: FileId(fileid) };
            let fh = FileHandle { export, inode };
            let bytes = fh.encode();
            prop_assert_eq!(bytes.len(), FileHandle::SIZE);
            prop_assert_eq!(FileHandle::decode(&bytes).unwrap(), fh);
            prop_assert!(FileHandle::decode(&bytes.slice(..cut)).is_err());
            let mut longer = bytes.to_vec();
            longer.push(0);
            prop_assert!(FileHandle::decode(&Bytes::from(longer)).is_err());
            let mut other = bytes.to_vec();
            other[0] = 2;
            prop_assert!(FileHandle::decode(&Bytes::from(other)).is_err());
        }
    }
}
