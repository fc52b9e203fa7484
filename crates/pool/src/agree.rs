//! Agreement on the next map: a register of one value among the voters' superblocks, changed by ballots (as in CASPaxos:
//! Rystsov, "CASPaxos: Replicated State Machines without logs", 2018).
//!
//! A proposer has its ballot promised by a majority of voters, takes the map accepted under the highest ballot there, makes the
//! next one of it, and has that accepted by a majority. Who votes is part of the map:
//!
//! - A quorum of a map is a majority of its voters, and of both sides' voters where it is joint.
//! - The map a proposer builds on is the one of the highest ballot among all it asked, and a quorum of *that* map must have
//!   promised. If its voters are others, they are asked too, beside those before: the only one to carry a newer map may be
//!   one who has no vote in it.
//! - The next map is accepted by a quorum of the map before **and** one of its own: whoever knows only the map before
//!   meets it. From stable to joint that adds the new voters; from joint to unclean nothing, as both sides are asked already.
//! - Nothing else is built on a map that is not seen to be in force (accepted by a quorum of its own voters, by one ballot): it
//!   is agreed on as it is first. Or a joint map that few carry might be followed by a final one whose voters alone go on,
//!   while a majority of the voters before has heard of neither.
//! - Voters change by way of a joint map alone: two maps that follow each other then share a side, of which both need a majority.
//!   So a map that a quorum of its own voters carries is found by all who ask for a later one.
//! - Which side of a joint map goes on alone is decided under both: the new one, unless a joint map in force says that the
//!   change is taken back ([`Map::goes_back`]); then the old one. A majority of the new side has accepted that, and never
//!   accepts a final map of an earlier ballot. Were the old side alone built on the joint map at once, a final map that one
//!   voter of the new side has kept could be brought into force by voters who met nothing of it.
//! - A member that carries a later map in which it has no vote is handed no earlier one: the later was in force, and where no
//!   voter shows that, they were rolled back unseen. [`Proposer::settle_carried`] brings it back.
//! - A voter counts as the member of a map only in the life that this map names. One that has lost what it had promised and
//!   accepted begins a new life by a joint map, on whose old side it does not count; so a quorum without it carries that map.
//! - A voter below the highest mark of it that any map names, of those that the proposer has come by and those that the voters
//!   show in this ballot, has forgotten what it promised and accepted: neither counts ([`crate::lives`]). Where the answers name
//!   a newer life or a higher mark than the proposer knew, by which a voter would be judged otherwise, it begins again.
//!
//! - Where members have gone on without a majority of the voters ([`Proposer::seize`]) their ballots and those of the voters left
//!   behind say nothing of each other. The map of more such steps ([`Map::seized`]) counts over one of less, and no member that
//!   carries it is handed another: a voter that is back, and was given up, would else undo what it never heard of.
//!
//! A proposer that crashed leaves a map that some carry. The next proposer either finds it, and builds on it, or has asked
//! voters among whom it can't have had a quorum, and never will, as they have promised more since.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use device::Namespace;
use engine::backoff::Backoff;
use engine::time::{self, timeout};

use crate::acceptor::{Acceptor, Promise, Refusal};
use crate::change::Epoch;
use crate::lives::Lives;
use crate::map::{Map, MapError, Member, MemberId};
use crate::plan::PlanError;
use crate::seen::{Answers, Seen, shown_by, voters};
use crate::superblock::Ballot;
use crate::together::together;

/// Ballots of one proposal. Guessed: with pauses that double, a dozen outlasts any number of others who propose now and then.
const BALLOTS_MAX: u32 = 24;
/// How long one member may take for a step before the agreement goes on without it. Chosen: longer than a busy target needs
/// for the some hundred commands of the largest map.
const STEP_TIME_MAX: Duration = Duration::from_secs(5);
/// How often a member is asked to be marked for a sweep, which took hours and is in vain without. Guessed.
const MARK_TRIES: u32 = 3;
/// Pause between two of these. Guessed: a connection is back by then.
const MARK_PAUSE: Duration = Duration::from_secs(2);
/// First pause after another proposer was in the way, at random up to this; doubles.
const PAUSE_FIRST: Duration = Duration::from_millis(5);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_millis(640);

