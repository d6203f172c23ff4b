//! Names and errors as text.

#![allow(unsafe_code, reason = "a library of C is called; every call says why it may be")]

use std::ffi::c_void;
use std::ptr;

use bytes::Bytes;

use crate::entry::{Api, Buffer, Handle, failed};

/// GSS_C_GSS_CODE and GSS_C_MECH_CODE, RFC 2744 appendix A.
const KINDS: [i32; 2] = [1, 2];

fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

/// What the library says of an error: first GSS-API, then Kerberos.
pub(crate) fn why(api: &Api, major: u32, minor: u32) -> String {
    let mut said = Vec::new();
    for (kind, value) in KINDS.into_iter().zip([major, minor]) {
        if value == 0 {
            continue;
        }
        let (mut ignored, mut more, mut buffer) = (0, 0, Buffer::empty());
        // SAFETY: all pointers are to values that outlive the call; no mechanism means the default one (RFC 2744 §5.11).
        let status = unsafe {
            (api.display_status)(&mut ignored, value, kind, ptr::null_mut(), &mut more, &mut buffer)
        };
        let words = buffer.take(api);
        if !failed(status) {
            said.push(text(&words));
        }
    }
    if said.is_empty() { format!("GSS-API error {major:#x}, {minor}") } else { said.join(": ") }
}

/// A caller's name.
pub(crate) struct Name<'a> {
    api: &'a Api,
    handle: Handle,
}

impl<'a> Name<'a> {
    pub(crate) fn new(api: &'a Api, handle: Handle) -> Self {
        Self { api, handle }
    }

    /// `alice@EXAMPLE.COM`
    pub(crate) fn principal(&self) -> Result<String, (u32, u32)> {
        let (mut minor, mut buffer) = (0, Buffer::empty());
        // SAFETY: the name is one of the library's, all pointers outlive the call, and the type of the name may be left out.
        let major = unsafe { (self.api.display_name)(&mut minor, self.handle, &mut buffer, ptr::null_mut()) };
        let name = buffer.take(self.api);
        if failed(major) { Err((major, minor)) } else { Ok(text(&name)) }
    }

    /// The name of the user of this host that he is, by the rules of krb5.conf (`auth_to_local`).
    pub(crate) fn local(&self, mechanism: *mut c_void) -> Option<String> {
        let (mut minor, mut buffer) = (0, Buffer::empty());
        // SAFETY: name and mechanism are the library's, and all pointers outlive the call.
        let major = unsafe { (self.api.localname)(&mut minor, self.handle, mechanism, &mut buffer) };
        let name = buffer.take(self.api);
        if failed(major) { None } else { Some(text(&name)).filter(|name| !name.is_empty()) }
    }
}

impl Drop for Name<'_> {
    fn drop(&mut self) {
        if !self.handle.is_none() {
            let mut minor = 0;
            // SAFETY: it is ours, and not used any more.
            unsafe { (self.api.release_name)(&mut minor, &mut self.handle) };
        }
    }
}
