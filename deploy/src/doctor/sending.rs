//! How this host sends, if it is one of the data servers'.

use std::fs;
use std::net::{IpAddr, UdpSocket};

use sluice_xdr::control::ADMIN_STATUS_resok;

use super::Finding;
use crate::status::text;

/// For IPv6 too.
const CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

pub(super) fn here(status: &ADMIN_STATUS_resok) -> Option<Finding> {
    let addresses = status.data_servers.iter().flat_map(|server| &server.addresses);
    let mut addresses = addresses.filter_map(|address| text(&address.host).parse().ok());
    addresses.any(is_ours).then(|| judge(&fs::read_to_string(CONGESTION).ok()?)).flatten()
}

/// Only an address of this host can be bound. Nothing is sent.
fn is_ours(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// BBR paces what it sends. That is for long ways with losses; between machines that share a fast network it costs
/// twice the processor time for half of what one connection could move.
fn judge(congestion: &str) -> Option<Finding> {
    congestion.trim().starts_with("bbr").then(|| {
        Finding::note(
            "this host has a data server and sends with TCP's bbr, which paces: on a fast network one connection moves half as much with it (over loopback 1.9 instead of 3.6 GB/s); sysctl -w net.ipv4.tcp_congestion_control=cubic, Linux's default, and the same in /etc/sysctl.d, then restart the data server",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[test]
    fn a_data_servers_host_that_paces_is_told_what_to_set() {
        for paces in ["bbr\n", "bbr", "bbr2\n"] {
            let finding = judge(paces).unwrap();
            assert_eq!(finding.level, Level::Note);
            assert!(finding.what.contains("net.ipv4.tcp_congestion_control=cubic"), "{}", finding.what);
        }
        assert_eq!(["cubic\n", "reno\n", "dctcp", ""].map(judge), [None, None, None, None]);
    }

    #[test]
    fn only_addresses_of_this_host_are_ours() {
        assert!(is_ours("127.0.0.1".parse().unwrap()));
        // RFC 5737: nobody has it.
        assert!(!is_ours("192.0.2.77".parse().unwrap()));
    }
}
