//! `yagura target`: namespaces served to any NVMe/TCP host.

mod client;
mod control;
mod drives;
mod host_tls;
mod jobs;
mod request;
mod scrub;
pub mod spec;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use device::{AnyNamespace, Namespace};
use engine::job::Jobs;
use engine::net::TcpListener;
use engine::sync::{MailReceiver, MailSender, mailbox};
use fabric::auth::Policy;
use fabric::subsystem::{Handed, PortId, Target, TargetConfig, TargetMetrics, listen};
use flash::FlashMetrics;
use nvme::Nqn;
use prometheus_client::registry::Registry;
use serde::Serialize;

use crate::cli::{TargetArgs, TargetCommand};
use crate::drive::DriveMetrics;
use crate::exit::Failure;
use crate::handout::Handout;
use crate::race::first_of;
use crate::size::Size;
use crate::stop::Reason;
use crate::{descriptors, metrics, output, reactors, stop};
pub use drives::DriveSpec;
use spec::{Plan, PlannedPort, PlannedSubsystem};

/// Connections on their way to another reactor. Guessed; at the bound the accepting reactor serves them itself.
const HANDED_MAX: usize = 64;

/// What is said on standard output once everything serves; a supervisor waits for it.
#[derive(Serialize, Debug)]
struct Ready {
    /// The first port for I/O, for who knows one only.
    listening: SocketAddr,
    /// The first port for discovery only.
    discovery: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
    control: Option<String>,
    ports: Vec<ServedPort>,
    /// The first subsystem.
    nqn: String,
    subsystems: Vec<String>,
    namespaces: Vec<ServedNamespace>,
}

#[derive(Serialize, Debug)]
struct ServedPort {
    id: u16,
    listening: SocketAddr,
    discovery_only: bool,
}

#[derive(Serialize, Debug)]
struct ServedNamespace {
    nqn: String,
    nsid: u32,
    group: u32,
    medium: String,
    bytes: u64,
    block_size: u32,
    nguid: String,
}

/// Serves until a signal, or runs a verb.
pub fn run(command: &TargetCommand) -> Result<(), Failure> {
    match &command.verb {
        Some(verb) => client::run(verb),
        None => serve(&command.serve),
    }
}

fn serve(args: &TargetArgs) -> Result<(), Failure> {
    if args.namespaces.is_empty() && args.drives.is_empty() && args.control.is_none() {
        let example = "--namespace file=disk.img,size=10GiB, --namespace memory=1GiB, or --drive PATH";
        return Err(Failure::usage(format!("there is nothing to serve: add a namespace, such as {example}")));
    }
    let plan = Plan::new(args).map_err(Failure::usage)?;
    let reactors = args.serving.reactors();
    let letters = Handout::new(stop::letters(reactors.len(), args.serving.until_stdin_closes)?);
    let (senders, receivers): (Vec<_>, Vec<_>) = (1..reactors.len()).map(|_| mailbox::<Handed>(HANDED_MAX)).unzip();
    let (handed, senders) = (Handout::new(receivers), Handout::new([senders]));
    let authentication = Policy::parse(args.dhchap_hashes.as_deref(), args.dhchap_groups.as_deref());
    let config = TargetConfig {
        authentication: authentication.map_err(Failure::usage)?,
        require_authentication: args.require_auth,
        profile: args.profile,
        connections_max: descriptors::connections(reactors.len(), TargetConfig::default().connections_max),
    };
    let target: Target = Target::new(config);
    reactors::run(&reactors, async |index| {
        let Some(letter) = letters.take(index) else { return Ok(()) };
        match index.checked_sub(1).and_then(|other| handed.take(other)) {
            Some(connections) => {
                first_of(target.serve_handed(connections), letter.recv()).await;
                Ok(())
            }
            None => first(args, &plan, &target, senders.take(0).unwrap_or_default(), &letter).await,
        }
    })
}

