//! The data types of RFC 4506 §4, byte by byte.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use sluice_xdr::{Decode, DecodeError, Encode, Reader, from_bytes, to_bytes};

#[track_caller]
fn both_ways<T: Encode + Decode + PartialEq + std::fmt::Debug>(value: T, wire: &'static [u8]) {
    assert_eq!(&to_bytes(&value).unwrap()[..], wire);
    assert_eq!(from_bytes::<T>(Bytes::from_static(wire)).unwrap(), value);
    assert_eq!(wire.len() % 4, 0, "RFC 4506 §3: a multiple of four bytes");
    assert!(T::MIN_SIZE <= wire.len());
}

#[test]
fn integers() {
    both_ways(-1_i32, &[0xff, 0xff, 0xff, 0xff]);
    both_ways(i32::MIN, &[0x80, 0, 0, 0]);
    both_ways(0x0102_0304_u32, &[1, 2, 3, 4]);
    both_ways(u32::MAX, &[0xff; 4]);
    both_ways(-2_i64, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe]);
    both_ways(0x0102_0304_0506_0708_u64, &[1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn booleans_are_zero_or_one() {
    both_ways(true, &[0, 0, 0, 1]);
    both_ways(false, &[0, 0, 0, 0]);
    for value in [2, 0x0100_0000, u32::MAX] {
        let wire = Bytes::copy_from_slice(&value.to_be_bytes());
        assert_eq!(from_bytes::<bool>(wire), Err(DecodeError::BadDiscriminant { union: "bool", value }));
    }
}

#[test]
fn floating_point() {
    both_ways(1.0_f32, &[0x3f, 0x80, 0, 0]);
    both_ways(-0.5_f64, &[0xbf, 0xe0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn opaques_are_padded_with_zeros() {
    both_ways(*b"abcde", b"abcde\0\0\0");
    both_ways(*b"abcd", b"abcd");
    both_ways(Bytes::from_static(b""), &[0; 4]);
    both_ways(Bytes::from_static(b"a"), b"\0\0\0\x01a\0\0\0");
    both_ways(Bytes::from_static(b"abc"), b"\0\0\0\x03abc\0");
    both_ways(Bytes::from_static(b"abcd"), b"\0\0\0\x04abcd");
    for wire in [&b"\0\0\0\x01a\0\0\x01"[..], b"\0\0\0\x01a\x01\0\0"] {
        assert_eq!(from_bytes::<Bytes>(Bytes::from_static(wire)), Err(DecodeError::Padding));
    }
    assert_eq!(from_bytes::<[u8; 3]>(Bytes::from_static(b"abcd")), Err(DecodeError::Padding));
}

#[test]
fn arrays_and_optional_data() {
    both_ways(vec![1_u32, 2], &[0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2]);
    both_ways(Vec::<u64>::new(), &[0; 4]);
    both_ways(Some(5_u32), &[0, 0, 0, 1, 0, 0, 0, 5]);
    both_ways(None::<u32>, &[0; 4]);
    both_ways(Box::new(6_u32), &[0, 0, 0, 6]);
    both_ways((), &[]);
}

/// The struct of RFC 4506 §7: a file "sillyprog" of kind EXEC, interpreted by "lisp", owned by "john", with
/// the six bytes "(quit)".
#[test]
fn the_example_of_section_7() {
    let wire = Bytes::from_static(
        b"\0\0\0\x09sillyprog\0\0\0\0\0\0\x02\0\0\0\x04lisp\0\0\0\x04john\0\0\0\x06(quit)\0\0",
    );
    assert_eq!(wire.len(), 48);
    let mut r = Reader::new(wire.clone());
    let (name, kind) = (r.string(255).unwrap(), r.u32().unwrap());
    let (interpreter, owner, data) =
        (r.string(255).unwrap(), r.string(32).unwrap(), r.opaque(65535).unwrap());
    r.finish().unwrap();
    assert_eq!((&name[..], kind, &interpreter[..]), (&b"sillyprog"[..], 2, &b"lisp"[..]));
    assert_eq!((&owner[..], &data[..]), (&b"john"[..], &b"(quit)"[..]));

    let mut w = sluice_xdr::Writer::default();
    w.string(&name, 255);
    w.u32(kind);
    w.string(&interpreter, 255);
    w.string(&owner, 32);
    w.opaque(&data, 65535);
    assert_eq!(w.finish().unwrap().into_bytes(), wire);
}

#[test]
fn maxima_are_exact() {
    let wire = Bytes::from_static(b"\0\0\0\x05abcde\0\0\0");
    assert_eq!(Reader::new(wire.clone()).opaque(5).unwrap(), &b"abcde"[..]);
    assert_eq!(Reader::new(wire).opaque(4), Err(DecodeError::TooLong { length: 5, maximum: 4 }));
}

/// Payloads are slices of the input, not copies.
#[test]
fn opaques_share_the_input() {
    let wire = Bytes::from_static(b"\0\0\0\x05abcde\0\0\0");
    let data = Reader::new(wire.clone()).opaque(5).unwrap();
    assert_eq!(data.as_ptr(), wire[4..].as_ptr());
    let fixed = Reader::new(wire.clone()).opaque_fixed(8).unwrap();
    assert_eq!(fixed.as_ptr(), wire.as_ptr());
}
