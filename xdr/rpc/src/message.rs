//! Headers of calls and replies (RFC 5531 §9). Their types are few and on the hot path, so they are read
//! and written here word by word instead of through the generated `rpc_msg`.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use sluice_xdr::rpc::auth_stat;
use sluice_xdr::{DecodeError, EncodeError, Reader, Writer, record};
use thiserror::Error;

use crate::credential::{Credential, MAX_AUTH_BYTES, RPCSEC_GSS};
use crate::gss::{GssCall, GssCredential, Seal};
use crate::program::Unavailable;

/// msg_type
const CALL: u32 = 0;
const REPLY: u32 = 1;
/// reply_stat
const MSG_ACCEPTED: u32 = 0;
const MSG_DENIED: u32 = 1;
/// reject_stat
const RPC_MISMATCH: u32 = 0;
const AUTH_ERROR: u32 = 1;
/// accept_stat
const SUCCESS: u32 = 0;
const PROG_UNAVAIL: u32 = 1;
const PROG_MISMATCH: u32 = 2;
const PROC_UNAVAIL: u32 = 3;
const GARBAGE_ARGS: u32 = 4;
const SYSTEM_ERR: u32 = 5;
/// The only version of the protocol.
const RPC_VERSION: u32 = 2;

/// Why an outgoing call has no result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// No reply in time. The call may have been executed, or may yet be.
    #[error("no reply within {0:?}")]
    Timeout(Duration),
    /// The connection ended first. The call may have been executed.
    #[error("the connection was lost before the reply came")]
    Closed,
    /// No connection could be made: the call was certainly not executed.
    #[error("not connected: {0}")]
    NotConnected(String),
    #[error("the peer does not serve program {program}")]
    ProgUnavail { program: u32 },
    #[error("the peer serves versions {low} to {high} of program {program}, not {version}")]
    ProgMismatch { program: u32, version: u32, low: u32, high: u32 },
    #[error("the peer does not serve that procedure")]
    ProcUnavail,
    #[error("the peer could not decode the arguments")]
    GarbageArgs,
    #[error("the peer failed (SYSTEM_ERR)")]
    SystemErr,
    #[error("the peer speaks RPC versions {low} to {high}")]
    RpcMismatch { low: u32, high: u32 },
    #[error("the peer refused the credential ({0:?})")]
    Auth(auth_stat),
    #[error("the reply cannot be decoded: {0}")]
    Malformed(#[from] DecodeError),
    #[error("the call cannot be encoded: {0}")]
    Encode(#[from] EncodeError),
}

impl CallError {
    /// True if another attempt, on this or a new connection, might fare better.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Timeout(_) | Self::Closed | Self::NotConnected(_) | Self::SystemErr)
    }
}

/// What an incoming record turned out to be.
#[derive(Debug)]
pub(crate) enum Message {
    Call(CallHeader),
    /// A call under RPCSEC_GSS, whose maker is not known yet.
    Gss(GssCall),
    /// A call refused by its header alone.
    Refused {
        xid: u32,
        verdict: Verdict,
    },
    Reply {
        xid: u32,
    },
}

#[derive(Debug)]
pub(crate) struct CallHeader {
    pub(crate) xid: u32,
    pub(crate) program: u32,
    pub(crate) version: u32,
    pub(crate) procedure: u32,
    pub(crate) credential: Credential,
    pub(crate) args: Bytes,
    /// How the answer is to leave, if not as it is.
    pub(crate) seal: Option<Box<Seal>>,
}

/// The outcome of a call as far as the reply's header tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Success,
    ProgUnavail,
    ProgMismatch { low: u32, high: u32 },
    ProcUnavail,
    GarbageArgs,
    SystemErr,
    RpcMismatch,
    AuthError(auth_stat),
}

impl From<Unavailable> for Verdict {
    fn from(why: Unavailable) -> Self {
        match why {
            Unavailable::Program => Self::ProgUnavail,
            Unavailable::Version { low, high } => Self::ProgMismatch { low, high },
        }
    }
}

