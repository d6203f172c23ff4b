//! Reads side by side: on a networked store the latency of several reads is that of one.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

/// Both results, or the first error. No `async fn`: that would hold each of them twice, as an argument and pinned, and
/// futures are copied and kept by the thousand while their transactions wait for the disk.
pub(crate) fn both<FA, FB, A, B, E>(a: FA, b: FB) -> Both<FA, FB, A, B>
where
    FA: Future<Output = Result<A, E>>,
    FB: Future<Output = Result<B, E>>,
{
    Both { a, b, got_a: None, got_b: None }
}

pin_project! {
    /// See [`both`].
    #[must_use = "futures do nothing unless polled"]
    pub(crate) struct Both<FA, FB, A, B> {
        #[pin]
        a: FA,
        #[pin]
        b: FB,
        got_a: Option<A>,
        got_b: Option<B>,
    }
}

impl<FA, FB, A, B, E> Future for Both<FA, FB, A, B>
where
    FA: Future<Output = Result<A, E>>,
    FB: Future<Output = Result<B, E>>,
{
    type Output = Result<(A, B), E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if this.got_a.is_none()
            && let Poll::Ready(out) = this.a.poll(cx)
        {
            *this.got_a = Some(out?);
        }
        if this.got_b.is_none()
            && let Poll::Ready(out) = this.b.poll(cx)
        {
            *this.got_b = Some(out?);
        }
        match (this.got_a.take(), this.got_b.take()) {
            (Some(a), Some(b)) => Poll::Ready(Ok((a, b))),
            (a, b) => {
                (*this.got_a, *this.got_b) = (a, b);
                Poll::Pending
            }
        }
    }
}

/// Every result in order, or an error.
pub(crate) async fn all<T, E>(
    futures: impl IntoIterator<Item = impl Future<Output = Result<T, E>> + Send>,
) -> Result<Vec<T>, E> {
    let mut waiting: Vec<Option<Pin<Box<_>>>> = futures.into_iter().map(|f| Some(Box::pin(f))).collect();
    let mut done: Vec<Option<T>> = waiting.iter().map(|_| None).collect();
    poll_fn(|cx| {
        let mut pending = false;
        for (slot, out) in waiting.iter_mut().zip(done.iter_mut()) {
            let Some(future) = slot else { continue };
            match future.as_mut().poll(cx) {
                Poll::Ready(Ok(value)) => (*slot, *out) = (None, Some(value)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => pending = true,
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(Ok(())) }
    })
    .await?;
    Ok(done.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn results_come_in_order_and_errors_at_once() {
        let later = async {
            tokio::task::yield_now().await;
            Ok::<_, ()>(1)
        };
        assert_eq!(both(later, async { Ok(2) }).await, Ok((1, 2)));
        assert_eq!(both(std::future::pending::<Result<(), u8>>(), async { Err::<(), _>(7) }).await, Err(7));
        let many = (0..5).map(|n| async move {
            for _ in n..5 {
                tokio::task::yield_now().await;
            }
            Ok::<_, ()>(n)
        });
        assert_eq!(all(many).await, Ok(vec![0, 1, 2, 3, 4]));
    }
}
