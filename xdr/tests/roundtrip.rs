//! decode ∘ encode = identity, for every top-level type of every module.
#![allow(clippy::unwrap_used)]

mod common;

use bytes::Bytes;
use common::{CODECS, Dice, samples};
use proptest::prelude::*;
use sluice_xdr::nfs4::{COMPOUND4args, nfs_argop4, nfs_resop4};
use sluice_xdr::{DecodeError, from_bytes};

/// Seeded words through every decoder; each must yield enough different values for this to mean something.
#[test]
fn every_type_survives_the_round_trip() {
    for codec in CODECS {
        let mut dice = Dice::new(1);
        let found = samples(codec, &mut dice, 3000);
        // An enum of thirteen values has thirteen encodings; records have more.
        assert!(found.len() >= 12, "{}: only {} values", codec.name, found.len());
        assert!(found.iter().all(|f| f.len() >= codec.min_size));
        for value in &found {
            assert_eq!((codec.round)(value).unwrap().1, value, "{}", codec.name);
        }
    }
}

/// A value cut short is refused; a value with bytes behind it decodes to the same.
#[test]
fn every_type_notices_where_it_ends() {
    for codec in CODECS {
        let mut dice = Dice::new(2);
        for value in samples(codec, &mut dice, 300) {
            for cut in 0..value.len() {
                assert!((codec.round)(&value.slice(..cut)).is_err(), "{} cut to {cut}", codec.name);
            }
            let longer: Bytes = [&value[..], &[7; 9]].concat().into();
            assert_eq!((codec.round)(&longer).unwrap().0, value.len(), "{}", codec.name);
        }
    }
}

/// Every operation of NFSv4.2 has its arm, in both directions.
#[test]
fn every_operation_decodes() {
    let mut dice = Dice::new(3);
    for op in 3..=75_u32 {
        let (mut args, mut results) = (0, 0);
        for _ in 0..1500 {
            let tail = dice.words(64);
            let input: Bytes = [&op.to_be_bytes()[..], &tail].concat().into();
            let mut r = sluice_xdr::Reader::new(input.clone());
            if let Ok(value) = <nfs_argop4 as sluice_xdr::Decode>::decode(&mut r) {
                assert_eq!(value.discriminant().0, op);
                args += 1;
            }
            let mut r = sluice_xdr::Reader::new(input);
            if let Ok(value) = <nfs_resop4 as sluice_xdr::Decode>::decode(&mut r) {
                assert_eq!(value.discriminant().0, op);
                results += 1;
            }
        }
        assert!(args > 5 && results > 5, "operation {op}: {args} arguments, {results} results");
    }
    for op in [0_u32, 1, 2, 76, 77, 10043] {
        let input = Bytes::copy_from_slice(&op.to_be_bytes());
        let unknown = Err(DecodeError::BadDiscriminant { union: "nfs_argop4", value: op });
        assert_eq!(from_bytes::<nfs_argop4>(input), unknown);
    }
}

#[test]
fn trailing_bytes_are_refused() {
    let empty = Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
    assert!(from_bytes::<COMPOUND4args>(empty).is_ok());
    let longer = Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
    assert_eq!(from_bytes::<COMPOUND4args>(longer), Err(DecodeError::Trailing(1)));
}

fn words() -> impl Strategy<Value = Bytes> {
    let word = prop_oneof![
        4 => 0..2_u32,
        3 => 0..5_u32,
        2 => (0..5_u32).prop_map(|n| n * 4),
        2 => 0..90_u32,
        1 => prop_oneof![Just(0x6100_0000_u32), Just(10001), Just(u32::MAX), Just(0x8000_0000)],
        1 => any::<u32>(),
    ];
    prop::collection::vec(word, 0..64)
        .prop_map(|words| words.into_iter().flat_map(u32::to_be_bytes).collect::<Vec<u8>>().into())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// `round` asserts; proptest shrinks what makes it fail.
    #[test]
    fn any_words_through_any_decoder(input in words(), pick in 0..CODECS.len()) {
        let _ = (CODECS[pick].round)(&input);
    }

    #[test]
    fn any_bytes_through_any_decoder(input in prop::collection::vec(any::<u8>(), 0..200), pick in 0..CODECS.len()) {
        let _ = (CODECS[pick].round)(&input.into());
    }
}
