//! The volume service of `yagura up`: a drive beside each node's member, and a control plane over the drives.
//!
//! Invariants:
//! - A drive is a subsystem of its own, which lets in the control plane and one host, and nobody else. So whoever looks for the
//!   pool by the nodes' addresses alone finds the members, whatever volumes there are: discovery tells a host of what lets it in.
//! - Whatever is wrong with the control plane, or with the making of drives, the store is served all the same.
//! - A drive that was there once is never made anew by itself: a blank one in its place would hide that replicas are lost.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use device::{Drive, FormatOptions};
use engine::sync::MailReceiver;
use hyper::Method;
use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::state::{ANYWHERE, State, VolumesState, check_made};
use crate::aside::aside;
use crate::cli::ControlAccess;
use crate::control::{Client, path_of};
use crate::exit::Failure;
use crate::size::Size;
use crate::supervise::{News, NodeSpec, Supervisor, first_start};
use crate::{drive, reactors};

/// The control plane, as the drives know it.
const CONTROL: &str = "nqn.2026-11.io.yagura:up-control";
/// Who uses volumes, as the drives know it.
pub const HOST: &str = "nqn.2026-11.io.yagura:up-host";
/// Whose volumes they are, if nobody says otherwise.
const TENANT: &str = "default";
/// A volume in the commands that are shown, so that they can be copied as they are.
const EXAMPLE: &str = "db";
/// Bytes of a drive, unless the members have more. Chosen: as much as a member has unless asked otherwise.
const SIZE_DEFAULT: u64 = 1 << 30;
/// How long the control plane may take to serve at the start.
const START_TIME_MAX: Duration = Duration::from_secs(30);
/// Copies of a volume where there are nodes enough for them.
const REPLICAS: usize = 3;

/// Makes the drives of a directory that has none.
pub fn prepare(data: &Path, state: &mut State, asked: Option<Size>) -> Result<(), Failure> {
    if let Some(VolumesState { size, .. }) = state.volumes {
        return check_made("--volumes", "drives", data, size, asked);
    }
    let size = asked.map_or(state.size.max(SIZE_DEFAULT), |asked| asked.0);
    let made = reactors::run_one(async {
        for node in 0..state.nodes.len() {
            let path = State::drive(data, node);
            format(&path, size).await.map_err(|failure| failure.during(path.display()))?;
        }
        Ok(())
    });
    match made {
        Ok(()) => state.volumes = Some(VolumesState { id: Uuid::new_v4(), size, control: ANYWHERE }),
        Err(failure) if asked.is_some() => return Err(failure.during("--volumes")),
        Err(failure) => tracing::error!("no volumes can be made here: {}", failure.sentence()),
    }
    Ok(())
}

/// Makes a drive of a file, unless an earlier start has. What a crash leaves half made has another name.
async fn format(path: &Path, size: u64) -> Result<(), Failure> {
    if path.exists() {
        return Ok(());
    }
    let fresh = path.with_extension("new");
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    if fresh.exists() {
        std::fs::remove_file(&fresh)?;
    }
    let options = FormatOptions { create: Some(size), ..FormatOptions::default() };
    let made = Drive::format(&fresh, &options).await.map_err(drive::failure)?;
    made.close().await.map_err(drive::failure)?;
    Ok(std::fs::rename(&fresh, path)?)
}

/// The subsystem of a node's drive.
fn subsystem(volumes: &VolumesState, node: usize) -> String {
    format!("nqn.2026-11.io.yagura:up:{}:drive-{}", volumes.id, node + 1)
}

/// What a node's target is told of its drive; nothing where that is gone.
pub fn arguments(data: &Path, volumes: &VolumesState, node: usize) -> Vec<String> {
    let path = State::drive(data, node);
    if !path.exists() {
        tracing::error!("{}: it is gone; what volumes had on it is lost", path.display());
        return Vec::new();
    }
    let nqn = subsystem(volumes, node);
    vec![
        format!("--subsystem=nqn={nqn}"),
        format!("--drive={},subsystem={nqn}", path.display()),
        format!("--host=nqn={CONTROL},subsystem={nqn},manage=all"),
        format!("--host=nqn={HOST},subsystem={nqn}"),
    ]
}

/// The control plane on its way.
pub struct Starting {
    supervisor: Supervisor,
    news: MailReceiver<News>,
    program: PathBuf,
    token: PathBuf,
}

/// Starts the control plane.
pub fn start(program: &Path, data: &Path, volumes: &VolumesState) -> Result<Starting, Failure> {
    let data = std::path::absolute(data)?;
    let token = data.join("token");
    let spec = NodeSpec {
        name: "control plane".into(),
        program: program.to_owned(),
        arguments: vec![
            "control".into(),
            "serve".into(),
            format!("--catalogue={}", data.join("catalogue").display()),
            format!("--operator-token={}", token.display()),
            format!("--host-nqn={CONTROL}"),
            "--until-stdin-closes".into(),
            "--json".into(),
        ],
        listen: volumes.control,
    };
    let (supervisor, news) = Supervisor::start(vec![spec])?;
    Ok(Starting { supervisor, news, program: program.to_owned(), token })
}

