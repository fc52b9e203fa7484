//! Deletes at the replicas what no record names: snapshots that were deleted, and what attempts have left that ended, or whose host
//! has died (DELETE in the model's README).
//!
//! Invariants:
//! - Deleted is only what the last record, which is stable, does not give to that replica, of a ballot not above the own one, and
//!   not of the attempt that goes on. That is looked at just before each deletion: what the list says was true when it was read.
//! - A replica uses the numbers of its snapshots again: it is asked to delete by the number and the NGUID, which is nobody else's
//!   ever. So a deletion that comes late deletes what it was to delete, or nothing.

use std::rc::{Rc, Weak};
use std::time::Duration;

use engine::time::{self, Instant};

use crate::conn::{Conn, Lost};
use crate::record::HOLDERS_MAX;
use crate::shared::Shared;
use crate::snapshot_name::SnapshotName;

/// The pause after a replica has refused to delete something. Guessed: it is not soon that it will.
const PAUSE: Duration = Duration::from_secs(60);

/// A connection over which was looked, and how much there was that may have left garbage by then.
type Looked = (Weak<Conn>, u64);

/// Ends when the volume is over.
pub(crate) async fn collect(shared: Rc<Shared>) {
    let mut looked: [Option<Looked>; HOLDERS_MAX] = Default::default();
    // When it is looked at all of them anew, since one has refused something.
    let mut again: Option<Instant> = None;
    while !shared.is_over() {
        let changed = shared.changed.notified();
        if !shared.mirror.borrow().is_stable() {
            changed.await;
            continue;
        }
        let (littered, version) = (shared.littered(), shared.mirror.borrow().current().version);
        let is_done = |conn: &Rc<Conn>| {
            let before = looked[conn.slot].as_ref();
            before.is_some_and(|(over, count)| Weak::as_ptr(over) == Rc::as_ptr(conn) && *count == littered)
        };
        let replicas = 0..usize::from(shared.shape.replicas);
        let mut conns = replicas.filter_map(|slot| shared.usable(slot)).filter(|conn| conn.offers_snapshots());
        let Some(conn) = conns.find(|conn| !is_done(conn)) else {
            shared.set_collected(littered);
            match again {
                None => changed.await,
                Some(at) if time::timeout(at.duration_since(time::now()), changed).await.is_ok() => {}
                Some(_) => (looked, again) = Default::default(),
            }
            continue;
        };
        match collect_at(&shared, &conn).await {
            Ok(()) => {}
            Err(Lost::Ended) => shared.sweep(),
            // It is tried again.
            Err(Lost::Refused(error)) => {
                again = Some(time::now() + PAUSE);
                tracing::warn!(holder = conn.name(), %error, "snapshots that nobody needs stay at a replica for now");
            }
        }
        // While a record was not stable nothing was garbage.
        let is_same = shared.mirror.borrow().current().version == version;
        looked[conn.slot] = is_same.then(|| (Rc::downgrade(&conn), littered));
    }
}

/// A refusal is the last one of those that there were: each of the others is deleted.
async fn collect_at(shared: &Shared, conn: &Rc<Conn>) -> Result<(), Lost> {
    let mut outcome = Ok(());
    for copy in conn.copies().await? {
        let name = SnapshotName::of_tag(&copy.tag, shared.shape.volume).filter(|_| !copy.writable);
        let Some(name) = name else { continue };
        let is_garbage = shared.mirror.borrow().is_garbage(name, conn.slot) && shared.taking.get() != Some(name);
        if is_garbage && shared.usable(conn.slot).is_some_and(|now| Rc::ptr_eq(&now, conn)) {
            match conn.delete_copy(&copy).await {
                Ok(()) => tracing::info!(holder = conn.name(), %name, "a snapshot that no record names was deleted"),
                Err(Lost::Refused(error)) => outcome = Err(Lost::Refused(error)),
                Err(Lost::Ended) => return Err(Lost::Ended),
            }
        }
    }
    outcome
}
