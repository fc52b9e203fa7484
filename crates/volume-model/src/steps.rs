//! What hosts choose to do, and what befalls the holders.

use check::explore::Visit;

use crate::config::{Broken, Config, Op};
use crate::state::{
    BEHIND, CLEAN, Holder, INTENT, Job, Link, Phase, Progress, REGIONS, State, Thread, UNDER_WAY, Work, begin, has,
    only,
};

impl Config {
    /// Each state that one step leads to.
    pub(crate) fn steps(&self, state: &State, visit: &mut Visit<'_, State>) {
        for h in 0..self.clients.len() {
            (0..self.holders()).for_each(|i| self.land(state, h, i, visit));
            match state.hosts[h].phase {
                Phase::Over => continue,
                // Hosts are alike until they begin: they begin in order.
                Phase::Idle if h == 0 || state.hosts[h - 1].phase != Phase::Idle => {
                    let mut next = state.clone();
                    self.begin_attach(&mut next, h);
                    visit(next, &|| format!("host {h} attaches"));
                }
                Phase::Idle => {}
                Phase::Preempt => {
                    if let Some(next) = self.ask_promises(state, h) {
                        visit(next, &|| format!("host {h} asks for promises"));
                    }
                }
                Phase::Promise => {
                    for record in self.records_read(state, h) {
                        let Some(next) = self.take_record(state, h, record) else { continue };
                        visit(next, &|| format!("host {h} goes on from v{} S={:03b}", record.version, record.in_sync));
                    }
                }
                Phase::Record => {
                    self.change(state, h, visit);
                    self.delete_snapshots(state, h, visit);
                }
                Phase::Attached => {
                    self.change(state, h, visit);
                    self.serve(state, h, visit);
                }
            }
        }
        self.befall(state, visit);
    }

    fn is_calm(&self, h: usize) -> bool {
        has(self.calm, h)
    }

    /// It gives up on a holder, connects again, or goes on without one.
    fn change(&self, state: &State, h: usize, visit: &mut Visit<'_, State>) {
        let host = &state.hosts[h];
        for i in (0..self.holders()).filter(|_| !self.is_calm(h)) {
            let link = &host.links[i];
            if link.progress >= Progress::Unchecked && is_busy(link) && host.failures < self.failures_max {
                let mut next = state.clone();
                next.hosts[h].failures += 1;
                self.disconnect(&mut next.hosts[h], i);
                next.hosts[h].links[i].promise = false;
                self.go_on(&mut next, h);
                visit(next, &|| format!("host {h} gives up on {i}"));
            }
            if link.progress == Progress::Down && host.reconnects < self.reconnects_max {
                let mut next = state.clone();
                let link = &mut next.hosts[h].links[i];
                (link.progress, link.preempt) = (Progress::Preempting, true);
                next.hosts[h].reconnects += 1;
                visit(next, &|| format!("host {h} connects to {i} again"));
            }
            let is_bad = link.progress <= Progress::Preempting || !self.is_intact(host, i);
            let rest = host.current.in_sync & !(1 << i);
            let is_there =
                |j: usize| has(rest, j) && host.links[j].progress == Progress::Usable && self.is_intact(host, j);
            let may = !self.volatile || (0..self.replicas).any(is_there);
            if has(host.current.in_sync, i) && is_bad && rest != 0 && may {
                self.visit_proposal(state, h, rest, host.current.lives, visit);
            }
        }
    }

    fn visit_proposal(&self, state: &State, h: usize, in_sync: u8, lives: u8, visit: &mut Visit<'_, State>) {
        if state.hosts[h].current.version >= self.versions_max {
            return;
        }
        let mut next = state.clone();
        next.hosts[h].joining &= !in_sync;
        self.propose(&mut next.hosts[h], in_sync, lives);
        self.go_on(&mut next, h);
        visit(next, &|| format!("host {h} proposes S={in_sync:03b} of lives {lives:03b}"));
    }

