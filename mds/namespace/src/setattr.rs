//! Changing mode, owner, times and layout policy. Sizes are in `truncate`.

use sluice_env::Wall;
use sluice_kv::Transaction;

use crate::acl::Acl;
use crate::credential::{Credential, Owned, SET_GID, Want};
use crate::data_file::LayoutPolicy;
use crate::error::FsError;
use crate::inode::{Inode, InodeRecord, Kind, Node};
use crate::keys::{InodeKey, Statistic};
use crate::pending::Pending;
use crate::quota::Charged;
use crate::size::{self, MAX_FILE_SIZE, SizeCommitted};
use crate::{Namespace, Request, directory, fetch, superblock};

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The server's.
    Now,
    To(Wall),
}

/// Times that a client answers for (RFC 9754 §5), judged by who asks for it. `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptTimes {
    pub atime: Option<Wall>,
    pub mtime: Option<Wall>,
}

/// Attributes to change; `None` stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Low 12 bits.
    pub mode: Option<u16>,
    /// After `mode`: the bits of the second number are set as in the first, the rest stay.
    pub mode_masked: Option<(u16, u16)>,
    /// After the mode, on which it has the last word.
    pub acl: Option<Acl>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    pub btime: Option<Wall>,
    /// Of a directory.
    pub policy: Option<LayoutPolicy>,
    /// With nothing else. The change attribute moves in any case.
    pub kept: Option<KeptTimes>,
    /// Where a file's data ends, as the data servers say: if the file ends before, it grows. The caller keeps
    /// truncations away from the question until now.
    pub data_end: Option<u64>,
    /// The caller holds the file open for writing: times may be set without being the owner.
    pub writable_open: bool,
}

impl SetAttr {
    fn is_empty(&self) -> bool {
        *self == Self { writable_open: self.writable_open, ..Self::default() }
    }
}

impl Namespace {
    /// Changes attributes. Of a directory, times and counts in the result are those of before: what is made in it at the
    /// same time is not in them, though it may commit earlier.
    ///
    /// Errors: Stale, NotOwner, Access (times, without write permission), Invalid (mode), WrongType
    /// (policy of what is not a directory).
    pub async fn setattr(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        set: &SetAttr,
        request: &Request<'_>,
    ) -> Result<Pending<SizeCommitted>, FsError> {
        let mut inode = fetch::inode_beside(txn, key, self.base()).await?;
        if set.is_empty() {
            return Ok(Pending::new(SizeCommitted::of(inode, 0), self.base()));
        }
        let charged = Charged::of(&inode.record);
        self.change(txn, &mut inode, set, request).await?;
        let added = match set.data_end {
            Some(end) => grow(txn, &mut inode, end)?,
            None => 0,
        };
        self.charge(txn, key, Some(charged), Some(Charged::of(&inode.record))).await?;
        match &set.kept {
            Some(kept) => keep(&mut inode.record, kept),
            None => inode.record.ctime = request.now,
        }
        fetch::put(txn, key, &inode.record);
        inode.change = 0;
        Ok(Pending::new(SizeCommitted::of(inode, added), self.base()))
    }

    /// Whether the caller may set this, as the inode was read; `size`: a size, too, and whether the caller holds the file open
    /// for writing. The transaction judges again: this is for what is to be done before it, for nobody who may not.
    ///
    /// # Errors
    /// As of [`Self::setattr`] and [`Self::truncate`].
    pub fn may_set(
        inode: &Inode,
        size: Option<bool>,
        set: &SetAttr,
        request: &Request<'_>,
    ) -> Result<(), FsError> {
        let before = inode.record.owned();
        if size == Some(false) {
            before.require(request.who, Want::WRITE)?;
        }
        if set.is_empty() { Ok(()) } else { apply(&mut inode.clone(), &before, set, request) }
    }

    /// Changes what has nothing to do with the data, judged by what was there before.
    pub(crate) async fn change(
        &self,
        txn: &mut Transaction,
        inode: &mut Inode,
        set: &SetAttr,
        request: &Request<'_>,
    ) -> Result<(), FsError> {
        if set.is_empty() {
            return Ok(());
        }
        let before = inode.record.owned();
        apply(inode, &before, set, request)?;
        if set.mtime.is_some() {
            directory::forget_touched(txn, inode);
        }
        if set.policy.is_some_and(|policy| policy.inline > 0) {
            self.allow_inline(txn).await?;
        }
        if set.policy.is_some_and(|policy| policy.class.is_some()) {
            superblock::raise(txn, |superblock| superblock.classes = true).await?;
        }
        if set.acl.as_ref().is_some_and(Acl::is_marked) {
            superblock::raise(txn, |superblock| superblock.marked = true).await?;
        }
        Ok(())
    }
}

fn apply(inode: &mut Inode, before: &Owned, set: &SetAttr, request: &Request<'_>) -> Result<(), FsError> {
    chown(&mut inode.record, before, set, request.who)?;
    chmod(&mut inode.record, before, set, request.who)?;
    set_acl(&mut inode.record, before, set, request.who)?;
    set_times(inode, before, set, request)?;
    set_policy(&mut inode.record, before, set, request.who)
}

/// RFC 9754 §5: the time of the change of attributes goes with that of modification, and never back; reading does
/// not move it.
fn keep(record: &mut InodeRecord, kept: &KeptTimes) {
    record.atime = kept.atime.unwrap_or(record.atime);
    if let Some(at) = kept.mtime {
        record.mtime = at;
        record.ctime = record.ctime.max(at);
    }
}

