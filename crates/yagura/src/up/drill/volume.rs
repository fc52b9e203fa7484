//! The drill's volume: a file system image written to it while a node is killed, read back without the node, and its replicas
//! compared once the node is back.
//!
//! All that is asked is asked as a user would: by the verbs of this program, and over NVMe/TCP.

use std::cell::Cell;
use std::fs::File;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use device::{Durability, Lba, Namespace};
use engine::Buf;
use engine::sync::MailReceiver;
use engine::task::TaskSet;
use engine::time::{self, Instant};
use fabric::host::{Options, RemoteNamespace};
use serde::Serialize;
use serde_json::Value;

use super::super::volumes::{HOST, Volumes};
use super::image::{self, Image};
use super::replicas::{self, Replica};
use crate::aside::{aside, succeeded};
use crate::exit::Failure;
use crate::nvme::device_failure;
use crate::supervise::{News, Supervisor, first_start};
use crate::tree::Tree;
use crate::{output, size::Size};

/// Whose the volume is: nobody's else, so that what a drill has left behind can be deleted.
const TENANT: &str = "yagura-drill";
const NAME: &str = "image";
const NQN: &str = "nqn.2026-11.io.yagura:up-drill";
/// Bytes of one command. Chosen: what targets commonly take.
const CHUNK: usize = 128 << 10;
/// Commands under way at once.
const DEPTH: usize = 16;
/// The pause before each command once all has been written and the node still lives: the drill waits for the store then, which is
/// not to share the disk with more than a little.
const AGAIN_PAUSE: Duration = Duration::from_millis(200);
/// How long a verb may take, and the attaching. Guessed: far above what so small a volume needs anywhere.
const VERB_TIME_MAX: Duration = Duration::from_secs(60);
/// How long a replica may take to be in sync again. Guessed, likewise.
const SYNC_TIME_MAX: Duration = Duration::from_secs(300);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Bytes moved.
#[derive(Serialize, Debug)]
pub struct Moved {
    /// How many.
    pub bytes: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// What the slowest command took of them.
    pub slowest_seconds: f64,
}

impl Moved {
    fn describe(&self) -> String {
        let rate = Size((self.bytes as f64 / self.seconds.max(1e-3)) as u64);
        format!(
            "{} in {:.2} s ({rate}/s, the slowest command {:.2} s)",
            Size(self.bytes),
            self.seconds,
            self.slowest_seconds
        )
    }
}

/// What came of it.
#[derive(Serialize, Debug)]
pub struct Summary {
    /// Files in the file system.
    pub files: u64,
    /// The image written once.
    pub write: Moved,
    /// Bytes written again until the node was dead, and then some.
    pub rewritten_bytes: u64,
    /// The image read without the node.
    pub read: Moved,
    /// Bytes that did not come back as they were written.
    pub different_bytes: u64,
    /// What the node's replica missed, as far as it was copied to it.
    pub resynced_bytes: u64,
    /// From the node's restart until the replica was in sync.
    pub resync_seconds: f64,
    /// Regions that were compared, and that are the same on all replicas.
    pub equal_regions: u64,
}

/// The volume, attached.
pub struct Attached<'a> {
    volumes: &'a Volumes,
    supervisor: Supervisor,
    news: MailReceiver<News>,
    metrics: SocketAddr,
    remote: RemoteNamespace,
    directory: PathBuf,
    image: Image,
    source: File,
    slowest: Cell<Duration>,
}

