//! `yagura control serve`: the REST interface and the worker on tokio, drives on a reactor, in one process.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ::control::catalogue::{Catalogue, Serving, check_not_moved, check_whole, restoring, unmark_moved};
use ::control::provision::{Provisioner, Request, Worker, WorkerOptions};
use ::control::rest::{Server, ServerOptions};
use engine::sync::{MailSender, mailbox};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::catalogue::open;
use super::drives::NvmeDrives;
use crate::cli::ControlServeArgs;
use crate::exit::Failure;
use crate::race::{First, first_of};
use crate::{output, reactors, runtime, stop};

/// How long the catalogue is told that it is served no more.
const LET_GO_TIME: Duration = Duration::from_secs(2);
/// Before the catalogue is asked again that did not answer. Chosen: an election is over within seconds.
const AGAIN_PAUSE: Duration = Duration::from_secs(1);

/// What is said on standard output once it serves.
#[derive(Serialize, Debug)]
struct Ready {
    listening: SocketAddr,
    catalogue: String,
    host: String,
}

/// Serves until a signal.
pub fn run(args: &ControlServeArgs) -> Result<(), Failure> {
    let Some(host) = args.host.host_nqn.clone() else {
        let why = "drives know the control plane by it: --host nqn=NQN,manage=all on their targets";
        return Err(Failure::usage(format!("--host-nqn: say the control plane's name, {why}")));
    };
    if args.tls.tls_cert.is_none() && !args.plain_text && !args.listen.ip().is_loopback() {
        let why = "tokens would go over the network for all to read";
        let mend = "give --tls-cert and --tls-key, or say --plain-text";
        return Err(Failure::usage(format!("--listen {}: {why}: {mend}", args.listen)));
    }
    let mut letters = stop::letters(1, args.until_stdin_closes)?;
    let letter = letters.pop().ok_or_else(|| Failure::usage("invariant: one letter was asked for"))?;
    let (ended, end) = mailbox(1);
    let drives = Arc::new(NvmeDrives::start(args.host.clone(), ended.clone())?);
    let runtime = runtime::few_threads()?;
    let Opened { catalogue, named, serving } = runtime.block_on(opened(args, ended.clone()))?;
    let provisioner = Provisioner::new(catalogue, drives);
    let listening = runtime.block_on(begin(args, &provisioner, ended))?;
    output::report(args.common.json, &Ready { listening, catalogue: named, host }, |ready| {
        let Ready { listening, catalogue, host } = ready;
        let scheme = if args.tls.tls_cert.is_some() { "https" } else { "http" };
        format!("volumes by name at {scheme}://{listening}, catalogue {catalogue}, host {host}\n")
    })?;
    let stopped = reactors::run_one(async { Ok(first_of(end.recv(), letter.recv()).await) });
    if let Some(serving) = serving {
        runtime.block_on(let_go(&serving));
    }
    stop_all(runtime);
    match stopped? {
        First::A(Some(why)) => Err(Failure::refused(why)),
        First::A(None) => Err(Failure::refused("the interface is no longer served")),
        First::B(_) => Ok(()),
    }
}

/// A catalogue that is served.
struct Opened {
    catalogue: Arc<dyn Catalogue>,
    named: String,
    /// Where others may restore it.
    serving: Option<Arc<Serving>>,
}

/// Opens the catalogue if it may be served. From then on who restores it sees that it is, also from other machines.
async fn opened(args: &ControlServeArgs, ended: MailSender<String>) -> Result<Opened, Failure> {
    let who = format!("yagura control at {}", args.listen);
    let (catalogue, named) = open(&args.at, who.clone()).await?;
    if args.although_moved {
        unmark_moved(&*catalogue).await.map_err(Failure::refused)?;
    }
    check_not_moved(&*catalogue).await.map_err(Failure::refused)?;
    if args.at.catalogue.is_some() {
        // Nobody else has the file open.
        check_whole(&*catalogue).await.map_err(Failure::refused)?;
        return Ok(Opened { catalogue, named, serving: None });
    }
    let serving = Arc::new(Serving::begin(catalogue.clone(), who).await.map_err(Failure::unavailable)?);
    if let Err(unfinished) = check_whole(&*catalogue).await {
        let_go(&serving).await;
        return Err(Failure::refused(unfinished));
    }
    let at_first = restoring(&*catalogue).await.map_err(Failure::refused)?;
    let (kept, restored) = (serving.clone(), catalogue.clone());
    tokio::spawn(async move {
        loop {
            kept.lapsed().await;
            // It counted as dead for a while, and somebody may have restored the catalogue then: asked until that is known, as the
            // catalogue is often away when this process is.
            let now = loop {
                match restoring(&*restored).await {
                    Ok(now) => break now,
                    Err(_) => tokio::time::sleep(AGAIN_PAUSE).await,
                }
            };
            if now != at_first {
                // Nobody listens where the process is ending already.
                let _ = ended.try_send("the catalogue was restored meanwhile: begin anew".into());
                return;
            }
        }
    });
    Ok(Opened { catalogue, named, serving: Some(serving) })
}

/// Who restores the catalogue need not wait until this process counts as dead.
async fn let_go(serving: &Serving) {
    let told = tokio::time::timeout(LET_GO_TIME, serving.end()).await;
    if !matches!(told, Ok(Ok(()))) {
        tracing::warn!("whoever restores the catalogue has to wait until this control plane counts as dead");
    }
}

/// What is under way is gone on with by whoever serves next.
fn stop_all(runtime: Runtime) {
    runtime.shutdown_background();
}

/// Makes the operator's token, if it is to be made, and begins to serve and to work; `ended` is told why that ends.
async fn begin(
    args: &ControlServeArgs,
    provisioner: &Provisioner,
    ended: MailSender<String>,
) -> Result<SocketAddr, Failure> {
    if let Some(path) = args.operator_token.as_deref().filter(|path| !path.exists()) {
        write_token(provisioner, path).await?;
    }
    let options = ServerOptions { tls: args.tls.files(), plain_text_anywhere: args.plain_text };
    let server = Server::new(provisioner, &options).map_err(Failure::refused)?;
    let cannot = |error: std::io::Error| {
        Failure::refused(format!("--listen {}: cannot listen: {error} (port 0 takes a free one)", args.listen))
    };
    let listener = TcpListener::bind(args.listen).await.map_err(cannot)?;
    let listening = listener.local_addr().map_err(cannot)?;
    tokio::spawn(async move {
        let why = server.serve(listener).await;
        // Nobody listens where the process is ending already.
        let _ = ended.try_send(why.to_string());
    });
    tokio::spawn(Worker::new(provisioner, WorkerOptions::default()).run());
    Ok(listening)
}

async fn write_token(provisioner: &Provisioner, path: &Path) -> Result<(), Failure> {
    let (token, secret) = provisioner.issue_token(None).await.map_err(Failure::refused)?;
    if let Err(error) = secret.write_new(path) {
        // A token that nobody has would let somebody in for ever.
        let revoked = provisioner.revoke_token(&Request::unnamed(), token.id).await;
        revoked.map_err(|revoking| Failure::refused(format!("{error}; and its token stays: {revoking}")))?;
        return Err(Failure::refused(error));
    }
    Ok(())
}
