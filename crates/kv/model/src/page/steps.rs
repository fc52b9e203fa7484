//! The transition system: each step of a host is one command, answered or of unknown outcome.

use super::member::violation;
use super::{Answer, Command, Config, Host, Operation, State, Step};
use crate::explore::{Model, Visit};

/// A configuration to be searched.
pub struct Search(pub Config);

impl Model for Search {
    type State = State;

    fn initial(&self) -> State {
        State {
            pages: Default::default(),
            allocation: Default::default(),
            data: Default::default(),
            stable: Default::default(),
            hosts: vec![Host::default(); self.0.hosts.len()],
            late: Vec::new(),
            unknowns_left: self.0.unknowns,
            ended: Default::default(),
            fault: None,
        }
    }

    fn successors(&self, state: &State, visit: &mut Visit<'_, State>) {
        for host in 0..self.0.hosts.len() {
            match self.0.operation(state, host) {
                Some(Operation::Read(key)) => self.reader_step(state, host, key, visit),
                Some(Operation::Store(key, ..)) => self.writer_step(state, host, key, visit),
                None => {}
            }
        }
        for position in 0..state.late.len() {
            let mut next = state.clone();
            let command = next.late.remove(position);
            self.0.land(&mut next, &command);
            visit(next, &|| format!("LATE {command:?} lands"));
        }
        if state.data != state.stable {
            let mut next = state.clone();
            next.data = next.stable;
            visit(next, &|| "the member crashes and restarts".into());
        }
    }

    fn canonicalise(&self, state: &mut State) {
        let mut late = std::mem::take(&mut state.late);
        late.retain(|command| self.0.may_land(state, command));
        late.sort();
        state.late = late;
    }

    fn check(&self, _: &State, after: &State) -> Result<(), String> {
        violation(&self.0.homes, after)
    }

    fn describe(&self, state: &State) -> String {
        let data: Vec<String> = state.data.iter().map(|c| format!("{}#{}", c.timestamp, c.tag)).collect();
        format!("{:?} {:?} owners {:?} data {}", state.pages[0], state.pages[1], state.allocation, data.join(" "))
    }
}

impl Search {
    fn reader_step(&self, state: &State, host: usize, key: usize, visit: &mut Visit<'_, State>) {
        let step = state.hosts[host].step;
        let mut next = state.clone();
        match step {
            Step::Follow => self.0.follow(&mut next, host, key),
            _ => self.0.read_home(&mut next, host, key),
        }
        visit(next, &|| format!("host{host} read key {key}: {step:?}"));
    }

    fn writer_step(&self, state: &State, host: usize, key: usize, visit: &mut Visit<'_, State>) {
        let config = &self.0;
        let step = state.hosts[host].step;
        let command = match step {
            Step::InsertGuest { own } => config.insertion(state, host, own),
            Step::ClaimExtent => config.claim(state, host),
            Step::WriteExtent => config.data_write(state, host),
            Step::Publish => config.publication(state, host),
            Step::Free => config.release(state, host),
            _ => return self.writer_read(state, host, key, visit),
        };
        let mut next = state.clone();
        let answer = if config.land(&mut next, &command) { Answer::Done } else { Answer::Failed };
        self.answered(&mut next, host, &command, answer);
        visit(next, &|| format!("host{host} {command:?}: {answer:?}"));
        if state.unknowns_left > 0 {
            let mut next = state.clone();
            next.unknowns_left -= 1;
            next.late.push(command);
            self.answered(&mut next, host, &command, Answer::Unknown);
            visit(next, &|| format!("host{host} {command:?}: outcome unknown"));
        }
    }

    fn answered(&self, state: &mut State, host: usize, command: &Command, answer: Answer) {
        let config = &self.0;
        match state.hosts[host].step {
            Step::InsertGuest { own } => config.inserted(state, host, own, answer),
            Step::ClaimExtent => config.claimed(state, host, command, answer),
            Step::WriteExtent => config.written(state, host, answer),
            Step::Publish => config.published(state, host, command, answer),
            Step::Free => config.freed(state, host, answer),
            other => unreachable!("{other:?} sends no command that changes the member"),
        }
    }

    /// A step that only reads. A host that has been in doubt may also run out of patience here.
    fn writer_read(&self, state: &State, host: usize, key: usize, visit: &mut Visit<'_, State>) {
        let config = &self.0;
        let step = state.hosts[host].step;
        let mut next = state.clone();
        match step {
            Step::ReadHome => config.have_home(&mut next, host),
            Step::ReadGuestPage { own } => config.have_guest_page(&mut next, host, own),
            Step::ReadAllocation => config.have_allocation(&mut next, host),
            Step::ReadForFree => config.have_page_of_garbage(&mut next, host),
            other => unreachable!("{other:?} is no read of a writer"),
        }
        visit(next, &|| format!("host{host} store key {key}: {step:?}"));
        if step == Step::ReadHome && state.hosts[host].doubt.is_some() {
            let mut next = state.clone();
            let home = next.pages[config.homes[key]];
            let current = &mut next.hosts[host];
            current.undecided &= current.doubt == Some(home);
            current.home = home;
            config.give_up(&mut next, host);
            visit(next, &|| format!("host{host} reads the home page and gives up"));
        }
    }
}
