//! The sums of one region in the side file: a head in a sector of its own, then a word for each block. Giving the sums up
//! writes the head alone. docs/ds-format.md.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{BLOCK, BLOCKS, REGION};
use crate::FileKey;
use crate::format::digest;

/// Bytes of a head: no sector holds parts of two.
pub(crate) const HEAD: usize = 512;
/// Bytes from one record to the next.
pub(crate) const STRIDE: u64 = (HEAD + 4 * BLOCKS) as u64;

const MAGIC: [u8; 8] = *b"slcsums1";
/// Bytes of a head that mean something, the check included.
const USED: usize = 48;

/// In the place of the sum of a block that could not be read when the others were made, if nothing was known of it before. One
/// block in 2^32 has it as its own, and is not seen to rot.
pub(crate) const NEVER_KNOWN: u32 = 0;

/// Whether a block of which nothing was known is to be believed. Devices say zeros for what they have lost.
pub(crate) fn is_believed(bytes: &[u8]) -> bool {
    bytes.iter().any(|byte| *byte != 0)
}

/// What the side file says about a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The sums are of what the device holds; else they were given up, and are of what it held before.
    pub(crate) sealed: bool,
    /// Bytes of the region that they cover: the file ended there.
    pub(crate) length: u64,
    /// One for each block of `length`.
    pub(crate) sums: Vec<u32>,
}

/// The sum of one block. What belongs elsewhere is wrong here.
pub(crate) fn sum(key: FileKey, block: u64, bytes: &[u8]) -> u32 {
    let seed = key.file ^ (u64::from(key.slot) << 48) ^ block.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    xxh3_64_with_seed(bytes, seed) as u32
}

/// The sums of a region that holds `bytes`.
pub(crate) fn sums(key: FileKey, region: u64, bytes: &[u8]) -> Vec<u32> {
    let blocks = (region * BLOCKS as u64..).zip(bytes.chunks(BLOCK as usize));
    blocks.map(|(block, bytes)| sum(key, block, bytes)).collect()
}

pub(crate) fn offset_of(region: u64) -> u64 {
    region.saturating_mul(STRIDE)
}

/// A head, little-endian: magic, id of the store's sums, region, length with the seal in the highest bit, the sums' own
/// check, check of all that.
fn head(id: u64, region: u64, length: u64, sealed: bool, check: [u8; 8]) -> [u8; HEAD] {
    let mut out = [0; HEAD];
    out[..8].copy_from_slice(&MAGIC);
    out[8..16].copy_from_slice(&id.to_le_bytes());
    out[16..24].copy_from_slice(&region.to_le_bytes());
    out[24..32].copy_from_slice(&(length | u64::from(sealed) << 63).to_le_bytes());
    out[32..40].copy_from_slice(&check);
    let check = digest(&out[..USED - 8]);
    out[USED - 8..USED].copy_from_slice(&check);
    out
}

fn words(sums: &[u32]) -> Vec<u8> {
    sums.iter().flat_map(|sum| sum.to_le_bytes()).collect()
}

impl Record {
    pub(crate) fn encode(&self, id: u64, region: u64) -> Vec<u8> {
        let words = words(&self.sums);
        let mut out = head(id, region, self.length, self.sealed, digest(&words)).to_vec();
        out.extend_from_slice(&words);
        out
    }

    /// `None` for what was not written whole, or before these sums were switched on. `Err`: its sums are not those it
    /// was written with.
    pub(crate) fn decode(id: u64, region: u64, bytes: &[u8]) -> Option<Result<Self, Head>> {
        let head = Head::decode(id, region, bytes)?;
        let count = head.length.div_ceil(BLOCK) as usize;
        let words = bytes.get(HEAD..HEAD + 4 * count).unwrap_or_default();
        if words.len() != 4 * count || digest(words) != head.check {
            return Some(Err(head));
        }
        let (chunks, _) = words.as_chunks::<4>();
        let sums = chunks.iter().map(|word| u32::from_le_bytes(*word)).collect();
        Some(Ok(Self { sealed: head.sealed, length: head.length, sums }))
    }
}

/// The head of a record alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) sealed: bool,
    pub(crate) length: u64,
    check: [u8; 8],
}

impl Head {
    pub(crate) fn decode(id: u64, region: u64, bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..USED)?;
        let word = |at: usize| bytes.get(at..at + 8)?.first_chunk::<8>().copied();
        let length = u64::from_le_bytes(word(24)?);
        let (sealed, length, check) = (length >> 63 == 1, length & (u64::MAX >> 1), word(32)?);
        let good = bytes == &head(id, region, length, sealed, check)[..USED] && length <= REGION;
        good.then_some(Self { sealed, length, check })
    }

    /// The same with the sums given up.
    pub(crate) fn open(self, id: u64, region: u64) -> [u8; HEAD] {
        head(id, region, self.length, false, self.check)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_one_bit_matters() {
        let key = FileKey { file: 7, slot: 1 };
        let data = vec![9u8; 3 * BLOCK as usize + 5];
        let record = Record { sealed: true, length: data.len() as u64, sums: sums(key, 2, &data) };
        let bytes = record.encode(11, 2);
        assert_eq!(bytes.len(), HEAD + 16);
        assert_eq!(Record::decode(11, 2, &bytes), Some(Ok(record.clone())));
        assert_eq!(Record::decode(12, 2, &bytes), None, "switched off and on since");
        assert_eq!(Record::decode(11, 3, &bytes), None, "of another region");
        for bit in (0..USED * 8).chain(HEAD * 8..bytes.len() * 8) {
            let mut bent = bytes.clone();
            bent[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(Record::decode(11, 2, &bent), Some(Ok(_))), "bit {bit}");
        }
        let mut open = bytes.clone();
        open[..HEAD].copy_from_slice(&Head::decode(11, 2, &bytes).unwrap().open(11, 2));
        assert_eq!(Record::decode(11, 2, &open), Some(Ok(Record { sealed: false, ..record.clone() })));
        let sums = record.sums;
        assert!(sums[0] != sums[1], "the same bytes at another place");
        assert_ne!(sum(FileKey { file: 8, slot: 1 }, 0, &data), sum(key, 0, &data));
    }
}
