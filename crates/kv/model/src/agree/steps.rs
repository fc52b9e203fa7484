//! The transition system and progress.

use super::proposer::newest;
use super::{CHANGES_MAX, Change, Config, Fault, Host, MEMBERS, Map, Member, Phase, Reply, State, map};
use crate::explore::{Model, Visit};

/// Ballots in which a proposer that nobody is in the way of comes to an end: each finds voters it did not know, or a higher
/// ballot.
const BALLOTS_ALONE_MAX: usize = 8;

/// A configuration to be searched.
pub struct Search(pub Config);

impl Model for Search {
    type State = State;

    fn initial(&self) -> State {
        let first = self.0.first();
        let member = match self.0.marked {
            false => Member { life: 1, map: first, ..Member::default() },
            true => Member {
                life: 1,
                mark: 1,
                promised: 1,
                accepted: 1,
                map: Map { marks: [1; MEMBERS], ..first },
                torn: false,
            },
        };
        State {
            members: [member; MEMBERS],
            hosts: vec![Host { known: first, ..Host::default() }; self.0.hosts.len()],
            late: Vec::new(),
            chains: Default::default(),
            losses_left: self.0.losses,
            rollbacks_left: self.0.rollbacks,
            torn_left: self.0.torn,
            lives: 1,
            fault: None,
        }
    }

    fn successors(&self, state: &State, visit: &mut Visit<'_, State>) {
        for host in 0..state.hosts.len() {
            self.host_steps(state, host, visit);
        }
        for position in 0..state.late.len() {
            let mut next = state.clone();
            let accept = next.late.remove(position);
            self.0.land(&mut next, &accept);
            visit(next, &|| format!("LATE {accept:?} lands"));
        }
        for index in 0..MEMBERS {
            let member = state.members[index];
            if state.losses_left > 0 && member.life != 0 && self.0.voters >> index & 1 == 1 {
                let mut next = state.clone();
                next.losses_left -= 1;
                let first = self.0.first();
                let life = if self.0.rules.votes_after_loss { member.life } else { 0 };
                next.members[index] = Member { life, map: first, ..Member::default() };
                visit(next, &|| format!("member {index} loses what it had"));
            }
            if state.rollbacks_left > 0 && self.is_marked_by_others(state, index) {
                let mut next = state.clone();
                next.rollbacks_left -= 1;
                next.members[index] = Member { life: 1, map: self.0.first(), ..Member::default() };
                visit(next, &|| format!("member {index} is rolled back"));
            }
            if state.torn_left > 0 && !member.torn && member.life != 0 {
                let mut next = state.clone();
                next.torn_left -= 1;
                next.members[index].torn = true;
                visit(next, &|| format!("the map of member {index} is damaged"));
            }
        }
    }

    fn canonicalise(&self, state: &mut State) {
        let mut late = std::mem::take(&mut state.late);
        let members = &state.members;
        late.retain(|accept| self.0.may_land(&members[usize::from(accept.member)], accept));
        late.sort();
        late.dedup();
        state.late = late;
    }

    fn check(&self, before: &State, after: &State) -> Result<(), String> {
        let undone = |(before, after): (&Member, &Member)| {
            before.life == after.life && before.life != 0 && after.map.seized < before.map.seized
        };
        match after.fault {
            None if before.members.iter().zip(&after.members).any(undone) => {
                Err("a member that has gone on without the voters was handed a map of before".into())
            }
            None => Ok(()),
            Some(Fault::Forked(one, other)) => Err(format!("{one:?} and {other:?} were both in force")),
            Some(Fault::Older(changes, floor)) => {
                Err(format!("{changes:?} was agreed on, though {floor} changes had been before it began"))
            }
            Some(Fault::Twice(token)) => Err(format!("change {token} was made twice")),
        }
    }

    fn check_sampled(&self, state: &State) -> Result<(), String> {
        let whole = (1 << MEMBERS) - 1;
        let without_one = (0..MEMBERS).map(|member| whole & !(1 << member));
        std::iter::once(whole).chain(without_one).try_for_each(|reached| self.progress(state, reached))
    }

    fn describe(&self, state: &State) -> String {
        let member = |m: &Member| format!("{}:{}/{}{:?}", m.life, m.promised, m.accepted, m.map);
        state.members.iter().map(member).collect::<Vec<_>>().join("  ")
    }
}

