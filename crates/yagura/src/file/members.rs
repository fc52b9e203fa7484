//! `yagura file member …`: members are shown, join, are emptied and taken out, beside whoever has the file system mounted.

use std::rc::Rc;

use ::client::members::NewMember;
use ::file::data::{Label, LabelError};
use ::file::meta::{Meta, StoreMeta};
use ::file::record::root::{MemberRecord, MemberState};
use ::file::{Roster, RosterError};
use device::Namespace;
use kv::resp::execute::together;
use serde::Serialize;

use super::fault::failure;
use super::scrub::INTERRUPTED;
use super::session::{Reach, Session};
use super::{reach, rebuild};
use crate::cli::{
    FileMemberAddArgs, FileMemberDrainArgs, FileMemberListArgs, FileMemberRemoveArgs, FileMemberReplaceArgs,
    FileMemberVerb, PoolAddress,
};
use crate::client::{self, Way};
use crate::exit::Failure;
use crate::output::{self, many};
use crate::reactors;
use crate::size::Size;

/// How often a number is tried that others may have got. Chosen: each time another one has joined.
const TRIES_MAX: u32 = 16;

/// Runs a verb.
pub fn run(verb: &FileMemberVerb) -> Result<(), Failure> {
    match verb {
        FileMemberVerb::List(args) => reactors::run_one(list(args)),
        FileMemberVerb::Add(args) => reactors::run_one(add(args)),
        FileMemberVerb::Drain(args) => {
            Session::run(&args.walk.address, INTERRUPTED, async |session| drain(args, session).await)
        }
        FileMemberVerb::Remove(args) => reactors::run_one(remove(args)),
        FileMemberVerb::Replace(args) => {
            Session::run(&args.walk.address, INTERRUPTED, async |session| replace(args, session).await)
        }
    }
}

/// Who there is, without being a client.
async fn open(address: &PoolAddress, name: &str) -> Result<(Way, Rc<Roster>), Failure> {
    let way = client::way(&address.host)?;
    let meta: Rc<dyn Meta> = Rc::new(StoreMeta::new(Rc::new(client::open(address).await?)));
    Ok((way, Roster::open(meta, name).await.map_err(failure)?))
}

/// Why members were not changed, and what to do about it.
fn refusal(name: &str, error: RosterError) -> Failure {
    match error {
        RosterError::None(_) => {
            Failure::usage(format!("{error}: `yagura file member list {name}` shows those that are"))
        }
        RosterError::TooFewDomains { .. } => Failure::refused(format!(
            "{error}: add one in another failure domain first (`yagura file member add {name}`), or put one in its place \
             (`replace`)"
        )),
        RosterError::InUse(member) => {
            Failure::refused(format!("{error}: empty it first, by `yagura file member drain {name} {member}`"))
        }
        RosterError::Held { .. } => {
            Failure::refused(format!("{error}: `yagura file rebuild {name}` moves away what lies there"))
        }
        RosterError::NoRoom { .. } => Failure::out_of_space(format!(
            "{error}: add a member first (`yagura file member add {name}`); --force begins all the same"
        )),
        RosterError::Twice(member) => Failure::refused(format!(
            "{error}: if that is gone for good, and this is another one, `yagura file member replace {name} {member} … --lost`"
        )),
        RosterError::TooMany => Failure::usage(error),
        RosterError::Files(error) => failure(error),
    }
}

/// Which one of several that have one address.
#[derive(Clone, Copy)]
enum Which {
    /// None: a number is to be given.
    Only,
    /// The one that is to be empty.
    Going,
}

