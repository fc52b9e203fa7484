//! Under which keys the records are.
//!
//! ```text
//! /pool                 the policy
//! /node/NAME            /drive/NAME            /tenant/NAME          /token/ID
//! /subsystem/NQN        the drive that is this subsystem: no subsystem is two drives
//! /volume/TENANT/NAME   /operation/ID
//! /request/SCOPE/ID     a request that was done, below the id of the caller's tenant, "" for the operator, "-" if it was not named
//! /todo/ID              an operation that has not ended
//! /taken/ID             who goes on with it: a key of the worker's lease
//! /wanted/ID              what the operation asks of the host that has the volume attached, and what has come of it
//! /busy/DRIVE           the operation that has the drive to itself
//! ```

use uuid::Uuid;

use crate::catalogue::{Key, Prefix};

use super::name::{Name, Nqn, RequestId};

fn key(text: String) -> Key {
    // Two names or a qualified name, and a word before them: less than half of the limit, and never a reserved first byte.
    Key::new(text).expect("words of bounded length make a key")
}

/// All keys of a kind.
pub(super) fn all(kind: &str) -> Prefix {
    Prefix::new(format!("/{kind}/")).expect("a short word makes a prefix")
}

/// All keys of a kind below a name.
pub(super) fn below(kind: &str, name: &Name) -> Prefix {
    Prefix::new(format!("/{kind}/{name}/")).expect("a short word and a name make a prefix")
}

pub(super) fn pool() -> Key {
    key("/pool".into())
}

pub(super) fn node(name: &Name) -> Key {
    key(format!("/node/{name}"))
}

pub(super) fn drive(name: &Name) -> Key {
    key(format!("/drive/{name}"))
}

pub(super) fn subsystem(nqn: &Nqn) -> Key {
    key(format!("/subsystem/{nqn}"))
}

pub(super) fn tenant(name: &Name) -> Key {
    key(format!("/tenant/{name}"))
}

pub(super) fn volume(tenant: &Name, name: &Name) -> Key {
    key(format!("/volume/{tenant}/{name}"))
}

pub(super) fn operation(id: Uuid) -> Key {
    key(format!("/operation/{id}"))
}

pub(super) fn todo(id: Uuid) -> Key {
    key(format!("/todo/{id}"))
}

/// The operation that a key of `todo` is of.
pub(super) fn id_of(key: &Key) -> Option<Uuid> {
    let name = key.as_bytes().rsplit(|byte| *byte == b'/').next()?;
    Uuid::try_parse_ascii(name).ok()
}

pub(super) fn taken(id: Uuid) -> Key {
    key(format!("/taken/{id}"))
}

pub(super) fn work(id: Uuid) -> Key {
    key(format!("/wanted/{id}"))
}

pub(super) fn busy(drive: &Name) -> Key {
    key(format!("/busy/{drive}"))
}

pub(super) fn token(id: Uuid) -> Key {
    key(format!("/token/{id}"))
}

pub(super) fn request(scope: Option<Uuid>, id: &RequestId) -> Key {
    let scope = scope.map(|tenant| tenant.to_string()).unwrap_or_default();
    key(format!("/request/{scope}/{id}"))
}

/// Of a request that nobody has named: apart from those that somebody may send again.
pub(super) fn unnamed(id: &RequestId) -> Key {
    key(format!("/request/-/{id}"))
}
