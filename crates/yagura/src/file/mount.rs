//! `yagura file mount`.

use std::net::SocketAddr;
use std::rc::Rc;

use ::file::meta::{Meta, StoreMeta};
use ::file::{FileMetrics, Files};
use fuse::{Mount, MountOptions};
use kv::store::RepairerOptions;
use prometheus_client::registry::Registry;
use serde::Serialize;

use super::fault::failure;
use super::reach;
use crate::cli::FileMountArgs;
use crate::exit::Failure;
use crate::{client, metrics, output, reactors, stop};

/// What is said on standard output once it is mounted.
#[derive(Serialize)]
struct Ready {
    name: String,
    directory: String,
    members: usize,
    reached: usize,
    metrics: Option<SocketAddr>,
}

/// Serves until it is unmounted, or a signal comes.
pub fn run(args: &FileMountArgs) -> Result<(), Failure> {
    let letters = stop::letters(1, args.until_stdin_closes)?;
    reactors::run_one(serve(args, &letters[0]))
}

async fn serve(args: &FileMountArgs, letter: &engine::sync::MailReceiver<stop::Reason>) -> Result<(), Failure> {
    let way = Rc::new(client::way(&args.address.host)?);
    let store = client::open(&args.address).await?;
    let _repairer = store.start_repairer(RepairerOptions::default());
    let meta: Rc<dyn Meta> = Rc::new(StoreMeta::new(Rc::new(store.clone())));
    let files = Files::open(meta, &args.name, &reach::host_name()).await.map_err(failure)?;
    let reached = reach::connect_all(&way, &files).await;
    let _alive = files.keep_alive();
    let options = MountOptions { read_only: args.read_only, allow_other: args.allow_other };
    let mount = Mount::new(&args.directory, &args.name, &options);
    let mount = mount.map_err(|error| Failure::refused(error.to_string()))?;
    let figures = FileMetrics::default();
    let _watching = args.metrics.is_some().then(|| figures.watch(&files));
    let serve_metrics = |address| {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(figures));
        registry.register_collector(Box::new(mount.metrics().clone()));
        metrics::serve(address, registry, metrics::always())
    };
    let ready = Ready {
        name: args.name.clone(),
        directory: args.directory.display().to_string(),
        members: files.members().all().len(),
        reached,
        metrics: args.metrics.map(serve_metrics).transpose()?,
    };
    output::report(args.common.json, &ready, |ready| {
        let mut text = format!(
            "file system {} is at {} ({} of {} members reached); `umount {}` or Ctrl-C ends it",
            ready.name, ready.directory, ready.reached, ready.members, ready.directory
        );
        if let Some(address) = ready.metrics {
            text += &format!("\nmetrics at http://{address}/metrics");
        }
        text
    })?;
    let end = async {
        letter.recv().await;
    };
    let served = mount.serve(Rc::clone(&files), Box::pin(end)).await;
    let closed = files.close().await.map_err(failure);
    crate::kv::settle(&store).await;
    served.map_err(|error| Failure::from(error).during("the mount"))?;
    closed
}
