//! The writer: read the page and the bundle that may hold the key, plan, place what has to leave, publish, and free what is
//! referred to no more. As `kv::table::store` does it.

use super::page::{Plan, contents_at};
use super::{
    Answer, Command, Config, Contents, Copy, Doubt, Entry, Fault, Forward, Home, Host, KEYS, Leftover, Operation,
    Placed, Slot, State, Step,
};

impl Operation {
    /// The key that it stores something under.
    pub(super) fn stores(self) -> Option<usize> {
        match self {
            Operation::Put(key, _)
            | Operation::PutFar(key, _)
            | Operation::Delete(key, _)
            | Operation::Promise(key, _) => Some(key),
            _ => None,
        }
    }
}

impl Config {
    /// Ends the operation: on to the next.
    pub(super) fn end(&self, state: &mut State, host: usize) {
        let current = &mut state.hosts[host];
        let (next, claims, left) = (current.next + 1, current.claims, std::mem::take(&mut current.left));
        *current = Host { next, claims, left, ..Host::default() };
    }

    /// The page was read: the next bundle to fetch for `key`, if there is one.
    pub(super) fn to_fetch(&self, state: &State, host: usize, key: usize) -> Option<Copy> {
        let current = &state.hosts[host];
        let wanted = |forward: &&Forward| {
            let copy = forward.copy;
            copy.tag != 0 && Self::may_hold(forward, key) && current.held.iter().all(|(tag, _)| *tag != copy.tag)
        };
        let needed = !current.home.entries[key].is_there();
        current.home.forwards.iter().find(wanted).filter(|_| needed).map(|forward| forward.copy)
    }

    /// Reads the bundle; what comes next: the same step with one bundle more, or a look whether the page still names it.
    pub(super) fn fetch(&self, state: &mut State, host: usize, copy: Copy) -> Step {
        let slot: Slot = state.area.slots[usize::from(copy.place)];
        if !slot.lost && (slot.tag == copy.tag || self.rules.no_identity) {
            state.hosts[host].held.push((copy.tag, slot.contents));
            return Step::Fetch;
        }
        if self.rules.lost_is_absent && slot.lost {
            state.hosts[host].held.push((copy.tag, Contents::default()));
            return Step::Fetch;
        }
        if self.rules.no_recheck && !slot.lost {
            state.fault = Some(Fault::CalledDamaged { tag: copy.tag });
        }
        Step::Recheck
    }

    /// A bundle was not where the page said: the page has changed, or the bundle is lost and the page has no vote.
    pub(super) fn recheck(&self, state: &mut State, host: usize) -> bool {
        if state.hosts[host].home != state.home {
            return false;
        }
        let lost = |forward: &Forward| forward.copy.tag != 0 && contents_at(state, forward.copy).is_none();
        if let Some(forward) = state.home.forwards.iter().find(|forward| lost(forward)) {
            let slot = &state.area.slots[usize::from(forward.copy.place)];
            if slot.tag == forward.copy.tag {
                return true;
            }
        }
        state.fault = Some(Fault::CalledDamaged { tag: 0 });
        true
    }

    /// The writer has read the page, or goes on with the image that it has.
    pub(super) fn have_home(&self, state: &mut State, host: usize, key: usize) {
        if self.to_fetch(state, host, key).is_some() {
            state.hosts[host].step = Step::Fetch;
            return;
        }
        let current = &state.hosts[host];
        let entry = self.said(&current.home, key, &|tag| held(current, tag));
        self.settle_doubt(state, host, entry);
        if self.is_done(state, host, entry) {
            return self.store_done(state, host, entry);
        }
        let current = &mut state.hosts[host];
        if !current.older && !current.placed.is_empty() && !self.rules.no_look_at_copies {
            current.step = Step::LookAtCopies;
            return;
        }
        self.plan_next(state, host);
    }

    /// What the doubtful attempt would have unlinked, now that the page is another.
    fn settle_doubt(&self, state: &mut State, host: usize, entry: Entry) {
        let timestamp = self.timestamp(state, host);
        let current = &mut state.hosts[host];
        let now = current.home;
        let Some(doubt) = current.doubt.take_if(|doubt| doubt.expected != now) else { return };
        if timestamp.is_some_and(|timestamp| entry.timestamp >= timestamp) {
            let used = |copy: &Copy| *copy == entry.copy || now.forwards.iter().any(|forward| forward.copy == *copy);
            current.garbage.extend(doubt.unlinks.into_iter().filter(|copy| !used(copy)));
        }
    }

