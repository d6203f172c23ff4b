//! The NFSv4 filehandle: which inode through which export, and the key to find it with one read.
//!
//! Through the export `/` (id 0), 29 bytes: version 1, export id u32, home u64, cookie u64, fileid u64, big-endian.
//! Through any other, 37 bytes: version 2, the same fields, and 8 bytes of seal. Who may use one export must not make
//! handles of another, or of what lies outside; through `/` everything is within reach anyway (docs/adr/0013).

use bytes::Bytes;

use crate::codec::Reader;
use crate::error::FsError;
use crate::keys::{Cookie, FileId, InodeKey};

/// An inode as seen through an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileHandle {
    pub export: u32,
    pub inode: InodeKey,
}

impl FileHandle {
    /// The export of the root of the file system.
    pub const ROOT_EXPORT: u32 = 0;
    /// No export: directories that only lead to exports (RFC 8881 §7.3).
    pub const PSEUDO_EXPORT: u32 = u32::MAX;
    /// Bytes of [`Self::encode`].
    pub const SIZE: usize = 1 + 4 + InodeKey::SIZE;
    const VERSION: u8 = 1;

    /// A directory that only leads to exports, by its path. The same path is the same directory for ever.
    pub fn pseudo(path: &[u8]) -> InodeKey {
        let mut number = [0; 8];
        number.copy_from_slice(&blake3::hash(path).as_bytes()[..8]);
        // Positive as a signed number, and above what READDIR reserves: half of it is the cookie.
        let fileid = FileId((u64::from_be_bytes(number) >> 1).max(1 << 8));
        InodeKey { home: FileId(0), cookie: Cookie(0), fileid }
    }

    /// Without a seal: for our own records, and for clients of the export `/`.
    pub fn encode(&self) -> Bytes {
        Bytes::copy_from_slice(&self.to_array())
    }

    /// As [`Self::encode`].
    pub fn to_array(&self) -> [u8; Self::SIZE] {
        let InodeKey { home, cookie, fileid } = self.inode;
        let mut out = [Self::VERSION; Self::SIZE];
        out[1..5].copy_from_slice(&self.export.to_be_bytes());
        for (to, number) in out[5..].chunks_exact_mut(8).zip([home.0, cookie.0, fileid.0]) {
            to.copy_from_slice(&number.to_be_bytes());
        }
        out
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

const SEAL: usize = 8;
const SEALED_VERSION: u8 = 2;

/// Seals the filehandles that clients are given.
#[derive(Clone, PartialEq, Eq)]
pub struct HandleSeal([u8; 32]);

impl HandleSeal {
    /// `secret` is the file system's own.
    pub(crate) fn new(secret: &[u8; 32]) -> Self {
        Self(blake3::derive_key("sluice 2026 filehandle seal", secret))
    }

    /// As clients get it.
    pub fn to_wire(&self, fh: &FileHandle) -> Bytes {
        if fh.export == FileHandle::ROOT_EXPORT {
            return fh.encode();
        }
        let mut sealed = Vec::with_capacity(FileHandle::SIZE + SEAL);
        sealed.push(SEALED_VERSION);
        sealed.extend_from_slice(&fh.to_array()[1..]);
        let seal = self.seal(&sealed);
        sealed.extend_from_slice(&seal.to_be_bytes());
        Bytes::from(sealed)
    }

    /// Anything but what [`Self::to_wire`] makes is [`FsError::BadHandle`].
    pub fn from_wire(&self, bytes: &Bytes) -> Result<FileHandle, FsError> {
        if bytes.first() == Some(&SEALED_VERSION) {
            return self.open(bytes);
        }
        match FileHandle::decode(bytes)? {
            fh if fh.export == FileHandle::ROOT_EXPORT => Ok(fh),
            _ => Err(FsError::BadHandle),
        }
    }

    fn open(&self, bytes: &Bytes) -> Result<FileHandle, FsError> {
        let (body, seal) = bytes.split_at_checked(FileHandle::SIZE).ok_or(FsError::BadHandle)?;
        let seal = seal.try_into().map(u64::from_be_bytes).map_err(|_| FsError::BadHandle)?;
        // One comparison: how long it takes does not tell how much of a guess was right.
        if seal != self.seal(body) {
            return Err(FsError::BadHandle);
        }
        let mut r = Reader::new("filehandle", bytes.slice(1..FileHandle::SIZE));
        let read = |r: &mut Reader| Ok(FileHandle { export: r.u32()?, inode: InodeKey::decode(r)? });
        match read(&mut r).map_err(|_: FsError| FsError::BadHandle)? {
            // There is one handle for an inode through an export.
            fh if fh.export == FileHandle::ROOT_EXPORT => Err(FsError::BadHandle),
            fh => Ok(fh),
        }
    }

    fn seal(&self, body: &[u8]) -> u64 {
        let mut seal = [0; SEAL];
        seal.copy_from_slice(&blake3::keyed_hash(&self.0, body).as_bytes()[..SEAL]);
        u64::from_be_bytes(seal)
    }
}

impl std::fmt::Debug for HandleSeal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HandleSeal")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn handle(export: u32, (home, cookie, fileid): (u64, u64, u64)) -> FileHandle {
        let inode = InodeKey { home: FileId(home), cookie: Cookie(cookie), fileid: FileId(fileid) };
        FileHandle { export, inode }
    }

    proptest! {
        #[test]
        fn decode_accepts_exactly_what_encode_makes(export: u32, key: (u64, u64, u64), cut in 0usize..29) {
            let fh = handle(export, key);
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

        #[test]
        fn a_sealed_handle_is_good_as_it_is_and_no_other(export in 1u32.., key: (u64, u64, u64), at in 0usize..37, bit in 0u32..8) {
            let seal = HandleSeal::new(&[7; 32]);
            let fh = handle(export, key);
            let bytes = seal.to_wire(&fh);
            prop_assert_eq!(seal.from_wire(&bytes).unwrap(), fh);
            let mut other = bytes.to_vec();
            other[at] ^= 1 << bit;
            prop_assert!(seal.from_wire(&Bytes::from(other)).is_err());
            prop_assert!(seal.from_wire(&bytes.slice(..at)).is_err());
            prop_assert!(HandleSeal::new(&[8; 32]).from_wire(&bytes).is_err());
            // Unsealed, as one who knows the fields would make it.
            prop_assert!(seal.from_wire(&fh.encode()).is_err());
        }
    }

    #[test]
    fn through_the_root_export_handles_are_what_they_always_were() {
        let seal = HandleSeal::new(&[7; 32]);
        let fh = handle(0, (2, 3, 4));
        assert_eq!(seal.to_wire(&fh), fh.encode());
        assert_eq!(seal.from_wire(&fh.encode()).unwrap(), fh);
        // A seal does not make it another handle.
        let mut sealed = fh.encode().to_vec();
        sealed[0] = SEALED_VERSION;
        let end = seal.seal(&sealed);
        sealed.extend_from_slice(&end.to_be_bytes());
        assert!(seal.from_wire(&sealed.into()).is_err());
    }
}
