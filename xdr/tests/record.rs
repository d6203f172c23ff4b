//! Record marking, RFC 5531 §11.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use proptest::prelude::*;
use sluice_xdr::record::{MAX_FRAGMENTS, frame_record, mark};
use sluice_xdr::{Frame, RecordDecoder, RecordError};

fn fragment(last: bool, body: &[u8]) -> Vec<u8> {
    let mark = u32::try_from(body.len()).unwrap() | if last { 0x8000_0000 } else { 0 };
    [&mark.to_be_bytes()[..], body].concat()
}

fn all(decoder: &mut RecordDecoder) -> Result<Vec<Bytes>, RecordError> {
    std::iter::from_fn(|| decoder.next_record().transpose()).collect()
}

#[test]
fn the_mark() {
    assert_eq!(mark(5), Some([0x80, 0, 0, 5]));
    assert_eq!(mark(0x7fff_ffff), Some([0xff; 4]));
    assert_eq!(mark(0x8000_0000), None);
    let framed = frame_record(Frame::from(Bytes::from_static(b"abcd"))).unwrap();
    assert_eq!(framed.to_bytes(), &b"\x80\0\0\x04abcd"[..]);
}

#[test]
fn records_in_one_fragment_share_the_buffer() {
    let mut decoder = RecordDecoder::new(100);
    let buffer = decoder.buffer();
    buffer.extend_from_slice(&[fragment(true, b"one!"), fragment(true, b"two!")].concat());
    let body = buffer[4..].as_ptr();
    let records = all(&mut decoder).unwrap();
    assert_eq!(records, [&b"one!"[..], b"two!"]);
    assert_eq!(records[0].as_ptr(), body, "copied");
    assert_eq!(decoder.pending(), 0);
}

#[test]
fn fragments_are_joined() {
    let mut decoder = RecordDecoder::new(100);
    decoder.feed(&[fragment(false, b"ab"), fragment(false, b""), fragment(true, b"cd")].concat());
    decoder.feed(&fragment(true, b"next"));
    assert_eq!(all(&mut decoder).unwrap(), [&b"abcd"[..], b"next"]);
    // An empty last fragment ends a record that has content.
    decoder.feed(&[fragment(false, b"ab"), fragment(true, b"")].concat());
    assert_eq!(all(&mut decoder).unwrap(), [&b"ab"[..]]);
}

/// The bound on fragments is one of each record, not of the connection.
#[test]
fn fragments_are_counted_per_record() {
    let mut decoder = RecordDecoder::new(100);
    for _ in 0..MAX_FRAGMENTS {
        decoder.feed(&[fragment(false, b"ab"), fragment(false, b"cd"), fragment(true, b"ef")].concat());
        assert_eq!(all(&mut decoder).unwrap(), [&b"abcdef"[..]]);
    }
}

#[test]
fn the_limit_is_exact_and_holds_for_the_sum() {
    let mut decoder = RecordDecoder::new(4);
    decoder.feed(&fragment(true, b"four"));
    assert_eq!(all(&mut decoder).unwrap(), [&b"four"[..]]);
    decoder.feed(&5_u32.to_be_bytes());
    assert_eq!(decoder.next_record(), Err(RecordError::TooLong { announced: 5, limit: 4 }));

    let mut decoder = RecordDecoder::new(4);
    decoder.feed(&[fragment(false, b"abc"), fragment(true, b"de")].concat());
    assert_eq!(decoder.next_record(), Err(RecordError::TooLong { announced: 5, limit: 4 }));
}

/// A peer that has sent a large record gets room for the next as soon as its mark is there, so that it can be
/// received without growing.
#[test]
fn proven_peers_get_room_at_once() {
    let mut decoder = RecordDecoder::new(1 << 20);
    let large = fragment(true, &vec![7; 1 << 20]);
    decoder.buffer().extend_from_slice(&large[..1000]);
    let free = |d: &mut RecordDecoder| {
        let b = d.buffer();
        b.capacity() - b.len()
    };
    assert!(free(&mut decoder) < 64 * 1024, "unproven");
    decoder.buffer().extend_from_slice(&large[1000..]);
    // Kept, so that its memory is not simply used again.
    let first = all(&mut decoder).unwrap();
    decoder.buffer().extend_from_slice(&large[..1000]);
    assert!(free(&mut decoder) >= large.len() - 1000, "proven");
    let at = decoder.buffer().as_ptr();
    decoder.buffer().extend_from_slice(&large[1000..]);
    assert_eq!(decoder.next_record().unwrap().unwrap().as_ptr(), at.wrapping_add(4), "moved");
    assert_eq!(first.len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// However records are fragmented and however the stream is cut, the same records come out.
    #[test]
    fn any_fragmentation_any_arrival(
        records in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 1..5), 0..8),
        cuts in prop::collection::vec(1..80_usize, 1..20),
    ) {
        let mut stream = Vec::new();
        let mut expected = Vec::new();
        for fragments in records.iter().filter(|f| !f.concat().is_empty()) {
            for (i, body) in fragments.iter().enumerate() {
                stream.extend(fragment(i + 1 == fragments.len(), body));
            }
            expected.push(fragments.concat());
        }
        let mut decoder = RecordDecoder::new(300);
        let (mut found, mut rest, mut cuts) = (Vec::new(), &stream[..], cuts.iter().cycle());
        while !rest.is_empty() {
            let n = (*cuts.next().unwrap()).min(rest.len());
            decoder.buffer().extend_from_slice(&rest[..n]);
            rest = &rest[n..];
            found.extend(all(&mut decoder).unwrap());
        }
        prop_assert_eq!(found, expected);
        prop_assert_eq!(decoder.pending(), 0);
    }
}