    /// The timestamp of the host's store; `None`: it is a promise.
    fn timestamp(&self, state: &State, host: usize) -> Option<u8> {
        match self.operation(state, host) {
            Some(Operation::Put(_, timestamp) | Operation::PutFar(_, timestamp) | Operation::Delete(_, timestamp)) => {
                Some(timestamp)
            }
            _ => None,
        }
    }

    fn is_done(&self, state: &State, host: usize, entry: Entry) -> bool {
        match self.operation(state, host) {
            Some(Operation::Promise(_, promise)) => entry.promise >= promise,
            _ => self.timestamp(state, host).is_some_and(|timestamp| entry.timestamp >= timestamp),
        }
    }

    /// The page holds the store, or something newer.
    fn store_done(&self, state: &mut State, host: usize, entry: Entry) {
        if let Some(key) = self.operation(state, host).and_then(Operation::stores) {
            acknowledge(state, host, key, entry);
        }
        let current = &mut state.hosts[host];
        let home = current.home;
        current.bundled = home.forwards.iter().any(|forward| forward.copy.tag != 0) && !self.rules.settled_by_page;
        current.placed.retain(|placed| !self.refers_directly(&home, placed.copy));
        self.settle(state, host);
    }

    fn refers_directly(&self, home: &Home, copy: Copy) -> bool {
        home.forwards.iter().any(|forward| forward.copy == copy) || home.entries.iter().any(|entry| entry.copy == copy)
    }

    /// Leaves what the store has placed or unlinked to be freed.
    pub(super) fn settle(&self, state: &mut State, host: usize) {
        let current = &mut state.hosts[host];
        let placed = current.placed.iter().map(|placed| placed.copy);
        let mut left: Vec<Leftover> = current.garbage.iter().map(|copy| Leftover::Garbage(*copy)).collect();
        match current.doubt.take().filter(|_| !self.rules.undecided_freed) {
            Some(doubt) => {
                let version = Some(doubt.expected.version);
                left.extend(placed.chain(doubt.unlinks).map(|copy| Leftover::Undecided(copy, version)));
            }
            None if current.bundled => left.extend(placed.map(|copy| Leftover::Undecided(copy, None))),
            None => left.extend(placed.map(Leftover::Garbage)),
        }
        current.left.extend(left);
        current.left.sort();
        current.left.dedup();
        self.end(state, host);
    }

    pub(super) fn plan_next(&self, state: &mut State, host: usize) {
        let operation = self.operation(state, host).expect("invariant: a host that plans is in an operation");
        let current = &state.hosts[host];
        let plan = self.plan(&current.home, operation, &|tag| held(current, tag), &current.placed);
        self.planned(state, host, plan);
    }

    pub(super) fn planned(&self, state: &mut State, host: usize, plan: Plan) {
        let operation = self.operation(state, host);
        let current = &mut state.hosts[host];
        match plan {
            Plan::Write(mut home, unlinks) => {
                home.version += 1;
                (current.planned, current.unlinks, current.step) = (*home, unlinks, Step::Publish);
            }
            Plan::Place(key, contents) => (current.to_place, current.step) = ((key, contents), Step::Place),
            Plan::Full => {
                if let Some(Operation::Delete(key, _)) = operation {
                    let entry = self.said(&current.home, key, &|tag| held(current, tag));
                    if entry.is_there() {
                        state.fault = Some(Fault::DeleteRefused { key });
                    }
                }
                self.settle(state, host);
            }
        }
    }

    /// The own copies are looked at, after the page was read that they are to be published on.
    pub(super) fn look_at_copies(&self, state: &mut State, host: usize) {
        let slots = state.area.slots;
        let whole = |copy: Copy| {
            let slot = &slots[usize::from(copy.place)];
            slot.tag == copy.tag && !slot.condemned
        };
        let current = &mut state.hosts[host];
        let (good, bad): (Vec<Placed>, Vec<Placed>) = current.placed.iter().partition(|placed| whole(placed.copy));
        if !bad.is_empty() && current.doubt.is_some() {
            return self.settle(state, host);
        }
        current.placed = good;
        current.garbage.extend(bad.iter().map(|placed| placed.copy));
        self.plan_next(state, host);
    }

    /// The next copy's place and name; `None`: no place is free.
    pub(super) fn next_copy(&self, state: &State, host: usize) -> Option<Copy> {
        let place = state.area.slots[..self.slots].iter().position(|slot| slot.tag == 0)?;
        Some(Copy { place: place as u8, tag: 16 * (host as u8 + 1) + state.hosts[host].claims })
    }

