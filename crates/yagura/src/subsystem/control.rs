//! The control socket: what an operator asks of a target that serves, as JSON over HTTP on a Unix socket.
//!
//! `POST /v1` takes a [`Request`] and answers with what there is to say, or with an [`Refusal`]. The HTTP side has a thread
//! and a tokio runtime of its own; what it is asked goes by mail to the reactor that owns the namespaces, one request after
//! the other. A new verb is a variant of [`Request`] (in `request`), an arm of [`perform`], and its flags in `cli::target`.

use std::io::ErrorKind;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderName};
use axum::routing::post;
use device::{AnyNamespace, Namespace};
use engine::job::Jobs;
use engine::sync::{MailReceiver, MailSender, mailbox};
use engine::{task, time};
use fabric::auth::HostKeys;
use fabric::subsystem::{PortId, Target};
use nvme::Nqn;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::drives::{self, ServedDrive};
use super::jobs::{JobReport, StatusReport};
use super::request::{Refusal, Request, understood};
use crate::exit::Failure;
use crate::namespaces::NamespaceSpec;
use crate::size::Size;

/// Requests on their way to the reactor. Guessed; at the bound a client is told that the target is busy.
const REQUESTS_MAX: usize = 16;
/// How long a removed namespace is waited for until what executes on it has ended. Chosen: longer than any drive takes.
const RELEASE_TIME_MAX: Duration = Duration::from_secs(5);
const RELEASE_PAUSE: Duration = Duration::from_millis(10);
/// Clients that wait to be accepted. Guessed.
const CLIENTS_MAX: i32 = 16;
/// Where requests go.
pub const ROUTE: &str = "/v1";

type Answer = Result<Value, Failure>;

/// A request, and who waits for the answer.
pub struct Asked {
    request: Request,
    answer: oneshot::Sender<Answer>,
}

/// The socket's file; it is removed with this.
pub struct Socket {
    path: PathBuf,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the control socket could not be removed");
        }
    }
}

/// Listens at `path` until the process ends; what is asked comes by the mailbox.
pub fn serve(path: &Path) -> Result<(Socket, MailReceiver<Asked>), Failure> {
    let named = |error: std::io::Error| Failure::from(error).during(format!("--control {}", path.display()));
    let listener = bind(path)?;
    let socket = Socket { path: path.to_owned() };
    listener.set_nonblocking(true).map_err(named)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(named)?;
    let (sender, asked) = mailbox(REQUESTS_MAX);
    let sender = Arc::new(sender);
    let ask = move |body: String| ask(sender.clone(), body);
    let router = axum::Router::new().route(ROUTE, post(ask));
    let serve = move || {
        let served = runtime.block_on(async {
            let listener = tokio::net::UnixListener::from_std(listener)?;
            axum::serve(listener, router).await
        });
        if let Err(error) = served {
            tracing::error!(%error, "the control socket is no longer served");
        }
    };
    std::thread::Builder::new().name("control".into()).spawn(serve).map_err(named)?;
    Ok((socket, asked))
}

/// A socket that nobody serves any more is replaced; one that is in use, and any other file, is left alone.
fn bind(path: &Path) -> Result<UnixListener, Failure> {
    let refused = |sentence: String| Failure::refused(format!("--control {}: {sentence}", path.display()));
    engine::net::remove_stale_socket(path).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => refused("exists, and is no socket; choose another path".into()),
        ErrorKind::AddrInUse => refused("in use by another process; stop it first, or choose another path".into()),
        _ => refused(format!("is there, and cannot be replaced: {error}; choose another path")),
    })?;
    engine::net::listen_privately(path, CLIENTS_MAX).map_err(|error| match error.kind() {
        ErrorKind::NotFound => refused("its directory does not exist; make it first".into()),
        _ => refused(error.to_string()),
    })
}

