//! The generated code of every construct of the language: bytes laid out by hand, both ways.

use bytes::Bytes;

use crate::sink::*;
use crate::{Decode, DecodeError, Encode, EncodeError, Reader, from_bytes, to_bytes};

/// Checks that `value` and `wire` (words, big-endian) are each other's translation.
#[track_caller]
fn both_ways<T: Encode + Decode + PartialEq + std::fmt::Debug>(value: &T, wire: &[&[u8]]) {
    let wire: Bytes = wire.concat().into();
    assert_eq!(to_bytes(value).unwrap(), wire);
    assert_eq!(&from_bytes::<T>(wire.clone()).unwrap(), value);
    assert!(T::MIN_SIZE <= wire.len());
    // Every proper prefix is too short, whatever was being read.
    for n in 0..wire.len() {
        assert!(from_bytes::<T>(wire.slice(..n)).is_err(), "{n} bytes of {wire:?}");
    }
    let longer: Bytes = [&wire[..], &[0; 4]].concat().into();
    assert_eq!(from_bytes::<T>(longer), Err(DecodeError::Trailing(4)));
}

fn word(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

#[test]
fn constants() {
    assert_eq!((SMALL, OCTAL, HEX, NEGATIVE, SAME), (3, 15, 0xff00ff, -2, 3));
    assert_eq!((WIDE, WIDE_NEGATIVE), (0x1234_5678_9abc_def0_u64, i64::MIN));
    assert_eq!((SINK_PROGRAM, SINK_V1, SINK_NULL, SINK_ADD), (0x2000_0001, 1, 0, 1));
    assert_eq!((SINK_V2, SINK_CHAIN), (2, 7));
}

#[test]
fn enums_keep_unknown_values_and_print_names() {
    assert_eq!(format!("{:?} {:?} {:?}", colour::GREEN, colour(77), sign(-9)), "GREEN colour(77) sign(-9)");
    both_ways(&colour(77), &[&word(77)]);
    both_ways(&sign::BELOW, &[&[0xff; 4]]);
}

#[test]
fn primitives_of_every_kind() {
    let value = primitives { a: -1, b: 2, c: 3, d: -4, e: 5, f: true, g: 1.5, h: -2.0, type_: 9 };
    let wire: &[&[u8]] = &[
        &[0xff; 4],
        &word(2),
        &word(3),
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfc],
        &word(0),
        &word(5),
        &word(1),
        &[0x3f, 0xc0, 0, 0],
        &[0xc0, 0, 0, 0, 0, 0, 0, 0],
        &word(0),
        &word(9),
    ];
    both_ways(&value, wire);
    assert_eq!(primitives::MIN_SIZE, 52);
}

#[test]
fn shapes_of_every_kind() {
    let value = shapes {
        fixed: token(*b"abcdef"),
        variable: blob_fh(Bytes::from_static(b"xyz")),
        raw: [1, 2, 3],
        unbounded: Bytes::from_static(b"12345"),
        name: Bytes::from_static(b"nm"),
        bounded: Bytes::new(),
        list: vec![colour::BLUE],
        triple: [1, 2, 3],
        names: vec![Bytes::from_static(b"long one"), Bytes::new()],
        nested: vec![[4, 5]],
        maybe: None,
        maybe_name: Some(Bytes::from_static(b"x")),
    };
    let wire: &[&[u8]] = &[
        b"abcdef\0\0",
        b"\0\0\0\x03xyz\0",
        &[1, 2, 3, 0],
        b"\0\0\0\x0512345\0\0\0",
        b"\0\0\0\x02nm\0\0",
        &word(0),
        &word(1),
        &word(3),
        &word(1),
        &word(2),
        &word(3),
        &word(2),
        b"\0\0\0\x08long one",
        &word(0),
        &word(1),
        &word(4),
        &word(5),
        &word(0),
        &word(1),
        b"\0\0\0\x01x\0\0\0",
    ];
    both_ways(&value, wire);
}

#[test]
fn bounds_hold_in_both_directions() {
    let too_long = shapes { name: Bytes::from_static(b"nine char"), ..shapes::default() };
    assert_eq!(to_bytes(&too_long), Err(EncodeError::Bound { length: 9, maximum: 8 }));
    let four = shapes { list: vec![colour::RED; 4], ..shapes::default() };
    assert_eq!(to_bytes(&four), Err(EncodeError::Bound { length: 4, maximum: 3 }));
    let seventeen: Bytes = [&word(17)[..], &[0; 20]].concat().into();
    assert_eq!(from_bytes::<blob_fh>(seventeen), Err(DecodeError::TooLong { length: 17, maximum: 16 }));
}