    fn serve(&self, state: &State, h: usize, visit: &mut Visit<'_, State>) {
        let host = &state.hosts[h];
        let current = host.current;
        if !self.is_calm(h) {
            if !host.leased && !host.renewing && self.wants_to_read(state, h) && self.expiries_max == 0 {
                self.visit_proposal(state, h, current.in_sync, current.lives, visit);
            }
            let is_stable = current == host.stable;
            if is_stable && current.lives_before != current.lives {
                self.visit_proposal(state, h, current.in_sync, current.lives, visit);
            }
            for i in (0..self.holders()).filter(|_| is_stable && current.lives_before == current.lives) {
                let is_other = !self.is_holder(host, i) && !has(current.in_sync, i);
                if host.links[i].progress == Progress::Usable && is_other {
                    self.visit_proposal(state, h, current.in_sync, current.lives ^ 1 << i, visit);
                }
            }
            (0..self.replicas).filter(|_| self.resyncs).for_each(|i| self.resync(state, h, i, visit));
        }
        self.lease(state, h, visit);
        self.release(state, h, visit);
        self.delete_snapshots(state, h, visit);
        for region in 0..self.regions {
            for i in (0..self.replicas).filter(|_| has(host.unsettled, region)) {
                if let Some(next) = self.settle(state, h, region, i) {
                    visit(next, &|| format!("host {h} settles region {region} to the copy of {i}"));
                }
            }
            if self.clears && self.is_used(host, region) {
                self.clear(state, h, region, visit);
            }
        }
        (0..self.clients[h].len()).for_each(|thread| self.call_step(state, h, thread, visit));
    }

    /// The lease runs out, or is asked for anew by reads.
    fn lease(&self, state: &State, h: usize, visit: &mut Visit<'_, State>) {
        let host = &state.hosts[h];
        if host.leased && host.expiries < self.expiries_max {
            let mut next = state.clone();
            (next.hosts[h].leased, next.hosts[h].expiries) = (false, host.expiries + 1);
            visit(next, &|| format!("host {h}'s lease runs out"));
        }
        let asks = host.links.iter().any(|link| link.ask);
        if self.expiries_max > 0 && !host.leased && !host.renewing && !asks && self.wants_to_read(state, h) {
            let mut next = state.clone();
            let host = &mut next.hosts[h];
            host.confirmed = 0;
            host.links.iter_mut().for_each(|link| link.ask = link.progress == Progress::Usable);
            if host.links.iter().any(|link| link.ask) {
                visit(next, &|| format!("host {h} asks for its lease"));
            }
        }
    }

    fn resync(&self, state: &State, h: usize, i: usize, visit: &mut Visit<'_, State>) {
        let host = &state.hosts[h];
        let current = host.current;
        let is_settled_change = host.stable.lives == current.lives && host.stable.lives_before == current.lives;
        if self.is_usable(host, i)
            && !has(host.need | host.joining | current.in_sync, i)
            && self.is_holder(host, i)
            && is_settled_change
            && host.unsettled == 0
            && current.version < self.versions_max
            && self.may_execute(state, h, i)
        {
            let mut next = state.clone();
            next.hosts[h].joining |= 1 << i;
            for region in (0..self.regions).filter(|&region| self.is_used(host, region)) {
                let is_marked = |j: usize| state.holders[j].log[region] != CLEAN;
                let own = !self.breaks(Broken::OwnLogIgnored);
                let lacks = (0..self.replicas).any(|j| (has(host.need, j) || j == i && own) && is_marked(j));
                if lacks || host.jobs[region].work != Work::None {
                    next.hosts[h].lacks[i] |= 1 << region;
                }
            }
            self.go_on(&mut next, h);
            visit(next, &|| format!("host {h} begins to resynchronise {i}"));
        }
        if !has(host.joining, i) {
            return;
        }
        for region in (0..self.regions).filter(|&r| has(host.lacks[i], r) && host.jobs[r].work == Work::None) {
            self.copy(state, h, i, region, visit);
        }
        let copies_aside = self.breaks(Broken::CopyBesideWrite) && host.links[i].leftover != [None; REGIONS];
        if host.lacks[i] == 0 && !copies_aside && !self.is_ready(host, i) {
            self.flush_joining(state, h, i, visit);
        } else if host.lacks[i] == 0 && !copies_aside && self.has_all_room(host, i) {
            self.visit_proposal(state, h, current.in_sync | 1 << i, current.lives, visit);
        }
    }

    fn copy(&self, state: &State, h: usize, i: usize, region: usize, visit: &mut Visit<'_, State>) {
        let host = &state.hosts[h];
        let may = |j: usize| has(host.readable, j) && self.is_usable(host, j) && self.may_execute(state, h, j);
        for j in (0..self.replicas).filter(|&j| may(j) && host.links[i].data[region].is_none()) {
            let mut next = state.clone();
            let value = state.holders[j].data[region];
            if self.breaks(Broken::CopyBesideWrite) {
                next.hosts[h].links[i].leftover[region] = Some(value);
                next.hosts[h].lacks[i] &= !(1 << region);
            } else {
                next.hosts[h].jobs[region] = Job { work: Work::Copy, value, target: i as u8, ..Job::default() };
            }
            self.go_on(&mut next, h);
            visit(next, &|| format!("host {h} copies region {region} from {j} to {i}"));
        }
    }

