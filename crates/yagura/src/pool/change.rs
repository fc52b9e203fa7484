//! `yagura pool add`, `remove`, `replace`, `drain`, `set-weight` and `rebalance`: members come and go while the pool is in use.

use std::rc::Rc;

use ::client::members::{self, NewMember};
use pool::balance::moved;
use pool::{Change, HalfLeft, Map, MemberId, Request, State, Word};
use serde::Serialize;

use crate::cli::{Changing, PoolAddArgs, PoolMembersArgs, PoolRebalanceArgs, PoolReplaceArgs, PoolWeightArgs, Walk};
use crate::client::{self, Found, Reached, Source, Way};
use crate::exit::Failure;
use crate::output;
use crate::size::Size;

/// What a change will do, and what it did.
#[derive(Serialize, Default, Debug)]
struct Changed {
    /// What was asked for; none: there was nothing to do.
    kind: Option<String>,
    /// Percent of all replicas of keys that move, and the least that any placement would have to move.
    moves_percent: Option<f64>,
    least_percent: Option<f64>,
    /// Whether the change was carried out, to its end.
    done: bool,
    /// Epoch of the map.
    epoch: u64,
    /// Bytes of entries and values stored on members that were new to them, by the whole change.
    moved_bytes: u64,
    /// Members that were given up as lost, and those that were taken in again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    given_up: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    returned: Vec<String>,
    /// What is left to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<&'static str>,
}

pub async fn add(args: &PoolAddArgs) -> Result<(), Failure> {
    let (way, reached) = reach(&args.changing.walk).await?;
    let new = crate::member::find_all(&way, &args.members).await?;
    let (members, new) = candidates(new, &reached.map, args.force).await?;
    carry(&args.changing, &reached, Request::Add(members), (new, args.force)).await
}

pub async fn remove(args: &PoolMembersArgs) -> Result<(), Failure> {
    let (_, reached) = reach(&args.changing.walk).await?;
    carry(&args.changing, &reached, Request::Remove(find_members(&reached, &args.members)?), Default::default()).await
}

pub async fn replace(args: &PoolReplaceArgs) -> Result<(), Failure> {
    let (way, reached) = reach(&args.changing.walk).await?;
    let old = find_member(&reached, &args.old)?;
    let new = args.new.find(&way).await?;
    let (mut members, new) = candidates(new, &reached.map, args.force).await?;
    let (Some(member), true) = (members.pop(), members.is_empty()) else {
        return Err(Failure::usage(format!("{}: name one namespace, by nqn and nsid", args.new.address)));
    };
    carry(&args.changing, &reached, Request::Replace { old, new: Box::new(member) }, (new, args.force)).await
}

pub async fn drain(args: &PoolMembersArgs) -> Result<(), Failure> {
    let (_, reached) = reach(&args.changing.walk).await?;
    carry(&args.changing, &reached, Request::Drain(find_members(&reached, &args.members)?), Default::default()).await
}

pub async fn set_weight(args: &PoolWeightArgs) -> Result<(), Failure> {
    let (_, reached) = reach(&args.changing.walk).await?;
    let member = find_member(&reached, &args.member)?;
    carry(&args.changing, &reached, Request::SetWeight(vec![(member, args.weight)]), Default::default()).await
}

