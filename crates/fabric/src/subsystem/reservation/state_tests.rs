//! The state against the specification's tables, and against a model that is as plain as can be.

use std::collections::{BTreeMap, BTreeSet};

use nvme::opcode::{AdminOpcode, NvmOpcode};
use proptest::prelude::*;

use super::*;

const fn host(number: u8) -> HostId {
    HostId { id: [number; 16], name: [number; 7] }
}

const A: HostId = host(1);
const B: HostId = host(2);
const C: HostId = host(3);
const GONE: NotificationType = NotificationType::REGISTRATION_PREEMPTED;
const RELEASED: NotificationType = NotificationType::RESERVATION_RELEASED;
const CLEARED: NotificationType = NotificationType::RESERVATION_PREEMPTED;

fn register(new: u64) -> Change {
    let (action, persist) = (RegisterAction::Register, PersistChange::Keep);
    Change::Register { action, ignore_key: false, persist, current: 0, new }
}

fn unregister(current: u64) -> Change {
    let (action, persist) = (RegisterAction::Unregister, PersistChange::Keep);
    Change::Register { action, ignore_key: false, persist, current, new: 0 }
}

fn replace(current: Option<u64>, new: u64) -> Change {
    let (action, persist) = (RegisterAction::Replace, PersistChange::Keep);
    Change::Register { action, ignore_key: current.is_none(), persist, current: current.unwrap_or(0), new }
}

fn acquire(rtype: ReservationType, current: u64) -> Change {
    Change::Acquire { action: AcquireAction::Acquire, rtype, current, preempt: 0 }
}

fn preempt(rtype: ReservationType, current: u64, preempt: u64) -> Change {
    Change::Acquire { action: AcquireAction::Preempt, rtype, current, preempt }
}

fn release(rtype: ReservationType, current: u64) -> Change {
    Change::Release { action: ReleaseAction::Release, rtype: Some(rtype), current }
}

/// A with key 1, B with key 2, and C with key 3 are registrants; `rtype` is held by A.
fn held(rtype: ReservationType) -> State {
    let mut state = State::default();
    for (host, key) in [(A, 1), (B, 2), (C, 3)] {
        assert!(state.apply(host, register(key), false).is_ok());
    }
    assert!(state.apply(A, acquire(rtype, 1), false).is_ok());
    state
}

fn notices(state: &mut State, host: HostId, change: Change) -> Vec<(HostId, NotificationType)> {
    match state.apply(host, change, false) {
        Ok(effects) => effects.notices,
        Err(status) => panic!("refused: {status}"),
    }
}

fn refusal(state: &mut State, host: HostId, change: Change) -> Option<Status> {
    let before = state.clone();
    let status = state.apply(host, change, false).err();
    assert!(status.is_none() || *state == before, "a refused command changes nothing");
    status
}

/// The table of commands in the presence of a reservation (§8.19, NVM Command Set 1.0): rows are types, columns the holder,
/// another registrant and a stranger; r: reads are allowed, w: writes are.
#[test]
fn the_matrix_of_access() {
    let table = [
        (ReservationType::WriteExclusive, ["rw", "r", "r"]),
        (ReservationType::ExclusiveAccess, ["rw", "", ""]),
        (ReservationType::WriteExclusiveRegistrants, ["rw", "rw", "r"]),
        (ReservationType::ExclusiveAccessRegistrants, ["rw", "rw", ""]),
        (ReservationType::WriteExclusiveAll, ["rw", "rw", "r"]),
        (ReservationType::ExclusiveAccessAll, ["rw", "rw", ""]),
    ];
    let commands = [
        (NvmOpcode::READ, "r"),
        (NvmOpcode::COMPARE, "r"),
        (NvmOpcode::VERIFY, "r"),
        (NvmOpcode::COPY, "rw"),
        (NvmOpcode::WRITE, "w"),
        (NvmOpcode::FLUSH, "w"),
        (NvmOpcode::WRITE_ZEROES, "w"),
        (NvmOpcode::WRITE_UNCORRECTABLE, "w"),
        (NvmOpcode::DATASET_MANAGEMENT, "w"),
        (NvmOpcode::RESERVATION_REGISTER, ""),
        (NvmOpcode::RESERVATION_REPORT, ""),
    ];
    let admin = [
        (AdminOpcode::FORMAT_NVM, "w"),
        (AdminOpcode::NAMESPACE_MANAGEMENT, "w"),
        (AdminOpcode::NAMESPACE_ATTACHMENT, "w"),
        (AdminOpcode::SANITIZE, "w"),
        (AdminOpcode::SECURITY_SEND, "w"),
        (AdminOpcode::SECURITY_RECEIVE, "r"),
        (AdminOpcode::IDENTIFY, ""),
    ];
    for (rtype, allowed) in table {
        let mut state = held(rtype);
        assert_eq!(refusal(&mut state, C, unregister(3)), None);
        for (host, allowed) in [A, B, C].into_iter().zip(allowed) {
            let access = state.access(&host);
            for (opcode, wants) in commands {
                let expected = wants.chars().all(|want| allowed.contains(want));
                assert_eq!(access.covers(Access::wanted_by(opcode)), expected, "{rtype} {opcode} {allowed:?}");
            }
            for (opcode, wants) in admin {
                let expected = wants.chars().all(|want| allowed.contains(want));
                assert_eq!(access.covers(Access::wanted_by_admin(opcode)), expected, "{rtype} {opcode} {allowed:?}");
            }
        }
    }
    assert_eq!(State::default().access(&A), Access::ALL);
}

