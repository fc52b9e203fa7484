//! `yagura control …`

mod client;
mod drives;
mod serve;

use hyper::Method;
use serde_json::{Value, json};

pub use client::{Client, access, path_of};

use crate::cli::{Asking, ControlVerb};
use crate::exit::Failure;
use crate::output;

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
        ControlVerb::Tenant(args) => {
            let quota = json!({"quota_bytes": args.quota.map(|size| size.0), "quota_volumes": args.volumes});
            ask(&args.asking, put, &path_of("tenants", &args.name), quota)
        }
        ControlVerb::Token(args) => ask(&args.asking, Method::POST, "/v1/tokens", json!({"tenant": args.whom})),
        ControlVerb::Create(args) => {
            let (name, bytes, replicas) = (&args.name, args.size.0, args.replicas);
            let (level, relax) = (&args.apart, args.relax);
            let new = json!({"name": name, "bytes": bytes, "replicas": replicas, "level": level, "relax": relax});
            operate(&args.asking, Method::POST, &format!("/v1/volumes?wait={WAIT_SECONDS}"), Some(&new))
        }
        ControlVerb::Delete(args) => {
            let path = format!("{}?wait={WAIT_SECONDS}&force={}", path_of("volumes", &args.name), args.force);
            operate(&args.asking, Method::DELETE, &path, None)
        }
        ControlVerb::Detach(args) => {
            let path = format!("{}/attachment?force=true", path_of("volumes", &args.name));
            report(&args.asking, &Client::new(&args.asking.access)?.ask(Method::DELETE, &path, None)?)
        }
        ControlVerb::Show(args) => {
            let path =
                args.name.as_ref().map_or_else(|| format!("/v1/{}", args.kind), |name| path_of(&args.kind, name));
            report(&args.asking, &Client::new(&args.asking.access)?.ask(Method::GET, &path, None)?)
        }
    }
}

fn ask(asking: &Asking, method: Method, path: &str, body: Value) -> Result<(), Failure> {
    report(asking, &Client::new(&asking.access)?.ask(method, path, Some(&body))?)
}

/// Asks for what takes long, and waits for its end.
fn operate(asking: &Asking, method: Method, path: &str, body: Option<&Value>) -> Result<(), Failure> {
    let client = Client::new(&asking.access)?;
    let mut operation = client.ask(method, path, body)?;
    while operation["ended"].is_null() {
        if let Some(waits) = operation["waits"].as_str() {
            tracing::warn!("it waits: {waits}");
        }
        let id = operation["id"].as_str().unwrap_or_default();
        operation = client.ask(Method::GET, &format!("/v1/operations/{id}?wait={WAIT_SECONDS}"), None)?;
    }
    match operation["failure"].as_str() {
        Some(why) => Err(Failure::refused(format!("it was undone: {why}"))),
        None => report(asking, &operation),
    }
}

fn report(asking: &Asking, said: &Value) -> Result<(), Failure> {
    output::report(asking.common.json, said, shown)
}

/// A document for people: a line for each thing of a list, a line for each part of a thing.
fn shown(said: &Value) -> String {
    let word = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    };
    let line = |thing: &Value| {
        let parts = thing.as_object().into_iter().flatten();
        let parts = parts.filter(|(_, value)| !value.is_array() && !value.is_object());
        parts.map(|(name, value)| format!("{name} {}", word(value))).collect::<Vec<_>>().join("  ")
    };
    match (said["items"].as_array(), said.as_object()) {
        (Some(items), _) => items.iter().map(|thing| line(thing) + "\n").collect(),
        (None, Some(parts)) => parts
            .iter()
            .map(|(name, value)| match value.as_array() {
                Some(things) => things.iter().map(|thing| format!("{name}: {}\n", line(thing))).collect(),
                None => format!("{name}: {}\n", word(value)),
            })
            .collect(),
        (None, None) => String::new(),
    }
}
