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
//! - The log says intent everywhere: the others are filled with all of it.

use std::rc::Rc;

use device::{Durability, Lba, Namespace};
use engine::task::{self, LocalFuture};
use fabric::host::AnyRemote;

use crate::blocks::read_block;
use crate::candidate::{Candidate, look};
use crate::error::Error;
use crate::format::{check, label, prepare, sealed, uuid};
use crate::label::{Born, Kind, Label, Life, RECORD_BLOCK, Shape};
use crate::making::Making;
use crate::reach::{Reach, Taken};
use crate::record::{Ballot, HOLDERS_MAX, Record, RecordBlock, Set};

/// Makes a new volume of the copy that the holder in slot `from` has: the others are made anew, as [`format()`](crate::format())
/// does, and are filled when the volume is attached. Writes that were acknowledged and that the copy has not are lost; `force` says
/// that they may be, and that what the other namespaces hold may.
///
/// # Errors
/// [`Error::Loses`] without `force`. Else as [`format()`](crate::format()).
pub fn recover(reaches: Vec<Rc<dyn Reach>>, from: usize, force: bool) -> LocalFuture<'static, Result<Shape, Error>> {
    Box::pin(async move {
        let reach = reaches.get(from).ok_or(Error::Impossible("the copy is one of the holders that are named"))?;
        let copy = look(reach, true, None).await?;
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
        if !force {
            let holder = reach.take().await?;
            return Err(Error::Loses { what: what_is_lost(&holder, &old).await, holder: copy.name });
        }
        let shape = Shape { volume: uuid(), ..old.shape };
        let lives: [Life; HOLDERS_MAX] = std::array::from_fn(|slot| if slot < reaches.len() { uuid() } else { 0 });
        let ballot = Ballot { round: 1, host: task::random_u64() };
        let record = Record { ballot, version: 1, in_sync: Set::one(from), lives, lives_before: lives };
        make_others(&reaches, &copy, (from, &shape), &record).await?;
        let new = Label { shape, born: Born::Intent, life: lives[from], ..old };
        let mut making = Making::begin(&copy, sealed(&shape, |bytes| new.encode(bytes))).await?;
        let block = RecordBlock { life: new.life, promised: ballot, accepted: record };
        let bytes = sealed(&shape, |bytes| block.encode(bytes));
        let write =
            async |namespace: &AnyRemote| namespace.write(Lba(RECORD_BLOCK), bytes.clone(), Durability::Stable).await;
        making.step(write).await?;
        Ok(shape)
    })
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
        let mut making = prepare(other, label, *record).await?;
        making.turn_into(sealed(shape, |bytes| label.encode(bytes))).await?;
    }
    Ok(())
}

/// What the copy itself knows of what it has.
async fn what_is_lost(holder: &Taken, label: &Label) -> String {
    let bytes = read_block(&holder.namespace, RECORD_BLOCK).await;
    let record = bytes.ok().and_then(|bytes| RecordBlock::decode(&bytes, label.life).ok()).map(|block| block.accepted);
    match record.filter(Record::exists) {
        None => "it has no record by which to tell whether it was in sync".to_owned(),
        Some(record) if record.in_sync.has(label.slot.into()) => {
            "it was in sync by its own record, and lacks what the others have taken since if they went on without it"
                .into()
        }
        Some(_) => {
            "it was not in sync: it lacks writes, and is old in one place and new in another if it was being filled"
                .into()
        }
    }
}
