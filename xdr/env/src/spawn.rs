//! Tasks, passed in.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

/// A boxed, sendable future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where a server starts concurrent work.
pub trait Spawn: Debug + Send + Sync {
    /// Runs `task` beside the caller until it ends.
    fn spawn(&self, task: BoxFuture<'static, ()>);
    /// Runs `work`, which may block on a disk, and completes when it is done. In a simulation it
    /// runs at once, on the caller's thread.
    fn blocking(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()>;
    /// The same for what must not stand behind other work, however much of it there is: it has a thread of its own, of this
    /// name.
    fn apart(&self, name: &'static str, work: Box<dyn FnOnce() + Send>) {
        let _ = name;
        drop(self.blocking(work));
    }
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

    fn apart(&self, name: &'static str, work: Box<dyn FnOnce() + Send>) {
        // The work stays here, in case there are no more threads to be had.
        let work = Arc::new(Mutex::new(Some(work)));
        let theirs = Arc::clone(&work);
        let begun = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            if let Some(work) = taken(&theirs) {
                work();
            }
        });
        if begun.is_err()
            && let Some(work) = taken(&work)
        {
            drop(self.blocking(work));
        }
    }
}

fn taken<T>(work: &Mutex<Option<T>>) -> Option<T> {
    work.lock().unwrap_or_else(PoisonError::into_inner).take()
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
