//! Drives behind NVMe/TCP: what provisioning asks of them, as commands of Namespace Management and of volumes, on a reactor thread
//! of its own.
//!
//! Invariant: no command that changes something is begun after its `until`: the clock is looked at whenever the call gets to run,
//! and once more before the command itself. What was sent before that takes effect until the target's Keep Alive has ended the
//! connection, which is what `LATE` is made of.

use std::net::SocketAddr;
use std::time::{Duration, Instant as StdInstant};

use ::control::provision::{
    Blank, Done, DriveError, Drives, HolderKind, Look, Namespace, Place, Replica, Reply, Until, Usage, Work,
};
use ::volume::{FORMAT_ROUND, FormatOptions, Kind, Taken, Takes};
use device::{Lba, Namespace as _};
use engine::Buf;
use engine::sync::{MailReceiver, MailSender, mailbox};
use engine::task::{self, LocalFuture};
use engine::{Reactor, ReactorConfig};
use fabric::host::{ConnectError, Manager, Options, Wanted};
use nvme::{Nqn, Status};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::changes;
use super::reached::{changed, in_time, listed, reach, reaches, unformatted, unreached, within};
use crate::cli::NvmeHost;
use crate::exit::Failure;
use crate::nvme::keys;
use crate::race::{First, first_of};

/// Bytes of a block of what is made here.
const BLOCK_SIZE: u32 = 4096;
/// After how long without a sign of life a target ends a connection (KATO).
const KEEP_ALIVE: Duration = Duration::from_secs(4);
/// A target that looks for traffic once in [`KEEP_ALIVE`] takes three times that (NVMe Base 2.0c §3.9), where it rounds that time
/// up a second more each, and then a second for what it does then. One that says that it takes longer is refused.
const LATE: Duration = Duration::from_secs(16);
/// What is wrong with a target that does not do what it is to.
const MANAGE_ALL: &str = "on its target say --host nqn=NQN,manage=all for the host that this control plane is";
/// How long a connection, and each command, may take.
const STEP_TIME: Duration = Duration::from_secs(5);
/// How long a call may take that has no end of its own.
const CALL_TIME: Duration = Duration::from_secs(60);
/// How long a format may take. Chosen: many times what the largest volume takes whose drives answer at once.
const FORMAT_TIME: Duration = Duration::from_secs(3600);
/// How often a holder is looked at whose host may take it back. Chosen: a few times a second, for as long as a look takes little.
const LOOK_PAUSE: Duration = Duration::from_millis(250);
/// Calls that wait for the reactor, at most. Chosen: a look at a thousand drives.
const CALLS_MAX: usize = 2048;
/// How often a namespace is freed of reservations before it is deleted. Guessed: a host that had it takes it back once.
const RELEASES_MAX: u32 = 4;

type Call = Box<dyn FnOnce(&NvmeHost) -> LocalFuture<'static, ()> + Send>;

/// See the module.
pub struct NvmeDrives {
    calls: MailSender<Call>,
}

impl NvmeDrives {
    /// Drives that let in the host of this name and keys. `ended` is told why they can be reached no more.
    pub fn start(host: NvmeHost, ended: MailSender<String>) -> Result<NvmeDrives, Failure> {
        // Keys that can't be read are told at once.
        keys::apply(&host, &mut Options::discovery(SocketAddr::from(([127, 0, 0, 1], 1))))?;
        let (calls, mail) = mailbox::<Call>(CALLS_MAX);
        let thread = std::thread::Builder::new().name("drives".into());
        let begun = thread.spawn(move || {
            let ended = Ended(ended);
            if let Err(error) = Reactor::run(ReactorConfig::default(), serve(mail, host)) {
                tracing::error!(%error, "drives can no longer be reached");
            }
            drop(ended);
        });
        begun.map_err(|error| Failure::from(error).during("a thread for drives"))?;
        Ok(NvmeDrives { calls })
    }

