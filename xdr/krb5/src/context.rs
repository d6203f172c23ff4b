//! The key that a caller and this server share.

#![allow(unsafe_code, reason = "a library of C is called; every call says why it may be")]

use std::fmt;
use std::ptr;
use std::sync::Arc;

use bytes::Bytes;
use sluice_rpc::gss::{GssError, SecurityContext};

use crate::entry::{Api, Buffer, Handle, failed};

pub(crate) struct Context {
    api: Arc<Api>,
    handle: Handle,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Context")
    }
}

impl Context {
    /// Of a handle that nobody else has; it may be of none.
    pub(crate) fn new(api: Arc<Api>, handle: Handle) -> Self {
        Self { api, handle }
    }

    fn judge(major: u32) -> Result<(), GssError> {
        if failed(major) { Err(GssError) } else { Ok(()) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.handle.is_none() {
            let mut minor = 0;
            // SAFETY: it is ours, and not used any more; no token is wanted.
            unsafe { (self.api.delete_sec_context)(&mut minor, &mut self.handle, ptr::null_mut()) };
        }
    }
}

// In all four: the context is used by one thread at a time (`&mut`), the pointers are to values that outlive the call, and what
// the library allocates is taken over at once.
impl SecurityContext for Context {
    fn sign(&mut self, message: &[u8]) -> Result<Bytes, GssError> {
        let (mut minor, input, mut output) = (0, Buffer::of(message), Buffer::empty());
        // SAFETY: as said above.
        let major = unsafe { (self.api.get_mic)(&mut minor, self.handle, 0, &input, &mut output) };
        let proof = output.take(&self.api);
        Self::judge(major).map(|()| proof)
    }

    fn verify(&mut self, message: &[u8], proof: &[u8]) -> Result<(), GssError> {
        let (mut minor, message, proof) = (0, Buffer::of(message), Buffer::of(proof));
        // SAFETY: as said above; the quality of protection may be left out.
        let major =
            unsafe { (self.api.verify_mic)(&mut minor, self.handle, &message, &proof, ptr::null_mut()) };
        Self::judge(major)
    }

    fn wrap(&mut self, message: &[u8]) -> Result<Bytes, GssError> {
        let (mut minor, input, mut output, mut hidden) = (0, Buffer::of(message), Buffer::empty(), 0);
        // SAFETY: as said above.
        let major =
            unsafe { (self.api.wrap)(&mut minor, self.handle, 1, 0, &input, &mut hidden, &mut output) };
        let wrapped = output.take(&self.api);
        Self::judge(major)?;
        if hidden == 0 { Err(GssError) } else { Ok(wrapped) }
    }

    fn unwrap(&mut self, message: &[u8]) -> Result<Bytes, GssError> {
        let (mut minor, input, mut output, mut hidden) = (0, Buffer::of(message), Buffer::empty(), 0);
        // SAFETY: as said above; the quality of protection may be left out.
        let major = unsafe {
            (self.api.unwrap)(&mut minor, self.handle, &input, &mut output, &mut hidden, ptr::null_mut())
        };
        let body = output.take(&self.api);
        Self::judge(major)?;
        if hidden == 0 { Err(GssError) } else { Ok(body) }
    }
}