/// Why there is no next map.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AgreeError {
    /// Too few voters answered.
    #[error("no majority of the map's voters answers: {reasons}")]
    Unavailable {
        /// Whether the map may be in force all the same, or come into force when the next proposer finds it.
        outcome_unknown: bool,
        /// By member.
        reasons: String,
    },
    /// Others proposed at the same time, again and again.
    #[error("others change the map at the same time; try again")]
    Contended,
    /// The change does not fit the map in force.
    #[error("{0}")]
    Refused(String),
    /// The change can't be made of the map in force.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The map that the change makes is not valid.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// The namespaces by which members can be asked, and who asks.
pub struct Proposer<'a, N> {
    namespaces: BTreeMap<MemberId, &'a N>,
    host: u64,
}

/// How a ballot ended.
enum Ended {
    Agreed(Map),
    /// A map was found by which others are to be asked too, or some in another life or from another mark on.
    Elsewhere,
    /// The map found is in force now; nothing has been made of it yet.
    Settled,
    /// Refused for a higher ballot.
    Outbid(u64),
}

impl<'a, N: Namespace> Proposer<'a, N> {
    /// Asks through these namespaces; each is the member its NGUID names.
    pub fn new(namespaces: impl IntoIterator<Item = &'a N>) -> Proposer<'a, N> {
        let namespaces =
            namespaces.into_iter().map(|namespace| (MemberId(namespace.info().nguid), namespace)).collect();
        Proposer { namespaces, host: engine::task::random_u64() }
    }

    /// Replaces the map in force by what `change` makes of it, and returns that. `known` is where to begin: any map of the
    /// pool that was once in force.
    ///
    /// `change` may be run several times, also on a map that it made itself and that a failed ballot left behind: it must
    /// then return it unchanged. A map returned unchanged is agreed on again: if it was in force on a minority, it is now on
    /// a majority.
    pub async fn agree(
        &self,
        known: &Map,
        mut change: impl FnMut(&Map) -> Result<Map, AgreeError>,
    ) -> Result<Map, AgreeError> {
        self.agree_by(&mut Seen::new(known), &mut change).await
    }

    /// The map in force, agreed on as it is by ballots that begin now. Those that `carried` names are asked too, in the lives and
    /// from the marks on that it names: a map that a member carries, and that may never have come into force.
    pub async fn settle(&self, known: &Map, carried: Option<&Map>) -> Result<Map, AgreeError> {
        self.agree_by(&mut Seen::beside(known, carried), &mut |map| Ok(map.clone())).await
    }

    /// The same where `by`, which carries that map, is a member: it has to show the map, and what it has accepted counts as what a
    /// voter has. Without a vote it was handed a map that was in force, and may be all that still knows that one.
    pub async fn settle_carried(&self, known: &Map, carried: &Map, by: MemberId) -> Result<Map, AgreeError> {
        let mut seen = Seen::beside(known, Some(carried));
        seen.asked.insert(by);
        seen.carrier = Some(by);
        self.agree_by(&mut seen, &mut |map| Ok(map.clone())).await
    }

    /// Whatever the change is, one body for all of them.
    async fn agree_by(
        &self,
        seen: &mut Seen,
        change: &mut dyn FnMut(&Map) -> Result<Map, AgreeError>,
    ) -> Result<Map, AgreeError> {
        let (mut round, mut backoff) = (1, Backoff::new(PAUSE_FIRST, PAUSE_MAX));
        let mut may_be_accepted = false;
        for _ in 0..BALLOTS_MAX {
            let ballot = Ballot { round, host: self.host };
            match self.ballot(ballot, seen, change, &mut may_be_accepted).await? {
                Ended::Agreed(map) => return Ok(map),
                Ended::Elsewhere | Ended::Settled => round += 1,
                Ended::Outbid(highest) => {
                    round = highest.max(round) + 1;
                    step_back(&mut backoff).await;
                }
            }
        }
        match may_be_accepted {
            true => Err(AgreeError::Unavailable { outcome_unknown: true, reasons: "outbid by others".into() }),
            false => Err(AgreeError::Contended),
        }
    }

    async fn ballot(
        &self,
        ballot: Ballot,
        seen: &mut Seen,
        change: &mut dyn FnMut(&Map) -> Result<Map, AgreeError>,
        may_be_accepted: &mut bool,
    ) -> Result<Ended, AgreeError> {
        let prepare = |member| self.acceptor(&seen.lives, seen.pool, member)?.prepare_within(ballot);
        let promises = self.ask(seen.asked.clone(), prepare).await;
        let Some(carried) = seen.carried(&promises) else {
            let unseen = || AgreeError::Refused("the member that carries a later map does not show it now".into());
            return self.not_enough(&promises, *may_be_accepted).map_err(|_| unseen());
        };
        let shown = shown_by(&promises);
        let Some(&(accepted, base)) = shown.last() else {
            return self.not_enough(&promises, *may_be_accepted);
        };
        if seen.learn(&shown, base, &promises) {
            return Ok(Ended::Elsewhere);
        }
        if let Some((carrier, promise)) = carried {
            promise.is_no_later(carrier, base).map_err(|refusal| AgreeError::Refused(refusal.to_string()))?;
        }
        let base = base.clone();
        // A promise without a whole map can't tell what was accepted there.
        let whole = |member: &Member| match promises.get(&member.id) {
            Some(Ok(Promise { map, superblock, .. })) => map.is_some() && seen.lives.counts(member, superblock),
            _ => false,
        };
        if !base.has_quorum(whole) {
            return self.not_enough(&promises, *may_be_accepted);
        }
        let carries = |member: &Member| match promises.get(&member.id) {
            Some(Ok(Promise { map: Some(map), superblock, .. })) => {
                superblock.accepted == accepted && seen.lives.counts(member, superblock) && *map == base
            }
            _ => false,
        };
        let changed = change(&base)?;
        let settles = changed != base && !base.has_quorum(carries);
        let next = if settles { base.clone() } else { changed };
        let body = next.encode()?;
        *may_be_accepted |= !settles;
        let mut targets = voters(&base);
        targets.extend(voters(&next));
        seen.lives.learn(&next);
        let accepted = self.hand_out(&next, &seen.lives, &promises, ballot, &body, targets.clone()).await;
        if seen.has_met_seized(&accepted) {
            return Ok(Ended::Elsewhere);
        }
        let done = |member: &Member| seen.lives.is_life_of(member) && matches!(accepted.get(&member.id), Some(Ok(())));
        if !base.has_quorum(done) || !next.has_quorum(done) {
            return self.not_enough(&accepted, *may_be_accepted);
        }
        if settles {
            return Ok(Ended::Settled);
        }
        // It is in force. All others get it too, so that any member is enough to find the pool; who misses it learns later.
        let all = next.members.iter().chain(&base.members).map(|member| member.id);
        let learners = all.filter(|member| !targets.contains(member)).collect();
        let learned = self.hand_out(&next, &seen.lives, &promises, ballot, &body, learners).await;
        // In force among those that others have gone on without: it is not, and they will learn that.
        if seen.has_met_seized(&learned) {
            return Ok(Ended::Elsewhere);
        }
        for (member, refusal) in learned.iter().filter_map(|(member, result)| Some((member, result.as_ref().err()?))) {
            tracing::debug!(%member, %refusal, epoch = next.epoch, "a member has not learned the new map");
        }
        Ok(Ended::Agreed(next))
    }

    /// Has the body accepted by all of `targets`; those that have promised nothing yet are asked for that first.
    async fn hand_out(
        &self,
        next: &Map,
        lives: &Lives,
        promises: &Answers<Promise>,
        ballot: Ballot,
        body: &[u8],
        targets: BTreeSet<MemberId>,
    ) -> Answers<()> {
        let epoch: Epoch = next.epoch;
        self.ask(targets, |member| {
            let acceptor = self.acceptor(lives, next.pool, member)?;
            Ok(async move {
                let accept = async {
                    if let Some(Ok(promise)) = promises.get(&member) {
                        return acceptor.accept(promise, epoch, body).await;
                    }
                    // Its ballot is of those that it has gone on with: theirs say nothing of which map is the later.
                    let promise = match acceptor.prepare(ballot).await {
                        Err(refusal @ Refusal::Promised(_)) => {
                            return Err(acceptor.gone_on_since(next).await.unwrap_or(refusal));
                        }
                        promise => promise?,
                    };
                    promise.follows(next)?;
                    promise.is_no_later(member, next)?;
                    acceptor.accept(&promise, epoch, body).await
                };
                timeout(STEP_TIME_MAX, accept).await.unwrap_or(Err(too_slow()))
            })
        })
        .await
    }

    fn acceptor(&self, lives: &Lives, pool: uuid::Uuid, member: MemberId) -> Result<Acceptor<'a, N>, Refusal> {
        let namespace = self.namespaces.get(&member).copied();
        let namespace = namespace.ok_or_else(|| Refusal::NoVote("it is not connected".into()))?;
        Ok(Acceptor { namespace, pool, life: lives.of(member) })
    }

