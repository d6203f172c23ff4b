//! Directory entries: places, collisions, insertion and removal.
//!
//! A name's entry is at `(directory, hash, index)`, at the lowest index free when it was inserted,
//! and stays there: its cookie never changes. The entry at index 0 says whether others follow it,
//! so that finding a name, or that there is none, is one point read unless hashes collide. When the
//! entry at index 0 goes and others stay, a placeholder keeps that knowledge.

use bytes::Bytes;
use sluice_kv::Transaction;

use crate::codec::{Reader, Writer};
use crate::error::FsError;
use crate::inode::Kind;
use crate::keys::{self, Cookie, FileId, InodeKey};
use crate::name::{Name, NameHash};

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dirent {
    pub cookie: Cookie,
    pub name: Bytes,
    pub kind: Kind,
    pub inode: InodeKey,
}

/// The stored value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Entries with the same hash and a higher index may exist (index 0 only).
    chained: bool,
    /// `None`: a placeholder (index 0 only, and only when chained).
    pub(crate) entry: Option<Dirent>,
}

const SCHEMA: u8 = 1;
const CHAINED: u8 = 1;
const PLACEHOLDER: u8 = 2;
/// The inode is at home here, at this very place: its key need not be written out.
const AT_HOME: u8 = 4;

impl Stored {
    pub(crate) const fn is_chained(&self) -> bool {
        self.chained
    }

    fn encode(&self, directory: FileId) -> Bytes {
        let chained = if self.chained { CHAINED } else { 0 };
        let Some(e) = &self.entry else {
            return Writer::with_capacity(2).u8(SCHEMA).u8(chained | PLACEHOLDER).finish();
        };
        let at_home = e.inode.home == directory && e.inode.cookie == e.cookie;
        let inode = if at_home { 8 } else { InodeKey::SIZE };
        let mut w = Writer::with_capacity(3 + inode + e.name.len());
        if at_home {
            w.u8(SCHEMA).u8(chained | AT_HOME).u8(e.kind.code()).u64(e.inode.fileid.0);
        } else {
            w.u8(SCHEMA).u8(chained).u8(e.kind.code());
            e.inode.encode(&mut w);
        }
        w.raw(&e.name).finish()
    }

    pub(crate) fn decode(directory: FileId, cookie: Cookie, value: Bytes) -> Result<Self, FsError> {
        let mut r = Reader::new("directory entry", value);
        r.schema(SCHEMA)?;
        let flags = r.u8()?;
        let chained = flags & CHAINED != 0;
        if flags & !(CHAINED | PLACEHOLDER | AT_HOME) != 0 || (cookie.index() != 0 && flags & !AT_HOME != 0) {
            return Err(r.corrupt());
        }
        if flags & PLACEHOLDER != 0 {
            r.finish()?;
            return Ok(Self { chained, entry: None });
        }
        let kind = Kind::decode(&mut r)?;
        let inode = if flags & AT_HOME != 0 {
            InodeKey { home: directory, cookie, fileid: FileId(r.u64()?) }
        } else {
            InodeKey::decode(&mut r)?
        };
        let name = r.rest();
        if Name::new(&name).is_err() {
            return Err(FsError::corrupt("name of a directory entry"));
        }
        Ok(Self { chained, entry: Some(Dirent { cookie, name, kind, inode }) })
    }
}

/// Where a name is, or would be.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    directory: FileId,
    head: Cookie,
    /// What is stored at index 0.
    stored_head: Option<Stored>,
    /// The entry of the name itself.
    pub(crate) entry: Option<Dirent>,
    /// Lowest free index; `None` when all are taken.
    free: Option<u8>,
    /// Other entries at indexes above 0.
    others: usize,
}

/// Finds `name` under read conflict.
pub(crate) async fn find(
    txn: &Transaction,
    hash: &NameHash,
    directory: FileId,
    name: &Name<'_>,
) -> Result<Place, FsError> {
    let head = hash.head(name);
    let mut place = Place { directory, head, stored_head: None, entry: None, free: Some(0), others: 0 };
    let Some(value) = txn.get(&keys::dirent(directory, head)).await? else { return Ok(place) };
    let stored = Stored::decode(directory, head, value)?;
    let chained = stored.chained;
    if let Some(entry) = &stored.entry {
        place.free = Some(1);
        if entry.name == name.bytes() {
            place.entry = Some(entry.clone());
        }
    }
    place.stored_head = Some(stored);
    if chained {
        // Hardly ever: hashes collide.
        Box::pin(follow(txn, &mut place, name)).await?;
    }
    Ok(place)
}

