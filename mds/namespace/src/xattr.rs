//! Extended attributes of the `user` namespace (RFC 8276), each a row of its own.

use bytes::Bytes;
use sluice_kv::Transaction;

use crate::codec::{Reader, Writer};
use crate::credential::{Credential, Owned, STICKY, Want};
use crate::error::FsError;
use crate::inode::{Inode, InodeRecord, Kind};
use crate::keys::{self, InodeKey};
use crate::pending::{DirectoryChange, Pending};
use crate::{Namespace, Request, directory, fetch};

/// Greatest length of a value, in bytes (Linux's XATTR_SIZE_MAX).
pub const MAX_XATTR: usize = 65_536;
/// Greatest length of a name without its `user.`, in bytes (Linux's XATTR_NAME_MAX).
const MAX_XATTR_NAME: usize = 255 - 5;
/// Greatest number of attributes of one inode: a listing fits one transaction.
pub const MAX_XATTRS: usize = 4096;
/// Longer values have a row of their own, so that a listing of names does not read them.
const MAX_SHORT: usize = 1024;
/// Names read at a time.
const PAGE: usize = 128;

/// What must be there when an attribute is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattr {
    Either,
    Create,
    Replace,
}

impl Namespace {
    /// The value of an attribute.
    ///
    /// Errors: Stale, Access, NoXattr, BadName, NameTooLong.
    pub async fn get_xattr(
        &self,
        txn: &Transaction,
        key: &InodeKey,
        name: &[u8],
        who: &Credential,
    ) -> Result<Bytes, FsError> {
        check_name(name)?;
        let record = fetch::record(txn, key).await?;
        permit(&record, who, Want::READ)?;
        let row = if record.xattrs { txn.get(&keys::xattr(key.fileid, name)).await? } else { None };
        match decode(row.ok_or(FsError::NoXattr)?)? {
            Row::Short(value) => Ok(value),
            Row::Long => {
                let value = txn.get(&keys::xattr_value(key.fileid, name)).await?;
                decode_long(value.ok_or(FsError::corrupt("extended attribute without value"))?)
            }
        }
    }

    /// The names of the attributes, in order.
    ///
    /// Errors: Stale, Access.
    pub async fn list_xattrs(
        &self,
        txn: &Transaction,
        key: &InodeKey,
        who: &Credential,
    ) -> Result<Vec<Bytes>, FsError> {
        let record = fetch::record(txn, key).await?;
        // What cannot have any has an empty list, as on Linux.
        if !matches!(record.kind(), Kind::File | Kind::Directory) {
            return Ok(Vec::new());
        }
        permit(&record, who, Want::READ)?;
        if !record.xattrs {
            return Ok(Vec::new());
        }
        names(txn, key).await
    }

    /// Sets an attribute.
    ///
    /// Errors: Stale, Access, NotOwner, Exists (Create), NoXattr (Replace), XattrTooBig, NoSpace
    /// (too many), BadName, NameTooLong.
    pub async fn set_xattr(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
        request: &Request<'_>,
    ) -> Result<Pending<DirectoryChange>, FsError> {
        check_name(name)?;
        if value.len() > MAX_XATTR {
            return Err(FsError::XattrTooBig);
        }
        let inode = fetch::inode_beside(txn, key, self.base()).await?;
        permit(&inode.record, request.who, Want::WRITE)?;
        let row = keys::xattr(key.fileid, name);
        match (txn.get(&row).await?.is_some(), how) {
            (true, SetXattr::Create) => return Err(FsError::Exists),
            (false, SetXattr::Replace) => return Err(FsError::NoXattr),
            (true, _) => {}
            (false, _) if inode.record.xattrs && names(txn, key).await?.len() >= MAX_XATTRS => {
                return Err(FsError::NoSpace);
            }
            (false, _) => {}
        }
        let long = value.len() > MAX_SHORT;
        let mut w = Writer::with_capacity(2 + if long { 0 } else { value.len() });
        w.u8(1).bool(long);
        if long {
            let mut v = Writer::with_capacity(1 + value.len());
            txn.set(keys::xattr_value(key.fileid, name), v.u8(1).raw(value).finish());
        } else {
            w.raw(value);
            txn.clear(keys::xattr_value(key.fileid, name));
        }
        txn.set(row, w.finish());
        Ok(self.xattrs_changed(txn, inode, true, request))
    }

