//! Snapshots: the bytes of one moment, at several replicas, and in the record who has them.
//!
//! A replica takes or deletes a snapshot by itself, as one step, whoever has the reservation. Names are used once.

use check::explore::Visit;

use crate::config::{Broken, Config, Op};
use crate::state::{Called, Host, Phase, Progress, REGIONS, Record, SNAPSHOTS, Set, Snapshot, State, Work, begin, has};

impl Config {
    /// New writes wait.
    pub(crate) fn holds_writes(&self, host: &Host) -> bool {
        host.snapshot.is_some_and(|snapshot| !snapshot.proposed) && !self.breaks(Broken::WritesNotHeld)
    }

    /// A snapshot begins, is asked for, is counted, is given up, or is there.
    pub(crate) fn snapshot_step(
        &self,
        state: &State,
        h: usize,
        thread: usize,
        id: usize,
        visit: &mut Visit<'_, State>,
    ) {
        let host = &state.hosts[h];
        let Some(snapshot) = host.snapshot else {
            if host.threads[thread].runs || usize::from(state.names) < self.attempts_max {
                self.hold(state, h, thread, id, visit);
            }
            return;
        };
        let Some(name) = snapshot.name.map(usize::from) else { return self.ask(state, h, id, visit) };
        let counted = if self.breaks(Broken::CountedUnanswered) { snapshot.asked } else { snapshot.answered };
        if !snapshot.proposed && counted != 0 && host.current.version < self.versions_max {
            let mut next = state.clone();
            let host = &mut next.hosts[h];
            let Record { in_sync, lives, .. } = host.current;
            self.propose(host, in_sync, lives);
            host.current.snapshots[name] = counted;
            host.snapshot = Some(Snapshot { proposed: true, ..snapshot });
            self.go_on(&mut next, h);
            visit(next, &|| format!("host {h} proposes that snapshot {name} is at {counted:03b}"));
        }
        if !snapshot.proposed && usize::from(state.names) < self.attempts_max {
            let mut next = state.clone();
            next.hosts[h].snapshot = None;
            visit(next, &|| format!("host {h} gives up snapshot {name}"));
        }
        let all_asked = counted != 0 && self.breaks(Broken::SnapshotUnrecorded);
        let is_there = host.stable.snapshots[name] != 0 || has(state.snapshots_ended, name);
        if snapshot.proposed && is_there || all_asked {
            let mut next = state.clone();
            next.hosts[h].snapshot = None;
            next.snapshots_done |= 1 << name;
            self.answer(&mut next, h, thread, snapshot.bytes);
            self.go_on(&mut next, h);
            visit(next, &|| format!("host {h} has snapshot {name}"));
        }
    }

    /// A snapshot that the record names is chosen, left out of the record, or gone.
    pub(crate) fn delete_step(&self, state: &State, h: usize, thread: usize, id: usize, visit: &mut Visit<'_, State>) {
        let host = &state.hosts[h];
        if !host.threads[thread].runs {
            for name in (0..SNAPSHOTS).filter(|&name| host.stable.snapshots[name] != 0) {
                let mut next = state.clone();
                begin(&mut next, id);
                (next.calls[id].result, next.hosts[h].threads[thread].runs) = (name as u8, true);
                next.snapshots_ended |= 1 << name;
                visit(next, &|| format!("host {h} is asked to delete snapshot {name}"));
            }
            return;
        }
        let name = usize::from(state.calls[id].result);
        let mut next = state.clone();
        let of_next = &mut next.hosts[h];
        let words = if host.current.snapshots[name] != 0 && host.current.version < self.versions_max {
            let Record { in_sync, lives, .. } = host.current;
            self.propose(of_next, in_sync, lives);
            of_next.current.snapshots[name] = 0;
            "proposes to be without"
        } else if host.current.snapshots[name] == 0
            && (host.stable.snapshots[name] == 0 || self.breaks(Broken::GoneEarly))
        {
            next.snapshots_gone |= 1 << name;
            self.answer(&mut next, h, thread, name as u8);
            "has deleted"
        } else {
            return;
        };
        self.go_on(&mut next, h);
        visit(next, &|| format!("host {h} {words} snapshot {name}"));
    }

    fn hold(&self, state: &State, h: usize, thread: usize, id: usize, visit: &mut Visit<'_, State>) {
        let mut next = state.clone();
        if !state.hosts[h].threads[thread].runs {
            begin(&mut next, id);
        }
        next.hosts[h].threads[thread].runs = true;
        next.hosts[h].snapshot = Some(Snapshot::default());
        visit(next, &|| format!("host {h} holds writes for a snapshot"));
    }

    /// Nothing is in flight and all is settled: everybody who is needed is asked, under a name that is new.
    fn ask(&self, state: &State, h: usize, id: usize, visit: &mut Visit<'_, State>) {
        let host = &state.hosts[h];
        let is_still = host.jobs.iter().all(|job| matches!(job.work, Work::None | Work::Copy));
        let is_settled = host.unsettled == 0 || self.breaks(Broken::SnapshotUnsettled);
        if !is_still && !self.breaks(Broken::SnapshotBesideWrite) || !is_settled {
            return;
        }
        let whom = if self.breaks(Broken::SnapshotOfJoining) { host.need | host.joining } else { host.need };
        let asked = self.replicas_where(|i| has(whom, i) && self.is_usable(host, i) && self.is_intact(host, i));
        let is_again = self.breaks(Broken::NameUsedAgain) && state.names > 0;
        let name = if is_again { 0 } else { usize::from(state.names) };
        if asked == 0 || name >= self.attempts_max {
            return;
        }
        let mut next = state.clone();
        next.names = if is_again { self.attempts_max as u8 } else { state.names + 1 };
        (next.snapshot_calls[name], next.snapshot_ballots[name]) = (1 + id as u8, host.ballot);
        let host = &mut next.hosts[h];
        host.snapshot = Some(Snapshot { name: Some(name as u8), asked, ..Snapshot::default() });
        for (_, link) in host.links.iter_mut().enumerate().filter(|&(i, _)| has(asked, i)) {
            link.snapshots |= 1 << name;
        }
        visit(next, &|| format!("host {h} asks {asked:03b} for snapshot {name}"));
    }

