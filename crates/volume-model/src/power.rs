//! Volatile caches: flushes, losses of power, and attachments that go back to what is stable.
//!
//! A replica that loses power keeps of each region the value of its last flush, or any that was written there since.

use check::explore::Visit;

use crate::config::{Broken, Config, Op};
use crate::state::{
    CALLS, Call, Called, Host, JOINS, Phase, Progress, REGIONS, ROLLBACKS, Record, Set, State, Values, begin, has, only,
};

impl Config {
    /// The device at `i` has all that it had when this host began with it.
    pub(crate) fn has_kept(&self, host: &Host, i: usize) -> bool {
        if !self.counted {
            return !has(host.doubtful, i) || self.breaks(Broken::ReconnectTrusted);
        }
        let kept = |i: usize| host.links[i].power_losses == host.current.losses(i);
        let all_lost = || (0..self.replicas).all(|j| !has(host.current.in_sync, j) || !kept(j));
        self.breaks(Broken::PowerLossIgnored) || kept(i) || self.breaks(Broken::GoOnAfterAll) && all_lost()
    }

    /// What a lost connection says of a replica whose losses of power are not counted.
    pub(crate) fn doubt(&self, host: &mut Host, i: usize) {
        let is_flushed = (0..self.regions).all(|region| has(host.flushed[region], i));
        if self.volatile && !self.counted && !is_flushed && has(host.need, i) {
            host.doubtful |= 1 << i;
        }
    }

    /// Regions of which no data are under way to `i`.
    pub(crate) fn quiet(&self, host: &Host, i: usize) -> Set {
        (0..self.regions).filter(|&region| host.links[i].data[region].is_none()).map(|region| 1 << region).sum()
    }

    /// A flush executes: of a client's, or of the host's own.
    pub(crate) fn flush(&self, state: &mut State, h: usize, i: usize, of_client: bool) {
        let link = &mut state.hosts[h].links[i];
        let covered = if of_client { link.sync.take() } else { link.flush.take() };
        if !self.may_execute(state, h, i) {
            self.refuse(state, h, i);
            return self.go_on(state, h);
        }
        let holder = &mut state.holders[i];
        holder.stable = holder.data.map(only);
        let host = &mut state.hosts[h];
        let counts = self.is_intact(host, i) || has(host.joining, i) || self.breaks(Broken::FlushTrusted);
        if let Some(covered) = covered.filter(|_| host.links[i].progress >= Progress::Unchecked && counts) {
            for region in (0..self.regions).filter(|&region| has(covered, region)) {
                host.flushed[region] |= 1 << i;
            }
            if covered & JOINS != 0 {
                host.ready |= 1 << i;
            }
            for thread in host.threads.iter_mut().filter(|thread| of_client && thread.flushes) {
                thread.done |= 1 << i;
            }
        }
        self.go_on(state, h);
    }

    /// After an attach that goes back another copy may have what was lost, and would have it again after a loss of power: whether
    /// who is needed has yet to flush what a region was settled to.
    pub(crate) fn flushes_settled(&self, host: &mut Host, region: usize) -> bool {
        if !host.went_back || self.breaks(Broken::SettledUnflushed) {
            return false;
        }
        let lacking = host.need & !host.flushed[region];
        for i in (0..self.replicas).filter(|&i| has(lacking, i)) {
            if self.is_usable(host, i) && self.is_intact(host, i) && host.links[i].flush.is_none() {
                host.links[i].flush = Some(self.quiet(host, i));
            }
        }
        lacking != 0
    }

    /// A joining replica with nothing left to copy is to flush before it is in sync.
    pub(crate) fn flush_joining(&self, state: &State, h: usize, i: usize, visit: &mut Visit<'_, State>) {
        let host = &state.hosts[h];
        if self.is_ready(host, i) || host.links[i].flush.is_some() {
            return;
        }
        let mut next = state.clone();
        next.hosts[h].links[i].flush = Some(self.quiet(host, i) | JOINS);
        visit(next, &|| format!("host {h} has {i}, which joins, flush"));
    }

    /// Whether a joining replica has made stable what flushes have promised.
    pub(crate) fn is_ready(&self, host: &Host, i: usize) -> bool {
        !self.volatile || has(host.ready, i) || self.breaks(Broken::JoinUnflushed)
    }

    /// Who joins has to flush again.
    pub(crate) fn unready(host: &mut Host, joining: Set) {
        host.ready &= !joining;
        for (_, link) in host.links.iter_mut().enumerate().filter(|&(i, _)| has(joining, i)) {
            link.flush = link.flush.map(|covered| covered & !JOINS);
        }
    }

    /// A client's flush goes to everybody who is needed and has not had it.
    pub(crate) fn send_flushes(&self, host: &mut Host) {
        let running = host.threads.iter().find(|thread| thread.flushes);
        let Some(lacking) = running.map(|thread| host.need & !thread.done) else { return };
        for i in (0..self.replicas).filter(|&i| has(lacking, i)) {
            let counts = self.is_intact(host, i) || self.breaks(Broken::FlushTrusted);
            if self.is_usable(host, i) && counts && host.links[i].sync.is_none() {
                host.links[i].sync = Some(self.quiet(host, i));
            }
        }
    }

