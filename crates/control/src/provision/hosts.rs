//! Hosts that have a volume attached, and ask what is wanted of them.
//!
//! Invariants:
//! - What a host is told to do is written down before the host is told, with what the replicas knew then: so an operation that
//!   takes its words back can tell whether a host may be at it.
//! - A host that has ended what nobody wants any more is told so, and undoes it. Whether it is wanted is decided by one state of
//!   the volume's record, in which an operation ends and a snapshot begins to be there at once.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::catalogue::{Outcome as Committed, Transaction};

use super::asked::{Asked, Heard, Outcome, Progress, Work};
use super::error::Error;
use super::keys;
use super::moment::{Limits, Moment};
use super::name::Name;
use super::plan::Owner;
use super::provisioner::Provisioner;
use super::records::Volume;
use super::store::{Stored, now};

/// Bytes of a host's reason that are kept. Chosen: what one reads; a thousand ended operations of a tenant stay small.
const REASON_BYTES_MAX: usize = 1024;

/// After how many seconds the same is written down anew. Chosen: what is older than twice that is not gone by.
const HEARD_SECONDS: u64 = 5;

/// How something has ended that the host was told to do.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Ended {
    /// For which operation.
    pub operation: Uuid,
    /// How.
    pub outcome: Outcome,
}

/// How far the host is with a replacement that it was told of.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Working {
    /// For which operation.
    pub operation: Uuid,
    /// How far.
    pub progress: Progress,
}

/// What a host says of the volume that it has attached.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// All snapshots that the replicas know of.
    #[serde(default)]
    pub snapshots: Vec<Moment>,
    /// What has ended, until it is noted.
    #[serde(default)]
    pub ended: Option<Ended>,
    /// How far it is with what takes long. Left out where there is nothing of that kind: older control planes do not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working: Option<Working>,
}

/// What is to be done, for which operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Assigned {
    /// The operation.
    pub operation: Uuid,
    /// What.
    pub work: Work,
}

/// Whether what has ended was wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Noted {
    /// Nothing was said to have ended, or that is not settled: say it again.
    #[default]
    Open,
    /// It is written down.
    Wanted,
    /// Nobody wants it any more: a snapshot that was taken goes.
    Unwanted,
}

/// What is wanted of a host.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Wish {
    /// What is to be done.
    pub work: Option<Assigned>,
    /// Of what has ended.
    pub noted: Noted,
    /// How much the volume may be used.
    pub limits: Limits,
}

impl Provisioner {
    /// What is wanted of the host that has this attachment. It asks every few seconds; where nothing is wanted that writes nothing.
    pub async fn ask(&self, owner: &Owner, name: &Name, attachment: Uuid, report: &Report) -> Result<Wish, Error> {
        owner.record(self).await?;
        let volume = self.known(owner, name).await?;
        if volume.record.attachment.as_ref().is_none_or(|present| present.id != attachment) {
            return Err(Error::NotAttached { volume: name.clone() });
        }
        let mut wish = Wish { limits: volume.record.limits, ..Wish::default() };
        let pending = volume.record.operation;
        if let Some(ended) = report.ended.as_ref().filter(|ended| pending != Some(ended.operation)) {
            wish.noted = settled(&volume.record, ended);
        }
        let Some(id) = pending else { return Ok(wish) };
        let Some(asked) = self.store.get::<Asked>(keys::work(id)).await? else { return Ok(wish) };
        match report.ended.as_ref().filter(|ended| ended.operation == id) {
            Some(ended) => wish.noted = self.note(&volume.record, asked, attachment, ended).await?,
            None => {
                // None: the operation has ended meanwhile.
                if let Some(asked) = self.heard(asked, (id, attachment), report).await? {
                    wish.work = self.assign(&volume, asked, (id, attachment), report).await?;
                }
            }
        }
        Ok(wish)
    }

    /// Writes down how far the host is, where that is new, or was said long ago.
    async fn heard(
        &self,
        mut asked: Stored<Asked>,
        (id, attachment): (Uuid, Uuid),
        report: &Report,
    ) -> Result<Option<Stored<Asked>>, Error> {
        let Some(Working { progress, .. }) = report.working.as_ref().filter(|working| working.operation == id) else {
            return Ok(Some(asked));
        };
        let is_known = |heard: &Heard| {
            let is_fresh = now().saturating_sub(heard.at) < HEARD_SECONDS;
            is_fresh && heard.attachment == attachment && heard.progress == *progress
        };
        if asked.record.attachment != Some(attachment) || asked.record.heard.as_ref().is_some_and(is_known) {
            return Ok(Some(asked));
        }
        let unchanged = asked.unchanged();
        let (progress, snapshots) = (progress.clone(), report.snapshots.clone());
        asked.record.heard = Some(Heard { attachment, progress, snapshots, at: now() });
        let key = asked.entry.key.clone();
        // Whoever was quicker has changed what is looked at again.
        let _ = self.store.catalogue.commit(Transaction::new(vec![unchanged], vec![asked.put()?])?).await?;
        self.wake.notify_waiters();
        self.store.get(key).await
    }

    /// Writes down how it has ended.
    async fn note(
        &self,
        volume: &Volume,
        mut asked: Stored<Asked>,
        attachment: Uuid,
        ended: &Ended,
    ) -> Result<Noted, Error> {
        if asked.record.attachment != Some(attachment) {
            return Ok(Noted::Open);
        }
        let mut outcome = ended.outcome.clone().believed(&asked.record.work, volume.bytes);
        // What is not believed is not wanted: so the host is told when the operation has ended.
        let noted = if is_done(&outcome) == is_done(&ended.outcome) { Noted::Wanted } else { Noted::Open };
        if asked.record.outcome.is_some() {
            return Ok(noted);
        }
        if let Outcome::Refused(why) = &mut outcome {
            why.truncate(why.floor_char_boundary(REASON_BYTES_MAX));
        }
        let unchanged = asked.unchanged();
        asked.record.outcome = Some(outcome);
        let commit = self.store.catalogue.commit(Transaction::new(vec![unchanged], vec![asked.put()?])?);
        let is_written = matches!(commit.await?, Committed::Committed(_));
        self.wake.notify_waiters();
        Ok(if is_written { noted } else { Noted::Open })
    }

    /// What the host is to do for the operation, once that is written down.
    async fn assign(
        &self,
        volume: &Stored<Volume>,
        mut asked: Stored<Asked>,
        (id, attachment): (Uuid, Uuid),
        report: &Report,
    ) -> Result<Option<Assigned>, Error> {
        if asked.record.outcome.is_some() || volume.record.held {
            return Ok(None);
        }
        if asked.record.attachment != Some(attachment) {
            let conditions = vec![asked.unchanged(), volume.unchanged()];
            asked.record.attachment = Some(attachment);
            asked.record.before.get_or_insert_with(|| report.snapshots.clone());
            let commit = self.store.catalogue.commit(Transaction::new(conditions, vec![asked.put()?])?);
            if !matches!(commit.await?, Committed::Committed(_)) {
                return Ok(None);
            }
        }
        let work = asked.record.work();
        Ok(Some(Assigned { operation: id, work }))
    }
}

fn is_done(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Done(_))
}

/// Of what has ended for an operation that is over.
fn settled(volume: &Volume, ended: &Ended) -> Noted {
    let Outcome::Done(done) = &ended.outcome else { return Noted::Wanted };
    let Some(taken) = done.taken else { return Noted::Wanted };
    let is_known = volume.snapshots.iter().any(|snapshot| snapshot.moment.is(&taken));
    if is_known { Noted::Wanted } else { Noted::Unwanted }
}
