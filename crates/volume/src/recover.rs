//! Goes on with one copy of a volume of which a majority of the holders is lost for good.
//!
//! Nobody can tell whether the lost ones went on without the copy, or will be back. So the copy does not become the old volume by a
//! vote that it has not got: it becomes a replica of a *new* volume of the same shape, with an identifier and lives of its own, the
//! only one in sync there. Every holder says to which volume it belongs, so holders of the old one that come back never count
//! for the new one, nor the other way round: whoever names both is refused. Among themselves they are the old volume still.
//!
//! Invariants:
//! - The copy's data is not touched. Its label changes from the one volume to the other in one compare-and-write; before that
//!   nothing of the copy was changed, and after it the record and the log there are of another life, which counts as never written.
//! - The other holders come first, with the record: were the copy's label the first one, a crash would leave a volume without a
//!   record. A recovery that breaks off is begun again.
//! - A volume that could be attached is not recovered: it is still the old one, and may be in use.
//! - The log says intent everywhere: the others are filled with all of it.
//! - What was a part of a snapshot ([`Origin::InPart`]) is one in the new volume as well: the copy is no volume to use.
//! - The new volume is as large as any holder's record says that the old one was, if the copy has the room for that. Where no
//!   record can be read the caller has to say it: the label knows only what the volume was made with, and it may have grown.

use std::rc::Rc;

use device::{Durability, Lba, Namespace};
use engine::task::{self, LocalFuture};
use fabric::host::AnyRemote;

use crate::blocks::read_block;
use crate::candidate::{Candidate, look, look_at_copy};
use crate::error::Error;
use crate::format::{check, label, prepare, sealed, uuid};
use crate::inspect::{Inspected, inspect};
use crate::label::{Born, Kind, Label, Life, RECORD_BLOCK, Shape};
use crate::making::Making;
use crate::mirror::{Promise, choose};
use crate::origin::Origin;
use crate::reach::Reach;
use crate::record::{Ballot, HOLDERS_MAX, Record, RecordBlock, Set};

/// How often a holder is taken that a living host takes back. Guessed: each fails only if that is quicker.
const TRIES_MAX: u32 = 4;

/// Makes a new volume of the copy that the holder in slot `from` has: the others are made anew, as [`format()`](crate::format())
/// does, and are filled when the volume is attached. Writes that were acknowledged and that the copy has not are lost; `force` says
/// that they may be, and that what the other namespaces hold may. `bytes`: how large the volume was; `None`: as its records say.
///
/// # Errors
/// [`Error::Loses`] without `force`. [`Error::Impossible`] where the volume could be attached. Else as
/// [`format()`](crate::format()).
pub fn recover(
    reaches: Vec<Rc<dyn Reach>>,
    from: usize,
    bytes: Option<u64>,
    force: bool,
) -> LocalFuture<'static, Result<Shape, Error>> {
    Box::pin(async move {
        let reach = reaches.get(from).ok_or(Error::Impossible("the copy is one of the holders that are named"))?;
        let copy = look_at_copy(reach, force).await?;
        let old = Label::decode(&copy.first);
        let old = old.map_err(|source| Error::Label { holder: copy.name.clone(), source })?;
        if usize::from(old.slot) != from {
            return Err(Error::OtherVolume { holder: copy.name, volume: old.shape.volume, slot: old.slot });
        }
        if old.kind == Kind::Witness {
            return Err(Error::Impossible("a witness has no copy"));
        }
        if reaches.len() != old.shape.holders() {
            return Err(Error::Impossible("the volume has another number of holders than were named"));
        }
        let known = look_around(&reaches, &old, force).await?;
        if !force {
            return Err(Error::Loses { what: what_is_lost(&known, &old), holder: copy.name });
        }
        if choose(&old.shape, &known.promises).is_ok() {
            return Err(Error::Impossible(
                "a majority of the volume's holders answers, and one in sync: attach it instead",
            ));
        }
        let blocks = size(&known, &old, &copy, bytes)?;
        // It may have grown: the new volume's labels say its size.
        let shape = Shape { volume: uuid(), blocks, ..old.shape };
        let lives: [Life; HOLDERS_MAX] = std::array::from_fn(|slot| if slot < reaches.len() { uuid() } else { 0 });
        let ballot = Ballot { round: 1, host: task::random_u64() };
        let (in_sync, lives_before, origin) = (Set::one(from), lives, inherited(&known, from));
        let record = Record { ballot, version: 1, in_sync, lives, lives_before, origin, ..Record::default() };
        make_others(&reaches, &copy, (from, &shape), &record).await?;
        let new = Label { shape, born: Born::Intent, life: lives[from], ..old };
        let mut making = Making::begin(&copy, sealed(&shape, |bytes| new.encode(bytes))).await?;
        let block = RecordBlock { life: new.life, promised: ballot, accepted: record.clone() };
        let bytes = sealed(&shape, |bytes| block.encode(bytes));
        let write = async |namespace: &AnyRemote| {
            let found = read_block(namespace, RECORD_BLOCK).await?.freeze();
            // The label is there: a host may have attached the new volume since, and have written a newer one.
            if RecordBlock::decode(&found, new.life).is_ok_and(|block| block.promised.round > 0) {
                return Ok(());
            }
            namespace.compare_and_write(Lba(RECORD_BLOCK), found, bytes.clone(), Durability::Stable).await
        };
        making.step(write).await?;
        Ok(shape)
    })
}

