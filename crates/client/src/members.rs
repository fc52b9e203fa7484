//! What is done to members of a pool one by one: `pool`'s functions for connections, compiled here once.

use engine::task::LocalFuture;
use kv::AnyLink;
use pool::{CreateOptions, Error, Map, Member};

/// A namespace that is to be a member.
pub type NewMember = pool::NewMember<AnyLink>;

/// [`pool::create`].
pub fn create<'a>(members: &'a [NewMember], options: &'a CreateOptions) -> LocalFuture<'a, Result<Map, Error>> {
    Box::pin(pool::create(members, options))
}

/// [`pool::admit`].
pub fn admit<'a>(new: &'a NewMember, map: &'a Map, member: &'a Member) -> LocalFuture<'a, Result<(), Error>> {
    Box::pin(pool::admit(new, map, member))
}

/// [`pool::check_member`].
pub fn check<'a>(namespace: &'a AnyLink, map: &'a Map, index: usize) -> LocalFuture<'a, Result<(), Error>> {
    Box::pin(pool::check_member(namespace, map, index))
}

/// [`pool::renew`].
pub fn renew<'a>(
    namespace: &'a AnyLink,
    label: &'a str,
    map: &'a Map,
    index: usize,
) -> LocalFuture<'a, Result<Member, Error>> {
    Box::pin(pool::renew(namespace, label, map, index))
}

/// [`pool::candidate`], with a table of the usual share.
pub fn candidate<'a>(new: &'a NewMember, map: &'a Map, force: bool) -> LocalFuture<'a, Result<Member, Error>> {
    Box::pin(pool::candidate(new, map, None, force))
}
