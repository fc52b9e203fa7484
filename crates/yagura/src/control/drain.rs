//! `yagura control drain`: drives that are emptied.

use std::collections::BTreeMap;
use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};

use super::client::{Client, path_of};
use super::say::report;
use crate::cli::ControlDrainArgs;
use crate::exit::Failure;

/// Between two looks at what is left. Chosen: the control plane looks as often.
const PAUSE: Duration = Duration::from_secs(3);

/// Sets the drives to draining, and waits for them, if that is asked for.
pub fn run(args: &ControlDrainArgs) -> Result<(), Failure> {
    let draining = json!({"state": "draining"});
    let (path, of_node) = match (&args.drive, &args.node) {
        (Some(drive), _) => (path_of("drives", drive), false),
        (None, node) => (path_of("nodes", node.as_deref().unwrap_or_default()), true),
    };
    let client = Client::new(&args.asking.access)?;
    // A drive that is gone for good is not asked to give up anything, and would be asked again if it were draining.
    if let Some(drive) = &args.drive
        && client.ask(Method::GET, &path, None)?["state"] == "out"
    {
        let mend = "its holders are replaced already; if it is there again, say `yagura control set-drive` first";
        return Err(Failure::refused(format!("drive {drive} is out: {mend}")));
    }
    let named = Client::new(&args.asking.access)?.named(args.asking.request_id.clone());
    let said = named.ask(Method::PATCH, &path, Some(&draining))?;
    if args.wait {
        let drives = if of_node { said["items"].as_array().cloned().unwrap_or_default() } else { vec![said.clone()] };
        for drive in drives.iter().filter_map(|drive| drive["name"].as_str()) {
            emptied(&client, drive)?;
        }
        return report(&args.asking, &client.ask(Method::GET, &path, None)?);
    }
    report(&args.asking, &said)
}

/// Waits until no holder is on the drive. Each reason why one is there still is said once.
fn emptied(client: &Client, drive: &str) -> Result<(), Failure> {
    let mut said: BTreeMap<String, String> = BTreeMap::new();
    loop {
        let state = client.ask(Method::GET, &path_of("drives", drive), None)?;
        if state["holders"].as_u64() == Some(0) {
            return Ok(());
        }
        if state["state"] != "draining" {
            let now = state["state"].as_str().unwrap_or_default();
            return Err(Failure::refused(format!("drive {drive} is {now} by now, and not draining any more")));
        }
        let left = client.ask(Method::GET, &format!("{}/holders", path_of("drives", drive)), None)?;
        for holder in left["items"].as_array().into_iter().flatten() {
            let text = |part: &str| holder[part].as_str().unwrap_or_default();
            let Value::String(why) = &holder["waits"] else { continue };
            let which = format!("volume {} of tenant {}", text("volume"), text("tenant"));
            if said.insert(which.clone(), why.clone()).as_ref() != Some(why) {
                tracing::warn!("{which} on drive {drive}: {why}");
            }
        }
        std::thread::sleep(PAUSE);
    }
}