    /// The log's entry of a region in which nothing is in flight is cleared where all have the data.
    fn clear(&self, state: &State, h: usize, region: usize, visit: &mut Visit<'_, State>) {
        let host = &state.hosts[h];
        let job = &host.jobs[region];
        let flushes = self.volatile && !self.breaks(Broken::NoFlush);
        for i in (0..self.replicas).filter(|&i| flushes && job.work == Work::None && has(host.need, i)) {
            let link = &host.links[i];
            if link.progress == Progress::Usable
                && self.is_intact(host, i)
                && link.flush.is_none()
                && !has(host.flushed[region], i)
            {
                let mut next = state.clone();
                next.hosts[h].links[i].flush = Some(self.quiet(host, i));
                visit(next, &|| format!("host {h} sends a flush to {i}"));
            }
        }
        let is_free = job.work == Work::None || self.breaks(Broken::ClearedEarly) && job.work == Work::Write;
        if !is_free || has(host.unsettled, region) || flushes && host.need & !host.flushed[region] != 0 {
            return;
        }
        let is_full = host.stable == host.current && host.current.in_sync == self.everybody();
        let entry = if is_full || self.breaks(Broken::ClearedWhileAway) { CLEAN } else { BEHIND };
        let is_due = |i: usize| {
            let link = &host.links[i];
            has(host.need, i)
                && link.progress == Progress::Usable
                && self.is_intact(host, i)
                && link.log[region].is_none()
                && link.data[region].is_none()
                && link.known[region] != entry
                && link.known[region] != CLEAN
                && (job.work == Work::None || has(job.done, i))
        };
        let due = self.replicas_where(is_due);
        if due != 0 {
            let mut next = state.clone();
            for i in (0..self.replicas).filter(|&i| has(due, i)) {
                let link = &mut next.hosts[h].links[i];
                (link.log[region], link.known[region]) = (Some(entry), UNDER_WAY);
            }
            visit(next, &|| format!("host {h} clears region {region} to {entry}"));
        }
        if self.resumes {
            self.clear_joiners(state, h, region, visit);
        }
    }

    /// Who joins has got the region, and all of NEED know that nobody lacks it: its own log says so, too.
    fn clear_joiners(&self, state: &State, h: usize, region: usize, visit: &mut Visit<'_, State>) {
        let host = &state.hosts[h];
        let is_clean = |i: usize| {
            let link = &host.links[i];
            link.progress == Progress::Usable && link.known[region] == CLEAN && link.log[region].is_none()
        };
        let need = self.replicas_where(|i| has(host.need, i));
        let is_known = need & !self.replicas_where(is_clean) == 0 || self.breaks(Broken::JoinerCleared);
        for i in (0..self.replicas).filter(|&i| is_known && has(host.joining, i) && !has(host.lacks[i], region)) {
            let link = &host.links[i];
            let is_free =
                link.log[region].is_none() && link.data[region].is_none() && host.jobs[region].work == Work::None;
            if is_free && link.progress == Progress::Usable && matches!(link.known[region], INTENT | BEHIND) {
                let mut next = state.clone();
                let link = &mut next.hosts[h].links[i];
                (link.log[region], link.known[region]) = (Some(CLEAN), UNDER_WAY);
                visit(next, &|| format!("host {h} clears region {region} of {i}, which joins"));
            }
        }
    }

    /// A client's operation begins, is sent, or is answered.
    fn call_step(&self, state: &State, h: usize, thread: usize, visit: &mut Visit<'_, State>) {
        let host = &state.hosts[h];
        let at = &host.threads[thread];
        let Some(&op) = self.left(state, h, thread).first() else { return };
        let id = self.call(h, thread, usize::from(at.next));
        match op {
            Op::Write(region) => {
                let job = &host.jobs[region];
                let may = self.is_offered(host, region) && !self.holds_writes(host);
                if !at.runs && may && job.work == Work::None && !has(host.unsettled, region) {
                    let mut next = state.clone();
                    begin(&mut next, id);
                    next.hosts[h].threads[thread].runs = true;
                    let value = 1 + id as u8;
                    next.hosts[h].jobs[region] =
                        Job { work: Work::Write, thread: thread as u8, value, ..Job::default() };
                    self.go_on(&mut next, h);
                    visit(next, &|| format!("host {h} writes {value} to region {region}"));
                }
                let is_ours = at.runs && job.work == Work::Write && usize::from(job.thread) == thread;
                if is_ours && host.need & !job.done == 0 {
                    let mut next = state.clone();
                    self.note_missed(&mut next.hosts[h], region, job.done);
                    next.hosts[h].jobs[region] = Job::default();
                    self.answer(&mut next, h, thread, 0);
                    self.go_on(&mut next, h);
                    visit(next, &|| format!("host {h} acknowledges {} of region {region}", job.value));
                }
            }
            Op::Read(region) => self.read_step(state, (h, thread), region, id, visit),
            Op::Flush => self.flush_step(state, h, thread, id, visit),
            Op::Snapshot => self.snapshot_step(state, h, thread, id, visit),
            Op::Delete => self.delete_step(state, h, thread, id, visit),
            Op::Grow => self.grow_step(state, h, thread, id, visit),
        }
    }

