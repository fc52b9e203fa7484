//! memcached in the three ways that row B6 measures it: all in DRAM; in a memory cgroup, with swap for the rest; with extstore, in
//! a cgroup too, since it reads through the page cache and would else have the file in DRAM.
//!
//! What is made (a cgroup, a swap file, extstore's file) is removed when the peer is dropped, after its process has ended.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use crate::process::{self, Server};

/// The longest a cgroup may take until it is empty once its process was reaped.
const EMPTY_TIME_MAX: Duration = Duration::from_secs(4);
/// The longest the kernel may take to come below a limit, and the pause between two requests. Guessed; it swaps some 100 MB a
/// second out, and says that it is busy while that is under way.
const LIMIT_TIME_MAX: Duration = Duration::from_secs(120);
const LIMIT_PAUSE: Duration = Duration::from_millis(20);

/// How memcached holds what does not fit into its DRAM share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// It gets all the DRAM it asks for.
    Dram,
    /// The kernel swaps.
    Swap,
    /// extstore moves values to a file.
    Extstore,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 3] = [Way::Dram, Way::Swap, Way::Extstore];

    /// A name for people.
    pub fn name(self) -> &'static str {
        match self {
            Way::Dram => "memcached in DRAM",
            Way::Swap => "memcached with swap",
            Way::Extstore => "memcached with extstore",
        }
    }
}

/// What a memcached is to hold, and where.
#[derive(Clone, Copy, Debug)]
pub struct Shape<'a> {
    /// How many items there will be.
    pub items: u64,
    /// Mebibytes for all items.
    pub total_mib: u64,
    /// Mebibytes of DRAM, but for [`Way::Dram`].
    pub dram_mib: u64,
    /// Threads.
    pub threads: usize,
    /// Where swap and extstore have their files.
    pub folder: &'a Path,
}

/// A running memcached and what it runs in. Fields are dropped in their order: the process first.
pub struct Peer {
    /// The process.
    pub server: Server,
    _swap: Option<SwapFile>,
    group: Option<MemoryGroup>,
    _file: Option<Scratch>,
    dram_mib: u64,
}

impl Peer {
    /// Starts one.
    ///
    /// # Errors
    /// memcached is not installed; a cgroup or swap can't be made (that takes root).
    pub fn start(way: Way, shape: Shape<'_>) -> anyhow::Result<Peer> {
        let swap = match way {
            Way::Swap => Some(SwapFile::create(shape.folder, shape.total_mib * 12 / 10 + 256)?),
            Way::Dram | Way::Extstore => None,
        };
        let group = match way {
            Way::Dram => None,
            Way::Swap => Some(MemoryGroup::create("swap")?),
            Way::Extstore => Some(MemoryGroup::create("extstore")?),
        };
        if let (Way::Extstore, Some(group)) = (way, &group) {
            group.limit(shape.dram_mib)?;
        }
        let file = (way == Way::Extstore).then(|| Scratch(shape.folder.join("extstore")));
        let mut arguments = vec!["-t".to_owned(), shape.threads.to_string(), "-c".to_owned(), "4096".to_owned()];
        // Its table of buckets at its final size: growing it under load is not what is measured.
        let power = shape.items.max(1 << 12).ilog2();
        arguments.extend(["-o".to_owned(), format!("hashpower={power}")]);
        let megabytes = match &file {
            None => shape.total_mib,
            // The rest of the group is for the page cache, buffers and the table. It begins to drop items at three quarters.
            Some(Scratch(path)) => {
                let bytes = shape.total_mib * 2;
                let options = format!("ext_path={}:{bytes}M,ext_item_size=512,ext_threads=4", path.display());
                arguments.extend(["-o".to_owned(), options]);
                shape.dram_mib * 7 / 10
            }
        };
        let server = process::memcached_in(group.as_ref().map(MemoryGroup::tasks), megabytes, &arguments)?;
        Ok(Peer { server, _swap: swap, group, _file: file, dram_mib: shape.dram_mib })
    }

