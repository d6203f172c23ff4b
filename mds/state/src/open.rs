//! Opens and share reservations: RFC 8881 §9.7-9.11, §18.16 (OPEN), §18.18 (OPEN_DOWNGRADE), §18.2 (CLOSE).

use crate::ids::StateId;
use crate::owner::OpenOwner;

/// OPEN4_SHARE_ACCESS: at least one bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Access(u8);

/// OPEN4_SHARE_DENY: any of two bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deny(u8);

impl Access {
    /// OPEN4_SHARE_ACCESS_READ.
    pub const READ: Self = Self(1);
    /// OPEN4_SHARE_ACCESS_WRITE.
    pub const WRITE: Self = Self(2);
    /// OPEN4_SHARE_ACCESS_BOTH.
    pub const BOTH: Self = Self(3);

    /// From the wire bits (1..=3); `None` otherwise, which is NFS4ERR_INVAL.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits >= 1 && bits <= 3 { Some(Self(bits as u8)) } else { None }
    }

    /// The wire bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// True when READ is included.
    #[must_use]
    pub const fn reads(self) -> bool {
        self.0 & 1 != 0
    }

    /// True when WRITE is included.
    #[must_use]
    pub const fn writes(self) -> bool {
        self.0 & 2 != 0
    }
}

impl Deny {
    /// OPEN4_SHARE_DENY_NONE.
    pub const NONE: Self = Self(0);
    /// OPEN4_SHARE_DENY_READ.
    pub const READ: Self = Self(1);
    /// OPEN4_SHARE_DENY_WRITE.
    pub const WRITE: Self = Self(2);
    /// OPEN4_SHARE_DENY_BOTH.
    pub const BOTH: Self = Self(3);

    /// From the wire bits (0..=3); `None` otherwise, which is NFS4ERR_INVAL.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits <= 3 { Some(Self(bits as u8)) } else { None }
    }

    /// The wire bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }
}

/// `open_claim4`, as far as the state of the file cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// CLAIM_NULL and CLAIM_FH: a new open, by name or filehandle.
    New,
    /// CLAIM_PREVIOUS: reclaim after a restart of the server.
    Previous {
        /// The delegation reclaimed with it, if any.
        delegation: Want,
    },
    /// CLAIM_DELEGATE_CUR, CLAIM_DELEG_CUR_FH: an open made locally under this delegation.
    Delegation {
        /// The delegation's stateid.
        stateid: StateId,
    },
}

/// What the client says about delegations (OPEN4_SHARE_ACCESS_WANT_*).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Want {
    /// No preference, or any.
    #[default]
    Any,
    /// WANT_NO_DELEG.
    None,
    /// WANT_READ_DELEG (or OPEN_DELEGATE_READ in a reclaim).
    Read,
    /// WANT_WRITE_DELEG (or OPEN_DELEGATE_WRITE in a reclaim).
    Write,
}

/// OPEN of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenRequest {
    /// The open-owner; its client is the session's.
    pub owner: OpenOwner,
    /// share_access without the WANT bits.
    pub access: Access,
    /// share_deny.
    pub deny: Deny,
    /// How the file was claimed.
    pub claim: Claim,
    /// Delegation wanted.
    pub want: Want,
}
