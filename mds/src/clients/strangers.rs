//! Hosts that no export lets in: what of clients and sessions is theirs. RFC 8881 §2.10.8.3 leaves it to the server, under
//! SP4_NONE, whose requests a session takes; AUTH_SYS is whatever one says, and client IDs are numbers in turn.
//!
//! They may be clients, or their kernels would try for ever; but clients of their own, and they use nobody else's. Few of them:
//! there may be no end of hosts and names, and a table full of them would keep out everybody else. Nobody has anything to lose.

use std::net::IpAddr;

use bytes::Bytes;
use sluice_state::ClientId;

use super::SessionEntry;
use crate::compound::Context;

/// In a client owner of such a host: between its address and what it calls itself.
const MARK: &str = " without an export: ";

/// As whom a client is known. A copy: what arrived refers to the receive buffer, and the record outlives it. Whoever no export
/// lets in is a client of his own, whatever he calls himself: else he could end any other whose name he guesses (§18.35.4,
/// a client that was restarted).
pub(crate) fn owner(cx: &Context, name: &[u8]) -> Bytes {
    if cx.exports.lets_in(cx.from) {
        return Bytes::copy_from_slice(name);
    }
    let mut own = format!("{}{MARK}", cx.from.to_canonical()).into_bytes();
    own.extend_from_slice(name);
    own.into()
}

/// The host without an export that a client owner was made for, if it was.
pub(super) fn host_of(owner: &[u8]) -> Option<IpAddr> {
    let at = owner.windows(MARK.len()).position(|part| part == MARK.as_bytes())?;
    std::str::from_utf8(&owner[..at]).ok()?.parse().ok()
}

impl Context {
    /// Whether the caller may use a session that its connection is not bound to. One that has been locked out may go on with
    /// what it made, to give back what it holds; so may it over connections from before, which are bound.
    pub(crate) fn may_bind(&self, session: &SessionEntry) -> bool {
        session.made_from == Some(self.from.to_canonical()) || self.exports.lets_in(self.from)
    }

    /// Whether the caller may name a client outside its sessions.
    pub(crate) fn may_name(&self, client: ClientId) -> bool {
        if self.exports.lets_in(self.from) {
            return true;
        }
        let known = self.server.clients.lock().info(self.server.now(), client);
        known.and_then(|info| host_of(&info.owner)) == Some(self.from.to_canonical())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owners_of_hosts_without_an_export_tell_a_host() {
        let host = |owner: &str| host_of(owner.as_bytes());
        assert_eq!(host("10.0.0.9 without an export: a"), "10.0.0.9".parse().ok());
        assert_eq!(host("::1 without an export: 10.0.0.9 without an export: a"), "::1".parse().ok());
        assert_eq!(host("Linux NFSv4.2 10.0.0.9 without an export: a"), None);
        assert_eq!(host("10.0.0.9"), None);
    }
}
