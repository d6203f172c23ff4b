//! Whom a rule of an export is for, by a name: a host, hosts by a pattern, a netgroup. As in exports(5).

use std::cmp::Reverse;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::{self, FromStr};

use super::exports::{BadNetwork, Network, bits};
use super::{decode_list, encode_list};
use crate::codec::{Reader, Writer};
use crate::error::FsError;

/// Bytes of a host name, a pattern of one, and the name of a netgroup at most (RFC 1035 §2.3.4).
const LONGEST: usize = 253;
/// Bytes between two dots of it at most.
const LABEL: usize = 63;

/// Whom a rule is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clients {
    Network(Network),
    Name(ClientName),
}

/// Whom a rule is for, by a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientName {
    /// One host, and the addresses that it had when it was last looked up, [`ClientName::ADDRESSES`] at most.
    Host { name: String, addresses: Vec<IpAddr> },
    /// Hosts whose names are like it.
    Pattern(Pattern),
    /// Hosts that the name service has in a group of this name.
    Netgroup(String),
}

/// Names of hosts with wildcards: `*` is any characters, dots too, or none; `?` is one, and so is one of `[a-f0-9]`, or with `!` or
/// `^` in front one of no others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pattern(String);

/// Why a text does not say whom a rule is for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadClients {
    #[error(transparent)]
    Network(#[from] BadNetwork),
    #[error(
        "`{0}` names no clients: 10.0.0.0/8, 2001:db8::/32, an address, a host name, a name with wildcards (*.example.com), @netgroup, or any"
    )]
    Form(String),
}

impl FromStr for Clients {
    type Err = BadClients;

    fn from_str(text: &str) -> Result<Self, BadClients> {
        let form = || BadClients::Form(text.to_owned());
        if text == "*" {
            return Ok(Self::Network(Network::ANY));
        }
        if let Some(group) = text.strip_prefix('@') {
            return netgroup_name(group)
                .map(|group| Self::Name(ClientName::Netgroup(group)))
                .ok_or_else(form);
        }
        match text.parse::<Network>() {
            Ok(network) => return Ok(Self::Network(network)),
            Err(BadNetwork::Form(_)) if !text.contains(['/', ':']) => {}
            Err(error) => return Err(error.into()),
        }
        if text.contains(['*', '?', '[']) {
            return Pattern::new(text)
                .map(|pattern| Self::Name(ClientName::Pattern(pattern)))
                .ok_or_else(form);
        }
        match host_name(text) {
            Some(name) if name != "any" => Ok(Self::Name(ClientName::Host { name, addresses: Vec::new() })),
            _ => Err(form()),
        }
    }
}

impl fmt::Display for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(network) => network.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

impl fmt::Display for ClientName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host { name, .. } => f.write_str(name),
            Self::Pattern(Pattern(pattern)) => f.write_str(pattern),
            Self::Netgroup(group) => write!(f, "@{group}"),
        }
    }
}

impl ClientName {
    /// Addresses of one host at most.
    pub const ADDRESSES: usize = 16;

    /// Of several rules that are for a client, that with the least holds: hosts, patterns, those that say most first, netgroups. Of
    /// those that are alike, the one that was there first.
    pub fn order(&self) -> (u8, Reverse<usize>, &str) {
        match self {
            Self::Host { .. } => (0, Reverse(0), ""),
            Self::Pattern(pattern) => (1, Reverse(pattern.literal()), pattern.0.as_str()),
            Self::Netgroup(_) => (2, Reverse(0), ""),
        }
    }

    /// Of one host, as of the last time that it was looked up; of others none.
    pub fn addresses(&self) -> &[IpAddr] {
        match self {
            Self::Host { addresses, .. } => addresses,
            Self::Pattern(_) | Self::Netgroup(_) => &[],
        }
    }

    pub(super) fn encode(&self, w: &mut Writer) {
        let (kind, text) = match self {
            Self::Host { name, .. } => (HOST, name),
            Self::Pattern(Pattern(pattern)) => (PATTERN, pattern),
            Self::Netgroup(group) => (NETGROUP, group),
        };
        w.u8(kind).bytes(text.as_bytes());
        encode_list(w, self.addresses(), |address, w| _ = w.raw(&bits(*address).to_be_bytes()));
    }

    pub(super) fn decode(r: &mut Reader) -> Result<Self, FsError> {
        let (kind, text) = (r.u8()?, r.bytes()?);
        let mut addresses =
            decode_list(r, |r| Ok(Ipv6Addr::from_bits(u128::from_be_bytes(r.array()?)).to_canonical()))?;
        let text = str::from_utf8(&text).map_err(|_| r.corrupt())?;
        let name = match kind {
            HOST => {
                host_name(text).map(|name| Self::Host { name, addresses: std::mem::take(&mut addresses) })
            }
            PATTERN => Pattern::new(text).map(Self::Pattern),
            NETGROUP => netgroup_name(text).map(Self::Netgroup),
            _ => None,
        };
        name.filter(|_| addresses.is_empty()).ok_or_else(|| r.corrupt())
    }
}

