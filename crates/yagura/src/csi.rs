//! `yagura csi`: the driver of the Container Storage Interface. `yagura volume attach` serves its volumes to this machine's kernel.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ::control::client::ClientError;
use ::control::provision::Name;
use ::csi::{Controller, DRIVER, Endpoint, Host, Node, NodeService, Plane, Services};
use engine::sync::mailbox;
use serde::Serialize;

use crate::cli::{ControlAccess, CsiArgs, NvmeHost};
use crate::exit::Failure;
use crate::race::{First, first_of};
use crate::{control, output, reactors, runtime, stop};

/// What the words begin with by which a node says where it stands.
const TOPOLOGY: &str = "topology.yagura.io/";
/// Such words, at most. Chosen: more than anybody has names for.
const TOPOLOGY_WORDS_MAX: usize = 8;
/// Characters of a node's name, at most: the specification's.
const NODE_ID_CHARS_MAX: usize = 256;

/// What is said on standard output once it serves.
#[derive(Serialize, Debug)]
struct Ready {
    endpoint: String,
    driver: &'static str,
    mode: String,
}

/// Serves until a signal. Volumes that are attached then stay with this node: the next driver attaches them again.
pub fn run(args: &CsiArgs) -> Result<(), Failure> {
    let mut letters = stop::letters(1, args.until_stdin_closes)?;
    let letter = letters.pop().ok_or_else(|| Failure::usage("invariant: one letter was asked for"))?;
    let runtime = runtime::few_threads()?;
    let endpoint = {
        let _entered = runtime.enter();
        Endpoint::bind(&args.endpoint).map_err(|error| Failure::refused(format!("--endpoint: {error}")))?
    };
    let services = services(args)?;
    let (ended, end) = mailbox(1);
    let ready =
        Ready { endpoint: format!("unix://{}", endpoint.path().display()), driver: DRIVER, mode: args.mode.clone() };
    let serving = runtime.spawn(async move {
        let why = endpoint.serve_host(services).await;
        // Nobody listens where the process is ending already.
        let _ = ended.try_send(why.to_string());
    });
    output::report(args.common.json, &ready, |ready| {
        format!("driver {} at {}, services: {}\n", ready.driver, ready.endpoint, ready.mode)
    })?;
    let stopped = reactors::run_one(async { Ok(first_of(end.recv(), letter.recv()).await) });
    // The socket goes with what serves it; what blocks is not waited for.
    serving.abort();
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    match stopped? {
        First::A(why) => Err(Failure::refused(why.unwrap_or_else(|| "the endpoint is no longer served".into()))),
        First::B(_) => Ok(()),
    }
}

fn services(args: &CsiArgs) -> Result<Services<Host>, Failure> {
    let missing = |flag: &str| Failure::usage(format!("{flag}: --mode {} needs it", args.mode));
    let (id, folder) = match args.mode.as_str() {
        "controller" => (None, None),
        _ => (
            Some(checked(args.node_id.as_deref().ok_or_else(|| missing("--node-id"))?)?),
            Some(args.state_dir.as_deref().ok_or_else(|| missing("--state-dir"))?),
        ),
    };
    let access = control::access(&args.access)?;
    let plane = || {
        Plane::new(&access).map_err(|error| match error {
            ClientError::Usage(why) => Failure::usage(why),
            other => Failure::unavailable(other),
        })
    };
    let controller = if args.mode == "node" { None } else { Some(Controller::new(plane()?)) };
    let node = match id.zip(folder) {
        Some((id, folder)) => {
            let topology = topology(&args.topology)?;
            Some(NodeService { node: Arc::new(node(args, folder)?), plane: plane()?, id: id.to_owned(), topology })
        }
        None => None,
    };
    Ok(Services::new(controller, node, !args.topology.is_empty()))
}

/// Where a node stands, as the orchestrator is told.
fn topology(words: &[String]) -> Result<BTreeMap<String, String>, Failure> {
    let said = |word: &String| {
        let (key, value) = word.split_once('=')?;
        let (key, value) = (Name::new(key).ok()?, Name::new(value).ok()?);
        Some((format!("{TOPOLOGY}{key}"), value.to_string()))
    };
    let found: Option<BTreeMap<_, _>> = words.iter().map(said).collect();
    let found = found.filter(|found| found.len() == words.len() && found.len() <= TOPOLOGY_WORDS_MAX);
    let wrong = || {
        let form = format!(
            "write zone=a,rack=b: {TOPOLOGY_WORDS_MAX} words at most, each once, small letters, digits, '-', '.'"
        );
        Failure::usage(format!("--topology {}: {form}", words.join(",")))
    };
    found.ok_or_else(wrong)
}

