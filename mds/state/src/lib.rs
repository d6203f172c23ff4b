//! Protocol state of an NFSv4.1/4.2 server, sans-IO: RFC 8881 §2.4, §2.10, §8, §9, §10, §12.5.
//!
//! Synchronous functions of (state, now, request) to (reply, effects): no clock, no randomness, no
//! tasks, no wire types. Client, Session and File are separate machines, so that the caller can shard
//! and lock them apart; one step touches one of them.

pub mod client;
pub mod delegation;
pub mod effect;
mod few;
pub mod file;
pub mod grace;
pub mod ids;
pub mod layout;
pub mod lease;
pub mod lock;
pub mod open;
pub mod owner;
pub mod pressure;
pub mod range_set;
pub mod recovery;
pub mod session;
pub mod slot;
pub mod stateid;
pub mod times;

pub use ids::{BootEpoch, ClientId, ConnectionId, SessionId, StateId, StateKind, Time, Verifier};