    /// Snapshots are taken and deleted at `i`.
    pub(crate) fn land_snapshots(&self, state: &State, h: usize, i: usize, visit: &mut Visit<'_, State>) {
        let link = &state.hosts[h].links[i];
        for name in (0..SNAPSHOTS).filter(|&name| has(link.snapshots, name)) {
            let mut next = state.clone();
            let (holder, host) = (&mut next.holders[i], &mut next.hosts[h]);
            host.links[i].snapshots &= !(1 << name);
            let data = holder.data;
            holder.snapshots[name].get_or_insert(data);
            let counts = |snapshot: &&mut Snapshot| snapshot.name == Some(name as u8) && !snapshot.proposed;
            if let Some(snapshot) = host.snapshot.as_mut().filter(counts) {
                (snapshot.answered, snapshot.bytes) = (snapshot.answered | 1 << i, packed(data));
            }
            visit(next, &|| format!("{i} takes snapshot {name} of host {h}"));
        }
        for name in (0..SNAPSHOTS).filter(|&name| has(link.deletes, name)) {
            let mut next = state.clone();
            next.hosts[h].links[i].deletes &= !(1 << name);
            next.holders[i].snapshots[name] = None;
            visit(next, &|| format!("{i} deletes snapshot {name} for host {h}"));
        }
    }

    /// Whoever serves deletes what its own records do not name, of its own ballot or an older one, but what it asks for now.
    pub(crate) fn delete_snapshots(&self, state: &State, h: usize, visit: &mut Visit<'_, State>) {
        let host = &state.hosts[h];
        let serves = host.phase == Phase::Attached && host.stable.ballot == host.ballot;
        if !self.deletes || !serves && !self.breaks(Broken::DeletedEarly) {
            return;
        }
        let own = |name: usize| host.snapshot.is_some_and(|snapshot| snapshot.name == Some(name as u8));
        let stable = |name: usize| if self.breaks(Broken::DeletesNamed) { 0 } else { host.stable.snapshots[name] };
        let named = |name: usize, i: usize| has(host.current.snapshots[name] | stable(name), i);
        for (i, name) in (0..self.replicas).flat_map(|i| (0..SNAPSHOTS).map(move |name| (i, name))) {
            let link = &host.links[i];
            let is_older = state.snapshot_ballots[name] <= host.ballot || self.breaks(Broken::DeletesNewer);
            let is_garbage = state.holders[i].snapshots[name].is_some() && is_older && !named(name, i) && !own(name);
            if is_garbage && link.progress == Progress::Usable && !has(link.deletes, name) {
                let mut next = state.clone();
                next.hosts[h].links[i].deletes |= 1 << name;
                visit(next, &|| format!("host {h} finds snapshot {name} at {i} and deletes it"));
            }
        }
    }

    /// Of a record that may be followed: whoever is named has the snapshot, all the same bytes, and those of one moment.
    pub(crate) fn snapshots_hold(&self, state: &State, record: &Record) -> Result<(), String> {
        for (name, &members) in record.snapshots.iter().enumerate() {
            if members != 0 && has(state.snapshots_gone, name) {
                return Err(format!("snapshot {name} was gone, and is back"));
            }
            let lives = |i: usize| state.holders[i].life == record.lives >> i & 1;
            let mut there =
                (0..self.replicas).filter(|&i| has(members, i) && lives(i)).map(|i| state.holders[i].snapshots[name]);
            let Some(first) = there.next() else {
                if has(state.snapshots_done & !state.snapshots_ended, name) && self.replacements_max == 0 {
                    return Err(format!("snapshot {name} is forgotten"));
                }
                continue;
            };
            let Some(bytes) = first.filter(|_| there.all(|other| other == first)) else {
                return Err(format!("snapshot {name} is not the same at all that are to have it"));
            };
            let mut calls = state.calls;
            let call = &mut calls[usize::from(state.snapshot_calls[name]) - 1];
            let result = packed(bytes);
            if call.called == Called::Answered && call.result != result {
                return Err(format!("snapshot {name} has changed"));
            }
            (call.called, call.result) = (Called::Answered, result);
            if !self.is_linearizable(&calls, state.rollbacks) {
                return Err(format!("snapshot {name} is of no moment"));
            }
        }
        Ok(())
    }

    /// Whether any client takes snapshots.
    pub(crate) fn takes_snapshots(&self) -> bool {
        self.calls().any(|(_, op)| op == Op::Snapshot)
    }
}

/// The bytes of all regions as a result.
pub(crate) fn packed(bytes: [u8; REGIONS]) -> u8 {
    bytes.iter().enumerate().map(|(region, byte)| byte << (4 * region)).sum()
}

/// The bytes that a result stands for.
pub(crate) fn unpacked(result: u8) -> [u8; REGIONS] {
    std::array::from_fn(|region| result >> (4 * region) & 15)
}

/// Whom a set of replicas means after a change of places.
pub(crate) fn moved(snapshot: Option<Snapshot>, set: impl Fn(Set) -> Set) -> Option<Snapshot> {
    snapshot.map(|old| Snapshot { asked: set(old.asked), answered: set(old.answered), ..old })
}
