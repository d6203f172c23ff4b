//! The only ambient effects of the servers: time, randomness, tasks, and what the system allows them.
//!
//! `mds`, `ds` and everything below them receive an [`Env`] and never read a clock, draw a random
//! number or spawn a task by any other way (clippy.toml enforces it). A production process uses
//! [`Env::system`]; a simulation uses [`Env::simulated`] inside a paused single-threaded runtime,
//! so that one seed is one world.

mod bulk;
mod clock;
mod memory;
mod process;
mod random;
mod spawn;

use std::sync::Arc;

pub use bulk::{give_back_memory, large_pages_for_data_only};
pub use clock::{Clock, Elapsed, Monotonic, Wall, date};
pub use memory::Allocator;
pub use process::{Descriptors, Process};
pub use random::Random;
pub use spawn::{BoxFuture, Spawn};

/// The effects a server may have besides its sockets and its stores.
#[derive(Clone, Debug)]
pub struct Env {
    pub clock: Arc<dyn Clock>,
    pub random: Arc<dyn Random>,
    pub spawn: Arc<dyn Spawn>,
    pub process: Arc<dyn Process>,
}

impl Env {
    /// Real time, the operating system's randomness, tokio tasks.
    pub fn system() -> Self {
        Self {
            clock: Arc::new(clock::System::new()),
            random: Arc::new(random::System),
            spawn: Arc::new(spawn::Tokio),
            process: Arc::new(process::System),
        }
    }

    /// Virtual time and seeded randomness. Call it inside a `current_thread` runtime whose time is
    /// paused: sleeping then costs nothing, and blocking work runs inline, in program order.
    pub fn simulated(seed: u64) -> Self {
        Self {
            clock: Arc::new(clock::Simulated::new()),
            random: Arc::new(random::Seeded::new(seed)),
            spawn: Arc::new(spawn::Inline),
            process: Arc::new(process::Simulated),
        }
    }
}
