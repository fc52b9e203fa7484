//! The keys that a target knows: retained ones of its hosts, generated ones for as long as they hold.
//!
//! Invariants:
//! - A key is found only under the very identity that it has: the host's and the subsystem's name are part of it, so what is
//!   found says who is at the other end and for which subsystem. The connection's Connect command must say the same.
//! - What is kept is bounded: hosts by [`HOST_KEYS_MAX`], generated keys by [`GENERATED_MAX`], [`GENERATED_PER_HOST_MAX`] and
//!   [`GENERATED_TIME_MAX`].
//! - A generated key ends with the association that was made with it: whoever learned it afterwards could begin nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::time::Instant;
use nvme::Nqn;
use tls::{FindPsk, Psk};

use super::identity::{Identity, Origin};
use super::keys::{RetainedPsk, TlsPsk};

/// Keys of hosts. Guessed: several for each of as many hosts as a target has controllers.
pub const HOST_KEYS_MAX: usize = 4096;
/// Generated keys. Derived: one for each controller that a target may have; the oldest makes room.
pub const GENERATED_MAX: usize = 1024;
/// Generated keys of one host for one subsystem. Guessed: several paths, each from several reactors; the oldest makes room.
pub const GENERATED_PER_HOST_MAX: usize = 64;
/// How long a generated key waits for its host to come back with it (NVMe Base 2.0c §8.13.5.9 leaves it open); from then on
/// it holds as long as the association does. Chosen: far more than a host takes that authenticates and connects anew.
pub const GENERATED_TIME_MAX: Duration = Duration::from_secs(60);

/// Too many keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a target keeps at most {HOST_KEYS_MAX} keys of hosts; take some away first")]
pub struct KeyringError;

/// A host's key, and what for.
struct HostKey {
    /// Only for this subsystem; `None`: for every one.
    subsystem: Option<Nqn>,
    retained: Arc<RetainedPsk>,
}

impl HostKey {
    /// Whether it may be what a client names so, as far as that is seen without computing anything.
    fn may_be(&self, named: &Identity) -> bool {
        // Whoever may use one subsystem may ask what there is.
        let meant = |own: &Nqn| *own == named.subsystem || named.subsystem.is_discovery();
        self.retained.hash() == named.hash && self.subsystem.as_ref().is_none_or(meant)
    }
}

struct Generated {
    psk: Arc<TlsPsk>,
    /// When it was made: the oldest makes room.
    number: u64,
    /// Until when it waits for its host.
    ends: Instant,
    /// Associations that live by it. While there are any it does not end.
    holds: usize,
    /// What has made it is no key any more: no further association begins by it.
    superseded: bool,
}

#[derive(Default)]
struct State {
    hosts: BTreeMap<Nqn, Vec<HostKey>>,
    generated: BTreeMap<Identity, Generated>,
    /// Of the last key that was generated.
    number: u64,
}

impl State {
    /// Drops the oldest of the generated keys that are `meant` if there are `most` of them.
    fn make_room(&mut self, most: usize, meant: impl Fn(&Identity) -> bool) {
        let found = || self.generated.iter().filter(|(identity, _)| meant(identity));
        if found().count() < most {
            return;
        }
        // Those that nobody lives by go first.
        let oldest = found().min_by_key(|(_, key)| (key.holds > 0, key.number)).map(|(identity, _)| identity.clone());
        if let Some(oldest) = oldest {
            self.generated.remove(&oldest);
        }
    }
}

/// An association that lives by a generated key; with the last one the key is forgotten.
pub struct Hold {
    keyring: Arc<Keyring>,
    identity: Identity,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.keyring.lock();
        let Some(key) = state.generated.get_mut(&self.identity) else { return };
        key.holds -= 1;
        if key.holds == 0 {
            state.generated.remove(&self.identity);
        }
    }
}

/// See the module.
#[derive(Default)]
pub struct Keyring {
    state: Mutex<State>,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        write!(f, "Keyring({} hosts, {} generated keys)", state.hosts.len(), state.generated.len())
    }
}

