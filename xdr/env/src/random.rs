//! Randomness, passed in.

use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};

use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

/// Where a server draws randomness: verifiers, keys, hash seeds, jitter.
pub trait Random: Debug + Send + Sync {
    fn fill(&self, bytes: &mut [u8]);
}

impl dyn Random {
    pub fn u64(&self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    pub fn array<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.fill(&mut bytes);
        bytes
    }
}

#[derive(Debug)]
pub(crate) struct System;

impl Random for System {
    #[allow(clippy::disallowed_methods, reason = "this is the source of randomness")]
    #[allow(clippy::expect_used, reason = "a machine without randomness cannot serve securely")]
    fn fill(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the operating system gives randomness");
    }
}

#[derive(Debug)]
pub(crate) struct Seeded(Mutex<ChaCha12Rng>);

impl Seeded {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Mutex::new(ChaCha12Rng::seed_from_u64(seed)))
    }
}

impl Random for Seeded {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fill_bytes(bytes);
    }
}
