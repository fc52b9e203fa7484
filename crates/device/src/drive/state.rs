//! The drive's metadata in memory: namespaces, their maps, how often each extent is referred to, and which are free.
//!
//! Invariants:
//! - `references[e]` is the number of places in maps that name extent `e`; it follows from the maps and is nowhere stored.
//! - An extent is handed out again only after the record that freed it is stable. Were it written to before, a crash would
//!   give its old owner, who is still there then, a stranger's bytes.
//! - Whatever `apply` does follows from the records alone, in their order: replayed after a crash they give the same state.

use std::collections::BTreeMap;

use super::layout::Layout;
use super::map::{ExtentMap, Free, NONE};
use super::record::Record;
use super::seen::Seen;

/// Namespaces of a drive, snapshots among them. Chosen: what one looks through by eye.
pub const NAMESPACES_MAX: usize = 1024;
/// Bytes of a name. Guessed.
pub const NAME_BYTES_MAX: usize = 64;
/// The largest namespace: its map's upper level then takes 16 MiB at the default extent. Derived from that.
pub const NAMESPACE_BYTES_MAX: u64 = 1 << 49;

/// The largest namespace of a drive with these extents: their numbers in it fit 32 bits, with one to spare. Cut to 32 bits the
/// first extent beyond would be the namespace's first one, and a write there would be found here.
pub(super) fn namespace_bytes_max(extent_bytes: u32) -> u64 {
    NAMESPACE_BYTES_MAX.min((u64::from(u32::MAX) - 1) * u64::from(extent_bytes))
}

/// One namespace.
#[derive(Clone, Debug, Default)]
pub(super) struct Space {
    pub(super) nguid: [u8; 16],
    pub(super) name: String,
    pub(super) block_size: u32,
    pub(super) bytes: u64,
    pub(super) read_only: bool,
    /// The namespace it was made from; 0: none.
    pub(super) source: u32,
    pub(super) map: ExtentMap,
    pub(super) attributes: BTreeMap<String, Vec<u8>>,
}

impl Space {
    /// Bytes that its words take in a checkpoint, at most.
    pub(super) fn words_bytes(&self) -> u64 {
        let attributes = self.attributes.iter().map(|(key, value)| key.len() + value.len() + 8).sum::<usize>();
        (64 + NAME_BYTES_MAX + attributes) as u64
    }
}

/// All metadata but the checksums.
#[derive(Debug)]
pub(super) struct State {
    pub(super) namespaces: BTreeMap<u32, Space>,
    pub(super) references: Vec<u32>,
    pub(super) free: Free,
    /// Freed by a record that is not stable yet: its sequence, and the extent.
    freed: Vec<(u64, u32)>,
    /// Never given again: a delayed command for a deleted namespace must not meet another one.
    pub(super) next_namespace: u32,
    /// Places in all maps that name an extent.
    pub(super) entries: u64,
    /// Entries that commands under way are about to add: with them, too, the maps fit their place in a checkpoint.
    pub(super) entries_promised: u64,
    /// What scrubs under way have seen.
    pub(super) seen: Seen,
    entries_max: u64,
    extent_bytes: u32,
    unit: u32,
}

/// A record that does not fit the state it is applied to.
pub(super) type Misfit = &'static str;

impl State {
    pub(super) fn new(layout: &Layout) -> State {
        State {
            namespaces: BTreeMap::new(),
            references: vec![0; layout.extents as usize],
            free: Free::new(layout.extents as u32),
            freed: Vec::new(),
            next_namespace: 1,
            entries: 0,
            entries_promised: 0,
            seen: Seen::default(),
            entries_max: layout.entries_max(),
            extent_bytes: layout.extent_bytes,
            unit: layout.unit,
        }
    }

    pub(super) fn space(&self, namespace: u32) -> Result<&Space, Misfit> {
        self.namespaces.get(&namespace).ok_or("a record names a namespace that is not there")
    }

    fn space_mut(&mut self, namespace: u32) -> Result<&mut Space, Misfit> {
        self.namespaces.get_mut(&namespace).ok_or("a record names a namespace that is not there")
    }