/// The control plane, which knows the drives.
pub struct Volumes {
    /// While it is there the control plane runs.
    _supervisor: Supervisor,
    program: PathBuf,
    url: String,
    token: PathBuf,
    /// Bytes of each drive.
    pub size: u64,
    nodes: usize,
}

/// What is said of volumes once they can be made.
#[derive(Serialize, Debug)]
pub struct Ready {
    control: String,
    token_file: PathBuf,
    tenant: &'static str,
    host_nqn: &'static str,
    bytes_per_node: u64,
    create: String,
    attach: String,
}

impl Starting {
    /// Waits until the control plane serves, and tells it of the nodes and their drives, as they are by now.
    pub async fn registered(self, state: &mut State) -> Result<Volumes, Failure> {
        let Starting { supervisor, news, program, token } = self;
        let Some(volumes) = &mut state.volumes else { return Err(Failure::refused("there are no drives")) };
        let (listening, _) = first_start(&news, "control plane", START_TIME_MAX).await?;
        volumes.control = listening;
        let url = format!("http://{listening}");
        let access =
            ControlAccess { control: url.clone(), token_file: Some(token.clone()), control_ca: None, tenant: None };
        let drives = state.nodes.iter().enumerate().map(|(node, at)| (*at, subsystem(volumes, node))).collect();
        let size = volumes.size;
        aside(move || register(&Client::new(&access)?, drives)).await??;
        Ok(Volumes { _supervisor: supervisor, program, url, token, size, nodes: state.nodes.len() })
    }
}

/// Tells the control plane of what it does not know yet, or knows to be elsewhere. What an operator has said since stays.
fn register(client: &Client, drives: Vec<(SocketAddr, String)>) -> Result<(), Failure> {
    let tenant = path_of("tenants", TENANT);
    if known(client, &tenant)?.is_none() {
        client.ask(Method::PUT, &tenant, Some(&json!({"quota_bytes": null, "quota_volumes": null})))?;
    }
    for (number, (address, nqn)) in (1..).zip(drives) {
        let (node, drive) = (format!("node-{number}"), format!("drive-{number}"));
        if known(client, &path_of("nodes", &node))?.is_none() {
            client.ask(Method::PUT, &path_of("nodes", &node), Some(&json!({"rack": null, "zone": null})))?;
        }
        let address = address.to_string();
        let told = match known(client, &path_of("drives", &drive))? {
            Some(found) if found["address"] == *address => continue,
            Some(_) => client.ask(Method::PATCH, &path_of("drives", &drive), Some(&json!({"address": address}))),
            None => {
                let new = json!({"name": drive, "node": node, "address": address, "nqn": nqn});
                client.ask(Method::POST, "/v1/drives", Some(&new))
            }
        };
        if let Err(failure) = told {
            // The node may be down. The others serve volumes.
            tracing::error!("the control plane does not know {drive} at {address}: {}", failure.sentence());
        }
    }
    Ok(())
}

/// What the control plane has of this path; none: it knows of no such thing.
fn known(client: &Client, path: &str) -> Result<Option<Value>, Failure> {
    match client.ask(Method::GET, path, None) {
        Ok(found) => Ok(Some(found)),
        Err(failure) if failure.status() == Failure::refused("").status() => Ok(None),
        Err(failure) => Err(failure),
    }
}

impl Volumes {
    /// This program with these words, as who asks the control plane for a tenant's volumes says them.
    pub fn arguments(&self, words: &[&str], tenant: &str) -> Vec<String> {
        let access = ["--tenant", tenant, "--control", &self.url, "--token-file", &self.token.display().to_string()];
        words.iter().chain(&access).map(ToString::to_string).collect()
    }

    /// The same as a command.
    pub fn command(&self, words: &[&str], tenant: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.arguments(words, tenant));
        command
    }

    /// The same as what is kept running.
    pub fn spec(&self, name: &str, words: &[&str], tenant: &str) -> NodeSpec {
        let arguments = self.arguments(words, tenant);
        NodeSpec { name: name.into(), program: self.program.clone(), arguments, listen: ANYWHERE }
    }

    /// What is said once all serves.
    pub fn ready(&self) -> Ready {
        let line = |words: &[&str]| format!("yagura {}", self.arguments(words, TENANT).join(" "));
        let one = if self.nodes < REPLICAS { &["--replicas", "1"][..] } else { &[] };
        Ready {
            control: self.url.clone(),
            token_file: self.token.clone(),
            tenant: TENANT,
            host_nqn: HOST,
            bytes_per_node: self.size,
            create: line(&[&["control", "create", EXAMPLE, "--size", "256MiB"], one].concat()),
            attach: line(&["volume", "attach", "--name", EXAMPLE, "--host-nqn", HOST]),
        }
    }
}

impl Ready {
    /// For people.
    pub fn describe(&self) -> String {
        let Ready { control, bytes_per_node, create, attach, .. } = self;
        let room = Size(*bytes_per_node);
        format!("volumes: {room} on each node, control plane at {control}\nmake one:  {create}\nattach it: {attach}\n")
    }
}