pub async fn rebalance(args: &PoolRebalanceArgs) -> Result<(), Failure> {
    let half = match (args.accept_unserved, args.accept_stale) {
        (true, _) => HalfLeft::NeedNotBe,
        (false, true) => HalfLeft::WillDo,
        (false, false) => HalfLeft::MustKnowAll,
    };
    if args.force {
        seize(args, half).await?;
    }
    let (_, reached) = reach(&args.walk).await?;
    let source = reached.source();
    let mut changed = Changed::default();
    if args.lost.is_empty() && !args.returned.is_empty() {
        // Also of a change that somebody is at: it may wait for them.
        take_in(args, (&reached, &source), &mut changed).await?;
        return output::report(args.walk.common.json, &changed, describe);
    }
    let mut map = source.unattended().await?;
    let lost = find_lost(&reached, &map, &args.lost).await?;
    if !args.returned.is_empty() {
        map = take_in(args, (&reached, &source), &mut changed).await?;
    }
    (changed.kind, changed.epoch) = (map.change.as_ref().map(|change| change.kind.to_string()), map.epoch);
    match map.state {
        // It counts for the next change.
        State::Stable if half != HalfLeft::MustKnowAll => changed.epoch = source.give_up(&lost, half).await?.epoch,
        State::Stable => {}
        State::Joint | State::Unclean => {
            if args.take_back && source.take_back().await?.change.is_none_or(|change| !change.taken_back) {
                return Err(Failure::check("all is moved already: the change can't be taken back, only gone on with"));
            }
            end_without((&lost, half), &source, &reached, &args.walk).await?;
            finish(&args.walk, &reached, source.clone(), &mut changed).await?;
        }
    }
    if !lost.is_empty() {
        // Some may have left with the change.
        let map = source.agree(|map| Ok(map.clone())).await?;
        let is_given_up = |id: &&MemberId| map.members.iter().any(|member| member.id == **id && member.lost);
        changed.given_up = lost.iter().filter(is_given_up).map(MemberId::to_string).collect();
        let stays = lost.iter().any(|id| map.index_of(*id).is_some());
        changed.next = stays.then_some("what is lost for good is taken out by `yagura pool replace` or `remove`");
    }
    output::report(args.walk.common.json, &changed, describe)
}

/// The members that are named as lost, of which none has a vote.
async fn find_lost(reached: &Reached, map: &Map, names: &[String]) -> Result<Vec<MemberId>, Failure> {
    let lost = find_members(reached, names)?;
    let silent = silent(reached, map, lost.clone()).await;
    match lost.iter().find(|id| !silent.contains(id)) {
        Some(there) => Err(Failure::check(format!("member {there} answers, and has a vote: it is not lost"))),
        None => Ok(lost),
    }
}

/// The members that are named as returned, all of which are there with what they held.
async fn find_returned(reached: &Reached, map: &Map, names: &[String]) -> Result<Vec<MemberId>, Failure> {
    let returned = find_members(reached, names)?;
    for id in &returned {
        let found = reached.map.index_of(*id).and_then(|index| reached.members[index].as_ref());
        let (Some(found), Some(index)) = (found, map.index_of(*id)) else {
            return Err(Failure::check(format!("member {id} does not answer")));
        };
        members::check_returned(&found.namespace, map, index).await.map_err(client::pool_failure)?;
    }
    Ok(returned)
}

/// Takes members in again that were given up as lost.
async fn take_in(
    args: &PoolRebalanceArgs,
    (reached, source): (&Reached, &Rc<Source>),
    changed: &mut Changed,
) -> Result<Map, Failure> {
    let map = source.agree(|map| Ok(map.clone())).await?;
    let returned = find_returned(reached, &map, &args.returned).await?;
    let map = source.agree(|map| Ok(map.take_in(&returned)?)).await?;
    changed.epoch = map.epoch;
    changed.next = map.change.is_some().then_some("a change is under way: go on with `yagura pool rebalance`");
    changed.returned = returned.iter().map(MemberId::to_string).collect();
    Ok(map)
}

/// Has the members left decide without those that are named as lost, if these are a majority of the voters; members that are back
/// among them.
async fn seize(args: &PoolRebalanceArgs, half: HalfLeft) -> Result<(), Failure> {
    let address = &args.walk.address;
    let rest = client::reach_rest(&client::way(&address.host)?, address).await?;
    let lost = find_lost(&rest, &rest.map, &args.lost).await?;
    let returned = find_returned(&rest, &rest.map, &args.returned).await?;
    let map = rest.seize(Word { lost: &lost, returned: &returned, half }).await?;
    tracing::warn!(epoch = map.epoch, "the members left have agreed without those that are lost");
    Ok(())
}

async fn reach(walk: &Walk) -> Result<(Way, Reached), Failure> {
    let way = client::way(&walk.address.host)?;
    let reached = client::reach(&way, &walk.address).await?;
    for trouble in &reached.troubles {
        tracing::warn!("{trouble}");
    }
    Ok((way, reached))
}

