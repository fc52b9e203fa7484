//! To which controllers the namespaces of a store are attached, now and after a reconnect (NVMe Base 2.0c §5.22, §8.12).
//!
//! Our controllers are dynamic: they are made by a Connect and are gone with their association, while a namespace stays.
//! The specification says of such controllers (NVMe Base 2.0c §3.1.1.1) that those of one host begin with the same
//! attached namespaces, and that a change of one does not touch the others. So there are two notes:
//! - the controllers it is attached to, of those alive: exactly what Attach and Detach have named;
//! - the hosts whose next controller begins with it, kept with the namespace: a host gets in by Attach of one of its
//!   controllers, and out by Detach of its last one. A namespace that the operator has made begins with every host.
//!
//! A snapshot is attached to the controllers that have its source, as long as the source is there, beside those that Attach names
//! for the snapshot itself: who loses the source loses what it once held.
//!
//! Invariants:
//! - What is kept is durable before it is published, and so before it is answered.
//! - Nothing is attached to a controller before its host has shown the key that it has to show: whoever knows the host's
//!   name could hold its private namespaces otherwise.
//! - A private namespace (NMIC bit 0 clear) is never attached to two controllers. Where its controller goes and another one
//!   of a remembered host is there, as after a reconnect that was faster than the keep alive timer, that one gets it.

use std::collections::BTreeSet;
use std::sync::Arc;

use device::{ATTRIBUTE_BYTES_MAX, AnyNamespace, Namespace};
use nvme::Nqn;
use nvme::extension::CopyKind;

use super::controller::Controller;
use super::shared::{Refused, Shared, State, Subsystem};
use super::store::NamespaceStore;

/// The attribute of a namespace in which its [`Attachment`] is kept.
pub(super) const ATTRIBUTE: &str = "attachment";
/// The first byte of a record, and of one of a copy.
const VERSION: u8 = 1;
const VERSION_OF_COPY: u8 = 2;
const SHARED: u8 = 1 << 0;
const ANY_HOST: u8 = 1 << 1;

/// Hosts: those named, or all but those named.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Hosts {
    any: bool,
    named: BTreeSet<Nqn>,
}

impl Hosts {
    pub fn any() -> Hosts {
        Hosts { any: true, named: BTreeSet::new() }
    }

    pub fn include(&self, host: &Nqn) -> bool {
        self.any != self.named.contains(host)
    }

    /// A host without a name can't be told from another one, and begins with what any host does.
    pub fn set(&mut self, host: &Nqn, included: bool) {
        if host.is_unnamed() {
            return;
        }
        if included == self.any {
            self.named.remove(host);
        } else {
            self.named.insert(host.clone());
        }
    }
}

/// What a namespace is a copy of, and by which name its host knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CopyOf {
    pub kind: CopyKind,
    /// NGUID of the source.
    pub source: [u8; 16],
    /// Its identifier, as long as it is there.
    pub source_nsid: u32,
    pub tag: [u8; 32],
}

/// Where a namespace belongs, as it is kept with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Attachment {
    pub subsystem: Nqn,
    pub nsid: u32,
    pub group: u32,
    /// Several controllers may have it at a time (NMIC bit 0).
    pub shared: bool,
    pub hosts: Hosts,
    /// Of a namespace that a host had copied from another one. In the same record, so that it is never there without.
    pub copy: Option<CopyOf>,
}

impl Attachment {
    pub fn is_snapshot(&self) -> bool {
        self.copy.as_ref().is_some_and(|copy| copy.kind == CopyKind::Snapshot)
    }

    /// What is kept with a namespace; the error says why it can't be read.
    pub fn of(namespace: &AnyNamespace) -> Result<Option<Attachment>, String> {
        let kept = namespace.attribute(ATTRIBUTE).map_err(|error| error.to_string())?;
        let wrong = || "it is of a newer version, or damaged".to_owned();
        kept.map(|bytes| Attachment::decode(&bytes).ok_or_else(wrong)).transpose()
    }

