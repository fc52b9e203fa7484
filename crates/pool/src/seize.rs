//! Agreement without the majority of the voters, by an operator's word that they never come back.
//!
//! A pool of two has one voter: a majority of two would be both, and either one's loss would stop it. Where that voter is the one
//! that dies, or the machine that the majority of voters was on, nobody is left who could agree on a map. So *all* members that
//! are not named as lost are asked, voters or not: every map in force is handed to all of them as soon as it is. The newest that
//! any of them carries is the base; what follows it has voters among them ([`Map::seized_without`]), and all have to accept it.
//!
//! Members that were given up before and are back ([`Word::returned`]) are members again by the same step: where nobody else is
//! left, there is no other map that could take them in.
//!
//! What only the lost ones knew is gone: a map that they had agreed on and had not handed on yet. And the word has to be true: were
//! they to go on, there would be two pools. A host that knows the old map alone is stopped by the seals of the next change.

use std::collections::BTreeSet;

use engine::backoff::Backoff;

use super::{AgreeError, Answers, BALLOTS_MAX, Ended, Namespace, PAUSE_FIRST, PAUSE_MAX, Proposer, Seen, step_back};
use crate::acceptor::{Promise, Refusal};
use crate::lost::HalfLeft;
use crate::map::{Map, Member, MemberId};
use crate::superblock::Ballot;

/// What an operator says of the members of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Word<'a> {
    /// They never come back.
    pub lost: &'a [MemberId],
    /// They were given up as lost, and are back with all that they held.
    pub returned: &'a [MemberId],
    /// What is asked of the half of a key's homes, where it is all that is left.
    pub half: HalfLeft,
}

impl<'a> Word<'a> {
    /// That these never come back, and nobody else has.
    pub fn lost(lost: &'a [MemberId], half: HalfLeft) -> Word<'a> {
        Word { lost, returned: &[], half }
    }
}

/// How an attempt without some voters ended.
enum Seized {
    By(Map),
    /// Those that are left are a majority of the newest map's voters: it is agreed on as any other.
    Needless,
    /// Members were found that were not asked.
    More,
    Outbid(u64),
}

impl<N: Namespace> Proposer<'_, N> {
    /// Has all members of the newest map but those that are lost agree on it without them. `known`: a map that some member carries.
    /// Where the voters that are left are a majority the newest map is agreed on as it is.
    ///
    /// # Errors
    /// A member that is not named as lost does not answer, or carries no whole map; the half that is left may
    /// not know all; who is said to be back has been left behind.
    pub async fn seize(&self, known: &Map, word: Word<'_>) -> Result<Map, AgreeError> {
        let mut seen = Seen::new(known);
        let (mut round, mut backoff) = (1, Backoff::new(PAUSE_FIRST, PAUSE_MAX));
        seen.asked = known.members.iter().map(|member| member.id).filter(|id| !word.lost.contains(id)).collect();
        let mut may_be_accepted = false;
        for _ in 0..BALLOTS_MAX {
            let ballot = Ballot { round, host: self.host };
            match self.seize_by(ballot, &mut seen, word, &mut may_be_accepted).await? {
                Seized::By(map) => return Ok(map),
                // Of all that are left: those who vote in it need not carry it yet.
                Seized::Needless => return self.agree_by(&mut seen, &mut |map| Ok(map.clone())).await,
                Seized::More => round += 1,
                Seized::Outbid(highest) => {
                    round = highest.max(round) + 1;
                    step_back(&mut backoff).await;
                }
            }
        }
        match may_be_accepted {
            true => Err(in_doubt("outbid by others")),
            false => Err(AgreeError::Contended),
        }
    }