/// What will stand for the namespaces in the map, all of them fit and free.
async fn candidates(
    new: Vec<NewMember>,
    map: &Map,
    force: bool,
) -> Result<(Vec<pool::Member>, Vec<NewMember>), Failure> {
    let mut members: Vec<pool::Member> = Vec::with_capacity(new.len());
    for new in &new {
        let member = members::candidate(new, map, force).await.map_err(client::pool_failure)?;
        if members.iter().any(|other| other.id == member.id) {
            return Err(Failure::usage(format!("{}: the namespace {} was given twice", new.name(), member.id)));
        }
        members.push(member);
    }
    Ok((members, new))
}

fn find_members(reached: &Reached, names: &[String]) -> Result<Vec<MemberId>, Failure> {
    names.iter().map(|name| find_member(reached, name)).collect()
}

/// The member of this NGUID (or beginning of one) or address.
fn find_member(reached: &Reached, name: &str) -> Result<MemberId, Failure> {
    let called = |(member, found): &(&pool::Member, &Option<Found>)| {
        let id = member.id.to_string();
        (name.len() >= 4 && id.starts_with(&name.to_ascii_lowercase()))
            || found.as_ref().is_some_and(|found| found.address == name)
            || member.addresses.iter().any(|address| address == name)
    };
    let mut fitting = reached.map.members.iter().zip(&reached.members).filter(called).map(|(member, _)| member.id);
    match (fitting.next(), fitting.next()) {
        (Some(id), None) => Ok(id),
        (Some(_), Some(_)) => Err(Failure::usage(format!("`{name}` fits several members: give the whole NGUID"))),
        _ => Err(Failure::usage(format!(
            "the pool has no member `{name}`: `yagura pool status` lists them (a beginning has 4 digits or more)"
        ))),
    }
}

/// Says what a request moves; unless that was all, begins it and carries it out.
async fn carry(
    changing: &Changing,
    reached: &Reached,
    request: Request,
    (new, force): (Vec<NewMember>, bool),
) -> Result<(), Failure> {
    let source = reached.source();
    // What somebody who was stopped half-way has left is in force from here on, or never will be: what it names as a member
    // must not be formatted again.
    let map = match changing.dry_run {
        true => source.map().await?,
        false => source.agree(|map| Ok(map.clone())).await?,
    };
    let lost = match map.state {
        State::Stable => Vec::new(),
        State::Joint | State::Unclean => silent(reached, &map, request.ends()).await,
    };
    let settled = map.ended_without(&lost).map_err(plan_failure)?;
    let joint = settled.begin(&request, 0).map_err(plan_failure)?;
    let placements = joint.placements();
    let mut changed = Changed { kind: Some(request.kind().to_string()), epoch: map.epoch, ..Changed::default() };
    if let Some(old) = &placements.old {
        let moved = moved(&joint, old, &placements.new);
        changed.moves_percent = Some(moved.share * 100.0);
        changed.least_percent = Some(moved.least * 100.0);
    }
    let json = changing.walk.common.json;
    if changing.dry_run {
        return output::report(json, &changed, describe);
    }
    if !json {
        output::write(describe(&changed).as_bytes())?;
    }
    end_without((&lost, HalfLeft::MustKnowAll), &source, reached, &changing.walk).await?;
    let members = match &request {
        Request::Add(members) => members.iter().collect(),
        Request::Replace { new, .. } => vec![&**new],
        Request::Remove(_) | Request::Drain(_) | Request::SetWeight(_) | Request::Renew(_) => Vec::new(),
    };
    for (new, member) in new.iter().zip(members) {
        members::admit(new, &settled, member, force, &source).await.map_err(client::pool_failure)?;
    }
    for new in new {
        source.add(new.namespace, new.addresses.into_iter().next().unwrap_or_default(), &new.nqn, new.nsid)?;
    }
    source.begin(&request).await?;
    finish(&changing.walk, reached, source, &mut changed).await?;
    output::report(json, &changed, describe)
}

