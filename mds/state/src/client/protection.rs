//! SP4_MACH_CRED: what of a client its own machine alone may do, and what that may do in place of its users.
//! RFC 8881 §2.10.8.3, §18.35.3.

use super::{Client, ClientInfo, Principal};

/// A set of operations, by their numbers (RFC 8881 §18). Those from 64 on, which NFSv4.2 added, are in none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations(pub u64);

impl Operations {
    /// The set of these numbers.
    #[must_use]
    pub const fn of(numbers: &[u32]) -> Self {
        let (mut set, mut rest) = (0, numbers);
        while let [first, tail @ ..] = rest {
            if *first < u64::BITS {
                set |= 1 << *first;
            }
            rest = tail;
        }
        Self(set)
    }

    /// Whether it is in the set.
    #[must_use]
    pub const fn has(self, number: u32) -> bool {
        number < u64::BITS && self.0 >> number & 1 == 1
    }

    /// What is in both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// The numbers of operations that are looked at here.
pub mod operation {
    /// `OP_BIND_CONN_TO_SESSION`
    pub const BIND_CONN_TO_SESSION: u32 = 41;
    /// `OP_EXCHANGE_ID`
    pub const EXCHANGE_ID: u32 = 42;
    /// `OP_CREATE_SESSION`
    pub const CREATE_SESSION: u32 = 43;
    /// `OP_DESTROY_SESSION`
    pub const DESTROY_SESSION: u32 = 44;
    /// `OP_DESTROY_CLIENTID`
    pub const DESTROY_CLIENTID: u32 = 57;
}

/// Lists of a client under SP4_MACH_CRED.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protection {
    /// `spo_must_enforce`: of the client's own principal alone, with integrity or privacy.
    pub enforced: Operations,
    /// `spo_must_allow`: that principal may do them whatever becomes of users and of an export's flavours.
    pub allowed: Operations,
}

impl Protection {
    /// What this server enforces if it is asked to.
    pub const ENFORCEABLE: Operations = Operations::of(&[
        operation::BIND_CONN_TO_SESSION,
        operation::EXCHANGE_ID,
        operation::CREATE_SESSION,
        operation::DESTROY_SESSION,
        operation::DESTROY_CLIENTID,
    ]);

    /// What it grants of what is asked for; `allowable`: what the machine may be allowed.
    #[must_use]
    pub fn granted(self, allowable: Operations) -> Self {
        Self { enforced: self.enforced.and(Self::ENFORCEABLE), allowed: self.allowed.and(allowable) }
    }
}

/// Who calls, and whether what it says is proved to be as it said it: RPCSEC_GSS with integrity or privacy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Of the RPC call.
    pub principal: Principal,
    /// Nobody can have changed the call.
    pub sealed: bool,
}

/// Who has established a client, and how that is protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Of its EXCHANGE_ID.
    pub principal: Principal,
    /// Under SP4_MACH_CRED.
    pub protection: Protection,
}

impl Guard {
    /// Whether it is the client's own machine that calls.
    #[must_use]
    pub fn is_machine(&self, caller: &Caller) -> bool {
        caller.sealed && caller.principal == self.principal
    }

    /// Whether somebody may do what is perhaps enforced.
    #[must_use]
    pub fn admits(&self, operation: u32, caller: &Caller) -> bool {
        !self.protection.enforced.has(operation) || self.is_machine(caller)
    }
}

impl ClientInfo {
    /// Who may do what to it, if that is enforced.
    #[must_use]
    pub fn guard(&self) -> Option<Guard> {
        self.protection.map(|protection| Guard { principal: self.principal.clone(), protection })
    }
}

impl Client {
    /// Of a record that is new.
    pub(crate) fn set_protection(&mut self, protection: Option<Protection>) {
        self.row.protection = protection;
        let enforced = protection.is_some_and(|p| p.enforced.has(operation::BIND_CONN_TO_SESSION));
        self.shared.set_must_bind(enforced);
    }
}
