//! The functions of the library that are used, by their C declarations: RFC 2744, and for what MIT has added its gssapi_ext.h.

#![allow(unsafe_code, reason = "a library of C is called; every call says why it may be")]

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::{ptr, slice};

use bytes::Bytes;
use libloading::Library;

use crate::Krb5Error;

/// `gss_ctx_id_t`, `gss_name_t`, `gss_cred_id_t`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(*mut c_void);

// SAFETY: a handle may be used by any thread. Credentials are locked by the library; contexts and names are each used by one
// thread at a time, since whoever uses one has it to himself (`&mut`).
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    pub(crate) const fn none() -> Self {
        Self(ptr::null_mut())
    }

    pub(crate) fn is_none(self) -> bool {
        self.0.is_null()
    }
}

/// `gss_buffer_desc`
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Buffer {
    length: usize,
    value: *mut c_void,
}

impl Buffer {
    pub(crate) const fn empty() -> Self {
        Self { length: 0, value: ptr::null_mut() }
    }

    /// For the library to read, while `bytes` are there.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self { length: bytes.len(), value: bytes.as_ptr().cast_mut().cast() }
    }

    /// What the library has put there; its memory goes back.
    pub(crate) fn take(mut self, api: &Api) -> Bytes {
        if self.value.is_null() {
            return Bytes::new();
        }
        // SAFETY: the library says that so many bytes are there, and they are ours until they are released.
        let bytes = Bytes::copy_from_slice(unsafe { slice::from_raw_parts(self.value.cast(), self.length) });
        let mut minor = 0;
        // SAFETY: it was allocated by the library, and is not used any more.
        unsafe { (api.release_buffer)(&mut minor, &mut self) };
        bytes
    }
}

/// `gss_key_value_element_desc`
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Element {
    pub(crate) key: *const c_char,
    pub(crate) value: *const c_char,
}

/// `gss_key_value_set_desc`
#[repr(C)]
#[derive(Debug)]
pub(crate) struct CredentialStore {
    pub(crate) count: u32,
    pub(crate) elements: *const Element,
}

/// GSS_ERROR: calling and routine errors; what is below is no error (RFC 2744 §3.9.1).
pub(crate) fn failed(major: u32) -> bool {
    major & 0xffff_0000 != 0
}

macro_rules! api {
    ($($name:ident: $symbol:literal, fn($($arg:ty),* $(,)?);)*) => {
        /// The library, and where its functions are.
        pub(crate) struct Api {
            $(pub(crate) $name: unsafe extern "C" fn($($arg),*) -> u32,)*
            _library: Library,
        }

        impl Api {
            fn resolve(library: Library) -> Result<Self, libloading::Error> {
                $(
                    // SAFETY: the type is that of the function's C declaration.
                    let $name = *unsafe { library.get::<unsafe extern "C" fn($($arg),*) -> u32>($symbol.as_bytes()) }?;
                )*
                Ok(Self { $($name,)* _library: library })
            }
        }
    };
}

api! {
    acquire_cred_from: "gss_acquire_cred_from", fn(*mut u32, Handle, u32, *const c_void, c_int, *const CredentialStore, *mut Handle, *mut *mut c_void, *mut u32);
    inquire_cred: "gss_inquire_cred", fn(*mut u32, Handle, *mut Handle, *mut u32, *mut c_int, *mut *mut c_void);
    release_cred: "gss_release_cred", fn(*mut u32, *mut Handle);
    accept_sec_context: "gss_accept_sec_context", fn(*mut u32, *mut Handle, Handle, *const Buffer, *const c_void, *mut Handle, *mut *mut c_void, *mut Buffer, *mut u32, *mut u32, *mut Handle);
    delete_sec_context: "gss_delete_sec_context", fn(*mut u32, *mut Handle, *mut Buffer);
    display_name: "gss_display_name", fn(*mut u32, Handle, *mut Buffer, *mut *mut c_void);
    release_name: "gss_release_name", fn(*mut u32, *mut Handle);
    localname: "gss_localname", fn(*mut u32, Handle, *mut c_void, *mut Buffer);
    display_status: "gss_display_status", fn(*mut u32, u32, c_int, *mut c_void, *mut u32, *mut Buffer);
    get_mic: "gss_get_mic", fn(*mut u32, Handle, u32, *const Buffer, *mut Buffer);
    verify_mic: "gss_verify_mic", fn(*mut u32, Handle, *const Buffer, *const Buffer, *mut u32);
    wrap: "gss_wrap", fn(*mut u32, Handle, c_int, u32, *const Buffer, *mut c_int, *mut Buffer);
    unwrap: "gss_unwrap", fn(*mut u32, Handle, *const Buffer, *mut Buffer, *mut c_int, *mut u32);
    release_buffer: "gss_release_buffer", fn(*mut u32, *mut Buffer);
}

impl Api {
    pub(crate) fn load(path: &Path) -> Result<Self, Krb5Error> {
        // SAFETY: loading runs the library's initialisers. It is the operator who names the library, or who owns the loader's
        // search path, exactly as for a library that is linked.
        let library = unsafe { Library::new(path) }.map_err(|error| Krb5Error::Library(error.to_string()))?;
        Self::resolve(library)
            .map_err(|error| Krb5Error::Incomplete { path: path.to_owned(), why: error.to_string() })
    }
}
