//! Every top-level decoder in one table, and words from which they decode something.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, missing_debug_implementations, unreachable_pub)]

pub mod alloc;

use bytes::Bytes;
use sluice_xdr::{Decode, DecodeError, Encode, Reader, from_bytes, to_bytes};
use sluice_xdr::{control, flexfiles, nfs3, nfs4, rpc};

/// A decoder together with its encoder.
pub struct Codec {
    pub name: &'static str,
    pub min_size: usize,
    /// Decodes a value off the front, encodes it, decodes that again, and checks that nothing was lost on the
    /// way. How many bytes the value took and its encoding, or why it could not be decoded.
    pub round: fn(&Bytes) -> Result<(usize, Bytes), DecodeError>,
}

fn round<T: Encode + Decode + PartialEq + std::fmt::Debug>(
    input: &Bytes,
) -> Result<(usize, Bytes), DecodeError> {
    let mut r = Reader::new(input.clone());
    let value = T::decode(&mut r)?;
    let taken = r.position();
    assert!(taken >= T::MIN_SIZE, "MIN_SIZE {} of {value:?} in {taken} bytes", T::MIN_SIZE);
    let encoded = to_bytes(&value).expect("what was decoded can be encoded");
    assert_eq!(from_bytes::<T>(encoded.clone()).as_ref(), Ok(&value));
    // Only zero words at the end of a bitmap may go.
    assert!(encoded.len() <= taken, "{value:?}");
    if encoded.len() == taken {
        assert_eq!(encoded, input.slice(..taken), "{value:?}");
    }
    Ok((taken, encoded))
}

macro_rules! table {
    ($($t:ty,)*) => {
        &[$(Codec { name: stringify!($t), min_size: <$t as Decode>::MIN_SIZE, round: round::<$t> }),*]
    };
}

/// Every decoder that bytes from the network can reach first.
pub const CODECS: &[Codec] = table![
    rpc::rpc_msg,
    rpc::authsys_parms,
    nfs4::COMPOUND4args,
    nfs4::COMPOUND4res,
    nfs4::nfs_argop4,
    nfs4::nfs_resop4,
    nfs4::CB_COMPOUND4args,
    nfs4::CB_COMPOUND4res,
    nfs4::nfs_cb_argop4,
    nfs4::nfs_cb_resop4,
    nfs4::fattr4,
    nfs4::bitmap4,
    nfs4::READDIR4res,
    nfs4::OPEN4args,
    nfs4::fs_locations_info4,
    nfs3::GETATTR3args,
    nfs3::GETATTR3res,
    nfs3::SETATTR3args,
    nfs3::SETATTR3res,
    nfs3::LOOKUP3args,
    nfs3::LOOKUP3res,
    nfs3::ACCESS3args,
    nfs3::ACCESS3res,
    nfs3::READLINK3args,
    nfs3::READLINK3res,
    nfs3::READ3args,
    nfs3::READ3res,
    nfs3::WRITE3args,
    nfs3::WRITE3res,
    nfs3::CREATE3args,
    nfs3::CREATE3res,
    nfs3::MKDIR3args,
    nfs3::MKDIR3res,
    nfs3::SYMLINK3args,
    nfs3::SYMLINK3res,
    nfs3::MKNOD3args,
    nfs3::MKNOD3res,
    nfs3::REMOVE3args,
    nfs3::REMOVE3res,
    nfs3::RMDIR3args,
    nfs3::RMDIR3res,
    nfs3::RENAME3args,
    nfs3::RENAME3res,
    nfs3::LINK3args,
    nfs3::LINK3res,
    nfs3::READDIR3args,
    nfs3::READDIR3res,
    nfs3::READDIRPLUS3args,
    nfs3::READDIRPLUS3res,
    nfs3::FSSTAT3args,
    nfs3::FSSTAT3res,
    nfs3::FSINFO3args,
    nfs3::FSINFO3res,
    nfs3::PATHCONF3args,
    nfs3::PATHCONF3res,
    nfs3::COMMIT3args,
    nfs3::COMMIT3res,
    flexfiles::ff_layout4,
    flexfiles::ff_device_addr4,
    flexfiles::ff_layoutreturn4,
    flexfiles::ff_ioerr4,
    flexfiles::ff_iostats4,
    flexfiles::ff_layouthint4,
    flexfiles::ff_layoutupdate4,
    control::ctl_versions,
    control::REGISTER_args,
    control::REGISTER_res,
    control::HEARTBEAT_args,
    control::HEARTBEAT_res,
    control::MATERIALISED_args,
    control::LOGICAL_SIZE_args,
    control::LOGICAL_SIZE_res,
    control::DS_REMOVE_args,
    control::DS_REMOVE_res,
    control::DS_TRUNCATE_args,
    control::DS_STAT_args,
    control::DS_STAT_res,
    control::DS_FENCE_args,
    control::DS_LOGICAL_SIZE_args,
    control::DS_EPOCH_args,
    control::DS_SPACE_args,
    control::DS_SEEK_args,
    control::DS_SEEK_res,
    control::DS_ALLOCATE_args,
    control::DS_ALLOCATE_res,
    control::DS_HOLE_args,
    control::DS_HOLE_res,
    control::DS_COPY_args,
    control::DS_COPY_res,
    control::DS_INVENTORY_args,
    control::DS_INVENTORY_res,
    control::ADMIN_STATUS_res,
    control::ADMIN_POLICY_args,
    control::ADMIN_POLICY_res,
    control::ADMIN_LAYOUTS_args,
    control::ADMIN_LAYOUTS_res,
    control::ADMIN_RECALL_args,
    control::ADMIN_RECALL_res,
    control::ADMIN_EVICT_args,
    control::ADMIN_EVICT_res,
    control::ctl_status,
];

/// A small generator of numbers: the same seed, the same run.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 for 0.
    pub fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % (n as u64).max(1)).unwrap_or(0)
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// A word that decoders get something out of: mostly small (counts, booleans, discriminants), at
    /// times text whose padding is right for a length of one to three.
    pub fn word(&mut self) -> u32 {
        match self.below(16) {
            0..=5 => self.below(2) as u32,
            6..=8 => self.below(5) as u32,
            9..=10 => 4 * self.below(5) as u32,
            11..=12 => self.below(90) as u32,
            13 => *self.pick(&[0x6100_0000, 0x6162_0000, 10001, 10004, 10026]),
            14 => *self.pick(&[2, 0x8000_0000, u32::MAX, 0x7fff_ffff]),
            _ => self.next() as u32,
        }
    }

    /// `n` words.
    pub fn words(&mut self, n: usize) -> Bytes {
        (0..n).flat_map(|_| self.word().to_be_bytes()).collect::<Vec<u8>>().into()
    }
}

/// An encoded value of every kind that `codec` yields within `tries` attempts, largest last.
pub fn samples(codec: &Codec, dice: &mut Dice, tries: usize) -> Vec<Bytes> {
    let mut found: Vec<Bytes> = Vec::new();
    for _ in 0..tries {
        let words = 8 + dice.below(120);
        if let Ok((_, encoded)) = (codec.round)(&dice.words(words)) {
            found.push(encoded);
        }
    }
    found.sort_by_key(|b| (b.len(), b.clone()));
    found.dedup();
    found
}
