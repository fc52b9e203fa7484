//! Carrying a change out: phase after phase, piece after piece, with what is done noted in the map.
//!
//! Who knows what is stored does the pieces ([`Mover`]); this drives it, keeps to the rate, and has the next map agreed on
//! where a phase ends. Anybody may go on from the map alone; two at once do no harm, as every piece may be done twice and
//! progress never goes back.

use std::time::Duration;

use device::Namespace;
use engine::time::{self, Instant};

use crate::agree::{AgreeError, Proposer};
use crate::change::{Change, Epoch, Phase, State};
use crate::map::Map;

/// How often progress is noted in the map. Chosen: what a crash has done twice is small, and the largest map (half a MiB, on
/// seven voters) is not written all the time.
pub const NOTE_INTERVAL: Duration = Duration::from_secs(2);
/// Somebody who carries a change out notes progress within this time. Derived: a few intervals.
pub const SILENCE_MAX: Duration = Duration::from_secs(6);

/// What one piece of a phase did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Where the phase goes on; `None`: it is done.
    pub cursor: Option<u64>,
    /// Thousandths of the phase that are done.
    pub done: u16,
    /// Bytes of entries and values that were stored on members new to them.
    pub moved_bytes: u64,
    /// Homes of some keys could not be made equal: [`Map::unequal`].
    pub unequal: bool,
}

impl Step {
    /// There is nothing to do in the phase, or no more.
    pub const DONE: Step = Step { cursor: None, done: 1000, moved_bytes: 0, unequal: false };
}

/// Who does the pieces: knows what is stored, not how maps are agreed on.
#[allow(async_fn_in_trait)] // local futures by design: one reactor per thread
pub trait Mover {
    /// Does the next piece of the phase that `map` is in, from `cursor` on: a bounded one, some MiB at most. Done twice it must
    /// do no harm. An error in words says what to do; nothing is lost by it. Of a joint map whose change is taken back there
    /// are no pieces.
    async fn step(&self, map: &Map, phase: Phase, cursor: u64) -> Result<Step, String>;
}

/// Why a change was not carried out to its end. It goes on where it stopped.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RebalanceError {
    /// A piece failed.
    #[error("{phase}: {reason}; go on with `yagura pool rebalance` when that is mended")]
    Piece {
        /// In which phase.
        phase: Phase,
        /// What the mover said.
        reason: String,
    },
    /// Members that were given up as lost hold what nobody else can bring back.
    #[error(
        "{phase}: of some keys too few replicas are left without the members that were given up as lost: bring those back first \
         (`yagura pool rebalance --returned`), then go on with `yagura pool rebalance`"
    )]
    Unserved {
        /// In which phase.
        phase: Phase,
    },
    /// The map could not be agreed on.
    #[error(transparent)]
    Agree(#[from] AgreeError),
    /// Somebody else is at it.
    #[error(
        "another command carries the change out already ({phase}, {percent} % done): watch it with `yagura pool status`"
    )]
    Busy {
        /// What it does.
        phase: Phase,
        /// How far it has come.
        percent: u16,
    },
}

/// Carries the change of `map` out and returns the map after it, whoever has brought it to its end. `rate`: bytes per second
/// that are moved at most. `progress` is told of every piece.
pub async fn carry_out<N: Namespace, M: Mover>(
    proposer: &Proposer<'_, N>,
    mover: &M,
    mut map: Map,
    rate: Option<u64>,
    mut progress: impl FnMut(&Change),
) -> Result<Map, RebalanceError> {
    let id = map.change.as_ref().map(|change| change.id);
    while let Some(change) = map.change.clone().filter(|change| Some(change.id) == id) {
        progress(&change);
        map = phase(proposer, mover, &map, change, rate, &mut progress).await?;
    }
    Ok(map)
}

