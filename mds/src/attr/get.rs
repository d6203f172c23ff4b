//! What an inode looks like to a client. RFC 8881 §5.

use bytes::Bytes;
use sluice_env::Wall;
use sluice_namespace::{FileHandle, FsError, Inode, Kind, MAX_LINKS, MAX_NAME};
use sluice_xdr::nfs4::*;

use super::acl;
use super::delegated::{self, DELEGATED};
use crate::config::Names;
use crate::copies;
use crate::layout::inline;
use crate::quota::standing::Standing;
use crate::server::Mds;

/// Largest READ and WRITE through this server, in bytes. Data servers have their own (layout/device.rs).
pub(crate) const MAX_IO: u64 = 1 << 20;
/// Largest file: the client's loff_t.
const MAX_FILE: u64 = i64::MAX as u64;

/// Attributes that only SETATTR, CREATE and OPEN take (RFC 8881 §5.5; mode_umask: RFC 8275). Linux asks for none of them:
/// what is supported is cut to a list of its own first.
pub(crate) const WRITE_ONLY: bitmap4 = bitmap4::of(&[
    FATTR4_TIME_ACCESS_SET,
    FATTR4_TIME_MODIFY_SET,
    FATTR4_MODE_SET_MASKED,
    FATTR4_MODE_UMASK,
    FATTR4_TIME_DELEG_ACCESS,
    FATTR4_TIME_DELEG_MODIFY,
]);

/// Attributes that writes at the data servers change.
pub(crate) const MOVES_WITH_DATA: bitmap4 =
    bitmap4::of(&[FATTR4_SIZE, FATTR4_CHANGE, FATTR4_SPACE_USED, FATTR4_TIME_MODIFY, FATTR4_TIME_METADATA]);

/// What SETATTR, CREATE and OPEN may set.
pub(crate) const SETTABLE: bitmap4 = bitmap4::of(&[
    FATTR4_SIZE,
    FATTR4_ACL,
    FATTR4_DACL,
    FATTR4_MODE,
    FATTR4_OWNER,
    FATTR4_OWNER_GROUP,
    FATTR4_TIME_ACCESS_SET,
    FATTR4_TIME_CREATE,
    FATTR4_TIME_MODIFY_SET,
    FATTR4_MODE_SET_MASKED,
    FATTR4_MODE_UMASK,
]);

const COMMON: bitmap4 = bitmap4::of(&[
    FATTR4_SUPPORTED_ATTRS,
    FATTR4_TYPE,
    FATTR4_FH_EXPIRE_TYPE,
    FATTR4_CHANGE,
    FATTR4_SIZE,
    FATTR4_LINK_SUPPORT,
    FATTR4_SYMLINK_SUPPORT,
    FATTR4_NAMED_ATTR,
    FATTR4_FSID,
    FATTR4_UNIQUE_HANDLES,
    FATTR4_LEASE_TIME,
    FATTR4_RDATTR_ERROR,
    FATTR4_ACL,
    FATTR4_DACL,
    FATTR4_ACLSUPPORT,
    FATTR4_CANSETTIME,
    FATTR4_CASE_INSENSITIVE,
    FATTR4_CASE_PRESERVING,
    FATTR4_CHOWN_RESTRICTED,
    FATTR4_FILEHANDLE,
    FATTR4_FILEID,
    FATTR4_FILES_AVAIL,
    FATTR4_FILES_FREE,
    FATTR4_FILES_TOTAL,
    FATTR4_FS_CHARSET_CAP,
    FATTR4_HOMOGENEOUS,
    FATTR4_MAXFILESIZE,
    FATTR4_MAXLINK,
    FATTR4_MAXNAME,
    FATTR4_MAXREAD,
    FATTR4_MAXWRITE,
    FATTR4_MODE,
    FATTR4_NO_TRUNC,
    FATTR4_NUMLINKS,
    FATTR4_OWNER,
    FATTR4_OWNER_GROUP,
    FATTR4_QUOTA_AVAIL_HARD,
    FATTR4_QUOTA_AVAIL_SOFT,
    FATTR4_QUOTA_USED,
    FATTR4_RAWDEV,
    FATTR4_SPACE_AVAIL,
    FATTR4_SPACE_FREE,
    FATTR4_SPACE_TOTAL,
    FATTR4_SPACE_USED,
    FATTR4_TIME_ACCESS,
    FATTR4_TIME_ACCESS_SET,
    FATTR4_TIME_CREATE,
    FATTR4_TIME_DELTA,
    FATTR4_TIME_METADATA,
    FATTR4_TIME_MODIFY,
    FATTR4_TIME_MODIFY_SET,
    FATTR4_MOUNTED_ON_FILEID,
    FATTR4_SUPPATTR_EXCLCREAT,
    FATTR4_MODE_SET_MASKED,
    // Of RFC 9754, which has it for NFSv4.2; a client of 4.1 that knows of it may ask all the same.
    FATTR4_OPEN_ARGUMENTS,
]);

