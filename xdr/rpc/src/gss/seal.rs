//! What is around the arguments and the result of one call (RFC 2203 §5.3.2).

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use sluice_xdr::{DecodeError, Reader, Writer};

use super::Service;
use super::contexts::Context;
use crate::message::Verdict;
use crate::outbox::Body;

/// Beyond every record.
const LARGEST: u32 = u32::MAX >> 1;
/// A proof, of any mechanism.
const LARGEST_PROOF: u32 = 1024;

/// How the answer to a call is to leave.
#[derive(Debug)]
pub(crate) struct Seal {
    pub(super) context: Arc<Context>,
    pub(super) sequence: u32,
    pub(super) service: Service,
}

/// Arguments that cannot be taken out.
#[derive(Debug)]
pub(super) struct Unreadable;

impl From<DecodeError> for Unreadable {
    fn from(_: DecodeError) -> Self {
        Self
    }
}

impl Seal {
    /// The arguments.
    pub(super) fn open(&self, args: Bytes) -> Result<Bytes, Unreadable> {
        let mut r = Reader::new(args);
        let body = match self.service {
            Service::None => return Ok(r.rest()),
            Service::Integrity => {
                let (body, proof) = (r.opaque(LARGEST)?, r.opaque(LARGEST_PROOF)?);
                self.context.key.lock().verify(&body, &proof).map_err(|_| Unreadable)?;
                body
            }
            Service::Privacy => {
                let wrapped = r.opaque(LARGEST)?;
                self.context.key.lock().unwrap(&wrapped).map_err(|_| Unreadable)?
            }
        };
        r.finish()?;
        let mut r = Reader::new(body);
        // The number once more, where nobody can have changed it (§5.3.3.4.2).
        if r.u32()? == self.sequence { Ok(r.rest()) } else { Err(Unreadable) }
    }

    /// What leaves of an answer, and the proof for its head. A result that cannot be sealed is SYSTEM_ERR: the context has ended since.
    pub(crate) fn close(&self, verdict: Verdict, body: Body) -> (Verdict, Body, Option<Bytes>) {
        let proof = self.context.key.lock().sign(&self.sequence.to_be_bytes()).ok();
        match self.around(verdict, body) {
            Some(body) if proof.is_some() => (verdict, body, proof),
            _ => (Verdict::SystemErr, Body::default(), proof),
        }
    }

    fn around(&self, verdict: Verdict, body: Body) -> Option<Body> {
        if self.service == Service::None || verdict != Verdict::Success {
            return Some(body);
        }
        if body.data.is_some() {
            // Only data servers answer from where data lies, and nobody comes to them with a ticket.
            return None;
        }
        let mut result = BytesMut::with_capacity(4 + body.len());
        result.put_u32(self.sequence);
        body.frame.into_segments().iter().for_each(|segment| result.put_slice(segment));
        let mut key = self.context.key.lock();
        let mut w = Writer::default();
        if self.service == Service::Privacy {
            w.opaque(&key.wrap(&result).ok()?, LARGEST);
        } else {
            let proof = key.sign(&result).ok()?;
            w.opaque(&result.freeze(), LARGEST);
            w.opaque(&proof, LARGEST_PROOF);
        }
        drop(key);
        Some(w.finish().ok()?.into())
    }
}