/// The reactor that opens the namespaces, accepts, and does what the operator asks.
async fn first(
    args: &TargetArgs,
    plan: &Plan,
    target: &Target,
    others: Vec<MailSender<Handed>>,
    letter: &MailReceiver<Reason>,
) -> Result<(), Failure> {
    // Before files are made: a port that is taken leaves nothing behind.
    let mut listeners = Vec::new();
    for port in &plan.ports {
        listeners.push((port, bind(port.address).await?));
    }
    let (opened, mut served) = open(args, plan).await?;
    make(args, plan, target, &served)?;
    for (namespace, ServedNamespace { nsid, group, .. }) in opened.into_iter().zip(&served) {
        let (nqn, namespace) = namespace;
        target.add_namespace_to(nqn, *nsid, *group, namespace).map_err(Failure::usage)?;
    }
    let jobs = Jobs::default();
    let (drives, of_drives) = drives::serve(&args.drives, plan, target, &jobs).await?;
    served.extend(of_drives);
    let (socket, asked) = match &args.control {
        Some(path) => control::serve(path).map(|(socket, asked)| (Some(socket), Some(asked)))?,
        None => (None, None),
    };
    let flash = FlashMetrics::default();
    let _watching = args.serving.metrics.is_some().then(|| crate::flash::served::watch(&flash));
    let ready = ready(args, plan, (target, &jobs, flash), served, &listeners)?;
    output::report(args.common.json, &ready, describe)?;
    let controlling = async {
        match asked {
            Some(asked) => control::run(target, &jobs, &drives, asked).await,
            None => std::future::pending().await,
        }
    };
    let mut tasks = Vec::new();
    for (port, listener) in listeners {
        tasks.push(engine::task::spawn(accept(target.clone(), port.config.id, listener, others.clone())));
    }
    drop(others);
    first_of(controlling, letter.recv()).await;
    drop((tasks, socket));
    flush(target).await?;
    crate::flash::served::close_all().await?;
    drives::close(drives).await
}

async fn accept(target: Target, port: PortId, listener: TcpListener, others: Vec<MailSender<Handed>>) {
    let Err(error) = target.serve_port(port, listener, others).await;
    tracing::error!(%port, %error, "the port is not served");
}

type Opened<'a> = (Vec<(&'a Nqn, AnyNamespace)>, Vec<ServedNamespace>);

async fn open<'a>(args: &TargetArgs, plan: &'a Plan) -> Result<Opened<'a>, Failure> {
    let (mut opened, mut served) = (Vec::new(), Vec::new());
    for (spec, (nqn, nsid)) in args.namespaces.iter().zip(&plan.namespaces) {
        let namespace = spec.open().await.map_err(|failure| failure.during(format!("namespace {nsid}")))?;
        let info = namespace.info();
        served.push(ServedNamespace {
            nqn: nqn.to_string(),
            nsid: *nsid,
            group: spec.group,
            medium: spec.describe(),
            bytes: info.bytes(),
            block_size: info.block_size,
            nguid: format!("{:032x}", u128::from_be_bytes(info.nguid)),
        });
        opened.push((nqn, namespace));
    }
    Ok((opened, served))
}

/// Ports, subsystems, hosts and states; before anybody can connect.
fn make(args: &TargetArgs, plan: &Plan, target: &Target, served: &[ServedNamespace]) -> Result<(), Failure> {
    for PlannedPort { config, .. } in &plan.ports {
        target.add_port(config.clone()).map_err(Failure::usage)?;
    }
    for PlannedSubsystem { nqn, serial, any_host, hosts, ports } in &plan.subsystems {
        let serial = serial.clone().unwrap_or_else(|| serial_of(nqn, served));
        target.add_subsystem(nqn.clone(), &serial).map_err(Failure::usage)?;
        target.allow_any_host(nqn, *any_host).map_err(Failure::usage)?;
        for (host, config) in hosts {
            target.allow_host(nqn, host, config.clone()).map_err(Failure::usage)?;
        }
        if !ports.is_empty() {
            target.restrict_ports(nqn, ports.iter().copied()).map_err(Failure::usage)?;
        }
        for &(port, group, state) in &plan.ana {
            target.set_ana_state(nqn, port, group, state).map_err(Failure::usage)?;
        }
    }
    for &address in &args.referrals {
        target.add_referral(address).map_err(Failure::usage)?;
    }
    Ok(())
}

