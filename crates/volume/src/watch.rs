//! Watches over the set in sync: replicas that stay away are left out, and changes of holders are brought to their end.

use std::rc::Rc;
use std::time::Duration;

use engine::time::{self, Instant};

use crate::conn::Conn;
use crate::label::Kind;
use crate::record::Set;
use crate::shared::Shared;

/// How often a holder without room for the volume is looked at: nobody says when it has got it. Guessed.
const ROOM_PAUSE: Duration = Duration::from_secs(1);
/// Why who had the place before is not taken in.
const FORMER: &str = "it had its place before another holder did, and what it has missed since is not known: format it anew as a \
                      replacement, or reach the holder that has the place";

/// Ends when the volume is over.
pub(crate) async fn watch(shared: Rc<Shared>) {
    loop {
        let changed = shared.changed.notified();
        if shared.is_over() {
            return;
        }
        shared.sweep();
        let (bad, due) = look(&shared);
        if shared.propose(|mirror| mirror.leave_out(bad)) {
            for slot in bad.iter() {
                let reason = shared.reason(slot);
                tracing::warn!(volume = shared.name(), slot, reason, "the volume goes on without a replica");
            }
            continue;
        }
        let (roomy, due) = (roomy(&shared), due);
        if shared.propose(|mirror| mirror.change_holders(roomy)) {
            continue;
        }
        let lacks_room = (0..shared.shape.holders()).any(|slot| shared.conn(slot).is_some() && !roomy.has(slot));
        let again = lacks_room.then(|| time::now() + ROOM_PAUSE);
        let due = due.into_iter().chain(again).min();
        match due {
            Some(due) => drop(time::timeout(due.duration_since(time::now()), changed).await),
            None => changed.await,
        }
    }
}

/// Who has the room for the volume, and may be taken in. Who has not the room, and is to replace a holder, would have that one's
/// snapshots forgotten for nothing.
fn roomy(shared: &Shared) -> Set {
    Set::of(shared.shape.holders(), |slot| {
        let Some(conn) = shared.conn(slot) else { return false };
        let is_other = shared.mirror.borrow().is_other(slot);
        let looked = conn.check_room(shared.blocks_counted());
        if let Err(error) = &looked
            && is_other
        {
            shared.note(slot, error.to_string());
        }
        if is_other && !is_new(&conn) {
            shared.note(slot, FORMER.to_owned());
            return false;
        }
        looked.is_ok()
    })
}

/// Whether it never had the place: its log says of every region that it may lack it. One that had the place knows nothing of what
/// was written since another one has it, and neither do the logs of the others, once they are clean.
fn is_new(conn: &Conn) -> bool {
    conn.label.kind == Kind::Witness || conn.with_log(|log| log.is_intent_everywhere())
}

/// Who is to be left out now, and when the next one may be.
fn look(shared: &Shared) -> (Set, Option<Instant>) {
    let now = time::now();
    let (mut bad, mut due) = (Set::default(), None::<Instant>);
    let in_sync = shared.mirror.borrow().current().in_sync;
    for slot in in_sync.iter() {
        let (is_other, is_checked) = {
            let mirror = shared.mirror.borrow();
            (mirror.is_other(slot), mirror.is_checked(slot))
        };
        let conn = shared.conn(slot);
        if is_other || (conn.is_none() && shared.is_refused(slot)) {
            bad = bad.with(Set::one(slot));
            continue;
        }
        if conn.is_some() && is_checked {
            continue;
        }
        // A connection that has come has its time to take the record.
        let since = conn.as_ref().map_or_else(|| shared.down_since(slot), |conn| conn.since.get());
        let at = since + shared.options.give_up_after;
        match &conn {
            None if at <= now => bad = bad.with(Set::one(slot)),
            // It is left out when it is given up, and not before: a record may be on its way there. Where it could not be left out,
            // as the last replica in sync, to end its connection would keep it away for ever.
            Some(conn) if at <= now => {
                if shared.mirror.borrow().may_leave_out(Set::one(slot)) {
                    conn.end();
                }
            }
            _ => due = Some(due.map_or(at, |due| due.min(at))),
        }
    }
    (bad, due)
}
