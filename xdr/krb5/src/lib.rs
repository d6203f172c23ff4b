//! Kerberos for servers: what tickets mean, by MIT's GSS-API library, which is loaded when it is first needed. Building takes
//! nothing of Kerberos, and without it everything else runs.
//!
//! | module | what |
//! | --- | --- |
//! | `entry` | the library's functions (RFC 2744, and MIT's own) |
//! | `names` | names and errors as text |
//! | `context` | one caller's key |

#![allow(unsafe_code, reason = "a library of C is called; every call says why it may be")]

mod context;
mod entry;
mod names;

use std::ffi::CString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sluice_rpc::AuthSys;
use sluice_rpc::gss::{Accepted, Mechanism, Rejected};
use thiserror::Error;

use context::Context;
use entry::{Api, Buffer, CredentialStore, Element, Handle, failed};

/// What the distributions' packages install (Debian: libgssapi-krb5-2).
const LIBRARY: &str = "libgssapi_krb5.so.2";

/// GSS_S_FAILURE, RFC 2744 §3.9.1.
const FAILURE: u32 = 13 << 16;
/// GSS_S_CONTINUE_NEEDED
const CONTINUE_NEEDED: u32 = 1;
/// GSS_C_ACCEPT
const ACCEPT: i32 = 2;
/// GSS_C_INDEFINITE
const INDEFINITE: u32 = u32::MAX;

/// Why there is no Kerberos.
#[derive(Debug, Error)]
pub enum Krb5Error {
    #[error("Kerberos' GSS-API library was not found (Debian's package libgssapi-krb5-2 has it): {0}")]
    Library(String),
    #[error("{} is not MIT's GSS-API library: {why}", path.display())]
    Incomplete { path: PathBuf, why: String },
    #[error("no key of the keytab {} can be used: {why}. It must hold a key of nfs/THIS.HOST@REALM, and be readable by the server", path.display())]
    Keytab { path: PathBuf, why: String },
}

/// The user of this host of that name, if there is one. May block for long; an error: it cannot be known now.
pub type Users = dyn Fn(&str) -> io::Result<Option<AuthSys>> + Send + Sync;

/// Tickets for the keys of one keytab.
pub struct Krb5 {
    api: Arc<Api>,
    credential: Handle,
    keytab: PathBuf,
    users: Arc<Users>,
}

impl fmt::Debug for Krb5 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Krb5({})", self.keytab.display())
    }
}