/// Of what the new volume is a part. The copy may have been away when the import began, by the newest record, or when it ended, by
/// its own.
fn inherited(known: &Known, from: usize) -> Option<Origin> {
    let records = || known.promises.iter().flatten().map(|promise| &promise.record);
    let own = known.promises[from].as_ref().map(|promise| &promise.record);
    let said = [records().max_by_key(|record| record.order()), own];
    said.into_iter().flatten().find_map(|record| record.origin?.inherited())
}

/// Blocks of the new volume.
fn size(known: &Known, old: &Label, copy: &Candidate, bytes: Option<u64>) -> Result<u64, Error> {
    let has_room = |blocks: u64| {
        blocks > 0 && old.regions_of(blocks).is_some() && old.data_first.saturating_add(blocks) <= copy.info.blocks
    };
    let block_size = u64::from(old.shape.block_size);
    if let Some(bytes) = bytes {
        let blocks = Some(bytes / block_size).filter(|&blocks| bytes.is_multiple_of(block_size) && has_room(blocks));
        return blocks.ok_or(Error::Impossible("the copy has no room for a volume of that size"));
    }
    let records = known.promises.iter().flatten().map(|promise| &promise.record).filter(|record| record.exists());
    let largest = records.map(|record| record.size(old.shape.blocks)).filter(|&blocks| has_room(blocks)).max();
    largest.ok_or(Error::Impossible("no record that can be read says how large the volume was: say its size"))
}

/// All but the copy become blank holders of the new volume. They are looked at before any of them is changed.
async fn make_others(
    reaches: &[Rc<dyn Reach>],
    copy: &Candidate,
    (from, shape): (usize, &Shape),
    record: &Record,
) -> Result<(), Error> {
    let mut others = Vec::new();
    for (slot, reach) in reaches.iter().enumerate().filter(|(slot, _)| *slot != from) {
        let other = look(reach, true, None).await?;
        if other.info.nguid == copy.info.nguid {
            return Err(Error::Impossible("the copy was named twice: it would be destroyed"));
        }
        let label = label(shape, slot, Born::Intent, record.lives[slot]);
        check(&other, shape, label.kind)?;
        others.push((other, label));
    }
    for (other, label) in &others {
        let mut making = prepare(other, label, record).await?;
        making.turn_into(sealed(shape, |bytes| label.encode(bytes))).await?;
    }
    Ok(())
}

/// What is known of the volume before anything is changed.
#[derive(Default)]
struct Known {
    /// What those say that are its holders, in their slots.
    promises: [Option<Promise>; HOLDERS_MAX],
    /// What is to be said of the others.
    others: String,
}

/// Looks at the holders that are named. But for the copy they are taken only by `force`: what a host has there may be something
/// else, and would not be taken back.
async fn look_around(reaches: &[Rc<dyn Reach>], copy: &Label, force: bool) -> Result<Known, Error> {
    let mut known = Known::default();
    for (slot, reach) in reaches.iter().enumerate() {
        let is_copy = slot == usize::from(copy.slot);
        let mut found = inspect(&**reach, force || is_copy).await;
        for _ in 1..TRIES_MAX {
            // A host that is alive takes a holder back before it was read.
            if force && matches!(found, Err(Error::Device { source: device::Error::Reserved(_), .. })) {
                found = inspect(&**reach, true).await;
            }
        }
        match found {
            Ok(Inspected { label, record, .. }) if label.shape == copy.shape && usize::from(label.slot) == slot => {
                known.promises[slot] = Some(Promise { life: label.life, record: record.accepted });
                if !is_copy {
                    known.others += &format!("; slot {slot} is a holder of the same volume, and answers");
                }
            }
            Err(Error::Device { source: device::Error::Reserved(_), .. }) if !is_copy => {
                known.others +=
                    &format!("; a host has what was named for slot {slot}, perhaps as a holder of this volume");
            }
            // It may be a holder that has more than the copy: what can't be looked at is not made anew.
            Err(error @ Error::Foreign { .. }) if force => return Err(error),
            _ => {}
        }
    }
    Ok(known)
}

/// What the copy itself knows of what it has, and what was seen of the others.
fn what_is_lost(known: &Known, copy: &Label) -> String {
    let record = known.promises[usize::from(copy.slot)].as_ref().map(|promise| &promise.record);
    let what = match record.filter(|record| record.exists()) {
        None => "it has no record by which to tell whether it was in sync",
        Some(record) if record.in_sync.has(copy.slot.into()) => {
            "it was in sync by its own record, and lacks what the others have taken since if they went on without it"
        }
        Some(_) => {
            "it was not in sync: it lacks writes, and is old in one place and new in another if it was being filled"
        }
    };
    format!("{what}{}", known.others)
}
