//! Workers that repeat an operation: rates and latencies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::task::JoinSet;

/// What a run of all workers did.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) elapsed: Duration,
    /// How long each operation took.
    pub(super) operations: Vec<Duration>,
}

impl Run {
    /// Operations per second.
    pub(super) fn rate(&self) -> f64 {
        self.operations.len() as f64 / self.elapsed.as_secs_f64()
    }
}

/// Until when workers go on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Until {
    Elapsed(Duration),
    /// So many operations of all workers together.
    Done(u64),
}

/// Every worker repeats its operation, one at a time, with the next number that no worker has had.
/// Operations say `false` when there is nothing left to do. The workers come back, in any order.
pub(super) async fn run<W, F>(workers: Vec<W>, until: Until, operation: F) -> Result<(Run, Vec<W>)>
where
    W: Send + 'static,
    F: AsyncOperation<W>,
{
    let operation = Arc::new(operation);
    let next = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for mut worker in workers {
        let (operation, next) = (Arc::clone(&operation), Arc::clone(&next));
        tasks.spawn(async move {
            let mut done = Vec::new();
            loop {
                let started = began.elapsed();
                let number = next.fetch_add(1, Ordering::Relaxed);
                let over = match until {
                    Until::Elapsed(limit) => started >= limit,
                    Until::Done(count) => number >= count,
                };
                if over || !operation.once(&mut worker, number).await? {
                    return anyhow::Ok((worker, done));
                }
                done.push(began.elapsed() - started);
            }
        });
    }
    let (mut operations, mut workers) = (Vec::new(), Vec::new());
    while let Some(done) = tasks.join_next().await {
        let (worker, done) = done.context("a worker died")??;
        workers.push(worker);
        operations.extend(done);
    }
    let elapsed = began.elapsed();
    Ok((Run { elapsed, operations }, workers))
}

/// One operation of a load.
pub(super) trait AsyncOperation<W>: Send + Sync + 'static {
    /// `false`: nothing is left to do.
    fn once(&self, worker: &mut W, number: u64) -> impl Future<Output = Result<bool>> + Send;
}

/// Median and 99th percentile of all operations of `runs`, in microseconds.
pub(super) fn latency<'a>(runs: impl IntoIterator<Item = &'a Run>) -> (f64, f64) {
    let mut all: Vec<Duration> = runs.into_iter().flat_map(|run| run.operations.iter().copied()).collect();
    all.sort_unstable();
    let at = |percent: usize| {
        let index = (all.len() * percent / 100).min(all.len().saturating_sub(1));
        all.get(index).map_or(f64::NAN, |took| took.as_secs_f64() * 1e6)
    };
    (at(50), at(99))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Count(AtomicU64);

    impl AsyncOperation<u64> for Count {
        async fn once(&self, worker: &mut u64, number: u64) -> Result<bool> {
            self.0.fetch_add(number, Ordering::Relaxed);
            *worker += 1;
            tokio::task::yield_now().await;
            Ok(true)
        }
    }

    #[tokio::test]
    async fn every_number_is_done_once() {
        let count = Count(AtomicU64::new(0));
        let (run, workers) = run(vec![0; 7], Until::Done(100), count).await.unwrap();
        assert_eq!((workers.len(), workers.iter().sum::<u64>()), (7, 100));
        assert_eq!(run.operations.len(), 100);
        assert!(run.operations.iter().all(|took| *took <= run.elapsed));
    }
}
