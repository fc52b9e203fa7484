//! The writer: read the home page, place the copy, publish it by compare-and-write of the home page, free what that
//! unlinked.
//!
//! Invariants (the rules of `crates/kv/README.md`, from the writer's side):
//! - A tag names one attempt of one host to make a copy, never two.
//! - A data write is sent once; when its outcome is unknown the extent is left as it is.
//! - What is freed was seen unlinked in a home page read *after* the publication was decided: acknowledged, or of unknown
//!   outcome and the page has changed since, so that it can no longer land.

use super::{
    Allocation, Answer, Command, Config, Content, Form, Guest, Host, Operation, Page, Place, State, Step, Tag,
};

impl Config {
    pub(super) fn next_operation(&self, state: &mut State, host: usize) {
        let Host { next, claims, .. } = state.hosts[host];
        state.hosts[host] = Host { next: next + 1, claims, ..Host::default() };
    }

    fn store_of(&self, state: &State, host: usize) -> (usize, u8, Form) {
        match self.operation(state, host) {
            Some(Operation::Store(key, timestamp, form)) => (key, timestamp, form),
            other => unreachable!("{other:?} is not a store"),
        }
    }

    /// The page that takes the guests of this key's home page.
    fn guest_page(&self, key: usize) -> usize {
        1 - self.homes[key]
    }

    /// A tag for a new copy; the same again while its claim is in doubt.
    fn choose_tag(&self, state: &mut State, host: usize, timestamp: u8) {
        let current = &mut state.hosts[host];
        if current.tag == 0 {
            current.claims += 1;
            current.tag = if self.rules.tag_per_entry { timestamp } else { 1 + (host as u8) * 16 + current.claims };
        }
    }

    /// The home page was read into the host: what is decided now, and what comes next.
    pub(super) fn have_home(&self, state: &mut State, host: usize) {
        let (key, ..) = self.store_of(state, host);
        let home = state.pages[self.homes[key]];
        let current = &mut state.hosts[host];
        current.undecided &= current.doubt == Some(home);
        current.home = home;
        self.plan(state, host);
    }

    /// The next step towards publication, given the home page as last read.
    fn plan(&self, state: &mut State, host: usize) {
        let (key, timestamp, form) = self.store_of(state, host);
        let record = state.hosts[host].home.records[key];
        if record.timestamp >= timestamp {
            return self.finish(state, host);
        }
        let neighbour = state.hosts[host].home.records[1 - key];
        let displaces = form == Form::Displace
            && self.homes[0] == self.homes[1]
            && neighbour.timestamp != 0
            && neighbour.place == Place::Inline;
        let current = &mut state.hosts[host];
        if let Some((copied, place)) = current.neighbour
            && !(displaces && copied == neighbour.timestamp)
        {
            current.neighbour = None; // made for a record that has changed since: no publication can use it any more
            current.garbage.push(place);
        }
        current.step = match form {
            Form::Guest if current.own.is_none() => Step::ReadGuestPage { own: true },
            Form::Extent if current.own.is_none() => Step::ReadAllocation,
            _ if displaces && current.neighbour.is_none() => Step::ReadGuestPage { own: false },
            _ => Step::Publish,
        };
        let early = self.rules.free_before_unlink
            && current.step == Step::Publish
            && record.place != Place::Inline
            && current.freed_early != Some(record.place);
        if early {
            current.freed_early = Some(record.place);
            current.garbage.push(record.place);
            current.step = Step::ReadForFree;
        }
    }

    /// The guest page was read: the copy is there already (an insertion whose answer was lost), or is to be inserted.
    pub(super) fn have_guest_page(&self, state: &mut State, host: usize, own: bool) {
        let (key, timestamp, _) = self.store_of(state, host);
        let copied = if own { timestamp } else { state.hosts[host].home.records[1 - key].timestamp };
        self.choose_tag(state, host, copied);
        let page = self.guest_page(key);
        let read = state.pages[page];
        let current = &mut state.hosts[host];
        current.guest_page = read;
        if read.guests.iter().any(|guest| guest.tag == current.tag) {
            self.have_copy(state, host, own, copied, |tag| Place::Guest(page as u8, tag));
        } else if read.guests.iter().any(|guest| guest.tag == 0) {
            current.step = Step::InsertGuest { own };
        } else {
            self.give_up(state, host); // no room
        }
    }

    pub(super) fn insertion(&self, state: &State, host: usize, own: bool) -> Command {
        let (key, timestamp, _) = self.store_of(state, host);
        let current = &state.hosts[host];
        let copied = if own { timestamp } else { current.home.records[1 - key].timestamp };
        let expected = current.guest_page;
        let mut new = Page { version: self.next_version(expected.version), ..expected };
        let free = new.guests.iter_mut().find(|guest| guest.tag == 0).expect("a free place was seen in this page");
        *free = Guest { timestamp: copied, tag: current.tag };
        Command::Table(self.guest_page(key) as u8, expected, new)
    }

