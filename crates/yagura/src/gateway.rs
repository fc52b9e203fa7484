//! `yagura gateway`: a pool served to Redis clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use engine::net::{DetachedStream, TcpListener};
use engine::sync::{MailReceiver, MailSender, mailbox};
use kv::resp::{Gateway, GatewayMetrics, GatewayState};
use kv::store::{PoolMetrics, RepairerOptions, ScrubberOptions, StoreMetrics};
use prometheus_client::registry::Registry;
use serde::Serialize;
use tls::Secret;

use crate::cli::GatewayArgs;
use crate::exit::Failure;
use crate::handout::Handout;
use crate::race::first_of;
use crate::stop::Reason;
use crate::{client, descriptors, metrics, output, reactors, stop};

/// Connections on their way to another reactor. Guessed; at the bound the accepting reactor passes them on to the next.
const HANDED_MAX: usize = 64;

/// How long a command waits for members that have lost their connection, where it needs them. Chosen: longer than a reconnect to a
/// target that is there, and with all that comes beside it less than a second.
pub const RECONNECT_TIME_MAX: Duration = Duration::from_millis(700);

/// What is said on standard output once it serves.
#[derive(Serialize, Debug)]
struct Ready {
    listening: SocketAddr,
    metrics: Option<SocketAddr>,
    pool: String,
    members: usize,
}

/// Serves until a signal.
pub fn run(args: &GatewayArgs) -> Result<(), Failure> {
    let reactors = args.serving.reactors();
    let letters = Handout::new(stop::letters(reactors.len(), args.serving.until_stdin_closes)?);
    let (senders, receivers): (Vec<_>, Vec<_>) =
        (1..reactors.len()).map(|_| mailbox::<DetachedStream>(HANDED_MAX)).unzip();
    let (handed, senders) = (Handout::new(receivers), Handout::new([senders]));
    let password = args.password_file.as_deref().map(Secret::from_file).transpose();
    let password = password.map_err(|error| Failure::refused(format!("--password-file: {error}")))?;
    let shared = Arc::new(GatewayState::new(password));
    let tls = args.tls.context()?;
    let stores = Arc::new(StoreMetrics::default());
    reactors::run(&reactors, async |index| {
        let Some(letter) = letters.take(index) else { return Ok(()) };
        // Each reactor has its own connections to the members: nothing is shared on the data path.
        let store = client::open(&args.address).await?;
        stores.add(store.stats());
        store.set_patience(RECONNECT_TIME_MAX);
        let clients = descriptors::clients(&store, reactors.len(), args.connections_max);
        let mut gateway = store.gateway(shared.clone(), clients);
        if let Some(tls) = tls.clone() {
            gateway = gateway.with_tls(tls);
        }
        match index.checked_sub(1).and_then(|other| handed.take(other)) {
            Some(connections) => {
                first_of(gateway.adopt_all(&connections), letter.recv()).await;
            }
            None => {
                // One repairer is enough for all reactors: it looks at the members, not at who wrote.
                let _repairer = store.start_repairer(RepairerOptions::default());
                let _scrubber = store.start_scrubber(ScrubberOptions::default());
                let mut registry = Registry::default();
                registry.register_collector(Box::new(GatewayMetrics(shared.clone())));
                registry.register_collector(Box::new(stores.clone()));
                let pool = PoolMetrics::default();
                let _watching = args.serving.metrics.is_some().then(|| pool.watch(&store));
                registry.register_collector(Box::new(pool.clone()));
                let metrics = (registry, Box::new(pool.ready()) as metrics::Ready);
                first(args, &gateway, &store, senders.take(0).unwrap_or_default(), metrics, &letter).await?;
            }
        }
        gateway.stop().await;
        crate::kv::settle(&store).await;
        Ok(())
    })
}

async fn first(
    args: &GatewayArgs,
    gateway: &Gateway<kv::store::Store>,
    store: &kv::store::Store,
    others: Vec<MailSender<DetachedStream>>,
    (registry, ready): (Registry, metrics::Ready),
    letter: &MailReceiver<Reason>,
) -> Result<(), Failure> {
    let listener = TcpListener::bind(args.listen).map_err(|error| {
        let mend = "is a Redis server running there? port 0 takes a free one";
        Failure::refused(format!("cannot listen: {error} ({mend})"))
    })?;
    let metrics = args.serving.metrics.map(|address| metrics::serve(address, registry, ready)).transpose()?;
    let ready = Ready {
        listening: listener.local_addr(),
        metrics,
        pool: store.map().pool.to_string(),
        members: store.map().members.len(),
    };
    output::report(args.common.json, &ready, describe)?;
    first_of(gateway.accept(&listener, &others), letter.recv()).await;
    Ok(())
}

fn describe(ready: &Ready) -> String {
    let Ready { listening, metrics, pool, members } = ready;
    let members = output::many(*members as u64, "member");
    let mut text = format!("gateway of pool {pool} ({members}) listening at {listening}\n");
    if let Some(address) = metrics {
        text += &format!("metrics at http://{address}/metrics\n");
    }
    text
}
