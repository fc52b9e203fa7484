//! Changes of which nobody learns the outcome, by several at once: each is made once.

use std::cell::RefCell;
use std::rc::Rc;

use engine::rng::SplitMix;
use engine::sim::{SimConfig, World};
use engine::task::LocalFuture;
use kv::types::{Ballot, OpId, Timestamp};

use super::*;

/// One value, and outcomes by a seed: told or not, at once or late.
#[derive(Default)]
struct One {
    state: RefCell<(Option<Vec<u8>>, u64)>,
    rng: RefCell<Option<SplitMix>>,
}

fn version(number: u64) -> Version {
    let op = OpId { host: 1, sequence: number };
    Version::new(Timestamp { counter: number, op, ballot: Ballot::NONE }, &[])
}

impl One {
    fn apply(&self, expected: Option<Version>, new: Option<Vec<u8>>) -> Swapped {
        let mut state = self.state.borrow_mut();
        if state.0.as_ref().map(|_| version(state.1)) != expected {
            return Swapped::Changed;
        }
        *state = (new, state.1 + 1);
        Swapped::Done(version(state.1))
    }

    fn below(&self, end: u64) -> u64 {
        self.rng.borrow_mut().get_or_insert(SplitMix(0)).below(end)
    }
}

/// Shared by all who change it.
struct Shared(Rc<One>);

impl Meta for Shared {
    fn get<'a>(&'a self, _: &'a [u8]) -> LocalFuture<'a, Result<Option<Seen>, Error>> {
        Box::pin(async move {
            time::sleep(Duration::from_nanos(self.0.below(1_000_000))).await;
            let state = self.0.state.borrow();
            Ok(state.0.clone().map(|value| Seen { value, version: version(state.1) }))
        })
    }

    fn swap<'a>(
        &'a self,
        _: &'a [u8],
        expected: Option<Version>,
        new: Option<Vec<u8>>,
    ) -> LocalFuture<'a, Result<Swapped, Error>> {
        Box::pin(async move {
            time::sleep(Duration::from_nanos(self.0.below(1_000_000))).await;
            match self.0.below(6) {
                0 => drop(self.0.apply(expected, new)),
                1 => {}
                2 => {
                    let one = Rc::clone(&self.0);
                    task::spawn(async move {
                        time::sleep(Duration::from_nanos(one.below(5_000_000))).await;
                        one.apply(expected, new);
                    })
                    .detach();
                }
                _ => return Ok(self.0.apply(expected, new)),
            }
            Ok(Swapped::Unknown)
        })
    }

    fn list<'a>(&'a self, _: &'a [u8], _: u64, _: usize) -> LocalFuture<'a, Result<(Vec<Vec<u8>>, u64), Error>> {
        Box::pin(async { Ok((Vec::new(), 0)) })
    }
}

/// Each adds a number of its own to a list: in the end each that was told it is done is there once, and so is none twice.
async fn append_all(seed: u64, writers: usize) -> usize {
    let one = Rc::new(One::default());
    *one.rng.borrow_mut() = Some(SplitMix(seed));
    let mut tasks = Vec::new();
    for writer in 0..writers {
        let shared = Shared(Rc::clone(&one));
        tasks.push(task::spawn(async move {
            let mut outcomes = Vec::new();
            for step in 0..20 {
                let own = (writer * 50 + step) as u8;
                let changed = change(&shared, b"key", |body| {
                    let mut list = body.unwrap_or_default().to_vec();
                    let at = list.len();
                    list.push(own);
                    Ok(Next::Put(list, at))
                });
                outcomes.push((own, changed.await));
            }
            outcomes
        }));
    }
    let mut outcomes = Vec::new();
    for task in tasks {
        outcomes.extend(task.await);
    }
    time::sleep(Duration::from_secs(1)).await;
    let body = load(&Shared(one), b"key").await.unwrap().unwrap().body;
    for (own, outcome) in &outcomes {
        let count = body.iter().filter(|other| *other == own).count();
        match outcome {
            // What is told is of the try that was made: the list grows at its end alone.
            Ok(at) => assert_eq!((count, body[*at]), (1, *own), "seed {seed}: {own} at {at} in {body:?}"),
            Err(failed) => assert!(count <= usize::from(failed.may_be_done), "seed {seed}: {own}, {failed:?}"),
        }
    }
    outcomes.iter().filter(|(_, outcome)| outcome.is_err()).count()
}

