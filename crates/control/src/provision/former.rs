//! A former holder that the volume needs after all gets its place back.
//!
//! The new holder has the place in the volume's record here before it has it in the volume's own, which the holders keep: that
//! changes when whoever has the volume attached uses the new one. If that one has not, and holders are lost meanwhile, then those
//! that stay are no majority without the former one, and nobody could attach the volume ever.

use super::asked::{Progress, Replacement, Work};
use super::drive::drive;
use super::ending::end_beside;
use super::records::Beside;
use super::step::{Stop, Task};
use super::work;

/// Nobody has the volume attached but this control plane, which can't attach it with the new holder, or needs not: gives the place
/// back to a former holder that has it still by the volume's own record. False: there is none.
pub(super) async fn gives_back(task: &mut Task, replacement: &Replacement, why: &str) -> Result<bool, Stop> {
    if !task.volume.record.held {
        return Ok(false);
    }
    let (slot, count) = (replacement.slot, task.volume.record.holders.len());
    let work = Work::Replace(Replacement { go: false, ..replacement.clone() });
    for index in formers(task, slot) {
        let at = count + index;
        if task.place(at).await?.is_some()
            && let Ok(done) = work::over(task, &work, Some((slot, at))).await?
            && done.progress.is_some_and(|progress| progress.holds(slot))
        {
            give_back(task, slot, index, why).await?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// The same by the word of the host that has the volume attached, and is not to use the new holder any more: it uses the former
/// one.
pub(super) async fn stays(task: &mut Task, slot: usize, progress: &Progress, why: &str) -> Result<bool, Stop> {
    let is_former = !progress.is_taken && progress.holds(slot) && !task.volume.record.held;
    match formers(task, slot).last() {
        Some(index) if is_former => give_back(task, slot, *index, why).await.map(|()| true),
        _ => Ok(false),
    }
}

/// Those that had the place, and may be asked.
pub(super) fn formers(task: &Task, slot: usize) -> Vec<usize> {
    let beside = task.volume.record.beside.iter().enumerate();
    let is_former =
        |(_, beside): &(usize, &Beside)| beside.slot == slot && !beside.is_new && beside.holder.namespace.is_some();
    beside.filter(is_former).map(|(index, _)| index).collect()
}

/// What was to be in its place stays beside it, as nobody knows who has reached it; the next replacement of the slot deletes it.
async fn give_back(task: &mut Task, slot: usize, index: usize, why: &str) -> Result<(), Stop> {
    if task.operation.record.at.is_some() {
        task.release().await?;
    }
    let volume = &mut task.volume.record;
    std::mem::swap(&mut volume.holders[slot], &mut volume.beside[index].holder);
    task.operation.record.undo = Some(format!("{} has its place again: {why}", drive(task, slot)));
    end_beside(task, &[]).await
}
