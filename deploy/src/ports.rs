//! Listening, and who is in the way.

use std::fs;
use std::net::{AddrParseError, SocketAddr, SocketAddrV4};
use std::path::Path;

use anyhow::{Result, anyhow};
use sluice_rpc::Tcp;

/// `ADDR:PORT`. Brackets may be around any address: who fills one in (deploy/helm) does not know of which family it is.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let inside = text.strip_prefix('[').and_then(|rest| rest.split_once("]:"));
    let bare = inside.and_then(|(host, port)| format!("{host}:{port}").parse::<SocketAddrV4>().ok());
    let parsed = bare.map_or_else(|| text.parse(), |address| Ok(address.into()));
    parsed.map_err(|error: AddrParseError| error.to_string())
}

/// Whether a server may listen at `address`, which `option` has chosen.
///
/// # Errors
/// One line for an operator.
pub(crate) fn free(option: &str, address: SocketAddr) -> Result<()> {
    Tcp::is_free(address).map_err(|error| anyhow!(explain(option, address, &error)))
}

/// One line for an operator whose port is taken or forbidden; `option` is the one that chooses it.
pub(crate) fn explain(option: &str, address: SocketAddr, error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            let holder = holder(address.port()).map_or_else(
                || "another program".to_owned(),
                |(pid, name)| format!("{name} (process {pid})"),
            );
            format!(
                "port {} is taken by {holder}: stop it, or choose another port with {option}",
                address.port()
            )
        }
        std::io::ErrorKind::PermissionDenied => {
            format!("may not listen on {address}: ports below 1024 need root")
        }
        std::io::ErrorKind::AddrNotAvailable => {
            format!("{} is not an address of this host", address.ip())
        }
        _ => format!("cannot listen on {address}: {error}"),
    }
}

/// The process that listens on a TCP port, as far as /proc tells this user.
fn holder(port: u16) -> Option<(u32, String)> {
    let inode = ["/proc/net/tcp", "/proc/net/tcp6"].iter().find_map(|table| {
        fs::read_to_string(table).ok()?.lines().skip(1).find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let local = fields.get(1)?.rsplit(':').next()?;
            let listening = *fields.get(3)? == "0A";
            (listening && u16::from_str_radix(local, 16).ok()? == port)
                .then(|| fields.get(9).map(|inode| (*inode).to_owned()))?
        })
    })?;
    let socket = format!("socket:[{inode}]");
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let held = fs::read_dir(entry.path().join("fd"))
            .ok()?
            .flatten()
            .any(|fd| fs::read_link(fd.path()).is_ok_and(|target| target == Path::new(&socket)));
        held.then(|| {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            (pid, name.trim().to_owned())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_address_may_have_brackets() {
        for (text, meant) in [
            ("10.0.0.1:2050", Some("10.0.0.1:2050")),
            ("[10.0.0.1]:2050", Some("10.0.0.1:2050")),
            ("[fd00::1]:2050", Some("[fd00::1]:2050")),
            ("fd00::1:2050", None),
            ("[10.0.0.1:2050]", None),
            ("[10.0.0.1]", None),
            ("10.0.0.1", None),
            ("", None),
        ] {
            assert_eq!(address(text).ok(), meant.map(|meant| meant.parse().unwrap()), "{text}");
        }
    }
}