/// Makes the image and a volume for it, and attaches the volume.
pub async fn attach<'a>(volumes: &'a Volumes, tree: &Tree, directory: PathBuf) -> Result<Attached<'a>, Failure> {
    let clean = directory.clone();
    aside(move || {
        // What an earlier drill has left behind.
        std::fs::remove_dir_all(&clean).ok();
        std::fs::create_dir_all(&clean).map_err(|error| Failure::from(error).during(clean.display()))
    })
    .await??;
    let image = image::make(tree, &directory, volumes.size).await?;
    let source = File::open(&image.path)?;
    let ask = async |words: &[&str]| succeeded(volumes.command(words, TENANT), VERB_TIME_MAX).await;
    succeeded(volumes.command(&["control", "tenant", TENANT], TENANT), VERB_TIME_MAX).await?;
    if ask(&["control", "show", "volumes", NAME]).await.is_ok() {
        ask(&["control", "delete", NAME, "--force"]).await?;
    }
    ask(&["control", "create", NAME, "--size", &image.bytes.to_string()]).await?;
    let words = ["volume", "attach", "--name", NAME, "--host-nqn", HOST, "--nqn", NQN, "--metrics", "127.0.0.1:0"];
    let spec = volumes.spec("host of a volume", &[&words[..], &["--json", "--until-stdin-closes"]].concat(), TENANT);
    let (supervisor, news) = Supervisor::start(vec![spec])?;
    let (listening, metrics) = first_start(&news, "host of a volume", VERB_TIME_MAX).await?;
    let metrics = metrics.ok_or_else(|| Failure::refused("the host of a volume tells of no metrics"))?;
    let nqn = NQN.parse().map_err(Failure::refused)?;
    let remote = RemoteNamespace::connect(Options::new(listening, nqn, 1)).await.map_err(Failure::unavailable)?;
    let slowest = Cell::default();
    Ok(Attached { volumes, supervisor, news, metrics, remote, directory, image, source, slowest })
}