    /// Runs `work` on the reactor for that time at most, with what leads to the places, in their order. If nothing comes of it in
    /// time: `lost`.
    fn call<T: Send + 'static>(
        &self,
        (places, time): (Vec<Place>, Duration),
        lost: fn(String) -> DriveError,
        work: impl FnOnce(Vec<Options>) -> LocalFuture<'static, Result<T, DriveError>> + Send + 'static,
    ) -> Reply<'_, T> {
        Box::pin(async move {
            let mut targets = Vec::with_capacity(places.len());
            for place in &places {
                targets.push(resolved(place).await?);
            }
            let (mut told, answer) = oneshot::channel();
            let call: Call = Box::new(move |host| {
                let leading = targets.into_iter().map(|(address, subsystem)| options(host, address, subsystem));
                let leading: Result<Vec<Options>, DriveError> = leading.collect();
                Box::pin(async move {
                    let done = async {
                        match leading {
                            Ok(options) => work(options).await,
                            Err(error) => Err(error),
                        }
                    };
                    // Nothing is gone on with for somebody who has gone, since `until` may move.
                    if let First::B(done) = first_of(told.closed(), done).await {
                        let _ = told.send(done);
                    }
                })
            });
            self.calls.try_send(call).map_err(|error| DriveError::Unreachable(error.to_string()))?;
            match timeout(time, answer).await {
                Ok(Ok(done)) => done,
                _ => Err(lost(format!("no answer within {time:?}"))),
            }
        })
    }

    /// The same for one place.
    fn call_at<T: Send + 'static>(
        &self,
        place: &Place,
        lost: fn(String) -> DriveError,
        work: impl FnOnce(Options) -> LocalFuture<'static, Result<T, DriveError>> + Send + 'static,
    ) -> Reply<'_, T> {
        self.call((vec![place.clone()], CALL_TIME), lost, move |mut options| match options.pop() {
            Some(options) => work(options),
            None => Box::pin(async { Err(DriveError::Refused("invariant: one place was given".into())) }),
        })
    }
}

/// Tells of the end of the thread for drives, also of one that panics.
struct Ended(MailSender<String>);

impl Drop for Ended {
    fn drop(&mut self) {
        // Nobody listens where the process is ending already.
        let _ = self.0.try_send("drives can no longer be reached: their thread has ended".into());
    }
}

async fn serve(mail: MailReceiver<Call>, host: NvmeHost) {
    while let Some(call) = mail.recv().await {
        task::spawn(call(&host)).detach();
    }
}

/// The address of a target, whose host may be a name, and its subsystem.
async fn resolved(place: &Place) -> Result<(SocketAddr, Nqn), DriveError> {
    let found = timeout(STEP_TIME, tokio::net::lookup_host(place.address.as_str())).await;
    let found = found.map_err(|_| DriveError::Unreachable("its name is not resolved in time".into()))?;
    let found = found.map_err(|error| DriveError::Unreachable(error.to_string()))?.next();
    let address = found.ok_or_else(|| DriveError::Unreachable("its name has no address".into()))?;
    let subsystem = Nqn::foreign(place.nqn.as_str()).map_err(|error| DriveError::Refused(error.to_string()))?;
    Ok((address, subsystem))
}

fn options(host: &NvmeHost, address: SocketAddr, subsystem: Nqn) -> Result<Options, DriveError> {
    let mut options = Options::new(address, subsystem, 1);
    (options.keep_alive, options.connect_timeout, options.command_timeout) = (KEEP_ALIVE, STEP_TIME, STEP_TIME);
    let applied = keys::apply(host, &mut options);
    applied.map_err(|failure| DriveError::Refused(failure.sentence().into()))?;
    Ok(options)
}

/// Errors where a command that was sent may take effect after [`LATE`].
fn ends_in_time(late: Option<Duration>) -> Result<(), DriveError> {
    let takes = match late {
        Some(late) if late <= LATE => return Ok(()),
        Some(late) => format!("takes {late:?} for it"),
        None => "has no Keep Alive".to_owned(),
    };
    Err(DriveError::Refused(format!("it is to end a connection that is lost within {LATE:?}, and {takes}")))
}

