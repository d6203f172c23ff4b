//! What a cluster file says: where the coordinators are, and whether they speak TLS.
//!
//! ```text
//! description:id@10.0.0.1:4500:tls,10.0.0.2:4500:tls
//! ```

use std::path::{Path, PathBuf};

/// Where the client library looks for it, in this order, when nobody names it.
const VARIABLE: &str = "FDB_CLUSTER_FILE";
const PLACES: [&str; 2] = ["fdb.cluster", "/etc/foundationdb/fdb.cluster"];

/// A coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// A host or an IP address, and a port.
    pub(crate) socket: String,
    pub(crate) tls: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterFile {
    pub(crate) path: PathBuf,
    /// Empty if it cannot be read: the client library says why.
    pub(crate) addresses: Vec<Address>,
}

impl ClusterFile {
    /// The file that is `given`, or the one that the client library takes.
    pub(crate) fn of(given: Option<&Path>) -> Self {
        let named = || std::env::var_os(VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
        let found = || PLACES.map(PathBuf::from).into_iter().find(|place| place.exists());
        let path = given.map(Path::to_owned).or_else(named).or_else(found).unwrap_or_default();
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        Self { path, addresses: addresses(&text) }
    }

    pub(crate) fn speaks_tls(&self) -> bool {
        self.addresses.iter().any(|address| address.tls)
    }
}

fn addresses(text: &str) -> Vec<Address> {
    let lines = text.lines().map(str::trim);
    let line = lines.filter(|line| !line.starts_with('#')).find_map(|line| line.split_once('@'));
    let Some((_, list)) = line else { return Vec::new() };
    let address = |text: &str| {
        // What comes out of DNS is marked so once the client has written the file.
        let text = text.trim();
        let text = text.strip_suffix("(fromHostname)").unwrap_or(text);
        match text.strip_suffix(":tls") {
            Some(socket) => Address { socket: socket.to_owned(), tls: true },
            None => Address { socket: text.to_owned(), tls: false },
        }
    };
    list.split(',').map(address).filter(|address| !address.socket.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinators_are_found_with_what_they_speak() {
        let said = |text: &str| {
            let one = |address: &Address| (address.socket.clone(), address.tls);
            addresses(text).iter().map(one).collect::<Vec<_>>()
        };
        let (a, b) = ("127.0.0.1:4500".to_owned(), "fdb.example.org:4501".to_owned());
        assert_eq!(said("test:test@127.0.0.1:4500\n"), [(a.clone(), false)]);
        assert_eq!(
            said("# written by hand\n\n a:b@127.0.0.1:4500:tls, fdb.example.org:4501:tls(fromHostname)\n"),
            [(a, true), (b, true)]
        );
        assert_eq!(said("[::1]:4500"), []);
        assert_eq!(said("a:b@[::1]:4500:tls"), [("[::1]:4500".to_owned(), true)]);
        assert_eq!(said(""), []);
    }
}
