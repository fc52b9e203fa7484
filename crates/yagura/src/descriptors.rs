//! Descriptors: as many as the process may have, and enough of them kept for what clients must not take.

use kv::store::Store;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Connections to one member of a pool: one for administration, one for its queue, and the two that take their place while those
/// are given up. A search for the pool's newest map has as many.
const MEMBER: usize = 2 * 4;
/// Members that a pool may get while it is served. Guessed.
const NEW_MEMBERS: usize = 8;
/// What a reactor and its clients' refusals take. Derived: a ring, its event, the listener, and [`tls::REFUSALS_MAX`].
const REACTOR: usize = 8 + tls::REFUSALS_MAX;
/// What the process takes: standard streams, logs, files that are read, a control socket, the metrics port and its connections.
const PROCESS: usize = 32 + crate::metrics::CONNECTIONS_MAX;
/// What a thread of a cache and its clients' refusals take.
const CACHE_THREAD: usize = 8 + tls::REFUSALS_MAX;
/// The log of a cache on flash, and what lies beside it.
const CACHE_FLASH: usize = 8;
/// What a reactor of a target takes: a ring, its event, and what it opens to look at.
const TARGET_REACTOR: usize = 8;
/// Media of a target, those that are added while it serves too. Guessed: each takes one or two.
const MEDIA: usize = 128;
/// Clients that are let in however few descriptors there are: else nothing is served.
const CLIENTS_MIN: usize = 8;

/// Lets the process have as many descriptors as it may ask for: what a shell gives by default is often 1,024.
pub fn raise() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

/// How many clients each of `reactors` may let in, of the `asked` ones: what members, files and the operator need is kept.
pub fn clients(store: &Store, reactors: usize, asked: usize) -> usize {
    let limit = limit();
    let members = store.map().members.len();
    let clients = clients_of(limit, members, reactors, asked);
    tell_of_fewer(clients, asked, limit);
    clients
}

fn tell_of_fewer(clients: usize, asked: usize, limit: usize) {
    if clients < asked {
        tracing::warn!(
            clients,
            asked,
            limit,
            "fewer clients are let in than were asked for: raise the limit of open files (ulimit -n)"
        );
    }
}

/// How many clients a cache may let in, of the `asked` ones: beyond what there are descriptors for nobody would be accepted, nor
/// told.
pub fn cache_clients(threads: usize, asked: usize) -> usize {
    let limit = limit();
    let clients = asked.min(left_of(limit, CACHE_FLASH + threads * CACHE_THREAD));
    tell_of_fewer(clients, asked, limit);
    clients
}

/// How many connections a target may have, of the `asked` ones: its shares of an address are parts of that. Without it one
/// address could have its share of 4,096 where there are descriptors for 1,000, which is all.
pub fn connections(reactors: usize, asked: usize) -> usize {
    let connections = connections_of(limit(), reactors, asked);
    if connections < asked {
        tracing::info!(connections, "the limit of open files (ulimit -n) allows no more connections");
    }
    connections
}

fn connections_of(limit: usize, reactors: usize, asked: usize) -> usize {
    asked.min(left_of(limit, MEDIA + reactors * TARGET_REACTOR))
}

/// What the process, and `others` in it, leave to clients.
fn left_of(limit: usize, others: usize) -> usize {
    limit.saturating_sub(PROCESS + others).max(CLIENTS_MIN)
}

fn limit() -> usize {
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

fn clients_of(limit: usize, members: usize, reactors: usize, asked: usize) -> usize {
    let reactor = REACTOR + (members + NEW_MEMBERS) * MEMBER;
    let left = limit.saturating_sub(PROCESS) / reactors.max(1);
    asked.min(left.saturating_sub(reactor).max(CLIENTS_MIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_no_more_connections_than_descriptors() {
        assert_eq!(connections_of(usize::MAX, 4, 4096), 4096);
        let few = connections_of(1024, 2, 4096);
        assert!((512..900).contains(&few), "{few}");
        assert!(
            few / 4 * 4 + PROCESS + MEDIA < 1024,
            "four addresses with all of their shares leave what the target needs"
        );
        assert_eq!(connections_of(16, 2, 4096), CLIENTS_MIN);
    }

    #[test]
    fn clients_have_what_the_others_leave() {
        assert_eq!(clients_of(usize::MAX, 3, 4, 4096), 4096);
        let few = clients_of(1024, 3, 2, 4096);
        assert!((200..400).contains(&few), "{few}");
        assert!(2 * (few + 3 * MEMBER) + PROCESS < 1024);
        assert_eq!(clients_of(1024, 3, 2, 10), 10);
        assert_eq!(clients_of(64, 1000, 8, 4096), CLIENTS_MIN);
    }
}
