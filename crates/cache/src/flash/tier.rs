//! The log as the store's lower tier: what leaves memory comes here, if it is admitted.

use std::sync::Arc;

use engine::task::LocalFuture;

use super::admission::Admission;
use super::{FlashLog, Place, Reason, Refused};
use crate::index::FlashPlace;
use crate::item::{Key, Meta, NEVER, Seconds, Value};
use crate::store::{Dropped, Lower};

impl From<Place> for FlashPlace {
    fn from(place: Place) -> FlashPlace {
        FlashPlace { page: place.page(), slot: place.kind() }
    }
}

impl From<FlashPlace> for Place {
    fn from(place: FlashPlace) -> Place {
        Place::from_parts(place.page, place.slot)
    }
}

/// A log, and who decides what goes there.
#[derive(Debug)]
pub struct Tier {
    log: Arc<FlashLog>,
    admission: Box<dyn Admission>,
}

impl Tier {
    /// The tier of this log.
    pub fn new(log: Arc<FlashLog>, admission: Box<dyn Admission>) -> Tier {
        Tier { log, admission }
    }

    /// The log.
    pub fn log(&self) -> &Arc<FlashLog> {
        &self.log
    }

    fn append(&self, key: &Key<'_>, meta: &Meta, value: Value<'_>) -> Result<FlashPlace, Refused> {
        let append = |pieces: &[&[u8]]| self.log.append(key.hash(), key.bytes(), meta, pieces, Reason::Admitted);
        let place = match value {
            Value::Whole(bytes) => append(&[bytes]),
            Value::Chunks(chunks) => append(&chunks.iter().map(|chunk| &**chunk).collect::<Vec<_>>()),
        };
        place.map(FlashPlace::from)
    }

    /// Who decides; to be told of every request, and of what a collection displaces.
    pub fn admission(&self) -> &dyn Admission {
        &*self.admission
    }
}

impl Lower for Tier {
    fn offer(&self, key: &Key<'_>, meta: &Meta, value: Value<'_>) -> Result<FlashPlace, Dropped> {
        if !self.admission.admits(key.hash()) {
            return Err(Dropped::NotAdmitted);
        }
        self.append(key, meta, value).map_err(Dropped::from)
    }

    fn room(&self) -> LocalFuture<'_, ()> {
        Box::pin(async move {
            // That it has ended is found by the next item.
            let _ = self.log.room(Reason::Admitted).await;
        })
    }

    fn written_bytes(&self) -> u64 {
        self.log.stats().device_written_bytes
    }

    fn invalidate(&self, place: FlashPlace) {
        self.log.invalidate(place.into());
    }

    fn flush(&self, cas_floor: u64) {
        self.log.flush(cas_floor);
    }

    fn flush_at(&self, at: Seconds) {
        let unix = if at == NEVER { 0 } else { self.log.origin().0 + u64::from(at.0) };
        self.log.flush_at(unix);
    }

    fn reserve_cas(&self, up_to: u64) {
        self.log.reserve_cas(up_to);
    }
}

/// The tier as it takes everything, when the server ends: what was in memory was asked for most.
pub(crate) struct TakingAll<'a>(pub(crate) &'a Tier);

impl Lower for TakingAll<'_> {
    fn offer(&self, key: &Key<'_>, meta: &Meta, value: Value<'_>) -> Result<FlashPlace, Dropped> {
        self.0.append(key, meta, value).map_err(Dropped::from)
    }

    fn invalidate(&self, place: FlashPlace) {
        self.0.invalidate(place);
    }

    fn flush(&self, cas_floor: u64) {
        self.0.flush(cas_floor);
    }

    fn flush_at(&self, at: Seconds) {
        self.0.flush_at(at);
    }

    fn reserve_cas(&self, up_to: u64) {
        self.0.reserve_cas(up_to);
    }
}

#[cfg(test)]
mod tests {
    use device::Memory;
    use engine::sim::{SimConfig, World};
    use engine::{Buf, Mapped};

    use super::*;
    use crate::flash::admission::{AdmitAll, Sketch};
    use crate::flash::{Boot, Lookup, Options, Origin};

    fn joined(chunks: &[engine::View]) -> Vec<u8> {
        chunks.iter().flat_map(|chunk| chunk.to_vec()).collect()
    }

    #[test]
    fn what_is_admitted_is_found_at_the_place_that_is_told() {
        let world = World::new(1, SimConfig::default());
        let tested = world.run_until(async {
            let memory = Arc::new(Memory::new(16 << 20, 4096, [1; 16]).expect("a namespace"));
            let sizes = Options { segment_bytes: 1 << 20, buffer_bytes: 4 << 20, ..Options::new(Origin(0), [1, 2]) };
            let options = Options { boot: Boot([1, 1]), ..sizes };
            let words = options.journal_words(&device::Namespace::info(&*memory)).expect("it holds a log");
            let journal = Arc::new(Mapped::memory(words));
            let log = Arc::new(FlashLog::open(memory, journal, &options, ()).await.expect("opened").0);
            let key = Key::new(b"key", 7 << 40).expect("a key");
            let chunks = [vec![1; 256 << 10], vec![2; 1000]].map(|bytes| Buf::copy_from(&bytes).freeze());
            let tier = Tier::new(Arc::clone(&log), Box::new(AdmitAll));
            for value in [Value::Whole(b"value"), Value::Whole(b""), Value::Chunks(&chunks)] {
                let place = tier.offer(&key, &Meta::default(), value).expect("admitted");
                let Lookup::Found(fetched) = log.read(place.into(), key.bytes()).await else { panic!("not found") };
                let same = match (fetched.as_value(), value) {
                    (Value::Whole(found), Value::Whole(stored)) => found == stored,
                    (Value::Chunks(found), Value::Chunks(stored)) => joined(found) == joined(stored),
                    _ => false,
                };
                assert!(same, "{value:?}");
            }
            let sketch = Sketch::new(1000);
            (0..3).for_each(|_| sketch.note(9 << 40));
            (0..5000).for_each(|_| sketch.note_displaced(9 << 40));
            let tier = Tier::new(Arc::clone(&log), Box::new(sketch));
            let offer = |tier: &Tier, value| tier.offer(&key, &Meta::default(), value);
            let value = Value::Whole(b"value");
            assert_eq!(offer(&tier, value), Err(Dropped::NotAdmitted), "asked for by nobody");
            let tier = Tier::new(Arc::clone(&log), Box::new(AdmitAll));
            let long = vec![chunks[0].clone(); 5];
            assert_eq!(offer(&tier, Value::Chunks(&long)), Err(Dropped::TooLong));
            engine::task::spawn(Arc::clone(&log).run()).detach();
            log.close().await.expect("closed");
            assert_eq!(offer(&tier, value), Err(Dropped::FlashEnded));
        });
        tested.expect("it ends");
    }
}
