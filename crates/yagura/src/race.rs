//! [`first_of`]: two futures of which the first to end counts; [`both`]: two that are to succeed.

use std::pin::pin;
use std::task::Poll;

/// Which one ended.
pub enum First<A, B> {
    /// The first.
    A(A),
    /// The second.
    B(B),
}

/// Runs both until one ends; the other is dropped. If both can end, the first does.
pub async fn first_of<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> First<A, B> {
    let (mut a, mut b) = (pin!(a), pin!(b));
    std::future::poll_fn(|context| {
        if let Poll::Ready(ended) = a.as_mut().poll(context) {
            return Poll::Ready(First::A(ended));
        }
        b.as_mut().poll(context).map(First::B)
    })
    .await
}

/// Runs both until both have succeeded, or one fails; the other is dropped then.
pub async fn both<A, B, E>(
    a: impl Future<Output = Result<A, E>>,
    b: impl Future<Output = Result<B, E>>,
) -> Result<(A, B), E> {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut of_a, mut of_b) = (None, None);
    std::future::poll_fn(|context| {
        if of_a.is_none()
            && let Poll::Ready(ended) = a.as_mut().poll(context)
        {
            of_a = Some(ended?);
        }
        if of_b.is_none()
            && let Poll::Ready(ended) = b.as_mut().poll(context)
        {
            of_b = Some(ended?);
        }
        match (of_a.take(), of_b.take()) {
            (Some(a), Some(b)) => Poll::Ready(Ok((a, b))),
            (a, b) => {
                (of_a, of_b) = (a, b);
                Poll::Pending
            }
        }
    })
    .await
}
