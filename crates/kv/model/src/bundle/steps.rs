//! The transition system, what must hold in every state, and progress.

use super::page::contents_at;
use super::writer::{all_keys, release};
use super::{
    Answer, Area, Begin, Command, Config, Contents, Copy, Doubt, Entry, Fault, Forward, Home, Host, KEYS, Leftover,
    Operation, ROOM, Slot, State, Step,
};
use crate::explore::{Model, Visit};

/// Steps in which a host that is alone ends its operations, at most: far above what the longest takes.
const STEPS_ALONE_MAX: usize = 200;
/// The tag of the bundle, and of the value, that are there first.
const FIRST_BUNDLE: u8 = 1;
const FIRST_VALUE: u8 = 2;

/// A configuration to be searched.
pub struct Search(pub Config);

impl Model for Search {
    type State = State;

    fn initial(&self) -> State {
        let config = &self.0;
        let far = matches!(config.begin, Begin::Far | Begin::BundledFar);
        let bundled = matches!(config.begin, Begin::Bundled | Begin::BundledFar);
        let (mut home, mut area) = (Home::default(), Area::default());
        let mut ended = Contents::default();
        let there = if bundled { KEYS } else { KEYS - 1 };
        ended[..there].fill(Entry { timestamp: 1, ..Entry::default() });
        home.entries = ended;
        if far {
            let copy = Copy { place: 1, tag: FIRST_VALUE };
            area.slots[1] = Slot { tag: FIRST_VALUE, ..Slot::default() };
            area.slots[1].contents[0].timestamp = 1;
            home.entries[0].copy = copy;
        }
        if bundled {
            let copy = Copy { place: 0, tag: FIRST_BUNDLE };
            let contents = [home.entries[0], home.entries[1], Entry::default()];
            area.slots[0] = Slot { tag: FIRST_BUNDLE, contents, ..Slot::default() };
            home.forwards[0] = Forward { copy, counts: 0b011, ..Forward::default() };
            (home.entries[0], home.entries[1]) = Default::default();
        }
        State {
            home,
            area,
            hosts: vec![Host::default(); config.hosts.len()],
            late: Vec::new(),
            unknowns_left: config.unknowns,
            losses_left: config.losses,
            ended,
            gone: 0,
            fault: None,
        }
    }

    fn successors(&self, state: &State, visit: &mut Visit<'_, State>) {
        for host in 0..state.hosts.len() {
            self.host_step(state, host, visit);
            self.leftover_steps(state, host, visit);
        }
        for position in 0..state.late.len() {
            let mut next = state.clone();
            let command = next.late.remove(position);
            land(&mut next, &command);
            visit(next, &|| "a late command lands".into());
        }
        let bundles = state.home.forwards.iter().filter(|forward| forward.copy.tag != 0);
        for copy in bundles.map(|forward| forward.copy).filter(|_| state.losses_left > 0) {
            let mut next = state.clone();
            next.losses_left -= 1;
            next.area.slots[usize::from(copy.place)].lost = true;
            visit(next, &|| format!("bundle {} is lost", copy.tag));
        }
    }

    fn canonicalise(&self, state: &mut State) {
        let mut late = std::mem::take(&mut state.late);
        late.retain(|command| match command {
            Command::Home(expected, _) => *expected == state.home,
            Command::Area(expected, _) => *expected == state.area,
        });
        late.sort();
        late.dedup();
        state.late = late;
    }

    fn check(&self, _: &State, after: &State) -> Result<(), String> {
        self.violation(after)
    }

    fn check_sampled(&self, state: &State) -> Result<(), String> {
        let mut together = state.clone();
        for host in 0..state.hosts.len() {
            self.alone(state.clone(), host)?;
            together = self.alone(together, host)?;
        }
        self.collected(together)
    }

    fn describe(&self, state: &State) -> String {
        format!("{:?} {:?}", state.home, state.area)
    }
}

/// Carries the command out; `false`: the comparison failed.
fn land(state: &mut State, command: &Command) -> bool {
    match *command {
        Command::Home(expected, new) if state.home == expected => state.home = new,
        Command::Area(expected, new) if state.area == expected => state.area = new,
        _ => return false,
    }
    true
}

