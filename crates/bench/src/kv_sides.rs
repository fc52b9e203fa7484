//! The sides of row B4: a pool on targets of ours, memcached and Redis as shipped; clients of all of them, that wait alike.

use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use engine::rng::SplitMix;
use engine::{Buf, Reactor, ReactorConfig, View};
use fabric::host::{Options as HostOptions, RemoteNamespace};
use kv::{Store, Value};
use pool::{CreateOptions, Map, NewMember};

use crate::process::{self, Server};
use crate::text_client::{self, Protocol};

/// Bytes of each member. Chosen: larger than the caches, loaded in a second.
const MEMBER_BYTES: u64 = 256 << 20;
/// Of the members' subsystems, without the member's number.
const NQN: &str = "nqn.2026-11.io.yagura:bench-kv";
/// Memory for memcached: everything that is loaded, many times over.
const MEMCACHED_MEGABYTES: usize = 1024;

/// A system that holds the records.
pub enum Side {
    /// Ours.
    Yagura(Pool),
    /// A server beside it, on one thread.
    Peer(Protocol, Server),
}

/// Targets and the pool on them.
pub struct Pool {
    servers: Vec<Server>,
    /// The pool's map.
    pub map: Map,
}

/// What a pool is made of.
#[derive(Clone, Copy, Debug)]
pub struct PoolShape<'a> {
    /// Replicas of each key, on as many targets.
    pub replicas: u8,
    /// Bytes of a table page.
    pub page_size: u32,
    /// Files in this folder; without it memory.
    pub folder: Option<&'a Path>,
    /// How the members are spread over processes.
    pub nodes: Nodes,
}

/// How the members of a pool are spread over processes of one core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nodes {
    /// A target for each: as storage nodes are, but that here they take turns on one core.
    Each,
    /// One target for all: without the system's changes between processes, which nodes of a core each do not have.
    One,
}

impl Side {
    /// A pool whose targets run on `core`.
    pub fn yagura(shape: PoolShape<'_>, core: usize) -> anyhow::Result<Side> {
        Pool::create(shape, core).map(Side::Yagura)
    }

    /// memcached on `core`.
    pub fn memcached(core: usize) -> anyhow::Result<Side> {
        Ok(Side::Peer(Protocol::Memcached, process::memcached(core, MEMCACHED_MEGABYTES)?))
    }

    /// Redis on `core`.
    pub fn redis(core: usize) -> anyhow::Result<Side> {
        Ok(Side::Peer(Protocol::Redis, process::redis(core)?))
    }

    /// A name for people.
    pub fn name(&self) -> &'static str {
        match self {
            Side::Yagura(_) => "Yagura",
            Side::Peer(Protocol::Memcached, _) => "memcached",
            Side::Peer(Protocol::Redis, _) => "Redis",
        }
    }

    /// CPU time of its processes so far.
    pub fn cpu_time(&self) -> anyhow::Result<Duration> {
        match self {
            Side::Yagura(pool) => pool.servers.iter().map(Server::cpu_time).sum(),
            Side::Peer(_, server) => server.cpu_time(),
        }
    }

    /// What it takes to connect, and nothing that is tied to a thread.
    pub fn way(&self) -> Way {
        match self {
            Side::Yagura(pool) => Way::Yagura(Box::new(pool.map.clone())),
            Side::Peer(protocol, server) => Way::Peer(*protocol, server.address),
        }
    }
}

/// How to reach a side.
pub enum Way {
    /// The pool's map.
    Yagura(Box<Map>),
    /// A server.
    Peer(Protocol, SocketAddr),
}

impl Way {
    /// `count` clients on this reactor: they share one store, and have a connection each to a peer.
    pub async fn clients(self, count: usize) -> anyhow::Result<Vec<Client>> {
        match self {
            Way::Yagura(map) => {
                let store = Rc::new(connect(*map).await?);
                Ok((0..count).map(|_| Client::Yagura(store.clone())).collect())
            }
            Way::Peer(protocol, address) => {
                let mut clients = Vec::with_capacity(count);
                for _ in 0..count {
                    clients.push(Client::Peer(text_client::Client::connect(protocol, address).await?));
                }
                Ok(clients)
            }
        }
    }
}

