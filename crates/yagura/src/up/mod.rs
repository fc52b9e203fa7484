//! `yagura up`: storage nodes, a pool, a gateway, volumes by name and files on one machine.
//!
//! The nodes are processes of this same binary (`yagura target`), each with one member, one drive and one namespace for the
//! bytes of files; the pool is made on the first start and opened on later ones; the gateway runs here, and the control plane of
//! the volumes is a process beside the nodes. Nodes that end are restarted; the store repairs what they missed, and hosts
//! resynchronise their volumes.

mod drill;
mod files;
mod state;
mod volumes;

use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use engine::net::TcpListener;
use engine::sync::MailReceiver;
use engine::{task, time};
use kv::resp::{CONNECTIONS_MAX, GatewayMetrics, GatewayState};
use kv::store::{PoolMetrics, RepairerOptions, Store, StoreMetrics};
use prometheus_client::registry::Registry;
use serde::Serialize;

use crate::cli::UpArgs;
use crate::client::Way;
use crate::exit::Failure;
use crate::gateway::RECONNECT_TIME_MAX;
use crate::race::{First, first_of};
use crate::size::Size;
use crate::stop::Reason;
use crate::supervise::{News, NodeSpec, Supervisor};
use crate::tree::Tree;
use crate::{descriptors, metrics, output, reactors, stop};
use files::Files;
use state::{State, subsystem};
use volumes::{Starting, Volumes};

/// How long the nodes may take to serve at the start. Opening a member takes milliseconds; a busy machine takes its time.
const START_TIME_MAX: Duration = Duration::from_secs(30);
/// Where Redis clients look when they are told nothing.
const REDIS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 6379);

/// What is said on standard output once everything serves.
#[derive(Serialize, Debug)]
struct Ready {
    gateway: SocketAddr,
    metrics: Option<SocketAddr>,
    pool: String,
    nodes: Vec<NodeReady>,
    /// Where volumes are made; none: they can't be, and the log says why.
    volumes: Option<volumes::Ready>,
    /// Where files are; none: likewise.
    files: Option<files::Ready>,
    created: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    drill: Option<&'a drill::Summary>,
    #[serde(flatten)]
    serving: &'a Ready,
}

#[derive(Serialize, Debug)]
struct NodeReady {
    /// Where it serves; of a node that is down, where it will once it is back.
    address: SocketAddr,
    member: String,
    /// Its process, so that whoever wants to see the pool survive can kill it.
    pid: Option<u32>,
}

/// Everything that runs.
pub struct Running {
    /// The control plane; none: it could not be started.
    pub volumes: Option<Volumes>,
    /// The file system; none: it could not be had.
    pub files: Option<Files>,
    /// The nodes' supervisor.
    pub supervisor: Supervisor,
    /// What it tells.
    pub news: MailReceiver<News>,
    /// The store.
    pub store: Store,
}

/// Runs until a signal, or with `--once` until the drill is over.
pub fn run(args: &UpArgs) -> Result<(), Failure> {
    let mut letters = stop::letters(1, false)?;
    let letter = letters.pop().ok_or_else(|| Failure::usage("no reactor"))?;
    let tree = args.drill.as_ref().map(|directory| Tree::list(directory, "")).transpose()?;
    let mut state = State::load(&args.data, args.nodes, member_size(args, tree.as_ref()))?;
    if let Some(size) = args.size.filter(|size| size.0 != state.size) {
        let (data, there) = (args.data.display(), Size(state.size));
        let sentence =
            format!("--size {size}: the members in {data} have {there}; leave it out, or use another directory");
        return Err(Failure::usage(sentence));
    }
    let least = pool::member_bytes_min(pool::CreateOptions::default().page_size);
    if state.size < least {
        return Err(Failure::usage(format!("--size {}: a member has at least {}", Size(state.size), Size(least))));
    }
    if usize::from(args.replicas) > state.nodes.len() {
        let sentence = format!("--replicas {} needs as many nodes; there are {}", args.replicas, state.nodes.len());
        return Err(Failure::usage(sentence));
    }
    volumes::prepare(&args.data, &mut state, args.volumes)?;
    if !args.no_files || state.files.is_some() {
        files::prepare(&args.data, &mut state, args.files)?;
    }
    state.leave_busy_ports();
    let program = std::env::current_exe().map_err(|error| Failure::from(error).during("this program's own file"))?;
    let nodes = Supervisor::start(specs(args, &state, &program)?)?;
    let volumes = state.volumes.as_ref().map(|of| volumes::start(&program, &args.data, of)).transpose();
    reactors::run_one(serve(args, state, nodes, volumes, tree, &letter))
}