const LAYOUTS: bitmap4 = bitmap4::of(&[FATTR4_FS_LAYOUT_TYPES, FATTR4_LAYOUT_BLKSIZE, FATTR4_MDSTHRESHOLD]);
const MINOR_TWO: bitmap4 =
    bitmap4::of(&[FATTR4_CHANGE_ATTR_TYPE, FATTR4_CLONE_BLKSIZE, FATTR4_MODE_UMASK, FATTR4_XATTR_SUPPORT]);

/// What this server supports in minor version `minor`.
pub(crate) fn supported(mds: &Mds, minor: u32) -> bitmap4 {
    let mut all = COMMON;
    if mds.config.layouts {
        all = all.or(LAYOUTS);
    }
    if minor >= 2 {
        all = all.or(MINOR_TWO);
        if delegated::offered(mds) {
            all = all.or(DELEGATED);
        }
    }
    all
}

/// The attributes of `inode` that `asked` names and this server supports; the rest is left out.
pub(crate) fn attributes(
    mds: &Mds,
    minor: u32,
    export: u32,
    (inode, standing): (&Inode, Option<&Standing>),
    asked: &bitmap4,
) -> Attributes {
    let supported = supported(mds, minor);
    let want = |number: u32| asked.contains(number) && supported.contains(number);
    let mut out = Attributes::default();
    of_inode(&mut out, inode, &want);
    of_file_system(&mut out, mds, export, &want);
    if !asked.and(SPACE.or(QUOTA)).is_empty() {
        of_room(&mut out, mds, standing, &want);
    }
    if want(FATTR4_SUPPORTED_ATTRS) {
        out.supported_attrs = Some(supported);
    }
    if want(FATTR4_SUPPATTR_EXCLCREAT) {
        out.suppattr_exclcreat = Some(supported.and(SETTABLE));
    }
    if want(FATTR4_FSID) {
        out.fsid = Some(fsid(mds, export));
    }
    if want(FATTR4_FILEHANDLE) {
        let handle = FileHandle { export, inode: inode.key };
        out.filehandle = Some(nfs_fh4(mds.namespace.handles().to_wire(&handle)));
    }
    out
}

/// The file system: one per export of one store.
pub(crate) fn fsid(mds: &Mds, export: u32) -> fsid4 {
    let [a, b, c, d, e, f, g, h, ..] = mds.namespace.superblock().uuid;
    fsid4 { major: u64::from_be_bytes([a, b, c, d, e, f, g, h]), minor: export.into() }
}

/// An id as clients with AUTH_SYS expect it: a number in text (RFC 8881 §5.9).
pub(crate) fn numeric(id: u32) -> Bytes {
    id.to_string().into()
}

/// A time on the wire.
pub(crate) fn wire_time(at: Wall) -> nfstime4 {
    nfstime4 { seconds: at.seconds, nseconds: at.nanos }
}

