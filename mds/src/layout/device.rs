//! Device IDs and addresses of data servers. RFC 8881 §12.2.10, RFC 8435 §4.
//!
//! ```text
//! deviceid4   "slds" | store:16 | generation:16 | hash of the addresses:64
//! ```
//!
//! A device ID never changes its meaning: a data server that moves has another one. Clients ignore
//! CB_NOTIFY_DEVICEID for what they have open. The generation is raised when a data server comes back that was
//! lost: Linux avoids a device that failed for two minutes, and this is another one to it. It counts from the
//! start of this server, whose restart makes clients forget devices; all generations mean the same place.

use std::hash::{BuildHasher, Hasher};
use std::net::SocketAddr;

use bytes::Bytes;
use foldhash::quality::FixedState;
use sluice_namespace::StoreId;
use sluice_xdr::flexfiles::{ff_device_addr4, ff_device_versions4};
use sluice_xdr::nfs4::{device_addr4, deviceid4, layouttype4, netaddr4};

use crate::dsctl::StoreHandle;
use crate::server::Mds;

const MAGIC: &[u8; 4] = b"slds";
/// Bytes of a READ or WRITE to a data server: the most that stock clients send.
const IO_SIZE: u32 = 1 << 20;

/// The device ID of a data server where it is now.
pub(crate) fn id(store: &StoreHandle) -> deviceid4 {
    store.update(|view| encode(store.id, view.device_generation, &view.addresses))
}

fn encode(store: StoreId, generation: u16, addresses: &[SocketAddr]) -> deviceid4 {
    let mut hasher = FixedState::default().build_hasher();
    for address in addresses {
        hasher.write(address.to_string().as_bytes());
        hasher.write_u8(0);
    }
    let mut id = [0; 16];
    let (magic, rest) = id.split_at_mut(4);
    magic.copy_from_slice(MAGIC);
    let (number, rest) = rest.split_at_mut(2);
    number.copy_from_slice(&store.0.to_be_bytes());
    let (count, hash) = rest.split_at_mut(2);
    count.copy_from_slice(&generation.to_be_bytes());
    hash.copy_from_slice(&hasher.finish().to_be_bytes());
    deviceid4(id)
}

/// The store that a device ID speaks of, wherever it is now; `None` for what is not one of ours.
pub(crate) fn store(id: &deviceid4) -> Option<StoreId> {
    match id.0 {
        [b's', b'l', b'd', b's', high, low, ..] => Some(StoreId(u16::from_be_bytes([high, low]))),
        _ => None,
    }
}

fn generation(id: &deviceid4) -> u16 {
    let [_, _, _, _, _, _, high, low, ..] = id.0;
    u16::from_be_bytes([high, low])
}

/// The address of a device; `None` when there is no such device (any more).
pub(crate) fn address(mds: &Mds, id: &deviceid4) -> Option<device_addr4> {
    let store = mds.data_servers.get(store(id)?)?;
    let addresses = store.view().addresses;
    if addresses.is_empty() || encode(store.id, generation(id), &addresses) != *id {
        return None;
    }
    Some(device_addr4 { da_layout_type: layouttype4::LAYOUT4_FLEX_FILES, da_addr_body: body(&addresses)? })
}

/// Exactly one version: clients use the first and refuse the whole device for one that they do not know.
fn body(addresses: &[SocketAddr]) -> Option<Bytes> {
    let body = ff_device_addr4 {
        ffda_netaddrs: addresses.iter().map(universal).collect(),
        ffda_versions: vec![ff_device_versions4 {
            ffdv_version: 3,
            ffdv_minorversion: 0,
            ffdv_rsize: IO_SIZE,
            ffdv_wsize: IO_SIZE,
            ffdv_tightly_coupled: false,
        }],
    };
    sluice_xdr::to_bytes(&body).ok()
}

/// RFC 5665 §5.2.3.3, §5.2.3.4: the port in two bytes behind the address.
fn universal(address: &SocketAddr) -> netaddr4 {
    let netid: &'static [u8] = if address.is_ipv4() { b"tcp" } else { b"tcp6" };
    let [high, low] = address.port().to_be_bytes();
    netaddr4 {
        na_r_netid: Bytes::from_static(netid),
        na_r_addr: format!("{}.{high}.{low}", address.ip()).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_id_is_of_one_store_at_one_place() {
        let here: Vec<SocketAddr> = vec!["10.0.0.7:2049".parse().unwrap()];
        let there: Vec<SocketAddr> = vec!["10.0.0.7:2050".parse().unwrap()];
        assert_eq!(encode(StoreId(9), 1, &here), encode(StoreId(9), 1, &here));
        assert_ne!(encode(StoreId(9), 1, &here), encode(StoreId(9), 2, &here));
        assert_ne!(encode(StoreId(9), 1, &here), encode(StoreId(9), 1, &there));
        assert_ne!(encode(StoreId(9), 1, &here), encode(StoreId(8), 1, &here));
        assert_eq!(store(&encode(StoreId(0x1234), 7, &here)), Some(StoreId(0x1234)));
        assert_eq!(generation(&encode(StoreId(1), 0x0207, &here)), 0x0207);
        assert_eq!(store(&deviceid4([1; 16])), None);
    }

    #[test]
    fn addresses_are_universal() {
        let v4 = universal(&"192.168.1.2:20049".parse().unwrap());
        assert_eq!((&v4.na_r_netid[..], &v4.na_r_addr[..]), (&b"tcp"[..], &b"192.168.1.2.78.81"[..]));
        let v6 = universal(&"[fd00::7]:2049".parse().unwrap());
        assert_eq!((&v6.na_r_netid[..], &v6.na_r_addr[..]), (&b"tcp6"[..], &b"fd00::7.8.1"[..]));
    }
}