/// Bytes of each member of a new pool: as asked, else enough for what is to be imported. Every node may come to hold every value
/// (as many replicas as nodes), three quarters of a member are for values that fit no page, and overwriting wants room.
fn member_size(args: &UpArgs, tree: Option<&Tree>) -> u64 {
    const GIB: u64 = 1 << 30;
    let room = || tree.map_or(0, Tree::bytes).saturating_mul(4).next_multiple_of(GIB);
    args.size.map_or_else(|| room().max(GIB), |size| size.0)
}

fn specs(args: &UpArgs, state: &State, program: &Path) -> Result<Vec<NodeSpec>, Failure> {
    let spec = |(index, listen): (usize, &SocketAddr)| {
        let member = State::member(&args.data, index);
        if let Some(directory) = member.parent() {
            std::fs::create_dir_all(directory).map_err(|error| Failure::from(error).during(directory.display()))?;
        }
        let path = member.to_str().filter(|path| !path.contains(','));
        let path = path.ok_or_else(|| Failure::usage(format!("{}: must be text without commas", member.display())))?;
        let nqn = subsystem(index);
        let mut arguments = vec![
            "target".into(),
            format!("--subsystem=nqn={nqn}"),
            format!("--namespace=file={path},size={},subsystem={nqn}", state.size),
            "--until-stdin-closes".into(),
            "--json".into(),
        ];
        if let Some(of) = &state.volumes {
            arguments.extend(volumes::arguments(&args.data, of, index));
        }
        if state.files.is_some() {
            arguments.extend(files::arguments(&args.data, index));
        }
        let name = format!("storage node {}", index + 1);
        Ok(NodeSpec { name, program: program.to_owned(), arguments, listen: *listen })
    };
    state.nodes.iter().enumerate().map(spec).collect()
}

async fn serve(
    args: &UpArgs,
    mut state: State,
    (supervisor, news): (Supervisor, MailReceiver<News>),
    starting: Result<Option<Starting>, Failure>,
    tree: Option<Tree>,
    letter: &MailReceiver<Reason>,
) -> Result<(), Failure> {
    let pids = all_started(&news, &mut state).await?;
    state.save(&args.data)?;
    let serving = state.nodes.iter().zip(&pids).filter(|(_, pid)| pid.is_some());
    let addresses: Vec<String> = serving.map(|(address, _)| address.to_string()).collect();
    let (store, created) = open_or_create(args, &addresses, pids.len()).await?;
    let (volumes, files) = (volumes(starting, &mut state).await, files(&store, &mut state).await);
    state.save(&args.data)?;
    let running = Running { volumes, files, supervisor, news, store };
    let repairer = running.store.start_repairer(RepairerOptions { at_start: !created, bytes_per_second: None });
    let shared = Arc::new(GatewayState::default());
    running.store.set_patience(RECONNECT_TIME_MAX);
    let clients = descriptors::clients(&running.store, 1, CONNECTIONS_MAX);
    let gateway = Rc::new(running.store.gateway(shared.clone(), clients));
    let listener = listen(args.listen)?;
    let (nodes, gateway_at) = (nodes(args, &state, &pids), listener.local_addr());
    let (volumes, files) = (running.volumes.as_ref().map(Volumes::ready), running.files.as_ref().map(Files::ready));
    let pool = running.store.map().pool.to_string();
    let mut ready = Ready { gateway: gateway_at, metrics: None, pool, nodes, volumes, files, created };
    let mut watching = None;
    if let Some(address) = args.metrics {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(GatewayMetrics(shared)));
        let stores = StoreMetrics::default();
        stores.add(running.store.stats());
        registry.register_collector(Box::new(stores));
        let pool = PoolMetrics::default();
        watching = Some(pool.watch(&running.store));
        registry.register_collector(Box::new(pool.clone()));
        ready.metrics = Some(metrics::serve(address, registry, Box::new(pool.ready()))?);
    }
    let accepting = gateway.clone();
    let accepting = task::spawn(async move { accepting.accept(&listener, &[]).await });
    let drilled = async {
        match &tree {
            Some(tree) => drill::run(&running, tree, &args.data.join("drill"), args.common.json).await.map(Some),
            None => Ok(None),
        }
    };
    let drilled = match first_of(drilled, letter.recv()).await {
        First::A(drilled) => drilled?,
        First::B(_) => return Err(Failure::check("interrupted before the drill was over")),
    };
    output::report(args.common.json, &Report { drill: drilled.as_ref(), serving: &ready }, |report| {
        drilled.as_ref().map_or(String::new(), drill::Summary::describe) + &describe(report.serving)
    })?;
    if !args.once {
        letter.recv().await;
    }
    drop(accepting);
    gateway.stop().await;
    drop((repairer, watching));
    crate::kv::settle(&running.store).await;
    match drilled {
        Some(summary) if args.once => summary.verdict(),
        _ => Ok(()),
    }
}