/// The type on the wire.
pub(crate) fn wire_type(kind: Kind) -> nfs_ftype4 {
    match kind {
        Kind::File => nfs_ftype4::NF4REG,
        Kind::Directory => nfs_ftype4::NF4DIR,
        Kind::Symlink => nfs_ftype4::NF4LNK,
        Kind::BlockDevice => nfs_ftype4::NF4BLK,
        Kind::CharDevice => nfs_ftype4::NF4CHR,
        Kind::Fifo => nfs_ftype4::NF4FIFO,
        Kind::Socket => nfs_ftype4::NF4SOCK,
    }
}

fn of_inode(out: &mut Attributes, inode: &Inode, want: &impl Fn(u32) -> bool) {
    macro_rules! set {
        ($number:ident $field:ident $value:expr) => {
            if want($number) {
                out.$field = Some($value);
            }
        };
    }
    set!(FATTR4_TYPE type_ wire_type(inode.kind()));
    set!(FATTR4_CHANGE change inode.change);
    set!(FATTR4_SIZE size inode.size());
    set!(FATTR4_NAMED_ATTR named_attr false);
    set!(FATTR4_ACL acl acl::to_wire(inode));
    set!(FATTR4_DACL dacl acl::to_dacl(inode));
    set!(FATTR4_FILEID fileid inode.key.fileid.0);
    set!(FATTR4_MOUNTED_ON_FILEID mounted_on_fileid inode.key.fileid.0);
    set!(FATTR4_MODE mode inode.record.mode.into());
    set!(FATTR4_NUMLINKS numlinks inode.nlink());
    set!(FATTR4_OWNER owner numeric(inode.record.uid));
    set!(FATTR4_OWNER_GROUP owner_group numeric(inode.record.gid));
    set!(FATTR4_RAWDEV rawdev {
        let (specdata1, specdata2) = inode.device();
        specdata4 { specdata1, specdata2 }
    });
    set!(FATTR4_SPACE_USED space_used inode.space_used());
    set!(FATTR4_TIME_ACCESS time_access wire_time(inode.record.atime));
    set!(FATTR4_TIME_CREATE time_create wire_time(inode.record.btime));
    set!(FATTR4_TIME_METADATA time_metadata wire_time(inode.ctime()));
    set!(FATTR4_MDSTHRESHOLD mdsthreshold threshold(inode));
    set!(FATTR4_TIME_MODIFY time_modify wire_time(inode.mtime()));
}

/// RFC 8881 §5.12.4: up to where a client had better leave reading and writing to this server. Of a file that has
/// data files there is nothing to say.
fn threshold(inode: &Inode) -> mdsthreshold4 {
    let hint = |inline| {
        let (size, written) = inline::thresholds(inline);
        // In the order of their numbers: both sizes, bytes written.
        let hints = [size, size, written].map(u64::to_be_bytes).concat();
        threshold_item4 {
            thi_layout_type: layouttype4::LAYOUT4_FLEX_FILES,
            thi_hintset: bitmap4::of(&[TH4_READ_SIZE, TH4_WRITE_SIZE, TH4_WRITE_IOSIZE]),
            thi_hintlist: hints.into(),
        }
    };
    mdsthreshold4 { mth_hints: inode.inline().into_iter().map(hint).collect() }
}

