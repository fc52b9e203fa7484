//! How a host attaches: it preempts, asks for promises, chooses the record, and settles.

use check::explore::Visit;

use crate::config::{Broken, Config, Op};
use crate::state::{Called, HOLDERS, Host, INTENT, Job, Link, Phase, Progress, Record, Set, State, Work, has};

impl Config {
    pub(crate) fn begin_attach(&self, state: &mut State, h: usize) {
        let host = &mut state.hosts[h];
        host.phase = Phase::Preempt;
        for link in &mut host.links[..self.holders()] {
            (link.progress, link.preempt) = (Progress::Preempting, true);
        }
    }

    /// Enough are preempted: a ballot is chosen, and promises are asked for.
    pub(crate) fn ask_promises(&self, state: &State, h: usize) -> Option<State> {
        let is_up = |i: usize| state.hosts[h].links[i].progress == Progress::Unchecked;
        let up: Vec<usize> = (0..self.holders()).filter(|&i| is_up(i)).collect();
        if (up.len() as u32) < self.majority {
            return None;
        }
        let mut next = state.clone();
        let known = |i: &usize| state.holders[*i].promised.max(state.holders[*i].accepted.ballot);
        let highest = up.iter().map(known).max()?;
        let host = &mut next.hosts[h];
        // The round, and the host in its lowest two bits.
        (host.phase, host.ballot, host.renewing) = (Phase::Promise, ((highest >> 2) + 1) << 2 | h as u8, true);
        for i in up {
            if !self.breaks(Broken::NoPromises) {
                host.links[i].promise = true;
                continue;
            }
            let holder = &state.holders[i];
            let link = &mut host.links[i];
            (link.progress, link.answered) = (Progress::Usable, Some(holder.life));
            host.read = host.read.max(holder.accepted);
        }
        Some(next)
    }

    /// Which records a host may go on from: the highest that has been promised with.
    pub(crate) fn records_read(&self, state: &State, h: usize) -> Vec<Record> {
        let host = &state.hosts[h];
        if !self.breaks(Broken::FirstRecord) {
            return vec![host.read];
        }
        let answered = (0..self.holders()).filter(|&i| host.links[i].answered.is_some());
        let mut records: Vec<Record> = answered.map(|i| state.holders[i].accepted).collect();
        records.sort();
        records.dedup();
        records
    }

    /// Enough have promised: the host goes on from `record`, with those in sync that it has reached.
    pub(crate) fn take_record(&self, state: &State, h: usize, record: Record) -> Option<State> {
        let host = &state.hosts[h];
        let before = self.breaks(Broken::OwnVote)
            || self.breaks(Broken::NewHoldersAlone)
            || self.is_majority(host, &record, record.lives_before);
        if record.ballot == 0 || !self.is_majority(host, &record, record.lives) || !before {
            return None;
        }
        let is_reached = |i: usize| {
            let answered = host.links[i].answered;
            let life = answered.is_some_and(|life| life == record.lives >> i & 1 || self.breaks(Broken::BlankInSync));
            has(record.in_sync, i) && life && self.may_execute(state, h, i)
        };
        let reached = self.replicas_where(is_reached);
        let counts = self.counted && !self.breaks(Broken::PowerLossIgnored);
        let kept = self.replicas_where(|i| !counts || state.holders[i].power_losses == record.losses(i));
        let handed = self.is_handed_over(state, &record);
        let goes_back = reached & kept == 0 || !self.counted && !handed;
        let in_sync = if reached & kept == 0 { self.fallen_back(state, &record, reached) } else { reached & kept };
        let is_unusable = |i: usize| has(in_sync, i) && host.links[i].progress != Progress::Usable;
        if in_sync == 0 || (0..self.replicas).any(is_unusable) {
            return None;
        }
        let mut next = state.clone();
        let waits = !self.breaks(Broken::NoLease) && !self.breaks(Broken::OthersRead);
        if in_sync != record.in_sync && waits && !handed {
            // Every older lease has run out.
            for older in (0..next.hosts.len()).filter(|&g| g != h && state.hosts[g].ballot < host.ballot) {
                let older = &mut next.hosts[older];
                (older.leased, older.renewing) = (false, false);
                if !self.breaks(Broken::LeaseFromTheAnswer) {
                    Config::forget_round(older);
                }
            }
        }
        if goes_back && !self.note_rollback(&mut next, &record) {
            return None;
        }
        next.hosts[h].went_back = goes_back;
        self.go_on_from(&mut next, h, record, in_sync);
        Some(next)
    }

