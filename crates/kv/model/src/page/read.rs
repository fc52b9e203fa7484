//! The reader: home page, then the copy it refers to, then the home page again if the copy does not verify.
//!
//! A read takes effect when it read the home page whose reference it follows: a copy is immutable, and recognised by
//! its identity, so it does not matter when its bytes arrive.

use super::{Config, Fault, Place, Record, State, Step};

impl Config {
    /// The home page was read.
    pub(super) fn read_home(&self, state: &mut State, host: usize, key: usize) {
        let page = state.pages[self.homes[key]];
        if state.hosts[host].step == Step::ReadHome {
            state.hosts[host].floor = state.ended[key];
        }
        let record = page.records[key];
        let unchanged = record == state.hosts[host].home.records[key];
        if state.hosts[host].step == Step::Recheck && unchanged {
            state.fault = Some(Fault::CalledCorrupt(record.place));
            return;
        }
        state.hosts[host].home.records[key] = record;
        if record.timestamp == 0 || record.place == Place::Inline {
            self.returned(state, host, key, record.timestamp);
        } else {
            state.hosts[host].step = Step::Follow;
        }
    }

    /// The copy was read.
    pub(super) fn follow(&self, state: &mut State, host: usize, key: usize) {
        let record: Record = state.hosts[host].home.records[key];
        let found = match record.place {
            Place::Inline => unreachable!("an inline value is returned at once"),
            Place::Guest(page, tag) => {
                let guests = &state.pages[usize::from(page)].guests;
                guests.iter().find(|guest| guest.tag == tag).map(|guest| guest.timestamp)
            }
            Place::Extent(extent, tag) => {
                let content = state.data[usize::from(extent)];
                let verifies = content.tag == tag && content.timestamp == record.timestamp;
                (verifies || self.rules.no_identity).then_some(content.timestamp)
            }
        };
        match found {
            Some(value) => self.returned(state, host, key, value),
            None if self.rules.no_recheck => state.fault = Some(Fault::CalledCorrupt(record.place)),
            None => state.hosts[host].step = Step::Recheck,
        }
    }

    fn returned(&self, state: &mut State, host: usize, key: usize, value: u8) {
        let (floor, timestamp) = (state.hosts[host].floor, state.hosts[host].home.records[key].timestamp);
        if value != timestamp {
            state.fault = Some(Fault::WrongValue { returned: value, timestamp });
        } else if value < floor {
            state.fault = Some(Fault::StaleRead { returned: value, floor });
        }
        state.ended[key] = state.ended[key].max(timestamp);
        self.next_operation(state, host);
    }
}
