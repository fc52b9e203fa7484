//! Room on the drives of a volume that is put back to a snapshot: what is shared with its snapshots is copied as it is written.

use super::drive::{drive, look};
use super::records::HolderKind;
use super::step::{Stop, Task};

/// What each drive of a replica has free, by its own word: with the drive's name, by slot. Drives that say nothing are left out.
async fn each(task: &Task) -> Result<Vec<(String, u64)>, Stop> {
    let mut found = Vec::new();
    for slot in 0..task.volume.record.holders.len() {
        let is_replica = task.volume.record.holders[slot].kind == HolderKind::Replica;
        let Some(place) = task.place(slot).await?.filter(|_| is_replica) else { continue };
        if let Ok(look) = look(task, &place).await {
            found.push((drive(task, slot), look.free));
        }
    }
    Ok(found)
}

/// Which drives have less than these bytes free; none: no drive says so.
pub(super) async fn lacks(task: &Task, bytes: u64) -> Result<Option<String>, Stop> {
    let lack = |(name, free): (String, u64)| {
        (free < bytes)
            .then(|| format!("{name} has {free} bytes free, and {bytes} may be needed: {} more", bytes - free))
    };
    let lacks: Vec<_> = each(task).await?.into_iter().filter_map(lack).collect();
    Ok((!lacks.is_empty()).then(|| format!("the volume can't be put back for want of room: {}", lacks.join("; "))))
}

/// What the drives have free, in words.
pub(super) async fn free(task: &Task) -> Result<String, Stop> {
    let all: Vec<_> = each(task).await?.into_iter().map(|(name, free)| format!("{name}: {free} bytes free")).collect();
    Ok(all.join(", "))
}
