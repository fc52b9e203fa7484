//! Reaching the namespaces that hold a file system's bytes.

use std::rc::{Rc, Weak};
use std::time::Duration;

use ::client::members::NewMember;
use ::file::{Files, Roster};
use device::ErasedMethods;
use engine::{task, time};
use fabric::host::AnyRemote;
use kv::resp::execute::together;

use crate::client::Way;
use crate::member::MemberSpec;

/// Between two tries to reach a member.
const PAUSE: Duration = Duration::from_secs(2);

/// As files want it.
pub fn erased(namespace: &AnyRemote) -> Rc<dyn ErasedMethods> {
    Rc::new(namespace.clone())
}

/// How a member is reached another time, in a member's words.
pub fn place_of(found: &NewMember) -> String {
    format!("{},nqn={},nsid={}", found.addresses[0], found.nqn, found.nsid)
}

/// What a member fails together with: what was said of it, or its address.
pub fn domain_of(found: &NewMember) -> String {
    let said = [&found.domain.zone, &found.domain.rack, &found.domain.machine, &found.domain.drive];
    let said: Vec<&str> = said.into_iter().filter(|part| !part.is_empty()).map(String::as_str).collect();
    if said.is_empty() { found.addresses[0].clone() } else { said.join("/") }
}

/// Reaches all members that are to be reached; those that do not answer, and those that join, in the background for as long as
/// the files are there. How many were reached at once.
pub async fn connect_all(way: &Rc<Way>, files: &Rc<Files>) -> usize {
    let roster = files.roster();
    let (again, weak) = (Rc::clone(way), Rc::downgrade(roster));
    roster.set_reach(Rc::new(move |index| {
        let (way, roster) = (Rc::clone(&again), weak.upgrade());
        Box::pin(async move {
            let Some(roster) = roster else { return };
            if let Err(reason) = connect(&way, &roster, index).await {
                tracing::warn!(member = index, %reason, "a member that has joined can't be reached; it is tried again");
            }
        })
    }));
    let members = unconnected(roster);
    let connected = together(members.iter().map(|member| connect(way, roster, *member))).await;
    for (member, connected) in members.iter().zip(&connected) {
        if let Err(reason) = connected {
            tracing::warn!(member, %reason, "a member can't be reached; it is tried again");
        }
    }
    task::spawn(connect_others(Rc::clone(way), Rc::downgrade(roster))).detach();
    connected.iter().filter(|connected| connected.is_ok()).count()
}

/// Members that are to be reached, and have not been.
fn unconnected(roster: &Roster) -> Vec<u16> {
    let members = roster.members().all();
    let members = members.iter().filter(|member| !member.is_connected()).map(|member| member.index());
    members.filter(|index| roster.place_of(*index).is_some()).collect()
}

async fn connect_others(way: Rc<Way>, roster: Weak<Roster>) {
    loop {
        time::sleep(PAUSE).await;
        let Some(roster) = roster.upgrade() else { return };
        // At once: one that is silent keeps nobody waiting for the others.
        let members = unconnected(&roster);
        let connected = together(members.iter().map(|member| connect(&way, &roster, *member))).await;
        for (member, _) in members.iter().zip(&connected).filter(|(_, connected)| connected.is_ok()) {
            tracing::info!(member, "a member is back");
        }
    }
}

/// Reaches a member of a file system, and sees by its label that it is that one.
pub async fn connect(way: &Way, roster: &Roster, index: u16) -> Result<(), String> {
    let namespace = reached(way, roster, index).await?;
    // It may have been taken out meanwhile.
    if roster.place_of(index).is_some() {
        roster.members().connect(index, Some(namespace));
    }
    Ok(())
}

/// Whether a member answers, whatever is said of it, with the label that it should have.
pub async fn answers(way: &Way, roster: &Roster, index: u16) -> bool {
    reached(way, roster, index).await.is_ok()
}

async fn reached(way: &Way, roster: &Roster, index: u16) -> Result<Rc<dyn ErasedMethods>, String> {
    let place = roster.place_of(index).ok_or("the root record does not say where it is")?;
    let found = find(way, &place).await?;
    let namespace = erased(&found.namespace);
    let bytes = roster.members().get(index).map_or(0, |member| member.spec().bytes);
    let label = roster.members().layout().label(index, bytes);
    label.check(&*namespace).await.map_err(|error| format!("{place}: {error}"))?;
    Ok(namespace)
}

/// The namespace at a place that a root record says.
pub async fn find(way: &Way, place: &str) -> Result<NewMember, String> {
    let spec: MemberSpec = place.parse()?;
    let found = spec.find(way).await.map_err(|failure| failure.sentence().to_owned())?;
    let found = <[_; 1]>::try_from(found).map_err(|found| format!("{} namespaces at {place}", found.len()))?;
    let [found] = found;
    Ok(found)
}
