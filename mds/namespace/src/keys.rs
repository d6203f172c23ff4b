//! THE key table. Every key of a file system is made here, by one prefix of one table; docs/metadata-schema.md
//! shows the same table with the values.
//!
//! A key is its prefix byte and big-endian fields, so that byte order is field order. Prefix values
//! are never reused: a table that goes out of use keeps its line. 0x00 and 0xff stay free (0xff is
//! FoundationDB's own space). One file system is one key space: a backend that shares a cluster puts
//! its own prefix before ours.

use std::ops::{Deref, RangeInclusive};

use bytes::Bytes;
use sluice_kv::KeyRange;

use crate::codec::{Reader, Writer};
use crate::error::FsError;

/// Declares the prefixes once: constant, byte, and the list that the uniqueness test reads.
macro_rules! prefixes {
    ($($(#[$doc:meta])* $name:ident = $byte:literal,)*) => {
        $($(#[$doc])* pub(crate) const $name: u8 = $byte;)*
        /// Every prefix with its name, in the order of the table.
        pub const PREFIXES: &[(&str, u8)] = &[$((stringify!($name), $name)),*];
    };
}

prefixes! {
    /// `()` → [`crate::Superblock`]
    SUPERBLOCK = 0x01,
    /// `()` → epoch and identity of the one metadata server that may write
    MDS_EPOCH = 0x02,
    /// `(what u8)` → next number of a leased sequence
    SEQUENCE = 0x03,
    /// `()` → a dump is being loaded: what is here is not all
    LOADING = 0x04,
    /// `()` → a data server has what these metadata have yet to number: they are an older copy
    OLDER = 0x05,
    /// `(home u64, cookie u64, fileid u64)` → inode record
    INODE = 0x10,
    /// `(directory u64, cookie u64)` → directory entry
    DIRENT = 0x11,
    /// `(directory u64, field u8)` → directory state and its blind deltas
    DIRECTORY = 0x12,
    /// `(fileid u64, name)` → extended attribute, or that its value is long
    XATTR = 0x13,
    /// never used: access control lists are in the inode record
    ACL = 0x14,
    /// `(fileid u64, chunk u32)` → data of a file that is kept here
    INLINE_DATA = 0x15,
    /// `(data file id u64)` → key of the inode that owns the data file
    DATA_FILE = 0x16,
    /// `(fileid u64, name)` → long value of an extended attribute
    XATTR_VALUE = 0x17,
    /// `(fileid u64)` → a read-write layout may be out: size unsettled
    RW_LAYOUT = 0x20,
    /// `(fileid u64)` → a truncate to be carried out on data files
    TRUNCATE = 0x21,
    /// `(data file id u64)` → data files to remove, with their geometry
    GARBAGE = 0x22,
    /// `(fileid u64)` → an inode without a name, kept for those who have it open
    ORPHAN = 0x23,
    /// `(store u16, fence id u64)` → a fence that the store has not acknowledged
    FENCE = 0x24,
    /// `(fileid u64)` → mirrors to be made equal, and what is to take the place of which
    HEAL = 0x25,
    /// `(data file id u64, slot u16)` → a data file outside of layouts: being filled, or to be removed
    SPARE = 0x26,
    /// `(client id u64)` → client record
    CLIENT = 0x30,
    /// `(session id 16)` → session record
    SESSION = 0x31,
    /// `(session id 16, slot u32)` → reply row
    REPLY = 0x32,
    /// `()` → what the server remembers of its own incarnations
    SERVER = 0x33,
    /// `()` → the newest dump that is known to be whole
    DUMPED = 0x34,
    /// `(client id u64)` → from where the client was established
    CLIENT_HOST = 0x35,
    /// `(client id u64)` → how the client is protected
    CLIENT_GUARD = 0x36,
    /// `(store id u16)` → data server's store
    STORE = 0x38,
    /// `(store uuid 16)` → store id
    STORE_UUID = 0x39,
    /// `()` → capability epochs and keys
    CAPABILITY = 0x3a,
    /// `(export id u32)` → export
    EXPORT = 0x3b,
    /// `(name)` → layout policy
    POLICY = 0x3c,
    /// `(store id u16)` → a data server that is being emptied
    DRAIN = 0x3d,
    /// `()` → the balance that moves data files between data servers, or how the last one ended
    BALANCE = 0x3e,
    /// `(store id u16)` → how far a data server's store had come
    TIDE = 0x3f,
    /// `(what u8, shard u8)` → counter, little-endian
    STATISTIC = 0x40,
    /// `(kind u8, id u64)` → limits of a user, a group or a tree
    QUOTA = 0x41,
    /// `(kind u8, id u64, shard u8)` → counter of files and bytes, little-endian
    USAGE = 0x42,
    /// `()` → how far inodes have been counted; absent: all of them are
    COUNTING = 0x43,
    /// `(tree u64, directory u64)` → a directory whose entries have yet to be put into a tree or taken out of it
    TREE_WALK = 0x44,
    /// `(kind u8, id u64)` → since when more than the soft limit is used
    OVER_QUOTA = 0x45,
}

/// A number that names an inode for ever; never reused. The root's is [`FileId::ROOT`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

impl FileId {
    /// The root directory.
    pub const ROOT: Self = Self(2);
    /// The first one handed out.
    pub(crate) const FIRST: u64 = 16;
}

/// A place in a directory: 56 bits of name hash and 7 of index among colliding names; it is the
/// READDIR cookie. Positive as a signed number and never below 128, so 0, 1 and 2 stay free
/// (RFC 8881 §18.23.3 reserves them).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cookie(pub u64);

impl Cookie {
    /// Names that may share one hash.
    pub const SLOTS: u8 = 128;

    /// `hash` must be 1 to 2^56-1, `index` 0 to 127.
    pub(crate) const fn new(hash: u64, index: u8) -> Self {
        Self((hash << 7) | (index & 0x7f) as u64)
    }
    pub const fn index(self) -> u8 {
        (self.0 & 0x7f) as u8
    }
    /// The same hash, index 0.
    pub(crate) const fn head(self) -> Self {
        Self(self.0 & !0x7f)
    }
    /// The same hash, index 127.
    pub(crate) const fn tail(self) -> Self {
        Self(self.0 | 0x7f)
    }
}

/// Where an inode lives for its whole life: the directory and place it was created in, and its
/// number. A rename does not move it. The NFSv4 filehandle carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeKey {
    /// Directory at creation (0 for the root).
    pub home: FileId,
    /// Place in it at creation (0 for the root).
    pub cookie: Cookie,
    pub fileid: FileId,
}

impl InodeKey {
    /// The root directory.
    pub const ROOT: Self = Self { home: FileId(0), cookie: Cookie(0), fileid: FileId::ROOT };
    pub(crate) const SIZE: usize = 24;

    pub(crate) fn encode(&self, w: &mut Writer) {
        w.u64(self.home.0).u64(self.cookie.0).u64(self.fileid.0);
    }
    pub(crate) fn decode(r: &mut Reader) -> Result<Self, FsError> {
        Ok(Self { home: FileId(r.u64()?), cookie: Cookie(r.u64()?), fileid: FileId(r.u64()?) })
    }
}

/// Names the data files of one inode in capabilities, on data servers and in the garbage queue;
/// never reused. Truncation to zero gives an inode a new one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataFileId(pub u64);

/// A data server's store, as in a capability: 1 to 65535.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(pub u16);

/// A session, as in RFC 8881 §2.10.
pub type SessionId = [u8; 16];

/// Numbers handed out in leased blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sequence {
    FileId,
    DataFile,
    Store,
    Fence,
    Export,
}

impl Sequence {
    pub(crate) const ALL: [Self; 5] = [Self::FileId, Self::DataFile, Self::Store, Self::Fence, Self::Export];

    pub(crate) const fn id(self) -> u8 {
        match self {
            Self::FileId => 1,
            Self::DataFile => 2,
            Self::Store => 3,
            Self::Fence => 5,
            Self::Export => 6,
        }
    }
}

/// Counters of the whole file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Statistic {
    /// Inodes, the root counted, orphans too.
    Files,
    /// Bytes of regular files (their space_used).
    Bytes,
    /// Files with mirrors to heal.
    Degraded,
}

impl Statistic {
    pub(crate) const fn id(self) -> u8 {
        match self {
            Self::Files => 1,
            Self::Bytes => 2,
            Self::Degraded => 3,
        }
    }
}

/// The parts of a directory's state, each its own key so that each can be updated without reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DirectoryField {
    /// The whole state, as of the last exact update.
    State = 0,
    /// Versionstamp of the last blind update.
    Stamp = 1,
    /// Greatest time of a blind update.
    Touched = 2,
    /// Sum of the blind changes of the entry count.
    Entries = 3,
    /// Sum of the blind changes of the subdirectory count.
    Subdirectories = 4,
}

