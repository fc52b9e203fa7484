//! The models at a size that fits the gate: what is sound is exhausted with a known number of states, what is broken is
//! caught. The counts are part of the proof: a change of the model that loses transitions shows up as a smaller number.

use kv_model::explore::{Outcome, exhaust, shortest_violation};
use kv_model::{agree, bundle, orphan, page, quorum, superblock};

/// Far above what any configuration here needs; a search that hits it has got out of hand.
const STATES_MAX: usize = 4_000_000;

fn quorum_states(group: &str) -> Vec<usize> {
    let configs = quorum::configs::sound(group);
    configs.into_iter().map(|config| states(config.name, exhaust(&quorum::Search::new(config), STATES_MAX))).collect()
}

fn page_states(group: &str) -> Vec<usize> {
    let configs = page::configs::sound(group);
    configs.into_iter().map(|config| states(config.name, exhaust(&page::Search(config), STATES_MAX))).collect()
}

fn states(name: &str, outcome: Outcome) -> usize {
    match outcome {
        Outcome::Exhausted { states } => states,
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn puts_gets_and_conditional_operations_are_linearizable() {
    assert_eq!(quorum_states("small"), [380, 8403, 423, 31907, 3219, 2858, 823, 1387]);
    let cas = &quorum::configs::sound("cas")[..2];
    let counts: Vec<usize> =
        cas.iter().map(|c| states(c.name, exhaust(&quorum::Search::new(c.clone()), STATES_MAX))).collect();
    assert_eq!(counts, [26133, 3292]);
}

/// Of the group only what the gate has time for.
#[test]
fn what_every_member_has_refused_is_as_if_it_had_not_been_sent() {
    let small = quorum::struck::sound().into_iter().filter(|config| config.name != "inc,get|inc,put struck");
    let counts: Vec<usize> = small.map(|c| states(c.name, exhaust(&quorum::Search::new(c), STATES_MAX))).collect();
    assert_eq!(counts, [241_381, 8473, 129_673, 33_709, 252_396]);
}

#[test]
fn gets_on_full_members_are_linearizable() {
    assert_eq!(quorum_states("full-small"), [742, 6408, 1556, 150594, 26912, 142, 150, 48831, 8489]);
    assert_eq!(change_states("change-full-small"), [191380, 117325, 63454, 77176, 380985]);
}

#[test]
fn deletes_are_linearizable_with_hosts_that_crash_or_give_up() {
    let configs = quorum::configs::sound("delete");
    let small = configs.into_iter().filter(|config| config.name != "put|del,get|inc");
    let counts: Vec<usize> = small.map(|c| states(c.name, exhaust(&quorum::Search::new(c), STATES_MAX))).collect();
    assert_eq!(counts, [52486, 4666, 12974, 4795, 19446, 124309]);
}

#[test]
fn a_member_that_lost_a_page_is_rebuilt_without_losing_a_write() {
    let [first, ..] = &quorum::configs::sound("loss")[..] else { panic!("the group is not empty") };
    let outcome = exhaust(&quorum::Search::new(first.clone()), STATES_MAX);
    assert_eq!(outcome, Outcome::Exhausted { states: 52_589 });
    let [first, ..] = &quorum::configs::sound("loss-cas")[..] else { panic!("the group is not empty") };
    let outcome = exhaust(&quorum::Search::new(first.clone()), STATES_MAX);
    assert_eq!(outcome, Outcome::Exhausted { states: 693_162 });
}

fn change_states(group: &str) -> Vec<usize> {
    let configs = quorum::change_configs::sound(group);
    configs.into_iter().map(|config| states(config.name, exhaust(&quorum::Search::new(config), STATES_MAX))).collect()
}

#[test]
fn a_change_of_membership_is_linearizable() {
    assert_eq!(
        change_states("change-small"),
        [
            36019, 29049, 7846, 158531, 9612, 6772, 7017, 18691, 9608, 12426, 106490, 59706, 454860, 302, 868, 17589,
            20406, 107516, 58545, 136436, 38343, 68113
        ]
    );
}

#[test]
fn tombstones_are_collected_without_bringing_a_value_back() {
    assert_eq!(change_states("collect-small"), [82367, 25298, 191704, 25903]);
}

#[test]
fn every_broken_rule_of_epochs_is_caught() {
    for config in quorum::change_configs::broken() {
        let name = config.name;
        let outcome = exhaust(&quorum::Search::new(config), STATES_MAX);
        assert!(matches!(outcome, Outcome::Violation { .. }), "{name} was not caught: {outcome:?}");
    }
}

#[test]
fn a_member_is_an_atomic_register_per_key() {
    assert_eq!(page_states("page-small"), [384, 762, 510, 2371, 2081, 633]);
    assert_eq!(page_states("page-main"), [1854, 965, 2815, 5360, 3009, 907]);
    assert_eq!(page_states("page-large"), [28097, 174915, 208936]);
}

#[test]
fn every_broken_rule_of_the_quorum_is_caught() {
    for config in quorum::configs::broken() {
        let name = config.name;
        let outcome = shortest_violation(&quorum::Search::new(config), STATES_MAX);
        assert!(matches!(outcome, Outcome::Violation { .. }), "{name} was not caught: {outcome:?}");
    }
}

#[test]
fn every_broken_rule_of_the_pages_is_caught() {
    for config in page::configs::broken() {
        let name = config.name;
        let outcome = shortest_violation(&page::Search(config), STATES_MAX);
        assert!(matches!(outcome, Outcome::Violation { .. }), "{name} was not caught: {outcome:?}");
    }
}

#[test]
fn a_copy_that_is_referred_to_is_never_collected() {
    let configs = orphan::sound("orphan").into_iter();
    let counts: Vec<usize> = configs.map(|c| states(c.name, exhaust(&orphan::Search(c), STATES_MAX))).collect();
    assert_eq!(counts, [5974, 125403, 27249, 30146, 403120]);
}

#[test]
fn every_broken_rule_of_the_collector_is_caught() {
    for config in orphan::broken() {
        let name = config.name;
        let outcome = exhaust(&orphan::Search(config), STATES_MAX);
        assert!(matches!(outcome, Outcome::Violation { .. }), "{name} was not caught: {outcome:?}");
    }
}

#[test]
fn entries_in_bundles_are_entries_of_their_page() {
    let configs = bundle::configs::sound("bundle").into_iter();
    let counts: Vec<usize> = configs.map(|c| states(c.name, exhaust(&bundle::Search(c), STATES_MAX))).collect();
    assert_eq!(counts, [615, 329, 268, 265, 2650, 1476, 370, 332, 727, 6707, 3246, 12783, 23230, 49027]);
}

#[test]
fn every_broken_rule_of_bundles_is_caught() {
    for config in bundle::configs::broken() {
        let name = config.name;
        let outcome = shortest_violation(&bundle::Search(config), STATES_MAX);
        assert!(matches!(outcome, Outcome::Violation { .. }), "{name} was not caught: {outcome:?}");
    }
}

#[test]
fn all_maps_in_force_are_one_chain() {
    let configs = agree::configs::sound("agree").into_iter();
    let counts: Vec<usize> = configs.map(|c| states(c.name, exhaust(&agree::Search(c), STATES_MAX))).collect();
    assert_eq!(
        counts,
        [776_038, 2394, 5641, 5192, 116_872, 697_861, 314_689, 259, 1069, 44_807, 44_807, 233_496, 33_854]
    );
}

#[test]
fn every_broken_rule_of_agreement_is_caught() {
    for config in agree::configs::broken() {
        let name = config.name;
        let outcome = exhaust(&agree::Search(config), STATES_MAX);
        assert!(matches!(outcome, Outcome::Violation { .. }), "{name} was not caught: {outcome:?}");
    }
}

#[test]
fn a_voter_is_one_register_although_it_lies_in_two_copies_and_many_leaves() {
    let configs = superblock::configs::sound("superblock").into_iter();
    let counts: Vec<usize> = configs.map(|c| states(c.name, exhaust(&superblock::Search(c), STATES_MAX))).collect();
    assert_eq!(counts, [5000, 324_451, 32_396]);
}

#[test]
fn every_broken_rule_of_a_voter_is_caught() {
    for config in superblock::configs::broken() {
        let name = config.name;
        let outcome = exhaust(&superblock::Search(config), STATES_MAX);
        assert!(matches!(outcome, Outcome::Violation { .. }), "{name} was not caught: {outcome:?}");
    }
}