/// A serial number that stays over restarts: from the subsystem's first namespace, or else from its name.
fn serial_of(nqn: &Nqn, served: &[ServedNamespace]) -> String {
    let first = served.iter().find(|namespace| namespace.nqn == nqn.as_str());
    match first {
        Some(first) => format!("YG{}", &first.nguid[..16]),
        None => {
            // FNV-1a: any hash that never changes will do.
            let hash = nqn
                .as_str()
                .bytes()
                .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3));
            format!("YG{hash:016x}")
        }
    }
}

fn ready(
    args: &TargetArgs,
    plan: &Plan,
    (target, jobs, flash): (&Target, &Jobs, FlashMetrics),
    namespaces: Vec<ServedNamespace>,
    listeners: &[(&PlannedPort, TcpListener)],
) -> Result<Ready, Failure> {
    let mut metrics_at = None;
    if let Some(address) = args.serving.metrics {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(TargetMetrics(target.stats())));
        registry.register_collector(Box::new(jobs.clone()));
        registry.register_collector(Box::new(flash));
        registry.register_collector(Box::new(DriveMetrics));
        metrics_at = Some(metrics::serve(address, registry, metrics::always())?);
    }
    let served = |(port, listener): &(&PlannedPort, TcpListener)| ServedPort {
        id: port.config.id.0,
        listening: listener.local_addr(),
        discovery_only: port.config.discovery_only,
    };
    let ports: Vec<ServedPort> = listeners.iter().map(served).collect();
    let find = |discovery| ports.iter().find(|port| port.discovery_only == discovery).map(|port| port.listening);
    let subsystems: Vec<String> = plan.subsystems.iter().map(|subsystem| subsystem.nqn.to_string()).collect();
    Ok(Ready {
        listening: find(false).or(find(true)).unwrap_or(args.listen),
        discovery: find(true),
        metrics: metrics_at,
        control: args.control.as_ref().map(|path| path.display().to_string()),
        nqn: subsystems.first().cloned().unwrap_or_default(),
        ports,
        subsystems,
        namespaces,
    })
}

/// Makes everything stable that is served at the end.
async fn flush(target: &Target) -> Result<(), Failure> {
    for subsystem in target.report().subsystems {
        let Ok(nqn) = subsystem.nqn.parse() else { continue };
        for namespace in subsystem.namespaces {
            // It may have been removed, and flushed, in between.
            let Ok(found) = target.namespace(&nqn, namespace.nsid) else { continue };
            found.flush().await.map_err(|error| Failure::refused(format!("the last flush: {error}")))?;
        }
    }
    Ok(())
}

async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    listen(address).await.map_err(|error| {
        let mend = "is another process listening there? port 0 takes a free one";
        Failure::refused(format!("cannot listen: {error} ({mend})"))
    })
}

fn describe(ready: &Ready) -> String {
    let mut text = String::new();
    let mut by_subsystem: BTreeMap<&str, Vec<&ServedNamespace>> = BTreeMap::new();
    for namespace in &ready.namespaces {
        by_subsystem.entry(&namespace.nqn).or_default().push(namespace);
    }
    let places: Vec<String> =
        ready.ports.iter().filter(|port| !port.discovery_only).map(|p| p.listening.to_string()).collect();
    for nqn in &ready.subsystems {
        text += &format!("target {nqn} listening at {}\n", places.join(", "));
        for namespace in by_subsystem.get(nqn.as_str()).into_iter().flatten() {
            let ServedNamespace { nsid, medium, bytes, block_size, nguid, .. } = namespace;
            text += &format!("namespace {nsid}: {medium}, {}, blocks of {block_size}, {nguid}\n", Size(*bytes));
        }
    }
    if let Some(address) = ready.discovery {
        text += &format!("discovery at {address}\n");
    }
    if let Some(address) = ready.metrics {
        text += &format!("metrics at http://{address}/metrics\n");
    }
    if let Some(path) = &ready.control {
        text += &format!("control at {path}\n");
    }
    text
}
