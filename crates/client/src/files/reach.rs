//! Reaching the namespaces that hold a file system's bytes, for programs that run their own reactors.

use std::rc::{Rc, Weak};
use std::time::Duration;

use device::ErasedMethods;
use engine::{task, time};
use fabric::host::AnyRemote;
use file::Files;
use file::data::Member;
use kv::resp::execute::together;

use crate::reach::{Way, find};

/// How this machine is called, for whoever looks at clients.
pub fn host_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "a host".into());
    host.trim().to_owned()
}

/// Between two tries to reach a member.
const PAUSE: Duration = Duration::from_secs(2);

/// As files want it.
pub fn erased(namespace: &AnyRemote) -> Rc<dyn ErasedMethods> {
    Rc::new(namespace.clone())
}

/// How a member is reached another time, as its record says it.
pub fn place_of(address: &str, nqn: &str, nsid: u32) -> String {
    format!("{address},nqn={nqn},nsid={nsid}")
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
    let found = find(way, address, nqn, nsid).await.map_err(|error| error.to_string())?;
    let [found] = <[_; 1]>::try_from(found).map_err(|found| format!("{} namespaces at {place}", found.len()))?;
    let namespace = erased(&found.namespace);
    let label = files.members().layout().label(member.index(), member.spec().bytes);
    label.check(&*namespace).await.map_err(|error| format!("{place}: {error}"))?;
    files.members().connect(member.index(), Some(namespace));
    Ok(())
}