impl Attached<'_> {
    /// The image's chunks.
    fn chunks(&self) -> u64 {
        self.image.bytes / CHUNK as u64
    }

    fn lba(&self, chunk: u64) -> Lba {
        Lba(chunk * CHUNK as u64 / u64::from(self.remote.info().block_size))
    }

    fn chunk(&self, chunk: u64) -> Result<Buf, Failure> {
        let mut data = Buf::with_len(CHUNK);
        self.source.read_exact_at(&mut data, chunk * CHUNK as u64)?;
        Ok(data)
    }

    async fn write_chunk(&self, chunk: u64, pause: bool) -> Result<(), Failure> {
        if pause {
            time::sleep(AGAIN_PAUSE).await;
        }
        let (data, began) = (self.chunk(chunk)?.freeze(), time::now());
        self.remote.write(self.lba(chunk), data, Durability::Stable).await.map_err(device_failure)?;
        self.slowest.set(self.slowest.get().max(began.elapsed()));
        Ok(())
    }

    /// Writes the image, again and again until the node is dead: all of it at least once, and a third of it after that. What was
    /// written once, and how many bytes more.
    pub async fn write(&self, dead: &Cell<bool>) -> Result<(Moved, u64), Failure> {
        let (chunks, began) = (self.chunks(), time::now());
        let mut tasks = TaskSet::new(DEPTH);
        let (mut next, mut done, mut last, mut seconds) = (0, 0, None, 0.0);
        loop {
            if last.is_none() && dead.get() {
                last = Some(chunks.max(next + chunks.div_ceil(3)));
            }
            while !tasks.is_full() && last.is_none_or(|last| next < last) {
                let pushed = tasks.push(self.write_chunk(next % chunks, next >= chunks && last.is_none()));
                assert!(pushed.is_ok(), "invariant: the set is not full");
                next += 1;
            }
            let Some((_, written)) = poll_fn(|context| tasks.poll_next(context)).await else { break };
            written?;
            done += 1;
            if done == chunks {
                seconds = began.elapsed().as_secs_f64();
            }
        }
        let slowest_seconds = self.slowest.take().as_secs_f64();
        Ok((Moved { bytes: self.image.bytes, seconds, slowest_seconds }, self.image.bytes / chunks * (done - chunks)))
    }

    async fn read_chunk(&self, chunk: u64, copy: &File) -> Result<u64, Failure> {
        let began = time::now();
        let (read, data) = self.remote.read(self.lba(chunk), Buf::with_len(CHUNK)).await;
        read.map_err(device_failure)?;
        self.slowest.set(self.slowest.get().max(began.elapsed()));
        copy.write_all_at(&data, chunk * CHUNK as u64)?;
        let expected = self.chunk(chunk)?;
        if data[..] == expected[..] {
            return Ok(0);
        }
        Ok(data.iter().zip(expected.iter()).filter(|(a, b)| a != b).count() as u64)
    }

    /// Reads the image back into a file: how that went, and the bytes that differ.
    pub async fn read(&self, quiet: bool) -> Result<(Moved, u64), Failure> {
        let copy = File::create(self.copy())?;
        let bar = output::progress("read the volume without the node", self.image.bytes, quiet);
        let (began, mut different) = (time::now(), 0);
        let (mut tasks, mut waiting) = (TaskSet::new(DEPTH), 0..self.chunks());
        loop {
            while !tasks.is_full()
                && let Some(chunk) = waiting.next()
            {
                let pushed = tasks.push(self.read_chunk(chunk, &copy));
                assert!(pushed.is_ok(), "invariant: the set is not full");
            }
            let Some((_, read)) = poll_fn(|context| tasks.poll_next(context)).await else { break };
            different += read?;
            bar.inc(CHUNK as u64);
        }
        bar.finish_and_clear();
        let (seconds, slowest_seconds) = (began.elapsed().as_secs_f64(), self.slowest.take().as_secs_f64());
        Ok((Moved { bytes: self.image.bytes, seconds, slowest_seconds }, different))
    }

    fn copy(&self) -> PathBuf {
        self.directory.join("copy")
    }

    async fn replicas(&self) -> Result<Vec<Replica>, Failure> {
        let at = self.metrics;
        aside(move || replicas::ask(at)).await?
    }

    /// What the replicas say while the node is down: one at least is behind, else nothing is there to be resynchronised.
    pub async fn behind(&self) -> Result<Vec<Replica>, Failure> {
        let replicas = self.replicas().await?;
        match replicas.iter().all(|replica| replica.in_sync) {
            true => Err(Failure::check("a node is dead, and all replicas of the volume are in sync")),
            false => Ok(replicas),
        }
    }

    /// Waits until all replicas are in sync: the bytes that were written to those that were `behind`, and the seconds since.
    pub async fn resync(&self, behind: &[Replica], restarted: Instant) -> Result<(u64, f64), Failure> {
        loop {
            let replicas = self.replicas().await?;
            let took = restarted.elapsed();
            if replicas.iter().all(|replica| replica.in_sync) {
                let late = replicas.iter().zip(behind).filter(|(_, before)| !before.in_sync);
                let copied = late.map(|(now, before)| now.written_bytes.saturating_sub(before.written_bytes));
                return Ok((copied.sum(), took.as_secs_f64()));
            }
            if took > SYNC_TIME_MAX {
                return Err(Failure::check(format!("the volume's replicas are not in sync after {SYNC_TIME_MAX:?}")));
            }
            time::sleep(LOOK_EVERY).await;
        }
    }

    /// Detaches the volume, compares its replicas, checks the file system that was read, and deletes the volume. How many regions
    /// are equal, and the files of the image.
    pub async fn end(self) -> Result<(u64, u64), Failure> {
        let copy = self.copy();
        let Attached { volumes, supervisor, news, remote, directory, image, .. } = self;
        remote.disconnect().await;
        if let Some(told) = news.try_recv() {
            return Err(Failure::check(format!("the host of a volume has not lived through the drill: {told:?}")));
        }
        aside(move || drop(supervisor)).await?;
        let verify = ["volume", "verify", "--name", NAME, "--host-nqn", HOST, "--take", "--json"];
        let said = succeeded(volumes.command(&verify, TENANT), VERB_TIME_MAX).await?;
        let said: Value = serde_json::from_slice(&said).map_err(Failure::refused)?;
        let regions = said["regions"].as_u64().unwrap_or_default();
        image::check(&copy).await?;
        succeeded(volumes.command(&["control", "delete", NAME], TENANT), VERB_TIME_MAX).await?;
        aside(move || std::fs::remove_dir_all(directory)).await??;
        Ok((regions, image.files))
    }
}

impl Summary {
    /// Whether everything was as it must be.
    pub fn verdict(&self) -> Result<(), Failure> {
        match self.different_bytes {
            0 => Ok(()),
            different => Err(Failure::check(format!("{different} bytes of the volume did not come back as written"))),
        }
    }

    /// For people.
    pub fn describe(&self) -> String {
        let Summary { files, write, read, different_bytes, resynced_bytes, resync_seconds, equal_regions, .. } = self;
        let right = match different_bytes {
            0 => "every byte right, e2fsck finds no fault".to_owned(),
            different => format!("{different} bytes DIFFER"),
        };
        format!(
            "volume:    ext4 of {} written while the node was killed: {}\n\
             \x20          read without the node: {}, {right}\n\
             \x20          resynchronised {} in {resync_seconds:.2} s from the node's restart, {} equal on \
             all replicas\n",
            output::many(*files, "file"),
            write.describe(),
            read.describe(),
            Size(*resynced_bytes),
            output::many(*equal_regions, "region"),
        )
    }
}