/// What OPEN takes (RFC 9754 §3).
fn open_arguments(mds: &Mds) -> open_arguments4 {
    use open_args_createmode4 as mode;
    use open_args_open_claim4 as claim;
    use open_args_share_access_want4 as want;
    use open_args_share_access4 as access;
    use open_args_share_deny4 as deny;
    let mut wants = bitmap4::of(&[
        want::OPEN_ARGS_SHARE_ACCESS_WANT_ANY_DELEG.0,
        want::OPEN_ARGS_SHARE_ACCESS_WANT_NO_DELEG.0,
        want::OPEN_ARGS_SHARE_ACCESS_WANT_CANCEL.0,
        want::OPEN_ARGS_SHARE_ACCESS_WANT_OPEN_XOR_DELEGATION.0,
    ]);
    if delegated::offered(mds) {
        wants.insert(want::OPEN_ARGS_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS.0);
    }
    open_arguments4 {
        oa_share_access: bitmap4::of(&[
            access::OPEN_ARGS_SHARE_ACCESS_READ.0,
            access::OPEN_ARGS_SHARE_ACCESS_WRITE.0,
            access::OPEN_ARGS_SHARE_ACCESS_BOTH.0,
        ]),
        oa_share_deny: bitmap4::of(&[
            deny::OPEN_ARGS_SHARE_DENY_NONE.0,
            deny::OPEN_ARGS_SHARE_DENY_READ.0,
            deny::OPEN_ARGS_SHARE_DENY_WRITE.0,
            deny::OPEN_ARGS_SHARE_DENY_BOTH.0,
        ]),
        oa_share_access_want: wants,
        oa_open_claim: bitmap4::of(&[
            claim::OPEN_ARGS_OPEN_CLAIM_NULL.0,
            claim::OPEN_ARGS_OPEN_CLAIM_PREVIOUS.0,
            claim::OPEN_ARGS_OPEN_CLAIM_DELEGATE_CUR.0,
            claim::OPEN_ARGS_OPEN_CLAIM_FH.0,
            claim::OPEN_ARGS_OPEN_CLAIM_DELEG_CUR_FH.0,
        ]),
        oa_create_mode: bitmap4::of(&[
            mode::OPEN_ARGS_CREATEMODE_UNCHECKED4.0,
            mode::OPEN_ARGS_CREATE_MODE_GUARDED.0,
            mode::OPEN_ARGS_CREATEMODE_EXCLUSIVE4.0,
            mode::OPEN_ARGS_CREATE_MODE_EXCLUSIVE4_1.0,
        ]),
    }
}

fn of_file_system(out: &mut Attributes, mds: &Mds, export: u32, want: &impl Fn(u32) -> bool) {
    macro_rules! set {
        ($($number:ident $field:ident $value:expr;)*) => {
            $(if want($number) {
                out.$field = Some($value);
            })*
        };
    }
    set! {
        FATTR4_FH_EXPIRE_TYPE fh_expire_type FH4_PERSISTENT;
        FATTR4_LINK_SUPPORT link_support true;
        FATTR4_SYMLINK_SUPPORT symlink_support true;
        FATTR4_UNIQUE_HANDLES unique_handles true;
        FATTR4_LEASE_TIME lease_time u32::try_from(mds.config.lease.as_secs()).unwrap_or(u32::MAX);
        FATTR4_RDATTR_ERROR rdattr_error nfsstat4::NFS4_OK;
        FATTR4_ACLSUPPORT aclsupport acl::SUPPORT;
        FATTR4_CANSETTIME cansettime true;
        FATTR4_CASE_INSENSITIVE case_insensitive false;
        FATTR4_CASE_PRESERVING case_preserving true;
        FATTR4_CHOWN_RESTRICTED chown_restricted true;
        FATTR4_FS_CHARSET_CAP fs_charset_cap charset(mds.config.names);
        FATTR4_HOMOGENEOUS homogeneous true;
        FATTR4_MAXFILESIZE maxfilesize MAX_FILE;
        FATTR4_MAXLINK maxlink MAX_LINKS;
        FATTR4_MAXNAME maxname u32::try_from(MAX_NAME).unwrap_or(255);
        FATTR4_MAXREAD maxread MAX_IO;
        FATTR4_MAXWRITE maxwrite MAX_IO;
        FATTR4_NO_TRUNC no_trunc true;
        FATTR4_TIME_DELTA time_delta nfstime4 { seconds: 0, nseconds: 1 };
        FATTR4_FS_LAYOUT_TYPES fs_layout_types vec![layouttype4::LAYOUT4_FLEX_FILES];
        FATTR4_LAYOUT_BLKSIZE layout_blksize 1 << 20;
        // It does count upwards. But a Linux that knows so takes any reply with a higher change, and the size in
        // it, even if its own write to a data server has ended since it asked; not knowing, it goes by its own order.
        FATTR4_CHANGE_ATTR_TYPE change_attr_type change_attr_type4::NFS4_CHANGE_TYPE_IS_UNDEFINED;
        FATTR4_CLONE_BLKSIZE clone_blksize u32::try_from(copies::clone::BLOCK).unwrap_or(u32::MAX);
        FATTR4_XATTR_SUPPORT xattr_support export != FileHandle::PSEUDO_EXPORT;
        FATTR4_OPEN_ARGUMENTS open_arguments Box::new(open_arguments(mds));
    }
}