fn nodes(args: &UpArgs, state: &State, pids: &[Option<u32>]) -> Vec<NodeReady> {
    let nodes = state.nodes.iter().zip(pids).enumerate();
    let node = |(index, (address, pid)): (usize, (&SocketAddr, &Option<u32>))| {
        let member = State::member(&args.data, index).display().to_string();
        NodeReady { address: *address, member, pid: *pid }
    };
    nodes.map(node).collect()
}

/// The control plane, told of the drives. The store is served without it, too.
async fn volumes(starting: Result<Option<Starting>, Failure>, state: &mut State) -> Option<Volumes> {
    let registered =
        async { starting?.ok_or_else(|| Failure::refused("there are no drives"))?.registered(state).await };
    let registered: Result<Volumes, Failure> = registered.await;
    registered.map_err(|failure| tracing::error!("volumes are not served: {}", failure.sentence())).ok()
}

/// The file system. All else is served without it, too.
async fn files(store: &Store, state: &mut State) -> Option<Files> {
    state.files.as_ref()?;
    let found = files::find_or_make(store, state).await;
    found.map_err(|failure| tracing::error!("files are not served: {}", failure.sentence())).ok()
}

/// Waits until every node either serves or has failed to; fills in where they do. The processes of those that serve.
///
/// A node that fails is tried again and again by the supervisor; a pool that has its majority need not wait for it.
async fn all_started(news: &MailReceiver<News>, state: &mut State) -> Result<Vec<Option<u32>>, Failure> {
    let mut pids = vec![None; state.nodes.len()];
    let mut heard = vec![false; state.nodes.len()];
    let all = async {
        while heard.contains(&false) {
            match news.recv().await {
                Some(News::Started { node, listening, pid, .. }) => {
                    state.nodes[node] = listening;
                    (pids[node], heard[node]) = (Some(pid), true);
                }
                Some(News::Ended { node, status }) => {
                    tracing::error!("storage node {} ended at its start ({status}); it says why above", node + 1);
                    (pids[node], heard[node]) = (None, true);
                }
                None => return Err(Failure::refused("the supervisor has ended")),
            }
        }
        Ok(())
    };
    if let Ok(ended) = time::timeout(START_TIME_MAX, all).await {
        ended?;
    }
    match pids.iter().any(Option::is_some) {
        true => Ok(pids),
        false => Err(Failure::refused("no storage node could be started; they say why above")),
    }
}

/// `nodes`: how many there are, of which those at `addresses` serve.
async fn open_or_create(args: &UpArgs, addresses: &[String], nodes: usize) -> Result<(Store, bool), Failure> {
    let reach = async || ::client::reach::reach(&Way::plain(), addresses, None).await.map_err(Failure::from);
    match reach().await {
        Ok(reached) => Ok((reached.store(), false)),
        // A pool that is made of some of the nodes would leave the others out for good.
        Err(failure) if addresses.len() < nodes => Err(failure),
        Err(failure) => {
            let blank = crate::pool::create_blank(addresses, args.replicas, args.table_share).await;
            match blank {
                Ok(true) => Ok((reach().await?.store(), true)),
                // Not all of them are blank: then what kept the pool from being opened is what counts.
                Ok(false) => Err(failure),
                Err(other) => Err(other),
            }
        }
    }
}

/// The gateway's socket: where it was asked for; or at Redis's port, or at a free one if that is taken.
fn listen(asked: Option<SocketAddr>) -> Result<TcpListener, Failure> {
    let anywhere = SocketAddr::new(REDIS.ip(), 0);
    let bound = match asked {
        Some(address) => TcpListener::bind(address),
        None => TcpListener::bind(REDIS).or_else(|_| TcpListener::bind(anywhere)),
    };
    bound.map_err(|error| Failure::refused(format!("cannot listen: {error} (port 0 takes a free one)")))
}

fn describe(ready: &Ready) -> String {
    let mut text = format!("pool {} {}\n", ready.pool, if ready.created { "made" } else { "opened" });
    for NodeReady { address, member, pid } in &ready.nodes {
        let pid = pid.map_or(" (DOWN)".into(), |pid| format!(" (process {pid})"));
        text += &format!("storage node at {address}{pid}: {member}\n");
    }
    let addresses: Vec<String> = ready.nodes.iter().map(|node| node.address.to_string()).collect();
    text += &format!("pool address: --pool {}\n", addresses.join(","));
    if let Some(address) = ready.metrics {
        text += &format!("metrics: http://{address}/metrics\n");
    }
    if let Some(volumes) = &ready.volumes {
        text += &volumes.describe();
    }
    if let Some(files) = &ready.files {
        text += &files.describe();
    }
    text += &format!("gateway: redis-cli -h {} -p {}\n", ready.gateway.ip(), ready.gateway.port());
    text
}
