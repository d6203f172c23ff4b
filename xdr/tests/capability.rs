//! Data-file handles: layout, seal, refusals.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use sluice_xdr::{CAPABILITY_SIZE, Capability, CapabilityError, Rights};

const KEY: [u8; 32] = [0x5a; 32];

fn keys(id: u8) -> Option<[u8; 32]> {
    (id == 3).then_some(KEY)
}

fn example() -> Capability {
    Capability {
        rights: Rights::READ | Rights::SPARSE,
        key_id: 3,
        store: 0x0102,
        data_file: 0x1112_1314_1516_1718,
        slot: 0x2122,
        generation: 0x3132,
        holder: 0x4142_4344,
        epoch: 0x5152,
    }
}

/// The format is on clients' disks in no way, but in their memories across upgrades: it may not drift.
#[test]
fn the_layout_is_fixed() {
    let handle = example().seal(&KEY);
    let body = [
        0x19, 3, 1, 2, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x31, 0x32, 0x41, 0x42,
        0x43, 0x44, 0x51, 0x52, 0, 0,
    ];
    assert_eq!(handle[..24], body);
    assert_eq!(handle[24..], blake3::keyed_hash(&KEY, &body).as_bytes()[..8]);
    assert_eq!(Capability::open(&handle, keys), Ok(example()));
}

/// Data servers of releases that know of no such wants refuse the handle: they look for zeros there.
#[test]
fn what_is_wanted_of_the_connection_is_in_a_byte_of_its_own() {
    for (wants, byte) in [(Rights::UNDER_TLS, 1), (Rights::UNDER_TLS | Rights::CERTIFIED, 3)] {
        let capability = Capability { rights: Rights::READ | wants, ..example() };
        let handle = capability.seal(&KEY);
        assert_eq!((handle[0], handle[22], handle[23]), (0x11, byte, 0));
        let opened = Capability::open(&handle, keys).unwrap();
        assert_eq!((opened, opened.rights.wants()), (capability, wants));
    }
    assert!(example().rights.wants().is_none());
}

#[test]
fn every_bit_counts() {
    let handle = example().seal(&KEY);
    for bit in 0..CAPABILITY_SIZE * 8 {
        let mut damaged = handle;
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(Capability::open(&damaged, keys).is_err(), "bit {bit}");
        // Nor with whatever key is asked for.
        assert!(Capability::open(&damaged, |_| Some(KEY)).is_err(), "bit {bit}");
    }
}

#[test]
fn refusals_are_told_apart() {
    let handle = example().seal(&KEY);
    assert_eq!(Capability::open(&handle[..31], keys), Err(CapabilityError::Length(31)));
    assert_eq!(Capability::open(&[], keys), Err(CapabilityError::Length(0)));
    assert_eq!(Capability::open(&[0; 64], keys), Err(CapabilityError::Length(64)));
    assert_eq!(Capability::open(&[0; 32], keys), Err(CapabilityError::Format));
    assert_eq!(Capability::open(&handle, |_| None), Err(CapabilityError::UnknownKey(3)));
    assert_eq!(Capability::open(&handle, |_| Some([0; 32])), Err(CapabilityError::Mac));
    let mut other = handle;
    other[0] = 0x29;
    assert_eq!(Capability::open(&other, keys), Err(CapabilityError::Format));
    // Reserved bytes and bits in use are a later format's, even under a right seal.
    for (at, value) in [(23, 1), (22, 4), (22, 0x80)] {
        let mut later = handle;
        later[at] = value;
        let seal = blake3::keyed_hash(&KEY, &later[..24]);
        later[24..].copy_from_slice(&seal.as_bytes()[..8]);
        assert_eq!(Capability::open(&later, keys), Err(CapabilityError::Format), "{at}: {value}");
    }
}

#[test]
fn rights() {
    let both = Rights::READ | Rights::WRITE;
    assert!(both.contains(Rights::READ) && both.contains(Rights::WRITE) && !both.contains(Rights::SPARSE));
    assert!(!Rights::READ.contains(both) && both.contains(Rights::NONE));
    assert_eq!(format!("{:?}", both | Rights::MUST_EXIST), "READ|WRITE|MUST_EXIST");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_sealed_opens(
        flags in 0..64_u8, key_id: u8, store: u16, data_file: u64, slot: u16, generation: u16, holder: u32,
        epoch: u16, key: [u8; 32],
    ) {
        let all = [
            Rights::READ, Rights::WRITE, Rights::MUST_EXIST, Rights::SPARSE, Rights::UNDER_TLS, Rights::CERTIFIED,
        ];
        let rights = (0..6).filter(|i| flags >> i & 1 == 1).fold(Rights::NONE, |r, i| r | all[i]);
        let capability = Capability { rights, key_id, store, data_file, slot, generation, holder, epoch };
        let handle = capability.seal(&key);
        prop_assert_eq!(Capability::open(&handle, |id| (id == key_id).then_some(key)), Ok(capability));
    }
}
