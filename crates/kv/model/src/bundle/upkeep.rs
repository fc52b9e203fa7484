//! Readers, cleaning, the collector and the rebuild.
//!
//! Where the page is read as a whole, with all its bundles, that is one step here: a bundle that is not there any more has it
//! read again, and one that is there is what it was.

use super::page::{Plan, contents_at};
use super::writer::{acknowledge, all_keys, held};
use super::{Config, Contents, Copy, Entry, Fault, Forward, Home, Host, Operation, Slot, State, Step};

impl Config {
    /// The reader has read the page and the bundles it needs: the value, or where it is.
    pub(super) fn have_home_to_read(&self, state: &mut State, host: usize, key: usize) {
        if self.to_fetch(state, host, key).is_some() {
            state.hosts[host].step = Step::Fetch;
            return;
        }
        let current = &state.hosts[host];
        let entry = self.said(&current.home, key, &|tag| held(current, tag));
        state.hosts[host].found = entry;
        match entry.copy.tag {
            0 => self.returned(state, host, key, entry.timestamp),
            _ => state.hosts[host].step = Step::Follow,
        }
    }

    /// The value out of line is read.
    pub(super) fn follow(&self, state: &mut State, host: usize, key: usize) {
        let entry = state.hosts[host].found;
        match contents_at(state, entry.copy) {
            Some(contents) => self.returned(state, host, key, contents[key].timestamp),
            None => state.hosts[host].step = Step::Recheck,
        }
    }

    /// What the reader followed was not there: whether it may call it damaged.
    pub(super) fn recheck_read(&self, state: &mut State, host: usize) -> bool {
        let entry = state.hosts[host].found;
        if entry.copy.tag != 0 && state.hosts[host].home == state.home {
            state.fault = Some(Fault::CalledDamaged { tag: entry.copy.tag });
            return true;
        }
        self.recheck(state, host)
    }

    fn returned(&self, state: &mut State, host: usize, key: usize, value: u8) {
        let (floor, entry) = (state.hosts[host].floor, state.hosts[host].found);
        if value != entry.timestamp {
            state.fault = Some(Fault::WrongValue { returned: value, timestamp: entry.timestamp });
        } else if value < floor {
            state.fault = Some(Fault::StaleRead { returned: value, floor });
        }
        acknowledge(state, host, key, entry);
        self.end(state, host);
    }

    /// Cleaning has read the page whole: the key leaves it, and it is closed to all others.
    pub(super) fn plan_clean(&self, state: &mut State, host: usize, key: usize) {
        let home = state.home;
        let seen = state.clone();
        let contents = move |tag: u8| named(&seen, &home, tag);
        let bundled = self.bundled(&home, key, &contents).filter(|_| !self.rules.clean_blind);
        let entry = bundled.map_or(home.entries[key], |(_, entry)| entry);
        let current = &mut state.hosts[host];
        current.home = home;
        if home.sealed && !entry.is_there() {
            return self.cleaned(state, host, key);
        }
        let mut new = Home { version: home.version + 1, sealed: true, ..home };
        let mut unlinks = Vec::from_iter((entry.copy.tag != 0).then_some(entry.copy));
        match bundled {
            Some((index, _)) if self.rules.deletion_dropped_alone && home.forwards[index].deletions[key] != 0 => {
                new.forwards[index].deletions[key] = 0;
            }
            Some((index, _)) => unlinks.extend(self.take_out(&mut new, index, key)),
            None => new.entries[key] = Entry::default(),
        }
        // What attempts that failed would have unlinked is looked for at the end.
        (current.planned, current.step) = (new, Step::Publish);
        current.unlinks.extend(unlinks);
    }

    /// The page was cleaned, or is found clean.
    pub(super) fn cleaned(&self, state: &mut State, host: usize, key: usize) {
        let used = self.references(state, &state.hosts[host].home, false);
        let current = &mut state.hosts[host];
        let unlinks = std::mem::take(&mut current.unlinks);
        current.garbage.extend(unlinks.into_iter().filter(|copy| !used.contains(copy)));
        current.doubt = None;
        state.gone |= 1 << key;
        state.ended[key] = Entry::default();
        self.settle(state, host);
    }

    /// Whether the page can be read whole.
    pub(super) fn is_readable(state: &State) -> bool {
        state.home.forwards.iter().all(|forward| forward.copy.tag == 0 || contents_at(state, forward.copy).is_some())
    }

