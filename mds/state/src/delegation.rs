//! Delegations: RFC 8881 §10.2, §10.4, §18.6 (DELEGRETURN).

use crate::ids::StateId;

/// The type of a delegation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DelegationKind {
    /// OPEN_DELEGATE_READ.
    Read,
    /// OPEN_DELEGATE_WRITE.
    Write,
}

/// A delegation handed out with an OPEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its type.
    pub kind: DelegationKind,
    /// Its stateid.
    pub stateid: StateId,
}