/// One client.
pub enum Client {
    /// The store in this process.
    Yagura(Rc<Store>),
    /// A connection.
    Peer(text_client::Client),
}

impl Client {
    /// Gets a value, which has to be there.
    pub async fn get(&self, key: &[u8], size: usize) -> anyhow::Result<()> {
        match self {
            Client::Yagura(store) => {
                let found = store.get(key).await?.context("a loaded key is missing")?;
                anyhow::ensure!(found.len() == size, "a value of {} bytes, {size} were stored", found.len());
            }
            Client::Peer(client) => anyhow::ensure!(client.get(key).await?, "the peer has lost a loaded key"),
        }
        Ok(())
    }

    /// Stores a value.
    pub async fn set(&self, key: &[u8], value: &View) -> anyhow::Result<()> {
        match self {
            Client::Yagura(store) => Ok(store.put(key, Value::new(vec![value.clone()])).await?),
            Client::Peer(client) => client.set(key, value).await,
        }
    }

    /// Deletes a value, which has to be there.
    pub async fn delete(&self, key: &[u8]) -> anyhow::Result<()> {
        match self {
            Client::Yagura(store) => {
                anyhow::ensure!(store.delete(key).await?, "a key that was stored is missing");
                Ok(())
            }
            Client::Peer(client) => client.delete(key).await,
        }
    }

    /// Waits for what outlives its operations.
    pub async fn settle(&self) {
        if let Client::Yagura(store) = self {
            store.settle().await;
        }
    }
}

impl Pool {
    fn create(shape: PoolShape<'_>, core: usize) -> anyhow::Result<Pool> {
        let namespace = |index: u8| match shape.folder {
            None => format!("memory={MEMBER_BYTES}"),
            Some(folder) => format!("file={},size={MEMBER_BYTES}", folder.join(format!("member-{index}")).display()),
        };
        let nqn = |index: u8| format!("{NQN}-{index}");
        let members: Vec<(String, String)> = (0..shape.replicas).map(|index| (nqn(index), namespace(index))).collect();
        let servers: Vec<Server> = match shape.nodes {
            Nodes::Each => {
                members.chunks(1).map(|member| process::targets(Some(core), member)).collect::<anyhow::Result<_>>()?
            }
            Nodes::One => vec![process::targets(Some(core), &members)?],
        };
        let addresses: Vec<SocketAddr> = servers.iter().map(|server| server.address).collect();
        let options =
            CreateOptions { replicas: shape.replicas, page_size: shape.page_size, ..CreateOptions::default() };
        let map = Reactor::run(ReactorConfig::default(), async move {
            let mut made = Vec::new();
            for ((nqn, _), &address) in members.into_iter().zip(addresses.iter().cycle()) {
                made.push(NewMember::at(remote(address, &nqn).await?, nqn, 1, vec![address.to_string()]));
            }
            anyhow::Ok(pool::create(&made, &options, |_| ()).await?)
        })??;
        Ok(Pool { servers, map })
    }
}

async fn remote(address: SocketAddr, nqn: &str) -> anyhow::Result<Rc<RemoteNamespace>> {
    let nqn = nqn.parse().map_err(|error| anyhow::anyhow!("{nqn}: {error}"))?;
    Ok(Rc::new(RemoteNamespace::connect(HostOptions::new(address, nqn, 1)).await?))
}

async fn connect(map: Map) -> anyhow::Result<Store> {
    let mut members = Vec::new();
    for member in &map.members {
        let address = member.addresses.first().context("a member without an address")?;
        members.push(Some(remote(address.parse()?, &member.nqn).await?));
    }
    Ok(Store::new(map, members))
}

/// Bytes that do not compress and are the same on all sides.
pub fn filler(size: usize) -> View {
    let mut random = SplitMix(size as u64);
    let mut bytes = Buf::with_len(size);
    bytes.fill_with(|| random.draw() as u8);
    bytes.freeze()
}