    /// Whether the last host that has attached is done: the highest record is its own, and it has said so.
    fn is_handed_over(&self, state: &State, record: &Record) -> bool {
        (0..state.hosts.len()).filter(|&g| has(self.hands_over, g)).any(|g| {
            let old = &state.hosts[g];
            let is_last = old.ballot == record.ballot || self.breaks(Broken::OldWord);
            is_last && (old.released || self.breaks(Broken::AskedIsDone))
        })
    }

    /// Nothing is in flight: a host says that it is done, and from then on does nothing.
    pub(crate) fn release(&self, state: &State, h: usize, visit: &mut Visit<'_, State>) {
        let host = &state.hosts[h];
        let in_flight = host.jobs.iter().any(|job| job.work != Work::None) || host.threads.iter().any(|at| at.runs);
        let is_flushed = |region: usize| host.need & !host.flushed[region] == 0;
        let flushed = !self.volatile || (0..self.regions).all(is_flushed) || self.breaks(Broken::DoneUnflushed);
        if !has(self.hands_over, h) || host.released || in_flight || !flushed {
            return;
        }
        let mut next = state.clone();
        let host = &mut next.hosts[h];
        host.released = true;
        if !self.breaks(Broken::DoneAndReads) {
            host.phase = Phase::Over;
        }
        visit(next, &|| format!("host {h} releases the volume"));
    }

    fn go_on_from(&self, state: &mut State, h: usize, record: Record, in_sync: Set) {
        let lives_before = if self.breaks(Broken::NewHoldersAlone) { record.lives } else { record.lives_before };
        let holders = state.holders;
        let host = &mut state.hosts[h];
        host.phase = Phase::Record;
        host.stable = Record { ballot: 0, version: 0, ..record };
        host.current = Record { ballot: host.ballot, version: 1, in_sync, lives_before, ..record };
        for i in (0..self.replicas).filter(|&i| has(in_sync, i) && self.counted) {
            host.current = host.current.with_losses(i, holders[i].power_losses);
        }
        (host.need, host.readable, host.read) = (in_sync, in_sync, Record::default());
        host.links.iter_mut().for_each(|link| link.answered = None);
        for region in (0..self.regions_of(&record)).filter(|_| !self.breaks(Broken::NoSettling)) {
            if (0..self.replicas).any(|i| has(in_sync, i) && holders[i].log[region] == INTENT) {
                host.unsettled |= 1 << region;
            }
        }
        for region in (0..self.regions).filter(|&region| self.volatile && !has(host.unsettled, region)) {
            // It was flushed before it was cleared.
            host.flushed[region] = (1 << HOLDERS) - 1;
        }
        for i in (0..self.replicas).filter(|&i| has(in_sync, i)) {
            host.links[i].known = holders[i].log;
        }
        self.go_on(state, h);
    }

    /// A region is settled to the copy of `i`.
    pub(crate) fn settle(&self, state: &State, h: usize, region: usize, i: usize) -> Option<State> {
        let host = &state.hosts[h];
        let may = host.phase == Phase::Attached
            && has(host.unsettled, region)
            && host.jobs[region].work == Work::None
            && has(host.readable, i)
            && self.is_usable(host, i)
            && self.may_execute(state, h, i);
        may.then(|| {
            let mut next = state.clone();
            let value = state.holders[i].data[region];
            next.hosts[h].jobs[region] = Job { work: Work::Settle, value, done: 1 << i, ..Job::default() };
            self.go_on(&mut next, h);
            next
        })
    }

