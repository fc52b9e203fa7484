//! `yagura volume attach`: the mirror and a target of one namespace, in one process.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use ::nbd::NbdMetrics;
use ::volume::{Limiter, Options, Origin, Volume};
use device::{AnyNamespace, Mailed, Namespace};
use engine::net::TcpListener;
use engine::sync::MailReceiver;
use engine::task::Task;
use fabric::subsystem::{HostConfig, Target, TargetMetrics, listen};
use nvme::Nqn;
use prometheus_client::registry::Registry;
use serde::Serialize;

use super::kernel::host_name;
use super::named;
use super::nbd::{self, Nbd};
use super::reach;
use super::used::{Used, lost};
use super::wishes::{self, Holding};
use super::words::{failure, name, usual_name};
use crate::cli::VolumeAttachArgs;
use crate::exit::Failure;
use crate::race::{First, first_of};
use crate::size::Size;
use crate::stop::Reason;
use crate::{metrics, output, reactors, stop};

/// The identifier of the only namespace.
const NSID: u32 = 1;

/// What is said on standard output once the volume is served.
#[derive(Serialize, Debug)]
struct Ready {
    /// Nowhere, where the volume is the kernel's alone.
    listening: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
    /// As NBD's clients write it.
    nbd: Option<String>,
    /// The kernel's block device of it.
    device: Option<String>,
    /// Of an attachment by name: while the tenure is the same, no other host has had the volume.
    tenure: Option<String>,
    nqn: String,
    nsid: u32,
    volume: String,
    bytes: u64,
    block_size: u32,
    in_sync: Vec<usize>,
}

/// Serves until a signal.
pub fn run(args: &VolumeAttachArgs) -> Result<(), Failure> {
    if let Some(listen) = args.listen().filter(|listen| args.allowed.is_empty() && !listen.ip().is_loopback()) {
        let why = "whoever reaches this address could write to the volume";
        return Err(Failure::usage(format!("--listen {listen}: name the hosts by --allow-host, since {why}")));
    }
    nbd::check(args)?;
    let mut letters = stop::letters(1, args.until_stdin_closes)?;
    let letter = letters.pop().ok_or_else(|| Failure::usage("invariant: one letter was asked for"))?;
    reactors::run_one(serve(args, letter))
}

async fn serve(args: &VolumeAttachArgs, letter: MailReceiver<Reason>) -> Result<(), Failure> {
    let used = Used::before(args)?;
    let (found, attachment) = named::attach(&args.of, args.take)?;
    if let Some(attachment) = &attachment
        && !used.continues(args, attachment)?
    {
        used.give_up()?;
        named::detached(&args.of, Some(attachment))?;
        return Err(lost());
    }
    let options = Options {
        volume: attachment.as_ref().map(|attachment| attachment.volume),
        give_up_after: Duration::from_millis(args.give_up_after.into()),
        resync_bytes_per_second: Some(args.resync_rate.0),
        ..Options::default()
    };
    let volume = match ::volume::attach(reach::named(&found.holders, &found.uids)?, options).await {
        Ok(volume) => Rc::new(volume),
        Err(error) => {
            if !used.is_connected() {
                named::failed(&args.of, attachment.as_ref());
            }
            return Err(failure(error));
        }
    };
    if let Some(origin @ Origin::InPart { .. }) = volume.origin() {
        tracing::warn!(
            "the volume is {origin}: it is no volume to use, and what is written to it is lost when that is gone on with"
        );
    }
    let limits = attachment.as_ref().map(|attachment| named::allowed(&attachment.limits)).unwrap_or_default();
    let limiter = Rc::new(Limiter::new(limits));
    let served = ::volume::limited(volume.clone(), limiter.clone());
    let holding = Holding { host: args.of.host.clone(), uids: found.uids };
    let by_name = attachment.as_ref().map(|attachment| (attachment, holding));
    let result = serve_it(args, (&volume, &limiter, by_name), &served, &used, &letter).await;
    // Before commands fail: the kernel is to wait, and not to be told of that.
    used.leave();
    served.leave();
    // Also after a failure: who attaches next has nothing to wait for.
    let detached = volume.detach().await.map_err(failure);
    // What the kernel has in mind still is to be written by who goes on with the device: no other host may have the volume first.
    let let_go = match volume.is_superseded() || used.is_connected() {
        true => Ok(()),
        false => named::detached(&args.of, attachment.as_ref()),
    };
    first_failure([result, detached, let_go])
}

