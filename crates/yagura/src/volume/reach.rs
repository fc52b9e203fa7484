//! How the holders of a volume that flags name are reached.

use std::cell::RefCell;
use std::rc::Rc;

use engine::task::LocalFuture;
use fabric::host::AnyRemote;
use volume::{Error, NvmeReach, Reach, Taken};

use crate::cli::{NvmeHost, NvmeNamespace, VolumeHolders};
use crate::exit::Failure;
use crate::holder::HolderSpec;
use crate::nvme;

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