    async fn seize_by(
        &self,
        ballot: Ballot,
        seen: &mut Seen,
        word: Word<'_>,
        may_be_accepted: &mut bool,
    ) -> Result<Seized, AgreeError> {
        let prepare = |member| self.acceptor(&seen.lives, seen.pool, member)?.prepare_within(ballot);
        let promises = self.ask(seen.asked.clone(), prepare).await;
        if promises.values().any(Result::is_err) {
            return self.needed_all(&promises, *may_be_accepted);
        }
        let granted = promises.iter().filter_map(|(member, promise)| Some((member, promise.as_ref().ok()?)));
        let mut shown = Vec::new();
        for (member, promise) in granted {
            let map = promise.map.as_ref();
            let map = map
                .ok_or_else(|| AgreeError::Refused(format!("{member}: its map is damaged, so what it knew is not")))?;
            shown.push((promise.superblock.accepted, map));
        }
        shown.sort_by_key(|(accepted, map)| map.order(*accepted));
        let Some(&(_, base)) = shown.last() else {
            return Err(AgreeError::Refused("all members were named as lost: nobody is left to go on with".into()));
        };
        shown.iter().for_each(|(_, map)| seen.lives.learn(map));
        let is_current = |(id, promise): (&MemberId, &Result<Promise, Refusal>)| {
            promise.as_ref().is_ok_and(|promise| seen.lives.is_current(*id, &promise.superblock))
        };
        let left: BTreeSet<MemberId> =
            base.members.iter().map(|member| member.id).filter(|id| !word.lost.contains(id)).collect();
        if !promises.iter().all(is_current) || !left.is_subset(&promises.keys().copied().collect()) {
            seen.asked.extend(left);
            return Ok(Seized::More);
        }
        if base.has_quorum(|member: &Member| !word.lost.contains(&member.id)) {
            return Ok(Seized::Needless);
        }
        let gone: Vec<MemberId> = word.lost.iter().copied().filter(|id| base.index_of(*id).is_some()).collect();
        let next = with_returned(base, word)?.seized_without(&gone, word.half)?;
        let body = next.encode()?;
        seen.lives.learn(&next);
        // A quorum of its own voters is enough to bring it into force, whatever becomes of the others.
        *may_be_accepted = true;
        let accepted = self.hand_out(&next, &seen.lives, &promises, ballot, &body, left).await;
        if accepted.values().any(Result::is_err) {
            return self.needed_all(&accepted, *may_be_accepted);
        }
        Ok(Seized::By(next))
    }

    /// Of those that are not lost all are needed, and some have refused.
    fn needed_all<T>(&self, answers: &Answers<T>, outcome_unknown: bool) -> Result<Seized, AgreeError> {
        match self.not_enough(answers, outcome_unknown) {
            Ok(Ended::Outbid(highest)) => Ok(Seized::Outbid(highest)),
            Ok(Ended::Agreed(_) | Ended::Elsewhere | Ended::Settled) => Ok(Seized::More),
            Err(AgreeError::Unavailable { outcome_unknown: true, reasons }) => Err(in_doubt(&reasons)),
            Err(AgreeError::Unavailable { reasons, .. }) => Err(AgreeError::Refused(format!(
                "every member that is not named as lost has to answer ({reasons}): bring it back, or name it too"
            ))),
            Err(other) => Err(other),
        }
    }
}

/// The map with those that are back.
fn with_returned(base: &Map, Word { lost, returned, half }: Word<'_>) -> Result<Map, AgreeError> {
    let mut with = base.clone();
    let is_back = |member: &&mut Member| returned.contains(&member.id);
    let counts = |member: &Member| !member.lost && !lost.contains(&member.id);
    if !base.members.iter().any(counts) {
        // What the others have forgotten, or what it did not get, nobody is left to tell.
        if half != HalfLeft::MustKnowAll {
            with.members.iter_mut().filter(is_back).for_each(|member| member.left_behind = false);
        }
        if returned.is_empty() {
            let left = base.members.iter().map(|member| member.id).filter(|id| !lost.contains(id));
            let left: Vec<String> = left.map(|id| id.to_string()).collect();
            return Err(AgreeError::Refused(format!(
                "nobody is left who has a vote: if members that were given up as lost are back with what they held, name them too \
                 (--returned {})",
                left.join(",")
            )));
        }
    }
    let mut with = with.take_in(returned)?;
    // Who is back may carry a map of before it was given up; what was done without it, it knows nothing of.
    with.unequal |= !returned.is_empty() && with.replicas.is_multiple_of(2);
    Ok(with)
}

/// Some may have accepted the map already.
fn in_doubt(reasons: &str) -> AgreeError {
    let reasons = format!("the map without the lost members may be in force: run the command again ({reasons})");
    AgreeError::Unavailable { outcome_unknown: true, reasons }
}

#[cfg(test)]
#[path = "seize_tests.rs"]
mod tests;