/// What went wrong first is the reason of the rest, of which the log tells.
fn first_failure<const N: usize>(results: [Result<(), Failure>; N]) -> Result<(), Failure> {
    let mut failures = results.into_iter().filter_map(Result::err);
    let first = failures.next();
    for failure in failures {
        tracing::warn!("after the first failure: {}", failure.sentence());
    }
    first.map_or(Ok(()), Err)
}

async fn serve_it(
    args: &VolumeAttachArgs,
    (volume, limiter, by_name): (&Rc<Volume>, &Rc<Limiter>, Option<(&named::Attachment, Holding)>),
    served: &Mailed,
    used: &Used,
    letter: &MailReceiver<Reason>,
) -> Result<(), Failure> {
    let nqn = name_of(args, volume)?;
    let target = Rc::new(target(args, &nqn, volume, served)?);
    let attachment = by_name.as_ref().map(|(attachment, _)| *attachment);
    let keys = used.keys()?;
    if let (Some(keys), Some(attachment)) = (&keys, attachment) {
        let kernel = Nqn::foreign(&host_name(attachment.tenure)).map_err(Failure::usage)?;
        let config = HostConfig { keys: Some(keys.clone()), ..HostConfig::default() };
        target.allow_any_host(&nqn, false).map_err(Failure::usage)?;
        target.allow_host(&nqn, &kernel, config).map_err(Failure::usage)?;
    }
    let listener = match used.listen(args) {
        Some(address) => Some(listen(address).await.map_err(|error| {
            let mend = "is another process listening there? port 0 takes a free one";
            Failure::refused(format!("cannot listen: {error} ({mend})"))
        })?),
        None => None,
    };
    let namespace = AnyNamespace::from(served.clone());
    let nbd = nbd::serve(args, &namespace).await?;
    let at = listener.as_ref().map(TcpListener::local_addr);
    let in_use = async {
        let mut ready = ready(args, &target, (volume, limiter), (&nqn, at), (nbd.as_ref(), used))?;
        if let Some(attachment) = attachment {
            ready.tenure = Some(attachment.tenure.to_string());
            let device = used.connected((&namespace, at), attachment.tenure, keys).await?;
            ready.device = device.map(|device| device.display().to_string());
        }
        output::report(args.common.json, &ready, describe)?;
        // Until it is dropped.
        let _following = follow(args, by_name, (volume, limiter), (&target, &nqn), (used, &namespace))?;
        match first_of(letter.recv(), used.ended()).await {
            First::A(letter) => Ok::<_, Failure>(letter),
            First::B(failure) => Err(failure),
        }
    };
    let until = async { take_leave(args, volume, used, first_of(superseded(volume), in_use).await).await };
    let serving = async {
        match listener {
            Some(listener) => target.serve(listener, Vec::new()).await,
            None => std::future::pending().await,
        }
    };
    let ended = match first_of(serving, until).await {
        First::A(never) => match never {},
        First::B(ended) => ended,
    };
    if let Some(nbd) = nbd {
        nbd.stop().await;
    }
    if volume.is_superseded() {
        return Err(Failure::lost("another host has attached the volume: nothing of it is served here any more"));
    }
    let flushed = served.flush().await.map_err(|error| Failure::refused(format!("the last flush: {error}")));
    first_failure([ended, flushed])
}

/// The kernel gives the device up, while the volume is served still. Without a supervisor the next process goes on with the device.
async fn take_leave(
    args: &VolumeAttachArgs,
    volume: &Volume,
    used: &Used,
    ended: First<(), Result<Option<Reason>, Failure>>,
) -> Result<(), Failure> {
    let given_up = match ended {
        First::B(Ok(Some(Reason::Orphaned))) => Ok(()),
        _ => used.disconnected(&args.of, volume.is_superseded()).await,
    };
    let ended = match ended {
        First::B(Err(failure)) => Err(failure),
        _ => Ok(()),
    };
    first_failure([ended, given_up])
}