fn plan_failure(error: pool::PlanError) -> Failure {
    Failure::from(::client::Error::from(pool::AgreeError::from(error)))
}

/// Those of `members` that have no vote now.
async fn silent(reached: &Reached, map: &Map, members: Vec<MemberId>) -> Vec<MemberId> {
    let mut silent = Vec::new();
    for id in members {
        // One that has come since is not known here, and was not asked.
        let found = reached.map.index_of(id).map(|index| &reached.members[index]);
        let (Some(found), Some(index)) = (found, map.index_of(id)) else { continue };
        let has_vote = match found {
            Some(found) => members::check(&found.namespace, map, index).await.is_ok(),
            None => false,
        };
        if !has_vote {
            silent.push(id);
        }
    }
    silent
}

/// Whether a member answers, and has no vote under this map: it has lost what it held.
async fn has_lost(found: &Found, map: &Map, id: MemberId) -> bool {
    let Some(index) = map.index_of(id) else { return false };
    match members::check(&found.namespace, map, index).await {
        Ok(()) | Err(pool::Error::Device { .. }) => false,
        Err(_) => true,
    }
}

/// Ends the change under way without members that are lost. `half`: what is asked of the half of a key's homes that is left.
async fn end_without(
    (lost, half): (&[MemberId], HalfLeft),
    source: &Rc<Source>,
    reached: &Reached,
    walk: &Walk,
) -> Result<(), Failure> {
    if lost.is_empty() {
        return Ok(());
    }
    let map = source.give_up(lost, half).await?;
    let Some(change) = &map.change else { return Ok(()) };
    let how = if change.taken_back { "is taken back" } else { "goes on" };
    let names: Vec<String> = lost.iter().map(MemberId::to_string).collect();
    tracing::warn!("{}: given up as lost; the {} under way {how} without it", names.join(", "), change.kind);
    finish(walk, reached, source.clone(), &mut Changed::default()).await
}

/// What became of a member that had lost what it held, as far as the map was known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Renewal {
    /// It was begun anew here, and filled.
    Begun,
    /// Somebody else had begun that, and was stopped: it was gone on with.
    GoneOn,
    /// It has its vote by the newest map.
    Votes,
    /// It is no member any more.
    Gone,
}

impl Renewal {
    /// Of a member of which nothing is to be begun by this map, which was settled just now.
    fn of(map: &Map, id: MemberId) -> Renewal {
        match map.index_of(id) {
            None => Renewal::Gone,
            Some(index) if map.members[index].renewed => Renewal::GoneOn,
            Some(_) => Renewal::Votes,
        }
    }

    /// Whether it was filled in its place.
    pub fn is_filled(self) -> bool {
        matches!(self, Renewal::Begun | Renewal::GoneOn)
    }

    /// What is said of it.
    pub fn words(self) -> &'static str {
        match self {
            Renewal::Begun => "was begun anew, and filled",
            Renewal::GoneOn => {
                "had been begun anew by another command that was stopped: that was gone on with, and it is filled"
            }
            Renewal::Votes => "has its vote by the pool's newest map: nothing of it was begun anew",
            Renewal::Gone => "is no member any more by the pool's newest map: nothing of it was begun anew",
        }
    }
}

/// Begins members anew that have lost what they held (rolled back, emptied, given up as lost), one after the other; returns
/// what became of those, and what hinders others.
pub async fn renew(reached: &Reached, walk: &Walk) -> Result<(Vec<(MemberId, Renewal)>, Vec<String>), Failure> {
    let (mut renewed, mut hindered) = (Vec::new(), Vec::new());
    for (index, found) in reached.members.iter().enumerate() {
        let (Some(found), id) = (found, reached.map.members[index].id) else { continue };
        if !has_lost(found, &reached.map, id).await {
            continue;
        }
        let source = reached.source();
        let map = source.agree(|map| Ok(map.clone())).await?;
        // Another repair may have begun it anew meanwhile.
        if !has_lost(found, &map, id).await {
            continue;
        }
        if map.state != State::Stable {
            end_without((&[id], HalfLeft::MustKnowAll), &source, reached, walk).await?;
        }
        match members::renew(&found.namespace, &found.address, &source).await {
            Ok(member) => {
                let how = match member {
                    Some(member) => {
                        source.begin(&Request::Renew(Box::new(member))).await?;
                        Renewal::Begun
                    }
                    // What somebody had proposed who was stopped is in force now, or something else has been agreed on meanwhile.
                    None => Renewal::of(&source.map().await?, id),
                };
                finish(walk, reached, source, &mut Changed::default()).await?;
                renewed.push((id, how));
            }
            Err(error) => hindered.push(error.to_string()),
        }
    }
    if renewed.is_empty() && hindered.is_empty() {
        reached.source().roll_call().await?;
    }
    Ok((renewed, hindered))
}