/// One phase, to its end or until somebody else has come further; the map that follows.
async fn phase<N: Namespace, M: Mover>(
    proposer: &Proposer<'_, N>,
    mover: &M,
    map: &Map,
    mut change: Change,
    rate: Option<u64>,
    progress: &mut impl FnMut(&Change),
) -> Result<Map, RebalanceError> {
    let (mut map, epoch) = (map.clone(), map.epoch);
    let (mut noted, mut unnoted) = (time::now(), 0);
    if !map.serves_all() {
        return Err(RebalanceError::Unserved { phase: change.phase });
    }
    while !map.goes_back() {
        let begun = time::now();
        let step = mover.step(&map, change.phase, change.cursor).await;
        let step = match step {
            Ok(step) => step,
            Err(reason) => return overtaken(proposer, &map, &change, reason).await,
        };
        unnoted += step.moved_bytes;
        change.moved_bytes += step.moved_bytes;
        change.unequal |= step.unequal;
        let Some(cursor) = step.cursor else {
            return Ok(proposer.agree(&map, |map| Ok(followed(map, epoch, &change, unnoted))).await?);
        };
        (change.cursor, change.done) = (cursor, step.done);
        progress(&change);
        if noted.elapsed() >= NOTE_INTERVAL {
            let note = noting(epoch, &change, unnoted);
            map = proposer.agree(&map, |map| Ok(note(map))).await?;
            (noted, unnoted) = (time::now(), 0);
            match &map.change {
                // Somebody else has come further: on with what is left.
                Some(now)
                    if (map.epoch, now.id, now.phase, now.cursor)
                        != (epoch, change.id, change.phase, change.cursor) =>
                {
                    return Ok(map);
                }
                None => return Ok(map),
                Some(_) => {}
            }
        }
        pause(rate, step.moved_bytes, begun).await;
    }
    // Nothing is moved any more: the old placement alone.
    Ok(proposer.agree(&map, |map| Ok(if map.goes_back() { map.end_joint() } else { map.clone() })).await?)
}

/// A piece has failed. Where somebody else has come further meanwhile, that is why: on with what is left, if anything is.
async fn overtaken<N: Namespace>(
    proposer: &Proposer<'_, N>,
    map: &Map,
    change: &Change,
    reason: String,
) -> Result<Map, RebalanceError> {
    let failed = RebalanceError::Piece { phase: change.phase, reason };
    let Ok(now) = proposer.agree(map, |map| Ok(map.clone())).await else { return Err(failed) };
    let is_same = |other: &Change| (other.id, other.phase) == (change.id, change.phase);
    let goes_on_here = now.epoch == map.epoch && !now.goes_back() && now.change.as_ref().is_some_and(is_same);
    if goes_on_here { Err(failed) } else { Ok(now) }
}

/// Makes of a map the one with progress noted. The note's time is one whenever it is made: by it the note is recognised in a
/// map that a failed ballot left behind, and that somebody has settled since; it must not be counted twice.
fn noting(epoch: Epoch, change: &Change, moved: u64) -> impl Fn(&Map) -> Map {
    let now_ms = time::unix_time().as_millis() as u64;
    move |map| map.note(epoch, change, moved, now_ms)
}

/// The map after the phase of `change`, which was done under a map of `epoch`, if that is still where the map is.
fn followed(map: &Map, epoch: Epoch, change: &Change, moved: u64) -> Map {
    let is_there = |now: &Change| (map.epoch, now.id, now.phase) == (epoch, change.id, change.phase);
    if !map.change.as_ref().is_some_and(is_there) {
        return map.clone();
    }
    let mut next = match change.phase {
        Phase::Seal => {
            let migrates = Change { phase: Phase::Migrate, cursor: 0, done: 0, ..change.clone() };
            map.note(epoch, &migrates, 0, time::unix_time().as_millis() as u64)
        }
        Phase::Migrate => map.end_joint(),
        Phase::Clean => Map { unequal: map.unequal | change.unequal, ..map.clone() }.end_unclean(),
    };
    if let Some(now) = &mut next.change {
        now.moved_bytes += moved;
    }
    next
}

/// Waits until moving so many bytes has taken as long as the rate says (0: as fast as it goes). No `engine::pace`: that has turns
/// of a size that is known before, where a piece's is known behind it.
async fn pause(rate: Option<u64>, bytes: u64, begun: Instant) {
    let Some(rate) = rate.filter(|&rate| rate > 0 && bytes > 0) else { return };
    let due = Duration::from_secs_f64(bytes as f64 / rate as f64);
    time::sleep(due.saturating_sub(begun.elapsed())).await;
}

