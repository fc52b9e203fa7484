//! Drives in memory, with faults.
//!
//! The fault model: an answer can be lost before or after the effect; an effect can come as late as the contract allows, after a
//! process has died, too; a drive can be away, refuse to create, or be full. A number is used again as soon as it is free. A change
//! that is asked for after its moment is not done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use control::provision::{
    Blank, Done, DriveError, Drives, HolderKind, Look, Namespace, Place, Replacement, Replica, Reply, Until, Usage,
    Work,
};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use uuid::Uuid;

use super::faults::{Fault, Faults, dead};
use super::mirror::Mirror;
pub use super::sim_drive::SimDrive;

pub const LATE: Duration = Duration::from_secs(10);
pub const GIB: u64 = 1 << 30;
/// Others get between a look and what is decided by it.
const LOOK_TAKES: Duration = Duration::from_millis(5);
/// What a replica has beside the data.
pub const HEAD: u64 = 1 << 20;
/// Bytes of a volume that are formatted in a second.
const SLOW: u64 = 50 * GIB;
pub const WITNESS: u64 = 8192;
/// How long a volume is put back at a time.
const RESTORED_TIME: Duration = Duration::from_millis(50);
/// How long a new holder is filled at a time.
const FILLED_TIME: Duration = Duration::from_secs(4);
/// Less than the time that a change may be late by.
const NEARLY: Duration = Duration::from_millis(10);

/// A namespace with its drive, and what it is formatted as.
pub type Found = (String, Namespace, Option<(Uuid, usize)>);

type State = Arc<Mutex<BTreeMap<String, SimDrive>>>;

pub type Mirrors = Arc<Mutex<BTreeMap<Uuid, Mirror>>>;

/// What is done to a drive.
#[derive(Clone, Debug)]
enum Effect {
    Create(String, u64),
    Delete(String, Namespace),
    Format(Uuid, u64, Vec<(String, Namespace)>),
    Ask(Vec<String>),
    Grow(String, Namespace, u64),
    Work(Uuid, Vec<Option<(String, Uuid)>>, Work),
    Replace(Uuid, usize, Vec<String>, (String, Namespace)),
    Copy(Replica, Uuid),
}

/// Drives by the names of their subsystems.
pub struct SimDrives {
    pub state: State,
    /// What stands on the holders of each volume.
    pub mirrors: Mirrors,
    pub faults: Arc<Faults>,
    /// Namespaces that somebody else made: they must never go.
    pub sacred: Mutex<BTreeSet<Uuid>>,
    /// Volumes that hosts use, or have used.
    pub used: Mutex<BTreeMap<Uuid, Usage>>,
    /// Volumes that a host has attached, in truth.
    pub in_use: Mutex<BTreeSet<Uuid>>,
    /// Namespaces that another program has reserved.
    pub foreign: Mutex<BTreeSet<Uuid>>,
    /// Former holders that a host uses still.
    pub clung: Mutex<BTreeSet<Uuid>>,
    /// Volumes that stay: of these nothing is deleted that the mirror needs.
    pub kept: Arc<Mutex<BTreeSet<Uuid>>>,
    /// The next change waits for this before it begins.
    pub held: Mutex<Option<Arc<Notify>>>,
}

impl SimDrives {
    pub fn new(faults: Arc<Faults>) -> SimDrives {
        SimDrives {
            state: State::default(),
            mirrors: Mirrors::default(),
            faults,
            sacred: Mutex::default(),
            used: Mutex::default(),
            in_use: Mutex::default(),
            foreign: Mutex::default(),
            clung: Mutex::default(),
            kept: Arc::default(),
            held: Mutex::default(),
        }
    }

    pub fn add(&self, nqn: &str, drive: SimDrive) {
        self.state.lock().unwrap().insert(nqn.into(), drive);
    }

    pub fn with<T>(&self, nqn: &str, change: impl FnOnce(&mut SimDrive) -> T) -> T {
        change(self.state.lock().unwrap().get_mut(nqn).expect("a drive"))
    }

    /// A namespace that is none of the provisioner's business, with something on it.
    pub fn make_sacred(&self, nqn: &str, bytes: u64) -> Namespace {
        let made = self.with(nqn, |drive| {
            let made = drive.make(bytes);
            drive.namespaces.insert(made.nsid, (made, Some((Uuid::nil(), 0))));
            made
        });
        self.sacred.lock().unwrap().insert(made.uid);
        made
    }