    /// ```text
    ///  0 version 1, of a copy 2 | 1 flags: bit 0 shared, bit 1 any host but those named | 2 NSID | 6 ANA group
    ///  10 length of the subsystem's name, name | number of hosts, and of each the length of its name, and the name
    ///  of a copy: kind, NGUID of the source, its NSID, tag
    /// ```
    /// `None` where it is longer than an attribute may be.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let flags = if self.shared { SHARED } else { 0 } | if self.hosts.any { ANY_HOST } else { 0 };
        let version = if self.copy.is_some() { VERSION_OF_COPY } else { VERSION };
        let mut bytes = vec![version, flags];
        bytes.extend(self.nsid.to_le_bytes());
        bytes.extend(self.group.to_le_bytes());
        let name = |bytes: &mut Vec<u8>, nqn: &Nqn| {
            bytes.push(nqn.as_str().len() as u8); // an NQN has at most 223 bytes
            bytes.extend(nqn.as_str().as_bytes());
        };
        name(&mut bytes, &self.subsystem);
        bytes.push(u8::try_from(self.hosts.named.len()).ok()?);
        self.hosts.named.iter().for_each(|host| name(&mut bytes, host));
        if let Some(CopyOf { kind, source, source_nsid, tag }) = &self.copy {
            bytes.push(kind.code() as u8);
            bytes.extend(source);
            bytes.extend(source_nsid.to_le_bytes());
            bytes.extend(tag);
        }
        (bytes.len() <= ATTRIBUTE_BYTES_MAX).then_some(bytes)
    }

    pub fn decode(bytes: &[u8]) -> Option<Attachment> {
        let (&[version, flags, ref words @ ..], mut rest) = bytes.split_first_chunk::<10>()?;
        if ![VERSION, VERSION_OF_COPY].contains(&version) || flags & !(SHARED | ANY_HOST) != 0 {
            return None;
        }
        let word = |at: usize| u32::from_le_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
        let (nsid, group) = (word(0), word(4));
        let subsystem = take_name(&mut rest)?;
        let (&count, tail) = rest.split_first()?;
        rest = tail;
        let named = (0..count).map(|_| take_name(&mut rest)).collect::<Option<BTreeSet<Nqn>>>()?;
        let hosts = Hosts { any: flags & ANY_HOST != 0, named };
        let copy = if version == VERSION_OF_COPY { Some(take_copy(&mut rest)?) } else { None };
        rest.is_empty().then_some(Attachment { subsystem, nsid, group, shared: flags & SHARED != 0, hosts, copy })
    }
}

/// A name with its length before it, from the start of `rest`.
fn take_name(rest: &mut &[u8]) -> Option<Nqn> {
    let (&length, tail) = rest.split_first()?;
    let (name, tail) = tail.split_at_checked(usize::from(length))?;
    *rest = tail;
    std::str::from_utf8(name).ok()?.parse().ok()
}

/// What a namespace is a copy of, from the start of `rest`.
fn take_copy(rest: &mut &[u8]) -> Option<CopyOf> {
    let (&[kind], tail) = rest.split_first_chunk()?;
    let (&source, tail) = tail.split_first_chunk()?;
    let (&nsid, tail) = tail.split_first_chunk()?;
    let (&tag, tail) = tail.split_first_chunk()?;
    *rest = tail;
    Some(CopyOf { kind: CopyKind::from_code(kind.into())?, source, source_nsid: u32::from_le_bytes(nsid), tag })
}

/// A namespace of a store.
pub(super) struct Managed {
    pub store: Arc<dyn NamespaceStore>,
    pub attachment: Attachment,
    /// Of the controllers alive those it is attached to.
    pub controllers: BTreeSet<u16>,
}

impl Managed {
    /// A new controller of a subsystem gets what its host begins with.
    pub fn greet(&mut self, controller: &Controller) -> bool {
        let free = self.attachment.shared || self.controllers.is_empty();
        let meant = controller.is_let_in() && self.attachment.hosts.include(controller.host());
        free && meant && self.controllers.insert(controller.id())
    }
}

impl Subsystem {
    /// Whether the controller has the namespace: what is of no store is the operator's, and is attached to all.
    pub fn is_attached(&self, nsid: u32, controller: u16) -> bool {
        self.managed.get(&nsid).is_none_or(|managed| {
            let followed = self.followed(managed).and_then(|source| self.managed.get(&source));
            [Some(managed), followed].into_iter().flatten().any(|found| found.controllers.contains(&controller))
        })
    }

    /// Whether the namespace is active for the controller: attached, and of an I/O command set that its host has enabled.
    pub fn has(&self, nsid: u32, controller: &Controller) -> bool {
        let enabled = self.namespaces.get(&nsid).is_none_or(|found| found.zoned.is_none() || controller.has_all_sets());
        enabled && self.is_attached(nsid, controller.id())
    }

    /// Of a snapshot the identifier of its source, as long as that is there.
    fn followed(&self, managed: &Managed) -> Option<u32> {
        let copy = managed.attachment.copy.as_ref().filter(|copy| copy.kind == CopyKind::Snapshot)?;
        let source = self.namespaces.get(&copy.source_nsid)?;
        (source.info.nguid == copy.source).then_some(source.nsid)
    }

    /// A namespace and its snapshots: what is attached to a controller, and detached, together.
    pub fn with_followers(&self, nsid: u32) -> Vec<u32> {
        let followers = self.managed.iter().filter(|(_, managed)| self.followed(managed) == Some(nsid));
        [nsid].into_iter().chain(followers.map(|(&follower, _)| follower)).collect()
    }

    /// The ANA log of a controller names a namespace that it has got, or names one no more that it has lost. The namespaces
    /// concerned.
    pub fn attachment_changed(&mut self, nsid: u32) -> Vec<u32> {
        let concerned = self.with_followers(nsid);
        for attached in concerned.iter().filter_map(|nsid| self.namespaces.get(nsid)) {
            self.groups.members_changed(attached.group);
        }
        concerned
    }

