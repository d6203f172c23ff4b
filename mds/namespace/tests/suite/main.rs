//! The namespace on a store in memory, through its public interface.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "a test may panic")]
#![allow(clippy::print_stdout, reason = "a measurement prints its table")]

mod checker;
mod classes;
mod common;
mod concurrent;
mod data;
mod heal;
mod inline;
mod mirrors;
mod model;
mod numbers;
mod operations;
mod permissions;
mod quota;
mod rates;
mod readdir;
mod tables;
mod transfer;