    /// All namespaces of all drives.
    pub fn namespaces(&self) -> BTreeMap<Uuid, Found> {
        let state = self.state.lock().unwrap();
        let of = |(nqn, drive): (&String, &SimDrive)| {
            let nqn = nqn.clone();
            drive
                .namespaces
                .values()
                .map(move |(made, label)| (made.uid, (nqn.clone(), *made, *label)))
                .collect::<Vec<_>>()
        };
        state.iter().flat_map(of).collect()
    }

    /// What hosts have used is not made anew.
    fn may_format(&self, volume: Uuid, holders: &[(String, Namespace)]) -> Result<(), DriveError> {
        let state = self.state.lock().unwrap();
        let is_made = |(slot, (nqn, namespace)): (usize, &(String, Namespace))| {
            state[nqn].namespaces.get(&namespace.nsid) == Some(&(*namespace, Some((volume, slot))))
        };
        if self.used.lock().unwrap().contains_key(&volume) && !holders.iter().enumerate().all(is_made) {
            return Err(DriveError::Refused("a host has attached it".into()));
        }
        self.is_free(holders.iter().map(|(_, namespace)| namespace.uid))
    }

    /// What another program has reserved is not taken.
    fn is_free(&self, mut uids: impl Iterator<Item = Uuid>) -> Result<(), DriveError> {
        let foreign = self.foreign.lock().unwrap();
        if uids.any(|uid| foreign.contains(&uid)) {
            return Err(DriveError::Foreign("key 0x5".into()));
        }
        Ok(())
    }

    /// What must not be deleted: what somebody else made, and what a volume that stays needs: each holder, as the mirror has it,
    /// and who was a holder until the slot is in sync again.
    fn untouchable(&self) -> BTreeSet<Uuid> {
        let (mut all, mirrors) = (self.sacred.lock().unwrap().clone(), self.mirrors.lock().unwrap());
        for mirror in self.kept.lock().unwrap().iter().filter_map(|volume| mirrors.get(volume)) {
            all.extend(mirror.has.values());
            all.extend(mirror.had.iter().filter(|(_, slot)| mirror.behind.contains_key(slot)).map(|(uid, _)| *uid));
        }
        all
    }

    async fn change(&self, effect: Effect, until: Instant) -> Result<(), DriveError> {
        let held = self.held.lock().unwrap().take();
        if let Some(held) = held {
            held.notified().await;
        }
        let fault = if self.faults.is_dead() { return dead().await } else { self.faults.next() };
        if Instant::now() >= until {
            return Err(DriveError::Unknown("the time is over".into()));
        }
        let sacred = self.untouchable();
        let later = |at: Instant| {
            let (state, mirrors) = (self.state.clone(), self.mirrors.clone());
            let (effect, sacred) = (effect.clone(), sacred.clone());
            tokio::spawn(async move {
                sleep_until(at - NEARLY).await;
                let _refused = apply((&state, &mirrors), &effect, &sacred);
            });
        };
        let lost = || Err(DriveError::Unknown("the answer was lost".into()));
        match fault {
            None => apply((&self.state, &self.mirrors), &effect, &sacred),
            Some(Fault::DiesBefore) => dead().await,
            Some(Fault::DiesAfter) => {
                apply((&self.state, &self.mirrors), &effect, &sacred)?;
                dead().await
            }
            Some(Fault::DiesAndItComesLate) => {
                later(until + LATE);
                dead().await
            }
            Some(Fault::LostBefore) => lost(),
            Some(Fault::LostAfter) => {
                apply((&self.state, &self.mirrors), &effect, &sacred)?;
                lost()
            }
            Some(Fault::LostAndItComesLate) => {
                later(Instant::now() + LATE);
                lost()
            }
        }
    }
}

fn reach<'a>(state: &'a mut BTreeMap<String, SimDrive>, nqn: &str) -> Result<&'a mut SimDrive, DriveError> {
    let drive = state.get_mut(nqn).ok_or_else(|| DriveError::Unreachable("no such subsystem".into()))?;
    if drive.is_away { Err(DriveError::Unreachable("it is away".into())) } else { Ok(drive) }
}

