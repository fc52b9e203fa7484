//! A connection made step by step and timed, to see whether a target is good and where it is not.

use std::time::Duration;

use device::{Lba, Namespace, NamespaceInfo};
use engine::net::TcpStream;
use engine::task::LocalFuture;
use engine::{Buf, time};
use nvme::ana::AnaState;
use nvme::feature::FeatureId;
use nvme::identify::IdentifyController;
use nvme::register::Configuration;

use super::admin::{Admin, ConnectQueue};
use super::ana::AnaStates;
use super::association::{ADMIN_ENTRIES, admin_config, connect_io, io_config};
use super::connect::{enter, open, secured};
use super::error::ConnectError;
use super::link::LinkError;
use super::options::Options;
use super::remote::RemoteNamespace;
use super::shape::{self, Controller};

/// Reads that are timed. Chosen: enough for a median, over in an instant.
pub const TRIPS: usize = 100;

/// A step that was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// What it was.
    pub name: &'static str,
    /// How long it took.
    pub took: Duration,
}

/// What a trial found out, as far as it came.
#[derive(Clone, Debug, Default)]
pub struct Trial {
    /// The steps done, in order.
    pub steps: Vec<Step>,
    /// The step that failed, and why.
    pub failed: Option<(&'static str, ConnectError)>,
    /// What the controller says of itself.
    pub controller: Option<Box<IdentifyController>>,
    /// Entries of the longest queue it takes (CAP.MQES).
    pub queue_entries_max: u32,
    /// I/O queues that it gives, of [`super::QUEUES_MAX`] asked for.
    pub queues: u16,
    /// The namespace.
    pub namespace: Option<NamespaceInfo>,
    /// How good this controller is for the namespace.
    pub ana: Option<AnaState>,
    /// Round trips of reads of one block, one at a time, ascending.
    pub trips: Vec<Duration>,
}

/// Goes through the steps that lead to a namespace and reads its first block [`TRIPS`] times. Nothing is written.
pub fn trial<'a>(options: &'a Options) -> LocalFuture<'a, Trial> {
    Box::pin(async move {
        let mut trial = Trial::default();
        if let Err(failed) = attempt(options, &mut trial).await {
            trial.failed = Some(failed);
        }
        trial
    })
}

type Failed = (&'static str, ConnectError);

impl Trial {
    async fn step<T>(
        &mut self,
        name: &'static str,
        step: impl Future<Output = Result<T, ConnectError>>,
    ) -> Result<T, Failed> {
        let started = time::now();
        let done = step.await.map_err(|error| (name, error))?;
        self.steps.push(Step { name, took: started.elapsed() });
        Ok(done)
    }
}

async fn attempt(options: &Options, trial: &mut Trial) -> Result<(), Failed> {
    let address = options.address;
    let tcp = async {
        let stream = time::timeout(options.connect_timeout, TcpStream::connect(address)).await;
        let stream = stream.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
        stream.map(drop).map_err(|error| ConnectError::Link { address, error: LinkError::from(error) })
    };
    trial.step("TCP connection", tcp).await?;
    let config = admin_config(options.header_digest, options.data_digest);
    // Without a keep alive timeout: nothing keeps this one alive, and a step may take longer than that.
    let queue = ConnectQueue::admin(ADMIN_ENTRIES, 0);
    let mut chosen = options.clone();
    if options.security.concatenation {
        let secured = secured(options, config, &queue, options.command_timeout);
        chosen = trial.step("authentication, for a secure channel", secured).await?;
    }
    let (wanted, options) = (options, &chosen);
    let link = trial.step("connection set-up (TLS, ICReq)", open(options, config, options.command_timeout)).await?;
    let id = trial.step("Connect of the admin queue", enter(&link, options, &queue)).await?;
    let admin = Admin { link: &link, address };
    let capabilities = trial.step("enabling the controller", admin.enable()).await?;
    let controller = Controller::identify(&admin, id, capabilities);
    let controller = trial.step("Identify Controller", controller).await?;
    let page = controller.page;
    trial.controller = Some(Box::new(page));
    trial.queue_entries_max = capabilities.queue_entries_max();
    let found = trial.step("Identify Namespace", shape::find(&admin, options, &controller, options.nsid)).await?;
    trial.namespace = Some(found.info.clone());
    if page.cmic & nvme::ana::CMIC_ANA != 0 {
        let states = trial.step("ANA log page", AnaStates::read(&admin, &page)).await?;
        trial.ana = Some(states.of(found.limits.ana_group));
    }
    let asked = u32::from(super::QUEUES_MAX - 1);
    let number = admin.set_feature(FeatureId::NUMBER_OF_QUEUES, asked | asked << 16);
    let given = trial.step("Number of Queues", number).await?;
    trial.queues = ((given & 0xFFFF).min(given >> 16) as u16).saturating_add(1).min(super::QUEUES_MAX);
    let io = connect_io(options, io_config(options, &controller), &controller, 1);
    drop(trial.step("Connect of an I/O queue", io).await?);
    // What it has learnt it leaves; the rest is done as any user of the namespace would.
    let _ = admin.announce_shutdown(Configuration::enable_all(capabilities)).await;
    drop(link);
    let remote = trial.step("a whole association", RemoteNamespace::connect(wanted.clone())).await?;
    let trips = trial.step("reads of the first block", trips(&remote)).await;
    remote.disconnect().await;
    trial.trips = trips?;
    Ok(())
}

async fn trips(remote: &RemoteNamespace) -> Result<Vec<Duration>, ConnectError> {
    let block = remote.info().block_size as usize;
    let mut buf = Buf::with_len(block);
    let mut trips = Vec::with_capacity(TRIPS);
    for _ in 0..TRIPS {
        let started = time::now();
        let (result, back) = remote.read(Lba(0), buf).await;
        if let Err(error) = result {
            return Err(ConnectError::Unusable { nsid: remote.nsid(), reason: error.to_string() });
        }
        trips.push(started.elapsed());
        buf = back;
    }
    trips.sort();
    Ok(trips)
}

/// The largest page of a store, in bytes, that the namespace can take by one fused pair; 0: none.
pub fn swap_bytes_max(info: &NamespaceInfo) -> u64 {
    u64::from(info.compare_and_write_blocks_max) * u64::from(info.block_size)
}

/// What keeps a namespace from being a member of a store with pages of `page_bytes`; empty: nothing.
pub fn obstacles(info: &NamespaceInfo, page_bytes: u64) -> Vec<String> {
    let mut obstacles = Vec::new();
    match swap_bytes_max(info) {
        0 => obstacles.push("it does not offer the fused Compare and Write (FUSES bit 0)".to_owned()),
        most if most < page_bytes => obstacles.push(format!(
            "its fused Compare and Write is atomic for {most} bytes (ACWU), and a page has {page_bytes}: make smaller pages"
        )),
        _ => {}
    }
    if u64::from(info.block_size) > page_bytes {
        obstacles.push(format!("its blocks have {} bytes, and a page {page_bytes}", info.block_size));
    }
    obstacles
}
