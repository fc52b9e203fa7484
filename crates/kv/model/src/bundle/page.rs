//! The page's image: what it says of a key, what it refers to, and what the next image is. No I/O here.

use super::{Config, Contents, Copy, ENTRY_ROOM, Entry, Forward, Home, KEYS, Operation, Placed, ROOM, Slot, State};

/// What a store does next.
pub(super) enum Plan {
    /// Write this image, which unlinks these copies.
    Write(Box<Home>, Vec<Copy>),
    /// Place a value of the key, or a bundle.
    Place(Option<u8>, Contents),
    /// There is no room.
    Full,
}

impl Entry {
    pub(super) fn is_there(&self) -> bool {
        self.timestamp != 0 || self.promise != 0
    }
}

impl Forward {
    /// What the page says of a key of this bundle, which holds it as `entry`.
    pub(super) fn said(&self, config: &Config, key: usize, entry: Entry) -> Entry {
        let promise = if config.rules.deletion_forgets_promise { 0 } else { entry.promise };
        match self.deletions[key] {
            0 => entry,
            timestamp => Entry { timestamp, promise, dead: true, copy: Copy::default() },
        }
    }
}

/// The byte of a key in filters: two keys have the same.
fn byte_of(key: usize) -> usize {
    key / 2
}

impl Config {
    pub(super) fn may_hold(forward: &Forward, key: usize) -> bool {
        (0..KEYS).any(|other| forward.counts >> other & 1 == 1 && byte_of(other) == byte_of(key))
    }

    fn counts(&self, forward: &Forward, key: usize) -> bool {
        if self.rules.filter_by_byte { Self::may_hold(forward, key) } else { forward.counts >> key & 1 == 1 }
    }

    /// The entry of a key that is in a bundle, and the forward record; `contents`: of the bundles that were read, by tag.
    pub(super) fn bundled(
        &self,
        home: &Home,
        key: usize,
        contents: &dyn Fn(u8) -> Option<Contents>,
    ) -> Option<(usize, Entry)> {
        if home.entries[key].is_there() {
            return None;
        }
        let forwards = home.forwards.iter().enumerate().filter(|(_, forward)| forward.copy.tag != 0);
        forwards.filter(|(_, forward)| self.counts(forward, key)).find_map(|(index, forward)| {
            let entry = contents(forward.copy.tag)?[key];
            entry.is_there().then(|| (index, forward.said(self, key, entry)))
        })
    }

    /// What the page, with its bundles, says of a key.
    pub(super) fn said(&self, home: &Home, key: usize, contents: &dyn Fn(u8) -> Option<Contents>) -> Entry {
        let bundled = self.bundled(home, key, contents).map(|(_, entry)| entry);
        bundled.unwrap_or(home.entries[key])
    }

    /// Every copy that the page refers to, by itself and, unless `page_alone`, by its bundles.
    pub(super) fn references(&self, state: &State, home: &Home, page_alone: bool) -> Vec<Copy> {
        let mut copies: Vec<Copy> = home.forwards.iter().map(|forward| forward.copy).collect();
        copies.extend(home.entries.iter().map(|entry| entry.copy));
        for forward in home.forwards.iter().filter(|forward| forward.copy.tag != 0 && !page_alone) {
            let Some(contents) = contents_at(state, forward.copy) else { continue };
            let counting = (0..KEYS).filter(|&key| self.counts(forward, key));
            copies.extend(counting.map(|key| forward.said(self, key, contents[key]).copy));
        }
        copies.retain(|copy| copy.tag != 0);
        copies
    }

    /// Units in use, and those kept for deletions.
    pub(super) fn committed(&self, home: &Home) -> usize {
        let entries = home.entries.iter().filter(|entry| entry.is_there()).count() * ENTRY_ROOM;
        let there = |key: usize| self.rules.filter_kept && home.entries[key].is_there();
        let forwards = home.forwards.iter().filter(|forward| forward.copy.tag != 0).map(|forward| {
            let noted = forward.deletions.iter().filter(|&&timestamp| timestamp != 0).count();
            let counting = (0..KEYS).filter(|&key| forward.counts >> key & 1 == 1 && !there(key)).count();
            1 + if self.rules.no_reserve { noted } else { counting }
        });
        entries + forwards.sum::<usize>()
    }

    /// The key does not count in the bundle any more; the bundle, if it is not referred to any more.
    pub(super) fn take_out(&self, home: &mut Home, index: usize, key: usize) -> Option<Copy> {
        let forward = &mut home.forwards[index];
        forward.deletions[key] = 0;
        if !self.rules.filter_kept {
            forward.counts &= !(1 << key);
        }
        (forward.counts == 0).then(|| std::mem::take(forward).copy)
    }