/// A key of a table that is asked for in every operation: it needs no memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key<const N: usize>([u8; N]);

impl<const N: usize> Key<N> {
    /// `fields` have all the bytes but the first.
    #[inline]
    fn new<const FIELDS: usize>(prefix: u8, fields: [&[u8]; FIELDS]) -> Self {
        let mut key = [prefix; N];
        let mut at = 1;
        for field in fields {
            let end = at + field.len();
            key[at..end].copy_from_slice(field);
            at = end;
        }
        debug_assert_eq!(at, N, "the table {prefix:#x} has other keys");
        Self(key)
    }
}

impl<const N: usize> Deref for Key<N> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<const N: usize> From<Key<N>> for Bytes {
    fn from(key: Key<N>) -> Self {
        Self::copy_from_slice(&key)
    }
}

/// Begins a key; `fields` is the number of bytes that follow, so that no memory is left over.
fn key(prefix: u8, fields: usize) -> Writer {
    let mut w = Writer::with_capacity(1 + fields);
    w.u8(prefix);
    w
}

/// All keys from `begin` that start with the bytes of `prefix_key`.
fn under(prefix_key: &[u8], begin: Bytes) -> KeyRange {
    // The last byte below 0xff can be raised; a prefix byte is never 0xff, so there is one.
    let mut end = prefix_key.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            break;
        }
    }
    KeyRange { begin, end: Bytes::from(end) }
}

