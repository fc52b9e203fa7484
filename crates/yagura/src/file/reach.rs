//! Reaching the namespaces that hold a file system's bytes.

use ::client::files::reach;
pub use ::client::files::reach::{answers, connect, connect_all, erased, find_at, host_name};
use ::client::members::NewMember;

/// How a member is reached another time.
pub fn place_of(found: &NewMember) -> String {
    reach::place_of(&found.addresses[0], &found.nqn, found.nsid)
}

/// What a member fails together with: what was said of it, or its address.
pub fn domain_of(found: &NewMember) -> String {
    let said = [&found.domain.zone, &found.domain.rack, &found.domain.machine, &found.domain.drive];
    let said: Vec<&str> = said.into_iter().filter(|part| !part.is_empty()).map(String::as_str).collect();
    if said.is_empty() { found.addresses[0].clone() } else { said.join("/") }
}