fn apply((state, mirrors): (&State, &Mirrors), effect: &Effect, sacred: &BTreeSet<Uuid>) -> Result<(), DriveError> {
    let mut state = state.lock().unwrap();
    match effect {
        Effect::Create(nqn, bytes) => {
            let drive = reach(&mut state, nqn)?;
            if let Some(why) = &drive.refuses {
                return Err(DriveError::Refused(why.clone()));
            }
            if !drive.thin && drive.free() < *bytes {
                return Err(DriveError::Refused("insufficient capacity".into()));
            }
            drive.make(*bytes);
            Ok(())
        }
        Effect::Delete(nqn, namespace) => {
            let drive = reach(&mut state, nqn)?;
            if drive.namespaces.get(&namespace.nsid).is_some_and(|(found, _)| found.uid == namespace.uid) {
                assert!(!sacred.contains(&namespace.uid), "a namespace of somebody else was deleted: {namespace:?}");
                drive.namespaces.remove(&namespace.nsid);
                drive.copies.retain(|_, copy| copy.uid != namespace.uid);
            }
            Ok(())
        }
        Effect::Grow(nqn, namespace, bytes) => {
            let drive = reach(&mut state, nqn)?;
            if *bytes > drive.grows_to {
                return Err(DriveError::Refused("capacity exceeded".into()));
            }
            let found = drive.namespaces.get_mut(&namespace.nsid).filter(|(found, _)| found.uid == namespace.uid);
            let (found, _) = found.ok_or_else(|| DriveError::Refused("there is no such namespace".into()))?;
            found.bytes = found.bytes.max(*bytes);
            Ok(())
        }
        Effect::Work(volume, nqns, work) => {
            let mut mirrors = mirrors.lock().unwrap();
            let mirror = mirrors.get_mut(volume).ok_or_else(|| DriveError::Refused("no such volume".into()))?;
            let named = nqns.iter().enumerate().filter_map(|(slot, named)| named.as_ref().map(|named| (slot, named)));
            let there = named.filter(|(_, (nqn, _))| reach(&mut state, nqn).is_ok());
            mirror.reached = there.map(|(slot, (_, uid))| (slot, *uid)).collect();
            if !mirror.is_attachable(nqns.len()) {
                return Err(DriveError::Unreachable("no majority of the holders".into()));
            }
            mirror.reads(work, (0..nqns.len()).filter(|slot| nqns[*slot].is_none()))?;
            mirror.round += 1;
            if let Work::Replace(Replacement { go: true, slot, life, .. }) = work {
                let named = nqns[*slot].as_ref().map(|(_, uid)| *uid);
                assert_eq!(named, Some(*life), "the new holder has the slot");
            }
            mirror.work(work);
            Ok(())
        }
        Effect::Replace(volume, slot, beside, (nqn, namespace)) => {
            if !beside.iter().any(|nqn| reach(&mut state, nqn).is_ok()) {
                return Err(DriveError::Unreachable("no other holder".into()));
            }
            label(&mut state, (nqn, namespace), (*volume, *slot))
        }
        Effect::Copy(replica, tag) => copy((&mut state, mirrors), replica, *tag),
        Effect::Ask(nqns) => nqns.iter().try_for_each(|nqn| reach(&mut state, nqn).map(drop)),
        Effect::Format(volume, bytes, holders) => {
            for (slot, (nqn, namespace)) in holders.iter().enumerate() {
                label(&mut state, (nqn, namespace), (*volume, slot))?;
            }
            let has = holders.iter().enumerate().map(|(slot, (_, namespace))| (slot, namespace.uid)).collect();
            let mirror = || Mirror { bytes: *bytes, has, ..Mirror::default() };
            mirrors.lock().unwrap().entry(*volume).or_insert_with(mirror);
            Ok(())
        }
    }
}

/// Makes a namespace that slot of the volume, if it is blank, or that already, or a clone.
fn label(
    state: &mut BTreeMap<String, SimDrive>,
    (nqn, namespace): (&str, &Namespace),
    label: (Uuid, usize),
) -> Result<(), DriveError> {
    let drive = reach(state, nqn)?;
    let found = drive.namespaces.get_mut(&namespace.nsid).filter(|(found, _)| found.uid == namespace.uid);
    match found {
        None => Err(DriveError::Refused("there is no such namespace".into())),
        Some((_, Some(has))) if *has != label && has.1 != 99 => {
            Err(DriveError::Refused("it holds something else".into()))
        }
        Some((_, has)) => {
            *has = Some(label);
            Ok(())
        }
    }
}

