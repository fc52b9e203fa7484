//! Snapshots, step by step: what is done about one is done by whoever has the volume attached; the record follows.

use uuid::Uuid;

use super::asked::Work;
use super::ending::{failed, ready};
use super::moment::Snapshot;
use super::records::OperationState;
use super::step::{Stop, Task};
use super::store::now;
use super::work;

/// Takes a snapshot. Its moment is one between the beginning of the operation and its end.
pub(super) async fn take(task: &mut Task) -> Result<(), Stop> {
    let taken = match work::done(task, Work::Take { before: Vec::new() }).await? {
        Ok(done) => done.taken.ok_or("nobody says which snapshot was taken".to_owned()),
        Err(why) => Err(why),
    };
    let bytes = task.volume.record.bytes;
    match (taken, task.operation.record.snapshot.clone()) {
        (Ok(moment), Some(name)) => {
            // What it is taken for needs it from the first moment on.
            let clones: Vec<Uuid> = task.operation.record.with.into_iter().collect();
            let (id, created, temporary) = (Uuid::new_v4(), now(), !clones.is_empty());
            let snapshot = Snapshot { id, name, bytes, moment, created, clones, temporary, left: None };
            task.volume.record.snapshots.push(snapshot);
            ready(task, OperationState::Done).await
        }
        (Err(why), _) => failed(task, why).await,
        (Ok(_), None) => failed(task, "invariant: the operation names no snapshot".to_owned()).await,
    }
}

/// Deletes a snapshot.
pub(super) async fn forget(task: &mut Task) -> Result<(), Stop> {
    let name = task.operation.record.snapshot.clone();
    let is_it = |snapshot: &&Snapshot| Some(&snapshot.name) == name.as_ref();
    if let Some(moment) = task.volume.record.snapshots.iter().find(is_it).map(|snapshot| snapshot.moment) {
        if let Err(why) = work::done(task, Work::Forget { moment }).await? {
            // Nobody has asked for it who would see how the operation has ended.
            let is_left = |snapshot: &&mut Snapshot| snapshot.temporary && Some(&snapshot.name) == name.as_ref();
            let left = task.volume.record.snapshots.iter_mut().find(is_left);
            left.into_iter().for_each(|snapshot| snapshot.left = Some(why.clone()));
            return failed(task, why).await;
        }
        task.volume.record.snapshots.retain(|snapshot| Some(&snapshot.name) != name.as_ref());
    }
    ready(task, OperationState::Done).await
}
