//! What protects the connection that a call came over, as rules want it. docs/adr/0045.

use sluice_namespace::stable_storage::Protection;
use sluice_rpc::Connection;
use sluice_xdr::control::ctl_protection;

/// What a client has.
pub(crate) fn of(connection: &Connection) -> Protection {
    match connection.encrypted() {
        None => Protection::None,
        Some(encrypted) if encrypted.has_certificate() => Protection::Mutual,
        Some(_) => Protection::Tls,
    }
}

pub(crate) fn wire(protection: Protection) -> ctl_protection {
    match protection {
        Protection::None => ctl_protection::PROTECTION_NONE,
        Protection::Tls => ctl_protection::PROTECTION_TLS,
        Protection::Mutual => ctl_protection::PROTECTION_MUTUAL,
    }
}

/// `None`: of a later release.
pub(crate) fn from_wire(wire: ctl_protection) -> Option<Protection> {
    match wire {
        ctl_protection::PROTECTION_NONE => Some(Protection::None),
        ctl_protection::PROTECTION_TLS => Some(Protection::Tls),
        ctl_protection::PROTECTION_MUTUAL => Some(Protection::Mutual),
        _ => None,
    }
}
