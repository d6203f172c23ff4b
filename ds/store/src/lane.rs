//! A queue of blocking work with few threads at once. A thread that is already at work takes the next
//! piece without being woken for it: 4 KiB writes cost a tenth of what they cost with a thread each.
//!
//! Work that needs a file for itself is done one piece after the other, whichever thread does it: threads that meet at
//! the lock of a file spin there, for an eighth of the processor time of large writes. Files take turns. What is written
//! over the same bytes is written in the order in which it came, even where a device would take both at once.
//!
//! Where a piece of work only waits for what the device is doing anyway, a thread for each costs more than the work: two
//! switches and two wake-ups. A patient lane has one thread that waits for them one after the other, and takes more only
//! where that does not get on.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sluice_env::Env;

use crate::FileKey;
use crate::under_way::Span;

/// What a piece of work leaves to be done by the same thread outside of the lane: it waits for the device, and others need
/// not wait for that.
pub(crate) type Rest = Box<dyn FnOnce() + Send>;

type Work = Box<dyn FnOnce() -> Option<Rest> + Send>;

/// What work has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Any,
    /// All work for its file that was queued before, and has it for itself.
    Alone(Span),
    /// All work that was to have the file for itself and was queued before. Beside others of its kind, elsewhere.
    Beside(Span),
}

impl Turn {
    pub(crate) fn span(self) -> Option<Span> {
        match self {
            Self::Any => None,
            Self::Alone(span) | Self::Beside(span) => Some(span),
        }
    }
}

/// A file that there is work for.
#[derive(Default)]
struct Lines {
    /// Ready or being done: one that has it for itself, or any number of those that do not.
    alone: bool,
    beside: Vec<Span>,
    /// What is to be done afterwards.
    waiting: VecDeque<(Turn, Work)>,
}

impl Lines {
    /// Whether it can be done now, whoever waits.
    fn has_room(&self, turn: Turn) -> bool {
        match turn {
            Turn::Any => true,
            Turn::Alone(_) => !self.alone && self.beside.is_empty(),
            Turn::Beside(span) => !self.alone && !self.beside.iter().any(|other| other.meets(span)),
        }
    }

    fn enter(&mut self, turn: Turn) {
        match turn {
            Turn::Any => {}
            Turn::Alone(_) => self.alone = true,
            Turn::Beside(span) => self.beside.push(span),
        }
    }

    fn leave(&mut self, turn: Turn) {
        match turn {
            Turn::Any => {}
            Turn::Alone(_) => self.alone = false,
            Turn::Beside(span) => {
                let place = self.beside.iter().position(|other| *other == span);
                place.map(|place| self.beside.swap_remove(place));
            }
        }
    }

    fn next(&mut self) -> Option<(Turn, Work)> {
        let (turn, _) = self.waiting.front()?;
        if self.has_room(*turn) { self.waiting.pop_front() } else { None }
    }

    fn is_over(&self) -> bool {
        !self.alone && self.beside.is_empty() && self.waiting.is_empty()
    }
}

/// Work that one thread of a patient lane may have before it.
const CROWD: usize = 64;

/// A patient lane with work in its queue that has begun none for so long takes another thread.
const STALL: Duration = Duration::from_millis(2);

#[derive(Default)]
struct Queue {
    /// To be done by whoever comes first.
    ready: VecDeque<(Turn, Work)>,
    /// Files that something ready or being done is for, and what waits for that.
    files: BTreeMap<FileKey, Lines>,
    threads: usize,
    /// Pieces of work begun.
    begun: u64,
    /// Somebody looks whether the lane gets on.
    watched: bool,
}

impl Queue {
    /// False: it waits until what was there before it for its file is done.
    fn push(&mut self, turn: Turn, work: Work) -> bool {
        if let Some(span) = turn.span() {
            let lines = self.files.entry(span.key).or_default();
            if !lines.waiting.is_empty() || !lines.has_room(turn) {
                lines.waiting.push_back((turn, work));
                return false;
            }
            lines.enter(turn);
        }
        self.ready.push_back((turn, work));
        true
    }