#[test]
fn unions() {
    both_ways(&by_enum::RED, &[&word(0)]);
    both_ways(&by_enum::GREEN(7), &[&word(1), &word(7)]);
    both_ways(&by_enum::BLUE(7), &[&word(3), &word(7)]);
    both_ways(&by_enum::Default(colour(9), Bytes::from_static(b"ab")), &[&word(9), b"\0\0\0\x02ab\0\0"]);
    both_ways(&by_sign::BELOW(1), &[&[0xff; 4], &word(1)]);
    both_ways(&by_int::Minus1(Bytes::new()), &[&[0xff; 4], &word(0)]);
    both_ways(&by_int::Case0, &[&word(0)]);
    both_ways(&by_int::SMALL(*b"abc"), &[&word(3), b"abc\0"]);
    both_ways(&by_unsigned::HEX(-1), &[&word(HEX), &[0xff; 8]]);
    both_ways(&by_unsigned::Default(4), &[&word(4)]);
    both_ways(&by_bool::TRUE(1), &[&word(1), &word(0), &word(1)]);
    both_ways(&by_bool::FALSE, &[&word(0)]);
    assert_eq!(by_bool::from(Some(4)), by_bool::TRUE(4));
    assert_eq!(Option::<u64>::from(by_bool::FALSE), None);
    assert_eq!(by_enum::BLUE(1).discriminant(), colour::BLUE);
}

#[test]
fn unknown_discriminants_without_default_are_refused() {
    let bad = |union, value| DecodeError::BadDiscriminant { union, value };
    assert_eq!(from_bytes::<by_sign>(Bytes::from_static(&[0, 0, 0, 1])), Err(bad("by_sign", 1)));
    assert_eq!(
        from_bytes::<by_int>(Bytes::from_static(&[0xff, 0xff, 0xff, 0xfe])),
        Err(bad("by_int", u32::MAX - 1))
    );
    assert_eq!(from_bytes::<by_bool>(Bytes::from_static(&[0, 0, 0, 2])), Err(bad("bool", 2)));
}

#[test]
fn lists_are_vectors() {
    let value = chain { first: vec![node { value: 7 }, node { value: 8 }], last: true };
    both_ways(&value, &[&word(1), &word(7), &word(1), &word(8), &word(0), &word(1)]);
    both_ways(&chain::default(), &[&word(0), &word(0)]);
}

#[test]
fn a_long_list_costs_no_stack() {
    let value = chain { first: vec![node { value: 1 }; 200_000], last: false };
    let wire = to_bytes(&value).unwrap();
    assert_eq!(from_bytes::<chain>(wire).unwrap(), value);
}

#[test]
fn trees_nest_to_a_limit() {
    let leaf = || tree { value: 3, left: None, right: None };
    let value = tree { value: 1, left: Some(Box::new(leaf())), right: None };
    both_ways(&value, &[&word(1), &word(1), &word(3), &word(0), &word(0), &word(0)]);

    // Each level takes eight bytes to open; without a limit this would be a stack of 100,000 frames.
    let deep: Bytes = word(1).repeat(200_000).into();
    assert_eq!(from_bytes::<tree>(deep), Err(DecodeError::Nesting));
    let deep: Bytes = word(1).repeat(200_000).into();
    assert_eq!(from_bytes::<forest>(deep), Err(DecodeError::Nesting));
}

#[test]
fn types_declared_inside_types() {
    let value = inline_types {
        state: inline_types_state::ON,
        point: inline_types_point { x: 1, y: 2 },
        guess: inline_types_guess::TRUE(5),
    };
    both_ways(&value, &[&word(1), &word(1), &word(2), &word(1), &word(5)]);
}

#[test]
fn reading_one_value_leaves_the_rest() {
    let mut r = Reader::new(Bytes::from_static(&[0, 0, 0, 1, 9, 9, 9, 9]));
    assert_eq!(colour::decode(&mut r), Ok(colour::GREEN));
    assert_eq!((r.position(), r.remaining(), &r.rest()[..]), (4, 4, &[9; 4][..]));
    assert_eq!(r.finish(), Err(DecodeError::Trailing(4)));
}
