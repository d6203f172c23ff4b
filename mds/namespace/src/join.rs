//! Reads side by side: on a networked store the latency of several reads is that of one.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

/// Both results, or the first error.
pub(crate) async fn both<A, B, E>(
    a: impl Future<Output = Result<A, E>>,
    b: impl Future<Output = Result<B, E>>,
) -> Result<(A, B), E> {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut got_a, mut got_b) = (None, None);
    poll_fn(move |cx| {
        if got_a.is_none()
            && let Poll::Ready(out) = a.as_mut().poll(cx)
        {
            got_a = Some(out?);
        }
        if got_b.is_none()
            && let Poll::Ready(out) = b.as_mut().poll(cx)
        {
            got_b = Some(out?);
        }
        match (got_a.take(), got_b.take()) {
            (Some(x), Some(y)) => Poll::Ready(Ok((x, y))),
            (x, y) => {
                (got_a, got_b) = (x, y);
                Poll::Pending
            }
        }
    })
    .await
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
