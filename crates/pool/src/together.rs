//! Futures that run at once in one task.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::Poll;

/// Runs futures at once; their results in their order. For a bounded few: each turn polls all that are not done.
pub async fn together<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<Pin<Box<F>>> = futures.map(Box::pin).collect();
    let mut results: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    let all = std::future::poll_fn(move |context| {
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(output) = future.as_mut().poll(context)
            {
                *result = Some(output);
            }
        }
        if results.iter().all(Option::is_some) {
            return Poll::Ready(results.iter_mut().filter_map(Option::take).collect());
        }
        Poll::Pending
    });
    pin!(all).await
}
