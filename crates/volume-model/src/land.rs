//! Commands execute, at any time or never. That one is executed and that it is answered is one step: to give up first, and to
//! execute afterwards, covers an answer that is lost.

use check::explore::Visit;

use crate::config::{Broken, Config, Op};
use crate::state::{Called, Host, INTENT, Link, Phase, Progress, REGIONS, Record, State, Thread, Work, has, only};

impl Config {
    /// Reports what comes of each command in flight of host `h` at holder `i`.
    pub(crate) fn land(&self, state: &State, h: usize, i: usize, visit: &mut Visit<'_, State>) {
        let link = &state.hosts[h].links[i];
        if link.preempt {
            let mut next = state.clone();
            self.preempt(&mut next, h, i);
            visit(next, &|| format!("host {h} preempts at {i}"));
        }
        if link.promise {
            let mut next = state.clone();
            self.promise(&mut next, h, i);
            visit(next, &|| format!("host {h}: promise at {i}"));
        }
        if link.record.version != 0 {
            let mut next = state.clone();
            self.accept(&mut next, h, i);
            visit(next, &|| format!("host {h}: record v{} S={:03b} at {i}", link.record.version, link.record.in_sync));
        }
        for region in 0..self.regions {
            self.land_region(state, h, i, region, visit);
        }
        for of_client in
            [link.flush.is_some().then_some(false), link.sync.is_some().then_some(true)].into_iter().flatten()
        {
            let mut next = state.clone();
            self.flush(&mut next, h, i, of_client);
            visit(next, &|| format!("host {h} flushes {i}{}", if of_client { " for its client" } else { "" }));
        }
        if link.ask {
            let mut next = state.clone();
            self.confirm(&mut next, h, i);
            visit(next, &|| format!("host {h} reads the ballot at {i}"));
        }
        self.land_snapshots(state, h, i, visit);
        let asked = |thread: &Thread| thread.from == Some(i as u8) && thread.got.is_none();
        for (thread, _) in state.hosts[h].threads.iter().enumerate().filter(|(_, thread)| asked(thread)) {
            let mut next = state.clone();
            self.read(&mut next, h, i, thread);
            visit(next, &|| format!("host {h} reads at {i}"));
        }
    }

    fn land_region(&self, state: &State, h: usize, i: usize, region: usize, visit: &mut Visit<'_, State>) {
        let link = &state.hosts[h].links[i];
        if let Some(entry) = link.log[region] {
            let mut next = state.clone();
            self.write_log(&mut next, (h, i), region, entry);
            visit(next, &|| format!("host {h}: log of region {region} = {entry} at {i}"));
        }
        if let Some(value) = link.data[region] {
            let mut next = state.clone();
            self.write_data(&mut next, (h, i), region, value);
            let late = if link.progress < Progress::Unchecked { " (late)" } else { "" };
            visit(next, &|| format!("host {h}: region {region} = {value} at {i}{late}"));
        }
        if let Some(value) = link.leftover[region] {
            let mut next = state.clone();
            next.hosts[h].links[i].leftover[region] = None;
            if self.may_execute(state, h, i) {
                next.holders[i].data[region] = value;
            }
            visit(next, &|| format!("host {h}: region {region} = {value} at {i}, of the connection before"));
        }
    }

    fn preempt(&self, state: &mut State, h: usize, i: usize) {
        let holder = &mut state.holders[i];
        holder.reserved = 1 + h as u8;
        let host = &mut state.hosts[h];
        let old = host.links[i];
        let link = &mut host.links[i];
        *link = Link {
            progress: Progress::Unchecked,
            life: holder.life,
            power_losses: if self.counted { holder.power_losses } else { 0 },
            known: holder.log,
            grown: holder.grown,
            snapshots: old.snapshots,
            deletes: old.deletes,
            ..Link::default()
        };
        if self.breaks(Broken::SameKey) {
            link.leftover = std::array::from_fn(|region| old.data[region].or(old.leftover[region]));
        }
        match host.phase {
            Phase::Record | Phase::Attached => link.answered = old.answered,
            Phase::Promise => link.promise = true,
            Phase::Over => *link = Link::default(),
            _ => {}
        }
        self.go_on(state, h);
    }