/// Judges a record up to the procedure's arguments. An error means that not even a refusal can be
/// addressed: the peer does not speak RPC.
pub(crate) fn parse(record: Bytes) -> Result<Message, DecodeError> {
    let mut r = Reader::new(record);
    let xid = r.u32()?;
    match r.u32()? {
        REPLY => return Ok(Message::Reply { xid }),
        CALL => {}
        value => return Err(DecodeError::BadDiscriminant { union: "msg_type", value }),
    }
    // Version first, then credential, then program: the order of the sections of RFC 5531 §9, in which
    // each answer makes sense only if the one before it was not needed.
    if r.u32()? != RPC_VERSION {
        return Ok(Message::Refused { xid, verdict: Verdict::RpcMismatch });
    }
    let (program, version, procedure) = (r.u32()?, r.u32()?, r.u32()?);
    let flavour = r.u32()?;
    let credential = r.opaque(MAX_AUTH_BYTES).map_err(|_| auth_stat::AUTH_BADCRED);
    if flavour == RPCSEC_GSS {
        return parse_gss(xid, (program, version, procedure), credential, r);
    }
    let credential = match credential.and_then(|body| Credential::parse(flavour, body)) {
        Ok(credential) => credential,
        Err(stat) => return Ok(Message::Refused { xid, verdict: Verdict::AuthError(stat) }),
    };
    let _verifier_flavour = r.u32()?;
    if r.opaque(MAX_AUTH_BYTES).is_err() {
        return Ok(Message::Refused { xid, verdict: Verdict::AuthError(auth_stat::AUTH_BADVERF) });
    }
    Ok(Message::Call(CallHeader { xid, program, version, procedure, credential, args: r.rest(), seal: None }))
}

/// The rest of a call under RPCSEC_GSS, from behind its credential (RFC 2203 §5).
fn parse_gss(
    xid: u32,
    (program, version, procedure): (u32, u32, u32),
    credential: Result<Bytes, auth_stat>,
    mut r: Reader,
) -> Result<Message, DecodeError> {
    let refused = |stat| Ok(Message::Refused { xid, verdict: Verdict::AuthError(stat) });
    let Ok(body) = credential else { return refused(auth_stat::AUTH_BADCRED) };
    // Six words before the credential, and two of its own.
    let signed = 32 + body.len().next_multiple_of(4);
    // Where nobody takes tickets it does not matter what it says.
    let credential = GssCredential::decode(body).ok();
    let _verifier_flavour = r.u32()?;
    let Ok(verifier) = r.opaque(MAX_AUTH_BYTES) else { return refused(auth_stat::AUTH_BADVERF) };
    Ok(Message::Gss(GssCall {
        xid,
        program,
        version,
        procedure,
        credential,
        signed,
        verifier,
        args: r.rest(),
    }))
}

/// The beginning of a call that may be answered where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Glance<'a> {
    pub(crate) xid: u32,
    pub(crate) program: u32,
    pub(crate) version: u32,
    pub(crate) procedure: u32,
    pub(crate) args: &'a [u8],
}

/// Reads a call without taking anything out of the record. `None` for whatever is not a plain, acceptable call:
/// [`parse`] has the verdict.
pub(crate) fn glance(record: &[u8]) -> Option<Glance<'_>> {
    let word = |at: usize| {
        let bytes = record.get(at..at.checked_add(4)?)?;
        bytes.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes))
    };
    if (word(4)?, word(8)?) != (CALL, RPC_VERSION) {
        return None;
    }
    let length = word(28)?;
    if length > MAX_AUTH_BYTES {
        return None;
    }
    let end = 32 + length.next_multiple_of(4) as usize;
    if !Credential::is_plain(word(24)?, record.get(32..end)?) {
        return None;
    }
    // An empty verifier, as AUTH_NONE and AUTH_SYS have it.
    if word(end + 4)? != 0 {
        return None;
    }
    let args = record.get(end + 8..)?;
    Some(Glance { xid: word(0)?, program: word(12)?, version: word(16)?, procedure: word(20)?, args })
}

/// Bytes of mark and header in front of a successful result.
pub(crate) const SUCCESS_HEAD: usize = 28;

/// Mark and header of a successful reply whose result has `body` bytes; a result of 2^31 bytes has none.
pub(crate) fn success_head(xid: u32, body: usize) -> Option<[u8; SUCCESS_HEAD]> {
    let mark = body.checked_add(SUCCESS_HEAD - 4).and_then(record::mark)?;
    let mut head = [0; SUCCESS_HEAD];
    let words = [u32::from_be_bytes(mark), xid, REPLY, MSG_ACCEPTED, 0, 0, SUCCESS];
    for (place, word) in head.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_be_bytes());
    }
    Some(head)
}

