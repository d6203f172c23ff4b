//! The attributes that clients ask for with every object they meet, written to the wire as they stand in the inode:
//! without a value of each in between, and all entries of a listing into one buffer. What is asked for beyond them goes
//! through `get.rs`; the values are the same.

use bytes::{BufMut, Bytes, BytesMut};
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
    let mut values = Values::default();
    let wants = |number| asked.contains(number);
    // In the order of their numbers (RFC 8881 §3.3.7).
    if wants(FATTR4_TYPE) {
        values.u32(wire_type(inode.kind()).0);
    }
    if wants(FATTR4_CHANGE) {
        values.u64(inode.change);
    }
    if wants(FATTR4_SIZE) {
        values.u64(inode.size());
    }
    if wants(FATTR4_FSID) {
        let fsid = fsid(mds, export);
        values.u64(fsid.major);
        values.u64(fsid.minor);
    }
    if wants(FATTR4_RDATTR_ERROR) {
        values.u32(nfsstat4::NFS4_OK.0);
    }
    if wants(FATTR4_FILEHANDLE) {
        let handle = FileHandle { export, inode: inode.key };
        values.opaque(&mds.namespace.handles().to_wire(&handle));
    }
    if wants(FATTR4_FILEID) {
        values.u64(inode.key.fileid.0);
    }
    if wants(FATTR4_MODE) {
        values.u32(record.mode.into());
    }
    if wants(FATTR4_NUMLINKS) {
        values.u32(inode.nlink());
    }
    if wants(FATTR4_OWNER) {
        values.number_in_text(record.uid);
    }
    if wants(FATTR4_OWNER_GROUP) {
        values.number_in_text(record.gid);
    }
    if wants(FATTR4_RAWDEV) {
        let (major, minor) = inode.device();
        values.u32(major);
        values.u32(minor);
    }
    if wants(FATTR4_SPACE_USED) {
        values.u64(inode.space_used());
    }
    if wants(FATTR4_TIME_ACCESS) {
        values.time(record.atime);
    }
    if wants(FATTR4_TIME_METADATA) {
        values.time(inode.ctime());
    }
    if wants(FATTR4_TIME_MODIFY) {
        values.time(inode.mtime());
    }
    if wants(FATTR4_MOUNTED_ON_FILEID) {
        values.u64(inode.key.fileid.0);
    }
    fattr4 { attrmask: *asked, attr_vals: values.behind(out) }
}

/// Of an entry whose inode nobody has read, those of [`OF_ENTRY`] that are asked for. `out` as in [`of_inode`].
pub(crate) fn of_entry(entry: &Dirent, asked: &bitmap4, out: &mut BytesMut) -> fattr4 {
    let attrmask = asked.and(OF_ENTRY);
    let mut values = Values::default();
    let wants = |number| attrmask.contains(number);
    if wants(FATTR4_TYPE) {
        values.u32(wire_type(entry.kind).0);
    }
    if wants(FATTR4_RDATTR_ERROR) {
        values.u32(nfsstat4::NFS4_OK.0);
    }
    if wants(FATTR4_FILEID) {
        values.u64(entry.inode.fileid.0);
    }
    if wants(FATTR4_MOUNTED_ON_FILEID) {
        values.u64(entry.inode.fileid.0);
    }
    fattr4 { attrmask, attr_vals: values.behind(out) }
}

/// Most bytes that all of them take: the longest filehandle has 128, a number in text ten.
const MOST: usize = 320;

/// Values as they gather. Each is a store or two; only all of them together are copied.
struct Values {
    bytes: [u8; MOST],
    length: usize,
}

impl Default for Values {
    fn default() -> Self {
        Self { bytes: [0; MOST], length: 0 }
    }
}

impl Values {
    #[inline]
    fn put<const N: usize>(&mut self, value: [u8; N]) {
        if let Some(place) = self.bytes.get_mut(self.length..).and_then(|rest| rest.first_chunk_mut()) {
            *place = value;
        }
        self.length += N;
    }

    fn u32(&mut self, value: u32) {
        self.put(value.to_be_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.put(value.to_be_bytes());
    }

    fn time(&mut self, at: Wall) {
        self.put(at.seconds.to_be_bytes());
        self.u32(at.nanos);
    }

    /// RFC 4506 §4.10. What pads it is zero already.
    fn opaque(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        if let Some(place) = self.bytes.get_mut(self.length..self.length + bytes.len()) {
            place.copy_from_slice(bytes);
        }
        self.length += bytes.len().next_multiple_of(4);
    }

    /// As clients with AUTH_SYS expect an owner (RFC 8881 §5.9).
    fn number_in_text(&mut self, number: u32) {
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
        self.opaque(digits.get(at..).unwrap_or_default());
    }

    /// All of them, in a buffer that many share.
    fn behind(&self, out: &mut BytesMut) -> Bytes {
        debug_assert!(self.length <= MOST, "{} bytes", self.length);
        out.put_slice(self.bytes.get(..self.length).unwrap_or_default());
        out.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_text_are_what_the_other_way_writes() {
        for number in [0, 7, 10, 99, 100, 1000, 65_534, 123_456, u32::MAX] {
            let mut values = Values::default();
            values.number_in_text(number);
            let mut expected = sluice_xdr::Writer::default();
            expected.opaque_slice(number.to_string().as_bytes(), u32::MAX);
            let expected = expected.finish().unwrap().to_bytes();
            assert_eq!(values.behind(&mut BytesMut::new()), expected, "{number}");
        }
    }

    #[test]
    fn the_longest_values_fit() {
        let mut values = Values::default();
        // Eight bytes for each attribute are more than those of a fixed length take; then the longest of each other.
        (0..STRAIGHT.count()).for_each(|_| values.u64(u64::MAX));
        values.opaque(&[7; NFS4_FHSIZE as usize]);
        values.number_in_text(u32::MAX);
        values.number_in_text(u32::MAX);
        assert!(values.length <= MOST, "{} bytes", values.length);
    }
}
