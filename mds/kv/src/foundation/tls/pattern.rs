//! What a peer's certificate must say, in FoundationDB's notation (`tls_verify_peers`):
//!
//! ```text
//! Check.Valid=1,S.O=Example,S.CN>=fdb|I.CN=Example\, Inc.
//! ```
//!
//! The client library takes what it cannot read for nothing at all and ends the process at the first connection, so it is
//! read here first.

use x509_cert::Certificate;
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::{Tag, Tagged};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::name::Name;

/// What a term may be about, and its number in X.500.
const ATTRIBUTES: [(&str, &str); 8] = [
    ("C", "2.5.4.6"),
    ("CN", "2.5.4.3"),
    ("DC", "0.9.2342.19200300.100.1.25"),
    ("L", "2.5.4.7"),
    ("O", "2.5.4.10"),
    ("OU", "2.5.4.11"),
    ("ST", "2.5.4.8"),
    ("UID", "0.9.2342.19200300.100.1.1"),
];
const ALTERNATIVE: &str = "subjectAltName";

/// A peer is good that one of the rules fits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pattern {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rule {
    /// Whoever it is.
    anybody: bool,
    terms: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    of: Of,
    attribute: Attribute,
    how: How,
    value: String,
}

/// Whose name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Subject,
    Issuer,
    /// The authority at the end of the chain.
    Root,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attribute {
    Named(&'static str),
    Alternative,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Whole,
    Begins,
    Ends,
}

impl Pattern {
    /// The error says which part of it cannot be read.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let rules = split(text, '|').into_iter().map(Rule::read).collect::<Result<_, _>>()?;
        Ok(Self { rules })
    }

    /// Whether any peer is believed, without a look at its certificate.
    pub(crate) fn takes_anybody(&self) -> bool {
        self.rules.iter().any(|rule| rule.anybody)
    }

    /// Whether a peer with this certificate is believed, if an authority vouches for it. What only the library can tell
    /// counts as good.
    pub(crate) fn fits(&self, certificate: &Certificate) -> bool {
        // Nothing was asked for.
        self.rules.is_empty()
            || self.takes_anybody()
            || self.rules.iter().any(|rule| rule.terms.iter().all(|term| term.fits(certificate)))
    }
}

impl Rule {
    fn read(text: &str) -> Result<Self, String> {
        let mut rule = Self::default();
        let mut parts = split(text, ',');
        // Nothing behind the last comma, or nothing at all.
        _ = parts.pop_if(|last| last.is_empty());
        for part in parts {
            match part.split_once('=') {
                Some(("Check.Valid", value)) => rule.anybody = !switch(part, value)?,
                Some(("Check.Unexpired", value)) => _ = switch(part, value)?,
                Some((name, value)) => rule.terms.push(Term::read(part, name, value)?),
                None => return Err(format!("{part:?} has no \"=\"")),
            }
        }
        Ok(rule)
    }
}

fn switch(part: &str, value: &str) -> Result<bool, String> {
    match value {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(format!("{part:?} is neither 0 nor 1")),
    }
}

impl Term {
    fn read(part: &str, name: &str, value: &str) -> Result<Self, String> {
        let (name, how) = match (name.strip_suffix('>'), name.strip_suffix('<')) {
            (Some(name), _) => (name, How::Begins),
            (_, Some(name)) => (name, How::Ends),
            _ => (name, How::Whole),
        };
        let (of, name) = match name.split_once('.') {
            None | Some(("S" | "Subject", _)) => (Of::Subject, name),
            Some(("I" | "Issuer", _)) => (Of::Issuer, name),
            Some(("R" | "Root", _)) => (Of::Root, name),
            Some(_) => return Err(format!("{part:?} is about neither S(ubject), I(ssuer) nor R(oot)")),
        };
        let name = name.split_once('.').map_or(name, |(_, name)| name);
        let number = ATTRIBUTES.iter().find(|(known, _)| *known == name);
        let attribute = match number {
            Some((_, number)) => Attribute::Named(number),
            None if name == ALTERNATIVE => Attribute::Alternative,
            None => {
                let known = ATTRIBUTES.map(|(known, _)| known).join(", ");
                return Err(format!("{part:?} is about none of {known}, {ALTERNATIVE}"));
            }
        };
        let value = unescaped(value).ok_or_else(|| {
            format!("{part:?} has no value, or one with a character that a \\ has to precede")
        })?;
        Ok(Self { of, attribute, how, value })
    }

    fn fits(&self, certificate: &Certificate) -> bool {
        let inside = &certificate.tbs_certificate;
        match (self.attribute, self.of) {
            (_, Of::Root) => true,
            (Attribute::Named(number), Of::Subject) => self.fits_name(&inside.subject, number),
            (Attribute::Named(number), Of::Issuer) => self.fits_name(&inside.issuer, number),
            (Attribute::Alternative, _) => self.fits_alternative(certificate),
        }
    }