/// The member of this number or address. Where one has come to the address of another, whoever takes members
/// out means the one that goes.
fn find(roster: &Roster, name: &str, called: &str, which: Which) -> Result<u16, Failure> {
    let root = roster.root();
    let there = |(_, member): &(u16, &MemberRecord)| member.state != MemberState::Removed;
    let mut all = (0..).zip(&root.members).filter(there);
    let number: Option<u16> = called.parse().ok();
    let is_called = |member: &MemberRecord| member.place == called || member.place.split(',').next() == Some(called);
    let fitting: Vec<u16> = match number {
        Some(number) => all.find(|(index, _)| *index == number).map(|(index, _)| index).into_iter().collect(),
        None => all.filter(|(_, member)| is_called(member)).map(|(index, _)| index).collect(),
    };
    let goes = |index: &&u16| root.members[usize::from(**index)].state != MemberState::Active;
    let going: Vec<u16> = fitting.iter().filter(goes).copied().collect();
    match (which, &going[..], &fitting[..]) {
        (_, _, [index]) | (Which::Going, [index], _) => Ok(*index),
        (_, _, []) => Err(Failure::usage(format!(
            "no member is `{called}`: `yagura file member list {name}` shows those that are"
        ))),
        _ => Err(Failure::usage(format!("`{called}` fits members {fitting:?}: give a number"))),
    }
}

/// Refuses to call members lost that answer: what they have would not be read by mounts, and be told as lost.
async fn check_lost(way: &Way, roster: &Roster, name: &str, members: &[u16]) -> Result<(), Failure> {
    for (member, reached) in
        members.iter().zip(together(members.iter().map(|of| reach::answers(way, roster, *of))).await)
    {
        if reached {
            return Err(Failure::refused(format!(
                "member {member} answers, with its label: it is not lost. Without --lost what it has is read: `yagura file member \
                 drain {name} {member}`"
            )));
        }
    }
    Ok(())
}

#[derive(Serialize)]
struct Listed {
    member: u16,
    place: String,
    domain: String,
    state: &'static str,
    bytes: u64,
    /// Regions, and those that are taken.
    regions: u64,
    regions_taken: u64,
    /// Whether it answers, with the label that it should have; else why not.
    reached: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<String>,
}

async fn list(args: &FileMemberListArgs) -> Result<(), Failure> {
    let (way, roster) = open(&args.address, &args.name).await?;
    roster.reach_lost();
    let root = roster.root();
    let there: Vec<u16> =
        (0..).zip(&root.members).filter(|(_, at)| at.state != MemberState::Removed).map(|(index, _)| index).collect();
    let reached = together(there.iter().map(|index| reach::connect(&way, &roster, *index))).await;
    let mut listed = Vec::new();
    for (index, reached) in there.into_iter().zip(reached) {
        let MemberRecord { place, bytes, state, domain } = root.members[usize::from(index)].clone();
        let is_asked = matches!(state, MemberState::Active | MemberState::Leaving);
        listed.push(Listed {
            member: index,
            place,
            domain,
            state: state.word(),
            bytes,
            regions: roster.members().get(index).map_or(0, |member| member.regions().into()),
            regions_taken: roster.chunks_on(index).await.map_err(failure)?.len() as u64,
            reached: reached.is_ok(),
            trouble: reached.err().filter(|_| is_asked),
        });
    }
    output::report(args.common.json, &listed, |listed| {
        let mut text = format!("{:<7} {:<8} {:>10} {:>17}  {}\n", "member", "state", "size", "regions taken", "place");
        for of in listed {
            let taken = format!("{} of {}", of.regions_taken, of.regions);
            let (size, domain) = (Size(of.bytes).to_string(), &of.domain);
            text +=
                &format!("{:<7} {:<8} {size:>10} {taken:>17}  {} (domain {domain})\n", of.member, of.state, of.place);
            if of.state == "lost" && of.reached {
                text += "        it answers: drained again without --lost it is no more taken for lost\n";
            }
            if let Some(trouble) = &of.trouble {
                text += &format!("        not reached: {trouble}\n");
            }
        }
        text
    })
}

#[derive(Serialize)]
struct Added {
    name: String,
    members: Vec<u16>,
}

async fn add(args: &FileMemberAddArgs) -> Result<(), Failure> {
    let (way, roster) = open(&args.address, &args.name).await?;
    let found = crate::member::find_all(&way, &args.members).await?;
    let mut members = Vec::new();
    for found in &found {
        members.push(admit(&way, &roster, &args.name, found, None, args.force).await?);
    }
    let added = Added { name: args.name.clone(), members };
    output::report(args.common.json, &added, |added| {
        let numbers: Vec<usize> = added.members.iter().map(|member| usize::from(*member)).collect();
        format!("file system {}: {} joined; mounts hear of it within a minute", added.name, output::members(&numbers))
    })
}

