//! Small READs and WRITEs as they lie in the receive buffer, for those that are answered at once. Words that do
//! not fit the usual shape exactly are no concern of this: the decoder proper judges them.

use bytes::{BufMut, BytesMut};
use sluice_xdr::capability::CAPABILITY_SIZE;
use sluice_xdr::nfs3::nfsstat3;

/// Where the handle of a capability ends: its length is in front of it.
const HANDLE_END: usize = 4 + CAPABILITY_SIZE;

fn word(args: &[u8], at: usize) -> Option<u32> {
    args.get(at..)?.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes))
}

/// What both begin with: `handle`, `offset`, `count`. RFC 1813 §3.3.6, §3.3.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range<'a> {
    pub(super) handle: &'a [u8],
    pub(super) offset: u64,
    pub(super) count: u32,
}

/// The arguments of a READ and nothing else.
pub(super) fn read_args(args: &[u8]) -> Option<Range<'_>> {
    range(args).filter(|_| args.len() == HANDLE_END + 12)
}

/// The arguments of a WRITE of whole words: range, stability and payload.
pub(super) fn write_args(args: &[u8]) -> Option<(Range<'_>, u32, &[u8])> {
    begun_write(args, args.len())
}

/// The same of one whose arguments will have `length` bytes, and of the payload as much as is here.
pub(super) fn begun_write(args: &[u8], length: usize) -> Option<(Range<'_>, u32, &[u8])> {
    let range = range(args)?;
    let (stable, payload) = (word(args, HANDLE_END + 12)?, word(args, HANDLE_END + 16)?);
    let data = args.get(HANDLE_END + 20..)?;
    let ends = HANDLE_END + 20 + payload as usize == length;
    let whole = payload == range.count && ends && payload.is_multiple_of(4);
    whole.then_some((range, stable, data))
}

fn range(args: &[u8]) -> Option<Range<'_>> {
    if word(args, 0)? as usize != CAPABILITY_SIZE {
        return None;
    }
    let offset = args.get(HANDLE_END..)?.first_chunk::<8>()?;
    Some(Range {
        handle: args.get(4..HANDLE_END)?,
        offset: u64::from_be_bytes(*offset),
        count: word(args, HANDLE_END + 8)?,
    })
}

/// A refusal, followed by so many words that say "no attributes".
pub(super) fn refuse(result: &mut BytesMut, status: nfsstat3, words: usize) -> bool {
    result.put_u32(status.0);
    result.put_bytes(0, 4 * words);
    true
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use sluice_xdr::nfs3::{READ3args, WRITE3args, nfs_fh3, stable_how};
    use sluice_xdr::to_bytes;

    use super::*;

    fn file(length: usize) -> nfs_fh3 {
        nfs_fh3 { data: vec![7; length].into() }
    }

    #[test]
    fn a_read_is_read_and_nothing_like_it() {
        let read = |length| to_bytes(&READ3args { file: file(length), offset: 1 << 40, count: 5 }).unwrap();
        let good = read(CAPABILITY_SIZE);
        let expected = Range { handle: &[7; CAPABILITY_SIZE], offset: 1 << 40, count: 5 };
        assert_eq!(read_args(&good), Some(expected));
        for end in 0..good.len() {
            assert_eq!(read_args(&good[..end]), None, "{end} bytes");
        }
        assert_eq!(read_args(&[&good[..], &[0; 4]].concat()), None, "bytes left over");
        assert_eq!(read_args(&read(28)), None);
    }

    #[test]
    fn a_write_is_read_and_nothing_like_it() {
        let write = |count, data: &'static [u8]| {
            let (stable, data) = (stable_how::DATA_SYNC, Bytes::from_static(data));
            to_bytes(&WRITE3args { file: file(CAPABILITY_SIZE), offset: 9, count, stable, data }).unwrap()
        };
        let good = write(8, b"12345678");
        let (range, stable, data) = write_args(&good).unwrap();
        assert_eq!((range.offset, range.count, stable, data), (9, 8, 1, &b"12345678"[..]));
        for end in 0..good.len() {
            assert_eq!(write_args(&good[..end]), None, "{end} bytes");
        }
        assert_eq!(write_args(&write(4, b"12345678")), None, "count and payload differ");
        assert_eq!(write_args(&write(7, b"1234567")), None, "padding");
    }
}