    /// All items are stored: from now on there is no more DRAM than the share. With swap that is not so from the start, as every
    /// item that is stored would have pages swapped in first: hours for what the kernel then writes out in seconds.
    ///
    /// # Errors
    /// The kernel does not come below the limit.
    pub fn confine(&self) -> anyhow::Result<()> {
        self.group.as_ref().map_or(Ok(()), |group| group.limit(self.dram_mib))
    }
}

/// A file that goes with its owner.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // It is not there if memcached never came to make it.
        drop(fs::remove_file(&self.0));
    }
}

/// A cgroup that limits the memory of its processes, the page cache they use included, once it is told to.
struct MemoryGroup {
    path: PathBuf,
    limit: &'static str,
}

impl MemoryGroup {
    /// One of this process; `of` tells apart those that it has at the same time.
    fn create(of: &str) -> anyhow::Result<MemoryGroup> {
        let name = format!("yagura-bench-{}-{of}", std::process::id());
        let unified = Path::new("/sys/fs/cgroup");
        let (path, limit) = if unified.join("cgroup.controllers").exists() {
            fs::write(unified.join("cgroup.subtree_control"), "+memory")
                .context("cannot limit memory: it takes root")?;
            (unified.join(name), "memory.max")
        } else {
            (legacy_parent()?.join(name), "memory.limit_in_bytes")
        };
        fs::create_dir(&path).with_context(|| format!("cannot make the cgroup {}: it takes root", path.display()))?;
        Ok(MemoryGroup { path, limit })
    }

    /// At most so much from now on; what is over is swapped or written out before this returns.
    fn limit(&self, mebibytes: u64) -> anyhow::Result<()> {
        let bytes = (mebibytes << 20).to_string();
        let begin = std::time::Instant::now();
        loop {
            match fs::write(self.path.join(self.limit), &bytes) {
                Err(error) if error.kind() == ErrorKind::ResourceBusy && begin.elapsed() < LIMIT_TIME_MAX => {
                    std::thread::sleep(LIMIT_PAUSE);
                }
                result => return result.context("cannot limit the cgroup's memory"),
            }
        }
    }

    /// Whatever process writes its number here is in the group.
    fn tasks(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }
}

/// Our own memory cgroup of the first version.
fn legacy_parent() -> anyhow::Result<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").context("cannot read our cgroup")?;
    let own = own.lines().find_map(|line| line.split_once(":memory:").map(|(_, path)| path.trim_start_matches('/')));
    let own = own.context("there is no memory cgroup: the kernel was started without")?;
    Ok(Path::new("/sys/fs/cgroup/memory").join(own))
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let begin = std::time::Instant::now();
        while let Err(error) = fs::remove_dir(&self.path) {
            if begin.elapsed() > EMPTY_TIME_MAX {
                tracing::warn!(path = %self.path.display(), %error, "the cgroup stays; remove it with rmdir");
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A file that the kernel swaps to.
struct SwapFile {
    path: PathBuf,
}

impl SwapFile {
    fn create(folder: &Path, mebibytes: u64) -> anyhow::Result<SwapFile> {
        let swap = SwapFile { path: folder.join("swap") };
        // Never with holes: the kernel refuses those.
        run(Command::new("fallocate").arg("-l").arg(format!("{mebibytes}M")).arg(&swap.path))?;
        let only_ours = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&swap.path, only_ours).context("cannot protect the swap file")?;
        run(Command::new("mkswap").arg("-q").arg(&swap.path))?;
        run(Command::new("swapon").arg(&swap.path))?;
        Ok(swap)
    }
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        // It was never switched on if its making failed half-way.
        drop(run(Command::new("swapoff").arg(&self.path)));
        drop(fs::remove_file(&self.path));
    }
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run {name} (Debian: util-linux, mount)"))?;
    let told = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{name} failed: {}", told.trim());
    Ok(())
}