    fn read_step(&self, state: &State, at: (usize, usize), region: usize, id: usize, visit: &mut Visit<'_, State>) {
        let (h, thread) = at;
        let host = &state.hosts[h];
        let Thread { runs, from, got, .. } = host.threads[thread];
        let from_whom = if self.breaks(Broken::ReadsFromUnion) { host.need } else { host.readable };
        let may = from.is_none()
            && !has(host.unsettled, region)
            && self.is_offered(host, region)
            && (host.leased || self.breaks(Broken::NoLease));
        let is_there = |i: usize| has(from_whom, i) && self.is_usable(host, i) && self.is_intact(host, i);
        for i in (0..self.replicas).filter(|&i| may && is_there(i)) {
            let mut next = state.clone();
            if !runs {
                begin(&mut next, id);
            }
            let thread = &mut next.hosts[h].threads[thread];
            (thread.runs, thread.from) = (true, Some(i as u8));
            visit(next, &|| format!("host {h} sends a read of region {region} to {i}"));
        }
        let is_held = host.jobs[region].work == Work::Write && !self.breaks(Broken::ReadsNotHeld);
        if let Some(value) = got.filter(|_| !is_held) {
            let mut next = state.clone();
            self.answer(&mut next, h, thread, value);
            visit(next, &|| format!("host {h} returns {value} of region {region}"));
        }
    }

    /// Devices are replaced, come back, lose power, or forget.
    fn befall(&self, state: &State, visit: &mut Visit<'_, State>) {
        let may_be_replaced = |i: usize| state.replacements < self.replacements_max && state.holders[i].life == 0;
        for i in (0..self.holders()).filter(|&i| may_be_replaced(i)) {
            let mut next = state.clone();
            next.replacements += 1;
            if self.returns_max > 0 {
                (next.stash, next.stash_at) = (state.holders[i], 1 + i as u8);
            }
            let entry = if self.breaks(Broken::BlankIsClean) { CLEAN } else { INTENT };
            next.holders[i] =
                Holder { life: 1, log: [entry; REGIONS], stable: [only(0); REGIONS], ..Holder::default() };
            self.cut_off(&mut next, i);
            visit(next, &|| format!("{i} is replaced by an empty device"));
        }
        if state.returns < self.returns_max && state.stash_at != 0 {
            let i = usize::from(state.stash_at) - 1;
            let mut next = state.clone();
            next.returns += 1;
            (next.stash, next.holders[i]) = (state.holders[i], state.stash);
            self.cut_off(&mut next, i);
            visit(next, &|| format!("at {i} the other device answers"));
        }
        self.lose_power(state, visit);
        self.grow_replicas(state, visit);
        for i in (0..self.holders()).filter(|_| self.breaks(Broken::ReservationLost)) {
            if state.holders[i].reserved != 0 {
                let mut next = state.clone();
                next.holders[i].reserved = 0;
                visit(next, &|| format!("{i} restarts without its reservation"));
            }
        }
    }

    /// All connections to `i` end, with what is in flight on them.
    pub(crate) fn cut_off(&self, state: &mut State, i: usize) {
        for h in 0..self.clients.len() {
            let host = &mut state.hosts[h];
            if host.phase == Phase::Idle {
                continue;
            }
            let answered = host.links[i].answered.filter(|_| host.phase >= Phase::Record);
            self.disconnect(host, i);
            host.links[i] = Link { answered, ..Link::default() };
            self.go_on(state, h);
        }
    }
}

fn is_busy(link: &Link) -> bool {
    let Link { preempt, promise, record, flush, sync, ask, log, data, .. } = link;
    let flushes = flush.is_some() || sync.is_some();
    *preempt
        || *promise
        || record.version != 0
        || flushes
        || *ask
        || *log != [None; REGIONS]
        || *data != [None; REGIONS]
}
