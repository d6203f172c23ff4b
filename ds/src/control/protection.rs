//! PROTECTION: what the connections of clients can be protected by here. A metadata server mints no handle that wants more, and
//! none that wants anything for a data server of a release that does not know the question.

use sluice_rpc::Tls;
use sluice_xdr::control::ctl_protection;

/// The most that a client can have.
pub(crate) fn of(tls: Option<&Tls>) -> ctl_protection {
    match tls {
        None => ctl_protection::PROTECTION_NONE,
        Some(tls) if tls.believes_clients() => ctl_protection::PROTECTION_MUTUAL,
        Some(_) => ctl_protection::PROTECTION_TLS,
    }
}