    /// Extents in use.
    pub(super) fn used(&self) -> u64 {
        self.references.len() as u64 - u64::from(self.free.len()) - self.freed.len() as u64
    }

    pub(super) fn is_free(&self, extent: u32) -> bool {
        self.free.has(extent)
    }

    /// Extents that are freed by records not stable yet.
    pub(super) fn unsettled(&self) -> u64 {
        self.freed.len() as u64
    }

    /// Whether extents will be free as soon as what was recorded is stable.
    pub(super) fn frees_later(&self) -> Option<u64> {
        self.freed.first().map(|(sequence, _)| *sequence)
    }

    /// What was recorded up to `stable` is stable.
    pub(super) fn settle(&mut self, stable: u64) {
        let settled = self.freed.partition_point(|(sequence, _)| *sequence <= stable);
        for (_, extent) in self.freed.drain(..settled) {
            // Foreign records may have mapped it again meanwhile; ours wait until it is free.
            if self.references[extent as usize] == 0 {
                self.free.give(extent);
            }
        }
    }

    /// Adds or replaces one reference: `extent` becomes number `index` of the namespace's map.
    pub(super) fn refer(&mut self, namespace: u32, index: u32, extent: u32, sequence: u64) -> Result<(), Misfit> {
        let bytes = u64::from(self.extent_bytes);
        let space = self.space_mut(namespace)?;
        if u64::from(index) >= space.bytes.div_ceil(bytes) {
            return Err("a record maps an extent beyond the end of its namespace");
        }
        if space.map.get(index) == NONE && self.entries >= self.entries_max {
            return Err("a record maps more extents than the drive has room to note");
        }
        let space = self.space_mut(namespace)?;
        let old = space.map.set(index, extent);
        let references =
            self.references.get_mut(extent as usize).ok_or("a record names an extent that is not there")?;
        *references += 1;
        if *references == 1 {
            self.free.take(extent);
            self.seen.taken(extent);
        }
        self.entries += 1;
        old.map_or(Ok(()), |old| self.unrefer(old, sequence))
    }

    fn unrefer(&mut self, extent: u32, sequence: u64) -> Result<(), Misfit> {
        let references = &mut self.references[extent as usize];
        *references = references.checked_sub(1).ok_or("an extent is freed that nobody has")?;
        self.entries -= 1;
        if *references == 0 {
            self.freed.push((sequence, extent));
        }
        Ok(())
    }

    fn unmap(&mut self, namespace: u32, index: u32, count: u32, sequence: u64) -> Result<(), Misfit> {
        let space = self.space_mut(namespace)?;
        let freed = space.map.clear(index, count);
        freed.into_iter().try_for_each(|extent| self.unrefer(extent, sequence))
    }

    /// Applies everything of a record but what it says of checksums.
    pub(super) fn apply(&mut self, record: &Record<'_>, sequence: u64) -> Result<(), Misfit> {
        match *record {
            Record::Intent { .. } | Record::Set { .. } | Record::Fill { .. } => Ok(()),
            Record::Map { namespace, index, extent } | Record::Move { namespace, index, extent, .. } => {
                if self.references.get(extent as usize).is_none_or(|&references| references > 0) {
                    return Err("a record maps an extent that is in use, or not there");
                }
                self.refer(namespace, index, extent, sequence)
            }
            Record::Unmap { namespace, index, count } => self.unmap(namespace, index, count, sequence),
            Record::Create { namespace, nguid, block_size, bytes, name } => {
                let name = name.to_owned();
                self.add(namespace, Space { nguid, name, block_size, bytes, ..Space::default() })
            }
            Record::Grow { namespace, bytes } => {
                let space = self.space_mut(namespace)?;
                if bytes < space.bytes {
                    return Err("a record makes a namespace smaller");
                }
                space.bytes = bytes;
                self.sound(namespace)
            }
            Record::Share { namespace, source, nguid, read_only, name } => {
                let from = self.space(source)?;
                if self.entries + u64::from(from.map.len()) > self.entries_max {
                    return Err("a record maps more extents than the drive has room to note");
                }
                let from = from.clone();
                for (_, extent) in from.map.iter() {
                    self.references[extent as usize] += 1;
                    self.entries += 1;
                }
                let name = name.to_owned();
                self.add(namespace, Space { nguid, name, read_only, source, attributes: BTreeMap::new(), ..from })
            }
            Record::Delete { namespace } => {
                self.unmap(namespace, 0, u32::MAX, sequence)?;
                self.namespaces.remove(&namespace);
                Ok(())
            }
            Record::Attribute { namespace, key, value } => {
                let attributes = &mut self.space_mut(namespace)?.attributes;
                match value {
                    [] => attributes.remove(key),
                    value => attributes.insert(key.to_owned(), value.to_owned()),
                };
                Ok(())
            }
        }
    }

