//! Credentials and results of RPCSEC_GSS (RFC 2203 §5).

use bytes::Bytes;
use sluice_xdr::{DecodeError, Frame, Reader, Writer};

use super::window::WINDOW;
use super::{Rejected, Service};
use crate::credential::MAX_AUTH_BYTES;

/// RFC 2203 §5.
const VERSION: u32 = 1;
/// GSS_S_COMPLETE, RFC 2744 §3.9.1.
const COMPLETE: u32 = 0;
/// Tickets with long lists of groups have some ten thousand bytes.
const LARGEST_TOKEN: u32 = 1 << 16;

/// What is asked of a context (RFC 2203 §5.2, `rpc_gss_proc_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Data,
    Init,
    ContinueInit,
    Destroy,
}

/// `rpc_gss_cred_vers_1_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GssCredential {
    pub(crate) form: Form,
    pub(crate) sequence: u32,
    pub(crate) service: Service,
    /// `None`: not one of ours.
    pub(crate) handle: Option<u64>,
}

impl GssCredential {
    /// The body of a credential.
    pub(crate) fn decode(body: Bytes) -> Result<Self, DecodeError> {
        let mut r = Reader::new(body);
        let bad = |union, value| DecodeError::BadDiscriminant { union, value };
        match r.u32()? {
            VERSION => {}
            value => return Err(bad("rpc_gss_cred_t", value)),
        }
        let form = match r.u32()? {
            0 => Form::Data,
            1 => Form::Init,
            2 => Form::ContinueInit,
            3 => Form::Destroy,
            value => return Err(bad("rpc_gss_proc_t", value)),
        };
        let sequence = r.u32()?;
        let service = match r.u32()? {
            1 => Service::None,
            2 => Service::Integrity,
            3 => Service::Privacy,
            // It means nothing yet where a context begins (§5.2.2).
            _ if form != Form::Data => Service::None,
            value => return Err(bad("rpc_gss_service_t", value)),
        };
        let handle = r.opaque(MAX_AUTH_BYTES)?;
        r.finish()?;
        let handle = handle.as_ref().try_into().ok().map(u64::from_be_bytes);
        Ok(Self { form, sequence, service, handle })
    }
}

/// A call under RPCSEC_GSS whose maker is not known yet.
#[derive(Debug)]
pub(crate) struct GssCall {
    pub(crate) xid: u32,
    pub(crate) program: u32,
    pub(crate) version: u32,
    pub(crate) procedure: u32,
    /// `None`: it cannot be understood.
    pub(crate) credential: Option<GssCredential>,
    /// Bytes of the record that the verifier is for: from the xid to the end of the credential (§5.3.1).
    pub(crate) signed: usize,
    pub(crate) verifier: Bytes,
    pub(crate) args: Bytes,
}

impl GssCall {
    /// The token with which a context begins.
    pub(crate) fn token(self) -> Option<Bytes> {
        Reader::new(self.args).opaque(LARGEST_TOKEN).ok()
    }
}

/// `rpc_gss_init_res` of a context that is there now.
pub(crate) fn acceptance(handle: u64, token: &[u8]) -> Option<Frame> {
    let mut w = Writer::default();
    w.opaque_slice(&handle.to_be_bytes(), 8);
    for word in [COMPLETE, 0, WINDOW] {
        w.u32(word);
    }
    w.opaque_slice(token, LARGEST_TOKEN);
    w.finish().ok()
}

/// And of one that is not (§5.2.3.1).
pub(crate) fn refusal(why: &Rejected) -> Option<Frame> {
    let mut w = Writer::default();
    w.opaque_slice(&[], 0);
    for word in [why.major, why.minor, WINDOW] {
        w.u32(word);
    }
    w.opaque(&why.token, LARGEST_TOKEN);
    w.finish().ok()
}
