//! Exports: which directories clients may mount, and who may do what through them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use bytes::Bytes;
use sluice_kv::Transaction;

use super::client_names::ClientName;
use super::{Row, decode_list, encode_list, get, list};
use crate::codec::{Reader, Writer};
use crate::error::FsError;
use crate::keys::{self, InodeKey};

/// Addresses with a common prefix. IPv4 addresses count as IPv6 ones of `::ffff:0:0/96`, so that one order of prefix
/// lengths holds for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    address: u128,
    prefix: u8,
}

impl Network {
    /// Every address.
    pub const ANY: Self = Self { address: 0, prefix: 0 };
    /// What never leaves a host.
    pub const LOOPBACK: [Self; 2] = [
        Self { address: Ipv4Addr::new(127, 0, 0, 0).to_ipv6_mapped().to_bits(), prefix: 96 + 8 },
        Self { address: Ipv6Addr::LOCALHOST.to_bits(), prefix: 128 },
    ];
    const V4: u8 = 96;

    /// One address.
    pub fn host(address: IpAddr) -> Self {
        Self { address: bits(address), prefix: 128 }
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        bits(address) & mask(self.prefix) == self.address
    }

    /// Of two networks that contain an address, the one with the longer prefix says more about it.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether every address of `other` is in it.
    pub fn covers(&self, other: &Self) -> bool {
        self.prefix <= other.prefix && other.address & mask(self.prefix) == self.address
    }

    fn is_v4(&self) -> bool {
        self.prefix >= Self::V4 && Ipv6Addr::from_bits(self.address).to_ipv4_mapped().is_some()
    }
}

pub(super) fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn mask(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0)
}

/// Why a text is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadNetwork {
    #[error("`{0}` is no network: 10.0.0.0/8, 2001:db8::/32, an address, or any")]
    Form(String),
    #[error("`{given}` is no network: bits are set after the prefix; {meant} is one")]
    HostBits { given: String, meant: Network },
}

impl FromStr for Network {
    type Err = BadNetwork;

    fn from_str(text: &str) -> Result<Self, BadNetwork> {
        if text == "any" {
            return Ok(Self::ANY);
        }
        let form = || BadNetwork::Form(text.to_owned());
        let (address, prefix) = match text.split_once('/') {
            None => (text, None),
            Some((address, prefix)) => (address, Some(prefix.parse::<u8>().map_err(|_| form())?)),
        };
        let address: IpAddr = address.parse().map_err(|_| form())?;
        let (most, before) = if address.is_ipv4() { (32, Self::V4) } else { (128, 0) };
        let prefix = prefix.unwrap_or(most);
        if prefix > most {
            return Err(form());
        }
        let prefix = prefix + before;
        let network = Self { address: bits(address) & mask(prefix), prefix };
        if network.address != bits(address) {
            return Err(BadNetwork::HostBits { given: text.to_owned(), meant: network });
        }
        Ok(network)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from_bits(self.address);
        match address.to_ipv4_mapped().filter(|_| self.is_v4()) {
            _ if *self == Self::ANY => f.write_str("any"),
            Some(address) if self.prefix == 128 => write!(f, "{address}"),
            Some(address) => write!(f, "{address}/{}", self.prefix - Self::V4),
            None if self.prefix == 128 => write!(f, "{address}"),
            None => write!(f, "{address}/{}", self.prefix),
        }
    }
}

/// Whom an export takes for somebody else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// Root becomes the anonymous user.
    #[default]
    Root,
    /// Nobody.
    None,
    /// Everybody becomes the anonymous user.
    All,
}

/// Security flavours (RFC 5531 §8.2) that clients may come with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flavours {
    /// AUTH_SYS.
    pub sys: bool,
    /// AUTH_NONE: everybody is the anonymous user.
    pub none: bool,
    /// RPCSEC_GSS with Kerberos: who calls is proved.
    pub krb5: bool,
    /// And what is said, is whole.
    pub krb5i: bool,
    /// And nobody else can read it.
    pub krb5p: bool,
}

impl Flavours {
    /// What takes no Kerberos.
    pub const PLAIN: Self = Self { sys: true, none: true, krb5: false, krb5i: false, krb5p: false };
    /// Nobody is let in.
    pub const NO_ACCESS: Self = Self { sys: false, none: false, krb5: false, krb5i: false, krb5p: false };
    pub const ALL: Self = Self { sys: true, none: true, krb5: true, krb5i: true, krb5p: true };