impl Search {
    fn violation(&self, state: &State) -> Result<(), String> {
        if let Some(fault) = &state.fault {
            return Err(format!("{fault:?}"));
        }
        let (config, home) = (&self.0, &state.home);
        for copy in config.references(state, home, false) {
            let slot = &state.area.slots[usize::from(copy.place)];
            if slot.tag != copy.tag {
                return Err(format!("the page refers to copy {} at a place that {} owns", copy.tag, slot.tag));
            }
        }
        let contents = |tag: u8| super::upkeep::named(state, home, tag);
        for key in all_keys() {
            let counting = |forward: &&Forward| forward.copy.tag != 0 && forward.counts >> key & 1 == 1;
            let mut counting = home.forwards.iter().filter(counting);
            let bundle = counting.next();
            let twice = counting.next().is_some() || (bundle.is_some() && home.entries[key].is_there());
            if twice && !config.rules.filter_kept {
                return Err(format!("key {key} counts twice"));
            }
            if bundle.is_some_and(|forward| contents_at(state, forward.copy).is_none()) {
                continue; // the page has no vote on it
            }
            let (said, ended) = (config.said(home, key, &contents), state.ended[key]);
            // Dropped by an attempt that its host does not know to have landed.
            let leaves =
                home.sealed && config.hosts.iter().flatten().any(|operation| *operation == Operation::Clean(key));
            if leaves && !said.is_there() {
                continue;
            }
            if said.timestamp < ended.timestamp || said.promise < ended.promise {
                return Err(format!("key {key} fell back to {said:?} although {ended:?} was there"));
            }
            if state.gone >> key & 1 == 1 && said.is_there() {
                return Err(format!("key {key} is back although it was dropped"));
            }
        }
        match config.rules.no_reserve || config.committed(home) <= ROOM {
            true => Ok(()),
            false => Err("the page is over-full".into()),
        }
    }

    /// Lets one host alone go on, every command answered: it must end its operations, and free what it left.
    fn alone(&self, mut state: State, host: usize) -> Result<State, String> {
        for _ in 0..STEPS_ALONE_MAX {
            let mut first = None;
            self.host_step(&state, host, &mut |after, _| first = first.take().or(Some(after)));
            self.leftover_steps(&state, host, &mut |after, _| first = first.take().or(Some(after)));
            match first {
                Some(next) => state = next,
                None => return Ok(state),
            }
        }
        Err(format!("host {host} alone does not end"))
    }

    /// Once all is quiet, whatever nobody refers to can be collected.
    fn collected(&self, state: State) -> Result<(), String> {
        if !Config::is_readable(&state) {
            return Ok(());
        }
        let used = self.0.references(&state, &state.home, false);
        let places = state.area.slots.iter().enumerate().filter(|(_, slot)| slot.tag != 0);
        for copy in places.map(|(place, slot)| Copy { place: place as u8, tag: slot.tag }).collect::<Vec<_>>() {
            let collector = Config { hosts: vec![vec![Operation::Collect]], ..self.0.clone() };
            let mut alone = State { unknowns_left: 0, ..state.clone() };
            alone.hosts = vec![Host { step: Step::Condemn, picked: copy, ..Host::default() }];
            let after = Search(collector).alone(alone, 0)?;
            let there = after.area.slots[usize::from(copy.place)].tag == copy.tag;
            if there != used.contains(&copy) {
                return Err(format!("the collector leaves copy {}: {there}", copy.tag));
            }
        }
        Ok(())
    }

    fn leftover_steps(&self, state: &State, host: usize, visit: &mut Visit<'_, State>) {
        for (index, leftover) in state.hosts[host].left.iter().enumerate() {
            let Some(copy) = self.0.leftover(state, *leftover) else { continue };
            let mut next = state.clone();
            let undecided = matches!(leftover, Leftover::Undecided(..));
            match copy.and_then(|copy| Some((copy, release(state, copy)?))) {
                None => drop(next.hosts[host].left.remove(index)),
                // Freed in a step of its own: the look and the freeing are two commands.
                Some((copy, _)) if undecided => {
                    next.hosts[host].left[index] = Leftover::Garbage(copy);
                    next.hosts[host].left.sort();
                    next.hosts[host].left.dedup();
                }
                Some((_, command)) => {
                    next.hosts[host].left.remove(index);
                    land(&mut next, &command);
                }
            }
            visit(next, &|| format!("host{host} {leftover:?}"));
        }
    }

