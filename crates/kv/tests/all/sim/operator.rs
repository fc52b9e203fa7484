//! Operators: they change the pool while it is in use, die in the middle, and others go on.
//!
//! One of them begins changes, as an operator would who knows what he is doing: never before the last one is done, and, when
//! he begins anew after a crash, not before what he may have sent has landed (admitting formats a namespace). Everybody
//! carries out what is under way.

use std::time::Duration;

use engine::time;
use kv::store::{ForgetOptions, RepairOptions};
use pool::rebalance::carry_out;
use pool::{AgreeError, Map, Member, MemberId, Request, State};

use crate::sim::cluster::{Directory, Host};
use crate::sim::scenario::{Rng, Scenario};

/// When nothing is under way any more that an earlier life has sent.
const LANDED: Duration = Duration::from_secs(15);
/// Pause before what failed is tried again.
pub const RETRY_PAUSE: Duration = Duration::from_millis(300);
/// Leases of operators: the first phase of a change waits for it, so that with the short one all hosts meet seals.
const LEASES: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(3_000)];
/// Changes that are thought of before the operator pauses.
const DRAWS_MAX: usize = 8;

/// An operator at work.
pub struct Operator {
    pub(super) host: Host,
    pub(super) directory: Directory,
    scenario: Scenario,
    pub(super) rng: Rng,
}

impl Operator {
    /// Operator number `number` in its `life`-th life.
    pub fn new(directory: &Directory, scenario: &Scenario, number: usize, life: u32) -> Operator {
        let mut rng = Rng::new(scenario.seed, 500 + number as u64 * 16 + u64::from(life));
        let host = directory.connect(LEASES[rng.next() as usize % LEASES.len()]);
        Operator { host, directory: directory.clone(), scenario: scenario.clone(), rng }
    }

    /// Changes the pool (if it `begins` changes) and carries changes out, until it is dropped.
    pub async fn work(mut self, begins: bool, life: u32) {
        if begins && life > 0 {
            // Others go on meanwhile.
            time::sleep(LANDED).await;
        }
        loop {
            let pause = self.rng.millis(1, 800);
            time::sleep(pause).await;
            if begins && self.mend().await != Ok(false) {
                continue;
            }
            match self.host.voters.settled().await {
                Ok(map) if map.state != State::Stable => {
                    // Who fails tries again, or another one does.
                    let _tried_again = self.carry_out(&map).await;
                }
                Ok(_) if begins && self.rng.one_in(4) => {
                    let options = ForgetOptions { at_once: self.rng.one_in(2), ..ForgetOptions::default() };
                    let _hindered_by_any_fault = self.host.store.forget(&options).await;
                }
                Ok(map) if begins => {
                    let _refused_or_failed = self.begin(&map).await;
                }
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Begins some change.
    async fn begin(&mut self, map: &Map) -> Result<(), String> {
        let mut request = None;
        for _ in 0..DRAWS_MAX {
            request = self.draw(map).await?;
            if request.is_some() {
                break;
            }
        }
        let Some(request) = request else { return Ok(()) };
        let id = self.rng.next();
        let voters = self.host.voters.clone();
        let begun = async {
            if self.rng.one_in(2) {
                voters.proposer().roll_call(map).await?;
            }
            voters.proposer().agree(map, |map| Ok(map.begin(&request, id)?)).await
        };
        let map = begun.await.map_err(|error: AgreeError| error.to_string())?;
        voters.learn(&map);
        Ok(())
    }

    /// A change that the map allows; `None`: this one does not.
    async fn draw(&mut self, map: &Map) -> Result<Option<Request>, String> {
        let member = map.members[self.rng.next() as usize % map.members.len()].clone();
        let request = match self.rng.within(0, 5) {
            0 | 1 => match self.admit(map).await? {
                Some(new) => Request::Add(vec![new]),
                None => return Ok(None),
            },
            2 => match self.admit(map).await? {
                Some(new) => Request::Replace { old: member.id, new: Box::new(new) },
                None => return Ok(None),
            },
            3 => Request::Remove(vec![member.id]),
            4 => Request::Drain(vec![member.id]),
            _ => Request::SetWeight(vec![(member.id, [50, 100, 200][self.rng.next() as usize % 3])]),
        };
        // What the map does not allow is refused before anything is written.
        Ok(map.begin(&request, 1).is_ok().then_some(request))
    }

    /// Makes a storage node that is no member ready to become one.
    pub(super) async fn admit(&mut self, map: &Map) -> Result<Option<Member>, String> {
        let free = |index: &usize| {
            let id = MemberId(self.directory.nguid(*index));
            map.index_of(id).is_none()
        };
        let spares: Vec<usize> = (0..self.scenario.nodes()).filter(free).collect();
        if spares.is_empty() {
            return Ok(None);
        }
        let index = spares[self.rng.next() as usize % spares.len()];
        let new = self.directory.new_member(index, self.host.voters.namespaces()[index].clone());
        let member = pool::candidate(&new, map, None, true).await.map_err(|error| error.to_string())?;
        let voters = &self.host.voters;
        let settled = async || {
            let settled = voters.settled().await;
            settled.map_err(|error| pool::Error::Unfit { member: new.name(), reason: error.to_string() })
        };
        pool::admit(&new, map, &member, true, settled).await.map_err(|error| error.to_string())?;
        Ok(Some(member))
    }

    /// Carries a change that is under way out; where a damaged page stops it, that is repaired.
    pub(super) async fn carry_out(&mut self, map: &Map) -> Result<Map, String> {
        let voters = self.host.voters.clone();
        match carry_out(&voters.proposer(), &self.host.store, map.clone(), None, |_| {}).await {
            Ok(map) => {
                voters.learn(&map);
                Ok(map)
            }
            Err(error) => {
                time::sleep(RETRY_PAUSE).await;
                let _as_far_as_it_goes = self.host.store.repair(&RepairOptions::default()).await;
                Err(error.to_string())
            }
        }
    }

    /// With all nodes up and no faults any more: the change under way comes to its end.
    pub async fn finish(mut self, tries: usize) -> Map {
        let mut reason = String::new();
        for _ in 0..tries {
            match self.host.voters.settled().await {
                Ok(map) if map.state == State::Stable => return map,
                Ok(map) => reason = self.carry_out(&map).await.err().unwrap_or_default(),
                Err(error) => reason = error.to_string(),
            }
            time::sleep(RETRY_PAUSE).await;
        }
        panic!("the pool's change does not come to its end though all is well again: {reason}");
    }
}
