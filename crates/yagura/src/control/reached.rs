//! Drives that are reached: their namespaces, and what failed, in the words of [`Drives`](::control::provision::Drives).

use std::collections::BTreeSet;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant as StdInstant;

use ::control::provision::{Blank, DriveError, NAMESPACES_MAX, Namespace, Until};
use ::volume::{Error as VolumeError, NvmeReach, Reach, Taken, Takes};
use device::Namespace as _;
use engine::task::LocalFuture;
use fabric::host::{AnyRemote, ConnectError, CopyTag, Manager, Options};
use uuid::Uuid;

/// A namespace of a drive, as a volume's holder.
pub fn reach(options: &Options, nsid: u32) -> NvmeReach {
    NvmeReach::new(Options { nsid, ..options.clone() })
}

/// The same where it is looked which namespace it is before it is taken: its number may be another's by now, whose host would lose
/// it.
pub struct Known {
    reach: NvmeReach,
    uid: Uuid,
}

impl Known {
    /// The holder that is this namespace.
    pub fn new(options: &Options, namespace: &Namespace) -> Known {
        Known { reach: reach(options, namespace.nsid), uid: namespace.uid }
    }
}

impl Reach for Known {
    fn name(&self) -> String {
        self.reach.name()
    }

    fn look(&self) -> LocalFuture<'_, Result<AnyRemote, VolumeError>> {
        Box::pin(async move {
            let found = self.reach.look().await?;
            let uid = Uuid::from_bytes(found.info().nguid);
            if uid == self.uid {
                return Ok(found);
            }
            let reason = format!("it is another namespace ({uid}) by now, not {}", self.uid);
            Err(VolumeError::Unreachable { holder: self.name(), reason })
        })
    }

    fn take(&self, takes: Takes) -> LocalFuture<'_, Result<Taken, VolumeError>> {
        Box::pin(async move {
            self.look().await?;
            self.reach.take(takes).await
        })
    }

    fn look_at_snapshot(&self, tag: CopyTag) -> LocalFuture<'_, Result<AnyRemote, VolumeError>> {
        Box::pin(async move {
            self.look().await?;
            self.reach.look_at_snapshot(tag).await
        })
    }
}

/// What failed before anything was changed.
pub fn unreached(error: ConnectError) -> DriveError {
    match error {
        ConnectError::Refused { .. } => DriveError::Refused(error.to_string()),
        _ => DriveError::Unreachable(error.to_string()),
    }
}

/// What failed where a change was asked for.
pub fn changed(error: ConnectError) -> DriveError {
    match error {
        ConnectError::Refused { .. } => DriveError::Refused(error.to_string()),
        _ => DriveError::Unknown(error.to_string()),
    }
}

/// Runs for as long as it is not `until`, which may move: the clock is looked at before each piece of work.
pub async fn within<T>(until: &Until, work: impl Future<Output = Result<T, DriveError>>) -> Result<T, DriveError> {
    let left = || until.get().into_std().saturating_duration_since(StdInstant::now());
    let (mut work, mut over) = (pin!(work), pin!(engine::time::sleep(left())));
    std::future::poll_fn(|context| {
        loop {
            if left().is_zero() {
                return Poll::Ready(Err(DriveError::Unknown("its time was over".into())));
            }
            if over.as_mut().poll(context).is_pending() {
                return work.as_mut().poll(context);
            }
            over.set(engine::time::sleep(left()));
        }
    })
    .await
}

pub fn in_time(until: StdInstant) -> Result<(), DriveError> {
    let late = || DriveError::Unreachable("its time was over before anything was asked for".into());
    if StdInstant::now() < until { Ok(()) } else { Err(late()) }
}

/// All namespaces of a drive but for snapshots, each with what tells it from every other.
pub async fn listed(manager: &Manager) -> Result<Vec<Namespace>, DriveError> {
    let mut all = manager.namespaces().await.map_err(unreached)?;
    if manager.extension().await.map_err(unreached)?.copies {
        let copies = manager.copies(None).await.map_err(unreached)?;
        let snapshots: BTreeSet<_> = copies.iter().filter(|copy| !copy.writable).map(|copy| copy.nguid).collect();
        all.retain(|found| !snapshots.contains(&found.nguid));
    }
    if all.len() > NAMESPACES_MAX {
        return Err(DriveError::Refused(format!(
            "of namespaces it has {}, {NAMESPACES_MAX} at most are managed",
            all.len()
        )));
    }
    let named = all.into_iter().map(|found| match found.nguid {
        nguid if nguid == [0; 16] => {
            Err(DriveError::Refused(format!("its namespace {} has no NGUID, by which it could be told", found.nsid)))
        }
        nguid => Ok(Namespace { nsid: found.nsid, uid: Uuid::from_bytes(nguid), bytes: found.bytes }),
    });
    named.collect()
}

/// The namespace as it is now: it may have grown, and is still the same.
pub async fn known(manager: &Manager, namespace: &Namespace) -> Result<Namespace, DriveError> {
    let is_it = |found: &Namespace| (found.nsid, found.uid) == (namespace.nsid, namespace.uid);
    let gone = || DriveError::Refused(format!("its namespace {} is another one, or gone", namespace.nsid));
    listed(manager).await?.into_iter().find(is_it).ok_or_else(gone)
}

/// The holders, each of which is there.
pub async fn reaches(holders: &[(Options, Blank)]) -> Result<Vec<Rc<dyn Reach>>, DriveError> {
    let mut reaches: Vec<Rc<dyn Reach>> = Vec::with_capacity(holders.len());
    for (options, holder) in holders {
        let manager = Manager::connect(options.clone()).await.map_err(unreached)?;
        known(&manager, &holder.namespace).await.map_err(|error| match error {
            DriveError::Refused(why) => DriveError::Refused(format!("{}: {why}", holder.place.nqn)),
            other => other,
        })?;
        reaches.push(Rc::new(reach(options, holder.namespace.nsid)));
    }
    Ok(reaches)
}

/// What a format, or an adoption, failed with.
pub fn unformatted(error: ::volume::Error) -> DriveError {
    use ::volume::Error as Of;
    use device::Error::{Aborted, Disconnected, NotConnected, Reserved};
    match error {
        Of::Unreachable { .. }
        | Of::Device { source: Aborted | Disconnected(_) | NotConnected(_) | Reserved(_), .. } => {
            DriveError::Unknown(error.to_string())
        }
        Of::Foreign { .. } => DriveError::Foreign(error.to_string()),
        _ => DriveError::Refused(error.to_string()),
    }
}
