//! `yagura nvme discover`: what discovery services name, once or as it changes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use fabric::host::{ConnectError, Discovered, Discovery, DiscoveryLog, Options, follow, watch, watch_all};
use nvme::fabrics::SubsystemType;
use serde::Serialize;

use super::CONNECT_TIME;
use crate::cli::{NvmeDiscoverArgs, NvmeHost};
use crate::exit::Failure;
use crate::output;

#[derive(Serialize)]
struct Entry {
    nqn: String,
    address: String,
    transport: String,
    kind: String,
    port: u16,
    secure_channel: &'static str,
    secure_channel_required: bool,
}

impl Entry {
    fn new(entry: &Discovered) -> Entry {
        Entry {
            nqn: entry.subsystem.to_string(),
            address: format!("{}:{}", entry.address, entry.service),
            transport: entry.transport.to_string(),
            kind: entry.kind.to_string(),
            port: entry.port,
            secure_channel: match entry.secure_channel {
                0 => "none",
                1 => "TLS 1.2",
                2 => "TLS 1.3",
                _ => "unknown",
            },
            secure_channel_required: entry.secure_channel_required,
        }
    }

    fn line(&self, entry: &Discovered) -> String {
        let kind = if entry.kind == SubsystemType::NVM { String::new() } else { format!(" ({})", self.kind) };
        let secure = match (self.secure_channel, self.secure_channel_required) {
            ("none", _) => String::new(),
            (channel, true) => format!(" {channel} required"),
            (channel, false) => format!(" {channel}"),
        };
        format!("{} {} {}{kind}{secure}\n", self.transport, self.address, self.nqn)
    }
}

/// One service's answer.
#[derive(Serialize)]
struct Service {
    service: SocketAddr,
    generation: Option<u64>,
    entries: Vec<Entry>,
    error: Option<String>,
}

fn service(address: SocketAddr, log: Result<&DiscoveryLog, &ConnectError>) -> Service {
    Service {
        service: address,
        generation: log.ok().map(|log| log.generation),
        entries: log.map_or_else(|_| Vec::new(), |log| log.entries.iter().map(Entry::new).collect()),
        error: log.err().map(ToString::to_string),
    }
}

fn lines(entries: &[Discovered]) -> String {
    entries.iter().map(|entry| Entry::new(entry).line(entry)).collect()
}

/// How to reach a discovery service.
pub fn options(address: SocketAddr, host: &NvmeHost) -> Result<Options, Failure> {
    let mut options = Options { connect_timeout: CONNECT_TIME, ..Options::discovery(address) };
    super::keys::apply(host, &mut options)?;
    Ok(options)
}

/// What a discovery service names. Asked without a keep alive timeout, which older ones refuse.
pub async fn ask(options: Options) -> Result<Vec<Discovered>, Failure> {
    let options = Options { command_timeout: CONNECT_TIME, keep_alive: Duration::ZERO, ..options };
    let discovery = Discovery::connect(&options).await.map_err(Failure::unavailable)?;
    let log = discovery.log().await;
    discovery.leave().await;
    Ok(log.map_err(Failure::unavailable)?.entries)
}

/// Runs the verb.
pub async fn run(args: &NvmeDiscoverArgs) -> Result<(), Failure> {
    let options = options(args.address, &args.host)?;
    if args.watch {
        return watching(args, options).await;
    }
    if args.follow {
        let all = follow(&options).await;
        let report: Vec<_> = all.iter().map(|(address, log)| service(*address, log.as_ref())).collect();
        output::report(args.common.json, &report, |_| {
            let text = |(address, log): &(SocketAddr, Result<DiscoveryLog, ConnectError>)| match log {
                Ok(log) => format!("{address}:\n{}", lines(&log.entries)),
                Err(error) => format!("{address}: {error}\n"),
            };
            all.iter().map(text).collect()
        })?;
        // The service that was asked for must answer; those that it refers to need not.
        let (_, first) = &all[0];
        return first.as_ref().map(|_| ()).map_err(Failure::unavailable);
    }
    let found = ask(options).await?;
    let entries: Vec<_> = found.iter().map(Entry::new).collect();
    output::report(args.common.json, &entries, |_| lines(&found))
}

/// Prints until the program is stopped, or its reader is gone.
async fn watching(args: &NvmeDiscoverArgs, options: Options) -> Result<(), Failure> {
    let mut troubles = BTreeMap::new();
    let mut tell = |address: SocketAddr, log: Result<&DiscoveryLog, &ConnectError>| {
        // The same trouble is told once, not at every attempt.
        let now = log.err().map(ToString::to_string);
        let before = troubles.insert(address, now.clone());
        if now.is_some() && before == Some(now) {
            return;
        }
        let whose = if args.follow { format!("{address}: ") } else { String::new() };
        let text = match (args.common.json, log) {
            (true, log) => serde_json::to_string(&service(address, log)).unwrap_or_default() + "\n",
            (false, Ok(log)) => format!("{whose}generation {}:\n{}", log.generation, lines(&log.entries)),
            (false, Err(error)) => format!("{whose}{error}\n"),
        };
        if let Err(failure) = output::write(text.as_bytes()) {
            std::process::exit(failure.status().into());
        }
    };
    match args.follow {
        true => match watch_all(options, tell).await {},
        false => match watch(options, |log| tell(args.address, log)).await {},
    }
}