impl Search {
    fn host_steps(&self, state: &State, host: usize, visit: &mut Visit<'_, State>) {
        let Some(change) = self.0.change(state, host) else { return };
        if state.hosts[host].phase == Phase::Idle {
            let mut next = state.clone();
            self.0.begin(&mut next, host);
            return visit(next, &|| format!("host{host} begins {change:?}"));
        }
        if let Some(next) = self.0.meet_seized(state, host, u8::MAX) {
            visit(next, &|| format!("host{host} {change:?} meets a member that has gone on"));
        }
        if let Some(next) = self.0.decide(state, host) {
            visit(next, &|| format!("host{host} {change:?} decides on {:?}", state.hosts[host].phase));
        }
        for index in (0..MEMBERS).filter(|&index| state.hosts[host].pending >> index & 1 == 1) {
            let mut next = state.clone();
            self.0.deliver(&mut next, host, index);
            visit(next, &|| format!("host{host} {change:?} {:?} at {index}", state.hosts[host].phase));
        }
        if usize::from(state.hosts[host].next) + 1 < self.0.hosts[host].len() {
            let mut next = state.clone();
            self.0.end(&mut next, host);
            visit(next, &|| format!("host{host} {change:?} gives up"));
        }
    }

    /// A voter whose fall back to the beginning any voter knows, and everybody who is about to count it.
    fn is_marked_by_others(&self, state: &State, index: usize) -> bool {
        let voters = |member: &usize| self.0.voters >> member & 1 == 1;
        let knows = |host: &Host| {
            let shown = |reply: &Reply| match reply {
                Reply::Shown(member) => Some(member.map.marks[index] > 0),
                _ => None,
            };
            let mut answers = host.replies.iter().filter_map(shown).peekable();
            match host.phase {
                Phase::Idle | Phase::Read => true,
                _ if host.marks[index].max(host.proposed.marks[index]) > 0 => true,
                Phase::Prepare => answers.peek().is_none() || answers.any(|knows| knows),
                Phase::Accept => false,
            }
        };
        voters(&index)
            && state.hosts.iter().all(knows)
            && (0..MEMBERS).filter(voters).all(|member| member == index || state.members[member].map.marks[index] > 0)
    }

    /// A proposer alone, who knows the first map only and reaches these members, comes to an end where a quorum of every map
    /// that is carried can answer.
    fn progress(&self, state: &State, reached: u8) -> Result<(), String> {
        let answers = |member: usize| reached >> member & 1 == 1 && state.members[member].life != 0;
        let named = state.members.iter().map(|member| member.map.marks);
        let marks = named.fold([0; MEMBERS], |highest, marks| map::highest(&highest, &marks));
        let enough = |map: &Map| {
            let whole = |member: &usize| {
                let shown = &state.members[*member];
                let current = shown.life == map.lives[*member] && shown.mark >= marks[*member];
                answers(*member) && !shown.torn && current
            };
            map.has_quorum(&self.0.rules, (0..MEMBERS).filter(whole).map(|member| 1 << member).sum())
        };
        let carried = state.members.iter().filter(|member| member.life != 0).map(|member| member.map);
        if !carried.chain([self.0.first()]).all(|map| enough(&map)) {
            return Ok(());
        }
        let config = Config {
            hosts: vec![Vec::new(), Vec::new(), Vec::new(), vec![Change::Open; CHANGES_MAX], vec![Change::Note]],
            ballots_max: u8::MAX,
            ..self.0.clone()
        };
        let (mut alone, host) = (state.clone(), 4);
        alone.hosts = vec![Host { known: self.0.first(), ..Host::default() }; host + 1];
        config.begin(&mut alone, host);
        for _ in 0..2 * BALLOTS_ALONE_MAX {
            for index in 0..MEMBERS {
                let asked = alone.hosts[host].pending >> index & 1 == 1;
                match asked && answers(index) {
                    true => config.deliver(&mut alone, host, index),
                    false if asked => alone.hosts[host].replies[index] = Reply::NoVote,
                    false => {}
                }
            }
            match config.meet_seized(&alone, host, reached).or_else(|| config.decide(&alone, host)) {
                Some(next) => alone = next,
                None => return Err(format!("a proposer alone with {reached:04b} waits for ever")),
            }
            if config.change(&alone, host).is_none() {
                let (told, now) = (newest(state), alone.hosts[host].known);
                if now.seized < told.0 {
                    return Err(format!(
                        "a proposer alone with {reached:04b} is told of {now:?}, of before others have gone on"
                    ));
                }
                return self.check(state, &alone);
            }
        }
        Err(format!("a proposer alone with {reached:04b} comes to no end"))
    }
}
