//! `yagura volume attach`: the mirror and a target of one namespace, in one process.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use ::control::provision::Limits;
use ::nbd::NbdMetrics;
use ::volume::{Options, Volume};
use device::{AnyNamespace, Mailed, Namespace};
use engine::net::TcpListener;
use engine::sync::MailReceiver;
use engine::task::Task;
use fabric::subsystem::{HostConfig, Target, TargetMetrics, listen};
use nvme::Nqn;
use prometheus_client::registry::Registry;
use serde::Serialize;

use super::limited::{Limited, Limiter};
use super::named;
use super::nbd::{self, Nbd};
use super::reach;
use super::wishes;
use super::words::{failure, name};
use crate::cli::VolumeAttachArgs;
use crate::exit::Failure;
use crate::race::first_of;
use crate::size::Size;
use crate::stop::Reason;
use crate::{metrics, output, reactors, stop};

/// The identifier of the only namespace.
const NSID: u32 = 1;

/// What is said on standard output once the volume is served.
#[derive(Serialize, Debug)]
struct Ready {
    listening: SocketAddr,
    metrics: Option<SocketAddr>,
    /// As NBD's clients write it.
    nbd: Option<String>,
    nqn: String,
    nsid: u32,
    volume: String,
    bytes: u64,
    block_size: u32,
    in_sync: Vec<usize>,
}

/// Serves until a signal.
pub fn run(args: &VolumeAttachArgs) -> Result<(), Failure> {
    if args.allowed.is_empty() && !args.listen.ip().is_loopback() {
        let why = "whoever reaches this address could write to the volume";
        return Err(Failure::usage(format!("--listen {}: name the hosts by --allow-host, since {why}", args.listen)));
    }
    nbd::check(args)?;
    let mut letters = stop::letters(1, args.until_stdin_closes)?;
    let letter = letters.pop().ok_or_else(|| Failure::usage("invariant: one letter was asked for"))?;
    reactors::run_one(serve(args, letter))
}

async fn serve(args: &VolumeAttachArgs, letter: MailReceiver<Reason>) -> Result<(), Failure> {
    let (found, attachment) = named::attach(&args.of, args.take)?;
    let options = Options {
        volume: attachment.as_ref().map(|attachment| attachment.volume),
        give_up_after: Duration::from_millis(args.give_up_after.into()),
        resync_bytes_per_second: Some(args.resync_rate.0),
        ..Options::default()
    };
    let volume = match ::volume::attach(reach::named(&found.holders, &found.uids)?, options).await {
        Ok(volume) => Rc::new(volume),
        Err(error) => {
            named::failed(&args.of, attachment.as_ref());
            return Err(failure(error));
        }
    };
    let limits = attachment.as_ref().map_or_else(Limits::default, |attachment| attachment.limits);
    let limiter = Rc::new(Limiter::new(limits));
    let served = Mailed::new(Rc::new(Limited::new(volume.clone(), limiter.clone())));
    let result = serve_it(args, (&volume, &limiter, attachment.as_ref()), &served, &letter).await;
    served.leave();
    // Also after a failure: who attaches next has nothing to wait for.
    let detached = volume.detach().await.map_err(failure);
    if !volume.is_superseded() {
        named::detached(&args.of, attachment.as_ref());
    }
    result.and(detached)
}