// Kinds, in rows.
const HOST: u8 = 1;
const PATTERN: u8 = 2;
const NETGROUP: u8 = 3;

/// A text as the name of a netgroup, if a name service and a command line take it as one.
fn netgroup_name(text: &str) -> Option<String> {
    let good = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'@' | b',' | b'(' | b')' | b'/');
    ((1..=LONGEST).contains(&text.len()) && text.bytes().all(good)).then(|| text.to_owned())
}

/// A text as a name of a host, in lower case and without the dot at its end, if it can be one. What a resolver would take for an
/// address is none: `10.1`, `0x7f000001`.
pub fn host_name(text: &str) -> Option<String> {
    let name = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        (1..=LABEL).contains(&label.len()) && !label.starts_with('-') && label.bytes().all(good)
    };
    let last = name.rsplit('.').next()?;
    let hex = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit())
        || hex.is_some_and(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let good = name.len() <= LONGEST && name.split('.').all(is_label) && !is_number;
    good.then(|| name.to_ascii_lowercase())
}

/// One character of a pattern, or several.
enum Element<'a> {
    Any,
    One,
    Of(&'a [u8]),
    Byte(u8),
}

impl Element<'_> {
    /// Whether it is like one character.
    fn is(&self, byte: u8) -> bool {
        match self {
            Self::Any => false,
            Self::One => true,
            Self::Of(class) => class_has(class, byte),
            Self::Byte(own) => *own == byte,
        }
    }
}

/// The first element of a pattern, and what is behind it. `None`: at its end, or where a class does not end.
fn first(pattern: &[u8]) -> Option<(Element<'_>, &[u8])> {
    let (head, rest) = pattern.split_first()?;
    Some(match head {
        b'*' => (Element::Any, rest),
        b'?' => (Element::One, rest),
        b'[' => {
            let (class, rest) = rest.split_at_checked(rest.iter().position(|byte| *byte == b']')?)?;
            (Element::Of(class), rest.get(1..)?)
        }
        byte => (Element::Byte(*byte), rest),
    })
}

/// What is in a class, as `(first, last)`, and whether it is meant to have all others.
fn ranges(class: &[u8]) -> (impl Iterator<Item = (u8, u8)> + '_, bool) {
    let others = class.strip_prefix(b"!").or_else(|| class.strip_prefix(b"^"));
    let mut rest = others.unwrap_or(class);
    let next = move || {
        let (low, after) = rest.split_first()?;
        let (high, tail) = match after {
            [b'-', high, tail @ ..] => (high, tail),
            _ => (low, after),
        };
        rest = tail;
        Some((*low, *high))
    };
    (std::iter::from_fn(next), others.is_some())
}

fn class_has(class: &[u8], byte: u8) -> bool {
    let (mut ranges, others) = ranges(class);
    ranges.any(|(low, high)| (low..=high).contains(&byte)) != others
}

impl Pattern {
    /// `None`: it is like no name of a host.
    fn new(text: &str) -> Option<Self> {
        let text = text.to_ascii_lowercase();
        let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let (mut rest, mut some) = (text.as_bytes(), false);
        while let Some((element, behind)) = first(rest) {
            let fits = match element {
                Element::Any | Element::One => true,
                Element::Of(class) => {
                    let (mut ranges, _) = ranges(class);
                    let some = !matches!(class, b"" | b"!" | b"^");
                    some && ranges.all(|(low, high)| good(low) && good(high) && low <= high)
                }
                Element::Byte(byte) => good(byte),
            };
            if !fits {
                return None;
            }
            (rest, some) = (behind, true);
        }
        (some && rest.is_empty() && text.len() <= LONGEST).then_some(Self(text))
    }

    /// Whether the name of a host is like it, which is in lower case.
    pub fn is_like(&self, name: &str) -> bool {
        let (mut pattern, mut name) = (self.0.as_bytes(), name.as_bytes());
        // What is behind the last star, and where that would begin if the star were a character longer.
        let mut longer: Option<(&[u8], &[u8])> = None;
        loop {
            match (first(pattern), name.split_first()) {
                (None, None) => return true,
                (Some((Element::Any, behind)), _) => {
                    longer = Some((behind, name));
                    pattern = behind;
                    continue;
                }
                (Some((element, behind)), Some((byte, left))) if element.is(*byte) => {
                    (pattern, name) = (behind, left);
                    continue;
                }
                _ => {}
            }
            let Some((behind, from)) = longer else { return false };
            let Some((_, left)) = from.split_first() else { return false };
            longer = Some((behind, left));
            (pattern, name) = (behind, left);
        }
    }