impl Keyring {
    /// A panic while the lock was held leaves maps that are still valid: each change is one insertion or removal.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps keys of their host, for one subsystem or for all, beside what is there.
    ///
    /// # Errors
    /// Too many keys.
    pub fn add(&self, keys: Vec<RetainedPsk>, subsystem: Option<&Nqn>) -> Result<(), KeyringError> {
        let mut state = self.lock();
        let count: usize = state.hosts.values().map(Vec::len).sum();
        if count + keys.len() > HOST_KEYS_MAX {
            return Err(KeyringError);
        }
        for retained in keys {
            let kept = state.hosts.entry(retained.host().clone()).or_default();
            kept.push(HostKey { subsystem: subsystem.cloned(), retained: Arc::new(retained) });
        }
        Ok(())
    }

    /// Forgets the keys that `host` was given for a subsystem. Of generated ones see [`Keyring::remove_generated`].
    pub fn remove(&self, host: &Nqn, subsystem: &Nqn) {
        let mut state = self.lock();
        if let Some(keys) = state.hosts.get_mut(host) {
            keys.retain(|key| key.subsystem.as_ref() != Some(subsystem));
            if keys.is_empty() {
                state.hosts.remove(host);
            }
        }
    }

    /// Keeps a key that authentication has generated, beside others for the same names: each path of a host has its own.
    pub fn add_generated(&self, psk: TlsPsk, now: Instant) {
        let mut state = self.lock();
        let identity = psk.identity().clone();
        state.make_room(GENERATED_PER_HOST_MAX, |known| {
            known.host == identity.host && known.subsystem == identity.subsystem
        });
        state.make_room(GENERATED_MAX, |_| true);
        state.number += 1;
        let (number, ends) = (state.number, now + GENERATED_TIME_MAX);
        let generated = Generated { psk: Arc::new(psk), number, ends, holds: 0, superseded: false };
        state.generated.insert(identity, generated);
    }

    /// An association lives by this key from here on. `None`: it has ended meanwhile, is superseded, or is no generated one.
    pub fn hold(self: &Arc<Keyring>, identity: &Identity) -> Option<Hold> {
        let mut state = self.lock();
        state.generated.get_mut(identity).filter(|key| !key.superseded)?.holds += 1;
        drop(state);
        Some(Hold { keyring: self.clone(), identity: identity.clone() })
    }

    /// Forgets generated keys whose host has not come back in time.
    pub fn expire(&self, now: Instant) {
        self.lock().generated.retain(|_, key| key.holds > 0 || key.ends > now);
    }

    /// Forgets the generated keys of `host` for a subsystem: all, or those by which no association lives. By one that stays no
    /// further one begins: whoever has it would never need another.
    pub fn remove_generated(&self, host: &Nqn, subsystem: &Nqn, all: bool) {
        self.lock().generated.retain(|identity, key| {
            if identity.host != *host || identity.subsystem != *subsystem {
                return true;
            }
            key.superseded = true;
            key.holds > 0 && !all
        });
    }

    /// Whether a host has a key for a subsystem.
    pub fn has_key(&self, host: &Nqn, subsystem: &Nqn) -> bool {
        let state = self.lock();
        let retained = state.hosts.get(host).is_some_and(|keys| {
            keys.iter().any(|key| key.subsystem.as_ref().is_none_or(|own| own == subsystem || subsystem.is_discovery()))
        });
        retained || state.generated.keys().any(|known| known.host == *host && known.subsystem == *subsystem)
    }

    /// Whether what a connection was begun with is a key still.
    pub fn knows(&self, psk: &TlsPsk) -> bool {
        self.find(psk.offered()).is_some_and(|found| *found.key() == *psk.key())
    }

    /// The key that a client names by `offered`. It is derived, once, for the key that is named and for no other: whoever
    /// offers names has shown nothing yet.
    pub fn find(&self, offered: &[u8]) -> Option<Arc<TlsPsk>> {
        let identity: Identity = std::str::from_utf8(offered).ok()?.parse().ok()?;
        let state = self.lock();
        if identity.origin == Origin::Generated {
            return state.generated.get(&identity).map(|key| key.psk.clone());
        }
        let keys = state.hosts.get(&identity.host)?.iter();
        let keys: Vec<_> = keys.filter(|key| key.may_be(&identity)).map(|key| key.retained.clone()).collect();
        // Other handshakes need not wait for what this one has computed.
        drop(state);
        let derive = |key: Arc<RetainedPsk>| key.tls_psk(identity.version, &identity.subsystem).ok();
        let mut named = keys.into_iter().filter(|key| key.is_named_by(&identity)).filter_map(derive);
        named.find(|psk| psk.offered() == offered).map(Arc::new)
    }
}

