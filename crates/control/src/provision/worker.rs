//! Goes on with operations, those that another worker has left, too. Any number of workers may run on one catalogue.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use uuid::Uuid;

use crate::catalogue::{Error as CatalogueError, Range, Ttl};

use super::emptying;
use super::error::Error;
use super::keys;
use super::provisioner::Provisioner;
use super::saga;
use super::step::{Right, Stop, Task};
use super::sweep;
use super::temporary;

/// Between two rounds of forgetting. Chosen: what comes together meanwhile is small.
const SWEEP_PAUSE: Duration = Duration::from_secs(60);
/// Between two looks for holders on drives that are to be empty. Chosen: a read of all drives, which costs little so seldom.
const EMPTY_PAUSE: Duration = Duration::from_secs(3);
/// Before the catalogue is asked again that has failed. Chosen: longer than a change of leader's first half.
const CATALOGUE_PAUSE: Duration = Duration::from_secs(1);

/// How a worker works.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// How long its operations wait for another worker when it dies: the time of its lease.
    pub lease: Ttl,
    /// How many operations it goes on with at a time.
    pub operations: usize,
    /// How often it looks for operations that others have made or left.
    pub poll: Duration,
    /// How long a create tries to reach a drive before it is undone.
    pub give_up: Duration,
}

impl Default for WorkerOptions {
    /// A lease of 15 seconds, 64 operations, a look every second, a minute for a drive to be back.
    fn default() -> WorkerOptions {
        let lease = Ttl::new(Duration::from_secs(15)).expect("15 seconds are within the catalogue's limits");
        WorkerOptions { lease, operations: 64, poll: Duration::from_secs(1), give_up: Duration::from_secs(60) }
    }
}

/// Goes on with the operations of a catalogue.
pub struct Worker {
    provisioner: Provisioner,
    options: WorkerOptions,
}

impl Worker {
    /// For the provisioner's catalogue and drives.
    pub fn new(provisioner: &Provisioner, options: WorkerOptions) -> Worker {
        Worker { provisioner: provisioner.clone(), options }
    }