    /// Characters that it says as they are.
    fn literal(&self) -> usize {
        let mut rest = self.0.as_bytes();
        let mut count = 0;
        while let Some((element, behind)) = first(rest) {
            count += usize::from(matches!(element, Element::Byte(_)));
            rest = behind;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients(text: &str) -> Clients {
        text.parse().unwrap()
    }

    fn pattern(text: &str) -> Pattern {
        match clients(text) {
            Clients::Name(ClientName::Pattern(pattern)) => pattern,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn clients_are_read_and_shown_alike() {
        for text in [
            "10.0.0.0/8",
            "2001:db8::/32",
            "10.1.2.3",
            "any",
            "client7",
            "client7.example.com",
            "a_b.x",
            "1a",
        ] {
            assert_eq!(clients(text).to_string(), text);
        }
        for text in ["*.example.com", "node[0-9]?.x", "[!a-c]*", "[^a]", "@trusted", "@Trusted_2.x"] {
            assert_eq!(clients(text).to_string(), text);
        }
        assert_eq!(clients("*"), Clients::Network(Network::ANY), "as in exports(5)");
        assert_eq!(clients("Client7.Example.COM.").to_string(), "client7.example.com");
        assert_eq!(clients("*.Example.com").to_string(), "*.example.com");
        assert_ne!(clients("@a"), clients("@A"));
    }

    #[test]
    fn what_is_a_slip_in_an_address_is_no_name() {
        for text in
            ["", ".", "10.0.0", "10.1", "256.1.1.1", "0x7f000001", "a.0x7f", "a.7", "Any", "a..b", ".a"]
        {
            assert!(matches!(text.parse::<Clients>(), Err(BadClients::Form(_))), "{text}");
        }
        for text in [
            "-a",
            "a b",
            "a/b*",
            "@",
            "@a b",
            "@a,b",
            "[",
            "[]",
            "[!]",
            "a[b",
            "[z-a]",
            "[a/b]",
            "*.ex ample",
            "ä",
        ] {
            assert!(text.parse::<Clients>().is_err(), "{text}");
        }
        assert!(format!("{}.x", "a".repeat(64)).parse::<Clients>().is_err());
        assert!(vec!["a".repeat(60); 5].join(".").parse::<Clients>().is_err());
        assert!("10.1.2.3/8".parse::<Clients>().unwrap_err().to_string().ends_with("10.0.0.0/8 is one"));
        assert!("10.0.0.0/33".parse::<Clients>().unwrap_err().to_string().contains("no network"));
    }

    #[test]
    fn wildcards_are_those_of_exports_5() {
        for (like, name) in [
            ("*.example.com", "a.example.com"),
            ("*.example.com", "a.b.example.com"),
            ("*.example.com", ".example.com"),
            ("a*b*c", "axxbyybzzc"),
            ("a*b*c", "abc"),
            ("?.x", "a.x"),
            ("a?b", "a.b"),
            ("node[0-9].x", "node7.x"),
            ("node[a-cx7-9]", "nodex"),
            ("node[!0-9]", "nodea"),
            ("[^a]*", "bcd"),
            ("[a-]b", "-b"),
        ] {
            assert!(pattern(like).is_like(name), "{like} {name}");
        }
        for (unlike, name) in [
            ("*.example.com", "example.com"),
            ("*.example.com", "a.example.com.evil.org"),
            ("*.example.com", "aexample.com"),
            ("?.x", "ab.x"),
            ("?", ""),
            ("a*b*c", "acb"),
            ("node[0-9].x", "nodea.x"),
            ("node[!0-9]", "node7"),
            ("[^a]*", "abc"),
        ] {
            assert!(!pattern(unlike).is_like(name), "{unlike} {name}");
        }
        // What stars could share among them in very many ways is told in few steps.
        assert!(!pattern(&format!("{}b", "*a".repeat(100))).is_like(&"a".repeat(253)));
    }

    #[test]
    fn those_that_say_more_come_first() {
        let mut names: Vec<_> = ["@b", "*.com", "@a", "h", "*.a.com", "?.com", "g"]
            .map(|text| match clients(text) {
                Clients::Name(name) => name,
                Clients::Network(network) => panic!("{network}"),
            })
            .into();
        names.sort_by(|a, b| a.order().cmp(&b.order()));
        let shown: Vec<_> = names.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["h", "g", "*.a.com", "*.com", "?.com", "@b", "@a"]);
    }
}
