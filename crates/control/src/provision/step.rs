//! What an operation's steps are made of: its record, which only the worker that has taken it can change, and the drive that it
//! has to itself.
//!
//! Invariants:
//! - Every commit holds only while the worker's key is there, and the operation and its volume are as this worker knows them: a
//!   worker that has lost the operation changes nothing.
//! - What is asked of a drive is asked until the worker's lease may end, and no later.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::catalogue::{self, Change, Condition, LeaseId, Missed, Outcome, Revision, Transaction, Value};

use super::drives::{Place, Until};
use super::error::Error;
use super::keys;
use super::name::Name;
use super::provisioner::{Provisioner, place_of};
use super::records::{At, Drive, DriveState, Operation, Volume};
use super::store::Stored;

/// How often a commit with an unknown outcome is sent again before the operation is put off. Chosen: the catalogue's own time limit
/// makes each of them long.
const ATTEMPTS_MAX: u32 = 4;
/// How long an operation waits for another one to be done with a drive before it lets go of its place among those at work. Chosen:
/// many times what a drive takes to make a namespace.
const BUSY_TIME: Duration = Duration::from_secs(1);
/// Pause between two looks at that. Chosen: a few times what a drive takes, so that many who wait do not keep the catalogue busy.
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// After how long of that it is told. Chosen: longer than a queue of operations that all go on.
const BUSY_LONG: Duration = Duration::from_secs(10);
/// Pause before a drive is asked again that can't be reached or refuses to delete. Chosen: a target is back within seconds.
const DRIVE_PAUSE: Duration = Duration::from_secs(2);

/// A worker's right to go on with operations, for as long as its lease lasts.
pub(super) struct Right {
    pub(super) worker: Uuid,
    pub(super) lease: LeaseId,
    until: Until,
    /// When each operation that does not go on first failed to, and first waited for the host of an attachment.
    failing: Mutex<HashMap<(Uuid, Option<Uuid>), Instant>>,
}

impl Right {
    pub(super) fn new(lease: LeaseId, until: Instant) -> Right {
        Right { worker: Uuid::new_v4(), lease, until: Until::new(until), failing: Mutex::default() }
    }

    /// How long this worker has seen the operation fail. Never from the catalogue: that may be an older copy, put back just now.
    pub(super) fn failing_for(&self, operation: Uuid) -> Duration {
        self.since(operation, None)
    }

    /// How long this worker has seen the operation wait for the host of that attachment: another host has its own time.
    pub(super) fn waiting_for(&self, operation: Uuid, attachment: Uuid) -> Duration {
        self.since(operation, Some(attachment))
    }

    fn since(&self, operation: Uuid, attachment: Option<Uuid>) -> Duration {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        failing.entry((operation, attachment)).or_insert_with(Instant::now).elapsed()
    }

    /// The host of that attachment is at it.
    pub(super) fn heard(&self, operation: Uuid, attachment: Uuid) {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        failing.remove(&(operation, Some(attachment)));
    }

    /// The operation has gone on, or has ended.
    pub(super) fn forget(&self, operation: Uuid) {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner).retain(|(of, _), _| *of != operation);
    }

    /// Until when it surely lasts.
    pub(super) fn until(&self) -> Instant {
        self.until.get()
    }

    /// The same, as it moves.
    pub(super) fn moving(&self) -> &Until {
        &self.until
    }

    pub(super) fn prolong(&self, until: Instant) {
        self.until.put_off(until);
    }
}

/// Why an operation does not go on now.
#[derive(Debug)]
pub(super) enum Stop {
    /// Somebody else has it, or it has ended.
    Lost,
    /// It is to be tried again after that time.
    Later(Duration),
    /// The catalogue failed.
    Failed(Error),
}

impl<E: Into<Error>> From<E> for Stop {
    fn from(error: E) -> Stop {
        Stop::Failed(error.into())
    }
}

