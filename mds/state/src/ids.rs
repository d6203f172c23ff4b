//! Identifiers and time: RFC 8881 §2.4 (client ID), §2.10.3 (session ID), §8.2 (stateid).
//!
//! Every identifier that crosses the wire carries the boot epoch of the metadata server that issued
//! it, so that one issued by an earlier incarnation is recognised without a table:
//!
//! ```text
//! client ID     epoch:32 | counter:32
//! session ID    client ID:64 | counter:32 | random:32
//! stateid.other epoch:32 | kind:8 | counter:56
//! ```

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Monotonic time in nanoseconds since an arbitrary origin chosen by the caller. Never wall time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The origin.
    pub const ZERO: Self = Self(0);
    /// A deadline that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// `secs` seconds after the origin (saturating).
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// `millis` milliseconds after the origin (saturating).
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// This time plus `nanos` nanoseconds (saturating: never wraps into the past).
    #[must_use]
    pub const fn plus_nanos(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// This time plus `secs` seconds (saturating).
    #[must_use]
    pub const fn plus_secs(self, secs: u64) -> Self {
        self.plus_nanos(secs.saturating_mul(1_000_000_000))
    }

    /// Nanoseconds from `earlier` to `self`; 0 when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl std::ops::Add<std::time::Duration> for Time {
    type Output = Self;

    /// Saturating, as every sum here.
    fn add(self, d: std::time::Duration) -> Self {
        self.plus_nanos(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Number of a metadata server incarnation: strictly larger at each start, from stable storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootEpoch(pub u32);

/// `clientid4`: boot epoch in the high 32 bits, a counter in the low 32. Never 0 for a live client.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

impl ClientId {
    /// The `counter`-th client ID issued in `epoch`.
    #[must_use]
    pub const fn new(epoch: BootEpoch, counter: u32) -> Self {
        Self(((epoch.0 as u64) << 32) | counter as u64)
    }

    /// The incarnation that issued it.
    #[must_use]
    pub const fn epoch(self) -> BootEpoch {
        BootEpoch((self.0 >> 32) as u32)
    }

    /// Its number within the incarnation.
    #[must_use]
    pub const fn counter(self) -> u32 {
        self.0 as u32
    }
}

/// As commands show it, so that what a log names is found in their lists.
impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// `sessionid4`: client ID (8 bytes), counter within the client (4), random (4), all big endian.
///
/// The random part only keeps a stale session ID of a lost history from matching by accident; it is not
/// a secret.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; 16]);

impl SessionId {
    /// The `counter`-th session of `client`.
    #[must_use]
    pub fn new(client: ClientId, counter: u32, random: u32) -> Self {
        let mut b = [0u8; 16];
        b[..8].copy_from_slice(&client.0.to_be_bytes());
        b[8..12].copy_from_slice(&counter.to_be_bytes());
        b[12..].copy_from_slice(&random.to_be_bytes());
        Self(b)
    }

    /// The client it belongs to: a lookup can be routed to the client's shard without a table.
    #[must_use]
    pub fn client(self) -> ClientId {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        ClientId(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }

    /// Its number within the client.
    #[must_use]
    pub fn counter(self) -> u32 {
        let [_, _, _, _, _, _, _, _, a, b, c, d, ..] = self.0;
        u32::from_be_bytes([a, b, c, d])
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId(")?;
        for b in self.0 {
            write!(f, "{b:02x}")?;
        }
        write!(f, ")")
    }
}

/// `verifier4`: eight opaque bytes, compared for equality only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Verifier(pub [u8; 8]);

/// Number of a transport connection, unique for the life of the process; never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// As what an address counts where hosts share something: a machine may take any address of an IPv6 network of 64 bits (RFC 4291
/// §2.5.4).
#[must_use]
pub fn household(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

/// What a stateid stands for: the fifth byte of `other`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum StateKind {
    /// An open (share reservation).
    Open = 1,
    /// Byte-range locks of one lock-owner on one file.
    Lock = 2,
    /// A delegation.
    Delegation = 3,
    /// A layout.
    Layout = 4,
    /// An asynchronous copy (RFC 7862 §4.8).
    Copy = 5,
}

impl StateKind {
    /// The kind with this tag, or `None`: tag 0 and unknown tags were never issued.
    #[must_use]
    pub const fn from_tag(tag: u8) -> Option<Self> {
        match tag {
            1 => Some(Self::Open),
            2 => Some(Self::Lock),
            3 => Some(Self::Delegation),
            4 => Some(Self::Layout),
            5 => Some(Self::Copy),
            _ => None,
        }
    }
}

/// `stateid4`. RFC 8881 §8.2.2: `seqid` counts changes of the state that `other` names.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateId {
    /// Sequence number; 0 from a client means "the most recent" (§8.2.2).
    pub seqid: u32,
    /// Boot epoch (4 bytes), kind (1), counter (7), big endian; or one of the special values of §8.2.3.
    pub other: [u8; 12],
}

/// Largest counter that fits in `StateId::other`.
pub const MAX_STATE_COUNTER: u64 = (1 << 56) - 1;

impl StateId {
    /// A stateid of this server. Only the low 56 bits of `counter` are kept (see [`MAX_STATE_COUNTER`]):
    /// at a million states a second they last two thousand years.
    #[must_use]
    pub fn new(epoch: BootEpoch, kind: StateKind, counter: u64, seqid: u32) -> Self {
        let mut other = [0u8; 12];
        other[..4].copy_from_slice(&epoch.0.to_be_bytes());
        other[4..].copy_from_slice(&(counter & MAX_STATE_COUNTER).to_be_bytes());
        other[4] = kind as u8;
        Self { seqid, other }
    }

    /// The incarnation that issued it (meaningless for a special stateid).
    #[must_use]
    pub fn epoch(&self) -> BootEpoch {
        let [a, b, c, d, ..] = self.other;
        BootEpoch(u32::from_be_bytes([a, b, c, d]))
    }

    /// The kind of state, or `None` for a special stateid or one never issued by this server.
    #[must_use]
    pub fn kind(&self) -> Option<StateKind> {
        StateKind::from_tag(self.other[4])
    }

    /// The counter part.
    #[must_use]
    pub fn counter(&self) -> u64 {
        let [_, _, _, _, _, a, b, c, d, e, f, g] = self.other;
        u64::from_be_bytes([0, a, b, c, d, e, f, g])
    }

    /// The same state at another seqid.
    #[must_use]
    pub const fn with_seqid(self, seqid: u32) -> Self {
        Self { seqid, other: self.other }
    }
}

impl fmt::Debug for StateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StateId({}:", self.seqid)?;
        for b in self.other {
            write!(f, "{b:02x}")?;
        }
        write!(f, ")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_survive_packing() {
        let e = BootEpoch(0xdead_beef);
        let c = ClientId::new(e, 0x1234_5678);
        assert_eq!((c.epoch(), c.counter()), (e, 0x1234_5678));
        assert_eq!(format!("{c:?}"), "deadbeef12345678", "as `sluice client list` has it");
        let s = SessionId::new(c, 7, 0xffff_ffff);
        assert_eq!((s.client(), s.counter()), (c, 7));
        let st = StateId::new(e, StateKind::Layout, MAX_STATE_COUNTER, 9);
        assert_eq!(
            (st.epoch(), st.kind(), st.counter(), st.seqid),
            (e, Some(StateKind::Layout), MAX_STATE_COUNTER, 9)
        );
        assert_eq!(StateId::new(e, StateKind::Open, MAX_STATE_COUNTER + 2, 0).counter(), 1);
    }

    #[test]
    fn special_stateids_have_no_kind() {
        assert_eq!(StateId::default().kind(), None);
        assert_eq!(StateId { seqid: u32::MAX, other: [0xff; 12] }.kind(), None);
    }

    #[test]
    fn addresses_of_one_machine_are_one_host() {
        let host = |text: &str| household(text.parse().unwrap()).to_string();
        assert_eq!([host("10.0.0.3"), host("::ffff:10.0.0.3")], ["10.0.0.3", "10.0.0.3"]);
        assert_eq!(
            [host("2001:db8:0:1:2:3:4:5"), host("2001:db8:0:1::9")],
            ["2001:db8:0:1::", "2001:db8:0:1::"]
        );
        assert_ne!(host("2001:db8:0:2::9"), host("2001:db8:0:1::9"));
    }

    #[test]
    fn time_saturates() {
        assert_eq!(Time::NEVER.plus_secs(1), Time::NEVER);
        assert_eq!(Time::ZERO.since(Time(5)), 0);
    }
}
