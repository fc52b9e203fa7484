//! The drill of `yagura up`: a real directory, and one storage node killed while it is read back from the store, written to a
//! volume, and read back as files.
//!
//! - Import the directory; make a volume, and a file system image of the directory; copy some of it to the files.
//! - Read the directory back and compare every byte, and write the image to the volume, and read the files; a third of the way on,
//!   end one node by SIGKILL.
//! - Write and delete keys while the node is down, and copy files; read directory and image once more without it.
//! - Start the node again, and wait until the store is repaired and the volume's replicas are in sync; rebuild the files' columns.
//! - Compare all replicas of all keys, and those of the volume; check the file system that was read.
//!
//! An error that reaches a client anywhere, a byte that differs, a replica that does: the drill has failed.

mod files;
mod image;
mod replicas;
mod volume;

use std::cell::Cell;
use std::path::Path;
use std::time::Duration;

use engine::time::{self, Instant};
use kv::resp::Backend;
use serde::Serialize;

use super::Running;
use crate::exit::Failure;
use crate::kv::copy::{self, Compared, Imported};
use crate::kv::scrub::{self, Scrubbed};
use crate::kv::store_failure;
use crate::kv::timed::timed;
use crate::output;
use crate::race::both;
use crate::size::Size;
use crate::supervise::News;
use crate::tree::Tree;

/// Which node is killed: any would do.
const VICTIM: usize = 0;
/// Files under way at once.
const DEPTH: usize = 16;
/// Keys written, and half of them deleted again, while the node is down: what its repair must bring.
const WRITTEN_WHILE_DOWN: u32 = 500;
/// How long the node may take to be back and repaired. Guessed: far above what any test machine needs.
const REPAIR_TIME_MAX: Duration = Duration::from_secs(300);
/// How often the repair is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What the drill did and found.
#[derive(Serialize, Debug)]
pub struct Summary {
    /// The import.
    pub import: Imported,
    /// The read during which the node was killed.
    pub read_during_kill: Compared,
    /// The read without the node.
    pub read_without_node: Compared,
    /// The node that was killed, counted from 1.
    pub killed_node: usize,
    /// Keys written while it was down.
    pub written_while_down: u32,
    /// From the node's restart to the end of its repair.
    pub repair_seconds: f64,
    /// Replicas that the repair stored.
    pub repaired_replicas: u64,
    /// All replicas of all keys at the end.
    pub replicas: Scrubbed,
    /// The volume.
    pub volume: volume::Summary,
    /// The files.
    pub files: files::Summary,
}

/// Runs the drill.
pub async fn run(running: &Running, tree: &Tree, directory: &Path, quiet: bool) -> Result<Summary, Failure> {
    let volumes = running.volumes.as_ref().ok_or_else(|| Failure::check("volumes are not served: the log says why"))?;
    let files = running.files.as_ref().ok_or_else(|| Failure::check("files are not served: the log says why"))?;
    let store = timed(running.store.clone());
    let bar = output::progress("import", tree.bytes(), quiet);
    let import = copy::import(&store, tree, kv::object::PART_BYTES_MAX, DEPTH, |bytes| bar.inc(bytes)).await;
    bar.finish_and_clear();
    let import = import?;

    let volume = volume::attach(volumes, tree, directory.to_owned()).await?;
    let copied = files::copy_in(files, tree, &directory.join("files")).await?;
    let (killed, dead) = (Cell::new(false), Cell::new(false));
    let reading = both(read_and_kill(running, tree, &killed, quiet), death(running, &killed, &dead));
    let (((read_during_kill, ()), read_files), (write, rewritten_bytes)) =
        both(both(reading, copied.read_around(&dead)), volume.write(&dead)).await?;
    write_while_down(&store).await?;
    copied.copy_without_node().await?;

    let bar = output::progress("read without the node", tree.bytes(), quiet);
    let without = timed(running.store.clone());
    let read_without_node = copy::compare(&without, tree, DEPTH, |bytes| bar.inc(bytes)).await;
    bar.finish_and_clear();
    let read_without_node = read_without_node?;
    let (read, different_bytes) = volume.read(quiet).await?;
    let behind = volume.behind().await?;

    let before = running.store.stats().repaired.load(std::sync::atomic::Ordering::Relaxed);
    running.supervisor.restart(VICTIM);
    let restarted = time::now();
    let (repair_seconds, (resynced_bytes, resync_seconds)) =
        both(repaired(running, restarted), volume.resync(&behind, restarted)).await?;
    let after = running.store.stats().repaired.load(std::sync::atomic::Ordering::Relaxed);
    let rebuilt_files = copied.rebuild(read_files).await?;
    let replicas = scrub::scrub_store(&running.store, true, None, quiet).await;
    let (equal_regions, files) = volume.end().await?;
    Ok(Summary {
        import: Imported { put: store.watch.puts(), ..import },
        read_during_kill,
        read_without_node,
        killed_node: VICTIM + 1,
        written_while_down: WRITTEN_WHILE_DOWN,
        repair_seconds,
        repaired_replicas: after - before,
        replicas,
        volume: volume::Summary {
            files,
            write,
            rewritten_bytes,
            read,
            different_bytes,
            resynced_bytes,
            resync_seconds,
            equal_regions,
        },
        files: rebuilt_files,
    })
}