    pub(super) fn inserted(&self, state: &mut State, host: usize, own: bool, answer: Answer) {
        if answer != Answer::Done {
            state.hosts[host].step = Step::ReadGuestPage { own };
            return;
        }
        let (key, timestamp, _) = self.store_of(state, host);
        let copied = if own { timestamp } else { state.hosts[host].home.records[1 - key].timestamp };
        let page = self.guest_page(key) as u8;
        self.have_copy(state, host, own, copied, |tag| Place::Guest(page, tag));
    }

    /// The copy is stable: on towards publication.
    fn have_copy(&self, state: &mut State, host: usize, own: bool, copied: u8, place: impl Fn(Tag) -> Place) {
        let current = &mut state.hosts[host];
        let place = place(std::mem::take(&mut current.tag));
        current.guest_page = Page::default();
        current.allocation = Allocation::default();
        if own {
            current.own = Some(place);
        } else {
            current.neighbour = Some((copied, place));
        }
        self.plan(state, host);
    }

    pub(super) fn have_allocation(&self, state: &mut State, host: usize) {
        let (_, timestamp, _) = self.store_of(state, host);
        self.choose_tag(state, host, timestamp);
        let read = state.allocation;
        let current = &mut state.hosts[host];
        current.allocation = read;
        current.step = if read.owners.contains(&current.tag) {
            Step::WriteExtent
        } else if read.owners.contains(&0) {
            Step::ClaimExtent
        } else {
            return self.give_up(state, host); // out of space
        };
    }

    pub(super) fn claim(&self, state: &State, host: usize) -> Command {
        let current = &state.hosts[host];
        let expected = current.allocation;
        let mut new = Allocation { version: self.next_version(expected.version), ..expected };
        let free = new.owners.iter_mut().find(|owner| **owner == 0).expect("a free extent was seen in this page");
        *free = current.tag;
        Command::Allocate(expected, new)
    }

    pub(super) fn claimed(&self, state: &mut State, host: usize, command: &Command, answer: Answer) {
        let Command::Allocate(_, new) = command else { unreachable!("a claim is an allocation") };
        let current = &mut state.hosts[host];
        if answer == Answer::Done {
            current.allocation = *new;
            current.step = Step::WriteExtent;
        } else {
            current.step = Step::ReadAllocation;
        }
    }

    /// The extent that the host has claimed under its current tag.
    fn claimed_extent(&self, state: &State, host: usize) -> u8 {
        let current = &state.hosts[host];
        let owned = current.allocation.owners.iter().position(|owner| *owner == current.tag);
        owned.expect("the claim was acknowledged or seen") as u8
    }

    pub(super) fn data_write(&self, state: &State, host: usize) -> Command {
        let (_, timestamp, _) = self.store_of(state, host);
        Command::Write(self.claimed_extent(state, host), Content { timestamp, tag: state.hosts[host].tag })
    }

    pub(super) fn written(&self, state: &mut State, host: usize, answer: Answer) {
        let (_, timestamp, _) = self.store_of(state, host);
        let extent = self.claimed_extent(state, host);
        if answer == Answer::Done {
            return self.have_copy(state, host, true, timestamp, |tag| Place::Extent(extent, tag));
        }
        if self.rules.write_resent {
            return;
        }
        // The write may land at any time: the extent is abandoned, and another claimed under another tag.
        let current = &mut state.hosts[host];
        let abandoned = Place::Extent(extent, std::mem::take(&mut current.tag));
        current.step = Step::ReadAllocation;
        if self.rules.abandoned_freed {
            current.garbage.push(abandoned);
            current.step = Step::ReadForFree;
        }
    }

    pub(super) fn publication(&self, state: &State, host: usize) -> Command {
        let (key, timestamp, _) = self.store_of(state, host);
        let current = &state.hosts[host];
        let expected = current.home;
        let mut new = Page { version: self.next_version(expected.version), ..expected };
        new.records[key].timestamp = timestamp;
        new.records[key].place = current.own.unwrap_or_default();
        if let Some((_, place)) = current.neighbour {
            new.records[1 - key].place = place;
        }
        Command::Table(self.homes[key] as u8, expected, new)
    }

