//! Reading blocks that are locked and settled.
//!
//! Invariants:
//! - A read is sent under the lease, to a member of READ, and its result is given out under the lease: a host that stood still in
//!   between must not tell what a newer one has changed since.
//! - The caller's lock keeps writes of these blocks away until the result is given out.

use std::rc::Rc;

use engine::Buf;
use engine::task;

use crate::conn::{Conn, Lost};
use crate::record::Set;
use crate::settle::mend;
use crate::shared::Shared;

/// One read in so many goes to a replica that is not the best one, so that a replica that was slow once is found out to be quick
/// again. Guessed.
const PROBE_EVERY: u64 = 64;

/// Waits for the lease.
pub(crate) async fn leased(shared: &Shared) -> Result<(), device::Error> {
    let mut since = None;
    loop {
        let changed = shared.changed.notified();
        if shared.is_over() {
            return Err(shared.check().err().unwrap_or(device::Error::Aborted));
        }
        if shared.is_leased() {
            return Ok(());
        }
        shared.wait(&mut since, changed).await?;
    }
}

/// Reads from the best replica.
pub(crate) async fn read(shared: &Rc<Shared>, lba: u64, mut buf: Buf) -> (Result<(), device::Error>, Buf) {
    let bytes = buf.len();
    let (mut since, mut faulty) = (None, Set::default());
    loop {
        if let Err(error) = leased(shared).await {
            return (Err(error), buf);
        }
        let changed = shared.changed.notified();
        let Some(conn) = choose(shared, faulty) else {
            if let Err(error) = shared.wait(&mut since, changed).await {
                return (Err(error), buf);
            }
            continue;
        };
        let read = conn.read(lba, std::mem::take(&mut buf)).await;
        match read {
            Ok(got) => return (leased(shared).await, got),
            Err(Lost::Ended) => shared.sweep(),
            Err(Lost::Refused(error)) => {
                tracing::warn!(holder = conn.name(), lba, %error, "a replica can't be read: another one is asked");
                mend(shared, lba, bytes);
                faulty = faulty.with(Set::one(conn.slot));
                if shared.mirror.borrow().readable().without(faulty).is_empty() {
                    return (Err(error), Buf::with_len(bytes));
                }
            }
        }
        buf = Buf::with_len(bytes);
    }
}

fn choose(shared: &Shared, without: Set) -> Option<Rc<Conn>> {
    let best = shared.best(without)?;
    if task::random_u64().is_multiple_of(PROBE_EVERY) {
        return shared.best(without.with(Set::one(best.slot))).or(Some(best));
    }
    Some(best)
}