/// By how much. Times are the business of whoever asked for other attributes.
fn grow(txn: &mut Transaction, inode: &mut Inode, end: u64) -> Result<u64, FsError> {
    let Node::File(file) = &mut inode.record.node else { return Err(FsError::WrongType) };
    if end <= file.size || end > MAX_FILE_SIZE {
        return Ok(0);
    }
    let (size, space) = (file.size, file.space_used);
    file.size = end;
    // What was appended is taken to be stored, as with any commit of a size.
    file.space_used = size::space_for(file.size, space.saturating_add(end - size));
    let stored = size::signed(file.space_used) - size::signed(space);
    fetch::count(txn, Statistic::Bytes, inode.key.fileid, stored);
    Ok(end - size)
}

fn chown(record: &mut InodeRecord, before: &Owned, set: &SetAttr, who: &Credential) -> Result<(), FsError> {
    if set.uid.is_none() && set.gid.is_none() {
        return Ok(());
    }
    let (uid, gid) = (set.uid.unwrap_or(before.uid), set.gid.unwrap_or(before.gid));
    if !who.is_root() {
        // Ownership is not given away; the owner may choose among the groups it is in.
        let take = before.may_take(who);
        let own =
            (who.uid == before.uid && uid == before.uid) || (take && (uid == before.uid || uid == who.uid));
        if !own || (gid != before.gid && !who.in_group(gid)) {
            return Err(FsError::NotOwner);
        }
    }
    (record.uid, record.gid) = (uid, gid);
    record.mode = before.without_set_id();
    Ok(())
}

fn chmod(record: &mut InodeRecord, before: &Owned, set: &SetAttr, who: &Credential) -> Result<(), FsError> {
    if set.mode.is_none() && set.mode_masked.is_none() {
        return Ok(());
    }
    let (value, mask) = set.mode_masked.unwrap_or_default();
    let mode = set.mode.unwrap_or(before.mode) & !mask | value & mask;
    if mode > 0o7777 {
        return Err(FsError::Invalid);
    }
    before.require_write_acl(who)?;
    // Who is not the owner and may set the list all the same makes no program run as the owner.
    let kept = if before.require_owner(who).is_ok() { 0o7777 } else { 0o777 | before.mode };
    let mode = mode & kept;
    // RFC 8881 §6.4.1.1: the list follows when permission bits are set, also to what they were.
    let permissions = set.mode.is_some() || mask & 0o777 != 0;
    if let Some(acl) = record.acl.take_if(|_| permissions) {
        record.acl = acl.with_mode(before.kind, mode).beyond_mode(before.kind, mode);
    }
    record.mode = mode & !forbidden(record, who);
    Ok(())
}

/// Only a member makes a program run as its group (chmod of POSIX.1-2017), by whatever makes it one that can be executed.
fn forbidden(record: &InodeRecord, who: &Credential) -> u16 {
    let may = who.is_root() || who.in_group(record.gid) || record.kind() == Kind::Directory;
    if may { 0 } else { SET_GID }
}

/// RFC 8881 §6.4.1.2: the permission bits follow, the others stay.
fn set_acl(record: &mut InodeRecord, before: &Owned, set: &SetAttr, who: &Credential) -> Result<(), FsError> {
    let Some(acl) = &set.acl else { return Ok(()) };
    before.require_write_acl(who)?;
    acl.require_fit(before.kind)?;
    record.mode = (record.mode & !0o777 | acl.mode()) & !forbidden(record, who);
    record.acl = acl.clone().beyond_mode(before.kind, record.mode);
    Ok(())
}

fn set_times(inode: &mut Inode, before: &Owned, set: &SetAttr, request: &Request<'_>) -> Result<(), FsError> {
    if set.atime.is_none() && set.mtime.is_none() && set.btime.is_none() {
        return Ok(());
    }
    let explicit = [set.atime, set.mtime].iter().any(|t| matches!(t, Some(SetTime::To(_))));
    let may = before.may_set_times(request.who);
    if explicit || set.btime.is_some() {
        // utimensat of POSIX.1-2017: times of one's choice take ownership, the present time does not.
        if !may {
            return Err(FsError::NotOwner);
        }
    } else if !may && !set.writable_open {
        before.require(request.who, Want::WRITE)?;
    }
    let resolve = |t: SetTime| match t {
        SetTime::Now => request.now,
        SetTime::To(at) => at,
    };
    if let Some(at) = set.atime {
        inode.record.atime = resolve(at);
    }
    if let Some(at) = set.btime {
        inode.record.btime = at;
    }
    if let Some(at) = set.mtime {
        inode.record.mtime = resolve(at);
        let touched = inode.directory.map_or(request.now, |d| d.touched);
        if let Node::Directory(node) = &mut inode.record.node {
            node.mtime_set = request.now.max(touched);
        }
    }
    Ok(())
}

fn set_policy(
    record: &mut InodeRecord,
    before: &Owned,
    set: &SetAttr,
    who: &Credential,
) -> Result<(), FsError> {
    let Some(policy) = set.policy else { return Ok(()) };
    before.require_owner(who)?;
    let Node::Directory(node) = &mut record.node else { return Err(FsError::WrongType) };
    node.policy = policy;
    Ok(())
}