    /// Those that take tickets, as bits.
    fn tickets(self) -> u8 {
        u8::from(self.krb5) | u8::from(self.krb5i) << 1 | u8::from(self.krb5p) << 2
    }

    fn with_tickets(self, bits: u8) -> Self {
        Self { krb5: bits & 1 != 0, krb5i: bits & 2 != 0, krb5p: bits & 4 != 0, ..self }
    }

    /// Whether some callers come with tickets.
    pub fn has_tickets(self) -> bool {
        self.tickets() != 0
    }

    /// Without those.
    #[must_use]
    pub fn without_tickets(self) -> Self {
        self.with_tickets(0)
    }
}

/// What protects a connection, or has to; each goes beyond those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protection {
    /// Nothing, or anything.
    #[default]
    None,
    /// TLS (RFC 9289).
    Tls,
    /// TLS, and the client has shown a certificate of an authority that this server trusts.
    Mutual,
}

impl Protection {
    fn number(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Tls => 1,
            Self::Mutual => 2,
        }
    }

    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        match r.u8()? {
            0 => Ok(Self::None),
            1 => Ok(Self::Tls),
            2 => Ok(Self::Mutual),
            _ => Err(r.corrupt()),
        }
    }
}

/// What some clients may do: those of a network, or of a name ([`ClientName`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule<C = Network> {
    pub clients: C,
    pub read_only: bool,
    pub squash: Squash,
    pub anonymous_uid: u32,
    pub anonymous_gid: u32,
    pub flavours: Flavours,
    /// What their connections need at least.
    pub wants: Protection,
}

/// uid and gid of nobody, by custom.
pub const NOBODY: u32 = 65_534;

impl<C> Rule<C> {
    /// What an administrator gets who says no more: read-write, root squashed.
    pub fn new(clients: C) -> Self {
        Self {
            clients,
            read_only: false,
            squash: Squash::Root,
            anonymous_uid: NOBODY,
            anonymous_gid: NOBODY,
            flavours: Flavours::PLAIN,
            wants: Protection::None,
        }
    }

    /// The same for others.
    pub fn of<D>(&self, clients: D) -> Rule<D> {
        let Self { read_only, squash, anonymous_uid, anonymous_gid, flavours, wants, .. } = *self;
        Rule { clients, read_only, squash, anonymous_uid, anonymous_gid, flavours, wants }
    }

    /// Not where no flavour is good: a hole in a wider network.
    pub fn lets_in(&self) -> bool {
        self.flavours != Flavours::NO_ACCESS
    }

    /// All but for whom.
    fn encode(&self, w: &mut Writer) {
        w.bool(self.read_only);
        w.u8(match self.squash {
            Squash::Root => 0,
            Squash::None => 1,
            Squash::All => 2,
        });
        w.u32(self.anonymous_uid).u32(self.anonymous_gid);
        w.bool(self.flavours.sys).bool(self.flavours.none);
    }

    fn decode(clients: C, r: &mut Reader) -> Result<Self, FsError> {
        Ok(Self {
            clients,
            read_only: r.bool()?,
            squash: match r.u8()? {
                0 => Squash::Root,
                1 => Squash::None,
                2 => Squash::All,
                _ => return Err(r.corrupt()),
            },
            anonymous_uid: r.u32()?,
            anonymous_gid: r.u32()?,
            flavours: Flavours { sys: r.bool()?, none: r.bool()?, ..Flavours::NO_ACCESS },
            wants: Protection::None,
        })
    }
}

impl Network {
    fn encode(&self, w: &mut Writer) {
        w.raw(&self.address.to_be_bytes()).u8(self.prefix);
    }

    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        let network = Self { address: u128::from_be_bytes(r.array()?), prefix: r.u8()? };
        if network.prefix > 128 || network.address & !mask(network.prefix) != 0 {
            return Err(r.corrupt());
        }
        Ok(network)
    }
}

/// A directory that clients may mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// In filehandles; never reused. 0 is that of the root, [`crate::FileHandle::ROOT_EXPORT`].
    pub id: u32,
    /// Where clients find it: names and slashes from the root, without one at either end. Empty: the root.
    pub path: Bytes,
    pub root: InodeKey,
    /// One for each network; none, and none by name: nobody may use it.
    pub rules: Vec<Rule>,
    /// One for each name.
    pub named: Vec<Rule<ClientName>>,
}