    /// Plans the page after a store, a delete or a promise, as `kv::table::plan` does.
    pub(super) fn plan(
        &self,
        home: &Home,
        operation: Operation,
        contents: &dyn Fn(u8) -> Option<Contents>,
        placed: &[Placed],
    ) -> Plan {
        let (key, promises) = match operation {
            Operation::Put(key, _) | Operation::PutFar(key, _) | Operation::Delete(key, _) => (key, false),
            Operation::Promise(key, _) => (key, true),
            other => unreachable!("{other:?} stores nothing"),
        };
        let bundled = self.bundled(home, key, contents);
        let old = bundled.map_or(home.entries[key], |(_, entry)| entry);
        let entry = match operation {
            Operation::Put(_, timestamp) => Entry { timestamp, promise: old.promise, ..Entry::default() },
            Operation::Delete(_, timestamp) => {
                Entry { timestamp, promise: old.promise, dead: true, ..Entry::default() }
            }
            Operation::Promise(_, promise) => Entry { promise, ..old },
            Operation::PutFar(_, timestamp) => {
                let Some(copy) = placed.iter().find(|copy| copy.key == Some(key as u8)) else {
                    let mut value = Contents::default();
                    value[key].timestamp = timestamp;
                    return Plan::Place(Some(key as u8), value);
                };
                Entry { timestamp, promise: old.promise, copy: copy.copy, dead: false }
            }
            other => unreachable!("{other:?} stores nothing"),
        };
        let unlinks: Vec<Copy> = (!promises && old.copy.tag != 0).then_some(old.copy).into_iter().collect();
        let Some((index, _)) = bundled else {
            let mut draft = *home;
            draft.entries[key] = entry;
            return self.fit(draft, Some(key), placed, unlinks);
        };
        self.plan_bundled(home, (key, entry), index, contents, placed, (operation, unlinks))
    }

    fn plan_bundled(
        &self,
        home: &Home,
        (key, entry): (usize, Entry),
        index: usize,
        contents: &dyn Fn(u8) -> Option<Contents>,
        placed: &[Placed],
        (operation, unlinks): (Operation, Vec<Copy>),
    ) -> Plan {
        let forward = home.forwards[index];
        let bundle = contents(forward.copy.tag).unwrap_or_default();
        let (mut dissolved, mut all) = (*home, unlinks.clone());
        for other in (0..KEYS).filter(|&other| forward.counts >> other & 1 == 1) {
            dissolved.entries[other] = forward.said(self, other, bundle[other]);
            all.extend(self.take_out(&mut dissolved, index, other));
        }
        dissolved.entries[key] = entry;
        if self.committed(&dissolved) <= ROOM {
            return Plan::Write(Box::new(dissolved), all);
        }
        let (mut single, mut emptied) = (*home, unlinks.clone());
        emptied.extend(self.take_out(&mut single, index, key));
        single.entries[key] = entry;
        if let Operation::Delete(_, timestamp) = operation {
            if self.committed(&single) <= ROOM {
                return Plan::Write(Box::new(single), emptied);
            }
            let mut noted = *home;
            noted.forwards[index].deletions[key] = timestamp;
            let fits = self.committed(&noted) <= ROOM;
            return if fits { Plan::Write(Box::new(noted), unlinks) } else { Plan::Full };
        }
        let length = bundle.iter().filter(|entry| entry.is_there()).count();
        match forward.counts.count_ones() as usize * 2 <= length {
            true => self.fit(dissolved, Some(key), placed, all),
            false => self.fit(single, Some(key), placed, emptied),
        }
    }

    /// Makes room until the draft fits: by a bundle that was placed, or by one that is to be.
    pub(super) fn fit(&self, mut draft: Home, own: Option<usize>, placed: &[Placed], unlinks: Vec<Copy>) -> Plan {
        let mut unused: Vec<&Placed> = placed.iter().filter(|copy| copy.key.is_none()).collect();
        while self.committed(&draft) > ROOM {
            let Some(free) = draft.forwards.iter().position(|forward| forward.copy.tag == 0) else { return Plan::Full };
            let usable = |copy: &&Placed| {
                let mut keys = (0..KEYS).filter(|&key| copy.contents[key].is_there());
                keys.all(|key| draft.entries[key] == copy.contents[key] || self.rules.stale_bundle && own != Some(key))
            };
            if let Some(index) = unused.iter().position(usable) {
                let bundle = unused.remove(index);
                let mut counts = 0;
                for key in (0..KEYS).filter(|&key| bundle.contents[key].is_there()) {
                    draft.entries[key] = Entry::default();
                    counts |= 1 << key;
                }
                draft.forwards[free] = Forward { copy: bundle.copy, counts, ..Forward::default() };
                continue;
            }
            let moves = |key: usize| placed.iter().any(|copy| copy.key == Some(key as u8));
            let mut bundle = Contents::default();
            for key in (0..KEYS).filter(|&key| draft.entries[key].is_there() && own != Some(key) && !moves(key)) {
                bundle[key] = draft.entries[key];
            }
            let count = bundle.iter().filter(|entry| entry.is_there()).count();
            return if count * ENTRY_ROOM > 1 + count { Plan::Place(None, bundle) } else { Plan::Full };
        }
        Plan::Write(Box::new(draft), unlinks)
    }
}

/// What is in a copy; `None`: it is not there, or lost.
pub(super) fn contents_at(state: &State, copy: Copy) -> Option<Contents> {
    let slot: &Slot = &state.area.slots[usize::from(copy.place)];
    (slot.tag == copy.tag && !slot.lost).then_some(slot.contents)
}
