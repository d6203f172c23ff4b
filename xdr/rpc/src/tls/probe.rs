//! The call by which a client asks for TLS (RFC 9289 §4.1): NULL with the flavour AUTH_TLS.

/// A mark and a call without arguments, credential and verifier of no bytes.
const LENGTH: usize = 44;
/// Of the last fragment of a record of that length.
const MARK: u32 = 0x8000_0000 | (LENGTH as u32 - 4);
/// RFC 9289 §4.1, RFC 5531 §8.2.
const AUTH_TLS: u32 = 7;
/// The verifier of an answer that grants it.
const STARTTLS: [u8; 8] = *b"STARTTLS";

/// What a connection begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// More must come before it can be told.
    Unknown,
    Probe(Probe),
    /// Anything else, which is for others to judge.
    Other,
}

/// A client asks for TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) xid: u32,
    pub(crate) program: u32,
    pub(crate) version: u32,
}

/// Looks at the first bytes of a connection. Linux sends this call as one record, and so does whoever has read RFC 9289: there is
/// nothing in it that could differ.
pub(crate) fn look(first: &[u8]) -> Beginning {
    let word = |at: usize| {
        let bytes = first.get(at..).and_then(<[u8]>::first_chunk::<4>)?;
        Some(u32::from_be_bytes(*bytes))
    };
    match word(0) {
        None => return Beginning::Unknown,
        Some(MARK) => {}
        Some(_) => return Beginning::Other,
    }
    // The record is no longer than that, so that nobody is kept waiting.
    if first.len() < LENGTH {
        return Beginning::Unknown;
    }
    let (call, version_of_rpc, null, none) = (0, 2, 0, 0);
    let is_probe = word(8) == Some(call)
        && word(12) == Some(version_of_rpc)
        && word(24) == Some(null)
        && (word(28), word(32)) == (Some(AUTH_TLS), Some(0))
        && (word(36), word(40)) == (Some(none), Some(0));
    match (word(4), word(16), word(20)) {
        (Some(xid), Some(program), Some(version)) if is_probe => {
            Beginning::Probe(Probe { xid, program, version })
        }
        _ => Beginning::Other,
    }
}

impl Probe {
    /// Bytes of the call.
    pub(crate) const LENGTH: usize = LENGTH;

    /// The call, as a client sends it.
    pub(crate) fn call(&self) -> Vec<u8> {
        let Self { xid, program, version } = *self;
        bytes(&[MARK, xid, 0, 2, program, version, 0, AUTH_TLS, 0, 0, 0])
    }

    /// The record that says that TLS may begin: an accepted call whose verifier of flavour AUTH_NONE reads "STARTTLS".
    pub(crate) fn answer(&self) -> Vec<u8> {
        let (reply, accepted, none, success) = (1, 0, 0, 0);
        let length = STARTTLS.len() as u32;
        let mut answer = bytes(&[0x8000_0020, self.xid, reply, accepted, none, length]);
        answer.extend(STARTTLS);
        answer.extend(bytes(&[success]));
        answer
    }
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBE: Probe = Probe { xid: 0x1234_5678, program: 100_003, version: 4 };

    #[test]
    fn who_asks_is_told_from_everybody_else_as_soon_as_can_be() {
        let call = PROBE.call();
        assert_eq!(call.len(), Probe::LENGTH);
        for length in 0..call.len() {
            assert_eq!(look(&call[..length]), Beginning::Unknown, "{length}");
        }
        assert_eq!(look(&call), Beginning::Probe(PROBE));
        let more: Vec<u8> = call.iter().copied().chain([1, 2, 3]).collect();
        assert_eq!(look(&more), Beginning::Probe(PROBE));
        // Each other word makes it something else: the record's length, the version of RPC, a procedure, a flavour, a body.
        for at in [0, 8, 12, 24, 28, 32, 36, 40] {
            let mut other = call.clone();
            other[at + 3] ^= 1;
            assert_eq!(look(&other), Beginning::Other, "{at}");
        }
        assert_eq!(look(&[0x80, 0, 0, 0x29]), Beginning::Other, "a longer record is not waited for");
    }

    #[test]
    fn the_answer_reads_as_the_rfc_has_it() {
        let answer = PROBE.answer();
        assert_eq!(answer[..4], [0x80, 0, 0, 32]);
        assert_eq!(answer[4..8], [0x12, 0x34, 0x56, 0x78]);
        assert_eq!(answer[8..24], [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8]);
        assert_eq!(answer[24..], *b"STARTTLS\0\0\0\0");
        assert_eq!(answer.len(), 36);
    }
}
