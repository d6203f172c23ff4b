//! Tasks, passed in.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

/// A boxed, sendable future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where a server starts concurrent work.
pub trait Spawn: Debug + Send + Sync {
    /// Runs `task` beside the caller until it ends.
    fn spawn(&self, task: BoxFuture<'static, ()>);
    /// Runs `work`, which may block on a disk, and completes when it is done. In a simulation it
    /// runs at once, on the caller's thread.
    fn blocking(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()>;
}

#[derive(Debug)]
pub(crate) struct Tokio;

impl Spawn for Tokio {
    #[allow(clippy::disallowed_methods, reason = "this is where tasks are spawned")]
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        drop(tokio::spawn(task));
    }

    fn blocking(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        let handle = tokio::task::spawn_blocking(work);
        Box::pin(async move {
            if let Err(error) = handle.await
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic());
            }
        })
    }
}

#[derive(Debug)]
pub(crate) struct Inline;

impl Spawn for Inline {
    #[allow(clippy::disallowed_methods, reason = "this is where tasks are spawned")]
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        drop(tokio::spawn(task));
    }

    fn blocking(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        work();
        Box::pin(std::future::ready(()))
    }
}