fn checked(id: &str) -> Result<&str, Failure> {
    match id.chars().count() {
        1..=NODE_ID_CHARS_MAX => Ok(id),
        other => Err(Failure::usage(format!("--node-id has {other} characters: 1 to {NODE_ID_CHARS_MAX} are allowed"))),
    }
}

fn node(args: &CsiArgs, folder: &Path) -> Result<Node<Host>, Failure> {
    let program = std::env::current_exe().map_err(|error| Failure::from(error).during("this program"))?;
    let machine = Host::new(program, attaching(&args.access, &args.host)?);
    Node::open(machine, folder)
        .map_err(|error| Failure::from(error).during(format!("--state-dir {}", folder.display())))
}

/// How this program is asked to attach a volume: as this driver was asked to serve.
fn attaching(access: &ControlAccess, host: &NvmeHost) -> Result<Vec<String>, Failure> {
    let Some(host_nqn) = &host.host_nqn else {
        let why = "the control plane notes by it who has a volume, and the drives let it in by it";
        return Err(Failure::usage(format!("--host-nqn: say this node's name: {why}")));
    };
    let mut words = vec!["volume".to_owned(), "attach".to_owned()];
    let mut say = |flag: &str, value: Option<String>| words.extend(value.map(|value| format!("--{flag}={value}")));
    let file = |path: &Option<std::path::PathBuf>| path.as_ref().map(|path| path.display().to_string());
    say("control", Some(access.control.clone()));
    say("token-file", file(&access.token_file));
    say("control-ca", file(&access.control_ca));
    say("tenant", access.tenant.clone());
    say("host-nqn", Some(host_nqn.clone()));
    say("dhchap-key-file", file(&host.dhchap_key_file));
    say("dhchap-ctrl-key-file", file(&host.dhchap_ctrl_key_file));
    say("tls-key-file", file(&host.tls_key_file));
    say("tls-identity", Some(host.tls_identity.to_string()));
    for (flag, is_said) in [("concat", host.concat), ("tls", host.tls), ("tls-legacy", host.tls_legacy)] {
        words.extend(is_said.then(|| format!("--{flag}")));
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, DeviceWay, Verb, VolumeVerb};

    #[test]
    fn a_node_says_where_it_stands_in_words_of_its_own() {
        let said = |text: &str| {
            let words: Vec<_> = text.split(',').map(str::to_owned).collect();
            topology(&words)
                .map(|found| found.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>())
        };
        let expected = ["topology.yagura.io/rack=b", "topology.yagura.io/zone=a.1"];
        assert_eq!(said("zone=a.1,rack=b").expect("understood"), expected);
        let many: Vec<_> = (0..=TOPOLOGY_WORDS_MAX).map(|word| format!("w{word}=a")).collect();
        for wrong in ["zone", "zone=", "=a", "zone=A", "zo ne=a", "zone=a,zone=b", "a/b=c", &many.join(",")] {
            assert!(said(wrong).is_err(), "{wrong}");
        }
        assert!(topology(&[]).expect("none").is_empty());
    }

    #[test]
    fn volumes_are_attached_as_the_driver_was_asked_to_serve() {
        let host =
            "--host-nqn=nqn.a:b --dhchap-key-file=/k --dhchap-ctrl-key-file=/c --tls --tls-key-file=/t --tls-legacy";
        let access = "--control=https://c:1 --token-file=/token --control-ca=/ca --tenant=shop";
        let command = format!("yagura csi --endpoint=unix:///s --node-id=n --state-dir=/d {access} {host}");
        let Verb::Csi(args) = Cli::try_parse_from(command.split(' ')).expect("accepted").verb else {
            panic!("the driver")
        };
        let words = attaching(&args.access, &args.host).expect("a name of this host");
        let given = ["yagura"].into_iter().map(str::to_owned).chain(words);
        let given = given.chain(["--name=a", "--listen=127.0.0.1:1", "--device"].map(str::to_owned));
        let Verb::Volume(VolumeVerb::Attach(attach)) = Cli::try_parse_from(given).expect("accepted").verb else {
            panic!("an attachment")
        };
        assert_eq!(attach.device, Some(DeviceWay::Nvme), "the driver knows the kernel's device by its subsystem");
        assert_eq!(format!("{:?}", attach.of.access), format!("{:?}", args.access));
        assert_eq!(format!("{:?}", attach.of.host), format!("{:?}", args.host));
    }
}
