//! What every server does with its listeners and connections, whatever it serves.

use std::{io, time::Duration};

use crate::{
    sync::{MailSender, Notify, TrySendError},
    time,
};

/// The pause after an accept failed, as it does when descriptors run out: a loop without it would burn the core.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a server that stops waits for its connections to finish what they have begun.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// The next connection; an accept that fails is logged, told to `failed`, and tried again after a pause.
pub async fn accept_next<T>(accept: impl AsyncFn() -> io::Result<T>, failed: impl Fn()) -> T {
    loop {
        match accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                failed();
                time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Deals connections out in turn to this thread and others.
pub struct Dealer<'a, T> {
    others: &'a [MailSender<T>],
    turn: usize,
}

impl<'a, T> Dealer<'a, T> {
    /// To this thread and `others`.
    pub fn new(others: &'a [MailSender<T>]) -> Dealer<'a, T> {
        Dealer { others, turn: 0 }
    }

    /// Hands `connection` on to the thread whose turn it is; back if that is this one's. A thread that does not take what it has is
    /// passed over: it is busy, and the others are not to wait for it.
    pub fn deal(&mut self, mut connection: T) -> Option<T> {
        self.turn = (self.turn + 1) % (self.others.len() + 1);
        if self.turn == 0 {
            return Some(connection);
        }
        for other in self.others.iter().cycle().skip(self.turn - 1).take(self.others.len()) {
            connection = match other.try_send(connection) {
                Ok(()) => return None,
                Err(TrySendError::Full(back) | TrySendError::Closed(back)) => back,
            };
        }
        Some(connection)
    }
}

/// Waits a bounded time until none of the connections is `open` any more; `ended` is told of each that ends.
pub async fn all_closed(open: impl Fn() -> usize, ended: &Notify) {
    let all = async {
        while open() > 0 {
            ended.notified().await;
        }
    };
    if time::timeout(STOP_PATIENCE, all).await.is_err() {
        tracing::warn!(connections = open(), "closed with commands under way");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::mailbox;

    #[test]
    fn a_thread_that_is_busy_or_gone_is_passed_over() {
        let ((busy, kept), (gone, _), (free, mail)) = (mailbox(1), mailbox(1), mailbox(8));
        let others = [busy, gone, free];
        let mut dealer = Dealer::new(&others);
        let back: Vec<Option<u32>> = (0..8).map(|connection| dealer.deal(connection)).collect();
        assert_eq!(back, [None, None, None, Some(3), None, None, None, Some(7)]);
        assert_eq!(kept.try_recv(), Some(0));
        assert_eq!(std::iter::from_fn(|| mail.try_recv()).collect::<Vec<_>>(), [1, 2, 4, 5, 6]);
        drop((kept, mail));
        assert_eq!(dealer.deal(8), Some(8), "who is alone serves it");
    }
}
