//! The writer: limits, roll-back, patches, payloads by reference.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use proptest::prelude::*;
use sluice_xdr::writer::SPLICE_MIN;
use sluice_xdr::{EncodeError, Frame, Writer};

fn payload(len: usize) -> Bytes {
    (0..len).map(|i| i.to_le_bytes()[0]).collect::<Vec<_>>().into()
}

#[test]
fn a_large_payload_is_referenced_and_padded() {
    let data = payload(SPLICE_MIN + 1);
    let mut w = Writer::default();
    w.u32(7);
    w.opaque(&data, u32::MAX);
    w.u32(8);
    let frame = w.finish().unwrap();
    let segments = frame.segments();
    assert_eq!(segments.len(), 3);
    assert_eq!(segments[0], &[0, 0, 0, 7, 0, 0, 0x10, 1][..]);
    assert_eq!(segments[1].as_ptr(), data.as_ptr(), "copied");
    assert_eq!(segments[2], &[0, 0, 0, 0, 0, 0, 8][..]);
    assert_eq!(frame.len(), segments.iter().map(Bytes::len).sum::<usize>());
    assert_eq!(frame.to_bytes(), segments.concat());
}

#[test]
fn a_small_payload_is_copied_into_one_segment() {
    let mut w = Writer::default();
    w.opaque(&payload(SPLICE_MIN - 1), u32::MAX);
    assert_eq!(w.finish().unwrap().segments().len(), 1);
}

#[test]
fn what_was_written_since_a_mark_is_copied_whole() {
    let data = payload(SPLICE_MIN);
    let mut w = Writer::default();
    w.u32(1);
    w.opaque(&data, u32::MAX);
    let mark = w.mark();
    assert_eq!((w.since(&mark).len(), w.len_since(&mark)), (0, 0));
    w.u32(2);
    w.splice(&data);
    w.u32(3);
    let mut expected = vec![0, 0, 0, 2];
    expected.extend_from_slice(&data);
    expected.extend_from_slice(&[0, 0, 0, 3]);
    assert_eq!((w.since(&mark), w.len_since(&mark)), (expected.clone(), expected.len()));
    assert!(w.finish().unwrap().to_bytes().ends_with(&expected));
}

#[test]
fn in_one_buffer_is_the_same_message() {
    for length in [0, 5, SPLICE_MIN, SPLICE_MIN + 1] {
        let message = || {
            let mut w = Writer::default();
            w.u32(1);
            w.opaque(&payload(length), u32::MAX);
            w.u32(2);
            w
        };
        assert_eq!(message().finish_in_one().unwrap(), message().finish().unwrap().to_bytes(), "{length}");
    }
    let mut w = Writer::new(4);
    w.u64(1);
    assert_eq!(w.finish_in_one().err(), Some(EncodeError::Overflow(4)));
}

#[test]
fn the_limit_is_exact_and_sticky() {
    let mut w = Writer::new(12);
    w.u64(1);
    assert_eq!((w.len(), w.room(), w.error()), (8, 4, None));
    w.u64(2);
    assert_eq!((w.len(), w.error()), (8, Some(EncodeError::Overflow(12))));
    // What is smaller does not slip in behind what did not fit.
    w.u32(3);
    assert_eq!(w.len(), 8);
    assert_eq!(w.finish().err(), Some(EncodeError::Overflow(12)));
    let mut w = Writer::new(12);
    w.u64(1);
    w.u32(2);
    assert_eq!((w.room(), w.error()), (0, None));

    let mut w = Writer::new(SPLICE_MIN + 3);
    w.opaque(&payload(SPLICE_MIN), u32::MAX);
    assert!(w.error().is_some(), "the limit counts referenced payloads too");
}