impl FindPsk for Keyring {
    fn find_psk(&self, identity: &[u8]) -> Option<Arc<Psk>> {
        self.find(identity).map(|found| found.psk().clone())
    }
}

#[cfg(test)]
mod tests {
    use tls::Secret;

    use super::*;
    use crate::psk::identity::IdentityVersion;
    use crate::psk::keys::{ConfiguredPsk, DERIVED, Derivation, PskHash};

    fn nqn(name: &str) -> Nqn {
        format!("nqn.2026-01.org.example:{name}").parse().expect("a name")
    }

    fn offered(key: &ConfiguredPsk, derivation: Derivation, version: IdentityVersion, host: &str, sub: &Nqn) -> TlsPsk {
        let retained = key.clone().retain(&nqn(host), derivation).expect("retained");
        retained.tls_psk(version, sub).expect("derived")
    }

    #[test]
    fn a_key_is_found_under_its_own_names_only() {
        let ring = Keyring::default();
        let key = ConfiguredPsk::random(Some(PskHash::Sha256), PskHash::Sha256).expect("random");
        let kept = key.clone().retain_all(&nqn("host"), false).expect("retained");
        ring.add(kept, Some(&nqn("sub"))).expect("room");
        for version in [IdentityVersion::Zero, IdentityVersion::One] {
            let find = |derivation, host: &str, sub: &Nqn| {
                let psk = offered(&key, derivation, version, host, sub);
                ring.find(psk.offered()).map(|found| *found.key() == *psk.key())
            };
            assert_eq!(find(Derivation::Standard, "host", &nqn("sub")), Some(true));
            assert_eq!(find(Derivation::Standard, "host", &Nqn::discovery()), Some(true));
            assert_eq!(find(Derivation::Standard, "host", &nqn("other")), None);
            assert_eq!(find(Derivation::Standard, "other", &nqn("sub")), None);
            assert_ne!(find(Derivation::Legacy, "host", &nqn("sub")), Some(true));
        }
        assert!(ring.find(b"NVMe0R01").is_none() && ring.find(&[0xFF; 600]).is_none());
        // What authentication has made is not of them.
        let made =
            TlsPsk::generated(&nqn("host"), &nqn("sub"), "AAAA", &Secret::new(vec![7; 32])).expect("the right length");
        ring.add_generated(made, Instant::default());
        ring.remove(&nqn("host"), &nqn("sub"));
        assert!(ring.has_key(&nqn("host"), &nqn("sub")));
        ring.remove_generated(&nqn("host"), &nqn("sub"), true);
        assert!(!ring.has_key(&nqn("host"), &nqn("sub")));
    }

    /// Every key of the host was derived for every name that a client offered, also those for other subsystems, before anything
    /// of the name was compared: two hundred names in a ClientHello bought thousands of derivations.
    #[test]
    fn a_name_costs_one_derivation_and_that_only_where_it_is_a_keys_name() {
        let ring = Keyring::default();
        let make = || ConfiguredPsk::random(None, PskHash::Sha256).expect("random");
        let keys: Vec<ConfiguredPsk> = (0..20).map(|_| make()).collect();
        for key in &keys {
            for sub in ["sub", "other"] {
                ring.add(key.clone().retain_all(&nqn("host"), false).expect("retained"), Some(&nqn(sub)))
                    .expect("room");
            }
        }
        let cost = |key: &ConfiguredPsk, version, sub: &str| {
            let psk = offered(key, Derivation::Standard, version, "host", &nqn(sub));
            let before = DERIVED.get();
            (ring.find(psk.offered()).is_some(), DERIVED.get() - before)
        };
        for version in [IdentityVersion::Zero, IdentityVersion::One] {
            assert_eq!(cost(&keys[19], version, "sub"), (true, 1), "{version:?}");
            assert_eq!(cost(&keys[19], version, "third"), (false, 0), "{version:?}");
        }
        assert_eq!(cost(&make(), IdentityVersion::One, "sub"), (false, 0));
    }

