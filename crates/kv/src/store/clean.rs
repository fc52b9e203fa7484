//! Cleaning: in the final epoch, every page of every member is sealed for it, and what is no longer at home is dropped in the
//! same stroke, and with it deleted keys that need not be remembered any more (`forget`).
//!
//! Without it an ex-home would keep an old value. Once the key is deleted, its tombstone collected, and the member made a
//! home again by another change, the old value would be back; and a host that slept through the change in the joint epoch
//! would find what nobody else knows any more. So all pages of all members must be sealed, and no new change begins before.
//!
//! Somebody slow may still be at it when others have ended it and begun the next change, and do no harm: only the stroke that seals
//! a page drops what is not at home, and of the final epoch that is over then. (What the next change has brought to a page of its
//! new homes has raised no seal there.) At rest, where pages are sealed for a sweep and the next change need not wait for that,
//! nothing is dropped for its home: an epoch at rest begins clean.
//!
//! But for members that were given up: they have no vote and get no keys before they are gone, and as every majority that a
//! host might find with one of them (there are at least two in it) meets a sealed page, they are passed over here.

use std::rc::Rc;

use engine::time;
use pool::State;

use super::Inner;
use super::change::{OVERTAKEN, STRETCH_PAUSE, STRETCH_TRIES};
use super::member::MemberError;
use super::scan::{Seen, Stretch};
use super::topology::{Topology, forgets};
use crate::page::{Entry, Stored};
use crate::table::Forgets;

/// Cleans a stretch on every member; what they hold of it.
pub(super) async fn clean(inner: &Rc<Inner>, topology: &Rc<Topology>, stretch: Stretch) -> Result<Seen, String> {
    let mut seen = Seen::nothing(topology.members.len());
    let stay: Vec<usize> = (0..topology.members.len()).filter(|&member| !topology.map.members[member].lost).collect();
    for _ in 0..STRETCH_TRIES {
        let mut tasks = Vec::new();
        for member in stay.iter().filter(|&&member| !seen.is_whole(member)).map(|&member| &topology.members[member]) {
            let (inner, topology, member) = (inner.clone(), topology.clone(), member.clone());
            let keys = inner.clone();
            tasks.push((
                member.index,
                engine::task::spawn(async move {
                    let epoch = member.vote().await?;
                    let mut pages = member.pages(stretch).await?;
                    let index = member.index;
                    let forgets = forgets(&topology.map);
                    let cleans = topology.map.state == State::Unclean;
                    let stays = move |entry: &Entry<'_>| match keys.key(entry.key) {
                        Ok(key) => !(cleans && !topology.homes(&key).contains(index) || is_forgotten(entry, forgets)),
                        Err(_) => true,
                    };
                    member.seal(&inner, &mut pages, stays).await?;
                    member.counts(epoch)?;
                    Ok::<_, MemberError>(pages)
                }),
            ));
        }
        seen.damaged.clear();
        for (index, task) in tasks {
            match task.await {
                Ok(pages) => topology.gather(index, stretch, pages, &mut seen),
                Err(error) if error.sealed().is_some() => return Err(OVERTAKEN.into()),
                Err(error) => {
                    // It may have answered before, with damaged pages that were neither sealed nor cleaned.
                    seen.answered[index] = false;
                    tracing::debug!(member = index, %error, "a member was passed over");
                }
            }
        }
        if stay.iter().all(|&member| seen.is_whole(member)) {
            return Ok(seen);
        }
        time::sleep(STRETCH_PAUSE).await;
    }
    Err(format!(
        "{}; one that never comes back is given up when `yagura pool replace` or `remove` is asked to take it out",
        topology.missing(&seen)
    ))
}

/// Whether it is a deleted key that need not be remembered any more.
fn is_forgotten(entry: &Entry<'_>, forgets: Forgets) -> bool {
    matches!(entry.stored, Stored::Tombstone) && forgets.covers(entry.timestamp, entry.promise)
}
