//! FoundationDB's C API (version 730), forwarded to a client library that is loaded at run time
//! ([ADR 0011](../../../../docs/adr/0011-foundationdb-at-run-time.md)).
//!
//! The crate `foundationdb` is built on this one. Nothing here is linked: building needs neither the client library nor its
//! headers, and a binary starts where the library is not installed. Before anything else is called, [`load`] must
//! have succeeded; an entry point called without it fails as its own documentation lets it fail (an error code, a
//! null future) and never jumps to an address that is not there.
//!
//! Declared from the documentation of the C API; what `foundationdb` does not call is left out. The names are C's.
#![allow(unsafe_code, reason = "this crate is the border to C; every use has its proof")]
#![allow(
    non_snake_case,
    non_camel_case_types,
    non_upper_case_globals,
    reason = "the names are those of the C API"
)]

mod entry;
mod library;
mod numbers;
mod types;

pub use entry::*;
pub use library::{LoadError, load, loaded_from, run_network_forever, stop_at_exit, stop_network};
pub use numbers::*;
pub use types::*;

/// The version of the C API that is declared here.
pub const FDB_API_VERSION: u32 = 730;

/// Code for some versions of the C API only; there is one version here. Every bound that `foundationdb` asks for
/// has its rule, so that a new one is a compile error and not a wrong guess.
#[macro_export]
macro_rules! if_cfg_api_versions {
    (min = 510, max = 600 => { $($old:tt)* } else { $($new:tt)* }) => { { $($new)* } };
    (min = 510, max = 600 => $($old:tt)*) => {};
    (min = 620 => { $($new:tt)* } else { $($old:tt)* }) => { { $($new)* } };
    (min = 700 => $($new:tt)*) => { $($new)* };
    (min = 710 => $($new:tt)*) => { $($new)* };
}