async fn look(options: Options) -> Result<Look, DriveError> {
    let manager = Manager::connect(options).await.map_err(unreached)?;
    let capacity = manager.capacity().await.map_err(unreached)?;
    if !capacity.manages {
        return Err(DriveError::Refused(format!("it makes no namespaces for this host: {MANAGE_ALL}")));
    }
    ends_in_time(capacity.late)?;
    let thin = manager.formats(&capacity).await.map_err(unreached)?.thin;
    let namespaces = listed(&manager).await?;
    manager.leave().await;
    let bytes = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
    let (total, free) = (bytes(capacity.total), bytes(capacity.unallocated));
    Ok(Look { total, free, thin, namespaces_max: capacity.namespaces_max, namespaces })
}

async fn create(options: Options, bytes: u64, until: StdInstant) -> Result<(), DriveError> {
    let manager = Manager::connect(options.clone()).await.map_err(unreached)?;
    let capacity = manager.capacity().await.map_err(unreached)?;
    let formats = manager.formats(&capacity).await.map_err(unreached)?;
    in_time(until)?;
    let wanted = Wanted { bytes, block_size: BLOCK_SIZE, thin: true };
    let until = Until::new(until.into());
    let made = within(&until, async {
        let nsid = manager.create(&formats, wanted).await.map_err(changed)?;
        let lost = |error: ConnectError| DriveError::Unknown(error.to_string());
        // The next controllers begin with it, this one need not.
        let next = Manager::connect(options).await.map_err(lost)?;
        let is_attached = next.is_attached(nsid).await.map_err(lost)?;
        next.leave().await;
        if is_attached {
            return Ok(());
        }
        // No host would get it, nor this one to format it. Nobody else knows of it, so that it can go by its number.
        manager.delete(nsid).await.map_err(lost)?;
        Err(DriveError::Refused(format!("what it makes it attaches to no host: {MANAGE_ALL}")))
    })
    .await;
    manager.leave().await;
    made
}

async fn delete(options: Options, namespace: Namespace, until: StdInstant) -> Result<(), DriveError> {
    let manager = Manager::connect(options.clone()).await.map_err(unreached)?;
    for _ in 0..RELEASES_MAX {
        if !listed(&manager).await?.contains(&namespace) {
            return Ok(());
        }
        in_time(until)?;
        changes::delete_snapshots(&manager, namespace.nsid).await?;
        in_time(until)?;
        match manager.delete(namespace.nsid).await {
            // Hosts keep their reservation when they detach a volume.
            Err(ConnectError::Refused { status, .. }) if status.kind() == Status::RESERVATION_CONFLICT => {
                in_time(until)?;
                let released = reach(&options, namespace.nsid).release().await;
                released.map_err(|error| DriveError::Refused(error.to_string()))?;
            }
            deleted => return deleted.map_err(changed),
        }
    }
    Err(DriveError::Refused("a host takes its reservation back again and again".into()))
}

async fn is_blank(options: Options, namespace: Namespace) -> Result<bool, DriveError> {
    let manager = Manager::connect(options.clone()).await.map_err(unreached)?;
    if !listed(&manager).await?.contains(&namespace) {
        return Err(DriveError::Refused(format!("its namespace {} is another one, or gone", namespace.nsid)));
    }
    let reach = reach(&options, namespace.nsid);
    ::volume::is_blank(&reach).await.map_err(|error| match error {
        ::volume::Error::Unreachable { .. } => DriveError::Unreachable(error.to_string()),
        _ => DriveError::Refused(error.to_string()),
    })
}

