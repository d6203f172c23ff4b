//! Hosts and netgroups as this host's nsswitch.conf has them: files, DNS, NIS, LDAP, sssd.
#![allow(unsafe_code, reason = "netgroups have no other interface than C's; every call says why it may be")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ptr::null;
use std::sync::{Mutex, PoisonError};

use dns_lookup::{AddrInfoHints, LookupError, LookupErrorKind, getaddrinfo, getnameinfo};
use nix::libc::{NI_NAMEREQD, NI_NUMERICSERV, SOCK_STREAM};
use sluice_mds::Resolver;

/// This host.
#[derive(Debug)]
pub(crate) struct Host;

impl Resolver for Host {
    fn addresses(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        let hints = AddrInfoHints { socktype: SOCK_STREAM, ..AddrInfoHints::default() };
        match getaddrinfo(Some(host), None, Some(hints)) {
            Ok(found) => found.map(|one| one.map(|one| one.sockaddr.ip())).collect(),
            Err(error) if is_none(&error) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    fn name(&self, address: IpAddr) -> io::Result<Option<String>> {
        match getnameinfo(&SocketAddr::new(address, 0), NI_NAMEREQD | NI_NUMERICSERV) {
            Ok((name, _)) => Ok(Some(name)),
            Err(error) if is_none(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn is_in(&self, netgroup: &str, host: &str) -> io::Result<bool> {
        // What these calls keep is the process's.
        static ASKING: Mutex<()> = Mutex::new(());
        let (group, host) = (CString::new(netgroup)?, CString::new(host)?);
        let _asking = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
        if has(&group, &host) {
            return Ok(true);
        }
        // Not to be in it, and that it cannot be told, are the same answer.
        match there_is(&group) {
            true => Ok(false),
            false => {
                Err(io::Error::new(io::ErrorKind::NotFound, "no such netgroup, or its name service is away"))
            }
        }
    }
}

/// There is no such host, or no such address, says who knows.
fn is_none(error: &LookupError) -> bool {
    matches!(error.kind(), LookupErrorKind::NoName | LookupErrorKind::NoData)
}

// Of the C library (innetgr(3)). Rust's libc has no words for them.
unsafe extern "C" {
    fn innetgr(
        netgroup: *const c_char,
        host: *const c_char,
        user: *const c_char,
        domain: *const c_char,
    ) -> c_int;
    fn setnetgrent(netgroup: *const c_char) -> c_int;
    fn endnetgrent();
}

/// Only while nobody else asks.
fn has(group: &CStr, host: &CStr) -> bool {
    // SAFETY: both are texts that end in a zero and outlive the call, which reads them and keeps nothing; null is any user and any
    // domain. One thread calls at a time: what the library has of its own is the caller's alone.
    unsafe { innetgr(group.as_ptr(), host.as_ptr(), null(), null()) == 1 }
}

/// Only while nobody else asks.
fn there_is(group: &CStr) -> bool {
    // SAFETY: as above; what the first call begins the second ends.
    unsafe {
        let found = setnetgrent(group.as_ptr()) == 1;
        endnetgrent();
        found
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn this_host_knows_itself_and_nobody_that_there_is_not() {
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert!(Host.addresses("localhost").unwrap().contains(&local));
        assert!(Host.name(local).unwrap().unwrap().starts_with("localhost"));
        // RFC 6761 §6.4: there is none. Without a network nobody can say so.
        if let Ok(found) = Host.addresses("sluice.invalid") {
            assert_eq!(found, Vec::<IpAddr>::new());
        }
    }

    #[test]
    fn a_netgroup_that_there_is_not_is_not_one_that_somebody_is_not_in() {
        let error = Host.is_in("sluice-has-no-such-group", "localhost").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(Host.is_in("a\0b", "localhost").is_err());
    }
}
