//! The contexts of a server, of which there is a bounded number.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use sluice_env::{Env, Monotonic};

use super::SecurityContext;
use super::window::Window;
use crate::credential::AuthSys;

/// A host has one for each of its users, and one of its own; each takes a few KiB. Those not used for longest make room.
const MOST: usize = 1 << 16;
/// How many of them go then.
const GO: usize = MOST / 16;
/// Between two looks for those that are over.
const SWEEP: Duration = Duration::from_secs(60);

/// A caller, and the key shared with him.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) principal: Arc<str>,
    pub(super) user: Option<AuthSys>,
    pub(super) key: Mutex<Box<dyn SecurityContext>>,
    pub(super) window: Mutex<Window>,
    ends: Monotonic,
    used: AtomicU64,
}

impl Context {
    pub(super) fn new(
        principal: Arc<str>,
        user: Option<AuthSys>,
        key: Box<dyn SecurityContext>,
        ends: Monotonic,
        now: Monotonic,
    ) -> Self {
        let (key, window) = (Mutex::new(key), Mutex::default());
        Self { principal, user, key, window, ends, used: now.0.into() }
    }
}

#[derive(Debug, Default)]
pub(super) struct Contexts {
    all: RwLock<std::collections::HashMap<u64, Arc<Context>>>,
    swept: Mutex<Option<Monotonic>>,
}

impl Contexts {
    pub(super) fn len(&self) -> usize {
        self.all.read().len()
    }

    /// The one of this handle, if it is not over.
    pub(super) fn get(&self, handle: u64, now: Monotonic) -> Option<Arc<Context>> {
        let context = self.all.read().get(&handle).filter(|context| now < context.ends).cloned()?;
        context.used.store(now.0, Ordering::Relaxed);
        Some(context)
    }

    pub(super) fn remove(&self, handle: u64) {
        self.all.write().remove(&handle);
    }

    /// Remembers it under a handle of its own, which those of an earlier start are not.
    pub(super) fn keep(&self, env: &Env, context: Context) -> u64 {
        let now = env.clock.now();
        let due = {
            let mut swept = self.swept.lock();
            let due = swept.is_none_or(|swept| now.since(swept) >= SWEEP);
            *swept = if due { Some(now) } else { *swept };
            due
        };
        let mut all = self.all.write();
        if due {
            all.retain(|_, context| now < context.ends);
        }
        if all.len() >= MOST {
            let mut used: Vec<u64> =
                all.values().map(|context| context.used.load(Ordering::Relaxed)).collect();
            let (_, last, _) = used.select_nth_unstable(GO);
            let last = *last;
            all.retain(|_, context| context.used.load(Ordering::Relaxed) > last);
        }
        loop {
            let handle = env.random.u64();
            if let std::collections::hash_map::Entry::Vacant(place) = all.entry(handle) {
                place.insert(Arc::new(context));
                return handle;
            }
        }
    }
}
