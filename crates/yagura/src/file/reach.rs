//! Reaching the namespaces that hold a file system's bytes.

use std::rc::{Rc, Weak};
use std::time::Duration;

use ::client::members::NewMember;
use ::file::Files;
use ::file::data::Member;
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

/// Reaches all members, those that do not answer in the background for as long as the files are there. How many were reached at
/// once.
pub async fn connect_all(way: &Rc<Way>, files: &Rc<Files>) -> usize {
    let members = files.members().all();
    let connected = together(members.iter().map(|member| connect(way, files, member))).await;
    for (member, connected) in members.iter().zip(&connected) {
        if let Err(reason) = connected {
            tracing::warn!(member = member.index(), %reason, "a member can't be reached; it is tried again");
            task::spawn(connect_later(Rc::clone(way), Rc::downgrade(files), Rc::clone(member))).detach();
        }
    }
    connected.iter().filter(|connected| connected.is_ok()).count()
}

async fn connect_later(way: Rc<Way>, files: Weak<Files>, member: Rc<Member>) {
    loop {
        time::sleep(PAUSE).await;
        let Some(files) = files.upgrade() else { return };
        if connect(&way, &files, &member).await.is_ok() {
            tracing::info!(member = member.index(), "a member is back");
            return;
        }
    }
}

async fn connect(way: &Way, files: &Files, member: &Member) -> Result<(), String> {
    let place = files.place_of(member.index()).ok_or("the root record does not say where it is")?;
    let spec: MemberSpec = place.parse()?;
    let found = spec.find(way).await.map_err(|failure| failure.sentence().to_owned())?;
    let [found] = <[_; 1]>::try_from(found).map_err(|found| format!("{} namespaces at {place}", found.len()))?;
    let namespace = erased(&found.namespace);
    let label = files.members().layout().label(member.index(), member.spec().bytes);
    label.check(&*namespace).await.map_err(|error| format!("{place}: {error}"))?;
    files.members().connect(member.index(), Some(namespace));
    Ok(())
}
