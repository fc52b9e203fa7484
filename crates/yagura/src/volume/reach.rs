//! How the holders of a volume that flags name are reached.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::str::FromStr;

use engine::task::LocalFuture;
use fabric::host::AnyRemote;
use volume::{Error, NvmeReach, Reach, Taken};

use crate::cli::{NvmeHost, NvmeNamespace, VolumeHolders};
use crate::exit::Failure;
use crate::nvme;
use crate::spec::{once, pair};

const KEYS: [&str; 2] = ["nqn", "nsid"];

/// A holder as the command line says it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HolderSpec {
    address: SocketAddr,
    /// Its subsystem; none: the only one that is discovered there.
    nqn: Option<String>,
    nsid: u32,
}

impl FromStr for HolderSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<HolderSpec, String> {
        let mut parts = text.split(',');
        let address = parts.next().unwrap_or_default();
        let wrong = |_| format!("`{text}` does not begin with an address and a port, as in 10.0.0.1:4420,nsid=2");
        let address = address.parse().map_err(wrong)?;
        let (mut nqn, mut nsid) = (None, None);
        for part in parts {
            match pair(part, &KEYS)? {
                (key @ "nqn", value) => once(&mut nqn, key, value.to_owned())?,
                (key, value) => {
                    let number = value.parse::<u32>().ok().filter(|number| *number > 0);
                    once(&mut nsid, key, number.ok_or_else(|| format!("nsid `{value}`: must be a number from 1 on"))?)?;
                }
            }
        }
        Ok(HolderSpec { address, nqn, nsid: nsid.unwrap_or(1) })
    }
}

/// The holders, by slot.
pub fn reaches(holders: &VolumeHolders) -> Result<Vec<Rc<dyn Reach>>, Failure> {
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
    Ok(all.map(|spec| reach(spec, host)).collect())
}

/// One holder.
pub fn reach(spec: &HolderSpec, host: &NvmeHost) -> Rc<dyn Reach> {
    let HolderSpec { address, nqn, nsid } = spec.clone();
    let (header_digest, data_digest, keep_alive, timeout) = (false, false, None, None);
    let host = host.clone();
    let namespace = NvmeNamespace { address, nqn, nsid, header_digest, data_digest, keep_alive, timeout, host };
    Rc::new(Holder { namespace, known: RefCell::default() })
}

/// Its subsystem is discovered when the target answers for the first time.
struct Holder {
    namespace: NvmeNamespace,
    known: RefCell<Option<Rc<NvmeReach>>>,
}

impl Holder {
    async fn known(&self) -> Result<Rc<NvmeReach>, Error> {
        if let Some(known) = self.known.borrow().clone() {
            return Ok(known);
        }
        let unreachable =
            |failure: Failure| Error::Unreachable { holder: self.name(), reason: failure.sentence().into() };
        let known = Rc::new(NvmeReach::new(nvme::options(&self.namespace).await.map_err(unreachable)?));
        *self.known.borrow_mut() = Some(known.clone());
        Ok(known)
    }
}

impl Reach for Holder {
    fn name(&self) -> String {
        format!("namespace {} at {}", self.namespace.nsid, self.namespace.address)
    }

    fn look(&self) -> LocalFuture<'_, Result<AnyRemote, Error>> {
        Box::pin(async move { self.known().await?.look().await })
    }

    fn take(&self) -> LocalFuture<'_, Result<Taken, Error>> {
        Box::pin(async move { self.known().await?.take().await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs() {
        let holder: HolderSpec = "127.0.0.1:4420,nsid=3,nqn=nqn.2026-01.example:a".parse().expect("right");
        assert_eq!((holder.nsid, holder.nqn.as_deref()), (3, Some("nqn.2026-01.example:a")));
        let error = |text: &str| text.parse::<HolderSpec>().expect_err("refused");
        assert!(error("nsid=3").contains("does not begin with an address"));
        assert!(error("127.0.0.1:1,nsid=0").contains("from 1 on"));
        assert!(error("127.0.0.1:1,nsi=2").contains("did you mean `nsid`?"));
        assert!(error("127.0.0.1:1,nsid=2,nsid=2").contains("given twice"));
    }
}
