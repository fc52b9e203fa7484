//! Carrying a change of the pool's members through: from the joint map to the final one, and on until that is clean.
//!
//! ```text
//!  stable e ──► joint e+1 ─── migrate ───► unclean e+2 ─── clean ───► stable e+2
//! ```
//!
//! Whoever finds a change half done goes on with it; two that do so at once are harmless: seals, copies and drops are all
//! idempotent, and the map is agreed on by its voters. How far a phase has come is noted in the map from time to time.
//! The argument why every operation stays linearizable is in `docs/kv.md`.

use std::rc::Rc;
use std::time::Duration;

use engine::time;
use pool::change::{Phase, State};

use super::Store;
use super::follow::{LEASE_DEFAULT, LocalFuture};
use super::link::Link;

/// Steps of one change: two phases and their ends, and somebody else may be a step ahead each time. Derived, doubled.
const STEPS_MAX: usize = 16;

/// What the pool's voters are to agree on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A phase of the change has come so far.
    Note {
        /// The phase.
        phase: Phase,
        /// Hashes below this are done.
        cursor: u64,
        /// Thousandths of the phase that are done.
        done: u16,
        /// Bytes of keys and values that were copied since the last note.
        moved_bytes: u64,
    },
    /// Every key is on its new homes: the old placement ends.
    EndJoint,
    /// Nobody holds what is not at home there: the change is over.
    EndUnclean,
}

/// The voters of the pool's map.
pub trait Agreement {
    /// Has them agree on `step` if their map is still of `epoch`; if it is a newer one nothing is to be done.
    fn agree(&self, epoch: u64, step: Step) -> LocalFuture<'_, Result<(), String>>;
}

/// How far a phase has come.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ChangeProgress {
    /// The phase.
    pub phase: Phase,
    /// Its share that is done, 0 to 1.
    pub done: f64,
    /// What was done by this call so far.
    pub report: ChangeReport,
}

/// What was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChangeReport {
    /// Pages that were sealed.
    pub sealed: u64,
    /// Keys that had to be on a member that was new to them.
    pub keys: u64,
    /// Copies stored on members that were new to their key.
    pub copied: u64,
    /// Bytes of keys and values in these.
    pub copied_bytes: u64,
    /// Entries dropped where they were no longer at home.
    pub dropped: u64,
    /// Bytes of pages read.
    pub read_bytes: u64,
}

/// Called with how far a change has come.
pub type ShowChange = Rc<dyn Fn(&ChangeProgress)>;

/// How to carry a change through.
#[derive(Clone)]
pub struct ChangeOptions {
    /// Bytes read and copied a second, over all members; `None`: as fast as it goes.
    pub bytes_per_second: Option<u64>,
    /// Waited before the first page is sealed: within a lease every host that is awake learns of the joint map, and meets no
    /// seal in the middle of an operation.
    pub grace: Duration,
    /// Called after every stretch.
    pub progress: Option<ShowChange>,
}

impl Default for ChangeOptions {
    fn default() -> ChangeOptions {
        ChangeOptions { bytes_per_second: None, grace: LEASE_DEFAULT, progress: None }
    }
}

/// Why a change could not be carried through. All that was done stays done; try again.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChangeError {
    /// The newest map is not to be had, or was not agreed on.
    #[error("the pool's map: {0}")]
    Map(String),
    /// Members, or pages of theirs, that are needed are out of reach.
    #[error(
        "{phase} stopped: {reason}; bring the members back, repair damaged pages, or replace the member, then try again"
    )]
    Members {
        /// The phase.
        phase: Phase,
        /// Who and why.
        reason: String,
    },
    /// The map has changed meanwhile: somebody else is further.
    #[error("the pool's map has changed meanwhile")]
    Overtaken,
}

impl<N: Link> Store<N> {
    /// Finishes the change under way, if there is one: the store must follow its map ([`Store::follow`]).
    pub async fn finish_change(
        &self,
        agreement: &dyn Agreement,
        options: &ChangeOptions,
    ) -> Result<ChangeReport, ChangeError> {
        let mut report = ChangeReport::default();
        for _ in 0..STEPS_MAX {
            self.refresh().await.map_err(ChangeError::Map)?;
            let map = self.map();
            let cursor = map.change.as_ref().map_or(0, |change| change.cursor);
            let (work, end) = match map.state {
                State::Stable => return Ok(report),
                State::Joint => {
                    if cursor == 0 {
                        time::sleep(options.grace).await;
                    }
                    (self.migrate(cursor, agreement, options, &mut report).await, Step::EndJoint)
                }
                State::Unclean => (self.clean(cursor, agreement, options, &mut report).await, Step::EndUnclean),
            };
            match work {
                Ok(()) => agreement.agree(map.epoch, end).await.map_err(ChangeError::Map)?,
                Err(ChangeError::Overtaken) => {}
                Err(error) => return Err(error),
            }
        }
        Err(ChangeError::Map("it does not come to rest: others keep changing it".into()))
    }
}
