//! The superblock: what makes a key space this file system.

use bytes::Bytes;
use sluice_env::{Env, Wall};
use sluice_kv::{Transaction, Versionstamp};

use crate::Namespace;
use crate::codec::{Reader, Writer};
use crate::data_file::LayoutPolicy;
use crate::error::FsError;
use crate::fetch;
use crate::filehandle::HandleSeal;
use crate::inode::{DirectoryNode, DirectoryState, InodeRecord, Node, STAMP_OFFSET};
use crate::keys::{self, DirectoryField, InodeKey, Statistic};
use crate::name::NameHash;
use crate::quota::{AllCounted, Charged};
use crate::transfer;

/// The file system's constants.
#[derive(Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Of the file system; the cluster's name towards data servers.
    pub uuid: [u8; 16],
    /// Added to commit versions to make change attributes.
    pub change_base: u64,
    /// Key of the name hash.
    pub hash_key: [u8; 32],
    /// Bits of the name hash, 1 to 56.
    pub hash_bits: u8,
    pub created: Wall,
    /// What inodes use is charged. Software that knows nothing of it does not read this superblock.
    pub accounted: bool,
    /// Files may be kept inline. Software that knows nothing of it does not read this superblock either.
    pub inline: bool,
    /// Access control lists may have flags, and entries that say that they were inherited. The same.
    pub marked: bool,
    /// An inline file may be one row, however long. The same.
    pub whole: bool,
    /// Policies may name classes of data servers. The same.
    pub classes: bool,
}

impl std::fmt::Debug for Superblock {
    // The hash key stays out of logs: who knows it can choose colliding names.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Superblock")
            .field("uuid", &self.uuid)
            .field("change_base", &self.change_base)
            .field("hash_bits", &self.hash_bits)
            .field("created", &self.created)
            .finish_non_exhaustive()
    }
}

/// What a new file system begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatOptions {
    pub uuid: [u8; 16],
    pub hash_key: [u8; 32],
    /// 56; fewer make names collide, for tests.
    pub hash_bits: u8,
    pub change_base: u64,
    pub now: Wall,
    /// Owner and mode of the root directory.
    pub uid: u32,
    pub gid: u32,
    pub mode: u16,
    pub policy: LayoutPolicy,
}

impl FormatOptions {
    /// Random identity, root owned by root with mode 755.
    pub fn new(env: &Env) -> Self {
        Self {
            uuid: env.random.array(),
            hash_key: env.random.array(),
            hash_bits: 56,
            change_base: 0,
            now: env.clock.wall(),
            uid: 0,
            gid: 0,
            mode: 0o755,
            policy: LayoutPolicy::default(),
        }
    }
}

impl Superblock {
    /// The same fields in all.
    const SCHEMA: u8 = 1;
    const SCHEMA_ACCOUNTED: u8 = 2;
    const SCHEMA_INLINE: u8 = 3;
    const SCHEMA_MARKED: u8 = 4;
    const SCHEMA_WHOLE: u8 = 5;
    const SCHEMA_CLASSES: u8 = 6;

    pub(crate) fn encode(&self) -> Bytes {
        let mut w = Writer::default();
        // Whoever knows of the one knows of those before it.
        w.u8(match self {
            Self { classes: true, .. } => Self::SCHEMA_CLASSES,
            Self { whole: true, .. } => Self::SCHEMA_WHOLE,
            Self { marked: true, .. } => Self::SCHEMA_MARKED,
            // Whoever knows of inline files charges: a store is accounted before it has any.
            Self { inline: true, .. } => Self::SCHEMA_INLINE,
            Self { accounted: true, .. } => Self::SCHEMA_ACCOUNTED,
            _ => Self::SCHEMA,
        });
        w.raw(&self.uuid).u64(self.change_base).raw(&self.hash_key);
        w.u8(self.hash_bits).wall(self.created).finish()
    }

    pub(crate) fn decode(value: Bytes) -> Result<Self, FsError> {
        let mut r = Reader::new("superblock", value);
        let schema = r.schema(Self::SCHEMA_CLASSES)?;
        let sb = Self {
            uuid: r.array()?,
            change_base: r.u64()?,
            hash_key: r.array()?,
            hash_bits: r.u8()?,
            created: r.wall()?,
            accounted: schema >= Self::SCHEMA_ACCOUNTED,
            inline: schema >= Self::SCHEMA_INLINE,
            marked: schema >= Self::SCHEMA_MARKED,
            whole: schema >= Self::SCHEMA_WHOLE,
            classes: schema >= Self::SCHEMA_CLASSES,
        };
        r.finish()?;
        Ok(sb)
    }

    pub(crate) const fn name_hash(&self) -> NameHash {
        NameHash { key: self.hash_key, bits: self.hash_bits }
    }
}

