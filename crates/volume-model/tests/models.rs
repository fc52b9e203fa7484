//! The model at a size that fits the gate: what is sound is exhausted with a known number of states, what is broken is caught.
//! The counts are part of the proof: a change of the model that loses transitions shows up as a smaller number.

use check::explore::{Outcome, exhaust};
use volume_model::{Search, configs};

/// Far above what any configuration here needs; a search that hits it has got out of hand.
const STATES_MAX: usize = 2_000_000;

/// How many states each of some configurations of a group has.
fn states(group: &str, wanted: &[usize]) -> Vec<usize> {
    let configs = configs::sound(group);
    let some = wanted.iter().map(|&index| configs[index].clone());
    some.map(|config| {
        let name = config.name;
        match exhaust(&Search::new(config), STATES_MAX) {
            Outcome::Exhausted { states } => states,
            other => panic!("{name}: {other:?}"),
        }
    })
    .collect()
}

#[test]
fn one_host_loses_nothing_and_a_fresh_one_finds_it() {
    assert_eq!(states("one", &[0, 2]), [99, 14_135]);
}

#[test]
fn a_host_that_attaches_takes_over_from_one_that_serves() {
    assert_eq!(states("two", &[0, 1, 3, 4]), [22_664, 16_448, 40_181, 10_440]);
}

#[test]
fn two_hosts_that_attach_at_once_are_one() {
    assert_eq!(states("both", &[1]), [192_378]);
}

#[test]
fn a_lease_that_reads_renew_ends_before_a_newer_host_writes() {
    assert_eq!(states("lease", &[0, 1, 2]), [48_365, 48_354, 30_868]);
}

#[test]
fn what_a_replica_lacks_is_copied_before_it_is_in_sync() {
    assert_eq!(states("degraded", &[0, 6]), [39_677, 28_123]);
}

#[test]
fn a_resync_that_begins_anew_goes_on_where_the_one_before_was() {
    assert_eq!(states("resume", &[1, 4]), [127_431, 217_035]);
}

#[test]
fn an_empty_device_takes_a_replicas_place() {
    assert_eq!(states("replace", &[3]), [38_883]);
}

#[test]
fn what_was_flushed_survives_the_loss_of_all_power() {
    assert_eq!(states("power", &[0, 6, 7]), [37_857, 56_470, 83_615]);
    assert_eq!(states("uncounted", &[0, 2, 3]), [26_758, 7_809, 35_583]);
}

#[test]
fn a_host_that_says_it_is_done_is_not_waited_for() {
    assert_eq!(states("handover", &[0, 1, 6]), [9_990, 8_994, 28_948]);
}

#[test]
fn a_snapshot_is_of_one_moment_wherever_it_is_read() {
    assert_eq!(states("snapshot", &[0, 3, 5, 6]), [20_728, 12_805, 42_569, 6_194]);
}

#[test]
fn a_snapshot_that_is_gone_stays_gone() {
    assert_eq!(states("snapshot", &[13, 15, 16, 17]), [37_809, 11_946, 10_602, 2_779]);
}

#[test]
fn a_volume_grows_while_it_is_used() {
    assert_eq!(states("grow", &[0, 1, 2, 3, 6]), [2_511, 9_254, 23_514, 34_068, 7_665]);
}

#[test]
fn every_broken_rule_is_caught() {
    for config in configs::broken() {
        let name = config.name;
        // Depth first is quick to find most; of some a fresh host alone notices, and not in each state.
        let mut outcome = exhaust(&Search::new(config.clone()), STATES_MAX);
        if !matches!(outcome, Outcome::Violation { .. }) {
            outcome = exhaust(&Search::thorough(config), STATES_MAX);
        }
        assert!(matches!(outcome, Outcome::Violation { .. }), "{name} was not caught: {outcome:?}");
    }
}