    fn host_step(&self, state: &State, host: usize, visit: &mut Visit<'_, State>) {
        let Some(operation) = self.0.operation(state, host) else { return };
        let step = state.hosts[host].step;
        let words = || format!("host{host} {operation:?} {step:?}");
        if operation == Operation::Collect && step == Step::Begin {
            let mut next = state.clone();
            self.0.end(&mut next, host);
            let owned = state.area.slots.iter().enumerate().filter(|(_, slot)| slot.tag != 0);
            for (place, slot) in owned {
                let mut next = state.clone();
                next.hosts[host].picked = Copy { place: place as u8, tag: slot.tag };
                next.hosts[host].step = Step::Condemn;
                visit(next, &words);
            }
            return visit(next, &words);
        }
        let mut next = state.clone();
        let Some((command, copy)) = self.command(&mut next, host, operation) else { return visit(next, &words) };
        let mut done = next.clone();
        let answer = if land(&mut done, &command) { Answer::Done } else { Answer::Failed };
        self.answered(&mut done, host, operation, copy, answer);
        visit(done, &|| format!("{}: {answer:?}", words()));
        if next.unknowns_left > 0 {
            next.unknowns_left -= 1;
            next.late.push(command);
            self.answered(&mut next, host, operation, copy, Answer::Unknown);
            visit(next, &|| format!("{}: outcome unknown", words()));
        }
    }

    /// What the host reads, or the compare-and-write that it sends; the page of places is read just before.
    fn command(&self, state: &mut State, host: usize, operation: Operation) -> Option<(Command, Copy)> {
        let config = &self.0;
        let picked = state.hosts[host].picked;
        let slot = state.area.slots[usize::from(picked.place)];
        let mark = |state: &State, condemned: bool| {
            let mut new = state.area;
            new.version += 1;
            new.slots[usize::from(picked.place)] = Config::marked(slot, condemned);
            Some((Command::Area(state.area, new), picked))
        };
        match state.hosts[host].step {
            Step::Publish => {
                let current = &state.hosts[host];
                return Some((Command::Home(current.home, current.planned), Copy::default()));
            }
            Step::Place => {
                let Some(copy) = config.next_copy(state, host) else {
                    config.planned(state, host, super::page::Plan::Full);
                    return None;
                };
                let (key, contents) = state.hosts[host].to_place;
                if config.rules.published_first && key.is_none() {
                    (state.hosts[host].picked, state.hosts[host].gathered) = (copy, contents);
                    config.placed(state, host, copy, Answer::Done);
                    return None;
                }
                return Some((Config::insertion(state, copy, contents), copy));
            }
            Step::PlaceLate => return Some((Config::insertion(state, picked, state.hosts[host].gathered), picked)),
            Step::Condemn if slot.tag == picked.tag && !slot.condemned => return mark(state, true),
            Step::Bump => {
                let new = Home { version: state.home.version + 1, ..state.home };
                return Some((Command::Home(state.home, new), picked));
            }
            Step::Free if slot.tag == picked.tag => return release(state, picked).map(|command| (command, picked)),
            Step::Pardon if slot.tag == picked.tag && slot.condemned => return mark(state, false),
            Step::Condemn if slot.tag == picked.tag => state.hosts[host].step = Step::Bump,
            Step::Condemn | Step::Free | Step::Pardon => config.end(state, host),
            Step::LookAtHome if !Config::is_readable(state) => config.end(state, host),
            Step::LookAtHome => {
                state.hosts[host].step = if config.refers(state, picked) { Step::Pardon } else { Step::Free };
            }
            _ => self.look(state, host, operation),
        }
        None
    }

    /// A step that only reads.
    fn look(&self, state: &mut State, host: usize, operation: Operation) {
        let config = &self.0;
        match (state.hosts[host].step, operation) {
            (Step::Begin, _) if state.home.sealed && operation.is_refused_by_seal() => config.settle(state, host),
            (Step::Begin, Operation::Clean(_) | Operation::Rebuild) => self.begin_upkeep(state, host, operation),
            (Step::Begin, _) => {
                let home = state.home;
                let current = &mut state.hosts[host];
                (current.home, current.older) = (home, false);
                if let Operation::Read(key) = operation {
                    current.floor = current.floor.max(state.ended[key].timestamp);
                }
                self.go_on(state, host, operation);
            }
            (Step::Gather, _) => config.rebuild(state, host),
            (Step::Fetch, _) => {
                let key = key_of(operation);
                let copy = config.to_fetch(state, host, key).expect("invariant: there is one to fetch");
                state.hosts[host].step = config.fetch(state, host, copy);
                if state.hosts[host].step == Step::Fetch {
                    self.go_on(state, host, operation);
                }
            }
            (Step::Recheck, Operation::Read(_)) => match config.recheck_read(state, host) {
                true => config.end(state, host),
                false => state.hosts[host].step = Step::Begin,
            },
            (Step::Recheck, _) => match config.recheck(state, host) {
                true => config.settle(state, host),
                false => state.hosts[host].step = Step::Begin,
            },
            (Step::Follow, _) => config.follow(state, host, key_of(operation)),
            (Step::LookAtCopies, _) => config.look_at_copies(state, host),
            (step, _) => unreachable!("{step:?} of {operation:?} does not only read"),
        }
    }

