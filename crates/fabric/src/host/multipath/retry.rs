//! What is sent again, when, and where.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::Duration;

use device::{Error, Lba};
use engine::time::{self, Instant};
use engine::{Buf, View};

use super::super::error::{CommandError, Fate};
use super::super::io::{Change, Swap};
use super::path::Chosen;
use super::{Inner, PathPolicy, PathState};

/// How often a command without a path looks for one, beside being told of changes: a path that rests wakes nobody. Guessed.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// The pause before what was interrupted is sent again over the same path. Guessed.
const INTERRUPTED_PAUSE: Duration = Duration::from_millis(10);

/// How often what failed by a fault is sent again. Guessed: a controller that fails over is done by then, and Linux tries five
/// times.
const FAULTS_MAX: u32 = 5;
/// The pause before that. Guessed: as long as a tired path comes after the others.
const FAULT_PAUSE: Duration = Duration::from_millis(100);

/// The time a command has, and what became of it so far.
pub(super) struct Clock {
    deadline: Instant,
    faults: Cell<u32>,
    last: RefCell<Option<Error>>,
}

impl Clock {
    /// Runs `future` for as long as there is time.
    pub(super) async fn within<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        time::timeout(self.deadline.duration_since(time::now()), future).await.ok()
    }

    fn is_over(&self) -> bool {
        time::now() >= self.deadline
    }

    /// What a failure means for the next step: what fails again and again has been answered.
    pub(super) fn judge(&self, failed: &CommandError) -> Fate {
        *self.last.borrow_mut() = Some(failed.error.clone());
        if failed.fate != Fate::Faulty {
            return failed.fate;
        }
        self.faults.set(self.faults.get() + 1);
        if self.faults.get() > FAULTS_MAX { Fate::Answered } else { Fate::Faulty }
    }

    /// For errors at the deadline: what came last.
    fn last(&self) -> String {
        self.last.borrow().as_ref().map(|error| format!(" (before that: {error})")).unwrap_or_default()
    }
}

/// The pause before what ended so is sent again.
async fn pause_after(fate: Fate) {
    match fate {
        Fate::Interrupted => time::sleep(INTERRUPTED_PAUSE).await,
        Fate::Faulty => time::sleep(FAULT_PAUSE).await,
        _ => {}
    }
}

impl Inner {
    pub(super) fn clock(&self) -> Clock {
        Clock { deadline: time::now() + self.deadline, faults: Cell::new(0), last: RefCell::default() }
    }

    /// Why no path was found in time; nothing of the command is under way.
    fn no_path(&self, clock: &Clock) -> Error {
        let mut reason = clock.last();
        if reason.is_empty() {
            let why = |path: PathState| match (path.ana, path.last_error) {
                (Some(state), _) => Some(format!(" ({}: {state})", path.address)),
                (None, error) => Some(format!(" ({})", error?)),
            };
            reason = self.paths.iter().filter_map(|path| why(path.state())).collect();
        }
        Error::NotConnected(format!("{}: no usable path within {:?}{reason}", self.name, self.deadline))
    }

    /// Other changes of the same blocks did not come to their end in time; this one was not sent.
    pub(super) fn held_back(&self) -> Error {
        let why = "an earlier change of these blocks may still take effect";
        Error::NotConnected(format!("{}: {why} after {:?}", self.name, self.deadline))
    }

    /// The first copy's outcome is unknown, and the second one was refused.
    fn refused_again(&self, error: &Error) -> Error {
        Error::Disconnected(format!("{} (sent again, it was answered: {error})", self.name))
    }

    pub(super) fn in_doubt(&self, clock: &Clock) -> Error {
        Error::Disconnected(format!("{}{}", self.name, clock.last()))
    }

