//! The bytes of a store's own files: superblock, boot count, journal records.
//!
//! `superblock` is text of six or seven lines, the last one a checksum of those before. `boot` is a number
//! in text. `journal` is a row of 64-byte records, see [`Record`].

use crate::fence::{Fence, Row};
use crate::{Epoch, FileKey, StoreError, Uuid};

/// The newest format this program reads, and the one it writes where there are checksums.
pub(crate) const FORMAT: u32 = 2;
/// The one it writes where there are no checksums: a program that does not know them would change data under them.
const FORMAT_PLAIN: u32 = 1;

/// It is there from when checksums are switched off until their side files are removed.
pub(crate) const SUMS_LEFT: &str = "sums.left";
pub(crate) const SUPERBLOCK: &str = "superblock";
pub(crate) const BOOT: &str = "boot";
/// Written and removed to see whether that can be done.
pub(crate) const PROBE: &str = "probe.new";
/// Overwritten in place to see whether the device takes that.
pub(crate) const WITNESS: &str = "witness";
/// How far the store has come.
pub(crate) const TIDE: &str = "tide";
pub(crate) const JOURNAL: &str = "journal";
pub(crate) const DATA: &str = "data";

const MAGIC: &str = "sluice data store";

/// Who a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) uuid: Uuid,
    /// Nil until the first registration.
    pub(crate) cluster: Uuid,
    /// Seconds since 1970.
    pub(crate) created: i64,
    /// Names the sums since they were switched on; `None`: there are none.
    pub(crate) sums: Option<u64>,
}

pub(crate) fn digest(bytes: &[u8]) -> [u8; 8] {
    let mut out = [0; 8];
    out.copy_from_slice(&blake3::hash(bytes).as_bytes()[..8]);
    out
}

impl Superblock {
    pub(crate) fn encode(&self) -> String {
        let Self { uuid, cluster, created, sums } = self;
        let format = if sums.is_some() { FORMAT } else { FORMAT_PLAIN };
        let sums = sums.map(|id| format!("sums {id:016x}\n")).unwrap_or_default();
        let body =
            format!("{MAGIC}\nformat {format}\nuuid {uuid}\ncluster {cluster}\ncreated {created}\n{sums}");
        let check = u64::from_be_bytes(digest(body.as_bytes()));
        format!("{body}check {check:016x}\n")
    }

    /// `place` names the directory in errors.
    pub(crate) fn decode(place: &str, bytes: &[u8]) -> Result<Self, StoreError> {
        let damaged = |why: &str| StoreError::Corrupt(place.into(), SUPERBLOCK.into(), why.into());
        let text = std::str::from_utf8(bytes).map_err(|_| damaged("not text"))?;
        let mut lines = text.lines();
        if lines.next() != Some(MAGIC) {
            return Err(StoreError::Foreign(place.into()));
        }
        let mut field = |name: &str| {
            let line = lines.next().and_then(|line| line.strip_prefix(name)).map(str::trim);
            line.ok_or_else(|| damaged(&format!("no {name}")))
        };
        // The format comes before the checksum: a newer one may check itself differently.
        let format: u32 = field("format")?.parse().map_err(|_| damaged("bad format"))?;
        if format > FORMAT {
            return Err(StoreError::NewerFormat(place.into(), format, FORMAT));
        }
        let uuid = parse_uuid(field("uuid")?).ok_or_else(|| damaged("bad uuid"))?;
        let cluster = parse_uuid(field("cluster")?).ok_or_else(|| damaged("bad cluster"))?;
        let created = field("created")?.parse().map_err(|_| damaged("bad creation time"))?;
        let sums = match format {
            0..=FORMAT_PLAIN => None,
            _ => Some(u64::from_str_radix(field("sums")?, 16).map_err(|_| damaged("bad sums"))?),
        };
        let block = Self { uuid, cluster, created, sums };
        if block.encode().as_bytes() != bytes {
            return Err(damaged("its checksum differs"));
        }
        Ok(block)
    }
}

fn parse_uuid(text: &str) -> Option<Uuid> {
    let hex: String = text.chars().filter(|c| *c != '-').collect();
    let value = (hex.len() == 32).then(|| u128::from_str_radix(&hex, 16).ok())??;
    Some(Uuid(value.to_be_bytes()))
}

/// Bytes of a journal record: one of them never straddles a sector.
pub(crate) const RECORD: usize = 64;

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// The first one: it names the journal. The greatest id of a data file that had come into being before, 0 if that is not
    /// known: of a journal that was begun by a program that does not count.
    Head(u64),
    Row(Row),
}

/// A journal record, little-endian:
///
/// ```text
///  0 kind u8   1 zero u8   2 slot u16   4 generation u16   6 epoch u16   8 holder u32   12 zero u32
/// 16 file or value u64   24 index in the journal u64   32 records known durable when written u64
/// 40 journal id u64      48 zero u64                   56 first 8 bytes of BLAKE3 over the rest
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) said: Said,
    pub(crate) index: u64,
    pub(crate) synced: u64,
    pub(crate) journal: u64,
}

/// A record that was written whole, by a program that knows more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unknown {
    pub(crate) kind: u8,
    pub(crate) index: u64,
    pub(crate) journal: u64,
}

#[derive(Default)]
struct Raw {
    kind: u8,
    slot: u16,
    generation: u16,
    epoch: u16,
    holder: u32,
    value: u64,
}

impl Raw {
    fn key(&self) -> FileKey {
        FileKey { file: self.value, slot: self.slot }
    }

