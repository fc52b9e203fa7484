//! What a host does at once, without waiting for anything: it sends its record to whoever lacks it, and the log entry or the data
//! of what goes on.

use crate::config::{Broken, Config};
use crate::state::{HOSTS, Host, INTENT, Job, Link, Phase, Progress, REGIONS, Record, Set, State, Work, has};

impl Config {
    /// How many holders have answered, each in the life that is asked for.
    fn answers(&self, host: &Host, lives: Set) -> u32 {
        let counts = |i: usize| {
            let answer = host.links[i].answered;
            answer.is_some_and(|life| life == lives >> i & 1 || self.breaks(Broken::BlankCounts))
        };
        (0..self.holders()).filter(|&i| counts(i)).count() as u32
    }

    pub(crate) fn is_majority(&self, host: &Host, record: &Record, lives: Set) -> bool {
        if self.breaks(Broken::MajorityOfInSync) {
            let answered = |i: usize| has(record.in_sync, i) && host.links[i].answered.is_some();
            return (0..self.holders()).filter(|&i| answered(i)).count() as u32 > record.in_sync.count_ones() / 2;
        }
        self.answers(host, lives) >= self.majority
    }

    pub(crate) fn is_usable(&self, host: &Host, i: usize) -> bool {
        let progress = host.links[i].progress;
        progress == Progress::Usable || self.breaks(Broken::Unchecked) && progress == Progress::Unchecked
    }

    /// The device at `i` is the one that the record means, and has what it had.
    pub(crate) fn is_intact(&self, host: &Host, i: usize) -> bool {
        (self.is_holder(host, i) || self.breaks(Broken::BlankInSync)) && self.has_kept(host, i)
    }

    pub(crate) fn is_holder(&self, host: &Host, i: usize) -> bool {
        host.links[i].life == host.current.lives >> i & 1
    }

    /// Whether a command of a host, other than a preempt, may execute.
    pub(crate) fn may_execute(&self, state: &State, h: usize, i: usize) -> bool {
        let reserved = state.holders[i].reserved;
        reserved == 1 + h as u8 || self.breaks(Broken::ReservationLost) && reserved == 0
    }

    /// The connection is given up; what is in flight stays there.
    pub(crate) fn disconnect(&self, host: &mut Host, i: usize) {
        let current = host.current.version;
        self.doubt(host, i);
        let link = &mut host.links[i];
        if self.breaks(Broken::UnknownIsDone)
            && link.record.version == current
            && current != 0
            && link.answered.is_none()
        {
            link.answered = Some(link.life);
        }
        *link = Link { progress: Progress::Down, preempt: false, ask: false, version: 0, known: [0; REGIONS], ..*link };
        host.joining &= !(1 << i);
        host.ready &= !(1 << i);
        host.lacks[i] = 0;
        for thread in host.threads.iter_mut().filter(|thread| thread.from == Some(i as u8) && thread.got.is_none()) {
            thread.from = None;
        }
        for job in host.jobs.iter_mut().filter(|job| job.work == Work::Copy && job.target == i as u8) {
            *job = Job::default();
        }
    }

    /// The next version of the record.
    pub(crate) fn propose(&self, host: &mut Host, in_sync: Set, lives: Set) {
        let old = host.current;
        let lives_before = if old == host.stable { old.lives } else { old.lives_before };
        host.current = Record { ballot: host.ballot, version: old.version + 1, in_sync, lives, lives_before, ..old };
        for i in (0..self.replicas).filter(|&i| has(in_sync & !old.in_sync & !host.need, i)) {
            host.current = host.current.with_losses(i, host.links[i].power_losses);
            host.doubtful &= !(1 << i);
        }
        if !self.breaks(Broken::SnapshotOfBlank) {
            let replaced = old.lives ^ lives;
            host.current.snapshots = old.snapshots.map(|members| members & !replaced);
            if let Some(snapshot) = host.snapshot.as_mut() {
                snapshot.answered &= !replaced;
            }
        }
        if !self.breaks(Broken::JoinNeededLate) {
            host.need |= in_sync;
        }
        host.readable &= in_sync;
        if self.breaks(Broken::AcknowledgeEarly) {
            (host.need, host.readable) = (in_sync, in_sync);
        }
        host.links.iter_mut().for_each(|link| link.answered = None);
        host.renewing = true;
    }

