//! `yagura control …`

mod catalogue;
mod changes;
mod client;
mod drain;
mod drives;
mod reached;
mod say;
mod serve;

use hyper::Method;
use serde_json::{Value, json};

pub use client::{Client, access, path_of};

use crate::cli::{Asking, ControlCreateArgs, ControlShowArgs, ControlVerb, VolumeLimits};
use crate::exit::Failure;
use say::report;

/// Seconds that a create or a delete is waited for at a time.
const WAIT_SECONDS: u64 = 20;

/// Runs a verb.
pub fn run(verb: &ControlVerb) -> Result<(), Failure> {
    let put = Method::PUT;
    match verb {
        ControlVerb::Serve(args) => serve::run(args),
        ControlVerb::Node(args) => {
            ask(&args.asking, put, &path_of("nodes", &args.name), json!({"rack": args.rack, "zone": args.zone}))
        }
        ControlVerb::Drive(args) => {
            let (name, node, address, nqn) = (&args.name, &args.node, &args.address, &args.nqn);
            let keep = args.keep_foreign;
            let new = json!({"name": name, "node": node, "address": address, "nqn": nqn, "keep_foreign": keep});
            ask(&args.asking, Method::POST, "/v1/drives", new)
        }
        ControlVerb::SetDrive(args) => {
            ask(&args.asking, Method::PATCH, &path_of("drives", &args.name), json!({"state": args.state}))
        }
        ControlVerb::Drain(args) => drain::run(args),
        ControlVerb::Replace(args) => {
            let path = format!("{}/replace?wait={WAIT_SECONDS}", path_of("volumes", &args.volume));
            operate(&args.asking, Method::POST, &path, Some(&json!({"drive": args.drive})))
        }
        ControlVerb::Tenant(args) => {
            let quota = json!({"quota_bytes": args.quota.map(|size| size.0), "quota_volumes": args.volumes});
            ask(&args.asking, put, &path_of("tenants", &args.name), quota)
        }
        ControlVerb::Token(args) => {
            let new = json!({"tenant": args.whom, "metrics": args.metrics, "seconds": args.seconds});
            ask(&args.asking, Method::POST, "/v1/tokens", new)
        }
        ControlVerb::Create(args) => create(args),
        ControlVerb::Grow(args) => {
            let path = format!("{}/grow?wait={WAIT_SECONDS}", path_of("volumes", &args.name));
            operate(&args.asking, Method::POST, &path, Some(&json!({"bytes": args.size.0})))
        }
        ControlVerb::SetVolume(args) => {
            ask(&args.asking, put, &format!("{}/limits", path_of("volumes", &args.name)), limits(&args.limits))
        }
        ControlVerb::Snapshot(args) => {
            let path = format!("{}/snapshots?wait={WAIT_SECONDS}", path_of("volumes", &args.volume));
            operate(&args.asking, Method::POST, &path, Some(&json!({"name": args.name})))
        }
        ControlVerb::DeleteSnapshot(args) => {
            let path = format!("{}?wait={WAIT_SECONDS}", snapshot(&args.volume, &args.name));
            operate(&args.asking, Method::DELETE, &path, None)
        }
        ControlVerb::RestoreVolume(args) => {
            let path = format!("{}/restore?wait={WAIT_SECONDS}", path_of("volumes", &args.volume));
            operate(&args.asking, Method::POST, &path, Some(&json!({"snapshot": args.snapshot})))
        }
        ControlVerb::Delete(args) => {
            let path = format!("{}?wait={WAIT_SECONDS}&force={}", path_of("volumes", &args.name), args.force);
            operate(&args.asking, Method::DELETE, &path, None)
        }
        ControlVerb::Detach(args) => {
            let path = format!("{}/attachment?force=true", path_of("volumes", &args.name));
            report(&args.asking, &client(&args.asking)?.ask(Method::DELETE, &path, None)?)
        }
        ControlVerb::Dump(args) => catalogue::dump(args),
        ControlVerb::Restore(args) => catalogue::restore(args),
        ControlVerb::Move(args) => catalogue::move_to_etcd(args),
        ControlVerb::Show(args) => show(args),
    }
}

fn create(args: &ControlCreateArgs) -> Result<(), Failure> {
    // Of what is not said the control plane decides: the same command again, by its request id, is the same request.
    let bytes = args.size.map(|size| size.0);
    let from = args.from.as_ref().map(|(volume, name)| json!({"volume": volume, "snapshot": name}));
    let (name, replicas, level, relax) = (&args.name, args.replicas, &args.apart, args.relax);
    let new = json!({"name": name, "bytes": bytes, "replicas": replicas, "level": level, "relax": relax,
        "limits": limits(&args.limits), "from": from});
    operate(&args.asking, Method::POST, &format!("/v1/volumes?wait={WAIT_SECONDS}"), Some(&new))
}

fn limits(limits: &VolumeLimits) -> Value {
    json!({"iops": limits.iops, "bandwidth": limits.bandwidth.map(|size| size.0), "burst": limits.burst})
}

/// The path of a snapshot.
fn snapshot(volume: &str, name: &str) -> String {
    let below = path_of("snapshots", name);
    format!("{}{}", path_of("volumes", volume), below.trim_start_matches("/v1"))
}

/// Shows one thing, or all of a kind: as many pages as there are.
fn show(args: &ControlShowArgs) -> Result<(), Failure> {
    let client = Client::new(&args.asking.access)?;
    let path = match (&*args.kind, &args.name) {
        ("snapshots", Some(volume)) => format!("{}/snapshots", path_of("volumes", volume)),
        ("holders", Some(drive)) => format!("{}/holders", path_of("drives", drive)),
        (kind, Some(name)) => path_of(kind, name),
        (kind, None) => format!("/v1/{kind}"),
    };
    let mut said = client.ask(Method::GET, &path, None)?;
    while let Some(next) = said["next"].as_str() {
        let more = client.ask(Method::GET, &format!("{path}?after={next}"), None)?;
        let (items, next) = (more["items"].as_array().cloned().unwrap_or_default(), more["next"].clone());
        said["next"] = next;
        if let Some(all) = said["items"].as_array_mut() {
            all.extend(items);
        }
    }
    report(&args.asking, &said)
}

fn ask(asking: &Asking, method: Method, path: &str, body: Value) -> Result<(), Failure> {
    report(asking, &client(asking)?.ask(method, path, Some(&body))?)
}

/// For one request that changes something.
fn client(asking: &Asking) -> Result<Client, Failure> {
    Ok(Client::new(&asking.access)?.named(asking.request_id.clone()))
}

/// Asks for what takes long, and waits for its end.
fn operate(asking: &Asking, method: Method, path: &str, body: Option<&Value>) -> Result<(), Failure> {
    let client = client(asking)?;
    let mut operation = client.ask(method, path, body)?;
    while operation["ended"].is_null() {
        if let Some(waits) = operation["waits"].as_str() {
            tracing::warn!("it waits: {waits}");
        }
        let id = operation["id"].as_str().unwrap_or_default();
        operation = client.ask(Method::GET, &format!("/v1/operations/{id}?wait={WAIT_SECONDS}"), None)?;
    }
    match (operation["failure"].as_str(), operation["reason"].as_str()) {
        (Some(why), Some("snapshot-lost")) => Err(Failure::refused(format!("it has failed: {why}"))),
        (Some(why), Some("no-room")) => Err(Failure::out_of_space(format!("it was undone: {why}"))),
        (Some(why), _) => Err(Failure::refused(format!("it was undone: {why}"))),
        (None, _) => report(asking, &operation),
    }
}