    fn of(said: Said) -> Self {
        let none = Self::default();
        let row = match said {
            Said::Head(value) => return Self { kind: 1, value, ..none },
            Said::Row(row) => row,
        };
        match row {
            Row::Fence(Fence::Holder { holder, epoch }) => Self { kind: 2, holder, epoch: epoch.0, ..none },
            Row::Fence(Fence::HolderFile { holder, file, epoch }) => {
                Self { kind: 3, holder, value: file, epoch: epoch.0, ..none }
            }
            Row::Fence(Fence::Generation { key, least, epoch }) => {
                Self { kind: 4, value: key.file, slot: key.slot, generation: least, epoch: epoch.0, ..none }
            }
            Row::Tombstone { key, generation, epoch } => {
                Self { kind: 5, value: key.file, slot: key.slot, generation, epoch: epoch.0, ..none }
            }
            Row::Oldest(epoch) => Self { kind: 6, epoch: epoch.0, ..none },
            Row::Caller(value) => Self { kind: 7, value, ..none },
            Row::Materialised { key, generation } => {
                Self { kind: 8, value: key.file, slot: key.slot, generation, ..none }
            }
            Row::Reported { key } => Self { kind: 9, value: key.file, slot: key.slot, ..none },
        }
    }

    fn said(&self) -> Option<Said> {
        let (holder, generation, epoch, key) = (self.holder, self.generation, Epoch(self.epoch), self.key());
        Some(Said::Row(match self.kind {
            1 => return Some(Said::Head(self.value)),
            2 => Row::Fence(Fence::Holder { holder, epoch }),
            3 => Row::Fence(Fence::HolderFile { holder, file: self.value, epoch }),
            4 => Row::Fence(Fence::Generation { key, least: generation, epoch }),
            5 => Row::Tombstone { key, generation, epoch },
            6 => Row::Oldest(epoch),
            7 => Row::Caller(self.value),
            8 => Row::Materialised { key, generation },
            9 => Row::Reported { key },
            _ => return None,
        }))
    }
}

impl Record {
    pub(crate) fn encode(&self) -> [u8; RECORD] {
        let raw = Raw::of(self.said);
        let mut out = [0; RECORD];
        out[0] = raw.kind;
        out[2..4].copy_from_slice(&raw.slot.to_le_bytes());
        out[4..6].copy_from_slice(&raw.generation.to_le_bytes());
        out[6..8].copy_from_slice(&raw.epoch.to_le_bytes());
        out[8..12].copy_from_slice(&raw.holder.to_le_bytes());
        out[16..24].copy_from_slice(&raw.value.to_le_bytes());
        out[24..32].copy_from_slice(&self.index.to_le_bytes());
        out[32..40].copy_from_slice(&self.synced.to_le_bytes());
        out[40..48].copy_from_slice(&self.journal.to_le_bytes());
        let check = digest(&out[..56]);
        out[56..].copy_from_slice(&check);
        out
    }

    /// `None` for anything that was not written whole.
    pub(crate) fn decode(bytes: &[u8; RECORD]) -> Option<Result<Self, Unknown>> {
        if digest(&bytes[..56]) != bytes[56..] {
            return None;
        }
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u64_at = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let raw = Raw {
            kind: bytes[0],
            slot: u16_at(2),
            generation: u16_at(4),
            epoch: u16_at(6),
            holder: u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]),
            value: u64_at(16),
        };
        let (index, synced, journal) = (u64_at(24), u64_at(32), u64_at(40));
        Some(match raw.said() {
            Some(said) => Ok(Self { said, index, synced, journal }),
            None => Err(Unknown { kind: raw.kind, index, journal }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn superblock_round_trip_and_refusals() {
        let block = Superblock { uuid: Uuid([7; 16]), cluster: Uuid([9; 16]), created: 17, sums: None };
        let text = block.encode();
        assert_eq!(Superblock::decode("/d", text.as_bytes()).unwrap(), block);
        let summed = Superblock { sums: Some(0xabc), ..block };
        let text2 = summed.encode();
        assert!(text2.contains("format 2\n") && text2.contains("sums 0000000000000abc\n"), "{text2}");
        assert_eq!(Superblock::decode("/d", text2.as_bytes()).unwrap(), summed);
        let newer = text.replace("format 1", "format 3");
        let error = Superblock::decode("/d", newer.as_bytes()).unwrap_err();
        assert!(matches!(error, StoreError::NewerFormat(_, 3, 2)), "{error}");
        let bent = text.replace("created 17", "created 18");
        let error = Superblock::decode("/d", bent.as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), "/d: superblock is damaged: its checksum differs");
        assert!(matches!(Superblock::decode("/d", b"hello\n"), Err(StoreError::Foreign(_))));
    }

    #[test]
    fn records_round_trip_and_one_bit_matters() {
        let key = FileKey { file: 0x1234_5678_9abc, slot: 77 };
        let epoch = Epoch(900);
        for said in [
            Said::Head(0),
            Said::Head(u64::MAX),
            Said::Row(Row::Fence(Fence::Holder { holder: 5, epoch })),
            Said::Row(Row::Fence(Fence::HolderFile { holder: 5, file: 6, epoch })),
            Said::Row(Row::Fence(Fence::Generation { key, least: 3, epoch })),
            Said::Row(Row::Tombstone { key, generation: 3, epoch }),
            Said::Row(Row::Oldest(epoch)),
            Said::Row(Row::Caller(u64::MAX)),
            Said::Row(Row::Materialised { key, generation: 9 }),
            Said::Row(Row::Reported { key }),
        ] {
            let record = Record { said, index: 4, synced: 3, journal: 8 };
            let mut bytes = record.encode();
            assert_eq!(Record::decode(&bytes), Some(Ok(record)));
            for bit in 0..RECORD * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Record::decode(&bytes), None);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
        assert_eq!(Record::decode(&[0; RECORD]), None);
    }
}
