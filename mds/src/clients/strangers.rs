//! Whose clients and sessions are whose, among hosts that different exports let in, or none. RFC 8881 §2.10.8.3 leaves it to the
//! server, under SP4_NONE, whose requests a session takes; AUTH_SYS is whatever one says, and client IDs are numbers in turn.
//!
//! What a host has made it uses itself, and so does any that may do as much through every export: it may be another address of the
//! same host, and could do the same harm by a client of its own. All others do as if it were not there.
//!
//! Whom no export lets in may be a client, or its kernel would try for ever; but a client of its own, and it uses nobody else's. Few of
//! them: there may be no end of hosts and names, and a table full of them would keep out everybody else. Nobody has anything to lose.

use std::net::IpAddr;

use bytes::Bytes;
use sluice_state::client::{ClientInfo, Clients};

use super::SessionEntry;
use crate::compound::Context;

/// In a client owner of a host that no export lets in: between its address and what it calls itself.
const MARK: &str = " without an export: ";

/// In one of a host that calls itself what another does: hosts of different networks are named alike.
const APART: &str = " apart from others: ";

/// As whom a client is known. A copy: what arrived refers to the receive buffer, and the record outlives it. Nobody is known as what
/// somebody else's client is called: else he could end any whose name he guesses (§18.35.4, a client that was restarted).
pub(crate) fn owner(cx: &Context, table: &Clients, name: &[u8]) -> Bytes {
    if !cx.exports.lets_in(&cx.from) {
        return own(cx, MARK, name);
    }
    let apart = own(cx, APART, name);
    let from = Some(cx.from.address.to_canonical());
    // It goes on as what it was known as first.
    let is_apart = table.hosts_of(&apart).contains(&from);
    if is_apart || table.hosts_of(name).into_iter().any(|maker| !cx.stands_for(maker)) {
        return apart;
    }
    Bytes::copy_from_slice(name)
}

fn own(cx: &Context, mark: &str, name: &[u8]) -> Bytes {
    let mut own = format!("{}{mark}", cx.from.address.to_canonical()).into_bytes();
    own.extend_from_slice(name);
    own.into()
}

/// The host without an export that a client owner was made for, if it was.
pub(super) fn host_of(owner: &[u8]) -> Option<IpAddr> {
    let at = owner.windows(MARK.len()).position(|part| part == MARK.as_bytes())?;
    std::str::from_utf8(&owner[..at]).ok()?.parse().ok()
}

/// From where a client was established. Releases before wrote it down of hosts without an export alone.
pub(crate) fn maker(info: &ClientInfo) -> Option<IpAddr> {
    info.host.or_else(|| host_of(&info.owner))
}

impl Context {
    /// Whether the caller may use what somebody at this address has made. One that has been locked out may go on with what it made
    /// itself, to give back what it holds; so may it over connections from before, which are bound.
    pub(super) fn stands_for(&self, maker: Option<IpAddr>) -> bool {
        let from = self.from.address.to_canonical();
        maker.map_or_else(
            || self.exports.lets_in(&self.from),
            |maker| maker == from || self.exports.gives_as_much(&self.from, &self.server.origin(maker)),
        )
    }

    /// Whether the caller may use a session that its connection is not bound to. That is not a matter of who calls: Linux begins on
    /// a new connection with whichever user's request is next.
    pub(crate) fn may_bind(&self, session: &SessionEntry) -> bool {
        self.stands_for(session.made_from)
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
        assert_eq!(host("10.0.0.9 apart from others: a"), None);
        assert_eq!(host("10.0.0.9"), None);
    }
}
