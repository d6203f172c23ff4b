//! Open-owners and lock-owners: RFC 8881 §9.1, §8.2.1. An owner is a client ID and an opaque name.

use std::sync::Arc;

use crate::ids::ClientId;

/// Longest opaque of an owner, in bytes (RFC 8881 §2.2, NFS4_OPAQUE_LIMIT).
pub const MAX_OWNER_BYTES: usize = 1024;

/// `state_owner4` of an OPEN. The client is that of the session, never the one on the wire: RFC 8881
/// §18.16.3 tells a 4.1 server to ignore the client ID inside the owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpenOwner {
    /// The client that owns the session.
    pub client: ClientId,
    /// The name that the client chose, at most [`MAX_OWNER_BYTES`].
    pub opaque: Arc<[u8]>,
}

/// `state_owner4` of a LOCK. A type apart from [`OpenOwner`]: the two name spaces never mix (§9.1).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner {
    /// The client that owns the session.
    pub client: ClientId,
    /// The name that the client chose, at most [`MAX_OWNER_BYTES`].
    pub opaque: Arc<[u8]>,
}

impl OpenOwner {
    /// The owner `opaque` of `client`.
    #[must_use]
    pub fn new(client: ClientId, opaque: &[u8]) -> Self {
        Self { client, opaque: opaque.into() }
    }
}

impl LockOwner {
    /// The owner `opaque` of `client`.
    #[must_use]
    pub fn new(client: ClientId, opaque: &[u8]) -> Self {
        Self { client, opaque: opaque.into() }
    }
}
