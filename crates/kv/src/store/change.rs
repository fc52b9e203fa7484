//! Carrying a change of the pool's members through, piece by piece: the store's part in `pool::rebalance`.
//!
//! ```text
//!  stable e ──► joint e+1 ─── seal, migrate ───► unclean e+2 ─── clean ───► stable e+2
//! ```
//!
//! Whoever finds a change half done goes on with it; two that do so at once are harmless: seals, copies and drops are all
//! idempotent, and the map is agreed on by its voters. A piece is a stretch of the hash space; its cursor is where the next
//! one begins. The argument why every operation stays linearizable is in `docs/kv.md`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::task::LocalFuture;
use engine::time;
use pool::Map;
use pool::change::{Phase, Side, State};
use pool::rebalance::{Mover, Step};

use super::scan::Seen;
use super::topology::Topology;
use super::{OPERATION_TIME_MAX, Store};

/// Pause before a stretch is tried again on members that did not answer.
pub(super) const STRETCH_PAUSE: Duration = Duration::from_millis(200);
/// How often a stretch is tried before the phase gives up: ten seconds, as long as any operation.
pub(super) const STRETCH_TRIES: usize = 50;

impl Mover for Store {
    /// Sealing is a part of migration here, page by page: what is copied is read from the very image that was sealed. The
    /// first phase only gives hosts that are awake the time of a lease to learn of the joint map, so that they need not
    /// meet a seal in the middle of an operation.
    async fn step(&self, map: &Map, phase: Phase, cursor: u64) -> Result<Step, String> {
        // Boxed: whoever carries changes out would compile all that a step is.
        self.piece(map, phase, cursor).await
    }
}

impl Store {
    fn piece<'a>(&'a self, map: &'a Map, phase: Phase, cursor: u64) -> LocalFuture<'a, Result<Step, String>> {
        Box::pin(async move {
            let inner = &self.inner;
            inner.adopt(map.clone()).await;
            if map.goes_back() {
                return Ok(Step::DONE);
            }
            let topology = inner.topology();
            if topology.map.epoch != map.epoch {
                return Err(format!(
                    "the map of epoch {} is in force already: somebody else is further",
                    topology.map.epoch
                ));
            }
            let (stretch, moved_bytes) = (topology.stretch(cursor), &inner.stats.moved_bytes);
            let before = moved_bytes.load(Ordering::Relaxed);
            let mut unequal = false;
            match (phase, topology.map.state) {
                (Phase::Seal, State::Joint) => {
                    time::sleep(inner.lease()).await;
                    return Ok(Step::DONE);
                }
                (Phase::Migrate, State::Joint) => super::migrate::migrate(inner, &topology, stretch).await?,
                (Phase::Clean, State::Unclean) => {
                    let since = time::now();
                    let seen = super::clean::clean(inner, &topology, stretch).await?;
                    if topology.map.half_may_know(Side::New) {
                        // What was read too far apart is no look.
                        let seen = Some(seen).filter(|_| since.elapsed() <= OPERATION_TIME_MAX);
                        unequal = !super::repair::make_equal(inner, &topology, stretch, seen).await;
                    }
                }
                (phase, state) => return Err(format!("a {state} map has no phase {phase}")),
            }
            let done = stretch.to.map_or(1000, |to| (to as f64 / 2f64.powi(64) * 1000.0) as u16);
            Ok(Step { cursor: stretch.to, done, moved_bytes: moved_bytes.load(Ordering::Relaxed) - before, unequal })
        })
    }
}

impl Topology {
    /// Who has not told all, for people.
    pub(super) fn missing(&self, seen: &Seen) -> String {
        let counts = |member: &usize| !self.map.members[*member].lost && !seen.is_whole(*member);
        let missing = (0..self.members.len()).filter(counts);
        let words = |member: usize| match seen.damaged.iter().find(|page| page.member == member) {
            Some(page) => format!("page {} of member {member}: {}", page.page.0, page.error),
            None => format!("member {member} does not answer"),
        };
        let mut who: Vec<String> = missing.map(words).collect();
        if who.is_empty() {
            let lost = (0..self.members.len()).filter(|member| self.map.members[*member].lost);
            who.extend(lost.map(|member| format!("member {member} was given up as lost")));
        }
        let who = who.join("; ");
        format!("{who}: the change waits until the members are back and damaged pages are repaired")
    }
}

/// What is said when the pool's map is newer than the one a piece began with.
pub(super) const OVERTAKEN: &str = "the pool's map has changed meanwhile: somebody else is further";