    fn promise(&self, state: &mut State, h: usize, i: usize) {
        state.hosts[h].links[i].promise = false;
        let may = self.may_execute(state, h, i);
        let (holder, host) = (&mut state.holders[i], &mut state.hosts[h]);
        if !may {
            self.disconnect(host, i);
        } else if holder.promised >= host.ballot {
            host.phase = Phase::Over;
        } else {
            holder.promised = host.ballot;
            host.links[i].progress = Progress::Usable;
            if host.phase == Phase::Promise || self.breaks(Broken::PromiseVotes) {
                host.links[i].answered = Some(holder.life);
                host.read = host.read.max(holder.accepted);
            }
        }
    }

    /// The connection of whose command it was goes down, if that is the one it has.
    pub(crate) fn refuse(&self, state: &mut State, h: usize, i: usize) {
        let host = &mut state.hosts[h];
        if host.links[i].progress >= Progress::Unchecked {
            self.disconnect(host, i);
        }
    }

    fn accept(&self, state: &mut State, h: usize, i: usize) {
        let record = std::mem::take(&mut state.hosts[h].links[i].record);
        let is_up = state.hosts[h].links[i].progress >= Progress::Unchecked;
        if !self.may_execute(state, h, i) {
            self.refuse(state, h, i);
        } else if state.holders[i].promised > record.ballot {
            if is_up {
                state.hosts[h].phase = Phase::Over;
            }
        } else {
            self.note_foul(state, h, i);
            let (holder, host) = (&mut state.holders[i], &mut state.hosts[h]);
            (holder.promised, holder.accepted) = (record.ballot, holder.accepted.max(record));
            if is_up {
                let is_current = record.version == host.current.version;
                let link = &mut host.links[i];
                (link.progress, link.version) = (Progress::Usable, record.version);
                link.answered = if is_current { Some(holder.life) } else { link.answered };
            }
        }
        self.go_on(state, h);
    }

    fn write_log(&self, state: &mut State, (h, i): (usize, usize), region: usize, entry: u8) {
        state.hosts[h].links[i].log[region] = None;
        if !self.may_execute(state, h, i) {
            self.refuse(state, h, i);
        } else {
            self.note_foul(state, h, i);
            state.holders[i].log[region] = entry;
            let link = &mut state.hosts[h].links[i];
            if link.progress >= Progress::Unchecked {
                link.known[region] = entry;
            }
        }
        self.go_on(state, h);
    }

    fn write_data(&self, state: &mut State, (h, i): (usize, usize), region: usize, value: u8) {
        state.hosts[h].links[i].data[region] = None;
        if !self.may_execute(state, h, i) && !self.breaks(Broken::NoFence) {
            self.refuse(state, h, i);
        } else {
            self.note_foul(state, h, i);
            let (holder, host) = (&mut state.holders[i], &mut state.hosts[h]);
            holder.data[region] = value;
            holder.stable[region] = if self.volatile { holder.stable[region] | only(value) } else { only(value) };
            let (link, job) = (&mut host.links[i], &mut host.jobs[region]);
            let is_ours = job.work != Work::None && job.value == value;
            if link.progress >= Progress::Unchecked && is_ours {
                job.done |= 1 << i;
                if self.breaks(Broken::MarkedAfter) {
                    link.log[region] = Some(INTENT);
                }
            }
        }
        self.go_on(state, h);
    }

    fn confirm(&self, state: &mut State, h: usize, i: usize) {
        state.hosts[h].links[i].ask = false;
        if !self.may_execute(state, h, i) {
            self.refuse(state, h, i);
            self.go_on(state, h);
        } else if state.holders[i].promised > state.hosts[h].ballot {
            state.hosts[h].phase = Phase::Over;
        } else {
            let host = &mut state.hosts[h];
            host.confirmed |= 1 << i;
            if self.is_confirmed(host) {
                host.leased = true;
                Config::forget_round(host);
            }
        }
    }

    fn read(&self, state: &mut State, h: usize, i: usize, thread: usize) {
        let fenced = !self.breaks(Broken::NoFence) && !self.breaks(Broken::OthersRead);
        if fenced && !self.may_execute(state, h, i) {
            self.disconnect(&mut state.hosts[h], i);
            self.go_on(state, h);
        } else if let Some(Op::Read(region)) = self.left(state, h, thread).first() {
            state.hosts[h].threads[thread].got = Some(state.holders[i].data[*region]);
        }
    }