#[test]
fn a_change_is_made_once_whatever_becomes_of_the_answers() {
    let (mut unknown, mut all) = (0, 0);
    for seed in 0..60 {
        let world = World::new(seed, SimConfig::default());
        let writers = [1, 2, 5][seed as usize % 3];
        all += 20 * writers;
        unknown += world.run_until(append_all(seed, writers)).expect("the writers come to their end");
    }
    assert!(unknown * 10 < all, "of {all} changes nobody knows of {unknown}");
}

/// One value, changes of which have the outcomes that are said; something happens meanwhile.
struct Told {
    one: Rc<One>,
    /// Whether the first change takes effect; of it nobody learns.
    takes_effect: bool,
    /// What the value is then made, by another.
    then: Option<Vec<u8>>,
    swaps: std::cell::Cell<usize>,
}

impl Meta for Told {
    fn get<'a>(&'a self, _: &'a [u8]) -> LocalFuture<'a, Result<Option<Seen>, Error>> {
        let state = self.one.state.borrow();
        let seen = state.0.clone().map(|value| Seen { value, version: version(state.1) });
        Box::pin(async { Ok(seen) })
    }

    fn swap<'a>(
        &'a self,
        _: &'a [u8],
        expected: Option<Version>,
        new: Option<Vec<u8>>,
    ) -> LocalFuture<'a, Result<Swapped, Error>> {
        Box::pin(async move {
            self.swaps.set(self.swaps.get() + 1);
            if self.swaps.get() > 1 {
                return Ok(self.one.apply(expected, new));
            }
            if self.takes_effect {
                self.one.apply(expected, new);
            }
            let mut state = self.one.state.borrow_mut();
            *state = (self.then.clone(), state.1 + 1);
            Ok(Swapped::Unknown)
        })
    }

    fn list<'a>(&'a self, _: &'a [u8], _: u64, _: usize) -> LocalFuture<'a, Result<(Vec<Vec<u8>>, u64), Error>> {
        Box::pin(async { Ok((Vec::new(), 0)) })
    }
}

fn told(value: Option<Vec<u8>>, takes_effect: bool, then: Option<Vec<u8>>) -> Told {
    let one = One { state: RefCell::new((value, 1)), ..One::default() };
    Told { one: Rc::new(one), takes_effect, then, swaps: std::cell::Cell::new(0) }
}

/// Absence has no version, and comes again: whoever finds nothing knows neither that it was nothing all the time, nor who has
/// removed what was there.
#[test]
fn nothing_tells_nobody_whose_doing_it_is() {
    let world = World::new(1, SimConfig::default());
    let tested = world.run_until(async {
        for takes_effect in [false, true] {
            let there = told(Some(sealed(None, 7, b"there")), takes_effect, None);
            let removed = change(&there, b"key", |body| {
                Ok(if body.is_some() { Next::Remove("mine") } else { Next::Keep("another's") })
            });
            let failed = removed.await.expect_err("it may be another's removal");
            assert!(failed.may_be_done);
            let hole = told(None, takes_effect, None);
            let put = change(&hole, b"key", |_| Ok(Next::Put(b"rows".to_vec(), ())));
            let failed = put.await.expect_err("it may have been there, and been taken out");
            assert!(failed.may_be_done);
            assert_eq!(hole.swaps.get(), 1, "it is not sent again");
        }
    });
    tested.expect("it comes to its end");
}