#[test]
fn registering_again_needs_the_same_key() {
    let mut state = State::default();
    assert_eq!(refusal(&mut state, A, register(0)), Some(INVALID));
    assert_eq!(refusal(&mut state, A, register(1)), None);
    assert_eq!(refusal(&mut state, A, register(1)), None);
    assert_eq!(refusal(&mut state, A, register(2)), Some(CONFLICT));
    assert_eq!(refusal(&mut state, B, register(1)), None, "hosts may share a key");
    assert_eq!(state.registrants.len(), 2);
}

#[test]
fn replacing_needs_the_current_key_or_none() {
    let mut state = State::default();
    assert_eq!(refusal(&mut state, A, replace(Some(1), 2)), Some(CONFLICT));
    assert_eq!(refusal(&mut state, A, replace(None, 2)), None, "IEKEY registers");
    assert_eq!(refusal(&mut state, A, replace(Some(1), 3)), Some(CONFLICT));
    assert_eq!(refusal(&mut state, A, replace(Some(2), 0)), Some(INVALID));
    assert_eq!(refusal(&mut state, A, replace(Some(2), 3)), None);
    assert_eq!(refusal(&mut state, A, replace(None, 4)), None);
    assert_eq!(state.key_of(&A), Some(4));
}

#[test]
fn unregistering_needs_the_key_and_releases_what_its_host_holds() {
    for (rtype, told) in [
        (ReservationType::WriteExclusive, vec![]),
        (ReservationType::ExclusiveAccess, vec![]),
        (ReservationType::WriteExclusiveRegistrants, vec![(B, RELEASED), (C, RELEASED)]),
        (ReservationType::ExclusiveAccessRegistrants, vec![(B, RELEASED), (C, RELEASED)]),
    ] {
        let mut state = held(rtype);
        assert_eq!(refusal(&mut state, A, unregister(2)), Some(CONFLICT));
        assert_eq!(notices(&mut state, A, unregister(1)), told);
        assert!(state.held.is_none());
        assert_eq!(refusal(&mut state, A, unregister(1)), Some(CONFLICT));
    }
    for rtype in [ReservationType::WriteExclusiveAll, ReservationType::ExclusiveAccessAll] {
        let mut state = held(rtype);
        for (host, key) in [(A, 1), (B, 2)] {
            assert_eq!(notices(&mut state, host, unregister(key)), []);
            assert!(state.held.is_some() && state.is_holder(&C));
        }
        assert_eq!(notices(&mut state, C, unregister(3)), []);
        assert!(state.held.is_none());
    }
}

