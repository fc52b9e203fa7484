//! Makes a new volume of clones: writable copies of the namespaces that have one snapshot of a volume.
//!
//! A clone begins with all bytes of a holder, its label among them: it says that it is a holder of the old volume. It becomes a
//! holder of the new volume, with a life of its own, as a namespace does that is formatted, but that its data is not touched.
//!
//! Invariants:
//! - A clone that was never attached has no reservation, and a holder of a volume always has one: what has one is refused, whatever
//!   its label says. So the source volume's own holders are never taken for clones.
//! - Clones of a volume that was a part of a snapshot ([`Origin::InPart`]) are one: they are no volume to use.
//! - What there is is looked at before anything is changed. Then each namespace says that it is being formatted, before it gets its
//!   record; the labels come last. So one that is half done is a holder of neither volume.
//! - The logs are born clean, and the clones are in sync: a snapshot is taken while nothing is in flight, so all copies are equal.
//!   Those that are made anew beside them are not in sync, and born with intent.
//! - The label says the size that the volume had at that moment.
//!
//! Which namespaces are clones of the copies of one snapshot nobody can tell for sure from their bytes: that their records are the
//! same is looked at, the caller has to know the rest.

use std::rc::Rc;

use device::Namespace;
use engine::task::{self, LocalFuture};

use crate::blocks::read_block;
use crate::candidate::{Candidate, look};
use crate::error::Error;
use crate::format::{check, label, prepare, record_block, sealed, uuid};
use crate::inspect::inspect;
use crate::label::{Born, Kind, Label, Life, RECORD_BLOCK, Shape};
use crate::making::Making;
use crate::origin::Origin;
use crate::reach::{Reach, Takes};
use crate::record::{Ballot, FORMAT_ROUND, HOLDERS_MAX, Record, RecordBlock, Set};

/// How clones are made a volume.
#[derive(Clone, Copy, Debug)]
pub struct AdoptOptions {
    /// The volume that the clones are copies of.
    pub of: u128,
    /// The slots in which the clones are: those of the replicas that they are copies of.
    pub clones: Set,
    /// The new volume's identifier, other than 0 and than that of the old one; `None`: a random one. Who gives one and finds that
    /// all holders are of that volume already has made it.
    pub volume: Option<u128>,
    /// Takes namespaces for the other slots that are in use.
    pub force: bool,
}

/// A clone, as it was found.
struct Found {
    candidate: Candidate,
    label: Label,
    record: Record,
}

/// Makes a volume of clones, by slot, and of blank namespaces in the other slots: missing replicas, which are filled when the
/// volume is attached, and the witness. After an error in the middle what was taken says that it is being formatted: clones have to
/// be made anew then.
///
/// # Errors
/// [`Error::OtherVolume`]: a namespace is no clone of the replica in that slot. [`Error::InUse`]: it has a reservation, so it is
/// no clone that nobody has used, or is not blank. Else as [`format()`](crate::format()).
pub fn adopt(reaches: Vec<Rc<dyn Reach>>, options: AdoptOptions) -> LocalFuture<'static, Result<Shape, Error>> {
    Box::pin(async move {
        if options.clones.is_empty() || options.volume == Some(0) || options.volume == Some(options.of) {
            return Err(Error::Impossible("a volume is made of one clone or more, with an identifier of its own"));
        }
        if let Some(shape) = made(&reaches, options.volume).await {
            return Ok(shape);
        }
        let mut found = Vec::new();
        for slot in options.clones.iter() {
            let reach = reaches.get(slot).ok_or(Error::Impossible("a clone is one of the holders that are named"))?;
            found.push(look_at_clone(reach, slot, options.of).await?);
        }
        let old = found[0].label.shape;
        if reaches.len() != old.holders() {
            return Err(Error::Impossible("the volume has another number of holders than were named"));
        }
        // Whoever was asked for the snapshot had the same record, and was in sync by it. The next snapshot makes another one.
        let source = &found[0].record;
        let is_of_it = |clone: &Found| {
            let slot = usize::from(clone.label.slot);
            clone.label.shape == old && clone.record == *source && clone.label.life == source.lives[slot]
        };
        if !found.iter().all(|clone| is_of_it(clone) && source.in_sync.has(clone.label.slot.into())) {
            return Err(Error::Impossible("these are not clones of one snapshot: their records differ"));
        }
        let blocks = source.size(old.blocks);
        let shape = Shape { volume: options.volume.unwrap_or_else(uuid), blocks, ..old };
        let lives: [Life; HOLDERS_MAX] = std::array::from_fn(|slot| if slot < reaches.len() { uuid() } else { 0 });
        let ballot = Ballot { round: FORMAT_ROUND, host: task::random_u64() };
        let (in_sync, lives_before, origin) = (options.clones, lives, source.origin.and_then(Origin::inherited));
        let record = Record { ballot, version: 1, in_sync, lives, lives_before, origin, ..Record::default() };
        let mut others = Vec::new();
        for (slot, reach) in reaches.iter().enumerate().filter(|(slot, _)| !options.clones.has(*slot)) {
            let other = look(reach, options.force, None).await?;
            let label = label(&shape, slot, Born::Intent, lives[slot]);
            check(&other, &shape, label.kind)?;
            if found.iter().any(|clone| clone.candidate.info.nguid == other.info.nguid) {
                return Err(Error::Impossible("a clone was named twice: it would be destroyed"));
            }
            others.push((other, label));
        }
        make(&found, &others, &record, shape).await?;
        Ok(shape)
    })
}

