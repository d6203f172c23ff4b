//! The attributes that clients ask for with every object they meet, written to the wire as they stand in the inode:
//! without a value of each in between, and all entries of a listing into one buffer. What is asked for beyond them goes
//! through `get.rs`; the values are the same.

use bytes::{BufMut, BytesMut};
use sluice_env::Wall;
use sluice_namespace::{Dirent, FileHandle, Inode};
use sluice_xdr::nfs4::*;

use super::get::{fsid, wire_type};
use crate::server::Mds;

/// What is written here: supported in every minor version, with layouts or without.
const STRAIGHT: bitmap4 = bitmap4::of(&[
    FATTR4_TYPE,
    FATTR4_CHANGE,
    FATTR4_SIZE,
    FATTR4_FSID,
    FATTR4_RDATTR_ERROR,
    FATTR4_FILEHANDLE,
    FATTR4_FILEID,
    FATTR4_MODE,
    FATTR4_NUMLINKS,
    FATTR4_OWNER,
    FATTR4_OWNER_GROUP,
    FATTR4_RAWDEV,
    FATTR4_SPACE_USED,
    FATTR4_TIME_ACCESS,
    FATTR4_TIME_METADATA,
    FATTR4_TIME_MODIFY,
    FATTR4_MOUNTED_ON_FILEID,
]);

/// What a directory's entry says by itself, whatever becomes of the inode.
pub(crate) const OF_ENTRY: bitmap4 =
    bitmap4::of(&[FATTR4_TYPE, FATTR4_RDATTR_ERROR, FATTR4_FILEID, FATTR4_MOUNTED_ON_FILEID]);

/// Whether nothing but these is asked for.
pub(crate) fn is_all(asked: &bitmap4) -> bool {
    asked.without(STRAIGHT).is_empty()
}

/// Of an inode. `out` is empty, and is again afterwards.
pub(crate) fn of_inode(mds: &Mds, export: u32, inode: &Inode, asked: &bitmap4, out: &mut BytesMut) -> fattr4 {
    let record = &inode.record;
    let wants = |number| asked.contains(number);
    // In the order of their numbers (RFC 8881 §3.3.7).
    if wants(FATTR4_TYPE) {
        out.put_u32(wire_type(inode.kind()).0);
    }
    if wants(FATTR4_CHANGE) {
        out.put_u64(inode.change);
    }
    if wants(FATTR4_SIZE) {
        out.put_u64(inode.size());
    }
    if wants(FATTR4_FSID) {
        let fsid = fsid(mds, export);
        out.put_u64(fsid.major);
        out.put_u64(fsid.minor);
    }
    if wants(FATTR4_RDATTR_ERROR) {
        out.put_u32(nfsstat4::NFS4_OK.0);
    }
    if wants(FATTR4_FILEHANDLE) {
        let handle = FileHandle { export, inode: inode.key };
        opaque(out, &mds.namespace.handles().to_wire(&handle));
    }
    if wants(FATTR4_FILEID) {
        out.put_u64(inode.key.fileid.0);
    }
    if wants(FATTR4_MODE) {
        out.put_u32(record.mode.into());
    }
    if wants(FATTR4_NUMLINKS) {
        out.put_u32(inode.nlink());
    }
    if wants(FATTR4_OWNER) {
        number_in_text(out, record.uid);
    }
    if wants(FATTR4_OWNER_GROUP) {
        number_in_text(out, record.gid);
    }
    if wants(FATTR4_RAWDEV) {
        let (major, minor) = inode.device();
        out.put_u32(major);
        out.put_u32(minor);
    }
    if wants(FATTR4_SPACE_USED) {
        out.put_u64(inode.space_used());
    }
    if wants(FATTR4_TIME_ACCESS) {
        time(out, record.atime);
    }
    if wants(FATTR4_TIME_METADATA) {
        time(out, inode.ctime());
    }
    if wants(FATTR4_TIME_MODIFY) {
        time(out, inode.mtime());
    }
    if wants(FATTR4_MOUNTED_ON_FILEID) {
        out.put_u64(inode.key.fileid.0);
    }
    fattr4 { attrmask: *asked, attr_vals: out.split().freeze() }
}

/// Of an entry whose inode nobody has read, those of [`OF_ENTRY`] that are asked for. `out` as in [`of_inode`].
pub(crate) fn of_entry(entry: &Dirent, asked: &bitmap4, out: &mut BytesMut) -> fattr4 {
    let attrmask = asked.and(OF_ENTRY);
    let wants = |number| attrmask.contains(number);
    if wants(FATTR4_TYPE) {
        out.put_u32(wire_type(entry.kind).0);
    }
    if wants(FATTR4_RDATTR_ERROR) {
        out.put_u32(nfsstat4::NFS4_OK.0);
    }
    if wants(FATTR4_FILEID) {
        out.put_u64(entry.inode.fileid.0);
    }
    if wants(FATTR4_MOUNTED_ON_FILEID) {
        out.put_u64(entry.inode.fileid.0);
    }
    fattr4 { attrmask, attr_vals: out.split().freeze() }
}

fn time(out: &mut BytesMut, at: Wall) {
    out.put_i64(at.seconds);
    out.put_u32(at.nanos);
}

/// RFC 4506 §4.10.
fn opaque(out: &mut BytesMut, bytes: &[u8]) {
    out.put_u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    out.put_slice(bytes);
    out.put_bytes(0, bytes.len().wrapping_neg() % 4);
}

/// As clients with AUTH_SYS expect an owner (RFC 8881 §5.9).
fn number_in_text(out: &mut BytesMut, number: u32) {
    let mut digits = [0; 10];
    let mut at = digits.len();
    let mut left = number;
    for (place, digit) in digits.iter_mut().enumerate().rev() {
        // Below ten.
        *digit = b'0' + (left % 10) as u8;
        (at, left) = (place, left / 10);
        if left == 0 {
            break;
        }
    }
    opaque(out, digits.get(at..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_text_are_what_the_other_way_writes() {
        for number in [0, 7, 10, 99, 100, 1000, 65_534, 123_456, u32::MAX] {
            let mut out = BytesMut::new();
            number_in_text(&mut out, number);
            let text = number.to_string();
            let mut expected = BytesMut::new();
            opaque(&mut expected, text.as_bytes());
            assert_eq!(out, expected, "{number}");
            assert_eq!(out.len() % 4, 0);
        }
    }
}
