//! The filehandle of a data file: a capability that the metadata server mints alone and a data server
//! can judge without asking. Exactly 32 bytes, big-endian:
//!
//! | bytes | field | |
//! | --- | --- | --- |
//! | 0 | version and flags | high nibble: format, 1; low nibble: [`Rights::READ`] 1, [`Rights::WRITE`] 2, [`Rights::MUST_EXIST`] 4, [`Rights::SPARSE`] 8 |
//! | 1 | key id | which cluster key made the MAC |
//! | 2-3 | store | the one store it is good for |
//! | 4-11 | data file | unique in the cluster, never reused |
//! | 12-13 | slot | component, stripe and mirror within the file |
//! | 14-15 | generation | bumped to kill older handles of one data file |
//! | 16-19 | holder | tag of a client incarnation: fencing is by holder |
//! | 20-21 | epoch | capability epoch in which it was minted |
//! | 22 | wants | of the connection that it comes over: [`Rights::UNDER_TLS`] 1, [`Rights::CERTIFIED`] 2; zero for data servers that do not say that they know it |
//! | 23 | reserved | zero |
//! | 24-31 | MAC | BLAKE3 keyed with the key's 32 bytes over bytes 0-23, first 8 bytes |
//!
//! Eight bytes of MAC: a forger must be right at once, online, against a server that counts refusals.

use std::fmt;

use thiserror::Error;

/// Bytes of a capability; NFSv3 allows 64, NFSv4 128.
pub const CAPABILITY_SIZE: usize = 32;

/// Bytes under the MAC.
const BODY_SIZE: usize = 24;

/// The format in the high nibble of byte 0.
const VERSION: u8 = 0x10;

/// What it allows, in the low nibble.
const ALLOWS: u8 = 0x0f;

/// What a capability permits and implies, as a set of flags.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Rights(u8);

impl Rights {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// READ is allowed.
    pub const READ: Self = Self(1);
    /// WRITE and COMMIT are allowed.
    pub const WRITE: Self = Self(2);
    /// The data file was materialised: if it is absent now, that is an I/O error and never a hole.
    pub const MUST_EXIST: Self = Self(4);
    /// The file may end later than this data file: at that one's end, ask for the logical size.
    pub const SPARSE: Self = Self(8);
    /// It is good on connections under TLS only, and on those of servers among themselves.
    pub const UNDER_TLS: Self = Self(0x10);
    /// It is good on connections under TLS whose client has shown a certificate; only with [`Rights::UNDER_TLS`].
    pub const CERTIFIED: Self = Self(0x20);
    /// What is wanted of a connection.
    const WANTS: u8 = Self::UNDER_TLS.0 | Self::CERTIFIED.0;

    /// Both sets together.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// What of it is wanted of the connection that the handle comes over.
    pub const fn wants(self) -> Self {
        Self(self.0 & Self::WANTS)
    }

    /// Neither allows nor wants anything.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl std::ops::BitOr for Rights {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        self.or(other)
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            (Self::READ, "READ"),
            (Self::WRITE, "WRITE"),
            (Self::MUST_EXIST, "MUST_EXIST"),
            (Self::SPARSE, "SPARSE"),
            (Self::UNDER_TLS, "UNDER_TLS"),
            (Self::CERTIFIED, "CERTIFIED"),
        ];
        let names: Vec<_> = all.iter().filter(|(r, _)| self.contains(*r)).map(|(_, n)| *n).collect();
        f.write_str(&names.join("|"))
    }
}

/// The content of a data file's handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Capability {
    /// What it permits.
    pub rights: Rights,
    /// Which key seals it.
    pub key_id: u8,
    /// The store that holds the data file.
    pub store: u16,
    /// The data file, unique in the cluster.
    pub data_file: u64,
    /// Component, stripe and mirror of the file that the data file belongs to.
    pub slot: u16,
    /// Generation of the data file's handles.
    pub generation: u16,
    /// Tag of the client incarnation it was minted for.
    pub holder: u32,
    /// Capability epoch it was minted in.
    pub epoch: u16,
}