    /// Works until it is dropped. What is under way then is gone on with by the next worker, when the lease has ended.
    ///
    /// The future is boxed, so that every operation is compiled here and not once more where the worker runs.
    pub fn run(self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.run_on())
    }

    async fn run_on(self) {
        loop {
            let began = Instant::now();
            match self.provisioner.store.catalogue.grant(self.options.lease).await {
                Ok(lease) => {
                    let right = Arc::new(Right::new(lease.id, began + lease.ttl));
                    tokio::select! {
                        () = self.keep(&right, lease.ttl) => {
                            tracing::warn!("the lease of operations has ended: those under way are begun again");
                        }
                        () = self.work(&right) => {}
                        () = self.forget() => {}
                        () = self.empty() => {}
                    }
                }
                Err(error) => tracing::warn!(%error, "no operation can be taken"),
            }
            sleep(CATALOGUE_PAUSE).await;
        }
    }

    /// Keeps the lease for as long as that can be done.
    async fn keep(&self, right: &Right, ttl: Duration) {
        loop {
            sleep(ttl / 3).await;
            loop {
                let began = Instant::now();
                match self.provisioner.store.catalogue.keep_alive(right.lease).await {
                    Ok(lease) => {
                        right.prolong(began + lease.ttl);
                        break;
                    }
                    Err(CatalogueError::LeaseGone { .. }) => return,
                    Err(_) if Instant::now() >= right.until() => return,
                    Err(error) => tracing::warn!(%error, "the lease of operations is not prolonged yet"),
                }
                sleep(CATALOGUE_PAUSE.min(ttl / 10)).await;
            }
        }
    }

    async fn work(&self, right: &Arc<Right>) {
        let (mut running, mut ids) = (JoinSet::new(), HashMap::new());
        // When each operation is looked at again; none: it is at work.
        let mut known: BTreeMap<Uuid, Option<Instant>> = BTreeMap::new();
        loop {
            let woken = self.provisioner.wake.notified();
            match self.pending().await {
                Ok(pending) => {
                    known.retain(|id, later| later.is_none() || pending.contains(id));
                    let now = Instant::now();
                    let is_due = |id: &&Uuid| known.get(id).is_none_or(|later| later.is_some_and(|later| later <= now));
                    let mut due: Vec<Uuid> = pending.iter().filter(is_due).copied().collect();
                    // First those that nobody has looked at, then who has waited longest.
                    due.sort_by_key(|id| known.get(id).copied());
                    for id in due {
                        let has_waited = known.contains_key(&id);
                        // What waits for a drive that is away leaves places to what need not.
                        let room = if has_waited { self.options.operations / 2 } else { self.options.operations };
                        let at_work = ids.values().filter(|(_, waited)| *waited || !has_waited).count();
                        if at_work < room.max(1) && running.len() < self.options.operations {
                            known.insert(id, None);
                            ids.insert(running.spawn(self.operation(right, id)).id(), (id, has_waited));
                        }
                    }
                }
                Err(error) => tracing::warn!(%error, "operations can't be listed"),
            }
            let poll = Instant::now() + self.options.poll;
            // What is due and has no place is looked at when one is free.
            let now = Instant::now();
            let later = known.values().flatten().filter(|later| **later > now).min();
            let next = later.map_or(poll, |later| poll.min(*later));
            tokio::select! {
                Some(ended) = running.join_next_with_id() => {
                    // A task that panicked is tried again as one that the catalogue has failed.
                    let (task, later) = ended.unwrap_or_else(|fault| (fault.id(), CATALOGUE_PAUSE));
                    if let Some((id, _)) = ids.remove(&task) {
                        known.insert(id, Some(Instant::now() + later));
                    }
                }
                () = woken => {}
                () = sleep_until(next) => {}
            }
        }
    }

    /// What has not ended.
    async fn pending(&self) -> Result<Vec<Uuid>, Error> {
        let (mut found, mut next) = (Vec::new(), Some(Range::of(keys::all("todo"))));
        while let Some(range) = next {
            let page = self.provisioner.store.catalogue.range(range).await?;
            let ids = page.entries.iter().filter_map(|entry| keys::id_of(&entry.key));
            found.extend(ids);
            next = page.next;
        }
        Ok(found)
    }

    /// Goes on with one operation as far as it goes now; afterwards says when to look at it again.
    fn operation(&self, right: &Arc<Right>, id: Uuid) -> impl Future<Output = Duration> + Send + 'static {
        let (provisioner, right, options) = (self.provisioner.clone(), right.clone(), self.options.clone());
        async move {
            let advanced = async {
                let mut task = Task::take(&provisioner, &right, options.give_up, id).await?;
                saga::advance(&mut task).await
            };
            match advanced.await {
                Ok(()) | Err(Stop::Lost) => {
                    right.forget(id);
                    options.poll
                }
                Err(Stop::Later(pause)) => pause,
                Err(Stop::Failed(error)) => {
                    tracing::warn!(%error, operation = %id, "an operation does not go on");
                    CATALOGUE_PAUSE
                }
            }
        }
    }

    /// Empties drives that are to be.
    async fn empty(&self) {
        let mut tried = BTreeMap::new();
        loop {
            if let Err(error) = emptying::round(&self.provisioner, &mut tried).await {
                tracing::warn!(%error, "drives are not emptied yet");
            }
            sleep(EMPTY_PAUSE).await;
        }
    }

    async fn forget(&self) {
        let mut tries = temporary::Tries::default();
        loop {
            if let Err(error) = sweep::sweep(&self.provisioner.store).await {
                tracing::warn!(%error, "what has ended is not forgotten yet");
            }
            if let Err(error) = temporary::round(&self.provisioner, &mut tries).await {
                tracing::warn!(%error, "snapshots that nobody needs are not deleted yet");
            }
            sleep(SWEEP_PAUSE).await;
        }
    }
}