    /// A fresh host alone that reaches only some holders: may it attach, and does every copy that it could read, or settle to, fit?
    /// Whether it could attach, settle and write.
    ///
    /// # Errors
    ///
    /// It reads what it must not, or copies differ after settling.
    pub(crate) fn try_fresh_host(&self, state: &State, reached: Set) -> Result<bool, String> {
        // No configuration that is probed has clients on the last host.
        let h = state.hosts.len() - 1;
        let mut state = state.clone();
        for host in &mut state.hosts[..h] {
            (host.phase, host.links) = (Phase::Over, <[Link; HOLDERS]>::default());
        }
        state.hosts[h] = Host::default();
        self.begin_attach(&mut state, h);
        self.land_all(&mut state, h, reached);
        let Some(mut state) = self.ask_promises(&state, h) else { return Ok(false) };
        self.land_all(&mut state, h, reached);
        let mut could = false;
        for record in self.records_read(&state, h) {
            let Some(mut state) = self.take_record(&state, h, record) else { continue };
            self.land_all(&mut state, h, reached);
            if state.hosts[h].phase != Phase::Attached || !self.settles_and_writes(&mut state, h, reached)? {
                return Ok(false);
            }
            could = true;
        }
        Ok(could)
    }

    fn settles_and_writes(&self, state: &mut State, h: usize, reached: Set) -> Result<bool, String> {
        let regions = self.regions_of(&state.hosts[h].current);
        if self.is_past(state, regions) {
            return Err("a fresh host does not know of the new size".into());
        }
        for (region, i) in (0..regions).flat_map(|region| (0..self.replicas).map(move |i| (region, i))) {
            let value = state.holders[i].data[region];
            if has(state.hosts[h].readable, i) && !self.fits(state, region, value) {
                let in_sync = state.hosts[h].current.in_sync;
                return Err(format!(
                    "a fresh host that reaches {reached:03b} goes on with {in_sync:03b} and reads {value} at {i}"
                ));
            }
        }
        for region in 0..regions {
            let Some((i, mut next)) = (0..self.replicas).find_map(|i| Some((i, self.settle(state, h, region, i)?)))
            else {
                continue;
            };
            self.land_all(&mut next, h, reached);
            if has(next.hosts[h].unsettled, region) {
                return Ok(false);
            }
            let value = next.holders[i].data[region];
            if (0..self.replicas).any(|j| has(next.hosts[h].readable, j) && next.holders[j].data[region] != value) {
                return Err("copies differ after settling".into());
            }
            *state = next;
        }
        /// What nobody else writes.
        const VALUE: u8 = 99;
        state.hosts[h].jobs[0] = Job { work: Work::Write, value: VALUE, ..Job::default() };
        self.go_on(state, h);
        self.land_all(state, h, reached);
        let host = &state.hosts[h];
        Ok(host.need & !host.jobs[0].done == 0)
    }

    /// Whether anything was answered that is past the end of a volume of so many regions.
    fn is_past(&self, state: &State, regions: usize) -> bool {
        let past = |op: Op| match op {
            Op::Write(region) | Op::Read(region) => region >= regions,
            Op::Grow => regions < self.regions,
            Op::Flush | Op::Snapshot | Op::Delete => false,
        };
        self.calls().any(|(id, op)| state.calls[id].called == Called::Answered && past(op))
    }

    /// All that is in flight executes where the host can reach it.
    fn land_all(&self, state: &mut State, h: usize, reached: Set) {
        /// More than any attach needs.
        const STEPS_MAX: usize = 200;
        for _ in 0..STEPS_MAX {
            let mut next = None;
            for i in (0..self.holders()).filter(|&i| has(reached, i)) {
                if state.hosts[h].phase != Phase::Over && next.is_none() {
                    self.land(state, h, i, &mut |after, _| next = next.take().or(Some(after)));
                }
            }
            match next {
                Some(after) => *state = after,
                None => return,
            }
        }
    }

    /// Whether anybody of a host's clients still wants to read.
    pub(crate) fn wants_to_read(&self, state: &State, h: usize) -> bool {
        let left = |thread: usize| self.left(state, h, thread).iter();
        (0..self.clients[h].len()).any(|thread| left(thread).any(|op| matches!(op, Op::Read(_))))
    }
}
