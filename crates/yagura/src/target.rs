//! `yagura target`: namespaces served to any NVMe/TCP host.

use std::net::SocketAddr;

use device::{AnyLocal, Namespace};
use engine::sync::{MailReceiver, MailSender, mailbox};
use fabric::target::{Handed, PortConfig, PortId, Target, TargetConfig, listen};
use nvme::Nqn;
use prometheus_client::registry::Registry;
use serde::Serialize;

use crate::cli::TargetArgs;
use crate::exit::Failure;
use crate::handout::Handout;
use crate::race::first_of;
use crate::size::Size;
use crate::stop::Reason;
use crate::{metrics, output, reactors, stop};

/// Connections on their way to another reactor. Guessed; at the bound the accepting reactor serves them itself.
const HANDED_MAX: usize = 64;
/// The port of `--listen`, and that of `--discovery`.
const PORT: PortId = PortId(1);
const DISCOVERY_PORT: PortId = PortId(2);

/// What is said on standard output once everything serves; a supervisor waits for it.
#[derive(Serialize, Debug)]
struct Ready {
    listening: SocketAddr,
    discovery: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
    nqn: String,
    namespaces: Vec<ServedNamespace>,
}

#[derive(Serialize, Debug)]
struct ServedNamespace {
    nsid: u32,
    medium: String,
    bytes: u64,
    block_size: u32,
    nguid: String,
}

/// Serves until a signal.
pub fn run(args: &TargetArgs) -> Result<(), Failure> {
    if args.namespaces.is_empty() {
        let example = "--namespace file=disk.img,size=10GiB, or --namespace memory=1GiB";
        return Err(Failure::usage(format!("there is nothing to serve: add a namespace, such as {example}")));
    }
    let nqn: Nqn = args.nqn.parse().map_err(|error| Failure::usage(format!("--nqn: {error}")))?;
    let placement = args.serving.placement();
    let letters = Handout::new(stop::letters(placement.len(), args.serving.until_stdin_closes)?);
    let (senders, receivers): (Vec<_>, Vec<_>) = (1..placement.len()).map(|_| mailbox::<Handed>(HANDED_MAX)).unzip();
    let (handed, senders) = (Handout::new(receivers), Handout::new([senders]));
    let target: Target<AnyLocal> = Target::new(TargetConfig::default());
    reactors::run(&placement, async |index| {
        let Some(letter) = letters.take(index) else { return Ok(()) };
        match index.checked_sub(1).and_then(|other| handed.take(other)) {
            Some(connections) => {
                first_of(target.serve_handed(connections), letter.recv()).await;
                Ok(())
            }
            None => first(args, &nqn, &target, senders.take(0).unwrap_or_default(), &letter).await,
        }
    })
}

/// The reactor that opens the namespaces and accepts.
async fn first(
    args: &TargetArgs,
    nqn: &Nqn,
    target: &Target<AnyLocal>,
    others: Vec<MailSender<Handed>>,
    letter: &MailReceiver<Reason>,
) -> Result<(), Failure> {
    let mut opened: Vec<AnyLocal> = Vec::new();
    let mut served = Vec::new();
    for (nsid, spec) in (1..).zip(&args.namespaces) {
        let namespace = spec.open().await.map_err(|failure| failure.during(format!("namespace {nsid}")))?;
        let info = namespace.info();
        served.push(ServedNamespace {
            nsid,
            medium: spec.describe(),
            bytes: info.bytes(),
            block_size: info.block_size,
            nguid: format!("{:032x}", u128::from_be_bytes(info.nguid)),
        });
        opened.push(namespace);
    }
    let serial = served.first().map_or_else(String::new, |first| format!("YG{}", &first.nguid[..16]));
    target.add_subsystem(nqn.clone(), &serial).map_err(Failure::usage)?;
    for (nsid, namespace) in (1..).zip(&opened) {
        target.add_namespace(nqn, nsid, namespace.clone()).map_err(Failure::usage)?;
    }
    let listener = bind(args.listen).await?;
    let discovery = match args.discovery {
        Some(address) => Some(bind(address).await?),
        None => None,
    };
    let mut ready = Ready {
        listening: listener.local_addr(),
        discovery: discovery.as_ref().map(|listener| listener.local_addr()),
        metrics: None,
        nqn: nqn.to_string(),
        namespaces: served,
    };
    if let Some(address) = args.serving.metrics {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(metrics::TargetMetrics(target.stats())));
        ready.metrics = Some(metrics::serve(address, registry)?);
    }
    let main_port = PortConfig { advertise: args.advertise, ..PortConfig::new(PORT) };
    target.add_port(main_port).map_err(Failure::usage)?;
    if discovery.is_some() {
        let port = PortConfig { discovery_only: true, ..PortConfig::new(DISCOVERY_PORT) };
        target.add_port(port).map_err(Failure::usage)?;
    }
    output::report(args.common.json, &ready, describe)?;
    let discovering = async {
        match discovery {
            Some(listener) => target.serve_port(DISCOVERY_PORT, listener, Vec::new()).await,
            None => std::future::pending().await,
        }
    };
    first_of(first_of(target.serve_port(PORT, listener, others), discovering), letter.recv()).await;
    for namespace in &opened {
        namespace.flush().await.map_err(|error| Failure::refused(format!("the last flush: {error}")))?;
    }
    Ok(())
}

async fn bind(address: SocketAddr) -> Result<engine::net::TcpListener, Failure> {
    listen(address).await.map_err(|error| {
        let mend = "is another process listening there? port 0 takes a free one";
        Failure::refused(format!("cannot listen at {address}: {error} ({mend})"))
    })
}

fn describe(ready: &Ready) -> String {
    let mut text = format!("target {} listening at {}\n", ready.nqn, ready.listening);
    for ServedNamespace { nsid, medium, bytes, block_size, nguid } in &ready.namespaces {
        text += &format!("namespace {nsid}: {medium}, {}, blocks of {block_size}, {nguid}\n", Size(*bytes));
    }
    if let Some(address) = ready.discovery {
        text += &format!("discovery at {address}\n");
    }
    if let Some(address) = ready.metrics {
        text += &format!("metrics at http://{address}/metrics\n");
    }
    text
}