fn copy(
    (state, mirrors): (&mut BTreeMap<String, SimDrive>, &Mirrors),
    replica: &Replica,
    tag: Uuid,
) -> Result<(), DriveError> {
    let drive = reach(state, replica.place.nqn.as_str())?;
    let mirrors = mirrors.lock().unwrap();
    let is_there = mirrors[&replica.volume].moments.iter().any(|moment| moment.is(&replica.moment));
    let source = drive.namespaces.values().find(|(found, _)| found.uid == replica.namespace.uid);
    let Some((source, _)) = source.filter(|_| is_there).copied() else {
        return Err(DriveError::Refused("there is no such snapshot".into()));
    };
    if let Some(why) = &drive.refuses {
        return Err(DriveError::Refused(why.clone()));
    }
    if !drive.copies.contains_key(&tag) {
        let made = drive.make(source.bytes);
        // It is what it was made of, until it is adopted.
        drive.namespaces.insert(made.nsid, (made, Some((replica.volume, 99))));
        drive.copies.insert(tag, made);
        drive.attempts.insert(made.uid, replica.moment.attempt);
    }
    Ok(())
}

impl Drives for SimDrives {
    fn look(&self, place: &Place) -> Reply<'_, Look> {
        let nqn = place.nqn.to_string();
        Box::pin(async move {
            if self.faults.is_dead() {
                return dead().await;
            }
            let is_late = self.state.lock().unwrap().get(&nqn).is_some_and(|drive| drive.answers_late);
            sleep(if is_late { LOOK_TAKES * 2000 } else { LOOK_TAKES }).await;
            let mut state = self.state.lock().unwrap();
            let drive = reach(&mut state, &nqn)?;
            let namespaces = drive.namespaces.values().map(|(namespace, _)| *namespace).collect();
            Ok(Look { total: drive.total, free: drive.free(), thin: drive.thin, namespaces_max: 1000, namespaces })
        })
    }

    fn create(&self, place: &Place, bytes: u64, until: Instant) -> Reply<'_, ()> {
        Box::pin(self.change(Effect::Create(place.nqn.to_string(), bytes), until))
    }

    fn delete(&self, place: &Place, namespace: Namespace, until: Instant) -> Reply<'_, ()> {
        Box::pin(self.change(Effect::Delete(place.nqn.to_string(), namespace), until))
    }

    fn is_blank(&self, place: &Place, namespace: Namespace) -> Reply<'_, bool> {
        let nqn = place.nqn.to_string();
        Box::pin(async move {
            if self.faults.is_dead() {
                return dead().await;
            }
            let mut state = self.state.lock().unwrap();
            let drive = reach(&mut state, &nqn)?;
            if drive.is_dark {
                return Err(DriveError::Refused("it can't be read".into()));
            }
            let found = drive.namespaces.get(&namespace.nsid);
            let found = found.filter(|(found, _)| found.uid == namespace.uid);
            found.map(|(_, label)| label.is_none()).ok_or_else(|| DriveError::Refused("there is none".into()))
        })
    }

    fn format(&self, volume: Uuid, bytes: u64, holders: &[Blank], until: &Until) -> Reply<'_, ()> {
        let (until, takes) = (until.clone(), Duration::from_secs(bytes / SLOW));
        let holders: Vec<_> = holders.iter().map(|holder| (holder.place.nqn.to_string(), holder.namespace)).collect();
        Box::pin(async move {
            self.may_format(volume, &holders)?;
            if !takes.is_zero() {
                sleep(takes).await;
            }
            let until = until.get();
            self.change(Effect::Format(volume, bytes, holders), until).await
        })
    }

    /// The life of a replacement is that of its namespace.
    fn replace(&self, volume: Uuid, slot: usize, beside: &[Blank], with: &Blank, until: &Until) -> Reply<'_, Uuid> {
        let beside = beside.iter().map(|holder| holder.place.nqn.to_string()).collect();
        let new = (with.place.nqn.to_string(), with.namespace);
        let (until, life) = (until.get(), with.namespace.uid);
        Box::pin(async move {
            self.change(Effect::Replace(volume, slot, beside, new), until).await?;
            Ok(life)
        })
    }

    fn usage(&self, volume: Uuid, of: Option<Uuid>, holders: &[Blank], until: Instant) -> Reply<'_, Usage> {
        let asked = holders.iter().map(|holder| holder.place.nqn.to_string()).collect();
        let uids: Vec<_> = holders.iter().map(|holder| holder.namespace.uid).collect();
        Box::pin(async move {
            self.change(Effect::Ask(asked), until).await?;
            self.is_free(uids.iter().copied())?;
            let there = self.namespaces();
            let labels = uids.iter().filter_map(|uid| there.get(uid)?.2);
            if labels.into_iter().any(|(label, _)| label != volume && Some(label) != of) {
                return Ok(Usage::Another);
            }
            // Who has the volume uses no holder that was replaced.
            let mirror = self.mirrors.lock().unwrap().get(&volume).cloned().unwrap_or_default();
            let is_former = |uid: &Uuid| mirror.had.contains_key(uid) && !self.clung.lock().unwrap().contains(uid);
            if uids.iter().all(is_former) {
                return Ok(Usage::Before);
            }
            // Nor one that it was not told of.
            let is_new = |uid: &Uuid| !mirror.has.values().any(|has| has == uid) && !mirror.had.contains_key(uid);
            if !mirror.has.is_empty() && uids.iter().all(is_new) {
                return Ok(Usage::Never);
            }
            // The control plane itself leaves its traces there, too.
            let untold = if mirror.round > 0 { Usage::Before } else { Usage::Never };
            Ok(self.used.lock().unwrap().get(&volume).copied().unwrap_or(untold))
        })
    }

    fn grow(&self, place: &Place, namespace: Namespace, bytes: u64, until: Instant) -> Reply<'_, ()> {
        Box::pin(self.change(Effect::Grow(place.nqn.to_string(), namespace, bytes), until))
    }

    fn work(&self, volume: Uuid, holders: &[Option<Blank>], work: &Work, until: &Until) -> Reply<'_, Done> {
        let nqn =
            |holder: &Option<Blank>| holder.as_ref().map(|holder| (holder.place.nqn.to_string(), holder.namespace.uid));
        let nqns = holders.iter().map(nqn).collect();
        let (work, until) = (work.clone(), until.get());
        Box::pin(async move {
            assert!(!self.in_use.lock().unwrap().contains(&volume), "a volume was taken from a host that uses it");
            self.change(Effect::Work(volume, nqns, work.clone()), until).await?;
            // What was taken is told from what there was before.
            let done = self.mirrors.lock().unwrap().get_mut(&volume).expect("it was attached").work(&work);
            if let Work::Replace(replacement) = &work
                && done.progress.as_ref().is_some_and(|progress| replacement.go && !progress.is_whole(replacement))
            {
                sleep(FILLED_TIME).await;
            }
            if done.restored.is_some() {
                sleep(RESTORED_TIME).await;
            }
            Ok(done)
        })
    }

    fn copy(&self, replica: &Replica, tag: Uuid, until: Instant) -> Reply<'_, Namespace> {
        let replica = replica.clone();
        Box::pin(async move {
            self.change(Effect::Copy(replica.clone(), tag), until).await?;
            Ok(self.with(replica.place.nqn.as_str(), |drive| drive.copies[&tag]))
        })
    }

    fn copied(&self, place: &Place, tag: Uuid) -> Reply<'_, Option<Namespace>> {
        let nqn = place.nqn.to_string();
        Box::pin(async move {
            if self.faults.is_dead() {
                return dead().await;
            }
            let mut state = self.state.lock().unwrap();
            Ok(reach(&mut state, &nqn)?.copies.get(&tag).copied())
        })
    }

    fn adopt(&self, volume: Uuid, of: Uuid, holders: &[Blank], is_copy: &[bool], until: &Until) -> Reply<'_, u64> {
        assert!(is_copy.contains(&true), "nothing to adopt");
        assert!(!self.in_use.lock().unwrap().contains(&volume), "a volume was taken from a host that uses it");
        let bytes = self.mirrors.lock().unwrap()[&of].bytes;
        let formatted = self.format(volume, bytes, holders, until);
        let copies = holders.iter().zip(is_copy).filter(|(_, is_copy)| **is_copy);
        let attempt =
            |holder: &Blank| self.with(holder.place.nqn.as_str(), |drive| drive.attempts[&holder.namespace.uid]);
        let attempts: BTreeSet<u32> = copies.map(|(holder, _)| attempt(holder)).collect();
        assert_eq!(attempts.len(), 1, "clones of different moments");
        Box::pin(async move {
            formatted.await?;
            let mut mirrors = self.mirrors.lock().unwrap();
            let written = attempts.iter().map(|attempt| mirrors[&of].kept[attempt]).max().unwrap_or_default();
            mirrors.get_mut(&volume).expect("formatted").written = written;
            Ok(bytes)
        })
    }

    fn grows_to(&self, bytes: u64) -> u64 {
        (16 * bytes).max(64 * GIB)
    }

    fn holder_bytes(&self, kind: HolderKind, bytes: u64) -> u64 {
        match kind {
            HolderKind::Replica => bytes + HEAD,
            HolderKind::Witness => WITNESS,
        }
    }

    fn late(&self) -> Duration {
        LATE
    }
}