    /// What waited for it can be done now. How many pieces are ready besides the one that takes its place.
    fn done(&mut self, turn: Turn) -> usize {
        let Some(span) = turn.span() else { return 0 };
        let Some(lines) = self.files.get_mut(&span.key) else { return 0 };
        let before = self.ready.len();
        lines.leave(turn);
        while let Some((turn, work)) = lines.next() {
            lines.enter(turn);
            self.ready.push_back((turn, work));
        }
        if lines.is_over() {
            self.files.remove(&span.key);
        }
        (self.ready.len() - before).saturating_sub(1)
    }

    /// Places for threads that are to help with so much, up to `most` in all.
    fn helpers(&mut self, more: usize, most: usize) -> usize {
        let helpers = more.min(most.saturating_sub(self.threads));
        self.threads += helpers;
        helpers
    }
}

pub(crate) struct Lane {
    most: usize,
    /// Work that each thread has before another one comes.
    crowd: usize,
    queue: Mutex<Queue>,
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.queue.lock();
        let waiting =
            queue.ready.len() + queue.files.values().map(|lines| lines.waiting.len()).sum::<usize>();
        write!(f, "Lane({waiting} waiting, {} of {} threads)", queue.threads, self.most)
    }
}

/// Gives the thread's place back, and its file, however the thread ends; to another one, if there is anything to do.
struct Place<'a> {
    lane: &'a Arc<Lane>,
    env: &'a Env,
    held: bool,
    /// Of the work that it does.
    turn: Turn,
}

impl Place<'_> {
    /// What it did is done.
    fn done(&mut self, queue: &mut Queue) -> usize {
        queue.done(std::mem::replace(&mut self.turn, Turn::Any))
    }

    fn leave(&mut self) {
        let mut queue = self.lane.queue.lock();
        let more = self.done(&mut queue);
        self.held = false;
        if queue.ready.is_empty() {
            queue.threads -= 1;
        } else {
            let helpers = queue.helpers(more, self.lane.most);
            drop(queue);
            (0..=helpers).for_each(|_| self.lane.start(self.env));
        }
    }

    /// Takes one again, where somebody would have to be woken for it. False: none is needed.
    fn enter(&mut self) -> bool {
        let mut queue = self.lane.queue.lock();
        self.held = !queue.ready.is_empty() && queue.threads < self.lane.most;
        queue.threads += usize::from(self.held);
        self.held
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.held {
            self.leave();
        }
    }
}

