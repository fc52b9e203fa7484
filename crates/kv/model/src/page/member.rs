//! The member's commands, and what must hold in every state.

use super::{Command, Config, Fault, KEYS, Page, Place, State};

impl Config {
    /// Carries the command out; `false`: the comparison failed and nothing was written.
    pub(super) fn land(&self, state: &mut State, command: &Command) -> bool {
        match *command {
            Command::Table(page, expected, new) => {
                let page = &mut state.pages[usize::from(page)];
                let equal = *page == expected;
                if equal {
                    *page = new;
                }
                equal
            }
            Command::Allocate(expected, new) => {
                let equal = state.allocation == expected;
                if equal {
                    state.allocation = new;
                }
                equal
            }
            Command::Write(extent, content) => {
                state.data[usize::from(extent)] = content;
                if !self.rules.data_write_cached {
                    state.stable[usize::from(extent)] = content;
                }
                true
            }
        }
    }

    /// Whether a late command can still change anything: a compare whose version has passed cannot.
    pub(super) fn may_land(&self, state: &State, command: &Command) -> bool {
        self.rules.version_repeats
            || match *command {
                Command::Table(page, expected, _) => state.pages[usize::from(page)] == expected,
                Command::Allocate(expected, _) => state.allocation == expected,
                Command::Write(..) => true,
            }
    }

    /// The version that a changed page gets.
    pub(super) fn next_version(&self, version: u8) -> u8 {
        if self.rules.version_repeats { version } else { version + 1 }
    }
}

/// Whether the state breaks a promise; the words name the disaster.
pub(super) fn violation(homes: &[usize; KEYS], state: &State) -> Result<(), String> {
    match state.fault {
        Some(Fault::StaleRead { returned, floor }) => {
            return Err(format!("a read returned {returned}, but {floor} was stored or read before it began"));
        }
        Some(Fault::WrongValue { returned, timestamp }) => {
            return Err(format!("a read returned the value {returned} under the timestamp {timestamp}"));
        }
        Some(Fault::CalledCorrupt(place)) => return Err(format!("the intact copy at {place:?} was called corrupt")),
        None => {}
    }
    for (key, &home) in homes.iter().enumerate() {
        let record = state.pages[home].records[key];
        if record.timestamp < state.ended[key] {
            return Err(format!("key {key} fell back to {} although {} was there", record.timestamp, state.ended[key]));
        }
        match record.place {
            _ if record.timestamp == 0 => {}
            Place::Inline => {}
            Place::Guest(page, tag) => {
                let page: &Page = &state.pages[usize::from(page)];
                if !page.guests.iter().any(|g| g.tag == tag && g.timestamp == record.timestamp) {
                    return Err(format!("key {key} refers to the guest {tag}, which is gone"));
                }
            }
            Place::Extent(extent, tag) => {
                let (owner, content) = (state.allocation.owners[usize::from(extent)], state.data[usize::from(extent)]);
                if owner != tag {
                    return Err(format!("key {key} refers to extent {extent} of owner {tag}, which {owner} owns"));
                }
                if content.tag != tag || content.timestamp != record.timestamp {
                    return Err(format!("key {key} refers to extent {extent}, which was overwritten by {content:?}"));
                }
            }
        }
    }
    Ok(())
}