    async fn ask<T, F: Future<Output = Result<T, Refusal>>>(
        &self,
        members: BTreeSet<MemberId>,
        step: impl Fn(MemberId) -> Result<F, Refusal>,
    ) -> Answers<T> {
        let asked = members.iter().map(|&member| {
            let step = step(member);
            async move { step?.await }
        });
        let answers = together(asked).await;
        members.iter().copied().zip(answers).collect()
    }

    /// A ballot without its quorum: outbid, or too few answer.
    fn not_enough<T>(&self, answers: &Answers<T>, outcome_unknown: bool) -> Result<Ended, AgreeError> {
        let refusals = || answers.iter().filter_map(|(member, answer)| Some((member, answer.as_ref().err()?)));
        let outbid = refusals().filter_map(|(_, refusal)| match refusal {
            Refusal::Promised(ballot) => Some(ballot.round),
            Refusal::Contended => Some(0),
            Refusal::NoVote(_) | Refusal::Seized(_) | Refusal::Device(_) => None,
        });
        if let Some(highest) = outbid.max() {
            return Ok(Ended::Outbid(highest));
        }
        // A command in doubt may have been a lost reply: worth another ballot, as it is when a connection returns.
        let in_doubt = |refusal: &Refusal| matches!(refusal, Refusal::Device(error) if error.outcome_unknown());
        if refusals().any(|(_, refusal)| in_doubt(refusal)) {
            return Ok(Ended::Outbid(0));
        }
        let mut reasons: Vec<String> = refusals().map(|(member, refusal)| format!("{member}: {refusal}")).collect();
        if reasons.is_empty() {
            reasons.push("their maps are damaged, or do not name the lives that they are in".into());
        }
        Err(AgreeError::Unavailable { outcome_unknown, reasons: reasons.join("; ") })
    }

