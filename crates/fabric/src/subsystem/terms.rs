//! [`Terms`]: on which terms a host is let in, as they are at one moment.
//!
//! Invariants:
//! - A controller is listed on terms that hold under the lock under which it is listed. They are looked up before that, for what
//!   has to be had first (a place to authenticate), and looked up once more then: a host that had no keys at the first look, and
//!   was given some before its controller was listed, would be in without having shown one.
//! - Whoever changes the terms of a host ends the controllers that are listed. So none is left on others.

use nvme::Nqn;

use super::controller::Identity;
use super::guests::Standing;
use super::secure::TlsPolicy;
use super::shared::{Refused, Shared, State, Subsystem};
use crate::auth::HostKeys;
use crate::psk::{self, Origin, TlsPsk};

/// How a queue that is being connected has come.
#[derive(Clone, Copy)]
pub(super) struct Entrance<'a> {
    pub qid: u16,
    /// The key that TLS was begun with; `None`: a plain connection.
    pub psk: Option<&'a TlsPsk>,
}

impl Entrance<'_> {
    /// The key that authentication has made: its host has authenticated itself by that.
    pub fn generated(&self) -> Option<&psk::Identity> {
        self.psk.map(TlsPsk::identity).filter(|identity| identity.origin == Origin::Generated)
    }
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Terms {
    pub standing: Standing,
    /// It has come plain, and has to make a key for TLS by authentication before anything else.
    pub concatenate: bool,
    /// It has to authenticate.
    pub authenticate: bool,
}

impl State {
    /// `proves`: the host shows a key before it is in.
    fn standing(&self, identity: &Identity, proves: bool) -> Standing {
        let subsystem = self.subsystems.get(&identity.subsystem);
        match subsystem.map(|subsystem| subsystem.access.lists(&identity.host)) {
            None => Standing::Discovery,
            Some(true) if proves => Standing::Proven,
            Some(true) => Standing::Named,
            Some(false) => Standing::Guest,
        }
    }

    /// The subsystems that a host means which asks for this one: all, where that is the discovery subsystem, which is no one's.
    fn meant<'a>(&'a self, wanted: &'a Nqn) -> impl Iterator<Item = &'a Subsystem> {
        let meant = self.subsystems.iter().filter(move |(nqn, _)| wanted.is_discovery() || *nqn == wanted);
        meant.map(|(_, subsystem)| subsystem)
    }

    /// The keys by which a host authenticates to a subsystem. To the discovery subsystem, which is no one's, by those of any: it
    /// shows what the host may use of all of them, and the host does not say which it has in mind.
    pub fn host_keys(&self, subsystem: &Nqn, host: &Nqn) -> Vec<HostKeys> {
        let mut found: Vec<HostKeys> = Vec::new();
        for keys in self.meant(subsystem).filter_map(|meant| meant.access.config(host).keys) {
            if !found.contains(&keys) {
                found.push(keys);
            }
        }
        found
    }

    /// Whether a host that has come in plain has to make a key for TLS by authentication before anything else, and to come
    /// back with it.
    fn must_concatenate(&self, identity: &Identity, qid: u16) -> Result<bool, Refused> {
        if identity.secure {
            return Ok(false);
        }
        let of_port = self.ports.get(identity.port).is_some_and(|port| port.config.tls == TlsPolicy::Required);
        let (host, wanted) = (&identity.host, &identity.subsystem);
        // What of the discovery subsystem is everybody's is so for hosts that must use TLS elsewhere.
        let (mut of_host, mut may) = (false, false);
        for subsystem in self.meant(wanted) {
            let config = subsystem.access.config(host);
            of_host |= config.tls_required && !wanted.is_discovery();
            may |= config.concatenation && config.keys.is_some();
        }
        let must = of_port || of_host;
        if must && !(may && qid == 0) { Err(Refused::Insecure) } else { Ok(must) }
    }
}

impl Shared {
    /// The terms on which a queue may be connected, as they are in `state`.
    ///
    /// # Errors
    /// The host is not let in.
    pub fn terms(&self, state: &State, identity: &Identity, entrance: &Entrance<'_>) -> Result<Terms, Refused> {
        state.admit(identity)?;
        let all = self.config.require_authentication;
        let has_keys = !state.host_keys(&identity.subsystem, &identity.host).is_empty();
        if all && !has_keys {
            return Err(Refused::Host);
        }
        // What TLS was begun with may have been taken away since the handshake.
        if entrance.psk.is_some_and(|psk| !self.secure.knows(psk)) {
            return Err(Refused::Host);
        }
        let concatenate = state.must_concatenate(identity, entrance.qid)?;
        // What the discovery subsystem says is open to hosts with keys too, as it is at other targets, unless everybody has
        // to authenticate.
        let open = identity.subsystem.is_discovery() && !all && !concatenate;
        let authenticate = has_keys && !open && entrance.generated().is_none();
        let standing = state.standing(identity, authenticate || concatenate || entrance.psk.is_some());
        Ok(Terms { standing, concatenate, authenticate })
    }

    /// The same as they are at the moment.
    ///
    /// # Errors
    /// The host is not let in.
    pub fn look_up(&self, identity: &Identity, entrance: &Entrance<'_>) -> Result<Terms, Refused> {
        self.terms(&self.lock(), identity, entrance)
    }
}