#[test]
fn acquiring_again_needs_the_same_type_and_a_holder() {
    for rtype in ReservationType::ALL {
        let mut state = held(rtype);
        let generation = state.generation;
        assert_eq!(refusal(&mut state, A, acquire(rtype, 2)), Some(CONFLICT), "a wrong key");
        for other in ReservationType::ALL {
            assert_eq!(refusal(&mut state, A, acquire(other, 1)).is_none(), other == rtype);
            let holds = rtype.is_all_registrants() && other == rtype;
            assert_eq!(refusal(&mut state, B, acquire(other, 2)).is_none(), holds);
        }
        assert_eq!(state.generation, generation, "acquiring is not counted");
    }
    assert_eq!(refusal(&mut State::default(), A, acquire(ReservationType::WriteExclusive, 0)), Some(CONFLICT));
}

#[test]
fn releasing_needs_the_type_and_is_without_effect_for_others() {
    for rtype in ReservationType::ALL {
        let mut state = held(rtype);
        let generation = state.generation;
        assert_eq!(refusal(&mut state, A, release(rtype, 2)), Some(CONFLICT));
        if !rtype.is_all_registrants() {
            assert_eq!(notices(&mut state, B, release(rtype, 2)), []);
            assert!(state.is_holder(&A));
        }
        let other = ReservationType::ALL.into_iter().find(|other| *other != rtype).expect("there are six");
        assert_eq!(refusal(&mut state, A, release(other, 1)), Some(INVALID));
        let told = if rtype.admits_registrants() { vec![(B, RELEASED), (C, RELEASED)] } else { vec![] };
        assert_eq!(notices(&mut state, A, release(rtype, 1)), told);
        assert!(state.held.is_none() && state.registrants.len() == 3 && state.generation == generation);
    }
}

#[test]
fn clearing_drops_everything_and_tells_the_others() {
    let mut state = held(ReservationType::ExclusiveAccess);
    let clear = |current| Change::Release { action: ReleaseAction::Clear, rtype: None, current };
    assert_eq!(refusal(&mut state, B, clear(1)), Some(CONFLICT));
    assert_eq!(notices(&mut state, B, clear(2)), [(A, CLEARED), (C, CLEARED)]);
    assert!(state.held.is_none() && state.registrants.is_empty());
    assert_eq!(state.generation, 4);
}

#[test]
fn preempting_the_holder_takes_its_place() {
    for rtype in ReservationType::ALL.into_iter().filter(|rtype| !rtype.is_all_registrants()) {
        let mut state = held(rtype);
        let new = ReservationType::ExclusiveAccessRegistrants;
        let mut told = vec![(A, GONE)];
        if rtype == ReservationType::WriteExclusiveRegistrants {
            told.push((C, RELEASED)); // the type has changed
        }
        assert_eq!(notices(&mut state, B, preempt(new, 2, 1)), told);
        assert!(state.is_holder(&B) && !state.is_registrant(&A) && state.is_registrant(&C));
        assert_eq!(state.held.map(|held| held.rtype), Some(new));
    }
}

#[test]
fn a_preemption_of_others_leaves_the_reservation() {
    for rtype in ReservationType::ALL {
        let mut state = held(rtype);
        assert_eq!(notices(&mut state, A, preempt(ReservationType::WriteExclusive, 1, 2)), [(B, GONE)]);
        assert_eq!(state.held.map(|held| held.rtype), Some(rtype));
        assert_eq!(refusal(&mut state, A, preempt(rtype, 1, 9)), Some(CONFLICT), "a key that nobody has");
        assert_eq!(refusal(&mut state, A, preempt(rtype, 1, 0)).is_none(), rtype.is_all_registrants());
    }
    let mut state = State::default();
    assert!(state.apply(A, register(1), false).is_ok() && state.apply(B, register(2), false).is_ok());
    assert_eq!(refusal(&mut state, A, preempt(ReservationType::WriteExclusive, 1, 0)), Some(INVALID));
    assert_eq!(notices(&mut state, A, preempt(ReservationType::WriteExclusive, 1, 2)), [(B, GONE)]);
    assert!(state.held.is_none(), "there was none to preempt");
}

#[test]
fn preempting_all_registrants_leaves_the_preemptor_alone() {
    let mut state = held(ReservationType::WriteExclusiveAll);
    assert_eq!(notices(&mut state, B, preempt(ReservationType::ExclusiveAccess, 2, 0)), [(A, GONE), (C, GONE)]);
    assert!(state.is_holder(&B) && state.registrants.len() == 1);
    assert_eq!(state.access(&A), Access::NONE);
}

