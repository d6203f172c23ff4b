//! The directories that lead to exports, for clients that may not use what these lie in. RFC 8881 §7.3, §7.4.
//!
//! They are made of the exports' paths and are not in the store: nothing of the file system shows but names on the way.
//! A client sees those that lead to something that it may use.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use sluice_kv::Versionstamp;
use sluice_namespace::{
    Cookie, DirectoryNode, DirectoryState, FileHandle, Inode, InodeKey, InodeRecord, LayoutPolicy, Node,
};
use sluice_xdr::nfs4::nfsstat4;

use super::peer::Origin;
use super::table::{Place, Table};

/// Directories by their keys.
#[derive(Debug, Default)]
pub(crate) struct Tree(BTreeMap<InodeKey, Directory>);

#[derive(Debug, Default)]
struct Directory {
    path: Bytes,
    names: BTreeSet<Bytes>,
    /// The exports at and below it.
    exports: Vec<(u32, Bytes)>,
}

/// A name in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) cookie: Cookie,
    pub(crate) name: Bytes,
    pub(crate) place: Place,
}

impl Tree {
    pub(super) fn new<'a>(exports: impl Iterator<Item = (u32, &'a [u8])>) -> Self {
        let mut tree = BTreeMap::new();
        tree.insert(FileHandle::pseudo(b""), Directory::default());
        for (id, path) in exports {
            let mut above = Bytes::new();
            for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
                let directory: &mut Directory = tree.entry(FileHandle::pseudo(&above)).or_default();
                directory.path = above.clone();
                directory.names.insert(Bytes::copy_from_slice(name));
                directory.exports.push((id, Bytes::copy_from_slice(path)));
                above = join(&above, name);
            }
        }
        Self(tree)
    }

    pub(super) fn has(&self, key: &InodeKey) -> bool {
        self.0.contains_key(key)
    }
}

fn join(above: &[u8], name: &[u8]) -> Bytes {
    let slash: &[u8] = if above.is_empty() { b"" } else { b"/" };
    Bytes::from([above, slash, name].concat())
}

impl Table {
    /// There is something below this directory that the client may use.
    pub(super) fn leads_somewhere(&self, key: &InodeKey, from: &Origin) -> bool {
        let Some(directory) = self.tree.0.get(key) else { return false };
        directory.exports.iter().any(|(id, _)| self.rule(*id, from).is_some())
    }

    /// What a name in such a directory leads to.
    ///
    /// # Errors
    /// STALE; NOENT; ACCESS where something is that this client may not use, so that a mount of it says so.
    pub(crate) fn lookup(&self, key: &InodeKey, name: &[u8], from: &Origin) -> Result<Place, nfsstat4> {
        let directory = self.tree.0.get(key).ok_or(nfsstat4::NFS4ERR_STALE)?;
        if !directory.names.contains(name) {
            return Err(nfsstat4::NFS4ERR_NOENT);
        }
        let path = join(&directory.path, name);
        let here = directory.exports.iter().find(|(_, whole)| *whole == path);
        if let Some((id, _)) = here.filter(|(id, _)| self.rule(*id, from).is_some()) {
            return Ok(Place::Export(*id));
        }
        let key = FileHandle::pseudo(&path);
        if self.leads_somewhere(&key, from) { Ok(Place::Pseudo(key)) } else { Err(nfsstat4::NFS4ERR_ACCESS) }
    }

    /// What is in such a directory for this client, in the order of the cookies.
    pub(crate) fn list(&self, key: &InodeKey, from: &Origin) -> Vec<Listed> {
        let Some(directory) = self.tree.0.get(key) else { return Vec::new() };
        let mut all: Vec<_> = directory
            .names
            .iter()
            .filter_map(|name| {
                let place = self.lookup(key, name, from).ok()?;
                // Half of a number of 63 bits: positive, and the same whatever else is exported.
                let cookie = Cookie(FileHandle::pseudo(&join(&directory.path, name)).fileid.0 / 2);
                Some(Listed { cookie, name: name.clone(), place })
            })
            .collect();
        all.sort_by_key(|listed| listed.cookie);
        all
    }

    /// The directory that such a directory is in; of the root, `None`.
    pub(crate) fn parent(&self, key: &InodeKey) -> Option<InodeKey> {
        above(&self.tree.0.get(key)?.path)
    }

    /// The directory of this kind that an export's root would be in.
    pub(crate) fn parent_of_export(&self, id: u32) -> Option<InodeKey> {
        above(&self.get(id)?.path)
    }

