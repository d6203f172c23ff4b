//! Bytes to types and back, for every protocol Sluice speaks. Pure: no I/O, clock, randomness or tasks.
//!
//! | module | what |
//! | --- | --- |
//! | [`codec`] | the traits [`Encode`] and [`Decode`], primitives (RFC 4506 §4) |
//! | [`reader`] | the decoding cursor: bounded, borrowing |
//! | [`writer`] | the encoder: size-limited, payloads by reference |
//! | [`record`] | record marking on a stream (RFC 5531 §11) |
//! | [`rpc`] | ONC RPC headers and credentials (RFC 5531) |
//! | [`nfs3`] | NFS version 3 (RFC 1813) |
//! | [`nfs4`] | NFSv4.1, 4.2, extended attributes (RFC 8881, 7862, 8276, 9754) |
//! | [`flexfiles`] | the flexible file layout type (RFC 8435) |
//! | [`control`] | our control program |
//! | [`capability`] | the filehandle of a data file |
//! | [`units`] | the stripe units of a range that are in one data file, as orders name them |
//!
//! What is generated from `spec/*.x` says so in its first line; `cargo run -p sluice-xdr-gen` renews it.
//!
//! Wire types keep the spelling of their RFC (`nfsstat4`, `LAYOUTGET4args`), so that a name tells on which
//! side of the wire one is; a Rust keyword gets a trailing underscore (`type_`).

#![warn(clippy::indexing_slicing, clippy::cast_possible_truncation)]

pub mod capability;
pub mod codec;
pub mod control;
pub mod error;
pub mod flexfiles;
pub mod nfs3;
pub mod nfs4;
pub mod reader;
pub mod record;
pub mod rpc;
#[cfg(test)]
#[allow(dead_code, unreachable_pub)]
mod sink;
#[cfg(test)]
mod sink_tests;
pub mod units;
pub mod writer;

pub use capability::{CAPABILITY_SIZE, Capability, CapabilityError, Rights};
pub use codec::{Decode, Encode, UNBOUNDED, from_bytes, to_bytes, to_frame};
pub use error::{DecodeError, EncodeError};
pub use reader::Reader;
pub use record::{RecordDecoder, RecordError};
pub use writer::{Frame, Mark, Patch, Writer};
