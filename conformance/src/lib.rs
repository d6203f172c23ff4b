//! What proves Sluice: the checks of the tree, stock kernels as clients, protocol suites, the
//! simulation, benchmarks. Nothing of the product imports this crate.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line harness: it measures real time and talks to a terminal"
)]

#[cfg(feature = "bench-mds")]
pub mod allocations;
pub mod bench;
pub mod check;
pub mod client;
pub mod external;
pub mod guest;
pub mod hosts;
pub mod kills;
pub mod soak;
pub mod suite;