    /// A name that has none of it or several is no match, as in the library.
    fn fits_name(&self, name: &Name, number: &str) -> bool {
        let Ok(number) = ObjectIdentifier::new(number) else { return false };
        let parts = name.0.iter().flat_map(|part| part.0.iter());
        let mut values = parts.filter(|part| part.oid == number).map(|part| &part.value);
        match (values.next(), values.next()) {
            // Two bytes each: left to the library.
            (Some(only), None) if only.tag() == Tag::BmpString => true,
            (Some(only), None) => self.is_met(only.value()),
            _ => false,
        }
    }

    fn fits_alternative(&self, certificate: &Certificate) -> bool {
        let Some((kind, _)) = self.value.split_once(':') else { return false };
        let Ok(Some((_, names))) = certificate.tbs_certificate.get::<SubjectAltName>() else { return false };
        names.0.iter().any(|name| match (kind, name) {
            ("DNS", GeneralName::DnsName(name)) => self.is_met(name.as_bytes()),
            ("EMAIL", GeneralName::Rfc822Name(name)) => self.is_met(name.as_bytes()),
            ("URI", GeneralName::UniformResourceIdentifier(name)) => self.is_met(name.as_bytes()),
            ("IP", GeneralName::IpAddress(_)) => true,
            _ => false,
        })
    }

    fn is_met(&self, said: &[u8]) -> bool {
        let value = match self.attribute {
            Attribute::Named(_) => self.value.as_bytes(),
            Attribute::Alternative => self.value.split_once(':').map_or("", |(_, value)| value).as_bytes(),
        };
        match self.how {
            How::Whole => said == value,
            How::Begins => said.starts_with(value),
            How::Ends => said.ends_with(value),
        }
    }
}

/// At each `mark` that no backslash precedes.
fn split(text: &str, mark: char) -> Vec<&str> {
    let (mut parts, mut start, mut escaped) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        if c == mark && !escaped {
            parts.push(&text[start..at]);
            start = at + c.len_utf8();
        }
        escaped = c == '\\' && !escaped;
    }
    parts.push(&text[start..]);
    parts
}

/// RFC 4514 without its `#` form, as the library reads it.
fn unescaped(text: &str) -> Option<String> {
    if text.starts_with(['#', ' ']) {
        return None;
    }
    let (mut bytes, mut value) = (text.bytes(), Vec::new());
    while let Some(byte) = bytes.next() {
        value.push(match byte {
            b'"' | b'+' | b',' | b';' | b'<' | b'>' | 0 => return None,
            b'\\' => match bytes.next()? {
                plain @ (b' ' | b'"' | b'#' | b'+' | b',' | b';' | b'<' | b'=' | b'>' | b'|' | b'\\') => {
                    plain
                }
                high => {
                    let digit =
                        |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                    digit(high)? * 16 + digit(bytes.next()?)?
                }
            },
            plain => plain,
        });
    }
    let value = String::from_utf8(value).ok()?;
    (!value.is_empty() && !value.ends_with(' ')).then_some(value)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};
    use x509_cert::der::Decode;

    use super::*;

    fn certificate() -> Certificate {
        let mut params = CertificateParams::new(["fdb.example.org".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "fdb one");
        params.distinguished_name.push(DnType::OrganizationName, "Example, Inc.");
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        Certificate::from_der(made.der()).unwrap()
    }

    #[test]
    fn a_certificate_is_measured_by_what_it_says() {
        let certificate = certificate();
        assert!(Pattern::default().fits(&certificate), "without a pattern");
        for (pattern, fits) in [
            ("", true),
            ("Check.Valid=1", true),
            ("S.CN=fdb one", true),
            ("CN=fdb one", true),
            ("Subject.CN=fdb", false),
            ("S.CN>=fdb", true),
            ("S.CN<=one", true),
            ("S.CN<=two", false),
            ("S.O=Example\\, Inc.", true),
            ("S.O=Example\\2C Inc.", true),
            ("S.O=Other", false),
            ("S.O=Other|", true),
            ("Check.Valid=0,S.O=Other", true),
            ("S.O=Other|S.CN=fdb one", true),
            ("S.O=Other,S.CN=fdb one", false),
            ("S.OU=Example", false),
            ("I.CN=fdb one", true),
            ("I.CN=another", false),
            ("R.CN=whatever the library finds", true),
            ("S.subjectAltName=DNS:fdb.example.org", true),
            ("S.subjectAltName<=DNS:.example.org", true),
            ("S.subjectAltName=DNS:other.example.org", false),
            ("S.subjectAltName=URI:fdb.example.org", false),
        ] {
            assert_eq!(Pattern::read(pattern).unwrap().fits(&certificate), fits, "{pattern}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        for (pattern, part) in [
            ("Check.Valid=yes", "\"Check.Valid=yes\" is neither"),
            ("Check.Valid", "no \"=\""),
            ("Check.Valid=1,S.X=a", "\"S.X=a\" is about none of C, CN"),
            ("X.CN=a", "neither S(ubject)"),
            ("S.CN=", "has no value"),
            ("S.CN=a<b", "has to precede"),
            ("S.CN=a\\", "has to precede"),
            ("S.O=Example, Inc.", "\" Inc.\" has no"),
        ] {
            let said = Pattern::read(pattern).unwrap_err();
            assert!(said.contains(part), "{pattern}: {said}");
        }
    }
}