/// Appends mark and header of a reply whose result has `body` bytes. False, with nothing appended, if the
/// record would exceed what a mark can say. `proof` is the verifier of a reply to RPCSEC_GSS, empty of any other.
pub(crate) fn put_reply(out: &mut BytesMut, xid: u32, verdict: Verdict, proof: &[u8], body: usize) -> bool {
    let denied = matches!(verdict, Verdict::RpcMismatch | Verdict::AuthError(_));
    let proof = if denied { &[] } else { proof };
    let header: usize = match verdict {
        Verdict::ProgMismatch { .. } => 32,
        Verdict::RpcMismatch => 24,
        Verdict::AuthError(_) => 20,
        _ => 24,
    };
    let padded = proof.len().next_multiple_of(4);
    let Some(mark) =
        header.checked_add(padded).and_then(|header| header.checked_add(body)).and_then(record::mark)
    else {
        return false;
    };
    out.put_slice(&mark);
    out.put_u32(xid);
    out.put_u32(REPLY);
    out.put_u32(if denied { MSG_DENIED } else { MSG_ACCEPTED });
    if !denied {
        if proof.is_empty() {
            // The verifier of a reply to AUTH_NONE and AUTH_SYS: AUTH_NONE, empty.
            out.put_u64(0);
        } else {
            out.put_u32(RPCSEC_GSS);
            out.put_u32(u32::try_from(proof.len()).unwrap_or_default());
            out.put_slice(proof);
            out.put_bytes(0, padded - proof.len());
        }
    }
    match verdict {
        Verdict::Success => out.put_u32(SUCCESS),
        Verdict::ProgUnavail => out.put_u32(PROG_UNAVAIL),
        Verdict::ProgMismatch { low, high } => {
            out.put_u32(PROG_MISMATCH);
            out.put_u32(low);
            out.put_u32(high);
        }
        Verdict::ProcUnavail => out.put_u32(PROC_UNAVAIL),
        Verdict::GarbageArgs => out.put_u32(GARBAGE_ARGS),
        Verdict::SystemErr => out.put_u32(SYSTEM_ERR),
        Verdict::RpcMismatch => {
            out.put_u32(RPC_MISMATCH);
            out.put_u32(RPC_VERSION);
            out.put_u32(RPC_VERSION);
        }
        Verdict::AuthError(stat) => {
            out.put_u32(AUTH_ERROR);
            out.put_u32(stat.0);
        }
    }
    true
}

/// Mark and header of a call whose arguments have `body` bytes.
pub(crate) fn call_head(
    xid: u32,
    (program, version, procedure): (u32, u32, u32),
    credential: &Credential,
    body: usize,
) -> Result<Bytes, EncodeError> {
    let mut w = Writer::default();
    let at = w.reserve_u32();
    for word in [xid, CALL, RPC_VERSION, program, version, procedure] {
        w.u32(word);
    }
    credential.encode(&mut w);
    Credential::None.encode(&mut w);
    let mark = record::mark(w.len() - 4 + body).ok_or(EncodeError::Overflow(0x7fff_ffff))?;
    w.patch(at, u32::from_be_bytes(mark));
    Ok(w.finish()?.into_bytes())
}

