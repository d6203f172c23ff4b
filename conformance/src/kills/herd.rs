//! Workers that change something until they are told to compare, all of them at once, and then go on.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

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
}

impl Herd {
    /// `patience`: within which everybody is served, also after a kill.
    pub(crate) fn new(patience: Duration) -> Self {
        let (done, heard) = mpsc::unbounded_channel();
        Self { workers: JoinSet::new(), lead: watch::Sender::new(Phase::Work), done, heard, patience }
    }

    /// It begins at once.
    pub(crate) fn add(&mut self, worker: impl Worker) {
        self.workers.spawn(work(worker, self.lead.subscribe(), self.done.clone()));
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
    mut phase: watch::Receiver<Phase>,
    done: mpsc::UnboundedSender<()>,
) -> Result<()> {
    loop {
        let now = *phase.borrow_and_update();
        match now {
            Phase::Work => worker.step().await?,
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
