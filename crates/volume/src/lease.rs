//! Renews the lease: a majority of the holders is asked what it has promised.

use std::rc::Rc;
use std::time::Duration;

use engine::task::TaskSet;
use engine::time::{self, Instant};

use crate::conn::Said;
use crate::record::{HOLDERS_MAX, Set};
use crate::shared::Shared;

/// The pause after a round without a majority. Guessed: a holder's way back.
const PAUSE_FAILED: Duration = Duration::from_millis(50);

/// Ends when the volume is over.
pub(crate) async fn renew(shared: Rc<Shared>) {
    while !shared.is_over() {
        let every = shared.renew_every();
        let began = time::now();
        let given = time::timeout(every, round(&shared, began)).await.unwrap_or(false);
        time::sleep(if given { every } else { PAUSE_FAILED.min(every) }).await;
    }
}

/// Whether a majority has confirmed. The lease counts from the round's beginning: an older host's lease that counted from its end
/// would last longer than those who wait for it think.
async fn round(shared: &Rc<Shared>, began: Instant) -> bool {
    let mut asked = TaskSet::new(HOLDERS_MAX);
    let conns: Vec<_> = (0..shared.shape.holders()).filter_map(|slot| shared.conn(slot)).collect();
    for conn in conns.into_iter().filter(|conn| shared.mirror.borrow().is_checked(conn.slot)) {
        let ballot = shared.ballot;
        let pushed = asked.push(async move { (conn.slot, conn.confirm(ballot).await) });
        debug_assert!(pushed.is_ok(), "a slot for each holder");
    }
    let mut confirmed = Set::default();
    while let Some((_, (slot, said))) = asked.next().await {
        match said {
            Ok(Said::Higher) => {
                shared.supersede();
                return false;
            }
            Ok(Said::Yes) => confirmed = confirmed.with(Set::one(slot)),
            Err(_) => shared.sweep(),
        }
        let is_enough = shared.mirror.borrow().is_attached() && shared.mirror.borrow().gives_lease(confirmed);
        if is_enough {
            shared.extend_lease(began);
            return true;
        }
    }
    false
}