/// Says in the superblock what there may be from now on, if it does not say so yet: releases that know nothing of it
/// refuse the store.
pub(crate) async fn raise(txn: &mut Transaction, say: impl FnOnce(&mut Superblock)) -> Result<(), FsError> {
    let at = keys::single(keys::SUPERBLOCK);
    let value = txn.get(&at).await?.ok_or_else(|| FsError::corrupt("superblock"))?;
    let before = Superblock::decode(value)?;
    let mut after = before.clone();
    say(&mut after);
    if after != before {
        txn.set(at, after.encode());
    }
    Ok(())
}

impl Namespace {
    fn of(superblock: Superblock) -> Self {
        let hash = superblock.name_hash();
        let handles = HandleSeal::new(&superblock.hash_key);
        Self { superblock, hash, handles, all_counted: AllCounted::default() }
    }

    /// The file system in this store, if there is one.
    pub async fn load(txn: &Transaction) -> Result<Option<Self>, FsError> {
        let value = txn.get(&keys::single(keys::SUPERBLOCK)).await?;
        let Some(value) = value else { return Ok(None) };
        let found = Self::of(Superblock::decode(value)?);
        if found.superblock.accounted && found.all_counted(txn).await? {
            found.counting_ended();
        }
        Ok(Some(found))
    }

    /// The file system in this store, made now if there is none.
    pub async fn load_or_format(txn: &mut Transaction, options: &FormatOptions) -> Result<Self, FsError> {
        if let Some(mut found) = Self::load(txn).await? {
            if !found.superblock.accounted {
                // Whoever wrote here until now charged nobody; all is counted from the beginning.
                found.superblock.accounted = true;
                txn.set(keys::single(keys::SUPERBLOCK), found.superblock.encode());
                found.count_anew(txn);
            }
            return Ok(found);
        }
        if transfer::is_loading(txn).await? {
            return Err(FsError::HalfLoaded);
        }
        let superblock = Superblock {
            uuid: options.uuid,
            change_base: options.change_base,
            hash_key: options.hash_key,
            hash_bits: options.hash_bits.clamp(1, 56),
            created: options.now,
            accounted: true,
            inline: options.policy.inline > 0,
            marked: false,
            whole: options.policy.inline > 0,
            classes: options.policy.class.is_some(),
        };
        txn.set(keys::single(keys::SUPERBLOCK), superblock.encode());
        fetch::put(txn, &InodeKey::ROOT, &root(options));
        put_empty_directory(txn, &InodeKey::ROOT, options.now);
        fetch::count(txn, Statistic::Files, InodeKey::ROOT.fileid, 1);
        let made = Self::of(superblock);
        made.counting_ended();
        made.charge(txn, &InodeKey::ROOT, None, Some(Charged::of(&root(options)))).await?;
        Ok(made)
    }
}

fn root(options: &FormatOptions) -> InodeRecord {
    let now = options.now;
    let node = DirectoryNode { parent: InodeKey::ROOT, policy: options.policy, mtime_set: now };
    InodeRecord {
        stamp: Versionstamp([0; 10]),
        mode: options.mode & 0o7777,
        uid: options.uid,
        gid: options.gid,
        nlink: 1,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        xattrs: false,
        acl: None,
        tree: None,
        node: Node::Directory(node),
    }
}

/// The state of a directory just made.
pub(crate) fn put_empty_directory(txn: &mut Transaction, key: &InodeKey, now: Wall) {
    let state = keys::directory(key.fileid, DirectoryField::State);
    txn.set_versionstamped_value(state, DirectoryState::empty(now).encode(), STAMP_OFFSET);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_of_a_newer_release_is_refused_in_words() {
        let ours = Superblock {
            uuid: [1; 16],
            change_base: 2,
            hash_key: [3; 32],
            hash_bits: 56,
            created: Wall::default(),
            accounted: true,
            inline: false,
            marked: false,
            whole: false,
            classes: false,
        };
        assert_eq!(ours.encode()[0], 2, "the release before reads it");
        let with_inline = Superblock { inline: true, ..ours.clone() };
        assert_eq!(Superblock::decode(with_inline.encode()).unwrap(), with_inline);
        let mut bytes = ours.encode().to_vec();
        assert!(Superblock::decode(bytes.clone().into()).is_ok());
        let with_marks = Superblock { marked: true, ..with_inline };
        assert_eq!(Superblock::decode(with_marks.encode()).unwrap(), with_marks);
        let with_whole = Superblock { whole: true, ..with_marks };
        assert_eq!(Superblock::decode(with_whole.encode()).unwrap(), with_whole);
        let with_classes = Superblock { classes: true, ..with_whole };
        assert_eq!(with_classes.encode()[0], 6, "the release before refuses it by this");
        assert_eq!(Superblock::decode(with_classes.encode()).unwrap(), with_classes);
        bytes[0] = 7;
        let error = Superblock::decode(bytes.into()).unwrap_err().to_string();
        assert_eq!(error, "superblock: schema 7 is newer than this software reads (up to 6); upgrade it");
    }
}
