//! Messages of one update under other ways of keeping replicas equal: counting models, and nothing more.
//!
//! Each model sends the messages of an update without faults and without contention into a ledger. Devices are passive in all
//! of them (a read or write of a device is a message there and one back); `hosts` are the machines that serve, of which one
//! is asked by the user. What the models leave out favours the others: locks, logs of participants beyond the one write,
//! failure detection, the choice of a new coordinator or owner.

/// What one update costs.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Tally {
    /// Messages between hosts.
    pub between_hosts: f64,
    /// Messages between a host and a device.
    pub to_devices: f64,
    /// Round trips that follow one another.
    pub round_trips: f64,
}

/// Sends of one update.
#[derive(Default)]
struct Ledger(Tally);

impl Ledger {
    /// `count` hosts are asked at once, and answer; `answers` says whether they do so in the same round trip or after work of
    /// theirs, whose round trips come in between.
    fn ask_hosts(&mut self, count: usize) {
        self.0.between_hosts += 2.0 * count as f64;
        self.0.round_trips += 1.0;
    }

    /// `count` devices are read or written at once.
    fn ask_devices(&mut self, count: usize) {
        self.0.to_devices += 2.0 * count as f64;
        self.0.round_trips += 1.0;
    }
}

/// Two-phase commit among the hosts that own the `replicas` devices; the host that was asked coordinates, and holds one of
/// the replicas itself where it can: with `hosts` of them, that is so once in `hosts / replicas`.
pub fn two_phase_commit(replicas: usize, hosts: usize) -> Tally {
    let local = (replicas as f64 / hosts as f64).min(1.0);
    let mut ledger = Ledger::default();
    ledger.ask_devices(1); // read what is to be changed
    ledger.ask_hosts(replicas); // request to prepare, votes …
    ledger.ask_devices(replicas); // … after each participant has logged it
    ledger.ask_devices(1); // the coordinator logs its decision
    ledger.ask_hosts(replicas); // commit, acknowledgements …
    ledger.ask_devices(replicas); // … after each has written it
    // What the coordinator would send to itself is no message.
    ledger.0.between_hosts -= 4.0 * local;
    ledger.0
}

/// An owner for each key: the host that was asked passes the update on, unless it is the owner, which reads and writes all
/// replicas.
pub fn owner_per_key(replicas: usize, hosts: usize) -> Tally {
    let elsewhere = 1.0 - 1.0 / hosts as f64;
    let mut ledger = Ledger::default();
    ledger.ask_hosts(1);
    ledger.0.between_hosts *= elsewhere;
    ledger.0.round_trips *= elsewhere;
    ledger.ask_devices(1);
    ledger.ask_devices(replicas);
    ledger.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_textbook() {
        let commit = two_phase_commit(3, 1000);
        assert_eq!((commit.to_devices, commit.round_trips), (16.0, 6.0));
        assert!((commit.between_hosts - 12.0).abs() < 0.1, "4 N, less what is local: {commit:?}");
        let owner = owner_per_key(3, 1);
        assert_eq!(owner, Tally { between_hosts: 0.0, to_devices: 8.0, round_trips: 2.0 });
        assert!((owner_per_key(3, 1000).round_trips - 3.0).abs() < 0.01, "one hop more");
    }
}
