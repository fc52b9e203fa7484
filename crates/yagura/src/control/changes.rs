//! What is changed of volumes that are there: namespaces grow and are cloned on their drives, and volumes that nobody has attached
//! are attached for a moment.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant as StdInstant};

use ::control::provision::{Blank, Done, DriveError, HolderKind, Namespace, Replica, Until, Work};
use ::volume::{AdoptOptions, Born, Label, Options as AttachOptions, Reach, Set};
use fabric::host::{CopyTag, Manager, NamespaceCopy, Options};
use uuid::Uuid;

use super::reached::{Known, changed, in_time, known, listed, reach, reaches, unformatted, unreached, within};
use crate::volume::work::{Undone, name_of, settled, work as done_by};

/// How long a volume is filled at a time that nobody has attached. Chosen: who wants to attach it waits no longer than that.
const FILLED_TIME: Duration = Duration::from_secs(4);
/// How long is waited for drives that are to give back the room of deleted snapshots. Chosen: many times what that takes; what is
/// left goes with the next attachment.
const COLLECTED_TIME: Duration = Duration::from_secs(2);
/// Where nothing listens: a drive that is gone for good.
const NOWHERE: ([u8; 4], u16) = ([127, 0, 0, 1], 1);

/// See [`Drives::grow`](::control::provision::Drives::grow).
pub async fn grow(options: Options, namespace: Namespace, bytes: u64, until: StdInstant) -> Result<(), DriveError> {
    let manager = Manager::connect(options).await.map_err(unreached)?;
    if known(&manager, &namespace).await?.bytes < bytes {
        if !manager.extension().await.map_err(unreached)?.grow {
            return Err(DriveError::Refused("its target does not make namespaces larger".into()));
        }
        in_time(until)?;
        manager.grow(namespace.nsid, bytes).await.map_err(changed)?;
    }
    manager.leave().await;
    Ok(())
}

fn clone_tag(tag: Uuid) -> CopyTag {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(tag.as_bytes());
    CopyTag(bytes)
}

/// All snapshots and clones of the drive.
async fn copies(manager: &Manager) -> Result<Vec<NamespaceCopy>, DriveError> {
    if !manager.extension().await.map_err(unreached)?.copies {
        return Err(DriveError::Refused("its target makes no snapshots and clones".into()));
    }
    manager.copies(None).await.map_err(unreached)
}

/// The clone of that tag among all namespaces.
async fn clone_among(manager: &Manager, all: &[NamespaceCopy], tag: Uuid) -> Result<Option<Namespace>, DriveError> {
    let found = all.iter().find(|copy| copy.writable && copy.tag.0 == clone_tag(tag).0);
    let Some(found) = found else { return Ok(None) };
    let uid = Uuid::from_bytes(found.nguid);
    Ok(listed(manager).await?.into_iter().find(|namespace| namespace.nsid == found.nsid && namespace.uid == uid))
}

/// See [`Drives::copied`](::control::provision::Drives::copied).
pub async fn copied(options: Options, tag: Uuid) -> Result<Option<Namespace>, DriveError> {
    let manager = Manager::connect(options).await.map_err(unreached)?;
    let all = copies(&manager).await?;
    let found = clone_among(&manager, &all, tag).await?;
    manager.leave().await;
    Ok(found)
}

/// See [`Drives::copy`](::control::provision::Drives::copy).
pub async fn copy(options: Options, replica: Replica, tag: Uuid, until: StdInstant) -> Result<Namespace, DriveError> {
    let manager = Manager::connect(options.clone()).await.map_err(unreached)?;
    let all = copies(&manager).await?;
    if let Some(made) = clone_among(&manager, &all, tag).await? {
        return Ok(made);
    }
    let wanted = name_of(&replica.moment).tag(replica.volume.as_u128());
    let source = replica.namespace.uid.into_bytes();
    let is_it = |copy: &&NamespaceCopy| {
        !copy.writable && copy.source == source && wanted.as_ref().is_some_and(|wanted| copy.tag.0 == wanted.0)
    };
    let Some(snapshot) = all.iter().find(is_it) else {
        return Err(DriveError::Refused("it has no copy of the snapshot".into()));
    };
    in_time(until)?;
    let made = within(&Until::new(until.into()), async {
        let nsid = manager.clone_of(snapshot.nsid, clone_tag(tag)).await.map_err(changed)?;
        let lost = |error: fabric::host::ConnectError| DriveError::Unknown(error.to_string());
        let made = listed(&manager).await.map_err(|error| DriveError::Unknown(error.to_string()))?;
        // The next controllers begin with it, this one need not.
        let next = Manager::connect(options).await.map_err(lost)?;
        let is_attached = next.is_attached(nsid).await.map_err(lost)?;
        next.leave().await;
        match made.into_iter().find(|namespace| namespace.nsid == nsid) {
            Some(made) if is_attached => Ok(made),
            Some(_) => Err(DriveError::Refused("what it clones it attaches to no host".into())),
            None => Err(DriveError::Unknown("it does not show the clone".into())),
        }
    })
    .await;
    manager.leave().await;
    made
}

