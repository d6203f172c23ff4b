//! Encodings of NFSv4.1 and 4.2 messages laid out by hand from the RFCs, field by field, and compared with
//! the generated codec both ways: a field out of order, a missing arm or a wrong number shows here.

mod callback;
mod file;
mod layout;
mod locks;
mod numbers;
mod session;
mod v42;

use std::fmt::Debug;

use bytes::Bytes;
use sluice_xdr::nfs4::{bitmap4, fattr4, stateid4};
use sluice_xdr::{Decode, Encode, from_bytes, to_bytes};

/// `layout` as bytes: hexadecimal digits and 'quoted text', blanks free, `//` to the end of the line a comment.
fn bytes_of(layout: &str) -> Bytes {
    let (mut out, mut nibbles) = (Vec::new(), Vec::new());
    for line in layout.lines() {
        let line = line.split("//").next().unwrap_or_default();
        for (i, part) in line.split('\'').enumerate() {
            if i % 2 == 1 {
                assert!(nibbles.is_empty(), "half a byte before {part:?}");
                out.extend_from_slice(part.as_bytes());
                continue;
            }
            for c in part.chars().filter(|c| !c.is_whitespace()) {
                let Some(digit) = c.to_digit(16) else { panic!("{c:?} is not a hexadecimal digit") };
                nibbles.push(digit as u8);
                if let [high, low] = nibbles[..] {
                    out.push(high << 4 | low);
                    nibbles.clear();
                }
            }
        }
    }
    assert!(nibbles.is_empty() && out.len() % 4 == 0, "{} bytes are not whole words", out.len());
    out.into()
}

/// One word a line, so that a failed comparison shows which.
fn words(bytes: &[u8]) -> Vec<String> {
    bytes.chunks(4).map(|word| word.iter().map(|b| format!("{b:02x}")).collect()).collect()
}

/// `value` is exactly `layout` on the wire, and nothing shorter is a value of its type.
#[track_caller]
fn golden<T: Encode + Decode + PartialEq + Debug>(value: &T, layout: &str) {
    let expected = bytes_of(layout);
    match to_bytes(value) {
        Ok(encoded) => assert_eq!(words(&encoded), words(&expected), "encoding of {value:?}"),
        Err(error) => panic!("{value:?} does not encode: {error}"),
    }
    match from_bytes::<T>(expected.clone()) {
        Ok(decoded) => assert_eq!(&decoded, value),
        Err(error) => panic!("{value:?} does not decode: {error}"),
    }
    for end in 0..expected.len() {
        assert!(from_bytes::<T>(expected.slice(..end)).is_err(), "{value:?} decodes from {end} bytes");
    }
}

fn text(s: &'static str) -> Bytes {
    Bytes::from_static(s.as_bytes())
}

fn stateid(seqid: u32, fill: u8) -> stateid4 {
    stateid4 { seqid, other: [fill; 12] }
}

fn attributes(numbers: &[u32], values: &str) -> fattr4 {
    fattr4 { attrmask: bitmap4::of(numbers), attr_vals: bytes_of(values) }
}