#[test]
fn a_holder_changes_its_type_by_preempting_itself() {
    let mut state = held(ReservationType::WriteExclusiveRegistrants);
    let told = notices(&mut state, A, preempt(ReservationType::ExclusiveAccess, 1, 1));
    assert_eq!(told, [(B, RELEASED), (C, RELEASED)]);
    assert!(state.is_holder(&A) && state.registrants.len() == 3);
    assert_eq!(state.access(&B), Access::NONE);
}

#[test]
fn only_preempt_and_abort_aborts() {
    for (action, aborted) in [(AcquireAction::Preempt, vec![]), (AcquireAction::PreemptAndAbort, vec![A])] {
        let mut state = held(ReservationType::WriteExclusive);
        let change = Change::Acquire { action, rtype: ReservationType::WriteExclusive, current: 2, preempt: 1 };
        assert_eq!(state.apply(B, change, false).map(|effects| effects.aborted), Ok(aborted));
    }
}

#[test]
fn persistence_is_refused_where_the_medium_keeps_nothing() {
    let mut state = State::default();
    let (action, persist) = (RegisterAction::Register, PersistChange::Set);
    let change = Change::Register { action, ignore_key: false, persist, current: 0, new: 1 };
    assert_eq!(refusal(&mut state, A, change), Some(INVALID));
    assert_eq!(refusal(&mut state, A, Change::Persist(true)), Some(INVALID));
    assert!(state.apply(A, change, true).is_ok() && state.persist);
    let (action, persist) = (RegisterAction::Unregister, PersistChange::Clear);
    let change = Change::Register { action, ignore_key: true, persist, current: 0, new: 0 };
    assert!(state.apply(A, change, true).is_ok() && !state.persist);
}

#[test]
fn registrants_are_bounded() {
    let mut state = State::default();
    let host = |number: usize| host(number as u8 + 1);
    for number in 0..REGISTRANTS_MAX {
        assert_eq!(refusal(&mut state, host(number), register(7)), None);
    }
    assert_eq!(refusal(&mut state, host(REGISTRANTS_MAX), register(7)), Some(Status::INTERNAL_ERROR));
    assert_eq!(refusal(&mut state, host(REGISTRANTS_MAX), replace(None, 7)), Some(Status::INTERNAL_ERROR));
    assert_eq!(refusal(&mut state, host(0), register(7)), None, "one that is a registrant may register again");
}

/// The specification's sentences, one by one, over sets: nothing is shared with the state but the words.
#[derive(Clone, Default, PartialEq, Debug)]
struct Model {
    keys: BTreeMap<HostId, u64>,
    held: Option<(ReservationType, BTreeSet<HostId>)>,
}

impl Model {
    fn holders(&self) -> BTreeSet<HostId> {
        match &self.held {
            Some((rtype, _)) if rtype.is_all_registrants() => self.keys.keys().copied().collect(),
            Some((_, holders)) => holders.clone(),
            None => BTreeSet::new(),
        }
    }

    fn drop_hosts(&mut self, hosts: &[HostId]) {
        let holders = self.holders();
        self.keys.retain(|host, _| !hosts.contains(host));
        if holders.iter().all(|holder| !self.keys.contains_key(holder)) {
            self.held = None;
        }
    }

    fn with_key(&self, key: u64) -> Vec<HostId> {
        self.keys.iter().filter(|(_, own)| **own == key).map(|(host, _)| *host).collect()
    }