    /// The best path there is now.
    fn best(&self) -> Option<Chosen<'_>> {
        let (count, turn) = (self.paths.len(), self.turn.get());
        let by_turn = (0..count).map(|step| (turn + step) % count);
        let ranked = by_turn.filter_map(|index| Some((self.paths[index].rank()?, index)));
        let best = match self.policy {
            PathPolicy::RoundRobin => ranked.min_by_key(|&(rank, _)| rank),
            PathPolicy::LeastQueued => ranked.min_by_key(|&(rank, index)| (rank, self.paths[index].under_way())),
        };
        let (_, index) = best?;
        self.turn.set((index + 1) % count);
        self.paths[index].choose()
    }

    pub(super) async fn path(&self, clock: &Clock) -> Result<Chosen<'_>, Error> {
        loop {
            // What is sent at the deadline could only be given up.
            if clock.is_over() {
                return Err(self.no_path(clock));
            }
            let changed = self.changed.notified();
            if let Some(chosen) = self.best() {
                return Ok(chosen);
            }
            // Either way it looks again.
            let _ = clock.within(time::timeout(LOOK_INTERVAL, changed)).await;
        }
    }

    /// Sees to what harms nobody when it is done twice: it is sent again whatever became of it.
    pub(super) async fn harmless<T>(
        &self,
        mut send: impl AsyncFnMut(&Chosen<'_>) -> (Result<(), CommandError>, T),
    ) -> (Result<(), Error>, Option<T>) {
        let clock = self.clock();
        let mut last = None;
        loop {
            let chosen = match self.path(&clock).await {
                Ok(chosen) => chosen,
                Err(error) => return (Err(error), last),
            };
            let Some((result, value)) = clock.within(send(&chosen)).await else {
                return (Err(self.in_doubt(&clock)), last);
            };
            let Err(failed) = result else { return (Ok(()), Some(value)) };
            let fate = clock.judge(&failed);
            if fate == Fate::Answered || clock.is_over() {
                return (Err(failed.error), Some(value));
            }
            last = Some(value);
            chosen.note(fate);
            pause_after(fate).await;
        }
    }

    pub(super) async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        let bytes = buf.len();
        let mut next = Some(buf);
        let read = async |chosen: &Chosen<'_>| {
            let buf = next.take().unwrap_or_else(|| Buf::with_len(bytes));
            let (result, buf) = chosen.io().read(lba, buf).await;
            if result.is_ok() {
                return (result, Some(buf));
            }
            next = Some(buf);
            (result, None)
        };
        let (result, value) = self.harmless(read).await;
        let buf = value.flatten().or(next).unwrap_or_else(|| Buf::with_len(bytes));
        (result, buf)
    }

    pub(super) async fn compare(&self, lba: Lba, expected: View) -> Result<(), Error> {
        self.harmless(async |chosen: &Chosen<'_>| (chosen.io().compare(lba, expected.clone()).await, ())).await.0
    }

    pub(super) async fn verify(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        self.harmless(async |chosen: &Chosen<'_>| (chosen.io().verify(lba, blocks).await, ())).await.0
    }

    pub(super) async fn flush(&self) -> Result<(), Error> {
        self.harmless(async |chosen: &Chosen<'_>| (chosen.io().flush().await, ())).await.0
    }

    /// See the invariants at the top of the parent.
    pub(super) async fn change(&self, change: Change) -> Result<(), Error> {
        let clock = self.clock();
        let entered = self.doubts.enter(self.blocks_of(&change));
        let mut under_way = clock.within(entered).await.ok_or_else(|| self.held_back())?;
        // An earlier copy may have been executed, wholly or in part: no later one's error may deny that.
        let mut touched = false;
        loop {
            let chosen =
                self.path(&clock).await.map_err(|error| if touched { self.in_doubt(&clock) } else { error })?;
            under_way.carried_by(chosen.association());
            // Dropped at the deadline, it holds others back until it has ended.
            let sent = clock.within(chosen.io().change(&change)).await.ok_or_else(|| self.in_doubt(&clock))?;
            let Err(failed) = sent else {
                under_way.answered();
                return Ok(());
            };
            let fate = clock.judge(&failed);
            match fate {
                Fate::Answered => {
                    under_way.answered();
                    if touched && self.is_written(&change, &failed.error).await {
                        return Ok(());
                    }
                    return Err(if touched { self.refused_again(&failed.error) } else { failed.error });
                }
                Fate::Ana(_) | Fate::NotExecuted => under_way.answered(),
                // What has ended leaves nothing behind that could land later.
                Fate::Interrupted | Fate::Faulty => {
                    under_way.answered();
                    pause_after(fate).await;
                }
                Fate::InDoubt => {
                    clock.within(under_way.lost()).await.ok_or_else(|| self.in_doubt(&clock))?;
                    under_way.answered();
                }
            }
            chosen.note(fate);
            touched |= fate == Fate::Faulty || failed.error.outcome_unknown();
        }
    }

    /// A fused pair: sent until it was surely executed or refused, or its outcome has to be read back.
    pub(super) async fn swap(&self, swap: &Swap) -> Result<(), Error> {
        let clock = self.clock();
        let entered = self.doubts.enter(self.blocks(swap.lba, swap.new.len()));
        let mut under_way = clock.within(entered).await.ok_or_else(|| self.held_back())?;
        loop {
            let chosen = self.path(&clock).await?;
            under_way.carried_by(chosen.association());
            let sent = clock.within(chosen.io().swap(swap)).await.ok_or_else(|| self.in_doubt(&clock))?;
            let Err(failed) = sent else {
                under_way.answered();
                return Ok(());
            };
            let fate = clock.judge(&failed);
            match fate {
                Fate::Answered => {
                    under_way.answered();
                    return Err(failed.error);
                }
                // It was certainly not executed, and never will be: this is no second time.
                Fate::Ana(_) | Fate::NotExecuted => under_way.answered(),
                Fate::Interrupted | Fate::Faulty => {
                    under_way.answered();
                    return self.read_back(swap, &clock).await;
                }
                Fate::InDoubt => {
                    clock.within(under_way.lost()).await.ok_or_else(|| self.in_doubt(&clock))?;
                    under_way.answered();
                    return self.read_back(swap, &clock).await;
                }
            }
            chosen.note(fate);
        }
    }

    /// What became of a pair that has ended: see [`super::Multipath::compare_and_write`].
    async fn read_back(&self, swap: &Swap, clock: &Clock) -> Result<(), Error> {
        let read = self.read(swap.lba, Buf::with_len(swap.new.len()));
        let Some((Ok(()), found)) = clock.within(read).await else { return Err(self.in_doubt(clock)) };
        if *found == *swap.new {
            return Ok(());
        }
        if *found == *swap.expected {
            let why = "the path of a fused pair was lost before the pair was executed; it may be tried again";
            return Err(Error::NotConnected(format!("{}: {why}", self.name)));
        }
        Err(self.in_doubt(clock))
    }

    pub(super) fn blocks(&self, lba: Lba, bytes: usize) -> Range<u64> {
        let unit = self.paths[0].remote.attached.info.borrow().block_size as usize;
        lba.0..lba.0.saturating_add(bytes.div_ceil(unit) as u64)
    }

    fn blocks_of(&self, change: &Change) -> Range<u64> {
        match change {
            Change::Write { lba, data, .. } => self.blocks(*lba, data.len()),
            Change::WriteZeroes { lba, blocks, .. }
            | Change::Deallocate { lba, blocks }
            | Change::WriteUncorrectable { lba, blocks } => lba.0..lba.0.saturating_add(*blocks),
            Change::Zone { zone, .. } => self.blocks_of_zone(*zone),
        }
    }
}
