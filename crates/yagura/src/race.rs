//! [`first_of`]: two futures of which the first to end counts.

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
