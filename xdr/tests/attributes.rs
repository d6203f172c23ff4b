//! `bitmap4`, `fattr4` and attribute values.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use proptest::prelude::*;
use sluice_xdr::nfs4::*;
use sluice_xdr::{DecodeError, Encode, Writer, from_bytes, to_bytes};

fn words(words: &[u32]) -> Bytes {
    words.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<_>>().into()
}

#[test]
fn bitmaps_drop_zero_words_at_the_end() {
    assert_eq!(to_bytes(&bitmap4::EMPTY).unwrap(), words(&[0]));
    let set = bitmap4::of(&[FATTR4_TYPE, FATTR4_SIZE, FATTR4_MODE]);
    assert_eq!(to_bytes(&set).unwrap(), words(&[2, 0x12, 2]));
    assert_eq!(from_bytes::<bitmap4>(words(&[4, 0x12, 2, 0, 0])).unwrap(), set);
    assert_eq!(to_bytes(&bitmap4::of(&[64])).unwrap(), words(&[3, 0, 0, 1]));
    let nine = words(&[9, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(from_bytes::<bitmap4>(nine), Err(DecodeError::TooLong { length: 9, maximum: 8 }));
}

#[test]
fn bitmaps_are_sets() {
    let mut set: bitmap4 = [3, 200, 31, 32].into_iter().collect();
    assert_eq!(set.iter().collect::<Vec<_>>(), [3, 31, 32, 200]);
    assert!(set.contains(31) && !set.contains(30) && !set.contains(256) && !set.contains(u32::MAX));
    set.remove(31);
    set.remove(9999);
    set.insert(9999);
    assert_eq!((set.count(), format!("{set:?}").as_str()), (3, "{3, 32, 200}"));
    let other = bitmap4::of(&[3, 4, 300]);
    assert_eq!(set.and(other), bitmap4::of(&[3]));
    assert_eq!(set.or(other), bitmap4::of(&[3, 4, 32, 200]));
    assert_eq!(set.without(other), bitmap4::of(&[32, 200]));
    assert!(bitmap4::EMPTY.is_empty() && !set.is_empty());
    assert_eq!(bitmap4::from_words(&[8, 1]), bitmap4::of(&[3, 32]));
}

/// Values lie in ascending order of number, whatever their kind.
#[test]
fn values_follow_their_numbers() {
    let values = Attributes {
        type_: Some(nfs_ftype4::NF4REG),
        change: Some(7),
        size: Some(9),
        mode: Some(0o644),
        owner: Some(Bytes::from_static(b"0")),
        mode_umask: Some(mode_umask4 { mu_mode: 1, mu_umask: 2 }),
        xattr_support: Some(true),
        ..Attributes::default()
    };
    let wire = values.encode(&Attributes::KNOWN).unwrap();
    assert_eq!(wire.attrmask.iter().collect::<Vec<_>>(), [1, 3, 4, 33, 36, 81, 82]);
    assert_eq!(wire.attr_vals, words(&[1, 0, 7, 0, 9, 0o644, 1, 0x3000_0000, 1, 2, 1]));
    assert_eq!(Attributes::decode(&wire).unwrap(), values);
    // Asked for less, the mask says less.
    let less = values.encode(&bitmap4::of(&[FATTR4_SIZE, FATTR4_FILEID])).unwrap();
    assert_eq!((less.attrmask, less.attr_vals), (bitmap4::of(&[FATTR4_SIZE]), words(&[0, 9])));
}

#[test]
fn the_table_is_complete_and_ascending() {
    let known: Vec<u32> = Attributes::KNOWN.iter().collect();
    assert_eq!(known, (0..=86).collect::<Vec<_>>());
    assert_eq!(attribute_name(0), Some("FATTR4_SUPPORTED_ATTRS"));
    assert_eq!(attribute_name(86), Some("FATTR4_OPEN_ARGUMENTS"));
    assert_eq!(attribute_name(87), None);
    let numbers = [
        (FATTR4_MODE, 33),
        (FATTR4_TIME_ACCESS_SET, 48),
        (FATTR4_TIME_MODIFY_SET, 54),
        (FATTR4_FS_LAYOUT_TYPES, 62),
        (FATTR4_MDSTHRESHOLD, 68),
        (FATTR4_SUPPATTR_EXCLCREAT, 75),
        (FATTR4_CLONE_BLKSIZE, 77),
        (FATTR4_CHANGE_ATTR_TYPE, 79),
        (FATTR4_MODE_UMASK, 81),
        (FATTR4_XATTR_SUPPORT, 82),
        (FATTR4_TIME_DELEG_MODIFY, 85),
    ];
    assert!(numbers.iter().all(|(constant, number)| constant == number), "{numbers:?}");
}

#[test]
fn unknown_and_damaged_are_told_apart() {
    let unknown = fattr4 { attrmask: bitmap4::of(&[FATTR4_SIZE, 87, 200]), attr_vals: Bytes::new() };
    assert_eq!(Attributes::decode(&unknown), Err(AttributesError::Unknown(87)));
    let size = |values: &[u32]| fattr4 { attrmask: bitmap4::of(&[FATTR4_SIZE]), attr_vals: words(values) };
    assert_eq!(Attributes::decode(&size(&[1])), Err(AttributesError::Xdr(DecodeError::Short)));
    assert_eq!(Attributes::decode(&size(&[0, 1, 2])), Err(AttributesError::Xdr(DecodeError::Trailing(4))));
    assert_eq!(Attributes::decode(&size(&[0, 1])).unwrap().size, Some(1));
}

#[test]
fn times_are_set_to_the_servers_or_the_clients() {
    let mask = bitmap4::of(&[FATTR4_TIME_ACCESS_SET, FATTR4_TIME_MODIFY_SET]);
    let wire = fattr4 { attrmask: mask, attr_vals: words(&[0, 1, 0, 5, 6]) };
    let values = Attributes::decode(&wire).unwrap();
    assert_eq!(values.time_access_set, Some(settime4::Default(time_how4::SET_TO_SERVER_TIME4)));
    let time = nfstime4 { seconds: 5, nseconds: 6 };
    assert_eq!(values.time_modify_set, Some(settime4::SET_TO_CLIENT_TIME4(time)));
}

/// Size of the struct: a listing builds one per entry.
#[test]
fn the_struct_stays_small() {
    assert!(size_of::<Attributes>() <= 1536, "{} bytes", size_of::<Attributes>());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bitmaps_survive(numbers in prop::collection::btree_set(0..256_u32, 0..20)) {
        let set: bitmap4 = numbers.iter().copied().collect();
        prop_assert_eq!(set.iter().collect::<Vec<_>>(), numbers.into_iter().collect::<Vec<_>>());
        prop_assert_eq!(from_bytes::<bitmap4>(to_bytes(&set).unwrap()).unwrap(), set);
    }

    /// `encode_into` writes what `encode` returns, also behind other things.
    #[test]
    fn both_encoders_agree(mask in prop::collection::vec(0..90_u32, 0..12), size: u64, name in prop::collection::vec(any::<u8>(), 0..9)) {
        let values = Attributes {
            supported_attrs: Some(Attributes::KNOWN),
            size: Some(size),
            fileid: Some(!size),
            owner: Some(name.into()),
            layout_types: Some(vec![layouttype4::LAYOUT4_FLEX_FILES]),
            ..Attributes::default()
        };
        let asked: bitmap4 = mask.into_iter().chain([FATTR4_OWNER]).collect();
        let (mut direct, mut indirect) = (Writer::default(), Writer::default());
        direct.u32(1);
        values.encode_into(&asked, &mut direct);
        indirect.u32(1);
        values.encode(&asked).unwrap().encode(&mut indirect);
        prop_assert_eq!(direct.finish().unwrap().into_bytes(), indirect.finish().unwrap().into_bytes());
    }
}
