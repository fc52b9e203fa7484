//! Watching a discovery service and all that it refers to.
//!
//! Invariant: what is watched is what the last logs lead to from the first service on, within the bounds of [`super::follow`]. A
//! service that is lost keeps its place, and the ones behind it theirs, by the last log it gave.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;

use engine::sync::Notify;
use engine::task::{self, Task};
use nvme::Nqn;
use nvme::fabrics::SubsystemType;

use super::discovery::{DISCOVERY_SERVICES_MAX, DiscoveryLog, REFERRAL_DEPTH_MAX, watch};
use super::error::ConnectError;
use super::options::Options;

/// What the watches have told and nobody has taken yet: it is taken before any of them goes on for long.
#[derive(Default)]
struct Told {
    logs: RefCell<VecDeque<(SocketAddr, Result<DiscoveryLog, ConnectError>)>>,
    noticed: Notify,
}

struct Watched {
    log: Option<DiscoveryLog>,
    _task: Task<()>,
}

/// As [`watch`], for the discovery service that `options` names and all that it refers to, as [`super::follow`] does: tells the log
/// of each, with the service's address, now and after every change, for ever.
pub async fn watch_all(
    options: Options,
    mut tell: impl FnMut(SocketAddr, Result<&DiscoveryLog, &ConnectError>),
) -> Infallible {
    let told = Rc::new(Told::default());
    let first = (options.address, options.subsystem.clone());
    let mut watched = BTreeMap::new();
    loop {
        let wanted = reachable(&first, &watched);
        watched.retain(|address, _| wanted.contains_key(address));
        for (address, subsystem) in wanted {
            let options = || Options { address, subsystem, ..options.clone() };
            watched.entry(address).or_insert_with(|| Watched { log: None, _task: start(options(), &told) });
        }
        let (address, log) = next(&told).await;
        // One that is not referred to any more may have said something before it was let go.
        let Some(service) = watched.get_mut(&address) else { continue };
        tell(address, log.as_ref());
        if let Ok(log) = log {
            service.log = Some(log);
        }
    }
}

fn start(options: Options, told: &Rc<Told>) -> Task<()> {
    let (address, told) = (options.address, Rc::clone(told));
    task::spawn(async move {
        let tell = move |log: Result<&DiscoveryLog, &ConnectError>| {
            told.logs.borrow_mut().push_back((address, log.cloned().map_err(Clone::clone)));
            told.noticed.notify_all();
        };
        match watch(options, tell).await {}
    })
}

async fn next(told: &Told) -> (SocketAddr, Result<DiscoveryLog, ConnectError>) {
    loop {
        let noticed = told.noticed.notified();
        if let Some(next) = told.logs.borrow_mut().pop_front() {
            return next;
        }
        noticed.await;
    }
}

/// The services that the logs lead to, level by level.
fn reachable(first: &(SocketAddr, Nqn), watched: &BTreeMap<SocketAddr, Watched>) -> BTreeMap<SocketAddr, Nqn> {
    let mut found = BTreeMap::from([first.clone()]);
    let mut level = vec![first.0];
    for _ in 0..REFERRAL_DEPTH_MAX {
        let mut beyond = Vec::new();
        let logs = level.iter().filter_map(|address| watched.get(address)?.log.as_ref());
        for entry in logs.flat_map(|log| &log.entries).filter(|entry| entry.kind == SubsystemType::REFERRAL) {
            let Some(address) = entry.socket_address() else { continue };
            if found.len() < DISCOVERY_SERVICES_MAX && !found.contains_key(&address) {
                found.insert(address, entry.subsystem.clone());
                beyond.push(address);
            }
        }
        level = beyond;
    }
    found
}