/// RFC 8881 §14.4: one of the two.
const fn charset(names: Names) -> fs_charset_cap4 {
    match names {
        Names::Any => FSCHARSET_CAP4_CONTAINS_NON_UTF8,
        Names::Utf8 => FSCHARSET_CAP4_ALLOWS_ONLY_UTF8,
    }
}

/// Attributes that tell how full the data servers are. Whoever asks for one file's wants to know how full they are now
/// (statfs); with the entries of a directory they are as last heard.
pub(crate) const SPACE: bitmap4 = bitmap4::of(&[
    FATTR4_SPACE_AVAIL,
    FATTR4_SPACE_FREE,
    FATTR4_SPACE_TOTAL,
    FATTR4_FILES_AVAIL,
    FATTR4_FILES_FREE,
    FATTR4_FILES_TOTAL,
]);

/// Those that tell what the owner may still use, and what is used.
const QUOTA: bitmap4 = bitmap4::of(&[FATTR4_QUOTA_AVAIL_HARD, FATTR4_QUOTA_AVAIL_SOFT, FATTR4_QUOTA_USED]);

/// What has to be known of quotas to answer `asked`; nothing, mostly.
///
/// # Errors
/// What the store says.
pub(crate) async fn standing(mds: &Mds, inode: &Inode, asked: &bitmap4) -> Result<Option<Standing>, FsError> {
    let needed =
        !asked.and(QUOTA).is_empty() || (inode.record.tree.is_some() && !asked.and(SPACE).is_empty());
    if !needed {
        return Ok(None);
    }
    Box::pin(mds.standing(inode)).await.map(Some)
}

/// What there is room for: in a tree with limits, as if it were a file system of its own.
fn of_room(out: &mut Attributes, mds: &Mds, standing: Option<&Standing>, want: &impl Fn(u32) -> bool) {
    macro_rules! set {
        ($($number:ident $field:ident $value:expr;)*) => {
            $(if want($number) {
                out.$field = Some($value);
            })*
        };
    }
    let capacity = mds.data_servers.capacity();
    let tree = standing.and_then(|standing| standing.tree).unwrap_or_default();
    let (total, free) = tree.bytes.unwrap_or((capacity.total_bytes, capacity.free_bytes));
    let free = free.min(capacity.free_bytes);
    let (files_total, files_free) =
        tree.files.unwrap_or((capacity.free_inodes.saturating_add(capacity.files), capacity.free_inodes));
    let files_free = files_free.min(capacity.free_inodes);
    // RFC 8881 §5.8.2.28: what others may use up first is left all the same.
    let left = |left: Option<u64>| left.map_or(free, |left| left.min(free));
    set! {
        FATTR4_QUOTA_AVAIL_HARD quota_avail_hard left(standing.and_then(|standing| standing.left_hard));
        FATTR4_QUOTA_AVAIL_SOFT quota_avail_soft left(standing.and_then(|standing| standing.left_soft));
        FATTR4_SPACE_AVAIL space_avail free;
        FATTR4_SPACE_FREE space_free free;
        FATTR4_SPACE_TOTAL space_total total;
        FATTR4_FILES_AVAIL files_avail files_free;
        FATTR4_FILES_FREE files_free files_free;
        FATTR4_FILES_TOTAL files_total files_total;
        FATTR4_QUOTA_USED quota_used standing.map_or(0, |standing| standing.used);
    }
}