    /// A client is answered.
    pub(crate) fn answer(&self, state: &mut State, h: usize, thread: usize, result: u8) {
        let next = state.hosts[h].threads[thread].next;
        let call = &mut state.calls[self.call(h, thread, usize::from(next))];
        (call.called, call.result) = (Called::Answered, result);
        state.hosts[h].threads[thread] = Thread { next: next + 1, ..Thread::default() };
    }

    /// Leaves out what makes no difference any more: commands that can never execute, hosts that are done.
    pub(crate) fn tidy(&self, state: &mut State) {
        for h in 0..self.clients.len() {
            let threads = 0..self.clients[h].len();
            let left = |state: &State| {
                threads.clone().flat_map(|thread| self.left(state, h, thread).to_vec()).collect::<Vec<_>>()
            };
            let left = left(state);
            let may_release = has(self.hands_over, h) && !state.hosts[h].released;
            if state.hosts[h].phase == Phase::Attached && left.is_empty() && !may_release {
                state.hosts[h].phase = Phase::Over;
            }
            if !left.iter().any(|op| matches!(op, Op::Read(_))) {
                (state.hosts[h].leased, state.hosts[h].renewing) = (false, false);
                Config::forget_round(&mut state.hosts[h]);
            }
            if self.is_superseded(state, h) {
                state.hosts[h].phase = Phase::Over;
            }
            if state.hosts[h].phase == Phase::Over {
                self.end(state, h);
            }
            let may_still = self.breaks(Broken::NoFence) || self.breaks(Broken::ReservationLost);
            for i in 0..self.holders() {
                let may = may_still || self.may_execute(state, h, i);
                let link = &mut state.hosts[h].links[i];
                if link.progress == Progress::Down && !may {
                    (link.record, link.flush, link.sync) = (Record::default(), None, None);
                    (link.log, link.data, link.leftover) = ([None; REGIONS], [None; REGIONS], [None; REGIONS]);
                }
            }
        }
    }

    /// Whether a majority has promised more, and nothing that is under way can end.
    fn is_superseded(&self, state: &State, h: usize) -> bool {
        let host = &state.hosts[h];
        let higher = |i: usize| state.holders[i].promised > host.ballot;
        let serves = matches!(host.phase, Phase::Record | Phase::Attached) && !host.leased;
        if !self.superseded_end
            || !serves
            || (0..self.holders()).filter(|&i| higher(i)).count() < self.majority as usize
        {
            return false;
        }
        let is_lost = |i: usize| state.holders[i].reserved != 1 + h as u8 && higher(i);
        let threads = &host.threads[..self.clients[h].len()];
        let reads = host.phase == Phase::Attached && threads.iter().any(|thread| thread.got.or(thread.from).is_some());
        let writes = host.jobs.iter().any(|job| {
            let missing = self.replicas_where(|i| has(host.need & !job.done, i) && is_lost(i));
            job.work == Work::Write && missing == 0
        });
        let flushes = threads.iter().any(|thread| {
            thread.flushes && self.replicas_where(|i| has(host.need & !thread.done, i) && is_lost(i)) == 0
        });
        !reads && !writes && !flushes
    }

    /// Of a host that does nothing more only the commands in flight stay.
    fn end(&self, state: &mut State, h: usize) {
        let old = state.hosts[h];
        let host = &mut state.hosts[h];
        *host = Host { phase: Phase::Over, ballot: old.ballot, released: old.released, ..Default::default() };
        for (thread, old) in host.threads.iter_mut().zip(old.threads) {
            thread.next = old.next;
        }
        for (link, old) in host.links.iter_mut().zip(old.links).take(self.holders()) {
            let Link { record, flush, sync, log, data, leftover, snapshots, deletes, .. } = old;
            *link = Link {
                preempt: old.preempt && self.late_preempts,
                record,
                flush,
                sync,
                log,
                data,
                leftover,
                snapshots,
                deletes,
                ..Link::default()
            };
        }
    }
}