impl Row for Export {
    const WHAT: &'static str = "export row";
    const SCHEMA: u8 = WITH_PROTECTION;
    fn encode(&self, w: &mut Writer) {
        w.u32(self.id).bytes(&self.path);
        self.root.encode(w);
        encode_list(w, &self.rules, |rule, w| {
            rule.clients.encode(w);
            rule.encode(w);
        });
        if self.schema() >= WITH_TICKETS {
            self.rules.iter().for_each(|rule| _ = w.u8(rule.flavours.tickets()));
        }
        if self.schema() >= WITH_NAMES {
            encode_list(w, &self.named, |rule, w| {
                rule.clients.encode(w);
                rule.encode(w);
                w.u8(rule.flavours.tickets());
            });
        }
        if self.schema() >= WITH_PROTECTION {
            self.wanted().for_each(|wants| _ = w.u8(wants.number()));
        }
    }
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        Ok(Self {
            id: r.u32()?,
            path: r.bytes()?,
            root: InodeKey::decode(r)?,
            rules: decode_list(r, |r| Rule::decode(Network::decode(r)?, r))?,
            named: Vec::new(),
        })
    }

    fn schema(&self) -> u8 {
        match self {
            _ if self.wanted().any(|wants| wants != Protection::None) => WITH_PROTECTION,
            Self { named, .. } if !named.is_empty() => WITH_NAMES,
            Self { rules, .. } if rules.iter().any(|rule| rule.flavours.has_tickets()) => WITH_TICKETS,
            _ => PLAIN,
        }
    }

    fn decode_more(&mut self, schema: u8, r: &mut Reader) -> Result<(), FsError> {
        if schema >= WITH_TICKETS {
            for rule in &mut self.rules {
                rule.flavours = rule.flavours.with_tickets(r.u8()?);
            }
        }
        if schema >= WITH_NAMES {
            self.named = decode_list(r, |r| {
                let rule = Rule::decode(ClientName::decode(r)?, r)?;
                Ok(Rule { flavours: rule.flavours.with_tickets(r.u8()?), ..rule })
            })?;
        }
        if schema >= WITH_PROTECTION {
            for rule in &mut self.rules {
                rule.wants = Protection::decode(r)?;
            }
            for rule in &mut self.named {
                rule.wants = Protection::decode(r)?;
            }
        }
        Ok(())
    }
}

/// No rule takes tickets. Releases that know none read it.
const PLAIN: u8 = 1;
/// One of them does: such a release would let in whoever comes without one, or nobody, and refuses the store instead.
const WITH_TICKETS: u8 = 2;
/// One of them is by name: a release that knows none would lock these clients out, or let in whom they are locked out of, and
/// refuses the store instead.
const WITH_NAMES: u8 = 3;
/// One of them wants TLS: a release that does not know that would let clients in without, and refuses the store instead.
const WITH_PROTECTION: u8 = 4;

impl Export {
    /// Bytes of its row: what the store takes of one value ends at 100,000.
    pub fn size(&self) -> usize {
        self.to_bytes().len()
    }

    /// What its rules want of connections: those of networks, then those by name.
    fn wanted(&self) -> impl Iterator<Item = Protection> {
        self.rules.iter().map(|rule| rule.wants).chain(self.named.iter().map(|rule| rule.wants))
    }
}