/// The result in a reply record to a call of `program` and `version`.
pub(crate) fn open_reply(record: Bytes, program: u32, version: u32) -> Result<Bytes, CallError> {
    let mut r = Reader::new(record);
    let _xid_and_type = r.u64()?;
    match r.u32()? {
        MSG_ACCEPTED => {}
        MSG_DENIED => {
            return Err(match r.u32()? {
                RPC_MISMATCH => CallError::RpcMismatch { low: r.u32()?, high: r.u32()? },
                AUTH_ERROR => CallError::Auth(auth_stat(r.u32()?)),
                value => DecodeError::BadDiscriminant { union: "reject_stat", value }.into(),
            });
        }
        value => return Err(DecodeError::BadDiscriminant { union: "reply_stat", value }.into()),
    }
    let _verifier_flavour = r.u32()?;
    r.opaque(MAX_AUTH_BYTES)?;
    match r.u32()? {
        SUCCESS => Ok(r.rest()),
        PROG_UNAVAIL => Err(CallError::ProgUnavail { program }),
        PROG_MISMATCH => Err(CallError::ProgMismatch { program, version, low: r.u32()?, high: r.u32()? }),
        PROC_UNAVAIL => Err(CallError::ProcUnavail),
        GARBAGE_ARGS => Err(CallError::GarbageArgs),
        SYSTEM_ERR => Err(CallError::SystemErr),
        value => Err(DecodeError::BadDiscriminant { union: "accept_stat", value }.into()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reply(verdict: Verdict, body: &[u8]) -> Bytes {
        let mut out = BytesMut::new();
        assert!(put_reply(&mut out, 9, verdict, &[], body.len()));
        let mark = out.split_to(4);
        out.put_slice(body);
        assert_eq!(mark[..], (0x8000_0000 | u32::try_from(out.len()).unwrap()).to_be_bytes());
        out.freeze()
    }

    #[test]
    fn every_verdict_reaches_the_caller() {
        let open = |v| open_reply(reply(v, b""), 5, 6).unwrap_err();
        assert_eq!(open_reply(reply(Verdict::Success, b"abcd"), 5, 6).unwrap(), "abcd");
        assert_eq!(open(Verdict::ProgUnavail), CallError::ProgUnavail { program: 5 });
        assert_eq!(
            open(Verdict::ProgMismatch { low: 1, high: 3 }),
            CallError::ProgMismatch { program: 5, version: 6, low: 1, high: 3 }
        );
        assert_eq!(open(Verdict::ProcUnavail), CallError::ProcUnavail);
        assert_eq!(open(Verdict::GarbageArgs), CallError::GarbageArgs);
        assert_eq!(open(Verdict::SystemErr), CallError::SystemErr);
        assert_eq!(open(Verdict::RpcMismatch), CallError::RpcMismatch { low: 2, high: 2 });
        let tooweak = auth_stat::AUTH_TOOWEAK;
        assert_eq!(open(Verdict::AuthError(tooweak)), CallError::Auth(tooweak));
    }

    #[test]
    fn a_head_in_one_piece_is_the_same() {
        let mut out = BytesMut::new();
        assert!(put_reply(&mut out, 77, Verdict::Success, &[], 300));
        assert_eq!(out[..], success_head(77, 300).unwrap());
        assert_eq!(success_head(1, 0x8000_0000), None);
    }

    #[test]
    fn a_reply_too_long_for_a_mark_is_not_begun() {
        let mut out = BytesMut::new();
        assert!(!put_reply(&mut out, 1, Verdict::Success, &[], 0x8000_0000));
        assert!(out.is_empty());
    }

    #[test]
    fn header_faults_are_answered_not_fatal() {
        let words = |w: &[u32]| Bytes::from(w.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<_>>());
        let verdict = |w: &[u32]| match parse(words(w)) {
            Ok(Message::Refused { xid: 3, verdict }) => Some(verdict),
            _ => None,
        };
        assert_eq!(verdict(&[3, 0, 1]), Some(Verdict::RpcMismatch));
        let bad = Some(Verdict::AuthError(auth_stat::AUTH_BADCRED));
        assert_eq!(verdict(&[3, 0, 2, 100_003, 3, 0, 1, 0xffff_fff0]), bad, "credential of 4 GiB");
        let gids = [3, 0, 2, 100_003, 3, 0, 1, 20, 0, 0, 0, 0, u32::MAX, 0, 0];
        assert_eq!(verdict(&gids), bad, "2^32-1 groups");
        assert!(parse(words(&[3, 7])).is_err(), "neither call nor reply");
        assert!(parse(words(&[3])).is_err());
    }

    proptest! {
        #[test]
        fn calls_come_out_as_they_went_in(xid: u32, target: (u32, u32, u32), uid: u32, body: Vec<u8>) {
            let sys = crate::AuthSys { uid, ..crate::AuthSys::root("h") };
            let mut record = call_head(xid, target, &Credential::Sys(sys.clone()), body.len()).unwrap().to_vec();
            record.extend(&body);
            prop_assert_eq!(&record[..4], &record::mark(record.len() - 4).unwrap()[..]);
            let seen = glance(&record[4..]).unwrap();
            prop_assert_eq!((seen.xid, seen.program, seen.version, seen.procedure), (xid, target.0, target.1, target.2));
            prop_assert_eq!(seen.args, &body[..]);
            match parse(Bytes::from(record).slice(4..)) {
                Ok(Message::Call(call)) => {
                    prop_assert_eq!(call.xid, xid);
                    prop_assert_eq!((call.program, call.version, call.procedure), target);
                    prop_assert_eq!(call.credential, Credential::Sys(sys));
                    prop_assert_eq!(call.args, body);
                }
                other => prop_assert!(false, "{other:?}"),
            }
        }

        #[test]
        fn a_glance_sees_nothing_that_a_look_refuses(
            words in proptest::collection::vec(prop_oneof![0u32..6, 12u32..40, any::<u32>()], 6..40),
        ) {
            let head = [3, CALL, RPC_VERSION, 5, 6, 7];
            let record: Bytes = head.iter().chain(&words).flat_map(|w| w.to_be_bytes()).collect::<Vec<_>>().into();
            if let Some(seen) = glance(&record) {
                match parse(record.clone()) {
                    Ok(Message::Call(call)) => prop_assert_eq!(&call.args[..], seen.args),
                    other => prop_assert!(false, "{other:?}"),
                }
            }
        }

        #[test]
        fn no_bytes_are_a_panic(bytes: Vec<u8>) {
            let _ = glance(&bytes);
            let _ = parse(bytes.clone().into());
            let _ = open_reply(bytes.into(), 1, 1);
        }
    }
}
