//! [`Few`]: a few futures at once in one task, whose results come as they are there.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};

use engine::task::LocalFuture;
use engine::time::{self, Instant};

/// Stripes, spans, records or pieces that one operation has under way at once.
pub(crate) const TOGETHER: usize = 16;

/// For a bounded few: each turn polls all that are not done. Dropping it drops them.
pub(crate) struct Few<'a, K, T> {
    futures: Vec<(K, LocalFuture<'a, T>)>,
}

/// A few that borrow nothing.
pub(crate) type Pending<K, T> = Few<'static, K, T>;

impl<'a, K, T> Few<'a, K, T> {
    pub(crate) fn new() -> Few<'a, K, T> {
        Few { futures: Vec::new() }
    }

    pub(crate) fn push(&mut self, key: K, future: impl Future<Output = T> + 'a) {
        self.futures.push((key, Box::pin(future)));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.futures.is_empty()
    }

    /// What is under way.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.futures.iter().map(|(key, _)| key)
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<(K, T)>> {
        for index in 0..self.futures.len() {
            if let Poll::Ready(output) = self.futures[index].1.as_mut().poll(context) {
                let (key, _) = self.futures.swap_remove(index);
                return Poll::Ready(Some((key, output)));
            }
        }
        if self.futures.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    }

    /// The next result; `None` where nothing is under way, or not until `deadline`.
    pub(crate) async fn next_until(&mut self, deadline: Instant) -> Option<(K, T)> {
        let mut sleep = pin!(time::sleep_until(deadline));
        poll_fn(|context| match self.poll_next(context) {
            Poll::Ready(next) => Poll::Ready(next),
            Poll::Pending => sleep.as_mut().poll(context).map(|()| None),
        })
        .await
    }

    /// The next result; `None` where nothing is under way.
    pub(crate) async fn next(&mut self) -> Option<(K, T)> {
        poll_fn(|context| self.poll_next(context)).await
    }
}