    fn apply(&mut self, host: HostId, change: Change) -> bool {
        let own = self.keys.get(&host).copied();
        match change {
            Change::Register { action: RegisterAction::Register, new, .. } => {
                let fits = new != 0 && own.is_none_or(|own| own == new);
                if fits {
                    self.keys.insert(host, new);
                }
                fits
            }
            Change::Register { action: RegisterAction::Unregister, ignore_key, current, .. } => {
                let fits = own.is_some_and(|own| ignore_key || own == current);
                if fits {
                    self.drop_hosts(&[host]);
                }
                fits
            }
            Change::Register { action: RegisterAction::Replace, ignore_key, current, new, .. } => {
                let fits = new != 0 && (ignore_key || own == Some(current));
                if fits {
                    self.keys.insert(host, new);
                }
                fits
            }
            Change::Acquire { current, .. } | Change::Release { current, .. } if own != Some(current) => false,
            Change::Acquire { action: AcquireAction::Acquire, rtype, .. } => match &self.held {
                None => {
                    self.held = Some((rtype, [host].into()));
                    true
                }
                Some((before, _)) => *before == rtype && self.holders().contains(&host),
            },
            Change::Acquire { rtype, preempt, .. } => self.preempt(host, rtype, preempt),
            Change::Release { action: ReleaseAction::Release, rtype, .. } => {
                let holds = self.holders().contains(&host);
                let same = self.held.as_ref().map(|(held, _)| *held) == rtype;
                if holds && same {
                    self.held = None;
                }
                !holds || same
            }
            Change::Release { .. } => {
                *self = Model::default();
                true
            }
            Change::Persist(persist) => !persist,
        }
    }

    fn preempt(&mut self, host: HostId, rtype: ReservationType, key: u64) -> bool {
        let all = self.held.as_ref().is_some_and(|(held, _)| held.is_all_registrants());
        let holder_key = self.held.as_ref().and_then(|(_, holders)| self.keys.get(holders.first()?).copied());
        let goes: Vec<HostId> = if all && key == 0 {
            self.keys.keys().copied().filter(|other| *other != host).collect()
        } else if !all && key != 0 && holder_key == Some(key) {
            self.with_key(key).into_iter().filter(|other| *other != host).collect()
        } else {
            let goes = self.with_key(key);
            self.drop_hosts(&goes);
            return !goes.is_empty();
        };
        self.drop_hosts(&goes);
        self.held = Some((rtype, [host].into()));
        true
    }
}

fn changes() -> impl Strategy<Value = Change> {
    let key = || 0u64..4;
    let rtype = || (0usize..6).prop_map(|index| ReservationType::ALL[index]);
    let register =
        prop_oneof![Just(RegisterAction::Register), Just(RegisterAction::Unregister), Just(RegisterAction::Replace)];
    let acquire =
        prop_oneof![Just(AcquireAction::Acquire), Just(AcquireAction::Preempt), Just(AcquireAction::PreemptAndAbort)];
    let release = prop_oneof![4 => Just(ReleaseAction::Release), 1 => Just(ReleaseAction::Clear)];
    prop_oneof![
        3 => (register, any::<bool>(), key(), key()).prop_map(|(action, ignore_key, current, new)| Change::Register {
            action, ignore_key, persist: PersistChange::Keep, current, new
        }),
        3 => (acquire, rtype(), key(), key()).prop_map(|(action, rtype, current, preempt)| Change::Acquire {
            action, rtype, current, preempt
        }),
        1 => (release, rtype(), key()).prop_map(|(action, rtype, current)| Change::Release {
            action, rtype: Some(rtype), current
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_state_agrees_with_a_plain_model(steps in prop::collection::vec((0u8..4, changes()), 1..60)) {
        let (mut state, mut model) = (State::default(), Model::default());
        for (number, change) in steps {
            let asking = host(number + 1);
            let before = state.clone();
            let applied = state.apply(asking, change, false);
            prop_assert_eq!(applied.is_ok(), model.apply(asking, change));
            let keys: BTreeMap<_, _> = state.registrants.iter().map(|entry| (entry.host, entry.key)).collect();
            prop_assert_eq!(&keys, &model.keys);
            prop_assert_eq!(state.registrants.len(), keys.len(), "a host is a registrant once");
            prop_assert_eq!(state.held.map(|held| held.rtype), model.held.as_ref().map(|(rtype, _)| *rtype));
            for host in (1..=4).map(host) {
                prop_assert_eq!(state.is_holder(&host), model.holders().contains(&host));
            }
            match applied {
                Err(_) => prop_assert!(state == before),
                Ok(effects) => for (told, kind) in effects.notices {
                    prop_assert!(told != asking, "whoever acts is not told of it");
                    prop_assert_eq!(kind == RELEASED, state.is_registrant(&told));
                },
            }
        }
    }
}
