//! Suites that others wrote, run against Sluice. None of them is part of this tree: whoever runs one says
//! where it lies.

mod expectations;
pub mod fdb;
pub mod guests;
pub mod pynfs;
pub(crate) mod server;