/// An operation that this worker has taken, with its volume.
pub(super) struct Task {
    pub(super) provisioner: Provisioner,
    pub(super) right: Arc<Right>,
    /// How long a create tries to reach a drive before it is undone.
    pub(super) give_up: Duration,
    pub(super) operation: Stored<Operation>,
    pub(super) volume: Stored<Volume>,
}

impl Task {
    /// Takes an operation that nobody has taken. If another worker had begun it, what that one has sent may still take effect, and
    /// is waited for.
    pub(super) async fn take(
        provisioner: &Provisioner,
        right: &Arc<Right>,
        give_up: Duration,
        id: Uuid,
    ) -> Result<Task, Stop> {
        let store = &provisioner.store;
        let operation = store.get::<Operation>(keys::operation(id)).await?.ok_or(Stop::Lost)?;
        if operation.record.ended.is_some() {
            return Err(Stop::Lost);
        }
        let (key, mine) = (keys::taken(id), mine(right)?);
        let is_mine = match store.catalogue.get(key.clone()).await?.entry {
            Some(entry) if entry.value == mine => true,
            Some(_) => return Err(Stop::Lost),
            None => false,
        };
        if !is_mine {
            let take = Change::put_leased(key.clone(), mine, right.lease);
            let conditions = vec![Condition::absent(key), operation.unchanged()];
            match store.catalogue.commit(Transaction::new(conditions, vec![take])?).await? {
                Outcome::Committed(_) => {}
                Outcome::Missed(_) => return Err(Stop::Lost),
            }
        }
        let key = keys::volume(&operation.record.tenant, &operation.record.volume);
        let volume = store.need::<Volume>(key, &operation.record.volume).await?;
        let mut task = Task { provisioner: provisioner.clone(), right: right.clone(), give_up, operation, volume };
        if task.operation.record.worker != Some(right.worker) {
            if task.operation.record.worker.is_some() {
                sleep(provisioner.drives.late()).await;
            }
            task.operation.record.worker = Some(right.worker);
            task.record(Vec::new(), Vec::new()).await?;
        }
        Ok(task)
    }

    /// Until when a drive may do what it is asked now.
    pub(super) fn until(&self) -> Result<Instant, Stop> {
        let until = self.right.until();
        if Instant::now() < until { Ok(until) } else { Err(Stop::Lost) }
    }

    /// Writes operation and volume as they are now, together with these changes. `false`: one of these conditions does not hold,
    /// and nothing was changed.
    pub(super) async fn record(&mut self, conditions: Vec<Condition>, changes: Vec<Change>) -> Result<bool, Stop> {
        let volume = self.volume.put()?;
        self.commit(conditions, changes, volume).await
    }