/// Does what the control plane wants of this host, where the volume is attached by its name.
fn follow(
    args: &VolumeAttachArgs,
    by_name: Option<(&named::Attachment, Holding)>,
    (volume, limiter): (&Rc<Volume>, &Rc<Limiter>),
    (target, nqn): (&Rc<Target>, &Nqn),
    (used, namespace): (&Used, &AnyNamespace),
) -> Result<Option<Task<()>>, Failure> {
    let (Some(name), Some((attachment, holding))) = (&args.of.name, by_name) else { return Ok(None) };
    let (target, nqn, used, namespace) = (target.clone(), nqn.clone(), used.clone(), namespace.clone());
    let grown = move || {
        used.grow(&namespace);
        if let Err(error) = target.refresh_namespace(&nqn, NSID) {
            tracing::warn!(%error, "who uses the volume is not told that it has grown");
        }
    };
    let path = attachment.path(name);
    wishes::follow(&args.of.access, path, (volume.clone(), holding), limiter.clone(), grown).map(Some)
}

/// Ends when another host has taken the volume.
async fn superseded(volume: &Volume) {
    loop {
        let changed = volume.changed();
        if volume.is_superseded() {
            return;
        }
        changed.await;
    }
}

/// Under which name the volume is served.
fn name_of(args: &VolumeAttachArgs, volume: &Volume) -> Result<Nqn, Failure> {
    let text = args.nqn.clone().unwrap_or_else(|| usual_name(volume.shape().volume));
    text.parse().map_err(|error| Failure::usage(format!("--nqn {text}: {error}")))
}

fn target(args: &VolumeAttachArgs, nqn: &Nqn, volume: &Volume, served: &Mailed) -> Result<Target, Failure> {
    let target = Target::default();
    let serial = format!("YG{}", &name(volume.shape().volume)[..16]);
    target.add_subsystem(nqn.clone(), &serial).map_err(Failure::usage)?;
    target.allow_any_host(nqn, args.allowed.is_empty()).map_err(Failure::usage)?;
    for host in &args.allowed {
        let host = Nqn::foreign(host).map_err(|error| Failure::usage(format!("--allow-host: {error}")))?;
        target.allow_host(nqn, &host, HostConfig::default()).map_err(Failure::usage)?;
    }
    target.add_namespace(nqn, NSID, AnyNamespace::from(served.clone())).map_err(Failure::usage)?;
    Ok(target)
}

fn ready(
    args: &VolumeAttachArgs,
    target: &Target,
    (volume, limiter): (&Volume, &Limiter),
    (nqn, listening): (&Nqn, Option<SocketAddr>),
    (nbd, used): (Option<&Nbd>, &Used),
) -> Result<Ready, Failure> {
    let mut metrics_at = None;
    if let Some(address) = args.metrics {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(TargetMetrics(target.stats())));
        registry.register_collector(Box::new(volume.figures().clone()));
        registry.register_collector(Box::new(limiter.figures().clone()));
        used.register(&mut registry);
        if let Some(nbd) = nbd {
            registry.register_collector(Box::new(NbdMetrics(nbd.figures())));
        }
        metrics_at = Some(metrics::serve(address, registry, metrics::always())?);
    }
    let info = volume.info();
    Ok(Ready {
        listening,
        metrics: metrics_at,
        nbd: nbd.map(|nbd| nbd.uri.clone()),
        device: None,
        tenure: None,
        nqn: nqn.to_string(),
        nsid: NSID,
        volume: name(volume.shape().volume),
        bytes: info.bytes(),
        block_size: info.block_size,
        in_sync: volume.in_sync().iter().collect(),
    })
}

fn describe(ready: &Ready) -> String {
    let Ready { listening, metrics, nbd, device, nqn, volume, bytes, in_sync, .. } = ready;
    let slots: Vec<String> = in_sync.iter().map(ToString::to_string).collect();
    let mut text = format!("volume {volume}: {}, in sync: slots {}\n", Size(*bytes), slots.join(", "));
    if let Some(listening) = listening {
        text += &format!("served as namespace {NSID} of {nqn} at {listening}\n");
    }
    match (device, listening) {
        (Some(device), _) => text += &format!("this machine's block device: {device}\n"),
        (None, Some(at)) => {
            text += &format!("on Linux: nvme connect -t tcp -a {} -s {} -n {nqn}\n", at.ip(), at.port());
        }
        (None, None) => {}
    }
    if let Some(uri) = nbd {
        text += &format!("over NBD: {uri}\n");
    }
    if let Some(address) = metrics {
        text += &format!("metrics at http://{address}/metrics\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_first_is_told() {
        let failed = |sentence| Err(Failure::unavailable(sentence));
        let told = first_failure([Ok(()), failed("a"), failed("b")]).expect_err("two have failed");
        assert_eq!(told.sentence(), "a");
        first_failure([Ok(()), Ok(())]).expect("none has");
    }
}
