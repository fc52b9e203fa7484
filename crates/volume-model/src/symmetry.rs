//! Replicas are alike: of states that differ by their order alone the least stands for all.

use crate::config::Config;
use crate::snapshot::moved;
use crate::state::{HOLDERS, Holder, Link, Record, State, Work, has};

/// Where each holder goes.
type Places = [usize; HOLDERS];

impl Config {
    /// See the module.
    pub(crate) fn canonicalise(&self, state: &mut State) {
        let others: &[Places] = match self.replicas {
            0 | 1 => &[],
            2 => &[[1, 0, 2]],
            _ => &[[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]],
        };
        if let Some(least) = others.iter().map(|to| permuted(state, to)).min().filter(|least| *least < *state) {
            *state = least;
        }
    }
}

fn permuted(state: &State, to: &Places) -> State {
    let set = |old: u8| (0..HOLDERS).filter(|&i| has(old, i)).map(|i| 1u8 << to[i]).sum::<u8>();
    let record = |old: Record| Record {
        in_sync: set(old.in_sync),
        lives: set(old.lives),
        lives_before: set(old.lives_before),
        power_losses: (0..HOLDERS).map(|i| old.losses(i) << (2 * to[i])).sum(),
        snapshots: old.snapshots.map(set),
        ..old
    };
    let mut next = state.clone();
    for (old, &place) in state.holders.iter().zip(to) {
        next.holders[place] = Holder { accepted: record(old.accepted), ..*old };
    }
    next.stash.accepted = record(state.stash.accepted);
    if state.stash_at != 0 {
        next.stash_at = 1 + to[usize::from(state.stash_at) - 1] as u8;
    }
    for (old, host) in state.hosts.iter().zip(&mut next.hosts) {
        for (i, &place) in to.iter().enumerate() {
            host.links[place] = Link { record: record(old.links[i].record), ..old.links[i] };
            host.lacks[place] = old.lacks[i];
        }
        (host.read, host.current, host.stable) = (record(old.read), record(old.current), record(old.stable));
        (host.need, host.readable, host.joining) = (set(old.need), set(old.readable), set(old.joining));
        host.confirmed = set(old.confirmed);
        host.snapshot = moved(old.snapshot, set);
        host.flushed = old.flushed.map(set);
        (host.ready, host.doubtful) = (set(old.ready), set(old.doubtful));
        for (old, job) in old.jobs.iter().zip(&mut host.jobs) {
            job.done = set(old.done);
            if old.work == Work::Copy {
                job.target = to[usize::from(old.target)] as u8;
            }
        }
        for (old, thread) in old.threads.iter().zip(&mut host.threads) {
            thread.from = old.from.map(|from| to[usize::from(from)] as u8);
            thread.done = set(old.done);
        }
    }
    next
}