    /// Puts the copy that is to be placed into a free place.
    pub(super) fn insertion(state: &State, copy: Copy, contents: Contents) -> Command {
        let mut new = state.area;
        new.version += 1;
        new.slots[usize::from(copy.place)] = Slot { tag: copy.tag, contents, ..Slot::default() };
        Command::Area(state.area, new)
    }

    /// The copy was placed (or that is in doubt: then it is left to the collector, and another is placed).
    pub(super) fn placed(&self, state: &mut State, host: usize, copy: Copy, answer: Answer) {
        let operation = self.operation(state, host);
        let current = &mut state.hosts[host];
        current.claims += 1;
        if answer != Answer::Done {
            return;
        }
        let (key, contents) = std::mem::take(&mut current.to_place);
        let keeps = current.older || current.placed.is_empty();
        current.placed.push(Placed { copy, key, contents });
        current.placed.sort();
        current.older = keeps;
        match operation {
            Some(Operation::Rebuild) => self.plan_rebuild(state, host),
            _ if keeps => self.plan_next(state, host),
            _ => state.hosts[host].step = Step::Begin,
        }
    }

    /// The publication was answered, or was not.
    pub(super) fn published(&self, state: &mut State, host: usize, answer: Answer) {
        let operation = self.operation(state, host);
        let current = &mut state.hosts[host];
        match answer {
            Answer::Done => {
                current.doubt = None;
                current.home = current.planned;
                let unlinks = std::mem::take(&mut current.unlinks);
                current.garbage.extend(unlinks);
                let Some(key) = operation.and_then(Operation::stores) else {
                    current.placed.clear(); // what a rebuild has placed in vain is left to the collector
                    return self.settle(state, host);
                };
                // A deletion is noted: the bundle tells the rest.
                let current = &state.hosts[host];
                let home = current.home;
                let entry = self.said(&home, key, &|tag| held(current, tag));
                self.store_done(state, host, entry);
            }
            Answer::Failed => (current.step, current.older) = (Step::Begin, false),
            Answer::Unknown => {
                let unlinks = std::mem::take(&mut current.unlinks);
                let doubt = Doubt { expected: current.home, unlinks };
                if current.doubt.replace(doubt).is_some() {
                    return self.settle(state, host);
                }
                (current.step, current.older) = (Step::Begin, false);
            }
        }
    }

    /// A leftover is looked at: what is to be freed now, or nothing any more; `None`: not yet to be told.
    pub(super) fn leftover(&self, state: &State, leftover: Leftover) -> Option<Option<Copy>> {
        match leftover {
            Leftover::Garbage(copy) => Some(Some(copy)),
            Leftover::Undecided(_, Some(version)) if state.home.version <= version => None,
            Leftover::Undecided(copy, _) => {
                let readable =
                    state.home.forwards.iter().all(|f| f.copy.tag == 0 || contents_at(state, f.copy).is_some());
                let used = self.references(state, &state.home, false).contains(&copy);
                readable.then_some((!used).then_some(copy))
            }
        }
    }
}

/// A bundle that the host has read.
pub(super) fn held(host: &Host, tag: u8) -> Option<Contents> {
    let own = host.placed.iter().map(|placed| (placed.copy.tag, placed.contents));
    own.chain(host.held.iter().copied()).find(|(held, _)| *held == tag).map(|(_, contents)| contents)
}

/// The member has answered for the key with this.
pub(super) fn acknowledge(state: &mut State, host: usize, key: usize, entry: Entry) {
    if state.gone >> key & 1 == 1 || state.hosts[host].expired {
        return;
    }
    let ended = &mut state.ended[key];
    let promise = ended.promise.max(entry.promise);
    if entry.timestamp > ended.timestamp {
        *ended = Entry { copy: Copy::default(), ..entry };
    }
    ended.promise = promise;
}

/// Frees the copy, if it is there; `None`: it is not.
pub(super) fn release(state: &State, copy: Copy) -> Option<Command> {
    let slot = &state.area.slots[usize::from(copy.place)];
    (slot.tag == copy.tag).then(|| {
        let mut new = state.area;
        new.version += 1;
        new.slots[usize::from(copy.place)] = Slot::default();
        Command::Area(state.area, new)
    })
}

/// A page whose bundles are all there is one that answers for all keys.
pub(super) fn all_keys() -> std::ops::Range<usize> {
    0..KEYS
}
