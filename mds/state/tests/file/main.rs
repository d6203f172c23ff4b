//! The state of one file, driven through its interface.

mod delegation;
mod interleave;
mod layout;
mod lock;
mod open;
mod random;
mod stateid;
mod ticket;
mod world;