/// Labels a namespace, and makes it a member: its number. One that is a member already stays what it is.
async fn admit(
    way: &Way,
    roster: &Roster,
    name: &str,
    new: &NewMember,
    instead_of: Option<u16>,
    force: bool,
) -> Result<u16, Failure> {
    let (namespace, place) = (reach::erased(&new.namespace), reach::place_of(new));
    let layout = roster.members().layout();
    let record = MemberRecord {
        place: place.clone(),
        bytes: new.namespace.info().bytes(),
        state: MemberState::Active,
        domain: reach::domain_of(new),
    };
    // The number that our label says, which another namespace has got meanwhile.
    let mut tried = None;
    for _ in 0..TRIES_MAX {
        roster.refresh().await.map_err(failure)?;
        let labelled = match Label::read(&*namespace).await {
            Ok(label) => Some(label).filter(|label| label.fs == layout.fs),
            Err(LabelError::None) => None,
            // What can't be read, or not yet, may be a member's.
            Err(error) => return Err(Failure::refused(format!("{place}: {error}"))),
        };
        let root = roster.root();
        if let Some(Label { index, .. }) = labelled
            && let Some(member) = root.members.get(usize::from(index))
            && member.state != MemberState::Removed
        {
            if member.place == place && member.state == MemberState::Active {
                return Ok(index);
            }
            // The same one by another address; of one that does not answer nobody can tell, and mounts may write there.
            let other = reach::find_at(way, &member.place).await;
            let nguid = new.namespace.info().nguid;
            let is_other = other.as_ref().is_ok_and(|other| other.namespace.info().nguid != nguid && nguid != [0; 16]);
            let is_lost = member.state == MemberState::Lost && other.is_err() && force;
            if !is_other && !is_lost {
                return Err(Failure::refused(format!(
                    "{place}: it is member {index} of this file system, or was, by its label. If that is gone for good, say so \
                     first (`yagura file member drain {name} {index} --lost`), and then --force"
                )));
            }
        }
        // Before its label is written over: it may be the member there, or another namespace by now.
        if let Some(twin) = root.member_at(&place, instead_of) {
            return Err(refusal(name, RosterError::Twice(twin)).during(place));
        }
        let is_ours = labelled.is_some_and(|label| Some(label.index) == tried);
        let index = root.members.len() as u16;
        // The label comes first: a member that can be found has it.
        layout.label(index, record.bytes).format(&*namespace, force || is_ours).await.map_err(|error| {
            Failure::refused(match error {
                LabelError::NotBlank(_) => format!("{place}: it is not blank; --force destroys what it holds"),
                error => format!("{place}: {error}"),
            })
        })?;
        match roster.add(index, &record, instead_of).await {
            Ok(true) => return Ok(index),
            // Another one has got the number meanwhile, or this one: all is looked at again.
            Ok(false) => tried = Some(index),
            Err(error) => return Err(refusal(name, error).during(place)),
        }
    }
    Err(Failure::unavailable(format!("{place}: others add members all the time")))
}

#[derive(Serialize)]
struct Emptied {
    name: String,
    members: Vec<u16>,
    /// The one that came in their place.
    #[serde(skip_serializing_if = "Option::is_none")]
    new: Option<u16>,
    removed: bool,
    rebuilt: rebuild::Report,
}

impl Emptied {
    fn describe(&self) -> String {
        let numbers: Vec<usize> = self.members.iter().map(|member| usize::from(*member)).collect();
        let who = output::members(&numbers);
        let mut text = self.rebuilt.describe(&self.name);
        let is_empty = self.members.iter().all(|member| self.rebuilt.is_empty(*member));
        text += &match (self.new, self.removed) {
            (Some(new), true) => format!("  member {new} is in the place of {who}\n"),
            (Some(new), false) => format!("  member {new} has joined; {who} can't be taken out yet\n"),
            (None, _) if !is_empty => format!("  {who} can't be taken out yet\n"),
            (None, _) => {
                let members: Vec<String> = self.members.iter().map(u16::to_string).collect();
                format!("  {who}: empty; `yagura file member remove {} {}` takes out\n", self.name, members.join(" "))
            }
        };
        text
    }
}

