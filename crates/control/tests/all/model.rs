//! Random transactions, against the plainest catalogue there is: a map for each revision.

use std::collections::BTreeMap;

use control::catalogue::{
    Catalogue, Change, Changed, Commit, Condition, Entry, Outcome, Prefix, Range, Revision, Transaction,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::cluster::Cluster;
use crate::words::*;
use crate::{embedded, etcd};

/// Keys that lie close, so that transactions meet.
const NAMES: [&str; 6] = ["a", "a/", "a/b", "a/c", "b", "b\u{7f}"];

/// A revision that no test comes to: an etcd's count goes on from case to case, and a small one is sooner or later some key's.
const NEVER: Revision = Revision(1 << 40);

#[derive(Clone, Debug)]
enum Check {
    Absent,
    /// As many changes of the key ago as the number says; 0 holds.
    Unchanged(usize),
    Holds(u8),
}

#[derive(Clone, Debug)]
struct Step {
    checks: Vec<(usize, Check)>,
    /// A value to be written, or a delete.
    changes: BTreeMap<usize, Option<u8>>,
}

fn step() -> impl Strategy<Value = Step> {
    let check =
        prop_oneof![Just(Check::Absent), (0..2usize).prop_map(Check::Unchanged), (0..3u8).prop_map(Check::Holds)];
    let checks = vec((0..NAMES.len(), check), 0..3);
    let changes = proptest::collection::btree_map(0..NAMES.len(), proptest::option::of(0..3u8), 0..4);
    (checks, changes).prop_map(|(checks, changes)| Step { checks, changes })
}

/// The model: every state there was, by revision, and every change.
#[derive(Default)]
struct Model {
    now: BTreeMap<String, Entry>,
    /// Of each key: the revisions that changed it.
    modified: BTreeMap<String, Vec<Revision>>,
    states: BTreeMap<Revision, Vec<Entry>>,
    commits: Vec<Commit>,
}

impl Model {
    fn condition(&self, name: &str, check: &Check) -> Condition {
        match check {
            Check::Absent => Condition::absent(key(name)),
            Check::Holds(text) => Condition::holds(key(name), value([*text])),
            Check::Unchanged(ago) => {
                let all = self.modified.get(name).map_or(&[][..], Vec::as_slice);
                let revision = all.len().checked_sub(1 + ago).map_or(NEVER, |at| all[at]);
                Condition::modified(key(name), revision)
            }
        }
    }

    fn holds(&self, name: &str, check: &Check) -> bool {
        let entry = self.now.get(name);
        match check {
            Check::Absent => entry.is_none(),
            Check::Holds(text) => entry.is_some_and(|entry| entry.value == value([*text])),
            Check::Unchanged(0) => entry.is_some(),
            Check::Unchanged(_) => false,
        }
    }

    fn apply(&mut self, step: &Step, revision: Revision) {
        let mut changes = Vec::new();
        for (index, text) in &step.changes {
            let name = NAMES[*index];
            if let Some(text) = text {
                let entry = Entry { key: key(name), value: value([*text]), modified: revision, lease: None };
                self.now.insert(name.to_owned(), entry.clone());
                changes.push(Changed::Put(entry));
            } else if self.now.remove(name).is_some() {
                changes.push(Changed::Deleted(key(name)));
            } else {
                continue;
            }
            self.modified.entry(name.to_owned()).or_default().push(revision);
        }
        if !changes.is_empty() {
            changes.sort_by(|one, other| one.key().cmp(other.key()));
            self.commits.push(Commit { revision, changes });
        }
        self.states.insert(revision, self.now.values().cloned().collect());
    }

    fn changes_anything(&self, step: &Step) -> bool {
        step.changes.iter().any(|(index, text)| text.is_some() || self.now.contains_key(NAMES[*index]))
    }
}

fn transaction(model: &Model, step: &Step) -> Transaction {
    let conditions = step.checks.iter().map(|(index, check)| model.condition(NAMES[*index], check)).collect();
    let change = |(index, text): (&usize, &Option<u8>)| match text {
        Some(text) => Change::put(key(NAMES[*index]), value([*text])),
        None => delete(NAMES[*index]),
    };
    Transaction::new(conditions, step.changes.iter().map(change).collect()).expect("within the limits")
}

/// Runs the steps on both, and compares every answer, every past state and the whole history.
async fn compare(catalogue: &dyn Catalogue, steps: &[Step]) {
    let start = present(catalogue).await;
    let mut model = Model::default();
    model.states.insert(start, Vec::new());
    let mut last = start;
    let mut watch = catalogue.watch(Prefix::all(), start);
    for step in steps {
        let outcome = catalogue.commit(transaction(&model, step)).await.expect("an answer");
        let holds = step.checks.iter().all(|(index, check)| model.holds(NAMES[*index], check));
        match outcome {
            Outcome::Committed(revision) => {
                assert!(holds, "{step:?} was committed");
                assert_eq!(revision > last, model.changes_anything(step), "{step:?}: {revision} after {last}");
                model.apply(step, revision);
                last = revision;
            }
            Outcome::Missed(missed) => {
                assert!(!holds, "{step:?} missed: {missed:?}");
                assert_eq!(missed.revision, last);
                let seen: Vec<_> = step.checks.iter().map(|(index, _)| model.now.get(NAMES[*index]).cloned()).collect();
                assert_eq!(missed.seen, seen);
            }
        }
    }
    for (revision, state) in &model.states {
        let range = Range::of(Prefix::all()).at(*revision).entries(2).unwrap();
        assert_eq!(read_all(catalogue, range).await.unwrap(), (*revision, state.clone()));
    }
    for name in ["a", "a/", "b"] {
        let expected: Vec<Entry> =
            model.now.values().filter(|entry| prefix(name).covers(entry.key.as_bytes())).cloned().collect();
        assert_eq!(read_all(catalogue, Range::of(prefix(name))).await.unwrap().1, expected);
        assert_eq!(get(catalogue, name).await, model.now.get(name).cloned());
    }
    for commit in &model.commits {
        assert_eq!(next(&mut watch).await, *commit);
    }
    if let Some(middle) = model.commits.get(model.commits.len() / 2) {
        let mut watch = catalogue.watch(prefix("a/"), middle.revision);
        for commit in &model.commits[model.commits.len() / 2 + 1..] {
            let changes: Vec<_> = commit
                .changes
                .iter()
                .filter(|changed| prefix("a/").covers(changed.key().as_bytes()))
                .cloned()
                .collect();
            if !changes.is_empty() {
                assert_eq!(next(&mut watch).await, Commit { revision: commit.revision, changes });
            }
        }
    }
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() })
}

#[test]
fn a_file_is_as_the_model() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let run = |steps: Vec<Step>| {
        runtime.block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let catalogue = embedded::open(folder.path()).await;
            compare(&catalogue, &steps).await;
        });
        Ok(())
    };
    runner(24).run(&vec(step(), 1..40), run).unwrap();
}

#[test]
fn etcd_is_as_the_model() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let cluster = runtime.block_on(Cluster::start());
    let cases = std::cell::Cell::new(0);
    let run = |steps: Vec<Step>| {
        cases.set(cases.get() + 1);
        runtime.block_on(async {
            let catalogue = etcd::open(cluster.endpoints(), &format!("case {}/", cases.get())).await;
            compare(&catalogue, &steps).await;
        });
        Ok(())
    };
    runner(8).run(&vec(step(), 1..30), run).unwrap();
}
