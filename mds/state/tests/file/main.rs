//! The state of one file, driven through its interface.

// Everything here is a test, helpers included.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod broken;
mod delegation;
mod interleave;
mod layout;
mod lock;
mod open;
mod random;
mod recall;
mod stateid;
mod ticket;
mod world;