/// Carries the change of the map in force out, to its end.
async fn finish(walk: &Walk, reached: &Reached, source: Rc<Source>, changed: &mut Changed) -> Result<(), Failure> {
    let store = reached.store_of(source.clone());
    let bar = output::progress_share("change", walk.common.json);
    let mut moved_bytes = 0;
    let progress = |change: &Change| {
        bar.say(change.phase.to_string());
        bar.show(f64::from(change.done) / 1000.0);
        moved_bytes = change.moved_bytes;
    };
    let map = source.carry_out(&store, walk.rate.map(|rate| rate.0), progress).await;
    bar.finish_and_clear();
    let map = map?;
    store.settle().await;
    (changed.done, changed.epoch, changed.moved_bytes) = (true, map.epoch, moved_bytes);
    Ok(())
}

fn describe(changed: &Changed) -> String {
    let Changed { kind, moves_percent, least_percent, done, epoch, moved_bytes, given_up, returned, next } = changed;
    let members = |how, members: &[String]| match members {
        [] => String::new(),
        members => format!("{how}: {} (epoch {epoch})\n", members.join(", ")),
    };
    let mut who = members("given up as lost", given_up) + &members("members as before", returned);
    who.extend(next.iter().flat_map(|next| [next, "\n"]));
    let Some(kind) = kind else {
        return if who.is_empty() { format!("no change is under way (epoch {epoch})\n") } else { who };
    };
    if *done {
        return format!("{kind}: done, epoch {epoch}; {} moved\n{who}", Size(*moved_bytes));
    }
    let percent = |percent: &Option<f64>| percent.map_or("?".into(), |percent| format!("{percent:.1} %"));
    format!(
        "{kind}: moves {} of what the pool holds (the least possible: {})\n",
        percent(moves_percent),
        percent(least_percent)
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use engine::sim::{SimConfig, World};
    use pool::CreateOptions;

    use super::*;

    /// Whatever had become of it, it was said to have been begun anew, and filled.
    #[test]
    fn of_a_member_of_which_nothing_was_begun_it_is_said_what_there_is() {
        let member = |id: u8| {
            pool::NewMember::at(
                Arc::new(device::Memory::new(16 << 20, 4096, [id; 16]).expect("a namespace")),
                "nqn.2026-01.example:test",
                1,
                Vec::new(),
            )
        };
        let members: Vec<_> = (1..4).map(member).collect();
        let create = async { pool::create(&members, &CreateOptions::default(), |_| ()).await.expect("made") };
        let map = World::new(1, SimConfig::default()).run_until(create).expect("it ends");
        let id = map.members[1].id;
        let renewed = pool::Member { incarnation: 7, ..map.members[1].clone() };
        let joint = map.begin(&Request::Renew(Box::new(renewed)), 1).expect("begun");
        assert_eq!(Renewal::of(&joint, id), Renewal::GoneOn);
        assert_eq!(Renewal::of(&joint.end_joint().end_unclean(), id), Renewal::Votes);
        assert_eq!(Renewal::of(&map, MemberId([9; 16])), Renewal::Gone);
        let words = |how: Renewal| (how.is_filled(), how.words().contains("filled"), how.words().contains("nothing"));
        assert_eq!([Renewal::Begun, Renewal::GoneOn].map(words), [(true, true, false); 2]);
        assert_eq!([Renewal::Votes, Renewal::Gone].map(words), [(false, false, true); 2]);
    }
}