impl Lane {
    /// A thread for each piece of work, up to `most`.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Self::with(most, 0)
    }

    /// One thread, while it gets on; up to `most` where it does not.
    pub(crate) fn patient(most: usize) -> Arc<Self> {
        Self::with(most, CROWD)
    }

    fn with(most: usize, crowd: usize) -> Arc<Self> {
        Arc::new(Self { most: most.max(1), crowd, queue: Mutex::default() })
    }

    /// Queues `work`, which may block.
    pub(crate) fn run(self: &Arc<Self>, env: &Env, turn: Turn, work: impl FnOnce() + Send + 'static) {
        self.begin(env, turn, move || {
            work();
            None
        });
    }

    /// The same with something that is left to be done.
    pub(crate) fn begin(
        self: &Arc<Self>,
        env: &Env,
        turn: Turn,
        work: impl FnOnce() -> Option<Rest> + Send + 'static,
    ) {
        let work = Box::new(work);
        let mut queue = self.queue.lock();
        if !queue.push(turn, work) || queue.threads >= self.most {
            return;
        }
        if queue.threads > 0 && queue.ready.len() <= self.crowd * queue.threads {
            let watched = std::mem::replace(&mut queue.watched, true);
            drop(queue);
            if !watched {
                env.spawn.spawn(Box::pin(Arc::clone(self).watch(env.clone())));
            }
            return;
        }
        queue.threads += 1;
        drop(queue);
        self.start(env);
    }

    /// Does `work` on the calling thread, which may block, or leaves it to those that are at work, if there are as many as may be.
    pub(crate) fn here(self: &Arc<Self>, env: &Env, work: Rest) {
        let mut queue = self.queue.lock();
        queue.push(
            Turn::Any,
            Box::new(move || {
                work();
                None
            }),
        );
        if queue.threads < self.most {
            queue.threads += 1;
            drop(queue);
            self.drain(env);
        }
    }

    /// Whether anything is being done, at this moment.
    pub(crate) fn is_at_work(&self) -> bool {
        self.queue.lock().threads > 0
    }

    fn start(self: &Arc<Self>, env: &Env) {
        let (lane, env2) = (Arc::clone(self), env.clone());
        // Not awaited: the work reports for itself.
        drop(env.spawn.blocking(Box::new(move || lane.drain(&env2))));
    }

    /// Until nothing is queued: what all threads wait for may take long, and what stands behind it need not.
    async fn watch(self: Arc<Self>, env: Env) {
        let mut seen = None;
        loop {
            {
                let mut queue = self.queue.lock();
                if queue.ready.is_empty() {
                    queue.watched = false;
                    return;
                }
                let stands = seen.replace(queue.begun) == Some(queue.begun);
                if stands && queue.threads < self.most {
                    queue.threads += 1;
                    drop(queue);
                    self.start(&env);
                }
            }
            env.clock.sleep(STALL).await;
        }
    }

    fn drain(self: &Arc<Self>, env: &Env) {
        let mut place = Place { lane: self, env, held: true, turn: Turn::Any };
        loop {
            let (work, helpers) = {
                let mut queue = self.queue.lock();
                let more = place.done(&mut queue);
                let helpers = queue.helpers(more, self.most);
                let Some((turn, work)) = queue.ready.pop_front() else {
                    // Under the same lock as the look at the queue: whoever queues next sees it.
                    queue.threads -= 1;
                    place.held = false;
                    return;
                };
                place.turn = turn;
                queue.begun += 1;
                (work, helpers)
            };
            (0..helpers).for_each(|_| self.start(env));
            if let Some(rest) = work() {
                place.leave();
                rest();
                if !place.enter() {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

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
                Turn::Any,
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
            env.clock.sleep(Duration::from_millis(1)).await;
        }
        assert!((1..=3).contains(&most.load(Ordering::SeqCst)));
        assert_eq!(lane.queue.lock().threads, 0);
    }

    fn span(file: u64, from: u64) -> Span {
        Span::new(FileKey { file, slot: 0 }, from, 100)
    }

    async fn until(env: &Env, reached: impl Fn() -> bool) {
        for _ in 0..10_000 {
            if reached() {
                return;
            }
            env.clock.sleep(Duration::from_millis(1)).await;
        }
        panic!("it never comes to that");
    }

    /// One thread where it gets on; where it does not, others take what stands behind it.
    #[tokio::test]
    async fn a_patient_lane_takes_more_threads_only_where_one_does_not_get_on() {
        let (env, lane) = (Env::system(), Lane::patient(4));
        let done = Arc::new(AtomicUsize::new(0));
        let count = |lane: &Arc<Lane>| {
            let done = Arc::clone(&done);
            let work = move || {
                done.fetch_add(1, Ordering::SeqCst);
            };
            lane.run(&env, Turn::Any, Box::new(work));
        };
        let (open, gate) = channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let stuck = || {
            let gate = Arc::clone(&gate);
            // Until the other end is gone.
            lane.run(&env, Turn::Any, Box::new(move || _ = gate.lock().recv()));
        };
        stuck();
        // The thread may not have begun with the first one yet.
        let few = CROWD - 1;
        (0..few).for_each(|_| count(&lane));
        assert_eq!(lane.queue.lock().threads, 1);
        // Nobody queues anything more, and yet it goes on.
        until(&env, || done.load(Ordering::SeqCst) == few).await;
        // One that is stuck is not the last one.
        (0..2).for_each(|_| stuck());
        (0..10).for_each(|_| count(&lane));
        until(&env, || done.load(Ordering::SeqCst) == few + 10).await;
        // Not for ever.
        (0..3).for_each(|_| stuck());
        (0..5 * CROWD).for_each(|_| count(&lane));
        until(&env, || lane.queue.lock().threads == 4).await;
        env.clock.sleep(4 * STALL).await;
        assert_eq!((lane.queue.lock().threads, done.load(Ordering::SeqCst)), (4, few + 10));
        drop(open);
        until(&env, || done.load(Ordering::SeqCst) == few + 10 + 5 * CROWD).await;
        let over = |queue: &Queue| !queue.watched && queue.threads == 0;
        until(&env, || over(&lane.queue.lock())).await;
    }

    /// Neither the lane nor the file waits for it; and the thread goes on with what it finds afterwards.
    #[tokio::test]
    async fn what_is_left_to_be_done_holds_nobody_up() {
        let (env, lane) = (Env::system(), Lane::new(1));
        let done = Arc::new(AtomicUsize::new(0));
        let (open, gate) = channel::<()>();
        let file = span(1, 0);
        let counting = Arc::clone(&done);
        lane.begin(&env, Turn::Alone(file), move || {
            let rest = move || {
                // Until the other end is gone.
                _ = gate.recv();
                counting.fetch_add(100, Ordering::SeqCst);
            };
            Some(Box::new(rest))
        });
        // Queued before it begins, and after.
        for all in [2, 4] {
            for turn in [Turn::Alone(file), Turn::Any] {
                let done = Arc::clone(&done);
                lane.run(&env, turn, move || _ = done.fetch_add(1, Ordering::SeqCst));
            }
            until(&env, || done.load(Ordering::SeqCst) == all).await;
        }
        drop(open);
        until(&env, || done.load(Ordering::SeqCst) == 104).await;
        let over = |queue: &Queue| queue.files.is_empty() && queue.threads == 0;
        until(&env, || over(&lane.queue.lock())).await;
    }

    #[tokio::test]
    async fn a_crowd_takes_another_thread_at_once() {
        let (env, lane) = (Env::system(), Lane::patient(3));
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock();
        for threads in [1, 2, 3, 3] {
            // One that runs and a crowd behind it.
            for _ in 0..=CROWD {
                let gate = Arc::clone(&gate);
                lane.run(&env, Turn::Any, Box::new(move || drop(gate.lock())));
            }
            assert!(lane.queue.lock().threads >= threads, "{lane:?}");
        }
        drop(closed);
    }

    /// Work of one file is done in order and one at a time, beside that of others, and a piece that fails does not stand in
    /// the way of the next.
    #[tokio::test]
    async fn a_file_has_one_at_a_time() {
        for threads in [1, 2] {
            one_at_a_time(threads).await;
        }
    }

    async fn one_at_a_time(threads: usize) {
        let (env, lane) = (Env::system(), Lane::new(threads));
        let busy: Arc<[AtomicUsize; 5]> = Arc::default();
        let order: Arc<Mutex<Vec<(u64, usize)>>> = Arc::default();
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock();
        for i in 0..400 {
            // The first of them has half of all work.
            let file = if i % 2 == 0 { 0 } else { 1 + i as u64 % 4 };
            let (busy, order, gate) = (Arc::clone(&busy), Arc::clone(&order), Arc::clone(&gate));
            let work = move || {
                assert_eq!(busy[file as usize].fetch_add(1, Ordering::SeqCst), 0, "alone");
                drop(gate.lock());
                order.lock().push((file, i));
                busy[file as usize].fetch_sub(1, Ordering::SeqCst);
                assert!(i != 100, "as asked");
            };
            lane.run(&env, Turn::Alone(span(file, 0)), Box::new(work));
        }
        drop(closed);
        while order.lock().len() < 400 {
            // A thread that failed left its place: the next work finds it free.
            lane.run(&env, Turn::Any, Box::new(|| ()));
            env.clock.sleep(Duration::from_millis(1)).await;
        }
        let order = order.lock();
        for file in 0..5 {
            let of: Vec<usize> = order.iter().filter(|done| done.0 == file).map(|done| done.1).collect();
            assert!(of.is_sorted(), "{of:?}");
        }
        assert!(lane.queue.lock().files.is_empty());
    }

    /// What is there already, with nobody who queues anything after it.
    #[tokio::test]
    async fn a_thread_that_fails_leaves_nothing_lying() {
        let (env, lane) = (Env::system(), Lane::new(1));
        let done = Arc::new(AtomicUsize::new(0));
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock();
        for i in 0..20 {
            let (done, gate) = (Arc::clone(&done), Arc::clone(&gate));
            let turn = if i % 2 == 0 { Turn::Alone(span(1, 0)) } else { Turn::Any };
            lane.run(&env, turn, move || {
                drop(gate.lock());
                done.fetch_add(1, Ordering::SeqCst);
                assert!(i % 5 != 0, "as asked");
            });
        }
        drop(closed);
        until(&env, || done.load(Ordering::SeqCst) == 20).await;
        until(&env, || lane.queue.lock().threads == 0).await;
        assert!(lane.queue.lock().files.is_empty());
    }

    /// What need not be alone is done beside others of its kind, behind what was alone before it.
    #[tokio::test]
    async fn several_share_a_file_behind_one_that_was_alone() {
        let (env, lane) = (Env::system(), Lane::new(4));
        let (open, gate) = channel::<()>();
        let (all, done) = (Arc::new(std::sync::Barrier::new(3)), Arc::new(AtomicUsize::new(0)));
        // Until the other end is gone.
        lane.run(&env, Turn::Alone(span(1, 0)), move || _ = gate.recv());
        for i in 0..3 {
            let (all, done) = (Arc::clone(&all), Arc::clone(&done));
            lane.run(&env, Turn::Beside(span(1, i * 100)), move || {
                done.fetch_add(1, Ordering::SeqCst);
                all.wait();
            });
        }
        env.clock.sleep(Duration::from_millis(20)).await;
        assert_eq!(done.load(Ordering::SeqCst), 0);
        drop(open);
        // Each waits for the others.
        until(&env, || done.load(Ordering::SeqCst) == 3).await;
        let over = |queue: &Queue| queue.files.is_empty() && queue.threads == 0;
        until(&env, || over(&lane.queue.lock())).await;
    }

    /// What was sent again waits for its older copy, however long a device takes for that.
    #[tokio::test]
    async fn what_is_written_over_the_same_bytes_is_written_in_order() {
        let (env, lane) = (Env::system(), Lane::new(4));
        let order: Arc<Mutex<Vec<&str>>> = Arc::default();
        let (open, gate) = channel::<()>();
        let first = Arc::clone(&order);
        lane.run(&env, Turn::Beside(span(1, 0)), move || {
            _ = gate.recv();
            first.lock().push("older");
        });
        let add = |turn, what| {
            let order = Arc::clone(&order);
            lane.run(&env, turn, move || order.lock().push(what));
        };
        add(Turn::Beside(span(1, 100)), "elsewhere");
        add(Turn::Beside(span(2, 0)), "another file");
        until(&env, || order.lock().len() == 2).await;
        add(Turn::Beside(span(1, 99)), "same bytes");
        add(Turn::Alone(span(1, 500)), "alone");
        add(Turn::Beside(span(1, 500)), "same as that");
        env.clock.sleep(Duration::from_millis(20)).await;
        assert_eq!(order.lock().len(), 2);
        drop(open);
        until(&env, || order.lock().len() == 6).await;
        assert_eq!(order.lock()[2..], ["older", "same bytes", "alone", "same as that"]);
        until(&env, || lane.queue.lock().files.is_empty()).await;
    }

    /// Without threads, which the system may let rest for as long as the others take for everything.
    #[test]
    fn a_file_with_much_to_do_gets_turns_as_others_do() {
        for threads in [1, 2, 3] {
            let mut queue = Queue::default();
            for i in 0..400u64 {
                let file = if i % 2 == 0 { 0 } else { 1 + i % 4 };
                queue.push(Turn::Alone(span(file, 0)), Box::new(|| None));
            }
            let (mut doing, mut order) = (VecDeque::new(), Vec::new());
            while order.len() < 400 {
                while doing.len() < threads
                    && let Some((turn, _)) = queue.ready.pop_front()
                {
                    order.push(turn.span().unwrap().key.file);
                    doing.push_back(turn);
                }
                queue.done(doing.pop_front().unwrap());
            }
            let first = &order[..300];
            assert!(first.iter().filter(|file| **file == 0).count() < 120, "turns, {threads} at once");
        }
    }
}