    pub(super) fn published(&self, state: &mut State, host: usize, command: &Command, answer: Answer) {
        let Command::Table(_, expected, new) = command else { unreachable!("a publication is a table write") };
        let current = &mut state.hosts[host];
        match answer {
            Answer::Done => {
                current.home = *new;
                current.doubt = Some(*expected);
                current.undecided = false;
                self.finish(state, host);
            }
            Answer::Failed => current.step = Step::ReadHome,
            Answer::Unknown if self.rules.free_on_doubt => {
                let (key, ..) = self.store_of(state, host);
                let old = expected.records[key];
                if old.timestamp != 0 {
                    state.hosts[host].garbage.push(old.place);
                }
                self.end(state, host);
            }
            Answer::Unknown => {
                current.doubt = Some(*expected);
                current.undecided = true;
                current.step = Step::ReadHome;
            }
        }
    }

    /// The home page shows the entry or a newer one: the store is over.
    fn finish(&self, state: &mut State, host: usize) {
        let (key, timestamp, _) = self.store_of(state, host);
        state.ended[key] = state.ended[key].max(timestamp);
        let current = &mut state.hosts[host];
        // What the publication may have unlinked, and the copies that turned out not to be needed.
        let unlinked = current.doubt.iter().flat_map(|page| page.records).filter(|r| r.timestamp != 0).map(|r| r.place);
        let copies = current.own.into_iter().chain(current.neighbour.map(|(_, place)| place));
        let places: Vec<Place> = unlinked.chain(copies).filter(|place| !current.home.refers_to(*place)).collect();
        current.garbage.extend(places);
        self.end(state, host);
    }

    /// The host stops trying: its copies are freed unless they may yet be published.
    pub(super) fn give_up(&self, state: &mut State, host: usize) {
        let current = &mut state.hosts[host];
        if !current.undecided || self.rules.undecided_freed {
            let copies = current.own.into_iter().chain(current.neighbour.map(|(_, place)| place));
            let places: Vec<Place> = copies.filter(|place| !current.home.refers_to(*place)).collect();
            current.garbage.extend(places);
        }
        self.end(state, host);
    }

    fn end(&self, state: &mut State, host: usize) {
        let current = &mut state.hosts[host];
        current.garbage.retain(|place| *place != Place::Inline);
        current.garbage.sort();
        current.garbage.dedup();
        let garbage = std::mem::take(&mut current.garbage);
        let Host { next, claims, .. } = *current;
        state.hosts[host] = Host { next, claims, garbage, completed: true, step: Step::ReadForFree, ..Host::default() };
        self.skip_when_clean(state, host);
    }

    /// Goes on when there is nothing (more) to free.
    fn skip_when_clean(&self, state: &mut State, host: usize) {
        let current = &mut state.hosts[host];
        if !current.garbage.is_empty() {
            current.step = Step::ReadForFree;
        } else if current.completed {
            self.next_operation(state, host);
        } else {
            current.guest_page = Page::default();
            current.allocation = Allocation::default();
            self.plan(state, host);
        }
    }

    pub(super) fn have_page_of_garbage(&self, state: &mut State, host: usize) {
        let (pages, allocation) = (state.pages, state.allocation);
        let current = &mut state.hosts[host];
        let ours = match current.garbage[0] {
            Place::Inline => unreachable!("an inline value is no garbage"),
            Place::Guest(page, tag) => {
                current.guest_page = pages[usize::from(page)];
                current.guest_page.guests.iter().any(|guest| guest.tag == tag)
            }
            Place::Extent(extent, tag) => {
                current.allocation = allocation;
                let owner = allocation.owners[usize::from(extent)];
                owner == tag || (self.rules.owner_ignored && owner != 0)
            }
        };
        if ours {
            current.step = Step::Free;
        } else {
            self.freed(state, host, Answer::Done); // by somebody else before us
        }
    }

    pub(super) fn release(&self, state: &State, host: usize) -> Command {
        let current = &state.hosts[host];
        match current.garbage[0] {
            Place::Inline => unreachable!("an inline value is no garbage"),
            Place::Guest(page, tag) => {
                let expected = current.guest_page;
                let mut new = Page { version: self.next_version(expected.version), ..expected };
                new.guests.iter_mut().filter(|guest| guest.tag == tag).for_each(|guest| *guest = Guest::default());
                Command::Table(page, expected, new)
            }
            Place::Extent(extent, _) => {
                let expected = current.allocation;
                let mut new = Allocation { version: self.next_version(expected.version), ..expected };
                new.owners[usize::from(extent)] = 0;
                Command::Allocate(expected, new)
            }
        }
    }

    pub(super) fn freed(&self, state: &mut State, host: usize, answer: Answer) {
        let current = &mut state.hosts[host];
        current.guest_page = Page::default();
        if answer == Answer::Done {
            current.garbage.remove(0);
        }
        self.skip_when_clean(state, host);
    }
}