    /// The same, with what becomes of the volume's record.
    pub(super) async fn commit(
        &mut self,
        conditions: Vec<Condition>,
        changes: Vec<Change>,
        volume: Change,
    ) -> Result<bool, Stop> {
        let operation = self.operation.put()?;
        let written = value_of(&operation);
        let taken = Condition::holds(keys::taken(self.operation.record.id), mine(&self.right)?);
        let fence = [taken, self.operation.unchanged(), self.volume.unchanged()];
        let conditions = fence.into_iter().chain(conditions).collect();
        let changes = [operation, volume.clone()].into_iter().chain(changes).collect();
        let transaction = Transaction::new(conditions, changes)?;
        let mut unknown = None;
        for _ in 0..ATTEMPTS_MAX {
            match self.provisioner.store.catalogue.commit(transaction.clone()).await {
                Ok(Outcome::Committed(revision)) => {
                    self.keep(revision, written, value_of(&volume));
                    return Ok(true);
                }
                Ok(Outcome::Missed(missed)) => {
                    let Some(revision) = self.applied(&missed, written.as_ref())? else { return Ok(false) };
                    self.keep(revision, written, value_of(&volume));
                    return Ok(true);
                }
                Err(error @ catalogue::Error::OutcomeUnknown { .. }) => unknown = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Err(unknown.map_or(Stop::Lost, Stop::from))
    }

    /// Of a commit that missed: as which revision an earlier copy of it was applied, whose outcome was not known; none: the fence
    /// holds, and a condition of the step does not.
    fn applied(&self, missed: &Missed, written: Option<&Value>) -> Result<Option<Revision>, Stop> {
        let (operation, volume) = (self.operation.entry.modified, self.volume.entry.modified);
        match &missed.seen[..] {
            [_, Some(seen), ..] if seen.modified != operation && Some(&seen.value) == written => {
                Ok(Some(seen.modified))
            }
            [Some(taken), Some(seen), Some(present), ..]
                if taken.value == mine(&self.right)? && seen.modified == operation && present.modified == volume =>
            {
                Ok(None)
            }
            _ => Err(Stop::Lost),
        }
    }

    /// Knows operation and volume as that revision has written them.
    fn keep(&mut self, revision: Revision, operation: Option<Value>, volume: Option<Value>) {
        (self.operation.entry.modified, self.volume.entry.modified) = (revision, revision);
        self.operation.entry.value = operation.unwrap_or_default();
        self.volume.entry.value = volume.unwrap_or_default();
    }

    /// The drive of a holder; none if it is gone for good.
    pub(super) async fn place(&self, slot: usize) -> Result<Option<Place>, Stop> {
        let name = &self.volume.record.holder(slot).drive;
        let drive = self.provisioner.store.need::<Drive>(keys::drive(name), name).await?.record;
        Ok((drive.state != DriveState::Out).then(|| place_of(&drive)))
    }

    fn drive(&self, slot: usize) -> Name {
        self.volume.record.holder(slot).drive.clone()
    }

    /// Takes the drive of a holder for this operation alone; the answer is which other operation has it, and has had it for long.
    pub(super) async fn claim(&mut self, slot: usize) -> Result<Option<Uuid>, Stop> {
        if self.operation.record.at.as_ref().is_some_and(|at| at.slot == slot) {
            return Ok(None);
        }
        let (key, id) = (keys::busy(&self.drive(slot)), self.operation.record.id);
        let (began, mut other) = (Instant::now(), None);
        while began.elapsed() < BUSY_TIME {
            other = self.provisioner.store.catalogue.get(key.clone()).await?.entry;
            if other.is_none() {
                let take = Change::put(key.clone(), Value::new(id.to_string())?);
                self.operation.record.at = Some(At { slot, before: None });
                if self.record(vec![Condition::absent(key.clone())], vec![take]).await? {
                    self.right.forget(id);
                    return Ok(None);
                }
                self.operation.record.at = None;
            }
            sleep(BUSY_PAUSE).await;
        }
        let other = other.and_then(|entry| Uuid::try_parse_ascii(entry.value.as_bytes()).ok());
        match other {
            Some(other) if self.right.failing_for(id) >= BUSY_LONG => Ok(Some(other)),
            _ => Err(Stop::Later(BUSY_PAUSE)),
        }
    }

    /// Lets go of the drive; what has come of it is written down in the same transaction.
    pub(super) async fn release(&mut self) -> Result<(), Stop> {
        let at = self.operation.record.at.take();
        let free = at.map(|at| Change::delete(keys::busy(&self.drive(at.slot))));
        self.operation.record.waits = None;
        self.record(Vec::new(), free.into_iter().collect()).await?;
        self.right.forget(self.operation.record.id);
        Ok(())
    }

    /// Puts the operation off until the drive may have changed its mind, and writes down what it waits for.
    pub(super) async fn wait(&mut self, what: String) -> Stop {
        if self.operation.record.waits.as_ref() != Some(&what) {
            self.operation.record.waits = Some(what);
            if let Err(stop) = self.record(Vec::new(), Vec::new()).await {
                return stop;
            }
        }
        Stop::Later(DRIVE_PAUSE)
    }
}

/// What a worker's key says.
fn mine(right: &Right) -> Result<Value, Error> {
    Ok(Value::new(right.worker.to_string())?)
}

fn value_of(change: &Change) -> Option<Value> {
    match change {
        Change::Put { value, .. } => Some(value.clone()),
        Change::Delete { .. } => None,
    }
}