    fn begin_upkeep(&self, state: &mut State, host: usize, operation: Operation) {
        let config = &self.0;
        match operation {
            // It can't be read whole: no vote.
            Operation::Clean(_) if !Config::is_readable(state) => config.settle(state, host),
            Operation::Clean(key) => config.plan_clean(state, host, key),
            _ => {
                config.gather(state, host);
                config.see_damage(state, host);
            }
        }
    }

    fn go_on(&self, state: &mut State, host: usize, operation: Operation) {
        match operation {
            Operation::Read(key) => self.0.have_home_to_read(state, host, key),
            _ => self.0.have_home(state, host, key_of(operation)),
        }
    }

    fn answered(&self, state: &mut State, host: usize, operation: Operation, copy: Copy, answer: Answer) {
        let config = &self.0;
        let current = &mut state.hosts[host];
        match (current.step, operation) {
            (Step::Place, _) => config.placed(state, host, copy, answer),
            (Step::PlaceLate, _) => config.settle(state, host),
            (Step::Publish, Operation::Clean(key)) => self.clean_answered(state, host, key, answer),
            (Step::Publish, Operation::Rebuild) if answer != Answer::Done => {
                if answer == Answer::Unknown {
                    current.placed.clear(); // left to the collector
                }
                config.settle(state, host);
            }
            (Step::Publish, _) if config.rules.published_first && answer == Answer::Done && current.picked.tag != 0 => {
                current.step = Step::PlaceLate;
            }
            (Step::Publish, _) => config.published(state, host, answer),
            (Step::Condemn, _) if answer == Answer::Done => {
                current.step = if config.rules.no_bump { Step::LookAtHome } else { Step::Bump };
            }
            (Step::Bump, _) if answer == Answer::Done => current.step = Step::LookAtHome,
            (Step::Bump, _) if answer == Answer::Unknown => config.end(state, host),
            (Step::Free | Step::Pardon, _) if answer == Answer::Done => config.end(state, host),
            _ => {} // tried again on the page as it is then
        }
    }

    fn clean_answered(&self, state: &mut State, host: usize, key: usize, answer: Answer) {
        let current = &mut state.hosts[host];
        match answer {
            Answer::Done => {
                current.home = current.planned;
                return self.0.cleaned(state, host, key);
            }
            Answer::Unknown if current.doubt.is_some() => {
                let version = current.doubt.take().map(|doubt| doubt.expected.version);
                let unlinks = std::mem::take(&mut current.unlinks);
                current.left.extend(unlinks.into_iter().map(|copy| Leftover::Undecided(copy, version)));
                return self.0.settle(state, host);
            }
            Answer::Unknown => current.doubt = Some(Doubt { expected: current.home, unlinks: Vec::new() }),
            Answer::Failed => {}
        }
        current.step = Step::Begin;
    }
}

fn key_of(operation: Operation) -> usize {
    match operation {
        Operation::Read(key) => key,
        other => other.stores().unwrap_or(KEYS),
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", if self.dead { "x" } else { "" }, self.timestamp)?;
        let more = [("!", self.promise), ("@", self.copy.tag)];
        more.iter().filter(|(_, number)| *number != 0).try_for_each(|(sign, number)| write!(f, "{sign}{number}"))
    }
}

impl std::fmt::Debug for Home {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[v{}{} {:?}", self.version, if self.sealed { " sealed" } else { "" }, self.entries)?;
        let forwards = self.forwards.iter().filter(|forward| forward.copy.tag != 0);
        forwards.into_iter().try_for_each(|forward| {
            write!(f, " bundle {} counts {:03b} deleted {:?}", forward.copy.tag, forward.counts, forward.deletions)
        })?;
        write!(f, "]")
    }
}

impl std::fmt::Debug for Area {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let owned = self.slots.iter().filter(|slot| slot.tag != 0);
        owned.into_iter().try_for_each(|slot| {
            let marks = (if slot.condemned { " condemned" } else { "" }, if slot.lost { " lost" } else { "" });
            write!(f, "({}{}{} {:?})", slot.tag, marks.0, marks.1, slot.contents)
        })
    }
}

impl std::fmt::Debug for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::StaleRead { returned, floor } => {
                write!(f, "a read returned {returned}, but {floor} was stored or read before it began")
            }
            Fault::WrongValue { returned, timestamp } => {
                write!(f, "a read returned the value {returned} under the timestamp {timestamp}")
            }
            Fault::CalledDamaged { tag } => write!(f, "a page whose copies are whole was called damaged (copy {tag})"),
            Fault::DeleteRefused { key } => write!(f, "the page has no room to delete key {key}"),
        }
    }
}