/// Reads the entries above index 0.
async fn follow(txn: &Transaction, place: &mut Place, name: &Name<'_>) -> Result<(), FsError> {
    let rest = keys::dirents(place.directory, &(Cookie(place.head.0 + 1)..=place.head.tail()));
    let mut expected = place.free.unwrap_or(0).max(1);
    for (key, value) in txn.range(&rest, usize::from(Cookie::SLOTS), false).await? {
        let (_, cookie) = keys::dirent_of(&key)?;
        let stored = Stored::decode(place.directory, cookie, value)?;
        let entry = stored.entry.ok_or(FsError::corrupt("placeholder above index 0"))?;
        if cookie.index() == expected {
            expected += 1;
        }
        if entry.name == name.bytes() {
            place.entry = Some(entry);
        } else {
            place.others += 1;
        }
    }
    if place.free != Some(0) {
        place.free = (expected < Cookie::SLOTS).then_some(expected);
    }
    Ok(())
}

impl Place {
    /// Whether changes of the one name move the other, in one directory.
    pub(crate) fn shares_hash(&self, other: &Self) -> bool {
        self.head == other.head
    }

    /// Where a new entry goes; [`FsError::NoSpace`] if too many names collide.
    pub(crate) fn vacancy(&self) -> Result<Cookie, FsError> {
        let index = self.free.ok_or(FsError::NoSpace)?;
        Ok(Cookie(self.head.0 | u64::from(index)))
    }

    fn put(&self, txn: &mut Transaction, cookie: Cookie, stored: &Stored) {
        txn.set(keys::dirent(self.directory, cookie), stored.encode(self.directory));
    }

    /// Puts an entry at the vacancy.
    pub(crate) fn insert(
        self,
        txn: &mut Transaction,
        name: &Name<'_>,
        kind: Kind,
        inode: InodeKey,
    ) -> Result<(), FsError> {
        let cookie = self.vacancy()?;
        let entry = Dirent { cookie, name: Bytes::copy_from_slice(name.bytes()), kind, inode };
        let chained = cookie.index() == 0 && self.stored_head.as_ref().is_some_and(|s| s.chained);
        self.put(txn, cookie, &Stored { chained, entry: Some(entry) });
        if let Some(head) = &self.stored_head
            && cookie.index() > 0
            && !head.chained
        {
            self.put(txn, self.head, &Stored { chained: true, entry: head.entry.clone() });
        }
        Ok(())
    }

    /// Makes the entry that is there name another inode; its cookie stays.
    pub(crate) fn replace(self, txn: &mut Transaction, kind: Kind, inode: InodeKey) -> Result<(), FsError> {
        let Some(old) = self.entry.clone() else { return Err(FsError::NotFound) };
        let cookie = old.cookie;
        let chained = cookie.index() == 0 && self.stored_head.as_ref().is_some_and(|s| s.chained);
        self.put(txn, cookie, &Stored { chained, entry: Some(Dirent { kind, inode, ..old }) });
        Ok(())
    }

    /// Takes the entry out.
    pub(crate) fn remove(self, txn: &mut Transaction) -> Result<(), FsError> {
        let Some(old) = &self.entry else { return Err(FsError::NotFound) };
        if old.cookie.index() == 0 && self.others > 0 {
            self.put(txn, self.head, &Stored { chained: true, entry: None });
            return Ok(());
        }
        txn.clear(keys::dirent(self.directory, old.cookie));
        if old.cookie.index() == 0 || self.others > 0 {
            return Ok(());
        }
        // The last one above index 0: the head stands alone again, or need not stand at all.
        match self.stored_head.as_ref().and_then(|s| s.entry.clone()) {
            None => txn.clear(keys::dirent(self.directory, self.head)),
            Some(entry) => self.put(txn, self.head, &Stored { chained: false, entry: Some(entry) }),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::inode::tests::left_over;

    proptest! {
        #[test]
        fn decode_is_the_inverse_of_encode(
            directory: u64, hash in 1u64..1 << 56, index in 0u8..128, home: bool, chained: bool, fileid: u64,
            name in prop::collection::vec(1u8..47, 1..255),
        ) {
            prop_assume!(Name::new(&name).is_ok());
            let (directory, cookie) = (FileId(directory), Cookie::new(hash, index));
            let inode = if home {
                InodeKey { home: directory, cookie, fileid: FileId(fileid) }
            } else {
                InodeKey { home: FileId(directory.0 ^ 1), cookie, fileid: FileId(fileid) }
            };
            let entry = Some(Dirent { cookie, name: name.into(), kind: Kind::Fifo, inode });
            let stored = Stored { chained: chained && index == 0, entry };
            prop_assert_eq!(left_over(stored.encode(directory)), 0);
            prop_assert_eq!(Stored::decode(directory, cookie, stored.encode(directory)).unwrap(), stored);
        }
    }

    #[test]
    fn only_index_0_may_be_a_placeholder() {
        let bytes = Stored { chained: true, entry: None }.encode(FileId(1));
        assert!(Stored::decode(FileId(1), Cookie::new(5, 0), bytes.clone()).is_ok());
        assert!(Stored::decode(FileId(1), Cookie::new(5, 1), bytes).is_err());
    }
}