    #[test]
    fn what_old_tools_derive_is_found_where_it_is_let_in() {
        let ring = Keyring::default();
        let key = ConfiguredPsk::random(Some(PskHash::Sha384), PskHash::Sha384).expect("random");
        ring.add(key.clone().retain_all(&nqn("host"), true).expect("retained"), None).expect("room");
        for (derivation, version, right) in [
            (Derivation::Legacy, IdentityVersion::Zero, true),
            (Derivation::Legacy, IdentityVersion::One, true),
            (Derivation::Standard, IdentityVersion::One, true),
            (Derivation::Standard, IdentityVersion::Zero, false),
        ] {
            let psk = offered(&key, derivation, version, "host", &nqn("sub"));
            let found = ring.find(psk.offered()).expect("the names are right");
            assert_eq!(*found.key() == *psk.key(), right, "{derivation:?} {version:?}");
        }
    }

    #[test]
    fn a_generated_key_ends_with_its_time_or_with_the_association_that_lives_by_it() {
        let ring = Arc::new(Keyring::default());
        let make = |digest: &str| {
            TlsPsk::generated(&nqn("host"), &nqn("sub"), digest, &Secret::new(vec![7; 32])).expect("the right length")
        };
        let start = Instant::from_nanos(5);
        ring.add_generated(make("AAAA"), start);
        assert!(ring.find(make("AAAA").offered()).is_some() && ring.find(make("BBBB").offered()).is_none());
        ring.add_generated(make("BBBB"), start);
        let (one, two) = (ring.hold(make("AAAA").identity()), ring.hold(make("AAAA").identity()));
        assert!(one.is_some() && two.is_some() && ring.hold(make("CCCC").identity()).is_none());
        ring.expire(start + GENERATED_TIME_MAX);
        assert!(ring.find(make("AAAA").offered()).is_some() && ring.find(make("BBBB").offered()).is_none());
        drop(one);
        assert!(ring.find(make("AAAA").offered()).is_some(), "another association lives by it");
        drop(two);
        assert!(ring.find(make("AAAA").offered()).is_none());
        assert!(TlsPsk::generated(&nqn("host"), &nqn("sub"), "", &Secret::new(vec![7; 31])).is_err());
    }

    #[test]
    fn kept_keys_are_bounded() {
        let ring = Keyring::default();
        let key = ConfiguredPsk::random(None, PskHash::Sha256).expect("random");
        let kept = key.retain_all(&nqn("host"), false).expect("retained");
        for _ in 0..HOST_KEYS_MAX {
            ring.add(kept.clone(), None).expect("room");
        }
        assert_eq!(ring.add(kept, None), Err(KeyringError));
    }

    #[test]
    fn one_host_can_not_drive_out_the_generated_keys_of_others() {
        let ring = Arc::new(Keyring::default());
        let make = |host: &str, number: usize| {
            let key = Secret::new(vec![7; 32]);
            TlsPsk::generated(&nqn(host), &nqn("sub"), &format!("{number:04}"), &key).expect("the right length")
        };
        let start = Instant::from_nanos(5);
        ring.add_generated(make("neighbour", 0), start);
        ring.add_generated(make("host", 0), start);
        let held = ring.hold(make("host", 0).identity());
        for number in 1..GENERATED_PER_HOST_MAX + 2 {
            ring.add_generated(make("host", number), start);
        }
        assert!(ring.find(make("neighbour", 0).offered()).is_some());
        assert!(ring.find(make("host", 0).offered()).is_some(), "one that is lived by goes last");
        assert!(ring.find(make("host", 1).offered()).is_none() && ring.find(make("host", 3).offered()).is_some());
        assert_eq!(ring.lock().generated.len(), GENERATED_PER_HOST_MAX + 1);
        drop(held);
    }

    #[test]
    fn generated_keys_are_bounded() {
        let ring = Keyring::default();
        for number in 0..GENERATED_MAX + 5 {
            let (host, key) = (nqn(&format!("host{number}")), Secret::new(vec![7; 32]));
            let psk = TlsPsk::generated(&host, &nqn("sub"), "AAAA", &key).expect("the right length");
            ring.add_generated(psk, Instant::from_nanos(number as u64));
        }
        assert_eq!(ring.lock().generated.len(), GENERATED_MAX);
        assert!(!ring.has_key(&nqn("host4"), &nqn("sub")) && ring.has_key(&nqn("host5"), &nqn("sub")));
    }
}