    fn add(&mut self, namespace: u32, space: Space) -> Result<(), Misfit> {
        if namespace < self.next_namespace {
            return Err("a record makes a namespace whose number was used before");
        }
        if self.namespaces.len() >= NAMESPACES_MAX {
            return Err("a record makes more namespaces than a drive can have");
        }
        self.next_namespace = namespace.checked_add(1).ok_or("a record makes a namespace whose number is none")?;
        self.namespaces.insert(namespace, space);
        self.sound(namespace)
    }

    /// Whether a namespace has sizes that one can have.
    pub(super) fn sound(&self, namespace: u32) -> Result<(), Misfit> {
        let space = self.space(namespace)?;
        let block = space.block_size;
        let sized = (1..=namespace_bytes_max(self.extent_bytes)).contains(&space.bytes);
        if (block != 4096 && block != self.unit) || !sized || !space.bytes.is_multiple_of(block.into()) {
            return Err("a namespace has a size, or blocks, that none can have");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::layout::EXTENT_BYTES_MIN;

    fn state() -> State {
        let layout = Layout::new([1; 16], 8 << 20, 4096, EXTENT_BYTES_MIN, None).expect("room for some extents");
        let mut state = State::new(&layout);
        let bytes = namespace_bytes_max(EXTENT_BYTES_MIN);
        let record = Record::Create { namespace: 1, nguid: [1; 16], block_size: 4096, bytes, name: "a" };
        state.apply(&record, 1).expect("the largest namespace");
        state
    }

    /// Records that we never write, but somebody might: an extent was taken out and mapped again in one transaction, and was free
    /// and in use when that had become stable.
    #[test]
    fn an_extent_mapped_again_is_not_free() {
        let mut state = state();
        let map = Record::Map { namespace: 1, index: 0, extent: 5 };
        state.apply(&map, 2).expect("mapped");
        state.settle(2);
        state.apply(&Record::Unmap { namespace: 1, index: 0, count: 1 }, 3).expect("taken out");
        state.apply(&map, 3).expect("mapped again");
        state.settle(3);
        assert!(!state.is_free(5) && state.references[5] == 1);
    }

    /// The maps and the namespaces of foreign records had no bound: they outgrew their place in a checkpoint.
    #[test]
    fn records_can_not_outgrow_a_checkpoint() {
        let mut state = state();
        let extents = state.references.len() as u32;
        for extent in 0..extents {
            state.apply(&Record::Map { namespace: 1, index: extent, extent }, 2).expect("mapped");
        }
        let mut refused = None;
        for namespace in 2..10 {
            let nguid = [namespace as u8; 16];
            let share = Record::Share { namespace, source: 1, nguid, read_only: true, name: "s" };
            refused = refused.or(state.apply(&share, 3).err().map(|why| (namespace, why)));
        }
        assert!(refused.is_some_and(|(_, why)| why.contains("more extents than the drive has room")), "{refused:?}");
        assert!(state.entries <= state.entries_max);
        state.apply(&Record::Delete { namespace: 1 }, 4).expect("deleted");
        let made = (100..3000).take_while(|&namespace| {
            let create = Record::Create { namespace, nguid: [1; 16], block_size: 4096, bytes: 4096, name: "b" };
            state.apply(&create, 5).is_ok()
        });
        assert!(made.count() < NAMESPACES_MAX && state.namespaces.len() == NAMESPACES_MAX);
    }
}