async fn drain(args: &FileMemberDrainArgs, session: &Session) -> Result<(), Failure> {
    let files = session.open(&args.name, Reach::LostToo).await?;
    let roster = files.roster();
    let members = args.members.iter().map(|called| find(roster, &args.name, called, Which::Only));
    let members = members.collect::<Result<Vec<u16>, Failure>>()?;
    if args.lost {
        check_lost(session.way(), roster, &args.name, &members).await?;
    }
    if !args.force {
        roster.check_room(&members).await.map_err(|error| refusal(&args.name, error))?;
    }
    roster.drain_all(&members, args.lost).await.map_err(|error| refusal(&args.name, error))?;
    let rebuilt = rebuild::rebuild(&args.walk, &files).await?;
    let emptied = Emptied { name: args.name.clone(), members, new: None, removed: false, rebuilt };
    output::report(args.walk.common.json, &emptied, Emptied::describe)?;
    emptied.rebuilt.verdict()
}

async fn replace(args: &FileMemberReplaceArgs, session: &Session) -> Result<(), Failure> {
    let files = session.open(&args.name, Reach::LostToo).await?;
    let roster = files.roster();
    let old = find(roster, &args.name, &args.old, Which::Going)?;
    if args.lost {
        check_lost(session.way(), roster, &args.name, &[old]).await?;
    }
    let found = args.new.find(session.way()).await?;
    let [found] = &found[..] else {
        let address = &args.new.address;
        return Err(Failure::usage(format!("{address}: name one namespace, by nqn and nsid")));
    };
    let instead_of = args.lost.then_some(old);
    let new = admit(session.way(), roster, &args.name, found, instead_of, args.force).await?;
    if new == old {
        return Err(Failure::usage(format!("{}: this is the member that is to go", args.new.address)));
    }
    // One that others fill already takes nobody's place: what the old one has would go to all.
    let is_active = roster.root().members[usize::from(old)].state == MemberState::Active;
    if is_active && !args.lost && !roster.chunks_on(new).await.map_err(failure)?.is_empty() {
        let name = &args.name;
        return Err(Failure::refused(format!(
            "{}: it is member {new}, and in use: `yagura file member drain {name} {old}` moves what member {old} has to all others",
            args.new.address
        )));
    }
    if !args.force {
        roster.check_room(&[old]).await.map_err(|error| refusal(&args.name, error))?;
    }
    roster.drain(old, args.lost).await.map_err(|error| refusal(&args.name, error))?;
    let rebuilt = rebuild::rebuild(&args.walk, &files).await?;
    let verdict = rebuilt.verdict();
    // Whatever fails or is lost elsewhere: it is empty.
    let removed = rebuilt.is_empty(old);
    if removed {
        roster.remove(old).await.map_err(|error| refusal(&args.name, error))?;
    }
    let name = args.name.clone();
    let emptied = Emptied { name, members: vec![old], new: Some(new), removed, rebuilt };
    output::report(args.walk.common.json, &emptied, Emptied::describe)?;
    verdict
}

#[derive(Serialize)]
struct Removed {
    name: String,
    members: Vec<u16>,
}

async fn remove(args: &FileMemberRemoveArgs) -> Result<(), Failure> {
    let (_, roster) = open(&args.address, &args.name).await?;
    let members = args.members.iter().map(|called| find(&roster, &args.name, called, Which::Going));
    let members = members.collect::<Result<Vec<u16>, Failure>>()?;
    for member in &members {
        roster.remove(*member).await.map_err(|error| refusal(&args.name, error))?;
    }
    let removed = Removed { name: args.name.clone(), members };
    output::report(args.common.json, &removed, |removed| {
        format!("file system {}: {} taken out", removed.name, many(removed.members.len() as u64, "member"))
    })
}