    /// Raises the generation of every member that answers and notes it in the map: media that are rolled back to what they
    /// were before this are known by it, and have no vote.
    pub async fn roll_call(&self, known: &Map) -> Result<Map, AgreeError> {
        self.mark(known, 1, &|map, _unmarked| Ok(map)).await
    }

    /// Raises the map's `epoch`, if it is at rest in that: no sweep up to then is noted any more. Nobody is marked, and the voters
    /// are enough; who sweeps the new epoch has them all marked first ([`Proposer::begin_sweep`]).
    pub async fn raise_epoch(&self, known: &Map, epoch: Epoch) -> Result<Map, AgreeError> {
        self.agree(known, |map| Ok(raised(map.clone(), epoch))).await
    }

    /// Has every member marked for a sweep of the epoch after `epoch`, which is raised if the map is at rest in it: what is swept
    /// is what is held from now on, and none of them is what it was before when the sweep is noted. Whoever sweeps asks for this,
    /// also where the epoch was raised by others: they need not have marked anybody.
    pub async fn begin_sweep(&self, known: &Map, epoch: Epoch) -> Result<Map, AgreeError> {
        self.mark(known, MARK_TRIES, &|map, unmarked| marked(unmarked).map(|()| raised(map, epoch))).await
    }

    /// Notes that the map's `epoch` was swept just now: every member holds what it is to hold of the epochs before. A medium that
    /// is rolled back to before that would bring back what the others forget because of it, so all of them are marked first; one
    /// that can't be, and was not given up, hinders it.
    pub async fn note_swept(&self, known: &Map, epoch: Epoch) -> Result<Map, AgreeError> {
        self.mark(known, MARK_TRIES, &|map, unmarked| marked(unmarked).map(|()| map.note_swept(epoch))).await
    }