    /// Whether the home page refers to the copy that the collector looks at.
    pub(super) fn refers(&self, state: &State, copy: Copy) -> bool {
        self.references(state, &state.home, self.rules.collector_blind).contains(&copy)
    }

    /// The rebuild plans the page without the bundles that are lost, with what other members hold of the keys that it lacks.
    pub(super) fn plan_rebuild(&self, state: &mut State, host: usize) {
        let current = &state.hosts[host];
        let home = current.home;
        let lost = |forward: &Forward| forward.copy.tag != 0 && held(current, forward.copy.tag).is_none();
        let mut draft = home;
        let mut unlinks = Vec::new();
        for forward in draft.forwards.iter_mut().filter(|forward| lost(forward)) {
            unlinks.push(std::mem::take(forward).copy);
        }
        let there = |key: usize| self.said(&draft, key, &|tag| held(current, tag)).is_there();
        let missing: Vec<usize> = all_keys().filter(|&key| !there(key)).collect();
        let plan = match self.rules.rebuild_in_two {
            true => Plan::Write(Box::new(draft), unlinks),
            false => {
                missing.into_iter().for_each(|key| draft.entries[key] = current.gathered[key]);
                self.fit(draft, None, &current.placed, unlinks)
            }
        };
        self.planned(state, host, plan);
    }

    /// What the other members hold: at least what this one has acknowledged.
    pub(super) fn gather(&self, state: &mut State, host: usize) {
        state.hosts[host].gathered = state.ended;
    }

    /// The rebuild looks for bundles that are lost. It waits, then, until what is under way now is over: it is acknowledged
    /// within its time or never, and so is either found at other members or counts for nothing.
    pub(super) fn see_damage(&self, state: &mut State, host: usize) {
        let lost = lost_bundles(state);
        if lost.is_empty() {
            return self.end(state, host);
        }
        if !self.rules.rebuild_at_once {
            for other in &mut state.hosts {
                other.in_flight = other.is_under_way();
            }
        }
        (state.hosts[host].lost, state.hosts[host].step) = (lost, Step::Gather);
    }

    /// The time is over: the page is read, and the other members are asked.
    pub(super) fn rebuild(&self, state: &mut State, host: usize) {
        for other in &mut state.hosts {
            other.expired |= std::mem::take(&mut other.in_flight);
        }
        let (home, now) = (state.home, lost_bundles(state));
        let named = home.forwards.iter().filter(|forward| forward.copy.tag != 0);
        let held = named.filter_map(|forward| Some((forward.copy.tag, contents_at(state, forward.copy)?))).collect();
        let waited_for = |copy: &Copy| state.hosts[host].lost.contains(copy) || self.rules.any_damage;
        if now.is_empty() || !now.iter().all(waited_for) {
            return self.end(state, host);
        }
        (state.hosts[host].home, state.hosts[host].held) = (home, held);
        if !self.rules.gathered_first {
            self.gather(state, host);
        }
        self.plan_rebuild(state, host);
    }

    /// The mark of a place, put on or taken off.
    pub(super) fn marked(slot: Slot, condemned: bool) -> Slot {
        Slot { condemned, ..slot }
    }
}

/// The bundles that the page refers to and the medium has lost.
fn lost_bundles(state: &State) -> Vec<Copy> {
    let named = state.home.forwards.iter().map(|forward| forward.copy).filter(|copy| copy.tag != 0);
    named.filter(|copy| contents_at(state, *copy).is_none()).collect()
}

/// The contents of the bundle of this tag that the page names.
pub(super) fn named(state: &State, home: &Home, tag: u8) -> Option<Contents> {
    let forward = home.forwards.iter().find(|forward| forward.copy.tag == tag)?;
    contents_at(state, forward.copy)
}

impl Host {
    fn is_under_way(&self) -> bool {
        let Host { next, claims, in_flight, expired, .. } = *self;
        let fresh = Host { next, claims, in_flight, expired, left: self.left.clone(), ..Host::default() };
        *self != fresh
    }
}

impl Operation {
    /// Whether a page that is closed to older hosts refuses it.
    pub(super) fn is_refused_by_seal(self) -> bool {
        !matches!(self, Operation::Clean(_) | Operation::Collect)
    }
}