/// A host that lives asks each holder every third of the volume's lease, and takes it back after a second at most: who has not done
/// so in that time and as long as a connection takes is gone.
async fn usage(
    volume: Uuid,
    of: Option<Uuid>,
    holders: Vec<(Options, Blank)>,
    until: StdInstant,
) -> Result<Usage, DriveError> {
    let (mut taken, mut lease) = (Vec::new(), None);
    for holder in reaches(&holders).await? {
        in_time(until)?;
        match ::volume::inspect(&*holder, true).await {
            Ok(found) if of.is_some_and(|of| found.label.shape.volume == of.as_u128()) => continue,
            Ok(found) if found.label.shape.volume != volume.as_u128() => return Ok(Usage::Another),
            Ok(found) if found.record.promised.round <= FORMAT_ROUND => {}
            Ok(found) => lease = lease.max(Some(found.label.shape.lease_ms)),
            Err(::volume::Error::Record { .. }) => lease = lease.max(Some(0)),
            // It was not formatted to the end.
            Err(::volume::Error::Label { .. }) => continue,
            Err(error) if is_host_there(&error) => return Ok(Usage::Now),
            Err(error) => return Err(unused(&error)),
        }
        in_time(until)?;
        match holder.take(Takes::Holder).await {
            Ok(connection) => taken.push(connection),
            Err(error) if is_host_there(&error) => return Ok(Usage::Now),
            Err(error) => return Err(unused(&error)),
        }
    }
    let Some(lease) = lease else { return Ok(Usage::Never) };
    let over = StdInstant::now() + Duration::from_millis(u64::from(lease / 3)) + STEP_TIME;
    while StdInstant::now() < over {
        engine::time::sleep(LOOK_PAUSE).await;
        for Taken { namespace, .. } in &taken {
            let (read, _) = namespace.read(Lba(0), Buf::with_len(namespace.info().block_size as usize)).await;
            match read {
                Ok(()) => {}
                Err(device::Error::Reserved(_) | device::Error::Aborted) => return Ok(Usage::Now),
                Err(error) => return Err(DriveError::Unreachable(error.to_string())),
            }
        }
    }
    Ok(Usage::Before)
}

/// Why it is not known who uses a holder.
fn unused(error: &::volume::Error) -> DriveError {
    match error {
        ::volume::Error::Foreign { .. } => DriveError::Foreign(error.to_string()),
        _ => DriveError::Unreachable(error.to_string()),
    }
}

/// Whether it failed since a host takes the holder, too.
fn is_host_there(error: &::volume::Error) -> bool {
    use device::Error::{Aborted, Reserved};
    matches!(error, ::volume::Error::Device { source: Reserved(_) | Aborted, .. })
}

async fn format(volume: Uuid, bytes: u64, holders: Vec<(Options, Blank)>) -> Result<(), DriveError> {
    let reaches = reaches(&holders).await?;
    let replicas = holders.iter().filter(|(_, holder)| holder.kind == HolderKind::Replica).count() as u8;
    let (bytes, volume) = (Some(bytes), Some(volume.as_u128()));
    let options = FormatOptions { replicas, bytes, volume, ..FormatOptions::default() };
    ::volume::format(reaches, options).await.map(|_| ()).map_err(unformatted)
}