impl Krb5 {
    /// Takes tickets for the keys of `keytab`, which is read anew for each; `library`: another than the loader finds.
    ///
    /// # Errors
    /// There is no library, or no key.
    pub fn open(keytab: &Path, library: Option<&Path>, users: Arc<Users>) -> Result<Self, Krb5Error> {
        let api = Arc::new(Api::load(library.unwrap_or(Path::new(LIBRARY)))?);
        let unusable = |why: String| Krb5Error::Keytab { path: keytab.to_owned(), why };
        let file = CString::new(format!("FILE:{}", keytab.display())).map_err(|e| unusable(e.to_string()))?;
        let elements = [
            Element { key: c"keytab".as_ptr(), value: file.as_ptr() },
            // A ticket that is shown again makes a context that is of no use without its key: there is nothing to remember.
            Element { key: c"rcache".as_ptr(), value: c"none:".as_ptr() },
        ];
        let store = CredentialStore { count: 2, elements: elements.as_ptr() };
        let (mut minor, mut credential) = (0, Handle::none());
        // SAFETY: all pointers are to values that outlive the call; what may be left out is null (MIT's gssapi_ext.h).
        let major = unsafe {
            (api.acquire_cred_from)(
                &mut minor,
                Handle::none(),
                INDEFINITE,
                ptr::null(),
                ACCEPT,
                &store,
                &mut credential,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        if failed(major) {
            return Err(unusable(names::why(&api, major, minor)));
        }
        Ok(Self { api, credential, keytab: keytab.to_owned(), users })
    }

    /// The realm of the keytab's first key, `EXAMPLE.COM`; `None` if the library does not say.
    pub fn realm(&self) -> Option<String> {
        let (mut minor, mut name) = (0, Handle::none());
        // SAFETY: all pointers are to values that outlive the call, and the credential is only read; what may be left out is
        // null (RFC 2744 §5.21).
        let major = unsafe {
            (self.api.inquire_cred)(
                &mut minor,
                self.credential,
                &mut name,
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        let name = names::Name::new(&self.api, name);
        if failed(major) {
            return None;
        }
        let principal = name.principal().ok()?;
        principal.rsplit_once('@').map(|(_, realm)| realm.to_owned()).filter(|realm| !realm.is_empty())
    }

    fn rejected(&self, major: u32, minor: u32, token: Bytes) -> Box<Rejected> {
        let why = names::why(&self.api, major, minor);
        Box::new(Rejected { major, minor, token, why: format!("{why} (keytab {})", self.keytab.display()) })
    }
}

impl Drop for Krb5 {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: the handle is ours, and nobody has it any more.
        unsafe { (self.api.release_cred)(&mut minor, &mut self.credential) };
    }
}

impl Mechanism for Krb5 {
    fn accept(&self, token: &[u8]) -> Result<Accepted, Box<Rejected>> {
        let (mut minor, mut lifetime) = (0, 0);
        let (mut context, mut name, mut mechanism) = (Handle::none(), Handle::none(), ptr::null_mut());
        let (input, mut output) = (Buffer::of(token), Buffer::empty());
        // SAFETY: all pointers are to values that outlive the call; the credential is only read, by any number of threads
        // (MIT's library locks it); what may be left out is null (RFC 2744 §5.1).
        let major = unsafe {
            (self.api.accept_sec_context)(
                &mut minor,
                &mut context,
                self.credential,
                &input,
                ptr::null(),
                &mut name,
                &mut mechanism,
                &mut output,
                ptr::null_mut(),
                &mut lifetime,
                ptr::null_mut(),
            )
        };
        let context = Context::new(Arc::clone(&self.api), context);
        let name = names::Name::new(&self.api, name);
        let token = output.take(&self.api);
        if failed(major) {
            return Err(self.rejected(major, minor, token));
        }
        if major & CONTINUE_NEEDED != 0 {
            let why = "it is the first of several tokens, as Kerberos has none of".to_owned();
            return Err(Box::new(Rejected { major: FAILURE, minor: 0, token, why }));
        }
        let principal =
            name.principal().map_err(|(major, minor)| self.rejected(major, minor, Bytes::new()))?;
        let user = match name.local(mechanism) {
            Some(local) => (self.users)(&local).map_err(|error| {
                let why = format!("the user {local} cannot be looked up: {error}");
                Box::new(Rejected { major: FAILURE, minor: 0, token: Bytes::new(), why })
            })?,
            None => None,
        };
        let lifetime = Duration::from_secs(lifetime.into());
        Ok(Accepted { principal: principal.into(), user, token, context: Box::new(context), lifetime })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(keytab: &Path, library: Option<&Path>) -> String {
        Krb5::open(keytab, library, Arc::new(|_| Ok(None))).unwrap_err().to_string()
    }

    #[test]
    fn without_a_library_it_says_which_package_has_it() {
        let error = open(Path::new("/etc/krb5.keytab"), Some(Path::new("/nowhere/libgssapi_krb5.so.2")));
        assert!(error.contains("libgssapi-krb5-2") && error.contains("/nowhere/"), "{error}");
    }

    #[test]
    fn another_library_is_none() {
        let error = open(Path::new("/etc/krb5.keytab"), Some(Path::new("libc.so.6")));
        assert!(error.starts_with("libc.so.6 is not MIT's GSS-API library: "), "{error}");
    }

    /// A keytab with one key, of no use: nfs/nas.example.com@EXAMPLE.COM (MIT's format 0x0502).
    fn keytab() -> Vec<u8> {
        let counted = |text: &[u8]| [&u16::try_from(text.len()).unwrap().to_be_bytes()[..], text].concat();
        let mut entry = 2_u16.to_be_bytes().to_vec();
        entry.extend([&b"EXAMPLE.COM"[..], b"nfs", b"nas.example.com"].into_iter().flat_map(counted));
        // KRB5_NT_SRV_HST, a time, and the number of the key.
        entry.extend([&3_u32.to_be_bytes()[..], &1_u32.to_be_bytes(), &[1]].concat());
        // aes256-cts-hmac-sha1-96
        entry.extend([&18_u16.to_be_bytes()[..], &counted(&[7; 32])].concat());
        [&[5, 2][..], &u32::try_from(entry.len()).unwrap().to_be_bytes(), &entry].concat()
    }

    #[test]
    fn the_realm_is_that_of_the_keytab() {
        if let Err(error) = Api::load(Path::new(LIBRARY)) {
            eprintln!("NOT RUN: {error}");
            return;
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), keytab()).unwrap();
        let krb5 = Krb5::open(file.path(), None, Arc::new(|_| Ok(None))).unwrap();
        assert_eq!(krb5.realm().as_deref(), Some("EXAMPLE.COM"));
    }

    #[test]
    fn a_keytab_that_is_not_there_is_named() {
        let error = match Api::load(Path::new(LIBRARY)) {
            Ok(_) => open(Path::new("/nowhere/krb5.keytab"), None),
            Err(error) => {
                eprintln!("NOT RUN: {error}");
                return;
            }
        };
        assert!(error.contains("/nowhere/krb5.keytab") && error.contains("nfs/THIS.HOST@REALM"), "{error}");
    }
}
