//! The volume grows by its last region, while it is used. Replicas grow first, each at its own time.

use check::explore::Visit;

use crate::config::{Broken, Config, Op};
use crate::state::{Called, Growth, Host, Job, Progress, Record, State, Work, begin, has};

impl Config {
    /// How many regions the volume has.
    pub(crate) fn regions_of(&self, record: &Record) -> usize {
        self.regions - usize::from(self.grows && !record.grown)
    }

    /// Whether a replica has the room for a region, as far as the host knows.
    pub(crate) fn has_room(&self, host: &Host, i: usize, region: usize) -> bool {
        !self.grows || region + 1 < self.regions || host.links[i].grown
    }

    /// Whether a replica has the room for the volume, so that it may join.
    pub(crate) fn has_all_room(&self, host: &Host, i: usize) -> bool {
        !host.current.grown || self.has_room(host, i, self.regions - 1) || self.breaks(Broken::JoinUngrown)
    }

    /// Whether a region is in use: it may have entries in the log that mean something.
    pub(crate) fn is_used(&self, host: &Host, region: usize) -> bool {
        region < self.regions_of(&host.current) || host.growth != Growth::No
    }

    /// Whether clients may use a region.
    pub(crate) fn is_offered(&self, host: &Host, region: usize) -> bool {
        let early = self.breaks(Broken::UsedEarly) && host.growth == Growth::Zeroed;
        region < self.regions_of(&host.stable) || early
    }

    /// Replicas grow when they are told to, somewhere else.
    pub(crate) fn grow_replicas(&self, state: &State, visit: &mut Visit<'_, State>) {
        let is_asked = |&(id, op): &(usize, Op)| op == Op::Grow && state.calls[id].called != Called::No;
        if !self.grows || !self.calls().any(|call| is_asked(&call)) {
            return;
        }
        /// What somebody else has left there, other bytes at each replica.
        const LEFT: u8 = 200;
        for i in (0..self.replicas).filter(|&i| !state.holders[i].grown) {
            let mut next = state.clone();
            let holder = &mut next.holders[i];
            holder.grown = true;
            if !self.grown_is_zero {
                holder.data[self.regions - 1] = LEFT + state.grown;
                next.grown += 1;
            }
            for host in &mut next.hosts {
                host.links[i].grown = host.links[i].progress >= Progress::Unchecked;
            }
            visit(next, &|| format!("{i} grows"));
        }
    }

    /// Growing begins, has all that are needed, is proposed, or is there.
    pub(crate) fn grow_step(&self, state: &State, h: usize, thread: usize, id: usize, visit: &mut Visit<'_, State>) {
        let host = &state.hosts[h];
        let new = self.regions - 1;
        let mut next = state.clone();
        let of_next = &mut next.hosts[h];
        let is_grown = |i: usize| !has(host.need, i) || self.has_room(host, i, new);
        let have_grown = (0..self.replicas).all(is_grown) || self.breaks(Broken::GrownEarly);
        let words = if !host.threads[thread].runs {
            (of_next.threads[thread].runs, of_next.growth) = (true, Growth::Begun);
            begin(&mut next, id);
            "begins to grow the volume"
        } else if host.stable.grown {
            of_next.growth = Growth::No;
            self.answer(&mut next, h, thread, 0);
            "has grown the volume"
        } else if host.growth == Growth::Begun && host.jobs[new].work == Work::None && have_grown {
            if self.grown_is_zero || self.breaks(Broken::NotZeroed) {
                of_next.growth = Growth::Zeroed;
            } else {
                of_next.jobs[new] = Job { work: Work::Zero, ..Job::default() };
            }
            "finds all grown that are needed"
        } else if host.jobs[new].work == Work::Zero && host.need & !host.jobs[new].done == 0 {
            self.note_missed(of_next, new, host.jobs[new].done);
            (of_next.jobs[new], of_next.growth) = (Job::default(), Growth::Zeroed);
            "has zeroes in the new region"
        } else if host.growth == Growth::Zeroed
            && !host.current.grown
            && have_grown
            && host.current.version < self.versions_max
        {
            self.propose(of_next, host.current.in_sync, host.current.lives);
            of_next.current.grown = true;
            "proposes the new size"
        } else {
            return;
        };
        self.go_on(&mut next, h);
        visit(next, &|| format!("host {h} {words}"));
    }
}
