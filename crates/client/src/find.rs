//! Which namespaces there are at an address.
//!
//! Those of a subsystem are looked at over one association: a target has so many for each address that asks, and a drive's
//! subsystem may have hundreds of namespaces of which one is meant. What can't be used hinders nobody who means another one.

use device::Namespace;
use fabric::host::{AnyRemote, RemoteNamespace};
use nvme::Nqn;

use engine::task::LocalFuture;

use crate::error::Error;
use crate::resolve::resolve;
use crate::way::{Way, unavailable};

/// Associations for members of pools in one subsystem at one address; what is beyond shares one. Chosen: more members than drives
/// that one target serves for a pool, and little beside the hundreds that a target has for one address.
const ASSOCIATIONS_MAX: usize = 16;

/// A namespace that was found, and where.
#[derive(Clone)]
pub struct Found {
    /// Its connection.
    pub namespace: AnyRemote,
    /// The address.
    pub address: String,
    /// The subsystem.
    pub nqn: Nqn,
    /// Its id there.
    pub nsid: u32,
}

impl Found {
    /// Where others of its subsystem are used too, it has an association of its own from now on, and commands of theirs are not in
    /// its way. Where there is none to be had it shares theirs.
    pub(crate) async fn part(&mut self, way: &Way, others: impl Iterator<Item = &Found>) {
        let beside = others.filter(|other| other.address == self.address && other.nqn == self.nqn).count();
        if !(1..ASSOCIATIONS_MAX).contains(&beside) {
            return;
        }
        let Ok(socket) = resolve(&self.address).await else { return };
        match RemoteNamespace::connect(way.options(socket, self.nqn.clone(), self.nsid)).await {
            Ok(own) if own.info().nguid == self.namespace.info().nguid => self.namespace = own.into(),
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, nsid = self.nsid, "no association of its own"),
        }
    }
}

/// What was found at an address.
pub struct Finding {
    /// The namespaces.
    pub found: Vec<Found>,
    /// What else is there and can't be used, in words.
    pub troubles: Vec<String>,
}

/// Every namespace at `address`: of subsystem `nqn` or of all that are discovered; `nsid` or all.
///
/// # Errors
/// Nobody says what is there; or something is, and nothing of it can be used.
pub fn find<'a>(
    way: &'a Way,
    address: &'a str,
    nqn: Option<Nqn>,
    nsid: Option<u32>,
) -> LocalFuture<'a, Result<Finding, Error>> {
    Box::pin(async move {
        let socket = resolve(address).await?;
        let subsystems = match nqn {
            Some(nqn) => vec![nqn],
            // A subsystem that is served at several addresses is used at the one we were told.
            None => way.subsystems(socket).await?,
        };
        let (mut found, mut refused) = (Vec::new(), Vec::new());
        for nqn in subsystems {
            let all = match nsid {
                Some(nsid) => {
                    let one = RemoteNamespace::connect(way.options(socket, nqn.clone(), nsid)).await;
                    Ok(vec![(nsid, one)])
                }
                None => RemoteNamespace::connect_all(way.options(socket, nqn.clone(), 0)).await,
            };
            let all = all.map_err(|error| refused.push(error)).unwrap_or_default();
            for (nsid, one) in all {
                match one {
                    Ok(namespace) => {
                        let (namespace, address) = (AnyRemote::from(namespace), address.to_owned());
                        found.push(Found { namespace, address, nqn: nqn.clone(), nsid });
                    }
                    Err(error) => refused.push(error),
                }
            }
        }
        match refused.first() {
            Some(error) if found.is_empty() => Err(unavailable(error)),
            _ => Ok(Finding { found, troubles: refused.iter().map(ToString::to_string).collect() }),
        }
    })
}
