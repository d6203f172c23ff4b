//! How large the reply of a COMPOUND may be, told from its arguments before anybody has decoded them.
//!
//! Room for that much is set aside while it runs, and it may run for long: behind a recall, or a data server that does not
//! answer. If each had room for a READ of the largest size, a few thousand that wait would leave none for the DELEGRETURN that
//! they wait for.

use sluice_rpc::program::DEFAULT_REPLY_BOUND;
use sluice_xdr::nfs4::nfs_opnum4;

/// What is answered beside data that was asked for. A COMPOUND with more (access control lists of several files) is counted
/// with what it has once it is answered.
const METADATA: usize = 32 << 10;
/// Longer arguments carry data themselves.
const LOOKED_AT: usize = 8 << 10;
/// The largest value of an extended attribute, RFC 8276 on Linux: XATTR_SIZE_MAX.
const XATTR: usize = 64 << 10;
/// SEQUENCE after its number: the session, which may hold any number, and five words.
const SEQUENCE: usize = 8;

/// An upper bound, in bytes, for data and metadata that are asked for in plain ways.
///
/// Where an operation begins only who decodes all before it knows; but it begins with a word of its own. Each word that could
/// be the number of one that is answered with much is taken for it: if it is something else that costs room for a while.
pub(crate) fn of(args: &[u8]) -> usize {
    if args.len() > LOOKED_AT {
        return DEFAULT_REPLY_BOUND;
    }
    let (words, _) = args.as_chunks::<4>();
    let word = |at: usize| words.get(at).map_or(0, |word| u32::from_be_bytes(*word));
    let bytes = |at: usize| usize::try_from(word(at)).unwrap_or(usize::MAX);
    // The tag, the minor version and the number of operations.
    let first = bytes(0).div_ceil(4).saturating_add(3);
    let begin =
        if word(first) == nfs_opnum4::OP_SEQUENCE.0 { first.saturating_add(1 + SEQUENCE) } else { first };
    let mut bound = METADATA;
    for at in begin..words.len() {
        let more = match nfs_opnum4(word(at)) {
            // Behind the stateid and the offset.
            nfs_opnum4::OP_READ | nfs_opnum4::OP_READ_PLUS => bytes(at + 7),
            // Behind the cookie, its verifier and dircount; the device, and the kind of layout.
            nfs_opnum4::OP_READDIR | nfs_opnum4::OP_GETDEVICEINFO => bytes(at + 6),
            // Behind all else.
            nfs_opnum4::OP_LAYOUTGET => bytes(at + 14),
            nfs_opnum4::OP_LISTXATTRS => bytes(at + 3),
            nfs_opnum4::OP_GETXATTR => XATTR,
            _ => 0,
        };
        bound = bound.saturating_add(more);
    }
    bound.min(DEFAULT_REPLY_BOUND)
}

#[cfg(test)]
mod tests {
    use sluice_xdr::nfs4::*;
    use sluice_xdr::to_bytes;

    use super::*;

    fn bound(tag: &'static str, operations: Vec<nfs_argop4>) -> usize {
        let sequence = nfs_argop4::OP_SEQUENCE(SEQUENCE4args {
            // As far as anybody knows it could be OP_READ.
            sa_sessionid: sessionid4([0, 0, 0, 25, 0, 0, 0, 25, 0, 0, 0, 25, 0, 0, 0, 25]),
            sa_sequenceid: 25,
            sa_slotid: 25,
            sa_highest_slotid: 25,
            sa_cachethis: false,
        });
        let argarray = std::iter::once(sequence).chain(operations).collect();
        let args = COMPOUND4args { tag: tag.into(), minorversion: 2, argarray };
        of(&to_bytes(&args).unwrap())
    }

    fn read(count: u32) -> nfs_argop4 {
        nfs_argop4::OP_READ(READ4args { offset: u64::MAX, count, ..READ4args::default() })
    }

    fn file(fill: u8) -> nfs_argop4 {
        nfs_argop4::OP_PUTFH(PUTFH4args { object: nfs_fh4(vec![fill; 40].into()) })
    }

    #[test]
    fn what_asks_for_no_data_keeps_little_room() {
        let getattr = nfs_argop4::OP_GETATTR(GETATTR4args { attr_request: bitmap4::EMPTY });
        let lookup = nfs_argop4::OP_LOOKUP(LOOKUP4args { objname: "a name".into() });
        for tag in ["", "x", "four", "some tag"] {
            assert_eq!(bound(tag, vec![file(7), getattr.clone(), lookup.clone(), getattr.clone()]), METADATA);
        }
        assert_eq!(
            bound("", vec![file(7), nfs_argop4::OP_DELEGRETURN(DELEGRETURN4args::default())]),
            METADATA
        );
        assert_eq!(of(&[]), METADATA);
        assert_eq!(of(&[255; 40]), METADATA);
    }

    #[test]
    fn what_asks_for_data_keeps_room_for_all_of_it() {
        for tag in ["", "x", "four", "some tag"] {
            assert_eq!(bound(tag, vec![file(7), read(5000)]), METADATA + 5000);
            assert_eq!(bound(tag, vec![file(7), read(5000), file(9), read(6000)]), METADATA + 11_000);
            assert_eq!(bound(tag, vec![file(7), read(1 << 20)]), DEFAULT_REPLY_BOUND);
            assert_eq!(bound(tag, vec![file(7), read(u32::MAX)]), DEFAULT_REPLY_BOUND);
        }
        let plus = READ_PLUS4args { rpa_count: 5000, ..READ_PLUS4args::default() };
        let readdir = READDIR4args { dircount: 77, maxcount: 5000, ..READDIR4args::default() };
        let device = GETDEVICEINFO4args { gdia_maxcount: 5000, ..GETDEVICEINFO4args::default() };
        let layout = LAYOUTGET4args { loga_maxcount: 5000, ..LAYOUTGET4args::default() };
        let names = LISTXATTRS4args { lxa_maxcount: 5000, ..LISTXATTRS4args::default() };
        let all = [
            nfs_argop4::OP_READ_PLUS(plus),
            nfs_argop4::OP_READDIR(readdir),
            nfs_argop4::OP_GETDEVICEINFO(device),
            nfs_argop4::OP_LAYOUTGET(layout),
            nfs_argop4::OP_LISTXATTRS(names),
        ];
        for one in all {
            // What else of it could be the number of such an operation is behind it.
            assert!(bound("", vec![file(7), one.clone()]) >= METADATA + 5000, "{one:?}");
        }
        let value = nfs_argop4::OP_GETXATTR(GETXATTR4args { gxa_name: "user.a".into() });
        assert_eq!(bound("", vec![file(7), value]), METADATA + XATTR);
        assert_eq!(
            of(&vec![0; LOOKED_AT + 4]),
            DEFAULT_REPLY_BOUND,
            "it brings data, and may be answered with some"
        );
    }
}
