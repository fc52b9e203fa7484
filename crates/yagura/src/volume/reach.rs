//! How the holders of a volume that flags name are reached.

use std::cell::RefCell;
use std::rc::Rc;

use device::Namespace;
use engine::task::LocalFuture;
use fabric::host::{AnyRemote, CopyTag};
use volume::{Error, NvmeReach, Reach, Taken, Takes};

use crate::cli::{NvmeHost, NvmeNamespace, VolumeHolders};
use crate::exit::Failure;
use crate::holder::HolderSpec;
use crate::nvme;

use super::words::name;

/// The holders, by slot.
pub fn reaches(holders: &VolumeHolders) -> Result<Vec<Rc<dyn Reach>>, Failure> {
    named(holders, &[])
}

/// The same, where it is known which namespaces they are (NGUID), by slot: a number alone may be another's by now.
pub fn named(holders: &VolumeHolders, uids: &[[u8; 16]]) -> Result<Vec<Rc<dyn Reach>>, Failure> {
    let VolumeHolders { replicas, witness, host } = holders;
    match (replicas.len(), witness) {
        (1 | 3, None) | (2, Some(_)) => {}
        (2, None) => {
            let why = "of two replicas none can say alone that the other is behind";
            return Err(Failure::usage(format!("a volume of two replicas needs --witness: {why}")));
        }
        (1 | 3, Some(_)) => return Err(Failure::usage("--witness goes with two replicas")),
        _ => return Err(Failure::usage("a volume has one, two or three replicas")),
    }
    let all = replicas.iter().chain(witness);
    let uid = |slot: usize| uids.get(slot).copied();
    Ok(all.enumerate().map(|(slot, spec)| -> Rc<dyn Reach> { Rc::new(holder(spec, host, uid(slot))) }).collect())
}

/// One holder.
pub fn reach(spec: &HolderSpec, host: &NvmeHost) -> Rc<dyn Reach> {
    Rc::new(holder(spec, host, None))
}

/// The same of which it is known which namespace it is.
pub fn known(spec: &HolderSpec, host: &NvmeHost, uid: [u8; 16]) -> Rc<dyn Reach> {
    Rc::new(holder(spec, host, Some(uid)))
}

/// No host has the volume attached, or had it last: which of both can't be told.
pub async fn check_untaken(reaches: &[Rc<dyn Reach>]) -> Result<(), Failure> {
    for reach in reaches {
        if let Err(Error::Device { source: device::Error::Reserved(_), .. }) = volume::inspect(&**reach, false).await {
            let what = "a host has the volume attached, or had it last; take it from that host by --take";
            return Err(Failure::refused(format!("{}: {what}", reach.name())));
        }
    }
    Ok(())
}

fn holder(spec: &HolderSpec, host: &NvmeHost, uid: Option<[u8; 16]>) -> Holder {
    Holder { spec: spec.clone(), host: host.clone(), uid, known: RefCell::default() }
}

fn hex(uid: &[u8; 16]) -> String {
    name(u128::from_be_bytes(*uid))
}

/// Its address and subsystem are found out when the target answers for the first time.
struct Holder {
    spec: HolderSpec,
    host: NvmeHost,
    /// Which namespace it is (NGUID), where that is known.
    uid: Option<[u8; 16]>,
    known: RefCell<Option<Rc<NvmeReach>>>,
}

impl Holder {
    async fn known(&self) -> Result<Rc<NvmeReach>, Error> {
        if let Some(known) = self.known.borrow().clone() {
            return Ok(known);
        }
        let unreachable =
            |failure: Failure| Error::Unreachable { holder: self.name(), reason: failure.sentence().into() };
        let HolderSpec { address, nqn, nsid } = self.spec.clone();
        let address = ::client::reach::resolve(&address).await.map_err(|error| unreachable(error.into()))?;
        let (header_digest, data_digest, keep_alive, timeout) = (false, false, None, None);
        let host = self.host.clone();
        let namespace = NvmeNamespace { address, nqn, nsid, header_digest, data_digest, keep_alive, timeout, host };
        let known = Rc::new(NvmeReach::new(nvme::options(&namespace).await.map_err(unreachable)?));
        // Before anything is taken from whoever has it.
        if let Some(uid) = self.uid {
            let found = known.look().await?.info().nguid;
            if found != uid {
                let reason = format!("it is another namespace ({}) by now, not {}", hex(&found), hex(&uid));
                return Err(Error::Unreachable { holder: self.name(), reason });
            }
        }
        *self.known.borrow_mut() = Some(known.clone());
        Ok(known)
    }
}

impl Reach for Holder {
    fn name(&self) -> String {
        format!("namespace {} at {}", self.spec.nsid, self.spec.address)
    }

    fn look(&self) -> LocalFuture<'_, Result<AnyRemote, Error>> {
        Box::pin(async move { self.known().await?.look().await })
    }

    fn take(&self, takes: Takes) -> LocalFuture<'_, Result<Taken, Error>> {
        Box::pin(async move { self.known().await?.take(takes).await })
    }

    fn look_at_snapshot(&self, tag: CopyTag) -> LocalFuture<'_, Result<AnyRemote, Error>> {
        Box::pin(async move { self.known().await?.look_at_snapshot(tag).await })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use clap::Parser;
    use device::Memory;
    use engine::net::TcpListener;
    use engine::{Reactor, ReactorConfig};
    use fabric::subsystem::Target;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        host: NvmeHost,
    }

    #[test]
    fn a_name_that_nobody_knows_is_a_holder_that_is_away() {
        let host = Flags::parse_from(["test", "--host-nqn=nqn.2026-11.io.yagura:host"]).host;
        let nqn = Some("nqn.2026-11.io.yagura:a".to_owned());
        let spec = HolderSpec { address: "no-such-name.invalid:4420".to_owned(), nqn, nsid: 1 };
        let looked =
            Reactor::run(ReactorConfig::default(), async move { holder(&spec, &host, None).look().await.err() });
        let away = looked.expect("a reactor").expect("nobody knows it");
        assert!(matches!(away, Error::Unreachable { .. }), "{away}");
    }

    #[test]
    fn a_number_that_is_another_namespace_by_now_is_not_taken() {
        let ran = Reactor::run(ReactorConfig::default(), async {
            let (target, nqn) = (Target::default(), "nqn.2026-11.io.yagura:a");
            let subsystem = nqn.parse().expect("a name");
            target.add_subsystem(::nvme::Nqn::clone(&subsystem), "1").expect("a subsystem");
            let memory = Memory::new(1 << 20, 4096, [7; 16]).expect("it fits");
            target.add_namespace(&subsystem, 1, memory).expect("a namespace");
            let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
            let address = listener.local_addr();
            let _serving = engine::task::spawn(async move { match target.serve(listener, Vec::new()).await {} });
            let spec = HolderSpec { address: address.to_string(), nqn: Some(nqn.to_owned()), nsid: 1 };
            let host = Flags::parse_from(["test", "--host-nqn=nqn.2026-11.io.yagura:host"]).host;
            holder(&spec, &host, Some([7; 16])).look().await.expect("it is the one");
            for refused in [holder(&spec, &host, Some([8; 16])).take(Takes::Holder).await.err(), {
                holder(&spec, &host, Some([8; 16])).look().await.err()
            }] {
                let said = refused.expect("it is another one").to_string();
                assert!(said.contains("another namespace") && said.contains("0808"), "{said}");
            }
        });
        ran.expect("a reactor");
    }
}
