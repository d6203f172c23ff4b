//! Waiting without an executor.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks this thread until `answer` is there. The library's own thread wakes it.
pub(crate) fn here<F: Future + Unpin>(mut answer: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = Pin::new(&mut answer).poll(&mut context) {
            return output;
        }
        // Woken early or for nothing, it asks again.
        thread::park();
    }
}
