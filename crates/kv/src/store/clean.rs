//! Cleaning: in the final epoch, every page of every member is sealed for it, and what is no longer at home is dropped in the
//! same stroke.
//!
//! Without it an ex-home would keep an old value. Once the key is deleted, its tombstone collected, and the member made a
//! home again by another change, the old value would be back; and a host that slept through the change in the joint epoch
//! would find what nobody else knows any more. So all pages of all members must be sealed, and no new change begins before.

use std::rc::Rc;

use engine::time;
use pool::change::{Phase, State};

use super::change::{Agreement, ChangeError, ChangeOptions, ChangeReport};
use super::link::Link;
use super::scan::{Seen, Stretch};
use super::topology::Topology;
use super::walk::{STRETCH_PAUSE, STRETCH_TRIES, Walk};
use super::{Inner, Store};

impl<N: Link> Store<N> {
    /// Seals every page for the final epoch and drops what is not at home, from `cursor` on.
    pub(super) async fn clean(
        &self,
        cursor: u64,
        agreement: &dyn Agreement,
        options: &ChangeOptions,
        report: &mut ChangeReport,
    ) -> Result<(), ChangeError> {
        let inner = &self.inner;
        let topology = inner.topology();
        if topology.map.state != State::Unclean {
            return Err(ChangeError::Overtaken);
        }
        let mut walk = Walk::new(Phase::Clean, topology.map.epoch, agreement, options, report);
        let mut next = Some(cursor);
        while let Some(from) = next {
            let stretch = topology.stretch(from);
            clean_stretch(inner, &topology, stretch, report).await?;
            next = stretch.to;
            walk.advance(next, report).await?;
        }
        Ok(())
    }
}

async fn clean_stretch<N: Link>(
    inner: &Rc<Inner<N>>,
    topology: &Rc<Topology<N>>,
    stretch: Stretch,
    report: &mut ChangeReport,
) -> Result<(), ChangeError> {
    let mut seen = Seen::nothing(topology.members.len());
    for _ in 0..STRETCH_TRIES {
        let mut tasks = Vec::new();
        for member in topology.members.iter().filter(|member| !seen.is_whole(member.index)) {
            let (inner, topology, member) = (inner.clone(), topology.clone(), member.clone());
            tasks.push((
                member.index,
                engine::task::spawn(async move {
                    let epoch = member.vote().await?;
                    let mut pages = member.pages(stretch).await?;
                    let index = member.index;
                    let stays = move |key: &[u8]| match inner.key(key) {
                        Ok(key) => topology.homes(&key).contains(index),
                        Err(_) => true,
                    };
                    let work = member.seal(&mut pages, stays).await?;
                    member.counts(epoch)?;
                    Ok::<_, super::member::MemberError>((pages, work))
                }),
            ));
        }
        seen.damaged.clear();
        for (index, task) in tasks {
            match task.await {
                Ok((pages, work)) => {
                    report.sealed += work.sealed;
                    report.dropped += work.dropped;
                    topology.gather(index, stretch, pages, &mut seen);
                }
                Err(error) if error.sealed().is_some() => return Err(ChangeError::Overtaken),
                Err(error) => tracing::debug!(member = index, %error, "a member was passed over"),
            }
        }
        if (0..topology.members.len()).all(|member| seen.is_whole(member)) {
            report.read_bytes += seen.bytes;
            return Ok(());
        }
        time::sleep(STRETCH_PAUSE).await;
    }
    Err(ChangeError::Members { phase: Phase::Clean, reason: topology.missing(&seen) })
}