/// Deletes the snapshots of a namespace that is to be deleted: nobody can name them any more.
pub async fn delete_snapshots(manager: &Manager, nsid: u32) -> Result<(), DriveError> {
    if !manager.extension().await.map_err(unreached)?.copies {
        return Ok(());
    }
    for copy in manager.copies(Some(nsid)).await.map_err(unreached)?.iter().filter(|copy| !copy.writable) {
        manager.delete_copy(copy.nsid, copy.nguid).await.map_err(changed)?;
    }
    Ok(())
}

/// See [`Drives::work`](::control::provision::Drives::work).
pub async fn work(volume: Uuid, holders: Vec<Option<(Options, Blank)>>, work: Work) -> Result<Done, DriveError> {
    let there: Vec<_> = holders.iter().flatten().cloned().collect();
    let Some((usual, _)) = there.first() else {
        return Err(DriveError::Refused("all of its drives are gone for good".into()));
    };
    let mut all: Vec<Rc<dyn Reach>> = Vec::new();
    for holder in &holders {
        all.push(match holder {
            Some((options, holder)) => Rc::new(Known::new(options, &holder.namespace)),
            None => Rc::new(reach(&Options { address: SocketAddr::from(NOWHERE), ..usual.clone() }, 1)),
        });
    }
    let unknown = |error: ::volume::Error| DriveError::Unknown(error.to_string());
    let options = AttachOptions { volume: Some(volume.as_u128()), ..AttachOptions::default() };
    let attached = ::volume::attach(all, options).await.map_err(|error| DriveError::Unreachable(error.to_string()))?;
    if let Work::Replace(replacement) = &work {
        settled(&attached, replacement, FILLED_TIME).await;
    }
    let gone = Set::of(holders.len(), |slot| holders[slot].is_none());
    let done = done_by(&attached, &work, gone).await;
    // Nobody may have the volume for long, and what was deleted would take room until then.
    let _ = engine::time::timeout(COLLECTED_TIME, attached.collected()).await;
    let detached = attached.detach().await;
    match done {
        Ok(done) => detached.map(|()| done).map_err(unknown),
        Err(Undone::Refused(why)) => Err(DriveError::Refused(why)),
        Err(Undone::Unknown(why)) => Err(DriveError::Unknown(why)),
    }
}

/// See [`Drives::replace`](::control::provision::Drives::replace). `holders`: first the new one, then others of the volume.
pub async fn replace(volume: Uuid, slot: usize, holders: Vec<(Options, Blank)>) -> Result<Uuid, DriveError> {
    let Some(((options, new), beside)) = holders.split_first() else {
        return Err(DriveError::Refused("invariant: a new holder was given".into()));
    };
    let with = reaches(&[(options.clone(), new.clone())]).await?.remove(0);
    // Formatted already, by an attempt before this one: what a host may have put there since stays.
    let labelled = |label: &Label| {
        (label.shape.volume, usize::from(label.slot), label.born) == (volume.as_u128(), slot, Born::Intent)
    };
    match ::volume::inspect(&*with, true).await {
        Ok(found) if labelled(&found.label) => return Ok(Uuid::from_u128(found.label.life)),
        Ok(_) | Err(::volume::Error::Record { .. }) => {
            return Err(DriveError::Refused("it is a holder of something else by now".into()));
        }
        // Blank, or begun by an attempt before this one.
        Err(::volume::Error::Label { .. }) => {}
        Err(error) => return Err(unformatted(error)),
    }
    let mut why = DriveError::Unreachable("no other holder of the volume was named".into());
    for (options, holder) in beside {
        let known = Known::new(options, &holder.namespace);
        match ::volume::inspect(&known, true).await {
            Ok(found) if found.label.shape.volume == volume.as_u128() => {
                // Nobody but this operation has it, and it was blank when it was made.
                let made = ::volume::format_replacement(with, found.label.shape, slot, true).await;
                return made.map(Uuid::from_u128).map_err(unformatted);
            }
            Ok(_) => why = DriveError::Refused(format!("{} is a holder of another volume by now", known.name())),
            Err(error) => why = DriveError::Unreachable(error.to_string()),
        }
    }
    Err(why)
}

/// See [`Drives::adopt`](::control::provision::Drives::adopt).
pub async fn adopt(
    volume: Uuid,
    of: Uuid,
    holders: Vec<(Options, Blank)>,
    is_copy: Vec<bool>,
) -> Result<u64, DriveError> {
    let reaches = reaches(&holders).await?;
    let slots = is_copy.iter().enumerate().filter(|(_, is_copy)| **is_copy);
    let clones = Set(slots.fold(0, |slots, (slot, _)| slots | 1 << slot));
    debug_assert!(holders.iter().any(|(_, holder)| holder.kind == HolderKind::Replica), "a volume has replicas");
    let options = AdoptOptions { of: of.as_u128(), clones, volume: Some(volume.as_u128()), force: false };
    let shape = ::volume::adopt(reaches, options).await.map_err(unformatted)?;
    Ok(shape.blocks * u64::from(shape.block_size))
}