/// Reads the directory back; a third of the way on the node is killed.
async fn read_and_kill(running: &Running, tree: &Tree, killed: &Cell<bool>, quiet: bool) -> Result<Compared, Failure> {
    let kill = || {
        if !killed.replace(true) {
            running.supervisor.kill(VICTIM);
        }
    };
    let seen = Cell::new(0);
    let bar = output::progress("read, write a volume, and kill a node", tree.bytes(), quiet);
    let compared = copy::compare(&timed(running.store.clone()), tree, DEPTH, |bytes| {
        seen.set(seen.get() + bytes);
        bar.inc(bytes);
        if seen.get() * 3 >= tree.bytes() {
            kill();
        }
    })
    .await;
    bar.finish_and_clear();
    // An empty tree.
    kill();
    compared
}

/// Waits until the node that is killed is dead.
async fn death(running: &Running, killed: &Cell<bool>, dead: &Cell<bool>) -> Result<(), Failure> {
    while !killed.get() {
        time::sleep(LOOK_EVERY).await;
    }
    await_news(running, |news| matches!(news, News::Ended { node: VICTIM, .. })).await?;
    dead.set(true);
    Ok(())
}

/// Waits until the node is back and the store repaired: the seconds since.
async fn repaired(running: &Running, restarted: Instant) -> Result<f64, Failure> {
    await_news(running, |news| matches!(news, News::Started { node: VICTIM, .. })).await?;
    let repaired = time::timeout(REPAIR_TIME_MAX, async {
        while !running.store.is_repaired() {
            time::sleep(LOOK_EVERY).await;
        }
    });
    let late = || Failure::check(format!("node {} is not repaired after {REPAIR_TIME_MAX:?}", VICTIM + 1));
    repaired.await.map_err(|_| late())?;
    Ok(restarted.elapsed().as_secs_f64())
}

/// Waits for a piece of news; a bounded time, as the supervisor acts at once.
async fn await_news(running: &Running, is_it: impl Fn(&News) -> bool) -> Result<(), Failure> {
    let waited = time::timeout(super::START_TIME_MAX, async {
        while let Some(news) = running.news.recv().await {
            if is_it(&news) {
                return Ok(());
            }
        }
        Err(Failure::refused("the supervisor has ended"))
    });
    waited.await.map_err(|_| Failure::check(format!("node {} neither starts nor ends", VICTIM + 1)))?
}

/// Puts, gets and deletes that a dead node must not disturb.
async fn write_while_down<B: Backend>(store: &B) -> Result<(), Failure> {
    for number in 0..WRITTEN_WHILE_DOWN {
        let key = format!("yagura-drill/{number}");
        let value = vec![number as u8; 1 + number as usize * 37 % 9000];
        store.put(key.as_bytes(), &value).await.map_err(store_failure)?;
        let got = store.get(key.as_bytes()).await.map_err(store_failure)?;
        if !got.is_some_and(|got| got.equals(&value)) {
            return Err(Failure::check(format!("{key}: not what was just written")));
        }
        if number % 2 == 0 {
            store.delete(key.as_bytes()).await.map_err(store_failure)?;
        }
    }
    Ok(())
}

impl Summary {
    /// Whether everything was as it must be.
    pub fn verdict(&self) -> Result<(), Failure> {
        let different = self.read_during_kill.different + self.read_without_node.different;
        if different > 0 {
            let files = output::many(different, "file");
            return Err(Failure::check(format!("{files} did not come back as stored")));
        }
        if !self.replicas.equal {
            return Err(Failure::check("the replicas are not equal after the repair"));
        }
        self.volume.verdict().and(self.files.verdict())
    }

    /// For people.
    pub fn describe(&self) -> String {
        let Summary { import, read_during_kill, read_without_node, replicas, .. } = self;
        let parts = if import.parts > 0 {
            format!(", {} of larger ones", output::many(import.parts, "part"))
        } else {
            String::new()
        };
        let compared = |compared: &Compared| match compared.different {
            0 => format!("{} read, every byte right", Size(compared.bytes)),
            different => format!("{} WRONG: {}", output::many(different, "file"), compared.differences.join("; ")),
        };
        let verdict = if self.verdict().is_ok() { "passed" } else { "FAILED" };
        format!(
            "drill {verdict}\n\
             objects:   {}, {}{parts}\n\
             put:       {}\n\
             get:       {}\n\
             node {} killed while reading: {}\n\
             without the node: {} written; {}\n\
             get:       {}\n\
             repair:    {} in {:.2} s from the node's restart\n{}{}{}",
            output::many(import.files, "file"),
            Size(import.bytes),
            import.put.describe(),
            read_during_kill.get.describe(),
            self.killed_node,
            compared(read_during_kill),
            output::many(self.written_while_down.into(), "key"),
            compared(read_without_node),
            read_without_node.get.describe(),
            output::many(self.repaired_replicas, "replica"),
            self.repair_seconds,
            scrub::describe_scrub(replicas),
            self.volume.describe(),
            self.files.describe(),
        )
    }
}