async fn serve_it(
    args: &VolumeAttachArgs,
    (volume, limiter, attachment): (&Rc<Volume>, &Rc<Limiter>, Option<&named::Attachment>),
    served: &Mailed,
    letter: &MailReceiver<Reason>,
) -> Result<(), Failure> {
    let nqn = match &args.nqn {
        Some(nqn) => nqn.parse().map_err(|error| Failure::usage(format!("--nqn: {error}")))?,
        None => usual_nqn(volume)?,
    };
    let target = Rc::new(target(args, &nqn, volume, served)?);
    let listener = listen(args.listen).await.map_err(|error| {
        let mend = "is another process listening there? port 0 takes a free one";
        Failure::refused(format!("cannot listen: {error} ({mend})"))
    })?;
    let nbd = nbd::serve(args, &AnyNamespace::other(served.clone())).await?;
    let ready = ready(args, &target, (volume, limiter), (&nqn, &listener), nbd.as_ref())?;
    output::report(args.common.json, &ready, describe)?;
    // Until it is dropped.
    let _following = follow(args, attachment, (volume, limiter), (&target, &nqn))?;
    first_of(superseded(volume), first_of(target.serve(listener, Vec::new()), letter.recv())).await;
    if let Some(nbd) = nbd {
        nbd.stop().await;
    }
    if volume.is_superseded() {
        return Err(Failure::refused("another host has attached the volume: nothing of it is served here any more"));
    }
    served.flush().await.map_err(|error| Failure::refused(format!("the last flush: {error}")))
}

/// Does what the control plane wants of this host, where the volume is attached by its name.
fn follow(
    args: &VolumeAttachArgs,
    attachment: Option<&named::Attachment>,
    (volume, limiter): (&Rc<Volume>, &Rc<Limiter>),
    (target, nqn): (&Rc<Target>, &Nqn),
) -> Result<Option<Task<()>>, Failure> {
    let (Some(name), Some(attachment)) = (&args.of.name, attachment) else { return Ok(None) };
    let (target, nqn) = (target.clone(), nqn.clone());
    let grown = move || {
        if let Err(error) = target.refresh_namespace(&nqn, NSID) {
            tracing::warn!(%error, "who uses the volume is not told that it has grown");
        }
    };
    let path = attachment.path(name);
    wishes::follow(&args.of.access, path, volume.clone(), limiter.clone(), grown).map(Some)
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

fn usual_nqn(volume: &Volume) -> Result<Nqn, Failure> {
    let text = format!("nqn.2026-11.io.yagura:volume:{}", name(volume.shape().volume));
    text.parse().map_err(|error| Failure::usage(format!("{text}: {error}")))
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
    target.add_namespace(nqn, NSID, AnyNamespace::other(served.clone())).map_err(Failure::usage)?;
    Ok(target)
}

fn ready(
    args: &VolumeAttachArgs,
    target: &Target,
    (volume, limiter): (&Volume, &Limiter),
    (nqn, listener): (&Nqn, &TcpListener),
    nbd: Option<&Nbd>,
) -> Result<Ready, Failure> {
    let mut metrics_at = None;
    if let Some(address) = args.metrics {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(TargetMetrics(target.stats())));
        registry.register_collector(Box::new(volume.figures().clone()));
        registry.register_collector(Box::new(limiter.figures().clone()));
        if let Some(nbd) = nbd {
            registry.register_collector(Box::new(NbdMetrics(nbd.figures())));
        }
        metrics_at = Some(metrics::serve(address, registry, metrics::always())?);
    }
    let info = volume.info();
    Ok(Ready {
        listening: listener.local_addr(),
        metrics: metrics_at,
        nbd: nbd.map(|nbd| nbd.uri.clone()),
        nqn: nqn.to_string(),
        nsid: NSID,
        volume: name(volume.shape().volume),
        bytes: info.bytes(),
        block_size: info.block_size,
        in_sync: volume.in_sync().iter().collect(),
    })
}

fn describe(ready: &Ready) -> String {
    let Ready { listening, metrics, nbd, nqn, volume, bytes, in_sync, .. } = ready;
    let slots: Vec<String> = in_sync.iter().map(ToString::to_string).collect();
    let mut text = format!("volume {volume}: {}, in sync: slots {}\n", Size(*bytes), slots.join(", "));
    text += &format!("served as namespace {NSID} of {nqn} at {listening}\n");
    let (address, port) = (listening.ip(), listening.port());
    text += &format!("on Linux: nvme connect -t tcp -a {address} -s {port} -n {nqn}\n");
    if let Some(uri) = nbd {
        text += &format!("over NBD: {uri}\n");
    }
    if let Some(address) = metrics {
        text += &format!("metrics at http://{address}/metrics\n");
    }
    text
}