    /// Raises the generation of every member that answers, and has `then` make the next map of the one that names the marks; it is
    /// told of one member that was not raised.
    async fn mark(
        &self,
        known: &Map,
        tries: u32,
        then: &dyn Fn(Map, Option<MemberId>) -> Result<Map, AgreeError>,
    ) -> Result<Map, AgreeError> {
        let mut seen = Seen::new(known);
        // Who knew an old map alone would raise one that was rolled back, and above the mark by which that is known.
        let known = self.agree_by(&mut seen, &mut |map| Ok(map.clone())).await?;
        let members: BTreeSet<MemberId> = known.members.iter().map(|member| member.id).collect();
        let raise = |member| self.acceptor(&seen.lives, seen.pool, member)?.raise_within();
        let mut raised = self.ask(members, raise).await;
        for _ in 1..tries {
            let waited_for = |id: &MemberId| known.members.iter().any(|member| member.id == *id && !member.lost);
            let failed = raised.iter().filter(|(id, raised)| raised.is_err() && waited_for(id)).map(|(id, _)| *id);
            let failed: BTreeSet<MemberId> = failed.collect();
            if failed.is_empty() {
                break;
            }
            time::sleep(MARK_PAUSE).await;
            raised.extend(self.ask(failed, raise).await);
        }
        let lives = seen.lives.clone();
        self.agree_by(&mut seen, &mut |map| {
            let (mut next, mut unmarked) = (map.clone(), None);
            for member in &mut next.members {
                match raised.get(&member.id) {
                    // What was raised in another life says nothing of this one.
                    Some(Ok(generation)) if lives.is_life_of(member) => member.mark = member.mark.max(*generation),
                    _ if member.lost => {}
                    _ => unmarked = Some(member.id),
                }
            }
            if next != *map {
                next.revision += 1;
            }
            then(next, unmarked)
        })
        .await
    }
}

/// The map of the epoch after `epoch`, unless it is another one by now.
fn raised(map: Map, epoch: Epoch) -> Map {
    if map.epoch == epoch { map.raise_epoch() } else { map }
}

/// Refuses if a member was not marked.
fn marked(unmarked: Option<MemberId>) -> Result<(), AgreeError> {
    unmarked.map_or(Ok(()), |member| {
        Err(AgreeError::Refused(format!(
            "member {member} could not be marked, by which it would be known if its medium were rolled back: \
             forget again when it answers"
        )))
    })
}

impl<'a, N: Namespace> Acceptor<'a, N> {
    fn prepare_within(
        self,
        ballot: Ballot,
    ) -> Result<impl Future<Output = Result<Promise, Refusal>> + use<'a, N>, Refusal> {
        Ok(async move { timeout(STEP_TIME_MAX, self.prepare(ballot)).await.unwrap_or(Err(too_slow())) })
    }

    fn raise_within(self) -> Result<impl Future<Output = Result<u64, Refusal>> + use<'a, N>, Refusal> {
        Ok(async move { timeout(STEP_TIME_MAX, self.raise()).await.unwrap_or(Err(too_slow())) })
    }
}

fn too_slow() -> Refusal {
    Refusal::NoVote(format!("it has not answered within {} s", STEP_TIME_MAX.as_secs()))
}

/// A pause by chance, so that those who outbid each other don't meet again.
async fn step_back(backoff: &mut Backoff) {
    time::sleep(backoff.pause().mul_f64((engine::task::random_u64() % 1000) as f64 / 1000.0)).await;
}

#[path = "seize.rs"]
mod seize;
pub use seize::Word;

#[cfg(test)]
#[path = "agree_tests.rs"]
mod tests;