    /// Removes an attribute.
    ///
    /// Errors: Stale, Access, NotOwner, NoXattr, BadName, NameTooLong.
    pub async fn remove_xattr(
        &self,
        txn: &mut Transaction,
        key: &InodeKey,
        name: &[u8],
        request: &Request<'_>,
    ) -> Result<Pending<DirectoryChange>, FsError> {
        check_name(name)?;
        let inode = fetch::inode_beside(txn, key, self.base()).await?;
        permit(&inode.record, request.who, Want::WRITE)?;
        let row = keys::xattr(key.fileid, name);
        if txn.get(&row).await?.is_none() {
            return Err(FsError::NoXattr);
        }
        txn.clear(row);
        txn.clear(keys::xattr_value(key.fileid, name));
        let left = !txn.range(&keys::xattrs(key.fileid), 1, false).await?.is_empty();
        Ok(self.xattrs_changed(txn, inode, left, request))
    }

    fn xattrs_changed(
        &self,
        txn: &mut Transaction,
        mut inode: Inode,
        left: bool,
        request: &Request<'_>,
    ) -> Pending<DirectoryChange> {
        let atomic = directory::hold(txn, &inode, request);
        inode.record.xattrs = left;
        inode.record.ctime = request.now;
        fetch::put(txn, &inode.key, &inode.record);
        Pending::new(DirectoryChange { before: inode.change, after: 0, atomic }, self.base())
    }
}

/// Up to the greatest number there can be.
async fn names(txn: &Transaction, key: &InodeKey) -> Result<Vec<Bytes>, FsError> {
    // The name follows the prefix byte and the file's number.
    const AT: usize = 1 + 8;
    let mut found = Vec::new();
    let mut range = keys::xattrs(key.fileid);
    loop {
        // Short values come along.
        let rows = txn.range(&range, PAGE, false).await?;
        let Some((last, _)) = rows.last() else { return Ok(found) };
        range = keys::after(last, &range);
        found.extend(rows.iter().map(|(key, _)| key.slice(AT.min(key.len())..)));
        if rows.len() < PAGE {
            return Ok(found);
        }
    }
}

enum Row {
    Short(Bytes),
    /// The value is in a row of its own.
    Long,
}

fn decode(value: Bytes) -> Result<Row, FsError> {
    let mut r = Reader::new("extended attribute", value);
    r.schema(1)?;
    if r.bool()? {
        r.finish()?;
        return Ok(Row::Long);
    }
    Ok(Row::Short(r.rest()))
}

fn decode_long(value: Bytes) -> Result<Bytes, FsError> {
    let mut r = Reader::new("value of an extended attribute", value);
    r.schema(1)?;
    Ok(r.rest())
}

fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.len() > MAX_XATTR_NAME {
        return Err(FsError::NameTooLong);
    }
    if name.is_empty() || name.contains(&0) { Err(FsError::BadName) } else { Ok(()) }
}

/// User attributes belong to files and directories; in a sticky directory only its owner sets them
/// (xattr(7) of Linux).
fn permit(record: &InodeRecord, who: &Credential, want: Want) -> Result<(), FsError> {
    let owned: Owned = record.owned();
    match owned.kind {
        Kind::File => {}
        Kind::Directory if want == Want::WRITE && owned.mode & STICKY != 0 => owned.require_owner(who)?,
        Kind::Directory => {}
        _ if want == Want::WRITE => return Err(FsError::NotOwner),
        _ => return Err(FsError::NoXattr),
    }
    owned.require_xattrs(who, want)
}