    /// Such a directory, as an inode.
    pub(crate) fn inode(&self, key: &InodeKey, from: &Origin) -> Option<Inode> {
        self.has(key).then(|| {
            let names = u64::try_from(self.list(key, from).len()).unwrap_or(u64::MAX);
            let (since, stamp) = (self.since, Versionstamp([0; 10]));
            let node = DirectoryNode { parent: *key, policy: LayoutPolicy::default(), mtime_set: since };
            Inode {
                key: *key,
                record: InodeRecord {
                    stamp,
                    mode: 0o555,
                    uid: 0,
                    gid: 0,
                    nlink: 1,
                    atime: since,
                    mtime: since,
                    ctime: since,
                    btime: since,
                    xattrs: false,
                    acl: None,
                    tree: None,
                    node: Node::Directory(node),
                },
                directory: Some(DirectoryState {
                    stamp,
                    touched: since,
                    entries: names,
                    subdirectories: names,
                    split: false,
                }),
                change: self.version(),
            }
        })
    }

    fn has(&self, key: &InodeKey) -> bool {
        self.tree.has(key)
    }

    /// Other than that of any table before: nanoseconds of its time.
    pub(crate) fn version(&self) -> u64 {
        let seconds = u64::try_from(self.since.seconds).unwrap_or(0);
        seconds.saturating_mul(1_000_000_000).saturating_add(self.since.nanos.into())
    }
}

/// The directory that a path is in; of the root, `None`.
fn above(path: &[u8]) -> Option<InodeKey> {
    let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    (!path.is_empty()).then(|| FileHandle::pseudo(path.get(..end).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use sluice_env::Wall;
    use sluice_namespace::FileId;
    use sluice_namespace::stable_storage::{Export, Rule};

    use super::super::table::is_below;
    use super::*;

    fn table(exports: &[(&'static str, &str)]) -> Table {
        let rows = exports.iter().zip(1..).map(|((path, network), id)| Export {
            id,
            path: (*path).into(),
            root: InodeKey { home: FileId(2), cookie: Cookie(128), fileid: FileId(id.into()) },
            rules: vec![Rule::new(network.parse().unwrap())],
            named: Vec::new(),
        });
        Table::new(rows.collect(), &[], Wall::default())
    }

    fn names(table: &Table, path: &[u8], from: &str) -> Vec<String> {
        let listed = table.list(&FileHandle::pseudo(path), &Origin::address(from.parse().unwrap()));
        assert!(listed.windows(2).all(|pair| pair[0].cookie < pair[1].cookie));
        assert!(listed.iter().all(|one| one.cookie.0 > 2 && i64::try_from(one.cookie.0).is_ok()));
        let mut names: Vec<_> =
            listed.into_iter().map(|one| String::from_utf8(one.name.to_vec()).unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn everybody_sees_what_leads_to_what_he_may_use() {
        let table =
            table(&[("a/b", "10.0.0.0/8"), ("a/c/d", "11.0.0.0/8"), ("e", "any"), ("a/b/f", "11.0.0.0/8")]);
        assert_eq!(names(&table, b"", "10.0.0.1"), ["a", "e"]);
        assert_eq!(names(&table, b"a", "10.0.0.1"), ["b"]);
        assert_eq!(names(&table, b"a", "11.0.0.1"), ["b", "c"]);
        assert_eq!(names(&table, b"", "12.0.0.1"), ["e"]);
        let look = |path: &[u8], name: &[u8], from: &str| {
            table.lookup(&FileHandle::pseudo(path), name, &Origin::address(from.parse().unwrap()))
        };
        assert_eq!(look(b"a", b"b", "10.0.0.1"), Ok(Place::Export(1)));
        // Another may not use it, but something below.
        assert_eq!(look(b"a", b"b", "11.0.0.1"), Ok(Place::Pseudo(FileHandle::pseudo(b"a/b"))));
        assert_eq!(look(b"a/b", b"f", "11.0.0.1"), Ok(Place::Export(4)));
        assert_eq!(look(b"a", b"b", "12.0.0.1"), Err(nfsstat4::NFS4ERR_ACCESS));
        assert_eq!(look(b"a", b"x", "10.0.0.1"), Err(nfsstat4::NFS4ERR_NOENT));
        assert_eq!(look(b"x", b"b", "10.0.0.1"), Err(nfsstat4::NFS4ERR_STALE));
    }

    #[test]
    fn they_know_their_parents() {
        let table = table(&[("a/b/c", "any")]);
        let [root, a, ab] = [&b""[..], b"a", b"a/b"].map(FileHandle::pseudo);
        assert_eq!(table.parent(&ab), Some(a));
        assert_eq!(table.parent(&a), Some(root));
        assert_eq!(table.parent(&root), None);
        assert_eq!(table.parent_of_export(1), Some(ab));
        assert!(is_below(b"a/b/c", b"a/b"));
    }
}