pub async fn export(txn: &Transaction, id: u32) -> Result<Option<Export>, FsError> {
    get(txn, &keys::export(id)).await
}
pub fn put_export(txn: &mut Transaction, export: &Export) {
    txn.set(keys::export(export.id), export.to_bytes());
}
pub fn clear_export(txn: &mut Transaction, id: u32) {
    txn.clear(keys::export(id));
}
/// Exports after id `after`.
pub async fn exports(txn: &Transaction, after: Option<u32>, limit: usize) -> Result<Vec<Export>, FsError> {
    let whole = keys::table(keys::EXPORT);
    let range = after.map_or_else(|| whole.clone(), |id| keys::after(&keys::export(id), &whole));
    list(txn, &range, limit).await
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::stable_storage::Clients;

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    fn named(text: &str, addresses: &[&str]) -> Rule<ClientName> {
        let Clients::Name(mut name) = text.parse().unwrap() else { panic!("{text}") };
        if let ClientName::Host { addresses: known, .. } = &mut name {
            *known = addresses.iter().map(|address| address.parse().unwrap()).collect();
        }
        Rule { read_only: true, ..Rule::new(name) }
    }

    #[test]
    fn what_older_releases_can_read_is_written_for_them_and_what_they_would_misread_is_not() {
        let plain = Export {
            id: 7,
            path: "a/b".into(),
            root: InodeKey::ROOT,
            rules: vec![Rule::new(network("10.0.0.0/8"))],
            named: Vec::new(),
        };
        let ticket = Rule { flavours: Flavours::ALL, ..plain.rules[0] };
        let tickets = Export { rules: vec![ticket], ..plain.clone() };
        let with = |named: Vec<_>| Export { named, ..tickets.clone() };
        let names = with(vec![
            named("client7.x", &["10.0.0.7", "2001:db8::7"]),
            named("gone.x", &[]),
            Rule { flavours: Flavours { krb5p: true, ..Flavours::NO_ACCESS }, ..named("*.x", &[]) },
            named("@trusted", &[]),
        ]);
        let wants = |wants, row: &Export| {
            let mut row = row.clone();
            row.rules.iter_mut().for_each(|rule| rule.wants = wants);
            row.named.iter_mut().take(2).for_each(|rule| rule.wants = wants);
            row
        };
        let (tls, mutual) = (wants(Protection::Tls, &plain), wants(Protection::Mutual, &names));
        let only_named = Export { rules: Vec::new(), ..mutual.clone() };
        for (row, schema) in
            [(&plain, 1), (&tickets, 2), (&names, 3), (&tls, 4), (&mutual, 4), (&only_named, 4)]
        {
            let bytes = row.to_bytes();
            assert_eq!((bytes[0], Export::from_bytes(bytes).unwrap()), (schema, row.clone()));
        }
        // As the releases before names and tickets wrote it.
        assert_eq!(plain.to_bytes().len() + 1, tickets.to_bytes().len());
        assert_eq!(wants(Protection::None, &names).to_bytes(), names.to_bytes());
        let mut unknown = tls.to_bytes().to_vec();
        *unknown.last_mut().unwrap() = 3;
        assert!(Export::from_bytes(unknown.into()).is_err());
        for name in [&b"client7.x"[..], b"trusted"] {
            let mut corrupt = names.to_bytes().to_vec();
            let at = corrupt.windows(name.len()).position(|part| part == name).unwrap();
            corrupt[at] = b'/';
            assert!(Export::from_bytes(corrupt.into()).is_err());
        }
    }

    #[test]
    fn networks_are_read_and_shown_alike() {
        for text in
            ["10.0.0.0/8", "10.1.2.3", "0.0.0.0/0", "::1", "2001:db8::/32", "any", "127.0.0.0/8", "::/1"]
        {
            assert_eq!(network(text).to_string(), text);
        }
        assert_eq!(network("::/0"), Network::ANY);
        assert_eq!(network("::ffff:10.0.0.0/104"), network("10.0.0.0/8"));
        assert_eq!([network("127.0.0.0/8"), network("::1")], Network::LOOPBACK);
        for text in ["", "10.0.0.0/33", "::/129", "10.0.0", "host", "10.0.0.0/-1", "10.0.0.0/", "/8", "Any"] {
            assert!(matches!(text.parse::<Network>(), Err(BadNetwork::Form(_))), "{text}");
        }
        let error = "10.1.2.3/8".parse::<Network>().unwrap_err();
        assert!(error.to_string().ends_with("10.0.0.0/8 is one"), "{error}");
    }

    #[test]
    fn a_network_contains_what_begins_like_it() {
        let contains = |text: &str, address: &str| network(text).contains(address.parse().unwrap());
        assert!(contains("10.0.0.0/8", "10.255.0.1"));
        // As a socket that listens on [::] shows it.
        assert!(contains("10.0.0.0/8", "::ffff:10.255.0.1"));
        assert!(!contains("10.0.0.0/8", "11.0.0.1"));
        assert!(contains("0.0.0.0/0", "192.0.2.1"));
        assert!(!contains("0.0.0.0/0", "2001:db8::1"));
        assert!(contains("any", "2001:db8::1"));
        assert!(contains("any", "192.0.2.1"));
        assert!(contains("2001:db8::/33", "2001:db8:7fff::"));
        assert!(!contains("2001:db8::/33", "2001:db8:8000::"));
        assert!(network("10.0.0.0/8").covers(&network("10.1.0.0/16")));
        assert!(!network("10.1.0.0/16").covers(&network("10.0.0.0/8")));
    }
}
