//! The contexts of a server, of which there is a bounded number.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use sluice_env::{Env, Monotonic};

use super::SecurityContext;
use super::window::Window;
use crate::credential::AuthSys;

/// One principal has no more than so many parts of them: a user has one on each host that he is at, for each mount. Who shows one ticket
/// again and again, his own or one that he overheard, takes the places of that principal, and no others.
const PARTS: usize = 8;
/// Of all that there may be so many parts go when there is no room.
const GO: usize = 16;
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
struct Known {
    by_handle: HashMap<u64, Arc<Context>>,
    /// How many each principal has.
    counts: HashMap<Arc<str>, usize>,
    swept: Option<Monotonic>,
}

#[derive(Debug)]
pub(super) struct Contexts {
    known: RwLock<Known>,
    most: usize,
}

impl Contexts {
    pub(super) fn new(most: usize) -> Self {
        Self { known: RwLock::default(), most: most.max(GO) }
    }

    pub(super) fn len(&self) -> usize {
        self.known.read().by_handle.len()
    }

    /// The one of this handle, if it is not over.
    pub(super) fn get(&self, handle: u64, now: Monotonic) -> Option<Arc<Context>> {
        let context =
            self.known.read().by_handle.get(&handle).filter(|context| now < context.ends).cloned()?;
        context.used.store(now.0, Ordering::Relaxed);
        Some(context)
    }

    pub(super) fn remove(&self, handle: u64) {
        drop(self.known.write().remove(handle));
    }

    /// Remembers it under a handle of its own, which those of an earlier start are not. With those that made room for it, for the caller
    /// to drop.
    pub(super) fn keep(&self, env: &Env, context: Context) -> (u64, Vec<Arc<Context>>) {
        let now = env.clock.now();
        let mut known = self.known.write();
        let mut gone = Vec::new();
        if known.swept.is_none_or(|swept| now.since(swept) >= SWEEP) {
            known.swept = Some(now);
            gone.extend(known.take_out(|context| now >= context.ends));
        }
        let mine = known.counts.get(&context.principal).copied().unwrap_or(0);
        if mine >= self.most / PARTS {
            gone.extend(known.take_oldest(|other| other.principal == context.principal));
        } else if known.by_handle.len() >= self.most {
            gone.extend(known.take_oldest(|_| true));
        }
        *known.counts.entry(Arc::clone(&context.principal)).or_default() += 1;
        let context = Arc::new(context);
        loop {
            let handle = env.random.u64();
            if let Entry::Vacant(place) = known.by_handle.entry(handle) {
                place.insert(context);
                return (handle, gone);
            }
        }
    }
}

impl Known {
    fn remove(&mut self, handle: u64) -> Option<Arc<Context>> {
        let context = self.by_handle.remove(&handle)?;
        if let Entry::Occupied(mut count) = self.counts.entry(Arc::clone(&context.principal)) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some(context)
    }

    fn take_out(&mut self, goes: impl Fn(&Context) -> bool) -> Vec<Arc<Context>> {
        let going = self.by_handle.iter().filter(|(_, context)| goes(context)).map(|(handle, _)| *handle);
        let going: Vec<u64> = going.collect();
        going.into_iter().filter_map(|handle| self.remove(handle)).collect()
    }

    /// Of those meant a part, which nobody has used for longest.
    fn take_oldest(&mut self, meant: impl Fn(&Context) -> bool) -> Vec<Arc<Context>> {
        let used = |context: &Context| context.used.load(Ordering::Relaxed);
        let all = self.by_handle.iter().filter(|(_, context)| meant(context));
        let mut all: Vec<(u64, u64)> = all.map(|(handle, context)| (used(context), *handle)).collect();
        let part = (all.len() / GO).max(1).min(all.len());
        if part < all.len() {
            all.select_nth_unstable(part);
        }
        all.into_iter().take(part).filter_map(|(_, handle)| self.remove(handle)).collect()
    }
}
