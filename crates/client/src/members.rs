//! What is done to members of a pool one by one: `pool`'s functions for connections, compiled here once.

use engine::task::LocalFuture;
use fabric::host::AnyRemote;
use pool::{CreateOptions, Error, Map, Member};

use crate::source::Source;

/// A namespace that is to be a member.
pub type NewMember = pool::NewMember<AnyRemote>;

/// [`pool::create`].
pub fn create<'a>(
    members: &'a [NewMember],
    options: &'a CreateOptions,
    progress: &'a dyn Fn(f64),
) -> LocalFuture<'a, Result<Map, Error>> {
    Box::pin(pool::create(members, options, progress))
}

/// [`pool::admit`], with the newest map as `source` learns it.
pub fn admit<'a>(
    new: &'a NewMember,
    map: &'a Map,
    member: &'a Member,
    force: bool,
    source: &'a Source,
) -> LocalFuture<'a, Result<(), Error>> {
    let newest = async || source.agree(|map| Ok(map.clone())).await.map_err(|error| unsettled(new.name(), &error));
    Box::pin(pool::admit(new, map, member, force, newest))
}

/// [`pool::check_member`].
pub fn check<'a>(namespace: &'a AnyRemote, map: &'a Map, index: usize) -> LocalFuture<'a, Result<(), Error>> {
    Box::pin(async move { pool::check_member(namespace, map, index).await.map(|_epoch| ()) })
}

/// [`pool::check_returned`].
pub fn check_returned<'a>(namespace: &'a AnyRemote, map: &'a Map, index: usize) -> LocalFuture<'a, Result<(), Error>> {
    Box::pin(pool::check_returned(namespace, map, index))
}

/// [`pool::renew`], with the map settled by `source`.
pub fn renew<'a>(
    namespace: &'a AnyRemote,
    label: &'a str,
    source: &'a Source,
) -> LocalFuture<'a, Result<Option<Member>, Error>> {
    let settle =
        async |carried: Option<&Map>| source.settle(carried).await.map_err(|error| unsettled(label.to_owned(), &error));
    Box::pin(pool::renew(namespace, label, settle))
}

fn unsettled(member: String, error: &crate::Error) -> Error {
    Error::Unfit { member, reason: format!("the pool's map is not known: {error}") }
}

/// [`pool::candidate`], with a table of the usual share.
pub fn candidate<'a>(new: &'a NewMember, map: &'a Map, force: bool) -> LocalFuture<'a, Result<Member, Error>> {
    Box::pin(pool::candidate(new, map, None, force))
}