impl Drives for NvmeDrives {
    fn look(&self, place: &Place) -> Reply<'_, Look> {
        self.call_at(place, DriveError::Unreachable, |options| Box::pin(look(options)))
    }

    fn create(&self, place: &Place, bytes: u64, until: Instant) -> Reply<'_, ()> {
        let until = until.into_std();
        self.call_at(place, DriveError::Unknown, move |options| Box::pin(create(options, bytes, until)))
    }

    fn delete(&self, place: &Place, namespace: Namespace, until: Instant) -> Reply<'_, ()> {
        let until = until.into_std();
        self.call_at(place, DriveError::Unknown, move |options| {
            Box::pin(async move { within(&Until::new(until.into()), delete(options, namespace, until)).await })
        })
    }

    fn is_blank(&self, place: &Place, namespace: Namespace) -> Reply<'_, bool> {
        self.call_at(place, DriveError::Unreachable, move |options| Box::pin(is_blank(options, namespace)))
    }

    fn format(&self, volume: Uuid, bytes: u64, holders: &[Blank], until: &Until) -> Reply<'_, ()> {
        let (until, holders) = (until.clone(), holders.to_vec());
        let places = holders.iter().map(|holder| holder.place.clone()).collect();
        self.call((places, FORMAT_TIME), DriveError::Unknown, move |options| {
            let holders = options.into_iter().zip(holders).collect();
            Box::pin(async move { within(&until, format(volume, bytes, holders)).await })
        })
    }

    fn replace(&self, volume: Uuid, slot: usize, beside: &[Blank], with: &Blank, until: &Until) -> Reply<'_, Uuid> {
        let (until, holders): (_, Vec<_>) = (until.clone(), [with].into_iter().chain(beside).cloned().collect());
        let places = holders.iter().map(|holder| holder.place.clone()).collect();
        self.call((places, CALL_TIME), DriveError::Unknown, move |options| {
            let holders = options.into_iter().zip(holders).collect();
            Box::pin(async move { within(&until, changes::replace(volume, slot, holders)).await })
        })
    }

    fn usage(&self, volume: Uuid, of: Option<Uuid>, holders: &[Blank], until: Instant) -> Reply<'_, Usage> {
        let (until, holders) = (until.into_std(), holders.to_vec());
        let places = holders.iter().map(|holder| holder.place.clone()).collect();
        self.call((places, CALL_TIME), DriveError::Unreachable, move |options| {
            Box::pin(usage(volume, of, options.into_iter().zip(holders).collect(), until))
        })
    }

    fn grow(&self, place: &Place, namespace: Namespace, bytes: u64, until: Instant) -> Reply<'_, ()> {
        let until = until.into_std();
        self.call_at(place, DriveError::Unknown, move |options| {
            let grown = changes::grow(options, namespace, bytes, until);
            Box::pin(async move { within(&Until::new(until.into()), grown).await })
        })
    }

    fn work(&self, volume: Uuid, holders: &[Option<Blank>], work: &Work, until: &Until) -> Reply<'_, Done> {
        let (until, holders, work) = (until.clone(), holders.to_vec(), work.clone());
        let places = holders.iter().flatten().map(|holder| holder.place.clone()).collect();
        self.call((places, FORMAT_TIME), DriveError::Unknown, move |options| {
            let mut options = options.into_iter();
            let holders = holders.into_iter().map(|holder| holder.and_then(|holder| Some((options.next()?, holder))));
            let worked = changes::work(volume, holders.collect(), work);
            Box::pin(async move { within(&until, worked).await })
        })
    }

    fn copy(&self, replica: &Replica, tag: Uuid, until: Instant) -> Reply<'_, Namespace> {
        let (until, replica) = (until.into_std(), replica.clone());
        self.call_at(&replica.place.clone(), DriveError::Unknown, move |options| {
            Box::pin(changes::copy(options, replica, tag, until))
        })
    }

    fn copied(&self, place: &Place, tag: Uuid) -> Reply<'_, Option<Namespace>> {
        self.call_at(place, DriveError::Unreachable, move |options| Box::pin(changes::copied(options, tag)))
    }

    fn adopt(&self, volume: Uuid, of: Uuid, holders: &[Blank], is_copy: &[bool], until: &Until) -> Reply<'_, u64> {
        let (until, holders, is_copy) = (until.clone(), holders.to_vec(), is_copy.to_vec());
        let places = holders.iter().map(|holder| holder.place.clone()).collect();
        self.call((places, FORMAT_TIME), DriveError::Unknown, move |options| {
            let holders = options.into_iter().zip(holders).collect();
            Box::pin(async move { within(&until, changes::adopt(volume, of, holders, is_copy)).await })
        })
    }

    fn grows_to(&self, bytes: u64) -> u64 {
        // The label's log has room for so much; see `volume::format`.
        bytes.saturating_mul(16).max(64 << 30)
    }

    fn holder_bytes(&self, kind: HolderKind, bytes: u64) -> u64 {
        let kind = match kind {
            HolderKind::Replica => Kind::Replica,
            HolderKind::Witness => Kind::Witness,
        };
        ::volume::holder_bytes(kind, bytes, BLOCK_SIZE)
    }

    fn late(&self) -> Duration {
        LATE
    }
}

#[cfg(test)]
#[path = "drives_tests.rs"]
mod tests;