    /// A client's flush begins, or is acknowledged.
    pub(crate) fn flush_step(&self, state: &State, h: usize, thread: usize, id: usize, visit: &mut Visit<'_, State>) {
        let host = &state.hosts[h];
        let at = &host.threads[thread];
        if !at.runs && !host.threads.iter().any(|thread| thread.flushes) {
            let mut next = state.clone();
            begin(&mut next, id);
            let at = &mut next.hosts[h].threads[thread];
            (at.runs, at.flushes) = (true, true);
            if self.breaks(Broken::FlushByTheFirst) {
                at.done = !host.need;
            }
            self.go_on(&mut next, h);
            visit(next, &|| format!("host {h} flushes"));
        }
        if at.runs && host.need & !at.done == 0 {
            let mut next = state.clone();
            let host = &mut next.hosts[h];
            Config::unready(host, host.joining);
            self.answer(&mut next, h, thread, 0);
            self.go_on(&mut next, h);
            visit(next, &|| format!("host {h} acknowledges the flush"));
        }
    }

    /// Replicas lose power.
    pub(crate) fn lose_power(&self, state: &State, visit: &mut Visit<'_, State>) {
        let may = |i: usize| {
            let is_spared = !self.loses_all && self.is_last(state, i);
            state.holders[i].power_losses < self.power_losses_max && !is_spared
        };
        for i in (0..self.replicas).filter(|&i| may(i)) {
            for kept in self.left_by_a_loss(&state.holders[i].stable) {
                let mut next = state.clone();
                let holder = &mut next.holders[i];
                holder.power_losses += 1;
                (holder.data, holder.stable) = (kept, kept.map(only));
                self.cut_off(&mut next, i);
                visit(next, &|| format!("{i} loses power and keeps {:?}", &kept[..self.regions]));
            }
        }
    }

    /// All that a loss of power may leave of the regions.
    fn left_by_a_loss(&self, stable: &[Values; REGIONS]) -> Vec<[u8; REGIONS]> {
        let mut all = vec![[0; REGIONS]];
        for (region, values) in stable.iter().enumerate().take(self.regions) {
            let each = (0..16u8).filter(|&value| values >> value & 1 == 1);
            let with = |value: u8| {
                all.iter().map(move |kept: &[u8; REGIONS]| {
                    let mut kept = *kept;
                    kept[region] = value;
                    kept
                })
            };
            all = each.flat_map(with).collect();
        }
        all
    }

    /// A bound: the only replica that any record in reach calls in sync does not lose power.
    fn is_last(&self, state: &State, i: usize) -> bool {
        let is_alone = |record: &Record| {
            let kept = |j: usize| state.holders[j].power_losses == record.losses(j);
            has(record.in_sync, i) && !(0..self.replicas).any(|j| j != i && has(record.in_sync, j) && kept(j))
        };
        let goes_on_alone = |host: &Host| {
            let serves = matches!(host.phase, Phase::Record | Phase::Attached | Phase::Over);
            host.current.version != 0 && serves && host.current.in_sync & !(1 << i) == 0
        };
        state.holders[..self.holders()].iter().any(|holder| is_alone(&holder.accepted))
            || state.hosts[..self.clients.len()].iter().any(goes_on_alone)
    }

    /// With whom an attach goes back: those in sync by `record`, none of whom is reached with all that it had.
    pub(crate) fn fallen_back(&self, state: &State, record: &Record, reached: Set) -> Set {
        let is_lost = |i: usize| !has(record.in_sync, i) || state.holders[i].power_losses != record.losses(i);
        let may = record.in_sync & !reached == 0 && (0..self.replicas).all(is_lost)
            || self.forced
            || self.breaks(Broken::RollBackEarly);
        if self.loses_all && self.counted && may { reached & record.in_sync } else { 0 }
    }

    /// Notes that an attach may go back to an earlier state. The bound on how often is given as an answer.
    pub(crate) fn note_rollback(&self, state: &mut State, record: &Record) -> bool {
        let kept = |i: usize| has(record.in_sync, i) && state.holders[i].power_losses == record.losses(i);
        if self.counted && !self.forced && (0..self.replicas).any(kept) {
            // Whoever goes back all the same has to answer for it.
            return true;
        }
        if usize::from(state.rollbacks) >= ROLLBACKS {
            return false;
        }
        state.rollbacks += 1;
        let id = CALLS - usize::from(state.rollbacks);
        begin(state, id);
        state.calls[id].called = Called::Answered;
        true
    }

    /// What all must have had that were answered before the last flush which was acknowledged before rollback `id` began.
    pub(crate) fn promised_before(&self, calls: &[Call; CALLS], id: usize) -> Set {
        let is_flush =
            |&(f, op): &(usize, Op)| op == Op::Flush && has(calls[id].before, f) && calls[f].called == Called::Answered;
        self.calls().filter(is_flush).fold(0, |all, (f, _)| all | calls[f].before)
    }
}