#[test]
fn rolling_back_drops_bytes_payloads_and_the_error() {
    let mut w = Writer::new(2 * SPLICE_MIN);
    w.u32(1);
    let mark = w.mark();
    w.opaque(&payload(SPLICE_MIN), u32::MAX);
    w.opaque(&payload(SPLICE_MIN), u32::MAX);
    assert!(w.error().is_some());
    w.truncate(mark);
    assert_eq!((w.len(), w.error()), (4, None));
    w.u32(2);
    assert_eq!(w.finish().unwrap().into_bytes(), &[0, 0, 0, 1, 0, 0, 0, 2][..]);
}

#[test]
fn try_encode_is_all_or_nothing() {
    let mut w = Writer::new(10);
    assert_eq!(w.try_encode(&1_u64), Ok(()));
    assert_eq!(w.try_encode(&2_u32), Err(EncodeError::Overflow(10)));
    assert_eq!((w.len(), w.error()), (8, None));
}

#[test]
fn a_part_may_have_a_limit_of_its_own() {
    let mut w = Writer::new(100);
    let outer = w.set_limit(4);
    w.u64(1);
    assert_eq!(w.error(), Some(EncodeError::Overflow(4)));
    assert_eq!((outer, w.limit()), (100, 4));
}

#[test]
fn reserved_words_are_patched_wherever_they_are() {
    let mut w = Writer::default();
    let first = w.reserve_u32();
    w.opaque(&payload(SPLICE_MIN), u32::MAX);
    let second = w.reserve_u32();
    w.patch(second, 2);
    w.patch(first, 1);
    let bytes = w.finish().unwrap().into_bytes();
    assert_eq!(&bytes[..4], &[0, 0, 0, 1]);
    assert_eq!(&bytes[8 + SPLICE_MIN..], &[0, 0, 0, 2]);

    let mut w = Writer::new(0);
    let none = w.reserve_u32();
    w.patch(none, 1);
    assert!(w.is_empty());
}

#[test]
fn declared_maxima_are_checked() {
    let mut w = Writer::default();
    w.opaque(&payload(5), 4);
    assert_eq!(w.error(), Some(EncodeError::Bound { length: 5, maximum: 4 }));
    let mut w = Writer::default();
    w.array(&[1_u32, 2, 3], 2, |w, v| w.u32(*v));
    assert_eq!(w.finish().err(), Some(EncodeError::Bound { length: 3, maximum: 2 }));
}

#[test]
fn frames_join() {
    let mut frame = Frame::from(Bytes::from_static(b"body"));
    frame.prepend(Bytes::from_static(b"head"));
    frame.append(Frame::from(Bytes::from_static(b"tail")));
    frame.append(Frame::empty());
    assert_eq!((frame.len(), frame.to_bytes()), (12, Bytes::from_static(b"headbodytail")));
    let mut w = Writer::default();
    w.frame(&frame);
    assert_eq!(w.finish().unwrap().segments().len(), 1);
    assert!(Frame::empty().is_empty() && Frame::empty().into_bytes().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is written, in whatever mixture, comes out in order, and `len` is right all along.
    #[test]
    fn order_is_kept(sizes in prop::collection::vec(prop_oneof![0..40_usize, 4090..4100_usize], 0..20), limit in 0..60_000_usize) {
        let mut w = Writer::new(limit);
        let mut expected: Vec<u8> = Vec::new();
        for size in sizes {
            let before = w.len();
            let data = payload(size);
            match w.try_encode(&data) {
                Ok(()) => {
                    expected.extend(u32::try_from(size).unwrap().to_be_bytes());
                    expected.extend_from_slice(&data);
                    expected.resize(expected.len().next_multiple_of(4), 0);
                }
                Err(_) => {
                    prop_assert_eq!(w.len(), before);
                    prop_assert!(before + 4 + size.next_multiple_of(4) > limit);
                }
            }
            prop_assert_eq!(w.len(), expected.len());
            prop_assert!(w.len() <= limit);
        }
        prop_assert_eq!(w.finish().unwrap().into_bytes(), expected);
    }
}
