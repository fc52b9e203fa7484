//! Descriptors: as many as the process may have, and enough of them kept for what clients must not take.

use kv::store::Store;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Connections to one member of a pool: one for administration, one for its queue, and the two that take their place while those
/// are given up. A search for the pool's newest map has as many.
const MEMBER: usize = 2 * 4;
/// Members that a pool may get while it is served. Guessed.
const NEW_MEMBERS: usize = 8;
/// What a reactor and its clients' refusals take. Derived: a ring, its event, the listener, and [`kv::resp::REFUSALS_MAX`].
const REACTOR: usize = 8 + kv::resp::REFUSALS_MAX;
/// What the process takes: standard streams, logs, files that are read, a control socket, the metrics port and its connections.
const PROCESS: usize = 32 + crate::metrics::CONNECTIONS_MAX;
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
    let limit =
        getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let members = store.map().members.len();
    let clients = clients_of(limit, members, reactors, asked);
    if clients < asked {
        tracing::warn!(
            clients,
            asked,
            limit,
            "fewer clients are let in than were asked for: raise the limit of open files (ulimit -n)"
        );
    }
    clients
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
    fn clients_have_what_the_others_leave() {
        assert_eq!(clients_of(usize::MAX, 3, 4, 4096), 4096);
        let few = clients_of(1024, 3, 2, 4096);
        assert!((200..400).contains(&few), "{few}");
        assert!(2 * (few + 3 * MEMBER) + PROCESS < 1024);
        assert_eq!(clients_of(1024, 3, 2, 10), 10);
        assert_eq!(clients_of(64, 1000, 8, 4096), CLIENTS_MIN);
    }
}