type Response = (StatusCode, [(HeaderName, &'static str); 1], String);

async fn ask(sender: Arc<MailSender<Asked>>, body: String) -> Response {
    let (status, answer) = match hand_over(&sender, &body).await {
        Ok(value) => (StatusCode::OK, value),
        Err(failure) => {
            let refusal = Refusal { error: failure.sentence().to_string(), exit: failure.status() };
            (StatusCode::CONFLICT, json!(refusal))
        }
    };
    (status, [(CONTENT_TYPE, "application/json")], answer.to_string())
}

async fn hand_over(sender: &MailSender<Asked>, body: &str) -> Answer {
    let request = understood(body)?;
    let (answer, answered) = oneshot::channel();
    match sender.try_send(Asked { request, answer }) {
        Ok(()) => answered.await.unwrap_or_else(|_| Err(Failure::unavailable("the target is stopping"))),
        Err(_) => Err(Failure::unavailable("the target is busy with other requests, or stopping; try again")),
    }
}

/// Carries out what is asked, until nobody can ask any more.
pub async fn run(target: &Target, jobs: &Jobs, drives: &[ServedDrive], asked: MailReceiver<Asked>) {
    while let Some(Asked { request, answer }) = asked.recv().await {
        let result = perform(target, jobs, drives, &request).await;
        if result.is_ok() && request.changes() {
            tracing::info!(?request, "done for the operator");
        }
        // The client may have gone.
        let _ = answer.send(result);
    }
}

async fn perform(target: &Target, jobs: &Jobs, served: &[ServedDrive], request: &Request) -> Answer {
    let done = |sentence: String| Ok(json!({ "done": sentence }));
    match request {
        Request::Status {} => {
            let jobs = jobs.list().into_iter().map(JobReport::from).collect();
            drives::as_json(&StatusReport { target: target.report(), jobs })
        }
        Request::AnaState { subsystem, port, group, state } => {
            let nqn = choose(target, subsystem.as_deref())?;
            target.set_ana_state(&nqn, PortId(*port), *group, *state).map_err(Failure::usage)?;
            done(format!("group {group} of {nqn} is {state} at port {port}"))
        }
        Request::AnaGroup { subsystem, nsid, group } => {
            let nqn = choose(target, subsystem.as_deref())?;
            target.set_ana_group(&nqn, *nsid, *group).map_err(Failure::usage)?;
            done(format!("namespace {nsid} of {nqn} is in group {group}"))
        }
        Request::AddNamespace { spec } => add_namespace(target, spec).await,
        Request::RemoveNamespace { subsystem, nsid } => {
            let nqn = choose(target, subsystem.as_deref())?;
            remove_namespace(target, &nqn, *nsid).await
        }
        Request::ResizeNamespace { subsystem, nsid, bytes } => {
            let nqn = choose(target, subsystem.as_deref())?;
            let namespace = target.namespace(&nqn, *nsid).map_err(Failure::usage)?;
            namespace.grow(*bytes).await.map_err(Failure::usage)?;
            target.refresh_namespace(&nqn, *nsid).map_err(Failure::usage)?;
            done(format!("namespace {nsid} of {nqn} has {}", Size(*bytes)))
        }
        Request::Drive { drive, action } => drives::perform(target, served, drive.as_deref(), action).await,
        Request::AllowHost { subsystem, host, manage } => {
            let nqn = choose(target, subsystem.as_deref())?;
            match host.as_str() {
                "any" if manage.is_some() => {
                    return Err(Failure::usage("to manage namespaces is a right of hosts by name: say the host's NQN"));
                }
                "any" => target.allow_any_host(&nqn, true),
                host => {
                    // A host that is on the list keeps its keys: letting it in must not make it easier to be it.
                    let host = name(host)?;
                    let mut config = target.host_config(&nqn, &host);
                    config.manage = manage.unwrap_or(config.manage);
                    target.allow_host(&nqn, &host, config)
                }
            }
            .map_err(Failure::usage)?;
            done(format!("{nqn} lets in {host}"))
        }
        Request::DenyHost { subsystem, host } => {
            let nqn = choose(target, subsystem.as_deref())?;
            match host.as_str() {
                "any" if !lets_in_any(target, &nqn) => {
                    let sentence = format!("{nqn} does not let in any host: those on its list are denied by name");
                    return Err(Failure::usage(sentence));
                }
                "any" => target.allow_any_host(&nqn, false),
                host => target.deny_host(&nqn, &name(host)?),
            }
            .map_err(Failure::usage)?;
            done(format!("{nqn} no longer lets in {host}"))
        }
        Request::SetHostKey { subsystem, host, key_file, controller_key_file } => {
            let nqn = choose(target, subsystem.as_deref())?;
            let keys = HostKeys::from_files(key_file, controller_key_file.as_deref()).map_err(Failure::usage)?;
            target.set_host_keys(&nqn, &name(host)?, keys).map_err(Failure::usage)?;
            done(format!("{host} authenticates to {nqn} by its new key from now on"))
        }
    }
}

fn name(text: &str) -> Result<Nqn, Failure> {
    text.parse().map_err(|error: nvme::nqn::NqnError| Failure::usage(error))
}

fn lets_in_any(target: &Target, nqn: &Nqn) -> bool {
    target.report().subsystems.iter().any(|subsystem| subsystem.nqn == nqn.as_str() && subsystem.any_host)
}

/// The subsystem of this name, or the only one.
pub fn choose(target: &Target, wanted: Option<&str>) -> Result<Nqn, Failure> {
    let known: Vec<String> = target.report().subsystems.into_iter().map(|subsystem| subsystem.nqn).collect();
    match (wanted, &known[..]) {
        (Some(wanted), _) if known.iter().any(|nqn| nqn == wanted) => name(wanted),
        (Some(wanted), _) => {
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let nearest = crate::config::nearest(wanted, &known);
            Err(Failure::usage(format!("there is no subsystem {wanted}{nearest}")))
        }
        (None, [only]) => name(only),
        (None, _) => Err(Failure::usage(format!("choose one with --subsystem: {}", known.join(", ")))),
    }
}

async fn add_namespace(target: &Target, spec: &NamespaceSpec) -> Answer {
    let nqn = choose(target, spec.subsystem.as_ref().map(Nqn::as_str))?;
    let report = target.report();
    let used: Vec<u32> = report.subsystems.iter().filter(|subsystem| subsystem.nqn == nqn.as_str()).fold(
        Vec::new(),
        |mut used, subsystem| {
            used.extend(subsystem.namespaces.iter().map(|namespace| namespace.nsid));
            used
        },
    );
    let nsid = spec.nsid.or_else(|| (1..).find(|nsid| !used.contains(nsid))).unwrap_or(1);
    if used.contains(&nsid) {
        return Err(Failure::usage(format!("{nqn} has a namespace {nsid} already; remove it first")));
    }
    let namespace = spec.open().await?;
    if let Err(error) = target.add_namespace_to(&nqn, nsid, spec.group, namespace.clone()) {
        // What is not served is not kept from others either.
        let_go(&namespace).await?;
        return Err(Failure::usage(error));
    }
    Ok(json!({ "done": format!("{} is namespace {nsid} of {nqn}", spec.describe()), "nsid": nsid }))
}

/// Takes a namespace away, makes it stable, and waits until its medium is free for others.
async fn remove_namespace(target: &Target, nqn: &Nqn, nsid: u32) -> Answer {
    let namespace = target.remove_namespace(nqn, nsid).map_err(Failure::usage)?;
    let deadline = time::now() + RELEASE_TIME_MAX;
    while namespace.holders() > 1 && time::now() < deadline {
        time::sleep(RELEASE_PAUSE).await;
    }
    let last = |failure: Failure| {
        let why = failure.sentence().to_string();
        Failure::refused(format!("namespace {nsid} is removed, but its last flush: {why}"))
    };
    let rest = if namespace.holders() == 1 {
        let_go(&namespace).await.map_err(last)?;
        "its medium is free"
    } else {
        let flushed = namespace.flush().await.map_err(Failure::refused);
        task::spawn(let_go_when_free(namespace, nsid)).detach();
        flushed.map_err(last)?;
        "commands still execute; its medium is flushed once more, and free, when they have ended"
    };
    Ok(json!({ "done": format!("namespace {nsid} of {nqn} is removed; {rest}") }))
}

/// Makes a namespace that nobody uses any more stable. Its medium is free then, whatever came of that.
async fn let_go(namespace: &AnyNamespace) -> Result<(), Failure> {
    let flushed = namespace.flush().await.map_err(Failure::refused);
    let closed = crate::flash::served::close_of(namespace).await;
    flushed.and(closed)
}

/// What was still executing when a namespace was removed has changed it after its flush.
async fn let_go_when_free(namespace: AnyNamespace, nsid: u32) {
    while namespace.holders() > 1 {
        time::sleep(RELEASE_PAUSE).await;
    }
    match let_go(&namespace).await {
        Ok(()) => tracing::info!(nsid, "the last command of a removed namespace has ended: its medium is free"),
        Err(failure) => tracing::error!(nsid, error = failure.sentence(), "the last flush of a removed namespace"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_socket_that_nobody_serves_is_replaced_and_nothing_else() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("control");
        drop(UnixListener::bind(&path).expect("bound"));
        let listener = bind(&path).expect("a stale socket is replaced");
        let mode = std::fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = bind(&path).expect_err("refused");
        assert!(error.sentence().contains("in use by another process"), "{}", error.sentence());
        drop(listener);
        let file = directory.path().join("file");
        std::fs::write(&file, "precious").expect("written");
        assert!(bind(&file).expect_err("refused").sentence().contains("is no socket"));
        assert_eq!(std::fs::read(&file).expect("still there"), b"precious");
        let nowhere = directory.path().join("missing/control");
        assert!(bind(&nowhere).expect_err("refused").sentence().contains("make it first"));
    }
}