/// Why a handle is not a valid capability. A data server answers NFS3ERR_BADHANDLE to the first two and
/// NFS3ERR_STALE to the others: a handle from before a key change was good once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CapabilityError {
    /// Not [`CAPABILITY_SIZE`] bytes.
    #[error("a handle of {0} bytes is not a capability")]
    Length(usize),
    /// Another format, or reserved bytes in use.
    #[error("a handle of an unknown format")]
    Format,
    /// Made with a key that this server does not have (any more).
    #[error("key {0} is unknown")]
    UnknownKey(u8),
    /// Forged, damaged, or of another cluster.
    #[error("the handle's seal is wrong")]
    Mac,
}

impl Capability {
    /// The handle, sealed with `key`, the key that `self.key_id` names.
    pub fn seal(&self, key: &[u8; 32]) -> [u8; CAPABILITY_SIZE] {
        let mut handle = [0; CAPABILITY_SIZE];
        let body = self.body();
        let (head, tail) = handle.split_at_mut(BODY_SIZE);
        head.copy_from_slice(&body);
        tail.copy_from_slice(&mac(key, &body));
        handle
    }

    fn body(&self) -> [u8; BODY_SIZE] {
        let [s0, s1] = self.store.to_be_bytes();
        let [d0, d1, d2, d3, d4, d5, d6, d7] = self.data_file.to_be_bytes();
        let [l0, l1] = self.slot.to_be_bytes();
        let [g0, g1] = self.generation.to_be_bytes();
        let [h0, h1, h2, h3] = self.holder.to_be_bytes();
        let [e0, e1] = self.epoch.to_be_bytes();
        let head = VERSION | (self.rights.0 & ALLOWS);
        [
            head,
            self.key_id,
            s0,
            s1,
            d0,
            d1,
            d2,
            d3,
            d4,
            d5,
            d6,
            d7,
            l0,
            l1,
            g0,
            g1,
            h0,
            h1,
            h2,
            h3,
            e0,
            e1,
            self.rights.wants().0 >> 4,
            0,
        ]
    }

    /// Reads and verifies a handle. `keys` gives the key of an id, if this server has it.
    pub fn open(fh: &[u8], keys: impl Fn(u8) -> Option<[u8; 32]>) -> Result<Self, CapabilityError> {
        let handle: &[u8; CAPABILITY_SIZE] = fh.try_into().map_err(|_| CapabilityError::Length(fh.len()))?;
        let (body, seal) =
            handle.split_first_chunk::<BODY_SIZE>().ok_or(CapabilityError::Length(fh.len()))?;
        let [
            head,
            key_id,
            s0,
            s1,
            d0,
            d1,
            d2,
            d3,
            d4,
            d5,
            d6,
            d7,
            l0,
            l1,
            g0,
            g1,
            h0,
            h1,
            h2,
            h3,
            e0,
            e1,
            wants,
            reserved,
        ] = *body;
        if head & 0xf0 != VERSION || reserved != 0 || wants & !(Rights::WANTS >> 4) != 0 {
            return Err(CapabilityError::Format);
        }
        let key = keys(key_id).ok_or(CapabilityError::UnknownKey(key_id))?;
        if !equal(&mac(&key, body), seal) {
            return Err(CapabilityError::Mac);
        }
        Ok(Self {
            rights: Rights(head & ALLOWS | wants << 4),
            key_id,
            store: u16::from_be_bytes([s0, s1]),
            data_file: u64::from_be_bytes([d0, d1, d2, d3, d4, d5, d6, d7]),
            slot: u16::from_be_bytes([l0, l1]),
            generation: u16::from_be_bytes([g0, g1]),
            holder: u32::from_be_bytes([h0, h1, h2, h3]),
            epoch: u16::from_be_bytes([e0, e1]),
        })
    }
}

fn mac(key: &[u8; 32], body: &[u8; BODY_SIZE]) -> [u8; 8] {
    let hash = blake3::keyed_hash(key, body);
    let [a, b, c, d, e, f, g, h, ..] = *hash.as_bytes();
    [a, b, c, d, e, f, g, h]
}

/// Compares in a time that does not depend on where the difference is.
fn equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && std::hint::black_box(a.iter().zip(b).fold(0, |acc, (x, y)| acc | (x ^ y))) == 0
}