async fn make(found: &[Found], others: &[(Candidate, Label)], record: &Record, shape: Shape) -> Result<(), Error> {
    let mut all = Vec::new();
    for (other, label) in others {
        all.push((prepare(other, label, record).await?, *label));
    }
    for clone in found {
        let life = record.lives[usize::from(clone.label.slot)];
        let label = Label { shape, born: Born::Clean, life, ..clone.label };
        let mut making =
            Making::begin(&clone.candidate, sealed(&shape, |bytes| label.encode_unfinished(bytes))).await?;
        record_block(&mut making, &label, record).await?;
        all.push((making, label));
    }
    // A crash before the last of these leaves a volume that attaches with those that have a label, or none.
    for (making, label) in &mut all {
        making.turn_into(sealed(&shape, |bytes| label.encode(bytes))).await?;
    }
    Ok(())
}

/// The shape of the volume, where all of these are its holders already, by slot.
async fn made(reaches: &[Rc<dyn Reach>], volume: Option<u128>) -> Option<Shape> {
    let (volume, mut shape) = (volume?, None);
    // What a host has attached is taken only where none of them can be seen to be something else.
    for reach in reaches {
        if inspect(&**reach, false).await.is_ok_and(|found| found.label.shape.volume != volume) {
            return None;
        }
    }
    for (slot, reach) in reaches.iter().enumerate() {
        let label = inspect(&**reach, true).await.ok()?.label;
        let is_one = label.shape.volume == volume && usize::from(label.slot) == slot;
        shape = Some(label.shape).filter(|found| is_one && shape.is_none_or(|shape| shape == *found));
        shape?;
    }
    shape
}

async fn look_at_clone(reach: &Rc<dyn Reach>, slot: usize, of: u128) -> Result<Found, Error> {
    let (namespace, name) = (reach.look().await?, reach.name());
    let failed = |source| match source {
        device::Error::Reserved(_) => {
            let by = "it has a reservation: it is a holder of a volume, and no clone that nobody has used".to_owned();
            Error::InUse { holder: name.clone(), by }
        }
        source => Error::Device { holder: name.clone(), source },
    };
    let first = read_block(&namespace, 0).await.map_err(failed)?.freeze();
    let label = Label::decode(&first).map_err(|source| Error::Label { holder: name.clone(), source })?;
    if label.shape.volume != of || usize::from(label.slot) != slot || label.kind == Kind::Witness {
        return Err(Error::OtherVolume { holder: name, volume: label.shape.volume, slot: label.slot });
    }
    let bytes = read_block(&namespace, RECORD_BLOCK).await.map_err(failed)?;
    let record = RecordBlock::decode(&bytes, label.life);
    let record = record.map_err(|source| Error::Record { holder: name.clone(), source })?.accepted;
    let blocks = record.size(label.shape.blocks);
    let (needed, info) = (label.data_first.saturating_add(blocks), namespace.info());
    if info.blocks < needed || label.regions_of(blocks).is_none() {
        return Err(Error::TooSmall { holder: name, blocks: info.blocks, needed });
    }
    let (reach, takes) = (Rc::clone(reach), Takes::Unreserved);
    let candidate = Candidate { reach, name, info, first, was_attached: false, takes };
    Ok(Found { candidate, label, record })
}