/// Every key of a table.
pub(crate) fn table(prefix: u8) -> KeyRange {
    under(&[prefix], Bytes::copy_from_slice(&[prefix]))
}

/// A range from just after `last` to the end of `range`.
pub(crate) fn after(last: &[u8], range: &KeyRange) -> KeyRange {
    let mut begin = Vec::with_capacity(last.len() + 1);
    begin.extend_from_slice(last);
    begin.push(0);
    KeyRange { begin: Bytes::from(begin), end: range.end.clone() }
}

pub(crate) fn single(prefix: u8) -> Bytes {
    key(prefix, 0).finish()
}
pub(crate) fn by_u64(prefix: u8, n: u64) -> Bytes {
    key(prefix, 8).u64(n).finish()
}
/// The part of a table from after number `n`, for listings in pages.
pub(crate) fn from_u64(prefix: u8, n: Option<u64>) -> KeyRange {
    let whole = table(prefix);
    match n {
        None => whole,
        Some(n) => after(&by_u64(prefix, n), &whole),
    }
}
pub(crate) fn data_file_of(key: &Bytes) -> Result<DataFileId, FsError> {
    let mut r = Reader::new("data file key", key.clone());
    if r.u8()? != DATA_FILE {
        return Err(r.corrupt());
    }
    let id = DataFileId(r.u64()?);
    r.finish()?;
    Ok(id)
}
pub(crate) fn spare(id: DataFileId, slot: u16) -> Bytes {
    key(SPARE, 10).u64(id.0).u16(slot).finish()
}
/// Everything of a file outside of its layout.
pub(crate) fn spares(id: DataFileId) -> KeyRange {
    let p = key(SPARE, 8).u64(id.0).finish();
    under(&p, p.clone())
}
pub(crate) fn spare_of(key: &Bytes) -> Result<(DataFileId, u16), FsError> {
    let mut r = Reader::new("spare data file key", key.clone());
    if r.u8()? != SPARE {
        return Err(r.corrupt());
    }
    let (id, slot) = (DataFileId(r.u64()?), r.u16()?);
    r.finish()?;
    Ok((id, slot))
}
pub(crate) fn sequence(s: Sequence) -> Bytes {
    key(SEQUENCE, 1).u8(s.id()).finish()
}
pub(crate) fn statistic(s: Statistic, shard: u8) -> Key<3> {
    Key::new(STATISTIC, [&[s.id(), shard]])
}
/// A table of quotas begins its keys with whom they are about.
pub(crate) fn quota(prefix: u8, kind: u8, id: u64) -> Bytes {
    key(prefix, 9).u8(kind).u64(id).finish()
}
/// The part of such a table about one kind, from just after `id`.
pub(crate) fn quotas(prefix: u8, kind: u8, after: Option<u64>) -> KeyRange {
    let p = key(prefix, 1).u8(kind).finish();
    let begin = match after {
        None => p.clone(),
        // Every key about `id` ends before nine bytes of ones.
        Some(id) => key(prefix, 18).u8(kind).u64(id).raw(&[0xff; 9]).finish(),
    };
    under(&p, begin)
}
pub(crate) fn quota_of(key: &Bytes) -> Result<(u8, u64), FsError> {
    let mut r = Reader::new("quota key", key.slice(1.min(key.len())..));
    Ok((r.u8()?, r.u64()?))
}
pub(crate) fn usage(kind: u8, id: u64, shard: u8) -> Key<11> {
    Key::new(USAGE, [&[kind], &id.to_be_bytes(), &[shard]])
}
pub(crate) fn tree_walk(tree: FileId, directory: FileId) -> Bytes {
    key(TREE_WALK, 16).u64(tree.0).u64(directory.0).finish()
}
pub(crate) fn tree_walks(tree: FileId) -> KeyRange {
    let p = by_u64(TREE_WALK, tree.0);
    under(&p, p.clone())
}
/// Inodes from just after `last`.
pub(crate) fn inodes_after(last: Option<&InodeKey>) -> KeyRange {
    let whole = table(INODE);
    last.map_or(whole.clone(), |last| after(&inode(last), &whole))
}
pub(crate) fn inode(k: &InodeKey) -> Key<{ 1 + InodeKey::SIZE }> {
    Key::new(INODE, [&k.home.0.to_be_bytes(), &k.cookie.0.to_be_bytes(), &k.fileid.0.to_be_bytes()])
}
pub(crate) fn inode_of(key: &Bytes) -> Result<InodeKey, FsError> {
    let mut r = Reader::new("inode key", key.clone());
    if r.u8()? != INODE {
        return Err(r.corrupt());
    }
    let k = InodeKey::decode(&mut r)?;
    r.finish()?;
    Ok(k)
}
/// Inodes at home in `home` whose place is among `places`.
pub(crate) fn inodes(home: FileId, places: &RangeInclusive<Cookie>) -> KeyRange {
    let end = key(INODE, 16).u64(home.0).u64(places.end().0).finish();
    under(&end, key(INODE, 16).u64(home.0).u64(places.start().0).finish())
}
pub(crate) fn dirent(directory: FileId, place: Cookie) -> Key<17> {
    Key::new(DIRENT, [&directory.0.to_be_bytes(), &place.0.to_be_bytes()])
}
pub(crate) fn dirent_of(key: &Bytes) -> Result<(FileId, Cookie), FsError> {
    let mut r = Reader::new("directory entry key", key.clone());
    if r.u8()? != DIRENT {
        return Err(r.corrupt());
    }
    let k = (FileId(r.u64()?), Cookie(r.u64()?));
    r.finish()?;
    Ok(k)
}
pub(crate) fn dirents(directory: FileId, places: &RangeInclusive<Cookie>) -> KeyRange {
    under(&dirent(directory, *places.end()), dirent(directory, *places.start()).into())
}
pub(crate) fn all_dirents(directory: FileId) -> KeyRange {
    dirents(directory, &(Cookie(0)..=Cookie(u64::MAX)))
}
pub(crate) fn directory(d: FileId, field: DirectoryField) -> Key<10> {
    Key::new(DIRECTORY, [&d.0.to_be_bytes(), &[field as u8]])
}
pub(crate) fn directory_fields(d: FileId) -> KeyRange {
    let p = by_u64(DIRECTORY, d.0);
    under(&p, p.clone())
}
pub(crate) fn xattr(f: FileId, name: &[u8]) -> Bytes {
    key(XATTR, 8 + name.len()).u64(f.0).raw(name).finish()
}
pub(crate) fn xattrs(f: FileId) -> KeyRange {
    let p = by_u64(XATTR, f.0);
    under(&p, p.clone())
}
pub(crate) fn xattr_value(f: FileId, name: &[u8]) -> Bytes {
    key(XATTR_VALUE, 8 + name.len()).u64(f.0).raw(name).finish()
}
pub(crate) fn xattr_values(f: FileId) -> KeyRange {
    let p = by_u64(XATTR_VALUE, f.0);
    under(&p, p.clone())
}
/// Rows with large values that nobody lists: an embedded store can have them in a tree of their own.
pub fn large_rows() -> KeyRange {
    table(INLINE_DATA)
}
pub(crate) fn inline_data(f: FileId, chunk: u32) -> Bytes {
    key(INLINE_DATA, 12).u64(f.0).u32(chunk).finish()
}
pub(crate) fn inline_data_of(key: &Bytes) -> Result<(FileId, u32), FsError> {
    let mut r = Reader::new("inline data key", key.clone());
    if r.u8()? != INLINE_DATA {
        return Err(r.corrupt());
    }
    let found = (FileId(r.u64()?), r.u32()?);
    r.finish()?;
    Ok(found)
}
pub(crate) fn session(id: &SessionId) -> Bytes {
    key(SESSION, 16).raw(id).finish()
}
pub(crate) fn reply(id: &SessionId, slot: u32) -> Bytes {
    key(REPLY, 20).raw(id).u32(slot).finish()
}
pub(crate) fn replies(id: &SessionId) -> KeyRange {
    let p = key(REPLY, 16).raw(id).finish();
    under(&p, p.clone())
}
pub(crate) fn store(id: StoreId) -> Bytes {
    key(STORE, 2).u16(id.0).finish()
}
pub(crate) fn drain(id: StoreId) -> Bytes {
    key(DRAIN, 2).u16(id.0).finish()
}
pub(crate) fn tide(id: StoreId) -> Bytes {
    key(TIDE, 2).u16(id.0).finish()
}
pub(crate) fn store_uuid(uuid: &[u8; 16]) -> Bytes {
    key(STORE_UUID, 16).raw(uuid).finish()
}
pub(crate) fn fence(store: StoreId, id: u64) -> Bytes {
    key(FENCE, 10).u16(store.0).u64(id).finish()
}
pub(crate) fn fences(store: StoreId) -> KeyRange {
    let p = key(FENCE, 2).u16(store.0).finish();
    under(&p, p.clone())
}
pub(crate) fn export(id: u32) -> Bytes {
    key(EXPORT, 4).u32(id).finish()
}
pub(crate) fn policy(name: &[u8]) -> Bytes {
    key(POLICY, name.len()).raw(name).finish()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn prefixes_are_unique_and_leave_the_ends_free() {
        let bytes: BTreeSet<u8> = PREFIXES.iter().map(|p| p.1).collect();
        assert_eq!(bytes.len(), PREFIXES.len());
        assert!(!bytes.contains(&0) && !bytes.contains(&0xff));
    }

    #[test]
    fn key_order_is_field_order() {
        let k = |home, cookie, fileid| {
            inode(&InodeKey { home: FileId(home), cookie: Cookie(cookie), fileid: FileId(fileid) })
        };
        let sorted = [k(1, 500, 9), k(1, 501, 0), k(2, 3, 1), k(256, 0, 0)];
        assert!(sorted.is_sorted());
        assert_eq!(inode_of(&sorted[2].into()).unwrap().cookie, Cookie(3));
    }

    #[test]
    fn ranges_hold_their_own_keys_only() {
        let r = dirents(FileId(7), &(Cookie(200)..=Cookie(0xff)));
        for (d, c, inside) in
            [(7, 200, true), (7, 255, true), (7, 256, false), (7, 199, false), (8, 220, false)]
        {
            let k = Bytes::from(dirent(FileId(d), Cookie(c)));
            assert_eq!(r.begin <= k && k < r.end, inside, "{d} {c}");
        }
        let r = xattrs(FileId(u64::MAX));
        let k = xattr(FileId(u64::MAX), &[0xff; 255]);
        assert!(r.begin <= k && k < r.end);
        assert!(!(r.begin <= by_u64(ACL, 0) && by_u64(ACL, 0) < r.end));
        let all = all_dirents(FileId(7));
        let dirent = |directory, cookie| Bytes::from(dirent(FileId(directory), Cookie(cookie)));
        assert!(all.begin <= dirent(7, u64::MAX) && dirent(7, u64::MAX) < all.end);
        assert!(dirent(8, 0) >= all.end);
    }

    #[test]
    fn cookies_are_positive_and_not_reserved() {
        assert!(Cookie::new(1, 0).0 > 2);
        let last = Cookie::new((1 << 56) - 1, 127);
        assert!(i64::try_from(last.0).is_ok());
        assert_eq!((last.index(), last.head().index(), last.head().tail()), (127, 0, last));
    }
}