/// Refuses if somebody carries the change of `map` out: it is watched for [`SILENCE_MAX`].
pub async fn is_free<N: Namespace>(proposer: &Proposer<'_, N>, map: &Map) -> Result<Map, RebalanceError> {
    let seen = proposer.agree(map, |map| Ok(map.clone())).await?;
    if seen.state == State::Stable {
        return Ok(seen);
    }
    time::sleep(SILENCE_MAX).await;
    let now = proposer.agree(&seen, |map| Ok(map.clone())).await?;
    match &now.change {
        Some(change) if now.version() != seen.version() => {
            Err(RebalanceError::Busy { phase: change.phase, percent: change.done / 10 })
        }
        _ => Ok(now),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use engine::sim::{SimConfig, World};

    use super::*;
    use crate::plan::Request;
    use crate::testing::{Plain, plain_pool};

    /// Twenty pieces a phase; fails when told to, and keeps a list of what it did.
    struct Fake {
        fail_at: Option<usize>,
        done: RefCell<Vec<(Phase, u64)>>,
        time: Duration,
    }

    impl Fake {
        fn new(fail_at: Option<usize>, time: Duration) -> Fake {
            Fake { fail_at, done: RefCell::default(), time }
        }
    }

    impl Mover for Fake {
        async fn step(&self, map: &Map, phase: Phase, cursor: u64) -> Result<Step, String> {
            assert_eq!(map.state == State::Unclean, phase == Phase::Clean);
            let fails = self.fail_at == Some(self.done.borrow().len());
            time::sleep(self.time).await;
            if fails {
                return Err("a member is down".into());
            }
            self.done.borrow_mut().push((phase, cursor));
            let next = cursor + 1;
            let moved_bytes = if phase == Phase::Migrate { 1000 } else { 0 };
            let unequal = phase == Phase::Clean && cursor == 3;
            Ok(Step { cursor: (next < 20).then_some(next), done: (next * 50) as u16, moved_bytes, unequal })
        }
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        World::new(1, SimConfig::default()).run_until(future).expect("the test's tasks are never all asleep for good")
    }

    async fn begun(namespaces: &[Plain]) -> Map {
        let map = plain_pool(namespaces, 1).await;
        let request = Request::Drain(vec![map.members[0].id]);
        let proposer = Proposer::new(namespaces);
        proposer.agree(&map, |map| map.begin(&request, 5).map_err(AgreeError::from)).await.unwrap()
    }

    fn three() -> Vec<Plain> {
        (1..=3).map(|id| Plain::new(id, 2 << 20, 4096)).collect()
    }

    #[test]
    fn a_change_stopped_at_any_piece_goes_on_where_it_was_noted() {
        for fail_at in 0..60 {
            run(async {
                let namespaces = three();
                let joint = begun(&namespaces).await;
                let proposer = Proposer::new(&namespaces);
                let first = Fake::new(Some(fail_at), Duration::from_millis(300));
                let failed = carry_out(&proposer, &first, joint.clone(), None, |_| {}).await.unwrap_err();
                assert!(matches!(&failed, RebalanceError::Piece { reason, .. } if reason.contains("down")), "{failed}");
                let second = Fake::new(None, Duration::from_millis(300));
                let map = proposer.agree(&joint, |map| Ok(map.clone())).await.unwrap();
                let stable = carry_out(&proposer, &second, map, None, |_| {}).await.unwrap();
                assert!(stable.unequal, "what a piece could not make equal is noted with it");
                assert_eq!((stable.state, stable.epoch, stable.change), (State::Stable, joint.epoch + 1, None));
                let (first, second) = (first.done.borrow(), second.done.borrow());
                let all = [Phase::Seal, Phase::Migrate, Phase::Clean].into_iter();
                let all = all.flat_map(|phase| (0..20).map(move |cursor| (phase, cursor)));
                assert!(all.clone().all(|piece| first.contains(&piece) || second.contains(&piece)));
                let twice = (first.len() + second.len()).saturating_sub(60);
                assert!(twice <= 8, "{twice} pieces were done twice: progress is noted every two seconds");
            });
        }
    }

    #[test]
    fn two_at_once_do_no_harm_and_a_third_is_told() {
        run(async {
            let namespaces = three();
            let joint = begun(&namespaces).await;
            let work = |namespaces: Vec<Plain>, joint: Map| async move {
                let mover = Fake::new(None, Duration::from_millis(500));
                carry_out(&Proposer::new(&namespaces), &mover, joint, None, |_| {}).await.unwrap()
            };
            let first = engine::task::spawn(work(namespaces.clone(), joint.clone()));
            time::sleep(Duration::from_millis(700)).await;
            let second = engine::task::spawn(work(namespaces.clone(), joint.clone()));
            let refused = is_free(&Proposer::new(&namespaces), &joint).await;
            assert!(matches!(refused, Err(RebalanceError::Busy { .. })), "{refused:?}");
            assert_eq!((first.await.state, second.await.state), (State::Stable, State::Stable));
            assert!(is_free(&Proposer::new(&namespaces), &joint).await.unwrap().change.is_none());
        });
    }

    /// Its first piece is refused, as the store does when it knows a newer map: by then the other has ended the change.
    #[test]
    fn the_slower_of_two_ends_as_the_faster_does() {
        run(async {
            let namespaces = three();
            let joint = begun(&namespaces).await;
            let (others, theirs) = (namespaces.clone(), joint.clone());
            let first = engine::task::spawn(async move {
                let mover = Fake::new(None, Duration::from_millis(10));
                carry_out(&Proposer::new(&others), &mover, theirs, None, |_| {}).await.unwrap()
            });
            let slow = Fake::new(Some(0), Duration::from_secs(60));
            let end = carry_out(&Proposer::new(&namespaces), &slow, joint, None, |_| {}).await;
            assert_eq!(end, Ok(first.await));
        });
    }

    /// By another command in the middle of migration, which then stops: whoever goes on, from either map, moves nothing more.
    #[test]
    fn a_change_taken_back_in_the_middle_ends_at_the_old_placement() {
        run(async {
            let namespaces = three();
            let joint = begun(&namespaces).await;
            let (others, theirs) = (namespaces.clone(), joint.clone());
            let first = engine::task::spawn(async move {
                let mover = Fake::new(None, Duration::from_millis(500));
                let end = carry_out(&Proposer::new(&others), &mover, theirs, None, |_| {}).await.unwrap();
                let moved = mover.done.borrow().iter().filter(|(phase, _)| *phase == Phase::Migrate).count();
                (end, moved)
            });
            time::sleep(Duration::from_millis(12_250)).await;
            let proposer = Proposer::new(&namespaces);
            let decided = proposer.agree(&joint, |map| Ok(map.take_back()?)).await.unwrap();
            assert!(decided.goes_back());
            let second = Fake::new(None, Duration::from_millis(500));
            let end = carry_out(&proposer, &second, decided.clone(), None, |_| {}).await.unwrap();
            assert!(second.done.borrow().iter().all(|(phase, _)| *phase == Phase::Clean), "{:?}", second.done);
            let (firsts, moved) = first.await;
            assert!((1..20).contains(&moved), "{moved}");
            assert_eq!((&end, end.state, end.epoch), (&firsts, State::Stable, joint.epoch + 1));
            assert!(end.members.iter().all(|member| member.weight == 100), "{end:?}");
        });
    }

    /// Its ballot failed; somebody settled what one voter had accepted of it, and it tries again.
    #[test]
    fn a_note_is_counted_once_however_often_it_is_proposed() {
        run(async {
            let joint = begun(&three()).await;
            let change = Change { cursor: 3, ..joint.change.clone().unwrap() };
            let note = noting(joint.epoch, &change, 1000);
            let noted = note(&joint);
            assert_eq!(noted.change.as_ref().unwrap().moved_bytes, 1000);
            time::sleep(Duration::from_millis(5)).await;
            assert_eq!(note(&noted), noted);
            assert_eq!(
                noting(joint.epoch, &change, 10)(&noted).change.unwrap().moved_bytes,
                1010,
                "another's, at the same place"
            );
        });
    }

    #[test]
    fn the_rate_is_kept_and_what_moved_is_counted() {
        run(async {
            let namespaces = three();
            let joint = begun(&namespaces).await;
            let (start, mut moved) = (time::now(), 0);
            let mover = Fake::new(None, Duration::from_millis(1));
            let count = |change: &Change| moved = change.moved_bytes;
            carry_out(&Proposer::new(&namespaces), &mover, joint, Some(1000), count).await.unwrap();
            assert_eq!(moved, 20_000);
            // 19 pauses of a second in virtual time: the last piece needs none after it.
            assert!(start.elapsed() >= Duration::from_secs(19), "{:?}", start.elapsed());
        });
    }

    #[test]
    fn a_rate_of_0_is_none() {
        run(async {
            let begun = time::now();
            pause(Some(0), 1 << 30, begun).await;
            pause(None, 1 << 30, begun).await;
            assert_eq!(begun.elapsed(), Duration::ZERO);
        });
    }
}
