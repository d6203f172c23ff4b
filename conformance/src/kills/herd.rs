//! Workers that change something until they are told to compare, all of them at once, and then go on.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use thiserror::Error;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Of these the patience consists.
const TICK: Duration = Duration::from_secs(1);

/// Somebody waited for longer than a server may take.
#[derive(Debug, Error)]
#[error("a client was not served within {} s, in which this program could run", .0.as_secs())]
pub(crate) struct Late(Duration);

/// One worker's part of the load, and its model.
pub(crate) trait Worker: Send + 'static {
    /// One change, until it is answered.
    fn step(&mut self) -> impl Future<Output = Result<()>> + Send;
    /// Everything promised is there.
    fn compare(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// What workers shall do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Work,
    /// For the n-th time: after the n-th kill.
    Compare(u32),
    End,
}

/// All workers.
#[derive(Debug)]
pub(crate) struct Herd {
    workers: JoinSet<Result<()>>,
    lead: watch::Sender<Phase>,
    done: mpsc::UnboundedSender<()>,
    heard: mpsc::UnboundedReceiver<()>,
    patience: Duration,
    pace: Option<Pace>,
}

/// Every step of any worker waits for its next tick.
type Pace = Arc<Mutex<Interval>>;

impl Herd {
    /// `patience`: within which everybody is served, also after a kill.
    pub(crate) fn new(patience: Duration) -> Self {
        let (done, heard) = mpsc::unbounded_channel();
        let lead = watch::Sender::new(Phase::Work);
        Self { workers: JoinSet::new(), lead, done, heard, patience, pace: None }
    }

    /// Whoever is added takes part in so many steps a second, at most: an even load, whatever else the machine does.
    pub(crate) fn at_most(&mut self, steps_per_second: u32) {
        let mut ticks = interval(Duration::from_secs(1) / steps_per_second.max(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        self.pace = Some(Arc::new(Mutex::new(ticks)));
    }

    /// It begins at once.
    pub(crate) fn add(&mut self, worker: impl Worker) {
        let pace = self.pace.clone();
        self.workers.spawn(work(worker, pace, self.lead.subscribe(), self.done.clone()));
    }

    /// Everybody finishes what is under way, over the kill if need be, and compares.
    ///
    /// # Errors
    /// Of the first worker that fails, or is not served in time.
    pub(crate) async fn compare(&mut self, number: u32) -> Result<()> {
        self.lead.send_replace(Phase::Compare(number));
        for _ in 0..self.workers.len() {
            let (workers, heard) = (&mut self.workers, &mut self.heard);
            let next = async {
                tokio::select! {
                    biased;
                    Some(ended) = workers.join_next() => match ended.context("a worker died")? {
                        Ok(()) => bail!("a worker ended early"),
                        Err(error) => Err(error),
                    },
                    heard = heard.recv() => heard.context("no worker is left"),
                }
            };
            tokio::select! {
                biased;
                next = next => next?,
                () = out_of(self.patience) => bail!(Late(self.patience)),
            }
        }
        Ok(())
    }

    pub(crate) fn go_on(&self) {
        self.lead.send_replace(Phase::Work);
    }

    /// # Errors
    /// Of the first worker that fails.
    pub(crate) async fn end(mut self) -> Result<()> {
        self.lead.send_replace(Phase::End);
        while let Some(ended) = self.workers.join_next().await {
            ended.context("a worker died")??;
        }
        Ok(())
    }
}

/// A machine that lets this program wait lets the servers wait as well: a tick that takes longer is still one tick.
async fn out_of(patience: Duration) {
    let mut left = patience;
    while !left.is_zero() {
        tokio::time::sleep(TICK).await;
        left = left.saturating_sub(TICK);
    }
}

async fn work(
    mut worker: impl Worker,
    pace: Option<Pace>,
    mut phase: watch::Receiver<Phase>,
    done: mpsc::UnboundedSender<()>,
) -> Result<()> {
    loop {
        let now = *phase.borrow_and_update();
        match now {
            Phase::Work => {
                if let Some(pace) = &pace {
                    pace.lock().await.tick().await;
                }
                worker.step().await?;
            }
            Phase::Compare(number) => {
                worker.compare().await.with_context(|| format!("comparison {number}"))?;
                done.send(()).map_err(|_| anyhow!("nobody waits"))?;
                phase.changed().await.map_err(|_| anyhow!("nobody leads"))?;
            }
            Phase::End => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Answered once in so many seconds; a comparison takes as long.
    struct Slow(Duration);

    impl Worker for Slow {
        async fn step(&mut self) -> Result<()> {
            tokio::time::sleep(self.0).await;
            Ok(())
        }

        async fn compare(&mut self) -> Result<()> {
            self.step().await
        }
    }

    struct Counts(Arc<AtomicU32>);

    impl Worker for Counts {
        async fn step(&mut self) -> Result<()> {
            self.0.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(1)).await;
            Ok(())
        }

        async fn compare(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_together_keep_a_pace() {
        let steps = Arc::default();
        let mut herd = Herd::new(Duration::from_secs(60));
        herd.at_most(50);
        for _ in 0..8 {
            herd.add(Counts(Arc::clone(&steps)));
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        let made = steps.load(Ordering::Relaxed);
        assert!((495..=505).contains(&made), "{made}");
        herd.compare(1).await.unwrap();
        herd.end().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_not_served_in_time_is_late() {
        for (seconds, served) in [(25, true), (61, false)] {
            let mut herd = Herd::new(Duration::from_secs(60));
            herd.add(Slow(Duration::from_secs(seconds)));
            let compared = herd.compare(1).await;
            assert_eq!(compared.is_ok(), served, "{compared:?}");
            assert!(served || compared.unwrap_err().is::<Late>());
        }
    }
}
