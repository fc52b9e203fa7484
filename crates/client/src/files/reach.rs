//! Reaching the namespaces that hold a file system's bytes, for programs that run their own reactors.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use std::time::Duration;

use device::ErasedMethods;
use engine::task::LocalFuture;
use engine::{task, time};
use fabric::host::AnyRemote;
use file::{Files, Roster};
use kv::resp::execute::together;

use crate::find::{Found, find};
use crate::way::Way;

/// How this machine is called, for whoever looks at clients.
pub fn host_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "a host".into());
    host.trim().to_owned()
}

/// Between two tries to reach a member.
const PAUSE: Duration = Duration::from_secs(2);
/// Between two looks for members that are connected anew.
const LOOKED_EVERY: Duration = Duration::from_millis(100);

/// As files want it.
pub fn erased(namespace: &AnyRemote) -> Rc<dyn ErasedMethods> {
    Rc::new(namespace.clone())
}

/// How a member is reached another time, as its record says it.
pub fn place_of(address: &str, nqn: &str, nsid: u32) -> String {
    format!("{address},nqn={nqn},nsid={nsid}")
}

/// Reaches all members that are to be reached; those that do not answer, and those that join, in the background for as long as
/// the files are there. How many were reached at once.
pub fn connect_all<'a>(way: &'a Rc<Way>, files: &'a Rc<Files>) -> LocalFuture<'a, usize> {
    Box::pin(async move {
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
        task::spawn(recheck_all(Rc::downgrade(roster))).detach();
        connected.iter().filter(|connected| connected.is_ok()).count()
    })
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

/// Reads the labels of members that are connected anew: another one may be there by now. Each by itself: one that is silent keeps
/// no other waiting.
async fn recheck_all(roster: Weak<Roster>) {
    let under_way: Rc<RefCell<BTreeSet<u16>>> = Rc::default();
    loop {
        time::sleep(LOOKED_EVERY).await;
        let Some(roster) = roster.upgrade() else { return };
        for member in roster.members().all().iter().filter(|member| member.is_strange()).map(|member| member.index()) {
            if !under_way.borrow_mut().insert(member) {
                continue;
            }
            let (members, under_way) = (Rc::clone(roster.members()), Rc::clone(&under_way));
            let checking = async move {
                match members.recheck(member).await {
                    Ok(()) => tracing::info!(member, "a member is back"),
                    Err(error) => {
                        tracing::warn!(member, %error, "a member that is connected anew is not used");
                        time::sleep(PAUSE).await;
                    }
                }
                under_way.borrow_mut().remove(&member);
            };
            task::spawn(checking).detach();
        }
    }
}

/// Reaches a member of a file system, and sees by its label that it is that one; why not, if it is not.
///
/// # Errors
/// In words.
pub fn connect<'a>(way: &'a Way, roster: &'a Roster, index: u16) -> LocalFuture<'a, Result<(), String>> {
    Box::pin(async move {
        let namespace = reached(way, roster, index).await?;
        // It may have been taken out meanwhile.
        if roster.place_of(index).is_some() {
            roster.members().connect(index, Some(namespace));
        }
        Ok(())
    })
}

/// Whether a member answers, whatever is said of it, with the label that it should have.
pub async fn answers(way: &Way, roster: &Roster, index: u16) -> bool {
    reached(way, roster, index).await.is_ok()
}

async fn reached(way: &Way, roster: &Roster, index: u16) -> Result<Rc<dyn ErasedMethods>, String> {
    let place = roster.place_of(index).ok_or("the root record does not say where it is")?;
    let namespace = erased(&find_at(way, &place).await?.namespace);
    let epoch = namespace.link().epoch;
    let bytes = roster.members().get(index).map_or(0, |member| member.spec().bytes);
    let label = roster.members().layout().label(index, bytes);
    label.check(&*namespace).await.map_err(|error| format!("{place}: {error}"))?;
    if namespace.link().epoch != epoch {
        return Err(format!("{place}: the connection was lost meanwhile"));
    }
    Ok(namespace)
}

/// The namespace at a place that a member's record says.
///
/// # Errors
/// In words.
pub fn find_at<'a>(way: &'a Way, place: &'a str) -> LocalFuture<'a, Result<Found, String>> {
    Box::pin(async move {
        let strange = || format!("`{place}` is no place of a member");
        let mut parts = place.split(',');
        let (address, mut nqn, mut nsid) = (parts.next().ok_or_else(strange)?, None, None);
        for part in parts {
            match part.split_once('=').ok_or_else(strange)? {
                ("nqn", text) => nqn = Some(text.parse().map_err(|_| strange())?),
                ("nsid", text) => nsid = Some(text.parse().map_err(|_| strange())?),
                _ => return Err(strange()),
            }
        }
        let found = find(way, address, nqn, nsid).await.map_err(|error| error.to_string())?.found;
        let [found] = <[_; 1]>::try_from(found).map_err(|found| format!("{} namespaces at {place}", found.len()))?;
        Ok(found)
    })
}