    /// See the module.
    pub(crate) fn go_on(&self, state: &mut State, h: usize) {
        let host = &mut state.hosts[h];
        if !matches!(host.phase, Phase::Record | Phase::Attached) {
            return;
        }
        let current = host.current;
        if host.stable != current
            && self.is_majority(host, &current, current.lives)
            && (self.breaks(Broken::OwnVote) || self.is_majority(host, &current, current.lives_before))
        {
            (host.stable, host.need, host.readable) = (current, current.in_sync, current.in_sync);
            host.leased |= host.renewing;
            (host.renewing, host.phase) = (false, Phase::Attached);
            host.links.iter_mut().for_each(|link| link.answered = None);
        }
        for link in &mut host.links[..self.holders()] {
            if link.progress >= Progress::Unchecked && link.record.version == 0 && link.version < current.version {
                link.record = current;
            }
        }
        if host.phase == Phase::Attached {
            (0..self.regions).for_each(|region| self.go_on_with(host, region));
            self.send_flushes(host);
        }
    }

    fn go_on_with(&self, host: &mut Host, region: usize) {
        let job = host.jobs[region];
        let targets = match job.work {
            Work::None => return,
            Work::Copy => 1 << job.target,
            Work::Write if self.breaks(Broken::JoinMissesWrites) => {
                host.need | self.replicas_where(|i| has(host.joining, i) && has(host.lacks[i], region))
            }
            Work::Write | Work::Settle | Work::Zero => host.need | host.joining,
        };
        let unmarked = match job.work {
            Work::Copy => self.breaks(Broken::CopyUnmarked),
            Work::Settle => self.breaks(Broken::SettleUnmarked),
            _ => false,
        } || self.breaks(Broken::MarkedAfter);
        for i in (0..self.replicas).filter(|&i| has(targets & !job.done, i)) {
            let may_send = self.has_room(host, i, region)
                && self.is_usable(host, i)
                && (self.is_intact(host, i) || has(host.joining, i));
            let link = &mut host.links[i];
            if !may_send || link.data[region].is_some() || link.log[region].is_some() {
                continue;
            }
            if unmarked || link.known[region] == INTENT {
                link.data[region] = Some(job.value);
                if self.volatile {
                    host.flushed[region] &= !(1 << i);
                    link.flush = link.flush.map(|covered| covered & !(1 << region));
                    link.sync = link.sync.map(|covered| covered & !(1 << region));
                }
            } else {
                link.log[region] = Some(INTENT);
            }
        }
        if job.work == Work::Settle && host.need & !job.done == 0 && !self.flushes_settled(host, region) {
            host.unsettled &= !(1 << region);
            self.note_missed(host, region, job.done);
            host.jobs[region] = Job::default();
        } else if job.work == Work::Copy && has(job.done, usize::from(job.target)) {
            host.lacks[usize::from(job.target)] &= !(1 << region);
            host.jobs[region] = Job::default();
        }
    }

    /// Who joins and has not got a write lacks its region.
    pub(crate) fn note_missed(&self, host: &mut Host, region: usize, done: Set) {
        if self.breaks(Broken::JoinMissesWrites) {
            return;
        }
        let missed = host.joining & !done;
        for i in (0..self.replicas).filter(|&i| has(missed, i)) {
            host.lacks[i] |= 1 << region;
        }
        Config::unready(host, missed);
    }

    /// A round of reads ends without the lease.
    pub(crate) fn forget_round(host: &mut Host) {
        host.confirmed = 0;
        host.links.iter_mut().for_each(|link| link.ask = false);
    }

    /// Whether a majority has confirmed that nobody newer has been promised anything.
    pub(crate) fn is_confirmed(&self, host: &Host) -> bool {
        let Record { lives, lives_before, .. } = host.current;
        [lives, lives_before].into_iter().all(|lives| {
            let counts = |i: usize| has(host.confirmed, i) && host.links[i].life == lives >> i & 1;
            (0..self.holders()).filter(|&i| counts(i)).count() >= self.majority as usize
        })
    }

    /// Notes it if a superseded host changes an in-sync replica of the newer one.
    pub(crate) fn note_foul(&self, state: &mut State, h: usize, i: usize) {
        let is_newer = |g: usize| {
            let newer = &state.hosts[g];
            g != h
                && newer.phase == Phase::Attached
                && newer.ballot > state.hosts[h].ballot
                && has(newer.need | newer.readable, i)
                && state.holders[i].life == newer.current.lives >> i & 1
        };
        state.fouled |= (0..HOSTS).any(is_newer);
    }
}