    /// Gives a new controller what its host begins with.
    pub fn greet(&mut self, controller: &Controller) {
        for managed in self.managed.values_mut() {
            managed.greet(controller);
        }
    }
}

impl Shared {
    /// The host of a controller has shown whatever it must: from now on the controller is one like the others.
    ///
    /// # Errors
    /// Another host has come meanwhile with its identifier: the controller has ended.
    pub fn let_in(&self, controller: &Controller) -> Result<(), Refused> {
        let mut state = self.lock();
        if state.has_another(controller.subsystem(), &controller.host_id()) {
            controller.end();
            return Err(Refused::HostId);
        }
        if controller.let_in()
            && let Some(subsystem) = state.subsystems.get_mut(controller.subsystem())
        {
            subsystem.greet(controller);
        }
        Ok(())
    }
}

impl State {
    /// The hosts that have a namespace at the moment, each once.
    pub fn hosts_with(&self, nqn: &Nqn, nsid: u32) -> Vec<Nqn> {
        let subsystem = self.subsystems.get(nqn).filter(|subsystem| subsystem.managed.contains_key(&nsid));
        let has = |controller: &&Arc<Controller>| {
            let of = |subsystem: &Subsystem| subsystem.is_attached(nsid, controller.id());
            controller.subsystem() == nqn && subsystem.is_some_and(of)
        };
        let alive = self.controllers.values().filter(has).filter(|controller| !controller.is_ended());
        let hosts: BTreeSet<&Nqn> = alive.map(|controller| controller.host()).collect();
        hosts.into_iter().cloned().collect()
    }

    /// Forgets a controller that has gone. What changes for others: namespaces, and the controllers that got them.
    pub fn part(&mut self, gone: &Controller) -> Vec<(u32, u16)> {
        let State { subsystems, controllers, .. } = self;
        let Some(subsystem) = subsystems.get_mut(gone.subsystem()) else { return Vec::new() };
        let mut got = Vec::new();
        for (&nsid, managed) in &mut subsystem.managed {
            if managed.controllers.remove(&gone.id()) && !managed.attachment.shared {
                let others = controllers.values().filter(|other| other.subsystem() == gone.subsystem());
                let heir = others.filter(|other| other.id() != gone.id()).find(|other| managed.greet(other));
                got.extend(heir.map(|heir| (nsid, heir.id())));
            }
        }
        got
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nqn(name: &str) -> Nqn {
        format!("nqn.2026-01.example:{name}").parse().expect("an NQN")
    }

    fn attachment() -> Attachment {
        let mut hosts = Hosts::default();
        hosts.set(&nqn("a"), true);
        hosts.set(&nqn("b"), true);
        Attachment { subsystem: nqn("s"), nsid: 7, group: 3, shared: true, hosts, copy: None }
    }

    #[test]
    fn hosts_are_those_named_or_all_others() {
        for mut hosts in [Hosts::any(), Hosts::default()] {
            let before = hosts.clone();
            for included in [true, false, true] {
                hosts.set(&nqn("a"), included);
                hosts.set(&nqn("a"), included);
                assert_eq!(hosts.include(&nqn("a")), included);
                assert_eq!(hosts.include(&nqn("b")), before.any);
            }
            hosts.set(&nqn("a"), before.any);
            assert_eq!(hosts, before, "nothing is kept of a host that is as all others");
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_nothing_else_is() {
        let copy = |kind| Some(CopyOf { kind, source: [1; 16], source_nsid: 9, tag: [2; 32] });
        let records = [
            attachment(),
            Attachment { shared: false, hosts: Hosts::any(), ..attachment() },
            Attachment { copy: copy(CopyKind::Snapshot), ..attachment() },
            Attachment { copy: copy(CopyKind::Clone), hosts: Hosts::any(), ..attachment() },
        ];
        for record in records {
            let bytes = record.encode().expect("it fits");
            assert_eq!(Attachment::decode(&bytes), Some(record));
            for cut in 0..bytes.len() {
                assert_eq!(Attachment::decode(&bytes[..cut]), None, "cut to {cut} bytes");
            }
            let longer = [&bytes[..], &[0]].concat();
            assert_eq!(Attachment::decode(&longer), None);
            for other in [0, 3 - bytes[0], 3] {
                let record = [&[other], &bytes[1..]].concat();
                assert_eq!(Attachment::decode(&record), None, "of version {other}");
            }
        }
    }

    #[test]
    fn a_record_with_too_many_hosts_is_none() {
        let mut record = attachment();
        for number in 0..100 {
            record.hosts.set(&nqn(&format!("a-host-with-a-name-of-some-length-{number}")), true);
        }
        assert_eq!(record.encode(), None);
    }
}
